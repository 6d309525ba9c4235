//! Relock: new locks for the running jobs of a worker that was restarted.

use super::{Delta, Effects, Engine, Kind, NameId, QUEUES_MAX, RowId, at_most};
use crate::{Event, Milestone, Popped, RELOCK_MAX, Refusal, Relock, Timestamp};

impl Engine {
    pub(super) fn relock(
        &mut self,
        now: Timestamp,
        relock: Relock,
        fx: &mut Effects,
    ) -> Result<Vec<Popped>, Refusal> {
        let Relock { worker, queues, count, before } = relock;
        let count = count.get();
        if !(1..=RELOCK_MAX).contains(&count) {
            let why = format!("must be 1 to {RELOCK_MAX}, not {count}");
            return Err(Refusal::BadArgument { what: "count".into(), why });
        }
        at_most("queues", queues.len(), QUEUES_MAX)?;
        let worker = self.id(Kind::Worker, worker.shared(), fx);
        self.commit(Delta::Seen(worker, now), fx);
        // No job is in a queue that is not interned.
        let known: Vec<NameId> =
            queues.iter().filter_map(|queue| self.state.find_queue(queue.as_str())).collect();
        let is_asked_for = |row: &RowId| {
            let row = self.state.row(*row);
            (queues.is_empty() || known.contains(&row.queue))
                && before.is_none_or(|before| row.seq < before.number)
        };
        let rows: Vec<RowId> = self.state.held(worker).into_iter().filter(is_asked_for).take(count).collect();
        Ok(rows.into_iter().map(|row| self.relock_one(row, worker, now, fx)).collect())
    }

    fn relock_one(&mut self, row: RowId, worker: NameId, now: Timestamp, fx: &mut Effects) -> Popped {
        let expires = now + self.state.heartbeat(self.state.row(row).queue);
        self.commit(Delta::Relock { row, now, expires }, fx);
        self.set_deadline(row, worker, now, fx);
        let popped = self.state.popped(row, false);
        // No `LockLost`: it is addressed by the name of the worker, and the process that has the job now
        // would take it for its own.
        fx.publish(|| Event::Popped {
            jid: popped.jid.clone(),
            queue: popped.queue.clone(),
            worker: popped.lock.worker.clone(),
        });
        self.milestone(row, Milestone::Popped, fx);
        popped
    }
}
