//! What layouts have in common when jobs are set aside for a transfer.

use geartrain_core::{Group, Jid, Refusal, SET_ASIDE_MAX, SetAside, TRANSFER_BYTES_MAX, TRANSFER_GROUP};

use super::bad_argument;

/// The group that lists what is set aside.
pub(crate) fn transfer_group() -> Group {
    Group::new(TRANSFER_GROUP).expect("it is a name")
}

pub(crate) fn check_set_aside(set: &SetAside) -> Result<(), Refusal> {
    if !(1..=TRANSFER_BYTES_MAX).contains(&set.to.len()) || set.to.contains(char::is_whitespace) {
        return Err(bad_argument("to", format!("must have 1 to {TRANSFER_BYTES_MAX} bytes and no blanks")));
    }
    check_aside(&set.jids)
}

pub(crate) fn check_aside(jids: &[Jid]) -> Result<(), Refusal> {
    match jids.len() {
        0 => Err(bad_argument("jids", "must name at least one")),
        1..=SET_ASIDE_MAX => Ok(()),
        many => Err(bad_argument("jids", format!("must be at most {SET_ASIDE_MAX}, not {many}"))),
    }
}
