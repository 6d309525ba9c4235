//! Integration tests of geartrain-gearman: one binary, a module for each subject.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bad_input;
mod client;
mod common;
mod conversation;
mod deadlines;
mod draft;
mod frames;
mod front;
mod idle_workers;
mod packets;
mod protected;
mod reports;
mod servers;
mod streams;
mod text;
mod tls;
mod workers;
