//! Telling what happened, then those who wait for jobs, and then those who asked: in this order, and only once it cannot be lost.

use flume::Sender;
use geartrain_core::{Answer, Call, Delivery, Event, PopReply, Refusal, ResultStream, Subscription};

use crate::fetch::{LargeReader, Unread};
use crate::followers::{Follower, Followers, Stream};
use crate::seat::UnderWay;
use crate::subscribers::{EventReceiver, Subscriber, Subscribers};
use crate::trouble::Trouble;

/// Where an answer goes: the answer itself, or why there is none.
pub(crate) type Slot<T> = Sender<Result<T, Trouble>>;

/// Somebody who may be told no: what they asked for, or the refusal.
pub(crate) type RefusableSlot<T> = Slot<Result<T, Refusal>>;

/// The answers to a batch.
pub(crate) struct Answered {
    pub(crate) answers: Vec<Answer>,
    /// What is left of the commands. Whoever made them lets go of them: no other thread has the time, and what it made itself it frees faster.
    pub(crate) spent: Vec<Call>,
}

/// Where the answers to a batch go.
pub(crate) struct BatchSlot {
    pub(crate) slot: Slot<Answered>,
    /// Counts it among those that are not answered.
    pub(crate) under_way: Option<UnderWay>,
}

impl BatchSlot {
    pub(crate) fn send(self, answered: Result<Answered, Trouble>) {
        // Whoever hears of it may ask for the next thing at once.
        drop(self.under_way);
        // Whoever no longer listens for an answer does not get one.
        let _ = self.slot.send(answered);
    }
}

/// An answer that is ready.
pub(crate) enum Outgoing {
    Batch {
        slot: BatchSlot,
        answered: Answered,
    },
    Pop(RefusableSlot<PopReply>, Result<PopReply, Refusal>),
    /// Whether there is something to pop.
    Ready(RefusableSlot<bool>, Result<bool, Refusal>),
    /// Somebody listens from here on.
    Subscribe(RefusableSlot<Box<dyn Subscription>>, Result<Box<(Subscriber, EventReceiver)>, Refusal>),
    /// Somebody hears from here on what those are told who wait.
    Follow(RefusableSlot<Box<dyn ResultStream>>, Result<Box<(Follower, Stream)>, Refusal>),
}

impl Outgoing {
    /// Sends a reply that brings no events. A caller that no longer waits for it does not get it.
    pub(crate) fn send(self) {
        match self {
            Outgoing::Batch { slot, answered } => slot.send(Ok(answered)),
            Outgoing::Pop(slot, answer) => drop(slot.send(Ok(answer))),
            Outgoing::Ready(slot, answer) => drop(slot.send(Ok(answer))),
            Outgoing::Subscribe(..) | Outgoing::Follow(..) => {}
        }
    }
}

/// Everyone who is told things that they did not ask for just now.
#[derive(Default)]
pub(crate) struct Audience {
    pub(crate) subscribers: Subscribers,
    pub(crate) followers: Followers,
    pub(crate) large_reader: LargeReader,
}

/// What some commands brought about, for everyone outside.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) events: Vec<Event>,
    /// The position of the last of them.
    pub(crate) last_event: u64,
    pub(crate) deliveries: Vec<Delivery>,
    pub(crate) outgoing: Vec<Outgoing>,
    /// Some answers may only say where a payload is.
    pub(crate) elsewhere: bool,
    /// Answers whose large payloads are still to be read.
    pub(crate) unread: Vec<Unread>,
}

impl Outcome {
    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty()
            && self.deliveries.is_empty()
            && self.outgoing.is_empty()
            && self.unread.is_empty()
    }

    /// Tells what happened, then those who wait, and then those who asked.
    pub(crate) fn deliver(self, audience: &mut Audience) {
        if !self.events.is_empty() {
            audience.subscribers.publish(self.events, self.last_event);
        }
        if !self.deliveries.is_empty() {
            audience.followers.tell(self.deliveries);
        }
        self.unread.into_iter().for_each(|unread| audience.large_reader.send(unread));
        for outgoing in self.outgoing {
            match outgoing {
                answer @ (Outgoing::Batch { .. } | Outgoing::Pop(..) | Outgoing::Ready(..)) => answer.send(),
                Outgoing::Subscribe(slot, answer) => {
                    let added = answer.map(|ends| {
                        audience.subscribers.add(ends.0);
                        Box::new(ends.1) as Box<dyn Subscription>
                    });
                    drop(slot.send(Ok(added)));
                }
                Outgoing::Follow(slot, answer) => {
                    let added = answer.map(|ends| {
                        audience.followers.add(ends.0);
                        Box::new(ends.1) as Box<dyn ResultStream>
                    });
                    drop(slot.send(Ok(added)));
                }
            }
        }
    }

    /// Tells those who asked that it came to nothing.
    pub(crate) fn call_off(self, trouble: &Trouble) {
        for outgoing in self.outgoing.into_iter().chain(self.unread.into_iter().map(|unread| unread.outgoing))
        {
            match outgoing {
                Outgoing::Batch { slot, .. } => slot.send(Err(trouble.clone())),
                Outgoing::Pop(slot, _) => drop(slot.send(Err(trouble.clone()))),
                Outgoing::Ready(slot, _) => drop(slot.send(Err(trouble.clone()))),
                Outgoing::Subscribe(slot, _) => drop(slot.send(Err(trouble.clone()))),
                Outgoing::Follow(slot, _) => drop(slot.send(Err(trouble.clone()))),
            }
        }
    }
}
