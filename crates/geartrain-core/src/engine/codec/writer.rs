//! Values as bytes, one behind the other.

use crate::{Jid, Payload, Tag, Timestamp};

/// Appends values to bytes. What it writes, a [`Reader`](super::Reader) reads.
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

    /// One byte, 0 or 1.
    pub(crate) fn flag(&mut self, flag: bool) -> &mut Self {
        self.byte(u8::from(flag))
    }

    /// Seven bits a byte, the lowest first, the highest bit set in all but the last.
    pub(crate) fn number(&mut self, mut number: u64) -> &mut Self {
        while number >= 0x80 {
            self.into.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.byte(number as u8)
    }

    /// The number of a row, a name or a recurring job.
    pub(crate) fn id(&mut self, id: u32) -> &mut Self {
        self.number(u64::from(id))
    }

    /// A number that is [`u32::MAX`] to say that there is none, which is common and so is short.
    pub(crate) fn maybe(&mut self, id: u32) -> &mut Self {
        self.id(id.wrapping_add(1))
    }

    /// A number in which the lowest bit is the sign, so that those near nought are short.
    pub(crate) fn signed(&mut self, number: i64) -> &mut Self {
        self.number((number << 1 ^ number >> 63) as u64)
    }

    /// Eight bytes, the lowest first.
    pub(crate) fn double(&mut self, number: f64) -> &mut Self {
        debug_assert!(super::is_plain(number), "{number} would not be read again");
        self.into.extend_from_slice(&number.to_le_bytes());
        self
    }

    pub(crate) fn moment(&mut self, moment: Timestamp) -> &mut Self {
        self.double(moment.get())
    }

    /// How many there are, and then they.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.number(bytes.len() as u64);
        self.into.extend_from_slice(bytes);
        self
    }

    pub(crate) fn text(&mut self, text: &str) -> &mut Self {
        self.bytes(text.as_bytes())
    }

    /// A text; 16 bytes that stand for one have the length nought, which no jid has.
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

    /// The bytes of a payload; none if it is in a file, which the delta says before.
    pub(crate) fn payload(&mut self, payload: &Payload) -> &mut Self {
        self.bytes(if payload.spill_location().is_none() { payload.bytes() } else { &[] })
    }

    /// Whether there is one, and then it.
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

    /// How many there are, and then they.
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

    /// A list of rows.
    pub(crate) fn ids(&mut self, ids: &[u32]) -> &mut Self {
        self.list(ids, |to, id| to.id(*id))
    }
}
