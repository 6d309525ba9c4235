//! Commands and replies. Each operation is a struct with a reply type of its own; [`Command`] and [`Reply`]
//! are enums over all of them. A file per slice, named as in `engine/`: `put`, `pop`, `finish`, `change` …

mod access;
mod canceled;
mod capabilities;
mod change;
mod figures;
mod finish;
mod limits;
mod periodic;
mod pop;
mod put;
mod put_options;
mod read;
mod recur;
mod relock;
mod results;
mod select;
mod set_aside;
mod tick;
mod why;

pub use access::Role;
pub use canceled::*;
pub use capabilities::*;
pub use change::*;
pub use figures::*;
pub use finish::*;
pub use limits::*;
pub use periodic::*;
pub use pop::*;
pub use put::*;
pub use put_options::*;
pub use read::*;
pub use recur::*;
pub use relock::*;
pub use results::*;
pub use select::*;
pub use set_aside::*;
pub use tick::*;
pub use why::*;

use std::collections::BTreeMap;

use crate::{
    BadCount, Group, Jid, Job, LARGE_PAYLOAD_BYTES, Payload, Popped, Tag, Timestamp, Token, WorkerName,
};

/// An operation and the type of its reply. Implemented by every variant of [`Command`].
pub trait Operation: Into<Command> {
    /// The reply, if the backend does not refuse.
    type Reply;

    /// Extracts this operation's reply; `None` if `reply` belongs to another operation.
    fn answer(reply: Reply) -> Option<Self::Reply>;
}

macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident $(as $wire_name:literal)? => $reply:ty,)*) => {
        /// Any operation, as a [`Backend`](crate::Backend) executes it.
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        #[non_exhaustive]
        pub enum Command { $($(#[$doc])* $(#[serde(rename = $wire_name)])? $name($name),)* }

        /// The reply to any [`Command`].
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        #[non_exhaustive]
        pub enum Reply {
            $(
                #[doc = concat!("Reply to [`Command::", stringify!($name), "`].")]
                $(#[serde(rename = $wire_name)])?
                $name($reply),
            )*
        }

        impl Command {
            /// The operation's name, such as `Put`.
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
    /// The payload that this command stores in a job. Templates of recurring jobs do not count: their
    /// payloads are stored differently.
    pub fn payload(&self) -> Option<&Payload> {
        match self {
            Command::Put(put) => Some(&put.payload),
            Command::Heartbeat(heartbeat) => heartbeat.payload.as_ref(),
            Command::Complete(complete) => complete.payload.as_ref(),
            Command::Fail(fail) => fail.payload.as_ref(),
            _ => None,
        }
    }

    /// Mutable access to [`payload`](Command::payload).
    pub fn payload_mut(&mut self) -> Option<&mut Payload> {
        match self {
            Command::Put(put) => Some(&mut put.payload),
            Command::Heartbeat(heartbeat) => heartbeat.payload.as_mut(),
            Command::Complete(complete) => complete.payload.as_mut(),
            Command::Fail(fail) => fail.payload.as_mut(),
            _ => None,
        }
    }

    /// Copies all bytes that an engine would retain into [memory of their own](Payload::unshare). Small
    /// payloads are left alone, because the engine copies them anyway.
    pub fn unshare(&mut self) {
        if let Some(payload) = self.payload_mut()
            && payload.byte_len() > crate::engine::COPIED_BYTES_MAX
        {
            payload.unshare();
        }
        match self {
            Command::Put(Put { options: Some(options), .. }) => {
                options.metadata.iter_mut().for_each(Payload::unshare)
            }
            Command::Complete(Complete { result: Some(result), .. })
            | Command::Fail(Fail { result: Some(result), .. }) => result.bytes.unshare(),
            Command::Recur(recur) => recur.payload.unshare(),
            Command::UpdateRecurring(update) => update.payload.iter_mut().for_each(Payload::unshare),
            _ => {}
        }
    }

    /// Whether it is stored who asked for this: front-ends then fill [`Call::by`](crate::Call::by). Commands
    /// that come in thousands need not be looked at any further.
    pub fn records_caller(&self) -> bool {
        matches!(self, Command::Cancel(_) | Command::Act(_))
    }

    /// Whether the command carries a payload of [`LARGE_PAYLOAD_BYTES`] or more, so that commands sent later
    /// may overtake it.
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
    /// Extends a lock. Replies with the new deadline.
    Heartbeat => Timestamp,
    /// Completes a job, or moves it on to its next queue.
    Complete => CompleteReply,
    /// Fails a job.
    Fail => (),
    /// Returns a job to its queue and uses up one retry. Replies with the retries left; -1 if the job failed.
    Retry => i64,
    /// Takes running jobs away from their workers and puts them at the front of their queues.
    Timeout => (),
    /// Cancels jobs that are not complete. Replies with how many were cancelled.
    Cancel => u64,
    /// Moves the oldest failed jobs of a group into a queue. Replies with how many.
    Unfail => u64,
    /// Changes the priority of a job.
    SetPriority => (),
    /// Adds or removes dependencies of a job.
    Depend => (),
    /// Appends a message to a job's history.
    Log => (),
    /// Starts or stops tracking a job. Replies with whether that changed anything.
    Track => bool,
    /// Lists the tracked jobs.
    Tracked => TrackedReply,
    /// Adds tags to a job. Replies with all of its tags.
    AddTags => Vec<Tag>,
    /// Removes tags from a job. Replies with the remaining tags.
    RemoveTags => Vec<Tag>,
    /// Lists the jobs that have a tag, in the order in which they were tagged.
    Tagged => Listed,
    /// Lists the tags used at least twice, the most used first.
    TopTags => Vec<Tag>,
    /// Looks up a job.
    Get => Option<Box<Job>>,
    /// Looks up several jobs. Unknown ones are left out.
    GetMany => Vec<Job>,
    /// Counts the running, waiting and scheduled jobs of a queue.
    Length => u64,
    /// Lists the jobs in a state.
    Jobs => Vec<Jid>,
    /// Counts the failed jobs by group.
    Failures => BTreeMap<Group, u64>,
    /// Lists the failed jobs of one group, newest first.
    Failed => Listed,
    /// Counts the jobs of one queue, or of each registered queue in order of registration, by state. Makes
    /// due jobs waiting.
    Queues => Vec<QueueCounts>,
    /// Counts the jobs of each worker, most recently seen first. Forgets workers not seen for
    /// `max-worker-age` seconds.
    Workers => Vec<WorkerCounts>,
    /// Lists the jobs of one worker. Forgets workers not seen for `max-worker-age` seconds.
    WorkerJobs => WorkerJobsReply,
    /// Statistics of one queue for one day.
    Stats => Box<StatsReply>,
    /// Pauses queues: pops get none of their jobs.
    Pause => (),
    /// Resumes paused queues.
    Resume => (),
    /// Removes queues from the list of queues; their jobs stay.
    ForgetQueues => (),
    /// Removes workers from the list of workers; their locks stay.
    ForgetWorkers => (),
    /// Looks up an option; `None` if it is neither set nor known.
    GetConfig => Option<Setting>,
    /// Lists the options that are set, and the defaults that Qless lists.
    AllConfig => BTreeMap<String, Setting>,
    /// Sets an option.
    SetConfig => (),
    /// Resets an option to its default.
    UnsetConfig => (),
    /// Creates or replaces a recurring job.
    Recur => (),
    /// Removes a recurring job; the jobs that it spawned stay.
    Unrecur => (),
    /// Looks up a recurring job.
    GetRecurring => Option<Box<Recurring>>,
    /// Changes a recurring job.
    UpdateRecurring => (),
    /// Adds tags to the jobs that a recurring job will spawn. Replies with all of these tags.
    TagRecurring => Vec<Tag>,
    /// Removes such tags. Replies with the remaining ones.
    UntagRecurring => Vec<Tag>,
    /// Attaches a submission to a job, so that its result stream receives the result.
    Attach => AttachReply,
    /// Detaches submissions from their jobs. Replies with how many.
    Detach as "Leave" => u64,
    /// Reports the progress of an attempt.
    Progress => (),
    /// Sends data or a warning to a job's result streams. Replies with how many submissions receive it.
    Chunk => u64,
    /// Returns a job to its queue without using up a retry.
    Release as "HandBack" => (),
    /// Reports a dead worker: its jobs go back to the front of their queues. Replies with these jobs, in the
    /// order in which they were popped.
    WorkerLost as "Gone" => Vec<Jid>,
    /// Announces the capabilities of a worker.
    Announce => (),
    /// Counts the workers that can run a job.
    RollCall => u64,
    /// Lists the announced capabilities, sorted by worker.
    Announced => Vec<Announcement>,
    /// Sets a queue's limits.
    SetLimits => (),
    /// Looks up a queue's limits.
    GetLimits => QueueLimits,
    /// Looks up a stored result.
    GetResult => Option<Box<StoredResult>>,
    /// A short status of an unfinished job; `None` if there is no such job.
    Status => Option<StatusReply>,
    /// Explains why a job is not running.
    Why => Box<WhyReply>,
    /// Does time-driven housekeeping that no other command does.
    Tick => TickReply,
    /// Allocates consecutive numbers that are never allocated again. Replies with the first.
    AllocateIds as "Allot" => u64,
    /// Counts the waiting jobs of a queue by priority. Makes due jobs waiting.
    PriorityCounts => PriorityCountsReply,
    /// Removes everything, a part at a time. Replies with whether there may be more.
    Flush => bool,
    /// Looks up what is left of a cancelled job.
    Canceled => Option<Box<Tombstone>>,
    /// Lists the jobs that a filter selects, a page at a time.
    Select => Box<SelectReply>,
    /// Changes the jobs that a filter selects, a page at a time.
    Act => Box<ActReply>,
    /// Looks up the figures of queues.
    Figures => Vec<QueueFigures>,
    /// Explains why the jobs of a queue are not running. Makes due jobs waiting.
    WhyQueue => Box<WhyQueueReply>,
    /// Locks the running jobs of a restarted worker again, in the order in which they were popped.
    Relock => Vec<Popped>,
    /// Creates or replaces a periodic job. Replies with whether it is new.
    PutPeriodic => bool,
    /// Removes a periodic job; the jobs that it put stay. Replies with whether there was one.
    RemovePeriodic => bool,
    /// Lists periodic jobs.
    Periodics => Box<PeriodicsReply>,
    /// Lists the periodic jobs that are due.
    DuePeriodics => Box<DuePeriodicsReply>,
    /// Runs a periodic job, if no other process has.
    FirePeriodic => FirePeriodicReply,
    /// Sets jobs aside that are to be moved to another backend.
    SetAside => Box<SetAsideReply>,
    /// Removes jobs that are set aside, or puts them back.
    EndSetAside => EndSetAsideReply,
}

/// A number of items to request at once: 0 to 100,000.
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
    /// The largest count.
    pub const MAX: Count = Count(100_000);

    /// Checks that a number is from 0 to [`Count::MAX`].
    pub fn new(value: i64) -> Result<Count, BadCount> {
        match u32::try_from(value) {
            Ok(count) if count <= Count::MAX.0 => Ok(Count(count)),
            _ => Err(BadCount { value }),
        }
    }

    /// The count as a number.
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

/// A page of a long list; the first 25 entries by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Page {
    /// How many entries to skip.
    pub offset: usize,
    /// How many entries to return at most.
    pub count: Count,
}

impl Default for Page {
    fn default() -> Page {
        Page { offset: 0, count: Count(25) }
    }
}

/// The holder of a job's lock, as the caller identifies it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Holder {
    /// The attempt that received this fencing token with the job.
    Token(Token),
    /// A worker of this name. Qless clients know no tokens and are checked by name.
    Worker(WorkerName),
}

/// Whether a dependency may close a cycle, so that a job waits for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub enum Cycles {
    /// Refuse such a dependency.
    #[default]
    Refuse,
    /// Accept it, as Qless does. The jobs of the cycle never run.
    Accept,
}
