//! Reads the audit log from its end, a block at a time.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;

use serde::Serialize;

use super::{AuditRecord, rotated};

const BLOCK_BYTES: u64 = 64 << 10;

/// Records, newest first.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct AuditPage {
    /// The records.
    pub items: Vec<AuditRecord>,
    /// Send this as `before` for those that follow; none if there are no more.
    pub next: Option<u64>,
}

/// Reads the newest records of a file and of the one before its rotation: from before the record with the id
/// `before`, and not older than `since`, in seconds since the epoch.
pub fn read_audit(
    file: &Path,
    limit: usize,
    before: Option<u64>,
    since: Option<f64>,
) -> io::Result<AuditPage> {
    let mut items: Vec<AuditRecord> = Vec::new();
    let mut has_more = false;
    let mut take = |line: &[u8]| {
        // A line that was torn by a crash, or is not ours, is left out.
        let Ok(record) = serde_json::from_slice::<AuditRecord>(line) else { return true };
        if since.is_some_and(|since| record.at < since) {
            return false;
        }
        // A rotation between two reads may show a record twice.
        let limit_id = items.last().map(|last| last.id).or(before);
        if limit_id.is_some_and(|limit_id| record.id >= limit_id) {
            return true;
        }
        has_more = items.len() >= limit;
        if !has_more {
            items.push(record);
        }
        !has_more
    };
    let is_new = backward(file, &mut take)?;
    if is_new {
        backward(&rotated(file), &mut take)?;
    }
    let next = items.last().map(|last| last.id).filter(|_| has_more);
    Ok(AuditPage { items, next })
}

/// The id of the newest record, or 0.
pub(super) fn newest_id(file: &Path) -> io::Result<u64> {
    Ok(read_audit(file, 1, None, None)?.items.first().map_or(0, |record| record.id))
}

/// Whether the last line has its end; also if there is no line.
pub(super) fn ends_with_a_line(file: &Path) -> io::Result<bool> {
    let mut file = File::open(file)?;
    if file.seek(SeekFrom::End(0))? == 0 {
        return Ok(true);
    }
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}

/// Passes the lines on, the last first, until there are none or `take` has enough. Returns whether it still
/// takes some. A file that does not exist has none.
fn backward(file: &Path, take: &mut impl FnMut(&[u8]) -> bool) -> io::Result<bool> {
    let mut file = match File::open(file) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        Err(error) => return Err(error),
    };
    let mut start = file.seek(SeekFrom::End(0))?;
    // The beginning of a line whose end was in the block behind.
    let mut rest: Vec<u8> = Vec::new();
    while start > 0 {
        let length = start.min(BLOCK_BYTES);
        start -= length;
        file.seek(SeekFrom::Start(start))?;
        let mut block = vec![0; length as usize];
        file.read_exact(&mut block)?;
        block.append(&mut rest);
        let mut end = block.len();
        while let Some(newline) = block[..end].iter().rposition(|byte| *byte == b'\n') {
            if newline + 1 < end && !take(&block[newline + 1..end]) {
                return Ok(false);
            }
            end = newline;
        }
        block.truncate(end);
        rest = block;
    }
    Ok(rest.is_empty() || take(&rest))
}
