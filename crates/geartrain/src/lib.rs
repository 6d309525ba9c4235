//! A job queue for Rust programs.
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
//! Whatever has no method of its own on [`Client`] is an operation that [`Client::run`] takes, such as
//! [`Recur`], [`Depend`] or [`Stats`].

mod client;
mod connect;
mod put;
mod serving;
mod timer;
mod wait;

pub use client::Client;
pub use connect::{Target, connect, connect_to_follow};
pub use geartrain_core::engine::MemoryReport;
pub use geartrain_core::*;
pub use geartrain_gearman::client::{GearmanBackend, GearmanUrl, ResubmitScope, Resubmitted};
pub use geartrain_redis::{RedisBackend, RedisUrl, script};
pub use geartrain_store::{BackedUp, OpenError, Report, Salvaged, SyncMode, check, salvage};
pub use put::PutRequest;
pub use wait::{Awaited, Ended, WaitError};

/// The long-term log of what became of jobs, for workers that write it themselves and for whoever reads it. A server writes it with `--result-log`.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
/// # let place = std::env::temp_dir().join(format!("geartrain-facade-doc-{}", std::process::id()));
/// # std::fs::create_dir_all(&place)?;
/// # let url = format!("sqlite:{}", place.join("results.db").display());
/// use geartrain::log::{Query, ResultLog};
/// let client = geartrain::connect("memory:").await?;
/// let log = ResultLog::open(&url)?; // such as sqlite:./results.db
///
/// client.put("mail", "welcome", "{}").jid("j1").await?;
/// let job = client.pop("mail", "worker-1").await?.expect("there is a job");
/// log.start(&job)?;
/// client.fail(&job, "smtp", "it said 451").await?;
/// log.failed(&job, "smtp", "it said 451")?;
///
/// let wrong = log.entries(&Query { failed: true, ..Query::default() })?;
/// assert_eq!(wrong[0].message.as_deref(), Some("it said 451"));
/// # drop(log);
/// # std::fs::remove_dir_all(place)?;
/// # Ok(()) }) }
/// ```
#[cfg(feature = "log")]
pub mod log {
    pub use geartrain_results::{Ending, Entry, Gap, LogError, LogPlace, Query, RESULT_BYTES_MAX, ResultLog};
}

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// What was given makes no sense.
    #[error(transparent)]
    Input(#[from] BadInput),
    /// The queue said no, and nothing changed.
    #[error(transparent)]
    Refused(Refusal),
    /// There is no answer.
    #[error(transparent)]
    Backend(BackendError),
    /// A wait for a job came to nothing.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// The backend answered something else than it was asked.
    #[error("the backend's answer is not to the question")]
    WrongAnswer,
    /// The directory cannot be opened.
    #[error("cannot open the queue in {directory}")]
    Open {
        /// Which.
        directory: String,
        /// Why.
        #[source]
        source: geartrain_store::OpenError,
    },
    /// The machine's clock stands before 1970. Ids of version 7 begin with the time since then, so no job
    /// could get one.
    #[error("this machine's clock is {seconds} s before 1970: set it, and try again")]
    Clock {
        /// By how much.
        seconds: u64,
    },
    /// Nobody answers there.
    #[error("cannot reach the queue at {url}")]
    Connect {
        /// Where.
        url: String,
        /// Why.
        #[source]
        source: BackendError,
    },
    /// There is no copy.
    #[error("cannot make a copy")]
    Backup(#[source] OpenError),
    /// The URL names no backend.
    #[error("{url:?} is not the URL of a queue: {why}")]
    Url {
        /// The URL.
        url: String,
        /// What is wrong with it.
        why: &'static str,
    },
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

/// The example in the README.
#[doc = include_str!("../../../README.md")]
#[cfg(doctest)]
struct Readme;
