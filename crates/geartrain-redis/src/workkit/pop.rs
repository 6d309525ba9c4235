//! Taking jobs: look at the due entries, choose those that may be run, and claim them one by one.

use geartrain_core::{
    Klass, Lock, Pop, PopOrder, PopReply, Popped, Priority, QueueName, Refusal, Seconds, Timestamp,
};
use redis::cmd;

use super::attempt::{AttemptRecord, name_of};
use super::keys::{Keys, SCHEDULES, id_in};
use super::payload::StoredJob;
use super::session::Session;
use super::{cron, script};
use crate::layout::{CallError, check_queues, new_token};

/// Entries that are looked at first; the pages behind them are larger.
const PAGE: (usize, usize) = (16, 1_024);

/// The klass of function literals, if a pop takes them. No function has a name without a namespace.
const LITERAL: &str = "literal";

/// Which functions a pop takes.
#[derive(Clone, Copy)]
struct Wanted<'a> {
    named: Named<'a>,
    literals: bool,
}

#[derive(Clone, Copy)]
enum Named<'a> {
    All,
    Klasses(&'a [Klass]),
}

impl Wanted<'_> {
    /// The klass under which a job is handed out; none if the pop does not take it.
    fn klass_of(self, job: &StoredJob) -> Option<Klass> {
        match (job.klass(), self.named) {
            (None, _) => self.literals.then(|| Klass::new(LITERAL).expect("it is a name")),
            (Some(klass), Named::All) => Some(klass),
            (Some(klass), Named::Klasses(klasses)) => klasses.contains(&klass).then_some(klass),
        }
    }
}

/// An entry that is due, with its job.
pub(super) struct DueJob {
    pub(super) id: String,
    entry: String,
    score: String,
    pub(super) job: StoredJob,
}

/// A page of entries.
struct EntryPage {
    due: Vec<DueJob>,
    /// How many entries there were, due or not, readable or not.
    seen: usize,
    /// How many of these had no job and were removed, so that others have moved up.
    removed: usize,
    /// The score of the first entry that is not due.
    next: Option<f64>,
}

impl Session {
    /// Whether one of the schedules has a due job of a named function, and when the next entry is due.
    pub(super) async fn ready(
        &self,
        queues: &[QueueName],
        now: Timestamp,
    ) -> Result<(bool, Option<Timestamp>), CallError> {
        check_queues(queues)?;
        let mut next = None;
        for queue in queues {
            self.enter(queue)?;
            let mut offset = 0;
            loop {
                let page = self.page(queue, offset, PAGE.1, now).await?;
                if page.due.iter().any(|due| self.options.literals || due.job.klass().is_some()) {
                    return Ok((true, None));
                }
                next = earlier(next, page.next);
                offset += page.seen - page.removed;
                if page.next.is_some() || page.seen < PAGE.1 {
                    break;
                }
            }
        }
        Ok((false, next.map(cron::time_of)))
    }

    /// Pops what is due, and returns when the first entry is that is not.
    pub(super) async fn pop(
        &self,
        pop: &Pop,
        now: Timestamp,
    ) -> Result<(PopReply, Option<Timestamp>), CallError> {
        check_queues(&pop.queues)?;
        let named = match &pop.klasses {
            Some(klasses) => Named::Klasses(klasses),
            None if self.options.all => Named::All,
            None if self.options.literals => Named::Klasses(&[]),
            None => {
                return Err(Refusal::BadArgument {
                    what: "klasses".into(),
                    why: "must name the functions to take, unless the URL has all=true: a WorkKit schedule may \
                          have jobs that only another listener can run"
                        .into(),
                }
                .into());
            }
        };
        let wanted = Wanted { named, literals: self.options.literals };
        let (count, queues) = (pop.count.get(), pop.queues.len());
        let first = pop.order.turn(queues);
        let (mut jobs, mut next, mut turn) = (Vec::new(), None, first);
        for queue in &pop.queues {
            self.enter(queue)?;
            self.recover(queue, now).await?;
        }
        let taken = async {
            if pop.order == PopOrder::Strict {
                for queue in &pop.queues {
                    next = earlier(next, self.take(queue, pop, wanted, count, now, &mut jobs).await?);
                }
                return Ok(());
            }
            // One from each schedule in turn. Jobs have no priorities, so that order by priority is the same.
            let mut empty = 0;
            while jobs.len() < count && empty < queues {
                let (before, at) = (jobs.len(), before_and_next(&mut turn, queues));
                let one = (before + 1).min(count);
                next = earlier(next, self.take(&pop.queues[at], pop, wanted, one, now, &mut jobs).await?);
                empty = if jobs.len() == before { empty + 1 } else { 0 };
            }
            Ok(())
        };
        let taken: Result<(), CallError> = taken.await;
        match taken {
            // What was claimed goes to the caller. The trouble shows again at the next call.
            Err(_) if !jobs.is_empty() => {}
            other => other?,
        }
        let turn = if pop.order == PopOrder::Strict { 0 } else { turn };
        Ok((PopReply { jobs, turn }, next.map(cron::time_of)))
    }

    /// Claims due jobs of one schedule until there are `count`. Returns the score of the first entry that is
    /// not due.
    async fn take(
        &self,
        schedule: &QueueName,
        pop: &Pop,
        wanted: Wanted<'_>,
        count: usize,
        now: Timestamp,
        jobs: &mut Vec<Popped>,
    ) -> Result<Option<f64>, CallError> {
        let (mut offset, mut size) = (0, PAGE.0);
        while jobs.len() < count {
            let page = self.page(schedule, offset, size, now).await?;
            let mut moved = 0;
            for due in page.due {
                let Some(klass) = wanted.klass_of(&due.job) else { continue };
                if jobs.len() >= count {
                    return Ok(None);
                }
                match self.claim(schedule, pop, due, klass, now).await? {
                    Claim::Claimed(popped) => {
                        jobs.push(*popped);
                        moved += 1;
                    }
                    Claim::Skipped => moved += 1,
                    Claim::Lost => {}
                }
            }
            if page.next.is_some() || page.seen < size {
                return Ok(page.next);
            }
            // Entries that were claimed have left the page, so that others have moved up.
            offset += page.seen - page.removed - moved;
            size = (size * 2).min(PAGE.1);
        }
        Ok(None)
    }

    /// Reads entries by rank. Those that cannot be read are reported and stay, those without a job are
    /// removed.
    async fn page(
        &self,
        schedule: &QueueName,
        offset: usize,
        size: usize,
        now: Timestamp,
    ) -> Result<EntryPage, CallError> {
        let keys = Keys::of(schedule.as_str());
        let mut range = cmd("ZRANGE");
        range.arg(&keys.next).arg(offset).arg(offset + size - 1).arg("WITHSCORES");
        let found: Vec<(Vec<u8>, String)> = self.ask(&range).await?;
        let (seen, mut next, mut entries) = (found.len(), None, Vec::new());
        for (entry, score) in found {
            let at: f64 = score.parse().unwrap_or(f64::INFINITY);
            if at > cron::milliseconds(now) as f64 {
                next = Some(at);
                break;
            }
            let text = String::from_utf8_lossy(&entry);
            match std::str::from_utf8(&entry).ok().and_then(id_in) {
                Some(id) => entries.push((id, text.into_owned(), score)),
                None => {
                    let name: String = text.chars().take(100).collect();
                    self.park(schedule, &name, "the entry is no JSON object with an id", now).await?;
                }
            }
        }
        if entries.is_empty() {
            return Ok(EntryPage { due: Vec::new(), seen, removed: 0, next });
        }
        let ids: Vec<&str> = entries.iter().map(|(id, ..)| id.as_str()).collect();
        let payloads: Vec<Option<Vec<u8>>> = self.ask(cmd("HMGET").arg(&keys.jobs).arg(&ids)).await?;
        let (mut due, mut removed) = (Vec::with_capacity(entries.len()), 0);
        for ((id, entry, score), payload) in entries.into_iter().zip(payloads) {
            match payload.map(|payload| StoredJob::parse(&payload, self.options.order)) {
                Some(Ok(job)) => due.push(DueJob { id, entry, score, job }),
                Some(Err(reason)) => self.park(schedule, &id, &reason, now).await?,
                None => removed += usize::from(self.drop_entry(schedule, &id, &entry, now).await?),
            }
        }
        Ok(EntryPage { due, seen, removed, next })
    }

    /// Notes why a job cannot be run. Its entry stays: another listener may know better.
    async fn park(
        &self,
        schedule: &QueueName,
        id: &str,
        reason: &str,
        now: Timestamp,
    ) -> Result<(), CallError> {
        let mut note = cmd("HSETNX");
        note.arg(Keys::of(schedule.as_str()).dead).arg(id).arg(dead_record(reason, now, None));
        if self.ask::<i64>(&note).await? == 1 {
            tracing::warn!(%schedule, id, reason, "a job cannot be run: it is left where it is");
        }
        Ok(())
    }

    async fn claim(
        &self,
        schedule: &QueueName,
        pop: &Pop,
        due: DueJob,
        klass: Klass,
        now: Timestamp,
    ) -> Result<Claim, CallError> {
        let DueJob { id, entry, score, job } = due;
        let (keys, options) = (Keys::of(schedule.as_str()), &self.options);
        let run: f64 = score.parse().unwrap_or_default();
        let next = cron::next_run(&job.schedule, run, now, options.catch_up);
        let (token, expires) = (new_token(), now + Seconds::from(options.lease));
        let text = |time: Timestamp| cron::milliseconds(time).to_string();
        let next = next.map(text).unwrap_or_default();
        let record = AttemptRecord {
            worker: pop.worker.to_string(),
            entry: entry.clone(),
            run: score.clone(),
            next: next.clone(),
            at: cron::milliseconds(now),
        };
        let record = serde_json::to_string(&record).expect("texts and numbers are JSON");
        let overlap = if options.no_overlap { text(now) } else { String::new() };
        let name = name_of(&id, token);
        let all = [keys.jobs.as_str(), &keys.next, &keys.inflight, &keys.owner, SCHEDULES];
        let expires_text = text(expires);
        let arguments =
            [&id, &entry, &score, &next, &name, &expires_text, &record, &overlap, schedule.as_str()];
        match self.run(&script::CLAIM, &all, &arguments).await? {
            1 => {}
            2 => return Ok(Claim::Skipped),
            _ => return Ok(Claim::Lost),
        }
        let (retries, used) = self.retry_state(&keys, &id).await?;
        let lock = Lock { worker: pop.worker.clone(), token, expires };
        let Ok(jid) = geartrain_core::Jid::new(&id) else { return Ok(Claim::Lost) };
        let whole = pop.whole.then(|| {
            Box::new(super::read::job_of(
                schedule,
                &jid,
                &job,
                super::read::running(lock.clone()),
                (retries, used),
            ))
        });
        Ok(Claim::Claimed(Box::new(Popped {
            jid,
            queue: schedule.clone(),
            klass,
            payload: if job.klass().is_some() { job.payload() } else { job.literal_payload() },
            priority: Priority::ZERO,
            retries,
            remaining: i64::from(retries) - i64::from(used),
            lock,
            details: None,
            job: whole,
        })))
    }

    /// How often a job may be retried, and how often it was.
    pub(super) async fn retry_state(&self, keys: &Keys, id: &str) -> Result<(u32, u32), CallError> {
        let state: Option<String> = self.ask(cmd("HGET").arg(&keys.retry).arg(id)).await?;
        Ok(self.retries_in(state.as_deref()))
    }

    /// Removes an entry that has no job.
    pub(super) async fn drop_entry(
        &self,
        schedule: &QueueName,
        id: &str,
        entry: &str,
        now: Timestamp,
    ) -> Result<bool, CallError> {
        let (keys, reason) =
            (Keys::of(schedule.as_str()), dead_record("there is no job with this id", now, None));
        let all = [keys.jobs.as_str(), &keys.next, &keys.dead];
        let is_removed = self.run(&script::DROP, &all, &[id, entry, &reason]).await? == 1;
        if is_removed {
            tracing::warn!(%schedule, id, "removed an entry without a job");
        }
        Ok(is_removed)
    }

    /// A job's retries and how many of them are used, as stored.
    pub(super) fn retries_in(&self, state: Option<&str>) -> (u32, u32) {
        let numbers = |state: &str| {
            let (retries, used) = state.split_once(' ')?;
            Some((retries.parse().ok()?, used.parse().ok()?))
        };
        state.and_then(numbers).unwrap_or((self.options.retries, 0))
    }

    /// Jobs of named functions that are due, without claiming them.
    pub(super) async fn due(
        &self,
        schedule: &QueueName,
        count: usize,
        now: Timestamp,
    ) -> Result<Vec<DueJob>, CallError> {
        let (mut found, mut offset) = (Vec::new(), 0);
        while found.len() < count {
            let page = self.page(schedule, offset, PAGE.1, now).await?;
            let is_over = page.next.is_some() || page.seen < PAGE.1;
            offset += page.seen - page.removed;
            found.extend(page.due);
            if is_over {
                break;
            }
        }
        found.truncate(count);
        Ok(found)
    }
}

enum Claim {
    Claimed(Box<Popped>),
    /// An earlier run goes on, and this one was left out.
    Skipped,
    /// Another listener was faster.
    Lost,
}

/// The value of a dead job: when and why, and its payload if it is not in the schedule any more.
pub(super) fn dead_record(reason: &str, now: Timestamp, payload: Option<&str>) -> String {
    serde_json::json!({ "at": cron::milliseconds(now), "reason": reason, "payload": payload }).to_string()
}

fn before_and_next(turn: &mut usize, queues: usize) -> usize {
    let at = *turn % queues;
    *turn = (at + 1) % queues;
    at
}

fn earlier(one: Option<f64>, other: Option<f64>) -> Option<f64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}
