//! Publishing after the commit: events to subscribers, then items to result streams, then replies to callers.

use flume::Sender;
use geartrain_core::{
    Answer, Call, PopReply, Refusal, ResultStream, StreamMessage, Subscription, TimedEvent,
};

use crate::error::StoreError;
use crate::inline_exec::InFlightGuard;
use crate::reply_guard::ReplyGuard;
use crate::result_streams::{ResultStreams, StreamReceiver, StreamSender};
use crate::spill::fetch::{LargeReader, Unread};
use crate::subscribers::{EventReceiver, Subscriber, Subscribers};

/// Where a reply goes: the reply itself, or why there is none.
pub(crate) type Slot<T> = Sender<Result<T, StoreError>>;

/// Where a reply goes that may be a refusal.
pub(crate) type RefusableSlot<T> = Slot<Result<T, Refusal>>;

/// The reply to a parked pop on its way.
pub(crate) type PopGuard = ReplyGuard<Result<PopReply, Refusal>>;

/// The answers to a batch.
pub(crate) struct BatchReply {
    pub(crate) answers: Vec<Answer>,
    /// The executed commands, handed back for the caller to drop: the engine's thread has no time for it, and
    /// memory is freed faster by the thread that allocated it.
    pub(crate) spent_calls: Vec<Call>,
}

/// Where the answers to a batch go.
pub(crate) struct BatchSlot {
    pub(crate) slot: Slot<ReplyGuard<BatchReply>>,
    /// Counts the batch among those without a reply.
    pub(crate) in_flight: Option<InFlightGuard>,
}

impl BatchSlot {
    pub(crate) fn send(self, reply: Result<ReplyGuard<BatchReply>, StoreError>) {
        // Before the reply: its receiver may execute the next batch inline at once.
        drop(self.in_flight);
        // A caller that no longer waits gets no reply, and its jobs are released.
        let _ = self.slot.send(reply);
    }
}

/// A reply that goes out after the commit.
pub(crate) enum PendingReply {
    Batch {
        slot: BatchSlot,
        reply: ReplyGuard<BatchReply>,
    },
    Pop(Slot<PopGuard>, PopGuard),
    /// Whether one of the queues has a job to pop.
    Ready(RefusableSlot<bool>, Result<bool, Refusal>),
    /// A subscription that begins here.
    Subscribe(RefusableSlot<Box<dyn Subscription>>, Result<Box<(Subscriber, EventReceiver)>, Refusal>),
    /// A result stream that begins here.
    OpenResultStream(
        RefusableSlot<Box<dyn ResultStream>>,
        Result<Box<(StreamSender, StreamReceiver)>, Refusal>,
    ),
}

impl PendingReply {
    /// Sends a reply that brings no events. A caller that no longer waits for it does not get it.
    pub(crate) fn send(self) {
        match self {
            PendingReply::Batch { slot, reply } => slot.send(Ok(reply)),
            PendingReply::Pop(slot, reply) => drop(slot.send(Ok(reply))),
            PendingReply::Ready(slot, answer) => drop(slot.send(Ok(answer))),
            PendingReply::Subscribe(..) | PendingReply::OpenResultStream(..) => {}
        }
    }
}

/// Everything that is published to: subscribers, result streams, and the reader of large payloads.
#[derive(Default)]
pub(crate) struct Publisher {
    pub(crate) subscribers: Subscribers,
    pub(crate) result_streams: ResultStreams,
    pub(crate) large_reader: LargeReader,
}

/// What some commands caused outside the engine.
#[derive(Default)]
pub(crate) struct Publication {
    pub(crate) events: Vec<TimedEvent>,
    /// The position of the last event.
    pub(crate) last_position: u64,
    pub(crate) deliveries: Vec<StreamMessage>,
    pub(crate) replies: Vec<PendingReply>,
    /// Some replies may hold the location of a spilled payload instead of its bytes.
    pub(crate) has_spilled: bool,
    /// Replies whose large payloads are still to be read.
    pub(crate) unread: Vec<Unread>,
}

impl Publication {
    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty()
            && self.deliveries.is_empty()
            && self.replies.is_empty()
            && self.unread.is_empty()
    }

    /// Publishes events, then result stream items, then replies.
    pub(crate) fn publish(mut self, publisher: &mut Publisher) {
        if !self.events.is_empty() {
            publisher.subscribers.publish(self.events, self.last_position);
        }
        if !self.deliveries.is_empty() {
            publisher.result_streams.send(self.deliveries);
        }
        self.unread.into_iter().for_each(|unread| publisher.large_reader.send(unread));
        // Parked pops first: the jobs of one that was dropped are released before the caller whose command
        // served it can pop them.
        let is_pop = |reply: &PendingReply| matches!(reply, PendingReply::Pop(..));
        if self.replies.len() > 1 && self.replies.iter().any(is_pop) {
            self.replies.sort_by_key(|reply| !is_pop(reply));
        }
        for reply in self.replies {
            match reply {
                reply @ (PendingReply::Batch { .. } | PendingReply::Pop(..) | PendingReply::Ready(..)) => {
                    reply.send();
                }
                PendingReply::Subscribe(slot, answer) => {
                    let added = answer.map(|ends| {
                        publisher.subscribers.add(ends.0);
                        Box::new(ends.1) as Box<dyn Subscription>
                    });
                    drop(slot.send(Ok(added)));
                }
                PendingReply::OpenResultStream(slot, answer) => {
                    let added = answer.map(|ends| {
                        publisher.result_streams.add(ends.0);
                        Box::new(ends.1) as Box<dyn ResultStream>
                    });
                    drop(slot.send(Ok(added)));
                }
            }
        }
    }

    /// Answers all callers with the failure instead.
    pub(crate) fn cancel(self, failure: &StoreError) {
        let unread = self.unread.into_iter().map(|unread| unread.reply);
        for reply in self.replies.into_iter().chain(unread) {
            match reply {
                PendingReply::Batch { slot, reply } => {
                    reply.discard();
                    slot.send(Err(failure.clone()));
                }
                PendingReply::Pop(slot, reply) => {
                    reply.discard();
                    drop(slot.send(Err(failure.clone())));
                }
                PendingReply::Ready(slot, _) => drop(slot.send(Err(failure.clone()))),
                PendingReply::Subscribe(slot, _) => drop(slot.send(Err(failure.clone()))),
                PendingReply::OpenResultStream(slot, _) => drop(slot.send(Err(failure.clone()))),
            }
        }
    }
}
