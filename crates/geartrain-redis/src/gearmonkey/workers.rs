//! Registered workers: the counter that roll calls read, and our share of it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use geartrain_core::{
    Announce, AnnounceChange, Announcement, Capability, QueueName, RollCall, Seconds, Timestamp,
    WorkerCounts, WorkerJobsReply, WorkerName,
};
use redis::cmd;

use super::keys::{Keys, jid_of};
use super::script;
use super::session::{Session, check_klass, from_milliseconds, milliseconds, unsupported};
use crate::layout::CallError;

/// How often registrations are renewed, and how long one lasts.
const RENEW: Duration = Duration::from_secs(5);
const REGISTERED: Duration = Duration::from_secs(15);

impl Session {
    /// Registers a worker for functions, or takes it off their counts.
    pub(super) async fn announce(&self, announce: &Announce, now: Timestamp) -> Result<(), CallError> {
        let worker = &announce.worker;
        let of = |capabilities: &[Capability]| {
            let queues = capabilities.iter().map(|capability| {
                if capability.attempt_max.is_some() {
                    return Err(unsupported("limit how long an attempt takes"));
                }
                if let Some(klass) = &capability.klass {
                    check_klass(klass, &capability.queue)?;
                }
                Ok(capability.queue.clone())
            });
            queues.collect::<Result<BTreeSet<QueueName>, _>>()
        };
        let before = self.registered.lock().get(worker).cloned().unwrap_or_default();
        let after: BTreeSet<QueueName> = match &announce.change {
            AnnounceChange::Can(more) => before.union(&of(more)?).cloned().collect(),
            AnnounceChange::Cannot(fewer) => {
                before.iter().filter(|queue| !fewer.iter().any(|(it, _)| it == *queue)).cloned().collect()
            }
            AnnounceChange::Only(all) => of(all)?,
        };
        for queue in before.difference(&after) {
            let keys = Keys::of(queue.as_str());
            self.run::<i64>(&script::UNREGISTER, &keys, &[worker.as_str().as_bytes()]).await?;
        }
        for queue in &after {
            self.register(worker, queue, now).await?;
        }
        let mut registered = self.registered.lock();
        if after.is_empty() {
            registered.remove(worker);
        } else {
            registered.insert(worker.clone(), after);
        }
        Ok(())
    }

    /// Sets the counter of a function, and returns its old text.
    pub(super) async fn set_worker_count(
        &self,
        function: &QueueName,
        count: u64,
    ) -> Result<String, CallError> {
        let keys = Keys::of(function.as_str());
        let old: Vec<u8> = self.run(&script::SET_COUNT, &keys, &[count.to_string().as_bytes()]).await?;
        Ok(String::from_utf8_lossy(&old).into_owned())
    }

    async fn register(
        &self,
        worker: &WorkerName,
        queue: &QueueName,
        now: Timestamp,
    ) -> Result<(), CallError> {
        let deadline = milliseconds(now + Seconds::from(REGISTERED));
        let arguments = [worker.as_str().as_bytes(), deadline.as_bytes()];
        self.run::<i64>(&script::REGISTER, &Keys::of(queue.as_str()), &arguments).await.map(drop)
    }

    /// Renews the registrations of this process, and handles what other processes have lost.
    pub(super) async fn renew_registrations(self) {
        loop {
            tokio::time::sleep(RENEW).await;
            let registered: Vec<_> = self.registered.lock().clone().into_iter().collect();
            let mut queues = BTreeSet::new();
            for (worker, served) in registered {
                for queue in served {
                    if let Err(error) = self.register(&worker, &queue, self.shared.clock.now()).await {
                        tracing::warn!(%worker, %queue, ?error, "cannot renew the registration of a worker");
                    }
                    queues.insert(queue);
                }
            }
            for queue in queues {
                if let Err(error) = self.recover(&queue, self.shared.clock.now()).await {
                    tracing::warn!(%queue, ?error, "cannot look for lost workers");
                }
            }
        }
    }

    /// How many workers are registered for a function, after lost workers of ours were taken off.
    pub(super) async fn roll_call(&self, call: &RollCall, now: Timestamp) -> Result<u64, CallError> {
        if let Some(klass) = &call.klass {
            check_klass(klass, &call.queue)?;
        }
        self.recover(&call.queue, now).await?;
        self.registered_workers(&call.queue).await
    }

    /// Our registered workers: others only count themselves.
    pub(super) async fn announced(&self, only: Option<&WorkerName>) -> Result<Vec<Announcement>, CallError> {
        let mut found: BTreeMap<WorkerName, Announcement> = BTreeMap::new();
        for queue in self.functions().await? {
            let keys = Keys::of(queue.as_str());
            let all: Vec<(String, f64)> = self
                .ask(keys.workers(), cmd("ZRANGE").arg(keys.workers()).arg(0).arg(-1).arg("WITHSCORES"))
                .await?;
            for (name, deadline) in all {
                let Ok(worker) = WorkerName::new(name) else { continue };
                if only.is_some_and(|only| *only != worker) {
                    continue;
                }
                let seen = from_milliseconds(deadline) - Seconds::from(REGISTERED);
                let announcement = found.entry(worker.clone()).or_insert_with(|| Announcement {
                    worker,
                    seen: Some(seen),
                    capabilities: Vec::new(),
                });
                announcement.seen = announcement.seen.max(Some(seen));
                let (queue, klass) = (queue.clone(), None);
                announcement.capabilities.push(Capability { queue, klass, attempt_max: None });
            }
        }
        Ok(found.into_values().collect())
    }

    /// Our workers, with the jobs that they have.
    pub(super) async fn workers(&self, now: Timestamp) -> Result<Vec<WorkerCounts>, CallError> {
        let mut found: BTreeMap<WorkerName, WorkerCounts> = BTreeMap::new();
        let counts = |name: WorkerName, seen| WorkerCounts { name, jobs: 0, stalled: 0, seen };
        for Announcement { worker, seen, .. } in self.announced(None).await? {
            found.insert(worker.clone(), counts(worker, seen));
        }
        for queue in self.functions().await? {
            for attempt in self.attempts(&queue).await? {
                let worker = attempt.lock.worker;
                let counts = found.entry(worker.clone()).or_insert_with(|| counts(worker, None));
                if attempt.lock.expires > now {
                    counts.jobs += 1;
                } else {
                    counts.stalled += 1;
                }
            }
        }
        Ok(found.into_values().collect())
    }

    /// The jobs that a worker of ours has.
    pub(super) async fn worker_jobs(
        &self,
        worker: &WorkerName,
        now: Timestamp,
    ) -> Result<WorkerJobsReply, CallError> {
        let mut reply = WorkerJobsReply::default();
        for queue in self.functions().await? {
            for attempt in self.attempts(&queue).await?.into_iter().filter(|it| it.lock.worker == *worker) {
                let Some(jid) = jid_of(&queue, &attempt.id) else { continue };
                if attempt.lock.expires > now { reply.jobs.push(jid) } else { reply.stalled.push(jid) }
            }
        }
        Ok(reply)
    }
}
