//! Adding jobs in WorkKit's own terms: at a moment, or by a cron string.

use geartrain_core::schedule::When;
use geartrain_core::{BackendError, Jid, Klass, Payload, QueueName, Timestamp};

use super::put::{Inserted, NewJob};
use super::session::{Session, unsupported};
use super::{WorkKitBackend, cron};
use crate::layout::CallError;

/// A job to add to a schedule.
#[derive(Debug, Clone)]
pub struct AddJob {
    /// The schedule.
    pub schedule: QueueName,
    /// The named function, as in `some.ns/name`.
    pub klass: Klass,
    /// Its arguments, a JSON array; empty for none.
    pub args: Payload,
    /// When it runs.
    pub when: When,
    /// How often it may be retried, instead of as the URL says.
    pub retries: Option<u32>,
    /// Whether it is a job of its own, even if an equal one exists.
    pub nonce: bool,
}

/// A job of a schedule, after it was added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Added {
    /// Its id.
    pub jid: Jid,
    /// Whether it is new. An equal job is left alone.
    pub is_new: bool,
    /// Its first run, if it is new.
    pub first: Timestamp,
}

impl WorkKitBackend {
    /// Adds a job, unless the schedule has an equal one.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use geartrain_core::schedule::When;
    /// use geartrain_core::{Klass, QueueName};
    /// use geartrain_redis::workkit::{AddJob, WorkKitBackend};
    /// let backend = WorkKitBackend::connect("workkit+redis://127.0.0.1:6379".parse()?).await?;
    /// let added = backend
    ///     .add(AddJob {
    ///         schedule: QueueName::new("app-tasks")?,
    ///         klass: Klass::new("your-app.cache/clear")?,
    ///         args: r#"["users"]"#.into(),
    ///         when: When::Recurring("* * * * 19 0 0".parse()?),
    ///         retries: None,
    ///         nonce: false,
    ///     })
    ///     .await?;
    /// # Ok(()) }
    /// ```
    pub async fn add(&self, job: AddJob) -> Result<Added, BackendError> {
        self.host.run(|session| async move { session.add(job).await }).await
    }
}

impl Session {
    async fn add(&self, job: AddJob) -> Result<Added, CallError> {
        let now = self.shared.clock.now();
        let (cron, first) = match &job.when {
            When::Once(at) => cron::once((*at).max(now.floor()), self.options.order)?,
            When::Recurring(schedule) if !schedule.zone().is_utc() => {
                return Err(unsupported("run a job in a time zone: its cron strings are in UTC").into());
            }
            When::Recurring(schedule) => (self.written(schedule)?, cron::first_run(schedule, now)?),
        };
        let new = NewJob {
            schedule: &job.schedule,
            klass: &job.klass,
            args: job.args.bytes(),
            cron,
            first,
            retries: job.retries,
            nonce: job.nonce || self.options.nonce,
        };
        let Inserted { jid, is_new } = self.insert(new).await?;
        Ok(Added { jid, is_new, first })
    }
}
