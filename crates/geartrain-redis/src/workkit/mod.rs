//! WorkKit schedules on a Redis as a [`Backend`]: jobs with a cron string, in the keys and the JSON that
//! WorkKit published, so that its own clients and listeners can be on the other side.
//!
//! Its words stop here: a *schedule* is our queue, a *named function* `#'ns/name` our klass `ns/name`, the
//! *arguments* (a JSON array) our payload, the *job ID* (the SHA-1 of the payload) our jid.
//!
//! | command | what is done |
//! |---|---|
//! | `Put` | inserts a job whose cron string matches one second: this one, or the first after the delay |
//! | `Pop`, [`pop_or_wait`](Backend::pop_or_wait) | looks at the due entries, and claims those of the klasses; looks again at the next score or after a second |
//! | `Complete`, `Fail`, `Retry`, `Release`, `Heartbeat` | by the lease in our own keys |
//! | `Cancel`, `Get`, `GetMany`, `Status`, `Jobs`, `Peek`, `Queues`, `Length` | read or remove entries and payloads |
//! | `Failures`, `Failed` | jobs that cannot be run, in the group `workkit-dead`, and those that are set aside |
//! | `SetAside`, `EndSetAside` | moves entry and payload to a hash of our own, and ends that |
//! | `PutPeriodic`, `RemovePeriodic`, `Periodics` | jobs whose cron string matches more than once |
//!
//! Everything else is refused by name. Beyond WorkKit, which loses a job whose listener dies:
//!
//! - A recurring job moves from one score to the next in the step that claims it, and is never absent.
//! - A job that runs once comes back when the lease of a lost worker expires.
//! - What we cannot run is left alone: function literals, and functions that no worker asked for.
//!
//! The resolution is one second, jobs of one second have no order, and equal jobs of one second are one job:
//! [`PutReply::NamedExisting`](geartrain_core::PutReply::NamedExisting).

mod add;
mod attempt;
mod canonical;
mod commands;
mod cron;
mod finish;
mod keys;
mod payload;
mod periodic;
mod pop;
mod put;
mod read;
mod recover;
mod script;
mod session;
mod set_aside;
mod url;

use std::sync::Arc;

use geartrain_core::{
    Answer, Backend, BackendError, Call, Clock, Jid, Pending, PeriodicTemplate, Pop, PopReply, QueueName,
    ResultStream, Seconds, Software, Subscription, Timestamp,
};

use crate::layout::Host;
use session::Session;

pub use add::{AddJob, Added, Run};
pub use cron::CronOrder;
pub use payload::is_function;
pub use url::WorkKitUrl;

/// WorkKit schedules on a Redis or a Valkey.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use geartrain_core::{Backend, Call, Jid, Klass, Put, QueueName};
/// use geartrain_redis::workkit::WorkKitBackend;
/// let backend = WorkKitBackend::connect("workkit+redis://127.0.0.1:6379".parse()?).await?;
/// let (schedule, clear) = (QueueName::new("app-tasks")?, Klass::new("your-app.cache/clear")?);
/// // The jid does not matter: the schedule has ids of its own.
/// let put = Put::new(schedule, Jid::new("-")?, clear, r#"["users"]"#);
/// let answers = backend.execute(vec![Call::from(put)]).await?;
/// # Ok(()) }
/// ```
pub struct WorkKitBackend {
    host: Host<Session>,
}

impl WorkKitBackend {
    /// Connects, and fails if there is no Redis behind the URL now. Time is that of the Redis.
    pub async fn connect(url: WorkKitUrl) -> Result<WorkKitBackend, BackendError> {
        WorkKitBackend::start(url, None).await
    }

    /// Connects with the caller's clock instead of the Redis's.
    pub async fn with_clock(url: WorkKitUrl, clock: Arc<dyn Clock>) -> Result<WorkKitBackend, BackendError> {
        WorkKitBackend::start(url, Some(clock)).await
    }

    async fn start(url: WorkKitUrl, clock: Option<Arc<dyn Clock>>) -> Result<WorkKitBackend, BackendError> {
        let session = |shared| Session::new(shared, url.options);
        Ok(WorkKitBackend { host: Host::start(url.redis, clock, session).await? })
    }
}

impl Backend for WorkKitBackend {
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

    fn periodic_jid(&self, template: &PeriodicTemplate) -> Option<Jid> {
        self.host.layout.periodic_jid(template)
    }

    fn subscribe(&self) -> Pending<'_, Box<dyn Subscription>> {
        self.host.refuse("publish events")
    }

    fn subscribe_from(&self, _: u64) -> Pending<'_, Box<dyn Subscription>> {
        self.host.refuse("publish events")
    }

    fn open_result_stream(&self, _: u64) -> Pending<'_, Box<dyn ResultStream>> {
        self.host.refuse("wait for a result")
    }
}
