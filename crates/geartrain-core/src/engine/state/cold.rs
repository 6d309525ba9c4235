//! The cold part of a row: what only some jobs have, allocated on demand.

use std::collections::{BTreeSet, VecDeque};

use super::extension::Extension;
use super::rows::RowId;
use crate::{AttemptEnd, CompleteReply, Jid, Tag, Timestamp};

#[derive(Debug, Default, PartialEq)]
pub(crate) struct ColdPart {
    pub(crate) tags: Vec<Tagging>,
    pub(crate) dependencies: BTreeSet<RowId>,
    pub(crate) dependents: BTreeSet<RowId>,
    /// The current or a past failure.
    pub(crate) failure: Option<FailureRow>,
    /// The earliest start, once no dependency is open.
    pub(crate) due: Option<Timestamp>,
    pub(crate) spawned_from: Option<Jid>,
    /// The deadline that Qless names, if it is not the score.
    pub(crate) expires: Option<Timestamp>,
    /// Its key in the list of a worker that it was taken from.
    pub(crate) listed: Option<(Timestamp, u64)>,
    /// The last attempt that ended, to answer a repeated completion or failure, or to accept a late one.
    pub(crate) ended: Option<(u64, Ended)>,
    /// Options and state beyond Qless.
    pub(crate) extension: Option<Box<Extension>>,
    /// How its attempts ended, oldest first. Boxed twice, because few jobs have any.
    pub(crate) attempts: Option<Box<AttemptEnds>>,
}

/// The newest ends of a job's attempts. They hold names and not ids: a name that only they need can be freed.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct AttemptEnds(pub(crate) VecDeque<AttemptEnd>);

/// A tag, and when the job was given it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tagging {
    pub(crate) tag: Tag,
    pub(crate) at: Timestamp,
    /// An arrival number. The list of a tag was once ordered by it; snapshots still contain it.
    pub(crate) seq: u64,
}

/// A failure with interned names.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FailureRow {
    pub(crate) group: u32,
    pub(crate) message: Box<str>,
    pub(crate) when: Timestamp,
    pub(crate) worker: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    Completed(CompleteReply),
    Failed,
    /// By its deadline. Its token may still complete or fail the job until the next attempt begins.
    TimedOut,
}
