//! The integration tests of geartrain-resp: one binary, a module for each subject.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod access;
mod common;
mod connection;
mod front;
mod gone_clients;
mod json;
mod keys;
mod native;
mod published;
mod qless;
mod redis_commands;
mod result_streams;
mod transactions;
