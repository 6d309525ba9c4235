//! Set aside: takes jobs out of work while they are moved to another backend, and ends that.

use crate::{Jid, Job, Periodic};

/// The failure group of jobs that are set aside.
pub const TRANSFER_GROUP: &str = "geartrain-transfer";

/// The most jobs that one [`SetAside`] or [`EndSetAside`] names.
pub const SET_ASIDE_MAX: usize = 1_000;

/// A [`SetAside`] that has answered with so many bytes of payloads leaves the other jobs for the next one.
pub const SET_ASIDE_BYTES_MAX: usize = 8 << 20;

/// The longest [`SetAside::to`], in bytes.
pub const TRANSFER_BYTES_MAX: usize = 512;

/// Sets jobs aside, in this order: no worker gets them until [`EndSetAside`]. They wait in the failure group
/// [`TRANSFER_GROUP`], keep their history, and have no lock that could expire. Running and complete jobs stay,
/// and so do jobs for whose result a client waits.
///
/// A job that depends on others is set aside after these, because a dependency that is set aside cannot
/// complete. A job that is set aside for the same target already is answered again, so that an interrupted
/// transfer can continue.
///
/// ```
/// use geartrain_core::{Jid, SetAside};
/// let aside = SetAside { jids: vec![Jid::new("j1")?], to: "redis://queue.example".into() };
/// # Ok::<(), geartrain_core::BadName>(())
/// ```
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct SetAside {
    /// The jobs, at most [`SET_ASIDE_MAX`].
    pub jids: Vec<Jid>,
    /// The target of the transfer: a URL without a password or blanks, 1 to [`TRANSFER_BYTES_MAX`] bytes.
    pub to: String,
}

/// The jobs that are set aside. Jobs in neither list were left alone: name them again in another command.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct SetAsideReply {
    /// The jobs, with the state that they had before. Their histories and the ends of their attempts are not moved,
    /// and are left out.
    pub jobs: Vec<Job>,
    /// Jobs that stay as they are.
    pub stay: Vec<(Jid, StayReason)>,
    /// Recurring jobs that are set aside, where these are jobs like any other: in WorkKit schedules.
    #[serde(default)]
    pub recurring: Vec<Periodic>,
}

/// Ends a transfer of jobs that are set aside.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct EndSetAside {
    /// The jobs, at most [`SET_ASIDE_MAX`].
    pub jids: Vec<Jid>,
    /// What becomes of them.
    pub end: TransferEnd,
}

/// What becomes of jobs that are set aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum TransferEnd {
    /// They are removed: the target has them.
    Remove,
    /// They are put back as they were. Waiting ones are ordered by when they were last put or popped.
    Return,
}

/// How a transfer ended.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct EndSetAsideReply {
    /// How many jobs were removed or put back.
    pub ended: u64,
    /// Jobs that stay as they are.
    pub stay: Vec<(Jid, StayReason)>,
}

/// Why a job is not set aside, removed or put back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum StayReason {
    /// There is no such job.
    Unknown,
    /// A worker has it.
    Running,
    /// It is complete.
    Complete,
    /// A client waits for its result.
    Awaited,
    /// It depends on a job that is not set aside.
    Depends,
    /// It is set aside for another target.
    OtherTarget,
    /// It is not set aside.
    NotSetAside,
    /// A job that is not set aside depends on it.
    HasDependents,
    /// Its payload cannot be read.
    Unreadable,
    /// It is a function literal of WorkKit.
    Literal,
    /// Several queues have a job of this jid.
    InSeveral,
    /// A client may wait for its result: a Gearman server does not tell.
    PerhapsAwaited,
}

impl std::fmt::Display for StayReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            StayReason::Unknown => "does not exist any more",
            StayReason::Running => "is running",
            StayReason::Complete => "is complete",
            StayReason::Awaited => "has a client that waits for its result",
            StayReason::Depends => "depends on a job that stays",
            StayReason::OtherTarget => "is set aside for another target",
            StayReason::NotSetAside => "is not set aside any more",
            StayReason::HasDependents => "has dependents that stay",
            StayReason::Unreadable => "has a payload that cannot be read",
            StayReason::Literal => "is a function literal, which only Clojure can run",
            StayReason::InSeveral => "is in several schedules: choose one with ?schedule= in the URL",
            StayReason::PerhapsAwaited => {
                "may have a client that waits for its result: the server does not tell, as the unique key is - or \
                 also that of another job"
            }
        })
    }
}
