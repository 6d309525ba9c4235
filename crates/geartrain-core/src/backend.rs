//! Whoever can execute commands.

use std::pin::Pin;
use std::sync::Arc;

use crate::{
    BackendError, Command, Event, Pop, PopReply, QueueName, Refusal, Reply, ResultStream, Seconds, Timestamp,
};

/// Something that is going to come back from a backend.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T, BackendError>> + Send + 'a>>;

/// One command's answer.
pub type Answer = Result<Reply, Refusal>;

/// A command, and the moment at which it is given.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Call {
    /// The caller's clock; the backend's own, if not given.
    pub now: Option<Timestamp>,
    /// What is asked.
    pub command: Command,
}

impl<C: Into<Command>> From<C> for Call {
    fn from(command: C) -> Call {
        Call { now: None, command: command.into() }
    }
}

/// Whoever can execute commands: the engine in this process, a Redis, a server.
///
/// ```
/// use geartrain_core::{Backend, Call, Length, QueueName};
/// async fn is_empty(backend: &dyn Backend, queue: QueueName) -> bool {
///     let answers = backend.execute(vec![Call::from(Length { queue })]).await;
///     matches!(answers.as_deref(), Ok([Ok(geartrain_core::Reply::Length(0))]))
/// }
/// ```
pub trait Backend: Send + Sync + 'static {
    /// Executes commands in order, and answers each. Each is atomic and independent of the others: one may be
    /// refused and the next one done. An error means that there are no answers; some may have been done.
    ///
    /// Batches are executed in the order in which their futures are first polled. Only a batch with a
    /// [large](Command::is_large) command may be overtaken by later ones until it is answered.
    fn execute(&self, batch: Vec<Call>) -> Pending<'_, Vec<Answer>>;

    /// Pops, and if there is nothing to pop waits until there is, but no longer than `wait`; then there are no jobs
    /// in the reply. Those who wait for a queue are served in the order in which they came. Whoever drops the future
    /// stops waiting; a job that was handed out in that instant comes back when its lock expires.
    fn pop_or_wait(&self, pop: Pop, wait: Seconds) -> Pending<'_, PopReply>;

    /// Waits until a pop from one of these queues would hand out a job or move an expired lock on, and says so; at once if that is so
    /// already. False: it was not so for as long as `wait`. It takes 1 to 1,024 queues, as a pop does. To look and to lie down are one step,
    /// so that nothing comes in between. Pops that wait are served first; if there is still something then, all who only want to be told are
    /// told. Whoever drops the future stops waiting.
    fn ready_or_wait(&self, queues: Vec<QueueName>, wait: Seconds) -> Pending<'_, bool> {
        let _ = (queues, wait);
        unsupported("wait for a job without popping it")
    }

    /// The time of the backend, if its clock is not the one of this machine. Moments in its replies are
    /// compared with this.
    fn now(&self) -> Option<Timestamp> {
        None
    }

    /// Listens to what happens from now on.
    fn subscribe(&self) -> Pending<'_, Box<dyn Subscription>>;

    /// Listens to what happened after a position, and goes on with what happens. Positions that are not kept any more, and those that are still to come,
    /// are refused.
    fn subscribe_from(&self, after: u64) -> Pending<'_, Box<dyn Subscription>> {
        let _ = after;
        unsupported("resume a subscription")
    }

    /// Says that whoever is to have every event has those up to a position. A backend that was told to hold events until then needs to do so no longer;
    /// any other keeps as many as ever.
    fn ack_events(&self, position: u64) {
        let _ = position;
    }

    /// Hears all that those are told who wait with this number as their [front](crate::ResultWaiter::front). Nobody else may use it. When it is
    /// dropped, they leave.
    fn open_result_stream(&self, front: u64) -> Pending<'_, Box<dyn ResultStream>> {
        let _ = front;
        unsupported("tell those who wait for a job")
    }
}

fn unsupported<T: Send + 'static>(operation: &'static str) -> Pending<'static, T> {
    Box::pin(async move { Err(Refusal::Unsupported { operation, backend: "chosen" }.into()) })
}

/// An event, and where it stands among all of them.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Published {
    /// Larger than that of any event before it.
    pub position: u64,
    /// What happened, shared by all who listen.
    pub event: Arc<Event>,
}

/// What somebody who subscribed hears.
pub trait Subscription: Send {
    /// The next event, as soon as there is one.
    fn next(&mut self) -> Pin<Box<dyn Future<Output = Result<Published, SubscriptionEnd>> + Send + '_>>;

    /// The position of the newest event when the subscription began, 0 if there was none.
    fn position(&self) -> u64;
}

/// Why no more events come.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubscriptionEnd {
    /// The subscriber did not keep up, and nobody waits for one.
    #[error("the subscriber was too slow: events from position {missed} on were not delivered")]
    Lagged {
        /// The first event that it did not get.
        missed: u64,
    },
    /// The backend was shut down.
    #[error("the backend was shut down")]
    Closed,
}
