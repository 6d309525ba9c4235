//! The integration tests of geartrain: one binary, a module for each subject.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod access;
mod durations;
mod retry;
mod wait;
