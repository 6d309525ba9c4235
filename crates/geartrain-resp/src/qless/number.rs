//! Numbers in Qless's arguments and replies.

pub(crate) use geartrain_core::read_number as read;

/// Without its fraction, as in replies.
pub(crate) fn truncated(number: f64) -> i64 {
    number as i64
}
