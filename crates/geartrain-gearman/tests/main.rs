//! The integration tests of geartrain-gearman: one binary, a module for each subject.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bad_input;
mod client;
mod common;
mod conversation;
mod crew;
mod draft;
mod frames;
mod front;
mod packets;
mod protected;
mod reports;
mod servers;
mod sleepers;
mod streams;
mod text;
mod tls;
