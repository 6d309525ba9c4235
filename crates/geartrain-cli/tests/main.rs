//! The integration tests of geartrain-cli: one binary, a module for each subject.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod backup;
mod bench;
mod beyond;
mod cli;
mod compatibility;
mod drill;
mod embedded;
mod failures;
mod front;
mod gearman;
mod gearman_killed;
mod gearmonkey;
mod http;
mod languages;
mod moving;
mod ops;
mod ping;
mod result_log;
mod sandbox;
mod server;
mod server_process;
mod service;
mod shared;
mod work;
mod work_models;
mod workkit;
mod worqr;
