//! Applies changes of the stored results.

use std::sync::Arc;

use super::super::results::{Results, size};
use crate::{Jid, StoredResult};

impl Results {
    pub(crate) fn insert(&mut self, stored: StoredResult) {
        self.remove(&stored.jid);
        self.last += 1;
        self.bytes += size(&stored);
        self.by_jid.insert(stored.jid.clone(), self.last);
        self.by_end.insert((stored.until, self.last));
        self.by_age.insert(self.last, Arc::new(stored));
    }

    pub(crate) fn remove(&mut self, jid: &Jid) {
        if let Some(number) = self.by_jid.remove(jid)
            && let Some(stored) = self.by_age.remove(&number)
        {
            self.bytes -= size(&stored);
            self.by_end.remove(&(stored.until, number));
        }
    }
}
