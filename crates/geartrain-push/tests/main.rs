//! Jobs sent to real HTTP servers, well-behaved and otherwise.

#![allow(clippy::unwrap_used)]

mod attempts;
mod bad_targets;
mod requests;
mod server;
mod tls;
mod verdicts;
