//! Consistency checks of the state, for tests and `fsck`.

use super::{DueKey, Flags, NONE, ReadyKey, RowId, RowState, State, history};
use crate::DependencyPolicy;
use crate::engine::change::is_counter;
use crate::engine::delta::Kind;

impl State {
    /// Checks that each job is in exactly one index of its queue, and that indexes hold exactly what the rows
    /// imply.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut expected = Expected::default();
        for at in self.rows.ids() {
            self.check_row(at, &mut expected)
                .map_err(|wrong| format!("job {:?}: {wrong}", self.rows.jid(at)))?;
        }
        self.check_sizes(&expected)?;
        self.check_tags()?;
        self.check_payloads()?;
        self.check_templates()?;
        self.check_extensions()?;
        self.check_capabilities()?;
        self.check_names()?;
        self.check_counters()?;
        self.tombstones.check()?;
        self.periodics.check()?;
        self.results.check()
    }

    /// Reference counts of names are right.
    fn check_names(&self) -> Result<(), String> {
        let (mut queues, mut klasses) = (vec![0; self.queues.len()], vec![0; self.klasses.len()]);
        let (mut workers, mut groups) = (vec![0; self.workers.len()], vec![0; self.groups.len()]);
        let count = |counts: &mut [u64], number: u32| match counts.get_mut(number as usize) {
            Some(count) => {
                *count += 1;
                Ok(())
            }
            None => ensure(number == NONE, || format!("id {number} has no name")),
        };
        for at in self.rows.ids() {
            let row = &self.rows[at];
            count(&mut queues, row.queue)?;
            count(&mut klasses, row.klass)?;
            count(&mut workers, row.worker)?;
            let mut counted = Ok(());
            history::visit_names(&self.blobs, row.history, |kind, name| {
                let counts = match kind {
                    Kind::Queue => &mut queues,
                    Kind::Klass => &mut klasses,
                    Kind::Worker => &mut workers,
                    Kind::Group => &mut groups,
                };
                counted = std::mem::replace(&mut counted, Ok(())).and(count(counts, name));
            });
            counted?;
            if let Some(failure) = self.cold(at).and_then(|cold| cold.failure.as_ref()) {
                count(&mut groups, failure.group)?;
                count(&mut workers, failure.worker)?;
            }
        }
        for template in self.templates.values() {
            count(&mut queues, template.queue)?;
            count(&mut klasses, template.klass)?;
        }
        for (queue, klass) in self.workers.iter().flat_map(|(_, _, worker)| worker.capabilities.keys()) {
            count(&mut queues, *queue)?;
            count(&mut klasses, *klass)?;
        }
        self.queues.check(&queues)?;
        self.klasses.check(&klasses)?;
        self.workers.check(&workers)?;
        self.groups.check(&groups)
    }

    /// Unique keys, waiters, deadlines and expiries are indexed, and nothing else is.
    fn check_extensions(&self) -> Result<(), String> {
        let (mut keys, mut waiters, mut deadlines, mut expiries) = (0, 0, 0, 0);
        for at in self.rows.ids() {
            let Some(extension) = self.extension(at) else { continue };
            let row = &self.rows[at];
            let is_so = |holds: bool, otherwise: &str| {
                ensure(holds, || format!("job {:?} {otherwise}", self.rows.jid(at)))
            };
            if extension.has_key {
                keys += 1;
                let there = extension
                    .options
                    .unique
                    .as_ref()
                    .is_some_and(|key| self.keyed(row.queue, key) == Some(at));
                is_so(there, "has a unique key that another job owns")?;
            }
            for waiter in &extension.waiters {
                waiters += 1;
                is_so(self.waiters.get(waiter) == Some(&at), "has a waiter that waits for another job")?;
            }
            if let Some(deadline) = extension.deadline {
                deadlines += 1;
                let there =
                    self.deadlines.contains(&(deadline, row.seq, at)) && row.state == RowState::Running;
                is_so(there, "has a deadline that is not indexed")?;
            }
            if let Some(expiry) = self.expiry(at) {
                expiries += 1;
                is_so(self.expiries.contains(&expiry), "has an expiry that is not indexed")?;
            }
            let ended = matches!(row.state, RowState::Complete | RowState::Failed);
            let rests = !extension.has_key && extension.waiters.is_empty();
            is_so(!ended || rests, "ended, and has a unique key or waiters")?;
            let idle = extension.deadline.is_none() && extension.progress.is_none();
            is_so(row.state == RowState::Running || idle, "is not running, and has a deadline or progress")?;
        }
        let behind = self.rows.ids().filter(|at| self.is_behind_failed(*at)).collect::<Vec<_>>();
        let policies =
            self.rows.ids().filter(|at| self.dependency_policy(*at) != DependencyPolicy::Wait).count();
        for at in &behind {
            let there = self.behind_failed.contains(&(self.rows.jid(*at), *at));
            ensure(there, || format!("job {:?} is not in the index behind failed", self.rows.jid(*at)))?;
        }
        let known: usize = self.queues.iter().map(|(_, _, queue)| queue.keys.len()).sum();
        let sizes = [
            ("keys", known, keys),
            ("waiters", self.waiters.len(), waiters),
            ("deadlines", self.deadlines.len(), deadlines),
            ("expiries", self.expiries.len(), expiries),
            ("behind failed", self.behind_failed.len(), behind.len()),
            ("dependency policies", self.dependency_policies, policies),
        ];
        for (what, found, wanted) in sizes {
            ensure(found == wanted, || format!("{what} has {found} entries for {wanted}"))?;
        }
        Ok(())
    }

    /// A counter has a valid name and has allocated an id.
    fn check_counters(&self) -> Result<(), String> {
        let wrong = self.counters.iter().find(|(counter, last)| !is_counter(counter) || **last == 0);
        ensure(wrong.is_none(), || format!("counter and last id {wrong:?} are invalid"))
    }

    fn check_row(&self, at: RowId, expected: &mut Expected) -> Result<(), String> {
        let row = &self.rows[at];
        ensure(self.rows.find(&self.rows.jid(at)) == Some(at), || "is not found by its jid".into())?;
        let timed = DueKey::of(at, row);
        let queue = |_| &self.queues[row.queue];
        let there = match row.state {
            RowState::Free => false,
            RowState::Scheduled => queue(()).scheduled.contains(timed),
            RowState::Depends => queue(()).depends.contains(timed),
            RowState::Waiting => queue(()).work.contains(ReadyKey::of(at, row)),
            RowState::Running => queue(()).locks.contains(timed),
            RowState::Complete => self.complete.contains(timed) && row.queue == NONE,
            RowState::Failed => self
                .cold(at)
                .and_then(|cold| cold.failure.as_ref())
                .is_some_and(|failure| self.groups[failure.group].contains((row.seq, at))),
        };
        ensure(there, || format!("is not in the index of {:?} jobs", row.state))?;
        expected.placed[row.state as usize] += 1;
        let waits = self.dependencies(at).next().is_some();
        ensure(waits == (row.state == RowState::Depends), || {
            format!("is {:?}, has dependencies: {waits}", row.state)
        })?;
        for on in self.dependencies(at) {
            let linked = self.rows[on].state != RowState::Complete && self.dependents(on).any(|of| of == at);
            ensure(linked, || format!("depends on row {on}, which does not list it as a dependent"))?;
            expected.links += 1;
        }
        expected.back_links += self.dependents(at).count();
        let running = row.state == RowState::Running;
        ensure(!running || row.worker != NONE, || "runs without a worker".into())?;
        if row.flags.has(Flags::LISTED) {
            let listed =
                if running { Some((row.score, row.seq)) } else { self.cold(at).and_then(|cold| cold.listed) };
            let entry = listed.map(|(deadline, seq)| DueKey { at: deadline, seq, row: at });
            let there = entry.is_some_and(|entry| self.workers[row.worker].jobs.contains(entry));
            ensure(there, || "is not in its worker's list".into())?;
            expected.listed += 1;
        }
        if running && row.flags.has(Flags::GRACE) {
            ensure(self.workers[row.worker].warned.contains(&at), || {
                "is not in its worker's warned jobs".into()
            })?;
            expected.warned += 1;
        }
        let tracked = self.tracked.contains_key(&self.rows.jid(at));
        ensure(row.flags.has(Flags::TRACKED) == tracked, || "has a wrong tracked flag".into())?;
        let has_cold = row.cold == NONE || self.cold_parts.contains(row.cold as usize);
        ensure(has_cold, || "has lost its cold part".into())?;
        expected.cold_parts += usize::from(row.cold != NONE);
        Ok(())
    }

    /// No index has more entries than jobs.
    fn check_sizes(&self, expected: &Expected) -> Result<(), String> {
        let of_queues =
            |len: fn(&super::Queue) -> usize| self.queues.iter().map(|(_, _, queue)| len(queue)).sum();
        let in_lists = self.workers.iter().map(|(_, _, worker)| worker.jobs.len()).sum();
        let warned = self.workers.iter().map(|(_, _, worker)| worker.warned.len()).sum();
        let in_groups = self.groups.iter().map(|(_, _, group)| group.len()).sum();
        let placed = |state: RowState| expected.placed[state as usize];
        let sizes: [(&str, usize, usize); 11] = [
            ("scheduled", of_queues(|queue| queue.scheduled.len()), placed(RowState::Scheduled)),
            ("depends", of_queues(|queue| queue.depends.len()), placed(RowState::Depends)),
            ("work", of_queues(|queue| queue.work.len()), placed(RowState::Waiting)),
            ("locks", of_queues(|queue| queue.locks.len()), placed(RowState::Running)),
            ("complete", self.complete.len(), placed(RowState::Complete)),
            ("failed", in_groups, placed(RowState::Failed)),
            ("failed of queues", of_queues(|queue| queue.failed), placed(RowState::Failed)),
            ("workers' lists", in_lists, expected.listed),
            ("warned about", warned, expected.warned),
            ("cold parts", self.cold_parts.len(), expected.cold_parts),
            ("dependents", expected.back_links, expected.links),
        ];
        for (what, found, wanted) in sizes {
            ensure(found == wanted, || format!("{what} has {found} entries for {wanted} jobs"))?;
        }
        ensure(self.rows.len() == expected.placed.iter().sum(), || "rows are neither free nor jobs".into())?;
        ensure(self.tracked.len() == self.tracked_order.len(), || "tracked jobs are not in order".into())
    }

    fn check_tags(&self) -> Result<(), String> {
        let mut taggings = 0;
        for at in self.rows.ids() {
            let tags = self.cold(at).map_or(&[][..], |cold| &cold.tags);
            for (position, tagging) in tags.iter().enumerate() {
                let entry = self.tag_key(at, tagging.at);
                let there =
                    self.tags.get(&tagging.tag).is_some_and(|usage| usage.jobs.contains(entry.clone()));
                ensure(there, || format!("tag {} does not list row {at}", tagging.tag))?;
                taggings += usize::from(tags[..position].iter().all(|before| before.tag != tagging.tag));
            }
        }
        let known: usize = self.tags.values().map(|usage| usage.jobs.len()).sum();
        ensure(known == taggings, || format!("tags list {known} jobs and jobs list {taggings} tags"))?;
        let top = self.tags.iter().filter(|(_, usage)| usage.count >= 2).count();
        let in_order = self
            .tags
            .iter()
            .all(|(tag, usage)| usage.count < 2 || self.top_tags.contains(&(usage.count, tag.clone())));
        ensure(in_order && top == self.top_tags.len(), || "the top tags are not those used most".into())
    }

    fn check_templates(&self) -> Result<(), String> {
        let there = |(number, of): (&u32, &super::Template)| {
            self.templates_by_jid.get(&of.jid) == Some(number)
                && self.queues[of.queue].recurring.contains(of.entry(*number))
        };
        let in_queues: usize = self.queues.iter().map(|(_, _, queue)| queue.recurring.len()).sum();
        let coalesce_or_check = self.templates.iter().all(there)
            && in_queues == self.templates.len()
            && self.templates_by_jid.len() == self.templates.len();
        ensure(coalesce_or_check, || "recurring jobs and their queues disagree".into())?;
        let indexed = self.queues.iter().all(|(_, _, queue)| self.check_klass_index(queue));
        ensure(indexed, || "a klass index disagrees with its queue".into())
    }
}

/// The numbers of entries that the rows imply.
#[derive(Default)]
struct Expected {
    placed: [usize; 7],
    links: usize,
    back_links: usize,
    listed: usize,
    warned: usize,
    cold_parts: usize,
}

fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise()) }
}
