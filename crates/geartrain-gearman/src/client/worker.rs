//! Working: getting jobs from all servers, and reporting on them to the one that each came from.

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

/// The most queues of one pop, as everywhere.
const QUEUES_MAX: usize = 1_024;
/// How often to ask again though nobody said that there is anything: some servers wake nobody when a job falls due.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

impl Shared {
    /// Pops; and if there is nothing, waits for so long, if a time is given, and as long as whoever asked has not gone. Only a sleep is broken off for that: what a server was asked
    /// it answers, and somebody must be there to hear it.
    pub(super) async fn pop(
        &self,
        pop: &Pop,
        wait: Option<Duration>,
        mut gone: Pin<&mut (dyn Future<Output = ()> + Send)>,
    ) -> Result<PopReply, ClientError> {
        if !(1..=QUEUES_MAX).contains(&pop.queues.len()) {
            let why = format!("must be 1 to {QUEUES_MAX}, not {}", pop.queues.len());
            return Err(Refusal::BadArgument { what: "queues".into(), why }.into());
        }
        let reply = |jobs| PopReply { jobs, turn: pop.order.turn(pop.queues.len()) };
        let station = self.worker_conns.get_or_create(&pop.worker, &pop.queues, self.servers.len());
        let until = Instant::now() + wait.unwrap_or_default();
        let mut alone_since: Option<Instant> = None;
        loop {
            // Before anything is asked, so that nobody can say that there is a job between the question and the sleep.
            let mut woken = pin!(station.wakeup.notified());
            woken.as_mut().enable();
            match self.grab_jobs(&station, pop).await {
                Ok(jobs) if !jobs.is_empty() || wait.is_none() || pop.count.get() == 0 => {
                    return Ok(reply(jobs));
                }
                Ok(_) => alone_since = None,
                Err(trouble) => {
                    let since = *alone_since.get_or_insert_with(Instant::now);
                    if wait.is_none() || since.elapsed() >= self.servers.timeout || !trouble.is_transient() {
                        return Err(trouble.into());
                    }
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(reply(Vec::new()));
            }
            station.pre_sleep().await;
            let look_again = self.servers.next_retry().map_or(POLL_INTERVAL, |next| next.min(POLL_INTERVAL));
            let pause = left.min(look_again.max(Duration::from_millis(10)));
            tokio::select! {
                () = woken => {}
                () = tokio::time::sleep(pause) => {}
                () = gone.as_mut() => return Ok(reply(Vec::new())),
            }
        }
    }

    /// Asks each server in turn, until there are enough jobs. If none of them can be reached, that is the answer.
    async fn grab_jobs(&self, station: &Arc<WorkerConns>, pop: &Pop) -> Result<Vec<Popped>, ServerError> {
        let count = pop.count.get();
        let mut jobs = station.take_unclaimed(count);
        let (mut reached, mut trouble) = (false, None);
        for place in station.server_order() {
            let asked = async {
                let link = station.connection(&self.servers, place).await?;
                reached = true;
                while jobs.len() < count {
                    let Some(assignment) = worker_conns::grab(&link).await? else { break };
                    jobs.push(self.hold(station, &link, place, pop, assignment)?);
                }
                Ok(())
            };
            if let Err(failed) = asked.await {
                tracing::debug!(trouble = %failed, "a worker cannot ask a server");
                trouble = Some(failed);
            }
            if jobs.len() >= count {
                break;
            }
        }
        if !jobs.is_empty() {
            // To ask is to be awake: others who sleep here must say so again.
            station.wakeup.notify_waiters();
        }
        match trouble {
            Some(trouble) if jobs.is_empty() && !reached => Err(trouble),
            _ => Ok(jobs),
        }
    }

    fn hold(
        &self,
        station: &Arc<WorkerConns>,
        link: &Arc<Connection>,
        place: usize,
        pop: &Pop,
        job: Assignment,
    ) -> Result<Popped, ServerError> {
        let jid = job_ids::jid_of(&self.servers, place, &job.handle)?;
        let bad = |error: geartrain_core::BadName| link.protocol_error(error.to_string());
        let queue = function::queue(&job.function).map_err(bad)?;
        let klass: Klass = function::klass(&queue).map_err(bad)?;
        let (worker, station, link) = (pop.worker.clone(), station.clone(), link.clone());
        let held = HeldJob {
            jid: jid.clone(),
            handle: job.handle.to_vec(),
            queue: queue.clone(),
            worker,
            connection: link,
            worker_conns: station,
        };
        let token = self.held_jobs.add(held);
        let unique = UniqueKey::new(&job.unique).ok();
        let aside = (!job.reducer.is_empty()).then(|| Payload::from(unpinned(&job.reducer)));
        let about = JobDetails { unique, metadata: aside, submissions: 1, ..JobDetails::default() };
        Ok(Popped {
            jid,
            queue,
            klass,
            payload: Payload::from(unpinned(&job.data)),
            priority: Priority::ZERO,
            retries: 0,
            remaining: 0,
            lock: Lock { worker: pop.worker.clone(), token, expires: now() + DURATION_MAX },
            details: Some(Box::new(about)),
            job: None,
        })
    }

    /// Jobs that were handed to somebody who has gone go to whoever asks next: through their server if nothing else is held over their connection, and else from here.
    pub(super) fn return_jobs(&self, jobs: Vec<Popped>) {
        for job in jobs {
            let Some(held) = self.held_jobs.remove(job.lock.token) else { continue };
            if !self.held_jobs.any_on(&held.connection) {
                held.connection.close();
                continue;
            }
            let station = held.worker_conns.clone();
            let token = self.held_jobs.add(held);
            station.add_unclaimed(Popped { lock: Lock { token, ..job.lock }, ..job });
        }
    }

    /// The job that somebody says they hold, or why they do not.
    pub(super) async fn held_job(&self, jid: &Jid, holder: &Holder) -> Result<(Token, HeldJob), ClientError> {
        match self.held_jobs.find(jid, holder) {
            Some(held) => Ok(held),
            None => Err(self.not_held_refusal(jid).await),
        }
    }

    /// What is said to whoever does not hold a job: where it is now, as far as its server says.
    async fn not_held_refusal(&self, jid: &Jid) -> ClientError {
        let state = match self.status_of(jid).await {
            Err(refused @ ClientError::Refused(_)) => return refused,
            Ok(status) if !status.known => return Refusal::NoSuchJob { jid: jid.clone() }.into(),
            Ok(status) if status.running => StateName::Running,
            // A job whose connection was lost waits again, wherever its server is.
            Ok(_) | Err(ClientError::Failed(_)) => StateName::Waiting,
        };
        Refusal::LockLost { jid: jid.clone(), state }.into()
    }

    /// Reports on a job, and returns when the server is known to have taken it.
    pub(super) async fn report(
        &self,
        jid: &Jid,
        holder: &Holder,
        news: ReportBody<&[u8]>,
    ) -> Result<(), ClientError> {
        let size = match &news {
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
        if news.is_final() {
            self.held_jobs.remove(token);
        }
        let report = Request::Report(Report { handle: &held.handle[..], body: news });
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
