//! Payloads: opaque bytes, in memory or spilled to a file.

use std::borrow::Cow;

use bytes::Bytes;

use crate::{base64, json};

/// Default limit for the size of a payload, chunk or result.
pub const PAYLOAD_BYTES_MAX: usize = 64 << 20;

/// A backend may write payloads of this size, or more, before it queues their batch for execution.
///
/// Meanwhile it executes batches that were sent later. A front-end that must keep the order of a peer's
/// requests holds back that peer's next requests until such a batch is answered.
pub const LARGE_PAYLOAD_BYTES: usize = 512 << 10;

/// Opaque bytes, cheap to clone.
///
/// It is a type of its own, and not just bytes, because a store may leave large payloads on disk (spill); a
/// backend loads the bytes before it replies.
///
/// ```
/// use geartrain_core::Payload;
/// assert_eq!(Payload::from("{}").bytes(), b"{}");
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Payload(Repr);

#[derive(Clone, PartialEq, Eq, Hash)]
enum Repr {
    InMemory(Bytes),
    Spilled(SpillLocation),
}

/// The location of a spilled payload. Only the store knows what a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpillLocation {
    /// The number of the file; never reused for another file.
    pub file: u64,
    /// The offset of the record in the file.
    pub offset: u32,
    /// The length of the payload.
    pub bytes: u32,
}

impl SpillLocation {
    /// The size of a record's header.
    pub const HEAD_BYTES: u32 = 8;

    /// Set in the number of a file that holds a single payload and was complete and synced before any delta
    /// named it. Such a file is deleted when the delta that releases the payload is durable.
    pub const OWN_FILE: u64 = 1 << 31;

    /// Whether the file with this number holds a single payload.
    pub fn is_own_file(file: u64) -> bool {
        file & SpillLocation::OWN_FILE != 0
    }

    /// The size of the record: header and payload.
    pub fn record_bytes(&self) -> u64 {
        u64::from(SpillLocation::HEAD_BYTES) + u64::from(self.bytes)
    }
}

impl Payload {
    /// The bytes.
    ///
    /// # Panics
    ///
    /// If the payload is spilled and not loaded. Only the engine and its store see such payloads.
    pub fn bytes(&self) -> &[u8] {
        match &self.0 {
            Repr::InMemory(bytes) => bytes,
            Repr::Spilled(location) => not_loaded(location),
        }
    }

    /// The length in bytes, also of a spilled payload.
    pub fn byte_len(&self) -> usize {
        match &self.0 {
            Repr::InMemory(bytes) => bytes.len(),
            Repr::Spilled(location) => location.bytes as usize,
        }
    }

    /// Copies the bytes into memory of their own. Bytes from a connection share its read buffer, which may be
    /// much larger and lives as long as they do.
    pub fn unshare(&mut self) {
        if let Repr::InMemory(bytes) = &mut self.0 {
            *bytes = Bytes::copy_from_slice(bytes);
        }
    }

    /// The bytes as text, if they are UTF-8.
    pub fn text(&self) -> Option<&str> {
        std::str::from_utf8(self.bytes()).ok()
    }

    /// The bytes, shared rather than copied.
    pub fn to_shared(&self) -> Bytes {
        match &self.0 {
            Repr::InMemory(bytes) => bytes.clone(),
            Repr::Spilled(location) => not_loaded(location),
        }
    }

    /// The payload as JSON: JSON is unchanged, anything else becomes `{"$bytes":"<base64>"}`.
    ///
    /// ```
    /// use geartrain_core::Payload;
    /// assert_eq!(Payload::from("[1]").to_json(), "[1]");
    /// assert_eq!(Payload::from("hi").to_json(), r#"{"$bytes":"aGk="}"#);
    /// assert_eq!(Payload::from_json(r#"{"$bytes":"aGk="}"#), Payload::from("hi"));
    /// ```
    pub fn to_json(&self) -> Cow<'_, str> {
        match self.text() {
            Some(text) if json::is_json_text(text) && unwrap_bytes(text).is_none() => text.into(),
            _ => wrap_bytes(self.bytes()).into(),
        }
    }

    /// The inverse of [`to_json`](Payload::to_json). It does not check that the text is JSON.
    pub fn from_json(text: &str) -> Payload {
        unwrap_bytes(text).map_or_else(|| text.into(), Payload::from)
    }

    /// The location of a spilled payload; `None` if it is in memory.
    pub fn spill_location(&self) -> Option<SpillLocation> {
        match &self.0 {
            Repr::InMemory(_) => None,
            Repr::Spilled(location) => Some(*location),
        }
    }
}

/// Wraps bytes that are not JSON in a JSON object.
pub(crate) fn wrap_bytes(bytes: &[u8]) -> String {
    format!(r#"{{"$bytes":"{}"}}"#, base64::encode(bytes))
}

/// The inverse of [`wrap_bytes`]; `None` if the text is not such an object.
pub(crate) fn unwrap_bytes(text: &str) -> Option<Vec<u8>> {
    base64::decode(text.strip_prefix(r#"{"$bytes":""#)?.strip_suffix(r#""}"#)?)
}

// A panic, because an empty payload instead would be a wrong answer.
#[cold]
fn not_loaded(location: &SpillLocation) -> ! {
    panic!("a payload is still spilled at {location:?}: it must be loaded before use")
}

impl Default for Payload {
    fn default() -> Payload {
        Bytes::new().into()
    }
}

impl std::fmt::Debug for Payload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Repr::InMemory(bytes) => bytes.fmt(f),
            Repr::Spilled(location) => location.fmt(f),
        }
    }
}

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Payload {
        Payload(Repr::InMemory(bytes))
    }
}

impl From<SpillLocation> for Payload {
    fn from(location: SpillLocation) -> Payload {
        Payload(Repr::Spilled(location))
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Payload {
        Bytes::from(bytes).into()
    }
}

impl From<String> for Payload {
    fn from(text: String) -> Payload {
        Bytes::from(text).into()
    }
}

impl From<&str> for Payload {
    fn from(text: &str) -> Payload {
        text.as_bytes().into()
    }
}

impl From<&[u8]> for Payload {
    fn from(bytes: &[u8]) -> Payload {
        Bytes::copy_from_slice(bytes).into()
    }
}

impl<const N: usize> From<&[u8; N]> for Payload {
    fn from(bytes: &[u8; N]) -> Payload {
        bytes[..].into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_survives_the_round_trip_through_json() {
        for bytes in [
            &b"{}"[..],
            b"",
            b"hello",
            b"\xff\0",
            br#"{"$bytes":"aGk="}"#,
            br#"{"$bytes":"?"}"#,
            br#"{"$bytes":7}"#,
            b" [1] ",
        ] {
            let payload = Payload::from(bytes);
            let text = payload.to_json();
            assert!(json::is_json(text.as_bytes()), "{text}");
            assert_eq!(Payload::from_json(&text), payload);
        }
    }

    #[test]
    fn a_payload_is_no_larger_than_its_bytes_handle() {
        assert_eq!(size_of::<Payload>(), size_of::<Bytes>());
    }
}
