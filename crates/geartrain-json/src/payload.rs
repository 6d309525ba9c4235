//! Payloads in JSON: JSON as it is, text as a string, other bytes as `{"$bytes": "<base64>"}`.

use geartrain_core::{Payload, base64};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// A payload that is neither JSON nor text.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Bytes {
    #[serde(rename = "$bytes")]
    base64: String,
}

/// Shows a payload in JSON: as it is if it is JSON, or as text, or as `{"$bytes": base64}`.
pub fn to_json(payload: &Payload) -> Box<RawValue> {
    match payload.text() {
        Some(text) => match serde_json::from_str::<&RawValue>(text) {
            // Line breaks in JSON stand between tokens, never inside a string. Without them a reply stays on
            // one line.
            Ok(json) if json.get().contains(['\n', '\r']) => raw(json.get().replace(['\n', '\r'], " ")),
            Ok(json) => json.to_owned(),
            Err(_) => raw(bytes_to_json(text.as_bytes()).to_string()),
        },
        None => raw(bytes_to_json(payload.bytes()).to_string()),
    }
}

/// Shows bytes as a JSON string, or as `{"$bytes": base64}`.
pub fn bytes_to_json(bytes: &[u8]) -> serde_json::Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => serde_json::json!(Bytes { base64: base64::encode(bytes) }),
    }
}

fn raw(json: String) -> Box<RawValue> {
    RawValue::from_string(json).expect("this is serialised JSON")
}

/// The payload for a JSON value: the text of a string, the bytes of `{"$bytes": base64}`, any other JSON as
/// written.
pub fn from_json(json: &RawValue) -> Result<Payload, String> {
    if let Ok(text) = serde_json::from_str::<String>(json.get()) {
        return Ok(text.into());
    }
    if json.get().starts_with('"') {
        return Err(
            "the payload has half of a surrogate pair (\\uD800 to \\uDFFF), which is no text".to_owned()
        );
    }
    match wrapped(json) {
        Some(bytes) => base64::decode(&bytes.base64)
            .map(Payload::from)
            .ok_or_else(|| "the payload's $bytes are not base64".to_owned()),
        None => Ok(json.get().into()),
    }
}

/// A value of the form `{"$bytes": base64}`. serde would read `["base64"]` as the same struct.
fn wrapped(json: &RawValue) -> Option<Bytes> {
    json.get().starts_with('{').then(|| serde_json::from_str(json.get()).ok()).flatten()
}

/// The bytes for a JSON value: the text of a string, or the bytes of `{"$bytes": base64}`.
pub fn bytes_from_json(json: &RawValue) -> Option<Vec<u8>> {
    match serde_json::from_str::<String>(json.get()) {
        Ok(text) => Some(text.into_bytes()),
        Err(_) => base64::decode(&wrapped(json)?.base64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_shows_json_then_text_then_bytes() {
        for (bytes, json) in [
            (&b"{\"to\": \"a\"}"[..], "{\"to\": \"a\"}"),
            (b" [1,\n 2]\n", "[1,  2]"),
            (b"123456789012345678901234567890.10", "123456789012345678901234567890.10"),
            (b"null", "null"),
            (b"hello", "\"hello\""),
            (b"a\nb", "\"a\\nb\""),
            (b"", "\"\""),
            (b"{\"a\":", "\"{\\\"a\\\":\""),
            (b"\xff\0", "{\"$bytes\":\"/wA=\"}"),
        ] {
            assert_eq!(to_json(&bytes.into()).get(), json);
        }
    }

    #[test]
    fn to_json_and_from_json_round_trip() {
        for bytes in [&b"{\"to\": \"a\"}"[..], b"1.50", b"null", b"hello", b"a\nb", b"", b"\xff\0"] {
            assert_eq!(from_json(&to_json(&bytes.into())), Ok(bytes.into()));
        }
        assert!(from_json(&raw("{\"$bytes\":\"?\"}".to_owned())).is_err());
        assert!(from_json(&raw("\"\\ud800\"".to_owned())).is_err());
        // What only looks like it stays as it is.
        for json in ["{\"$bytes\":\"AA==\",\"more\":1}", "[\"AA==\"]", "[\"users\"]"] {
            assert_eq!(from_json(&raw(json.to_owned())), Ok(json.into()));
        }
    }
}
