//! The jobs of a queue in the order in which they are moved, and graphs of jobs that depend on each other.

use std::collections::{BTreeSet, HashSet, VecDeque};

use geartrain_core::{
    Count, Failed, Filter, FilterState, GetMany, GetRecurring, Group, Jid, Job, JobState, Jobs,
    Listing as Of, Page, Peek, Periodic, PeriodicTemplate, Periodics, PutPeriodic, QueueName, Queues, Recur,
    RemovePeriodic, SET_ASIDE_MAX, Seconds, Select, SetAsideReply, StateName, StayReason, TRANSFER_GROUP,
    Term, TransferEnd, Unrecur,
};

use super::{Ends, System, Transfer, TransferError, convert};
use crate::Client;

/// The most jobs of one graph of dependencies that are moved together.
const GRAPH_MAX: usize = 10_000;

/// How many batches are listed at once.
const PARTS: usize = 4;

/// Jobs that are set aside and can be put.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) jobs: Vec<Job>,
    /// Recurring jobs that are set aside, as those of WorkKit are.
    pub(super) recurring: Vec<Periodic>,
    /// Jobs that were found and stay.
    pub(super) stay: Vec<(Jid, String)>,
    /// Whether the queue has no more.
    pub(super) is_end: bool,
}

/// What is left to list of a queue.
#[derive(Debug)]
pub(super) struct Listing {
    queue: QueueName,
    states: Vec<StateName>,
    from: System,
    /// Whether there is nothing more, which a Gearman server tells only to a worker that asks.
    is_drained: bool,
    offset: usize,
    after: Option<crate::Cursor>,
    /// How many jobs are listed at once.
    count: Count,
    /// Jobs that were listed and are next.
    listed: VecDeque<Jid>,
}

impl Listing {
    pub(super) fn new(queue: QueueName, from: System) -> Listing {
        let states = match from {
            // Nothing else waits there, or is handed out.
            System::Gearman | System::Worqr => vec![StateName::Waiting],
            System::Native => {
                vec![StateName::Depends, StateName::Failed, StateName::Scheduled, StateName::Waiting]
            }
            System::WorkKit | System::GearMonkey => vec![StateName::Scheduled, StateName::Waiting],
        };
        let (count, listed) = (page_count(), VecDeque::new());
        Listing { queue, states, from, is_drained: false, offset: 0, after: None, count, listed }
    }

    /// Passes over jobs that were listed and stay. Failed ones are not listed again anyway.
    pub(super) fn skip(&mut self, jobs: usize) {
        if self.states.last() != Some(&StateName::Failed) {
            self.offset += jobs;
        }
    }

    /// The next jobs but for those that stay; none at the end. Jobs that are not set aside come again.
    pub(super) async fn page(
        &mut self,
        client: &Client,
        stays: &(dyn Fn(&Jid) -> bool + Sync),
    ) -> Result<Option<Vec<Jid>>, TransferError> {
        while let Some(state) = self.states.last().copied() {
            let jids = match state {
                StateName::Failed => self.failed(client).await?,
                _ if !self.from.names_jobs() => self.new_names(client).await?,
                _ => {
                    let queue = self.queue.clone();
                    let which = match state {
                        StateName::Waiting => Of::Waiting(queue),
                        StateName::Scheduled => Of::Scheduled(queue),
                        _ => Of::Depends(queue),
                    };
                    let page = Page { offset: self.offset, count: self.count };
                    client.run(Jobs { which, page }).await.map_err(TransferError::Source)?
                }
            };
            let is_end = jids.is_empty() && self.after.is_none();
            let listed = jids.len();
            let jids: Vec<Jid> = jids.into_iter().filter(|jid| !stays(jid)).collect();
            match (jids.is_empty(), is_end) {
                (_, true) => {
                    self.states.pop();
                    (self.offset, self.after) = (0, None);
                }
                (true, false) if state == StateName::Failed => {}
                (true, false) => self.offset += listed,
                (false, _) => return Ok(Some(jids)),
            }
        }
        Ok(None)
    }

    /// The next `size` jobs but for those that stay; none at the end. Listed once, they are taken in parts.
    async fn next(&mut self, ends: &Ends, size: usize) -> Result<Option<Vec<Jid>>, TransferError> {
        if self.is_drained {
            self.listed.clear();
        }
        if self.listed.is_empty() {
            self.count = Count::new((size * PARTS) as i64).unwrap_or(self.count);
            let stays = |jid: &Jid| ends.staying().contains(jid);
            let Some(page) = self.page(&ends.source, &stays).await? else { return Ok(None) };
            self.listed = page.into();
        }
        Ok(Some(self.listed.drain(..size.min(self.listed.len())).collect()))
    }

    fn return_to_front(&mut self, jids: &[Jid]) {
        jids.iter().rev().for_each(|jid| self.listed.push_front(jid.clone()));
    }

    /// Names under which the next jobs can be set aside, if there are any.
    async fn new_names(&self, client: &Client) -> Result<Vec<Jid>, TransferError> {
        let is_empty = match self.from {
            System::Gearman => self.is_drained,
            _ => {
                let peek = Peek { queue: self.queue.clone(), count: Count::ONE };
                client.run(peek).await.map_err(TransferError::Source)?.is_empty()
            }
        };
        if is_empty {
            return Ok(Vec::new());
        }
        let name = |_| Jid::new(format!("{}_+{}", self.queue, uuid::Uuid::now_v7())).ok();
        Ok((0..SET_ASIDE_MAX).filter_map(name).collect())
    }

    /// The next failed jobs. They are listed by a cursor, and each once.
    async fn failed(&mut self, client: &Client) -> Result<Vec<Jid>, TransferError> {
        if self.offset == usize::MAX {
            self.after = None;
            return Ok(Vec::new());
        }
        let filter =
            Filter { terms: vec![Term::Queue(self.queue.clone()), Term::State(FilterState::Failed)] };
        let select = Select { after: self.after.take(), ..Select::new(filter) };
        let page = client.run(select).await.map_err(TransferError::Source)?;
        let is_aside =
            |group: &Option<Group>| group.as_ref().is_some_and(|group| group.as_str() == TRANSFER_GROUP);
        self.after = page.next;
        if self.after.is_none() {
            self.offset = usize::MAX;
        }
        Ok(page.jobs.into_iter().filter(|job| !is_aside(&job.group)).map(|job| job.jid).collect())
    }
}

fn page_count() -> Count {
    Count::new(SET_ASIDE_MAX as i64).unwrap_or(Count::ONE)
}

impl Ends {
    /// Sets the next jobs of a queue aside.
    pub(super) async fn gather(&self, listing: &mut Listing, size: usize) -> Result<Batch, TransferError> {
        let mut batch = Batch::default();
        let page = match self.is_stopped() {
            true => None,
            false => listing.next(self, size).await?,
        };
        let Some(jids) = page else { return Ok(Batch { is_end: true, ..batch }) };
        let SetAsideReply { jobs, stay, recurring } = self.set_aside(jids.clone()).await?;
        batch.recurring = recurring;
        if self.from.names_jobs() {
            // Some may be left because payloads are large: they are next.
            let answered = jobs.len() + stay.len() + batch.recurring.len();
            listing.return_to_front(&jids[answered.min(jids.len())..]);
        }
        let mut seen: HashSet<Jid> = HashSet::new();
        for job in jobs {
            match seen.contains(&job.jid) {
                true => {}
                false if job.dependents.is_empty() => batch.jobs.push(job),
                false => self.gather_graph(job.jid.clone(), &mut seen, &mut batch).await?,
            }
        }
        for (jid, reason) in stay {
            match reason {
                StayReason::Depends if !seen.contains(&jid) => {
                    self.gather_graph(jid, &mut seen, &mut batch).await?;
                }
                StayReason::Unknown if self.from == System::Gearman => listing.is_drained = true,
                StayReason::Unknown | StayReason::Depends => {}
                StayReason::OtherTarget => return Err(TransferError::OtherTarget { jid }),
                reason => batch.stay.push((jid, reason.to_string())),
            }
        }
        Ok(batch)
    }

    /// Sets a whole graph of dependencies aside, or none of its jobs.
    async fn gather_graph(
        &self,
        first: Jid,
        seen: &mut HashSet<Jid>,
        batch: &mut Batch,
    ) -> Result<(), TransferError> {
        let (mut found, mut ahead): (Vec<Job>, Vec<Jid>) = (Vec::new(), vec![first]);
        let mut known: BTreeSet<Jid> = ahead.iter().cloned().collect();
        let mut obstacle: Option<String> = None;
        let now = self.now();
        while !ahead.is_empty() && obstacle.is_none() {
            let asked: Vec<Jid> = ahead.drain(..ahead.len().min(SET_ASIDE_MAX)).collect();
            for job in self.ask(GetMany { jids: asked }).await? {
                obstacle = obstacle.or_else(|| self.graph_obstacle(&job, now));
                let around = job.dependents.iter().chain(job.dependencies());
                ahead.extend(around.filter(|jid| known.insert((*jid).clone())).cloned());
                found.push(job);
            }
            if known.len() > GRAPH_MAX {
                obstacle = Some(format!(
                    "belongs to a graph of more than {GRAPH_MAX} jobs that depend on each other"
                ));
            }
        }
        let mut aside: Vec<Job> = Vec::new();
        if obstacle.is_none() {
            let ordered: Vec<Jid> =
                super::graph::levels(&found).into_iter().flatten().map(|job| job.jid.clone()).collect();
            if ordered.len() < found.len() {
                obstacle = Some("depends on itself".to_owned());
            }
            let mut left = &ordered[..];
            while obstacle.is_none() && !left.is_empty() {
                let reply = self.set_aside(left[..left.len().min(SET_ASIDE_MAX)].to_vec()).await?;
                left = &left[reply.jobs.len() + reply.stay.len()..];
                aside.extend(reply.jobs);
                if let Some((jid, reason)) =
                    reply.stay.into_iter().find(|(_, reason)| *reason != StayReason::Unknown)
                {
                    obstacle = Some(format!("depends on job {jid} or is its dependency, which {reason}"));
                }
            }
        }
        seen.extend(known.iter().cloned());
        match obstacle {
            None => batch.jobs.extend(aside),
            Some(why) => {
                // The first job may be set aside already.
                self.end(known.iter().cloned().collect(), TransferEnd::Return).await?;
                batch.stay.extend(known.into_iter().map(|jid| (jid, why.clone())));
            }
        }
        Ok(())
    }

    /// Why a job keeps the jobs that depend on it, or on which it depends, from being moved.
    fn graph_obstacle(&self, job: &Job, now: geartrain_core::Timestamp) -> Option<String> {
        let jid = &job.jid;
        if let Some(queue) = job.queue.as_ref().filter(|queue| !self.queues.contains(queue)) {
            return Some(format!("belongs together with job {jid} of queue {queue}, which is not moved"));
        }
        let attached = job.details.as_ref().is_some_and(|details| details.attached > 0);
        let why = match job.state {
            _ if attached => StayReason::Awaited.to_string(),
            JobState::Running { .. } => StayReason::Running.to_string(),
            _ => convert::put_of(job, self.from, self.to, now).err()?,
        };
        Some(format!("belongs together with job {jid}, which {why}"))
    }
}

impl Transfer {
    /// The jobs that are set aside in the queues of the transfer, with the states that they had.
    pub(super) async fn set_aside_before(&self) -> Result<(Vec<Job>, Vec<Periodic>), TransferError> {
        if self.ends.from == System::Gearman {
            // What an interrupted transfer held has been requeued.
            return Ok((Vec::new(), Vec::new()));
        }
        let group = Group::new(TRANSFER_GROUP).map_err(|error| TransferError::Source(error.into()))?;
        let mut jids = Vec::new();
        loop {
            let page = Page { offset: jids.len(), count: page_count() };
            let listed = self.ends.ask(Failed { group: group.clone(), page }).await?;
            if listed.jids.is_empty() {
                break;
            }
            jids.extend(listed.jids);
        }
        // The newest are listed first.
        jids.reverse();
        let (mut jobs, mut recurring): (Vec<Job>, Vec<Periodic>) = (Vec::new(), Vec::new());
        let mut left = &jids[..];
        while !left.is_empty() {
            let reply = self.ends.set_aside(left[..left.len().min(SET_ASIDE_MAX)].to_vec()).await?;
            left = &left[reply.jobs.len() + reply.recurring.len() + reply.stay.len()..];
            if let Some((jid, _)) =
                reply.stay.into_iter().find(|(_, reason)| *reason == StayReason::OtherTarget)
            {
                return Err(TransferError::OtherTarget { jid });
            }
            jobs.extend(reply.jobs);
            recurring.extend(reply.recurring);
        }
        jobs.retain(|job| job.queue.as_ref().is_some_and(|queue| self.ends.queues.contains(queue)));
        recurring.retain(|of| self.ends.queues.contains(&of.template.put.queue));
        Ok((jobs, recurring))
    }

    /// Counts what runs, and what a Gearman server has not handed out.
    pub(super) async fn count_staying(&mut self) -> Result<(), TransferError> {
        (self.report.running, self.report.not_handed_out) = (0, 0);
        for queue in self.ends.queues.clone() {
            let counts = self.ends.ask(Queues { queue: Some(queue.clone()) }).await?;
            self.report.running += counts.iter().map(|counts| counts.running + counts.stalled).sum::<u64>();
            if self.ends.from == System::Gearman && !self.ends.is_stopped() {
                self.report.not_handed_out += counts.iter().map(|counts| counts.waiting).sum::<u64>();
            }
            if self.ends.from == System::GearMonkey {
                // Those of other implementations are only found by a search, with those that are stalled.
                let page = Page { offset: 0, count: Count::MAX };
                let found = self.ends.ask(Jobs { which: Of::Stalled(queue), page }).await?.len() as u64;
                self.report.running +=
                    found - counts.iter().map(|counts| counts.stalled).sum::<u64>().min(found);
            }
        }
        Ok(())
    }

    /// Moves the recurring jobs of all queues: each is created at the target, then removed. Those of WorkKit are
    /// only counted here: they are set aside with the other jobs, among which they are listed.
    pub(super) async fn recurring(&mut self, dry: bool) -> Result<(), TransferError> {
        match self.ends.from {
            System::Native => {}
            System::WorkKit if dry => {}
            _ => return Ok(()),
        }
        for queue in self.ends.queues.clone() {
            let page = Page { offset: 0, count: Count::MAX };
            for jid in self.ends.ask(Jobs { which: Of::Recurring(queue.clone()), page }).await? {
                if self.ends.staying().contains(&jid) {
                    continue;
                }
                let Some(of) = self.ends.ask(GetRecurring { jid: jid.clone() }).await? else { continue };
                let recur = Recur {
                    queue: of.queue,
                    jid: of.jid,
                    klass: of.klass,
                    payload: of.payload,
                    every: of.every,
                    offset: (of.next - self.ends.now()).max(Seconds::ZERO),
                    priority: of.priority,
                    retries: of.retries,
                    tags: of.tags,
                    backlog: of.backlog,
                };
                let put = if dry { Ok(()) } else { self.ends.target.run(recur).await };
                if self.has_recurred(&jid, &queue, put)? && !dry {
                    self.ends.ask(Unrecur { jid }).await?;
                }
            }
        }
        let mut after = None;
        loop {
            let page =
                self.ends.ask(Periodics { only: None, after: after.take(), count: page_count() }).await?;
            let Some(last) = page.periodics.last() else { return Ok(()) };
            after = Some(last.template.put.jid.clone());
            for Periodic { template, next, .. } in page.periodics {
                let PeriodicTemplate { put, .. } = &*template;
                let (jid, queue) = (put.jid.clone(), put.queue.clone());
                if !self.ends.queues.contains(&queue) || self.ends.staying().contains(&jid) {
                    continue;
                }
                if dry {
                    self.ends.staying().insert(jid.clone());
                }
                let put = PutPeriodic { jid: jid.clone(), template, next, must_exist: false };
                let put = if dry { Ok(true) } else { self.ends.target.run(put).await };
                if self.has_recurred(&jid, &queue, put)? && !dry {
                    self.ends.ask(RemovePeriodic { jid }).await?;
                }
            }
        }
    }

    /// Puts recurring jobs that are set aside, then removes them. Those that the target refuses are put back.
    pub(super) async fn put_recurring(&mut self, aside: Vec<Periodic>) -> Result<(), TransferError> {
        for Periodic { template, next, .. } in aside {
            let (jid, queue) = (template.put.jid.clone(), template.put.queue.clone());
            let put = PutPeriodic { jid: jid.clone(), template, next, must_exist: false };
            // One that has arrived may have run there: its next run is another one.
            let put = if self.recurs(&jid).await? { Ok(true) } else { self.ends.target.run(put).await };
            let has_arrived = self.has_recurred(&jid, &queue, put)?;
            self.ends
                .end(vec![jid], if has_arrived { TransferEnd::Remove } else { TransferEnd::Return })
                .await?;
        }
        Ok(())
    }

    /// Puts recurring jobs back that are set aside, but for those that arrived.
    pub(super) async fn abort_recurring(&mut self, aside: Vec<Periodic>) -> Result<(), TransferError> {
        for Periodic { template, .. } in aside {
            let jid = template.put.jid.clone();
            if self.recurs(&jid).await? {
                self.report.recurring += self.ends.end(vec![jid], TransferEnd::Remove).await?.0;
            } else {
                self.report.returned += self.ends.end(vec![jid], TransferEnd::Return).await?.0;
            }
        }
        Ok(())
    }

    /// Whether the target has a recurring job, as far as it tells.
    async fn recurs(&self, jid: &Jid) -> Result<bool, TransferError> {
        let find = Periodics { only: Some(jid.clone()), after: None, count: Count::ONE };
        Ok(self.ends.to.keeps_jids()
            && !self.ends.target.run(find).await.map_err(TransferError::Target)?.periodics.is_empty())
    }

    /// Counts a recurring job that arrived, or reports that it stays.
    fn has_recurred<T>(
        &mut self,
        jid: &Jid,
        queue: &QueueName,
        put: Result<T, crate::Error>,
    ) -> Result<bool, TransferError> {
        match put {
            Ok(_) => {
                self.report.recurring += 1;
                Ok(true)
            }
            Err(crate::Error::Refused(refusal)) => {
                self.ends.staying().insert(jid.clone());
                self.report.stay_as(jid, queue, &format!("is a recurring job: {refusal}"));
                Ok(false)
            }
            Err(error) => Err(TransferError::Target(error)),
        }
    }
}
