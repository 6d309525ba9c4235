//! All that the engine knows, packed, with the indexes that find it. Others can read it; only [`State::apply`] changes it.

mod apply;
mod blobs;
mod capabilities;
mod check;
mod cold;
mod config;
mod event_log;
mod extension;
mod history;
mod index;
mod interner;
mod memory_report;
mod order_stat_tree;
mod reclaim;
mod results;
mod rows;
mod snapshot;
mod spill;
mod spill_map;
mod stats;
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
pub(crate) use config::check as check_option;
use config::{Config, QueueNumbers};
use event_log::EventLog;
use extension::RateLimiter;
use interner::Interner;
pub use memory_report::MemoryReport;
pub(crate) use order_stat_tree::OrderStatTree;
pub(crate) use reclaim::Need;
use results::Results;
pub(crate) use results::{RESULT_BYTES, size as result_size};
pub use rows::RowId;
use rows::Rows;
pub(crate) use rows::{Flags, NONE, Row, RowState};
use spill::Spill;
pub use spill::{SpillDone, SpillTask};
use stats::Days;

/// How many bits count arrivals and tokens within an epoch. Above them 24 bits count the epochs: one for each time that a store is opened.
pub(crate) const EPOCH_BITS: u32 = 40;

/// The last epoch.
pub const EPOCH_MAX: u32 = (1 << (u64::BITS - EPOCH_BITS)) - 1;

/// All that the engine knows.
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
    /// Tags used at least twice, by use.
    top_tags: BTreeSet<(i64, Tag)>,
    tracked: BTreeMap<Jid, (Timestamp, u64)>,
    tracked_order: BTreeMap<(Timestamp, u64), Jid>,
    templates: BTreeMap<u32, Template>,
    /// How many recurring jobs there have ever been; numbers are not used again.
    templates_made: u32,
    templates_by_jid: BTreeMap<Jid, u32>,
    config: Config,
    /// The last arrival or token given out.
    seq: u64,
    /// Payloads that are on their way out of memory.
    spill: Spill,
    /// Who waits for which job.
    waiters: BTreeMap<ResultWaiter, RowId>,
    /// Attempts that must be over at a moment, with their tokens.
    deadlines: BTreeSet<(Timestamp, u64, RowId)>,
    /// Queued jobs that must start by a moment.
    expiries: BTreeSet<(Timestamp, RowId)>,
    results: Results,
    /// The workers that can do a klass of a queue, or any.
    capable_workers: BTreeMap<(u32, u32), BTreeSet<u32>>,
    /// Workers that can do anything, by when they were seen.
    by_last_seen: BTreeSet<(Timestamp, Arc<str>, u32)>,
    event_log: EventLog,
    /// The last number that each counter has given out.
    counters: BTreeMap<Box<str>, u64>,
    /// A picture that is being taken.
    snapshot: Option<snapshot::Snapshot>,
    /// Watched queues in which something changed.
    dirty_queues: Vec<u32>,
}

/// One queue: its jobs, by where they stand.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) work: OrderStatTree<ReadyKey>,
    pub(crate) locks: OrderStatTree<DueKey>,
    pub(crate) scheduled: OrderStatTree<DueKey>,
    pub(crate) depends: OrderStatTree<DueKey>,
    /// Recurring jobs; the row is the template's number.
    pub(crate) recurring: OrderStatTree<DueKey>,
    /// When it was put on the list of queues.
    pub(crate) registered: Option<Timestamp>,
    pub(crate) paused: bool,
    options: QueueNumbers,
    /// The jobs that others join, by what makes them.
    keys: BTreeMap<UniqueKey, RowId>,
    limits: Option<Box<QueueLimits>>,
    pub(crate) rate_limiter: Option<RateLimiter>,
    /// When somebody last asked for jobs, roughly.
    pub(crate) last_polled: Option<Timestamp>,
    days: Days,
    /// Somebody waits for its jobs.
    watched: bool,
    /// Something changed since they last looked.
    dirty: bool,
}

/// One worker.
#[derive(Debug, Default)]
pub(crate) struct Worker {
    pub(crate) seen: Option<Timestamp>,
    pub(crate) jobs: OrderStatTree<DueKey>,
    /// Jobs that it has, and was warned about.
    warned: BTreeSet<RowId>,
    /// What it has announced: klasses of queues, or any, and how long it takes at the most.
    capabilities: BTreeMap<(u32, u32), Option<Seconds>>,
}

/// A job among those that wait, the next one first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ReadyKey {
    rank: u64,
    moment: Timestamp,
    seq: u64,
    pub(crate) row: RowId,
}

/// A job among those that are ordered by a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DueKey {
    pub(crate) at: Timestamp,
    seq: u64,
    pub(crate) row: RowId,
}

/// How a tag is used.
#[derive(Debug, Default)]
struct TagUse {
    /// How often it was given and not taken away; it can be negative, as in Qless.
    count: i64,
    jobs: OrderStatTree<DueKey>,
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

/// A number that is lower for a higher priority, and never 0.
fn rank(priority: Priority) -> u64 {
    let bits = priority.get().to_bits();
    // Doubles sort as their bits do, once the negative ones are turned round.
    let ascending = if bits >> 63 == 0 { bits | 1 << 63 } else { !bits };
    !ascending
}

impl State {
    /// An empty one. Payloads of so many bytes, or more, may be moved out of memory.
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
            results: Results::default(),
            capable_workers: BTreeMap::new(),
            by_last_seen: BTreeSet::new(),
            event_log: EventLog::default(),
            counters: BTreeMap::new(),
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

    /// Reads where a search for a job will begin.
    pub(crate) fn touch(&self, jid: &Jid) -> u32 {
        self.rows.touch(jid)
    }

    /// Reads the rows that a queue would hand out next, and then their payloads.
    pub(crate) fn touch_next(&self, queue: u32, count: usize) -> u32 {
        let next = self.queues[queue].work.slice(0..count);
        let payloads: Vec<BlobRef> = next.iter().map(|entry| self.rows[entry.row].payload).collect();
        let first_byte = |payload: BlobRef| self.blobs.get(payload).first().copied().unwrap_or_default();
        payloads.into_iter().fold(0, |touched, payload| touched ^ u32::from(first_byte(payload)))
    }

    /// Reads the rows that so many completions would drop.
    pub(crate) fn touch_oldest_complete(&self, count: usize) -> u32 {
        let dropped =
            (self.complete.len() + count).saturating_sub(self.config.numbers.complete_count).min(count);
        let oldest = self.complete.slice(0..dropped);
        oldest.iter().fold(0, |touched, entry| touched ^ self.rows[entry.row].retries)
    }

    /// Finds a job whose row is probably this one.
    pub(crate) fn find_at(&self, row: RowId, jid: &Jid) -> Option<RowId> {
        if self.rows.is(row, jid) { Some(row) } else { self.rows.find(jid) }
    }

    pub(crate) fn blobs(&self) -> &Blobs {
        &self.blobs
    }

    /// Where payloads are is no change: nobody can see it.
    pub(crate) fn blobs_mut(&mut self) -> &mut Blobs {
        &mut self.blobs
    }

    pub(crate) fn row(&self, row: RowId) -> &Row {
        &self.rows[row]
    }

    pub(crate) fn jid(&self, row: RowId) -> Jid {
        self.rows.jid(row)
    }

    fn cold(&self, row: RowId) -> Option<&ColdPart> {
        self.cold_parts.get(self.rows[row].cold as usize).map(|cold| &**cold)
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

    /// The queues on the list, first seen first.
    pub(crate) fn registered_queues(&self) -> Vec<u32> {
        let mut listed: Vec<(Timestamp, &Arc<str>, u32)> = self
            .queues
            .iter()
            .filter_map(|(number, name, queue)| Some((queue.registered?, name, number)))
            .collect();
        listed.sort_unstable();
        listed.into_iter().map(|(_, _, number)| number).collect()
    }

    /// The workers on the list, with when they were last seen.
    pub(crate) fn seen_workers(&self) -> impl Iterator<Item = (u32, Timestamp)> {
        self.workers.iter().filter_map(|(number, _, worker)| Some((number, worker.seen?)))
    }

    /// The failed jobs of a group, the first to fail first.
    pub(crate) fn group(&self, group: u32) -> &OrderStatTree<(u64, RowId)> {
        &self.groups[group]
    }

    /// The groups that have any, with how many.
    pub(crate) fn failures(&self) -> impl Iterator<Item = (&Arc<str>, usize)> {
        self.groups.iter().filter(|(_, _, jobs)| !jobs.is_empty()).map(|(_, name, jobs)| (name, jobs.len()))
    }

    /// The complete jobs, the first to complete first.
    pub(crate) fn complete(&self) -> &OrderStatTree<DueKey> {
        &self.complete
    }

    /// The jobs that have a tag, in the order in which they got it.
    pub(crate) fn tagged(&self, tag: &Tag) -> Option<&OrderStatTree<DueKey>> {
        self.tags.get(tag).map(|usage| &usage.jobs)
    }

    /// The tags used at least twice, the most used first.
    pub(crate) fn top_tags(&self) -> impl Iterator<Item = &Tag> {
        self.top_tags.iter().rev().map(|(_, tag)| tag)
    }

    /// The tags of a job, as they were given.
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

    /// The tracked jobs, those that are gone included, in the order in which their tracking began.
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

    /// How many jobs of a queue may run at once; 0 for no limit.
    pub(crate) fn concurrency(&self, queue: u32) -> u64 {
        self.queues[queue].options.concurrency as u64
    }

    /// How many more jobs of a queue may run now; none if there is no limit.
    pub(crate) fn concurrency_left(&self, queue: u32, now: Timestamp) -> Option<usize> {
        let queue = &self.queues[queue];
        let limit = queue.options.concurrency;
        (limit > 0.0).then(|| {
            let live = queue.locks.len() - queue.locks.count_while(|lock| lock.at < now);
            (limit - live as f64).max(0.0) as usize
        })
    }

    /// What a queue takes and hands out, if that is limited.
    pub(crate) fn limits(&self, queue: u32) -> Option<&QueueLimits> {
        self.queues[queue].limits.as_deref()
    }

    /// How many unfinished jobs a queue has.
    pub(crate) fn unfinished(&self, queue: u32) -> u64 {
        let Queue { work, locks, scheduled, depends, .. } = &self.queues[queue];
        (work.len() + locks.len() + scheduled.len() + depends.len()) as u64
    }

    /// The jobs that a worker has, those that it was warned about included, in the order in which it got them.
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

    /// How many jobs of a queue come before a waiting one.
    pub(crate) fn before(&self, at: RowId) -> usize {
        let entry = ReadyKey::of(at, &self.rows[at]);
        self.queues[self.rows[at].queue].work.count_while(|other| *other < entry)
    }

    /// How many jobs of its queue will come before a scheduled one that is due.
    pub(crate) fn before_due(&self, at: RowId) -> usize {
        let row = &self.rows[at];
        let (queue, rank, entry) = (&self.queues[row.queue], rank(row.priority), DueKey::of(at, row));
        queue.work.count_while(|other| other.rank <= rank)
            + queue.scheduled.count_while(|other| *other < entry)
    }

    /// How many waiting jobs of a queue have a priority above, at and below nought. Those that a timeout brought before everything have the rank of
    /// the highest priority that there is, and count so.
    pub(crate) fn by_priority(&self, queue: u32) -> (usize, usize, usize) {
        let (work, nought) = (&self.queues[queue].work, rank(Priority::ZERO));
        let above = work.count_while(|entry| entry.rank < nought);
        let not_below = work.count_while(|entry| entry.rank <= nought);
        (above, not_below - above, work.len() - not_below)
    }

    /// The last number that a counter has given out; 0 if it has given out none.
    pub(crate) fn last_allocated_id(&self, counter: &str) -> u64 {
        self.counters.get(counter).copied().unwrap_or_default()
    }

    /// How a queue did on a day; one that is not known did nothing.
    pub(crate) fn stats(&self, queue: Option<u32>, date: Timestamp) -> StatsReply {
        queue.map_or_else(|| Days::default().report(date), |queue| self.queues[queue].days.report(date))
    }

    /// How the attempt with this token ended, if that is remembered.
    pub(crate) fn ended(&self, row: RowId, token: u64) -> Option<Ended> {
        let (attempt, ended) = self.cold(row)?.ended?;
        (attempt == token).then_some(ended)
    }
}
