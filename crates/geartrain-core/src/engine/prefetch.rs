//! Prefetch: load the memory that a batch will need, before executing it.
//!
//! With a million jobs, most of a command's cost is cache misses: a put misses in the index, a pop at the row
//! and the payload of a job that was put long ago, a completion at the old job that it removes. Executed one
//! by one, each command waits for its own. Reading all those places first, without depending on what is
//! there, lets the processor fetch them at the same time.

use std::hint::black_box;

use super::Engine;
use crate::{Command, Holder, Jid};

/// How many commands, ready jobs, or complete jobs are prefetched. More would evict each other from the
/// cache.
const NEXT_MAX: usize = 128;

impl Engine {
    /// Touches what the first of these commands will need, and changes nothing. Returns how many commands it
    /// covered. Pays off for several commands in a row, and otherwise costs a little.
    pub fn prefetch<'a>(&self, commands: impl Iterator<Item = &'a Command>) -> usize {
        let (mut touched, mut looked_at) = (0, 0);
        let mut popped: Option<(u32, usize)> = None;
        let mut completed = 0;
        for command in commands.take(NEXT_MAX) {
            looked_at += 1;
            match command {
                Command::Put(put) => touched ^= self.state.touch(&put.jid),
                Command::Get(get) => touched ^= self.state.touch(&get.jid),
                Command::Complete(complete) => {
                    touched ^= self.touch_held(&complete.jid, &complete.holder);
                    completed += 1;
                }
                Command::Heartbeat(beat) => touched ^= self.touch_held(&beat.jid, &beat.holder),
                Command::Pop(pop) => {
                    let first = pop.queues.first().and_then(|queue| self.state.find_queue(queue.as_str()));
                    let wanted = pop.count.get();
                    popped = match (popped, first) {
                        (Some((queue, count)), Some(first)) if queue == first => {
                            Some((queue, count + wanted))
                        }
                        (before, Some(first)) => {
                            touched ^= self.touch_next(before);
                            Some((first, wanted))
                        }
                        (before, None) => before,
                    };
                }
                _ => {}
            }
        }
        touched ^= self.touch_next(popped);
        black_box(touched ^ self.state.touch_oldest_complete(completed));
        looked_at
    }

    /// A token's hint locates its row without the index; a worker's name does not.
    fn touch_held(&self, jid: &Jid, holder: &Holder) -> u32 {
        match holder {
            Holder::Token(_) => 0,
            Holder::Worker(_) => self.state.touch(jid),
        }
    }

    fn touch_next(&self, popped: Option<(u32, usize)>) -> u32 {
        popped.map_or(0, |(queue, count)| self.state.touch_next(queue, count.min(NEXT_MAX)))
    }
}
