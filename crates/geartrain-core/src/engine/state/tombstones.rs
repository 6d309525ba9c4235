//! Tombstones of cancelled jobs, by jid and by age.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use foldhash::fast::FixedState;

use crate::names::Repr;
use crate::{Jid, Timestamp, Tombstone};

#[derive(Debug)]
pub(crate) struct Tombstones {
    /// Looked up by every put while there are any, so hashed. Tombstones are immutable, so a snapshot shares
    /// them.
    by_jid: HashMap<Jid, Arc<Tombstone>, FixedState>,
    /// Equals by jid, as a Redis sorts them.
    by_age: BTreeSet<(Timestamp, Jid)>,
}

impl Tombstones {
    pub(super) fn new(hash_seed: u64) -> Tombstones {
        let by_jid = HashMap::with_hasher(FixedState::with_seed(hash_seed));
        Tombstones { by_jid, by_age: BTreeSet::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_jid.is_empty()
    }

    pub(crate) fn get(&self, jid: &Jid) -> Option<&Tombstone> {
        self.by_jid.get(jid).map(|tombstone| &**tombstone)
    }

    /// All tombstones, the oldest first.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &Arc<Tombstone>> {
        self.by_age.iter().map(|(_, jid)| &self.by_jid[jid])
    }

    pub(crate) fn len(&self) -> usize {
        self.by_jid.len()
    }

    /// When the oldest job was cancelled, and which it is.
    pub(crate) fn oldest(&self) -> Option<(Timestamp, &Jid)> {
        self.by_age.first().map(|(when, jid)| (*when, jid))
    }

    /// The same of those that were not cancelled before a time.
    pub(crate) fn oldest_since(&self, earliest: Timestamp) -> Option<(Timestamp, &Jid)> {
        let oldest = self.oldest()?;
        if oldest.0 >= earliest {
            return Some(oldest);
        }
        // A jid has no NUL, so this is the lowest.
        let lowest = Jid(Repr::Text("\u{1}".into()));
        self.by_age.range((earliest, lowest)..).next().map(|(when, jid)| (*when, jid))
    }

    pub(super) fn insert(&mut self, tombstone: Tombstone) {
        self.remove(&tombstone.jid);
        self.by_age.insert((tombstone.when, tombstone.jid.clone()));
        self.by_jid.insert(tombstone.jid.clone(), Arc::new(tombstone));
    }

    pub(super) fn remove(&mut self, jid: &Jid) {
        if let Some(tombstone) = self.by_jid.remove(jid) {
            self.by_age.remove(&(tombstone.when, tombstone.jid.clone()));
        }
    }

    pub(super) fn check(&self) -> Result<(), String> {
        let found = |(when, jid): &(Timestamp, Jid)| {
            self.by_jid.get(jid).is_some_and(|tombstone| tombstone.when == *when && tombstone.jid == *jid)
        };
        let agrees = self.by_age.len() == self.by_jid.len() && self.by_age.iter().all(found);
        if agrees { Ok(()) } else { Err("tombstones and their order disagree".into()) }
    }
}
