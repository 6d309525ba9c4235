//! What the backends on other systems' keys in a Redis have in common: the runtime that executes their calls,
//! the release of jobs whose caller is gone, calls of scripts, refusals by name, and the common part of URLs.
//!
//! A layout implements [`Layout`]; its backend holds a [`Host`] and answers
//! [`Backend`](geartrain_core::Backend) through it.

mod call;
mod notices;
mod script;
mod set_aside;
mod url;

use std::sync::Arc;
use std::time::{Duration, Instant};

use geartrain_core::{
    Answer, BackendError, Call, Clock, DURATION_MAX, Pending, Pop, PopReply, QueueName, Refusal, Release,
    Reply, Seconds, Software, Timestamp,
};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{broadcast, oneshot};

use crate::clock::SharedClock;
use crate::connection::{ConnectionError, Connector};
use crate::driver::Shared;
use crate::url::RedisUrl;

pub(crate) use call::{CallError, ask, check_queues, is_wrong_type, keys_like, new_token, run, unsupported};
pub(crate) use notices::{Notice, Notices, Topic};
pub(crate) use script::{Script, scripts};
pub(crate) use set_aside::{check_aside, check_set_aside, transfer_group};
pub(crate) use url::{UrlTexts, flag, lease, parse_url};

/// How long dropping a backend may block, if jobs of cancelled pops are still to be released.
const RELEASE_MAX: Duration = Duration::from_secs(1);

/// The looks after one that followed a notice: some clients publish a job before they queue it.
const LOOKS_AFTER_NOTICE: &[Duration] =
    &[Duration::from_millis(2), Duration::from_millis(8), Duration::from_millis(40)];

/// The longest time between two looks at a queue: another client may put a job without a notice.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// What a layout does itself.
pub(crate) trait Layout: Send + Sync + 'static {
    /// The backend's name in errors.
    const NAME: &'static str;

    fn shared(&self) -> &Arc<Shared>;

    /// Executes one command.
    fn call(&self, call: Call) -> impl Future<Output = Result<Reply, CallError>> + Send;

    /// Pops jobs, and returns when the first one is due that is not yet.
    fn pop(
        &self,
        pop: &Pop,
        now: Timestamp,
    ) -> impl Future<Output = Result<(PopReply, Option<Timestamp>), CallError>> + Send;

    /// Whether a pop would hand out a job, and when the first one is due that is not yet.
    fn ready(
        &self,
        queues: &[QueueName],
        now: Timestamp,
    ) -> impl Future<Output = Result<(bool, Option<Timestamp>), CallError>> + Send;

    /// Subscribes to what ends the pause of a waiting pop early, if the layout publishes anything. Each item of
    /// the receiver, and what [`wakes`](Layout::wakes) says of it, is worth one look.
    fn notices(
        &self,
        queues: &[QueueName],
    ) -> impl Future<Output = Option<broadcast::Receiver<Notice>>> + Send {
        let _ = queues;
        std::future::ready(None)
    }

    /// Whether a message may mean that one of the queues has a new job.
    fn wakes(&self, queues: &[QueueName], channel: &str, message: &str) -> bool {
        let _ = (queues, channel, message);
        false
    }

    /// Notified by the layout's own listener when there may be something to pop, from the moment of the call on.
    fn notified(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }

    /// Queues a job again that did not reach its caller.
    fn release(&self, release: &Release) -> impl Future<Output = Result<(), CallError>> + Send;
}

/// Executes the calls of a backend on a runtime of its own: callers may be on any executor, or on none.
pub(crate) struct Host<L: Layout> {
    pub(crate) layout: Arc<L>,
    /// Cloned by releases under way.
    releasing: Option<flume::Sender<()>>,
    released: flume::Receiver<()>,
    runtime: Option<Runtime>,
}

impl<L: Layout> Host<L> {
    /// Connects, and fails if there is no Redis behind the URL now. Without a clock, time is that of the Redis.
    pub(crate) async fn start(
        url: RedisUrl,
        clock: Option<Arc<dyn Clock>>,
        layout: impl FnOnce(Arc<Shared>) -> L,
    ) -> Result<Host<L>, BackendError> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name(format!("geartrain-{}", L::NAME))
            .enable_all()
            .build();
        let runtime =
            runtime.map_err(|error| BackendError::Broken { backend: L::NAME, source: error.into() })?;
        let (followed, clock) = match clock {
            Some(clock) => (None, clock),
            None => {
                let clock = Arc::new(SharedClock::new());
                (Some(clock.clone()), clock as Arc<dyn Clock>)
            }
        };
        let shared = Shared::new(Connector::new(url, followed), clock, runtime.handle().clone(), false);
        let (releasing, released) = flume::bounded(0);
        let layout = Arc::new(layout(shared));
        let host = Host { layout, releasing: Some(releasing), released, runtime: Some(runtime) };
        host.layout.shared().connection().await.map_err(broken::<L>)?;
        Ok(host)
    }

    pub(crate) fn execute(&self, batch: Vec<Call>) -> Pending<'_, Vec<Answer>> {
        Box::pin(async move {
            let mut guard = self.guard();
            let executed = self.run(move |layout| async move {
                guard.answers = execute(&*layout, batch).await?;
                Ok(guard)
            });
            Ok(executed.await?.take())
        })
    }

    pub(crate) fn pop_or_wait(&self, pop: Pop, wait: Seconds) -> Pending<'_, PopReply> {
        Box::pin(async move {
            let (mut to, reply) = oneshot::channel();
            let (layout, mut guard) = (self.layout.clone(), self.guard());
            self.spawn(async move {
                let mut looks = Looks::new(wait, &pop.queues);
                let popped = loop {
                    let notified = layout.notified();
                    let now = layout.shared().clock.now();
                    match layout.pop(&pop, now).await {
                        Ok((reply, next)) if reply.jobs.is_empty() && pop.count.get() > 0 => {
                            if !looks.pause(&*layout, now, next, notified, to.closed()).await {
                                break Ok(reply);
                            }
                        }
                        popped => break popped.map(|(reply, _)| reply),
                    }
                };
                // If the caller is gone, this drops the replies.
                let _ = to.send(popped.map(|reply| {
                    guard.answers = vec![Ok(Reply::Pop(reply))];
                    guard
                }));
            });
            let popped = reply.await.map_err(|_| shut_down::<L>())?;
            match popped.map_err(CallError::into_backend::<L>)?.take().pop() {
                Some(Ok(Reply::Pop(reply))) => Ok(reply),
                _ => Err(shut_down::<L>()),
            }
        })
    }

    pub(crate) fn ready_or_wait(&self, queues: Vec<QueueName>, wait: Seconds) -> Pending<'_, bool> {
        Box::pin(async move {
            let (mut to, is_ready) = oneshot::channel();
            let layout = self.layout.clone();
            self.spawn(async move {
                let mut looks = Looks::new(wait, &queues);
                let ready = loop {
                    let notified = layout.notified();
                    let now = layout.shared().clock.now();
                    match layout.ready(&queues, now).await {
                        Ok((false, next)) => {
                            if !looks.pause(&*layout, now, next, notified, to.closed()).await {
                                break Ok(false);
                            }
                        }
                        ready => break ready.map(|(ready, _)| ready),
                    }
                };
                let _ = to.send(ready);
            });
            is_ready.await.map_err(|_| shut_down::<L>())?.map_err(CallError::into_backend::<L>)
        })
    }

    /// Runs something else that the backend offers.
    pub(crate) async fn run<T, F>(&self, what: impl FnOnce(Arc<L>) -> F) -> Result<T, BackendError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, CallError>> + Send + 'static,
    {
        let (to, done) = oneshot::channel();
        let what = what(self.layout.clone());
        self.spawn(async move {
            let _ = to.send(what.await);
        });
        done.await.map_err(|_| shut_down::<L>())?.map_err(CallError::into_backend::<L>)
    }

    /// The time that commands without one are executed at.
    pub(crate) fn now(&self) -> Timestamp {
        self.layout.shared().clock.now()
    }

    pub(crate) fn identify(&self) -> Pending<'_, Software> {
        Box::pin(async move { self.layout.shared().software().await.map_err(broken::<L>) })
    }

    /// Refuses what is no command.
    pub(crate) fn refuse<T: Send + 'static>(&self, operation: &'static str) -> Pending<'static, T> {
        Box::pin(async move { Err(unsupported(L::NAME, operation).into()) })
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = &self.runtime {
            runtime.spawn(task);
        }
    }

    fn guard(&self) -> ReplyGuard<L> {
        ReplyGuard { layout: self.layout.clone(), releasing: self.releasing.clone(), answers: Vec::new() }
    }
}

impl<L: Layout> Drop for Host<L> {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        // A process often ends after a cancelled pop, and the job should not wait for its lease to expire.
        // Ends as soon as no release holds a sender.
        self.releasing = None;
        let _ = self.released.recv_timeout(RELEASE_MAX);
        runtime.shutdown_background();
    }
}

/// Replies on their way to the caller. If they are dropped before the caller takes them, the popped jobs
/// among them are released.
struct ReplyGuard<L: Layout> {
    layout: Arc<L>,
    releasing: Option<flume::Sender<()>>,
    answers: Vec<Answer>,
}

impl<L: Layout> ReplyGuard<L> {
    fn take(&mut self) -> Vec<Answer> {
        std::mem::take(&mut self.answers)
    }
}

impl<L: Layout> Drop for ReplyGuard<L> {
    fn drop(&mut self) {
        let answers = self.take();
        if Release::of_answers(&answers).is_empty() {
            return;
        }
        let (layout, releasing) = (self.layout.clone(), self.releasing.take());
        self.layout.shared().handle.spawn(async move {
            release_all(&*layout, &answers).await;
            drop(releasing);
        });
    }
}

/// The looks at queues of a call that waits.
struct Looks<'a> {
    until: Instant,
    queues: &'a [QueueName],
    /// Subscribed to after the first look.
    notices: Option<Option<broadcast::Receiver<Notice>>>,
    /// Looks that follow a notice.
    following: &'static [Duration],
}

impl<'a> Looks<'a> {
    fn new(wait: Seconds, queues: &'a [QueueName]) -> Looks<'a> {
        Looks { until: Instant::now() + to_duration(wait), queues, notices: None, following: &[] }
    }

    /// Waits until it is worth looking again. False if the wait is over or the caller is gone.
    async fn pause<L: Layout>(
        &mut self,
        layout: &L,
        looked: Timestamp,
        next: Option<Timestamp>,
        notified: impl Future<Output = ()>,
        gone: impl Future<Output = ()>,
    ) -> bool {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        let Some(notices) = &mut self.notices else {
            self.notices = Some(tokio::select! {
                notices = layout.notices(self.queues) => notices,
                () = layout.shared().timer(left) => return false,
                () = gone => return false,
            });
            // A job may have come before the subscription.
            return true;
        };
        let (soon, following) = match self.following {
            [first, rest @ ..] => (*first, rest),
            [] => (left, self.following),
        };
        tokio::select! {
            () = layout.shared().timer(pause(looked, next).min(left).min(soon)) => {
                self.following = following;
                true
            }
            () = noticed(layout, self.queues, notices.as_mut()) => {
                self.following = LOOKS_AFTER_NOTICE;
                true
            }
            () = notified => true,
            () = gone => false,
        }
    }
}

/// Returns when a message says that one of the queues may have a new job.
async fn noticed<L: Layout>(
    layout: &L,
    queues: &[QueueName],
    notices: Option<&mut broadcast::Receiver<Notice>>,
) {
    let Some(notices) = notices else { return std::future::pending().await };
    loop {
        match notices.recv().await {
            Ok(Notice::Message { channel, message }) if !layout.wakes(queues, &channel, &message) => {}
            Err(broadcast::error::RecvError::Closed) => return std::future::pending().await,
            _ => return,
        }
    }
}

/// How long to wait before the next look: until the next job is due, at most a second.
fn pause(now: Timestamp, next: Option<Timestamp>) -> Duration {
    let until = next.map_or(f64::INFINITY, |next| (next - now).get());
    Duration::try_from_secs_f64(until.max(0.0)).map_or(POLL_INTERVAL, |until| until.min(POLL_INTERVAL))
        // Due times are compared in whole milliseconds.
        + Duration::from_millis(1)
}

async fn execute<L: Layout>(layout: &L, batch: Vec<Call>) -> Result<Vec<Answer>, CallError> {
    let mut answers = Vec::with_capacity(batch.len());
    for call in batch {
        match layout.call(call).await {
            Ok(reply) => answers.push(Ok(reply)),
            Err(CallError::Refused(refusal)) => answers.push(Err(refusal)),
            Err(error) => {
                // The caller gets no replies, so it cannot report on the jobs popped by this batch.
                release_all(layout, &answers).await;
                return Err(error);
            }
        }
    }
    Ok(answers)
}

/// Releases the jobs that answers hand out, if these do not reach their caller.
async fn release_all<L: Layout>(layout: &L, answers: &[Answer]) {
    for release in Release::of_answers(answers) {
        if let Err(error) = layout.release(&release).await {
            tracing::warn!(jid = %release.jid, ?error, "cannot release a job: its lease will expire");
        }
    }
}

fn broken<L: Layout>(error: ConnectionError) -> BackendError {
    CallError::from(error).into_backend::<L>()
}

fn shut_down<L: Layout>() -> BackendError {
    broken::<L>(ConnectionError::ShutDown)
}

/// A wait as a `Duration`; at most [`DURATION_MAX`].
fn to_duration(wait: Seconds) -> Duration {
    Duration::try_from_secs_f64(wait.get().clamp(0.0, DURATION_MAX.get())).unwrap_or_default()
}

/// The refusal of an argument that the layout cannot hold.
pub(crate) fn bad_argument(what: &'static str, why: impl Into<String>) -> Refusal {
    Refusal::BadArgument { what: what.into(), why: why.into() }
}
