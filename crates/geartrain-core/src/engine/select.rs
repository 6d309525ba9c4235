//! Select and Act: jobs by filter, a bounded part per command.
//!
//! Jobs are walked in the order of their rows, the one order that no change of a job alters: a job that the
//! filter selects throughout is met once, whatever happens between two commands. An index with few entries is
//! read whole and sorted by row; otherwise the rows themselves are walked, which takes a few nanoseconds each.

use std::collections::BTreeSet;

use super::{Delta, Effects, Engine, NameId, RowId, RowState, at_least_one, at_most, check_size};
use crate::{
    Act, ActReply, AddTags, BECAUSE_BYTES_MAX, BulkAct, Cancel, Comparison, Count, Cursor, EndReason, Event,
    Filter, FilterState, Jid, Milestone, Priority, QueueName, REFUSALS_MAX, Refusal, RemoveTags, SELECT_MAX,
    Seconds, Select, SelectReply, Selected, SetPriority, Tag, Term, Timestamp, Unread,
};

/// The longest index that is read whole.
const INDEX_MAX: usize = 4_096;
/// How many steps one command takes at most. A row that is looked at is one.
const STEPS_MAX: usize = 20_000;
/// Steps of reading a job's history or payload, which are elsewhere in memory.
const STEPS_PER_READ: usize = 10;
/// Bytes of payload that are searched in one step.
const BYTES_PER_STEP: usize = 64;
/// How many jobs are cancelled along with a job that they depend on; and after how many in all a command
/// leaves the rest to the next one.
const DEPENDENTS_MAX: usize = 1_000;

/// A filter with interned names.
struct Compiled<'a> {
    filter: &'a Filter,
    checks: Vec<Check<'a>>,
    needs_payload: bool,
}

enum Check<'a> {
    Queue(NameId),
    Klass(NameId),
    State(RowState),
    Stalled,
    Tag(&'a Tag),
    Group(NameId),
    Worker(NameId),
    Age(Comparison, Seconds),
    Attempts(Comparison, u32),
}

/// Whether a filter selects a job.
enum Verdict {
    No,
    Yes,
    /// If its payload matches, which is in a file.
    Unread,
    /// All but the payload terms are true, and its payload is not JSON.
    NotJson,
}

/// What a walk found.
#[derive(Default)]
struct Found {
    rows: Vec<RowId>,
    unread: Vec<RowId>,
    next: Option<Cursor>,
    examined: u64,
    not_json: u64,
}

impl Engine {
    pub(super) fn select(&self, now: Timestamp, select: &Select) -> Result<SelectReply, Refusal> {
        let Select { filter, after, count } = select;
        check_filter(filter)?;
        check_count(*count)?;
        let found = self.find_rows(now, filter, after.as_ref(), count.get())?;
        let mut jobs: Vec<Selected> =
            found.rows.iter().copied().map(|row| self.state.selected(row, now)).collect();
        jobs.sort_unstable_by(Selected::order);
        let unread = self.unread(now, filter, &found.unread);
        let Found { next, examined, not_json, .. } = found;
        Ok(SelectReply { jobs, next, examined, not_json, unread })
    }

    pub(super) fn act(&mut self, now: Timestamp, act: Act, fx: &mut Effects) -> Result<ActReply, Refusal> {
        let Act { filter, after, count, act, only } = act;
        if let BulkAct::Cancel { because } = &act {
            check_size("because", because.as_ref().map_or(0, String::len), BECAUSE_BYTES_MAX)?;
        }
        check_filter(&filter)?;
        check_count(count)?;
        at_most("only", only.len(), SELECT_MAX)?;
        if let BulkAct::AddTags { tags } | BulkAct::RemoveTags { tags } = &act {
            at_least_one("tags", tags)?;
            at_most("tags", tags.len(), super::TAGS_MAX)?;
        }
        let found = if only.is_empty() {
            self.find_rows(now, &filter, after.as_ref(), count.get())?
        } else {
            self.find_only(now, &filter, &only)
        };
        let Found { mut rows, unread, next, examined, .. } = found;
        let unread = self.unread(now, &filter, &unread);
        let mut reply = ActReply { next, examined, unread, ..ActReply::default() };
        rows.sort_by_cached_key(|row| (self.state.first_put(*row), self.state.jid(*row)));
        let jids: Vec<Jid> = rows.into_iter().map(|row| self.state.jid(row)).collect();
        let mut along = 0;
        // Each cancellation takes it.
        let by = fx.by.take();
        for jid in jids {
            // It may have been cancelled along with another.
            let Some(row) = self.state.find(&jid) else { continue };
            if along > DEPENDENTS_MAX as u64 {
                reply.again.push(jid);
                continue;
            }
            fx.by.clone_from(&by);
            match self.act_on(now, row, &jid, &act, &filter, fx) {
                Ok(0) => reply.unchanged += 1,
                Ok(changed) => {
                    reply.acted += changed;
                    along += changed - 1;
                }
                Err(refusal) => {
                    reply.refused += 1;
                    if reply.refusals.len() < REFUSALS_MAX {
                        reply.refusals.push((jid, refusal));
                    }
                }
            }
        }
        fx.by = None;
        Ok(reply)
    }

    /// Walks the jobs after a cursor until `count` are found.
    fn find_rows(
        &self,
        now: Timestamp,
        filter: &Filter,
        after: Option<&Cursor>,
        count: usize,
    ) -> Result<Found, Refusal> {
        let first = after.map_or(Ok(0), read_cursor)?;
        let Some(compiled) = self.compile(filter) else { return Ok(Found::default()) };
        let (mut found, mut steps) = (Found::default(), 0);
        // Examines a row, and returns whether the walk ends behind it.
        let mut examine = |row: RowId| {
            steps += 1;
            if self.state.row(row).state != RowState::Free {
                found.examined += 1;
                match self.verdict(now, row, &compiled, &mut steps) {
                    Verdict::No => {}
                    Verdict::Yes => found.rows.push(row),
                    Verdict::Unread => found.unread.push(row),
                    Verdict::NotJson => found.not_json += 1,
                }
            }
            found.rows.len() + found.unread.len() >= count || steps >= STEPS_MAX
        };
        let (end, last) = match self.candidates(&compiled) {
            Some(mut rows) => {
                rows.retain(|row| *row >= first);
                rows.sort_unstable();
                rows.dedup();
                (rows.iter().copied().find(|row| examine(*row)), rows.last().copied())
            }
            None => {
                let used = self.state.rows_used();
                ((first..used).find(|row| examine(*row)), used.checked_sub(1))
            }
        };
        found.next = end.filter(|_| end != last).map(cursor);
        Ok(found)
    }

    /// Examines named jobs, whose payloads are known to match.
    fn find_only(&self, now: Timestamp, filter: &Filter, only: &[Jid]) -> Found {
        let Some(mut compiled) = self.compile(filter) else { return Found::default() };
        compiled.needs_payload = false;
        let named: BTreeSet<RowId> = only.iter().filter_map(|jid| self.state.find(jid)).collect();
        let examined = named.len() as u64;
        let is_selected = |row: &RowId| matches!(self.verdict(now, *row, &compiled, &mut 0), Verdict::Yes);
        Found { rows: named.into_iter().filter(is_selected).collect(), examined, ..Found::default() }
    }

    fn unread(&self, now: Timestamp, filter: &Filter, rows: &[RowId]) -> Option<Box<Unread>> {
        if rows.is_empty() {
            return None;
        }
        let job = |row: &RowId| (self.state.selected(*row, now), self.state.payload_of(*row));
        Some(Box::new(Unread { filter: filter.clone(), jobs: rows.iter().map(job).collect() }))
    }

    /// `None` if a name is unknown, so that no job has it.
    fn compile<'a>(&self, filter: &'a Filter) -> Option<Compiled<'a>> {
        use super::Kind;
        let id = |kind, name: &str| self.state.find_name(kind, name);
        let mut checks = Vec::with_capacity(filter.terms.len());
        for term in &filter.terms {
            checks.push(match term {
                Term::Queue(name) => Check::Queue(id(Kind::Queue, name.as_str())?),
                Term::Klass(name) => Check::Klass(id(Kind::Klass, name.as_str())?),
                Term::Group(name) => Check::Group(id(Kind::Group, name.as_str())?),
                Term::Worker(name) => Check::Worker(id(Kind::Worker, name.as_str())?),
                Term::State(FilterState::Stalled) => Check::Stalled,
                Term::State(state) => Check::State(row_state(*state)),
                Term::Tag(tag) => Check::Tag(tag),
                Term::Age(comparison, age) => Check::Age(*comparison, *age),
                Term::Attempts(comparison, count) => Check::Attempts(*comparison, *count),
                Term::Args(..) => continue,
            });
        }
        Some(Compiled { filter, checks, needs_payload: filter.needs_payload() })
    }

    fn verdict(&self, now: Timestamp, at: RowId, compiled: &Compiled<'_>, steps: &mut usize) -> Verdict {
        let state = &self.state;
        let row = state.row(at);
        for check in &compiled.checks {
            let is_true = match check {
                Check::Queue(queue) if row.state == RowState::Complete => {
                    *steps += STEPS_PER_READ;
                    state.last_queue(at) == Some(*queue)
                }
                Check::Queue(queue) => row.queue == *queue,
                Check::Klass(klass) => row.klass == *klass,
                Check::State(state) => row.state == *state,
                Check::Stalled => state.is_stalled(at, now),
                Check::Tag(tag) => state.has_tag(at, tag),
                Check::Group(group) => state.failed_group(at) == Some(*group),
                Check::Worker(worker) => state.is_listed_by(at, *worker),
                Check::Age(comparison, age) => {
                    *steps += STEPS_PER_READ;
                    comparison.is_true(now - state.first_put(at), *age)
                }
                Check::Attempts(comparison, count) => comparison.is_true(state.attempts(at), *count),
            };
            if !is_true {
                return Verdict::No;
            }
        }
        if !compiled.needs_payload {
            return Verdict::Yes;
        }
        let payload = state.payload_of(at);
        *steps += STEPS_PER_READ + payload.byte_len() / BYTES_PER_STEP;
        match payload.spill_location() {
            Some(_) => Verdict::Unread,
            None => match compiled.filter.payload_verdict(&payload) {
                Some(true) => Verdict::Yes,
                Some(false) => Verdict::No,
                None => Verdict::NotJson,
            },
        }
    }

    /// The entries of the shortest index that has all jobs that the filter selects, in no order; `None` if
    /// each is long.
    fn candidates(&self, compiled: &Compiled<'_>) -> Option<Vec<RowId>> {
        let (mut queue, mut states) = (None, None);
        let mut shortest: Option<Vec<RowId>> = None;
        let mut max = INDEX_MAX;
        let mut offer = |rows: Option<Vec<RowId>>, max: &mut usize| {
            if let Some(rows) = rows {
                *max = rows.len();
                shortest = Some(rows);
            }
        };
        for check in &compiled.checks {
            match check {
                Check::Group(group) => {
                    states = Some(RowState::Failed);
                    offer(self.state.rows_of_group(*group, max), &mut max);
                }
                Check::Worker(worker) => {
                    states = Some(RowState::Running);
                    offer(self.state.rows_of_worker(*worker, max), &mut max);
                }
                Check::Tag(tag) => offer(self.state.rows_of_tag(tag, max), &mut max),
                Check::Queue(named) => queue = Some(*named),
                Check::State(state) => states = Some(*state),
                Check::Stalled => states = Some(RowState::Running),
                Check::Klass(_) | Check::Age(..) | Check::Attempts(..) => {}
            }
        }
        let rows = match states {
            Some(state) => self.state.rows_in_state(state, queue, max),
            None => queue.and_then(|queue| self.rows_of_queue(queue, max)),
        };
        offer(rows, &mut max);
        shortest
    }

    /// The jobs that are or were in a queue, and failed and complete ones of others.
    fn rows_of_queue(&self, queue: NameId, max: usize) -> Option<Vec<RowId>> {
        use RowState::{Complete, Depends, Failed, Running, Scheduled, Waiting};
        let mut all = Vec::new();
        for state in [Scheduled, Depends, Waiting, Running, Failed, Complete] {
            let rows = self.state.rows_in_state(state, Some(queue), max - all.len())?;
            all.extend(rows);
        }
        Some(all)
    }

    /// Changes one job. Returns how many jobs changed: more than one if others were cancelled along.
    fn act_on(
        &mut self,
        now: Timestamp,
        row: RowId,
        jid: &Jid,
        act: &BulkAct,
        filter: &Filter,
        fx: &mut Effects,
    ) -> Result<u64, Refusal> {
        let state = self.state.row(row).state;
        match act {
            BulkAct::Cancel { because } => {
                if state == RowState::Complete {
                    return Ok(0);
                }
                let jids = self.with_selected_dependents(now, row, jid, filter)?;
                self.cancel(now, Cancel { because: because.clone(), ..Cancel::new(jids) }, fx)
            }
            BulkAct::Requeue { queue } => {
                let queue = self.target(row, jid, queue.as_ref(), fx)?;
                let is_there = matches!(state, RowState::Waiting | RowState::Depends)
                    && self.state.row(row).queue == queue;
                if is_there {
                    return Ok(0);
                }
                self.requeue(now, row, jid, queue, fx);
                Ok(1)
            }
            BulkAct::Unfail { queue } => {
                if state != RowState::Failed {
                    return Ok(0);
                }
                let queue = self.target(row, jid, queue.as_ref(), fx)?;
                self.commit(Delta::Unfail(row, queue, now), fx);
                Ok(1)
            }
            BulkAct::SetPriority { priority } => {
                let was: Priority = self.state.row(row).priority;
                if was == *priority {
                    return Ok(0);
                }
                self.set_priority(SetPriority { jid: jid.clone(), priority: *priority }, fx)?;
                Ok(1)
            }
            BulkAct::AddTags { tags } => {
                let new: Vec<Tag> =
                    distinct(tags).filter(|tag| !self.state.has_tag(row, tag)).cloned().collect();
                if new.is_empty() {
                    return Ok(0);
                }
                self.add_tags(now, AddTags { jid: jid.clone(), tags: new }, fx)?;
                Ok(1)
            }
            BulkAct::RemoveTags { tags } => {
                let old: Vec<Tag> =
                    distinct(tags).filter(|tag| self.state.has_tag(row, tag)).cloned().collect();
                if old.is_empty() {
                    return Ok(0);
                }
                self.remove_tags(RemoveTags { jid: jid.clone(), tags: old }, fx)?;
                Ok(1)
            }
        }
    }

    /// The queue to put a job into: the given one, or its own or last one.
    fn target(
        &mut self,
        row: RowId,
        jid: &Jid,
        given: Option<&QueueName>,
        fx: &mut Effects,
    ) -> Result<NameId, Refusal> {
        match given {
            Some(queue) => Ok(self.queue_id(queue, fx)),
            None => self.state.last_queue(row).ok_or_else(|| Refusal::BadArgument {
                what: "queue".into(),
                why: format!("the last queue of job {jid} is not known any more: name one"),
            }),
        }
    }

    /// Puts a job again as it is.
    fn requeue(&mut self, now: Timestamp, row: RowId, jid: &Jid, queue: NameId, fx: &mut Effects) {
        fx.publish(|| Event::Put { jid: jid.clone(), queue: self.state.queue_name(queue) });
        if let Some(holder) = self.holder(row) {
            fx.publish(|| Event::LockLost { jid: jid.clone(), worker: holder });
        }
        if self.state.row(row).state == RowState::Running {
            self.end_attempt(row, now, EndReason::PutAgain, None, None, fx);
        }
        self.commit(Delta::Requeue(row, queue, now), fx);
        self.milestone(row, Milestone::Put, fx);
    }

    /// A job and all that depend on it, also by way of others. Refused if the filter does not select one of
    /// them: it would wait for ever.
    fn with_selected_dependents(
        &self,
        now: Timestamp,
        row: RowId,
        jid: &Jid,
        filter: &Filter,
    ) -> Result<Vec<Jid>, Refusal> {
        if self.state.dependents(row).next().is_none() {
            return Ok(vec![jid.clone()]);
        }
        let Some(compiled) = self.compile(filter) else { return Ok(vec![jid.clone()]) };
        let (mut seen, mut ahead) = (BTreeSet::from([row]), vec![row]);
        let mut dependents = BTreeSet::new();
        let mut left_behind: Option<Jid> = None;
        while let Some(at) = ahead.pop() {
            for of in self.state.dependents(at) {
                if !seen.insert(of) {
                    continue;
                }
                if seen.len() > DEPENDENTS_MAX {
                    return Err(Refusal::TooManyDependencies { jid: jid.clone(), max: DEPENDENTS_MAX });
                }
                ahead.push(of);
                let dependent = self.state.jid(of);
                if !matches!(self.verdict(now, of, &compiled, &mut 0), Verdict::Yes)
                    && left_behind.as_ref().is_none_or(|other| dependent < *other)
                {
                    left_behind = Some(dependent.clone());
                }
                dependents.insert(dependent);
            }
        }
        match left_behind {
            Some(dependent) => Err(Refusal::IsDependency { jid: jid.clone(), dependent }),
            None => Ok([jid.clone()].into_iter().chain(dependents).collect()),
        }
    }
}

fn distinct(tags: &[Tag]) -> impl Iterator<Item = &Tag> {
    tags.iter().enumerate().filter(|(place, tag)| !tags[..*place].contains(tag)).map(|(_, tag)| tag)
}

fn row_state(state: FilterState) -> RowState {
    match state {
        FilterState::Scheduled => RowState::Scheduled,
        FilterState::Depends => RowState::Depends,
        FilterState::Waiting => RowState::Waiting,
        FilterState::Running | FilterState::Stalled => RowState::Running,
        FilterState::Complete => RowState::Complete,
        FilterState::Failed => RowState::Failed,
    }
}

fn check_filter(filter: &Filter) -> Result<(), Refusal> {
    filter.check().map_err(|why| Refusal::BadArgument { what: "filter".into(), why })
}

fn check_count(count: Count) -> Result<(), Refusal> {
    if (1..=SELECT_MAX).contains(&count.get()) {
        return Ok(());
    }
    let why = format!("must be 1 to {SELECT_MAX}, not {}", count.get());
    Err(Refusal::BadArgument { what: "count".into(), why })
}

/// The cursor after a row.
fn cursor(row: RowId) -> Cursor {
    Cursor(format!("row-{row}"))
}

/// The first row after a cursor.
fn read_cursor(cursor: &Cursor) -> Result<RowId, Refusal> {
    let row = cursor.0.strip_prefix("row-").and_then(|row| row.parse::<RowId>().ok());
    row.and_then(|row| row.checked_add(1)).ok_or_else(|| Refusal::BadArgument {
        what: "after".into(),
        why: format!("{:?} is no cursor of this queue: begin again without one", cursor.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Limits;
    use crate::{Command, Holder, Klass, Pop, Put, Reply, Retry, WorkerName};

    fn run(engine: &mut Engine, command: impl Into<Command>) -> Reply {
        engine.execute(Timestamp::from(1), command.into(), &mut Effects::default()).unwrap()
    }

    fn jid(number: usize) -> Jid {
        Jid::new(format!("j{number}")).unwrap()
    }

    fn filled(jobs: usize) -> Engine {
        let mut engine = Engine::new(Limits::default());
        for number in 0..jobs {
            let (queue, klass) = (QueueName::new("q").unwrap(), Klass::new("k").unwrap());
            run(&mut engine, Put::new(queue, jid(number), klass, "{}"));
        }
        engine
    }

    fn select(engine: &mut Engine, filter: &str, after: Option<Cursor>, count: i64) -> SelectReply {
        let select =
            Select { after, count: Count::new(count).unwrap(), ..Select::new(filter.parse().unwrap()) };
        match run(engine, select) {
            Reply::Select(reply) => *reply,
            other => panic!("{other:?}"),
        }
    }

    /// Priorities change, jobs are popped and retried between pages: each is still shown once.
    #[test]
    fn a_job_that_moves_between_pages_is_shown_once() {
        // By rows, and by the index of the queue.
        for filter in ["klass=k", "queue=q"] {
            let mut engine = filled(100);
            let (mut seen, mut after) = (Vec::new(), None);
            for page in 0_usize.. {
                let found = select(&mut engine, filter, after, 7);
                seen.extend(found.jobs.into_iter().map(|job| job.jid));
                after = found.next;
                if after.is_none() {
                    break;
                }
                for number in [page, 99 - page, page * 37 % 100] {
                    let priority = Priority::new(if page % 2 == 0 { 5.0 } else { -5.0 }).unwrap();
                    run(&mut engine, SetPriority { jid: jid(number), priority });
                }
                let pop = Pop::new(QueueName::new("q").unwrap(), WorkerName::new("w").unwrap());
                let Reply::Pop(popped) = run(&mut engine, pop) else { panic!("a pop") };
                let job = &popped.jobs[0];
                if page % 3 > 0 {
                    run(&mut engine, Retry::new(job.jid.clone(), Holder::Token(job.lock.token)));
                }
            }
            seen.sort();
            let mut all: Vec<Jid> = (0..100).map(jid).collect();
            all.sort();
            assert_eq!(seen, all, "{filter}");
        }
    }

    /// Free rows take steps too, so a command does not walk through any number of them.
    #[test]
    fn a_walk_through_free_rows_is_bounded() {
        let jobs = 2 * STEPS_MAX + 100;
        let mut engine = filled(jobs);
        run(&mut engine, Cancel::new((0..jobs - 1).map(jid).collect()));
        let (mut after, mut commands) = (None, 0);
        let found = loop {
            let page = select(&mut engine, "klass=k", after, 10);
            commands += 1;
            after = page.next;
            if after.is_none() {
                break page.jobs;
            }
        };
        assert_eq!((commands, found.len(), &found[0].jid), (3, 1, &jid(jobs - 1)));
    }

    /// A long index is not read: the rows are walked, and the cursor of one goes on in the other.
    #[test]
    fn a_cursor_is_valid_while_an_index_grows_or_shrinks() {
        let mut engine = filled(INDEX_MAX);
        let first = select(&mut engine, "queue=q state=waiting", None, 1_000);
        assert_eq!(first.examined, 1_000);
        let (queue, klass) = (QueueName::new("q").unwrap(), Klass::new("k").unwrap());
        run(&mut engine, Put::new(queue, jid(INDEX_MAX), klass, "{}"));
        let (mut after, mut shown) = (first.next, first.jobs.len());
        while after.is_some() {
            let page = select(&mut engine, "queue=q state=waiting", after, 1_000);
            shown += page.jobs.len();
            after = page.next;
            let last = engine.state.rows_used() - 1;
            if engine.state.row(last).state != RowState::Free {
                run(&mut engine, Cancel::new(vec![jid(INDEX_MAX)]));
            }
        }
        assert_eq!(shown, INDEX_MAX);
    }
}
