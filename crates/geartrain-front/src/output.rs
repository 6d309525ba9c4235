//! The output buffer of a connection: small writes are gathered, large ones are shared instead of copied.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};

use bytes::{Buf, Bytes, BytesMut};

/// How large a piece of a large reply is, about. Encoding one takes a fraction of a millisecond.
pub const PIECE_BYTES: usize = 256 << 10;

/// From here on bytes are shared: below, the bookkeeping and the write of its own cost more than the copy.
pub const SHARED_BYTES_MIN: usize = 16 << 10;

/// A queue of bytes: written at the end, sent from the front.
#[derive(Debug, Default)]
pub struct Output {
    /// Frozen chunks, sent first.
    front: VecDeque<Bytes>,
    front_bytes: usize,
    /// Written after the last frozen chunk.
    back: BytesMut,
    sent: u64,
}

impl Output {
    /// Bytes that are still to be sent.
    pub fn len(&self) -> usize {
        self.front_bytes + self.back.len()
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Small writes are appended here.
    pub fn buffer(&mut self) -> &mut BytesMut {
        &mut self.back
    }

    /// Discards unsent bytes.
    pub fn clear(&mut self) {
        (self.front, self.front_bytes, self.back) = (VecDeque::new(), 0, BytesMut::new());
    }

    /// Adds a copy of these bytes.
    pub fn extend(&mut self, bytes: &[u8]) {
        self.back.extend_from_slice(bytes);
    }

    /// Adds these bytes without a copy, if they are many.
    pub fn share(&mut self, bytes: Bytes) {
        if bytes.len() < SHARED_BYTES_MIN {
            self.back.extend_from_slice(&bytes);
            return;
        }
        let before = self.back.split().freeze();
        self.push(before);
        self.push(bytes);
    }

    /// Puts shared bytes between those in the buffer, each before the given offset. Offsets ascend.
    pub fn splice(&mut self, shared: impl IntoIterator<Item = (usize, Bytes)>) {
        let mut cut = 0;
        for (offset, bytes) in shared {
            let before = self.back.split_to(offset - cut).freeze();
            cut = offset;
            self.push(before);
            self.push(bytes);
        }
    }

    fn push(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.front_bytes += bytes.len();
            self.front.push_back(bytes);
        }
    }

    /// The bytes to send next.
    pub fn chunk(&self) -> &[u8] {
        self.front.front().map_or(&self.back, |bytes| bytes)
    }

    /// So many bytes of the [chunk](Output::chunk) were sent.
    pub fn advance(&mut self, bytes: usize) {
        self.sent += bytes as u64;
        match self.front.front_mut() {
            Some(chunk) => {
                chunk.advance(bytes);
                self.front_bytes -= bytes;
                if chunk.is_empty() {
                    self.front.pop_front();
                }
            }
            None => {
                self.back.advance(bytes);
                // The memory of a large reply is given back as soon as it is sent.
                if self.back.is_empty() && bytes > PIECE_BYTES {
                    self.back = BytesMut::new();
                }
            }
        }
    }

    /// How many bytes were sent since the beginning.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// How many bytes will have been sent when all is sent that is here now.
    pub fn end(&self) -> u64 {
        self.sent + self.len() as u64
    }
}

/// Packets are encoded into the buffer: what takes a `&mut BytesMut` takes an output.
impl Deref for Output {
    type Target = BytesMut;

    fn deref(&self) -> &BytesMut {
        &self.back
    }
}

impl DerefMut for Output {
    fn deref_mut(&mut self) -> &mut BytesMut {
        &mut self.back
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(mut output: Output, step: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        while !output.is_empty() {
            let sent = output.chunk().len().min(step);
            bytes.extend_from_slice(&output.chunk()[..sent]);
            output.advance(sent);
        }
        assert_eq!(output.sent(), bytes.len() as u64);
        bytes
    }

    #[test]
    fn bytes_are_sent_in_the_order_in_which_they_came() {
        let large = Bytes::from(vec![b'x'; SHARED_BYTES_MIN]);
        let write = || {
            let mut output = Output::default();
            output.extend(b"ab");
            output.share(Bytes::from_static(b"small"));
            output.share(large.clone());
            output.extend(b"01234");
            output.splice([(0, Bytes::from_static(b"<")), (2, large.clone()), (5, Bytes::from_static(b">"))]);
            output.extend(b"end");
            output
        };
        let expected = [b"absmall", &large[..], b"<01", &large[..], b"234>end"].concat();
        assert_eq!(write().len(), expected.len());
        assert_eq!(write().end(), expected.len() as u64);
        for step in [1, 3, 1 << 20] {
            assert_eq!(all(write(), step), expected);
        }
    }

    #[test]
    fn large_bytes_are_not_copied() {
        let large = Bytes::from(vec![b'x'; 1 << 20]);
        let mut output = Output::default();
        output.share(large.clone());
        assert_eq!(output.chunk().as_ptr(), large.as_ptr());
    }
}
