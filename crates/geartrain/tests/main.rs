//! The integration tests of geartrain: one binary, a module for each subject.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod access;
mod durations;
#[cfg(feature = "redis")]
mod gearmonkey;
mod handles;
mod lease;
mod retry;
mod streams;
mod test_clock;
mod transfer;
mod typed_jobs;
mod wait;
mod worker_backend;
#[cfg(feature = "redis")]
mod workkit;
#[cfg(feature = "redis")]
mod worqr;
