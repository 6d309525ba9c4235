//! Looking tasks and processes up, listing and counting them.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use geartrain_core::{
    Announcement, Capability, Jid, Job, JobState, Klass, Listing, Lock, NO_JID, Page, Payload, Priority,
    QlessView, QueueCounts, QueueName, RollCall, Seconds, StatusReply, Timestamp, WorkerCounts,
    WorkerJobsReply, WorkerName,
};
use redis::cmd;

use super::names::{Process, check_queue, digest, is_worker_of};
use super::session::{Session, Worker, texts, unsupported};
use crate::layout::{CallError, bad_argument, keys_like};

/// Stands for a worker that is not known: its process set is shared.
const UNKNOWN: &str = "?";

/// A process as a job.
pub(super) struct View<'a> {
    pub(super) process: &'a Process,
    pub(super) task: &'a Payload,
    pub(super) lock: Lock,
    pub(super) remaining: i64,
}

impl View<'_> {
    pub(super) fn job(self, retries: u32) -> Job {
        let state = JobState::Running { lock: self.lock };
        view(&self.process.queue, self.process.jid(), self.task.clone(), state, (retries, self.remaining))
    }
}

/// The klass of a task is its queue.
pub(super) fn klass_of(queue: &QueueName) -> Klass {
    Klass::new(queue.as_str()).expect("a queue's name is one of a klass")
}

/// All processes of a queue, by whether their workers are alive.
#[derive(Default)]
struct Processes {
    running: Vec<Process>,
    /// Those of dead workers, and those that no process set has.
    stalled: Vec<Process>,
}

impl Session {
    /// All processes, by a search of all keys.
    async fn processes(&self) -> Result<BTreeMap<QueueName, Processes>, CallError> {
        let keys = keys_like(&self.shared, &self.names.pattern(":processes:"), "list").await?;
        let prefix = self.names.process("");
        let mut found: BTreeMap<QueueName, Processes> = BTreeMap::new();
        let workers = self.workers().await?;
        let own: HashSet<&str> = workers
            .iter()
            .filter(|worker| worker.is_alive)
            .flat_map(|worker| worker.processes.iter().map(String::as_str))
            .collect();
        let mut shared: BTreeMap<QueueName, HashSet<String>> = BTreeMap::new();
        for process in texts(keys).iter().filter_map(|key| Process::parse(key.strip_prefix(&prefix)?)) {
            if !shared.contains_key(&process.queue) {
                let key = self.names.processes(process.queue.as_str());
                let is_shared = |worker: &Worker| {
                    worker.is_alive && worker.members.iter().any(|member| member == process.queue.as_str())
                };
                let members = match workers.iter().any(is_shared) {
                    true => texts(self.ask(&key, cmd("SMEMBERS").arg(&key)).await?),
                    false => Vec::new(),
                };
                shared.insert(process.queue.clone(), members.into_iter().collect());
            }
            let is_running =
                own.contains(process.id.as_str()) || shared[&process.queue].contains(&process.id);
            let of = found.entry(process.queue.clone()).or_default();
            if is_running { of.running.push(process) } else { of.stalled.push(process) }
        }
        // By age, as far as the IDs tell.
        let age = |process: &Process| process.id.clone();
        for of in found.values_mut() {
            of.running.sort_by_key(age);
            of.stalled.sort_by_key(age);
        }
        Ok(found)
    }

    /// The number of waiting tasks.
    pub(super) async fn waiting(&self, queue: &QueueName) -> Result<u64, CallError> {
        let key = self.names.queue(queue.as_str());
        self.ask(&key, cmd("LLEN").arg(&key)).await
    }

    /// Waiting tasks and processes.
    pub(super) async fn length(&self, queue: &QueueName) -> Result<u64, CallError> {
        check_queue(queue)?;
        let waiting = self.waiting(queue).await?;
        let of = self.processes().await?.remove(queue).unwrap_or_default();
        Ok(waiting + (of.running.len() + of.stalled.len()) as u64)
    }

    pub(super) async fn queues(&self, only: Option<QueueName>) -> Result<Vec<QueueCounts>, CallError> {
        let mut processes = self.processes().await?;
        let names = match only {
            Some(queue) => {
                check_queue(&queue)?;
                [queue].into()
            }
            None => {
                let keys = keys_like(&self.shared, &self.names.pattern(":queues:"), "list").await?;
                let prefix = self.names.queue("");
                let name = |key: &String| QueueName::new(key.strip_prefix(&prefix)?).ok();
                let mut names: BTreeSet<QueueName> = texts(keys).iter().filter_map(name).collect();
                names.extend(processes.keys().cloned());
                names
            }
        };
        let mut counts = Vec::with_capacity(names.len());
        for name in names {
            let of = processes.remove(&name).unwrap_or_default();
            counts.push(QueueCounts {
                waiting: self.waiting(&name).await?,
                running: of.running.len() as u64,
                stalled: of.stalled.len() as u64,
                name,
                scheduled: 0,
                depends: 0,
                recurring: 0,
                paused: false,
            });
        }
        Ok(counts)
    }

    pub(super) async fn jobs(&self, which: &Listing, page: Page) -> Result<Vec<Jid>, CallError> {
        let (queue, is_running) = match which {
            Listing::Waiting(_) => {
                return Err(unsupported("list waiting tasks by id: they have none, see peek").into());
            }
            Listing::Running(queue) => (queue, true),
            Listing::Stalled(queue) => (queue, false),
            // A task is not delayed, waits for no other, and is gone once it is finished.
            _ => return Ok(Vec::new()),
        };
        check_queue(queue)?;
        let of = self.processes().await?.remove(queue).unwrap_or_default();
        let processes = if is_running { of.running } else { of.stalled };
        Ok(processes.iter().skip(page.offset).take(page.count.get()).map(Process::jid).collect())
    }

    /// Waiting tasks, the next one first.
    pub(super) async fn peek(&self, queue: &QueueName, count: usize) -> Result<Vec<Job>, CallError> {
        check_queue(queue)?;
        if count == 0 {
            return Ok(Vec::new());
        }
        let key = self.names.queue(queue.as_str());
        let mut range = cmd("LRANGE");
        let mut tasks: Vec<Vec<u8>> = self.ask(&key, range.arg(&key).arg(-(count as i64)).arg(-1)).await?;
        tasks.reverse();
        if tasks.is_empty() {
            return Ok(Vec::new());
        }
        let digests: Vec<String> = tasks.iter().map(|task| digest(task)).collect();
        let digests: Vec<&str> = digests.iter().map(String::as_str).collect();
        let used = self.attempts(queue, &digests).await?;
        let retries = self.options.retries;
        let job = |(task, used): (Vec<u8>, i64)| {
            let jid = Jid::new(NO_JID).expect("it is a name");
            view(queue, jid, task.into(), JobState::Waiting, (retries, i64::from(retries) - used))
        };
        Ok(tasks.into_iter().zip(used).map(job).collect())
    }

    /// Looks up a process. A waiting task has no ID, and a finished one leaves nothing.
    pub(super) async fn get(&self, jid: &Jid, now: Timestamp) -> Result<Option<Job>, CallError> {
        let Some(process) = Process::parse(&jid.to_string()) else { return Ok(None) };
        let Some(task) = self.task_of(&process).await? else { return Ok(None) };
        let workers = self.workers().await?;
        let holder = workers.into_iter().find(|worker| worker.processes.contains(&process.id));
        let (name, expires) = match &holder {
            Some(worker) => {
                let key = self.names.timer(&worker.id);
                let left: i64 = self.ask(&key, cmd("PTTL").arg(&key)).await?;
                let left = Seconds::new(left.max(0) as f64 / 1_000.0).unwrap_or(Seconds::ZERO);
                (worker.id.as_str(), now + left)
            }
            None => (UNKNOWN, now),
        };
        let worker = WorkerName::new(name).or_else(|_| WorkerName::new(UNKNOWN)).expect("it is a name");
        let lock = Lock { worker, token: process.token(), expires };
        let used = self.attempts(&process.queue, &[&digest(&task)]).await?;
        let remaining = i64::from(self.options.retries) - used.first().copied().unwrap_or_default();
        let view = View { process: &process, task: &task.into(), lock, remaining };
        Ok(Some(view.job(self.options.retries)))
    }

    pub(super) async fn status(&self, jid: &Jid, now: Timestamp) -> Result<Option<StatusReply>, CallError> {
        let job = self.get(jid, now).await?;
        Ok(job.and_then(|job| {
            let (state, queue) = (job.state.name(), job.queue?);
            Some(StatusReply { jid: job.jid, queue, state, progress: None, submissions: 1, attached: 0 })
        }))
    }

    /// All workers. How many jobs one has is known only if its process sets are its own.
    pub(super) async fn worker_counts(&self) -> Result<Vec<WorkerCounts>, CallError> {
        let count = |worker: Worker| {
            let jobs = worker.processes.len() as u64;
            let (jobs, stalled) = if worker.is_alive { (jobs, 0) } else { (0, jobs) };
            Some(WorkerCounts { name: WorkerName::new(&worker.id).ok()?, jobs, stalled, seen: None })
        };
        let mut counts: Vec<WorkerCounts> = self.workers().await?.into_iter().filter_map(count).collect();
        counts.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(counts)
    }

    pub(super) async fn worker_jobs(&self, name: &WorkerName) -> Result<WorkerJobsReply, CallError> {
        // A worker of this process asks often.
        let own = {
            let state = self.state.lock();
            state.workers.get(name).map(|worker| state.held_by(&worker.id))
        };
        if let Some(held) = own {
            let jobs = held.iter().filter_map(|id| Jid::new(id).ok()).collect();
            return Ok(WorkerJobsReply { jobs, stalled: Vec::new() });
        }
        let mut reply = WorkerJobsReply::default();
        for worker in self.workers().await? {
            if is_worker_of(&worker.id, name.as_str()) {
                let jobs = worker.processes.iter().filter_map(|id| Jid::new(id).ok());
                if worker.is_alive { reply.jobs.extend(jobs) } else { reply.stalled.extend(jobs) }
            }
        }
        Ok(reply)
    }

    /// Live workers of a queue.
    pub(super) async fn roll_call(&self, call: &RollCall) -> Result<u64, CallError> {
        check_queue(&call.queue)?;
        if call.klass.as_ref().is_some_and(|klass| klass.as_str() != call.queue.as_str()) {
            let why = format!("must be {}, as the queue is: a task of Worqr has no other kind", call.queue);
            return Err(bad_argument("klass", why).into());
        }
        let can = |worker: &&Worker| worker.is_alive && worker.works_on(call.queue.as_str());
        Ok(self.workers().await?.iter().filter(can).count() as u64)
    }

    /// The queues of the live workers.
    pub(super) async fn announced(&self, only: Option<&WorkerName>) -> Result<Vec<Announcement>, CallError> {
        let is_meant = |worker: &Worker| {
            worker.is_alive && only.is_none_or(|only| is_worker_of(&worker.id, only.as_str()))
        };
        let announcement = |worker: Worker| {
            let queue = |member: &String| {
                let queue = QueueName::new(worker.queue_of_own(member).unwrap_or(member)).ok()?;
                Some(Capability { queue, klass: None, attempt_max: None })
            };
            let mut capabilities: Vec<Capability> = worker.members.iter().filter_map(queue).collect();
            capabilities.sort();
            Some(Announcement { worker: WorkerName::new(&worker.id).ok()?, seen: None, capabilities })
        };
        let workers = self.workers().await?.into_iter().filter(is_meant);
        let mut all: Vec<Announcement> = workers.filter_map(announcement).collect();
        all.sort_by(|one, other| one.worker.cmp(&other.worker));
        Ok(all)
    }
}

pub(super) fn view(
    queue: &QueueName,
    jid: Jid,
    payload: Payload,
    state: JobState,
    (retries, remaining): (u32, i64),
) -> Job {
    let (worker, expires) = match &state {
        JobState::Running { lock } => (Some(lock.worker.clone()), lock.expires),
        _ => (None, Timestamp::ZERO),
    };
    Job {
        jid,
        klass: klass_of(queue),
        queue: Some(queue.clone()),
        qless: QlessView { state: state.name().as_str(), worker, expires },
        state,
        priority: Priority::ZERO,
        retries,
        remaining,
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
