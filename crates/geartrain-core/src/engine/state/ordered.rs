//! A sorted set that also knows how many come before: what every index of the engine is made of.
//!
//! A tree of wide leaves, counted at every branch. Queues mostly grow at one end and shrink at the other, so a leaf is a ring:
//! both ends cost a few nanoseconds, and full leaves stay full. Nothing ever moves more than one leaf's worth of
//! entries, so no call stalls, however large the set.

use std::collections::VecDeque;
use std::ops::Range;

const LEAF_MAX: usize = 128;
const BRANCH_MAX: usize = 64;

/// A sorted set.
#[derive(Debug)]
pub(crate) struct Ordered<E> {
    root: Node<E>,
    len: usize,
}

#[derive(Debug)]
enum Node<E> {
    Leaf(VecDeque<E>),
    Branch(Vec<Child<E>>),
}

#[derive(Debug)]
struct Child<E> {
    /// Not above any entry in the node; it need not be one of them.
    least: E,
    count: usize,
    node: Node<E>,
}

impl<E> Default for Ordered<E> {
    fn default() -> Ordered<E> {
        Ordered { root: Node::Leaf(VecDeque::new()), len: 0 }
    }
}

impl<E: Ord + Copy> Ordered<E> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Puts an entry in that is not there yet.
    pub(crate) fn insert(&mut self, entry: E) {
        self.len += 1;
        if let Some(right) = self.root.insert(entry) {
            let node = std::mem::replace(&mut self.root, Node::Branch(Vec::new()));
            let left = Child { least: node.least(), count: self.len - right.count, node };
            self.root = Node::Branch(vec![left, right]);
        }
    }

    /// Takes an entry out, and says whether it was there.
    pub(crate) fn remove(&mut self, entry: E) -> bool {
        let found = self.root.remove(entry);
        if found {
            self.len -= 1;
            while let Node::Branch(children) = &mut self.root
                && children.len() <= 1
            {
                self.root = children.pop().map_or(Node::Leaf(VecDeque::new()), |only| only.node);
            }
        }
        found
    }

    pub(crate) fn contains(&self, entry: E) -> bool {
        let mut node = &self.root;
        loop {
            match node {
                Node::Leaf(entries) => return entries.binary_search(&entry).is_ok(),
                Node::Branch(children) => node = &children[child_for(children, entry)].node,
            }
        }
    }

    pub(crate) fn first(&self) -> Option<E> {
        let mut node = &self.root;
        loop {
            match node {
                Node::Leaf(entries) => return entries.front().copied(),
                Node::Branch(children) => node = &children.first()?.node,
            }
        }
    }

    /// How many entries at the beginning satisfy a condition that none satisfies after one that does not.
    pub(crate) fn count_while(&self, condition: impl Fn(&E) -> bool) -> usize {
        let (mut node, mut before) = (&self.root, 0);
        loop {
            match node {
                Node::Leaf(entries) => return before + entries.partition_point(&condition),
                Node::Branch(children) => {
                    let reached = children.partition_point(|child| condition(&child.least));
                    let Some(last) = reached.checked_sub(1) else { return before };
                    before += children[..last].iter().map(|child| child.count).sum::<usize>();
                    node = &children[last].node;
                }
            }
        }
    }

    /// The entries at these places, in order. Places beyond the end are left out.
    pub(crate) fn slice(&self, places: Range<usize>) -> Vec<E> {
        let places = places.start.min(self.len)..places.end.min(self.len);
        let mut entries = Vec::with_capacity(places.len());
        if !places.is_empty() {
            self.root.slice(places, &mut entries);
        }
        entries
    }

    /// The same, counted from the end and going towards the beginning.
    pub(crate) fn slice_back(&self, places: Range<usize>) -> Vec<E> {
        let from_end = |place: usize| self.len - place.min(self.len);
        let mut entries = self.slice(from_end(places.end)..from_end(places.start));
        entries.reverse();
        entries
    }
}

/// Which child an entry is in, or belongs in.
fn child_for<E: Ord + Copy>(children: &[Child<E>], entry: E) -> usize {
    // Queues are used at their ends; only what is in between needs a search, which touches many lines of memory.
    match children {
        [.., last] if last.least <= entry => children.len() - 1,
        [_, second, ..] if entry < second.least => 0,
        _ => children.partition_point(|child| child.least <= entry).saturating_sub(1),
    }
}

impl<E: Ord + Copy> Node<E> {
    fn least(&self) -> E {
        match self {
            Node::Leaf(entries) => entries[0],
            Node::Branch(children) => children[0].least,
        }
    }

    /// Puts an entry in, and gives back a new right neighbour if the node had to be split.
    fn insert(&mut self, entry: E) -> Option<Child<E>> {
        match self {
            Node::Leaf(entries) => {
                let at_end = entries.back().is_none_or(|last| *last < entry);
                if entries.len() < LEAF_MAX {
                    if at_end {
                        entries.push_back(entry);
                    } else {
                        entries.insert(entries.partition_point(|other| *other < entry), entry);
                    }
                    return None;
                }
                // A set that grows at its end leaves full leaves behind.
                let mut right =
                    if at_end { VecDeque::with_capacity(LEAF_MAX) } else { entries.split_off(LEAF_MAX / 2) };
                if right.front().is_none_or(|first| *first < entry) {
                    right.insert(right.partition_point(|other| *other < entry), entry);
                } else {
                    entries.insert(entries.partition_point(|other| *other < entry), entry);
                }
                Some(Child { least: right[0], count: right.len(), node: Node::Leaf(right) })
            }
            Node::Branch(children) => {
                let at = child_for(children, entry);
                let child = &mut children[at];
                child.least = child.least.min(entry);
                child.count += 1;
                let right = child.node.insert(entry)?;
                child.count -= right.count;
                children.insert(at + 1, right);
                if children.len() <= BRANCH_MAX {
                    return None;
                }
                let keep = if at + 2 == children.len() { BRANCH_MAX } else { BRANCH_MAX / 2 };
                let right = children.split_off(keep);
                let count = right.iter().map(|child| child.count).sum();
                Some(Child { least: right[0].least, count, node: Node::Branch(right) })
            }
        }
    }

    fn remove(&mut self, entry: E) -> bool {
        match self {
            Node::Leaf(entries) => {
                if entries.front() == Some(&entry) {
                    entries.pop_front();
                    return true;
                }
                let place = entries.binary_search(&entry);
                place.is_ok_and(|place| entries.remove(place).is_some())
            }
            Node::Branch(children) => {
                let at = child_for(children, entry);
                if !children[at].node.remove(entry) {
                    return false;
                }
                children[at].count -= 1;
                if children[at].count == 0 {
                    children.remove(at);
                } else if children[at].count < LEAF_MAX / 4 {
                    if at + 1 < children.len() {
                        merge(children, at);
                    }
                    if at > 0 {
                        merge(children, at - 1);
                    }
                }
                true
            }
        }
    }

    fn slice(&self, places: Range<usize>, into: &mut Vec<E>) {
        match self {
            Node::Leaf(entries) => into.extend(entries.range(places)),
            Node::Branch(children) => {
                let mut before = 0;
                for child in children {
                    if before >= places.end {
                        break;
                    }
                    let (start, end) = (places.start.max(before), places.end.min(before + child.count));
                    if start < end {
                        child.node.slice(start - before..end - before, into);
                    }
                    before += child.count;
                }
            }
        }
    }
}

/// Makes one leaf of two neighbours that are both nearly empty.
fn merge<E: Copy>(children: &mut Vec<Child<E>>, at: usize) {
    let (left, right) = children.split_at_mut(at + 1);
    if let (Node::Leaf(left_entries), Node::Leaf(right_entries)) = (&mut left[at].node, &mut right[0].node)
        && left_entries.len() + right_entries.len() <= LEAF_MAX / 2
    {
        left_entries.append(right_entries);
        left[at].count += right[0].count;
        children.remove(at + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Enough of a random number generator to visit every split and merge.
    fn scrambled(step: u64) -> u64 {
        (step.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (step << 7)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 40
    }

    #[test]
    fn it_agrees_with_the_standard_sorted_set() {
        let (mut ours, mut theirs) = (Ordered::default(), BTreeSet::new());
        for step in 0..60_000_u64 {
            let entry = scrambled(step) % 20_000;
            // It grows for a while, then shrinks, several times over.
            if (step / 10_000) % 2 == 0 {
                if theirs.insert(entry) {
                    ours.insert(entry);
                }
            } else {
                assert_eq!(ours.remove(entry), theirs.remove(&entry));
                if let Some(first) = theirs.pop_first() {
                    assert_eq!(ours.first(), Some(first));
                    assert!(ours.remove(first));
                }
            }
            assert_eq!(ours.len(), theirs.len());
            if step % 997 == 0 {
                assert_eq!(ours.slice(0..usize::MAX), theirs.iter().copied().collect::<Vec<_>>());
                assert_eq!(
                    ours.slice_back(5..12),
                    theirs.iter().rev().skip(5).take(7).copied().collect::<Vec<_>>()
                );
                assert_eq!(ours.count_while(|other| *other < entry), theirs.range(..entry).count());
                assert_eq!(ours.contains(entry), theirs.contains(&entry));
            }
        }
    }

    #[test]
    fn a_set_that_grows_at_its_end_fills_its_leaves() {
        let mut set = Ordered::default();
        (0..LEAF_MAX * 40).for_each(|entry| set.insert(entry));
        let Node::Branch(children) = &set.root else { panic!("one leaf cannot hold that many") };
        assert!(children.iter().all(|child| child.count == LEAF_MAX));
    }

    #[test]
    fn it_is_emptied_from_either_end() {
        for backwards in [false, true] {
            let mut set = Ordered::default();
            (0..20_000).for_each(|entry| set.insert(entry));
            for place in 0..20_000 {
                let entry = if backwards { 19_999 - place } else { place };
                assert!(set.remove(entry));
                assert!(!set.remove(entry));
            }
            assert!(set.is_empty());
            assert_eq!(set.first(), None);
        }
    }
}
