//! The backend trait: executes commands, publishes events and serves result streams.

use std::pin::Pin;
use std::sync::Arc;

use crate::{
    BackendError, Backup, BackupTarget, Command, Event, Jid, PeriodicTemplate, Pop, PopReply, QueueName,
    Refusal, Reply, ResultStream, Seconds, Timestamp, TimingCounts,
};

/// A future of a backend: a value, or why the backend did not deliver it.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T, BackendError>> + Send + 'a>>;

/// The answer to one command.
pub type Answer = Result<Reply, Refusal>;

/// A command and the time at which it is executed.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Call {
    /// The time by the caller's clock; if not given, the backend uses its own clock.
    pub now: Option<Timestamp>,
    /// The command to execute.
    pub command: Command,
    /// Who asks, as far as the front-end knows: a name, an address, or both. Needed only by commands that
    /// [record it](Command::records_caller); of a longer text [`CALLER_BYTES_MAX`](crate::CALLER_BYTES_MAX)
    /// bytes are stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Arc<str>>,
}

impl Call {
    /// A command that is executed at this time.
    pub fn at(now: Timestamp, command: impl Into<Command>) -> Call {
        Call { now: Some(now), ..Call::from(command) }
    }
}

impl<C: Into<Command>> From<C> for Call {
    fn from(command: C) -> Call {
        Call { now: None, command: command.into(), by: None }
    }
}

/// Executes commands: the engine in this process, a Redis, or a server.
///
/// ```
/// use geartrain_core::{Backend, Call, Length, QueueName};
/// async fn is_empty(backend: &dyn Backend, queue: QueueName) -> bool {
///     let answers = backend.execute(vec![Call::from(Length { queue })]).await;
///     matches!(answers.as_deref(), Ok([Ok(geartrain_core::Reply::Length(0))]))
/// }
/// ```
pub trait Backend: Send + Sync + 'static {
    /// Executes commands in order and answers each. Each command is atomic and independent of the others: a
    /// refusal does not stop the next command. An error means that there are no answers; some commands may
    /// have been executed.
    ///
    /// Batches are executed in the order in which their futures are first polled. Only a batch with a
    /// [large](Command::is_large) command may be overtaken by later ones until it is answered.
    ///
    /// Cancel safety: dropping the future before it is polled executes nothing. Later, commands may be executed
    /// or not, and nothing is undone, except that popped jobs are [released](crate::Release).
    fn execute(&self, batch: Vec<Call>) -> Pending<'_, Vec<Answer>>;

    /// Parked pop: pops, or waits up to `wait` until there is a job to pop. The reply has no jobs if none
    /// came in time. Pops parked on a queue are served first come, first served.
    ///
    /// Cancel safe: dropping the future stops the wait, and a job that was handed out at that instant is
    /// [released](crate::Release). It goes back to the front of its queue and loses no retry.
    fn pop_or_wait(&self, pop: Pop, wait: Seconds) -> Pending<'_, PopReply>;

    /// Waits up to `wait` until a pop from one of these queues (1 to 1,024) would hand out a job or handle an
    /// expired lock. True as soon as that is so, false if `wait` passed. The check and the start of the wait
    /// are atomic, so no wake-up is lost. Parked pops are served first; if work remains, all callers that
    /// wait here are notified. Dropping the future stops the wait.
    fn ready_or_wait(&self, queues: Vec<QueueName>, wait: Seconds) -> Pending<'_, bool> {
        let _ = (queues, wait);
        unsupported("wait for a job without popping it")
    }

    /// The backend's time, if it knows it: that of a Redis, or of the clock that a store was opened with.
    /// Compare timestamps in its replies with this time.
    fn now(&self) -> Option<Timestamp> {
        None
    }

    /// The software that executes the commands. A backend in another process is asked.
    fn identify(&self) -> Pending<'_, Software> {
        let version = Some(env!("CARGO_PKG_VERSION").to_owned());
        Box::pin(async { Ok(Software { name: "geartrain".to_owned(), version }) })
    }

    /// The jid that this periodic job will have, on a backend that chooses jids itself. Elsewhere it is the
    /// template's.
    fn periodic_jid(&self, template: &PeriodicTemplate) -> Option<Jid> {
        let _ = template;
        None
    }

    /// When changes are synced to disk: `always`, `never`, an interval like `50ms`, or `none` in memory. None
    /// if the backend does not tell.
    fn sync_mode(&self) -> Pending<'_, Option<String>> {
        Box::pin(async { Ok(None) })
    }

    /// What the backend measures of itself. May read a directory.
    fn measure(&self) -> Measures {
        Measures::default()
    }

    /// Subscribes to the events from now on.
    fn subscribe(&self) -> Pending<'_, Box<dyn Subscription>>;

    /// Subscribes to the events after a position: first those retained in the event log, then new ones.
    /// Refuses with [`Refusal::CursorTooOld`] if events after the position were discarded, and with
    /// [`Refusal::CursorAhead`] if the position is still to come.
    fn subscribe_from(&self, after: u64) -> Pending<'_, Box<dyn Subscription>> {
        let _ = after;
        unsupported("resume a subscription")
    }

    /// Returns when the subscriptions of this process have received every event published before the call,
    /// and so the events of each command that is answered. A backend whose events arrive over a connection
    /// of their own waits for them, for a bounded time; the others publish before they answer.
    fn flush_events(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(std::future::ready(()))
    }

    /// Sends a client's message to the subscribers of a channel in other processes, and returns how many got
    /// it. A backend that no other process shares has none.
    fn publish(&self, channel: &[u8], message: &[u8]) -> Pending<'_, u64> {
        let _ = (channel, message);
        Box::pin(async { Ok(0) })
    }

    /// Acknowledges events up to `position` for the reliable consumer. A backend configured to retain events
    /// for that consumer may now discard them; the usual retention is not affected.
    fn ack_events(&self, position: u64) {
        let _ = position;
    }

    /// Opens the result stream of all submissions with this [`stream_id`](crate::ResultWaiter::stream_id). An
    /// id can be open only once. Dropping the stream detaches its submissions.
    fn open_result_stream(&self, stream_id: u64) -> Pending<'_, Box<dyn ResultStream>> {
        let _ = stream_id;
        unsupported("stream results to a client that waits for a job")
    }

    /// Begins a backup of everything that the backend stores, while work goes on. It has all that was
    /// acknowledged before the call, and maybe some of what comes meanwhile. One backup at a time.
    fn backup(&self, to: BackupTarget) -> Pending<'_, Box<dyn Backup>> {
        let _ = to;
        unsupported("make a backup")
    }
}

/// What a backend measures of itself; `None` where it has no such thing.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Measures {
    /// Bytes of its files.
    pub store_bytes: Option<u64>,
    /// How long commits took: written, and synced if a sync was due.
    pub commit: Option<TimingCounts>,
    /// How long syncs of the log took.
    pub sync: Option<TimingCounts>,
    /// How long a Redis took to answer.
    pub round_trip: Option<TimingCounts>,
}

/// A program and its version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Software {
    /// Its name: `geartrain`, `Redis`, `Valkey`, `gearmand`.
    pub name: String,
    /// Its version, if it tells.
    pub version: Option<String>,
}

fn unsupported<T: Send + 'static>(operation: &'static str) -> Pending<'static, T> {
    Box::pin(async move {
        Err(Refusal::Unsupported { operation: operation.into(), backend: "chosen".into() }.into())
    })
}

/// A published event and its position in the event log.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PositionedEvent {
    /// Larger than the position of any earlier event.
    pub position: u64,
    /// The event, shared by all subscribers.
    pub event: Arc<Event>,
    /// When it happened; `None` if it was retained by a version that did not store it.
    pub at: Option<Timestamp>,
}

/// The receiving end of a subscription to events.
pub trait Subscription: Send {
    /// Waits for the next event.
    fn next(&mut self)
    -> Pin<Box<dyn Future<Output = Result<PositionedEvent, SubscriptionEnd>> + Send + '_>>;

    /// The position of the newest event when the subscription began, 0 if there was none.
    fn position(&self) -> u64;
}

/// Why a subscription ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubscriptionEnd {
    /// The subscriber was too slow. A backend never blocks on a subscriber.
    #[error("the subscriber was too slow: events from position {missed} on were not delivered")]
    Lagged {
        /// The position of the first event that was not delivered.
        missed: u64,
    },
    /// The backend was shut down.
    #[error("the backend was shut down")]
    Closed,
}
