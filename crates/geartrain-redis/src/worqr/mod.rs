//! Worqr's queues on a Redis as a [`Backend`]: keys, channels and messages as other Worqr workers have them.
//!
//! Its words stop here: a *task* is our payload, and has no ID while it waits; a *process*, one task while one
//! worker works on it, is our running job, and its ID our jid. A klass is its queue.
//!
//! | command | what is done |
//! |---|---|
//! | `Put` | enqueues the payload as it is: [`PutReply::Unnamed`](geartrain_core::PutReply::Unnamed) |
//! | `Pop`, [`pop_or_wait`](Backend::pop_or_wait) | starts the worker and its work on the queues, and takes tasks |
//! | `Heartbeat` | renews the timer of the worker, which is the lock of all of its jobs |
//! | `Complete`, `Fail` | finishes a task, and publishes the result |
//! | `Retry`, `Release`, `Timeout` | returns a task to the front of its queue |
//! | `WorkerLost` | fails a worker |
//! | `SetAside`, `EndSetAside` | takes waiting tasks out of their queues, into a hash of our own |
//! | `Get`, `GetMany`, `Status`, `Jobs`, `Peek`, `Queues`, `Length`, `Workers`, `WorkerJobs`, `RollCall`, `Announced` | read the keys |
//! | [`subscribe`](Backend::subscribe), [`open_result_stream`](Backend::open_result_stream) | what is published while they are open |
//!
//! Everything else is refused by name. Beyond these, [`WorqrBackend::cancel_tasks`] cancels by payload, and a
//! worker of this process stops with [`WorqrBackend::stop_work`] and [`WorqrBackend::stop_worker`].
//!
//! While this process has workers, a background task renews their timers and fails dead workers. A worker of
//! this process whose timer ran out gives up its jobs, and goes on under another ID.

mod commands;
mod finish;
mod listener;
mod message;
mod names;
mod pop;
mod put;
mod read;
mod script;
mod session;
mod set_aside;
mod streams;
mod url;
mod workers;

use std::sync::Arc;
use std::time::Duration;

use geartrain_core::{
    Answer, Backend, BackendError, Call, Payload, Pending, Pop, PopReply, QueueName, Release, Reply,
    ResultStream, Seconds, Software, Subscription, Timestamp, WorkerName,
};

use crate::connection::ConnectionError;
use crate::driver::Shared;
use crate::layout::{CallError, Host, Layout};
use listener::{Listener, ListenerTask};
use session::{NAME, Session};
use streams::{WorqrEvents, WorqrResults};

pub use url::WorqrUrl;

/// How long dropping the backend may block, if there are workers to be removed.
const RETIRE_MAX: Duration = Duration::from_secs(1);

/// Worqr's queues on a Redis or a Valkey.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use geartrain_core::{Backend, Call, Jid, Klass, NO_JID, Put, QueueName};
/// use geartrain_redis::worqr::WorqrBackend;
/// let backend = WorqrBackend::connect("worqr+redis://127.0.0.1:6379".parse()?).await?;
/// let (queue, klass) = (QueueName::new("mail")?, Klass::new("mail")?);
/// // The jid does not matter: a task has none.
/// let put = Put::new(queue.clone(), Jid::new(NO_JID)?, klass, "hello");
/// backend.execute(vec![Call::from(put)]).await?;
/// assert_eq!(backend.cancel_tasks(queue, "hello".into()).await?, 1);
/// # Ok(()) }
/// ```
pub struct WorqrBackend {
    host: Host<Session>,
}

impl WorqrBackend {
    /// Connects, and fails if there is no Redis behind the URL now.
    pub async fn connect(url: WorqrUrl) -> Result<WorqrBackend, BackendError> {
        let (listener, requests) = Listener::new();
        let options = url.options;
        let host = Host::start(url.redis, None, |shared| Session::new(shared, options, listener)).await?;
        host.spawn(ListenerTask::new(host.layout.clone(), requests).run());
        host.spawn(host.layout.clone().keep_alive());
        Ok(WorqrBackend { host })
    }

    /// Removes all tasks of a queue with this payload, and has their workers finish those that run. Returns how
    /// many were waiting.
    pub async fn cancel_tasks(&self, queue: QueueName, payload: Payload) -> Result<u64, BackendError> {
        self.host.run(|session| async move { session.cancel(&queue, &payload).await }).await
    }

    /// Ends the work of a worker of this process on a queue. Its tasks go back to the front; returns how many.
    pub async fn stop_work(&self, worker: WorkerName, queue: QueueName) -> Result<u64, BackendError> {
        self.host.run(|session| async move { session.stop_work(&worker, &queue).await }).await
    }

    /// Removes a worker of this process. Its tasks go back to the front; returns how many.
    pub async fn stop_worker(&self, worker: WorkerName) -> Result<u64, BackendError> {
        self.host.run(|session| async move { session.stop_worker(&worker).await }).await
    }
}

impl Layout for Session {
    const NAME: &'static str = NAME;

    fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    async fn call(&self, call: Call) -> Result<Reply, CallError> {
        self.run_call(call).await
    }

    async fn pop(&self, pop: &Pop, now: Timestamp) -> Result<(PopReply, Option<Timestamp>), CallError> {
        Ok((self.pop_now(pop).await?, self.pause_end(pop, now)))
    }

    async fn ready(
        &self,
        queues: &[QueueName],
        _: Timestamp,
    ) -> Result<(bool, Option<Timestamp>), CallError> {
        Ok((self.is_ready(queues).await?, None))
    }

    fn notified(&self) -> impl Future<Output = ()> + Send {
        // From now on, and not from the first poll on.
        self.work.notified()
    }

    async fn release(&self, release: &Release) -> Result<(), CallError> {
        self.give_back(release).await
    }
}

impl Backend for WorqrBackend {
    fn execute(&self, batch: Vec<Call>) -> Pending<'_, Vec<Answer>> {
        if put::is_plain(&batch) {
            return Box::pin(self.host.run(|session| async move { session.put_all(&batch).await }));
        }
        self.host.execute(batch)
    }

    fn pop_or_wait(&self, pop: Pop, wait: Seconds) -> Pending<'_, PopReply> {
        self.host.pop_or_wait(pop, wait)
    }

    fn ready_or_wait(&self, queues: Vec<QueueName>, wait: Seconds) -> Pending<'_, bool> {
        self.host.ready_or_wait(queues, wait)
    }

    fn now(&self) -> Option<Timestamp> {
        Some(self.host.now())
    }

    fn identify(&self) -> Pending<'_, Software> {
        self.host.identify()
    }

    fn subscribe(&self) -> Pending<'_, Box<dyn Subscription>> {
        let session = self.host.layout.clone();
        let opened = self.host.run(|_| async move {
            let events = WorqrEvents::open(session).await;
            events.ok_or_else(|| ConnectionError::InvalidReply("the subscription was not confirmed").into())
        });
        Box::pin(async move { Ok(Box::new(opened.await?) as Box<dyn Subscription>) })
    }

    fn subscribe_from(&self, _: u64) -> Pending<'_, Box<dyn Subscription>> {
        self.host.refuse("keep events: they are only published")
    }

    fn open_result_stream(&self, stream_id: u64) -> Pending<'_, Box<dyn ResultStream>> {
        let session = self.host.layout.clone();
        Box::pin(
            async move { Ok(Box::new(WorqrResults::open(session, stream_id)?) as Box<dyn ResultStream>) },
        )
    }
}

impl Drop for WorqrBackend {
    fn drop(&mut self) {
        let session = self.host.layout.clone();
        if session.state.lock().workers.is_empty() {
            return;
        }
        let (done, is_done) = flume::bounded::<()>(0);
        self.host.spawn(async move {
            session.retire().await;
            drop(done);
        });
        let _ = is_done.recv_timeout(RETIRE_MAX);
    }
}
