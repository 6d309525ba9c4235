//! Copy-on-write snapshot: the state of one moment, written while the engine continues.
//!
//! Small parts are written when the snapshot begins. Jobs are written a few at a time. Before a job changes
//! that is not in the snapshot yet, its preimage is saved. So the snapshot shows one moment, and no command
//! waits for it. Indexes are not part of it: they are rebuilt from the jobs.

use std::collections::HashSet;
use std::sync::Arc;

use super::cold::{AttemptEnds, ColdPart, Ended, FailureRow, Tagging};
use super::event_log::EventLog;
use super::extension::Extension;
use super::history;
use super::rate_limiter::RateLimiter;
use super::rates::Rates;
use super::stats::Days;
use super::{DueKey, Flags, Interner, NONE, Queue, ReadyKey, RowId, RowState, State, Template, Worker};
use crate::engine::codec::{CodecError, Reader, Writer, read_event, write_event};
use crate::engine::delta::Kind;
use crate::{
    CompleteReply, DependencyPolicy, Every, Jid, Payload, Periodic, PositionedEvent, Priority, Seconds,
    SpillLocation, StoredResult, Tag, Timestamp, Tombstone,
};

/// Flag of a job: its payload is spilled. Earlier programs knew flags of 16 bits and refuse more, so they
/// refuse this one.
const SPILLED: u64 = 1 << 16;
/// Flag of a job: it has an extension, which follows the cold part. Refused by earlier programs, too.
const EXTENSION: u64 = 1 << 17;
/// Flag of a job: it has metadata, which follows the extension. Refused by earlier programs, too.
const METADATA: u64 = 1 << 18;
/// Flag of a job: it has a dependency policy or dropped dependencies, which follow the metadata. Refused by
/// earlier programs, too.
const DEPENDENCY_POLICY: u64 = 1 << 19;
/// Flag of a job: it has ends of attempts, which follow its metadata. Refused by earlier programs, too.
const ATTEMPTS: u64 = 1 << 20;
/// Flag of a job: it has a trace context, which follows the dependency policy. Refused by earlier programs,
/// too.
const TRACEPARENT: u64 = 1 << 21;
/// In place of a job's row, before a result.
const RESULT: u32 = NONE;
/// In place of a job's row, before a tombstone. No job has this row, because all others would come before it.
const TOMBSTONE: u32 = NONE - 1;
/// In place of a job's row, before a periodic job.
const PERIODIC: u32 = NONE - 2;
/// Kinds of sections at the end of the head.
const EVENT_TIMES: u8 = 1;
const RATES: u8 = 2;
/// In place of a name, for a free id. No name is empty.
const FREE: &str = "";

/// A snapshot in progress.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// A bit for each row that was written, or was free when the snapshot began.
    taken: Vec<u64>,
    /// Rows from here on are newer than the snapshot.
    limit: RowId,
    next: RowId,
    /// Saved preimages: jobs as they were before they changed.
    preimages: Vec<u8>,
    /// Results, the oldest last. They are immutable, so they are shared.
    results: Vec<Arc<StoredResult>>,
    /// Tombstones, likewise.
    tombstones: Vec<Arc<Tombstone>>,
    /// Periodic jobs, likewise.
    periodics: Vec<Arc<Periodic>>,
}

impl Snapshot {
    fn has(&self, row: RowId) -> bool {
        row >= self.limit || self.taken[row as usize / 64] & 1 << (row % 64) != 0
    }

    fn mark(&mut self, row: RowId) {
        self.taken[row as usize / 64] |= 1 << (row % 64);
    }
}

impl State {
    /// Begins a snapshot of this moment, and writes all but the jobs. A snapshot in progress is given up.
    pub(crate) fn begin_snapshot(&mut self, into: &mut Vec<u8>) {
        let limit = self.rows.used();
        let mut snapshot = Snapshot {
            taken: vec![0; limit as usize / 64 + 1],
            limit,
            next: 0,
            preimages: Vec::new(),
            results: self.results.iter().rev().cloned().collect(),
            tombstones: self.tombstones.iter().rev().cloned().collect(),
            periodics: self.periodics.after(None).rev().cloned().collect(),
        };
        self.rows.free().iter().for_each(|row| snapshot.mark(*row));
        self.snapshot = Some(snapshot);
        self.write_head(into);
    }

    /// Writes up to `max` more jobs. Returns whether the snapshot is complete.
    pub(crate) fn continue_snapshot(&mut self, max: usize, into: &mut Vec<u8>) -> bool {
        let Some(mut snapshot) = self.snapshot.take() else { return true };
        into.append(&mut snapshot.preimages);
        let mut left = max;
        while snapshot.next < snapshot.limit && left > 0 {
            if !snapshot.has(snapshot.next) {
                self.write_row(snapshot.next, into);
                left -= 1;
            }
            snapshot.next += 1;
        }
        while left > 0
            && let Some(result) = snapshot.results.pop()
        {
            Writer::new(into).id(RESULT).stored_result(&result);
            left -= 1;
        }
        while left > 0
            && let Some(tombstone) = snapshot.tombstones.pop()
        {
            Writer::new(into).id(TOMBSTONE).tombstone(&tombstone);
            left -= 1;
        }
        while left > 0
            && let Some(periodic) = snapshot.periodics.pop()
        {
            Writer::new(into).id(PERIODIC).periodic(&periodic);
            left -= 1;
        }
        let done = snapshot.next >= snapshot.limit
            && snapshot.results.is_empty()
            && snapshot.tombstones.is_empty()
            && snapshot.periodics.is_empty();
        self.snapshot = (!done).then_some(snapshot);
        done
    }

    /// Saves the preimage of a job that is about to change, if a snapshot in progress does not have it yet.
    pub(super) fn save_preimage(&mut self, at: RowId) {
        // Rows before `next` are written already.
        if self.snapshot.as_ref().is_none_or(|snapshot| at < snapshot.next || snapshot.has(at)) {
            return;
        }
        let mut preimage = Vec::new();
        self.write_row(at, &mut preimage);
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.preimages.append(&mut preimage);
            snapshot.mark(at);
        }
    }

    fn write_head(&self, into: &mut Vec<u8>) {
        let to = &mut Writer::new(into);
        to.number(self.seq);
        to.number(u64::from(self.templates_made));
        to.number(u64::from(self.rows.used()));
        to.number(self.rows.free().len() as u64);
        self.rows.free().iter().for_each(|row| {
            to.number(u64::from(*row));
        });
        let options = self.config.chosen();
        to.number(options.len() as u64);
        for (option, value) in options {
            to.text(option);
            to.text(value);
        }
        // A free id is written with an empty name and default values.
        let (no_queue, no_worker) = (Queue::default(), Worker::default());
        to.number(self.queues.len() as u64);
        for slot in self.queues.slots() {
            let (name, queue) = slot.map_or((FREE, &no_queue), |(name, queue)| (name, queue));
            to.text(name);
            to.byte(u8::from(queue.paused) | u8::from(queue.registered.is_some()) << 1);
            to.moment(queue.registered.unwrap_or_default());
            queue.days.write(to);
        }
        to.number(self.klasses.len() as u64);
        self.klasses.slots().for_each(|slot| {
            to.text(slot.map_or(FREE, |(name, ())| name));
        });
        to.number(self.workers.len() as u64);
        for slot in self.workers.slots() {
            let (name, worker) = slot.map_or((FREE, &no_worker), |(name, worker)| (name, worker));
            to.text(name);
            to.byte(u8::from(worker.seen.is_some()));
            to.moment(worker.seen.unwrap_or_default());
        }
        to.number(self.groups.len() as u64);
        self.groups.slots().for_each(|slot| {
            to.text(slot.map_or(FREE, |(name, _)| name));
        });
        to.number(self.tags.len() as u64);
        for (tag, usage) in &self.tags {
            to.text(tag.as_str());
            to.signed(usage.count);
        }
        to.number(self.tracked_order.len() as u64);
        for ((since, seq), jid) in &self.tracked_order {
            to.jid(jid);
            to.moment(*since);
            to.number(*seq);
        }
        to.number(self.templates.len() as u64);
        for (number, template) in &self.templates {
            to.number(u64::from(*number));
            write_template(template, to);
        }
        self.write_extension_head(to);
    }

    /// The part of the head that goes beyond Qless.
    fn write_extension_head(&self, to: &mut Writer<'_>) {
        let (no_queue, no_worker) = (Queue::default(), Worker::default());
        for queue in self.queues.slots().map(|slot| slot.map_or(&no_queue, |(_, queue)| queue)) {
            to.optional(queue.limits.as_deref(), Writer::limits);
            to.optional(queue.rate_limiter.map(|rate_limiter| rate_limiter.next), Writer::moment);
            to.optional(queue.last_polled, Writer::moment);
        }
        for worker in self.workers.slots().map(|slot| slot.map_or(&no_worker, |(_, worker)| worker)) {
            to.number(worker.capabilities.len() as u64);
            for ((queue, klass), attempt_max) in &worker.capabilities {
                to.id(*queue).maybe(*klass).optional(*attempt_max, Writer::span);
            }
        }
        let EventLog { listened, events, last, dropped, .. } = &self.event_log;
        to.optional(*listened, Writer::moment).number(*last).number(*dropped).number(events.len() as u64);
        for PositionedEvent { position, event, .. } in events {
            write_event(event, to.number(*position));
        }
        // Without any of what follows nothing is written, so that programs from before it can read the rest.
        let sections = self.sections();
        if !self.counters.is_empty() || !sections.is_empty() {
            to.number(self.counters.len() as u64);
            for (counter, last) in &self.counters {
                to.text(counter).number(*last);
            }
        }
        for (kind, section) in sections {
            to.byte(kind).bytes(&section);
        }
    }

    /// The parts of the head that came later, with their kinds. An absent part is empty.
    fn sections(&self) -> Vec<(u8, Vec<u8>)> {
        let mut sections = Vec::new();
        if self.event_log.events.iter().any(|event| event.at.is_some()) {
            let mut times = Vec::new();
            for event in &self.event_log.events {
                Writer::new(&mut times).optional(event.at, Writer::moment);
            }
            sections.push((EVENT_TIMES, times));
        }
        if let Some(rates) = &self.rates {
            let mut samples = Vec::new();
            rates.write(&mut Writer::new(&mut samples));
            sections.push((RATES, samples));
        }
        sections
    }

    fn read_section(&mut self, reader: &mut Reader<'_>) -> Result<(), CodecError> {
        let kind = reader.byte("section")?;
        let section = reader.bytes("section")?;
        let of = &mut Reader::new(section);
        match kind {
            EVENT_TIMES => {
                for event in &mut self.event_log.events {
                    event.at = of.optional("time of an event", Reader::moment)?;
                }
            }
            RATES => self.rates = Some(Box::new(Rates::read(of)?)),
            _ => return Err(reader.misfit("a section")),
        }
        if of.is_empty() { Ok(()) } else { Err(of.misfit("a section")) }
    }

    fn read_extension_head(&mut self, reader: &mut Reader<'_>) -> Result<(), CodecError> {
        for queue in 0..self.queues.len() as u32 {
            let limits = reader.optional("limits", |reader, _| reader.limits())?;
            let rate_limiter = limits.as_ref().and_then(|limits| limits.rate).map(RateLimiter::new);
            let next = reader.optional("rate limiter", Reader::moment)?;
            let asked = reader.optional("asked", Reader::moment)?;
            if self.queues.has(queue) {
                let of = &mut self.queues[queue];
                of.limits = limits.map(Box::new);
                of.rate_limiter =
                    rate_limiter.zip(next).map(|(rate_limiter, next)| RateLimiter { next, ..rate_limiter });
                of.last_polled = asked;
            }
        }
        for worker in 0..self.workers.len() as u32 {
            for _ in 0..reader.count(3, "capabilities")? {
                let capability = (reader.id("queue")?, reader.maybe("klass")?);
                let attempt_max = reader.optional("attempt_max", Reader::span)?;
                let known = self.workers.has(worker)
                    && self.queues.has(capability.0)
                    && (capability.1 == NONE || self.klasses.has(capability.1));
                if !known {
                    return Err(reader.misfit("a capability"));
                }
                self.add_capability(worker, capability, attempt_max);
            }
        }
        self.event_log.listened = reader.optional("listened", Reader::moment)?;
        let (last, dropped) = (reader.number("position")?, reader.number("position")?);
        for _ in 0..reader.count(2, "events")? {
            let position = reader.number("position")?;
            let event = Arc::new(read_event(reader)?);
            self.event_log.add(PositionedEvent { position, event, at: None });
        }
        (self.event_log.last, self.event_log.dropped) = (last, dropped);
        if !reader.is_empty() {
            for _ in 0..reader.count(2, "counters")? {
                let (counter, last) = (reader.counter()?, reader.number("number of a counter")?);
                self.counters.insert(counter.into(), last);
            }
        }
        while !reader.is_empty() {
            self.read_section(reader)?;
        }
        Ok(())
    }

    fn write_row(&self, at: RowId, into: &mut Vec<u8>) {
        let to = &mut Writer::new(into);
        let row = &self.rows[at];
        to.number(u64::from(at));
        to.jid(&self.rows.jid(at));
        to.byte(row.state as u8);
        let extension = if row.cold == NONE { None } else { self.extension(at) };
        let spilled_flag = if row.payload.is_spilled() { SPILLED } else { 0 };
        let extension_flag = if extension.is_some() { EXTENSION } else { 0 };
        let metadata = extension.and_then(|extension| extension.options.metadata.as_ref());
        let metadata_flag = if metadata.is_some() { METADATA } else { 0 };
        let has_policy = |extension: &&Extension| {
            extension.options.on_dependency_failure != DependencyPolicy::Wait
                || !extension.dropped_dependencies.is_empty()
        };
        let policy = extension.filter(has_policy);
        let policy_flag = if policy.is_some() { DEPENDENCY_POLICY } else { 0 };
        let attempts = self.cold(at).and_then(|cold| cold.attempts.as_deref());
        let attempts_flag = if attempts.is_some() { ATTEMPTS } else { 0 };
        let traceparent = extension.and_then(|extension| extension.options.traceparent.as_ref());
        let trace_flag = if traceparent.is_some() { TRACEPARENT } else { 0 };
        let more = spilled_flag | extension_flag | metadata_flag | policy_flag | attempts_flag | trace_flag;
        to.number(u64::from(row.flags.bits()) | more);
        to.moment(row.score);
        to.number(row.seq);
        to.moment(row.time);
        to.double(row.priority.get());
        to.maybe(row.queue);
        to.number(u64::from(row.klass));
        to.maybe(row.worker);
        to.number(u64::from(row.retries));
        to.signed(i64::from(row.remaining));
        match self.spill_location(at) {
            Some(SpillLocation { file, offset, bytes }) => to.number(file).id(offset).id(bytes),
            None => to.bytes(&self.blobs.get(row.payload)[..row.payload_bytes as usize]),
        };
        to.bytes(history::raw(&self.blobs, row.history));
        match self.cold(at) {
            Some(cold) => write_cold(cold, to),
            None => drop(to.byte(0)),
        }
        if let Some(extension) = extension {
            write_extension(extension, to);
        }
        if let Some(metadata) = metadata {
            to.payload(metadata);
        }
        if let Some(extension) = policy {
            to.dependency_policy(extension.options.on_dependency_failure);
            to.list(&extension.dropped_dependencies, |to, jid| to.jid(jid));
        }
        if let Some(traceparent) = traceparent {
            to.bytes(traceparent.bytes());
        }
        if let Some(AttemptEnds(ends)) = attempts {
            to.number(ends.len() as u64);
            for end in ends {
                to.attempt_end(end);
            }
        }
    }

    /// Restores the head.
    pub(crate) fn read_head(&mut self, head: &[u8]) -> Result<(), CodecError> {
        let reader = &mut Reader::new(head);
        self.seq = reader.number("snapshot")?;
        self.templates_made = reader.id("snapshot")?;
        let used = reader.id("snapshot")?;
        let free = (0..reader.count(1, "snapshot")?)
            .map(|_| reader.id("snapshot"))
            .collect::<Result<Vec<_>, _>>()?;
        if free.iter().any(|row| *row >= used) {
            return Err(reader.misfit("a free row"));
        }
        self.rows.prepare(used, free);
        for _ in 0..reader.count(1, "snapshot")? {
            let (option, value) = (reader.text("snapshot")?, reader.text("snapshot")?);
            self.config.set(option, Some(value));
        }
        for _ in 0..reader.count(1, "snapshot")? {
            let name: Arc<str> = reader.text("snapshot")?.into();
            let options = self.config.of_queue(&name);
            let flags = reader.byte("snapshot")?;
            let registered = reader.moment("snapshot")?;
            let registered = (flags & 2 != 0).then_some(registered);
            let days = Days::read(reader)?;
            let queue = Queue { options, paused: flags & 1 != 0, registered, days, ..Queue::default() };
            add_read(&mut self.queues, &name, queue);
        }
        for _ in 0..reader.count(1, "snapshot")? {
            add_read(&mut self.klasses, &reader.text("snapshot")?.into(), ());
        }
        for _ in 0..reader.count(1, "snapshot")? {
            let name: Arc<str> = reader.text("snapshot")?.into();
            let seen = reader.byte("snapshot")? != 0;
            let moment = reader.moment("snapshot")?;
            let worker = Worker { seen: seen.then_some(moment), ..Worker::default() };
            add_read(&mut self.workers, &name, worker);
        }
        for _ in 0..reader.count(1, "snapshot")? {
            add_read(&mut self.groups, &reader.text("snapshot")?.into(), Default::default());
        }
        for _ in 0..reader.count(1, "snapshot")? {
            let tag = read_tag(reader)?;
            let count = reader.signed("snapshot")?;
            self.set_tag_count(tag, count);
        }
        for _ in 0..reader.count(1, "snapshot")? {
            let jid = reader.jid("snapshot")?;
            let key = (reader.moment("snapshot")?, reader.number("snapshot")?);
            self.tracked.insert(jid.clone(), key);
            self.tracked_order.insert(key, jid);
        }
        for _ in 0..reader.count(1, "snapshot")? {
            let number = reader.id("snapshot")?;
            let template = self.read_template(reader)?;
            self.count_template(&template, true);
            self.templates_by_jid.insert(template.jid.clone(), number);
            self.templates.insert(number, template);
        }
        // Snapshots of earlier programs end here.
        if !reader.is_empty() {
            self.read_extension_head(reader)?;
        }
        if reader.is_empty() { Ok(()) } else { Err(reader.misfit("the end of a snapshot's head")) }
    }

    /// Restores jobs, in any order.
    pub(crate) fn read_rows(&mut self, rows: &[u8]) -> Result<(), CodecError> {
        let mut reader = Reader::new(rows);
        while !reader.is_empty() {
            self.read_row(&mut reader)?;
        }
        Ok(())
    }

    /// The rows that are neither free nor restored.
    pub(crate) fn missing_rows(&self) -> Vec<RowId> {
        let free: HashSet<RowId> = self.rows.free().iter().copied().collect();
        (0..self.rows.used()).filter(|at| self.rows.is_expected(*at) && !free.contains(at)).collect()
    }

    /// Adds a placeholder for a lost job: it is ready in some queue, because other jobs may depend on it.
    pub(crate) fn add_placeholder(&mut self, at: RowId, jid: &Jid) -> Result<(), CodecError> {
        let queue = self.queues.iter().next().map_or(NONE, |(queue, ..)| queue);
        let klass = self.klasses.iter().next().map_or(NONE, |(klass, ..)| klass);
        let mut bytes = Vec::new();
        let to = &mut Writer::new(&mut bytes);
        to.number(u64::from(at));
        to.jid(jid);
        to.byte(RowState::Waiting as u8);
        to.number(0);
        to.moment(Timestamp::ZERO).number(0).moment(Timestamp::ZERO);
        to.double(0.0);
        to.maybe(queue).number(u64::from(klass)).maybe(NONE);
        to.number(0).signed(0);
        to.bytes(&[]).bytes(&[]);
        to.byte(0);
        self.read_row(&mut Reader::new(&bytes))
    }

    fn read_template(&self, reader: &mut Reader<'_>) -> Result<Template, CodecError> {
        let template = Template {
            jid: reader.jid("snapshot")?,
            queue: reader.id("snapshot")?,
            klass: reader.id("snapshot")?,
            payload: Payload::from(reader.bytes("snapshot")?),
            priority: read_priority(reader)?,
            retries: reader.id("snapshot")?,
            tags: (0..reader.count(1, "snapshot")?).map(|_| read_tag(reader)).collect::<Result<_, _>>()?,
            every: Every::Interval(
                Seconds::new(reader.double("snapshot")?).map_err(|_| reader.misfit("an interval"))?,
            ),
            backlog: reader.id("snapshot")?,
            count: reader.number("snapshot")?,
            next: reader.moment("snapshot")?,
            seq: reader.number("snapshot")?,
        };
        let known = self.queues.has(template.queue) && self.klasses.has(template.klass);
        if known { Ok(template) } else { Err(reader.misfit("a recurring job")) }
    }

    fn read_row(&mut self, reader: &mut Reader<'_>) -> Result<(), CodecError> {
        let at = reader.id("snapshot")?;
        if at == RESULT {
            self.results.insert(reader.stored_result()?);
            return Ok(());
        }
        if at == TOMBSTONE {
            self.tombstones.insert(reader.tombstone()?);
            return Ok(());
        }
        if at == PERIODIC {
            self.periodics.insert(Arc::new(reader.periodic()?));
            return Ok(());
        }
        let jid = reader.jid("snapshot")?;
        if !self.rows.is_expected(at) {
            return Err(reader.misfit("a row"));
        }
        self.rows.fill(at, &jid);
        let state = RowState::from_byte(reader.byte("snapshot")?).ok_or_else(|| reader.misfit("a state"))?;
        let flags = reader.number("snapshot")?;
        let (is_spilled, has_extension) = (flags & SPILLED != 0, flags & EXTENSION != 0);
        let (has_metadata, has_policy) = (flags & METADATA != 0, flags & DEPENDENCY_POLICY != 0);
        let (has_attempts, has_trace) = (flags & ATTEMPTS != 0, flags & TRACEPARENT != 0);
        let known = SPILLED | EXTENSION | METADATA | DEPENDENCY_POLICY | ATTEMPTS | TRACEPARENT;
        let flags = Flags::from_bits(flags & !known).ok_or_else(|| reader.misfit("flags"))?;
        let (score, seq, time) =
            (reader.moment("snapshot")?, reader.number("snapshot")?, reader.moment("snapshot")?);
        let priority = read_priority(reader)?;
        let (queue, klass, worker) =
            (reader.maybe("snapshot")?, reader.id("snapshot")?, reader.maybe("snapshot")?);
        let known = (self.queues.has(queue) || (queue == NONE && state == RowState::Complete))
            && self.klasses.has(klass)
            && (self.workers.has(worker) || (worker == NONE && state != RowState::Running));
        if !known {
            return Err(reader.misfit("a name"));
        }
        let retries = reader.id("snapshot")?;
        let remaining =
            i32::try_from(reader.signed("snapshot")?).map_err(|_| reader.misfit("a count of retries"))?;
        let (payload, payload_bytes) = if is_spilled {
            let (file, offset) = (reader.number("snapshot")?, reader.id("snapshot")?);
            let location = SpillLocation { file, offset, bytes: reader.id("snapshot")? };
            (self.blobs.insert_spilled(location, at), location.bytes)
        } else {
            let payload = reader.bytes("snapshot")?;
            (self.blobs.insert_payload_slice(payload), payload.len() as u32)
        };
        self.has_payload(at, payload, payload_bytes);
        let history = reader.bytes("snapshot")?;
        let history_ref = history::restore(&mut self.blobs, history);
        let row = &mut self.rows[at];
        row.state = state;
        row.flags = row.flags.with(flags);
        (row.score, row.seq, row.time, row.priority) = (score, seq, time, priority);
        (row.queue, row.klass, row.worker) = (queue, klass, worker);
        (row.retries, row.remaining) = (retries, remaining);
        row.history = history_ref;
        if let Some(cold) = read_cold(reader)? {
            let is_known = |failure: &FailureRow| {
                self.groups.has(failure.group) && (failure.worker == NONE || self.workers.has(failure.worker))
            };
            let known = cold.dependencies.iter().all(|on| *on < self.rows.used())
                && cold.failure.iter().all(is_known);
            if !known {
                return Err(reader.misfit("a reference of a job"));
            }
            *self.cold_mut(at) = cold;
        }
        if has_extension {
            let mut extension = read_extension(reader)?;
            if has_metadata {
                extension.options.metadata = Some(reader.metadata()?);
            }
            if has_policy {
                extension.options.on_dependency_failure = reader.dependency_policy()?;
                extension.dropped_dependencies =
                    reader.list(1, "dropped dependencies", |reader, what| reader.jid(what))?;
            }
            if has_trace {
                extension.options.traceparent = Some(reader.traceparent()?);
            }
            self.cold_mut(at).extension = Some(Box::new(extension));
        } else if has_metadata || has_policy || has_trace {
            return Err(reader.misfit("metadata, policy or trace without an extension"));
        }
        if has_attempts {
            let ends = reader.list(12, "attempts", |reader, _| reader.attempt_end())?;
            self.cold_mut(at).attempts = Some(Box::new(AttemptEnds(ends.into_vec().into())));
        }
        if !self.is_history_known(at) {
            return Err(reader.misfit("a name in a history"));
        }
        self.count_row(at, true);
        Ok(())
    }

    /// Whether all names in a job's history are interned.
    fn is_history_known(&self, at: RowId) -> bool {
        let mut all_known = true;
        history::visit_names(&self.blobs, self.rows[at].history, |kind, name| {
            all_known &= name == NONE
                || match kind {
                    Kind::Queue => self.queues.has(name),
                    Kind::Klass => self.klasses.has(name),
                    Kind::Worker => self.workers.has(name),
                    Kind::Group => self.groups.has(name),
                };
        });
        all_known
    }

    /// Rebuilds all indexes. Each is filled in order, which is much faster than in the order of rows.
    pub(crate) fn rebuild_indexes(&mut self) {
        self.rows.index();
        let (mut work, mut timed, mut listed, mut complete, mut failed) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let ids: Vec<RowId> = self.rows.ids().collect();
        for at in ids {
            let row = &self.rows[at];
            let entry = DueKey::of(at, row);
            match row.state {
                RowState::Free => {}
                RowState::Waiting => work.push((row.queue, ReadyKey::of(at, row))),
                RowState::Scheduled | RowState::Depends | RowState::Running => {
                    timed.push((row.queue, row.state, entry))
                }
                RowState::Complete => complete.push(entry),
                RowState::Failed => failed.push((row.seq, at)),
            }
            let running = row.state == RowState::Running;
            if running && row.flags.has(Flags::GRACE) {
                let worker = row.worker;
                self.workers[worker].warned.insert(at);
            }
            let row = &self.rows[at];
            if row.flags.has(Flags::LISTED) {
                let listed_at = if running {
                    Some((row.score, row.seq))
                } else {
                    self.cold(at).and_then(|cold| cold.listed)
                };
                let (deadline, seq) = listed_at.unwrap_or_default();
                listed.push((row.worker, DueKey { at: deadline, seq, row: at }));
            }
            if row.cold != NONE {
                self.index_cold(at);
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
            let failure = self.cold(at).and_then(|cold| cold.failure.as_ref()).map(|failure| failure.group);
            if let Some(group) = failure {
                self.groups[group].insert((seq, at));
            }
            self.queues[self.rows[at].queue].failed += 1;
        }
        for (number, template) in &self.templates {
            self.queues[template.queue].recurring.insert(template.entry(*number));
        }
    }

    fn index_cold(&mut self, at: RowId) {
        let on: Vec<RowId> = self.dependencies(at).collect();
        for on in on {
            self.cold_mut(on).dependents.insert(at);
        }
        let taggings = self.cold(at).map_or(Vec::new(), |cold| cold.tags.clone());
        for tagging in taggings {
            let entry = self.tag_key(at, tagging.at);
            let jobs = &mut self.tags.entry(tagging.tag).or_default().jobs;
            if !jobs.contains(entry.clone()) {
                jobs.insert(entry);
            }
        }
        self.index_extension(at);
    }

    fn index_extension(&mut self, at: RowId) {
        let Some(extension) = self.extension(at) else { return };
        let key = extension.options.unique.clone().filter(|_| extension.has_key);
        let (waiters, deadline) = (extension.waiters.clone(), extension.deadline);
        self.waiters.extend(waiters.into_iter().map(|waiter| (waiter, at)));
        let token = self.rows[at].seq;
        self.deadlines.extend(deadline.map(|deadline| (deadline, token, at)));
        if let Some(key) = key {
            let queue = self.rows[at].queue;
            self.queues[queue].keys.insert(key, at);
        }
        self.enter_expiries(at);
        self.count_dependency_policy(at, true);
        self.note_behind_failed(at);
    }
}

/// Adds the next id of a kind: with a name, or free.
fn add_read<T>(to: &mut Interner<T>, name: &Arc<str>, thing: T) {
    if **name == *FREE {
        to.add_free();
    } else {
        to.add(name, thing);
    }
}

fn write_template(of: &Template, to: &mut Writer<'_>) {
    to.jid(&of.jid);
    to.number(u64::from(of.queue));
    to.number(u64::from(of.klass));
    to.bytes(of.payload.bytes());
    to.double(of.priority.get());
    to.number(u64::from(of.retries));
    to.number(of.tags.len() as u64);
    of.tags.iter().for_each(|tag| {
        to.text(tag.as_str());
    });
    let Every::Interval(interval) = of.every;
    to.double(interval.get());
    to.number(u64::from(of.backlog));
    to.number(of.count);
    to.moment(of.next);
    to.number(of.seq);
}

/// Bits for the parts of a cold part.
const TAGS: u8 = 1;
const DEPENDENCIES: u8 = 1 << 1;
const FAILURE: u8 = 1 << 2;
const DUE: u8 = 1 << 3;
const SPAWNED_FROM: u8 = 1 << 4;
const EXPIRES: u8 = 1 << 5;
const LISTED: u8 = 1 << 6;
const ENDED: u8 = 1 << 7;

fn write_cold(cold: &ColdPart, to: &mut Writer<'_>) {
    let has = |part: u8, there: bool| if there { part } else { 0 };
    // Dependents are not written: they follow from the dependencies of other jobs.
    to.byte(
        has(TAGS, !cold.tags.is_empty())
            | has(DEPENDENCIES, !cold.dependencies.is_empty())
            | has(FAILURE, cold.failure.is_some())
            | has(DUE, cold.due.is_some())
            | has(SPAWNED_FROM, cold.spawned_from.is_some())
            | has(EXPIRES, cold.expires.is_some())
            | has(LISTED, cold.listed.is_some())
            | has(ENDED, cold.ended.is_some()),
    );
    if !cold.tags.is_empty() {
        to.number(cold.tags.len() as u64);
        for Tagging { tag, at, seq } in &cold.tags {
            to.text(tag.as_str());
            to.moment(*at);
            to.number(*seq);
        }
    }
    if !cold.dependencies.is_empty() {
        to.number(cold.dependencies.len() as u64);
        cold.dependencies.iter().for_each(|on| {
            to.number(u64::from(*on));
        });
    }
    if let Some(FailureRow { group, message, when, worker }) = &cold.failure {
        to.number(u64::from(*group));
        to.text(message);
        to.moment(*when);
        to.maybe(*worker);
    }
    cold.due.into_iter().for_each(|due| {
        to.moment(due);
    });
    cold.spawned_from.iter().for_each(|jid| {
        to.jid(jid);
    });
    cold.expires.into_iter().for_each(|expires| {
        to.moment(expires);
    });
    if let Some((deadline, seq)) = cold.listed {
        to.moment(deadline);
        to.number(seq);
    }
    if let Some((token, ended)) = cold.ended {
        to.number(token);
        to.byte(match ended {
            Ended::Failed => 0,
            Ended::Completed(CompleteReply::Complete) => 1,
            Ended::Completed(CompleteReply::Waiting) => 2,
            Ended::Completed(CompleteReply::Scheduled) => 3,
            Ended::Completed(CompleteReply::Depends) => 4,
            Ended::TimedOut => 5,
        });
    }
}

fn read_cold(reader: &mut Reader<'_>) -> Result<Option<ColdPart>, CodecError> {
    let parts = reader.byte("snapshot")?;
    if parts == 0 {
        return Ok(None);
    }
    let mut cold = ColdPart::default();
    if parts & TAGS != 0 {
        for _ in 0..reader.count(1, "snapshot")? {
            cold.tags.push(Tagging {
                tag: read_tag(reader)?,
                at: reader.moment("snapshot")?,
                seq: reader.number("snapshot")?,
            });
        }
    }
    if parts & DEPENDENCIES != 0 {
        for _ in 0..reader.count(1, "snapshot")? {
            cold.dependencies.insert(reader.id("snapshot")?);
        }
    }
    if parts & FAILURE != 0 {
        let (group, message) = (reader.id("snapshot")?, reader.text("snapshot")?.into());
        cold.failure = Some(FailureRow {
            group,
            message,
            when: reader.moment("snapshot")?,
            worker: reader.maybe("snapshot")?,
        });
    }
    if parts & DUE != 0 {
        cold.due = Some(reader.moment("snapshot")?);
    }
    if parts & SPAWNED_FROM != 0 {
        cold.spawned_from = Some(reader.jid("snapshot")?);
    }
    if parts & EXPIRES != 0 {
        cold.expires = Some(reader.moment("snapshot")?);
    }
    if parts & LISTED != 0 {
        cold.listed = Some((reader.moment("snapshot")?, reader.number("snapshot")?));
    }
    if parts & ENDED != 0 {
        let token = reader.number("snapshot")?;
        let ended = match reader.byte("snapshot")? {
            0 => Ended::Failed,
            1 => Ended::Completed(CompleteReply::Complete),
            2 => Ended::Completed(CompleteReply::Waiting),
            3 => Ended::Completed(CompleteReply::Scheduled),
            4 => Ended::Completed(CompleteReply::Depends),
            5 => Ended::TimedOut,
            _ => return Err(reader.misfit("the end of an attempt")),
        };
        cold.ended = Some((token, ended));
    }
    Ok(Some(cold))
}

fn write_extension(extension: &Extension, to: &mut Writer<'_>) {
    to.put_options(&extension.options)
        .flag(extension.has_key)
        .number(extension.joined)
        .number(extension.waiters.len() as u64);
    extension.waiters.iter().for_each(|waiter| {
        to.waiter(waiter);
    });
    to.optional(extension.deadline, Writer::moment).id(extension.crashes);
    to.optional(extension.evidence.as_deref(), Writer::text)
        .optional(extension.progress.as_ref(), Writer::progress);
}

fn read_extension(reader: &mut Reader<'_>) -> Result<Extension, CodecError> {
    Ok(Extension {
        options: reader.put_options()?,
        has_key: reader.flag("key")?,
        joined: reader.number("joined")?,
        waiters: reader.list(3, "waiters", |reader, _| reader.waiter())?.into_vec().into(),
        deadline: reader.optional("deadline", Reader::moment)?,
        crashes: reader.id("crashes")?,
        evidence: reader.optional("evidence", Reader::text)?.map(Into::into),
        progress: reader.optional("progress", |reader, _| reader.progress())?,
        ..Extension::default()
    })
}

fn read_tag(reader: &mut Reader<'_>) -> Result<Tag, CodecError> {
    Tag::new(reader.text("snapshot")?).map_err(|_| reader.misfit("a tag"))
}

fn read_priority(reader: &mut Reader<'_>) -> Result<Priority, CodecError> {
    Priority::new(reader.double("snapshot")?).map_err(|_| reader.misfit("a priority"))
}
