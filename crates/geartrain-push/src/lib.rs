//! The push model: each job is an HTTP POST to one URL, and the response decides what happens to the job.
//!
//! [`Push`] is a `Service<JobRequest>`: one process has many requests under way at once. Requests are signed as
//! [Standard Webhooks](https://www.standardwebhooks.com) describes.

mod describe;
mod headers;
mod push;
mod response;
mod sign;
mod target;

pub use push::{ClientErrorPolicy, Push, PushOptions};
pub use sign::{Secret, SecretError};
pub use target::TargetError;
