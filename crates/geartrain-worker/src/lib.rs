//! Runs the jobs of a geartrain queue.

mod context;
mod ending;
mod error;
mod handler;
mod heartbeat;
mod job;
mod layers;
mod periodic;
mod run;
mod service;
mod signals;
mod worker;

pub use context::{Context, Interruption, ReportError};
pub use ending::{AttemptEnding, Report};
pub use error::JobError;
pub use handler::State;
pub use job::{Job, JobDefaults};
pub use layers::{CatchPanic, CatchPanicLayer, Trace, TraceLayer};
pub use periodic::fire_periodics;
pub use service::{JobOutput, JobRequest, JobService};
pub use worker::{GRACE_DEFAULT, Order, Worker, WorkerError, WorkerEvent};
