//! Telling what happened, and then those who asked: in this order, and only once it cannot be lost.

use flume::Sender;
use geartrain_core::{Answer, Call, Event, Events, PopReply, Refusal};

use crate::subscribers::Subscribers;
use crate::trouble::Trouble;

/// Where an answer goes: the answer itself, or why there is none.
pub(crate) type Slot<T> = Sender<Result<T, Trouble>>;

/// The answers to a batch.
pub(crate) struct Answered {
    pub(crate) answers: Vec<Answer>,
    /// What is left of the commands. Whoever made them lets go of them: no other thread has the time, and what it made itself it frees faster.
    pub(crate) spent: Vec<Call>,
}

/// An answer that is ready.
pub(crate) enum Outgoing {
    Batch {
        slot: Slot<Answered>,
        answered: Answered,
    },
    Pop(Slot<Result<PopReply, Refusal>>, Result<PopReply, Refusal>),
    /// Somebody listens from here on.
    Subscribe(Slot<Box<dyn Events>>),
}

/// What some commands brought about, for everyone outside.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) events: Vec<Event>,
    pub(crate) outgoing: Vec<Outgoing>,
    /// Some answers may only say where a payload is.
    pub(crate) elsewhere: bool,
}

impl Outcome {
    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty() && self.outgoing.is_empty()
    }

    /// Tells what happened, and then those who asked.
    pub(crate) fn deliver(self, subscribers: &mut Subscribers) {
        subscribers.publish(self.events.into_iter());
        for outgoing in self.outgoing {
            // Whoever no longer listens for an answer does not get one.
            match outgoing {
                Outgoing::Batch { slot, answered } => drop(slot.send(Ok(answered))),
                Outgoing::Pop(slot, answer) => drop(slot.send(Ok(answer))),
                Outgoing::Subscribe(slot) => drop(slot.send(Ok(subscribers.add()))),
            }
        }
    }

    /// Tells those who asked that it came to nothing.
    pub(crate) fn call_off(self, trouble: &Trouble) {
        for outgoing in self.outgoing {
            match outgoing {
                Outgoing::Batch { slot, .. } => drop(slot.send(Err(trouble.clone()))),
                Outgoing::Pop(slot, _) => drop(slot.send(Err(trouble.clone()))),
                Outgoing::Subscribe(slot) => drop(slot.send(Err(trouble.clone()))),
            }
        }
    }
}
