//! A simulated clock.

pub use geartrain_core::ManualClock;
