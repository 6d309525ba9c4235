//! Applying deltas: the only place where the state changes, when a command is executed and when a store
//! replays its log. Each file holds the mutators of one slice of `engine/`.

mod attempts;
mod capabilities;
mod change;
mod dependency_policy;
mod event_log;
mod finish;
mod names;
mod pop;
mod put;
mod put_options;
mod recur;
mod results;
mod set_aside;

use super::cold::Ended;
use super::history::Mark;
use super::{EPOCH_BITS, NONE, State};
use crate::EndReason;
use crate::engine::delta::Delta;

impl State {
    /// Applies a delta. A snapshot in progress gets the changed row's preimage first.
    pub(crate) fn apply(&mut self, delta: &Delta) {
        if let Some(row) = delta.row() {
            self.save_preimage(row);
        }
        match delta {
            Delta::Epoch(epoch) => {
                self.seq = self.seq.max(u64::from(*epoch) << EPOCH_BITS);
                self.begin_event_epoch(*epoch);
            }
            Delta::Name(kind, name) => self.name(*kind, None, name),
            Delta::ReuseNameId(kind, number, name) => self.name(*kind, Some(*number), name),
            Delta::FreeNameId(kind, number) => self.free_name_id(*kind, *number),
            Delta::Seen(worker, now) => self.see(*worker, *now),
            Delta::Put(put) => self.put(put),
            Delta::Spawn { template, jid, count, at, next, now } => {
                self.spawn(*template, jid, *count, *at, *next, *now);
            }
            Delta::Promote(row, now) => {
                self.detach(*row);
                self.enter_work(*row, *now);
            }
            Delta::Pop { row, worker, now, expires } => self.pop(*row, *worker, *now, *expires),
            Delta::Warn { row, now, until } => self.warn(*row, *now, *until),
            Delta::SpendRetry(row) => self.spend_retry(*row),
            Delta::Heartbeat { row, expires, payload } => self.extend(*row, *expires, payload),
            Delta::Complete { row, now, payload } => self.finish(*row, *now, payload),
            Delta::Advance(advance) => self.advance(advance),
            Delta::Fail(fail) => self.fail(fail),
            Delta::Retry { row, now, due, failure } => self.retry(*row, *now, *due, failure.as_deref()),
            Delta::Timeout(row, now) => self.time_out(*row, *now),
            Delta::Remove(row) => self.remove(*row),
            Delta::Unfail(row, queue, now) => self.unfail(*row, *queue, *now),
            Delta::Priority(row, priority) => self.prioritise(*row, *priority),
            Delta::Depend(row, on) => {
                on.iter().for_each(|on| self.link(*row, *on));
                self.note_behind_failed(*row);
            }
            Delta::Undepend(row, off, now) => self.undepend(*row, off, *now),
            Delta::Log { row, now, message, data } => {
                self.mark(*row, *now, Mark::Log { message, data: data.as_deref() });
            }
            Delta::Track(jid, now) => self.track(jid, *now),
            Delta::Untrack(jid) => self.untrack(jid),
            Delta::Tag(row, tag, now) => self.tag(*row, tag, *now, false),
            Delta::Untag(row, tag) => self.untag(*row, tag),
            Delta::Pause(queue, paused) => {
                self.queues[*queue].paused = *paused;
                self.mark_dirty(*queue);
                self.queues.examine(*queue);
            }
            Delta::ForgetQueue(queue) => {
                self.queues[*queue].registered = None;
                self.queues.examine(*queue);
            }
            Delta::ForgetWorker(worker) => {
                self.clear_capabilities(*worker);
                self.workers[*worker].seen = None;
                self.workers.examine(*worker);
            }
            Delta::AgeWorker(worker) => self.age_worker(*worker),
            Delta::Config(option, value) => self.configure(option, value.as_deref()),
            Delta::Recur(recur) => self.recur(recur),
            Delta::Unrecur(template) => {
                let removed = self.templates.remove(template).expect("a recurring job that goes was there");
                self.queues[removed.queue].remove_recurring(removed.klass, removed.entry(*template));
                self.count_template(&removed, false);
                self.templates_by_jid.remove(&removed.jid);
            }
            Delta::PutOptions(row, options) => self.set_put_options(*row, options),
            Delta::Coalesced { row, result_ttl, always } => self.merge(*row, *result_ttl, *always),
            Delta::Attached(row, waiter) => self.attach(*row, *waiter),
            Delta::Detached(row, waiter) => self.detach_waiter(*row, waiter),
            Delta::Progressed(row, progress) => self.extension_mut(*row).progress = Some(*progress),
            Delta::Deadline(row, at) => self.set_deadline(*row, *at),
            Delta::AttemptTimedOut(row, now) => {
                self.mark(*row, *now, Mark::TimedOut);
                self.spend_retry(*row);
                let token = self.rows[*row].seq;
                self.cold_mut(*row).ended = Some((token, Ended::TimedOut));
            }
            Delta::Crashed { row, now, evidence } => self.crash(*row, *now, evidence),
            Delta::Release(row, now) => {
                self.end_attempt(*row, *now, EndReason::Released, None, None);
                self.bring_to_front(*row);
            }
            Delta::ToFront(row) => self.bring_to_front(*row),
            Delta::CapabilityAdded { worker, queue, klass, attempt_max } => {
                self.add_capability(*worker, (*queue, klass.unwrap_or(NONE)), *attempt_max);
                let seen = self.workers[*worker].seen;
                self.register(*queue, seen.unwrap_or_default());
            }
            Delta::CapabilityRemoved { worker, queue, klass } => {
                self.remove_capability(*worker, (*queue, klass.unwrap_or(NONE)))
            }
            Delta::CapabilitiesCleared(worker) => self.clear_capabilities(*worker),
            Delta::Limits(queue, limits) => self.limit(*queue, limits.as_deref()),
            Delta::Polled(queue, now) => self.queues[*queue].last_polled = Some(*now),
            Delta::ResultStored(stored) => self.results.insert((**stored).clone()),
            Delta::ResultDropped(jid) => self.results.remove(jid),
            Delta::Listening(listened) => self.start_event_log(*listened),
            Delta::EventLogged { event, at } => self.append_event(event, *at),
            Delta::RatesSampled(at) => self.sample_rates(*at),
            Delta::TagCleared(tag) => self.set_tag_count(tag.clone(), 0),
            Delta::QueueCleared(queue) => self.clear_queue(*queue),
            Delta::RunWithout(row, off, now) => self.run_without(*row, off, *now),
            Delta::AttemptEnded { row, now, reason, group, message } => {
                self.end_attempt(*row, *now, *reason, group.as_ref(), message.as_deref());
            }
            Delta::Canceled { row, now, by, because } => {
                self.cancel(*row, *now, by.as_deref(), because.as_deref())
            }
            Delta::TombstoneDropped(jid) => self.tombstones.remove(jid),
            Delta::Periodic(periodic) => self.periodics.insert(periodic.clone()),
            Delta::PeriodicRemoved(jid) => self.periodics.remove(jid),
            Delta::PeriodicRan(run) => self.periodic_ran(run),
            Delta::SpawnedFrom(row, jid) => self.cold_mut(*row).spawned_from = Some(jid.clone()),
            Delta::Requeue(row, queue, now) => self.requeue(*row, *queue, *now),
            Delta::Snooze(row, due) => self.snooze(*row, *due),
            Delta::SetAside(aside) => self.set_aside(aside),
            Delta::Return { row, now, failure } => self.put_back(*row, *now, failure.as_deref()),
            Delta::Relock { row, now, expires } => self.lock_again(*row, *now, *expires),
            Delta::IdsAllocated(counter, last) => drop(self.counters.insert(counter.clone(), *last)),
        }
    }

    fn next_seq(&mut self) -> u64 {
        self.seq += 1;
        self.seq
    }
}
