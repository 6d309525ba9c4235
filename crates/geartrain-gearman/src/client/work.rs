//! Working: getting jobs from all servers, and reporting on them to the one that each came from.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Duration, Instant};

use geartrain_core::{
    DURATION_MAX, Holder, Jid, JobDetails, Klass, Lock, PAYLOAD_BYTES_MAX, Payload, Pop, PopReply, Popped,
    Priority, QueueName, Refusal, StateName, Token, UniqueKey,
};

use super::held::Held;
use super::link::Link;
use super::station::{self, Station};
use super::trouble::{Trouble, Undone};
use super::{Shared, names, now};
use crate::front::function;
use crate::packet::{Assignment, News, Report, Request};
use crate::unpinned;

/// The most queues of one pop, as everywhere.
const QUEUES_MAX: usize = 1_024;
/// How often to ask again though nobody said that there is anything: some servers wake nobody when a job falls due.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

impl Shared {
    /// Pops; and if there is nothing, waits for so long, if a time is given, and as long as whoever asked has not gone. Only a sleep is broken off for that: what a server was asked
    /// it answers, and somebody must be there to hear it.
    pub(super) async fn pop(
        &self,
        pop: &Pop,
        wait: Option<Duration>,
        mut gone: Pin<&mut (dyn Future<Output = ()> + Send)>,
    ) -> Result<PopReply, Undone> {
        if !(1..=QUEUES_MAX).contains(&pop.queues.len()) {
            let why = format!("must be 1 to {QUEUES_MAX}, not {}", pop.queues.len());
            return Err(Refusal::BadArgument { what: "queues".into(), why }.into());
        }
        let reply = |jobs| PopReply { jobs, turn: pop.order.turn(pop.queues.len()) };
        let station = self.stations.of(&pop.worker, &pop.queues, self.servers.len());
        let until = Instant::now() + wait.unwrap_or_default();
        let mut alone_since: Option<Instant> = None;
        loop {
            // Before anything is asked, so that nobody can say that there is a job between the question and the sleep.
            let mut woken = pin!(station.woken.notified());
            woken.as_mut().enable();
            match self.ask_all(&station, pop).await {
                Ok(jobs) if !jobs.is_empty() || wait.is_none() || pop.count.get() == 0 => {
                    return Ok(reply(jobs));
                }
                Ok(_) => alone_since = None,
                Err(trouble) => {
                    let since = *alone_since.get_or_insert_with(Instant::now);
                    if wait.is_none() || since.elapsed() >= self.servers.timeout || !trouble.passes() {
                        return Err(trouble.into());
                    }
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(reply(Vec::new()));
            }
            station.sleep().await;
            let look_again = self.servers.next_try().map_or(LOOK_AGAIN, |next| next.min(LOOK_AGAIN));
            let pause = left.min(look_again.max(Duration::from_millis(10)));
            tokio::select! {
                () = woken => {}
                () = tokio::time::sleep(pause) => {}
                () = gone.as_mut() => return Ok(reply(Vec::new())),
            }
        }
    }

    /// Asks each server in turn, until there are enough jobs. If none of them can be reached, that is the answer.
    async fn ask_all(&self, station: &Arc<Station>, pop: &Pop) -> Result<Vec<Popped>, Trouble> {
        let count = pop.count.get();
        let mut jobs = station.claim(count);
        let (mut reached, mut trouble) = (false, None);
        for place in station.places() {
            let asked = async {
                let link = station.link(&self.servers, place).await?;
                reached = true;
                while jobs.len() < count {
                    let Some(assignment) = station::grab(&link).await? else { break };
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
            station.woken.notify_waiters();
        }
        match trouble {
            Some(trouble) if jobs.is_empty() && !reached => Err(trouble),
            _ => Ok(jobs),
        }
    }

    fn hold(
        &self,
        station: &Arc<Station>,
        link: &Arc<Link>,
        place: usize,
        pop: &Pop,
        job: Assignment,
    ) -> Result<Popped, Trouble> {
        let jid = names::jid(&self.servers, place, &job.handle)?;
        let bad = |error: geartrain_core::BadName| link.nonsense(error.to_string());
        let queue = function::queue(&job.function).map_err(bad)?;
        let klass: Klass = function::klass(&queue).map_err(bad)?;
        let (worker, station, link) = (pop.worker.clone(), station.clone(), link.clone());
        let held = Held {
            jid: jid.clone(),
            handle: job.handle.to_vec(),
            queue: queue.clone(),
            worker,
            link,
            station,
        };
        let token = self.holding.add(held);
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
    pub(super) fn give_back(&self, jobs: Vec<Popped>) {
        for job in jobs {
            let Some(held) = self.holding.remove(job.lock.token) else { continue };
            if !self.holding.any_over(&held.link) {
                held.link.close();
                continue;
            }
            let station = held.station.clone();
            let token = self.holding.add(held);
            station.leave_unclaimed(Popped { lock: Lock { token, ..job.lock }, ..job });
        }
    }

    /// The job that somebody says they hold, or why they do not.
    pub(super) async fn held(&self, jid: &Jid, holder: &Holder) -> Result<(Token, Held), Undone> {
        match self.holding.find(jid, holder) {
            Some(held) => Ok(held),
            None => Err(self.not_held(jid).await),
        }
    }

    /// What is said to whoever does not hold a job: where it is now, as far as its server says.
    async fn not_held(&self, jid: &Jid) -> Undone {
        let state = match self.status_of(jid).await {
            Err(refused @ Undone::Refused(_)) => return refused,
            Ok(status) if !status.known => return Refusal::NoSuchJob { jid: jid.clone() }.into(),
            Ok(status) if status.running => StateName::Running,
            // A job whose connection was lost waits again, wherever its server is.
            Ok(_) | Err(Undone::Trouble(_)) => StateName::Waiting,
        };
        Refusal::LockLost { jid: jid.clone(), state }.into()
    }

    /// Reports on a job, and returns when the server is known to have taken it.
    pub(super) async fn report(&self, jid: &Jid, holder: &Holder, news: News<&[u8]>) -> Result<(), Undone> {
        let size = match &news {
            News::Data(bytes) | News::Warning(bytes) => ("chunk", bytes.len()),
            News::Complete(bytes) | News::Exception(bytes) => ("result", bytes.len()),
            News::Status { .. } | News::Fail => ("", 0),
        };
        if size.1 > PAYLOAD_BYTES_MAX {
            return Err(
                Refusal::TooLarge { what: size.0.into(), bytes: size.1, max: PAYLOAD_BYTES_MAX }.into()
            );
        }
        let (token, held) = self.held(jid, holder).await?;
        if news.is_final() {
            self.holding.remove(token);
        }
        let report = Request::Report(Report { handle: &held.handle[..], news });
        match held.link.report(report).await {
            Err(Trouble::Refused { .. }) => {
                self.holding.remove(token);
                Err(self.not_held(jid).await)
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
    ) -> Result<(), Undone> {
        let Some(given) = given else { return Ok(()) };
        let queue = self.held(jid, holder).await?.1.queue;
        if queue == *given {
            return Ok(());
        }
        Err(Refusal::WrongQueue { jid: jid.clone(), queue, given: given.clone() }.into())
    }
}
