//! Select and Act: list the jobs that a filter selects, and change them, a bounded part per command.

use crate::{
    Count, Filter, Group, Jid, Klass, Payload, Priority, QueueName, Refusal, StateName, Tag, Timestamp,
    WorkerName,
};

/// The most jobs that one [`Select`] returns, or one [`Act`] changes.
pub const SELECT_MAX: usize = 1_000;

/// The most refusals that an [`ActReply`] lists.
pub const REFUSALS_MAX: usize = 10;

/// Lists jobs that a filter selects. One command examines a bounded number of jobs, so its reply may have few
/// jobs or none although more follow: ask again with the cursor until there is none.
///
/// A job that the filter selects the whole time is listed once. Where a Redis stores the jobs, one that moves
/// between states, queues or priorities, or whose lock is extended, may be listed twice or, if it moves back,
/// not at all.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Select {
    /// Which jobs.
    pub filter: Filter,
    /// Continues after the reply that had this cursor.
    pub after: Option<Cursor>,
    /// How many jobs at most: 1 to [`SELECT_MAX`].
    pub count: Count,
}

impl Select {
    /// Begins to list the jobs that a filter selects, in the largest pages.
    pub fn new(filter: Filter) -> Select {
        Select { filter, after: None, count: Count::new(SELECT_MAX as i64).unwrap_or(Count::ONE) }
    }
}

/// Where a [`Select`] or an [`Act`] continues. It is opaque, and valid for the same filter and backend.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Cursor(pub String);

/// A page of the jobs that a filter selects.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct SelectReply {
    /// Jobs, the first put first; those put in the same second by jid. Pages are in no particular order.
    pub jobs: Vec<Selected>,
    /// Where to continue; `None` if there are no more jobs.
    pub next: Option<Cursor>,
    /// How many jobs were examined.
    pub examined: u64,
    /// Jobs of which all is true but the payload terms, because their payload is not JSON. Payloads in files of
    /// their own are not counted.
    #[serde(default)]
    pub not_json: u64,
    /// Jobs whose payloads the store has yet to read, to see whether the filter selects them.
    #[serde(skip)]
    pub unread: Option<Box<Unread>>,
}

/// Jobs that the filter selects if their payloads match, which are in files.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Unread {
    /// The filter, whose other terms are true.
    pub filter: Filter,
    /// The jobs.
    pub jobs: Vec<(Selected, Payload)>,
}

/// A selected job: what a list shows of it.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Selected {
    /// Its id.
    pub jid: Jid,
    /// Its queue; the last one of a complete job, as far as its history says.
    pub queue: Option<QueueName>,
    /// The kind of job.
    pub klass: Klass,
    /// Its state.
    pub state: StateName,
    /// Whether it is running and its lock has expired.
    pub stalled: bool,
    /// Its priority, higher first.
    pub priority: Priority,
    /// When it was first put, in whole seconds: the first entry of its history.
    pub put: Timestamp,
    /// Attempts since it was last put: those that cost a retry, and the one that is running or that a worker
    /// failed. 0 once it is complete.
    pub attempts: u32,
    /// The worker that holds it, if it is running.
    pub worker: Option<WorkerName>,
    /// The kind of failure, if it is failed.
    pub group: Option<Group>,
}

/// Changes jobs that a filter selects. Selecting and changing are one step: no job is changed that the filter
/// does not select at that moment. One command examines and changes a bounded number of jobs: continue with
/// the cursor until there is none.
///
/// On a page, the job that was put first is changed first.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Act {
    /// Which jobs. Without a term, all.
    pub filter: Filter,
    /// Continues after the reply that had this cursor.
    pub after: Option<Cursor>,
    /// How many jobs to examine successfully at most: 1 to [`SELECT_MAX`].
    pub count: Count,
    /// What to do with them.
    pub act: BulkAct,
    /// Only these jobs, of which the caller knows that their payloads match: see [`ActReply::again`]. At most
    /// [`SELECT_MAX`]; empty for all jobs.
    #[serde(default)]
    pub only: Vec<Jid>,
}

impl Act {
    /// Begins to change the jobs that a filter selects, as many per command as possible.
    pub fn new(filter: Filter, act: BulkAct) -> Act {
        let Select { filter, after, count } = Select::new(filter);
        Act { filter, after, count, act, only: Vec::new() }
    }
}

/// What an [`Act`] does with each job. A job that is that way already stays as it is.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum BulkAct {
    /// Cancels it, unless it is complete. Jobs that depend on it are cancelled with it if the filter selects
    /// them all; otherwise it is refused.
    Cancel {
        /// Why, for the tombstones; at most [`BECAUSE_BYTES_MAX`](crate::BECAUSE_BYTES_MAX) bytes.
        #[serde(default)]
        because: Option<String>,
    },
    /// Puts it again as it is, with all of its retries: into this queue, or into the one it is in or was in
    /// last. Jobs that wait there already stay where they are.
    Requeue {
        /// The queue.
        queue: Option<QueueName>,
    },
    /// Moves it, if it is failed, back into its queue or into this one.
    Unfail {
        /// The queue.
        queue: Option<QueueName>,
    },
    /// Changes its priority.
    SetPriority {
        /// The new priority.
        priority: Priority,
    },
    /// Adds tags.
    AddTags {
        /// The tags.
        tags: Vec<Tag>,
    },
    /// Removes tags.
    RemoveTags {
        /// The tags.
        tags: Vec<Tag>,
    },
}

/// What an [`Act`] did.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct ActReply {
    /// Jobs that were changed; with [`BulkAct::Cancel`], also those cancelled along.
    pub acted: u64,
    /// Selected jobs that stay as they are: complete ones that cannot be cancelled, or jobs that are that way
    /// already.
    pub unchanged: u64,
    /// Selected jobs for which the change was refused.
    pub refused: u64,
    /// The first [`REFUSALS_MAX`] of these.
    pub refusals: Vec<(Jid, Refusal)>,
    /// Where to continue; `None` if there are no more jobs.
    pub next: Option<Cursor>,
    /// How many jobs were examined.
    pub examined: u64,
    /// Selected jobs to which nothing was done yet, because their payloads had to be read from files first, or
    /// because many jobs were cancelled along with others. Send the same command with these in
    /// [`only`](Act::only); their payloads are not compared again.
    #[serde(default)]
    pub again: Vec<Jid>,
    /// Jobs whose payloads the store has yet to read.
    #[serde(skip)]
    pub unread: Option<Box<Unread>>,
}

impl Unread {
    /// Decides about each job by its payload, which `read` loads; if it returns false, the payload cannot be
    /// read and does not match. Returns the matching jobs, and those whose payload is not loaded yet.
    pub fn decide(self, mut read: impl FnMut(&mut Payload) -> bool) -> (Vec<Selected>, Option<Box<Unread>>) {
        let Unread { filter, jobs } = self;
        let (mut matching, mut left) = (Vec::new(), Vec::new());
        for (job, mut payload) in jobs {
            if !read(&mut payload) {
                continue;
            }
            if payload.spill_location().is_some() {
                left.push((job, payload));
            } else if filter.matches_payload(&payload) {
                matching.push(job);
            }
        }
        let left = (!left.is_empty()).then(|| Box::new(Unread { filter, jobs: left }));
        (matching, left)
    }
}

impl Selected {
    /// The order of jobs on a page.
    pub fn order(&self, other: &Selected) -> std::cmp::Ordering {
        (self.put, &self.jid).cmp(&(other.put, &other.jid))
    }
}
