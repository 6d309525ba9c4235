//! What a put may ask for beyond Qless: a key, somebody who waits, limits of time, and what becomes of the result.

use crate::{BadArgument, Group, Jid, Klass, Payload, Priority, QueueName, Seconds, Timestamp, WorkerName};

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

/// One submission that waits for a job: told of its chunks, its progress and its end. Whoever submits chooses the numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct ResultWaiter {
    /// The stream that it is told through, see [`Backend::follow`](crate::Backend::follow).
    #[serde(rename = "front")]
    pub stream_id: u64,
    /// Those that leave together.
    pub connection: u64,
    /// Which of those.
    pub number: u64,
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
    pub const MIDDLE: RandomUnit = RandomUnit(0.5);

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
/// use geartrain_core::{Backoff, Chance, Seconds};
/// let backoff = Backoff::exponential(Seconds::from(2), 3.0, Seconds::from(60), 0.5)?;
/// assert_eq!(backoff.wait(0, Chance::EVEN), Seconds::from(2));
/// assert_eq!(backoff.wait(2, Chance::EVEN), Seconds::from(18));
/// assert_eq!(backoff.wait(2, Chance::new(0.0)?), Seconds::from(9)); // at the most half of it less
/// assert_eq!(backoff.wait(9, Chance::EVEN), Seconds::from(60));
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

/// How much of an attempt is done: so many of so many.
///
/// [`Portion::new`] keeps callers from saying what makes no sense. But workers of Gearman say such things, and what they said is
/// passed on and kept; so what is read back is not checked again.
///
/// ```
/// use geartrain_core::Portion;
/// assert_eq!(Portion::new(1, 4)?.percent(), 25);
/// assert!(Portion::new(0, 0).is_err());
/// assert!(Portion::new(5, 4).is_err());
/// assert_eq!(Portion::as_said(0, 0).percent(), 0);
/// assert_eq!(Portion::as_said(5, 4).percent(), 100);
/// # Ok::<(), geartrain_core::BadArgument>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(from = "(u64, u64)")]
pub struct Portion {
    part: u64,
    whole: u64,
}

impl Portion {
    /// So many of so many; of nothing, or more than all, is refused.
    pub fn new(part: u64, whole: u64) -> Result<Portion, BadArgument> {
        if whole == 0 {
            return Err(BadArgument::new("progress", "must be out of at least 1"));
        }
        if part > whole {
            return Err(BadArgument::new(
                "progress",
                format!("must be at most {whole} of {whole}, not {part}"),
            ));
        }
        Ok(Portion { part, whole })
    }

    /// What a worker of Gearman says, whatever it is.
    pub fn as_said(part: u32, whole: u32) -> Portion {
        Portion::from((u64::from(part), u64::from(whole)))
    }

    /// How many are done.
    pub fn part(self) -> u64 {
        self.part
    }

    /// Of how many.
    pub fn whole(self) -> u64 {
        self.whole
    }

    /// The same in percent, rounded down: 0 of nothing, and 100 of more than all.
    pub fn percent(self) -> u8 {
        let percent = (u128::from(self.part) * 100).checked_div(u128::from(self.whole));
        percent.map_or(0, |percent| percent.min(100) as u8)
    }
}

/// Takes what was said and kept, without a look.
impl From<(u64, u64)> for Portion {
    fn from((part, whole): (u64, u64)) -> Portion {
        Portion { part, whole }
    }
}

/// How far an attempt has got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Progressed {
    /// How much is done.
    pub portion: Portion,
    /// How many seconds it will still take, as far as the worker knows.
    pub seconds_left: Option<u32>,
}

/// What came out of a job.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct JobResult {
    /// A number, 0 for all is well.
    pub code: i32,
    /// Bytes that nobody in between looks at.
    pub bytes: Payload,
}

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum JobEnding {
    /// It was completed for good.
    Completed,
    /// It failed.
    Failed {
        /// The kind of failure.
        group: Group,
        /// What was said about it.
        message: String,
    },
    /// It was cancelled.
    Canceled,
}

/// A result that is kept.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct StoredResult {
    /// The job that it came out of.
    pub jid: Jid,
    /// How that ended.
    #[serde(rename = "how")]
    pub ending: JobEnding,
    /// What came out.
    #[serde(rename = "outcome")]
    pub result: JobResult,
    /// When.
    pub ended: Timestamp,
    /// Until when it is kept, unless newer ones need its room.
    pub until: Timestamp,
}

/// What is true of a job beyond Qless, and of one attempt at it.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct JobDetails {
    /// What makes another submission join it.
    pub unique: Option<UniqueKey>,
    /// How many submissions it stands for.
    pub submissions: u64,
    /// How many of them wait for it now.
    pub attached: u64,
    /// How long it lives unfinished.
    #[serde(rename = "lives")]
    pub orphan_policy: OrphanPolicy,
    /// What becomes of it when it ended.
    #[serde(rename = "afterwards")]
    pub on_end: OnEnd,
    /// How long its result will be kept.
    #[serde(rename = "result_for")]
    pub result_ttl: Option<Seconds>,
    /// It does not start after this moment.
    pub expires: Option<Timestamp>,
    /// How long one attempt may take.
    pub attempt_max: Option<Seconds>,
    /// When the attempt under way must be over.
    pub deadline: Option<Timestamp>,
    /// How long a retry waits.
    pub backoff: Option<Backoff>,
    /// How many of its workers may die before it is set aside.
    pub crashes_max: Option<u32>,
    /// How many have died.
    pub crashes: u32,
    /// What is known of the last one's death.
    pub evidence: Option<String>,
    /// How far the attempt under way has got.
    pub progress: Option<Progressed>,
    /// What is carried beside the payload.
    #[serde(default, rename = "aside")]
    pub metadata: Option<Payload>,
}

/// What a worker can do.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct Capability {
    /// The jobs of this queue.
    pub queue: QueueName,
    /// Of this klass; of any, if not given.
    pub klass: Option<Klass>,
    /// How long it takes for one at the most.
    pub attempt_max: Option<Seconds>,
}

/// What one worker has announced.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Announcement {
    /// The worker.
    pub worker: WorkerName,
    /// When it was last seen.
    pub seen: Option<Timestamp>,
    /// What it can do, sorted.
    #[serde(rename = "abilities")]
    pub capabilities: Vec<Capability>,
}

/// How often jobs of a queue may start: `count` every `per`, and up to `burst` at once after a pause.
///
/// ```
/// use geartrain_core::{Rate, Seconds};
/// assert_eq!(Rate::new(10, Seconds::from(60), 1)?.interval(), Seconds::from(6));
/// assert!(Rate::new(0, Seconds::from(1), 1).is_err());
/// # Ok::<(), geartrain_core::BadArgument>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "(u32, Seconds, u32)")]
pub struct Rate {
    count: u32,
    per: Seconds,
    burst: u32,
}

impl Rate {
    /// So many every so often. None at all, or none ever, is refused: that is what pausing a queue is for.
    pub fn new(count: u32, per: Seconds, burst: u32) -> Result<Rate, BadArgument> {
        let bad = |why: String| Err(BadArgument::new("rate", why));
        if count == 0 || burst == 0 {
            return bad("must let at least one job start; to let none start, pause the queue".into());
        }
        if per <= Seconds::ZERO || per > DURATION_MAX {
            return bad(format!("must be for a time of up to ten years, not {per} seconds"));
        }
        Ok(Rate { count, per, burst })
    }

    /// How many start in that time.
    pub fn count(self) -> u32 {
        self.count
    }

    /// In what time.
    pub fn per(self) -> Seconds {
        self.per
    }

    /// How many may start at once after a pause.
    pub fn burst(self) -> u32 {
        self.burst
    }

    /// The time from one start to the next, if all the jobs start as soon as they may.
    pub fn interval(self) -> Seconds {
        Seconds::saturating(self.per.get() / f64::from(self.count))
    }
}

impl TryFrom<(u32, Seconds, u32)> for Rate {
    type Error = BadArgument;
    fn try_from((count, per, burst): (u32, Seconds, u32)) -> Result<Rate, BadArgument> {
        Rate::new(count, per, burst)
    }
}

/// What a queue takes and hands out. The default is all of it.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct QueueLimits {
    /// The most unfinished jobs.
    pub jobs_max: Option<u64>,
    /// The most unfinished jobs for a put of at least this priority, and below the next one listed; for lower ones the lowest listed counts. At most 16.
    pub by_priority: Vec<(Priority, u64)>,
    /// How often its jobs may start.
    pub rate: Option<Rate>,
}
