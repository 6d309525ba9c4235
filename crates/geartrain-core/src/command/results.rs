//! Results: waiting for a job, its progress and chunks, and its stored result.

use crate::{
    BadArgument, ChunkKind, Group, Holder, Jid, Payload, QueueName, StateName, Timestamp, UniqueKey,
};

/// Attaches a submission to a job: from then on its result stream receives chunks, progress and the result.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Attach {
    /// The job to wait for.
    pub jid: Jid,
    /// The submission that waits.
    pub waiter: ResultWaiter,
}

/// Whether the submission was attached.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub enum AttachReply {
    /// The job is unfinished, and the submission is attached to it.
    Attached,
    /// The job has ended. The submission is not attached.
    Ended {
        /// The state of the job; `None` if it was removed and only its result is stored.
        state: Option<StateName>,
        /// The stored result, if there is one.
        #[serde(rename = "kept")]
        result: Option<Box<StoredResult>>,
    },
}

/// Detaches submissions from their jobs. Unfinished jobs with
/// [`OrphanPolicy::WhileAwaited`](crate::OrphanPolicy::WhileAwaited) that lose their last submission are
/// removed, unless they are running or other jobs depend on them.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Detach {
    /// Which submissions to detach.
    #[serde(rename = "who")]
    pub scope: DetachScope,
}

/// Which submissions a [`Detach`] detaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum DetachScope {
    /// One submission.
    One(ResultWaiter),
    /// All submissions of one connection.
    Connection {
        /// The result stream of the connection.
        #[serde(rename = "front")]
        stream_id: u64,
        /// The number of the connection within that stream.
        connection: u64,
    },
    /// All submissions of one result stream.
    #[serde(rename = "Front")]
    Stream(u64),
    /// All submissions; sent at start, because all result streams ended with the last process.
    #[serde(rename = "Everyone")]
    All,
}

/// Reports the progress of an attempt. The latest progress is stored with the job and sent to its result
/// streams.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Progress {
    /// The running job.
    pub jid: Jid,
    /// The holder of its lock.
    pub holder: Holder,
    /// How much is done.
    pub progress: Progressed,
    /// A message for the result streams. It is not stored.
    #[serde(default, rename = "said")]
    pub text: Option<Payload>,
}

impl Progress {
    /// Progress without a message.
    pub fn new(jid: Jid, holder: Holder, progress: Progressed) -> Progress {
        Progress { jid, holder, progress, text: None }
    }
}

/// Sends data or a warning to a job's result streams. It is not stored.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Chunk {
    /// The running job.
    pub jid: Jid,
    /// The holder of its lock.
    pub holder: Holder,
    /// Partial result or warning.
    pub kind: ChunkKind,
    /// The data to send.
    pub bytes: Payload,
}

/// Looks up a stored result.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct GetResult {
    /// The job that produced it.
    pub jid: Jid,
}

/// Looks up the status of an unfinished job.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Status {
    /// Which job.
    pub of: StatusOf,
}

/// Identifies the job of a [`Status`] request.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum StatusOf {
    /// By its id.
    Jid(Jid),
    /// By its queue and unique key.
    Unique(QueueName, UniqueKey),
}

/// The status of an unfinished job.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct StatusReply {
    /// Its id.
    pub jid: Jid,
    /// Its queue.
    pub queue: QueueName,
    /// Its state.
    pub state: StateName,
    /// The progress of the current attempt.
    pub progress: Option<Progressed>,
    /// How many submissions share the job: the put that created it, and those that joined it.
    pub submissions: u64,
    /// How many of them are attached and wait for the result.
    pub attached: u64,
}

/// A submission that waits for a job. Its result stream receives the chunks, progress and result of the job.
/// The client chooses the numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct ResultWaiter {
    /// The result stream that it receives through, see
    /// [`Backend::open_result_stream`](crate::Backend::open_result_stream).
    #[serde(rename = "front")]
    pub stream_id: u64,
    /// The client connection; its submissions can be [detached](DetachScope::Connection) together.
    pub connection: u64,
    /// The number of the submission within the connection.
    pub number: u64,
}

/// Progress as a fraction: `part` of `whole`.
///
/// [`Portion::new`] checks it. Gearman workers may report anything, such as 5 of 4; their numbers are passed
/// on and stored unchanged, so decoding does not check them either.
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
    /// Checks that `whole` is at least 1 and `part` at most `whole`.
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

    /// Takes the numbers of a Gearman worker without a check.
    pub fn unchecked(part: u32, whole: u32) -> Portion {
        Portion::from((u64::from(part), u64::from(whole)))
    }

    /// The numerator.
    pub fn part(self) -> u64 {
        self.part
    }

    /// The denominator.
    pub fn whole(self) -> u64 {
        self.whole
    }

    /// Percentage, rounded down and at most 100; 0 if `whole` is 0.
    pub fn percent(self) -> u8 {
        let percent = (u128::from(self.part) * 100).checked_div(u128::from(self.whole));
        percent.map_or(0, |percent| percent.min(100) as u8)
    }
}

/// Takes stored numbers without a check.
impl From<(u64, u64)> for Portion {
    fn from((part, whole): (u64, u64)) -> Portion {
        Portion { part, whole }
    }
}

/// Progress of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Progressed {
    /// How much is done.
    pub portion: Portion,
    /// The worker's estimate of the remaining seconds.
    pub seconds_left: Option<u32>,
}

/// The result of a job.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct JobResult {
    /// An exit code; 0 means success.
    pub code: i32,
    /// Opaque result data.
    pub bytes: Payload,
}

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum JobEnding {
    /// It was completed.
    Completed,
    /// It failed.
    Failed {
        /// The kind of failure.
        group: Group,
        /// The error message.
        message: String,
    },
    /// It was cancelled.
    Canceled,
}

/// The stored result of a job.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct StoredResult {
    /// The job that produced it.
    pub jid: Jid,
    /// How the job ended.
    #[serde(rename = "how")]
    pub ending: JobEnding,
    /// The result itself.
    #[serde(rename = "outcome")]
    pub result: JobResult,
    /// When the job ended.
    pub ended: Timestamp,
    /// When it expires. It may be dropped earlier if newer results need the space.
    pub until: Timestamp,
}
