//! Decoding values from untrusted bytes: each is validated.

use crate::{BadName, BadNameWhy, Jid, Payload, Tag, Timestamp};

/// Bytes that cannot be decoded.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("byte {at}: {what} {why}")]
pub struct CodecError {
    /// Offset of the value, or of the part of it that is wrong.
    pub at: usize,
    /// The expected value.
    pub what: &'static str,
    /// What is wrong with the bytes.
    pub why: CodecErrorWhy,
}

/// Why bytes cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each says it itself")]
pub enum CodecErrorWhy {
    #[error("needs {needed} bytes more, and {left} are left")]
    CutShort { needed: u64, left: usize },
    #[error("is written in more bytes than it needs")]
    Overlong,
    #[error("has more than 64 bits")]
    Overflow,
    #[error("is at most {max}, not {value}")]
    TooLarge { value: u64, max: u64 },
    #[error("cannot be {0}")]
    Unknown(u8),
    #[error("must be a finite number and not minus zero, not {0}")]
    BadDouble(f64),
    #[error("is not UTF-8")]
    NotUtf8,
    #[error("{0}")]
    BadName(BadNameWhy),
    #[error("does not fit what came before it")]
    Misfit,
}

/// Capacity that a list reserves at most before its values are read.
const LIST_ROOM_MAX: usize = 1024;

type Read<T> = Result<T, CodecError>;

/// Whether a double may be encoded: finite, and not minus zero.
pub(super) fn is_plain(number: f64) -> bool {
    number.is_finite() && (number != 0.0 || number.is_sign_positive())
}

/// Decodes values from the front of bytes.
///
/// The encoding is canonical: a value has exactly one, and any other is an error. So decoded values are
/// encoded again as the same bytes.
pub(crate) struct Reader<'a> {
    left: &'a [u8],
    length: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { left: bytes, length: bytes.len() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    /// An error: the value is valid by itself, but contradicts what came before.
    pub(crate) fn misfit(&self, what: &'static str) -> CodecError {
        CodecError { at: self.at(), what, why: CodecErrorWhy::Misfit }
    }

    /// The number of bytes consumed.
    pub(crate) fn at(&self) -> usize {
        self.length - self.left.len()
    }

    /// The remaining bytes.
    pub(crate) fn left(&self) -> &'a [u8] {
        self.left
    }

    pub(crate) fn byte(&mut self, what: &'static str) -> Read<u8> {
        let Some((byte, left)) = self.left.split_first() else {
            return wrong(self.at(), what, CodecErrorWhy::CutShort { needed: 1, left: 0 });
        };
        self.left = left;
        Ok(*byte)
    }

    pub(crate) fn flag(&mut self, what: &'static str) -> Read<bool> {
        let at = self.at();
        match self.byte(what)? {
            0 => Ok(false),
            1 => Ok(true),
            other => wrong(at, what, CodecErrorWhy::Unknown(other)),
        }
    }

    pub(crate) fn number(&mut self, what: &'static str) -> Read<u64> {
        // Most numbers are below 128.
        if let Some((byte, left)) = self.left.split_first()
            && *byte < 0x80
        {
            self.left = left;
            return Ok(u64::from(*byte));
        }
        self.long_number(what)
    }

    fn long_number(&mut self, what: &'static str) -> Read<u64> {
        let (at, mut number) = (self.at(), 0);
        for shift in (0..u64::BITS).step_by(7) {
            let Some((byte, left)) = self.left.split_first() else {
                return wrong(at, what, CodecErrorWhy::CutShort { needed: 1, left: 0 });
            };
            self.left = left;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return wrong(at, what, CodecErrorWhy::Overflow);
            }
            number |= bits << shift;
            if *byte < 0x80 {
                let overlong = *byte == 0 && shift > 0;
                return if overlong { wrong(at, what, CodecErrorWhy::Overlong) } else { Ok(number) };
            }
        }
        wrong(at, what, CodecErrorWhy::Overflow)
    }

    /// A number of at most `max`.
    pub(crate) fn number_to(&mut self, max: u32, what: &'static str) -> Read<u32> {
        let at = self.at();
        let value = self.number(what)?;
        match u32::try_from(value) {
            Ok(number) if number <= max => Ok(number),
            _ => wrong(at, what, CodecErrorWhy::TooLarge { value, max: u64::from(max) }),
        }
    }

    pub(crate) fn id(&mut self, what: &'static str) -> Read<u32> {
        self.number_to(u32::MAX, what)
    }

    /// A number, or [`u32::MAX`] for none.
    pub(crate) fn maybe(&mut self, what: &'static str) -> Read<u32> {
        Ok(self.id(what)?.wrapping_sub(1))
    }

    pub(crate) fn signed(&mut self, what: &'static str) -> Read<i64> {
        let number = self.number(what)?;
        Ok((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    pub(crate) fn double(&mut self, what: &'static str) -> Read<f64> {
        let at = self.at();
        let number = f64::from_le_bytes(*self.array(what)?);
        if is_plain(number) { Ok(number) } else { wrong(at, what, CodecErrorWhy::BadDouble(number)) }
    }

    /// A double as a type that validates it.
    pub(crate) fn finite<T, E>(&mut self, what: &'static str, take: fn(f64) -> Result<T, E>) -> Read<T> {
        let at = self.at();
        let number = self.double(what)?;
        take(number).or_else(|_| wrong(at, what, CodecErrorWhy::BadDouble(number)))
    }

    pub(crate) fn moment(&mut self, what: &'static str) -> Read<Timestamp> {
        self.finite(what, Timestamp::new)
    }

    pub(crate) fn bytes(&mut self, what: &'static str) -> Read<&'a [u8]> {
        let count = self.count(1, what)?;
        // `count` checked that there are as many bytes.
        let (bytes, left) = self.left.split_at(count);
        self.left = left;
        Ok(bytes)
    }

    pub(crate) fn text(&mut self, what: &'static str) -> Read<&'a str> {
        let at = self.at();
        let bytes = self.bytes(what)?;
        std::str::from_utf8(bytes).or_else(|_| wrong(at, what, CodecErrorWhy::NotUtf8))
    }

    /// A text as a type of name that validates it.
    pub(crate) fn name<T>(
        &mut self,
        what: &'static str,
        take: impl FnOnce(&'a str) -> Result<T, BadName>,
    ) -> Read<T> {
        let at = self.at();
        let text = self.text(what)?;
        take(text).or_else(|bad| wrong(at, what, CodecErrorWhy::BadName(bad.why)))
    }

    pub(crate) fn jid(&mut self, what: &'static str) -> Read<Jid> {
        if self.left.first() == Some(&0) {
            self.byte(what)?;
            return Ok(Jid::from_uuid(*self.array(what)?));
        }
        let at = self.at();
        let jid = self.name(what, Jid::new)?;
        if jid.as_uuid().is_some() {
            return wrong(at, what, CodecErrorWhy::Overlong);
        }
        Ok(jid)
    }

    pub(crate) fn tag(&mut self, what: &'static str) -> Read<Tag> {
        self.name(what, Tag::new)
    }

    pub(crate) fn payload(&mut self, what: &'static str) -> Read<Payload> {
        Ok(Payload::from(self.bytes(what)?))
    }

    pub(crate) fn optional<T>(
        &mut self,
        what: &'static str,
        read: impl FnOnce(&mut Self, &'static str) -> Read<T>,
    ) -> Read<Option<T>> {
        if self.flag(what)? { read(self, what).map(Some) } else { Ok(None) }
    }

    /// A list of values of at least `bytes_min` bytes each, which bounds what a wrong count can allocate.
    pub(crate) fn list<T>(
        &mut self,
        bytes_min: usize,
        what: &'static str,
        read: impl Fn(&mut Self, &'static str) -> Read<T>,
    ) -> Read<Box<[T]>> {
        let count = self.count(bytes_min, what)?;
        // A value may be larger in memory than encoded: a long list grows as its values are read.
        let mut list = Vec::with_capacity(count.min(LIST_ROOM_MAX));
        for _ in 0..count {
            list.push(read(self, what)?);
        }
        Ok(list.into())
    }

    pub(crate) fn ids(&mut self, what: &'static str) -> Read<Box<[u32]>> {
        self.list(1, what, Reader::id)
    }

    /// A list of tags. A tag has a length and at least one byte.
    pub(crate) fn tags(&mut self, what: &'static str) -> Read<Box<[Tag]>> {
        self.list(2, what, Reader::tag)
    }

    /// How many values follow, of at least `bytes_min` bytes each; no more than the remaining bytes can hold.
    pub(crate) fn count(&mut self, bytes_min: usize, what: &'static str) -> Read<usize> {
        let at = self.at();
        let count = self.number(what)?;
        let needed = count.saturating_mul(bytes_min as u64);
        let left = self.left.len();
        match usize::try_from(count) {
            Ok(count) if needed <= left as u64 => Ok(count),
            _ => wrong(at, what, CodecErrorWhy::CutShort { needed, left }),
        }
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Read<&'a [u8; N]> {
        let Some((array, left)) = self.left.split_first_chunk() else {
            let why = CodecErrorWhy::CutShort { needed: N as u64, left: self.left.len() };
            return wrong(self.at(), what, why);
        };
        self.left = left;
        Ok(array)
    }
}

#[cold]
pub(super) fn wrong<T>(at: usize, what: &'static str, why: CodecErrorWhy) -> Read<T> {
    Err(CodecError { at, what, why })
}
