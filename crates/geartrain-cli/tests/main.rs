//! The integration tests of geartrain-cli: one binary, a module for each subject.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod backup;
mod bench;
mod beyond;
mod browser;
mod cli;
mod clients;
mod compatibility;
mod completion;
mod curl_lines;
mod drill;
mod embedded;
mod failures;
mod front;
mod gearman;
mod gearman_killed;
mod gearmonkey;
mod greeting;
mod guide;
mod http;
mod json_library;
mod languages;
mod metrics;
mod moving;
mod ops;
mod packages;
mod ping;
mod result_log;
mod sandbox;
mod schemathesis;
mod security;
mod server;
mod server_process;
mod service;
mod settings;
mod shared;
mod top;
mod work;
mod work_models;
mod workkit;
mod worqr;
