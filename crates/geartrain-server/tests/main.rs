//! The integration tests of geartrain-server: one binary, a module for each subject.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cancellation;
mod conformance;
mod flush;

mod gearman_peers;
mod gearman_tls;
mod parity;
mod published;
mod qless_clients;
mod qless_py;
mod resp_tls;
mod result_log;
mod security;
mod two_servers;
