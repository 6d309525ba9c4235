//! The integration tests of geartrain-store: one binary, one module per subject.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod access;
mod backup;
mod cancellation;
mod checkpoints;
mod conformance;
mod cursors;
mod damage;
mod data_dir;
mod engine_loop;
mod failures;
mod kill;
mod large;
mod load;
mod named_jobs;
mod names;
mod ops;
mod result_streams;
mod scratch;
mod simulation;
mod spill;
mod spill_simulation;
mod ticks;
mod version_1;
mod wal;
mod wal_simulation;
