//! Periodic jobs, by jid and by their next runs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::{Jid, Periodic, Timestamp};

#[derive(Debug, Default)]
pub(crate) struct Periodics {
    /// Entries are replaced and not changed, so a snapshot shares them.
    by_jid: BTreeMap<Jid, Arc<Periodic>>,
    by_run: BTreeSet<(Timestamp, Jid)>,
}

impl Periodics {
    pub(crate) fn get(&self, jid: &Jid) -> Option<&Arc<Periodic>> {
        self.by_jid.get(jid)
    }

    /// All of them by jid, or those after one.
    pub(crate) fn after(&self, after: Option<&Jid>) -> impl DoubleEndedIterator<Item = &Arc<Periodic>> {
        use std::ops::Bound::{Excluded, Unbounded};
        self.by_jid.range((after.map_or(Unbounded, Excluded), Unbounded)).map(|(_, of)| of)
    }

    /// The next runs, the earliest first.
    pub(crate) fn by_run(&self) -> impl Iterator<Item = (Timestamp, &Arc<Periodic>)> {
        self.by_run.iter().map(|(run, jid)| (*run, &self.by_jid[jid]))
    }

    /// The earliest next run.
    pub(crate) fn first_run(&self) -> Option<Timestamp> {
        self.by_run.first().map(|(run, _)| *run)
    }

    pub(crate) fn insert(&mut self, of: Arc<Periodic>) {
        let jid = &of.template.put.jid;
        self.remove(jid);
        if let Some(run) = of.next {
            self.by_run.insert((run, jid.clone()));
        }
        self.by_jid.insert(jid.clone(), of);
    }

    pub(crate) fn remove(&mut self, jid: &Jid) {
        if let Some(of) = self.by_jid.remove(jid)
            && let Some(run) = of.next
        {
            self.by_run.remove(&(run, jid.clone()));
        }
    }

    pub(super) fn check(&self) -> Result<(), String> {
        let with_run = self.by_jid.values().filter(|of| of.next.is_some()).count();
        let found = |(run, jid): &(Timestamp, Jid)| {
            self.by_jid.get(jid).is_some_and(|of| of.next == Some(*run) && of.template.put.jid == *jid)
        };
        let agrees = self.by_run.len() == with_run && self.by_run.iter().all(found);
        if agrees { Ok(()) } else { Err("periodic jobs and their next runs disagree".into()) }
    }
}
