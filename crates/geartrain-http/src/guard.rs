//! What a request must pass before it is answered: the host it names, its origin, and the key of its sender.
//!
//! A web page can make a browser send requests to this machine. Under a name that resolves to it (DNS rebinding)
//! they look like those of the page's own site, so names other than those of this machine are refused; from
//! another site they say so.

use std::net::IpAddr;
use std::sync::Arc;

use axum::http::header::{self, HeaderMap, HeaderName};
use axum::http::{Method, Uri};
use geartrain_front::Identity;
use geartrain_json::OperationError;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::handlers::Shared;

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");

/// The names that a request may give its host.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hosts {
    /// Besides IP addresses, which need no resolution, and `localhost`.
    pub(crate) names: Vec<String>,
}

impl Hosts {
    pub(crate) fn check(&self, headers: &HeaderMap, uri: &Uri) -> Result<(), OperationError> {
        let from_header = headers.get(header::HOST).and_then(|host| host.to_str().ok());
        let Some(host) = uri.authority().map(|authority| authority.as_str()).or(from_header) else {
            return Err(OperationError::new("bad-host", "the request names no host"));
        };
        if headers.get_all(header::HOST).iter().count() > 1 {
            return Err(OperationError::new("bad-host", "the request names several hosts"));
        }
        let name = host_name(host);
        let is_address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok();
        let is_named = self.names.iter().any(|allowed| allowed.eq_ignore_ascii_case(name));
        if is_address || is_named || name.eq_ignore_ascii_case("localhost") {
            return Ok(());
        }
        Err(OperationError {
            help: Some("use the address or localhost, or allow the name with --http-host".to_owned()),
            ..OperationError::new(
                "bad-host",
                format!("the host {:?} is not one of this server", geartrain_json::excerpt(name)),
            )
        })
    }
}

/// The host without its port.
fn host_name(host: &str) -> &str {
    match host.rfind(']') {
        Some(end) => &host[..=end],
        None => host.split_once(':').map_or(host, |(name, _)| name),
    }
}

/// Refuses what a page of another site makes a browser send: changes, and reads other than those of a link that is
/// followed. The page would not see what it reads, but could have backups made or many jobs searched.
pub(crate) fn check_origin(method: &Method, headers: &HeaderMap) -> Result<(), OperationError> {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let is_foreign_site = text(FETCH_SITE).is_some_and(|site| !matches!(site, "same-origin" | "none"));
    let host = text(header::HOST).unwrap_or_default();
    let is_foreign_origin = headers.contains_key(header::ORIGIN)
        && text(header::ORIGIN).and_then(|origin| origin.split_once("://")).is_none_or(|(_, of)| of != host);
    let is_refused = match *method {
        Method::GET | Method::HEAD => is_foreign_site && text(FETCH_DEST) != Some("document"),
        _ => is_foreign_site || is_foreign_origin,
    };
    if is_refused {
        let why = "a web page of another site sent this request";
        return Err(OperationError::new("cross-origin", why));
    }
    Ok(())
}

/// Who sends a request, and until when it may.
pub(crate) struct Access {
    pub(crate) identity: Arc<Identity>,
    /// Cancelled when the key or the session ends.
    pub(crate) revoked: CancellationToken,
}

impl Access {
    fn of(identity: Arc<Identity>) -> Access {
        Access { revoked: identity.revoked().clone(), identity }
    }
}

/// Finds out who sends a request: by its bearer token, or by the session of a browser.
pub(crate) async fn find_access(
    shared: &Shared,
    method: &Method,
    headers: &HeaderMap,
    peer: Option<IpAddr>,
) -> Result<Access, OperationError> {
    let control = &shared.options.access;
    if let Some(anonymous) = control.anonymous() {
        return Ok(Access::of(anonymous));
    }
    if let Some(given) = headers.get(header::AUTHORIZATION) {
        let secret = given.as_bytes().strip_prefix(b"Bearer ").unwrap_or_default();
        let found = control.authenticate(None, secret, peer).await;
        return found.map(Access::of).ok_or_else(|| unauthorized("the key or password is wrong"));
    }
    match shared.sessions.find(headers, Instant::now()) {
        Some(session) => {
            check_page(method, headers)?;
            Ok(Access { identity: session.identity, revoked: session.ended })
        }
        None => Err(unauthorized("the request has no key or password")),
    }
}

pub(crate) fn unauthorized(why: &str) -> OperationError {
    OperationError {
        help: Some("log in, or send an access key or the password as `Authorization: Bearer KEY`".to_owned()),
        ..OperationError::new("unauthorized", why)
    }
}

/// Refuses changes with a session that do not say which page sends them: browsers do say it, and the cookie is
/// for browsers only.
fn check_page(method: &Method, headers: &HeaderMap) -> Result<(), OperationError> {
    let is_read = *method == Method::GET || *method == Method::HEAD;
    if is_read || headers.contains_key(header::ORIGIN) || headers.contains_key(FETCH_SITE) {
        return Ok(());
    }
    let why = "a change with a session must name its origin; programs send a key as a bearer token";
    Err(OperationError::new("cross-origin", why))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(&'static str, &'static str)]) -> HeaderMap {
        list.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect()
    }

    #[test]
    fn only_names_of_this_machine_pass() {
        let hosts = Hosts { names: vec!["queue.example".to_owned()] };
        for (host, passes) in [
            ("localhost:7410", true),
            ("LOCALHOST", true),
            ("127.0.0.1:7410", true),
            ("[::1]:7410", true),
            ("10.0.0.7", true),
            ("queue.example:443", true),
            ("evil.example:7410", false),
            ("localhost.evil.example", false),
            ("127.0.0.1.evil.example", false),
            ("", false),
        ] {
            let checked = hosts.check(&headers(&[("host", host)]), &Uri::from_static("/v1/jobs"));
            assert_eq!(checked.is_ok(), passes, "{host}");
        }
        assert!(hosts.check(&HeaderMap::new(), &Uri::from_static("/v1/jobs")).is_err());
    }

    #[test]
    fn changes_from_other_sites_are_refused() {
        for (list, passes) in [
            (&[("host", "localhost:7410")][..], true),
            (&[("host", "localhost:7410"), ("origin", "http://localhost:7410")], true),
            (&[("host", "localhost:7410"), ("origin", "http://evil.example")], false),
            (&[("host", "localhost:7410"), ("origin", "null")], false),
            (&[("host", "localhost:7410"), ("sec-fetch-site", "same-origin")], true),
            (&[("host", "localhost:7410"), ("sec-fetch-site", "cross-site")], false),
            (&[("host", "localhost:7410"), ("sec-fetch-site", "same-site")], false),
        ] {
            assert_eq!(check_origin(&Method::POST, &headers(list)).is_ok(), passes, "{list:?}");
        }
    }

    #[test]
    fn reads_from_other_sites_are_those_of_links() {
        for (site, dest, passes) in [
            ("cross-site", "document", true),
            ("cross-site", "image", false),
            ("cross-site", "iframe", false),
            ("same-site", "empty", false),
            ("same-origin", "empty", true),
            ("none", "document", true),
        ] {
            let list = [("host", "localhost:7410"), ("sec-fetch-site", site), ("sec-fetch-dest", dest)];
            assert_eq!(check_origin(&Method::GET, &headers(&list)).is_ok(), passes, "{site} {dest}");
        }
        // No browser, or one that does not tell.
        assert!(check_origin(&Method::GET, &headers(&[("origin", "http://evil.example")])).is_ok());
    }
}
