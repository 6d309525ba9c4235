//! The verdict of a response: complete, retry or fail.

use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use geartrain_core::{JobResult, Payload, QueueName};
use geartrain_worker::{JobError, JobOutput};
use http::header::{DATE, HeaderMap, HeaderName, LOCATION, RETRY_AFTER};
use http::{Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use tower::BoxError;

use crate::describe::{chain, excerpt};
use crate::{ClientErrorPolicy, PushOptions};

/// The longest delay that a target can ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// How much of the body of an error is read. A connection whose body was read to its end is used again.
const ERROR_BODY_BYTES_MAX: usize = 16 << 10;

/// The failure group of a kind of HTTP failure.
pub(crate) fn group(queue: &QueueName, kind: impl std::fmt::Display) -> String {
    format!("{queue}-http-{kind}")
}

pub(crate) fn delayed(error: JobError, delay: Option<Duration>) -> JobError {
    match delay {
        Some(delay) => error.after(delay),
        None => error,
    }
}

/// The body of a response as far as it was read.
#[derive(Default)]
pub(crate) struct Received {
    head: Option<(StatusCode, HeaderMap)>,
    body: BytesMut,
}

/// Why a body was not read to its end.
pub(crate) enum Unfinished {
    /// It is longer than allowed.
    TooLong,
    /// The connection broke.
    Broken(hyper::Error),
}

impl Received {
    /// Reads a response: the body of a success up to a limit, and the beginning of any other.
    pub(crate) async fn read(
        &mut self,
        response: Response<Incoming>,
        body_bytes_max: usize,
    ) -> Result<(), Unfinished> {
        let (head, mut body) = response.into_parts();
        let success = head.status.is_success();
        self.head = Some((head.status, head.headers));
        let limit = if success { body_bytes_max } else { ERROR_BODY_BYTES_MAX };
        if success && body.size_hint().lower() > limit as u64 {
            return Err(Unfinished::TooLong);
        }
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(Unfinished::Broken)?.into_data() else { continue };
            if self.body.len() + data.len() > limit {
                self.body.extend_from_slice(&data[..limit - self.body.len()]);
                return Err(Unfinished::TooLong);
            }
            self.body.extend_from_slice(&data);
        }
        Ok(())
    }

    /// The status, if it is not a success: then the rest of the body does not matter.
    pub(crate) fn error_status(&self) -> Option<StatusCode> {
        self.head.as_ref().map(|(status, _)| *status).filter(|status| !status.is_success())
    }

    /// The status line, for messages about a response that was not read to its end.
    pub(crate) fn status_text(&self) -> Option<String> {
        self.head.as_ref().map(|(status, _)| status.to_string())
    }

    /// The verdict of a response that was read to its end, or whose status is not a success.
    pub(crate) fn verdict(
        self,
        queue: &QueueName,
        options: &PushOptions,
        now: SystemTime,
    ) -> Result<JobOutput, BoxError> {
        let (status, headers) = self.head.unwrap_or_default();
        if status.is_success() {
            let bytes = Payload::from(Bytes::from(self.body));
            return Ok(JobOutput::with_result(JobResult { code: 0, bytes }));
        }
        let mut message = format!("the target answered {status}");
        if status.is_redirection() {
            // To follow it would let the target choose the receiver of signed requests.
            message.push_str(", and redirects are not followed");
            if let Some(location) = headers.get(LOCATION) {
                message = format!("{message} (Location: {})", excerpt(location.as_bytes()));
            }
        }
        let body = excerpt(&self.body);
        if !body.is_empty() {
            message = format!("{message}: {body}");
        }
        let group = group(queue, status.as_u16());
        let by_policy = status.is_redirection() || status.is_client_error();
        let error = match status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                let delay = retry_after(&headers, now).or(options.retry_delay);
                delayed(JobError::retry(message).group(group), delay)
            }
            _ if by_policy && options.client_errors == ClientErrorPolicy::Fail => {
                JobError::fail(group, message)
            }
            _ => delayed(JobError::retry(message).group(group), options.retry_delay),
        };
        Err(error.into_service_error())
    }
}

/// The delay of `Retry-After`: seconds, or an HTTP date. A date counts from the target's own `Date`, because
/// its clock may differ from ours.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let after = text(RETRY_AFTER)?;
    let date = |text: &str| httpdate::parse_http_date(text).ok();
    let delay = match after.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        // Digits that are not a u64 are many.
        Err(_) if !after.is_empty() && after.bytes().all(|byte| byte.is_ascii_digit()) => RETRY_AFTER_MAX,
        Err(_) => {
            let now = text(DATE).and_then(date).unwrap_or(now);
            date(after)?.duration_since(now).unwrap_or_default()
        }
    };
    Some(delay.min(RETRY_AFTER_MAX))
}

/// The text of a connection error.
pub(crate) fn connection_text(error: &hyper_util::client::legacy::Error) -> String {
    // The first of the texts says only "client error (Connect)".
    std::error::Error::source(error).map_or_else(|| chain(error), chain)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn delay(fields: &[(HeaderName, &'static str)]) -> Option<u64> {
        let headers =
            fields.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect();
        let now = httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        retry_after(&headers, now).map(|delay| delay.as_secs())
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        for (value, seconds) in [
            ("120", Some(120)),
            (" 0 ", Some(0)),
            ("Sun, 06 Nov 1994 08:50:37 GMT", Some(60)),
            ("Sun, 06 Nov 1994 08:00:00 GMT", Some(0)),
            ("Sat, 06 Nov 2094 08:49:37 GMT", Some(86_400)),
            ("99999999999999999999999", Some(86_400)),
            ("-1", None),
            ("1.5", None),
            ("soon", None),
            ("", None),
        ] {
            assert_eq!(delay(&[(RETRY_AFTER, value)]), seconds, "{value}");
        }
    }

    #[test]
    fn a_date_counts_from_the_date_of_the_response() {
        let date = (DATE, "Sun, 06 Nov 1994 09:49:37 GMT");
        assert_eq!(delay(&[date.clone(), (RETRY_AFTER, "Sun, 06 Nov 1994 09:49:47 GMT")]), Some(10));
        assert_eq!(delay(&[date]), None);
    }
}
