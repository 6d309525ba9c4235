//! Cross-checks every job after every command of a case: the answer to `Why` must agree with all other reads.
//!
//! Every case runs it, because its backend is wrapped in a [`Watch`].

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use geartrain_core::*;

use super::builders::moment;
use super::system::{LONG_AGO, Surprise};
use crate::clock::ManualClock;

/// Up to so many jobs are looked at after each command; more of them only at the end of the case.
const JOBS_OFTEN_MAX: usize = 50;

/// How many jobs to look at in one batch.
const BATCH_JOBS: usize = 1000;

/// A backend that remembers which jobs it was asked about.
pub(crate) struct Watch {
    backend: Arc<dyn Backend>,
    clock: Arc<ManualClock>,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    jobs: BTreeSet<Jid>,
    /// Where workers have asked for jobs.
    asked: BTreeSet<QueueName>,
    /// The moment of the last command that cares for one.
    now: Timestamp,
}

/// What is true of a queue, by the commands that are not `Why`.
struct Around {
    paused: bool,
    limits: QueueLimits,
    /// Each waiting job's place.
    waiting: HashMap<Jid, usize>,
    /// How many are scheduled.
    scheduled: usize,
    ever_asked: bool,
}

impl Watch {
    pub(crate) fn new(backend: Arc<dyn Backend>, clock: Arc<ManualClock>) -> Arc<Watch> {
        Arc::new(Watch { backend, clock, seen: Mutex::default() })
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().expect("no code panics while it holds the lock")
    }

    fn ask(&self, batch: &[Call]) {
        let mut seen = self.seen();
        for Call { now, command, .. } in batch {
            match now {
                Some(now) if now.get() == LONG_AGO => {}
                Some(now) => seen.now = *now,
                None => seen.now = self.clock.now(),
            }
            match command {
                Command::Put(put) => drop(seen.jobs.insert(put.jid.clone())),
                Command::Pop(pop) => seen.asked.extend(pop.queues.iter().cloned()),
                _ => {}
            }
        }
    }

    fn answered(&self, answers: &[Answer]) {
        let mut seen = self.seen();
        for answer in answers {
            match answer {
                Ok(Reply::Pop(reply)) => seen.jobs.extend(reply.jobs.iter().map(|popped| popped.jid.clone())),
                Ok(Reply::Peek(jobs)) => seen.jobs.extend(jobs.iter().map(|job| job.jid.clone())),
                _ => {}
            }
        }
    }

    /// Looks at every job that there ever was.
    pub(crate) async fn walk(&self) -> Result<(), Surprise> {
        let (names, now): (Vec<Jid>, Timestamp) = {
            let seen = self.seen();
            (seen.jobs.iter().cloned().collect(), seen.now)
        };
        // Jobs may move during the reads because of parked pops; then they are read again.
        loop {
            let (jobs, answers) = self.read(&names, now).await?;
            let (around, able) = self.surroundings(&jobs, now).await?;
            if self.read(&names, now).await? != (jobs.clone(), answers.clone()) {
                continue;
            }
            for why in &answers {
                let job = &jobs[&why.jid];
                let placed = job.queue.as_ref();
                let around = placed.map(|queue| &around[queue]);
                let able = placed.map_or(0, |queue| able[&(queue.clone(), job.klass.clone())]);
                agrees(now, job, why, around, able, &jobs);
            }
            return Ok(());
        }
    }

    async fn read(
        &self,
        names: &[Jid],
        now: Timestamp,
    ) -> Result<(BTreeMap<Jid, Job>, Vec<WhyReply>), Surprise> {
        let (mut jobs, mut answers) = (BTreeMap::new(), Vec::new());
        for part in names.chunks(BATCH_JOBS) {
            let calls = part.iter().flat_map(|name| {
                let get = Call::at(now, Get { jid: name.clone() });
                let why = Call::at(now, Why { jid: name.clone() });
                [get, why]
            });
            let mut replies = self.backend.execute(calls.collect()).await?.into_iter();
            for name in part {
                let (Some(got), Some(why)) = (replies.next(), replies.next()) else {
                    return Err("there are fewer answers than commands".into());
                };
                let Reply::Get(job) = got? else { return Err("a reply answers another command".into()) };
                match job {
                    Some(job) => {
                        jobs.insert(name.clone(), *job);
                        let Reply::Why(why) = why? else {
                            return Err("a reply answers another command".into());
                        };
                        answers.push(*why);
                    }
                    None => assert_eq!(why, Err(Refusal::NoSuchJob { jid: name.clone() })),
                }
            }
        }
        Ok((jobs, answers))
    }

    /// What there is around the jobs: their queues, and how many can do each kind.
    async fn surroundings(
        &self,
        jobs: &BTreeMap<Jid, Job>,
        now: Timestamp,
    ) -> Result<(Queued, Able), Surprise> {
        let mut around = BTreeMap::new();
        let mut able = BTreeMap::new();
        for job in jobs.values() {
            let Some(queue) = &job.queue else { continue };
            if let Entry::Vacant(entry) = around.entry(queue.clone()) {
                entry.insert(self.around(queue).await?);
            }
            if let Entry::Vacant(entry) = able.entry((queue.clone(), job.klass.clone())) {
                let klass = Some(job.klass.clone());
                entry.insert(self.look(now.get(), RollCall { queue: queue.clone(), klass }).await?);
            }
        }
        Ok((around, able))
    }

    async fn around(&self, queue: &QueueName) -> Result<Around, Surprise> {
        let page = Page { offset: 0, count: Count::MAX };
        let counts = self.look(LONG_AGO, Queues { queue: Some(queue.clone()) }).await?;
        let waiting = self.look(LONG_AGO, Jobs { which: Listing::Waiting(queue.clone()), page }).await?;
        let scheduled = self.look(LONG_AGO, Jobs { which: Listing::Scheduled(queue.clone()), page }).await?;
        Ok(Around {
            paused: counts.iter().any(|counts| counts.paused),
            limits: self.look(LONG_AGO, GetLimits { queue: queue.clone() }).await?,
            waiting: waiting.into_iter().enumerate().map(|(place, jid)| (jid, place)).collect(),
            scheduled: scheduled.len(),
            ever_asked: self.seen().asked.contains(queue),
        })
    }

    async fn look<O: Operation>(&self, now: f64, operation: O) -> Result<O::Reply, Surprise> {
        let call = Call::at(moment(now), operation);
        let reply = self.backend.execute(vec![call]).await?.pop().ok_or("one command has one answer")??;
        Ok(O::answer(reply).ok_or("a reply answers another command")?)
    }
}

type Queued = BTreeMap<QueueName, Around>;
type Able = BTreeMap<(QueueName, Klass), u64>;

/// What is said about why a job does not run is what everything else says.
fn agrees(
    now: Timestamp,
    job: &Job,
    why: &WhyReply,
    around: Option<&Around>,
    able: u64,
    jobs: &BTreeMap<Jid, Job>,
) {
    assert_eq!((why.state, &why.queue), (job.state.name(), &job.queue), "{} at {now}", job.jid);
    let told = why.reasons.as_slice();
    let is = |expected: Vec<Reason>| assert_eq!(told, expected, "{} at {now}", job.jid);
    let paused = || {
        let queue = job.queue.clone().filter(|_| around.is_some_and(|around| around.paused));
        queue.map(|queue| Reason::Paused { queue })
    };
    let details = job.details.as_deref();
    match &job.state {
        JobState::Complete { at } => is(vec![Reason::Complete { at: *at }]),
        JobState::Failed { failure: Failure { group, message, .. } } => {
            let own = job.queue.as_ref().map(|queue| format!("crashed-{queue}"));
            let crashes = details.map_or(0, |details| details.crashes);
            is(vec![if own.as_deref() == Some(group.as_str()) && crashes > 0 {
                let evidence = details.and_then(|details| details.evidence.clone());
                Reason::SetAside { group: group.clone(), crashes, evidence }
            } else {
                Reason::Failed { group: group.clone(), message: message.clone() }
            }]);
        }
        JobState::Running { lock } if lock.expires <= now => {
            let (worker, since) = (lock.worker.clone(), lock.expires);
            // Whether it was warned is not shown elsewhere.
            let warned = matches!(told.first(), Some(Reason::Stalled { warned: true, .. }));
            let stalled = Reason::Stalled { worker, since, remaining: job.remaining, warned };
            is([stalled].into_iter().chain(paused()).collect());
        }
        JobState::Running { lock } => {
            let warned = job.qless.expires != lock.expires;
            is(vec![Reason::Running { worker: lock.worker.clone(), until: lock.expires, warned }]);
        }
        JobState::Depends { on, due } => {
            let state = jobs.get(&on[0]).map_or(StateName::Waiting, |first| first.state.name());
            let failed = on.iter().find_map(|on| {
                let Failure { group, message, .. } = match &jobs.get(on)?.state {
                    // One that is set aside has not failed for its dependents.
                    JobState::Failed { failure } if failure.group.as_str() != TRANSFER_GROUP => {
                        failure.clone()
                    }
                    _ => return None,
                };
                Some(Box::new(FailedDependency { jid: on.clone(), group, message }))
            });
            let (jid, count) = (on[0].clone(), on.len() as u64);
            let blocked = Reason::DependsOn { jid, state, count, failed };
            let later = due.filter(|due| *due > now).map(|at| Reason::Scheduled { at });
            is([blocked].into_iter().chain(later).chain(paused()).collect());
        }
        JobState::Scheduled { due } if *due > now => {
            is([Reason::Scheduled { at: *due }].into_iter().chain(paused()).collect());
        }
        JobState::Waiting | JobState::Scheduled { .. } => {
            let around = around.expect("a job that waits has a queue");
            may_start(now, job, told, paused(), around, able, jobs);
        }
    }
}

/// The reasons of a job that might run fit what else is known of it, and come in their order.
fn may_start(
    now: Timestamp,
    job: &Job,
    told: &[Reason],
    paused: Option<Reason>,
    around: &Around,
    able: u64,
    jobs: &BTreeMap<Jid, Job>,
) {
    let (mut expired, mut halted, mut no_worker, mut behind) = (None, None, false, 0);
    let mut last = 0;
    for reason in told {
        let rank = match reason {
            Reason::Expired { at } => {
                expired = Some(*at);
                1
            }
            Reason::Paused { .. } => {
                halted = Some(reason.clone());
                2
            }
            Reason::Concurrency { max, held, running } => {
                assert!(
                    (1..=*running).contains(max) && held.len() as u64 == 5.min(*running),
                    "{}: {told:?}",
                    job.jid
                );
                for (other, worker) in held {
                    let other = &jobs[other];
                    assert_eq!(other.queue, job.queue, "{}: {told:?}", job.jid);
                    let holder = match &other.state {
                        JobState::Running { lock } => Some(&lock.worker),
                        _ => None,
                    };
                    assert_eq!(holder, Some(worker), "{}: {told:?}", job.jid);
                }
                3
            }
            Reason::RateLimit { until } => {
                assert!(around.limits.rate.is_some() && *until > now, "{} at {now}: {told:?}", job.jid);
                4
            }
            Reason::NoWorker { klass, .. } => {
                assert_eq!((klass, able), (&job.klass, 0), "{}: {told:?}", job.jid);
                no_worker = true;
                5
            }
            Reason::Behind { jobs } => {
                behind = *jobs;
                assert!(behind > 0, "{}: {told:?}", job.jid);
                6
            }
            Reason::Next => {
                assert_eq!(told.len(), 1, "{}: nothing, and yet something: {told:?}", job.jid);
                7
            }
            other => panic!("{} is {} because of {other:?}", job.jid, job.state.name()),
        };
        assert!(last < rank, "{}: the reasons are not in order: {told:?}", job.jid);
        last = rank;
    }
    assert!(last > 0, "{} has no reason", job.jid);
    let expires = job.details.as_ref().and_then(|details| details.expires);
    assert_eq!(expired, expires.filter(|at| *at < now), "{} at {now}: {told:?}", job.jid);
    assert_eq!(halted, paused, "{}: {told:?}", job.jid);
    assert!(no_worker || able > 0 || around.ever_asked, "{} has no worker: {told:?}", job.jid);
    match around.waiting.get(&job.jid) {
        Some(place) => assert_eq!(behind, *place as u64, "{}: {told:?}", job.jid),
        None => {
            let most = (around.waiting.len() + around.scheduled) as u64;
            assert!(behind < most, "{} is behind {behind} of {most}", job.jid);
        }
    }
}

/// Whether a command may change where a job stands.
fn changes(command: &Command) -> bool {
    use Command::*;
    !matches!(
        command,
        Get(_)
            | GetMany(_)
            | Length(_)
            | Jobs(_)
            | Failures(_)
            | Failed(_)
            | Queues(_)
            | Workers(_)
            | WorkerJobs(_)
            | Stats(_)
            | GetConfig(_)
            | AllConfig(_)
            | GetRecurring(_)
            | Tagged(_)
            | TopTags(_)
            | Tracked(_)
            | Announced(_)
            | RollCall(_)
            | GetLimits(_)
            | GetResult(_)
            | Status(_)
            | Why(_)
            | AllocateIds(_)
            | PriorityCounts(_)
            | Select(_)
            | Figures(_)
            | WhyQueue(_)
    )
}

impl Backend for Watch {
    fn execute(&self, batch: Vec<Call>) -> Pending<'_, Vec<Answer>> {
        Box::pin(async move {
            self.ask(&batch);
            let changed = batch.iter().any(|call| changes(&call.command));
            let answers = self.backend.execute(batch).await?;
            self.answered(&answers);
            if changed && self.seen().jobs.len() <= JOBS_OFTEN_MAX {
                let walked = self.walk().await;
                walked.map_err(|source| BackendError::Broken { backend: "watched", source })?;
            }
            Ok(answers)
        })
    }

    fn pop_or_wait(&self, pop: Pop, wait: Seconds) -> Pending<'_, PopReply> {
        self.seen().asked.extend(pop.queues.iter().cloned());
        let reply = self.backend.pop_or_wait(pop, wait);
        Box::pin(async move {
            let reply = reply.await?;
            self.answered(&[Ok(Reply::Pop(reply.clone()))]);
            Ok(reply)
        })
    }

    fn ready_or_wait(&self, queues: Vec<QueueName>, wait: Seconds) -> Pending<'_, bool> {
        self.backend.ready_or_wait(queues, wait)
    }

    fn subscribe(&self) -> Pending<'_, Box<dyn Subscription>> {
        self.backend.subscribe()
    }

    fn subscribe_from(&self, after: u64) -> Pending<'_, Box<dyn Subscription>> {
        self.backend.subscribe_from(after)
    }

    fn open_result_stream(&self, front: u64) -> Pending<'_, Box<dyn ResultStream>> {
        self.backend.open_result_stream(front)
    }
}
