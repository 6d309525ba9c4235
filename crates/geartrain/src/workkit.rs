//! WorkKit schedules in their own words: add a job at a time, in a while or now, and listen.
//!
//! ```no_run
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use geartrain::workkit::Schedule;
//! use geartrain::{Context, Payload, State};
//! let tasks = Schedule::create("workkit+redis://127.0.0.1:6379", "app-tasks").await?;
//! tasks.add_at("7pm tomorrow", "your-app.cache/clear", &()).await?;
//! tasks.add_at("every 2nd sunday at 7pm", "your-app.cache/clear", &()).await?;
//! tasks.add_in("5 minutes", "your-app.user/activate", &("tracy@domain.com",)).await?;
//! tasks.add_now("your-app.cache/clear", &()).await?;
//!
//! tasks
//!     .listen()
//!     .on_klass("your-app.cache/clear", async |_: Payload, _: State<()>, _: Context| Ok(""))
//!     .run()
//!     .await?;
//! # Ok(()) }
//! ```
//!
//! Times are in UTC and to the second. Equal jobs of one second are one job, see [`Added::is_new`], and jobs
//! of one second run in no particular order. An error of a handler is final, unless the URL has `retries=`.

use std::sync::Arc;

use geartrain_core::schedule::{self, BadSchedule, When, Zone, Zones, parse_delay};
pub use geartrain_redis::workkit::{AddJob, Added, CronOrder, Run, WorkKitBackend, WorkKitUrl};
use serde::Serialize;

use crate::put::to_json;
use crate::{Backend, BadArgument, Client, Clock, Error, Klass, QueueName, SystemClock, Timestamp};

/// A named WorkKit schedule. Clones share the connection.
#[derive(Clone)]
pub struct Schedule {
    backend: Arc<WorkKitBackend>,
    name: QueueName,
}

impl std::fmt::Debug for Schedule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Schedule({})", self.name)
    }
}

impl Schedule {
    /// Connects to the Redis of a schedule, which begins with its first job.
    pub async fn create(url: &str, name: &str) -> Result<Schedule, Error> {
        let name = QueueName::new(name)?;
        let parsed: WorkKitUrl = url.parse().map_err(|bad: geartrain_redis::BadUrl| Error::Url {
            url: crate::connect::without_password(url),
            why: bad.why(),
        })?;
        match WorkKitBackend::connect(parsed.clone()).await {
            Ok(backend) => Ok(Schedule { backend: Arc::new(backend), name }),
            Err(source) => Err(Error::Connect { url: parsed.to_string(), source }),
        }
    }

    /// Its name.
    pub fn name(&self) -> &QueueName {
        &self.name
    }

    /// A client of the Redis, for all other operations. The queue is the schedule.
    pub fn client(&self) -> Client {
        Client::new(self.backend.clone())
    }

    /// Adds a job that runs at a time, or again and again: a phrase such as `7pm tomorrow` or
    /// `every 2nd sunday at 7pm`, or a cron expression. One of seven fields is stored as it is written. The
    /// arguments are a tuple or a list.
    pub async fn add_at(&self, when: &str, function: &str, args: &impl Serialize) -> Result<Added, Error> {
        let run = match When::parse(when, self.now(), &Zones::default()).map_err(bad_time)? {
            When::Once(at) => Run::Once(at),
            When::Recurring(_) if schedule::Schedule::parse_seven(when).is_ok() => Run::Cron(when.to_owned()),
            When::Recurring(schedule) => Run::Cron(schedule.to_string()),
        };
        self.add(run, function, args).await
    }

    /// Adds a job that runs after a while, such as `5 minutes`; in whole seconds, rounded up.
    pub async fn add_in(&self, delay: &str, function: &str, args: &impl Serialize) -> Result<Added, Error> {
        let at = parse_delay(delay, self.now(), &Zone::UTC).map_err(bad_time)?;
        self.add(Run::Once(at), function, args).await
    }

    /// Adds a job that runs in this second.
    pub async fn add_now(&self, function: &str, args: &impl Serialize) -> Result<Added, Error> {
        self.add(Run::Once(self.now().floor()), function, args).await
    }

    async fn add(&self, run: Run, function: &str, args: &impl Serialize) -> Result<Added, Error> {
        let args = match to_json("arguments", args)? {
            // A unit, which stands for no arguments.
            null if null.text() == Some("null") => "[]".into(),
            args => args,
        };
        let (schedule, klass) = (self.name.clone(), Klass::new(function)?);
        Ok(self.backend.add(AddJob { schedule, klass, args, run, retries: None, nonce: false }).await?)
    }

    fn now(&self) -> Timestamp {
        self.backend.now().unwrap_or_else(|| SystemClock.now())
    }

    /// A worker that takes the jobs of its handlers. Those of other functions, and function literals, are
    /// left for other listeners.
    #[cfg(feature = "worker")]
    pub fn listen(&self) -> crate::Worker {
        let backend: Arc<dyn Backend> = self.backend.clone();
        crate::Worker::new(backend).queues([self.name.to_string()])
    }
}

fn bad_time(error: BadSchedule) -> Error {
    BadArgument { what: "time", why: error.to_string() }.into()
}
