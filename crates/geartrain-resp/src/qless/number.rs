//! Numbers as Qless's callers may write them, and as they are answered.

pub(crate) use geartrain_core::read_number as read;

/// As a reply has it: without its fraction.
pub(crate) fn truncated(number: f64) -> i64 {
    number as i64
}
