//! The Redis of an installation: commands and scripts, and what this process holds there.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use geartrain_core::{Payload, QueueName, Refusal, WorkerName};
use parking_lot::Mutex;
use redis::{Cmd, FromRedisValue, ToRedisArgs, cmd};
use tokio::sync::{Notify, broadcast};

use super::listener::{Listener, Message};
use super::names::{Names, Process};
use super::script;
use super::streams::Streams;
use super::url::Options;
use crate::connection::ConnectionError;
use crate::driver::Shared;
use crate::layout::{self, CallError, Script};

/// The backend's name in refusals.
pub(super) const NAME: &str = "worqr";

/// Cancelled processes that are remembered, to tell their handlers why they are gone.
const CANCELLED_MAX: usize = 10_000;
/// Messages that a subscriber to events may fall behind.
const EVENTS_MAX: usize = 10_000;

/// What all calls share.
pub(super) struct Session {
    pub(super) shared: Arc<Shared>,
    pub(super) options: Options,
    pub(super) names: Names,
    pub(super) state: Mutex<State>,
    /// Held while a worker is started, so that only one is for each name.
    pub(super) starting: tokio::sync::Mutex<()>,
    /// Wakes the renewal of timers and the search for dead workers.
    pub(super) started: Notify,
    /// Wakes parked pops.
    pub(super) work: Notify,
    pub(super) listener: Listener,
    /// What was published, for subscribers to events.
    pub(super) published: broadcast::Sender<Arc<Message>>,
    pub(super) streams: Mutex<Streams>,
}

/// The workers of this process, and what they hold.
#[derive(Default)]
pub(super) struct State {
    pub(super) workers: HashMap<WorkerName, OwnWorker>,
    /// By the ID of the process.
    pub(super) held: HashMap<String, Held>,
    cancelled: VecDeque<String>,
    /// Until when a worker takes nothing from a queue.
    pub(super) pauses: HashMap<(WorkerName, QueueName), Instant>,
    pub(super) unanswered: Vec<Unanswered>,
    /// Problems with keys that were logged.
    pub(super) problems: HashSet<String>,
}

/// A process of a take that got no reply, and so may be there.
pub(super) struct Unanswered {
    pub(super) process: Process,
    /// The worker's ID.
    pub(super) worker: String,
    /// How often it is still looked for.
    pub(super) looks: u32,
}

/// A worker of this process.
pub(super) struct OwnWorker {
    pub(super) id: String,
    /// Queues that it is registered for.
    pub(super) queues: HashSet<QueueName>,
}

/// A process that a worker of this process has.
#[derive(Clone)]
pub(super) struct Held {
    pub(super) process: Process,
    pub(super) name: WorkerName,
    /// The worker's ID.
    pub(super) worker: String,
    pub(super) task: Payload,
    pub(super) digest: String,
}

impl State {
    /// Forgets a process that is finished or returned.
    pub(super) fn forget(&mut self, process: &str) {
        self.held.remove(process);
    }

    /// Forgets a process that was cancelled, except for the reason.
    pub(super) fn cancelled(&mut self, process: String) {
        self.held.remove(&process);
        self.cancelled.push_back(process);
        if self.cancelled.len() > CANCELLED_MAX {
            self.cancelled.pop_front();
        }
    }

    pub(super) fn was_cancelled(&self, process: &str) -> bool {
        self.cancelled.iter().any(|cancelled| cancelled == process)
    }

    /// The processes of a worker.
    pub(super) fn held_by(&self, worker: &str) -> Vec<String> {
        let held = self.held.values().filter(|held| held.worker == worker);
        held.map(|held| held.process.id.clone()).collect()
    }
}

/// A key of another type belongs to something else: no retry changes that.
fn refused_if_wrong_type(error: ConnectionError, keys: &[&str]) -> CallError {
    if let ConnectionError::Redis(redis) = &error
        && redis.code() == Some("WRONGKEY")
        && let Some((key, why)) = redis.detail().and_then(|detail| detail.split_once(" is a "))
    {
        return bad_key(key, format!("is a {why}: the key belongs to something else"));
    }
    if layout::is_wrong_type(&error) {
        return bad_key(keys.first().copied().unwrap_or("key"), "has another type than in Worqr".to_owned());
    }
    error.into()
}

fn bad_key(key: &str, why: String) -> CallError {
    CallError::Refused(Refusal::BadArgument { what: key.to_owned().into(), why })
}

/// A name that another program wrote. One that is no text matches nothing.
fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|bad| String::from_utf8_lossy(bad.as_bytes()).into_owned())
}

pub(super) fn texts(names: Vec<Vec<u8>>) -> Vec<String> {
    names.into_iter().map(text).collect()
}

/// The refusal for what Worqr has no notion of.
pub(super) fn unsupported(operation: &'static str) -> Refusal {
    layout::unsupported(NAME, operation)
}

/// A worker as its keys show it.
pub(super) struct Worker {
    pub(super) id: String,
    pub(super) is_alive: bool,
    /// The names of its process sets.
    pub(super) members: Vec<String>,
    /// Its processes, as far as its process sets are its own.
    pub(super) processes: Vec<String>,
}

impl Worker {
    /// Whether it works on a queue, with a process set of its own or with one that it shares.
    pub(super) fn works_on(&self, queue: &str) -> bool {
        self.members.iter().any(|member| member == queue) || self.has_own_set(queue)
    }

    fn has_own_set(&self, queue: &str) -> bool {
        self.members.iter().any(|member| self.queue_of_own(member) == Some(queue))
    }

    /// The queue of a process set of its own.
    pub(super) fn queue_of_own<'a>(&self, member: &'a str) -> Option<&'a str> {
        member.strip_prefix(&self.id)?.strip_prefix('_')
    }
}

impl Session {
    pub(super) fn new(shared: Arc<Shared>, options: Options, listener: Listener) -> Session {
        Session {
            shared,
            names: options.names(),
            options,
            state: Mutex::default(),
            starting: tokio::sync::Mutex::new(()),
            started: Notify::new(),
            work: Notify::new(),
            listener,
            published: broadcast::Sender::new(EVENTS_MAX),
            streams: Mutex::default(),
        }
    }

    /// Sends a command about one key.
    pub(super) async fn ask<T: FromRedisValue>(&self, key: &str, command: &Cmd) -> Result<T, CallError> {
        layout::ask(&self.shared, command).await.map_err(|error| refused_if_wrong_type(error, &[key]))
    }

    pub(super) async fn run<T: FromRedisValue>(
        &self,
        script: &Script,
        keys: &[&str],
        arguments: impl ToRedisArgs,
    ) -> Result<T, CallError> {
        let reply = layout::run(&self.shared, script, keys, arguments).await;
        reply.map_err(|error| refused_if_wrong_type(error, keys))
    }

    /// The name of a worker's process set for a queue.
    pub(super) fn member(&self, worker: &str, queue: &QueueName) -> String {
        if self.options.native_sets { queue.to_string() } else { format!("{worker}_{queue}") }
    }

    /// All workers, ours and others.
    pub(super) async fn workers(&self) -> Result<Vec<Worker>, CallError> {
        let (workers, permanent) = (self.names.workers(), self.names.permanent());
        type Row = (Vec<u8>, i64, Vec<Vec<u8>>, Vec<Vec<u8>>);
        let rows: Vec<Row> = self.run(&script::SURVEY, &[&workers, &permanent], self.names.prefix()).await?;
        let worker = |(id, alive, members, processes)| Worker {
            id: text(id),
            is_alive: alive == 1,
            members: texts(members),
            processes: texts(processes),
        };
        Ok(rows.into_iter().map(worker).collect())
    }

    /// The task of a process, if there is one.
    pub(super) async fn task_of(&self, process: &Process) -> Result<Option<Vec<u8>>, CallError> {
        let key = self.names.process(&process.id);
        self.ask(&key, cmd("LINDEX").arg(&key).arg(0)).await
    }
}
