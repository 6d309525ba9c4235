//! Request headers: facts about the job, and its signature.

use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use geartrain_core::{Payload, json};
use geartrain_worker::Context;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, USER_AGENT};

use crate::Secret;
use crate::sign::signatures;

/// The headers of the request for a job.
pub(crate) fn headers(context: &Context, secrets: &[Secret], now: SystemTime) -> HeaderMap {
    let job = context.job();
    let mut headers = HeaderMap::with_capacity(12);
    let mut set = |name: &'static str, value: &str| {
        // Names are encoded, and the rest is made of digits: nothing is left out here.
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    };
    set(USER_AGENT.as_str(), concat!("geartrain/", env!("CARGO_PKG_VERSION")));
    set(CONTENT_TYPE.as_str(), content_type(&job.payload));
    set("geartrain-jid", &encode(&job.jid.to_string(), ""));
    set("geartrain-queue", &encode(job.queue.as_str(), ""));
    set("geartrain-klass", &encode(job.klass.as_str(), ""));
    set("geartrain-attempt", &context.attempt().to_string());
    set("geartrain-priority", &job.priority.to_string());
    if let Some(left) = context.time_left() {
        let deadline = (now + left).duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        set("geartrain-deadline", &deadline.to_string());
    }
    if let Some(traceparent) = context.traceparent() {
        set("traceparent", &traceparent);
    }
    // The parts of the signed text are separated by dots, so an id with a dot could be read in two ways.
    let id = encode(&job.jid.to_string(), ".");
    let timestamp = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    set("webhook-id", &id);
    set("webhook-timestamp", &timestamp.to_string());
    if !secrets.is_empty() {
        set("webhook-signature", &signatures(secrets, &id, timestamp, job.payload.bytes()));
    }
    headers
}

fn content_type(payload: &Payload) -> &'static str {
    if json::is_json(payload.bytes()) { "application/json" } else { "application/octet-stream" }
}

/// Percent-encodes what a header cannot carry unchanged (space, control characters, everything beyond ASCII),
/// the percent sign itself, and more characters if given.
fn encode(text: &str, more: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        let character = char::from(byte);
        if byte.is_ascii_graphic() && byte != b'%' && !more.contains(character) {
            encoded.push(character);
        } else {
            let _infallible = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_percent_encoded_where_a_header_needs_it() {
        assert_eq!(encode("H:host:1.2/x", ""), "H:host:1.2/x");
        assert_eq!(encode("a b%\r\nSet-Cookie: é", ""), "a%20b%25%0D%0ASet-Cookie:%20%C3%A9");
        assert_eq!(encode("v1.2", "."), "v1%2E2");
    }

    #[test]
    fn the_content_type_follows_the_payload() {
        assert_eq!(content_type(&Payload::from(r#" {"to": [1]} "#)), "application/json");
        assert_eq!(content_type(&Payload::from("hello")), "application/octet-stream");
        assert_eq!(content_type(&Payload::from("")), "application/octet-stream");
        assert_eq!(content_type(&Payload::from(vec![0xff])), "application/octet-stream");
    }
}
