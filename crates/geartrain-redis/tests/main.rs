//! The integration tests of geartrain-redis: one binary, a module for each subject.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod batches;
mod cancellation;
mod cluster;
mod conformance;
mod dead_processes;
mod differential;
mod frozen;
mod gearmonkey;
mod maxmemory;
mod named_jobs;
mod native;
mod outages;
mod peers;
mod qless;
mod script;
mod subscriptions;
mod support;
mod workkit;
mod worqr;
mod wrong_types;
