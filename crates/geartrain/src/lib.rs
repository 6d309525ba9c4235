//! A job queue for Rust programs.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # #[derive(Clone)] struct Smtp;
//! # impl Smtp { async fn send(&self, to: &str) -> std::io::Result<String> { Ok(format!("sent to {to}")) } }
//! # let smtp = Smtp;
//! # let directory = std::env::temp_dir().join(format!("geartrain-worker-doc-{}", std::process::id()));
//! # let url = &format!("embedded:{}", directory.display());
//! use geartrain::{Context, State, Worker};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize, geartrain::Job)]
//! #[job(queue = "mail", klass = "welcome", timeout = "2m", backoff = "10s..1h")]
//! struct Welcome { to: String }
//!
//! let client = geartrain::connect(url).await?; // such as "embedded:./jobs"
//! client.put_job(&Welcome { to: "a@example.org".into() }).unique("a").await?;
//! # let awaited = client.put_and_follow(client.put_job(&Welcome { to: "a@example.org".into() }).unique("a")).await?;
//! # let ctrl_c = async || awaited.end(None).await.map(|ended| assert_eq!(ended.json::<String>().unwrap(), "sent to a@example.org"));
//!
//! Worker::new(client)
//!     .with_state(smtp)
//!     .on(async |job: Welcome, State(smtp), cx: Context| {
//!         cx.progress(1, 2).await?;
//!         Ok(smtp.send(&job.to).await?)
//!     })
//!     .concurrency(32)
//!     .run_until(ctrl_c())
//!     .await?;
//! # std::fs::remove_dir_all(directory)?;
//! # Ok(()) }
//! ```
//!
//! The [`Worker`] pops the jobs of its handlers, renews their locks, and reports how they ended. The value that
//! a handler returns is the job's result. An error retries the job as its backoff says, unless it is a
//! [`JobError`] that says otherwise; a panic fails it. When the worker stops it waits for the jobs that run,
//! and hands back what is left without using up a retry.
//!
//! A program with a loop of its own takes [leases](Lease), or pops jobs and reports on them step by step. That
//! needs no tokio:
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
//! let client = geartrain::connect("memory:").await?;
//!
//! let jid = client.put("mail", "welcome", r#"{"to":"a@example.org"}"#).priority(5.0).tag("new").await?;
//!
//! let job = client.pop("mail", "worker-1").await?.expect("there is a job");
//! assert_eq!((&job.jid, job.klass.as_str()), (&jid, "welcome"));
//! client.heartbeat(&job).await?;
//! client.complete(&job).await?;
//!
//! let done = client.get(&jid).await?.expect("it is kept for a while");
//! assert_eq!(done.state.name(), geartrain::StateName::Complete);
//! # Ok(()) }) }
//! ```
//!
//! [`Client::queue`] and [`Client::job`] are handles of one queue and one job. Operations without a method,
//! such as [`Recur`] or [`AddTags`] of several jobs in a [batch](Client::batch), go through [`Client::run`].
//! [`testing`] is a queue whose clock a test moves.
//!
//! # Features
//!
//! | feature | what it adds |
//! |---|---|
//! | `embedded` (default) | `memory:` and `embedded:DIR`: the queue in this process; the module `testing` |
//! | `socket` (default) | shares an embedded directory with other processes through a socket file; brings tokio |
//! | `worker` (default) | [`Worker`], [`Lease`] and typed jobs; brings tokio and tower |
//! | `derive` (default) | `#[derive(geartrain::Job)]`; brings syn at compile time |
//! | `redis` | `redis://HOST:PORT`: a geartrain server, a Redis or a Valkey; `gearmonkey+redis://`: GearMonkey functions; `workkit+redis://`: WorkKit schedules; `worqr+redis://`: Worqr's queues; brings the Redis driver and rustls |
//! | `gearman` | `gearman://HOST:PORT`: Gearman servers; brings rustls |
//! | `results` | the module `results`: the long-term result log; brings SQLite |
//! | `full` | all of these |

mod client;
mod connect;
#[cfg(all(feature = "embedded", feature = "redis"))]
mod directory_guest;
#[cfg(feature = "embedded")]
mod embedded;
mod events;
mod job_handle;
#[cfg(feature = "worker")]
mod lease;
mod put;
mod queue_handle;
mod random;
mod select;
#[cfg(feature = "embedded")]
mod shared_store;
#[cfg(feature = "socket")]
mod socket;
#[cfg(feature = "embedded")]
pub mod testing;
mod timer;
#[cfg(feature = "worker")]
pub mod transfer;
mod wait;
#[cfg(feature = "redis")]
pub mod workkit;

pub use client::Client;
pub use connect::{HostOptions, Target, connect, connect_as_consumer, connect_as_host, without_password};
#[cfg(all(feature = "embedded", any(feature = "redis", feature = "socket")))]
pub use embedded::socket_in;
pub use events::Events;
pub use geartrain_core::engine::MemoryReport;
pub use geartrain_core::*;
/// Makes a type a job: `#[derive(geartrain::Job)]` implements [`TypedJob`].
#[cfg(feature = "derive")]
pub use geartrain_derive::Job;
#[cfg(feature = "gearman")]
pub use geartrain_gearman::client::{GearmanBackend, GearmanUrl, ResubmitScope, Resubmitted};
#[cfg(feature = "redis")]
pub use geartrain_redis::gearmonkey::{GearMonkeyBackend, GearMonkeyUrl};
#[cfg(feature = "redis")]
pub use geartrain_redis::workkit::{WorkKitBackend, WorkKitUrl};
#[cfg(feature = "redis")]
pub use geartrain_redis::worqr::{WorqrBackend, WorqrUrl};
#[cfg(feature = "redis")]
pub use geartrain_redis::{RedisBackend, RedisUrl, script};
#[cfg(feature = "embedded")]
pub use geartrain_store::{
    OpenError, Report, Salvaged, SyncMode, check, check_copy, is_data_directory, salvage,
};
#[cfg(feature = "worker")]
pub use geartrain_worker::{
    AttemptEnding, CatchPanicLayer, Context, Interruption, Job as TypedJob, JobDefaults, JobError, JobOutput,
    JobRequest, JobService, Order, Report as WorkerReport, ReportError, State, TraceLayer, Worker,
    WorkerError, WorkerEvent,
};
pub use job_handle::JobHandle;
#[cfg(feature = "worker")]
pub use lease::Lease;
pub use put::PutRequest;
pub use queue_handle::QueueHandle;
pub use select::{BulkRun, Selection};
pub use wait::{Awaited, Ended, WaitError};

/// Workers: everything of the crate `geartrain-worker`. Two of its names differ at the root of this crate: the
/// trait [`Job`](worker::Job) is [`TypedJob`] there, because [`Job`](struct@Job) is a job with all of its data,
/// and [`Report`](worker::Report) is [`WorkerReport`].
#[cfg(feature = "worker")]
pub mod worker {
    pub use geartrain_worker::*;
}

/// The long-term result log: how every attempt ended, in a database. For workers that write it themselves,
/// and for readers. A server writes it with `--result-log`.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
/// # let directory = std::env::temp_dir().join(format!("geartrain-results-doc-{}", std::process::id()));
/// # std::fs::create_dir_all(&directory)?;
/// # let url = format!("sqlite:{}", directory.join("results.db").display());
/// use geartrain::results::{Query, ResultLog};
/// let client = geartrain::connect("memory:").await?;
/// let log = ResultLog::open(&url)?; // such as sqlite:./results.db
///
/// client.put("mail", "welcome", "{}").jid("j1").await?;
/// let job = client.pop("mail", "worker-1").await?.expect("there is a job");
/// log.start(&job)?;
/// client.fail(&job, "smtp", "it said 451").await?;
/// log.failed(&job, "smtp", "it said 451")?;
///
/// let failed = log.entries(&Query { failed: true, ..Query::default() })?;
/// assert_eq!(failed[0].message.as_deref(), Some("it said 451"));
/// # drop(log);
/// # std::fs::remove_dir_all(directory)?;
/// # Ok(()) }) }
/// ```
#[cfg(feature = "results")]
pub mod results {
    pub use geartrain_results::{
        Ending, Entry, Gap, LogError, LogTarget, Query, RESULT_BYTES_MAX, ResultLog,
    };
}

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument is invalid.
    #[error(transparent)]
    Input(#[from] BadInput),
    /// The queue refused the operation. Nothing changed.
    #[error(transparent)]
    Refused(Refusal),
    /// The backend failed. Whether the operation was done is not known.
    #[error(transparent)]
    Backend(BackendError),
    /// Waiting for a job gave no result.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// The backend sent a reply of the wrong type.
    #[error("the backend's reply does not match the request")]
    WrongAnswer,
    /// The directory cannot be opened.
    #[cfg(feature = "embedded")]
    #[error("cannot open the queue in {directory}")]
    Open {
        /// The data directory.
        directory: String,
        /// What failed.
        #[source]
        source: OpenError,
    },
    /// Another process owns the directory, and this one was built without the feature that connects to it.
    #[cfg(all(feature = "embedded", not(feature = "redis")))]
    #[error(
        "another process uses the queue in {directory}: stop it, or enable the crate feature `redis` to connect to it"
    )]
    InUse {
        /// The data directory.
        directory: String,
    },
    /// The machine's clock is before 1970. Job ids are UUIDs of version 7, which begin with the time since
    /// then.
    #[error("this machine's clock is {seconds} s before 1970: set it, and try again")]
    Clock {
        /// By how much.
        seconds: u64,
    },
    /// The queue cannot be reached.
    #[error("cannot reach the queue at {url}")]
    Connect {
        /// The URL, without its password.
        url: String,
        /// What failed.
        #[source]
        source: BackendError,
    },
    /// The URL names no backend.
    #[error("{url:?} is not the URL of a queue: {why}")]
    Url {
        /// The URL, without its password.
        url: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The URL names a backend whose crate feature is disabled.
    #[error(
        "{url:?} needs the crate feature `{feature}`: write features = [\"{feature}\"] for geartrain in Cargo.toml"
    )]
    FeatureDisabled {
        /// The URL, without its password.
        url: String,
        /// The feature to enable.
        feature: &'static str,
    },
}

impl Error {
    /// A stable word for programs: that of the [refusal](Refusal::code), or one for what else went wrong. The
    /// same in `--json`, HTTP and JSON over RESP.
    pub fn code(&self) -> &'static str {
        match self {
            Error::Input(_) => "bad-argument",
            Error::Refused(refusal) => refusal.code(),
            Error::Backend(error) => error.code(),
            Error::Wait(WaitError::TimedOut { .. }) => "timed-out",
            Error::Wait(WaitError::Unknown { .. }) => "no-result",
            Error::Connect { source: BackendError::Refused(refusal), .. } => refusal.code(),
            Error::Url { .. } => "bad-url",
            Error::FeatureDisabled { .. } => "feature-disabled",
            Error::Clock { .. } => "bad-clock",
            _ => "unavailable",
        }
    }
}

impl From<BackendError> for Error {
    fn from(error: BackendError) -> Error {
        match error {
            BackendError::Refused(refusal) => Error::Refused(refusal),
            broken => Error::Backend(broken),
        }
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Error {
        Error::Refused(refusal)
    }
}

impl From<BadName> for Error {
    fn from(name: BadName) -> Error {
        Error::Input(name.into())
    }
}

impl From<NotFinite> for Error {
    fn from(number: NotFinite) -> Error {
        Error::Input(number.into())
    }
}

impl From<BadArgument> for Error {
    fn from(argument: BadArgument) -> Error {
        Error::Input(argument.into())
    }
}

impl From<BadCount> for Error {
    fn from(count: BadCount) -> Error {
        Error::Input(count.into())
    }
}

/// The examples in the README.
#[doc = include_str!("../../../README.md")]
#[cfg(doctest)]
struct Readme;

/// The example in the guide.
#[doc = include_str!("../../../docs/guide/work.md")]
#[cfg(doctest)]
struct GuideWork;
