//! Ends of processes: complete, fail, retry, release; and heartbeats between.

use geartrain_core::{
    Complete, CompleteReply, Fail, Heartbeat, Holder, Jid, Payload, QueueName, Refusal, Release, Retry,
    Seconds, StateName, Timeout, Timestamp, WorkerName,
};
use redis::cmd;

use super::message::{self, Finish};
use super::names::{Notice, Process, check_queue, digest, is_worker_of};
use super::put::check_size;
use super::script;
use super::session::{Held, Session, Unanswered, unsupported};
use crate::layout::{CallError, bad_argument};

/// The worker in messages about processes that belong to no known one.
const UNKNOWN: &str = "geartrain";

/// A process that a command is about.
struct Holding {
    process: Process,
    /// The ID of its worker, if its process set tells.
    worker: Option<String>,
    /// The name of the worker, if it is one of this process.
    name: Option<WorkerName>,
    task: Payload,
    digest: String,
}

impl From<Held> for Holding {
    fn from(held: Held) -> Holding {
        let Held { process, name, worker, task, digest } = held;
        Holding { process, worker: Some(worker), name: Some(name), task, digest }
    }
}

impl Holding {
    fn worker(&self) -> &str {
        self.worker.as_deref().unwrap_or(UNKNOWN)
    }
}

impl Session {
    /// The process that a holder has, or the refusal if it has none. Without a holder, that of any.
    async fn holding(&self, jid: &Jid, holder: Option<&Holder>) -> Result<Holding, CallError> {
        let id = jid.to_string();
        let no_such = || Refusal::NoSuchJob { jid: jid.clone() };
        let process = Process::parse(&id).ok_or_else(no_such)?;
        check_queue(&process.queue)?;
        if matches!(holder, Some(Holder::Token(token)) if *token != process.token()) {
            return Err(Refusal::LockLost { jid: jid.clone(), state: StateName::Running }.into());
        }
        let held = self.state.lock().held.get(&id).cloned();
        let held = match held {
            Some(held) => Holding::from(held),
            None => {
                let Some(task) = self.task_of(&process).await? else { return Err(self.lost(jid).into()) };
                let workers = self.workers().await?;
                let holder = workers.into_iter().find(|worker| worker.processes.contains(&id));
                let (worker, digest) = (holder.map(|worker| worker.id), digest(&task));
                Holding { process, worker, name: None, task: Payload::from(task), digest }
            }
        };
        if let Some(Holder::Worker(given)) = holder {
            let is_named = held.name.as_ref().is_some_and(|name| name == given);
            match &held.worker {
                Some(id) if is_named || is_worker_of(id, given.as_str()) => {}
                Some(id) => {
                    let holder = WorkerName::new(id).unwrap_or_else(|_| given.clone());
                    let worker = given.clone();
                    return Err(Refusal::HeldByAnother { jid: jid.clone(), worker, holder }.into());
                }
                None => {
                    let why = "cannot be checked: the processes of this queue are in a set that is shared by \
                               its workers; give the token";
                    return Err(bad_argument("worker", why).into());
                }
            }
        }
        Ok(held)
    }

    /// The refusal for a process that is gone. Whether its task waits, runs elsewhere or is finished is not
    /// known, unless it was cancelled here.
    fn lost(&self, jid: &Jid) -> Refusal {
        if self.state.lock().was_cancelled(jid.to_string().as_str()) {
            return Refusal::NoSuchJob { jid: jid.clone() };
        }
        Refusal::LockLost { jid: jid.clone(), state: StateName::Waiting }
    }

    /// The key of the set that a process is in.
    fn set_of(&self, held: &Holding) -> String {
        let queue = &held.process.queue;
        self.names.processes(&match &held.worker {
            Some(worker) if held.name.is_some() => self.member(worker, queue),
            // Found in a set of its own.
            Some(worker) => format!("{worker}_{queue}"),
            None => queue.to_string(),
        })
    }

    /// Extends the lock of all processes of the worker, which is its timer.
    pub(super) async fn heartbeat(
        &self,
        heartbeat: &Heartbeat,
        now: Timestamp,
    ) -> Result<Timestamp, CallError> {
        if heartbeat.payload.is_some() {
            return Err(unsupported("change a task").into());
        }
        let held = self.holding(&heartbeat.jid, Some(&heartbeat.holder)).await?;
        if let Some(worker) = &held.worker
            && !self.renew(worker).await?
        {
            self.declared_dead(worker).await;
            self.state.lock().forget(&held.process.id);
            return Err(self.lost(&heartbeat.jid).into());
        }
        let key = self.names.process(&held.process.id);
        if self.ask::<i64>(&key, cmd("EXISTS").arg(&key)).await? == 0 {
            self.state.lock().forget(&held.process.id);
            return Err(self.lost(&heartbeat.jid).into());
        }
        Ok(now + Seconds::from(self.options.timer))
    }

    /// Finishes a task. Its result is published, and stored nowhere.
    pub(super) async fn complete(&self, complete: &Complete) -> Result<CompleteReply, CallError> {
        let Complete { jid, holder, queue, payload, next, result } = complete;
        if payload.is_some() {
            return Err(unsupported("change a task").into());
        }
        if next.is_some() {
            return Err(unsupported("send a task on to another queue").into());
        }
        if let Some(result) = result {
            check_size("result", &result.bytes)?;
        }
        let held = self.holding(jid, Some(holder)).await?;
        check_given(&held, jid, queue.as_ref())?;
        self.finish(&held, jid, &Finish::Completed(result.as_deref())).await?;
        Ok(CompleteReply::Complete)
    }

    /// Finishes a task with a result that carries the error: Worqr has no failed ones.
    pub(super) async fn fail(&self, fail: &Fail) -> Result<(), CallError> {
        if fail.payload.is_some() {
            return Err(unsupported("change a task").into());
        }
        let held = self.holding(&fail.jid, Some(&fail.holder)).await?;
        self.finish(&held, &fail.jid, &Finish::Failed(&fail.message)).await
    }

    async fn finish(&self, held: &Holding, jid: &Jid, finish: &Finish<'_>) -> Result<(), CallError> {
        let (names, queue) = (&self.names, held.process.queue.as_str());
        let keys = [
            names.process(&held.process.id),
            self.set_of(held),
            names.marker(&held.digest),
            names.attempts(queue),
        ];
        let message = message::done(held.worker(), held.task.bytes(), finish);
        let channel = names.channel(queue, Notice::Done);
        let arguments = [held.process.id.as_str(), &channel, &message, &held.digest];
        let keys = keys.each_ref().map(String::as_str);
        let finished: i64 = self.run(&script::FINISH, &keys, &arguments[..]).await?;
        self.ended(held, jid, finished == 1)
    }

    /// Forgets a process that a script ended, or refuses if it was gone.
    fn ended(&self, held: &Holding, jid: &Jid, was_there: bool) -> Result<(), CallError> {
        self.state.lock().forget(&held.process.id);
        if was_there { Ok(()) } else { Err(self.lost(jid).into()) }
    }

    /// Returns a task to the front and uses up a retry. Without one left, it is finished.
    pub(super) async fn retry(&self, retry: &Retry) -> Result<i64, CallError> {
        if retry.delay > Seconds::ZERO {
            return Err(unsupported("delay a retry: its worker pauses instead").into());
        }
        let held = self.holding(&retry.jid, Some(&retry.holder)).await?;
        check_given(&held, &retry.jid, retry.queue.as_ref())?;
        let (names, queue) = (&self.names, held.process.queue.as_str());
        let keys = [
            names.queue(queue),
            names.process(&held.process.id),
            self.set_of(&held),
            names.attempts(queue),
            names.marker(&held.digest),
        ];
        let error = retry.message.as_deref().unwrap_or("no retries are left");
        let message = message::done(held.worker(), held.task.bytes(), &Finish::Failed(error));
        let (work, done) = (names.channel(queue, Notice::Work), names.channel(queue, Notice::Done));
        let retries = self.options.retries.to_string();
        let arguments = [held.process.id.as_str(), &work, &held.digest, &retries, &done, &message];
        let keys = keys.each_ref().map(String::as_str);
        // Before the notice, so that no parked pop of this process takes it at once.
        let pauses = retry.random.is_some() && retry.delay == Seconds::ZERO;
        if let (true, Some(name)) = (pauses, &held.name) {
            self.pause(name.clone(), held.process.queue.clone(), 1);
        }
        let left: i64 = self.run(&script::RETRY, &keys, &arguments[..]).await?;
        self.ended(&held, &retry.jid, left > -2)?;
        if let (true, Some(name)) = (pauses && left >= 0, &held.name) {
            let used = i64::from(self.options.retries) - left;
            self.pause(name.clone(), held.process.queue.clone(), u32::try_from(used).unwrap_or(1));
        }
        Ok(left)
    }

    /// Returns a task to the front without using up a retry.
    pub(super) async fn give_back(&self, release: &Release) -> Result<(), CallError> {
        if release.delay > Seconds::ZERO {
            return Err(unsupported("delay a task").into());
        }
        let held = self.holding(&release.jid, Some(&release.holder)).await?;
        self.return_task(&held, &release.jid).await
    }

    /// Takes processes away from their workers: all of them or, if one is gone, none.
    pub(super) async fn timeout(&self, timeout: &Timeout) -> Result<(), CallError> {
        let mut all = Vec::with_capacity(timeout.jids.len());
        for jid in &timeout.jids {
            all.push((self.holding(jid, None).await?, jid));
        }
        for (held, jid) in all {
            self.return_task(&held, jid).await?;
        }
        Ok(())
    }

    async fn return_task(&self, held: &Holding, jid: &Jid) -> Result<(), CallError> {
        let returned = self.return_process(&held.process, &self.set_of(held)).await?;
        self.ended(held, jid, returned)
    }

    /// Returns the task of a process. False if there is none.
    async fn return_process(&self, process: &Process, set: &str) -> Result<bool, CallError> {
        let (names, queue) = (&self.names, process.queue.as_str());
        let (list, key) = (names.queue(queue), names.process(&process.id));
        let channel = names.channel(queue, Notice::Work);
        let arguments = [process.id.as_str(), &channel];
        let returned: i64 = self.run(&script::GIVE_BACK, &[&list, &key, set], &arguments[..]).await?;
        Ok(returned == 1)
    }

    /// Returns what takes without a reply may have taken: its worker is alive, so that nothing else would.
    pub(super) async fn settle(&self) {
        let unanswered = std::mem::take(&mut self.state.lock().unanswered);
        for Unanswered { process, worker, looks } in unanswered {
            let set = self.names.processes(&self.member(&worker, &process.queue));
            let looks = match self.return_process(&process, &set).await {
                Ok(true) => continue,
                // A Redis that was frozen may execute the take later.
                Ok(false) => looks - 1,
                Err(_) => looks,
            };
            if looks > 0 {
                self.state.lock().unanswered.push(Unanswered { process, worker, looks });
            }
        }
    }

    /// Finishes the processes of this process with a cancelled task. Their handlers are told by the next
    /// heartbeat.
    pub(super) async fn finish_cancelled(&self, queue: &QueueName, task: &[u8]) {
        let held: Vec<Held> = {
            let state = self.state.lock();
            let is_meant = |held: &&Held| held.process.queue == *queue && held.task.bytes() == task;
            state.held.values().filter(is_meant).cloned().collect()
        };
        for held in held.into_iter().map(Holding::from) {
            let jid = held.process.jid();
            // Before it is finished: its handler must not be told that the lock was lost.
            self.state.lock().cancelled(held.process.id.clone());
            if let Err(error) = self.finish(&held, &jid, &Finish::Cancelled).await {
                tracing::debug!(%jid, ?error, "cannot finish a cancelled task");
            }
        }
    }
}

/// Refuses to end a process of another queue than the caller thinks.
fn check_given(held: &Holding, jid: &Jid, given: Option<&QueueName>) -> Result<(), Refusal> {
    match given {
        Some(given) if *given != held.process.queue => {
            let (queue, given) = (held.process.queue.clone(), given.clone());
            Err(Refusal::WrongQueue { jid: jid.clone(), queue, given })
        }
        _ => Ok(()),
    }
}
