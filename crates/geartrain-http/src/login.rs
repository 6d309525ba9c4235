//! Logging in with an access key, for browsers: a form gives a session, whose id is in a cookie.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::OriginalUri;
use axum::http::header::{self, HeaderValue};
use axum::http::request::Parts;
use axum::http::{Response, StatusCode};
use geartrain_core::Role;
use geartrain_json::{FieldInfo, FieldKind, Object, OperationError};
use percent_encoding::percent_decode_str;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::time::Instant;

use crate::guard::Access;
use crate::handlers::{Peer, Shared};
use crate::respond::{self, Reply};
use crate::session::{AGE_MAX, COOKIE};

/// The largest form.
pub(crate) const FORM_BYTES_MAX: usize = 8 << 10;

/// The most records of one page of the audit log.
const AUDIT_RECORDS_MAX: u64 = 1_000;

/// The fields of a request for the audit log.
pub(crate) const AUDIT_FIELDS: &[FieldInfo] = &[
    FieldInfo::new(
        "limit",
        FieldKind::Whole(1, AUDIT_RECORDS_MAX),
        "How many records at most; 50 by default, up to 1000",
    ),
    FieldInfo::new("before", FieldKind::Whole(0, u64::MAX), "Only records with a smaller id"),
];

/// Who asks, and what it may do.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct WhoAmIView {
    /// The name of the key; null without one.
    name: Option<String>,
    /// `viewer`, `operator` or `admin`.
    role: &'static str,
    /// Whether a key is required.
    login: bool,
    /// Whether the server refuses every change.
    read_only: bool,
}

/// Shows who asks.
pub(crate) fn whoami(shared: &Shared, access: &Access) -> Result<Reply, OperationError> {
    let control = &shared.options.access;
    respond::view(&WhoAmIView {
        name: access.identity.name.as_ref().map(ToString::to_string),
        role: access.identity.role.as_str(),
        login: control.is_required(),
        read_only: control.is_read_only(),
    })
}

/// Checks the key of the form, and begins a session.
pub(crate) async fn log_in(
    shared: &Arc<Shared>,
    parts: &Parts,
    form: &Bytes,
) -> Result<Reply, OperationError> {
    let content_type = parts.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let media_type = content_type.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    if !media_type.eq_ignore_ascii_case("application/x-www-form-urlencoded") {
        return Err(OperationError::new("not-form-content", "the body is not declared as that of a form"));
    }
    let control = &shared.options.access;
    let Some(key) = key_of(form) else {
        return Err(OperationError::bad_argument("the form has no field `key`"));
    };
    let peer = parts.extensions.get::<Peer>();
    // Without keys there is nothing to log in to.
    let identity = match control.anonymous() {
        Some(_) => return Ok(redirect(&home(parts))),
        None => {
            control.authenticate(None, key.trim().as_bytes(), peer.and_then(|peer| peer.address.ip())).await
        }
    };
    let Some(identity) = identity else { return Ok(redirect("login?failed")) };
    if let Some(peer) = peer {
        peer.authenticated.notify_one();
    }
    shared.record(peer, &identity, "login");
    let Some(id) = shared.sessions.begin(identity, Instant::now()) else {
        return Err(OperationError::new("unavailable", "the system has no random numbers"));
    };
    Ok(with_cookie(redirect(&home(parts)), parts, &id, AGE_MAX.as_secs()))
}

/// Ends the session, if there is one.
pub(crate) fn log_out(shared: &Shared, parts: &Parts) -> Reply {
    if let Some(session) = shared.sessions.end(&parts.headers) {
        shared.record(parts.extensions.get::<Peer>(), &session.identity, "logout");
    }
    with_cookie(redirect("login"), parts, "", 0)
}

fn key_of(form: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(form).ok()?;
    let mut pairs = text.split('&').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.find(|(name, _)| *name == "key")?;
    Some(percent_decode_str(&value.replace('+', " ")).decode_utf8().ok()?.into_owned())
}

/// A relative location, so that it holds under a prefix.
fn redirect(to: &str) -> Reply {
    let mut reply: Response<Body> = respond::with_type(StatusCode::SEE_OTHER, "text/plain", "");
    if let Ok(to) = HeaderValue::from_str(to) {
        reply.headers_mut().insert(header::LOCATION, to);
    }
    reply
}

/// Where the dashboard is, from the login page: below a prefix there is no page with a slash at its end.
fn home(parts: &Parts) -> String {
    match prefix(parts).rsplit('/').next() {
        None | Some("") => "./".to_owned(),
        Some(last) => format!("../{last}"),
    }
}

fn with_cookie(mut reply: Reply, parts: &Parts, id: &str, seconds: u64) -> Reply {
    let is_encrypted = parts.extensions.get::<Peer>().is_some_and(|peer| peer.is_encrypted)
        // A proxy before this server encrypts. A wrong header only keeps the cookie from coming back.
        || parts.headers.get("x-forwarded-proto").is_some_and(|scheme| scheme == "https");
    let secure = if is_encrypted { "; Secure" } else { "" };
    let path = prefix(parts);
    let cookie = format!("{COOKIE}={id}; Path={path}; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}");
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        reply.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    reply
}

/// The path under which the router is mounted: what the original path has before that of the route.
fn prefix(parts: &Parts) -> String {
    let original = parts.extensions.get::<OriginalUri>().map(|original| original.0.path());
    let prefix = original.and_then(|path| path.strip_suffix(parts.uri.path())).unwrap_or_default();
    // A semicolon would end the path of the cookie.
    if prefix.is_empty() || prefix.contains(';') { "/".to_owned() } else { prefix.to_owned() }
}

/// The audit log, newest first.
pub(crate) async fn audit(shared: &Shared, fields: &Object<'_>) -> Result<Reply, OperationError> {
    const LIMIT_DEFAULT: u64 = 50;
    let limit = fields.whole("limit")?.unwrap_or(LIMIT_DEFAULT);
    if !(1..=AUDIT_RECORDS_MAX).contains(&limit) {
        return Err(OperationError::bad_argument(format!("`limit` must be from 1 to {AUDIT_RECORDS_MAX}")));
    }
    let before = fields.whole("before")?;
    let Some(log) = shared.options.access.audit().cloned() else {
        return Err(OperationError {
            help: Some("start the server with --audit-log FILE".to_owned()),
            ..OperationError::new("unsupported", "this server has no audit log")
        });
    };
    let read = tokio::task::spawn_blocking(move || log.read(limit as usize, before)).await;
    match read {
        Ok(Ok(page)) => respond::view(&page),
        Ok(Err(error)) => {
            tracing::warn!("the audit log cannot be read: {error}");
            Err(OperationError::new("unavailable", "the audit log cannot be read"))
        }
        Err(_) => Err(OperationError::new("unavailable", "the audit log cannot be read")),
    }
}

/// What a caller of this role may not have.
pub(crate) fn forbidden(what: &'static str, needed: Role, role: Role) -> OperationError {
    geartrain_core::Refusal::Forbidden { command: what.into(), needed, role }.into()
}
