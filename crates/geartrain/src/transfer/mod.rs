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
mod gearman;
mod graph;
mod report;
mod source;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
/// The most jobs that one step sets aside. A call takes a Redis some 50 µs besides its jobs; of more jobs most have
/// left the processor's cache by the time at which they are removed.
const BATCH_MAX: usize = SET_ASIDE_MAX / 2;
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
    /// The source does not answer, or refuses.
    #[error("the source: {0}")]
    Source(#[source] Error),
    /// The target does not answer, or refuses.
    #[error("the target: {0}")]
    Target(#[source] Error),
}

/// What a transfer goes between, for steps that run at the same time.
struct Ends {
    source: Client,
    target: Client,
    from: System,
    to: System,
    /// The name of the target, which is stored with each job that is set aside.
    name: String,
    queues: Vec<QueueName>,
    /// Jobs of which it is known that they stay, for this pass.
    staying: Mutex<HashSet<Jid>>,
    stopped: Arc<AtomicBool>,
}

/// Moves the jobs of some queues.
pub struct Transfer {
    ends: Arc<Ends>,
    rate: Option<Rate>,
    report: Report,
    /// Jobs that could not be put and are put back at the end of the pass, in their order.
    refused: Vec<Jid>,
    /// Jobs that arrived and could not be removed, because jobs depend on them that have not arrived yet.
    needed: BTreeSet<Jid>,
    /// Since when jobs of Gearman servers have been held that stay, and how many had been moved then.
    held: Option<(Instant, u64)>,
    /// Gearman servers of which it is known that they are not the target.
    distinct: HashSet<String>,
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

impl Ends {
    fn staying(&self) -> MutexGuard<'_, HashSet<Jid>> {
        self.staying.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Removes jobs that are set aside, or puts them back. Returns how many, and which of them stay set aside
    /// because a job depends on them that does not leave.
    async fn end(&self, mut jids: Vec<Jid>, end: TransferEnd) -> Result<(u64, Vec<Jid>), TransferError> {
        let mut ended = 0;
        loop {
            let (before, mut needed) = (ended, Vec::new());
            for jids in jids.chunks(SET_ASIDE_MAX) {
                let reply = self.ask(EndSetAside { jids: jids.to_vec(), end }).await?;
                ended += reply.ended;
                let is_needed = |reason: &StayReason| *reason == StayReason::HasDependents;
                needed.extend(
                    reply.stay.into_iter().filter(|(_, reason)| is_needed(reason)).map(|(jid, _)| jid),
                );
            }
            // The jobs that depend on them may have been in a later chunk.
            if needed.is_empty() || ended == before {
                return Ok((ended, needed));
            }
            jids = needed;
        }
    }

    /// Sets jobs aside. The reply may lack some, because their payloads are large.
    async fn set_aside(&self, jids: Vec<Jid>) -> Result<crate::SetAsideReply, TransferError> {
        Ok(*self.ask(SetAside { jids, to: self.name.clone() }).await?)
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
        let source = connect(from).await.map_err(TransferError::Source)?;
        let target = connect(to).await.map_err(TransferError::Target)?;
        Ok(Transfer::of((source, system_from), (target, system_to), &identity(to), queues))
    }

    /// A transfer between two connected queue systems with the rules of geartrain. `name` identifies the target: a
    /// text without blanks.
    pub fn between(source: Client, target: Client, name: &str, queues: Vec<QueueName>) -> Transfer {
        Transfer::of((source, System::Native), (target, System::Native), name, queues)
    }

    fn of(
        (source, from): (Client, System),
        (target, to): (Client, System),
        name: &str,
        queues: Vec<QueueName>,
    ) -> Transfer {
        let (staying, stopped) = (Mutex::default(), Arc::default());
        let ends = Ends { source, target, from, to, name: name.to_owned(), queues, staying, stopped };
        Transfer {
            ends: Arc::new(ends),
            rate: None,
            report: Report::default(),
            refused: Vec::new(),
            needed: BTreeSet::new(),
            held: None,
            distinct: HashSet::new(),
            begun: Instant::now(),
        }
    }

    /// Moves no more jobs than this per time.
    pub fn at_rate(self, rate: Rate) -> Transfer {
        Transfer { rate: Some(rate), ..self }
    }

    /// Stops the transfer once it is true, with no job set aside.
    pub fn stop_flag(&self) -> Arc<AtomicBool> {
        self.ends.stopped.clone()
    }

    /// What was moved so far, and what stays.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Whether no job runs twice if the transfer is interrupted: the source keeps jobs aside then, and the target
    /// recognises a job that it was sent before, also if that has ended.
    pub fn is_exact(&self) -> bool {
        self.ends.from != System::Gearman && self.ends.to.recognises()
    }

    /// Finishes what an interrupted transfer began, then moves all jobs that can be moved.
    pub async fn run(&mut self, progress: &mut dyn FnMut(&Report)) -> Result<(), TransferError> {
        self.resume(progress).await?;
        self.pass(progress).await?;
        self.remove_needed().await?;
        // Jobs that are put back to a Gearman server count as running until it notices.
        self.count_staying().await?;
        self.return_refused().await
    }

    /// The same, and goes on with jobs that come in until [`stop_flag`](Transfer::stop_flag) is set.
    pub async fn follow(&mut self, progress: &mut dyn FnMut(&Report)) -> Result<(), TransferError> {
        self.resume(progress).await?;
        let mut last = None;
        while !self.ends.is_stopped() {
            let before = self.report.moved;
            if self.ends.from != System::Gearman || self.is_worth_a_pass(last.as_ref()).await? {
                self.ends.staying().clear();
                self.report.stay.clear();
                self.pass(progress).await?;
                self.remove_needed().await?;
                if self.ends.from == System::Gearman {
                    self.count_staying().await?;
                    last = Some(gearman::LastPass::of(&self.report));
                }
                self.return_refused().await?;
            }
            if self.report.moved == before && !self.ends.is_stopped() {
                tokio::time::sleep(FOLLOW_PAUSE).await;
            }
        }
        if self.ends.from == System::Gearman {
            return Ok(());
        }
        self.count_staying().await
    }

    /// Puts all jobs back that are set aside, but for those that arrived at the target: these are removed.
    pub async fn abort(&mut self) -> Result<(), TransferError> {
        self.note_abort();
        let (aside, recurring) = self.set_aside_before().await?;
        self.abort_recurring(recurring).await?;
        let mut parts: Vec<&[Job]> = aside.chunks(SET_ASIDE_MAX).collect();
        if self.ends.from.returns_to_front() {
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
            let (arrived, needed) = self.ends.end(there, TransferEnd::Remove).await?;
            self.needed.extend(needed);
            self.report.moved += arrived;
            self.report.returned += self.ends.end(back, TransferEnd::Return).await?.0;
        }
        self.remove_needed().await?;
        Ok(())
    }

    /// Which of some jobs the target has under their jids.
    async fn arrived(&self, jobs: &[Job]) -> Result<HashSet<Jid>, TransferError> {
        if self.ends.to == System::GearMonkey {
            return self.arrived_by_key(jobs).await;
        }
        if !self.ends.to.keeps_jids() {
            return Ok(HashSet::new());
        }
        let jids = jobs.iter().flat_map(|job| job.dependencies().iter().chain([&job.jid])).cloned().collect();
        let found = self.ends.target.run(GetMany { jids }).await.map_err(TransferError::Target)?;
        Ok(found.into_iter().map(|job| job.jid).collect())
    }

    /// Which of some jobs the target remembers by their transfer keys.
    async fn arrived_by_key(&self, jobs: &[Job]) -> Result<HashSet<Jid>, TransferError> {
        let status = |job: &Job| {
            let of = StatusOf::Unique(job.queue.clone()?, convert::transfer_key(job)?);
            Some((job.jid.clone(), Call::from(Status { of })))
        };
        let (jids, calls): (Vec<Jid>, Vec<Call>) = jobs.iter().filter_map(status).unzip();
        let answers = self.ends.target.batch(calls).await.map_err(TransferError::Target)?;
        let is_there = |(jid, answer)| matches!(answer, Ok(Reply::Status(Some(_)))).then_some(jid);
        Ok(jids.into_iter().zip(answers).filter_map(is_there).collect())
    }

    /// Counts what would be moved, and changes nothing.
    pub async fn dry_run(&mut self) -> Result<(), TransferError> {
        if self.ends.from == System::Gearman {
            return self.dry_run_gearman().await;
        }
        let now = self.ends.now();
        self.recurring(true).await?;
        for queue in self.ends.queues.clone() {
            if self.ends.from == System::Worqr {
                let jobs = self.ends.ask(Peek { queue, count: Count::MAX }).await?;
                self.judge(&jobs, now);
                continue;
            }
            let mut listing = source::Listing::new(queue, self.ends.from);
            while let Some(jids) = listing.page(&self.ends.source, &|_| false).await? {
                listing.skip(jids.len());
                let jids = jids.into_iter().filter(|jid| !self.ends.staying().contains(jid)).collect();
                let jobs = self.ends.ask(GetMany { jids }).await?;
                self.judge(&jobs, now);
            }
        }
        self.count_staying().await
    }

    /// Counts which of some jobs would be moved.
    fn judge(&mut self, jobs: &[Job], now: Timestamp) {
        for job in jobs {
            match (
                convert::stays(job, self.ends.from),
                convert::put_of(job, self.ends.from, self.ends.to, now),
            ) {
                (Some(reason), _) => self.report.stay(job, &reason.to_string()),
                (None, Ok(_)) => self.report.would_move(job),
                (None, Err(why)) => self.report.stay(job, &why),
            }
        }
    }

    /// One way through all queues.
    async fn pass(&mut self, progress: &mut dyn FnMut(&Report)) -> Result<(), TransferError> {
        self.recurring(false).await?;
        self.note_what_servers_leave_out();
        for queue in self.ends.queues.clone() {
            // One batch waits while another one is put and the next is set aside, so that neither end is idle.
            let (to, batches) = flume::bounded(1);
            let (ends, size) = (self.ends.clone(), self.step_size());
            let mut listing = source::Listing::new(queue.clone(), ends.from);
            let gathering = async move {
                loop {
                    let batch = ends.gather(&mut listing, size).await?;
                    let is_end = batch.is_end;
                    if to.send_async(batch).await.is_err() || is_end {
                        return Ok::<(), TransferError>(());
                    }
                }
            };
            let (gathered, moved) = tokio::join!(gathering, self.put_batches(&queue, batches, progress));
            moved?;
            gathered?;
        }
        Ok(())
    }

    /// Puts the batches of a queue. While one is put, the one before is removed.
    async fn put_batches(
        &mut self,
        queue: &QueueName,
        batches: flume::Receiver<Batch>,
        progress: &mut dyn FnMut(&Report),
    ) -> Result<(), TransferError> {
        let mut to_remove = Vec::new();
        while let Ok(mut batch) = batches.recv_async().await {
            for (jid, why) in std::mem::take(&mut batch.stay) {
                if self.ends.from == System::Gearman {
                    self.hold(jid.clone());
                }
                if self.ends.staying().insert(jid.clone()) {
                    self.report.stay_as(&jid, queue, &why);
                }
            }
            self.refuse_itself(&batch).await?;
            self.put_recurring(std::mem::take(&mut batch.recurring)).await?;
            let (arrived, removed) = tokio::join!(
                self.put(&batch),
                self.ends.end(std::mem::take(&mut to_remove), TransferEnd::Remove),
            );
            self.needed.extend(removed?.1);
            let arrived = arrived?;
            self.settle(&batch, &arrived).await?;
            to_remove = arrived.into_iter().filter_map(|(jid, why)| why.is_none().then_some(jid)).collect();
            progress(&self.report);
            self.return_held().await?;
            self.pause().await;
        }
        let (_, needed) = self.ends.end(to_remove, TransferEnd::Remove).await?;
        self.needed.extend(needed);
        Ok(())
    }

    /// Puts jobs back in front of their lists.
    async fn return_refused(&mut self) -> Result<(), TransferError> {
        self.held = None;
        for jids in std::mem::take(&mut self.refused).rchunks(SET_ASIDE_MAX) {
            self.ends.end(jids.to_vec(), TransferEnd::Return).await?;
        }
        Ok(())
    }

    /// How many jobs a step takes.
    fn step_size(&self) -> usize {
        let per_second = self.rate.map(|rate| f64::from(rate.count()) / rate.per().get());
        per_second.map_or(BATCH_MAX, |rate| (rate / STEPS_PER_SECOND).clamp(1.0, BATCH_MAX as f64) as usize)
    }

    /// Waits as the rate demands.
    async fn pause(&self) {
        let Some(rate) = self.rate else { return };
        let per_second = f64::from(rate.count()) / rate.per().get();
        let due = Duration::try_from_secs_f64(self.report.moved as f64 / per_second).unwrap_or_default();
        let left = due.saturating_sub(self.begun.elapsed());
        let pause = Instant::now() + left;
        while !self.ends.is_stopped() && Instant::now() < pause {
            tokio::time::sleep(FOLLOW_PAUSE.min(pause - Instant::now())).await;
        }
    }

    /// Puts a batch at the target. Returns each job with why it could not be put.
    async fn put(&self, batch: &Batch) -> Result<Vec<(Jid, Option<String>)>, TransferError> {
        let now = self.ends.now();
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
                match convert::put_of(job, self.ends.from, self.ends.to, now) {
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
                answers.extend(self.ends.target.batch(calls).await.map_err(TransferError::Target)?);
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
        let found = self.ends.target.run(GetMany { jids }).await.map_err(TransferError::Target)?;
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
            if self.ends.staying().insert(jid.clone())
                && let Some(job) = batch.jobs.iter().find(|job| job.jid == *jid)
            {
                self.report.stay(job, why);
            }
        }
        let refused: HashSet<Jid> = back.iter().cloned().collect();
        for job in batch.jobs.iter().filter(|job| !refused.contains(&job.jid)) {
            // A job that had arrived before its dependents were set aside comes again with them.
            if !self.needed.remove(&job.jid) {
                self.report.moved(job);
            }
        }
        // Put back at once, they would be the next to be set aside.
        if self.ends.from.returns_to_front() {
            self.refused.extend(back);
        } else {
            self.ends.end(back, TransferEnd::Return).await?;
        }
        Ok(())
    }

    /// Removes jobs that arrived before their dependents had left, and reports those that cannot be removed yet.
    async fn remove_needed(&mut self) -> Result<(), TransferError> {
        let needed = std::mem::take(&mut self.needed).into_iter().collect();
        self.needed.extend(self.ends.end(needed, TransferEnd::Remove).await?.1);
        let why = "has arrived, and stays set aside: a job depends on it that was not moved";
        let stay = self.needed.iter().map(|jid| Stay { jid: jid.clone(), queue: None, why: why.to_owned() });
        self.report.stay.extend(stay);
        Ok(())
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
            let jobs = self.ends.ask(GetMany { jids: jids.to_vec() }).await?;
            let is_open = |job: &Job| !matches!(job.state, JobState::Complete { .. });
            open.extend(jobs.into_iter().filter(is_open).map(|job| job.jid));
        }
        let (blocked, jobs): (Vec<Job>, Vec<Job>) =
            aside.into_iter().partition(|job| job.dependencies().iter().any(|on| open.contains(on)));
        self.ends.end(blocked.into_iter().map(|job| job.jid).collect(), TransferEnd::Return).await?;
        let batch = Batch { jobs, ..Batch::default() };
        let answers = self.put(&batch).await?;
        self.settle(&batch, &answers).await?;
        let arrived = answers.into_iter().filter_map(|(jid, why)| why.is_none().then_some(jid)).collect();
        let (_, needed) = self.ends.end(arrived, TransferEnd::Remove).await?;
        self.needed.extend(needed);
        progress(&self.report);
        Ok(())
    }
}
