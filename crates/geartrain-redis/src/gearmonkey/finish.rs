//! Ends of attempts: complete, fail, retry, release, cancel; and heartbeats and progress between.

use geartrain_core::{
    Backoff, Cancel, Complete, CompleteReply, Fail, Heartbeat, Holder, Jid, Progress, QueueName, Refusal,
    Release, Retry, Seconds, StateName, Timestamp, WorkerName,
};

use super::keys::{JobName, Keys};
use super::script;
use super::session::{Session, due, milliseconds, unsupported, whole_seconds};
use crate::layout::{CallError, Script};

impl Session {
    pub(super) async fn heartbeat(
        &self,
        heartbeat: &Heartbeat,
        now: Timestamp,
    ) -> Result<Timestamp, CallError> {
        if heartbeat.payload.is_some() {
            return Err(unsupported("change a job's payload").into());
        }
        self.extend(&heartbeat.jid, &heartbeat.holder, now, ["", ""]).await
    }

    /// Notes progress, which extends the lease too.
    pub(super) async fn progress(&self, progress: &Progress, now: Timestamp) -> Result<(), CallError> {
        if progress.text.is_some() {
            return Err(unsupported("report progress in words").into());
        }
        if progress.progress.seconds_left.is_some() {
            return Err(unsupported("report the seconds left").into());
        }
        let portion = progress.progress.portion;
        let portion = [portion.part().to_string(), portion.whole().to_string()];
        let portion = portion.each_ref().map(String::as_str);
        self.extend(&progress.jid, &progress.holder, now, portion).await.map(drop)
    }

    async fn extend(
        &self,
        jid: &Jid,
        holder: &Holder,
        now: Timestamp,
        [part, whole]: [&str; 2],
    ) -> Result<Timestamp, CallError> {
        let expires = now + Seconds::from(self.options.lease);
        let deadline = milliseconds(expires);
        let arguments = [deadline.as_bytes(), part.as_bytes(), whole.as_bytes()];
        self.end(&script::HEARTBEAT, (jid, holder), None, &arguments).await?;
        Ok(expires)
    }

    /// Completes a job. The output is the result, and empty without one.
    pub(super) async fn complete(&self, complete: &Complete) -> Result<CompleteReply, CallError> {
        let Complete { jid, holder, queue, payload, next, result } = complete;
        if payload.is_some() {
            return Err(unsupported("change a job's payload").into());
        }
        if next.is_some() {
            return Err(unsupported("send a job on to another queue").into());
        }
        if result.as_ref().is_some_and(|result| result.code != 0) {
            return Err(unsupported("keep the code of a result").into());
        }
        let output = result.as_ref().map(|result| result.bytes.bytes()).unwrap_or_default();
        self.end(&script::FINISH, (jid, holder), queue.as_ref(), &[b"success", output, b""]).await?;
        Ok(CompleteReply::Complete)
    }

    /// Ends a job in error. The output is the error text.
    pub(super) async fn fail(&self, fail: &Fail) -> Result<(), CallError> {
        if fail.payload.is_some() {
            return Err(unsupported("change a job's payload").into());
        }
        let arguments = [b"error", fail.message.as_bytes(), fail.group.as_str().as_bytes()];
        self.end(&script::FINISH, (&fail.jid, &fail.holder), None, &arguments).await.map(drop)
    }

    /// Queues a job again and uses up a retry. Without one left, the job ends in error.
    pub(super) async fn retry(&self, retry: &Retry, now: Timestamp) -> Result<i64, CallError> {
        let delay = match retry.random {
            Some(random) if retry.delay == Seconds::ZERO => {
                let job = JobName::of(&retry.jid)?;
                let used = self.fields(&job).await?.map_or(0, |fields| fields.used);
                Backoff::DEFAULT.wait(used, random)
            }
            _ => retry.delay.max(Seconds::ZERO),
        };
        let group = retry.group.as_ref().map_or("failed-retries", |group| group.as_str());
        let message = retry.message.as_deref().unwrap_or("no retries are left");
        let (now, due, retries) = (whole_seconds(now), due(now, delay), self.options.retries.to_string());
        let arguments = [&now, &due, &retries, message, group].map(str::as_bytes);
        let reply =
            self.end(&script::RETRY, (&retry.jid, &retry.holder), retry.queue.as_ref(), &arguments).await?;
        Ok(reply.get(1).and_then(|left| left.parse().ok()).unwrap_or_default())
    }

    /// Queues a job again without using up a retry: where it is taken next, or after a delay.
    pub(super) async fn release(&self, release: &Release, now: Timestamp) -> Result<(), CallError> {
        let (now, due) = (whole_seconds(now), due(now, release.delay));
        let arguments = [now.as_bytes(), due.as_bytes()];
        self.end(&script::RELEASE, (&release.jid, &release.holder), None, &arguments).await.map(drop)
    }

    /// Runs a script about an attempt, and returns its reply.
    async fn end(
        &self,
        script: &Script,
        (jid, holder): (&Jid, &Holder),
        queue: Option<&QueueName>,
        arguments: &[&[u8]],
    ) -> Result<Vec<String>, CallError> {
        let job = JobName::of(jid)?;
        if let Some(given) = queue.filter(|given| **given != job.function) {
            let (queue, given) = (job.function.clone(), given.clone());
            return Err(Refusal::WrongQueue { jid: jid.clone(), queue, given }.into());
        }
        let (token, worker) = match holder {
            Holder::Token(token) => (token.number().to_string(), ""),
            Holder::Worker(worker) => (String::new(), worker.as_str()),
        };
        let mut given: Vec<&[u8]> = vec![job.id.as_bytes(), token.as_bytes(), worker.as_bytes()];
        given.extend(arguments);
        let reply: Vec<String> = self.run(script, &Keys::of(job.function.as_str()), &given).await?;
        match reply.first().map(String::as_str) {
            Some("ok") => Ok(reply),
            Some("held") => {
                let by = reply.get(1).and_then(|by| WorkerName::new(by).ok());
                match (holder, by) {
                    (Holder::Worker(worker), Some(by)) => {
                        let (jid, worker) = (jid.clone(), worker.clone());
                        Err(Refusal::HeldByAnother { jid, worker, holder: by }.into())
                    }
                    _ => Err(self.not_held(&job).await?.into()),
                }
            }
            _ => Err(self.not_held(&job).await?.into()),
        }
    }

    /// The refusal for an attempt that is not held any more, with the present state of its job.
    async fn not_held(&self, job: &JobName) -> Result<Refusal, CallError> {
        let jid = job.jid();
        Ok(match self.fields(job).await? {
            Some(fields) => {
                let state = match fields.status.as_str() {
                    "success" => StateName::Complete,
                    "error" => StateName::Failed,
                    "busy" => StateName::Running,
                    _ => StateName::Waiting,
                };
                Refusal::LockLost { jid, state }
            }
            None => Refusal::NoSuchJob { jid },
        })
    }

    /// Ends queued jobs as cancelled, and asks our workers to stop. What another implementation runs is refused.
    pub(super) async fn cancel(&self, cancel: &Cancel) -> Result<u64, CallError> {
        if cancel.because.is_some() {
            return Err(unsupported("remember why a job was cancelled").into());
        }
        if cancel.cascade {
            return Err(unsupported("make a job depend on others").into());
        }
        let jobs: Vec<JobName> = cancel.jids.iter().map(JobName::of).collect::<Result<_, _>>()?;
        let mut cancelled = 0;
        for job in jobs {
            let keys = Keys::of(job.function.as_str());
            let reply: Vec<String> = self.run(&script::CANCEL, &keys, &[job.id.as_bytes()]).await?;
            match reply.first().map(String::as_str) {
                Some("done" | "asked") => cancelled += 1,
                Some("elsewhere") => {
                    return Err(unsupported("cancel a job that another implementation has taken").into());
                }
                _ => {}
            }
        }
        Ok(cancelled)
    }
}
