//! Transfer: moves jobs from one backend to another, also of another kind, so that a crash loses none.
//!
//! A job goes in three steps, each of which may be repeated: it is [set aside](crate::SetAside) at the source,
//! put at the target under its transfer id (its jid, or a unique key made of it), and removed at the source. What
//! an interrupted transfer left aside is moved first by the next one.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use geartrain::transfer::Transfer;
//! use geartrain::QueueName;
//! let (from, to) = (geartrain::connect("memory:").await?, geartrain::connect("memory:").await?);
//! from.put("mail", "welcome", "{}").await?;
//! let mut transfer = Transfer::between(from, to.clone(), "memory:b", vec![QueueName::new("mail")?]);
//! transfer.run(&mut |_| {}).await?;
//! assert_eq!(transfer.report().moved, 1);
//! assert!(to.pop("mail", "w1").await?.is_some());
//! # Ok(()) }
//! ```

mod convert;
mod graph;
mod report;
mod source;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use geartrain_core::{
    Answer, Call, Count, EndSetAside, GetMany, Jid, Job, JobState, Operation, Peek, PutReply, QueueName,
    Rate, Reply, SET_ASIDE_MAX, SetAside, Status, StatusOf, StayReason, Timestamp, TransferEnd, split_query,
};

use crate::connect::without_password;
use crate::{Client, Error, Target, connect};

pub use convert::System;
pub use report::{Report, Stay};
use source::Batch;

/// How long a transfer that follows its source waits after a pass that found nothing.
const FOLLOW_PAUSE: Duration = Duration::from_millis(200);
/// How often a transfer at a limited rate takes a step.
const STEPS_PER_SECOND: f64 = 10.0;

/// Why a transfer cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// Source and target are one queue system.
    #[error("--from and --to name the same queue system, {url}: name two")]
    Same {
        /// Its URL.
        url: String,
    },
    /// An earlier transfer to another target was interrupted.
    #[error(
        "job {jid} is set aside for a transfer to another target: finish that transfer, or return its jobs with \
         --abort and that target"
    )]
    OtherTarget {
        /// One of its jobs.
        jid: Jid,
    },
    /// Jobs cannot leave or enter this backend.
    #[error("{0}")]
    Unsupported(String),
    /// The source does not answer, or refuses.
    #[error("the source: {0}")]
    Source(#[source] Error),
    /// The target does not answer, or refuses.
    #[error("the target: {0}")]
    Target(#[source] Error),
}

/// Moves the jobs of some queues.
pub struct Transfer {
    source: Client,
    target: Client,
    from: System,
    to: System,
    /// The name of the target, which is stored with each job that is set aside.
    name: String,
    queues: Vec<QueueName>,
    rate: Option<Rate>,
    report: Report,
    /// Jobs of which it is known that they stay, for this pass.
    staying: HashSet<Jid>,
    /// Jobs that could not be put and are put back at the end of the pass, in their order.
    refused: Vec<Jid>,
    stopped: Arc<AtomicBool>,
    begun: Instant,
}

/// What identifies a queue system: its URL without password and options, but for the prefix of its keys.
fn identity(url: &str) -> String {
    let url = without_password(url);
    let (place, mut options) = split_query(&url);
    let place = place.strip_prefix("embedded:").unwrap_or(place).replace(' ', "%20");
    match options.find(|(name, _)| *name == "prefix") {
        Some((_, prefix)) => format!("{place}?prefix={prefix}"),
        None => place,
    }
}

impl Transfer {
    /// Connects to both.
    pub async fn connect(from: &str, to: &str, queues: Vec<QueueName>) -> Result<Transfer, TransferError> {
        if identity(from) == identity(to) && identity(from) != "memory:" {
            return Err(TransferError::Same { url: identity(from) });
        }
        let system = |url: &str| Target::of(url).map(|target| System::of(&target));
        let (system_from, system_to) =
            (system(from).map_err(TransferError::Source)?, system(to).map_err(TransferError::Target)?);
        if let Some(why) = system_from.cannot_leave() {
            return Err(TransferError::Unsupported(why.to_owned()));
        }
        let source = connect(from).await.map_err(TransferError::Source)?;
        let target = connect(to).await.map_err(TransferError::Target)?;
        let mut transfer = Transfer::between(source, target, &identity(to), queues);
        (transfer.from, transfer.to) = (system_from, system_to);
        Ok(transfer)
    }

    /// A transfer between two connected queue systems with the rules of geartrain. `name` identifies the target: a
    /// text without blanks.
    pub fn between(source: Client, target: Client, name: &str, queues: Vec<QueueName>) -> Transfer {
        Transfer {
            source,
            target,
            from: System::Native,
            to: System::Native,
            name: name.to_owned(),
            queues,
            rate: None,
            report: Report::default(),
            staying: HashSet::new(),
            refused: Vec::new(),
            stopped: Arc::default(),
            begun: Instant::now(),
        }
    }

    /// Moves no more jobs than this per time.
    pub fn at_rate(self, rate: Rate) -> Transfer {
        Transfer { rate: Some(rate), ..self }
    }

    /// Stops the transfer once it is true, with no job set aside.
    pub fn stop_flag(&self) -> Arc<AtomicBool> {
        self.stopped.clone()
    }

    /// What was moved so far, and what stays.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Whether the target recognises a job that it was sent before, also if that has ended.
    pub fn recognises(&self) -> bool {
        self.to.recognises()
    }

    /// Finishes what an interrupted transfer began, then moves all jobs that can be moved.
    pub async fn run(&mut self, progress: &mut dyn FnMut(&Report)) -> Result<(), TransferError> {
        self.resume(progress).await?;
        self.pass(progress).await?;
        self.count_staying().await
    }

    /// The same, and goes on with jobs that come in until [`stop_flag`](Transfer::stop_flag) is set.
    pub async fn follow(&mut self, progress: &mut dyn FnMut(&Report)) -> Result<(), TransferError> {
        self.resume(progress).await?;
        while !self.is_stopped() {
            let before = self.report.moved;
            self.staying.clear();
            self.report.stay.clear();
            self.pass(progress).await?;
            if self.report.moved == before && !self.is_stopped() {
                tokio::time::sleep(FOLLOW_PAUSE).await;
            }
        }
        self.return_refused().await?;
        self.count_staying().await
    }

    /// Puts all jobs back that are set aside, but for those that arrived at the target: these are removed.
    pub async fn abort(&mut self) -> Result<(), TransferError> {
        let (aside, recurring) = self.set_aside_before().await?;
        self.abort_recurring(recurring).await?;
        let mut parts: Vec<&[Job]> = aside.chunks(SET_ASIDE_MAX).collect();
        if self.from.has_lists() {
            // Jobs are put back in front: the last ones first.
            parts.reverse();
        }
        for jobs in parts {
            let arrived = self.arrived(jobs).await?;
            let (there, rest): (Vec<&Job>, Vec<&Job>) =
                jobs.iter().partition(|job| arrived.contains(&job.jid));
            // A job that waits for one that has arrived would find nothing to wait for here.
            let is_behind = |job: &&&Job| job.dependencies().iter().any(|on| arrived.contains(on));
            let (behind, back): (Vec<&Job>, Vec<&Job>) = rest.iter().partition(is_behind);
            for job in behind {
                self.report.stay(job, "stays set aside: a job that it depends on has arrived at the target");
            }
            let jids = |jobs: &[&Job]| jobs.iter().map(|job| job.jid.clone()).collect::<Vec<_>>();
            let (there, back) = (jids(&there), jids(&back));
            let (arrived, needed) = self.end(there, TransferEnd::Remove).await?;
            self.report_needed(needed);
            self.report.moved += arrived;
            self.report.returned += self.end(back, TransferEnd::Return).await?.0;
        }
        Ok(())
    }

    /// Which of some jobs the target has under their jids.
    async fn arrived(&self, jobs: &[Job]) -> Result<HashSet<Jid>, TransferError> {
        if self.to == System::GearMonkey {
            return self.arrived_by_key(jobs).await;
        }
        if !self.to.keeps_jids() {
            return Ok(HashSet::new());
        }
        let jids = jobs.iter().flat_map(|job| job.dependencies().iter().chain([&job.jid])).cloned().collect();
        let found = self.target.run(GetMany { jids }).await.map_err(TransferError::Target)?;
        Ok(found.into_iter().map(|job| job.jid).collect())
    }

    /// Which of some jobs the target remembers by their transfer keys.
    async fn arrived_by_key(&self, jobs: &[Job]) -> Result<HashSet<Jid>, TransferError> {
        let status = |job: &Job| {
            let of = StatusOf::Unique(job.queue.clone()?, convert::transfer_key(job)?);
            Some((job.jid.clone(), Call::from(Status { of })))
        };
        let (jids, calls): (Vec<Jid>, Vec<Call>) = jobs.iter().filter_map(status).unzip();
        let answers = self.target.batch(calls).await.map_err(TransferError::Target)?;
        let is_there = |(jid, answer)| matches!(answer, Ok(Reply::Status(Some(_)))).then_some(jid);
        Ok(jids.into_iter().zip(answers).filter_map(is_there).collect())
    }

    /// Counts what would be moved, and changes nothing.
    pub async fn dry_run(&mut self) -> Result<(), TransferError> {
        let now = self.now();
        self.recurring(true).await?;
        for queue in self.queues.clone() {
            if self.from == System::Worqr {
                let jobs = self.ask(Peek { queue, count: Count::MAX }).await?;
                self.judge(&jobs, now);
                continue;
            }
            let mut listing = source::Listing::new(queue, self.from);
            while let Some(jids) = listing.page(&self.source, &HashSet::new()).await? {
                listing.skip(jids.len());
                let jids = jids.into_iter().filter(|jid| !self.staying.contains(jid)).collect();
                let jobs = self.ask(GetMany { jids }).await?;
                self.judge(&jobs, now);
            }
        }
        self.count_staying().await
    }

    /// Counts which of some jobs would be moved.
    fn judge(&mut self, jobs: &[Job], now: Timestamp) {
        for job in jobs {
            match (convert::stays(job, self.from), convert::put_of(job, self.to, now)) {
                (Some(reason), _) => self.report.stay(job, &reason.to_string()),
                (None, Ok(_)) => self.report.would_move(job),
                (None, Err(why)) => self.report.stay(job, &why),
            }
        }
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    fn now(&self) -> Timestamp {
        self.target.backend().now().unwrap_or_else(|| {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            Timestamp::new(since.as_secs_f64()).unwrap_or_default()
        })
    }

    async fn ask<O: Operation>(&self, operation: O) -> Result<O::Reply, TransferError> {
        self.source.run(operation).await.map_err(TransferError::Source)
    }

    /// One way through all queues.
    async fn pass(&mut self, progress: &mut dyn FnMut(&Report)) -> Result<(), TransferError> {
        self.recurring(false).await?;
        for queue in self.queues.clone() {
            let mut listing = source::Listing::new(queue, self.from);
            // While a batch is put, the next one is set aside, and the one before is removed.
            let (mut to_put, mut to_remove) = (Batch::default(), Vec::new());
            loop {
                let size = self.step_size();
                let (gathered, arrived, removed) = tokio::join!(
                    self.gather(&mut listing, size),
                    self.put(&to_put),
                    self.end(std::mem::take(&mut to_remove), TransferEnd::Remove),
                );
                self.report_needed(removed?.1);
                let arrived = arrived?;
                let mut gathered = gathered?;
                self.settle(&to_put, &arrived).await?;
                to_remove =
                    arrived.into_iter().filter_map(|(jid, why)| why.is_none().then_some(jid)).collect();
                for (jid, why) in &gathered.stay {
                    self.staying.insert(jid.clone());
                    self.report.stay_as(jid, listing.queue(), why);
                }
                self.put_recurring(std::mem::take(&mut gathered.recurring)).await?;
                to_put = gathered;
                progress(&self.report);
                if to_put.is_end {
                    let (_, needed) = self.end(to_remove, TransferEnd::Remove).await?;
                    self.report_needed(needed);
                    break;
                }
                self.pause().await;
            }
        }
        self.return_refused().await
    }

    /// Puts jobs back in front of their lists.
    async fn return_refused(&mut self) -> Result<(), TransferError> {
        for jids in std::mem::take(&mut self.refused).rchunks(SET_ASIDE_MAX) {
            self.end(jids.to_vec(), TransferEnd::Return).await?;
        }
        Ok(())
    }

    /// How many jobs a step takes.
    fn step_size(&self) -> usize {
        let per_second = self.rate.map(|rate| f64::from(rate.count()) / rate.per().get());
        per_second
            .map_or(SET_ASIDE_MAX, |rate| (rate / STEPS_PER_SECOND).clamp(1.0, SET_ASIDE_MAX as f64) as usize)
    }

    /// Waits as the rate demands.
    async fn pause(&self) {
        let Some(rate) = self.rate else { return };
        let per_second = f64::from(rate.count()) / rate.per().get();
        let due = Duration::try_from_secs_f64(self.report.moved as f64 / per_second).unwrap_or_default();
        let left = due.saturating_sub(self.begun.elapsed());
        let pause = Instant::now() + left;
        while !self.is_stopped() && Instant::now() < pause {
            tokio::time::sleep(FOLLOW_PAUSE.min(pause - Instant::now())).await;
        }
    }

    /// Puts a batch at the target. Returns each job with why it could not be put.
    async fn put(&self, batch: &Batch) -> Result<Vec<(Jid, Option<String>)>, TransferError> {
        let now = self.now();
        let (mut answered, mut refused) = (Vec::with_capacity(batch.jobs.len()), HashSet::new());
        // Jobs that joined another one of their unique key at the target.
        let mut joined: HashMap<Jid, Jid> = HashMap::new();
        // A job goes only if all that it depends on have gone. Most batches are one level.
        for level in graph::levels(&batch.jobs) {
            let (mut sent, mut calls): (Vec<&Job>, Vec<Call>) = (Vec::new(), Vec::new());
            for job in level {
                if job.dependencies().iter().any(|on| refused.contains(on)) {
                    refused.insert(job.jid.clone());
                    answered.push((job.jid.clone(), Some("depends on a job that stays".to_owned())));
                    continue;
                }
                match convert::put_of(job, self.to, now) {
                    Ok(mut put) => {
                        let other = |on: &Jid| joined.get(on).unwrap_or(on).clone();
                        put.depends = put.depends.iter().map(other).collect();
                        sent.push(job);
                        calls.push(Call::from(put));
                    }
                    Err(why) => {
                        refused.insert(job.jid.clone());
                        answered.push((job.jid.clone(), Some(why)));
                    }
                }
            }
            let mut answers = Vec::with_capacity(calls.len());
            while !calls.is_empty() {
                let rest = calls.split_off(calls.len().min(SET_ASIDE_MAX));
                answers.extend(self.target.batch(calls).await.map_err(TransferError::Target)?);
                calls = rest;
            }
            let others = self.others(&sent, &answers).await?;
            for (job, answer) in sent.into_iter().zip(answers) {
                let why = match answer {
                    Ok(_) if others.contains(&job.jid) => {
                        Some("another job of the target has its id".to_owned())
                    }
                    Ok(Reply::Put(PutReply::Coalesced { jid })) => {
                        joined.insert(job.jid.clone(), jid);
                        None
                    }
                    Ok(_) => None,
                    Err(refusal) => Some(refusal.to_string()),
                };
                if why.is_some() {
                    refused.insert(job.jid.clone());
                }
                answered.push((job.jid.clone(), why));
            }
        }
        Ok(answered)
    }

    /// Jobs whose jids belong to different jobs at the target.
    async fn others(&self, sent: &[&Job], answers: &[Answer]) -> Result<HashSet<Jid>, TransferError> {
        let existing = |answer: &Answer| matches!(answer, Ok(Reply::Put(PutReply::Existing)));
        let jids: Vec<Jid> = sent
            .iter()
            .zip(answers)
            .filter(|(_, answer)| existing(answer))
            .map(|(job, _)| job.jid.clone())
            .collect();
        if jids.is_empty() {
            return Ok(HashSet::new());
        }
        let found = self.target.run(GetMany { jids }).await.map_err(TransferError::Target)?;
        let is_other = |there: &Job| {
            sent.iter().any(|job| {
                job.jid == there.jid
                    && (job.klass != there.klass || job.payload.bytes() != there.payload.bytes())
            })
        };
        Ok(found.into_iter().filter(is_other).map(|job| job.jid).collect())
    }

    /// Counts the jobs of a batch that arrived, and puts those back that did not.
    async fn settle(
        &mut self,
        batch: &Batch,
        answers: &[(Jid, Option<String>)],
    ) -> Result<(), TransferError> {
        let mut back = Vec::new();
        for (jid, why) in answers.iter().filter_map(|(jid, why)| Some((jid, why.as_ref()?))) {
            back.push(jid.clone());
            self.staying.insert(jid.clone());
            if let Some(job) = batch.jobs.iter().find(|job| job.jid == *jid) {
                self.report.stay(job, why);
            }
        }
        let refused: HashSet<Jid> = back.iter().cloned().collect();
        batch.jobs.iter().filter(|job| !refused.contains(&job.jid)).for_each(|job| self.report.moved(job));
        // Put back at once, they would be the next to be set aside.
        if self.from.has_lists() {
            self.refused.extend(back);
        } else {
            self.end(back, TransferEnd::Return).await?;
        }
        Ok(())
    }

    /// Removes jobs that are set aside, or puts them back. Returns how many, and which of them stay set aside
    /// because a job depends on them that does not leave.
    async fn end(&self, jids: Vec<Jid>, end: TransferEnd) -> Result<(u64, Vec<Jid>), TransferError> {
        let (mut ended, mut needed) = (0, Vec::new());
        for jids in jids.chunks(SET_ASIDE_MAX) {
            let reply = self.ask(EndSetAside { jids: jids.to_vec(), end }).await?;
            ended += reply.ended;
            let is_needed = |reason: &StayReason| *reason == StayReason::HasDependents;
            needed.extend(reply.stay.into_iter().filter(|(_, reason)| is_needed(reason)).map(|(jid, _)| jid));
        }
        Ok((ended, needed))
    }

    /// Reports jobs that arrived and are not removed.
    fn report_needed(&mut self, needed: Vec<Jid>) {
        let why = "has arrived, and stays set aside: a job depends on it that was not moved";
        let stay = needed.into_iter().map(|jid| Stay { jid, queue: None, why: why.to_owned() });
        self.report.stay.extend(stay);
    }

    /// Moves what an interrupted transfer had set aside.
    async fn resume(&mut self, progress: &mut dyn FnMut(&Report)) -> Result<(), TransferError> {
        let (aside, recurring) = self.set_aside_before().await?;
        self.report.resumed = (aside.len() + recurring.len()) as u64;
        self.put_recurring(recurring).await?;
        let there: HashSet<Jid> = aside.iter().map(|job| job.jid.clone()).collect();
        // A dependency that runs at the source again cannot be waited for at the target.
        let outside: Vec<Jid> =
            aside.iter().flat_map(Job::dependencies).filter(|on| !there.contains(on)).cloned().collect();
        let mut open = HashSet::new();
        for jids in outside.chunks(SET_ASIDE_MAX) {
            let jobs = self.ask(GetMany { jids: jids.to_vec() }).await?;
            let is_open = |job: &Job| !matches!(job.state, JobState::Complete { .. });
            open.extend(jobs.into_iter().filter(is_open).map(|job| job.jid));
        }
        let (blocked, jobs): (Vec<Job>, Vec<Job>) =
            aside.into_iter().partition(|job| job.dependencies().iter().any(|on| open.contains(on)));
        self.end(blocked.into_iter().map(|job| job.jid).collect(), TransferEnd::Return).await?;
        let batch = Batch { jobs, ..Batch::default() };
        let answers = self.put(&batch).await?;
        self.settle(&batch, &answers).await?;
        let arrived = answers.into_iter().filter_map(|(jid, why)| why.is_none().then_some(jid)).collect();
        let (_, needed) = self.end(arrived, TransferEnd::Remove).await?;
        self.report_needed(needed);
        progress(&self.report);
        Ok(())
    }

    /// Sets jobs aside. The reply may lack some, because their payloads are large.
    async fn set_aside(&self, jids: Vec<Jid>) -> Result<crate::SetAsideReply, TransferError> {
        Ok(*self.ask(SetAside { jids, to: self.name.clone() }).await?)
    }
}
