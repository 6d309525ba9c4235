//! Encoding values as bytes.

use crate::{Jid, Payload, Tag, Timestamp};

/// Encodes values. A [`Reader`](super::Reader) decodes them.
pub(crate) struct Writer<'a> {
    into: &'a mut Vec<u8>,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(into: &'a mut Vec<u8>) -> Writer<'a> {
        Writer { into }
    }

    pub(crate) fn byte(&mut self, byte: u8) -> &mut Self {
        self.into.push(byte);
        self
    }

    pub(crate) fn flag(&mut self, flag: bool) -> &mut Self {
        self.byte(u8::from(flag))
    }

    /// A varint (LEB128): seven bits per byte, the lowest first; the highest bit is set in all bytes but the
    /// last.
    pub(crate) fn number(&mut self, mut number: u64) -> &mut Self {
        while number >= 0x80 {
            self.into.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.byte(number as u8)
    }

    /// The id of a row, a name or a recurring job.
    pub(crate) fn id(&mut self, id: u32) -> &mut Self {
        self.number(u64::from(id))
    }

    /// An id, or [`u32::MAX`] for none, which is common and encoded as 0.
    pub(crate) fn maybe(&mut self, id: u32) -> &mut Self {
        self.id(id.wrapping_add(1))
    }

    /// Zigzag encoding: the lowest bit is the sign, so that numbers near zero are short.
    pub(crate) fn signed(&mut self, number: i64) -> &mut Self {
        self.number((number << 1 ^ number >> 63) as u64)
    }

    /// Eight bytes, little-endian.
    pub(crate) fn double(&mut self, number: f64) -> &mut Self {
        debug_assert!(super::is_plain(number), "{number} would not be read again");
        self.into.extend_from_slice(&number.to_le_bytes());
        self
    }

    pub(crate) fn moment(&mut self, moment: Timestamp) -> &mut Self {
        self.double(moment.get())
    }

    /// The count, then the values.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.number(bytes.len() as u64);
        self.into.extend_from_slice(bytes);
        self
    }

    pub(crate) fn text(&mut self, text: &str) -> &mut Self {
        self.bytes(text.as_bytes())
    }

    /// A text. A UUID is encoded as length 0, which no jid has, and 16 bytes.
    pub(crate) fn jid(&mut self, jid: &Jid) -> &mut Self {
        match jid.as_uuid() {
            Some(uuid) => {
                self.byte(0);
                self.into.extend_from_slice(&uuid);
            }
            None => jid.with_str(|text| {
                self.text(text);
            }),
        }
        self
    }

    pub(crate) fn tag(&mut self, tag: &Tag) -> &mut Self {
        self.text(tag.as_str())
    }

    /// The bytes of a payload. A spilled one is empty: the delta is preceded by its location.
    pub(crate) fn payload(&mut self, payload: &Payload) -> &mut Self {
        self.bytes(if payload.spill_location().is_none() { payload.bytes() } else { &[] })
    }

    /// A flag, then the value if there is one.
    pub(crate) fn optional<T>(
        &mut self,
        value: Option<T>,
        write: impl FnOnce(&mut Self, T) -> &mut Self,
    ) -> &mut Self {
        self.flag(value.is_some());
        match value {
            Some(value) => write(self, value),
            None => self,
        }
    }

    /// The count, then the values.
    pub(crate) fn list<T>(
        &mut self,
        values: &[T],
        write: impl for<'w> Fn(&'w mut Self, &T) -> &'w mut Self,
    ) -> &mut Self {
        self.number(values.len() as u64);
        for value in values {
            write(self, value);
        }
        self
    }

    pub(crate) fn ids(&mut self, ids: &[u32]) -> &mut Self {
        self.list(ids, |to, id| to.id(*id))
    }
}
