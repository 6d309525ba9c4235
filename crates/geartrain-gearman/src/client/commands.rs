//! Command dispatch: the Gearman requests for each command, or a refusal if there are none.

use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use geartrain_core::{
    Answer, BackendError, Call, Cancel, Chunk, ChunkKind, Command, Complete, CompleteReply, DURATION_MAX,
    Fail, Heartbeat, Jid, Portion, Progress, Progressed, QueueCounts, QueueName, Queues, Refusal, Reply,
    RollCall, StateName, StatusOf, StatusReply, Timestamp,
};

use super::admin::FunctionCounts;
use super::error::{ClientError, ServerError, unsupported};
use super::{Shared, admin, job_ids, now, submission};
use crate::packet::{JobStatus, ReportBody, Request, Response};

/// Stands for a name that the server does not report.
const UNKNOWN_NAME: &str = "?";

impl Shared {
    pub(super) async fn execute(self: &Arc<Shared>, batch: Vec<Call>) -> Result<Vec<Answer>, BackendError> {
        let mut answers = Vec::with_capacity(batch.len());
        for call in batch {
            match self.run(call).await {
                Ok(reply) => answers.push(Ok(reply)),
                Err(ClientError::Refused(refusal)) => answers.push(Err(refusal)),
                Err(ClientError::Failed(ServerError::Refused { server, text })) => {
                    let why = format!("was refused by the Gearman server at {server}: {text}");
                    answers.push(Err(Refusal::BadArgument { what: "this".into(), why }));
                }
                Err(ClientError::Failed(error)) => {
                    // The caller gets no replies, so it cannot report on the jobs popped by this batch.
                    for answer in answers {
                        if let Ok(Reply::Pop(popped)) = answer {
                            self.return_jobs(popped.jobs);
                        }
                    }
                    return Err(error.into());
                }
            }
        }
        Ok(answers)
    }

    async fn run(self: &Arc<Shared>, call: Call) -> Result<Reply, ClientError> {
        let now = call.now.unwrap_or_else(now);
        Ok(match call.command {
            Command::Put(put) => Reply::Put(self.put(&put, now).await?),
            Command::Pop(pop) => Reply::Pop(self.pop(&pop, None, pin!(std::future::pending())).await?),
            Command::Heartbeat(heartbeat) => Reply::Heartbeat(self.heartbeat(heartbeat, now).await?),
            Command::Complete(complete) => Reply::Complete(self.complete(complete).await?),
            Command::Fail(fail) => {
                self.fail(fail).await?;
                Reply::Fail(())
            }
            Command::Progress(progress) => {
                self.progress(progress).await?;
                Reply::Progress(())
            }
            Command::Chunk(chunk) => Reply::Chunk(self.chunk(chunk).await?),
            Command::Attach(attach) => Reply::Attach(self.attach(attach).await?),
            Command::Detach(detach) => Reply::Detach(self.result_streams.detach(detach.scope)),
            Command::Status(status) => Reply::Status(self.status(status.of).await?),
            Command::Cancel(cancel) => Reply::Cancel(self.cancel(cancel).await?),
            Command::Queues(queues) => Reply::Queues(self.queues(queues).await?),
            Command::SetAside(set) => Reply::SetAside(Box::new(self.set_aside(&set).await?)),
            Command::EndSetAside(end) => Reply::EndSetAside(self.end_set_aside(&end).await?),
            Command::Length(length) => {
                let counts = admin::function_counts(&self.servers).await?;
                Reply::Length(counts.get(&length.queue).map_or(0, |counts| counts.total()))
            }
            Command::RollCall(call) => Reply::RollCall(self.roll_call(call).await?),
            Command::PriorityCounts(of) => {
                Reply::PriorityCounts(admin::priority_counts(&self.servers, &of.queue).await?)
            }
            Command::Workers(_) => {
                Reply::Workers(admin::worker_counts(admin::announcements(&self.servers).await?))
            }
            Command::Announced(of) => {
                let mut announced = admin::announcements(&self.servers).await?;
                announced.retain(|text| of.worker.as_ref().is_none_or(|worker| text.worker == *worker));
                Reply::Announced(announced)
            }
            other => return Err(unsupported(operation(&other))),
        })
    }

    async fn heartbeat(&self, heartbeat: Heartbeat, now: Timestamp) -> Result<Timestamp, ClientError> {
        if heartbeat.payload.is_some() {
            return Err(unsupported("change a job's payload"));
        }
        self.held_job(&heartbeat.jid, &heartbeat.holder).await?;
        Ok(now + DURATION_MAX)
    }

    async fn complete(&self, complete: Complete) -> Result<CompleteReply, ClientError> {
        let Complete { jid, holder, queue, payload, next, result } = complete;
        if payload.is_some() {
            return Err(unsupported("change a job's payload"));
        }
        if next.is_some() {
            return Err(unsupported("send a job on to another queue"));
        }
        if result.as_ref().is_some_and(|result| result.code != 0) {
            return Err(unsupported("complete a job with a code"));
        }
        self.check_queue(&jid, &holder, queue.as_ref()).await?;
        let bytes = result.as_ref().map_or(&b""[..], |result| result.bytes.bytes());
        self.report(&jid, &holder, ReportBody::Complete(bytes)).await?;
        Ok(CompleteReply::Complete)
    }

    async fn fail(&self, fail: Fail) -> Result<(), ClientError> {
        if fail.payload.is_some() {
            return Err(unsupported("change a job's payload"));
        }
        if fail.result.is_some_and(|result| !result.bytes.bytes().is_empty()) {
            return Err(unsupported("fail a job with a result: say what went wrong in the message"));
        }
        let body = match fail.message.as_bytes() {
            b"" => ReportBody::Fail,
            message => ReportBody::Exception(message),
        };
        self.report(&fail.jid, &fail.holder, body).await
    }

    async fn progress(&self, progress: Progress) -> Result<(), ClientError> {
        let portion = progress.progress.portion;
        let (numerator, denominator) = (portion.part().to_string(), portion.whole().to_string());
        let body =
            ReportBody::Status { numerator: numerator.as_bytes(), denominator: denominator.as_bytes() };
        self.report(&progress.jid, &progress.holder, body).await
    }

    async fn chunk(&self, chunk: Chunk) -> Result<u64, ClientError> {
        let body = match chunk.kind {
            ChunkKind::Data => ReportBody::Data(chunk.bytes.bytes()),
            ChunkKind::Warning => ReportBody::Warning(chunk.bytes.bytes()),
        };
        self.report(&chunk.jid, &chunk.holder, body).await?;
        Ok(0)
    }

    /// Sends a request to one server until it answers, or until the timeout.
    async fn request_with_retry(
        &self,
        index: usize,
        request: Request<&[u8]>,
    ) -> Result<Response, ServerError> {
        let until = Instant::now() + self.servers.timeout;
        loop {
            let answer = async { self.servers.get(index).connection().await?.request(request.clone()).await };
            match answer.await {
                Ok(response) => return Ok(response),
                Err(error) => self.servers.back_off(until, error).await?,
            }
        }
    }

    fn protocol_error(&self, index: usize, detail: &str) -> ServerError {
        ServerError::Protocol { server: self.servers.get(index).name.clone(), detail: detail.to_owned() }
    }

    /// The status of a job, as its server reports it.
    pub(super) async fn status_of(&self, jid: &Jid) -> Result<JobStatus, ClientError> {
        let (index, handle) = job_ids::locate(&self.servers, jid)?;
        match self.request_with_retry(index, Request::GetStatus { handle: handle.as_bytes() }).await? {
            Response::Status { status, .. } => {
                if !status.known {
                    self.job_unknown(jid).await;
                }
                Ok(status)
            }
            _ => Err(self.protocol_error(index, "a reply to a status request that is not a status").into()),
        }
    }

    async fn status(&self, of: StatusOf) -> Result<Option<StatusReply>, ClientError> {
        let bad_name = |error: geartrain_core::BadName| self.protocol_error(0, &error.to_string());
        let (jid, queue, status, clients) = match of {
            StatusOf::Jid(jid) => {
                let status = self.status_of(&jid).await?;
                (jid, QueueName::new(UNKNOWN_NAME).map_err(bad_name)?, status, 0)
            }
            StatusOf::Unique(queue, key) => {
                let (status, clients) = self.status_of_key(&submission::unique_id(&key)?).await?;
                (Jid::new(UNKNOWN_NAME).map_err(bad_name)?, queue, status, clients)
            }
            _ => return Err(unsupported("show how such a job does")),
        };
        let portion = Portion::unchecked(status.numerator, status.denominator);
        Ok(status.known.then(|| StatusReply {
            jid,
            queue,
            state: if status.running { StateName::Running } else { StateName::Waiting },
            progress: (status.denominator > 0).then_some(Progressed { portion, seconds_left: None }),
            submissions: clients.max(1),
            attached: clients,
        }))
    }

    /// The status of the job with this key, on the first server that knows one.
    async fn status_of_key(&self, key: &[u8]) -> Result<(JobStatus, u64), ClientError> {
        for index in self.servers.preferred_first() {
            match self.request_with_retry(index, Request::GetStatusUnique { unique: key }).await? {
                Response::StatusUnique { status, clients, .. } if status.known => {
                    return Ok((status, clients.into()));
                }
                Response::StatusUnique { .. } => {}
                _ => {
                    return Err(self
                        .protocol_error(index, "a reply to a status request that is not a status")
                        .into());
                }
            }
        }
        Ok((JobStatus::default(), 0))
    }

    /// Cancels jobs. An invalid handle is refused before anything is cancelled.
    async fn cancel(&self, cancel: Cancel) -> Result<u64, ClientError> {
        if cancel.because.is_some() {
            return Err(unsupported("remember why a job was cancelled"));
        }
        let mut targets = Vec::with_capacity(cancel.jids.len());
        for jid in &cancel.jids {
            let (index, handle) = job_ids::locate(&self.servers, jid)?;
            if handle.contains(|char: char| char.is_whitespace() || char.is_control()) {
                let why = format!("{jid} holds a blank, which no handle does");
                return Err(Refusal::BadArgument { what: "jid".into(), why }.into());
            }
            targets.push((jid, index, handle));
        }
        let mut cancelled = 0;
        for (jid, index, handle) in targets {
            if self.cancel_at(index, &handle).await? {
                cancelled += 1;
                self.job_cancelled(jid, index, &handle).await;
            }
        }
        Ok(cancelled)
    }

    /// Cancels one job. Returns false if the server does not know it.
    pub(super) async fn cancel_at(&self, index: usize, handle: &str) -> Result<bool, ServerError> {
        let connection = self.servers.get(index).connection().await?;
        match connection.admin_line(&format!("cancel job {handle}")).await {
            Ok(line) if line.starts_with(b"OK") => Ok(true),
            Ok(_) => Err(self.protocol_error(index, "an unexpected reply to cancel job")),
            Err(ServerError::Refused { text, .. }) if text.contains("UNKNOWN_JOB") => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn queues(&self, request: Queues) -> Result<Vec<QueueCounts>, ClientError> {
        let mut counts = admin::function_counts(&self.servers).await?;
        let counts_of = |queue: QueueName, counts: FunctionCounts| {
            let aside = self.aside.count(&queue);
            let counts = counts.of_queue(queue);
            QueueCounts { running: counts.running.saturating_sub(aside), ..counts }
        };
        if let Some(queue) = request.queue {
            let one = counts.remove(&queue).unwrap_or_default();
            return Ok(vec![counts_of(queue, one)]);
        }
        Ok(counts.into_iter().map(|(queue, counts)| counts_of(queue, counts)).collect())
    }

    async fn roll_call(&self, call: RollCall) -> Result<u64, ClientError> {
        // To Gearman a queue and its klass are one thing.
        if call.klass.is_some_and(|klass| klass.as_str() != call.queue.as_str()) {
            return Ok(0);
        }
        let counts = admin::function_counts(&self.servers).await?;
        Ok(counts.get(&call.queue).map_or(0, |counts| counts.workers()))
    }
}

/// The operation to name in a refusal.
fn operation(command: &Command) -> &'static str {
    match command {
        Command::Peek(_) => "show jobs without popping them",
        Command::Retry(_) => "retry a job",
        Command::Release(_) => "release a job",
        Command::Relock(_) => "lock a worker's jobs again",
        Command::Timeout(_) => "take a job away from its worker",
        Command::Unfail(_) | Command::Failures(_) | Command::Failed(_) => "keep failed jobs",
        Command::SetPriority(_) => "change a job's priority",
        Command::Depend(_) => "make a job depend on others",
        Command::Log(_) => "keep a job's history",
        Command::Track(_) | Command::Tracked(_) => "track a job",
        Command::AddTags(_) | Command::RemoveTags(_) | Command::Tagged(_) | Command::TopTags(_) => {
            "tag a job"
        }
        Command::Get(_) | Command::GetMany(_) => "show a job: ask for its status",
        Command::Jobs(_) | Command::WorkerJobs(_) => "list jobs",
        Command::Stats(_) => "keep statistics",
        Command::Pause(_) | Command::Resume(_) => "pause a queue",
        Command::ForgetQueues(_) => "forget a queue",
        Command::ForgetWorkers(_) => "forget a worker",
        Command::GetConfig(_) | Command::AllConfig(_) | Command::SetConfig(_) | Command::UnsetConfig(_) => {
            "keep options"
        }
        Command::Recur(_)
        | Command::PutPeriodic(_)
        | Command::RemovePeriodic(_)
        | Command::Periodics(_)
        | Command::DuePeriodics(_)
        | Command::FirePeriodic(_)
        | Command::Unrecur(_)
        | Command::GetRecurring(_)
        | Command::UpdateRecurring(_)
        | Command::TagRecurring(_)
        | Command::UntagRecurring(_) => "make recurring jobs",
        Command::WorkerLost(_) => "mark a worker as lost",
        Command::Canceled(_) => "remember cancelled jobs",
        Command::Announce(_) => "announce capabilities other than by popping",
        Command::SetLimits(_) | Command::GetLimits(_) => "limit a queue",
        Command::GetResult(_) => "keep a result",
        Command::Why(_) => "explain why a job is not running",
        Command::Tick(_) => "run due work: its server does",
        Command::AllocateIds(_) => "allocate ids",
        other => other.name(),
    }
}
