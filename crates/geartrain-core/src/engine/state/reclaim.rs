//! Whether interned names are still needed, for `engine/reclaim.rs`.

use super::{OrderStatTree, Queue, State};
use crate::engine::delta::{Kind, NameId};
use crate::{Seconds, Timestamp};

/// The shortest wait before a listed worker that still has jobs or capabilities is examined again.
const AGAIN: Seconds = Seconds::from_whole(60);

/// Whether a name is needed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Need {
    /// Something refers to it, or it has settings that do not expire.
    Needed,
    /// Nothing refers to it, but it has data that expires.
    Until(Timestamp),
    /// A worker that was not seen for long and holds nothing: it can be unlisted.
    Aged,
    Unneeded,
}

impl State {
    /// Takes the next candidate for removal.
    pub(crate) fn next_candidate(&mut self, now: Timestamp) -> Option<(Kind, NameId)> {
        let of = |kind: Kind| move |number: NameId| (kind, number);
        (self.klasses.next_candidate(now).map(of(Kind::Klass)))
            .or_else(|| self.groups.next_candidate(now).map(of(Kind::Group)))
            .or_else(|| self.workers.next_candidate(now).map(of(Kind::Worker)))
            .or_else(|| self.queues.next_candidate(now).map(of(Kind::Queue)))
    }

    /// When there is a candidate.
    pub(crate) fn next_examination(&self) -> Option<Timestamp> {
        let of_tables = [
            self.klasses.next_examination(),
            self.groups.next_examination(),
            self.workers.next_examination(),
            self.queues.next_examination(),
        ];
        of_tables.into_iter().flatten().min()
    }

    pub(crate) fn need(&self, kind: Kind, number: NameId, now: Timestamp) -> Need {
        let is_needed = match kind {
            Kind::Klass => self.klasses.references(number) > 0,
            Kind::Group => self.groups.references(number) > 0,
            Kind::Worker => return self.need_of_worker(number, now),
            Kind::Queue => return self.need_of_queue(number, now),
        };
        if is_needed { Need::Needed } else { Need::Unneeded }
    }

    /// A worker is listed for `max-worker-age`. Its capabilities end earlier, when it is silent.
    fn need_of_worker(&self, number: NameId, now: Timestamp) -> Need {
        let (worker, age) = (&self.workers[number], self.config.numbers.worker_age);
        let has_nothing =
            worker.jobs.is_empty() && worker.warned.is_empty() && worker.capabilities.is_empty();
        match worker.seen {
            Some(seen) if seen + age > now => Need::Until(seen + age),
            Some(_) if has_nothing => Need::Aged,
            Some(_) => Need::Until(now + age.max(AGAIN)),
            None if has_nothing && self.workers.references(number) == 0 => Need::Unneeded,
            None => Need::Needed,
        }
    }

    /// An unlisted empty queue is kept for its statistics and the time of its last poll.
    fn need_of_queue(&self, number: NameId, now: Timestamp) -> Need {
        let Queue { registered, paused, limits, watched, days, last_polled, .. } = &self.queues[number];
        if self.queues.references(number) > 0
            || registered.is_some()
            || *paused
            || limits.is_some()
            || *watched
        {
            return Need::Needed;
        }
        let numbers = &self.config.numbers;
        let until = days.end(numbers.keep_stats).max(last_polled.map(|polled| polled + numbers.worker_age));
        match until {
            Some(until) if until > now => Need::Until(until),
            _ => Need::Unneeded,
        }
    }

    /// Postpones the examination of a name.
    pub(crate) fn postpone(&mut self, kind: Kind, number: NameId, until: Timestamp) {
        match kind {
            Kind::Klass => self.klasses.postpone(number, until),
            Kind::Group => self.groups.postpone(number, until),
            Kind::Worker => self.workers.postpone(number, until),
            Kind::Queue => {
                self.queues.postpone(number, until);
                self.queues[number].shrink();
            }
        }
    }

    pub(super) fn name_count(&self) -> usize {
        let State { queues, klasses, workers, groups, .. } = self;
        queues.iter().count() + klasses.iter().count() + workers.iter().count() + groups.iter().count()
    }

    /// Approximate memory of all interned names.
    pub(super) fn name_bytes(&self) -> usize {
        let of_queue = |queue: &Queue| {
            let Queue { work, locks, scheduled, depends, recurring, by_klass, days, .. } = queue;
            let timed: usize = [locks, scheduled, depends, recurring].iter().map(|index| index.bytes()).sum();
            let by_klass = by_klass.as_ref().map_or(0, |index| index.bytes());
            timed + work.bytes() + by_klass + days.bytes()
        };
        self.queues.bytes(of_queue)
            + self.klasses.bytes(|()| 0)
            + self.workers.bytes(|worker| worker.jobs.bytes())
            + self.groups.bytes(OrderStatTree::bytes)
    }

    /// The lowest free id of a kind.
    pub(crate) fn first_free(&self, kind: Kind) -> Option<NameId> {
        match kind {
            Kind::Queue => self.queues.first_free(),
            Kind::Klass => self.klasses.first_free(),
            Kind::Worker => self.workers.first_free(),
            Kind::Group => self.groups.first_free(),
        }
    }
}

impl Queue {
    /// Frees the spare capacity of empty indexes.
    fn shrink(&mut self) {
        for index in [&mut self.locks, &mut self.scheduled, &mut self.depends, &mut self.recurring] {
            if index.is_empty() {
                *index = OrderStatTree::default();
            }
        }
        if self.work.is_empty() {
            self.work = OrderStatTree::default();
        }
        self.days.shrink();
    }
}
