//! Stored results, which may outlive their jobs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::{Jid, JobEnding, StoredResult, Timestamp};

/// Overhead that a result counts besides its bytes.
pub(crate) const RESULT_BYTES: usize = 128;

#[derive(Debug, Default)]
pub(crate) struct Results {
    /// By sequence number. Results are immutable, so a snapshot shares them.
    pub(super) by_age: BTreeMap<u64, Arc<StoredResult>>,
    pub(super) by_jid: BTreeMap<Jid, u64>,
    pub(super) by_end: BTreeSet<(Timestamp, u64)>,
    pub(super) last: u64,
    pub(super) bytes: u64,
}

impl Results {
    pub(crate) fn get(&self, jid: &Jid) -> Option<&StoredResult> {
        self.by_jid.get(jid).map(|number| &*self.by_age[number])
    }

    /// The sum of their sizes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The oldest result.
    pub(crate) fn oldest(&self) -> Option<&Jid> {
        self.by_age.first_key_value().map(|(_, stored)| &stored.jid)
    }

    /// The result that expires first.
    pub(crate) fn first_to_end(&self) -> Option<(Timestamp, &Jid)> {
        self.by_end.first().map(|(until, number)| (*until, &self.by_age[number].jid))
    }

    /// All results, the oldest first.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &Arc<StoredResult>> {
        self.by_age.values()
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        let bytes: u64 = self.by_age.values().map(|stored| size(stored)).sum();
        let found = self
            .by_jid
            .iter()
            .all(|(jid, number)| self.by_age.get(number).is_some_and(|stored| stored.jid == *jid));
        let coalesce_or_check = found
            && self.by_jid.len() == self.by_age.len()
            && self.by_jid.len() == self.by_end.len()
            && bytes == self.bytes;
        if coalesce_or_check { Ok(()) } else { Err("results and their indexes disagree".into()) }
    }
}

/// What a result counts against `results-bytes`.
pub(crate) fn size(stored: &StoredResult) -> u64 {
    let message_bytes = match &stored.ending {
        JobEnding::Failed { message, .. } => message.len(),
        JobEnding::Completed | JobEnding::Canceled => 0,
    };
    (stored.result.bytes.bytes().len() + message_bytes + RESULT_BYTES) as u64
}
