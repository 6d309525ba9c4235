//! What a worker is given: bytes that nobody in between looks at.

use bytes::Bytes;

/// Opaque bytes, cheap to clone.
///
/// It is a type of its own, rather than bytes, because a store may leave large ones where they are on disk; a
/// backend puts the bytes in before it replies.
///
/// ```
/// use geartrain_core::Payload;
/// assert_eq!(Payload::from("{}").bytes(), b"{}");
/// ```
#[derive(Clone, PartialEq, Eq, Default, Hash)]
pub struct Payload(Bytes);

impl Payload {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes as text, if they are UTF-8.
    pub fn text(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }

    /// The bytes, shared rather than copied.
    pub fn to_shared(&self) -> Bytes {
        self.0.clone()
    }
}

impl std::fmt::Debug for Payload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Payload {
        Payload(bytes)
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Payload {
        Payload(bytes.into())
    }
}

impl From<String> for Payload {
    fn from(text: String) -> Payload {
        Payload(text.into())
    }
}

impl From<&str> for Payload {
    fn from(text: &str) -> Payload {
        text.as_bytes().into()
    }
}

impl From<&[u8]> for Payload {
    fn from(bytes: &[u8]) -> Payload {
        Payload(Bytes::copy_from_slice(bytes))
    }
}

impl<const N: usize> From<&[u8; N]> for Payload {
    fn from(bytes: &[u8; N]) -> Payload {
        bytes[..].into()
    }
}
