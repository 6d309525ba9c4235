//! Applies changes of recurring and periodic jobs, and spawns jobs.

use std::sync::Arc;

use super::super::{DueKey, State, Template};
use crate::engine::delta::{PeriodicRun, RecurDelta};
use crate::{Jid, Periodic, Timestamp};

impl State {
    pub(super) fn recur(&mut self, recur: &RecurDelta) {
        let arrival = match recur.template {
            Some(old) if !recur.arrives => self.templates[&old].seq,
            _ => self.next_seq(),
        };
        let count = recur.template.map_or(0, |old| self.templates[&old].count);
        let template = Template {
            jid: recur.jid.clone(),
            queue: recur.queue,
            klass: recur.klass,
            payload: recur.payload.clone(),
            priority: recur.priority,
            retries: recur.retries,
            tags: recur.tags.to_vec(),
            every: recur.every.clone(),
            backlog: recur.backlog,
            count,
            next: recur.next,
            seq: arrival,
        };
        let number = recur.template.unwrap_or_else(|| {
            self.templates_made += 1;
            self.templates_made
        });
        let entry = template.entry(number);
        self.count_template(&template, true);
        if let Some(old) = self.templates.insert(number, template) {
            self.queues[old.queue].remove_recurring(old.klass, old.entry(number));
            self.count_template(&old, false);
        }
        self.templates_by_jid.insert(recur.jid.clone(), number);
        self.queues[recur.queue].insert_recurring(recur.klass, entry);
        if let Some(now) = recur.registers {
            self.register(recur.queue, now);
        }
        self.mark_dirty(recur.queue);
    }

    pub(super) fn spawn(
        &mut self,
        template: u32,
        jid: &Jid,
        count: u64,
        at: Timestamp,
        next: Timestamp,
        now: Timestamp,
    ) {
        let of = self.templates.get_mut(&template).expect("a recurring job that spawns is there");
        let entry = of.entry(template);
        of.count = count;
        of.next = next;
        let of = of.clone();
        let queue = &mut self.queues[of.queue];
        queue.remove_recurring(of.klass, entry);
        queue.insert_recurring(of.klass, of.entry(template));
        let child = self.new_row(jid);
        self.fill(child, of.queue, of.klass, &of.payload, of.priority, of.retries, at);
        self.cold_mut(child).spawned_from = Some(of.jid);
        of.tags.iter().for_each(|tag| self.tag(child, tag, now, true));
        self.enter_work(child, at);
    }

    pub(super) fn periodic_ran(&mut self, run: &PeriodicRun) {
        let PeriodicRun { jid, next, count, last, error } = run.clone();
        let of = self.periodics.get(&jid).expect("a periodic job that runs is there");
        let template = of.template.clone();
        self.periodics.insert(Arc::new(Periodic { template, next, count, last, error }));
    }
}

impl Template {
    pub(in crate::engine::state) fn entry(&self, number: u32) -> DueKey {
        DueKey { at: self.next, seq: self.seq, row: number }
    }
}
