//! Typed jobs: a Rust type as the payload of a klass.

use std::time::Duration;

use geartrain_core::Backoff;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A type whose values are jobs: the payload is its JSON. Derive it with `geartrain::Job`, or implement it by
/// hand.
///
/// ```
/// use geartrain_worker::{Job, JobDefaults};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Welcome { to: String }
///
/// impl Job for Welcome {
///     const QUEUE: &'static str = "mail";
///     const KLASS: &'static str = "welcome";
///     const DEFAULTS: JobDefaults = JobDefaults { retries: Some(3), ..JobDefaults::NONE };
/// }
/// ```
pub trait Job: Serialize + DeserializeOwned + Send + 'static {
    /// The queue that jobs of this type are put into.
    const QUEUE: &'static str;
    /// The klass of these jobs: it chooses the handler.
    const KLASS: &'static str;
    /// What a put of such a job asks for unless it says otherwise.
    const DEFAULTS: JobDefaults = JobDefaults::NONE;
}

/// What a put of a typed job asks for by default.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct JobDefaults {
    /// The priority, higher first.
    pub priority: Option<f64>,
    /// How often the job may be retried.
    pub retries: Option<u32>,
    /// How long one attempt may take.
    pub timeout: Option<Duration>,
    /// The delay before a retry.
    pub backoff: Option<Backoff>,
    /// How long its result is stored.
    pub keep_result: Option<Duration>,
}

impl JobDefaults {
    /// The defaults of the queue.
    pub const NONE: JobDefaults =
        JobDefaults { priority: None, retries: None, timeout: None, backoff: None, keep_result: None };
}
