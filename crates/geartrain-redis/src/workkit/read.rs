//! Looking jobs up, listing and counting them.

use std::collections::BTreeMap;

use geartrain_core::{
    Failed, Failure, Group, Jid, Job, JobState, Klass, Listed, Listing, Lock, Page, Payload, Priority,
    QlessView, QueueCounts, QueueName, Refusal, StatusReply, Timestamp, Token, WorkerName,
};
use redis::cmd;

use super::attempt::parts_of;
use super::cron;
use super::keys::{Keys, entry_of, id_in};
use super::payload::StoredJob;
use super::session::Session;
use super::set_aside::transfer_group;
use crate::layout::CallError;

/// The group under which jobs are listed that cannot be run or have failed for good.
const DEAD: &str = "workkit-dead";
/// Stands for a name that is not known.
const UNKNOWN: &str = "?";

/// The value of a dead job.
#[derive(serde::Deserialize, Default)]
struct DeadRecord {
    #[serde(default)]
    at: f64,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    payload: Option<String>,
}

impl Session {
    /// The schedule that has a job, if any. Refuses if several have it.
    pub(super) async fn locate(&self, jid: &Jid) -> Result<Option<QueueName>, CallError> {
        let known = self.known().await?;
        let mut found = self.having(jid, known.iter()).await?;
        if found.is_empty() {
            let all = self.schedules().await?;
            found = self.having(jid, all.difference(&known)).await?;
        }
        match &found[..] {
            [] => Ok(None),
            [one] => Ok(Some(one.clone())),
            [one, other, ..] => Err(Refusal::BadArgument {
                what: "jid".into(),
                why: format!(
                    "must be in one schedule: {jid} is in {one} and in {other}, choose with ?schedule= in the URL"
                ),
            }
            .into()),
        }
    }

    async fn having(
        &self,
        jid: &Jid,
        schedules: impl Iterator<Item = &QueueName>,
    ) -> Result<Vec<QueueName>, CallError> {
        let (id, mut found) = (jid.to_string(), Vec::new());
        for schedule in schedules {
            let keys = Keys::of(schedule.as_str());
            let is_there = match self.ask(cmd("HEXISTS").arg(&keys.jobs).arg(&id)).await {
                // Its keys belong to something else.
                Err(CallError::Refused(_)) => false,
                other => other?,
            };
            if is_there
                || self.ask(cmd("HEXISTS").arg(&keys.dead).arg(&id)).await?
                || self.ask(cmd("HEXISTS").arg(&keys.moving).arg(&id)).await?
            {
                found.push(schedule.clone());
            }
        }
        Ok(found)
    }

    /// Looks up a job in whichever schedule has it.
    pub(super) async fn find(&self, jid: &Jid, now: Timestamp) -> Result<Option<Job>, CallError> {
        match self.locate(jid).await? {
            Some(schedule) => self.get(&schedule, jid, now).await,
            None => Ok(None),
        }
    }

    /// The entry of a job and its score, if it has one.
    pub(super) async fn entry(&self, keys: &Keys, id: &str) -> Result<(String, Option<f64>), CallError> {
        let entry = entry_of(id);
        let score: Option<f64> = self.ask(cmd("ZSCORE").arg(&keys.next).arg(&entry)).await?;
        if score.is_some() || !id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return Ok((entry, score));
        }
        // Another implementation may spell it differently.
        let mut cursor = "0".to_owned();
        loop {
            let mut scan = cmd("ZSCAN");
            scan.arg(&keys.next).arg(&cursor).arg("MATCH").arg(format!("*{id}*")).arg("COUNT").arg(1_000);
            let (next, found): (String, Vec<(String, f64)>) = self.ask(&scan).await?;
            if let Some((other, score)) =
                found.into_iter().find(|(other, _)| id_in(other).as_deref() == Some(id))
            {
                return Ok((other, Some(score)));
            }
            cursor = next;
            if cursor == "0" {
                return Ok((entry, None));
            }
        }
    }

    async fn get(&self, schedule: &QueueName, jid: &Jid, now: Timestamp) -> Result<Option<Job>, CallError> {
        let (keys, id) = (Keys::of(schedule.as_str()), jid.to_string());
        let payload: Option<Vec<u8>> = self.ask(cmd("HGET").arg(&keys.jobs).arg(&id)).await?;
        let Some(payload) = payload else { return self.dead_job(schedule, &keys, jid).await };
        let retries = self.retry_state(&keys, &id).await?;
        let job = match StoredJob::parse(&payload, self.options.order) {
            Ok(job) => job,
            Err(reason) => {
                let failure = failure(&reason, now);
                return Ok(Some(damaged(schedule, jid, Payload::from(payload), failure)));
            }
        };
        let (_, score) = self.entry(&keys, &id).await?;
        let attempts = self.attempts(&keys, &id).await?;
        let state = match attempts.first() {
            Some((name, record)) => {
                let deadline: Option<f64> = self.ask(cmd("ZSCORE").arg(&keys.inflight).arg(name)).await?;
                let worker = WorkerName::new(&record.worker).unwrap_or_else(|_| unknown_worker());
                let token = parts_of(name).map_or(Token::new(0), |(_, token)| token);
                running(Lock { worker, token, expires: cron::time_of(deadline.unwrap_or_default()) })
            }
            None => match score {
                Some(score) if cron::time_of(score) > now => {
                    JobState::Scheduled { due: cron::time_of(score) }
                }
                Some(_) => JobState::Waiting,
                // Another listener has taken it, or had: which of the two cannot be told.
                None => running(Lock { worker: unknown_worker(), token: Token::new(0), expires: now }),
            },
        };
        Ok(Some(job_of(schedule, jid, &job, state, retries)))
    }

    async fn dead_job(&self, schedule: &QueueName, keys: &Keys, jid: &Jid) -> Result<Option<Job>, CallError> {
        if let Some(aside) = self.aside(keys, &jid.to_string()).await? {
            let failure = aside.failure();
            return Ok(Some(match StoredJob::parse(&aside.payload, self.options.order) {
                Ok(job) => job_of(schedule, jid, &job, JobState::Failed { failure }, (0, 0)),
                Err(_) => damaged(schedule, jid, aside.payload.into(), failure),
            }));
        }
        let record: Option<String> = self.ask(cmd("HGET").arg(&keys.dead).arg(jid.to_string())).await?;
        let Some(record) = record else { return Ok(None) };
        let record: DeadRecord = serde_json::from_str(&record).unwrap_or_default();
        let failure = failure(&record.reason, cron::time_of(record.at));
        let payload = record.payload.unwrap_or_default();
        Ok(Some(match StoredJob::parse(payload.as_bytes(), self.options.order) {
            Ok(job) => job_of(schedule, jid, &job, JobState::Failed { failure }, (0, 0)),
            Err(_) => damaged(schedule, jid, payload.into(), failure),
        }))
    }

    pub(super) async fn status(&self, jid: &Jid, now: Timestamp) -> Result<Option<StatusReply>, CallError> {
        let job = self.find(jid, now).await?.filter(|job| !matches!(job.state, JobState::Failed { .. }));
        let Some(Job { jid, queue: Some(queue), state, .. }) = job else { return Ok(None) };
        Ok(Some(StatusReply { jid, queue, state: state.name(), progress: None, submissions: 1, attached: 0 }))
    }

    /// Jobs that a pop may hand out.
    pub(super) async fn peek(
        &self,
        schedule: &QueueName,
        count: usize,
        now: Timestamp,
    ) -> Result<Vec<Job>, CallError> {
        self.enter(schedule)?;
        let mut jobs = Vec::new();
        for due in self.due(schedule, count, now).await? {
            let Ok(jid) = Jid::new(&due.id) else { continue };
            let retries = self.retry_state(&Keys::of(schedule.as_str()), &due.id).await?;
            jobs.push(job_of(schedule, &jid, &due.job, JobState::Waiting, retries));
        }
        Ok(jobs)
    }

    pub(super) async fn jobs(
        &self,
        which: &Listing,
        page: Page,
        now: Timestamp,
    ) -> Result<Vec<Jid>, CallError> {
        let now = cron::milliseconds(now);
        let after = format!("({now}");
        let (schedule, from, to) = match which {
            Listing::Waiting(schedule) => (schedule, "-inf", now.to_string()),
            Listing::Scheduled(schedule) => (schedule, after.as_str(), "+inf".to_owned()),
            Listing::Running(schedule) => (schedule, after.as_str(), "+inf".to_owned()),
            Listing::Stalled(schedule) => (schedule, "-inf", now.to_string()),
            // A complete job leaves the schedule, none waits for others, and recurring ones are periodic
            // ones.
            _ => return Ok(Vec::new()),
        };
        self.enter(schedule)?;
        let keys = Keys::of(schedule.as_str());
        let is_running = matches!(which, Listing::Running(_) | Listing::Stalled(_));
        let key = if is_running { &keys.inflight } else { &keys.next };
        let mut range = cmd("ZRANGEBYSCORE");
        range.arg(key).arg(from).arg(to).arg("LIMIT").arg(page.offset).arg(page.count.get());
        let found: Vec<Vec<u8>> = self.ask(&range).await?;
        let id = |name: &str| {
            if is_running { parts_of(name).map(|(id, _)| id.to_owned()) } else { id_in(name) }
        };
        let found = found.into_iter().filter_map(|name| id(std::str::from_utf8(&name).ok()?));
        Ok(found.filter_map(|id| Jid::new(id).ok()).collect())
    }

    /// Recurring jobs with their ids and scores, the next one first.
    pub(super) async fn recurring_jobs(
        &self,
        schedule: &QueueName,
    ) -> Result<Vec<(String, StoredJob, f64)>, CallError> {
        self.enter(schedule)?;
        let keys = Keys::of(schedule.as_str());
        let entries: Vec<(Vec<u8>, f64)> =
            self.ask(cmd("ZRANGE").arg(&keys.next).arg(0).arg(-1).arg("WITHSCORES")).await?;
        let id = |entry: &[u8]| id_in(std::str::from_utf8(entry).ok()?);
        let entries: Vec<(String, f64)> =
            entries.into_iter().filter_map(|(entry, score)| Some((id(&entry)?, score))).collect();
        let mut jobs = Vec::new();
        for part in entries.chunks(1_000) {
            let ids: Vec<&str> = part.iter().map(|(id, _)| id.as_str()).collect();
            let payloads: Vec<Option<Vec<u8>>> = self.ask(cmd("HMGET").arg(&keys.jobs).arg(&ids)).await?;
            for ((id, score), payload) in part.iter().zip(payloads) {
                let job = payload.and_then(|payload| StoredJob::parse(&payload, self.options.order).ok());
                jobs.extend(job.filter(StoredJob::is_recurring).map(|job| (id.clone(), job, *score)));
            }
        }
        Ok(jobs)
    }

    pub(super) async fn queues(
        &self,
        only: Option<QueueName>,
        now: Timestamp,
    ) -> Result<Vec<QueueCounts>, CallError> {
        let schedules = match only {
            Some(schedule) => {
                self.enter(&schedule)?;
                vec![schedule]
            }
            None => self.schedules().await?.into_iter().collect(),
        };
        let mut counts = Vec::with_capacity(schedules.len());
        for name in schedules {
            let (keys, now) = (Keys::of(name.as_str()), cron::milliseconds(now));
            let past = |key: &str| cmd("ZCOUNT").arg(key).arg("-inf").arg(now).take();
            let all = |key: &str| cmd("ZCARD").arg(key).take();
            let waiting: u64 = self.ask(&past(&keys.next)).await?;
            let entries: u64 = self.ask(&all(&keys.next)).await?;
            let stalled: u64 = self.ask(&past(&keys.inflight)).await?;
            let attempts: u64 = self.ask(&all(&keys.inflight)).await?;
            counts.push(QueueCounts {
                name,
                waiting,
                running: attempts.saturating_sub(stalled),
                stalled,
                scheduled: entries.saturating_sub(waiting),
                depends: 0,
                recurring: 0,
                paused: false,
            });
        }
        Ok(counts)
    }

    /// Entries and runs in progress.
    pub(super) async fn length(&self, schedule: &QueueName) -> Result<u64, CallError> {
        self.enter(schedule)?;
        let keys = Keys::of(schedule.as_str());
        let entries: u64 = self.ask(cmd("ZCARD").arg(&keys.next)).await?;
        Ok(entries + self.ask::<u64>(cmd("ZCARD").arg(&keys.inflight)).await?)
    }

    /// Counts the jobs that cannot be run or have failed for good, and those that are set aside.
    pub(super) async fn failures(&self) -> Result<BTreeMap<Group, u64>, CallError> {
        let mut groups = BTreeMap::new();
        for schedule in self.known().await? {
            let keys = Keys::of(schedule.as_str());
            for (group, key) in [(dead_group(), &keys.dead), (transfer_group(), &keys.moving)] {
                let count: u64 = self.ask(cmd("HLEN").arg(key)).await?;
                if count > 0 {
                    *groups.entry(group).or_default() += count;
                }
            }
        }
        Ok(groups)
    }

    pub(super) async fn failed(&self, failed: &Failed) -> Result<Listed, CallError> {
        let mut ids: Vec<String> = Vec::new();
        let key: Option<fn(Keys) -> String> = match &failed.group {
            group if *group == dead_group() => Some(|keys| keys.dead),
            group if *group == transfer_group() => Some(|keys| keys.moving),
            _ => None,
        };
        if let Some(key) = key {
            for schedule in self.known().await? {
                let found: Vec<String> = self.ask(cmd("HKEYS").arg(key(Keys::of(schedule.as_str())))).await?;
                ids.extend(found);
            }
        }
        let total = ids.len() as u64;
        let page = ids.into_iter().skip(failed.page.offset).take(failed.page.count.get());
        Ok(Listed { total, jids: page.filter_map(|id| Jid::new(id).ok()).collect() })
    }
}

fn dead_group() -> Group {
    Group::new(DEAD).expect("it is a name")
}

fn unknown_worker() -> WorkerName {
    WorkerName::new(UNKNOWN).expect("it is a name")
}

fn failure(reason: &str, when: Timestamp) -> Failure {
    Failure { group: dead_group(), message: reason.to_owned(), when, worker: None }
}

pub(super) fn running(lock: Lock) -> JobState {
    JobState::Running { lock }
}

/// A job whose payload cannot be read.
fn damaged(schedule: &QueueName, jid: &Jid, payload: Payload, failure: Failure) -> Job {
    let klass = Klass::new(UNKNOWN).expect("it is a name");
    view(schedule, jid, klass, payload, JobState::Failed { failure }, (0, 0))
}

pub(super) fn job_of(
    schedule: &QueueName,
    jid: &Jid,
    job: &StoredJob,
    state: JobState,
    retries: (u32, u32),
) -> Job {
    view(schedule, jid, job.shown_klass(), job.payload(), state, retries)
}

fn view(
    schedule: &QueueName,
    jid: &Jid,
    klass: Klass,
    payload: Payload,
    state: JobState,
    (retries, used): (u32, u32),
) -> Job {
    let (worker, expires) = match &state {
        JobState::Running { lock } => (Some(lock.worker.clone()), lock.expires),
        _ => (None, Timestamp::ZERO),
    };
    Job {
        jid: jid.clone(),
        klass,
        queue: Some(schedule.clone()),
        qless: QlessView { state: state.name().as_str(), worker, expires },
        state,
        priority: Priority::ZERO,
        retries,
        remaining: i64::from(retries) - i64::from(used),
        payload,
        tags: Vec::new(),
        history: Vec::new(),
        past_failure: None,
        spawned_from: None,
        dependents: Vec::new(),
        tracked: false,
        details: None,
        attempts: Vec::new(),
    }
}
