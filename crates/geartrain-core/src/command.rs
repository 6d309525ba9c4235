//! All that can be asked, and how it is answered: each operation is a type with a reply of its own, and
//! [`Command`] and [`Reply`] are the sums of them.

use std::collections::BTreeMap;

use crate::wire::Word;
use crate::{
    Announcement, BadCount, Capability, ChunkKind, Group, Jid, Job, JobResult, Klass, LARGE_PAYLOAD_BYTES,
    Payload, Popped, Priority, Progressed, PutOptions, QueueLimits, QueueName, RandomUnit, ResultWaiter,
    Seconds, StateName, StoredResult, Tag, Timestamp, Token, UniqueKey, WhyReply, WorkerName,
};

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

/// Part of a long list of jobs.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Listed {
    /// How many there are in all.
    pub total: u64,
    /// Those on this page.
    pub jids: Vec<Jid>,
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

/// Puts a job into a queue.
///
/// ```
/// use geartrain_core::{Jid, Klass, Priority, Put, QueueName};
/// let put = Put {
///     priority: Some(Priority::from(5)),
///     ..Put::new(QueueName::new("mail")?, Jid::new("j1")?, Klass::new("welcome")?, "{}")
/// };
/// assert_eq!(put.retries, None); // a new job then gets 5
/// # Ok::<(), geartrain_core::BadName>(())
/// ```
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Put {
    /// Where to.
    pub queue: QueueName,
    /// Its id.
    pub jid: Jid,
    /// What code runs it.
    pub klass: Klass,
    /// What that code is given.
    pub payload: Payload,
    /// How long it may not run. Negative means not at all.
    pub delay: Seconds,
    /// How much it matters; as before, or 0 for a new job, if not given.
    pub priority: Option<Priority>,
    /// How often it may be tried again; as before, or 5 for a new job, if not given.
    pub retries: Option<u32>,
    /// Words to find it by, at most 1,000; as before, or none for a new job, if not given.
    pub tags: Option<Vec<Tag>>,
    /// Jobs to wait for. Unknown and complete ones count as done. If any are given they replace those from before.
    pub depends: Vec<Jid>,
    /// The worker that puts it: a holder who moves its own job is not told that it lost it.
    pub caller: Option<WorkerName>,
    /// What to do about a job that has this id already.
    pub existing: Existing,
    /// Whether the job may be made to wait for itself.
    pub cycles: Cycles,
    /// What it asks for beyond Qless. A job that is put again gets these, and keeps those it has if none are given.
    #[serde(rename = "terms")]
    pub options: Option<Box<PutOptions>>,
}

impl Put {
    /// A put with everything else left at its default.
    pub fn new(queue: QueueName, jid: Jid, klass: Klass, payload: impl Into<Payload>) -> Put {
        Put {
            queue,
            jid,
            klass,
            payload: payload.into(),
            delay: Seconds::ZERO,
            priority: None,
            retries: None,
            tags: None,
            depends: Vec::new(),
            caller: None,
            existing: Existing::Keep,
            cycles: Cycles::Refuse,
            options: None,
        }
    }
}

/// What a put does about a job that has its id already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub enum Existing {
    /// Leaves it alone and says so. That makes it safe to send a put again after a lost reply.
    #[default]
    Keep,
    /// Puts it again, wherever it stands: Qless's put.
    Replace,
    /// The same, and refuses if there is none: Qless's requeue.
    Require,
}

/// What a put did.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum PutReply {
    /// The job is new.
    Created,
    /// The job was there, and was put again.
    Replaced,
    /// The job was there, and was left alone; but if it is unfinished, who was to be attached is.
    Existing,
    /// Another job has the same unique key and is unfinished, and stands for this put as well.
    Coalesced {
        /// That job.
        jid: Jid,
    },
    /// The backend chooses jids itself, and this is the job's. It may be new, or another that stands for this put as well: the backend does not say which.
    Named {
        /// The one it chose.
        jid: Jid,
    },
}

/// Hands jobs to a worker.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Pop {
    /// Where from: 1 to 1,024 queues.
    pub queues: Vec<QueueName>,
    /// Who asks.
    pub worker: WorkerName,
    /// How many, at most.
    pub count: Count,
    /// Which queue's job goes first.
    pub order: PopOrder,
    /// Whether to answer with the whole job, history and all, or only with what a worker needs.
    pub whole: bool,
}

impl Pop {
    /// A pop of one job from one queue.
    pub fn new(queue: QueueName, worker: WorkerName) -> Pop {
        Pop { queues: vec![queue], worker, count: Count::ONE, order: PopOrder::Strict, whole: false }
    }
}

/// Which of several queues a job is taken from.
///
/// A *turn* is the place in the list of queues to begin at: the worker keeps it from one pop's reply to its next pop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub enum PopOrder {
    /// Always the first that has one.
    #[default]
    Strict,
    /// One from each in turn.
    RoundRobin {
        /// Where to begin.
        turn: usize,
    },
    /// The job that matters most, whichever queue it is in; one from each in turn among equals.
    Priority {
        /// Where to begin.
        turn: usize,
    },
}

impl PopOrder {
    /// Where among so many queues a pop begins, and where the next one does if this one hands out nothing.
    pub fn turn(self, queues: usize) -> usize {
        match self {
            PopOrder::Strict => 0,
            PopOrder::RoundRobin { turn } | PopOrder::Priority { turn } => turn % queues.max(1),
        }
    }
}

/// What a pop handed out.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct PopReply {
    /// The jobs, each with its lock.
    pub jobs: Vec<Popped>,
    /// Where the next pop begins.
    pub turn: usize,
}

/// Shows which jobs a pop would hand out: those whose lock expired, then those that wait.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Peek {
    /// Where.
    pub queue: QueueName,
    /// How many, at most.
    pub count: Count,
}

/// Pushes a lock's deadline back.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Heartbeat {
    /// The job.
    pub jid: Jid,
    /// Who holds it.
    pub holder: Holder,
    /// A new payload, if it changed.
    pub payload: Option<Payload>,
}

/// Ends an attempt well.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Complete {
    /// The job.
    pub jid: Jid,
    /// Who holds it.
    pub holder: Holder,
    /// The queue that the caller thinks it is in; checked if given.
    pub queue: Option<QueueName>,
    /// A new payload, if it changed.
    pub payload: Option<Payload>,
    /// Where it goes from here; nowhere, if not given.
    pub next: Option<Next>,
    /// What came out of it, for those who wait and for those who ask later. Not told to anybody if the job goes on.
    pub result: Option<Box<JobResult>>,
}

impl Complete {
    /// Completes a job for good.
    pub fn new(jid: Jid, holder: Holder) -> Complete {
        Complete { jid, holder, queue: None, payload: None, next: None, result: None }
    }
}

/// Where a completed job goes on to.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Next {
    /// The queue.
    pub queue: QueueName,
    /// How long it may not run there.
    pub delay: Seconds,
    /// Jobs to wait for there. Unknown and complete ones count as done. If all of them are, the delay is dropped.
    pub depends: Vec<Jid>,
    /// Whether the job may be made to wait for itself.
    pub cycles: Cycles,
}

impl Next {
    /// On to a queue, at once.
    pub fn new(queue: QueueName) -> Next {
        Next { queue, delay: Seconds::ZERO, depends: Vec::new(), cycles: Cycles::Refuse }
    }
}

/// Where a job went when it was completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum CompleteReply {
    /// It is done for good.
    Complete,
    /// It waits in its next queue.
    Waiting,
    /// It is scheduled in its next queue.
    Scheduled,
    /// It waits for other jobs in its next queue.
    Depends,
}

/// Ends an attempt badly.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Fail {
    /// The job.
    pub jid: Jid,
    /// Who holds it.
    pub holder: Holder,
    /// The kind of failure.
    pub group: Group,
    /// What went wrong.
    pub message: String,
    /// A new payload, if it changed.
    pub payload: Option<Payload>,
    /// What came out of it, for those who wait and for those who ask later.
    pub result: Option<Box<JobResult>>,
}

impl Fail {
    /// Fails a job, and leaves its payload as it is.
    pub fn new(jid: Jid, holder: Holder, group: Group, message: impl Into<String>) -> Fail {
        Fail { jid, holder, group, message: message.into(), payload: None, result: None }
    }
}

/// Gives a job back to its queue, at the price of one retry.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Retry {
    /// The job.
    pub jid: Jid,
    /// Who holds it.
    pub holder: Holder,
    /// The queue that the caller thinks it is in; checked if given.
    pub queue: Option<QueueName>,
    /// How long it may not run.
    pub delay: Seconds,
    /// Waits as the job's backoff says, if it has one, and not for `delay`.
    pub chance: Option<RandomUnit>,
    /// The kind of failure, if that was why; `failed-retries-<queue>` if not given and no retry is left.
    pub group: Option<Group>,
    /// What went wrong. A failure is written down only if both are given.
    pub message: Option<String>,
}

impl Retry {
    /// Gives a job back at once, and says nothing about why.
    pub fn new(jid: Jid, holder: Holder) -> Retry {
        Retry { jid, holder, queue: None, delay: Seconds::ZERO, chance: None, group: None, message: None }
    }
}

/// Takes running jobs away from their workers; all of them or, if one is not running, none.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Timeout {
    /// The jobs.
    pub jids: Vec<Jid>,
}

/// Removes jobs; all of them or, if another job depends on one, none. Complete and unknown ones are passed over.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Cancel {
    /// The jobs.
    pub jids: Vec<Jid>,
}

/// Moves failed jobs back into a queue.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Unfail {
    /// Where to.
    pub queue: QueueName,
    /// Which kind of failure.
    pub group: Group,
    /// How many, at most, and at least one.
    pub count: Count,
}

/// Changes how much a job matters. If it waits, it also goes to the front of that priority.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct SetPriority {
    /// The job.
    pub jid: Jid,
    /// How much it matters from now on.
    pub priority: Priority,
}

/// Changes what a job waits for. Only a job that waits for others can.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Depend {
    /// The job.
    pub jid: Jid,
    /// What changes.
    pub change: DependChange,
    /// Whether the job may be made to wait for itself.
    pub cycles: Cycles,
}

/// What changes about what a job waits for.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum DependChange {
    /// It waits for these as well. Unknown and complete ones are passed over.
    On(Vec<Jid>),
    /// It waits for these no longer. If none are left it may run.
    Off(Vec<Jid>),
    /// It may run.
    OffAll,
}

/// Writes something into a job's history.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Log {
    /// The job.
    pub jid: Jid,
    /// What happened.
    pub message: String,
    /// A JSON object with more about it, kept as it is. Each may have 64 KiB.
    pub data: Option<String>,
}

/// Starts or ends the tracking of a job.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Track {
    /// The job.
    pub jid: Jid,
    /// Starts, or else ends.
    pub on: bool,
}

/// Lists the tracked jobs, in the order in which somebody last asked to track them.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Tracked;

/// The tracked jobs.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct TrackedReply {
    /// Those that exist.
    pub jobs: Vec<Job>,
    /// Those that are gone.
    pub expired: Vec<Jid>,
}

/// Adds tags to a job.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct AddTags {
    /// The job.
    pub jid: Jid,
    /// The tags.
    pub tags: Vec<Tag>,
}

/// Removes tags from a job.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct RemoveTags {
    /// The job.
    pub jid: Jid,
    /// The tags.
    pub tags: Vec<Tag>,
}

/// Lists the jobs that have a tag.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Tagged {
    /// The tag.
    pub tag: Tag,
    /// Which part of the list.
    pub page: Page,
}

/// Lists the tags used at least twice.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct TopTags {
    /// Which part of the list.
    pub page: Page,
}

/// Looks a job up.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Get {
    /// The job.
    pub jid: Jid,
}

/// Looks several jobs up.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct GetMany {
    /// The jobs.
    pub jids: Vec<Jid>,
}

/// Counts the jobs of a queue that run, wait or are scheduled.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Length {
    /// The queue.
    pub queue: QueueName,
}

/// Lists jobs by where they stand.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Jobs {
    /// Which.
    pub which: Listing,
    /// Which part of the list.
    pub page: Page,
}

/// Which jobs to list, and in what order.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum Listing {
    /// Complete ones, the latest first.
    Complete,
    /// Those of a queue that a pop would find, the next one first.
    Waiting(QueueName),
    /// Those of a queue whose lock has not expired, the next to expire first.
    Running(QueueName),
    /// Those of a queue whose lock has expired, the longest expired first.
    Stalled(QueueName),
    /// Those of a queue that are not due, the next one first. Due ones become waiting.
    Scheduled(QueueName),
    /// Those of a queue that wait for others, the first put first.
    Depends(QueueName),
    /// Recurring ones of a queue, the next to spawn first.
    Recurring(QueueName),
}

/// Counts the failed jobs by group.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Failures;

/// Lists the failed jobs of one group.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Failed {
    /// The kind of failure.
    pub group: Group,
    /// Which part of the list.
    pub page: Page,
}

/// Counts the jobs of queues.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct Queues {
    /// Which one; each registered one, if not given.
    pub queue: Option<QueueName>,
}

/// How many jobs of a queue stand where.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[allow(missing_docs, reason = "the states' names say it")]
pub struct QueueCounts {
    pub name: QueueName,
    pub waiting: u64,
    /// Those whose lock has not expired.
    pub running: u64,
    /// Those whose lock has expired.
    pub stalled: u64,
    pub scheduled: u64,
    pub depends: u64,
    pub recurring: u64,
    pub paused: bool,
}

/// Counts the jobs of workers.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Workers;

/// How many jobs a worker has.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct WorkerCounts {
    /// Who.
    pub name: WorkerName,
    /// Those whose lock has not expired.
    pub jobs: u64,
    /// Those whose lock has expired.
    pub stalled: u64,
}

/// Lists the jobs of one worker.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct WorkerJobs {
    /// Who.
    pub worker: WorkerName,
}

/// The jobs of one worker, the last to expire first.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct WorkerJobsReply {
    /// Those whose lock has not expired.
    pub jobs: Vec<Jid>,
    /// Those whose lock has expired.
    pub stalled: Vec<Jid>,
}

/// Tells how one queue did on one day.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Stats {
    /// The queue.
    pub queue: QueueName,
    /// Any moment of that day.
    pub date: Timestamp,
}

/// How one queue did on one day.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct StatsReply {
    /// How long jobs popped on that day had waited.
    pub wait: Summary,
    /// How long jobs completed on that day had run.
    pub run: Summary,
    /// How many locks expired.
    pub retries: i64,
    /// How many jobs failed on that day and are still failed. Re-puts into another queue can make it negative.
    pub failed: i64,
    /// How many times a job failed.
    pub failures: i64,
}

/// How long things took.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Summary {
    /// How many there were.
    pub count: u64,
    /// Their mean, in seconds.
    pub mean: f64,
    /// Their standard deviation, in seconds.
    pub std: f64,
    /// How many took that long: seconds 0 to 59, minutes 1 to 59, hours 1 to 23, days 1 to 6.
    pub histogram: Vec<u64>,
}

/// Stops handing out jobs of queues. They need not exist yet.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Pause {
    /// The queues, at least one.
    pub queues: Vec<QueueName>,
}

/// Hands out jobs of paused queues again.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Resume {
    /// The queues, at least one.
    pub queues: Vec<QueueName>,
}

/// Takes queues off the list of queues.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct ForgetQueues {
    /// The queues, at least one.
    pub queues: Vec<QueueName>,
}

/// Takes workers off the list of workers.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct ForgetWorkers {
    /// The workers, at least one.
    pub workers: Vec<WorkerName>,
}

/// Looks an option up.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct GetConfig {
    /// Which.
    pub option: String,
}

/// Lists options.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct AllConfig;

/// An option's value, and whose choice it is.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Setting {
    /// Somebody set it.
    Chosen(String),
    /// Nobody did.
    Default(#[serde(deserialize_with = "crate::wire::word")] Word),
}

/// Sets an option. Options that are read as numbers must be numbers.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct SetConfig {
    /// Which.
    pub option: String,
    /// To what.
    pub value: String,
}

/// Puts an option back to its default.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct UnsetConfig {
    /// Which.
    pub option: String,
}

/// Makes a recurring job, or replaces it but for its count.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Recur {
    /// Where its jobs go.
    pub queue: QueueName,
    /// Its id, with room for a number behind it: at most 490 bytes.
    pub jid: Jid,
    /// What code runs its jobs.
    pub klass: Klass,
    /// What that code is given.
    pub payload: Payload,
    /// When it makes one after the other.
    pub every: Every,
    /// How long until the first.
    pub offset: Seconds,
    /// How much its jobs matter.
    pub priority: Priority,
    /// How often each may be tried again.
    pub retries: u32,
    /// Words to find them by.
    pub tags: Vec<Tag>,
    /// How many missed ones are made up for; 0 for all of them.
    pub backlog: u32,
}

impl Recur {
    /// A recurring job with everything else left at its default, which is no retries.
    pub fn new(
        queue: QueueName,
        jid: Jid,
        klass: Klass,
        payload: impl Into<Payload>,
        interval: Seconds,
    ) -> Recur {
        Recur {
            queue,
            jid,
            klass,
            payload: payload.into(),
            every: Every::Interval(interval),
            offset: Seconds::ZERO,
            priority: Priority::ZERO,
            retries: 0,
            tags: Vec::new(),
            backlog: 0,
        }
    }
}

/// When a recurring job makes one job after the other.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum Every {
    /// So long after the one before; at least a millisecond.
    Interval(Seconds),
}

/// Removes a recurring job.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Unrecur {
    /// Which.
    pub jid: Jid,
}

/// Looks a recurring job up.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct GetRecurring {
    /// Which.
    pub jid: Jid,
}

/// A recurring job: a template, and when it next makes a job.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Recurring {
    /// Its id; its jobs are called `<jid>-<number>`.
    pub jid: Jid,
    /// Where its jobs go.
    pub queue: QueueName,
    /// What code runs its jobs.
    pub klass: Klass,
    /// What that code is given.
    pub payload: Payload,
    /// How much its jobs matter.
    pub priority: Priority,
    /// How often each may be tried again.
    pub retries: u32,
    /// Words to find them by.
    pub tags: Vec<Tag>,
    /// When it makes one after the other.
    pub every: Every,
    /// How many missed ones are made up for; 0 for all of them.
    pub backlog: u32,
    /// How many it has made.
    pub count: u64,
    /// When it makes the next one.
    pub next: Timestamp,
}

/// Changes a recurring job: what is given, and nothing else.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct UpdateRecurring {
    /// Which.
    pub jid: Jid,
    /// How much its jobs matter.
    pub priority: Option<Priority>,
    /// How often each may be tried again.
    pub retries: Option<u32>,
    /// When it makes one after the other; if only an interval changes, the next one moves by the difference.
    pub every: Option<Every>,
    /// How many missed ones are made up for; 0 for all of them.
    pub backlog: Option<u32>,
    /// What its code is given.
    pub payload: Option<Payload>,
    /// What code runs its jobs.
    pub klass: Option<Klass>,
    /// Where its jobs go.
    pub queue: Option<QueueName>,
}

impl UpdateRecurring {
    /// Changes nothing yet.
    pub fn new(jid: Jid) -> UpdateRecurring {
        UpdateRecurring {
            jid,
            priority: None,
            retries: None,
            every: None,
            backlog: None,
            payload: None,
            klass: None,
            queue: None,
        }
    }
}

/// Adds tags to what a recurring job will spawn.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct TagRecurring {
    /// Which.
    pub jid: Jid,
    /// The tags.
    pub tags: Vec<Tag>,
}

/// Removes tags from what a recurring job will spawn.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct UntagRecurring {
    /// Which.
    pub jid: Jid,
    /// The tags.
    pub tags: Vec<Tag>,
}

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
        front: u64,
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
    #[serde(default)]
    pub said: Option<Payload>,
}

impl Progress {
    /// So far, and not a word more.
    pub fn new(jid: Jid, holder: Holder, progress: Progressed) -> Progress {
        Progress { jid, holder, progress, said: None }
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

/// Gives a job back to the front of its queue, at no price: its worker was interrupted.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Release {
    /// The job.
    pub jid: Jid,
    /// Who holds it.
    pub holder: Holder,
}

impl Release {
    /// Gives back what was just handed out.
    pub fn of(job: &Popped) -> Release {
        Release { jid: job.jid.clone(), holder: job.holder() }
    }
}

/// Says that a worker is dead. Each of its jobs is given back at the price of a retry and counts a crash; one that crashed too often, or has no retry left,
/// fails. What the worker announced no longer counts.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct WorkerLost {
    /// The worker.
    pub worker: WorkerName,
    /// What is known of its death.
    pub evidence: Option<String>,
}

/// Says what a worker can do. It counts until the worker is [gone](WorkerLost) or silent for a minute.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Announce {
    /// The worker.
    pub worker: WorkerName,
    /// What it can do.
    pub change: AnnounceChange,
}

/// How what a worker can do changes.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub enum AnnounceChange {
    /// It can do these as well; at most 1,024 in all.
    Can(Vec<Capability>),
    /// It cannot do these any more.
    Cannot(Vec<(QueueName, Option<Klass>)>),
    /// It can do these and nothing else.
    Only(Vec<Capability>),
}

/// Counts the workers that can do a job: those that announced this klass, and those that announced any.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct RollCall {
    /// The queue.
    pub queue: QueueName,
    /// What is to be done; anything, if not given: then all that announced the queue count.
    pub klass: Option<Klass>,
}

/// Lists what workers have announced.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Announced {
    /// Which worker; all of them, if not given.
    pub worker: Option<WorkerName>,
}

/// Limits a queue; these limits and no others count from then on.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct SetLimits {
    /// The queue.
    pub queue: QueueName,
    /// Its limits.
    pub limits: QueueLimits,
}

/// Shows a queue's limits.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct GetLimits {
    /// The queue.
    pub queue: QueueName,
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

/// Says why a job does not run.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Why {
    /// Which.
    pub jid: Jid,
}

/// Ends attempts that take too long, fails jobs that were not started in time, drops results that are old, and no longer counts what silent workers announced.
/// To send it twice, or from several places, does no harm.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Tick {
    /// How much to do at most.
    pub count: Count,
}

/// What a tick did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct TickReply {
    /// How much.
    pub done: u64,
    /// When there will be more to do, as far as is known now; that may be at once.
    pub next: Option<Timestamp>,
}

/// Hands out numbers that nobody gets again, also not after a restart: `count` of them, one after the other.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct AllocateIds {
    /// Which counter: 1 to 512 bytes. Each begins at 1, and is there as soon as it is asked.
    pub counter: String,
    /// How many, and at least one.
    pub count: Count,
}

/// Counts the waiting jobs of a queue by priority.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct PriorityCounts {
    /// The queue.
    pub queue: QueueName,
}

/// How many waiting jobs of a queue matter how much.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct PriorityCountsReply {
    /// Those whose priority is above 0.
    pub above: u64,
    /// Those whose priority is 0.
    pub at: u64,
    /// Those whose priority is below 0.
    pub below: u64,
}
