//! Commands that change a job's priority, dependencies, tags, tracking or history, and queues, workers,
//! options and counters.

use super::{Delta, Effects, Engine, ITSELF, RowState, TAGS_MAX, at_least_one, at_most};
use crate::{
    AddTags, AllocateIds, Depend, DependChange, Event, Log, NAME_BYTES_MAX, QueueName, Refusal, RemoveTags,
    SetPriority, Tag, Timestamp, Track, WorkerName, options,
};

impl Engine {
    pub(super) fn set_priority(&mut self, set: SetPriority, fx: &mut Effects) -> Result<(), Refusal> {
        let row = self.existing(&set.jid)?;
        self.commit(Delta::Priority(row, set.priority), fx);
        Ok(())
    }

    pub(super) fn depend(&mut self, now: Timestamp, depend: Depend, fx: &mut Effects) -> Result<(), Refusal> {
        let jid = depend.jid;
        let row = self.existing(&jid)?;
        let state = self.state.row(row).state;
        if state != RowState::Depends {
            return Err(Refusal::NotInDepends {
                jid,
                state: state.name(),
                qless: self.state.qless_word(row),
            });
        }
        match depend.change {
            DependChange::On(depends) => {
                let mut open = self.open_dependencies(&jid, &depends);
                self.check_cycles(&jid, Some(row), &open, depend.cycles)?;
                open.iter_mut().filter(|on| **on == ITSELF).for_each(|on| *on = row);
                self.commit(Delta::Depend(row, open.into()), fx);
            }
            DependChange::Off(off) => {
                let off = off.iter().filter_map(|jid| self.state.find(jid));
                let off = off.filter(|off| self.state.depends_on(row, *off)).collect();
                self.commit(Delta::Undepend(row, off, now), fx);
            }
            DependChange::OffAll => {
                let off = self.state.dependencies(row).collect();
                self.commit(Delta::Undepend(row, off, now), fx);
            }
        }
        Ok(())
    }

    pub(super) fn log(&mut self, now: Timestamp, log: Log, fx: &mut Effects) -> Result<(), Refusal> {
        self.check_log("message", log.message.len())?;
        self.check_log("log data", log.data.as_ref().map_or(0, String::len))?;
        let row = self.existing(&log.jid)?;
        self.commit(Delta::Log { row, now, message: log.message.into(), data: log.data.map(Into::into) }, fx);
        Ok(())
    }

    pub(super) fn track(&mut self, now: Timestamp, track: Track, fx: &mut Effects) -> Result<bool, Refusal> {
        self.existing(&track.jid)?;
        let jid = track.jid.clone();
        let changes = self.state.is_tracked(&jid) != track.on;
        if track.on {
            fx.publish(|| Event::Track { jid: track.jid });
            // Tracking a tracked job again moves it to the end of the list.
            self.commit(Delta::Track(jid, now), fx);
        } else {
            fx.publish(|| Event::Untrack { jid: track.jid });
            self.commit(Delta::Untrack(jid), fx);
        }
        Ok(changes)
    }

    pub(super) fn add_tags(
        &mut self,
        now: Timestamp,
        add: AddTags,
        fx: &mut Effects,
    ) -> Result<Vec<Tag>, Refusal> {
        at_most("tags", add.tags.len(), TAGS_MAX)?;
        let row = self.existing(&add.jid)?;
        at_most("tags", add.tags.len() + self.state.tags_of(row).len(), TAGS_MAX)?;
        for tag in add.tags {
            self.commit(Delta::Tag(row, tag, now), fx);
        }
        Ok(self.state.tags_of(row))
    }

    pub(super) fn remove_tags(&mut self, remove: RemoveTags, fx: &mut Effects) -> Result<Vec<Tag>, Refusal> {
        at_most("tags", remove.tags.len(), TAGS_MAX)?;
        let row = self.existing(&remove.jid)?;
        for tag in remove.tags {
            self.commit(Delta::Untag(row, tag), fx);
        }
        Ok(self.state.tags_of(row))
    }

    pub(super) fn pause(&mut self, queues: &[QueueName], on: bool, fx: &mut Effects) -> Result<(), Refusal> {
        at_least_one("queues", queues)?;
        for queue in queues {
            let queue = self.queue_id(queue, fx);
            self.commit(Delta::Pause(queue, on), fx);
        }
        Ok(())
    }

    pub(super) fn forget_queues(&mut self, queues: &[QueueName], fx: &mut Effects) -> Result<(), Refusal> {
        at_least_one("queues", queues)?;
        for queue in
            queues.iter().filter_map(|queue| self.state.find_queue(queue.as_str())).collect::<Vec<_>>()
        {
            self.commit(Delta::ForgetQueue(queue), fx);
        }
        Ok(())
    }

    pub(super) fn forget_workers(&mut self, workers: &[WorkerName], fx: &mut Effects) -> Result<(), Refusal> {
        at_least_one("workers", workers)?;
        for worker in
            workers.iter().filter_map(|worker| self.state.find_worker(worker.as_str())).collect::<Vec<_>>()
        {
            self.commit(Delta::ForgetWorker(worker), fx);
        }
        Ok(())
    }

    pub(super) fn configure(
        &mut self,
        option: String,
        value: Option<String>,
        any: bool,
        fx: &mut Effects,
    ) -> Result<(), Refusal> {
        options::check(&option, value.as_deref(), any)?;
        self.check_size("value", value.as_ref().map_or(0, String::len))?;
        fx.publish(|| match &value {
            Some(value) => Event::ConfigSet { option: option.clone(), value: value.clone() },
            None => Event::ConfigUnset { option: option.clone() },
        });
        self.commit(Delta::Config(option.into(), value.map(Into::into)), fx);
        Ok(())
    }

    pub(super) fn allocate_ids(&mut self, allocate: AllocateIds, fx: &mut Effects) -> Result<u64, Refusal> {
        let AllocateIds { counter, count } = allocate;
        let bad = |what: &'static str, why: String| Err(Refusal::BadArgument { what: what.into(), why });
        if !is_counter(&counter) {
            return bad("counter", format!("must have 1 to {NAME_BYTES_MAX} bytes, not {}", counter.len()));
        }
        if count.get() == 0 {
            return bad("count", "must be at least 1".into());
        }
        let before = self.state.last_allocated_id(&counter);
        let Some(last) = before.checked_add(count.get() as u64) else {
            return bad("counter", format!("{counter} has no {} numbers left", count.get()));
        };
        self.commit(Delta::IdsAllocated(counter.into(), last), fx);
        Ok(before + 1)
    }
}

/// Whether a text is a valid counter name.
pub(super) fn is_counter(text: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&text.len())
}
