//! What a request must pass before it is answered: the host it names, its origin, and its password.
//!
//! A web page can make a browser send requests to this machine. Under a name that resolves to it (DNS rebinding)
//! they look like those of the page's own site, so names other than those of this machine are refused; from
//! another site they say so.

use std::net::IpAddr;

use axum::http::header::{self, HeaderMap, HeaderName};
use axum::http::{Method, Uri};
use geartrain_front::AuthThrottle;
use geartrain_json::OperationError;

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

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

/// Refuses changes that a page of another site makes a browser send.
pub(crate) fn check_origin(method: &Method, headers: &HeaderMap) -> Result<(), OperationError> {
    if *method == Method::GET || *method == Method::HEAD {
        return Ok(());
    }
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let is_foreign_site = text(FETCH_SITE).is_some_and(|site| !matches!(site, "same-origin" | "none"));
    let host = text(header::HOST).unwrap_or_default();
    let is_foreign_origin = headers.contains_key(header::ORIGIN)
        && text(header::ORIGIN).and_then(|origin| origin.split_once("://")).is_none_or(|(_, of)| of != host);
    if is_foreign_site || is_foreign_origin {
        let why = "a web page of another site sent this request";
        return Err(OperationError::new("cross-origin", why));
    }
    Ok(())
}

/// Checks the bearer token of a request, which is the password of the server.
pub(crate) async fn check_password(
    password: &str,
    headers: &HeaderMap,
    throttle: &AuthThrottle,
    peer: Option<IpAddr>,
) -> Result<(), OperationError> {
    let unauthorized = |why: &str| OperationError {
        help: Some("send the password of the server as `Authorization: Bearer PASSWORD`".to_owned()),
        ..OperationError::new("unauthorized", why)
    };
    let Some(given) = headers.get(header::AUTHORIZATION) else {
        return Err(unauthorized("the request has no password"));
    };
    let given = given.as_bytes().strip_prefix(b"Bearer ").unwrap_or_default().to_vec();
    if throttle.attempt(peer, || is_same(&given, password.as_bytes())).await {
        return Ok(());
    }
    Err(unauthorized("the password is wrong"))
}

/// Compares in a time that does not depend on where they differ.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).fold(0, |all, (one, other)| all | (one ^ other)) == 0
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
            assert!(check_origin(&Method::GET, &headers(list)).is_ok());
        }
    }
}
