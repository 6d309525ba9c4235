//! Limits of the queue that the macro checks at compile time. A test compares them with those of
//! `geartrain-core`, on which a procedural macro should not depend: it would be compiled twice.

/// The longest name of a queue or klass, in bytes.
pub(crate) const NAME_BYTES_MAX: usize = 512;

/// The longest timeout, backoff and retention of a result: ten years.
pub(crate) const DURATION_SECONDS_MAX: f64 = 315_360_000.0;

/// The most retries of a job.
pub(crate) const RETRIES_MAX: u32 = i32::MAX as u32;
