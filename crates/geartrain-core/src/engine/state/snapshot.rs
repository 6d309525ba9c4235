//! A picture of everything, taken while the engine goes on.
//!
//! What there is little of is written down when the picture is begun. Jobs are written down a few at a time; one that is about to change, and is
//! not in the picture yet, is written down first, as it was. So the picture shows one moment, and nobody waits for it. Indexes are
//! not in it: they follow from the jobs.

use std::sync::Arc;

use super::rare::{Ended, FailureRow, Rare, Tagging};
use super::stats::Days;
use super::{Flags, NONE, Queue, RowId, RowState, State, Template, Timed, Work, Worker, history};
use crate::engine::bytes::{
    BadBytes, Reader, put_bytes, put_double, put_jid, put_maybe, put_moment, put_number, put_signed, put_text,
};
use crate::{CompleteReply, Every, Payload, Priority, Seconds, Tag};

/// How far a picture has got.
#[derive(Debug)]
pub(crate) struct Picture {
    /// A bit for each row that is in it, or was free when it was begun.
    taken: Vec<u64>,
    /// Rows from here on are newer than the picture.
    limit: RowId,
    next: RowId,
    /// Jobs that were about to change.
    kept: Vec<u8>,
}

impl Picture {
    fn has(&self, row: RowId) -> bool {
        row >= self.limit || self.taken[row as usize / 64] & 1 << (row % 64) != 0
    }

    fn mark(&mut self, row: RowId) {
        self.taken[row as usize / 64] |= 1 << (row % 64);
    }
}

impl State {
    /// Begins a picture of this moment, and writes down all but the jobs. A picture that was begun before is given up.
    pub(crate) fn begin_picture(&mut self, into: &mut Vec<u8>) {
        let limit = self.rows.used();
        let mut picture =
            Picture { taken: vec![0; limit as usize / 64 + 1], limit, next: 0, kept: Vec::new() };
        self.rows.free().iter().for_each(|row| picture.mark(*row));
        self.picture = Some(picture);
        self.write_head(into);
    }

    /// Writes down up to so many more jobs, and says whether that were all.
    pub(crate) fn go_on_with_picture(&mut self, max: usize, into: &mut Vec<u8>) -> bool {
        let Some(mut picture) = self.picture.take() else { return true };
        into.append(&mut picture.kept);
        let mut left = max;
        while picture.next < picture.limit && left > 0 {
            if !picture.has(picture.next) {
                self.write_row(picture.next, into);
                left -= 1;
            }
            picture.next += 1;
        }
        let done = picture.next >= picture.limit;
        self.picture = (!done).then_some(picture);
        done
    }

    /// Writes a job down that is about to change, if a picture is being taken that it is not in yet.
    pub(super) fn keep(&mut self, at: RowId) {
        // Those before `next` are in it already.
        if self.picture.as_ref().is_none_or(|picture| at < picture.next || picture.has(at)) {
            return;
        }
        let mut kept = Vec::new();
        self.write_row(at, &mut kept);
        if let Some(picture) = &mut self.picture {
            picture.kept.append(&mut kept);
            picture.mark(at);
        }
    }

    fn write_head(&self, into: &mut Vec<u8>) {
        put_number(into, self.seq);
        put_number(into, u64::from(self.templates_made));
        put_number(into, u64::from(self.rows.used()));
        put_number(into, self.rows.free().len() as u64);
        self.rows.free().iter().for_each(|row| put_number(into, u64::from(*row)));
        let options = self.config.chosen();
        put_number(into, options.len() as u64);
        for (option, value) in options {
            put_text(into, option);
            put_text(into, value);
        }
        put_number(into, self.queues.iter().count() as u64);
        for (_, name, queue) in self.queues.iter() {
            put_text(into, name);
            into.push(u8::from(queue.paused) | u8::from(queue.registered.is_some()) << 1);
            put_moment(into, queue.registered.unwrap_or_default());
            queue.days.write(into);
        }
        put_number(into, self.klasses.iter().count() as u64);
        self.klasses.iter().for_each(|(_, name, ())| put_text(into, name));
        put_number(into, self.workers.iter().count() as u64);
        for (_, name, worker) in self.workers.iter() {
            put_text(into, name);
            into.push(u8::from(worker.seen.is_some()));
            put_moment(into, worker.seen.unwrap_or_default());
        }
        put_number(into, self.groups.iter().count() as u64);
        self.groups.iter().for_each(|(_, name, _)| put_text(into, name));
        put_number(into, self.tags.len() as u64);
        for (tag, usage) in &self.tags {
            put_text(into, tag.as_str());
            put_signed(into, usage.count);
        }
        put_number(into, self.tracked_order.len() as u64);
        for ((since, seq), jid) in &self.tracked_order {
            put_jid(into, jid);
            put_moment(into, *since);
            put_number(into, *seq);
        }
        put_number(into, self.templates.len() as u64);
        for (number, template) in &self.templates {
            put_number(into, u64::from(*number));
            write_template(template, into);
        }
    }

    fn write_row(&self, at: RowId, into: &mut Vec<u8>) {
        let row = &self.rows[at];
        put_number(into, u64::from(at));
        put_jid(into, &self.rows.jid(at));
        into.push(row.state as u8);
        into.extend_from_slice(&row.flags.bits().to_le_bytes());
        put_moment(into, row.score);
        put_number(into, row.seq);
        put_moment(into, row.time);
        put_double(into, row.priority.get());
        put_maybe(into, row.queue);
        put_number(into, u64::from(row.klass));
        put_maybe(into, row.worker);
        put_number(into, u64::from(row.retries));
        put_signed(into, i64::from(row.remaining));
        put_bytes(into, &self.blobs.get(row.payload)[..row.payload_bytes as usize]);
        put_bytes(into, history::raw(&self.blobs, row.history));
        match self.rare(at) {
            Some(rare) => write_rare(rare, into),
            None => into.push(0),
        }
    }

    /// Makes the state that a picture shows, from its head and all its jobs in any order.
    pub(crate) fn restore(hash_seed: u64, head: &[u8], jobs: &[Vec<u8>]) -> Result<State, BadBytes> {
        let mut state = State::new(hash_seed);
        state.read_head(&mut Reader::new(head))?;
        for jobs in jobs {
            let mut reader = Reader::new(jobs);
            while !reader.is_empty() {
                state.read_row(&mut reader)?;
            }
        }
        state.rebuild_indexes();
        Ok(state)
    }

    fn read_head(&mut self, reader: &mut Reader<'_>) -> Result<(), BadBytes> {
        self.seq = reader.number()?;
        self.templates_made = reader.small()?;
        let used = reader.small()?;
        let free = (0..reader.count()?).map(|_| reader.small()).collect::<Result<Vec<_>, _>>()?;
        if free.iter().any(|row| *row >= used) {
            return Err(reader.bad("a free row"));
        }
        self.rows.prepare(used, free);
        for _ in 0..reader.count()? {
            let (option, value) = (reader.text()?, reader.text()?);
            self.config.set(option, Some(value));
        }
        for _ in 0..reader.count()? {
            let name: Arc<str> = reader.text()?.into();
            let options = self.config.of_queue(&name);
            let flags = reader.byte()?;
            let registered = reader.moment()?;
            let registered = (flags & 2 != 0).then_some(registered);
            let days = Days::read(reader)?;
            self.queues
                .add(&name, Queue { options, paused: flags & 1 != 0, registered, days, ..Queue::default() });
        }
        for _ in 0..reader.count()? {
            self.klasses.add(&reader.text()?.into(), ());
        }
        for _ in 0..reader.count()? {
            let name: Arc<str> = reader.text()?.into();
            let seen = reader.byte()? != 0;
            let moment = reader.moment()?;
            self.workers.add(&name, Worker { seen: seen.then_some(moment), ..Worker::default() });
        }
        for _ in 0..reader.count()? {
            self.groups.add(&reader.text()?.into(), Default::default());
        }
        for _ in 0..reader.count()? {
            let tag = read_tag(reader)?;
            let count = reader.signed()?;
            self.set_tag_count(tag, count);
        }
        for _ in 0..reader.count()? {
            let jid = reader.jid()?;
            let place = (reader.moment()?, reader.number()?);
            self.tracked.insert(jid.clone(), place);
            self.tracked_order.insert(place, jid);
        }
        for _ in 0..reader.count()? {
            let number = reader.small()?;
            let template = self.read_template(reader)?;
            self.templates_by_jid.insert(template.jid.clone(), number);
            self.templates.insert(number, template);
        }
        if reader.is_empty() { Ok(()) } else { Err(reader.bad("the end of a picture's head")) }
    }

    fn read_template(&self, reader: &mut Reader<'_>) -> Result<Template, BadBytes> {
        let template = Template {
            jid: reader.jid()?,
            queue: reader.small()?,
            klass: reader.small()?,
            payload: Payload::from(reader.bytes()?),
            priority: read_priority(reader)?,
            retries: reader.small()?,
            tags: (0..reader.count()?).map(|_| read_tag(reader)).collect::<Result<_, _>>()?,
            every: Every::Interval(Seconds::new(reader.double()?).map_err(|_| reader.bad("an interval"))?),
            backlog: reader.small()?,
            count: reader.number()?,
            next: reader.moment()?,
            seq: reader.number()?,
        };
        let known = self.queues.has(template.queue) && self.klasses.has(template.klass);
        if known { Ok(template) } else { Err(reader.bad("a recurring job")) }
    }

    fn read_row(&mut self, reader: &mut Reader<'_>) -> Result<(), BadBytes> {
        let at = reader.small()?;
        let jid = reader.jid()?;
        if !self.rows.is_expected(at) {
            return Err(reader.bad("a row"));
        }
        self.rows.insert_at(at, &jid);
        let state = RowState::from_byte(reader.byte()?).ok_or_else(|| reader.bad("a state"))?;
        let flags = Flags::from_bits(u16::from_le_bytes([reader.byte()?, reader.byte()?]));
        let (score, seq, time) = (reader.moment()?, reader.number()?, reader.moment()?);
        let priority = read_priority(reader)?;
        let (queue, klass, worker) = (reader.maybe()?, reader.small()?, reader.maybe()?);
        let known = (self.queues.has(queue) || (queue == NONE && state == RowState::Complete))
            && self.klasses.has(klass)
            && (self.workers.has(worker) || (worker == NONE && state != RowState::Running));
        if !known {
            return Err(reader.bad("a name"));
        }
        let retries = reader.small()?;
        let remaining = i32::try_from(reader.signed()?).map_err(|_| reader.bad("a count of retries"))?;
        let payload = reader.bytes()?;
        let kept_payload = self.blobs.insert_slice(payload);
        let history = reader.bytes()?;
        let kept_history = history::restore(&mut self.blobs, history);
        let row = &mut self.rows[at];
        row.state = state;
        row.flags = row.flags.with(flags);
        (row.score, row.seq, row.time, row.priority) = (score, seq, time, priority);
        (row.queue, row.klass, row.worker) = (queue, klass, worker);
        (row.retries, row.remaining) = (retries, remaining);
        (row.payload, row.payload_bytes, row.history) = (kept_payload, payload.len() as u32, kept_history);
        if let Some(rare) = read_rare(reader)? {
            let known = rare.dependencies.iter().all(|on| *on < self.rows.used())
                && rare.failure.iter().all(|failure| self.groups.has(failure.group));
            if !known {
                return Err(reader.bad("what a job refers to"));
            }
            *self.rare_mut(at) = rare;
        }
        Ok(())
    }

    /// Puts every job into the indexes that its row calls for. Each index is filled in order, which is much quicker than as the rows come.
    fn rebuild_indexes(&mut self) {
        let (mut work, mut timed, mut listed, mut complete, mut failed) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let ids: Vec<RowId> = self.rows.ids().collect();
        for at in ids {
            let row = &self.rows[at];
            let entry = Timed::of(at, row);
            match row.state {
                RowState::Free => {}
                RowState::Waiting => work.push((row.queue, Work::of(at, row))),
                RowState::Scheduled | RowState::Depends | RowState::Running => {
                    timed.push((row.queue, row.state, entry))
                }
                RowState::Complete => complete.push(entry),
                RowState::Failed => failed.push((row.seq, at)),
            }
            let running = row.state == RowState::Running;
            if row.flags.has(Flags::LISTED) {
                let place = if running {
                    Some((row.score, row.seq))
                } else {
                    self.rare(at).and_then(|rare| rare.listed)
                };
                let (deadline, seq) = place.unwrap_or_default();
                listed.push((row.worker, Timed { at: deadline, seq, row: at }));
            }
            if row.rare != NONE {
                self.index_rare(at);
            }
        }
        work.sort_unstable();
        work.into_iter().for_each(|(queue, entry)| self.queues[queue].work.insert(entry));
        timed.sort_unstable_by_key(|(_, _, entry)| *entry);
        for (queue, state, entry) in timed {
            let queue = &mut self.queues[queue];
            match state {
                RowState::Scheduled => queue.scheduled.insert(entry),
                RowState::Depends => queue.depends.insert(entry),
                _ => queue.locks.insert(entry),
            }
        }
        listed.sort_unstable();
        listed.into_iter().for_each(|(worker, entry)| self.workers[worker].jobs.insert(entry));
        complete.sort_unstable();
        complete.into_iter().for_each(|entry| self.complete.insert(entry));
        failed.sort_unstable();
        for (seq, at) in failed {
            let failure = self.rare(at).and_then(|rare| rare.failure.as_ref()).map(|failure| failure.group);
            if let Some(group) = failure {
                self.groups[group].insert((seq, at));
            }
        }
        for (number, template) in &self.templates {
            self.queues[template.queue].recurring.insert(template.entry(*number));
        }
    }

    fn index_rare(&mut self, at: RowId) {
        let on: Vec<RowId> = self.dependencies(at).collect();
        for on in on {
            self.rare_mut(on).dependents.insert(at);
        }
        let taggings = self.rare(at).map_or(Vec::new(), |rare| rare.tags.clone());
        for tagging in taggings {
            let jobs = &mut self.tags.entry(tagging.tag).or_default().jobs;
            let entry = Timed { at: tagging.at, seq: tagging.seq, row: at };
            if !jobs.contains(entry) {
                jobs.insert(entry);
            }
        }
    }
}

fn write_template(of: &Template, into: &mut Vec<u8>) {
    put_jid(into, &of.jid);
    put_number(into, u64::from(of.queue));
    put_number(into, u64::from(of.klass));
    put_bytes(into, of.payload.bytes());
    put_double(into, of.priority.get());
    put_number(into, u64::from(of.retries));
    put_number(into, of.tags.len() as u64);
    of.tags.iter().for_each(|tag| put_text(into, tag.as_str()));
    let Every::Interval(interval) = of.every;
    put_double(into, interval.get());
    put_number(into, u64::from(of.backlog));
    put_number(into, of.count);
    put_moment(into, of.next);
    put_number(into, of.seq);
}

/// Which of the rare parts a job has.
const TAGS: u8 = 1;
const DEPENDENCIES: u8 = 1 << 1;
const FAILURE: u8 = 1 << 2;
const DUE: u8 = 1 << 3;
const SPAWNED_FROM: u8 = 1 << 4;
const EXPIRES: u8 = 1 << 5;
const LISTED: u8 = 1 << 6;
const ENDED: u8 = 1 << 7;

fn write_rare(rare: &Rare, into: &mut Vec<u8>) {
    let has = |part: u8, there: bool| if there { part } else { 0 };
    // Dependents are not written: they follow from the dependencies of others.
    into.push(
        has(TAGS, !rare.tags.is_empty())
            | has(DEPENDENCIES, !rare.dependencies.is_empty())
            | has(FAILURE, rare.failure.is_some())
            | has(DUE, rare.due.is_some())
            | has(SPAWNED_FROM, rare.spawned_from.is_some())
            | has(EXPIRES, rare.expires.is_some())
            | has(LISTED, rare.listed.is_some())
            | has(ENDED, rare.ended.is_some()),
    );
    if !rare.tags.is_empty() {
        put_number(into, rare.tags.len() as u64);
        for Tagging { tag, at, seq } in &rare.tags {
            put_text(into, tag.as_str());
            put_moment(into, *at);
            put_number(into, *seq);
        }
    }
    if !rare.dependencies.is_empty() {
        put_number(into, rare.dependencies.len() as u64);
        rare.dependencies.iter().for_each(|on| put_number(into, u64::from(*on)));
    }
    if let Some(FailureRow { group, message, when, worker }) = &rare.failure {
        put_number(into, u64::from(*group));
        put_text(into, message);
        put_moment(into, *when);
        put_maybe(into, *worker);
    }
    rare.due.into_iter().for_each(|due| put_moment(into, due));
    rare.spawned_from.iter().for_each(|jid| put_jid(into, jid));
    rare.expires.into_iter().for_each(|expires| put_moment(into, expires));
    if let Some((deadline, seq)) = rare.listed {
        put_moment(into, deadline);
        put_number(into, seq);
    }
    if let Some((token, how)) = rare.ended {
        put_number(into, token);
        into.push(match how {
            Ended::Failed => 0,
            Ended::Completed(CompleteReply::Complete) => 1,
            Ended::Completed(CompleteReply::Waiting) => 2,
            Ended::Completed(CompleteReply::Scheduled) => 3,
            Ended::Completed(CompleteReply::Depends) => 4,
        });
    }
}

fn read_rare(reader: &mut Reader<'_>) -> Result<Option<Rare>, BadBytes> {
    let parts = reader.byte()?;
    if parts == 0 {
        return Ok(None);
    }
    let mut rare = Rare::default();
    if parts & TAGS != 0 {
        for _ in 0..reader.count()? {
            rare.tags.push(Tagging { tag: read_tag(reader)?, at: reader.moment()?, seq: reader.number()? });
        }
    }
    if parts & DEPENDENCIES != 0 {
        for _ in 0..reader.count()? {
            rare.dependencies.insert(reader.small()?);
        }
    }
    if parts & FAILURE != 0 {
        let (group, message) = (reader.small()?, reader.text()?.into());
        rare.failure = Some(FailureRow { group, message, when: reader.moment()?, worker: reader.maybe()? });
    }
    if parts & DUE != 0 {
        rare.due = Some(reader.moment()?);
    }
    if parts & SPAWNED_FROM != 0 {
        rare.spawned_from = Some(reader.jid()?);
    }
    if parts & EXPIRES != 0 {
        rare.expires = Some(reader.moment()?);
    }
    if parts & LISTED != 0 {
        rare.listed = Some((reader.moment()?, reader.number()?));
    }
    if parts & ENDED != 0 {
        let token = reader.number()?;
        let how = match reader.byte()? {
            0 => Ended::Failed,
            1 => Ended::Completed(CompleteReply::Complete),
            2 => Ended::Completed(CompleteReply::Waiting),
            3 => Ended::Completed(CompleteReply::Scheduled),
            4 => Ended::Completed(CompleteReply::Depends),
            _ => return Err(reader.bad("how an attempt ended")),
        };
        rare.ended = Some((token, how));
    }
    Ok(Some(rare))
}

fn read_tag(reader: &mut Reader<'_>) -> Result<Tag, BadBytes> {
    Tag::new(reader.text()?).map_err(|_| reader.bad("a tag"))
}

fn read_priority(reader: &mut Reader<'_>) -> Result<Priority, BadBytes> {
    Priority::new(reader.double()?).map_err(|_| reader.bad("a priority"))
}
