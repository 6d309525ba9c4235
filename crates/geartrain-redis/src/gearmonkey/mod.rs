//! GearMonkey functions on a Redis as a [`Backend`]: the keys, commands and events of its protocol, so that
//! other clients and workers can be on the other side.
//!
//! Its words stop here: a *function* is our queue and klass, `{FN}:{ID}` our jid, *input* our payload, *output*
//! our result, `idle` our `Waiting`, *dividend* and *divisor* our progress.
//!
//! | command | what is done |
//! |---|---|
//! | `Put` | the hash, the `create` event and the queue entry in one script |
//! | `Pop`, [`pop_or_wait`](Backend::pop_or_wait) | takes what is due, then by priority; woken by `create` events, and looks again after a second |
//! | `Complete`, `Fail`, `Retry`, `Release`, `Heartbeat`, `Progress` | by the lease in our own keys |
//! | `Cancel` | ends a queued job in error, asks our worker at its next heartbeat |
//! | `Attach`, [`open_result_stream`](Backend::open_result_stream) | the lock list for the job's creator, `finish` events for others |
//! | `Announce`, `RollCall`, `Workers`, `Announced` | the counter of the function, with a registration for each of our workers |
//! | `SetAside`, `EndSetAside` | takes queued jobs out of their queues, into a hash of our own |
//! | `Get`, `GetMany`, `Status`, `GetResult`, `Jobs`, `Peek`, `Queues`, `Length`, `PriorityCounts`, `Failures`, `Failed` | read |
//!
//! Everything else is refused by name. Beyond the protocol, which loses a job whose worker dies:
//!
//! - A job that a worker of ours has comes back to the front of its queue when its lease expires.
//! - A worker of ours that was lost is taken off the counter once.
//! - Jobs of other implementations are never queued again by themselves: they may be running. `Jobs` lists those
//!   that may be lost as stalled, and a put that requires the job queues it again.

mod commands;
mod events;
mod finish;
mod keys;
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

use geartrain_core::{
    Answer, Backend, BackendError, Call, Clock, Pending, Pop, PopReply, QueueName, ResultStream, Seconds,
    Software, Subscription, Timestamp,
};

use crate::layout::Host;
use session::Session;

pub use url::GearMonkeyUrl;

/// GearMonkey functions on a Redis or a Valkey.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use geartrain_core::{Backend, Call, Jid, Klass, Put, QueueName};
/// use geartrain_redis::gearmonkey::GearMonkeyBackend;
/// let backend = GearMonkeyBackend::connect("gearmonkey+redis://127.0.0.1:6379".parse()?).await?;
/// // The jid does not matter: the Redis gives out the ids.
/// let put = Put::new(QueueName::new("resize")?, Jid::new("-")?, Klass::new("resize")?, "cat.jpg");
/// let answers = backend.execute(vec![Call::from(put)]).await?;
/// # Ok(()) }
/// ```
pub struct GearMonkeyBackend {
    host: Host<Session>,
}

impl GearMonkeyBackend {
    /// Connects, and fails if there is no Redis behind the URL now. Time is that of the Redis.
    pub async fn connect(url: GearMonkeyUrl) -> Result<GearMonkeyBackend, BackendError> {
        GearMonkeyBackend::start(url, None).await
    }

    /// Connects with the caller's clock instead of the Redis's.
    pub async fn with_clock(
        url: GearMonkeyUrl,
        clock: Arc<dyn Clock>,
    ) -> Result<GearMonkeyBackend, BackendError> {
        GearMonkeyBackend::start(url, Some(clock)).await
    }

    async fn start(
        url: GearMonkeyUrl,
        clock: Option<Arc<dyn Clock>>,
    ) -> Result<GearMonkeyBackend, BackendError> {
        let session = |shared| Session::new(shared, url.options);
        let host = Host::start(url.redis, clock, session).await?;
        host.spawn(Session::clone(&host.layout).renew_registrations());
        Ok(GearMonkeyBackend { host })
    }

    /// Sets the counter of a function to the number of its live workers, ours and others, and returns what it was.
    /// For the moment after workers of another implementation died: nothing takes these off the counter.
    pub async fn set_worker_count(&self, function: QueueName, workers: u64) -> Result<String, BackendError> {
        self.host.run(|session| async move { session.set_worker_count(&function, workers).await }).await
    }
}

impl Backend for GearMonkeyBackend {
    fn execute(&self, batch: Vec<Call>) -> Pending<'_, Vec<Answer>> {
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
        Box::pin(async move {
            let events = self.host.run(|session| async move { session.subscribe().await }).await?;
            Ok(Box::new(events) as Box<dyn Subscription>)
        })
    }

    fn subscribe_from(&self, _: u64) -> Pending<'_, Box<dyn Subscription>> {
        self.host.refuse("store events: only those from now on are seen")
    }

    fn open_result_stream(&self, stream_id: u64) -> Pending<'_, Box<dyn ResultStream>> {
        Box::pin(
            async move { Ok(Box::new(self.host.layout.streams.open(stream_id)) as Box<dyn ResultStream>) },
        )
    }
}
