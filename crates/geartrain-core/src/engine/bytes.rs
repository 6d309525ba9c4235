//! Numbers, texts and names as bytes, and back. What is read may be anything, so reading never trusts a length.

use crate::{Jid, Timestamp};

/// Bytes that do not say what they should.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} makes no sense, {left} bytes before the end")]
pub struct BadBytes {
    /// What was being read.
    pub what: &'static str,
    /// How many bytes were left.
    pub left: usize,
}

pub(crate) fn put_number(into: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        into.push(number as u8 | 0x80);
        number >>= 7;
    }
    into.push(number as u8);
}

/// A number that may be [`u32::MAX`] to say that there is none, which is common and so is short.
pub(crate) fn put_maybe(into: &mut Vec<u8>, number: u32) {
    put_number(into, u64::from(number.wrapping_add(1)));
}

pub(crate) fn put_signed(into: &mut Vec<u8>, number: i64) {
    put_number(into, (number << 1 ^ number >> 63) as u64);
}

pub(crate) fn put_double(into: &mut Vec<u8>, number: f64) {
    into.extend_from_slice(&number.to_le_bytes());
}

pub(crate) fn put_moment(into: &mut Vec<u8>, moment: Timestamp) {
    put_double(into, moment.get());
}

pub(crate) fn put_bytes(into: &mut Vec<u8>, bytes: &[u8]) {
    put_number(into, bytes.len() as u64);
    into.extend_from_slice(bytes);
}

pub(crate) fn put_text(into: &mut Vec<u8>, text: &str) {
    put_bytes(into, text.as_bytes());
}

pub(crate) fn put_jid(into: &mut Vec<u8>, jid: &Jid) {
    match jid.as_uuid() {
        // No jid is empty, so that length can stand for the 16 bytes.
        Some(uuid) => {
            into.push(0);
            into.extend_from_slice(&uuid);
        }
        None => jid.with_str(|text| put_text(into, text)),
    }
}

/// Reads what was written, from the front.
#[derive(Debug, Clone)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn bad(&self, what: &'static str) -> BadBytes {
        BadBytes { what, left: self.rest.len() }
    }

    fn take(&mut self, count: usize, what: &'static str) -> Result<&'a [u8], BadBytes> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or_else(|| self.bad(what))?;
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn byte(&mut self) -> Result<u8, BadBytes> {
        Ok(self.take(1, "a byte")?[0])
    }

    pub(crate) fn number(&mut self) -> Result<u64, BadBytes> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                break;
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(self.bad("a number"))
    }

    pub(crate) fn small(&mut self) -> Result<u32, BadBytes> {
        u32::try_from(self.number()?).map_err(|_| self.bad("a number of 32 bits"))
    }

    pub(crate) fn maybe(&mut self) -> Result<u32, BadBytes> {
        let number = self.number()?;
        u32::try_from(number)
            .map(|number| number.wrapping_sub(1))
            .map_err(|_| self.bad("a number of 32 bits"))
    }

    pub(crate) fn signed(&mut self) -> Result<i64, BadBytes> {
        let number = self.number()?;
        Ok((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    /// How many of something follow, each of which takes at least a byte.
    pub(crate) fn count(&mut self) -> Result<usize, BadBytes> {
        let count = self.number()?;
        usize::try_from(count)
            .ok()
            .filter(|count| *count <= self.rest.len())
            .ok_or_else(|| self.bad("a count"))
    }

    pub(crate) fn double(&mut self) -> Result<f64, BadBytes> {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(self.take(8, "a double")?);
        Ok(f64::from_le_bytes(bytes))
    }

    pub(crate) fn moment(&mut self) -> Result<Timestamp, BadBytes> {
        let number = self.double()?;
        Timestamp::new(number).map_err(|_| self.bad("a moment"))
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], BadBytes> {
        let count = self.count()?;
        self.take(count, "bytes")
    }

    pub(crate) fn text(&mut self) -> Result<&'a str, BadBytes> {
        std::str::from_utf8(self.bytes()?).map_err(|_| self.bad("a text"))
    }

    pub(crate) fn jid(&mut self) -> Result<Jid, BadBytes> {
        if self.rest.first() == Some(&0) {
            let mut uuid = [0; 16];
            uuid.copy_from_slice(&self.take(17, "a jid")?[1..]);
            return Ok(Jid::from_uuid(uuid));
        }
        let text = self.text()?;
        Jid::new(text).map_err(|_| self.bad("a jid"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_all_sizes_come_back() {
        for number in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            let mut bytes = Vec::new();
            put_number(&mut bytes, number);
            put_signed(&mut bytes, number as i64);
            put_maybe(&mut bytes, number as u32);
            let mut reader = Reader::new(&bytes);
            assert_eq!(reader.number(), Ok(number));
            assert_eq!(reader.signed(), Ok(number as i64));
            assert_eq!(reader.maybe(), Ok(number as u32));
            assert!(reader.is_empty());
        }
    }

    #[test]
    fn what_is_cut_short_or_too_large_is_refused() {
        assert!(Reader::new(&[0x80]).number().is_err());
        assert!(Reader::new(&[0xff; 11]).number().is_err());
        assert!(Reader::new(&[0xff, 0xff, 0xff, 0xff, 0x7f]).small().is_err());
        assert!(Reader::new(&[5, 1, 2]).bytes().is_err());
        assert!(Reader::new(&[2, 0xff, 0xff]).text().is_err());
        assert!(Reader::new(&f64::NAN.to_le_bytes()).moment().is_err());
        assert!(Reader::new(&[0, 1, 2]).jid().is_err());
    }
}
