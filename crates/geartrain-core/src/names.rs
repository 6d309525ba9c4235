//! Names of queues, jobs, workers, groups and tags: checked once, when they are constructed.

use std::borrow::Borrow;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// The longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 512;

/// The longest name of a Gearman function, in bytes. A function maps to a queue and a klass of the same name.
pub const FUNCTION_BYTES_MAX: usize = 4096;

/// The longest failure group, in bytes. Generated groups contain the name of a queue, as in
/// `failed-retries-<queue>`.
pub const GROUP_BYTES_MAX: usize = FUNCTION_BYTES_MAX + 64;

/// A text that is not a valid name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a {what} {why}")]
pub struct BadName {
    /// The kind of name: `queue`, `jid` …
    pub what: &'static str,
    /// What is wrong with it.
    pub why: BadNameWhy,
}

/// What is wrong with a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadNameWhy {
    /// It is empty.
    #[error("needs at least one byte")]
    Empty,
    /// It is too long.
    #[error("has at most {max} bytes, this one has {bytes}")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The longest allowed length.
        max: usize,
    },
    /// It contains a NUL byte, which separates arguments in Gearman.
    #[error("must not hold a NUL byte")]
    Nul,
}

fn check(what: &'static str, text: &str, max: usize) -> Result<(), BadName> {
    let why = if text.is_empty() {
        BadNameWhy::Empty
    } else if text.len() > max {
        BadNameWhy::TooLong { bytes: text.len(), max }
    } else if text.as_bytes().contains(&0) {
        BadNameWhy::Nul
    } else {
        return Ok(());
    };
    Err(BadName { what, why })
}

macro_rules! name {
    ($(#[$doc:meta])* $type:ident, $what:literal, $max:expr) => {
        name! { $(#[$doc])* $type, $what, $max, new }
    };
    // `$read` is the constructor for decoding: names that were accepted once, by any front-end.
    ($(#[$doc:meta])* $type:ident, $what:literal, $max:expr, $read:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $type(Arc<str>);

        impl $type {
            #[doc = concat!("Checks a text and makes it a ", $what, ".")]
            pub fn new(text: impl AsRef<str>) -> Result<Self, BadName> {
                let text = text.as_ref();
                check($what, text, $max)?;
                Ok(Self(text.into()))
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }

            #[allow(dead_code, reason = "not every kind of name is interned")]
            pub(crate) fn from_checked(text: Arc<str>) -> Self {
                Self(text)
            }

            #[allow(dead_code, reason = "not every kind of name is interned")]
            pub(crate) fn shared(&self) -> &Arc<str> {
                &self.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }

        impl Borrow<str> for $type {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(&self.0)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                from.deserialize_str(crate::wire::Text(|text: &str| $type::$read(text)))
            }
        }

        impl std::str::FromStr for $type {
            type Err = BadName;
            fn from_str(text: &str) -> Result<Self, BadName> {
                Self::new(text)
            }
        }
    };
}

macro_rules! function {
    ($type:ident, $what:literal) => {
        impl $type {
            #[doc = concat!("Like `new`, but for the ", $what, " of a Gearman function: up to 4096 bytes.")]
            ///
            /// ```
            #[doc = concat!("use geartrain_core::", stringify!($type), ";")]
            /// let long = "x".repeat(4096);
            #[doc = concat!("assert!(", stringify!($type), "::new(&long).is_err());")]
            #[doc = concat!("assert_eq!(", stringify!($type), "::of_function(&long)?.as_str(), long);")]
            /// # Ok::<(), geartrain_core::BadName>(())
            /// ```
            pub fn of_function(text: impl AsRef<str>) -> Result<Self, BadName> {
                let text = text.as_ref();
                check($what, text, FUNCTION_BYTES_MAX)?;
                Ok(Self(text.into()))
            }
        }
    };
}

name! {
    /// The name of a queue: 1 to 512 bytes without NUL, which separates arguments in Gearman.
    ///
    /// ```
    /// use geartrain_core::QueueName;
    /// assert_eq!(QueueName::new("mail")?.as_str(), "mail");
    /// assert!(QueueName::new("").is_err());
    /// # Ok::<(), geartrain_core::BadName>(())
    /// ```
    QueueName, "queue", NAME_BYTES_MAX, of_function
}
function! { QueueName, "queue" }
name! {
    /// The kind of a job: names the code that runs it.
    Klass, "klass", NAME_BYTES_MAX, of_function
}
function! { Klass, "klass" }
name! {
    /// The name of a worker; by convention `<host>-<pid>`.
    WorkerName, "worker", NAME_BYTES_MAX
}
name! {
    /// A kind of failure. Failed jobs are listed and counted by group.
    Group, "group", GROUP_BYTES_MAX
}
name! {
    /// A label to find jobs by.
    Tag, "tag", NAME_BYTES_MAX
}

/// The id of a job. Any name is valid; 32 lower-case hex digits, which most clients generate, take only 16
/// bytes.
///
/// ```
/// use geartrain_core::Jid;
/// let jid = Jid::new("0198c0ffee0000000000000000000001")?;
/// assert_eq!(jid.to_string(), "0198c0ffee0000000000000000000001");
/// assert_eq!(jid, Jid::from_uuid(0x0198c0ffee0000000000000000000001_u128.to_be_bytes()));
/// assert!(Jid::new("nightly-7")? > jid);
/// # Ok::<(), geartrain_core::BadName>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Jid(pub(crate) Repr);

/// The representation is canonical: a text that can be a `Uuid` is never a `Text`, so equal jids compare
/// equal.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Repr {
    Uuid([u8; 16]),
    Text(Arc<str>),
}

impl Jid {
    /// Checks a text and makes it a jid.
    pub fn new(text: impl AsRef<str>) -> Result<Jid, BadName> {
        let text = text.as_ref();
        if let Some(uuid) = parse_hex(text.as_bytes()) {
            return Ok(Jid(Repr::Uuid(uuid)));
        }
        check("jid", text, NAME_BYTES_MAX)?;
        Ok(Jid(Repr::Text(text.into())))
    }

    /// The jid whose text is these 16 bytes in hex.
    pub fn from_uuid(uuid: [u8; 16]) -> Jid {
        Jid(Repr::Uuid(uuid))
    }

    /// The 16 bytes whose hex form the text is, if it is.
    pub fn as_uuid(&self) -> Option<[u8; 16]> {
        match &self.0 {
            Repr::Uuid(uuid) => Some(*uuid),
            Repr::Text(_) => None,
        }
    }

    /// The length of the text, in bytes.
    pub fn text_bytes(&self) -> usize {
        match &self.0 {
            Repr::Uuid(_) => 32,
            Repr::Text(text) => text.len(),
        }
    }

    /// Calls `read` with the text. The text of a UUID is formatted on the stack.
    pub fn with_str<T>(&self, read: impl FnOnce(&str) -> T) -> T {
        match &self.0 {
            Repr::Uuid(uuid) => {
                let digits = hex(uuid);
                read(std::str::from_utf8(&digits).expect("hex digits are ASCII"))
            }
            Repr::Text(text) => read(text),
        }
    }
}

fn hex(uuid: &[u8; 16]) -> [u8; 32] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut digits = [0; 32];
    for (pair, byte) in digits.chunks_exact_mut(2).zip(uuid) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
    digits
}

/// The value of each byte as a lower-case hex digit, or 0xff. Upper-case digits stay text, because a jid must
/// come back as it was given.
const HEX: [u8; 256] = {
    let mut values = [0xff; 256];
    let mut value = 0;
    while value < 16 {
        values[b"0123456789abcdef"[value] as usize] = value as u8;
        value += 1;
    }
    values
};

fn parse_hex(text: &[u8]) -> Option<[u8; 16]> {
    let text: &[u8; 32] = text.try_into().ok()?;
    let mut uuid = [0; 16];
    // Checked once at the end and not per digit: nearly all texts of this length are hex.
    let mut all = 0;
    for (byte, pair) in uuid.iter_mut().zip(text.chunks_exact(2)) {
        let (high, low) = (HEX[usize::from(pair[0])], HEX[usize::from(pair[1])]);
        all |= high | low;
        *byte = high << 4 | low;
    }
    (all < 16).then_some(uuid)
}

impl Hash for Jid {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match &self.0 {
            Repr::Uuid(uuid) => state.write_u128(u128::from_ne_bytes(*uuid)),
            Repr::Text(text) => state.write(text.as_bytes()),
        }
    }
}

impl Ord for Jid {
    fn cmp(&self, other: &Jid) -> std::cmp::Ordering {
        match (&self.0, &other.0) {
            // Hex preserves the order of bytes.
            (Repr::Uuid(a), Repr::Uuid(b)) => a.cmp(b),
            _ => self.with_str(|a| other.with_str(|b| a.cmp(b))),
        }
    }
}

impl PartialOrd for Jid {
    fn partial_cmp(&self, other: &Jid) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Jid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.with_str(|text| f.write_str(text))
    }
}

impl fmt::Debug for Jid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.with_str(|text| write!(f, "{text:?}"))
    }
}

impl std::str::FromStr for Jid {
    type Err = BadName;
    fn from_str(text: &str) -> Result<Jid, BadName> {
        Jid::new(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_name_is_refused_with_what_is_wrong() {
        let long = "x".repeat(513);
        for (text, why) in [
            ("", BadNameWhy::Empty),
            (long.as_str(), BadNameWhy::TooLong { bytes: 513, max: 512 }),
            ("a\0b", BadNameWhy::Nul),
        ] {
            assert_eq!(QueueName::new(text), Err(BadName { what: "queue", why }));
            assert_eq!(Klass::new(text), Err(BadName { what: "klass", why }));
            assert_eq!(WorkerName::new(text), Err(BadName { what: "worker", why }));
            assert_eq!(Tag::new(text), Err(BadName { what: "tag", why }));
            assert_eq!(Jid::new(text), Err(BadName { what: "jid", why }));
        }
        assert_eq!(
            QueueName::new(&long).unwrap_err().to_string(),
            "a queue has at most 512 bytes, this one has 513"
        );
        assert!(QueueName::new("x".repeat(512)).is_ok());
        assert!(Group::new("x".repeat(4160)).is_ok());
        assert!(Group::new("x".repeat(4161)).is_err());
    }

    #[test]
    fn a_jid_comes_back_as_it_was_given() {
        for text in ["a", "0123456789abcdef0123456789abcdef", "0123456789ABCDEF0123456789abcdef", "é", "0123"]
        {
            let jid = Jid::new(text).unwrap();
            assert_eq!(jid.to_string(), text);
            assert_eq!(jid.text_bytes(), text.len());
        }
    }

    #[test]
    fn jids_sort_like_their_texts() {
        let mut texts =
            vec!["b", "ffffffffffffffffffffffffffffffff", "00000000000000000000000000000000", "0", "a", "G"];
        let mut jids: Vec<Jid> = texts.iter().map(|text| Jid::new(text).unwrap()).collect();
        texts.sort_unstable();
        jids.sort_unstable();
        assert_eq!(jids.iter().map(Jid::to_string).collect::<Vec<_>>(), texts);
    }
}
