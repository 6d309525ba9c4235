//! The size of a test: `./test quick`, `./test` and `./test long`.

use std::env;
use std::ops::Range;

/// `small` in `./test`, `large` in `./test long`, which sets `GEARTRAIN_LONG`.
///
/// A test of crashes or damage asserts the same in both; only the number of rounds or the length of a fault
/// differs.
pub fn scaled<T>(small: T, large: T) -> T {
    if env::var_os("GEARTRAIN_LONG").is_some() { large } else { small }
}

/// The seeds of the random traces that a test runs: `0..traces`, or a tenth of them in `./test quick`, which
/// sets `GEARTRAIN_QUICK`. `GEARTRAIN_SEED=7041` replays one trace, `GEARTRAIN_TRACES=100` runs that many.
///
/// # Panics
///
/// If one of these variables is not a number.
pub fn seeds(traces: u64) -> Range<u64> {
    let number = |name: &str| {
        let text = env::var(name).ok()?;
        Some(text.parse().unwrap_or_else(|_| panic!("{name} must be a whole number, not {text:?}")))
    };
    match (number("GEARTRAIN_SEED"), number("GEARTRAIN_TRACES")) {
        (Some(seed), _) => seed..seed + 1,
        (None, Some(traces)) => 0..traces,
        (None, None) if env::var_os("GEARTRAIN_QUICK").is_some() => 0..traces.div_ceil(10),
        (None, None) => 0..traces,
    }
}
