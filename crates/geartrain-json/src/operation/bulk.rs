//! Changes of all jobs that a filter selects: a count with samples first, then the change in bounded steps.

use geartrain_core::{Act, BulkAct, Filter, Select};

use super::{FieldInfo, FieldKind, Need, Outcome, Plan, Queue, document, jobs};
use crate::select::{BulkSum, PreviewView, not_json};
use crate::{Object, OperationError, SelectedView};

/// How many jobs a preview shows.
const SAMPLES: usize = 3;

pub(super) const ALL: FieldInfo =
    FieldInfo::new("all", FieldKind::Flag, "All jobs: required for a filter without a term")
        .needed(Need::AtLeastOne)
        .of_many();
pub(super) const DRY_RUN: FieldInfo =
    FieldInfo::new("dry_run", FieldKind::Flag, "Only counts the selected jobs, and shows three of them")
        .of_many();

/// The filter of a change of many jobs; none if one job is meant.
pub(super) fn filter(object: &Object<'_>) -> Result<Option<Filter>, OperationError> {
    let (filter, all) = (jobs::filter(object)?, object.flag("all")?);
    match filter {
        Some(filter) if filter.is_empty() && !all => Err(OperationError::bad_argument(
            "a filter without a term selects every job: send `all` if that is meant",
        )),
        None if all => Ok(Some(Filter::default())),
        None if object.flag("dry_run")? => {
            Err(OperationError::bad_argument("`dry_run` goes with `where` or `all`"))
        }
        filter => Ok(filter),
    }
}

/// Changes the jobs that a filter selects.
pub(super) fn act(object: &Object<'_>, filter: Filter, act: BulkAct) -> Result<Plan, OperationError> {
    let dry_run = object.flag("dry_run")?;
    Plan::steps(move |queue| run(queue, filter, act, dry_run))
}

async fn run(queue: Queue, filter: Filter, act: BulkAct, dry_run: bool) -> Outcome {
    let (mut matching, mut samples) = (0, Vec::new());
    let mut ask = Select::new(filter.clone());
    loop {
        let page = queue.run(ask.clone()).await?;
        if page.not_json > 0 {
            return Err(not_json(page.not_json));
        }
        matching += page.jobs.len() as u64;
        samples.extend(page.jobs.iter().take(SAMPLES - samples.len()).map(SelectedView::new));
        match page.next {
            Some(next) => ask.after = Some(next),
            None => break,
        }
    }
    if dry_run {
        return document(&PreviewView { matching, samples });
    }
    let mut sum = BulkSum::default();
    let mut ask = Act::new(filter, act);
    loop {
        let reply = *queue.run(ask.clone()).await?;
        let (next, again) = (reply.next.clone(), reply.again.clone());
        sum.add(reply);
        if !again.is_empty() {
            ask.only = again;
            ask.after = None;
            // The cursor goes on where it was once these are done.
            while !ask.only.is_empty() {
                let mut more = *queue.run(ask.clone()).await?;
                ask.only = std::mem::take(&mut more.again);
                sum.add(more);
            }
        }
        match next {
            Some(next) => ask.after = Some(next),
            None => break,
        }
    }
    document(&sum.document(matching, samples))
}
