//! Put options: what a put may ask for beyond Qless, such as a unique key, time limits and backoff.

use crate::{BadArgument, Group, Payload, ResultWaiter, Seconds, Timestamp, Traceparent};

/// The longest unique key, in bytes.
pub const UNIQUE_BYTES_MAX: usize = 4095;

/// The most [metadata](PutOptions::metadata) that a job may carry, in bytes.
pub const METADATA_BYTES_MAX: usize = 4096;

/// The most retries that a job may have; practically unlimited.
pub const RETRIES_MAX: u32 = i32::MAX as u32;

/// How many attempts at a job with [`RETRIES_MAX`] retries may end other than by the loss of its worker,
/// before one that exceeds its deadline fails the job.
pub const TIMEOUTS_MAX: u32 = 10;

/// The longest attempt, result retention and backoff: ten years.
pub const DURATION_MAX: Seconds = Seconds::from_whole(315_360_000);

/// The longest delay, and the longest wait of a client: a hundred years.
pub const DELAY_MAX: Seconds = Seconds::from_whole(3_155_760_000);

/// Default retention of results: 25 hours, so that results of the same time yesterday are still available.
pub const RESULT_TTL_DEFAULT: Seconds = Seconds::from_whole(90_000);

/// A deduplication key: a put with the key of an unfinished job of the same queue joins that job. 1 to 4095
/// arbitrary bytes.
///
/// ```
/// use geartrain_core::UniqueKey;
/// assert_eq!(UniqueKey::new(b"report-7")?.as_bytes(), b"report-7");
/// assert!(UniqueKey::new(b"").is_err());
/// assert!(UniqueKey::new(vec![0; 4096]).is_err());
/// # Ok::<(), geartrain_core::BadArgument>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UniqueKey(Box<[u8]>);

impl UniqueKey {
    /// Checks the length of a key.
    pub fn new(bytes: impl AsRef<[u8]>) -> Result<UniqueKey, BadArgument> {
        match bytes.as_ref() {
            [] => Err(BadArgument::new("unique key", "needs at least one byte")),
            bytes if bytes.len() > UNIQUE_BYTES_MAX => Err(BadArgument::new(
                "unique key",
                format!("has at most {UNIQUE_BYTES_MAX} bytes, this one has {}", bytes.len()),
            )),
            bytes => Ok(UniqueKey(bytes.into())),
        }
    }

    /// The bytes of the key.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// What happens to an unfinished job that no client waits for any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub enum OrphanPolicy {
    /// It stays until it ends.
    #[default]
    Always,
    /// It is removed, unless it is running: a running attempt goes on.
    WhileAwaited,
}

/// What happens to a job when it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub enum OnEnd {
    /// It stays and can be looked up, as in Qless.
    #[default]
    Keep,
    /// It is removed, unless other jobs depend on it.
    Forget,
}

/// What a job does when a job that it depends on fails.
///
/// ```
/// use geartrain_core::DependencyPolicy;
/// assert_eq!("skip".parse::<DependencyPolicy>()?, DependencyPolicy::Skip);
/// assert_eq!(DependencyPolicy::Run.as_str(), "run");
/// assert!("stop".parse::<DependencyPolicy>().is_err());
/// # Ok::<(), geartrain_core::BadArgument>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub enum DependencyPolicy {
    /// It waits until the failed job is requeued and complete, as in Qless.
    #[default]
    Wait,
    /// It fails too, into the group `upstream-<queue>`.
    Fail,
    /// It is cancelled. Its dependents depend on the failed job instead.
    Skip,
    /// It no longer depends on the failed job, and runs when its other dependencies are complete.
    Run,
}

impl DependencyPolicy {
    /// All policies, the default first.
    pub const ALL: [DependencyPolicy; 4] =
        [DependencyPolicy::Wait, DependencyPolicy::Fail, DependencyPolicy::Skip, DependencyPolicy::Run];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            DependencyPolicy::Wait => "wait",
            DependencyPolicy::Fail => "fail",
            DependencyPolicy::Skip => "skip",
            DependencyPolicy::Run => "run",
        }
    }
}

impl std::str::FromStr for DependencyPolicy {
    type Err = BadArgument;
    fn from_str(text: &str) -> Result<DependencyPolicy, BadArgument> {
        let named = DependencyPolicy::ALL.into_iter().find(|policy| policy.as_str() == text);
        named.ok_or_else(|| {
            BadArgument::new(
                "on_dependency_failure",
                format!("must be wait, fail, skip or run, not {text:?}"),
            )
        })
    }
}

/// Options of a put beyond Qless. The default is plain Qless behaviour.
///
/// ```
/// use geartrain_core::{Jid, Klass, Put, PutOptions, QueueName, Seconds, UniqueKey};
/// let options = PutOptions {
///     unique: Some(UniqueKey::new("report-7")?),
///     attempt_max: Some(Seconds::from(60)),
///     ..PutOptions::default()
/// };
/// let put = Put {
///     options: Some(Box::new(options)),
///     ..Put::new(QueueName::new("reports")?, Jid::new("j1")?, Klass::new("report")?, "{}")
/// };
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Default, serde::Deserialize)]
pub struct PutOptions {
    /// Deduplication key: joins an unfinished job of the same queue with this key, if there is one.
    pub unique: Option<UniqueKey>,
    /// The submission to attach: its result stream receives progress and result.
    pub attach: Option<ResultWaiter>,
    /// What happens when no client waits for the job any more.
    #[serde(rename = "lives")]
    pub orphan_policy: OrphanPolicy,
    /// What happens to the job when it ends.
    #[serde(rename = "afterwards")]
    pub on_end: OnEnd,
    /// How long to store the result; if not given, it is not stored.
    #[serde(rename = "result_for")]
    pub result_ttl: Option<Seconds>,
    /// The job fails if no attempt has started by this time.
    pub expires: Option<Timestamp>,
    /// How long one attempt may take, heartbeats or not.
    pub attempt_max: Option<Seconds>,
    /// How long retries wait, unless the retry gives a delay of its own.
    pub backoff: Option<Backoff>,
    /// How many workers may die while running the job before it fails. Default: the option `crashes-max`.
    pub crashes_max: Option<u32>,
    /// Refuses the put if no live worker has announced that it can run the job.
    pub roll_call: bool,
    /// Bytes for the worker besides the payload; at most [`METADATA_BYTES_MAX`].
    #[serde(default, rename = "aside")]
    pub metadata: Option<Payload>,
    /// What the job does when a job that it depends on fails, or has failed already.
    #[serde(default)]
    pub on_dependency_failure: DependencyPolicy,
    /// The trace that the job belongs to, for its worker.
    #[serde(default)]
    pub traceparent: Option<Traceparent>,
    /// Puts the job as a failed one, with this group and message, as when it is moved from another backend.
    #[serde(default)]
    pub failure: Option<Box<(Group, String)>>,
}

/// Leaves out the last fields that have their defaults, as [`Cancel`](crate::Cancel) does.
impl serde::Serialize for PutOptions {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let has_policy = self.on_dependency_failure != DependencyPolicy::Wait;
        let fields = match (&self.failure, &self.traceparent) {
            (Some(_), _) => 14,
            (None, Some(_)) => 13,
            (None, None) => 11 + usize::from(has_policy),
        };
        let mut options = to.serialize_struct("PutOptions", fields)?;
        options.serialize_field("unique", &self.unique)?;
        options.serialize_field("attach", &self.attach)?;
        options.serialize_field("lives", &self.orphan_policy)?;
        options.serialize_field("afterwards", &self.on_end)?;
        options.serialize_field("result_for", &self.result_ttl)?;
        options.serialize_field("expires", &self.expires)?;
        options.serialize_field("attempt_max", &self.attempt_max)?;
        options.serialize_field("backoff", &self.backoff)?;
        options.serialize_field("crashes_max", &self.crashes_max)?;
        options.serialize_field("roll_call", &self.roll_call)?;
        options.serialize_field("aside", &self.metadata)?;
        if fields > 11 {
            options.serialize_field("on_dependency_failure", &self.on_dependency_failure)?;
        }
        if fields > 12 {
            options.serialize_field("traceparent", &self.traceparent)?;
        }
        if fields > 13 {
            options.serialize_field("failure", &self.failure)?;
        }
        options.end()
    }
}

impl PutOptions {
    /// Whether a job with these options is ephemeral: it lives only while a client waits for it, and leaves
    /// neither a job nor a result behind.
    pub(crate) fn are_ephemeral(&self) -> bool {
        self.orphan_policy == OrphanPolicy::WhileAwaited
            && self.on_end == OnEnd::Forget
            && self.result_ttl.is_none()
    }
}

/// A random number from 0 to 1, drawn by the caller: this crate has no source of randomness.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "f64")]
pub struct RandomUnit(f64);

impl RandomUnit {
    /// 0.5, which leaves a backoff without jitter.
    pub const HALF: RandomUnit = RandomUnit(0.5);

    /// Checks that a number is from 0 to 1.
    pub fn new(value: f64) -> Result<RandomUnit, BadArgument> {
        if (0.0..=1.0).contains(&value) {
            return Ok(RandomUnit(value));
        }
        Err(BadArgument::new("chance", format!("must be from 0 to 1, not {value}")))
    }

    /// The number.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl TryFrom<f64> for RandomUnit {
    type Error = BadArgument;
    fn try_from(value: f64) -> Result<RandomUnit, BadArgument> {
        RandomUnit::new(value)
    }
}

/// Exponential backoff with jitter: how long a job waits before a retry.
///
/// ```
/// use geartrain_core::{Backoff, RandomUnit, Seconds};
/// let backoff = Backoff::exponential(Seconds::from(2), 3.0, Seconds::from(60), 0.5)?;
/// assert_eq!(backoff.wait(0, RandomUnit::HALF), Seconds::from(2));
/// assert_eq!(backoff.wait(2, RandomUnit::HALF), Seconds::from(18));
/// assert_eq!(backoff.wait(2, RandomUnit::new(0.0)?), Seconds::from(9)); // half of it less at most
/// assert_eq!(backoff.wait(9, RandomUnit::HALF), Seconds::from(60));
/// assert!(Backoff::constant(Seconds::from(-1)).is_err());
/// # Ok::<(), geartrain_core::BadArgument>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "(Seconds, f64, Seconds, f64)")]
pub struct Backoff {
    first: Seconds,
    factor: f64,
    max: Seconds,
    jitter: f64,
}

impl Backoff {
    /// The backoff of jobs without one: a second, doubled each time up to a minute, a quarter longer or shorter.
    pub const DEFAULT: Backoff =
        Backoff { first: Seconds::from_whole(1), factor: 2.0, max: Seconds::from_whole(60), jitter: 0.25 };

    /// Always the same wait.
    pub fn constant(wait: Seconds) -> Result<Backoff, BadArgument> {
        Backoff::exponential(wait, 1.0, wait, 0.0)
    }

    /// Waits `first` before the first retry and `factor` times as long before each next one, up to `max`. The
    /// result varies randomly by up to `jitter` times itself, more or less.
    pub fn exponential(
        first: Seconds,
        factor: f64,
        max: Seconds,
        jitter: f64,
    ) -> Result<Backoff, BadArgument> {
        let bad = |why: String| Err(BadArgument::new("backoff", why));
        if first < Seconds::ZERO || first > DURATION_MAX {
            return bad(format!("must begin with 0 seconds to ten years, not {first}"));
        }
        if !(1.0..=1e6).contains(&factor) {
            return bad(format!("must grow by a factor of 1 to 1,000,000, not {factor}"));
        }
        if max < first || max > DURATION_MAX {
            return bad(format!("must end with {first} seconds to ten years, not {max}"));
        }
        if !(0.0..=1.0).contains(&jitter) {
            return bad(format!("must vary by 0 to 1 times itself, not {jitter}"));
        }
        Ok(Backoff { first, factor, max, jitter })
    }

    /// Like [`exponential`](Backoff::exponential), in constants and in seconds. A constant outside the limits
    /// does not compile.
    ///
    /// ```
    /// use geartrain_core::{Backoff, Seconds};
    /// const SLOW: Backoff = Backoff::in_seconds(10.0, 2.0, 3_600.0, 0.25);
    /// assert_eq!(Ok(SLOW), Backoff::exponential(Seconds::from(10), 2.0, Seconds::from(3_600), 0.25));
    /// ```
    ///
    /// # Panics
    ///
    /// If `exponential` refuses these numbers.
    pub const fn in_seconds(first: f64, factor: f64, max: f64, jitter: f64) -> Backoff {
        let limit = DURATION_MAX.get();
        assert!(first >= 0.0 && first <= limit, "a backoff begins with 0 seconds to ten years");
        assert!(factor >= 1.0 && factor <= 1e6, "a backoff grows by a factor of 1 to 1,000,000");
        assert!(max >= first && max <= limit, "a backoff ends with its first wait to ten years");
        assert!(jitter >= 0.0 && jitter <= 1.0, "a backoff varies by 0 to 1 times itself");
        // Adding 0 turns -0 into 0.
        let (first, max) = (Seconds::from_finite(first + 0.0), Seconds::from_finite(max + 0.0));
        Backoff { first, factor, max, jitter }
    }

    /// The wait after an attempt that `before` failed attempts preceded.
    pub fn wait(&self, before: u32, random: RandomUnit) -> Seconds {
        let power = self.factor.powi(i32::try_from(before).unwrap_or(i32::MAX));
        let wait = Seconds::saturating(self.first.get() * power.min(f64::MAX)).min(self.max);
        Seconds::saturating(wait.get() * (1.0 + self.jitter * (2.0 * random.get() - 1.0)))
    }

    /// First wait, factor, longest wait and jitter.
    pub fn parts(&self) -> (Seconds, f64, Seconds, f64) {
        (self.first, self.factor, self.max, self.jitter)
    }
}

impl TryFrom<(Seconds, f64, Seconds, f64)> for Backoff {
    type Error = BadArgument;
    fn try_from((first, factor, max, jitter): (Seconds, f64, Seconds, f64)) -> Result<Backoff, BadArgument> {
        Backoff::exponential(first, factor, max, jitter)
    }
}
