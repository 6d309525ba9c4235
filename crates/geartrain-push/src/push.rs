//! The service that sends jobs to a URL.

use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, SystemTime};

use geartrain_core::PAYLOAD_BYTES_MAX;
use geartrain_worker::{Context, Interruption, JobError, JobOutput, JobRequest};
use http::{Method, Request};
use http_body_util::Full;
use tower::BoxError;

use crate::headers::headers;
use crate::response::{Received, Unfinished, connection_text, delayed, group};
use crate::target::{HttpClient, Target, client};
use crate::{Secret, TargetError};

/// How long a request may take by default, as Standard Webhooks recommends.
const TIMEOUT: Duration = Duration::from_secs(30);

/// What happens to a job if the target answers with a redirect or a client error other than 429.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClientErrorPolicy {
    /// It is retried, so that one bad deployment of the target does not fail a whole queue.
    #[default]
    Retry,
    /// It fails for good.
    Fail,
}

/// How jobs are sent.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PushOptions {
    /// The secrets that sign each request, two at most: the new one and, while it is rotated, the old one.
    pub secrets: Vec<Secret>,
    /// How long a request may take, from the connection to the end of the response.
    pub timeout: Duration,
    /// What happens to a job after a redirect or a client error.
    pub client_errors: ClientErrorPolicy,
    /// The delay of retries for which the target names none, instead of the backoff of each job.
    pub retry_delay: Option<Duration>,
    /// The longest response body that becomes a result.
    pub response_bytes_max: usize,
    /// A PEM file of the certificate authorities to trust instead of the usual web roots.
    pub authorities: Option<PathBuf>,
}

impl Default for PushOptions {
    fn default() -> PushOptions {
        PushOptions {
            secrets: Vec::new(),
            timeout: TIMEOUT,
            client_errors: ClientErrorPolicy::Retry,
            retry_delay: None,
            response_bytes_max: PAYLOAD_BYTES_MAX,
            authorities: None,
        }
    }
}

/// Sends each job as an HTTP POST to a URL: a [`Service<JobRequest>`](tower::Service).
///
/// The body is the payload. Headers carry the facts about the job and the signature. The response decides: 2xx
/// completes the job with its body as the result, 429 and 503 retry it as `Retry-After` says, other client
/// errors and redirects follow [`ClientErrorPolicy`], everything else retries it.
///
/// Clones share the connections.
#[derive(Clone)]
pub struct Push(Arc<Inner>);

struct Inner {
    target: Target,
    client: HttpClient,
    options: PushOptions,
}

impl Push {
    /// A service that sends jobs to a URL (`http://` or `https://`).
    ///
    /// ```
    /// use geartrain_push::{Push, PushOptions, Secret};
    ///
    /// let mut options = PushOptions::default();
    /// options.secrets = vec![Secret::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")?];
    /// let push = Push::new("https://example.org/jobs", options)?;
    /// assert!(Push::new("example.org/jobs", PushOptions::default()).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(url: &str, options: PushOptions) -> Result<Push, TargetError> {
        let target = Target::parse(url)?;
        if options.secrets.len() > 2 {
            return Err(TargetError::TooManySecrets);
        }
        let client = client(options.authorities.as_deref())?;
        Ok(Push(Arc::new(Inner { target, client, options })))
    }

    /// Sends a job and waits for the verdict, unless the attempt is interrupted.
    async fn run(self, context: Context) -> Result<JobOutput, BoxError> {
        tokio::select! {
            verdict = self.0.send(&context) => verdict,
            why = context.interrupted() => Err(self.0.interrupted(why, &context).into_service_error()),
        }
    }
}

impl Inner {
    fn interrupted(&self, why: Interruption, context: &Context) -> JobError {
        match why {
            Interruption::TimedOut => {
                let message = format!("POST {} took longer than the job's timeout", self.target);
                JobError::retry(message).group(group(context.queue(), "timeout"))
            }
            _ => JobError::release("the request was interrupted"),
        }
    }

    async fn send(&self, context: &Context) -> Result<JobOutput, BoxError> {
        let (target, queue) = (&self.target, context.queue());
        let mut request = Request::new(Full::new(context.payload().to_shared()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = target.uri().clone();
        *request.headers_mut() = headers(context, &self.options.secrets, SystemTime::now());

        let failed = |kind: &str, message: String| {
            let error = JobError::retry(message).group(group(queue, kind));
            delayed(error, self.options.retry_delay).into_service_error()
        };
        // Outside of the timeout, so that what arrived before it is known after it.
        let mut received = Received::default();
        let exchange = async {
            let response = self.client.request(request).await.map_err(|error| {
                failed("connection", format!("POST {target} failed: {}", connection_text(&error)))
            })?;
            let read = received.read(response, self.options.response_bytes_max).await;
            Ok::<_, BoxError>(read)
        };
        let finished = tokio::time::timeout(self.options.timeout, exchange).await;
        if received.error_status().is_none() {
            let status = received.status_text();
            let after = status.map_or_else(String::new, |status| format!(" after {status}"));
            match finished {
                Ok(Ok(Ok(()))) => {}
                Ok(Err(error)) => return Err(error),
                Ok(Ok(Err(Unfinished::TooLong))) => {
                    let limit = self.options.response_bytes_max;
                    let message = format!("POST {target}: the body{after} is longer than {limit} bytes");
                    return Err(failed("body", message));
                }
                Ok(Ok(Err(Unfinished::Broken(error)))) => {
                    let message = format!("POST {target}: the body{after} broke off: {error}");
                    return Err(failed("connection", message));
                }
                Err(_elapsed) => {
                    let limit = self.options.timeout;
                    let message = format!("POST {target} took longer than {limit:?}{after}");
                    return Err(failed("timeout", message));
                }
            }
        }
        received.verdict(queue, &self.options, SystemTime::now())
    }
}

impl tower::Service<JobRequest> for Push {
    type Response = JobOutput;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<JobOutput, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: JobRequest) -> Self::Future {
        let push = self.clone();
        Box::pin(push.run(request.context))
    }
}

impl fmt::Debug for Push {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Push").field(&self.0.target.to_string()).finish()
    }
}
