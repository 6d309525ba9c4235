//! Packed job histories: an append-only list of entries per job, in one blob.
//!
//! A history is a head (its bytes and its number of entries) and entries, each a kind, a time, and the fields
//! of that kind. A job that was only put has none: its row says when and where.

use bytes::Bytes;

use super::blobs::{BlobRef, Blobs};
use super::rows::NONE;
use crate::Timestamp;
use crate::engine::delta::{Kind, NameId};

const HEAD_BYTES: usize = 8;
/// Limit of one history: 20,000 short entries. It only matters if `max-job-history` is lifted or long
/// messages are logged.
const HISTORY_BYTES_MAX: usize = 256 << 10;
/// Room for put, popped and done, which is all that happens to most jobs.
const FIRST_BYTES: usize = 48;

/// A history entry, with interned names.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Mark<'a> {
    Put { queue: u32 },
    Popped { worker: u32 },
    Done,
    Failed { worker: u32, group: u32 },
    TimedOut,
    Released { worker: u32 },
    Crashed { worker: u32 },
    Log { message: &'a str, data: Option<&'a str> },
}

/// An interned name that an entry refers to. The id may be [`NONE`]: retries can run out without a worker.
pub(crate) type NameRef = (Kind, NameId);

/// Begins a history with the put that the row describes.
pub(crate) fn begin(blobs: &mut Blobs, put: Timestamp, queue: u32) -> BlobRef {
    let mut whole = [0; FIRST_BYTES];
    let mut entry = [0; 17];
    let length = write_short(&mut entry, put, Mark::Put { queue });
    whole[HEAD_BYTES..HEAD_BYTES + length].copy_from_slice(&entry[..length]);
    write_head(&mut whole, HEAD_BYTES + length, 1);
    match blobs.slot(FIRST_BYTES) {
        Some(at) => {
            blobs.slot_mut(at)[..FIRST_BYTES].copy_from_slice(&whole);
            at
        }
        None => blobs.insert_large(Bytes::copy_from_slice(&whole)),
    }
}

/// Appends an entry, and returns where the history is then. `limit` is the number of entries to keep, 0 for
/// all that fit. The names of entries that are dropped are added to `dropped`.
pub(crate) fn append(
    blobs: &mut Blobs,
    at: BlobRef,
    limit: usize,
    when: Timestamp,
    mark: Mark<'_>,
    dropped: &mut Vec<NameRef>,
) -> BlobRef {
    let mut short = [0; 17];
    let long;
    let entry = match mark {
        Mark::Log { message, data } => {
            long = log_entry(when, message, data);
            &long[..]
        }
        _ => {
            let length = write_short(&mut short, when, mark);
            &short[..length]
        }
    };
    let (bytes, count) = head(blobs.get(at));
    let grown = bytes + entry.len();
    if (limit > 0 && count >= limit) || grown > HISTORY_BYTES_MAX {
        let (whole, count) = trimmed(&blobs.get(at)[..bytes], limit, entry, dropped);
        return replace(blobs, at, whole, count);
    }
    let slot = blobs.slot_mut(at);
    if slot.len() >= grown {
        slot[bytes..grown].copy_from_slice(entry);
        write_head(slot, grown, count + 1);
        return at;
    }
    let whole = [&blobs.get(at)[..bytes], entry].concat();
    replace(blobs, at, whole, count + 1)
}

/// The encoded history; empty if there is none.
pub(crate) fn raw(blobs: &Blobs, at: BlobRef) -> &[u8] {
    if at == BlobRef::NONE {
        return &[];
    }
    let whole = blobs.get(at);
    &whole[..head(whole).0]
}

/// Stores an encoded history.
pub(crate) fn restore(blobs: &mut Blobs, history: &[u8]) -> BlobRef {
    if history.is_empty() { BlobRef::NONE } else { blobs.insert_slice(history) }
}

/// Reads a history, oldest entry first.
pub(crate) fn read(blobs: &Blobs, at: BlobRef) -> impl Iterator<Item = (Timestamp, Mark<'_>)> {
    let whole = blobs.get(at);
    let mut rest = &whole[HEAD_BYTES..head(whole).0];
    std::iter::from_fn(move || (!rest.is_empty()).then(|| read_entry(&mut rest)))
}

/// Visits the names that a history refers to. It decodes nothing else: it runs for each job that is dropped.
pub(crate) fn visit_names(blobs: &Blobs, at: BlobRef, mut visit: impl FnMut(Kind, NameId)) {
    let mut rest = raw(blobs, at).get(HEAD_BYTES..).unwrap_or_default();
    while !rest.is_empty() {
        let bytes = visit_entry(rest, &mut visit);
        rest = &rest[bytes..];
    }
}

/// Visits the names that the first entry refers to, and returns the entry's length.
#[inline]
fn visit_entry(entry: &[u8], mut visit: impl FnMut(Kind, NameId)) -> usize {
    match entry[0] {
        0 => {
            visit(Kind::Queue, u32_at(entry, 9));
            13
        }
        1 | 6 | 7 => {
            visit(Kind::Worker, u32_at(entry, 9));
            13
        }
        3 => {
            visit(Kind::Worker, u32_at(entry, 9));
            visit(Kind::Group, u32_at(entry, 13));
            17
        }
        2 | 4 => 9,
        _ => {
            let mut rest = entry;
            read_entry(&mut rest);
            entry.len() - rest.len()
        }
    }
}

/// Keeps the first entry and as many of the newest as fit; if only one fits, the newest. Returns the history
/// and its number of entries.
fn trimmed(history: &[u8], limit: usize, entry: &[u8], dropped: &mut Vec<NameRef>) -> (Vec<u8>, usize) {
    let mut entries = Vec::new();
    let mut rest = &history[HEAD_BYTES..];
    while !rest.is_empty() {
        let (entry, after) = rest.split_at(visit_entry(rest, |_, _| {}));
        entries.push(entry);
        rest = after;
    }
    entries.push(entry);
    let most = if limit == 0 { entries.len() } else { limit };
    let (first, others) = entries.split_at(usize::from(most > 1));
    let mut room = HISTORY_BYTES_MAX - HEAD_BYTES - first.concat().len();
    let fitting = others.iter().rev().take(most - first.len()).take_while(|entry| {
        let fits = entry.len() <= room;
        room -= entry.len().min(room);
        fits
    });
    // The new entry is always kept.
    let newest = fitting.count().max(1);
    for entry in &others[..others.len() - newest] {
        visit_entry(entry, |kind, name| dropped.push((kind, name)));
    }
    let retained = [&[&[0; HEAD_BYTES][..]], first, &others[others.len() - newest..]].concat().concat();
    (retained, first.len() + newest)
}

fn replace(blobs: &mut Blobs, at: BlobRef, mut whole: Vec<u8>, count: usize) -> BlobRef {
    let bytes = whole.len();
    write_head(&mut whole, bytes, count);
    blobs.remove(at);
    blobs.insert(&whole.into())
}

/// The bytes and the number of entries of a history.
fn head(history: &[u8]) -> (usize, usize) {
    (u32_at(history, 0) as usize, u32_at(history, 4) as usize)
}

fn write_head(history: &mut [u8], bytes: usize, count: usize) {
    history[..4].copy_from_slice(&(bytes as u32).to_le_bytes());
    history[4..HEAD_BYTES].copy_from_slice(&(count as u32).to_le_bytes());
}

fn write_short(entry: &mut [u8; 17], when: Timestamp, mark: Mark<'_>) -> usize {
    let (kind, one, two) = match mark {
        Mark::Put { queue } => (0, queue, NONE),
        Mark::Popped { worker } => (1, worker, NONE),
        Mark::Done => (2, NONE, NONE),
        Mark::Failed { worker, group } => (3, worker, group),
        Mark::TimedOut => (4, NONE, NONE),
        Mark::Log { .. } => (5, NONE, NONE),
        Mark::Released { worker } => (6, worker, NONE),
        Mark::Crashed { worker } => (7, worker, NONE),
    };
    entry[0] = kind;
    entry[1..9].copy_from_slice(&when.floor().get().to_le_bytes());
    entry[9..13].copy_from_slice(&one.to_le_bytes());
    entry[13..].copy_from_slice(&two.to_le_bytes());
    match kind {
        0 | 1 | 6 | 7 => 13,
        3 => 17,
        _ => 9,
    }
}

fn log_entry(when: Timestamp, message: &str, data: Option<&str>) -> Vec<u8> {
    let mut short = [0; 17];
    let length = write_short(&mut short, when, Mark::Log { message, data });
    let mut entry = short[..length].to_vec();
    entry.extend_from_slice(&(message.len() as u32).to_le_bytes());
    entry.extend_from_slice(message.as_bytes());
    entry.extend_from_slice(&data.map_or(NONE, |data| data.len() as u32).to_le_bytes());
    entry.extend_from_slice(data.unwrap_or_default().as_bytes());
    entry
}

fn read_entry<'a>(rest: &mut &'a [u8]) -> (Timestamp, Mark<'a>) {
    fn take<'a>(rest: &mut &'a [u8], bytes: usize) -> &'a [u8] {
        let (taken, left) = rest.split_at(bytes);
        *rest = left;
        taken
    }
    fn number(rest: &mut &[u8]) -> u32 {
        u32_at(take(rest, 4), 0)
    }
    fn text<'a>(rest: &mut &'a [u8], bytes: u32) -> &'a str {
        std::str::from_utf8(take(rest, bytes as usize)).expect("only text is ever written here")
    }
    let kind = take(rest, 1)[0];
    let mut when = [0; 8];
    when.copy_from_slice(take(rest, 8));
    let when = Timestamp::new(f64::from_le_bytes(when)).expect("only finite moments are ever written here");
    let mark = match kind {
        0 => Mark::Put { queue: number(rest) },
        1 => Mark::Popped { worker: number(rest) },
        2 => Mark::Done,
        3 => Mark::Failed { worker: number(rest), group: number(rest) },
        4 => Mark::TimedOut,
        6 => Mark::Released { worker: number(rest) },
        7 => Mark::Crashed { worker: number(rest) },
        _ => {
            let bytes = number(rest);
            let message = text(rest, bytes);
            let bytes = number(rest);
            Mark::Log { message, data: (bytes != NONE).then(|| text(rest, bytes)) }
        }
    };
    (when, mark)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut number = [0; 4];
    number.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whens(blobs: &Blobs, at: BlobRef) -> Vec<f64> {
        read(blobs, at).map(|(when, _)| when.get()).collect()
    }

    #[test]
    fn entries_of_every_kind_are_read_back() {
        let mut blobs = Blobs::default();
        let long = "x".repeat(5_000);
        let marks = [
            Mark::Popped { worker: 3 },
            Mark::Done,
            Mark::Failed { worker: NONE, group: 9 },
            Mark::TimedOut,
            Mark::Log { message: "hello", data: None },
            Mark::Log { message: &long, data: Some("{}") },
            Mark::Done,
        ];
        let mut at = begin(&mut blobs, Timestamp::from(1), 7);
        for (n, mark) in marks.into_iter().enumerate() {
            at = append(&mut blobs, at, 0, Timestamp::from(n as i32 + 2), mark, &mut Vec::new());
        }
        let read: Vec<_> = read(&blobs, at).collect();
        assert_eq!(read[0], (Timestamp::from(1), Mark::Put { queue: 7 }));
        for (n, mark) in marks.into_iter().enumerate() {
            assert_eq!(read[n + 1], (Timestamp::from(n as i32 + 2), mark));
        }
    }

    #[test]
    fn a_limit_keeps_the_first_and_the_newest() {
        for (limit, kept) in [
            (0, vec![0., 1., 2., 3., 4.]),
            (1, vec![4.]),
            (2, vec![0., 4.]),
            (3, vec![0., 3., 4.]),
            (9, vec![0., 1., 2., 3., 4.]),
        ] {
            let mut blobs = Blobs::default();
            let mut at = begin(&mut blobs, Timestamp::from(0), 7);
            for n in 1..5 {
                at = append(&mut blobs, at, limit, Timestamp::from(n), Mark::Done, &mut Vec::new());
            }
            assert_eq!(whens(&blobs, at), kept, "limit {limit}");
        }
    }

    #[test]
    fn a_history_never_grows_beyond_its_bytes() {
        let mut blobs = Blobs::default();
        let mut at = begin(&mut blobs, Timestamp::from(0), 7);
        let long = "x".repeat(60_000);
        for n in 1..40 {
            at = append(
                &mut blobs,
                at,
                0,
                Timestamp::from(n),
                Mark::Log { message: &long, data: None },
                &mut Vec::new(),
            );
        }
        assert_eq!(whens(&blobs, at), [0., 36., 37., 38., 39.]);
        at = append(&mut blobs, at, 0, Timestamp::from(40), Mark::Done, &mut Vec::new());
        assert_eq!(whens(&blobs, at), [0., 36., 37., 38., 39., 40.]);
    }

    #[test]
    fn a_limit_that_was_lowered_takes_effect_at_the_next_entry() {
        let mut blobs = Blobs::default();
        let mut at = begin(&mut blobs, Timestamp::from(0), 7);
        for n in 1..10 {
            at = append(&mut blobs, at, 0, Timestamp::from(n), Mark::Done, &mut Vec::new());
        }
        at = append(&mut blobs, at, 4, Timestamp::from(10), Mark::Done, &mut Vec::new());
        assert_eq!(whens(&blobs, at), [0., 8., 9., 10.]);
    }
}
