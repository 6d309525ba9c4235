//! The integration tests of geartrain-cli: one binary, a module for each subject.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bench;
mod beyond;
mod cli;
mod drill;
mod embedded;
mod front;
mod gearman;
mod gearman_killed;
mod ops;
mod ping;
mod result_log;
mod sandbox;
mod server;
mod server_process;
mod shared;
