//! The queue itself.

use crate::{Answer, Command, Event, QueueName, Timestamp};

/// What the engine will not take.
#[derive(Debug, Clone)]
pub struct Limits {
    /// The largest payload, message or log data.
    pub payload_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { payload_bytes_max: 64 << 20 }
    }
}

/// A change of state.
#[derive(Debug, Clone)]
pub struct Delta;

/// What executing commands brought about, for whoever runs the engine to write down and to publish.
#[derive(Debug, Default)]
pub struct Effects {
    /// The changes, in order. Applied to an engine in the state from before, they lead to the state after.
    pub deltas: Vec<Delta>,
    /// What happened, in order; left empty unless `listening`.
    pub events: Vec<Event>,
    /// Whether anybody wants the events.
    pub listening: bool,
}

/// The queue itself: every rule, no clock, no I/O, no threads, no chance.
#[derive(Debug)]
pub struct Engine;

impl Engine {
    /// An empty one.
    pub fn new(_limits: Limits) -> Engine {
        Engine
    }

    /// Executes one command at a moment; refuses it and changes nothing, or answers it and appends what it did to `effects`.
    pub fn execute(&mut self, _now: Timestamp, _command: Command, _effects: &mut Effects) -> Answer {
        todo!()
    }

    /// Repeats a change that another engine made.
    pub fn apply(&mut self, _delta: &Delta) {
        todo!()
    }

    /// When something next comes due in a queue without anybody's doing: a lock, a scheduled or a recurring job.
    pub fn next_due(&self, _queue: &QueueName) -> Option<Timestamp> {
        todo!()
    }

    /// Looks whether every job is in exactly one place and every index agrees with the jobs; says what is wrong.
    pub fn check(&self) -> Result<(), String> {
        todo!()
    }
}
