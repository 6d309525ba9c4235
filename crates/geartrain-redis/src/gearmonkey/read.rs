//! Looking jobs up, listing and counting them.

use std::collections::{BTreeMap, HashMap};

use futures_util::{StreamExt, TryStreamExt, stream};
use geartrain_core::{
    Failed, Failure, Group, Jid, Job, JobEnding, JobResult, JobState, Klass, Listed, Listing, Lock, Page,
    Payload, Portion, Priority, PriorityCountsReply, Progressed, QlessView, QueueCounts, QueueName,
    RESULT_TTL_DEFAULT, Refusal, StatusReply, StoredResult, Timestamp, Token, WorkerName,
};
use redis::cmd;

use super::keys::{JobName, Keys, jid_of, valid_id};
use super::pop::priority_of;
use super::session::{Session, from_milliseconds, milliseconds, whole_seconds};
use crate::layout::{self, CallError, transfer_group};

/// Stands for a name that is not known.
const UNKNOWN: &str = "?";
/// The group of a failure whose worker did not name one.
const NO_GROUP: &str = "gearmonkey-error";
/// The reason of a cancelled job.
const CANCELLED: &str = "cancelled";
/// Jobs that a search reads at once.
const READS: usize = 64;

/// The fields of a job's hash.
#[derive(Debug, Clone, Default)]
pub(super) struct Fields {
    pub(super) status: String,
    pub(super) input: Vec<u8>,
    pub(super) output: Vec<u8>,
    pub(super) progress: Option<Progressed>,
    pub(super) reason: Option<String>,
    pub(super) retries: u32,
    /// How many retries were used.
    pub(super) used: u32,
}

impl Fields {
    pub(super) fn remaining(&self) -> i64 {
        i64::from(self.retries) - i64::from(self.used)
    }

    /// How the job ended, if it has.
    pub(super) fn ending(&self) -> Option<(JobEnding, JobResult)> {
        let result = |code| JobResult { code, bytes: Payload::from(self.output.clone()) };
        match self.status.as_str() {
            "success" => Some((JobEnding::Completed, result(0))),
            "error" if self.reason.as_deref() == Some(CANCELLED) => Some((JobEnding::Canceled, result(1))),
            "error" => {
                let Failure { group, message, .. } = self.failure(Timestamp::ZERO);
                Some((JobEnding::Failed { group, message }, result(1)))
            }
            _ => None,
        }
    }

    fn failure(&self, when: Timestamp) -> Failure {
        let group = self.reason.as_deref().and_then(|reason| Group::new(reason).ok());
        let group = group.unwrap_or_else(|| Group::new(NO_GROUP).expect("it is a name"));
        Failure { group, message: String::from_utf8_lossy(&self.output).into_owned(), when, worker: None }
    }
}

/// A job that a worker of ours has.
pub(super) struct Attempt {
    pub(super) id: String,
    pub(super) lock: Lock,
    /// The queue that it came from.
    pub(super) from: String,
}

impl Session {
    /// The fields of a job; none if it does not exist.
    pub(super) async fn fields(&self, job: &JobName) -> Result<Option<Fields>, CallError> {
        let key = Keys::of(job.function.as_str()).job_of(&job.id);
        let mut found: HashMap<Vec<u8>, Vec<u8>> = self.ask(&key, cmd("HGETALL").arg(&key)).await?;
        if found.is_empty() {
            return Ok(None);
        }
        let missing = |field: &str| Refusal::BadArgument {
            what: format!("key {key}").into(),
            why: format!("is no job: it has no field {field}"),
        };
        let mut take = |field: &str| found.remove(field.as_bytes());
        let status = take("status").ok_or_else(|| missing("status"))?;
        let status = String::from_utf8_lossy(&status).into_owned();
        if !["idle", "busy", "success", "error"].contains(&status.as_str()) {
            let why = format!("has the status {status:?}, which does not exist");
            return Err(Refusal::BadArgument { what: format!("key {key}").into(), why }.into());
        }
        let input = take("input").ok_or_else(|| missing("input"))?;
        let text = |bytes: Option<Vec<u8>>| bytes.and_then(|bytes| String::from_utf8(bytes).ok());
        let progress = progress(text(take("status:dividend")), text(take("status:divisor")));
        let number = |bytes: Option<Vec<u8>>| text(bytes).and_then(|text| text.parse().ok());
        Ok(Some(Fields {
            status,
            input,
            output: take("output").unwrap_or_default(),
            progress,
            retries: number(take("gt:retries")).unwrap_or(self.options.retries),
            used: number(take("gt:attempts")).unwrap_or_default(),
            reason: text(take("gt:reason")),
        }))
    }

    /// The worker, the lease and the queue of origin of a job that a worker of ours has.
    async fn attempt(&self, job: &JobName) -> Result<Option<Attempt>, CallError> {
        let keys = Keys::of(job.function.as_str());
        let record: Option<String> =
            self.ask(keys.inflight(), cmd("HGET").arg(keys.inflight()).arg(&job.id)).await?;
        let deadline: Option<f64> =
            self.ask(keys.leases(), cmd("ZSCORE").arg(keys.leases()).arg(&job.id)).await?;
        Ok(record.zip(deadline).and_then(|(record, deadline)| attempt_of(job.id.clone(), &record, deadline)))
    }

    /// All jobs of a function that workers of ours have.
    pub(super) async fn attempts(&self, queue: &QueueName) -> Result<Vec<Attempt>, CallError> {
        let keys = Keys::of(queue.as_str());
        let mut records: HashMap<String, String> =
            self.ask(keys.inflight(), cmd("HGETALL").arg(keys.inflight())).await?;
        let range = cmd("ZRANGE").arg(keys.leases()).arg(0).arg(-1).arg("WITHSCORES").take();
        let leases: Vec<(String, f64)> = self.ask(keys.leases(), &range).await?;
        let of = |(id, deadline): (String, f64)| {
            let record = records.remove(&id)?;
            attempt_of(id, &record, deadline)
        };
        Ok(leases.into_iter().filter_map(of).collect())
    }

    /// Looks up a job.
    pub(super) async fn find(&self, jid: &Jid, now: Timestamp) -> Result<Option<Job>, CallError> {
        let job = JobName::of(jid)?;
        let Some(fields) = self.fields(&job).await? else { return Ok(None) };
        let keys = Keys::of(job.function.as_str());
        let (state, priority) = match fields.status.as_str() {
            "idle" if let Some(record) = self.aside(&keys, &job.id).await? => {
                (JobState::Failed { failure: record.failure() }, Priority::ZERO)
            }
            "idle" => {
                let key = keys.scheduled();
                let due: Option<f64> = self.ask(key, cmd("ZSCORE").arg(key).arg(&job.id)).await?;
                match due.and_then(|due| Timestamp::new(due).ok()) {
                    Some(due) if due > now => (JobState::Scheduled { due }, Priority::ZERO),
                    Some(_) => (JobState::Waiting, Priority::ZERO),
                    None => (JobState::Waiting, self.queued_priority(&keys, &job.id).await?),
                }
            }
            "busy" => match self.attempt(&job).await? {
                Some(attempt) => (JobState::Running { lock: attempt.lock }, priority_of(&attempt.from)),
                // Another implementation has it, or lost it: which of the two cannot be told.
                None => {
                    let lock = Lock { worker: unknown_worker(), token: Token::new(0), expires: now };
                    (JobState::Running { lock }, Priority::ZERO)
                }
            },
            status => {
                let (ended, _) = self.ended(&keys.job_of(&job.id), now).await?;
                let state = match status {
                    "success" => JobState::Complete { at: ended },
                    _ => JobState::Failed { failure: fields.failure(ended) },
                };
                (state, Priority::ZERO)
            }
        };
        Ok(Some(view(&job.function, jid, &fields, state, priority)))
    }

    async fn queued_priority(&self, keys: &Keys, id: &str) -> Result<Priority, CallError> {
        for (list, priority) in keys.lists().iter().zip(["high", "normal", "low"]) {
            if self.ask::<Option<i64>>(list, cmd("LPOS").arg(list).arg(id)).await?.is_some() {
                return Ok(priority_of(priority));
            }
        }
        Ok(Priority::ZERO)
    }

    /// When a job ended, and until when it is kept: by its expiry.
    async fn ended(&self, key: &str, now: Timestamp) -> Result<(Timestamp, Timestamp), CallError> {
        let left: i64 = self.ask(key, cmd("PTTL").arg(key)).await?;
        let until = if left >= 0 {
            now + geartrain_core::Seconds::new(left as f64 / 1_000.0).unwrap_or_default()
        } else {
            now + RESULT_TTL_DEFAULT
        };
        Ok((until - RESULT_TTL_DEFAULT, until))
    }

    /// The result of a job that has ended.
    pub(super) async fn result(&self, jid: &Jid, now: Timestamp) -> Result<Option<StoredResult>, CallError> {
        let job = JobName::of(jid)?;
        let Some((ending, result)) = self.fields(&job).await?.and_then(|fields| fields.ending()) else {
            return Ok(None);
        };
        let key = Keys::of(job.function.as_str()).job_of(&job.id);
        let (ended, until) = self.ended(&key, now).await?;
        Ok(Some(StoredResult { jid: jid.clone(), ending, result, ended, until }))
    }

    pub(super) async fn status(&self, jid: &Jid, now: Timestamp) -> Result<Option<StatusReply>, CallError> {
        let Some(job) = self.find(jid, now).await? else { return Ok(None) };
        let (Some(queue), state) = (job.queue, job.state.name()) else { return Ok(None) };
        if matches!(job.state, JobState::Complete { .. } | JobState::Failed { .. }) {
            return Ok(None);
        }
        let progress = job.details.and_then(|details| details.progress);
        let attached = self.streams.attached(jid);
        Ok(Some(StatusReply { jid: job.jid, queue, state, progress, submissions: 1, attached }))
    }

    /// Jobs that a pop would hand out, the next one first.
    pub(super) async fn peek(
        &self,
        queue: &QueueName,
        count: usize,
        now: Timestamp,
    ) -> Result<Vec<Job>, CallError> {
        let ids = self.waiting(queue, 0, count, now).await?;
        self.find_all(queue, ids, now).await
    }

    async fn find_all(
        &self,
        queue: &QueueName,
        ids: Vec<String>,
        now: Timestamp,
    ) -> Result<Vec<Job>, CallError> {
        let jids: Vec<Jid> = ids.iter().filter_map(|id| jid_of(queue, valid_id(id)?)).collect();
        let found = stream::iter(jids).map(|jid| async move { self.find(&jid, now).await });
        let found: Vec<Option<Job>> = found.buffered(READS).try_collect().await?;
        Ok(found.into_iter().flatten().collect())
    }

    /// The IDs of jobs that may be taken now, in the order in which they are.
    async fn waiting(
        &self,
        queue: &QueueName,
        offset: usize,
        count: usize,
        now: Timestamp,
    ) -> Result<Vec<String>, CallError> {
        let (keys, now) = (Keys::of(queue.as_str()), whole_seconds(now));
        let key = keys.scheduled();
        let due: usize = self.ask(key, cmd("ZCOUNT").arg(key).arg("-inf").arg(&now)).await?;
        let mut range = cmd("ZRANGEBYSCORE");
        range.arg(key).arg("-inf").arg(&now).arg("LIMIT").arg(offset).arg(count);
        let mut found = texts(self.ask(key, &range).await?);
        let (mut skipped, mut missing) = (offset.saturating_sub(due), count.saturating_sub(found.len()));
        for list in keys.lists() {
            let length: usize = self.ask(list, cmd("LLEN").arg(list)).await?;
            if missing == 0 || skipped >= length {
                skipped = skipped.saturating_sub(length);
                continue;
            }
            // Jobs are taken from the right.
            let (from, to) = (-((skipped + missing) as i64), -(skipped as i64) - 1);
            let page = texts(self.ask(list, cmd("LRANGE").arg(list).arg(from).arg(to)).await?);
            (skipped, missing) = (0, missing.saturating_sub(page.len()));
            found.extend(page.into_iter().rev());
        }
        Ok(found)
    }

    pub(super) async fn jobs(
        &self,
        which: &Listing,
        page: Page,
        now: Timestamp,
    ) -> Result<Vec<Jid>, CallError> {
        let (offset, count) = (page.offset, page.count.get());
        let (queue, ids) = match which {
            Listing::Waiting(queue) => (queue, self.waiting(queue, offset, count, now).await?),
            Listing::Scheduled(queue) => {
                let (keys, after) = (Keys::of(queue.as_str()), format!("({}", whole_seconds(now)));
                (queue, self.range(keys.scheduled(), &after, page).await?)
            }
            Listing::Running(queue) => {
                let (keys, after) = (Keys::of(queue.as_str()), format!("({}", milliseconds(now)));
                (queue, self.range(keys.leases(), &after, page).await?)
            }
            Listing::Stalled(queue) => {
                let stuck = self.stuck(queue, now).await?;
                (queue, stuck.into_iter().skip(offset).take(count).collect())
            }
            Listing::Complete => {
                let ended = self.search(None, "success").await?;
                return Ok(ended.iter().skip(offset).take(count).map(JobName::jid).collect());
            }
            // No job depends on others or recurs.
            _ => return Ok(Vec::new()),
        };
        Ok(ids.iter().filter_map(|id| jid_of(queue, valid_id(id)?)).collect())
    }

    async fn range(&self, key: &str, after: &str, page: Page) -> Result<Vec<String>, CallError> {
        let mut range = cmd("ZRANGEBYSCORE");
        range.arg(key).arg(after).arg("+inf").arg("LIMIT").arg(page.offset).arg(page.count.get());
        Ok(texts(self.ask(key, &range).await?))
    }

    /// Jobs that may be lost: leases that have expired, busy jobs of other implementations, and idle jobs in
    /// no queue. By a search of all jobs.
    async fn stuck(&self, queue: &QueueName, now: Timestamp) -> Result<Vec<String>, CallError> {
        let keys = Keys::of(queue.as_str());
        // The jobs are read first: one that is queued or taken meanwhile is in a queue or has a lease.
        let (busy, idle) = (self.search(Some(queue), "busy").await?, self.search(Some(queue), "idle").await?);
        let attempts = self.attempts(queue).await?;
        let mut known: std::collections::BTreeSet<String> = std::collections::BTreeSet::new();
        let key = keys.scheduled();
        known.extend(texts(self.ask(key, cmd("ZRANGE").arg(key).arg(0).arg(-1)).await?));
        for list in keys.lists() {
            known.extend(texts(self.ask(list, cmd("LRANGE").arg(list).arg(0).arg(-1)).await?));
        }
        known.extend(self.all_aside(queue).await?.into_iter().map(|(id, _)| id));
        known.extend(attempts.iter().map(|attempt| attempt.id.clone()));
        let expired = attempts.into_iter().filter(|attempt| attempt.lock.expires <= now);
        let mut stuck: Vec<String> = expired.map(|attempt| attempt.id).collect();
        let others = busy.into_iter().chain(idle).map(|job| job.id);
        stuck.extend(others.filter(|id| !known.contains(id)));
        Ok(stuck)
    }

    /// The jobs of a status, by a search of all keys, the oldest first.
    async fn search(&self, only: Option<&QueueName>, status: &str) -> Result<Vec<JobName>, CallError> {
        let escaped = |name: &str| {
            name.chars().fold(String::new(), |mut pattern, letter| {
                if "*?[]\\".contains(letter) {
                    pattern.push('\\');
                }
                pattern.push(letter);
                pattern
            })
        };
        let pattern = only.map_or("job:*".to_owned(), |only| format!("job:{}:*", escaped(only.as_str())));
        let keys = layout::keys_like(&self.shared, &pattern, "hash").await?;
        let name = |key: &[u8]| {
            let (function, id) = std::str::from_utf8(key).ok()?.strip_prefix("job:")?.rsplit_once(':')?;
            let function = QueueName::new(function).ok()?;
            let id = valid_id(id)?.to_owned();
            only.is_none_or(|only| *only == function).then_some(JobName { function, id })
        };
        let jobs: Vec<JobName> = keys.iter().filter_map(|key| name(key)).collect();
        let statuses = stream::iter(jobs).map(|job| async move {
            let key = Keys::of(job.function.as_str()).job_of(&job.id);
            let status: Option<Vec<u8>> = self.ask(&key, cmd("HGET").arg(&key).arg("status")).await?;
            Ok::<_, CallError>((job, status))
        });
        let statuses: Vec<(JobName, Option<Vec<u8>>)> = statuses.buffered(READS).try_collect().await?;
        let of = |(job, is): (JobName, Option<Vec<u8>>)| (is? == status.as_bytes()).then_some(job);
        let mut found: Vec<JobName> = statuses.into_iter().filter_map(of).collect();
        found.sort_by_cached_key(|job| (job.function.clone(), job.id.parse::<u64>().unwrap_or(u64::MAX)));
        Ok(found)
    }

    /// Jobs that ended in error, by their reasons.
    async fn failed_jobs(&self) -> Result<BTreeMap<Group, Vec<Jid>>, CallError> {
        let failed = self.search(None, "error").await?;
        let mut groups: BTreeMap<Group, Vec<Jid>> = BTreeMap::new();
        for job in failed {
            if let Some(fields) = self.fields(&job).await? {
                groups.entry(fields.failure(Timestamp::ZERO).group).or_default().push(job.jid());
            }
        }
        Ok(groups)
    }

    pub(super) async fn failures(&self) -> Result<BTreeMap<Group, u64>, CallError> {
        let mut groups: BTreeMap<Group, u64> =
            self.failed_jobs().await?.into_iter().map(|(group, jobs)| (group, jobs.len() as u64)).collect();
        let aside = self.listed_aside().await?.len() as u64;
        if aside > 0 {
            *groups.entry(transfer_group()).or_default() += aside;
        }
        Ok(groups)
    }

    pub(super) async fn failed(&self, failed: &Failed) -> Result<Listed, CallError> {
        let jids = match failed.group == transfer_group() {
            true => self.listed_aside().await?,
            false => self.failed_jobs().await?.remove(&failed.group).unwrap_or_default(),
        };
        let total = jids.len() as u64;
        let page = jids.into_iter().skip(failed.page.offset).take(failed.page.count.get());
        Ok(Listed { total, jids: page.collect() })
    }

    pub(super) async fn queues(
        &self,
        only: Option<QueueName>,
        now: Timestamp,
    ) -> Result<Vec<QueueCounts>, CallError> {
        let functions = match only {
            Some(function) => vec![function],
            None => self.functions().await?.into_iter().collect(),
        };
        let mut counts = Vec::with_capacity(functions.len());
        for name in functions {
            let keys = Keys::of(name.as_str());
            let (scheduled, leases) = (keys.scheduled(), keys.leases());
            let past = |key: &str, now: String| cmd("ZCOUNT").arg(key).arg("-inf").arg(now).take();
            let due: u64 = self.ask(scheduled, &past(scheduled, whole_seconds(now))).await?;
            let entries: u64 = self.ask(scheduled, cmd("ZCARD").arg(scheduled)).await?;
            let stalled: u64 = self.ask(leases, &past(leases, milliseconds(now))).await?;
            let attempts: u64 = self.ask(leases, cmd("ZCARD").arg(leases)).await?;
            let PriorityCountsReply { above, at, below } = self.priority_counts(&name).await?;
            counts.push(QueueCounts {
                name,
                waiting: due + above + at + below,
                running: attempts.saturating_sub(stalled),
                stalled,
                scheduled: entries.saturating_sub(due),
                depends: 0,
                recurring: 0,
                paused: false,
            });
        }
        Ok(counts)
    }

    /// Queued jobs of each priority.
    pub(super) async fn priority_counts(&self, queue: &QueueName) -> Result<PriorityCountsReply, CallError> {
        let mut lengths = Vec::with_capacity(3);
        for list in Keys::of(queue.as_str()).lists() {
            lengths.push(self.ask(list, cmd("LLEN").arg(list)).await?);
        }
        Ok(PriorityCountsReply { above: lengths[0], at: lengths[1], below: lengths[2] })
    }

    /// Queued jobs, and those that our workers have.
    pub(super) async fn length(&self, queue: &QueueName, now: Timestamp) -> Result<u64, CallError> {
        let counts = self.queues(Some(queue.clone()), now).await?;
        Ok(counts.iter().map(|it| it.waiting + it.scheduled + it.running + it.stalled).sum())
    }
}

fn texts(found: Vec<Vec<u8>>) -> Vec<String> {
    found.into_iter().map(|text| String::from_utf8_lossy(&text).into_owned()).collect()
}

fn attempt_of(id: String, record: &str, deadline: f64) -> Option<Attempt> {
    let mut parts = record.splitn(3, ' ');
    let (token, from, worker) = (parts.next()?, parts.next()?, parts.next()?);
    let worker = WorkerName::new(worker).unwrap_or_else(|_| unknown_worker());
    let lock = Lock { worker, token: Token::new(token.parse().ok()?), expires: from_milliseconds(deadline) };
    Some(Attempt { id, lock, from: from.to_owned() })
}

/// Progress as a worker noted it. Other implementations may write fractions, or anything else.
fn progress(dividend: Option<String>, divisor: Option<String>) -> Option<Progressed> {
    let (dividend, divisor) = (dividend?, divisor?);
    let portion = match (dividend.parse(), divisor.parse()) {
        (Ok(part), Ok(whole)) => (part, whole),
        _ => {
            let (part, whole): (f64, f64) = (dividend.parse().ok()?, divisor.parse().ok()?);
            ((part * 1_000.0) as u64, (whole * 1_000.0) as u64)
        }
    };
    (portion.1 > 0).then(|| Progressed { portion: Portion::from(portion), seconds_left: None })
}

pub(super) fn unknown_worker() -> WorkerName {
    WorkerName::new(UNKNOWN).expect("it is a name")
}

/// The klass of a function's jobs.
pub(super) fn klass_of(queue: &QueueName) -> Klass {
    Klass::new(queue.as_str()).expect("a queue's name is as long as a klass's")
}

pub(super) fn view(
    queue: &QueueName,
    jid: &Jid,
    fields: &Fields,
    state: JobState,
    priority: Priority,
) -> Job {
    let (worker, expires) = match &state {
        JobState::Running { lock } => (Some(lock.worker.clone()), lock.expires),
        _ => (None, Timestamp::ZERO),
    };
    let details = fields.progress.map(|progress| {
        Box::new(geartrain_core::JobDetails { progress: Some(progress), ..Default::default() })
    });
    Job {
        jid: jid.clone(),
        klass: klass_of(queue),
        queue: Some(queue.clone()),
        qless: QlessView { state: state.name().as_str(), worker, expires },
        state,
        priority,
        retries: fields.retries,
        remaining: fields.remaining(),
        payload: fields.input.clone().into(),
        tags: Vec::new(),
        history: Vec::new(),
        past_failure: None,
        spawned_from: None,
        dependents: Vec::new(),
        tracked: false,
        details,
        attempts: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_of_other_implementations_is_read_or_left_out() {
        let percent = |part: &str, whole: Option<&str>| {
            progress(Some(part.into()), whole.map(str::to_owned)).map(|it| it.portion.percent())
        };
        assert_eq!(percent("1", Some("4")), Some(25));
        assert_eq!(percent("0.5", Some("2")), Some(25));
        for bad in [None, Some("0"), Some("-1"), Some("x"), Some("NaN")] {
            assert_eq!(percent("1", bad), None, "{bad:?}");
        }
    }
}
