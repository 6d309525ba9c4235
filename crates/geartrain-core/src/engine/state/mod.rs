//! The engine's state: packed rows, interned names and the indexes over them. Others can read it; only
//! [`State::apply`] changes it.

mod apply;
mod blobs;
mod capabilities;
mod check;
mod cold;
mod config;
mod dependency_policy;
mod event_log;
mod extension;
mod history;
mod index;
mod interner;
mod klass_index;
mod memory_report;
mod order_stat_tree;
mod periodics;
mod rate_limiter;
mod rates;
mod reclaim;
mod results;
mod rows;
mod select;
mod snapshot;
mod spill;
mod spill_map;
mod stats;
mod tombstones;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use slab::Slab;

use super::delta::Kind;

use crate::{
    Every, Jid, Payload, Priority, QueueLimits, QueueName, ResultWaiter, Seconds, Setting, StatsReply, Tag,
    Timestamp, UniqueKey, WorkerName,
};
pub(crate) use blobs::COPIED_BYTES_MAX;
use blobs::{BlobRef, Blobs};
use cold::ColdPart;
pub(crate) use cold::Ended;
use config::{Config, QueueNumbers};
use event_log::EventLog;
use interner::Interner;
use klass_index::KlassIndex;
pub use memory_report::MemoryReport;
pub(crate) use order_stat_tree::OrderStatTree;
use periodics::Periodics;
use rate_limiter::RateLimiter;
use rates::Rates;
pub(crate) use reclaim::Need;
use results::Results;
pub(crate) use results::{RESULT_BYTES, size as result_size};
pub use rows::RowId;
use rows::Rows;
pub(crate) use rows::{Flags, NONE, Row, RowState};
use spill::Spill;
pub use spill::{SpillDone, SpillTask};
use stats::Days;
use tombstones::Tombstones;

/// How many bits number arrivals and fencing tokens within an epoch. The 24 bits above number the epochs: a
/// new one each time a store is opened.
pub(crate) const EPOCH_BITS: u32 = 40;

/// The highest epoch.
pub const EPOCH_MAX: u32 = (1 << (u64::BITS - EPOCH_BITS)) - 1;

#[derive(Debug)]
pub(crate) struct State {
    rows: Rows,
    blobs: Blobs,
    cold_parts: Slab<Box<ColdPart>>,
    queues: Interner<Queue>,
    klasses: Interner<()>,
    workers: Interner<Worker>,
    groups: Interner<OrderStatTree<(u64, RowId)>>,
    complete: OrderStatTree<DueKey>,
    tags: BTreeMap<Tag, TagUse>,
    /// Tags used at least twice, by count.
    top_tags: BTreeSet<(i64, Tag)>,
    tracked: BTreeMap<Jid, (Timestamp, u64)>,
    tracked_order: BTreeMap<(Timestamp, u64), Jid>,
    templates: BTreeMap<u32, Template>,
    /// How many recurring jobs there ever were; their numbers are not reused.
    templates_made: u32,
    templates_by_jid: BTreeMap<Jid, u32>,
    config: Config,
    /// The last arrival number or fencing token issued.
    seq: u64,
    /// Payloads that are being spilled.
    spill: Spill,
    /// Which job each result waiter waits for.
    waiters: BTreeMap<ResultWaiter, RowId>,
    /// Attempts with a deadline: deadline, token, row.
    deadlines: BTreeSet<(Timestamp, u64, RowId)>,
    /// Queued jobs that expire.
    expiries: BTreeSet<(Timestamp, RowId)>,
    /// Jobs that depend on a failed one, and whose policy is not to wait.
    behind_failed: BTreeSet<(Jid, RowId)>,
    /// How many jobs have such a policy.
    dependency_policies: usize,
    results: Results,
    tombstones: Tombstones,
    periodics: Periodics,
    /// Workers by capability: queue and klass, or [`NONE`] for any klass.
    capable_workers: BTreeMap<(u32, u32), BTreeSet<u32>>,
    /// How often they changed. Derived like an index: it begins anew with the process.
    capability_changes: u64,
    /// Workers with capabilities, by when they were last seen.
    by_last_seen: BTreeSet<(Timestamp, Arc<str>, u32)>,
    event_log: EventLog,
    /// The last id that each counter allocated.
    counters: BTreeMap<Box<str>, u64>,
    /// Samples of the queues' completions; none before the first tick.
    rates: Option<Box<Rates>>,
    /// The snapshot in progress.
    snapshot: Option<snapshot::Snapshot>,
    /// Watched queues that changed.
    dirty_queues: Vec<u32>,
}

/// A queue: its jobs by state.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) work: OrderStatTree<ReadyKey>,
    pub(crate) locks: OrderStatTree<DueKey>,
    pub(crate) scheduled: OrderStatTree<DueKey>,
    pub(crate) depends: OrderStatTree<DueKey>,
    pub(crate) recurring: OrderStatTree<DueKey>,
    /// How many failed jobs it has.
    pub(crate) failed: usize,
    /// The same by klass, if klasses were ever asked of it.
    by_klass: Option<Box<KlassIndex>>,
    /// When it was listed.
    pub(crate) registered: Option<Timestamp>,
    pub(crate) paused: bool,
    options: QueueNumbers,
    /// Jobs that later puts are coalesced with, by unique key.
    keys: BTreeMap<UniqueKey, RowId>,
    limits: Option<Box<QueueLimits>>,
    pub(crate) rate_limiter: Option<RateLimiter>,
    /// When a worker last polled it, roughly.
    pub(crate) last_polled: Option<Timestamp>,
    days: Days,
    /// A parked pop waits for its jobs.
    watched: bool,
    /// It is in [`State::dirty_queues`].
    dirty: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Worker {
    pub(crate) seen: Option<Timestamp>,
    pub(crate) jobs: OrderStatTree<DueKey>,
    /// Jobs that it holds and was warned about.
    warned: BTreeSet<RowId>,
    /// Announced capabilities (queue; klass or [`NONE`]), with the longest attempt.
    capabilities: BTreeMap<(u32, u32), Option<Seconds>>,
}

/// Sort key of a ready job: the next one first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ReadyKey {
    rank: u64,
    moment: Timestamp,
    seq: u64,
    pub(crate) row: RowId,
}

/// Sort key of a job that is ordered by a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DueKey {
    pub(crate) at: Timestamp,
    seq: u64,
    pub(crate) row: RowId,
}

/// Sort key of a job among those with a tag: by when it was tagged, then by jid.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TagKey {
    at: Timestamp,
    jid: Jid,
    pub(crate) row: RowId,
}

#[derive(Debug, Default)]
struct TagUse {
    /// Times added less times removed; can be negative, as in Qless.
    count: i64,
    jobs: OrderStatTree<TagKey>,
}

/// A recurring job.
#[derive(Debug, Clone)]
pub(crate) struct Template {
    pub(crate) jid: Jid,
    pub(crate) queue: u32,
    pub(crate) klass: u32,
    pub(crate) payload: Payload,
    pub(crate) priority: Priority,
    pub(crate) retries: u32,
    pub(crate) tags: Vec<Tag>,
    pub(crate) every: Every,
    pub(crate) backlog: u32,
    pub(crate) count: u64,
    pub(crate) next: Timestamp,
    seq: u64,
}

impl ReadyKey {
    fn of(row: RowId, of: &Row) -> ReadyKey {
        let rank = if of.flags.has(Flags::FRONT) { 0 } else { rank(of.priority) };
        ReadyKey { rank, moment: of.score, seq: of.seq, row }
    }
}

impl DueKey {
    fn of(row: RowId, of: &Row) -> DueKey {
        DueKey { at: of.score, seq: of.seq, row }
    }
}

impl Queue {
    /// Whether it has a place in the list of queues, settings, statistics or the time of a poll.
    fn is_used(&self) -> bool {
        let Queue { registered, paused, limits, last_polled, days, .. } = self;
        let is_listed = registered.is_some() || *paused || limits.is_some();
        is_listed || last_polled.is_some() || !days.is_empty()
    }
}

/// Sort rank: lower for a higher priority, and never 0.
fn rank(priority: Priority) -> u64 {
    let bits = priority.get().to_bits();
    // Doubles sort like their bits, once negative ones are inverted.
    let ascending = if bits >> 63 == 0 { bits | 1 << 63 } else { !bits };
    !ascending
}

impl State {
    /// An empty state. Payloads of at least `spill_bytes_min` may be spilled.
    pub(crate) fn new(hash_seed: u64, spill_bytes_min: u32) -> State {
        State {
            rows: Rows::new(hash_seed),
            blobs: Blobs::default(),
            cold_parts: Slab::new(),
            queues: Interner::new(hash_seed),
            klasses: Interner::new(hash_seed),
            workers: Interner::new(hash_seed),
            groups: Interner::new(hash_seed),
            complete: OrderStatTree::default(),
            tags: BTreeMap::new(),
            top_tags: BTreeSet::new(),
            tracked: BTreeMap::new(),
            tracked_order: BTreeMap::new(),
            templates: BTreeMap::new(),
            templates_made: 0,
            templates_by_jid: BTreeMap::new(),
            config: Config::default(),
            seq: 0,
            spill: Spill::new(spill_bytes_min),
            waiters: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            expiries: BTreeSet::new(),
            behind_failed: BTreeSet::new(),
            dependency_policies: 0,
            results: Results::default(),
            tombstones: Tombstones::new(hash_seed),
            periodics: Periodics::default(),
            capable_workers: BTreeMap::new(),
            capability_changes: 0,
            by_last_seen: BTreeSet::new(),
            event_log: EventLog::default(),
            counters: BTreeMap::new(),
            rates: None,
            snapshot: None,
            dirty_queues: Vec::new(),
        }
    }

    pub(crate) fn epoch(&self) -> u32 {
        (self.seq >> EPOCH_BITS) as u32
    }

    pub(crate) fn find(&self, jid: &Jid) -> Option<RowId> {
        self.rows.find(jid)
    }

    /// Prefetch: reads the index slot where the search for a job begins.
    pub(crate) fn touch(&self, jid: &Jid) -> u32 {
        self.rows.touch(jid)
    }

    /// Prefetch: reads the rows that a queue would hand out next, and then their payloads.
    pub(crate) fn touch_next(&self, queue: u32, count: usize) -> u32 {
        let next = self.queues[queue].work.slice(0..count);
        let payloads: Vec<BlobRef> = next.iter().map(|entry| self.rows[entry.row].payload).collect();
        let first_byte = |payload: BlobRef| self.blobs.get(payload).first().copied().unwrap_or_default();
        payloads.into_iter().fold(0, |touched, payload| touched ^ u32::from(first_byte(payload)))
    }

    /// Prefetch: reads the rows that `count` completions would remove.
    pub(crate) fn touch_oldest_complete(&self, count: usize) -> u32 {
        let dropped =
            (self.complete.len() + count).saturating_sub(self.config.numbers.complete_count).min(count);
        let oldest = self.complete.slice(0..dropped);
        oldest.iter().fold(0, |touched, entry| touched ^ self.rows[entry.row].retries)
    }

    /// Finds a job by the row that its token names, or else by the index.
    pub(crate) fn find_at(&self, row: RowId, jid: &Jid) -> Option<RowId> {
        if self.rows.is(row, jid) { Some(row) } else { self.rows.find(jid) }
    }

    pub(crate) fn blobs(&self) -> &Blobs {
        &self.blobs
    }

    /// Mutable although only `apply` changes the state: where a payload is stored is not visible.
    pub(crate) fn blobs_mut(&mut self) -> &mut Blobs {
        &mut self.blobs
    }

    pub(crate) fn row(&self, row: RowId) -> &Row {
        &self.rows[row]
    }

    pub(crate) fn jid(&self, row: RowId) -> Jid {
        self.rows.jid(row)
    }

    fn tag_key(&self, row: RowId, at: Timestamp) -> TagKey {
        TagKey { at, jid: self.rows.jid(row), row }
    }

    fn cold(&self, row: RowId) -> Option<&ColdPart> {
        self.cold_parts.get(self.rows[row].cold as usize).map(|cold| &**cold)
    }

    /// Up to `count` jobs, in no particular order. Each job is in exactly one of these indexes.
    pub(crate) fn any_rows(&self, count: usize) -> Vec<RowId> {
        let mut rows = Vec::new();
        for (_, _, queue) in self.queues.iter() {
            let Queue { work, locks, scheduled, depends, .. } = queue;
            rows.extend(work.slice(0..count - rows.len()).into_iter().map(|entry| entry.row));
            for index in [locks, scheduled, depends] {
                rows.extend(index.slice(0..count - rows.len()).into_iter().map(|entry| entry.row));
            }
        }
        for (_, _, group) in self.groups.iter() {
            rows.extend(group.slice(0..count - rows.len()).into_iter().map(|(_, row)| row));
        }
        rows.extend(self.complete.slice(0..count - rows.len()).into_iter().map(|entry| entry.row));
        rows
    }

    /// Up to `count` recurring jobs.
    pub(crate) fn any_templates(&self, count: usize) -> Vec<u32> {
        self.templates.keys().copied().take(count).collect()
    }

    pub(crate) fn all_tags(&self) -> impl Iterator<Item = &Tag> {
        self.tags.keys()
    }

    /// Up to `count` workers that are listed or have capabilities.
    pub(crate) fn known_workers(&self, count: usize) -> Vec<u32> {
        let known = |worker: &Worker| worker.seen.is_some() || !worker.capabilities.is_empty();
        let workers = self.workers.iter().filter(|(_, _, worker)| known(worker));
        workers.map(|(number, ..)| number).take(count).collect()
    }

    /// Up to `count` queues that have more than a name.
    pub(crate) fn used_queues(&self, count: usize) -> Vec<u32> {
        let queues = self.queues.iter().filter(|(_, _, queue)| queue.is_used());
        queues.map(|(number, ..)| number).take(count).collect()
    }

    pub(crate) fn find_queue(&self, name: &str) -> Option<u32> {
        self.queues.find(name)
    }

    pub(crate) fn find_name(&self, kind: Kind, name: &str) -> Option<u32> {
        match kind {
            Kind::Queue => self.queues.find(name),
            Kind::Klass => self.klasses.find(name),
            Kind::Worker => self.workers.find(name),
            Kind::Group => self.groups.find(name),
        }
    }

    pub(crate) fn find_worker(&self, name: &str) -> Option<u32> {
        self.workers.find(name)
    }

    pub(crate) fn find_group(&self, name: &str) -> Option<u32> {
        self.groups.find(name)
    }

    pub(crate) fn queue(&self, queue: u32) -> &Queue {
        &self.queues[queue]
    }

    pub(crate) fn queue_numbers(&self) -> Vec<u32> {
        self.queues.iter().map(|(queue, ..)| queue).collect()
    }

    pub(crate) fn queue_name(&self, queue: u32) -> QueueName {
        QueueName::from_checked(self.queues.name(queue).clone())
    }

    pub(crate) fn worker(&self, worker: u32) -> &Worker {
        &self.workers[worker]
    }

    pub(crate) fn worker_name(&self, worker: u32) -> Option<WorkerName> {
        (worker != NONE).then(|| WorkerName::from_checked(self.workers.name(worker).clone()))
    }

    /// The listed queues, oldest first.
    pub(crate) fn registered_queues(&self) -> Vec<u32> {
        let mut listed: Vec<(Timestamp, &Arc<str>, u32)> = self
            .queues
            .iter()
            .filter_map(|(number, name, queue)| Some((queue.registered?, name, number)))
            .collect();
        listed.sort_unstable();
        listed.into_iter().map(|(_, _, number)| number).collect()
    }

    /// The listed workers, with when they were last seen.
    pub(crate) fn seen_workers(&self) -> impl Iterator<Item = (u32, Timestamp)> {
        self.workers.iter().filter_map(|(number, _, worker)| Some((number, worker.seen?)))
    }

    /// The failed jobs of a group, oldest first.
    pub(crate) fn group(&self, group: u32) -> &OrderStatTree<(u64, RowId)> {
        &self.groups[group]
    }

    /// The groups with failed jobs, and their counts.
    pub(crate) fn failures(&self) -> impl Iterator<Item = (&Arc<str>, usize)> {
        self.groups.iter().filter(|(_, _, jobs)| !jobs.is_empty()).map(|(_, name, jobs)| (name, jobs.len()))
    }

    /// The complete jobs, oldest first.
    pub(crate) fn complete(&self) -> &OrderStatTree<DueKey> {
        &self.complete
    }

    /// The jobs with a tag, by when they were tagged and then by jid.
    pub(crate) fn tagged(&self, tag: &Tag) -> Option<&OrderStatTree<TagKey>> {
        self.tags.get(tag).map(|usage| &usage.jobs)
    }

    /// The tags used at least twice, the most used first.
    pub(crate) fn top_tags(&self) -> impl Iterator<Item = &Tag> {
        self.top_tags.iter().rev().map(|(_, tag)| tag)
    }

    /// The tags of a job, in the order they were given.
    pub(crate) fn tags_of(&self, row: RowId) -> Vec<Tag> {
        self.cold(row)
            .map_or(Vec::new(), |cold| cold.tags.iter().map(|tagging| tagging.tag.clone()).collect())
    }

    pub(crate) fn dependencies(&self, row: RowId) -> impl Iterator<Item = RowId> {
        self.cold(row).into_iter().flat_map(|cold| cold.dependencies.iter().copied())
    }

    pub(crate) fn depends_on(&self, row: RowId, on: RowId) -> bool {
        self.cold(row).is_some_and(|cold| cold.dependencies.contains(&on))
    }

    pub(crate) fn dependents(&self, row: RowId) -> impl Iterator<Item = RowId> {
        self.cold(row).into_iter().flat_map(|cold| cold.dependents.iter().copied())
    }

    pub(crate) fn is_tracked(&self, jid: &Jid) -> bool {
        self.tracked.contains_key(jid)
    }

    /// The tracked jobs, removed ones included, in the order of tracking.
    pub(crate) fn tracked(&self) -> impl Iterator<Item = &Jid> {
        self.tracked_order.values()
    }

    pub(crate) fn find_template(&self, jid: &Jid) -> Option<u32> {
        self.templates_by_jid.get(jid).copied()
    }

    pub(crate) fn template(&self, template: u32) -> &Template {
        &self.templates[&template]
    }

    pub(crate) fn numbers(&self) -> &config::Numbers {
        &self.config.numbers
    }

    pub(crate) fn option(&self, option: &str) -> Option<Setting> {
        self.config.get(option)
    }

    pub(crate) fn options(&self) -> BTreeMap<String, Setting> {
        self.config.all()
    }

    /// How long a lock lasts in a queue.
    pub(crate) fn heartbeat(&self, queue: u32) -> Seconds {
        self.config.heartbeat(&self.queues[queue].options)
    }

    /// Concurrency limit of a queue; 0 for none.
    pub(crate) fn concurrency(&self, queue: u32) -> u64 {
        self.queues[queue].options.concurrency as u64
    }

    /// How many more jobs of a queue may run now; none without a concurrency limit.
    pub(crate) fn concurrency_left(&self, queue: u32, now: Timestamp) -> Option<usize> {
        let queue = &self.queues[queue];
        let limit = queue.options.concurrency;
        (limit > 0.0).then(|| {
            let live = queue.locks.len() - queue.locks.count_while(|lock| lock.at < now);
            (limit - live as f64).max(0.0) as usize
        })
    }

    /// Limits of a queue, if it has any.
    pub(crate) fn limits(&self, queue: u32) -> Option<&QueueLimits> {
        self.queues[queue].limits.as_deref()
    }

    pub(crate) fn unfinished(&self, queue: u32) -> u64 {
        let Queue { work, locks, scheduled, depends, .. } = &self.queues[queue];
        (work.len() + locks.len() + scheduled.len() + depends.len()) as u64
    }

    /// The jobs that a worker holds, including those it was warned about, in the order in which it got them.
    pub(crate) fn held(&self, worker: u32) -> Vec<RowId> {
        let Worker { jobs, warned, .. } = &self.workers[worker];
        let listed = jobs.slice(0..jobs.len()).into_iter().map(|entry| entry.row);
        let running = |row: &RowId| {
            let row = &self.rows[*row];
            row.state == RowState::Running && row.worker == worker
        };
        let held: BTreeSet<(u64, RowId)> = listed
            .chain(warned.iter().copied())
            .filter(running)
            .map(|row| (self.rows[row].seq, row))
            .collect();
        held.into_iter().map(|(_, row)| row).collect()
    }

    pub(crate) fn results(&self) -> &Results {
        &self.results
    }

    pub(crate) fn periodics(&self) -> &Periodics {
        &self.periodics
    }

    pub(crate) fn tombstones(&self) -> &Tombstones {
        &self.tombstones
    }

    /// How many ready jobs of its queue come before this one.
    pub(crate) fn before(&self, at: RowId) -> usize {
        let entry = ReadyKey::of(at, &self.rows[at]);
        self.queues[self.rows[at].queue].work.count_while(|other| *other < entry)
    }

    /// How many jobs of its queue will come before a scheduled job that is due.
    pub(crate) fn before_due(&self, at: RowId) -> usize {
        let row = &self.rows[at];
        let (queue, rank, entry) = (&self.queues[row.queue], rank(row.priority), DueKey::of(at, row));
        queue.work.count_while(|other| other.rank <= rank)
            + queue.scheduled.count_while(|other| *other < entry)
    }

    /// How many ready jobs of a queue have a priority above, at and below zero. Timed-out jobs, which come
    /// first, count as above.
    pub(crate) fn by_priority(&self, queue: u32) -> (usize, usize, usize) {
        let (work, zero) = (&self.queues[queue].work, rank(Priority::ZERO));
        let above = work.count_while(|entry| entry.rank < zero);
        let not_below = work.count_while(|entry| entry.rank <= zero);
        (above, not_below - above, work.len() - not_below)
    }

    /// The last id that a counter allocated; 0 if none.
    pub(crate) fn last_allocated_id(&self, counter: &str) -> u64 {
        self.counters.get(counter).copied().unwrap_or_default()
    }

    /// A queue's statistics of a day; empty for an unknown queue.
    pub(crate) fn stats(&self, queue: Option<u32>, date: Timestamp) -> StatsReply {
        queue.map_or_else(|| Days::default().report(date), |queue| self.queues[queue].days.report(date))
    }

    /// How the attempt with this fencing token ended, if that is remembered.
    pub(crate) fn ended(&self, row: RowId, token: u64) -> Option<Ended> {
        let (attempt, ended) = self.cold(row)?.ended?;
        (attempt == token).then_some(ended)
    }
}
