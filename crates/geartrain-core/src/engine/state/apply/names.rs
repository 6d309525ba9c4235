//! Applies changes of interned names, and counts the references to them: each id that a row, a history, a
//! failure, a template or a capability holds is counted in the [`Interner`].

use std::sync::Arc;

use super::super::cold::FailureRow;
use super::super::history;
use super::super::{Interner, Queue, RowId, State, Template};
use crate::engine::delta::{Kind, NameId};

impl State {
    /// Interns a name under a free id, or else under the next one.
    pub(super) fn name(&mut self, kind: Kind, number: Option<u32>, name: &Arc<str>) {
        fn add<T>(to: &mut Interner<T>, number: Option<u32>, name: &Arc<str>, thing: T) {
            let number = number.unwrap_or_else(|| to.add_free());
            to.add_at(number, name, thing);
        }
        match kind {
            Kind::Queue => {
                let options = self.config.of_queue(name);
                add(&mut self.queues, number, name, Queue { options, ..Queue::default() });
            }
            Kind::Klass => add(&mut self.klasses, number, name, ()),
            Kind::Worker => add(&mut self.workers, number, name, Default::default()),
            Kind::Group => add(&mut self.groups, number, name, Default::default()),
        }
    }

    pub(super) fn free_name_id(&mut self, kind: Kind, number: u32) {
        match kind {
            Kind::Queue => self.queues.remove(number),
            Kind::Klass => self.klasses.remove(number),
            Kind::Worker => self.workers.remove(number),
            Kind::Group => self.groups.remove(number),
        }
    }

    pub(super) fn set_queue(&mut self, at: RowId, queue: u32) {
        let old = std::mem::replace(&mut self.rows[at].queue, queue);
        self.queues.hold(queue);
        self.queues.release(old);
    }

    pub(super) fn set_klass(&mut self, at: RowId, klass: u32) {
        let old = std::mem::replace(&mut self.rows[at].klass, klass);
        self.klasses.hold(klass);
        self.klasses.release(old);
    }

    pub(super) fn set_worker(&mut self, at: RowId, worker: u32) {
        let old = std::mem::replace(&mut self.rows[at].worker, worker);
        self.workers.hold(worker);
        self.workers.release(old);
    }

    pub(super) fn set_failure(&mut self, at: RowId, failure: Option<FailureRow>) {
        let names = failure.as_ref().map(|failure| (failure.group, failure.worker));
        let old = std::mem::replace(&mut self.cold_mut(at).failure, failure);
        if let Some((group, worker)) = names {
            self.groups.hold(group);
            self.workers.hold(worker);
        }
        if let Some(FailureRow { group, worker, .. }) = old {
            self.groups.release(group);
            self.workers.release(worker);
        }
    }

    pub(super) fn release_name(&mut self, kind: Kind, name: NameId) {
        match kind {
            Kind::Queue => self.queues.release(name),
            Kind::Klass => self.klasses.release(name),
            Kind::Worker => self.workers.release(name),
            Kind::Group => self.groups.release(name),
        }
    }

    pub(in crate::engine::state) fn count_template(&mut self, template: &Template, hold: bool) {
        self.queues.count(template.queue, hold);
        self.klasses.count(template.klass, hold);
    }

    /// Counts the names of a row read from a snapshot, or releases them before the row is removed.
    pub(in crate::engine::state) fn count_row(&mut self, at: RowId, hold: bool) {
        let State { rows, cold_parts, blobs, queues, klasses, workers, groups, .. } = self;
        let row = &rows[at];
        queues.count(row.queue, hold);
        klasses.count(row.klass, hold);
        workers.count(row.worker, hold);
        history::visit_names(blobs, row.history, |kind, name| match kind {
            Kind::Queue => queues.count(name, hold),
            Kind::Klass => klasses.count(name, hold),
            Kind::Worker => workers.count(name, hold),
            Kind::Group => groups.count(name, hold),
        });
        let failure = cold_parts.get(row.cold as usize).and_then(|cold| cold.failure.as_ref());
        if let Some(failure) = failure {
            groups.count(failure.group, hold);
            workers.count(failure.worker, hold);
        }
    }
}
