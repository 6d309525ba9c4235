//! The integration tests of geartrain-store: one binary, a module for each subject.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod access;
mod awaited;
mod checkpoints;
mod conformance;
mod cursors;
mod damage;
mod embedded;
mod kill;
mod large;
mod load;
mod log;
mod log_stories;
mod names;
mod ops;
mod spill;
mod spill_stories;
mod stories;
mod thread;
mod ticks;
mod trouble;
mod version_1;
