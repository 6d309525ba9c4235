//! The integration tests of geartrain-derive: one binary, a module for each subject.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod compile_errors;
mod limits;
