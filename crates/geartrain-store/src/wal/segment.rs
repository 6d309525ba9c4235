//! A segment: a file with a header, then batches. Its name and its header; the layout is in
//! `docs/formats/log.md`.

use super::batch::BLOCK;
use super::read_u64;

/// Length of the header's contents. The rest of its block is zero.
const HEADER: usize = 64;

const MAGIC: [u8; 4] = *b"GTs\0";
/// The version that is written. Version 1, which has no segment length, is read as well.
const VERSION: u32 = 2;

/// The first block of a segment. It is durable before the segment gets its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Segment {
    /// The random id of the log.
    pub(super) wal_id: u64,
    /// The segment's number.
    pub(super) number: u64,
    /// The number of the first batch.
    pub(super) first_batch: u64,
    /// Where the batches of the previous segment end; 0 if there is none.
    pub(super) previous_end: u64,
    /// The `opening_id` of the batch before the first.
    pub(super) previous_opening: u64,
    /// The length of the file, which never changes; `None` in version 1, and then there may be no manifest
    /// either.
    pub(super) bytes: Option<u64>,
}

impl Segment {
    pub(super) fn encode(&self) -> [u8; BLOCK] {
        let mut block = [0; BLOCK];
        block[4..8].copy_from_slice(&MAGIC);
        let (version, bytes) = self.bytes.map_or((1, 0), |bytes| (VERSION, bytes));
        block[8..12].copy_from_slice(&version.to_le_bytes());
        let numbers =
            [self.wal_id, self.number, self.first_batch, self.previous_end, self.previous_opening, bytes];
        for (index, number) in numbers.into_iter().enumerate() {
            block[16 + 8 * index..][..8].copy_from_slice(&number.to_le_bytes());
        }
        let checksum = crc32c::crc32c(&block[4..HEADER]);
        block[..4].copy_from_slice(&checksum.to_le_bytes());
        block
    }

    pub(super) fn decode(block: &[u8; BLOCK]) -> Result<Segment, String> {
        if block[4..8] != MAGIC {
            return Err("it does not begin with a segment's header".into());
        }
        if block[..4] != crc32c::crc32c(&block[4..HEADER]).to_le_bytes() {
            return Err("the checksum of the segment's header is wrong".into());
        }
        let version = read_u64(block, 8) as u32;
        if !(1..=VERSION).contains(&version) {
            return Err(format!(
                "it has version {version} of the format, and this program knows up to {VERSION}"
            ));
        }
        Ok(Segment {
            wal_id: read_u64(block, 16),
            number: read_u64(block, 24),
            first_batch: read_u64(block, 32),
            previous_end: read_u64(block, 40),
            previous_opening: read_u64(block, 48),
            bytes: (version > 1).then(|| read_u64(block, 56)),
        })
    }
}

impl Segment {
    /// What is wrong with a file of this length, if it lost its end.
    pub(super) fn is_cut_short(&self, file_bytes: u64) -> Option<String> {
        let bytes = self.bytes.filter(|bytes| *bytes > file_bytes)?;
        Some(format!("the file ends here, and its header says that it has {bytes} bytes"))
    }
}

pub(super) fn segment_name(number: u64) -> String {
    format!("log-{number:020}")
}

/// The name of a spare file, which waits to become a segment.
pub(super) fn spare_name(number: u64) -> String {
    format!("spare-{number:020}")
}

pub(crate) fn segment_number(name: &str) -> Option<u64> {
    number_after("log-", name)
}

pub(super) fn spare_number(name: &str) -> Option<u64> {
    number_after("spare-", name)
}

fn number_after(prefix: &str, name: &str) -> Option<u64> {
    let digits = name.strip_prefix(prefix)?;
    let plain = digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| digits.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: Segment = Segment {
        wal_id: 1,
        number: 2,
        first_batch: 3,
        previous_end: 4,
        previous_opening: 5,
        bytes: Some(6),
    };

    #[test]
    fn a_header_is_read_as_it_was_written_and_every_flipped_bit_noticed() {
        let mut block = SEGMENT.encode();
        assert_eq!(Segment::decode(&block), Ok(SEGMENT));
        for bit in 0..HEADER * 8 {
            block[bit / 8] ^= 1 << (bit % 8);
            assert!(Segment::decode(&block).is_err(), "bit {bit}");
            block[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn version_1_is_read_and_a_later_version_is_refused_by_its_number() {
        let version_1 = Segment { bytes: None, ..SEGMENT };
        assert_eq!(Segment::decode(&version_1.encode()), Ok(version_1));
        let mut block = SEGMENT.encode();
        block[8] = 3;
        let checksum = crc32c::crc32c(&block[4..HEADER]);
        block[..4].copy_from_slice(&checksum.to_le_bytes());
        assert_eq!(
            Segment::decode(&block),
            Err("it has version 3 of the format, and this program knows up to 2".into())
        );
    }

    #[test]
    fn names_carry_numbers_and_other_files_are_none_of_ours() {
        assert_eq!(segment_name(17), "log-00000000000000000017");
        assert_eq!(segment_number("log-00000000000000000017"), Some(17));
        assert_eq!(spare_number(&spare_name(u64::MAX)), Some(u64::MAX));
        for name in ["log-17", "log-0000000000000000001x", "log-99999999999999999999", "LOCK", "spare-"] {
            assert_eq!((segment_number(name), spare_number(name)), (None, None), "{name}");
        }
    }
}
