//! A client of a server's HTTP API, for what is not part of the queue: the result log.

use std::time::Duration;

use bytes::Bytes;
use geartrain_json::excerpt;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::header::{AUTHORIZATION, HeaderValue};
use hyper::{Request, StatusCode, Uri};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use rustls::{ClientConfig, RootCertStore};
use serde::de::DeserializeOwned;

use crate::failure::Failure;

/// How long a request may take.
const REQUEST_MAX: Duration = Duration::from_secs(30);
/// The largest reply: a thousand attempts with their results.
const REPLY_BYTES_MAX: usize = 256 << 20;

/// Asks one server.
pub(crate) struct HttpClient {
    /// Without a slash at its end; it may have a path, if a proxy serves the server under a prefix.
    url: String,
    authorization: Option<HeaderValue>,
}

/// Whether a URL is one of HTTP.
pub(crate) fn is_http(url: &str) -> bool {
    url.starts_with("http://") || url.starts_with("https://")
}

#[derive(serde::Deserialize)]
struct ErrorDocument {
    error: ErrorFields,
}

#[derive(serde::Deserialize)]
struct ErrorFields {
    message: String,
    help: Option<String>,
}

impl HttpClient {
    pub(crate) fn new(url: &str, password: Option<String>) -> Result<HttpClient, Failure> {
        let uri: Uri = url
            .parse()
            .map_err(|error| Failure::Usage(format!("{:?} is not a URL: {error}", excerpt(url))))?;
        if uri.authority().is_none_or(|authority| authority.as_str().contains('@')) || uri.query().is_some() {
            let why = "write the server as http://HOST:7410, without a password or parameters; \
                       --password-file names the password";
            return Err(Failure::Usage(why.to_owned()));
        }
        let authorization = password.map(|password| HeaderValue::try_from(format!("Bearer {password}")));
        let mut authorization = authorization.transpose().map_err(|_| {
            Failure::Usage("the password has control characters, which HTTP cannot send".to_owned())
        })?;
        authorization.iter_mut().for_each(|value| value.set_sensitive(true));
        Ok(HttpClient { url: url.trim_end_matches('/').to_owned(), authorization })
    }

    /// The document at a path, with the parameters that are given.
    pub(crate) fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        parameters: &[(&str, Option<String>)],
    ) -> Result<T, Failure> {
        let query: Vec<String> = parameters
            .iter()
            .filter_map(|(name, value)| Some(format!("{name}={}", encode(value.as_ref()?))))
            .collect();
        let uri = format!("{}/{path}?{}", self.url, query.join("&"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let answered = runtime.block_on(async { tokio::time::timeout(REQUEST_MAX, self.ask(uri)).await });
        let (status, body) = answered.map_err(|_| self.unreachable("it does not answer in time"))??;
        let text = String::from_utf8_lossy(&body);
        if status.is_success() {
            return serde_json::from_str(&text)
                .map_err(|error| self.unreachable(format_args!("its answer is not as expected: {error}")));
        }
        let Ok(ErrorDocument { error }) = serde_json::from_str(&text) else {
            return Err(self.unreachable(format_args!("it answers with status {status}")));
        };
        let help = error.help.map(|help| format!("; {help}")).unwrap_or_default();
        Err(Failure::Refused(format!("{} refuses: {}{help}", self.url, error.message)))
    }

    async fn ask(&self, uri: String) -> Result<(StatusCode, Bytes), Failure> {
        let mut request = Request::get(uri);
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let request = request
            .body(Empty::<Bytes>::new())
            .map_err(|error| Failure::Usage(format!("{:?} is not a URL: {error}", self.url)))?;
        let roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.into() };
        let provider = rustls::crypto::ring::default_provider().into();
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| self.unreachable(error))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let connector =
            HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().build();
        let client = Client::builder(TokioExecutor::new()).build(connector);
        let reply = client.request(request).await.map_err(|error| self.unreachable(cause(&error)))?;
        let status = reply.status();
        let body = Limited::new(reply.into_body(), REPLY_BYTES_MAX).collect().await;
        Ok((status, body.map_err(|error| self.unreachable(error))?.to_bytes()))
    }

    fn unreachable(&self, why: impl std::fmt::Display) -> Failure {
        Failure::Unreachable(format!(
            "the server at {} cannot be asked: {why}; check the address, and that the server speaks HTTP there",
            self.url
        ))
    }
}

/// The innermost cause, which says most.
fn cause(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

fn encode(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    text.bytes().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_url_is_refused_with_how_to_write_it() {
        for url in ["http://", "http://:secret@h:1", "http://h/?x=1", "http://h h"] {
            let Err(Failure::Usage(why)) = HttpClient::new(url, None) else { panic!("{url}") };
            assert!(why.contains("not a URL") || why.contains("http://HOST:7410"), "{url}: {why}");
        }
        assert!(HttpClient::new("https://h/prefix/", Some("secret".to_owned())).is_ok());
        assert!(HttpClient::new("http://h", Some("a\nb".to_owned())).is_err());
    }

    #[test]
    fn parameters_are_percent_encoded() {
        assert_eq!(encode("a b&c=ä"), "a%20b%26c%3D%C3%A4");
    }
}
