//! The error of a handler: what happens to its job.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use geartrain_core::JobResult;

/// Why a handler did not complete its job, and what happens to the job then.
///
/// Every error that implements [`std::error::Error`] converts into a `JobError` that retries the job, so that
/// handlers use `?`. If no retry is left, the job fails in the group of the error.
///
/// ```
/// use std::time::Duration;
/// use geartrain_worker::JobError;
///
/// fn parse(text: &str) -> Result<u32, JobError> {
///     // No later attempt would read this text otherwise.
///     text.parse().map_err(|error| JobError::from(error).give_up())
/// }
/// assert!(parse("x").is_err());
///
/// let _retry = JobError::retry("the server said 451").after(Duration::from_secs(60)).group("smtp");
/// let _fail = JobError::fail("no-such-user", "there is no such user");
/// let _later = JobError::snooze(Duration::from_secs(3_600));
/// ```
///
/// It does not implement [`std::error::Error`] itself: the conversion from all such errors would then be
/// ambiguous.
pub struct JobError {
    pub(crate) action: Action,
    /// The failure group; derived from the error's type and the queue if not given.
    pub(crate) group: Option<String>,
    /// The name of the error's type, the last part of the default group.
    pub(crate) kind: Cow<'static, str>,
    pub(crate) message: String,
    pub(crate) result: Option<Box<JobResult>>,
}

/// What happens to the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// It is tried again, after this delay or as its backoff says.
    Retry { delay: Option<Duration> },
    /// It fails for good.
    Fail,
    /// It runs again after this delay, and no retry is used up.
    Snooze { delay: Duration },
    /// It goes back to the front of its queue, and no retry is used up.
    Release,
}

impl JobError {
    /// Retries the job, as its backoff says. If no retry is left, it fails.
    pub fn retry(message: impl Into<String>) -> JobError {
        JobError::new(Action::Retry { delay: None }, "error", message.into())
    }

    /// Fails the job for good, in a failure group.
    pub fn fail(group: impl Into<String>, message: impl Into<String>) -> JobError {
        JobError { group: Some(group.into()), ..JobError::new(Action::Fail, "error", message.into()) }
    }

    /// Runs the job again after a delay. It is no failure, and no retry is used up.
    pub fn snooze(delay: Duration) -> JobError {
        JobError::new(Action::Snooze { delay }, "snoozed", "snoozed by its handler".to_owned())
    }

    /// Returns the job to the front of its queue for another worker. No retry is used up.
    pub fn release(message: impl Into<String>) -> JobError {
        JobError::new(Action::Release, "released", message.into())
    }

    fn new(action: Action, kind: &'static str, message: String) -> JobError {
        JobError { action, group: None, kind: kind.into(), message, result: None }
    }

    /// Fails the job for good instead of retrying it.
    pub fn give_up(self) -> JobError {
        JobError { action: Action::Fail, ..self }
    }

    /// Delays the retry, or the next run of a snoozed job.
    pub fn after(self, delay: Duration) -> JobError {
        let action = match self.action {
            Action::Snooze { .. } => Action::Snooze { delay },
            _ => Action::Retry { delay: Some(delay) },
        };
        JobError { action, ..self }
    }

    /// Sets the failure group: `<queue>-<type of the error>` by default.
    pub fn group(self, group: impl Into<String>) -> JobError {
        JobError { group: Some(group.into()), ..self }
    }

    /// Adds a result for the clients that wait for the job, if it fails.
    pub fn result(self, result: JobResult) -> JobError {
        JobError { result: Some(Box::new(result)), ..self }
    }

    /// The error message.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The error of a service: a `JobError` that passed through layers, or any other error, which retries.
    pub(crate) fn of_service(error: tower::BoxError) -> JobError {
        match error.downcast::<HandlerError>() {
            Ok(error) => error.0,
            Err(error) => {
                let kind = if error.is::<tower::timeout::error::Elapsed>() { "timeout" } else { "error" };
                JobError::new(Action::Retry { delay: None }, kind, chain(&*error))
            }
        }
    }

    /// The same error for the layers around a handler, which need a [`std::error::Error`].
    pub fn into_service_error(self) -> tower::BoxError {
        Box::new(HandlerError(self))
    }
}

impl fmt::Debug for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobError")
            .field("action", &self.action)
            .field("group", &self.group)
            .field("message", &self.message)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl<E: StdError + 'static> From<E> for JobError {
    fn from(error: E) -> JobError {
        let kind = kind_of(std::any::type_name::<E>());
        JobError { kind: kind.into(), ..JobError::new(Action::Retry { delay: None }, "", chain(&error)) }
    }
}

/// A [`JobError`] on its way through tower layers.
#[derive(Debug)]
struct HandlerError(JobError);

impl fmt::Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StdError for HandlerError {}

/// An error and its sources in one sentence. A source that the text before it already has is left out.
fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    text
}

/// The short name of an error type: `SmtpError`, or `io::Error` for a type that is called only `Error`.
fn kind_of(type_name: &str) -> String {
    let path = type_name.split('<').next().unwrap_or(type_name);
    let parts: Vec<&str> = path.split("::").collect();
    let last = parts.last().copied().unwrap_or(path);
    let module = parts.iter().find(|part| !matches!(**part, "std" | "core" | "alloc"));
    match module {
        Some(module) if last == "Error" && *module != last => format!("{module}::{last}"),
        _ => last.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_retries_with_its_message_and_sources() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot send")]
        struct SmtpError(#[source] std::io::Error);
        let error = JobError::from(SmtpError(std::io::Error::other("connection refused")));
        assert_eq!(error.action, Action::Retry { delay: None });
        assert_eq!((error.message(), &*error.kind), ("cannot send: connection refused", "SmtpError"));
    }

    #[test]
    fn a_type_that_is_called_error_is_named_with_its_module() {
        assert_eq!(kind_of("std::io::error::Error"), "io::Error");
        assert_eq!(kind_of("serde_json::error::Error"), "serde_json::Error");
        assert_eq!(kind_of("core::num::error::ParseIntError"), "ParseIntError");
        assert_eq!(kind_of("app::Wrapped<std::io::error::Error>"), "Wrapped");
    }

    #[test]
    fn an_error_keeps_its_verdict_through_layers() {
        let error = JobError::fail("no-such-user", "gone").into_service_error();
        let error = JobError::of_service(error);
        assert_eq!((error.action, error.group.as_deref()), (Action::Fail, Some("no-such-user")));
        let error = JobError::of_service("disk full".into());
        assert_eq!((error.action, error.message()), (Action::Retry { delay: None }, "disk full"));
    }

    #[test]
    fn a_delay_applies_to_a_retry_and_to_a_snooze() {
        let minute = Duration::from_secs(60);
        assert_eq!(JobError::retry("x").after(minute).action, Action::Retry { delay: Some(minute) });
        assert_eq!(JobError::snooze(Duration::ZERO).after(minute).action, Action::Snooze { delay: minute });
    }
}
