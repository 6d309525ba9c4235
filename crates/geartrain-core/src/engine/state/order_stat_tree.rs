//! Order-statistics tree: a sorted set with rank and select, used for the engine's large indexes.
//!
//! It is a B+ tree with wide leaves and counts at every branch. Queues mostly grow at one end and shrink at
//! the other, so a leaf is a ring buffer, and the first and the last leaf are kept outside the tree: both
//! ends cost a few nanoseconds, and full leaves stay full. No operation moves more than one leaf's entries,
//! so no call stalls, however large the set.

use std::collections::VecDeque;
use std::ops::Range;

const LEAF_MAX: usize = 128;
const BRANCH_MAX: usize = 64;

#[derive(Debug)]
pub(crate) struct OrderStatTree<E> {
    /// The first leaf. If it is empty, the middle is empty too.
    head: VecDeque<E>,
    middle: Node<E>,
    /// The last leaf.
    tail: VecDeque<E>,
    len: usize,
}

#[derive(Debug)]
enum Node<E> {
    Leaf(VecDeque<E>),
    Branch(Vec<Child<E>>),
}

#[derive(Debug)]
struct Child<E> {
    /// A lower bound of the node's entries.
    least: E,
    count: usize,
    node: Node<E>,
}

/// Where an entry is, or belongs.
enum Zone {
    Head,
    Middle,
    Tail,
}

impl<E> Default for OrderStatTree<E> {
    fn default() -> OrderStatTree<E> {
        OrderStatTree { head: VecDeque::new(), middle: Node::default(), tail: VecDeque::new(), len: 0 }
    }
}

impl<E> Default for Node<E> {
    fn default() -> Node<E> {
        Node::Leaf(VecDeque::new())
    }
}

impl<E: Ord + Clone> OrderStatTree<E> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Approximate memory of the capacity at both ends.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<E>() * (self.head.capacity() + self.tail.capacity())
    }

    /// Inserts an entry that is not in the set.
    pub(crate) fn insert(&mut self, entry: E) {
        match self.zone(&entry) {
            Zone::Tail if self.tail.len() < LEAF_MAX => insert(&mut self.tail, entry),
            Zone::Tail => {
                let right = split(&mut self.tail, entry);
                let left = std::mem::replace(&mut self.tail, right);
                if self.head.is_empty() {
                    self.head = left;
                } else {
                    self.change_middle(|middle| middle.append(Child::leaf(left)));
                }
            }
            Zone::Head if self.head.len() < LEAF_MAX => insert(&mut self.head, entry),
            Zone::Head => {
                let right = split(&mut self.head, entry);
                self.change_middle(|middle| middle.prepend(Child::leaf(right)));
            }
            Zone::Middle => self.change_middle(|middle| middle.insert(entry)),
        }
        self.len += 1;
    }

    /// Removes an entry. Returns whether it was in the set.
    pub(crate) fn remove(&mut self, entry: E) -> bool {
        let found = match self.zone(&entry) {
            Zone::Head => remove(&mut self.head, &entry),
            Zone::Middle => self.middle.remove(&entry),
            Zone::Tail => remove(&mut self.tail, &entry),
        };
        if found {
            if self.head.is_empty() {
                self.head = self.middle.take_first();
            }
            while let Node::Branch(children) = &mut self.middle
                && children.len() <= 1
            {
                self.middle = children.pop().map_or(Node::default(), |only| only.node);
            }
            self.len -= 1;
        }
        found
    }

    pub(crate) fn contains(&self, entry: E) -> bool {
        let mut node = match self.zone(&entry) {
            Zone::Head => return self.head.binary_search(&entry).is_ok(),
            Zone::Tail => return self.tail.binary_search(&entry).is_ok(),
            Zone::Middle => &self.middle,
        };
        loop {
            match node {
                Node::Leaf(entries) => return entries.binary_search(&entry).is_ok(),
                Node::Branch(children) => node = &children[child_for(children, &entry)].node,
            }
        }
    }

    pub(crate) fn first(&self) -> Option<E> {
        self.head.front().or(self.tail.front()).cloned()
    }

    /// Rank: how many entries satisfy a condition that holds for a prefix of the set.
    pub(crate) fn count_while(&self, condition: impl Fn(&E) -> bool) -> usize {
        if self.head.back().is_some_and(|last| !condition(last)) {
            return self.head.partition_point(condition);
        }
        if self.tail.front().is_some_and(&condition) {
            return self.len - self.tail.len() + self.tail.partition_point(condition);
        }
        let (mut node, mut before) = (&self.middle, self.head.len());
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

    /// Select: the entries at these positions, in order. Positions beyond the end are ignored.
    pub(crate) fn slice(&self, positions: Range<usize>) -> Vec<E> {
        let mut entries = Vec::with_capacity(positions.end.min(self.len).saturating_sub(positions.start));
        let (head, before_tail) = (self.head.len(), self.len - self.tail.len());
        if let Some(positions) = within(&positions, 0..head) {
            entries.extend(self.head.range(positions).cloned());
        }
        if let Some(positions) = within(&positions, head..before_tail) {
            self.middle.slice(positions, &mut entries);
        }
        if let Some(positions) = within(&positions, before_tail..self.len) {
            entries.extend(self.tail.range(positions).cloned());
        }
        entries
    }

    /// Like `slice`, counted from the end backwards.
    pub(crate) fn slice_back(&self, positions: Range<usize>) -> Vec<E> {
        let from_end = |position: usize| self.len - position.min(self.len);
        let mut entries = self.slice(from_end(positions.end)..from_end(positions.start));
        entries.reverse();
        entries
    }

    fn zone(&self, entry: &E) -> Zone {
        match (self.tail.front(), self.head.back()) {
            (Some(first), _) if first <= entry => Zone::Tail,
            (None, None) => Zone::Tail,
            (_, Some(last)) if last < entry => match self.len - self.head.len() - self.tail.len() {
                0 if self.tail.is_empty() => Zone::Tail,
                0 => Zone::Head,
                _ if self.tail.is_empty() && self.middle.last() < entry => Zone::Tail,
                _ => Zone::Middle,
            },
            _ => Zone::Head,
        }
    }

    /// Inserts into the tree, which gets a new root if the old one was split.
    fn change_middle(&mut self, put: impl FnOnce(&mut Node<E>) -> Option<Child<E>>) {
        if let Some(right) = put(&mut self.middle) {
            let left = Child::of(std::mem::take(&mut self.middle));
            self.middle = Node::Branch(vec![left, right]);
        }
    }
}

/// The part of some positions that is within a zone, relative to its start.
fn within(positions: &Range<usize>, zone: Range<usize>) -> Option<Range<usize>> {
    let (start, end) = (positions.start.max(zone.start), positions.end.min(zone.end));
    (start < end).then(|| start - zone.start..end - zone.start)
}

/// Inserts an entry into a leaf.
fn insert<E: Ord + Clone>(leaf: &mut VecDeque<E>, entry: E) {
    if leaf.back().is_none_or(|last| *last < entry) {
        leaf.push_back(entry);
    } else {
        leaf.insert(leaf.partition_point(|other| *other < entry), entry);
    }
}

/// Inserts an entry into a full leaf, and returns a new right neighbour. A set that grows at its end leaves
/// full leaves behind.
fn split<E: Ord + Clone>(leaf: &mut VecDeque<E>, entry: E) -> VecDeque<E> {
    let at_end = leaf.back().is_none_or(|last| *last < entry);
    let mut right = if at_end { VecDeque::with_capacity(LEAF_MAX) } else { leaf.split_off(LEAF_MAX / 2) };
    insert(if right.front().is_none_or(|first| *first < entry) { &mut right } else { leaf }, entry);
    right
}

fn remove<E: Ord>(leaf: &mut VecDeque<E>, entry: &E) -> bool {
    if leaf.front() == Some(entry) {
        leaf.pop_front();
        return true;
    }
    leaf.binary_search(entry).is_ok_and(|position| leaf.remove(position).is_some())
}

/// The child that an entry is in, or belongs in.
fn child_for<E: Ord>(children: &[Child<E>], entry: &E) -> usize {
    // Queues are used at their ends. Only entries in the middle need a search, which touches many cache
    // lines.
    match children {
        [.., last] if last.least <= *entry => children.len() - 1,
        [_, second, ..] if *entry < second.least => 0,
        _ => children.partition_point(|child| child.least <= *entry).saturating_sub(1),
    }
}

impl<E: Ord + Clone> Child<E> {
    /// Lowers the bound, because an entry is about to be inserted.
    fn include(&mut self, entry: &E) {
        if *entry < self.least {
            self.least = entry.clone();
        }
    }

    fn leaf(entries: VecDeque<E>) -> Child<E> {
        Child { least: entries[0].clone(), count: entries.len(), node: Node::Leaf(entries) }
    }

    fn of(node: Node<E>) -> Child<E> {
        match node {
            Node::Leaf(entries) => Child::leaf(entries),
            Node::Branch(children) => {
                let count = children.iter().map(|child| child.count).sum();
                Child { least: children[0].least.clone(), count, node: Node::Branch(children) }
            }
        }
    }
}

/// Changes a child of a branch, which may split it. Returns a new right neighbour of the branch, if that was
/// split too.
fn change<E: Ord + Clone>(
    children: &mut Vec<Child<E>>,
    at: usize,
    more: usize,
    put: impl FnOnce(&mut Node<E>) -> Option<Child<E>>,
) -> Option<Child<E>> {
    let child = &mut children[at];
    child.count += more;
    let right = put(&mut child.node)?;
    child.count -= right.count;
    children.insert(at + 1, right);
    if children.len() <= BRANCH_MAX {
        return None;
    }
    let keep = if at + 2 == children.len() { BRANCH_MAX } else { BRANCH_MAX / 2 };
    Some(Child::of(Node::Branch(children.split_off(keep))))
}

impl<E: Ord + Clone> Node<E> {
    /// The last entry of a node that is not empty.
    fn last(&self) -> &E {
        match self {
            Node::Leaf(entries) => &entries[entries.len() - 1],
            Node::Branch(children) => children[children.len() - 1].node.last(),
        }
    }

    /// Inserts an entry, and returns a new right neighbour if the node was split.
    fn insert(&mut self, entry: E) -> Option<Child<E>> {
        match self {
            Node::Leaf(entries) if entries.len() < LEAF_MAX => insert(entries, entry),
            Node::Leaf(entries) => return Some(Child::leaf(split(entries, entry))),
            Node::Branch(children) => {
                let at = child_for(children, &entry);
                children[at].include(&entry);
                return change(children, at, 1, |node| node.insert(entry));
            }
        }
        None
    }

    /// Adds a leaf after all others. Returns a new right neighbour if the node was split.
    fn append(&mut self, leaf: Child<E>) -> Option<Child<E>> {
        match self {
            Node::Leaf(entries) if entries.is_empty() => *self = leaf.node,
            Node::Leaf(_) => return Some(leaf),
            Node::Branch(children) => {
                let (at, more) = (children.len() - 1, leaf.count);
                return change(children, at, more, |node| node.append(leaf));
            }
        }
        None
    }

    /// Adds a leaf before all others. Returns a new right neighbour if the node was split.
    fn prepend(&mut self, leaf: Child<E>) -> Option<Child<E>> {
        match self {
            Node::Leaf(entries) if entries.is_empty() => *self = leaf.node,
            Node::Leaf(_) => return Some(Child::of(std::mem::replace(self, leaf.node))),
            Node::Branch(children) => {
                let more = leaf.count;
                children[0].include(&leaf.least);
                return change(children, 0, more, |node| node.prepend(leaf));
            }
        }
        None
    }

    /// Removes the first leaf; an empty one if there is none.
    fn take_first(&mut self) -> VecDeque<E> {
        match self {
            Node::Leaf(entries) => std::mem::take(entries),
            Node::Branch(children) => {
                let Some(first) = children.first_mut() else { return VecDeque::new() };
                let taken = first.node.take_first();
                first.count -= taken.len();
                if first.count == 0 {
                    children.remove(0);
                }
                taken
            }
        }
    }

    fn remove(&mut self, entry: &E) -> bool {
        match self {
            Node::Leaf(entries) => remove(entries, entry),
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

    fn slice(&self, positions: Range<usize>, into: &mut Vec<E>) {
        match self {
            Node::Leaf(entries) => into.extend(entries.range(positions).cloned()),
            Node::Branch(children) => {
                let mut before = 0;
                for child in children {
                    if before >= positions.end {
                        break;
                    }
                    if let Some(positions) = within(&positions, before..before + child.count) {
                        child.node.slice(positions, into);
                    }
                    before += child.count;
                }
            }
        }
    }
}

/// Merges two neighbouring leaves that are nearly empty.
fn merge<E>(children: &mut Vec<Child<E>>, at: usize) {
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

    /// A random number generator that is good enough to visit every split and merge.
    fn scrambled(step: u64) -> u64 {
        (step.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (step << 7)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 40
    }

    #[test]
    fn the_tree_agrees_with_the_standard_sorted_set() {
        let (mut ours, mut theirs) = (OrderStatTree::default(), BTreeSet::new());
        for step in 0..120_000_u64 {
            // Anywhere, at the end, at the beginning.
            let entry = match step / 20_000 % 3 {
                0 => scrambled(step) % 20_000,
                1 => 1_000_000 + step,
                _ => 1_000_000 - step,
            };
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
            assert_eq!(ours.first(), theirs.first().copied());
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
        let mut set = OrderStatTree::default();
        (0..LEAF_MAX * 40).for_each(|entry| set.insert(entry));
        let Node::Branch(children) = &set.middle else { panic!("one leaf cannot hold that many") };
        assert!(children.iter().all(|child| child.count == LEAF_MAX));
    }

    #[test]
    fn the_tree_can_be_emptied_from_either_end() {
        for backwards in [false, true] {
            let mut set = OrderStatTree::default();
            (0..20_000).for_each(|entry| set.insert(entry));
            for position in 0..20_000 {
                let entry = if backwards { 19_999 - position } else { position };
                assert!(set.remove(entry));
                assert!(!set.remove(entry));
            }
            assert!(set.is_empty());
            assert_eq!(set.first(), None);
        }
    }
}
