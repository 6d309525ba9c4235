//! Test kit: the conformance cases for every backend, the model and random traces to compare the engine with,
//! a simulated clock, a simulated disk that loses power or fails, certificates, and real peers as child
//! processes.

pub mod cancellation;
pub mod clock;
pub mod conformance;
pub mod disk;
pub mod model;
pub mod named_jobs;
pub mod peers;
mod scale;
pub mod tls;
pub mod trace;

pub use scale::{scaled, seeds};
