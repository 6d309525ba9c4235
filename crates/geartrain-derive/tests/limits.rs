//! The limits that the macro checks are those of the queue.

#[path = "../src/limits.rs"]
mod checked;

use geartrain_core::{DURATION_MAX, NAME_BYTES_MAX, RETRIES_MAX};

#[test]
fn the_limits_of_the_macro_are_those_of_the_queue() {
    assert_eq!(checked::NAME_BYTES_MAX, NAME_BYTES_MAX);
    assert_eq!(checked::RETRIES_MAX, RETRIES_MAX);
    assert_eq!(checked::DURATION_SECONDS_MAX, DURATION_MAX.get());
}
