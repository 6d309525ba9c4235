//! Results that are kept, apart from the jobs that they came out of.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::{Jid, JobEnding, StoredResult, Timestamp};

/// What a result counts besides its bytes.
pub(crate) const RESULT_BYTES: usize = 128;

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Results {
    /// By their numbers, which are larger the later they came. They do not change, so a picture shares them.
    by_age: BTreeMap<u64, Arc<StoredResult>>,
    by_jid: BTreeMap<Jid, u64>,
    by_end: BTreeSet<(Timestamp, u64)>,
    last: u64,
    bytes: u64,
}

impl Results {
    pub(crate) fn keep(&mut self, kept: StoredResult) {
        self.drop(&kept.jid);
        self.last += 1;
        self.bytes += size(&kept);
        self.by_jid.insert(kept.jid.clone(), self.last);
        self.by_end.insert((kept.until, self.last));
        self.by_age.insert(self.last, Arc::new(kept));
    }

    pub(crate) fn drop(&mut self, jid: &Jid) {
        if let Some(number) = self.by_jid.remove(jid)
            && let Some(kept) = self.by_age.remove(&number)
        {
            self.bytes -= size(&kept);
            self.by_end.remove(&(kept.until, number));
        }
    }

    pub(crate) fn get(&self, jid: &Jid) -> Option<&StoredResult> {
        self.by_jid.get(jid).map(|number| &*self.by_age[number])
    }

    /// What they count together.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The one that was kept first.
    pub(crate) fn oldest(&self) -> Option<&Jid> {
        self.by_age.first_key_value().map(|(_, kept)| &kept.jid)
    }

    /// The one whose time is over first.
    pub(crate) fn first_to_end(&self) -> Option<(Timestamp, &Jid)> {
        self.by_end.first().map(|(until, number)| (*until, &self.by_age[number].jid))
    }

    /// All of them, the oldest first.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &Arc<StoredResult>> {
        self.by_age.values()
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        let bytes: u64 = self.by_age.values().map(|kept| size(kept)).sum();
        let found = self
            .by_jid
            .iter()
            .all(|(jid, number)| self.by_age.get(number).is_some_and(|kept| kept.jid == *jid));
        let agree = found
            && self.by_jid.len() == self.by_age.len()
            && self.by_jid.len() == self.by_end.len()
            && bytes == self.bytes;
        if agree { Ok(()) } else { Err("results and their indexes disagree".into()) }
    }
}

/// What a result counts.
pub(crate) fn size(kept: &StoredResult) -> u64 {
    let said = match &kept.ending {
        JobEnding::Failed { message, .. } => message.len(),
        JobEnding::Completed | JobEnding::Canceled => 0,
    };
    (kept.result.bytes.bytes().len() + said + RESULT_BYTES) as u64
}
