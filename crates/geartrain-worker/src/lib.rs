//! Runs the jobs of a geartrain queue.

mod context;
mod error;
mod job;
mod service;

pub use context::{Context, Interruption, ReportError};
pub use error::JobError;
pub use job::{Job, JobDefaults};
pub use service::{JobOutput, JobRequest, JobService};
