//! Integration tests of the worker.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod handlers;
mod interruption;
mod layers;
mod order;
mod outage;
mod periodic;
mod resume;
mod shutdown;
mod support;
