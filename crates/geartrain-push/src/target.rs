//! The target of pushed jobs: its URL, and the HTTP client with its connection pool.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Uri;
use http_body_util::Full;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

/// How long an idle connection is kept. A server that closes a connection in the moment in which a request is
/// sent costs the job a retry; the common servers keep idle connections for 2 s or longer.
const IDLE_MAX: Duration = Duration::from_secs(1);

/// A target cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// It is not an absolute URL.
    #[error("'{url}' is not a URL: {reason}")]
    NotAUrl {
        /// The text.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// It is not an HTTP URL.
    #[error("the push URL must begin with http:// or https://, not with {scheme}:")]
    Scheme {
        /// What it begins with.
        scheme: String,
    },
    /// It contains credentials.
    #[error(
        "the push URL must not contain a user name or password: URLs are logged and shown in process lists; let \
         the target verify the signature of a secret file"
    )]
    Credentials,
    /// It has a fragment, which is never sent.
    #[error("the push URL must not contain a fragment (#…)")]
    Fragment,
    /// More than two secrets.
    #[error("at most two secrets can sign a request: the new one and the old one")]
    TooManySecrets,
    /// The file of certificate authorities is not usable.
    #[error("cannot use the certificate authorities in {}: {reason}", file.display())]
    Authorities {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// TLS cannot be set up.
    #[error("cannot set up TLS: {0}")]
    Tls(#[from] rustls::Error),
}

/// The client that sends requests.
pub(crate) type HttpClient = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// A checked URL to send jobs to.
#[derive(Clone, Debug)]
pub(crate) struct Target(Uri);

impl Target {
    pub(crate) fn parse(url: &str) -> Result<Target, TargetError> {
        let bad =
            |reason: &str| TargetError::NotAUrl { url: without_secrets(url), reason: reason.to_owned() };
        if url.contains('#') {
            return Err(TargetError::Fragment);
        }
        let uri: Uri = url.parse().map_err(|error: http::uri::InvalidUri| bad(&error.to_string()))?;
        match uri.scheme_str() {
            Some("http" | "https") => {}
            Some(scheme) => return Err(TargetError::Scheme { scheme: scheme.to_owned() }),
            None => return Err(bad("it must begin with http:// or https://")),
        }
        let authority = uri.authority().ok_or_else(|| bad("it has no host"))?;
        if authority.as_str().contains('@') {
            return Err(TargetError::Credentials);
        }
        if authority.host().is_empty() {
            return Err(bad("it has no host"));
        }
        let port = authority.as_str().strip_prefix(authority.host()).unwrap_or_default();
        if !port.is_empty() && uri.port_u16().is_none_or(|port| port == 0) {
            return Err(bad("its port is not a number from 1 to 65535"));
        }
        Ok(Target(uri))
    }

    pub(crate) fn uri(&self) -> &Uri {
        &self.0
    }
}

/// Without the query, which may contain a key.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = self.0.scheme_str().unwrap_or_default();
        let authority = self.0.authority().map_or("", |authority| authority.as_str());
        write!(f, "{scheme}://{authority}{}", self.0.path())
    }
}

/// The text of a bad URL without what may be a password or a key.
fn without_secrets(url: &str) -> String {
    let text = url.split('?').next().unwrap_or_default();
    match text.rsplit_once('@') {
        Some((_credentials, rest)) => format!("…@{rest}"),
        None => text.to_owned(),
    }
}

/// A client that trusts the authorities in a PEM file, or else the usual web roots. It follows no redirects.
pub(crate) fn client(authorities: Option<&Path>) -> Result<HttpClient, TargetError> {
    let mut roots = RootCertStore::empty();
    match authorities {
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        Some(file) => add_authorities(&mut roots, file)
            .map_err(|reason| TargetError::Authorities { file: file.to_owned(), reason })?,
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    let connector =
        HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().wrap_connector(tcp);
    Ok(Client::builder(TokioExecutor::new())
        .pool_idle_timeout(IDLE_MAX)
        .pool_timer(TokioTimer::new())
        .build(connector))
}

fn add_authorities(roots: &mut RootCertStore, file: &Path) -> Result<(), String> {
    let certificates = CertificateDer::pem_file_iter(file).map_err(|error| error.to_string())?;
    for certificate in certificates {
        let certificate = certificate.map_err(|error| error.to_string())?;
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    if roots.is_empty() { Err("it has no certificate in it".to_owned()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_url_is_refused_by_reason() {
        for (url, reason) in [
            ("", "'' is not a URL: empty string"),
            ("/jobs", "'/jobs' is not a URL: it must begin with http:// or https://"),
            ("example.org", "'example.org' is not a URL: it must begin with http:// or https://"),
            ("ftp://example.org/", "the push URL must begin with http:// or https://, not with ftp:"),
            ("http://", "'http://' is not a URL: empty string"),
            ("http:///jobs", "'http:///jobs' is not a URL: invalid format"),
            ("http://:80/jobs", "'http://:80/jobs' is not a URL: it has no host"),
            ("http://h:99999/", "'http://h:99999/' is not a URL: its port is not a number from 1 to 65535"),
            ("http://h:0/", "'http://h:0/' is not a URL: its port is not a number from 1 to 65535"),
            ("http://h/#top", "the push URL must not contain a fragment (#…)"),
            ("http://h /", "'http://h /' is not a URL: invalid uri character"),
            ("http://me:pw@h /?key", "'…@h /' is not a URL: invalid uri character"),
        ] {
            assert_eq!(Target::parse(url).unwrap_err().to_string(), reason, "{url}");
        }
        let error = Target::parse("https://me:hunter2@example.org/").unwrap_err();
        assert!(matches!(error, TargetError::Credentials) && !error.to_string().contains("hunter2"));
    }

    #[test]
    fn a_good_url_is_shown_without_its_query() {
        for (url, shown) in [
            ("https://example.org/jobs?key=secret", "https://example.org/jobs"),
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080/"),
            ("http://[::1]:8080/a/b", "http://[::1]:8080/a/b"),
        ] {
            assert_eq!(Target::parse(url).unwrap().to_string(), shown);
        }
    }
}
