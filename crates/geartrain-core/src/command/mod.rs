//! All that can be asked, and how it is answered: each operation is a type with a reply of its own, and
//! [`Command`] and [`Reply`] are the sums of them.

mod capabilities;
mod change;
mod finish;
mod limits;
mod pop;
mod put;
mod put_options;
mod read;
mod recur;
mod results;
mod tick;
mod why;

pub use capabilities::*;
pub use change::*;
pub use finish::*;
pub use limits::*;
pub use pop::*;
pub use put::*;
pub use put_options::*;
pub use read::*;
pub use recur::*;
pub use results::*;
pub use tick::*;
pub use why::*;

use std::collections::BTreeMap;

use crate::{BadCount, Group, Jid, Job, LARGE_PAYLOAD_BYTES, Payload, Tag, Timestamp, Token, WorkerName};

/// One thing that can be asked, and the type of its answer.
pub trait Operation: Into<Command> {
    /// What comes back.
    type Reply;

    /// Takes this operation's answer out of a reply; none if the reply answers another one.
    fn answer(reply: Reply) -> Option<Self::Reply>;
}

macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident $(as $wire_name:literal)? => $reply:ty,)*) => {
        /// Any operation.
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        #[non_exhaustive]
        pub enum Command { $($(#[$doc])* $(#[serde(rename = $wire_name)])? $name($name),)* }

        /// Any operation's answer.
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        #[non_exhaustive]
        pub enum Reply { $(#[doc = concat!("Answers [`Command::", stringify!($name), "`].")] $(#[serde(rename = $wire_name)])? $name($reply),)* }

        impl Command {
            /// The operation's name.
            pub fn name(&self) -> &'static str {
                match self { $(Command::$name(_) => stringify!($name),)* }
            }
        }

        $(
            impl From<$name> for Command {
                fn from(operation: $name) -> Command {
                    Command::$name(operation)
                }
            }

            impl Operation for $name {
                type Reply = $reply;
                fn answer(reply: Reply) -> Option<$reply> {
                    match reply {
                        Reply::$name(answer) => Some(answer),
                        _ => None,
                    }
                }
            }
        )*
    };
}

impl Command {
    /// The payload that it would give to a job. Those of recurring jobs are kept otherwise, and are not
    /// meant.
    pub fn payload(&self) -> Option<&Payload> {
        match self {
            Command::Put(put) => Some(&put.payload),
            Command::Heartbeat(heartbeat) => heartbeat.payload.as_ref(),
            Command::Complete(complete) => complete.payload.as_ref(),
            Command::Fail(fail) => fail.payload.as_ref(),
            _ => None,
        }
    }

    /// The same, to be exchanged.
    pub fn payload_mut(&mut self) -> Option<&mut Payload> {
        match self {
            Command::Put(put) => Some(&mut put.payload),
            Command::Heartbeat(heartbeat) => heartbeat.payload.as_mut(),
            Command::Complete(complete) => complete.payload.as_mut(),
            Command::Fail(fail) => fail.payload.as_mut(),
            _ => None,
        }
    }

    /// Gives all bytes that an engine would keep memory [of their own](Payload::unshare). Payloads that it
    /// copies anyway are left as they are.
    pub fn unshare(&mut self) {
        if let Some(payload) = self.payload_mut()
            && payload.byte_len() > crate::engine::COPIED_BYTES_MAX
        {
            payload.unshare();
        }
        match self {
            Command::Put(Put { options: Some(terms), .. }) => {
                terms.metadata.iter_mut().for_each(Payload::unshare)
            }
            Command::Complete(Complete { result: Some(result), .. })
            | Command::Fail(Fail { result: Some(result), .. }) => result.bytes.unshare(),
            Command::Recur(recur) => recur.payload.unshare(),
            Command::UpdateRecurring(update) => update.payload.iter_mut().for_each(Payload::unshare),
            _ => {}
        }
    }

    /// Whether it carries a payload of [`LARGE_PAYLOAD_BYTES`] or more, so that commands sent later may
    /// overtake it.
    pub fn is_large(&self) -> bool {
        self.payload().is_some_and(|payload| payload.byte_len() >= LARGE_PAYLOAD_BYTES)
    }
}

operations! {
    /// Puts a job into a queue.
    Put => PutReply,
    /// Hands jobs to a worker.
    Pop => PopReply,
    /// Shows which jobs a pop would hand out.
    Peek => Vec<Job>,
    /// Pushes a lock's deadline back.
    Heartbeat => Timestamp,
    /// Ends an attempt well.
    Complete => CompleteReply,
    /// Ends an attempt badly.
    Fail => (),
    /// Gives a job back to its queue, at the price of one retry. Answers how many are left; -1: it failed.
    Retry => i64,
    /// Takes running jobs away from their workers, to the very front of their queues.
    Timeout => (),
    /// Removes jobs that are not complete. Answers how many there were.
    Cancel => u64,
    /// Moves the oldest failed jobs of a group into a queue. Answers how many.
    Unfail => u64,
    /// Changes how much a job matters.
    SetPriority => (),
    /// Changes what a job waits for.
    Depend => (),
    /// Writes something into a job's history.
    Log => (),
    /// Starts or ends the tracking of a job. Answers whether that changed anything.
    Track => bool,
    /// Lists the tracked jobs.
    Tracked => TrackedReply,
    /// Adds tags to a job. Answers all that it has then.
    AddTags => Vec<Tag>,
    /// Removes tags from a job. Answers all that it has then.
    RemoveTags => Vec<Tag>,
    /// Lists the jobs that have a tag, in the order in which they got it.
    Tagged => Listed,
    /// Lists the tags used at least twice, the most used first.
    TopTags => Vec<Tag>,
    /// Looks a job up.
    Get => Option<Box<Job>>,
    /// Looks several jobs up. Unknown ones are left out.
    GetMany => Vec<Job>,
    /// Counts the jobs of a queue that run, wait or are scheduled.
    Length => u64,
    /// Lists jobs by where they stand.
    Jobs => Vec<Jid>,
    /// Counts the failed jobs by group.
    Failures => BTreeMap<Group, u64>,
    /// Lists the failed jobs of one group, newest first.
    Failed => Listed,
    /// Counts the jobs of one queue, or of each registered one, first seen first. Due jobs become waiting.
    Queues => Vec<QueueCounts>,
    /// Counts the jobs of each worker, most recently seen first. Workers not seen for long are forgotten.
    Workers => Vec<WorkerCounts>,
    /// Lists the jobs of one worker. Workers not seen for long are forgotten.
    WorkerJobs => WorkerJobsReply,
    /// Tells how one queue did on one day.
    Stats => Box<StatsReply>,
    /// Stops handing out jobs of these queues.
    Pause => (),
    /// Hands them out again.
    Resume => (),
    /// Takes queues off the list of queues; their jobs stay.
    ForgetQueues => (),
    /// Takes workers off the list of workers; their locks stay.
    ForgetWorkers => (),
    /// Looks an option up. None: it is neither set nor known.
    GetConfig => Option<Setting>,
    /// Lists the options that are set, and the defaults of those that Qless lists.
    AllConfig => BTreeMap<String, Setting>,
    /// Sets an option.
    SetConfig => (),
    /// Puts an option back to its default.
    UnsetConfig => (),
    /// Makes a recurring job, or replaces it.
    Recur => (),
    /// Removes a recurring job; what it spawned stays.
    Unrecur => (),
    /// Looks a recurring job up.
    GetRecurring => Option<Box<Recurring>>,
    /// Changes a recurring job.
    UpdateRecurring => (),
    /// Adds tags to what a recurring job will spawn. Answers all that it has then.
    TagRecurring => Vec<Tag>,
    /// Removes such tags. Answers all that it has then.
    UntagRecurring => Vec<Tag>,
    /// Waits for a job.
    Attach => AttachReply,
    /// Waits no longer. Answers how many submissions left.
    Detach as "Leave" => u64,
    /// Says how far an attempt has got.
    Progress => (),
    /// Sends something to those who wait for a job. Answers how many were told.
    Chunk => u64,
    /// Gives a job back to the front of its queue, at no price.
    Release as "HandBack" => (),
    /// Says that a worker is dead: its jobs go back to the front of their queues. Answers which, in the order in which they were handed out.
    WorkerLost as "Gone" => Vec<Jid>,
    /// Says what a worker can do.
    Announce => (),
    /// Counts the workers that can do a job.
    RollCall => u64,
    /// Lists what workers have announced, by name.
    Announced => Vec<Announcement>,
    /// Limits a queue.
    SetLimits => (),
    /// Shows a queue's limits.
    GetLimits => QueueLimits,
    /// Looks a result up.
    GetResult => Option<Box<StoredResult>>,
    /// Shows in short how an unfinished job does.
    Status => Option<StatusReply>,
    /// Says why a job does not run.
    Why => Box<WhyReply>,
    /// Does what is due and what no other command does.
    Tick => TickReply,
    /// Hands out numbers that nobody gets again. Answers the first.
    AllocateIds as "Allot" => u64,
    /// Counts the waiting jobs of a queue by priority. Due jobs become waiting.
    PriorityCounts => PriorityCountsReply,
}

/// How many of something are asked for at once: 0 to 100,000.
///
/// ```
/// use geartrain_core::Count;
/// assert_eq!(Count::new(25)?.get(), 25);
/// assert!(Count::new(-1).is_err());
/// assert!(Count::new(1_000_000_000).is_err());
/// # Ok::<(), geartrain_core::BadCount>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "i64")]
pub struct Count(u32);

impl Count {
    /// One.
    pub const ONE: Count = Count(1);
    /// The most that can be asked for.
    pub const MAX: Count = Count(100_000);

    /// Takes a number as a count, unless it is negative or huge.
    pub fn new(value: i64) -> Result<Count, BadCount> {
        match u32::try_from(value) {
            Ok(count) if count <= Count::MAX.0 => Ok(Count(count)),
            _ => Err(BadCount { value }),
        }
    }

    /// The number itself.
    pub fn get(self) -> usize {
        self.0 as usize
    }
}

impl TryFrom<i64> for Count {
    type Error = BadCount;
    fn try_from(value: i64) -> Result<Count, BadCount> {
        Count::new(value)
    }
}

/// Part of a long list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Page {
    /// How many to leave out at its beginning.
    pub offset: usize,
    /// How many to show.
    pub count: Count,
}

impl Default for Page {
    fn default() -> Page {
        Page { offset: 0, count: Count(25) }
    }
}

/// Who says that they hold a job.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Holder {
    /// The attempt that got this token when it popped the job.
    Token(Token),
    /// A worker of this name: how Qless callers, who know no tokens, are checked.
    Worker(WorkerName),
}

/// Whether a job may be made to wait for itself, through others or directly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub enum Cycles {
    /// It may not.
    #[default]
    Refuse,
    /// It may, and then never runs, as in Qless.
    Accept,
}
