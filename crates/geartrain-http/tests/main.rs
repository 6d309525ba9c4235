//! The integration tests of geartrain-http: one binary.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod access;
mod api;
mod browser;
mod common;
mod guard;
mod malformed;
mod schemas;
mod server;
mod streams;
