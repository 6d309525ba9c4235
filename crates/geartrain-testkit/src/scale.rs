//! One test, two sizes.

/// `small` in `./test`, `large` in `./test long`, which sets `GEARTRAIN_LONG`.
///
/// A test of crashes or damage asserts the same in both; only the number of rounds or the length of a fault differs.
pub fn scaled<T>(small: T, large: T) -> T {
    if std::env::var_os("GEARTRAIN_LONG").is_some() { large } else { small }
}
