//! The integration tests of geartrain-http: one binary.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod api;
mod common;
mod guard;
mod malformed;
mod streams;
