//! Responses: documents, and errors with the status of their code.

use axum::body::Body;
use axum::http::header::{self, HeaderValue};
use axum::http::{Response, StatusCode};
use geartrain_json::OperationError;

pub(crate) type Reply = Response<Body>;

/// The status of an error.
pub(crate) fn status(code: &str) -> StatusCode {
    match code {
        "bad-json" | "bad-argument" | "unknown-field" | "repeated-field" | "missing-field"
        | "unknown-operation" | "not-json" | "cursor-ahead" => StatusCode::BAD_REQUEST,
        "unauthorized" => StatusCode::UNAUTHORIZED,
        "bad-host" | "cross-origin" | "forbidden" | "read-only" => StatusCode::FORBIDDEN,
        "not-found" | "no-result-log" | "no-such-job" | "no-such-recurring" | "no-such-option"
        | "no-result" | "not-unfinished" => StatusCode::NOT_FOUND,
        "method-not-allowed" => StatusCode::METHOD_NOT_ALLOWED,
        "slow-request" => StatusCode::REQUEST_TIMEOUT,
        "cursor-too-old" => StatusCode::GONE,
        "too-large" => StatusCode::PAYLOAD_TOO_LARGE,
        "not-json-content" | "not-form-content" => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "unsupported" => StatusCode::UNPROCESSABLE_ENTITY,
        "queue-full" => StatusCode::TOO_MANY_REQUESTS,
        "unreadable" => StatusCode::INTERNAL_SERVER_ERROR,
        "unavailable" => StatusCode::SERVICE_UNAVAILABLE,
        // The rest does not fit the state of the queue.
        _ => StatusCode::CONFLICT,
    }
}

pub(crate) fn error(error: &OperationError) -> Reply {
    let status = status(error.code);
    let mut reply = with_type(status, "application/json", error.document());
    if status == StatusCode::UNAUTHORIZED {
        reply.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    reply
}

pub(crate) fn json(body: impl Into<Body>) -> Reply {
    with_type(StatusCode::OK, "application/json", body)
}

/// A document of a value.
pub(crate) fn view(value: &impl serde::Serialize) -> Result<Reply, OperationError> {
    let text = serde_json::to_string(value)
        .map_err(|error| OperationError::new("unavailable", format!("the reply cannot be shown: {error}")))?;
    Ok(json(text))
}

pub(crate) fn with_type(status: StatusCode, content_type: &'static str, body: impl Into<Body>) -> Reply {
    let mut reply = Response::new(body.into());
    *reply.status_mut() = status;
    let headers = reply.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    // The state of a queue is out of date at once, and no page shows it in a frame.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    reply
}
