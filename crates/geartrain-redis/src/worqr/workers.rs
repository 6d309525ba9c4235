//! Workers: timers of our own, and the tasks of workers whose timers ran out.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use geartrain_core::{QueueName, Refusal, WorkerName};
use redis::cmd;

use super::names::{Notice, Process, check_queue, is_worker_of, new_worker_id};
use super::script;
use super::session::{OwnWorker, Session, texts};
use crate::layout::{CallError, bad_argument};

/// What a script did with a worker.
pub(super) struct FailedWorker {
    /// Not so if it is alive, or if live workers share its process sets.
    is_failed: bool,
    /// Whether it was left to the workers that share its process sets.
    is_left: bool,
    /// Processes whose tasks were returned.
    pub(super) returned: Vec<String>,
}

impl Session {
    /// The ID of this process's worker of a name, which is started if there is none.
    pub(super) async fn own_worker(&self, name: &WorkerName) -> Result<String, CallError> {
        let known = || self.state.lock().workers.get(name).map(|worker| worker.id.clone());
        if let Some(id) = known() {
            return Ok(id);
        }
        let _starting = self.starting.lock().await;
        if let Some(id) = known() {
            return Ok(id);
        }
        let id = new_worker_id(name)?;
        let (workers, expiring, timer) = (self.names.workers(), self.names.expiring(), self.names.timer(&id));
        let arguments = [id.as_str(), &self.expiry()];
        self.run::<()>(&script::START_WORKER, &[&workers, &expiring, &timer], &arguments[..]).await?;
        let worker = OwnWorker { id: id.clone(), queues: HashSet::new() };
        self.state.lock().workers.insert(name.clone(), worker);
        self.started.notify_one();
        Ok(id)
    }

    /// Registers a worker's work on a queue. False if it has been declared dead.
    pub(super) async fn start_work(
        &self,
        name: &WorkerName,
        id: &str,
        queue: &QueueName,
    ) -> Result<bool, CallError> {
        if self.state.lock().workers.get(name).is_some_and(|worker| worker.queues.contains(queue)) {
            return Ok(true);
        }
        // Subscribed first, so that no notice is missed after the first look.
        let channel = |notice| self.names.channel(queue.as_str(), notice);
        self.listener.subscribe(vec![channel(Notice::Work), channel(Notice::Cancel)]).await;
        let (timer, work, member) = (self.names.timer(id), self.names.work(id), self.member(id, queue));
        if self.run::<i64>(&script::START_WORK, &[&timer, &work], &member).await? == 0 {
            return Ok(false);
        }
        if let Some(worker) = self.state.lock().workers.get_mut(name).filter(|worker| worker.id == id) {
            worker.queues.insert(queue.clone());
        }
        Ok(true)
    }

    fn expiry(&self) -> String {
        self.options.timer.as_millis().to_string()
    }

    /// Sets a worker's timer again. False if it ran out.
    pub(super) async fn renew(&self, id: &str) -> Result<bool, CallError> {
        let key = self.names.timer(id);
        let set = cmd("SET").arg(&key).arg("RUN").arg("PX").arg(self.expiry()).arg("XX").take();
        Ok(self.ask::<Option<String>>(&key, &set).await?.is_some())
    }

    /// Renews the timers of this process, and looks for dead workers, while there are workers here.
    pub(super) async fn keep_alive(self: Arc<Session>) {
        let (mut renew, mut reap) = (Instant::now(), Instant::now());
        loop {
            if self.state.lock().workers.is_empty() {
                self.started.notified().await;
                (renew, reap) = (Instant::now() + self.options.heartbeat, Instant::now());
                continue;
            }
            self.shared.timer(renew.min(reap).saturating_duration_since(Instant::now())).await;
            if Instant::now() >= renew {
                self.renew_all().await;
                self.settle().await;
                renew = Instant::now() + self.options.heartbeat;
            }
            if Instant::now() >= reap {
                if let Err(error) = self.reap().await {
                    tracing::debug!(?error, "cannot look for dead workers");
                }
                reap = Instant::now() + self.options.reap;
            }
        }
    }

    async fn renew_all(&self) {
        let ids: Vec<String> = self.state.lock().workers.values().map(|worker| worker.id.clone()).collect();
        for id in ids {
            match self.renew(&id).await {
                Ok(true) => {}
                Ok(false) => self.declared_dead(&id).await,
                Err(error) => tracing::debug!(?error, "cannot renew the timer of a worker"),
            }
        }
    }

    /// Gives up a worker of this process whose timer ran out: its tasks may be running elsewhere. Its next pop
    /// starts it under another ID.
    pub(super) async fn declared_dead(&self, id: &str) {
        let held = {
            let mut state = self.state.lock();
            let before = state.workers.len();
            state.workers.retain(|_, worker| worker.id != id);
            if state.workers.len() == before {
                return;
            }
            let held = state.held_by(id);
            held.iter().for_each(|process| state.forget(process));
            held
        };
        tracing::warn!(
            worker = id,
            jobs = held.len(),
            "the timer of this worker ran out: its locks are lost"
        );
        if let Err(error) = self.fail_own(id, "", &held).await {
            tracing::debug!(?error, "cannot return the tasks of this worker: others do");
        }
    }

    async fn fail_own(&self, id: &str, member: &str, held: &[String]) -> Result<FailedWorker, CallError> {
        // A process set that is shared does not say whose processes it has.
        let listed = self.options.native_sets.then_some(held);
        self.fail_worker(id, true, member, listed).await
    }

    /// Returns the tasks of a worker, and removes it; with a member, ends its work on that queue only.
    async fn fail_worker(
        &self,
        id: &str,
        forced: bool,
        member: &str,
        listed: Option<&[String]>,
    ) -> Result<FailedWorker, CallError> {
        let names = &self.names;
        let keys = [names.workers(), names.expiring(), names.permanent(), names.timer(id), names.work(id)];
        let flag = |is_set| if is_set { "1" } else { "" };
        let mut arguments = vec![names.prefix(), id, flag(forced), member, flag(listed.is_some())];
        arguments.extend(listed.unwrap_or_default().iter().map(String::as_str));
        let keys = keys.each_ref().map(String::as_str);
        let (done, returned, problems): (String, Vec<Vec<u8>>, Vec<Vec<u8>>) =
            self.run(&script::FAIL_WORKER, &keys, arguments).await?;
        let returned = texts(returned);
        for problem in texts(problems) {
            if self.state.lock().problems.insert(problem.clone()) {
                tracing::warn!(worker = id, problem, "some tasks of a worker cannot be returned");
            }
        }
        Ok(FailedWorker { is_failed: done == "failed", is_left: done == "left", returned })
    }

    /// Fails all workers whose timers ran out, except our own.
    async fn reap(&self) -> Result<(), CallError> {
        let key = self.names.expiring();
        let ids = texts(self.ask(&key, cmd("SMEMBERS").arg(&key)).await?);
        if ids.is_empty() {
            return Ok(());
        }
        let timers: Vec<String> = ids.iter().map(|id| self.names.timer(id)).collect();
        let alive: Vec<Option<Vec<u8>>> = self.ask(&timers[0], cmd("MGET").arg(&timers)).await?;
        let own: HashSet<String> =
            self.state.lock().workers.values().map(|worker| worker.id.clone()).collect();
        for (id, _) in ids.iter().zip(alive).filter(|(id, alive)| alive.is_none() && !own.contains(*id)) {
            let FailedWorker { is_failed, returned, .. } = self.fail_worker(id, false, "", None).await?;
            if is_failed {
                tracing::warn!(worker = id, jobs = returned.len(), "a worker is lost: returned its jobs");
            }
        }
        Ok(())
    }

    /// Fails the workers of a name or an ID now, alive or not. Returns the processes whose tasks were returned.
    pub(super) async fn worker_lost(&self, name: &WorkerName) -> Result<Vec<Process>, CallError> {
        let mut returned = Vec::new();
        for worker in
            self.workers().await?.into_iter().filter(|worker| is_worker_of(&worker.id, name.as_str()))
        {
            let failed = self.fail_worker(&worker.id, true, "", None).await?;
            if failed.is_left {
                let why = format!(
                    "shares its processes with live workers, which fail it themselves: {}",
                    worker.id
                );
                return Err(bad_argument("worker", why).into());
            }
            returned.extend(failed.returned);
        }
        returned.sort_unstable();
        Ok(returned.iter().filter_map(|process| Process::parse(process)).collect())
    }

    /// Ends a worker's work on a queue; its tasks go back. Returns how many.
    pub(super) async fn stop_work(&self, name: &WorkerName, queue: &QueueName) -> Result<u64, CallError> {
        check_queue(queue)?;
        let (id, held) = {
            let mut state = self.state.lock();
            let worker = state.workers.get_mut(name);
            let id = worker.and_then(|worker| worker.queues.remove(queue).then(|| worker.id.clone()));
            let Some(id) = id else {
                return Err(not_working(name).into());
            };
            let mut held = state.held_by(&id);
            held.retain(|process| state.held[process].process.queue == *queue);
            held.iter().for_each(|process| state.forget(process));
            (id, held)
        };
        let failed = self.fail_own(&id, &self.member(&id, queue), &held).await?;
        Ok(failed.returned.len() as u64)
    }

    /// Removes a worker of this process; its tasks go back. Returns how many.
    pub(super) async fn stop_worker(&self, name: &WorkerName) -> Result<u64, CallError> {
        let (id, held) = {
            let mut state = self.state.lock();
            let Some(worker) = state.workers.remove(name) else { return Err(not_working(name).into()) };
            let held = state.held_by(&worker.id);
            held.iter().for_each(|process| state.forget(process));
            (worker.id, held)
        };
        Ok(self.fail_own(&id, "", &held).await?.returned.len() as u64)
    }

    /// Removes the workers that hold nothing. The others have the time of their timers, as after
    /// `geartrain pop`.
    pub(super) async fn retire(&self) {
        let idle: Vec<WorkerName> = {
            let state = self.state.lock();
            let is_idle = |worker: &OwnWorker| state.held.values().all(|held| held.worker != worker.id);
            let idle = state.workers.iter().filter(|(_, worker)| is_idle(worker));
            idle.map(|(name, _)| name.clone()).collect()
        };
        for name in idle {
            if let Err(error) = self.stop_worker(&name).await {
                tracing::debug!(?error, "cannot remove a worker: its timer will run out");
            }
        }
    }
}

fn not_working(name: &WorkerName) -> Refusal {
    bad_argument("worker", format!("must be at work in this process, which {name} is not"))
}
