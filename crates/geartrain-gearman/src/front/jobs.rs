//! The jobs that a peer works on, and those that it worked on.

use std::collections::VecDeque;
use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use geartrain_core::{Holder, Jid, Token};
use hashbrown::HashTable;

/// How many of the jobs that it held a peer is remembered for.
const PAST_MAX: usize = 4_096;

/// The jobs of one peer.
#[derive(Default)]
pub(crate) struct Jobs {
    hasher: RandomState,
    held: HashTable<Held>,
    /// The hashes of those that it does not hold any more, the last one last.
    past: VecDeque<u64>,
}

/// A job that a peer works on.
pub(crate) struct Held {
    pub(crate) jid: Jid,
    token: Token,
    /// The parts of a result that is kept, as long as nobody was told of them.
    pub(crate) parts: Option<Vec<u8>>,
}

impl Held {
    /// The job, and the right to report on it.
    pub(crate) fn right(&self) -> (Jid, Holder) {
        (self.jid.clone(), Holder::Token(self.token))
    }

    fn is(&self, text: &[u8]) -> bool {
        self.jid.with_str(|jid| jid.as_bytes() == text)
    }
}

impl Jobs {
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Held> {
        self.held.iter()
    }

    /// Holds a job from now on. The parts of its result are kept if somebody may ask for it later.
    pub(crate) fn hold(&mut self, jid: Jid, token: Token, keeps_parts: bool) {
        let hasher = &self.hasher;
        let hash = jid.with_str(|text| hasher.hash_one(text.as_bytes()));
        let rehash = |held: &Held| held.jid.with_str(|text| hasher.hash_one(text.as_bytes()));
        let held = Held { jid, token, parts: keeps_parts.then(Vec::new) };
        match self.held.find_mut(hash, |other| other.jid == held.jid) {
            Some(other) => *other = held,
            None => drop(self.held.insert_unique(hash, held, rehash)),
        }
    }

    /// The job with this jid.
    pub(crate) fn get(&self, jid: &[u8]) -> Option<&Held> {
        self.held.find(self.hasher.hash_one(jid), |held| held.is(jid))
    }

    pub(crate) fn get_mut(&mut self, jid: &[u8]) -> Option<&mut Held> {
        self.held.find_mut(self.hasher.hash_one(jid), |held| held.is(jid))
    }

    /// Does not hold a job any more.
    pub(crate) fn let_go(&mut self, jid: &[u8]) -> Option<Held> {
        let hash = self.hasher.hash_one(jid);
        let held = self.held.find_entry(hash, |held| held.is(jid)).ok()?.remove().0;
        if self.past.len() >= PAST_MAX {
            self.past.pop_front();
        }
        self.past.push_back(hash);
        Some(held)
    }

    /// Whether it held this job once.
    pub(crate) fn held_once(&self, jid: &[u8]) -> bool {
        self.past.contains(&self.hasher.hash_one(jid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_let_go_of_is_remembered_for_a_while() {
        let mut jobs = Jobs::default();
        let jid = |number: usize| Jid::new(format!("H:lap:{number}")).expect("a good name");
        for number in 0..=PAST_MAX {
            jobs.hold(jid(number), Token::new(7), false);
        }
        assert!(jobs.get(b"H:lap:0").is_some() && !jobs.held_once(b"H:lap:0"));
        for number in 0..=PAST_MAX {
            assert!(jobs.let_go(format!("H:lap:{number}").as_bytes()).is_some());
        }
        assert!(jobs.is_empty() && jobs.let_go(b"H:lap:1").is_none());
        assert!(jobs.held_once(b"H:lap:1") && !jobs.held_once(b"H:lap:0"));
    }
}
