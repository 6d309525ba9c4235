//! Put options: what a put may ask for beyond Qless, such as a unique key, time limits and backoff.

use crate::{BadArgument, Payload, ResultWaiter, Seconds, Timestamp};

/// The longest unique key, in bytes.
pub const UNIQUE_BYTES_MAX: usize = 4095;

/// The most that may be carried beside a payload, in bytes.
pub const METADATA_BYTES_MAX: usize = 4096;

/// The most retries that a job may have, which are as good as without end.
pub const RETRIES_MAX: u32 = i32::MAX as u32;

/// The longest that an attempt may be allowed to take, that a result may be kept, or that a backoff may wait: ten years.
pub const DURATION_MAX: Seconds = Seconds::from_whole(315_360_000);

/// How long results are kept if nobody says otherwise: 25 hours, so that yesterday's can be asked for today.
pub const RESULT_TTL_DEFAULT: Seconds = Seconds::from_whole(90_000);

/// What makes two submissions one: within a queue, a second put with the key of an unfinished job joins that job. Any bytes, 1 to 4095 of them.
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
    /// Takes bytes as a key, if they may be one.
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

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// How long an unfinished job lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub enum OrphanPolicy {
    /// Until it ended.
    #[default]
    Always,
    /// As long as somebody waits for it; once it runs it runs on.
    WhileAwaited,
}

/// What becomes of a job that ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub enum OnEnd {
    /// It can be looked up, as in Qless.
    #[default]
    Keep,
    /// It is forgotten, unless other jobs depend on it.
    Forget,
}

/// What a put asks for beyond Qless. The default asks for nothing.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct PutOptions {
    /// Joins an unfinished job of the same queue with the same key, if there is one.
    pub unique: Option<UniqueKey>,
    /// Who waits for it.
    pub attach: Option<ResultWaiter>,
    /// How long it lives unfinished.
    #[serde(rename = "lives")]
    pub orphan_policy: OrphanPolicy,
    /// What becomes of it when it ended.
    #[serde(rename = "afterwards")]
    pub on_end: OnEnd,
    /// Keeps its result for so long; not at all, if not given.
    #[serde(rename = "result_for")]
    pub result_ttl: Option<Seconds>,
    /// Does not start it after this moment.
    pub expires: Option<Timestamp>,
    /// How long one attempt may take, however often its worker sends heartbeats.
    pub attempt_max: Option<Seconds>,
    /// How long a retry waits, unless whoever retries says so.
    pub backoff: Option<Backoff>,
    /// How many of its workers may die before it is set aside; as the option `crashes-max` says, if not given.
    pub crashes_max: Option<u32>,
    /// Refuses the put if no worker has announced that it can do the job.
    pub roll_call: bool,
    /// Bytes that are carried beside the payload, for the worker alone; at most 4,096.
    #[serde(default, rename = "aside")]
    pub metadata: Option<Payload>,
}

impl PutOptions {
    /// Whether a job that asks for these is gone without a trace as soon as nobody waits for it: it lives no longer than that, is forgotten, and so is
    /// what came out of it.
    pub(crate) fn are_ephemeral(&self) -> bool {
        self.orphan_policy == OrphanPolicy::WhileAwaited
            && self.on_end == OnEnd::Forget
            && self.result_ttl.is_none()
    }
}

/// A number from 0 to 1, which stands for chance: nothing in core draws lots.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "f64")]
pub struct RandomUnit(f64);

impl RandomUnit {
    /// Neither good nor bad luck.
    pub const HALF: RandomUnit = RandomUnit(0.5);

    /// Takes a number from 0 to 1.
    pub fn new(value: f64) -> Result<RandomUnit, BadArgument> {
        if (0.0..=1.0).contains(&value) {
            return Ok(RandomUnit(value));
        }
        Err(BadArgument::new("chance", format!("must be from 0 to 1, not {value}")))
    }

    /// The number itself.
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

/// How long a job waits before it is tried again.
///
/// ```
/// use geartrain_core::{Backoff, RandomUnit, Seconds};
/// let backoff = Backoff::exponential(Seconds::from(2), 3.0, Seconds::from(60), 0.5)?;
/// assert_eq!(backoff.wait(0, RandomUnit::MIDDLE), Seconds::from(2));
/// assert_eq!(backoff.wait(2, RandomUnit::MIDDLE), Seconds::from(18));
/// assert_eq!(backoff.wait(2, RandomUnit::new(0.0)?), Seconds::from(9)); // at the most half of it less
/// assert_eq!(backoff.wait(9, RandomUnit::MIDDLE), Seconds::from(60));
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
    /// Always so long.
    pub fn constant(wait: Seconds) -> Result<Backoff, BadArgument> {
        Backoff::exponential(wait, 1.0, wait, 0.0)
    }

    /// At first so long, then `factor` times as long each time, up to `max`; and up to `jitter` times that more or less, as chance has it.
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

    /// The wait after so many tries that failed before this one.
    pub fn wait(&self, before: u32, chance: RandomUnit) -> Seconds {
        let power = self.factor.powi(i32::try_from(before).unwrap_or(i32::MAX));
        let wait = Seconds::saturating(self.first.get() * power.min(f64::MAX)).min(self.max);
        Seconds::saturating(wait.get() * (1.0 + self.jitter * (2.0 * chance.get() - 1.0)))
    }

    /// The first wait, the factor, the longest wait and how much chance changes.
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
