//! Taking tasks: a worker of this process moves them from the front of a queue into processes of its own.

use std::time::{Duration, Instant};

use geartrain_core::{
    Klass, Lock, Payload, Pop, PopOrder, PopReply, Popped, Priority, QueueName, Seconds, Timestamp,
    WorkerName,
};
use redis::cmd;

use super::names::{Notice, Process, check_queue, digest};
use super::read::{View, klass_of};
use super::script;
use super::session::{Held, Session, Unanswered};
use crate::layout::{CallError, check_queues};

/// The most tasks that one script takes.
const TAKE_MAX: usize = 256;
/// How often the tasks of a take without a reply are looked for.
const LOOKS: u32 = 5;
/// The longest pause after a returned task.
const PAUSE_MAX: Duration = Duration::from_secs(60);

impl Session {
    /// Whether one of the queues has a task.
    pub(super) async fn is_ready(&self, queues: &[QueueName]) -> Result<bool, CallError> {
        check_queues(queues)?;
        queues.iter().try_for_each(check_queue)?;
        let channel = |queue: &QueueName| self.names.channel(queue.as_str(), Notice::Work);
        self.listener.subscribe(queues.iter().map(channel).collect()).await;
        for queue in queues {
            if self.waiting(queue).await? > 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// When the first pause of a worker ends that keeps it from one of the queues.
    pub(super) fn pause_end(&self, pop: &Pop, now: Timestamp) -> Option<Timestamp> {
        let state = self.state.lock();
        let ends = pop.queues.iter().filter_map(|queue| {
            let end = state.pauses.get(&(pop.worker.clone(), queue.clone()))?;
            Some(now + Seconds::from(end.saturating_duration_since(Instant::now())))
        });
        ends.min_by(|one, other| one.get().total_cmp(&other.get()))
    }

    pub(super) async fn pop_now(&self, pop: &Pop) -> Result<PopReply, CallError> {
        check_queues(&pop.queues)?;
        pop.queues.iter().try_for_each(check_queue)?;
        let queues: Vec<&QueueName> = pop.queues.iter().filter(|queue| self.is_served(queue, pop)).collect();
        let (count, first) = (pop.count.get(), pop.order.turn(pop.queues.len()));
        let (mut jobs, mut turn) = (Vec::new(), first);
        let taken = async {
            if pop.order == PopOrder::Strict || pop.queues.len() == 1 {
                for queue in queues {
                    self.take(queue, pop, count, &mut jobs).await?;
                }
                return Ok(());
            }
            // One from each queue in turn. Tasks have no priorities, so that order by priority is the same.
            let (all, mut empty) = (pop.queues.len(), 0);
            while jobs.len() < count && empty < all {
                let queue = &pop.queues[turn % all];
                turn = (turn + 1) % all;
                let before = jobs.len();
                if queues.contains(&queue) {
                    self.take(queue, pop, before + 1, &mut jobs).await?;
                }
                empty = if jobs.len() == before { empty + 1 } else { 0 };
            }
            Ok(())
        };
        let taken: Result<(), CallError> = taken.await;
        match taken {
            // What was taken goes to the caller. The trouble shows again at the next call.
            Err(_) if !jobs.is_empty() => {}
            other => other?,
        }
        let turn = if pop.order == PopOrder::Strict { 0 } else { turn };
        Ok(PopReply { jobs, turn })
    }

    /// Whether a pop takes from a queue: its klass is wanted, and the worker does not pause there.
    fn is_served(&self, queue: &QueueName, pop: &Pop) -> bool {
        let wanted = |klasses: &Vec<Klass>| klasses.iter().any(|klass| klass.as_str() == queue.as_str());
        if !pop.klasses.as_ref().is_none_or(wanted) {
            return false;
        }
        let mut state = self.state.lock();
        if state.pauses.is_empty() {
            return true;
        }
        state.pauses.retain(|_, until| *until > Instant::now());
        !state.pauses.contains_key(&(pop.worker.clone(), queue.clone()))
    }

    /// Takes tasks of one queue until there are `count` jobs.
    async fn take(
        &self,
        queue: &QueueName,
        pop: &Pop,
        count: usize,
        jobs: &mut Vec<Popped>,
    ) -> Result<(), CallError> {
        loop {
            // Also without a job to take: a pop registers its worker.
            let worker = self.own_worker(&pop.worker).await?;
            if !self.start_work(&pop.worker, &worker, queue).await? {
                self.declared_dead(&worker).await;
                continue;
            }
            let wanted = count.saturating_sub(jobs.len()).min(TAKE_MAX);
            if wanted == 0 {
                return Ok(());
            }
            let processes: Vec<Process> = (0..wanted).map(|_| Process::new(queue)).collect();
            let mut keys = vec![
                self.names.timer(&worker),
                self.names.processes(&self.member(&worker, queue)),
                self.names.queue(queue.as_str()),
            ];
            keys.extend(processes.iter().map(|process| self.names.process(&process.id)));
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            let ids: Vec<&str> = processes.iter().map(|process| process.id.as_str()).collect();
            let tasks = match self.run::<Option<Vec<Vec<u8>>>>(&script::TAKE, &keys, ids).await {
                Err(error @ CallError::Connection(_)) => {
                    let unanswered = |process| Unanswered { process, worker: worker.clone(), looks: LOOKS };
                    self.state.lock().unanswered.extend(processes.into_iter().map(unanswered));
                    return Err(error);
                }
                tasks => tasks?,
            };
            let Some(tasks) = tasks else {
                self.declared_dead(&worker).await;
                continue;
            };
            let taken = tasks.len();
            self.hand_out(&worker, pop, processes.into_iter().zip(tasks), jobs).await;
            if taken < wanted {
                return Ok(());
            }
        }
    }

    async fn hand_out(
        &self,
        worker: &str,
        pop: &Pop,
        taken: impl Iterator<Item = (Process, Vec<u8>)>,
        jobs: &mut Vec<Popped>,
    ) {
        let expires = self.shared.clock.now() + Seconds::from(self.options.timer);
        let taken: Vec<Held> = taken
            .map(|(process, task)| Held {
                process,
                name: pop.worker.clone(),
                worker: worker.to_owned(),
                digest: digest(&task),
                task: Payload::from(task),
            })
            .collect();
        if taken.is_empty() {
            return;
        }
        {
            let mut state = self.state.lock();
            state.held.extend(taken.iter().map(|held| (held.process.id.clone(), held.clone())));
        }
        let digests: Vec<&str> = taken.iter().map(|held| held.digest.as_str()).collect();
        // The tasks are taken: without the counts, they are shown with all of their retries.
        let used = self.attempts(&taken[0].process.queue, &digests).await.unwrap_or_default();
        for (place, held) in taken.into_iter().enumerate() {
            let used = used.get(place).copied().unwrap_or_default();
            let lock = Lock { worker: pop.worker.clone(), token: held.process.token(), expires };
            let remaining = i64::from(self.options.retries) - used;
            let view = View { process: &held.process, task: &held.task, lock: lock.clone(), remaining };
            let job = pop.whole.then(|| Box::new(view.job(self.options.retries)));
            jobs.push(Popped {
                jid: held.process.jid(),
                klass: klass_of(&held.process.queue),
                queue: held.process.queue,
                payload: held.task,
                priority: Priority::ZERO,
                retries: self.options.retries,
                remaining,
                lock,
                details: None,
                job,
            });
        }
    }

    /// How often tasks of a queue failed.
    pub(super) async fn attempts(&self, queue: &QueueName, digests: &[&str]) -> Result<Vec<i64>, CallError> {
        let key = self.names.attempts(queue.as_str());
        let used: Vec<Option<i64>> = self.ask(&key, cmd("HMGET").arg(&key).arg(digests)).await?;
        Ok(used.into_iter().map(Option::unwrap_or_default).collect())
    }

    /// Keeps a worker from a queue for a while, because it has just returned a task whose handler failed: the
    /// task is at the front, and would be taken again at once.
    pub(super) fn pause(&self, name: WorkerName, queue: QueueName, attempts: u32) {
        let doublings = attempts.saturating_sub(1).min(16);
        let pause = (self.options.backoff * (1 << doublings)).min(PAUSE_MAX.max(self.options.backoff));
        self.state.lock().pauses.insert((name, queue), Instant::now() + pause);
    }
}
