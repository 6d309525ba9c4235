//! What only some jobs have, kept apart from their rows and made on demand.

use std::collections::BTreeSet;

use super::extension::Extension;
use super::rows::RowId;
use crate::{CompleteReply, Jid, Tag, Timestamp};

/// What only some jobs have.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct ColdPart {
    pub(crate) tags: Vec<Tagging>,
    pub(crate) dependencies: BTreeSet<RowId>,
    pub(crate) dependents: BTreeSet<RowId>,
    /// How it failed, now or earlier.
    pub(crate) failure: Option<FailureRow>,
    /// When it may run at the earliest, once it depends on nothing.
    pub(crate) due: Option<Timestamp>,
    pub(crate) spawned_from: Option<Jid>,
    /// The deadline that Qless names, where that is not the score.
    pub(crate) expires: Option<Timestamp>,
    /// Where it stands in the list of a worker that it was taken from.
    pub(crate) listed: Option<(Timestamp, u64)>,
    /// The last attempt that ended, and how, as far as a repetition must be answered.
    pub(crate) ended: Option<(u64, Ended)>,
    /// What goes beyond Qless.
    pub(crate) extension: Option<Box<Extension>>,
}

/// A tag, and where the job stands in the list of that tag.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tagging {
    pub(crate) tag: Tag,
    pub(crate) at: Timestamp,
    pub(crate) seq: u64,
}

/// A failure, with names as their numbers.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FailureRow {
    pub(crate) group: u32,
    pub(crate) message: Box<str>,
    pub(crate) when: Timestamp,
    pub(crate) worker: u32,
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    Completed(CompleteReply),
    Failed,
}
