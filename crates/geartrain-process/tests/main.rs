//! The integration tests of geartrain-process: one binary, a module for each subject.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fork;
mod job_socket;
mod launch;
mod pool;
mod process_table;
