//! Services that run jobs: what tower layers wrap.

use geartrain_core::{JobResult, Next};
use tower::util::BoxCloneSyncService;

use crate::Context;

/// A request to run a job, for [`Service<JobRequest>`](tower::Service).
#[derive(Debug, Clone)]
pub struct JobRequest {
    /// The attempt, with its job.
    pub context: Context,
}

/// The output of a service that ran a job: the job is completed with it.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct JobOutput {
    /// The result, for the clients that wait for the job and for later lookup.
    pub result: Option<JobResult>,
    /// The next queue of the job; without one the job is done.
    pub next: Option<Next>,
}

impl JobOutput {
    /// Completes the job with a result.
    pub fn with_result(result: JobResult) -> JobOutput {
        JobOutput { result: Some(result), next: None }
    }
}

/// A service that runs jobs, with all of its layers.
pub type JobService = BoxCloneSyncService<JobRequest, JobOutput, tower::BoxError>;
