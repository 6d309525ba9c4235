//! The integration tests of geartrain-testkit: one binary, a module for each subject.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod codec;
mod conformance_cases;
mod engine_and_model;
mod model;
mod names;
mod options_page;
mod policy_steps;
mod schedule;
mod snapshot;
mod tidy;
mod traces;
mod wire;
