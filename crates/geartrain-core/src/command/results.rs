//! Results: waiting for a job, its progress and chunks, and its stored result.

use crate::{
    BadArgument, ChunkKind, Group, Holder, Jid, Payload, QueueName, StateName, Timestamp, UniqueKey,
};

/// Waits for a job.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Attach {
    /// Which.
    pub jid: Jid,
    /// Who waits.
    pub waiter: ResultWaiter,
}

/// Whether there is anything to wait for.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub enum AttachReply {
    /// It is unfinished: the waiter is told from here on.
    Attached,
    /// It ended. Nobody is attached.
    Ended {
        /// Its state; none if the job is forgotten and only its result is kept.
        state: Option<StateName>,
        /// Its result, if that is kept.
        #[serde(rename = "kept")]
        result: Option<Box<StoredResult>>,
    },
}

/// Waits no longer. Jobs that lived only as long as somebody waited are removed, unless they run or others depend on them.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Detach {
    /// Who leaves.
    #[serde(rename = "who")]
    pub scope: DetachScope,
}

/// Who waits no longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum DetachScope {
    /// One submission.
    One(ResultWaiter),
    /// All of one connection.
    Connection {
        /// Its front.
        #[serde(rename = "front")]
        stream_id: u64,
        /// Its number there.
        connection: u64,
    },
    /// All of one front.
    #[serde(rename = "Front")]
    Stream(u64),
    /// Everybody: whoever waited did so through a process that is gone.
    #[serde(rename = "Everyone")]
    All,
}

/// Says how far an attempt has got.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Progress {
    /// The job.
    pub jid: Jid,
    /// Who holds it.
    pub holder: Holder,
    /// How far.
    pub progress: Progressed,
    /// The same in the worker's own words, for those who wait: they are told, and it is kept nowhere.
    #[serde(default, rename = "said")]
    pub text: Option<Payload>,
}

impl Progress {
    /// So far, and not a word more.
    pub fn new(jid: Jid, holder: Holder, progress: Progressed) -> Progress {
        Progress { jid, holder, progress, text: None }
    }
}

/// Sends something to those who wait for a job. It is not kept.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Chunk {
    /// The job.
    pub jid: Jid,
    /// Who holds it.
    pub holder: Holder,
    /// What kind of thing.
    pub kind: ChunkKind,
    /// The thing.
    pub bytes: Payload,
}

/// Looks a result up.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct GetResult {
    /// The job that it came out of.
    pub jid: Jid,
}

/// Shows in short how an unfinished job does.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Status {
    /// Which.
    pub of: StatusOf,
}

/// Whose status is asked for.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum StatusOf {
    /// A job's.
    Jid(Jid),
    /// That of the unfinished job of a queue with this key.
    Unique(QueueName, UniqueKey),
}

/// How an unfinished job does.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct StatusReply {
    /// The job.
    pub jid: Jid,
    /// Its queue.
    pub queue: QueueName,
    /// Where it stands.
    pub state: StateName,
    /// How far the attempt under way has got.
    pub progress: Option<Progressed>,
    /// How many submissions it stands for.
    pub submissions: u64,
    /// How many of them wait for it.
    pub attached: u64,
}

/// One submission that waits for a job: told of its chunks, its progress and its end. Whoever submits chooses the numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct ResultWaiter {
    /// The stream that it is told through, see [`Backend::follow`](crate::Backend::follow).
    #[serde(rename = "front")]
    pub stream_id: u64,
    /// Those that leave together.
    pub connection: u64,
    /// Which of those.
    pub number: u64,
}

/// How much of an attempt is done: so many of so many.
///
/// [`Portion::new`] keeps callers from saying what makes no sense. But workers of Gearman say such things, and what they said is
/// passed on and kept; so what is read back is not checked again.
///
/// ```
/// use geartrain_core::Portion;
/// assert_eq!(Portion::new(1, 4)?.percent(), 25);
/// assert!(Portion::new(0, 0).is_err());
/// assert!(Portion::new(5, 4).is_err());
/// assert_eq!(Portion::unchecked(0, 0).percent(), 0);
/// assert_eq!(Portion::unchecked(5, 4).percent(), 100);
/// # Ok::<(), geartrain_core::BadArgument>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(from = "(u64, u64)")]
pub struct Portion {
    part: u64,
    whole: u64,
}

impl Portion {
    /// So many of so many; of nothing, or more than all, is refused.
    pub fn new(part: u64, whole: u64) -> Result<Portion, BadArgument> {
        if whole == 0 {
            return Err(BadArgument::new("progress", "must be out of at least 1"));
        }
        if part > whole {
            return Err(BadArgument::new(
                "progress",
                format!("must be at most {whole} of {whole}, not {part}"),
            ));
        }
        Ok(Portion { part, whole })
    }

    /// What a worker of Gearman says, whatever it is.
    pub fn unchecked(part: u32, whole: u32) -> Portion {
        Portion::from((u64::from(part), u64::from(whole)))
    }

    /// How many are done.
    pub fn part(self) -> u64 {
        self.part
    }

    /// Of how many.
    pub fn whole(self) -> u64 {
        self.whole
    }

    /// The same in percent, rounded down: 0 of nothing, and 100 of more than all.
    pub fn percent(self) -> u8 {
        let percent = (u128::from(self.part) * 100).checked_div(u128::from(self.whole));
        percent.map_or(0, |percent| percent.min(100) as u8)
    }
}

/// Takes what was said and kept, without a look.
impl From<(u64, u64)> for Portion {
    fn from((part, whole): (u64, u64)) -> Portion {
        Portion { part, whole }
    }
}

/// How far an attempt has got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Progressed {
    /// How much is done.
    pub portion: Portion,
    /// How many seconds it will still take, as far as the worker knows.
    pub seconds_left: Option<u32>,
}

/// What came out of a job.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct JobResult {
    /// A number, 0 for all is well.
    pub code: i32,
    /// Bytes that nobody in between looks at.
    pub bytes: Payload,
}

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum JobEnding {
    /// It was completed for good.
    Completed,
    /// It failed.
    Failed {
        /// The kind of failure.
        group: Group,
        /// What was said about it.
        message: String,
    },
    /// It was cancelled.
    Canceled,
}

/// A result that is kept.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct StoredResult {
    /// The job that it came out of.
    pub jid: Jid,
    /// How that ended.
    #[serde(rename = "how")]
    pub ending: JobEnding,
    /// What came out.
    #[serde(rename = "outcome")]
    pub result: JobResult,
    /// When.
    pub ended: Timestamp,
    /// Until when it is kept, unless newer ones need its room.
    pub until: Timestamp,
}
