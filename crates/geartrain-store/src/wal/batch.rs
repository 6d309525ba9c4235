//! A batch, the record of the write-ahead log, as bytes: header, body, padding. The layout is in
//! `docs/formats/log.md`.

use super::read_u64;

/// Batches begin at multiples of this, so that no write touches a sector of another batch.
pub(super) const BLOCK: usize = 4096;

/// Length of the header. The body follows immediately.
pub(super) const HEADER: usize = 64;

const MAGIC: [u8; 4] = *b"GTb1";

/// The header of a batch, without its checksum and the body's length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Batch {
    /// The random id of the log: a payload that happens to contain batches cannot know it.
    pub(super) wal_id: u64,
    /// The number of the segment, so that the old contents of a recycled segment are not taken for new.
    pub(super) segment: u64,
    /// The number of the batch.
    pub(super) number: u64,
    /// Every batch up to this number was durable when this one was written.
    pub(super) synced: u64,
    /// A random number drawn each time the log is opened.
    pub(super) opening_id: u64,
    /// The `opening_id` of the previous batch. Batches written behind one that a crash destroyed have another
    /// one than the batch that is there now.
    pub(super) previous_opening: u64,
}

impl Batch {
    /// Encodes the batch into a buffer, padded to whole blocks.
    pub(super) fn encode(&self, body: &[u8], buffer: &mut Vec<u8>) {
        buffer.clear();
        buffer.reserve(padded(body.len()));
        buffer.extend_from_slice(&[0; 4]);
        buffer.extend_from_slice(&MAGIC);
        let length = body.len() as u64;
        for number in [
            self.wal_id,
            self.segment,
            self.number,
            self.synced,
            self.opening_id,
            self.previous_opening,
            length,
        ] {
            buffer.extend_from_slice(&number.to_le_bytes());
        }
        buffer.extend_from_slice(body);
        let checksum = crc32c::crc32c(&buffer[4..]);
        buffer[..4].copy_from_slice(&checksum.to_le_bytes());
        buffer.resize(padded(body.len()), 0);
    }

    /// Decodes the header alone, and the body's length. Only the checksum tells whether they are right.
    pub(super) fn header(bytes: &[u8; HEADER]) -> Option<(Batch, u64)> {
        let batch = Batch {
            wal_id: read_u64(bytes, 8),
            segment: read_u64(bytes, 16),
            number: read_u64(bytes, 24),
            synced: read_u64(bytes, 32),
            opening_id: read_u64(bytes, 40),
            previous_opening: read_u64(bytes, 48),
        };
        (bytes[4..8] == MAGIC).then_some((batch, read_u64(bytes, 56)))
    }

    /// How many bytes of a torn batch are here, by the remains of its header; 0 if there are none.
    ///
    /// One of the four words that identify a batch may be wrong, because a flipped bit is as likely there as
    /// elsewhere. The old contents of a recycled file have another segment's number and another batch's.
    pub(super) fn torn_bytes(wal_id: u64, segment: u64, number: u64, bytes: &[u8]) -> usize {
        let Some(header) = bytes.first_chunk::<HEADER>() else { return 0 };
        let words = [
            header[4..8] == MAGIC,
            read_u64(header, 8) == wal_id,
            read_u64(header, 16) == segment,
            read_u64(header, 24) == number,
        ];
        if words.into_iter().filter(|is_right| *is_right).count() < 3 {
            return 0;
        }
        let length = usize::try_from(read_u64(header, 56)).ok().filter(|length| *length <= bytes.len());
        length.map_or(BLOCK, padded).min(bytes.len())
    }

    /// Decodes the batch of this log and segment that these bytes begin with, and its body; or why there is
    /// none.
    pub(super) fn decode(wal_id: u64, segment: u64, bytes: &[u8]) -> Result<(Batch, &[u8]), &'static str> {
        let Some(header) = bytes.first_chunk::<HEADER>() else {
            return Err("the segment ends here");
        };
        let Some((batch, length)) = Batch::header(header) else {
            return Err("no batch begins here");
        };
        if (batch.wal_id, batch.segment) != (wal_id, segment) {
            return Err("the batch here is of another log or segment");
        }
        let body = usize::try_from(length).ok().and_then(|length| bytes[HEADER..].get(..length));
        let Some(body) = body else {
            return Err("the batch reaches beyond its segment");
        };
        let checksum = crc32c::crc32c(&bytes[4..HEADER + body.len()]);
        if bytes[..4] != checksum.to_le_bytes() {
            return Err("the checksum of the batch is wrong");
        }
        Ok((batch, body))
    }
}

/// Bytes of a batch on disk.
pub(crate) fn padded(body_bytes: usize) -> usize {
    (HEADER + body_bytes).next_multiple_of(BLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BATCH: Batch =
        Batch { wal_id: 1, segment: 2, number: 3, synced: 2, opening_id: 4, previous_opening: 5 };

    #[test]
    fn a_batch_is_read_as_it_was_written() {
        for length in [0, 1, BLOCK - HEADER, BLOCK - HEADER + 1, 3 * BLOCK] {
            let body = vec![7; length];
            let mut bytes = Vec::new();
            BATCH.encode(&body, &mut bytes);
            assert_eq!(bytes.len() % BLOCK, 0);
            assert_eq!(Batch::decode(1, 2, &bytes), Ok((BATCH, &body[..])));
        }
    }

    #[test]
    fn a_flipped_bit_in_header_or_body_is_noticed() {
        let mut bytes = Vec::new();
        BATCH.encode(b"body", &mut bytes);
        for bit in 0..(HEADER + 4) * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Batch::decode(1, 2, &bytes).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn the_bytes_are_those_of_the_format_document() {
        let mut bytes = Vec::new();
        BATCH.encode(b"body", &mut bytes);
        assert_eq!(bytes[4..8], *b"GTb1");
        assert_eq!(bytes[8..64].chunks(8).map(|chunk| chunk[0]).collect::<Vec<_>>(), [1, 2, 3, 2, 4, 5, 4]);
        assert_eq!(bytes[64..68], *b"body");
        assert_eq!(bytes[..4], crc32c::crc32c(&bytes[4..68]).to_le_bytes());
    }
}
