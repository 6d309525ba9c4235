//! What a worker is given: bytes that nobody in between looks at.

use std::borrow::Cow;

use bytes::Bytes;

use crate::{base64, json};

/// The largest payload, chunk or result, unless an engine is told otherwise.
pub const PAYLOAD_BYTES_MAX: usize = 64 << 20;

/// A backend may write payloads of this size, or more, before it queues their batch for execution.
///
/// Meanwhile it executes batches that were sent later. A front-end that has to keep the order of one peer's
/// requests sends nothing more of that peer until such a batch is answered.
pub const LARGE_PAYLOAD_BYTES: usize = 512 << 10;

/// Opaque bytes, cheap to clone.
///
/// It is a type of its own, rather than bytes, because a store may leave large ones where they are on disk; a
/// backend puts the bytes in before it replies.
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

/// Where a store keeps a payload that is not in memory. What a file is, the store knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpillLocation {
    /// The number of the file. None is ever used for another file.
    pub file: u64,
    /// Where in the file its record begins.
    pub offset: u32,
    /// How many bytes the payload has.
    pub bytes: u32,
}

impl SpillLocation {
    /// What a record takes besides the payload.
    pub const HEAD_BYTES: u32 = 8;

    /// This bit of a file's number says that the file holds one payload and was complete and synced before
    /// any delta named it. Such a file goes when the delta that released the payload is durable.
    pub const OWN_FILE: u64 = 1 << 31;

    /// Whether a file of this number holds one payload.
    pub fn is_own_file(file: u64) -> bool {
        file & SpillLocation::OWN_FILE != 0
    }

    /// What the whole record takes.
    pub fn record_bytes(&self) -> u64 {
        u64::from(SpillLocation::HEAD_BYTES) + u64::from(self.bytes)
    }
}

impl Payload {
    /// The bytes.
    ///
    /// # Panics
    ///
    /// If they are still elsewhere. Nobody sees such a payload but the engine and its store.
    pub fn bytes(&self) -> &[u8] {
        match &self.0 {
            Repr::InMemory(bytes) => bytes,
            Repr::Spilled(place) => not_loaded(place),
        }
    }

    /// How many bytes it has, in memory or elsewhere.
    pub fn byte_len(&self) -> usize {
        match &self.0 {
            Repr::InMemory(bytes) => bytes.len(),
            Repr::Spilled(place) => place.bytes as usize,
        }
    }

    /// Gives it memory of its own. Bytes that came over a connection share the buffer into which they were
    /// read, which may be much larger and stays as long as they do.
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
            Repr::Spilled(place) => not_loaded(place),
        }
    }

    /// The payload where only JSON will do: JSON as it is, and anything else as `{"$bytes":"<base64>"}`.
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

    /// The other way round. Whether the text is JSON is not looked at.
    pub fn from_json(text: &str) -> Payload {
        unwrap_bytes(text).map_or_else(|| text.into(), Payload::from)
    }

    /// Where the bytes are, if they are not here.
    pub fn spill_location(&self) -> Option<SpillLocation> {
        match &self.0 {
            Repr::InMemory(_) => None,
            Repr::Spilled(place) => Some(*place),
        }
    }
}

/// Bytes that are no JSON, as JSON.
pub(crate) fn wrap_bytes(bytes: &[u8]) -> String {
    format!(r#"{{"$bytes":"{}"}}"#, base64::encode(bytes))
}

/// The bytes that were [wrapped](wrap), if they were.
pub(crate) fn unwrap_bytes(text: &str) -> Option<Vec<u8>> {
    base64::decode(text.strip_prefix(r#"{"$bytes":""#)?.strip_suffix(r#""}"#)?)
}

/// An empty payload in its stead would be a wrong answer.
#[cold]
fn not_loaded(place: &SpillLocation) -> ! {
    panic!("a payload was left at {place:?}, and nobody has fetched it")
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
            Repr::Spilled(place) => place.fmt(f),
        }
    }
}

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Payload {
        Payload(Repr::InMemory(bytes))
    }
}

impl From<SpillLocation> for Payload {
    fn from(place: SpillLocation) -> Payload {
        Payload(Repr::Spilled(place))
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
    fn a_payload_comes_back_from_json_as_it_was() {
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
    fn that_a_payload_may_be_elsewhere_does_not_make_it_larger() {
        assert_eq!(size_of::<Payload>(), size_of::<Bytes>());
    }
}
