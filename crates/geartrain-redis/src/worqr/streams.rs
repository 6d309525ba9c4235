//! Waiting for results and for events, from what is published. Nothing repeats a message: after a lost
//! connection, the streams are closed.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;

use geartrain_core::{
    AttachReply, DetachScope, Event, FailedBy, Jid, JobEnding, JobResult, NO_JID, PositionedEvent, Put,
    QueueName, Refusal, ResultStream, ResultStreamEnd, ResultWaiter, StreamItem, StreamMessage, Subscription,
    SubscriptionEnd, WorkerName,
};
use tokio::sync::broadcast::{Receiver, error::RecvError};

use super::listener::Message;
use super::message::{Done, text_of};
use super::names::Notice;
use super::session::{Session, unsupported};
use crate::layout::bad_argument;

/// A submission that waits for a task of its text: the first one that is finished.
pub(super) struct AwaitedTask {
    waiter: ResultWaiter,
    jid: Jid,
    queue: QueueName,
    task: String,
}

impl AwaitedTask {
    pub(super) fn new(waiter: ResultWaiter, put: &Put) -> AwaitedTask {
        let task = text_of(put.payload.bytes());
        AwaitedTask { waiter, jid: put.jid.clone(), queue: put.queue.clone(), task }
    }
}

/// The open result streams, and what they wait for.
#[derive(Default)]
pub(super) struct Streams {
    open: HashMap<u64, flume::Sender<StreamMessage>>,
    waiters: Vec<AwaitedTask>,
}

impl Streams {
    pub(super) fn attach(&mut self, waiter: AwaitedTask) -> Result<(), Refusal> {
        if !self.open.contains_key(&waiter.waiter.stream_id) {
            return Err(bad_argument("attach", "must name an open result stream"));
        }
        self.waiters.push(waiter);
        Ok(())
    }

    /// Says whether a submission waits still. What was put earlier cannot be waited for.
    pub(super) fn state_of(&self, waiter: ResultWaiter) -> Result<AttachReply, Refusal> {
        if self.waiters.iter().any(|known| known.waiter == waiter) {
            return Ok(AttachReply::Attached);
        }
        Err(unsupported("wait for a task that was put earlier"))
    }

    /// Removes submissions, and returns how many.
    pub(super) fn detach(&mut self, is_meant: impl Fn(&ResultWaiter) -> bool) -> u64 {
        let before = self.waiters.len();
        self.waiters.retain(|known| !is_meant(&known.waiter));
        (before - self.waiters.len()) as u64
    }

    /// A worker finished a task: one submission of its text gets the result. Which one of several equal tasks it
    /// was is not known.
    pub(super) fn done(&mut self, queue: &QueueName, message: &[u8]) {
        let Some(done) = Done::parse(message) else { return };
        let Some(task) = &done.task else { return };
        let waits = |known: &AwaitedTask| known.queue == *queue && known.task == *task;
        if let Some(place) = self.waiters.iter().position(waits) {
            let (ending, result) = done.ending();
            let waiter = self.waiters.remove(place);
            self.end(waiter, ending, result);
        }
    }

    /// All equal tasks of a queue are cancelled.
    pub(super) fn cancelled(&mut self, queue: &QueueName, task: &[u8]) {
        let task = text_of(task);
        self.end_all(|known| known.queue == *queue && known.task == task);
    }

    /// All tasks of a queue are gone.
    pub(super) fn deleted(&mut self, queue: &QueueName) {
        self.end_all(|known| known.queue == *queue);
    }

    fn end_all(&mut self, is_meant: impl Fn(&AwaitedTask) -> bool) {
        let (ended, kept) = std::mem::take(&mut self.waiters).into_iter().partition(is_meant);
        self.waiters = kept;
        for waiter in ended {
            self.end(waiter, JobEnding::Canceled, JobResult::default());
        }
    }

    fn end(&self, AwaitedTask { waiter, jid, .. }: AwaitedTask, ending: JobEnding, result: JobResult) {
        if let Some(stream) = self.open.get(&waiter.stream_id) {
            // Fails if the stream is being dropped.
            let _ = stream.send(StreamMessage { waiter, jid, item: StreamItem::Ended(ending, result) });
        }
    }

    /// Ends all streams.
    pub(super) fn close(&mut self) {
        *self = Streams::default();
    }
}

/// Whether a scope has a submission.
pub(super) fn has(scope: DetachScope, waiter: &ResultWaiter) -> bool {
    match scope {
        DetachScope::One(one) => one == *waiter,
        DetachScope::Connection { stream_id, connection } => {
            (stream_id, connection) == (waiter.stream_id, waiter.connection)
        }
        DetachScope::Stream(stream_id) => stream_id == waiter.stream_id,
        DetachScope::All => true,
        _ => false,
    }
}

/// A result stream. Dropping it detaches its submissions.
pub(super) struct WorqrResults {
    session: Arc<Session>,
    stream_id: u64,
    messages: flume::Receiver<StreamMessage>,
}

impl WorqrResults {
    pub(super) fn open(session: Arc<Session>, stream_id: u64) -> Result<WorqrResults, Refusal> {
        let (to, messages) = flume::unbounded();
        if session.streams.lock().open.insert(stream_id, to).is_some() {
            return Err(bad_argument("result stream", "is open already"));
        }
        Ok(WorqrResults { session, stream_id, messages })
    }
}

impl ResultStream for WorqrResults {
    fn next(&mut self) -> Pin<Box<dyn Future<Output = Result<StreamMessage, ResultStreamEnd>> + Send + '_>> {
        Box::pin(async { self.messages.recv_async().await.map_err(|_| ResultStreamEnd::Closed) })
    }
}

impl Drop for WorqrResults {
    fn drop(&mut self) {
        let mut streams = self.session.streams.lock();
        streams.open.remove(&self.stream_id);
        streams.detach(|waiter| waiter.stream_id == self.stream_id);
    }
}

impl Session {
    /// Subscribes to what ends a task.
    pub(super) async fn listen_for_end(&self, queue: &QueueName) {
        let ends = [Notice::Done, Notice::Cancel, Notice::Delete];
        let channels = ends.map(|notice| self.names.channel(queue.as_str(), notice));
        self.listener.subscribe(channels.into()).await;
    }
}

/// A subscription to what is published on all queues.
pub(super) struct WorqrEvents {
    session: Arc<Session>,
    messages: Receiver<Arc<Message>>,
    /// Counted from the beginning of the subscription: Worqr keeps nothing.
    position: u64,
}

impl WorqrEvents {
    /// Subscribes; none if the Redis does not confirm it.
    pub(super) async fn open(session: Arc<Session>) -> Option<WorqrEvents> {
        let messages = session.published.subscribe();
        let is_subscribed = session.listener.subscribe_pattern(session.names.pattern("_")).await;
        is_subscribed.then_some(WorqrEvents { session, messages, position: 0 })
    }
}

impl Subscription for WorqrEvents {
    fn next(
        &mut self,
    ) -> Pin<Box<dyn Future<Output = Result<PositionedEvent, SubscriptionEnd>> + Send + '_>> {
        Box::pin(async {
            loop {
                match self.messages.recv().await.as_deref() {
                    Ok(Message::Published { queue, notice, text }) => {
                        let Some(event) = event_of(queue, *notice, text) else { continue };
                        self.position += 1;
                        let at = Some(self.session.shared.clock.now());
                        return Ok(PositionedEvent { position: self.position, event: Arc::new(event), at });
                    }
                    Ok(Message::Lost) | Err(RecvError::Closed) => return Err(SubscriptionEnd::Closed),
                    Err(RecvError::Lagged(_)) => {
                        return Err(SubscriptionEnd::Lagged { missed: self.position + 1 });
                    }
                }
            }
        })
    }

    fn position(&self) -> u64 {
        0
    }
}

/// What a message is in our words. A task has no id there.
fn event_of(queue: &QueueName, notice: Notice, text: &[u8]) -> Option<Event> {
    let (jid, queue) = (Jid::new(NO_JID).expect("it is a name"), queue.clone());
    Some(match notice {
        Notice::Work => Event::Put { jid, queue },
        Notice::Cancel | Notice::Delete => Event::Canceled { jid, was: Some((queue, None)) },
        Notice::Done => {
            let done = Done::parse(text)?;
            let worker = done.worker_id.as_deref().and_then(|worker| WorkerName::new(worker).ok());
            match done.ending().0 {
                JobEnding::Failed { group, message } => {
                    Event::Failed { jid, queue, worker, group, message, by: FailedBy::Worker }
                }
                JobEnding::Canceled => Event::Canceled { jid, was: Some((queue, worker)) },
                _ => Event::Completed { jid, queue },
            }
        }
    })
}
