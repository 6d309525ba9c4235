//! Cross-protocol requests: HTTP sent to the port of another protocol.
//!
//! A web page can make a browser send an HTTP request to any port of its own machine (cross-protocol request
//! forgery). Line-based protocols answer the header lines with errors and then execute the body. So the first
//! line of a request must already end the connection.

use std::fmt::Display;

use crate::RepeatedWarning;

static HTTP: RepeatedWarning = RepeatedWarning::new();

/// All methods of HTTP that are registered for general use, the preface of HTTP/2, and the header that every
/// request of HTTP/1.1 has. None of them is a command of a protocol spoken here.
const WORDS: [&str; 11] =
    ["GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "CONNECT", "TRACE", "PRI", "Host:"];

/// The HTTP method or header that a request starts with, if any.
///
/// ```
/// assert_eq!(geartrain_front::http_word(b"post"), Some("POST"));
/// assert_eq!(geartrain_front::http_word(b"status"), None);
/// ```
pub fn http_word(first: &[u8]) -> Option<&'static str> {
    WORDS.into_iter().find(|word| word.as_bytes().eq_ignore_ascii_case(first))
}

/// Logs that a connection ends because it sent HTTP.
pub fn warn_of_http(protocol: &str, client: impl Display, word: &str) {
    HTTP.warn(format_args!(
        "possible attack: {client} sent HTTP ({word}) to the {protocol} port and was disconnected; \
         a web page may be trying to submit or cancel jobs"
    ));
}
