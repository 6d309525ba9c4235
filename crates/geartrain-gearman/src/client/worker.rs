//! Worker operations: pops jobs from all servers, and reports each to the server it came from.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Duration, Instant};

use geartrain_core::{
    DURATION_MAX, Holder, Jid, JobDetails, Klass, Lock, PAYLOAD_BYTES_MAX, Payload, Pop, PopReply, Popped,
    Priority, QueueName, Refusal, StateName, Token, UniqueKey,
};

use super::connection::Connection;
use super::error::{ClientError, ServerError};
use super::held_jobs::HeldJob;
use super::worker_conns::{self, WorkerConns};
use super::{Shared, job_ids, now};
use crate::function;
use crate::packet::{Assignment, Report, ReportBody, Request};
use crate::unpinned;

/// Most queues of one pop, as in all backends.
const QUEUES_MAX: usize = 1_024;
/// How often an idle worker asks without a wake-up: some servers send none when a scheduled job becomes due.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

impl Shared {
    /// Pops jobs. If there are none, waits up to `wait`, or until `cancelled`. Only the idle wait is
    /// cancelled: a job that a server has assigned must be received.
    pub(super) async fn pop(
        &self,
        pop: &Pop,
        wait: Option<Duration>,
        mut cancelled: Pin<&mut (dyn Future<Output = ()> + Send)>,
    ) -> Result<PopReply, ClientError> {
        if !(1..=QUEUES_MAX).contains(&pop.queues.len()) {
            let why = format!("must be 1 to {QUEUES_MAX}, not {}", pop.queues.len());
            return Err(Refusal::BadArgument { what: "queues".into(), why }.into());
        }
        let reply = |jobs| PopReply { jobs, turn: pop.order.turn(pop.queues.len()) };
        let conns = self.worker_conns.get_or_create(&pop.worker, &pop.queues, self.servers.len());
        let until = Instant::now() + wait.unwrap_or_default();
        let mut unreachable_since: Option<Instant> = None;
        loop {
            // Registered before the grab, so that a NOOP between grab and PRE_SLEEP is not missed.
            let mut wakeup = pin!(conns.wakeup.notified());
            wakeup.as_mut().enable();
            match self.grab_jobs(&conns, pop).await {
                Ok(jobs) if !jobs.is_empty() || wait.is_none() || pop.count.get() == 0 => {
                    return Ok(reply(jobs));
                }
                Ok(_) => unreachable_since = None,
                Err(error) => {
                    let since = *unreachable_since.get_or_insert_with(Instant::now);
                    if wait.is_none() || since.elapsed() >= self.servers.timeout || !error.is_transient() {
                        return Err(error.into());
                    }
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(reply(Vec::new()));
            }
            conns.pre_sleep().await;
            let next_poll = self.servers.next_retry().map_or(POLL_INTERVAL, |next| next.min(POLL_INTERVAL));
            let sleep = left.min(next_poll.max(Duration::from_millis(10)));
            tokio::select! {
                () = wakeup => {}
                () = tokio::time::sleep(sleep) => {}
                () = cancelled.as_mut() => return Ok(reply(Vec::new())),
            }
        }
    }

    /// Grabs from each server in turn until there are enough jobs. An error only if no server can be reached.
    async fn grab_jobs(&self, conns: &Arc<WorkerConns>, pop: &Pop) -> Result<Vec<Popped>, ServerError> {
        let count = pop.count.get();
        let mut jobs = conns.take_unclaimed(count);
        let (mut reached, mut error) = (false, None);
        for index in conns.server_order() {
            let grabbed = async {
                let connection = conns.connection(&self.servers, index).await?;
                reached = true;
                while jobs.len() < count {
                    let Some(assignment) = worker_conns::grab(&connection).await? else { break };
                    jobs.push(self.hold(conns, &connection, index, pop, assignment)?);
                }
                Ok(())
            };
            if let Err(failed) = grabbed.await {
                tracing::debug!(error = %failed, "a worker could not grab from a server");
                error = Some(failed);
            }
            if jobs.len() >= count {
                break;
            }
        }
        if !jobs.is_empty() {
            // A grab ends the idle state of the connection: other pops that wait on it must send PRE_SLEEP
            // again.
            conns.wakeup.notify_waiters();
        }
        match error {
            Some(error) if jobs.is_empty() && !reached => Err(error),
            _ => Ok(jobs),
        }
    }

    fn hold(
        &self,
        conns: &Arc<WorkerConns>,
        connection: &Arc<Connection>,
        index: usize,
        pop: &Pop,
        job: Assignment,
    ) -> Result<Popped, ServerError> {
        let jid = job_ids::jid_of(&self.servers, index, &job.handle)?;
        let bad = |error: geartrain_core::BadName| connection.protocol_error(error.to_string());
        let queue = function::queue(&job.function).map_err(bad)?;
        let klass: Klass = function::klass(&queue).map_err(bad)?;
        let (worker, conns, connection) = (pop.worker.clone(), conns.clone(), connection.clone());
        let held = HeldJob {
            jid: jid.clone(),
            handle: job.handle.to_vec(),
            queue: queue.clone(),
            worker,
            connection,
            worker_conns: conns,
        };
        let token = self.held_jobs.add(held);
        let unique = UniqueKey::new(&job.unique).ok();
        let metadata = (!job.reducer.is_empty()).then(|| Payload::from(unpinned(&job.reducer)));
        let details = JobDetails { unique, metadata, submissions: 1, ..JobDetails::default() };
        Ok(Popped {
            jid,
            queue,
            klass,
            payload: Payload::from(unpinned(&job.data)),
            priority: Priority::ZERO,
            retries: 0,
            remaining: 0,
            lock: Lock { worker: pop.worker.clone(), token, expires: now() + DURATION_MAX },
            details: Some(Box::new(details)),
            job: None,
        })
    }

    /// Returns jobs whose caller is gone: by closing their connection if nothing else is held over it, so
    /// that the server requeues them, else to the next pop of this worker.
    pub(super) fn return_jobs(&self, jobs: Vec<Popped>) {
        for job in jobs {
            let Some(held) = self.held_jobs.remove(job.lock.token) else { continue };
            if !self.held_jobs.any_on(&held.connection) {
                held.connection.close();
                continue;
            }
            let conns = held.worker_conns.clone();
            let token = self.held_jobs.add(held);
            conns.add_unclaimed(Popped { lock: Lock { token, ..job.lock }, ..job });
        }
    }

    /// The held job, or the refusal if it is not held.
    pub(super) async fn held_job(&self, jid: &Jid, holder: &Holder) -> Result<(Token, HeldJob), ClientError> {
        match self.held_jobs.find(jid, holder) {
            Some(held) => Ok(held),
            None => Err(self.not_held_refusal(jid).await),
        }
    }

    /// The refusal for a job that is not held, with its present state as far as its server reports it.
    async fn not_held_refusal(&self, jid: &Jid) -> ClientError {
        let state = match self.status_of(jid).await {
            Err(refused @ ClientError::Refused(_)) => return refused,
            Ok(status) if !status.known => return Refusal::NoSuchJob { jid: jid.clone() }.into(),
            Ok(status) if status.running => StateName::Running,
            // A job whose connection was lost is waiting again on its server.
            Ok(_) | Err(ClientError::Failed(_)) => StateName::Waiting,
        };
        Refusal::LockLost { jid: jid.clone(), state }.into()
    }

    /// Sends a report and returns when the server has accepted it.
    pub(super) async fn report(
        &self,
        jid: &Jid,
        holder: &Holder,
        body: ReportBody<&[u8]>,
    ) -> Result<(), ClientError> {
        let size = match &body {
            ReportBody::Data(bytes) | ReportBody::Warning(bytes) => ("chunk", bytes.len()),
            ReportBody::Complete(bytes) | ReportBody::Exception(bytes) => ("result", bytes.len()),
            ReportBody::Status { .. } | ReportBody::Fail => ("", 0),
        };
        if size.1 > PAYLOAD_BYTES_MAX {
            return Err(
                Refusal::TooLarge { what: size.0.into(), bytes: size.1, max: PAYLOAD_BYTES_MAX }.into()
            );
        }
        let (token, held) = self.held_job(jid, holder).await?;
        if body.is_final() {
            self.held_jobs.remove(token);
        }
        let report = Request::Report(Report { handle: &held.handle[..], body });
        match held.connection.report(report).await {
            Err(ServerError::Refused { .. }) => {
                self.held_jobs.remove(token);
                Err(self.not_held_refusal(jid).await)
            }
            reported => Ok(reported?),
        }
    }

    /// Refuses to end a job that is in another queue than the caller thinks.
    pub(super) async fn check_queue(
        &self,
        jid: &Jid,
        holder: &Holder,
        given: Option<&QueueName>,
    ) -> Result<(), ClientError> {
        let Some(given) = given else { return Ok(()) };
        let queue = self.held_job(jid, holder).await?.1.queue;
        if queue == *given {
            return Ok(());
        }
        Err(Refusal::WrongQueue { jid: jid.clone(), queue, given: given.clone() }.into())
    }
}
