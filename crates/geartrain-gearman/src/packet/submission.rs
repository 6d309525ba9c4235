//! Submissions: the ten SUBMIT_* packets in one form.

use bytes::{Buf, Bytes, BytesMut};

use super::arguments::{check_function, check_unique, leading_number, required};
use super::{Fault, REQUEST, kind};
use crate::writer::{EncodeError, Writer};

/// A submitted job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Submission<B = Bytes> {
    /// The function to run.
    pub function: B,
    /// Unique ID: a submission with the same one and the same function joins the existing job. Empty for
    /// none, `-` for the job's data.
    pub unique: B,
    /// The job's payload.
    pub data: B,
    /// Priority, schedule, and whether the client waits.
    pub mode: Mode<B>,
}

/// How a job is to be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mode<B = Bytes> {
    /// SUBMIT_JOB, SUBMIT_JOB_HIGH, SUBMIT_JOB_LOW: the client waits for the result.
    Foreground(Priority),
    /// The same with _BG: the client does not wait.
    Background(Priority),
    /// SUBMIT_JOB_SCHED: in the background, at the next matching minute.
    Scheduled(Calendar),
    /// SUBMIT_JOB_EPOCH: in the background, not before this Unix second; 0 is at once. At most 63 bits.
    Epoch(u64),
    /// SUBMIT_REDUCE_JOB and SUBMIT_REDUCE_JOB_BACKGROUND: the worker receives a reducer with the job.
    Reduce {
        /// The function that combines the partial results.
        reducer: B,
        /// Whether the client does not wait.
        background: bool,
    },
}

/// Priority of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Priority {
    /// After all others.
    Low,
    /// The default.
    #[default]
    Normal,
    /// Before all others.
    High,
}

/// A schedule: which minutes match. `None` matches all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Calendar {
    /// 0 to 59.
    pub minute: Option<u8>,
    /// 0 to 23.
    pub hour: Option<u8>,
    /// Day of the month, 1 to 31.
    pub day: Option<u8>,
    /// 1 to 12.
    pub month: Option<u8>,
    /// 0 to 6, Monday is 0.
    pub weekday: Option<u8>,
}

impl<B> Submission<B> {
    /// Whether the client receives nothing after JOB_CREATED.
    pub fn is_background(&self) -> bool {
        match self.mode {
            Mode::Foreground(_) | Mode::Reduce { background: false, .. } => false,
            Mode::Background(_) | Mode::Scheduled(_) | Mode::Epoch(_) => true,
            Mode::Reduce { background: true, .. } => true,
        }
    }

    /// The job's priority.
    pub fn priority(&self) -> Priority {
        match self.mode {
            Mode::Foreground(priority) | Mode::Background(priority) => priority,
            Mode::Scheduled(_) | Mode::Epoch(_) | Mode::Reduce { .. } => Priority::Normal,
        }
    }

    fn kind(&self) -> u32 {
        match self.mode {
            Mode::Foreground(Priority::High) => kind::SUBMIT_JOB_HIGH,
            Mode::Foreground(Priority::Normal) => kind::SUBMIT_JOB,
            Mode::Foreground(Priority::Low) => kind::SUBMIT_JOB_LOW,
            Mode::Background(Priority::High) => kind::SUBMIT_JOB_HIGH_BG,
            Mode::Background(Priority::Normal) => kind::SUBMIT_JOB_BG,
            Mode::Background(Priority::Low) => kind::SUBMIT_JOB_LOW_BG,
            Mode::Scheduled(_) => kind::SUBMIT_JOB_SCHED,
            Mode::Epoch(_) => kind::SUBMIT_JOB_EPOCH,
            Mode::Reduce { background: false, .. } => kind::SUBMIT_REDUCE_JOB,
            Mode::Reduce { background: true, .. } => kind::SUBMIT_REDUCE_JOB_BACKGROUND,
        }
    }
}

impl Submission {
    /// Decodes the ten submission packets.
    pub(crate) fn decode(kind: u32, mut data: Bytes) -> Result<Submission, Fault> {
        let data = &mut data;
        let function = required(data, "function")?;
        let unique = required(data, "unique ID")?;
        let mode = match kind {
            kind::SUBMIT_JOB_HIGH => Mode::Foreground(Priority::High),
            kind::SUBMIT_JOB => Mode::Foreground(Priority::Normal),
            kind::SUBMIT_JOB_LOW => Mode::Foreground(Priority::Low),
            kind::SUBMIT_JOB_HIGH_BG => Mode::Background(Priority::High),
            kind::SUBMIT_JOB_BG => Mode::Background(Priority::Normal),
            kind::SUBMIT_JOB_LOW_BG => Mode::Background(Priority::Low),
            kind::SUBMIT_JOB_SCHED => Mode::Scheduled(Calendar::take(data)?),
            kind::SUBMIT_JOB_EPOCH => Mode::Epoch(epoch(&required(data, "epoch")?)?),
            kind::SUBMIT_REDUCE_JOB | kind::SUBMIT_REDUCE_JOB_BACKGROUND => {
                let reducer = required(data, "reducer")?;
                // The documented packet ends here. Clients send an empty argument more.
                if data.first() == Some(&0) {
                    data.advance(1);
                }
                Mode::Reduce { reducer, background: kind == kind::SUBMIT_REDUCE_JOB_BACKGROUND }
            }
            other => return Err(Fault::Type(other)),
        };
        self::check_function(&function)?;
        self::check_unique(&unique)?;
        if let Mode::Reduce { reducer, .. } = &mode {
            self::check_unique(reducer)?;
        }
        Ok(Submission { function, unique, data: std::mem::take(data), mode })
    }
}

impl<B: AsRef<[u8]>> Submission<B> {
    pub(crate) fn encode(&self, out: &mut BytesMut) -> Result<(), EncodeError> {
        let writer = Writer::begin(out, &[&REQUEST, &self.kind().to_be_bytes()]);
        let writer = writer.argument("function", &self.function)?.argument("unique ID", &self.unique)?;
        let writer = match &self.mode {
            Mode::Foreground(_) | Mode::Background(_) => writer,
            Mode::Scheduled(calendar) => {
                calendar.fields().into_iter().fold(writer, |writer, (field, ..)| match field {
                    Some(number) => writer.number(number),
                    None => writer.raw(&[0]),
                })
            }
            Mode::Epoch(seconds) => writer.number(seconds),
            Mode::Reduce { reducer, .. } => writer.argument("reducer", reducer)?.raw(&[0]),
        };
        writer.finish_with(&self.data)
    }
}

impl Calendar {
    /// Each field with its range and the error text for other values.
    fn fields(&self) -> [(Option<u8>, std::ops::RangeInclusive<u8>, &'static str); 5] {
        [
            (self.minute, 0..=59, "A minute is 0 to 59 or empty"),
            (self.hour, 0..=23, "An hour is 0 to 23 or empty"),
            (self.day, 1..=31, "A day of the month is 1 to 31 or empty"),
            (self.month, 1..=12, "A month is 1 to 12 or empty"),
            (self.weekday, 0..=6, "A day of the week is 0 to 6, from Monday, or empty"),
        ]
    }

    fn take(data: &mut Bytes) -> Result<Calendar, Fault> {
        let mut texts = [const { Bytes::new() }; 5];
        for text in &mut texts {
            *text = required(data, "schedule")?;
        }
        let mut numbers = [None; 5];
        for ((number, text), (_, range, wrong)) in
            numbers.iter_mut().zip(&texts).zip(Calendar::default().fields())
        {
            if !text.is_empty() {
                let read = std::str::from_utf8(text).ok().and_then(|text| text.parse::<u8>().ok());
                *number = Some(read.filter(|read| range.contains(read)).ok_or(Fault::Argument(wrong))?);
            }
        }
        let [minute, hour, day, month, weekday] = numbers;
        Ok(Calendar { minute, hour, day, month, weekday })
    }
}

/// A Unix second. Refused only above 63 bits; anything that is not a number is 0, long past.
fn epoch(text: &[u8]) -> Result<u64, Fault> {
    let seconds = leading_number(text).filter(|seconds| i64::try_from(*seconds).is_ok());
    seconds.ok_or(Fault::Argument("An epoch fits 64 bits"))
}
