//! Results that are kept, apart from the jobs that they came out of.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Jid, Kept, Timestamp};

/// What a result counts besides its bytes.
pub(crate) const RESULT_BYTES: usize = 128;

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Results {
    /// Each with its number, which is larger the later it came.
    by_jid: BTreeMap<Jid, (u64, Kept)>,
    by_age: BTreeMap<u64, Jid>,
    by_end: BTreeSet<(Timestamp, u64)>,
    last: u64,
    bytes: u64,
}

impl Results {
    pub(crate) fn keep(&mut self, kept: Kept) {
        self.drop(&kept.jid);
        self.last += 1;
        self.bytes += size(&kept);
        self.by_age.insert(self.last, kept.jid.clone());
        self.by_end.insert((kept.until, self.last));
        self.by_jid.insert(kept.jid.clone(), (self.last, kept));
    }

    pub(crate) fn drop(&mut self, jid: &Jid) {
        if let Some((number, kept)) = self.by_jid.remove(jid) {
            self.bytes -= size(&kept);
            self.by_age.remove(&number);
            self.by_end.remove(&(kept.until, number));
        }
    }

    pub(crate) fn get(&self, jid: &Jid) -> Option<&Kept> {
        self.by_jid.get(jid).map(|(_, kept)| kept)
    }

    /// What they count together.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The one that was kept first.
    pub(crate) fn oldest(&self) -> Option<&Jid> {
        self.by_age.first_key_value().map(|(_, jid)| jid)
    }

    /// The one whose time is over first.
    pub(crate) fn first_to_end(&self) -> Option<(Timestamp, &Jid)> {
        self.by_end.first().map(|(until, number)| (*until, &self.by_age[number]))
    }

    /// All of them, the oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Kept> {
        self.by_age.values().map(|jid| &self.by_jid[jid].1)
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        let bytes: u64 = self.by_jid.values().map(|(_, kept)| size(kept)).sum();
        let agree = self.by_jid.len() == self.by_age.len()
            && self.by_jid.len() == self.by_end.len()
            && bytes == self.bytes;
        if agree { Ok(()) } else { Err("results and their indexes disagree".into()) }
    }
}

fn size(kept: &Kept) -> u64 {
    (kept.outcome.bytes.bytes().len() + RESULT_BYTES) as u64
}
