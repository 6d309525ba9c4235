//! Those who wait for a job, what they are told, and what is kept for those who ask later.

use std::collections::VecDeque;

use super::{Delta, Effects, Engine, NONE, NameId, RowId, RowState, check_size};
use crate::engine::state::{RESULT_BYTES, result_size};
use crate::{
    Attach, AttachReply, Chunk, DURATION_MAX, Delivery, Detach, DetachScope, Event, Jid, JobEnding,
    JobResult, METADATA_BYTES_MAX, OnEnd, OrphanPolicy, Progress, Put, PutOptions, PutReply, Refusal,
    ResultWaiter, Seconds, Status, StatusOf, StatusReply, StoredResult, StreamItem, Timestamp,
};

/// What has to be done when a job ends, noted before it does.
#[derive(Default)]
pub(super) struct Ending {
    waiters: VecDeque<ResultWaiter>,
    result_for: Option<Seconds>,
    forget: bool,
}

impl Engine {
    /// Refuses terms that make no sense.
    pub(super) fn check_terms(terms: &PutOptions) -> Result<(), Refusal> {
        check_span("timeout", terms.attempt_max)?;
        check_span("result_for", terms.result_ttl)?;
        check_size(
            "aside",
            terms.metadata.as_ref().map_or(0, |aside| aside.bytes().len()),
            METADATA_BYTES_MAX,
        )?;
        match terms.crashes_max {
            Some(0) => {
                Err(Refusal::BadArgument { what: "crashes_max".into(), why: "must be at least 1".into() })
            }
            _ => Ok(()),
        }
    }

    /// Answers a put of a job that is there and is to be left alone.
    pub(super) fn join_existing(
        &mut self,
        row: RowId,
        put: &Put,
        fx: &mut Effects,
    ) -> Result<PutReply, Refusal> {
        if let Some(waiter) = put.options.as_ref().and_then(|terms| terms.attach)
            && self.is_unfinished(row)
        {
            self.check_waiter(&waiter, Some(row))?;
            self.attach_to(row, waiter, fx);
        }
        Ok(PutReply::Existing)
    }

    /// Looks at the terms of a put that makes a job or puts it again. Answers it if another job stands for it.
    pub(super) fn agree(
        &mut self,
        now: Timestamp,
        row: Option<RowId>,
        queue: Option<NameId>,
        terms: &PutOptions,
        put: &Put,
        fx: &mut Effects,
    ) -> Result<Option<PutReply>, Refusal> {
        let keyed = queue.zip(terms.unique.as_ref()).and_then(|(queue, key)| self.state.keyed(queue, key));
        if let (None, Some(other)) = (row, keyed) {
            return self.coalesce(other, terms, put, fx).map(Some);
        }
        if let Some(waiter) = &terms.attach {
            self.check_waiter(waiter, row)?;
        }
        match terms.expires {
            Some(expires) if expires <= now => {
                return Err(Refusal::BadArgument {
                    what: "expires".into(),
                    why: format!("must be after {now}, which is now, not {expires}"),
                });
            }
            _ => {}
        }
        if terms.roll_call {
            let klass = self.state.find_name(super::Kind::Klass, put.klass.shared());
            if queue.is_none_or(|queue| self.state.able(queue, klass) == 0) {
                return Err(Refusal::NoCapableWorker { queue: put.queue.clone(), klass: put.klass.clone() });
            }
        }
        Ok(None)
    }

    fn coalesce(
        &mut self,
        row: RowId,
        terms: &PutOptions,
        put: &Put,
        fx: &mut Effects,
    ) -> Result<PutReply, Refusal> {
        if let Some(waiter) = &terms.attach {
            self.check_waiter(waiter, Some(row))?;
        }
        let always = terms.orphan_policy == OrphanPolicy::Always;
        self.commit(Delta::Merged { row, result_for: terms.result_ttl, always }, fx);
        if let Some(waiter) = terms.attach {
            self.attach_to(row, waiter, fx);
        }
        let jid = self.state.jid(row);
        let submissions = self.submissions(row);
        fx.tell(|| Event::Coalesced { jid: jid.clone(), queue: put.queue.clone(), submissions });
        Ok(PutReply::Coalesced { jid })
    }

    /// Gives a job that was just put the terms that its put asked for.
    pub(super) fn settle_terms(&mut self, row: RowId, terms: &mut PutOptions, fx: &mut Effects) {
        let terms = std::mem::take(terms);
        let attach = terms.attach;
        if terms != PutOptions::default() {
            let terms = PutOptions { attach: None, roll_call: false, ..terms };
            self.commit(Delta::PutOptions(row, Box::new(terms)), fx);
        }
        if let Some(waiter) = attach {
            self.attach_to(row, waiter, fx);
        }
    }

    fn is_unfinished(&self, row: RowId) -> bool {
        !matches!(self.state.row(row).state, RowState::Complete | RowState::Failed)
    }

    /// Refuses somebody who waits for another job.
    fn check_waiter(&self, waiter: &ResultWaiter, row: Option<RowId>) -> Result<(), Refusal> {
        match self.state.awaited_by(waiter) {
            Some(other) if Some(other) != row => Err(Refusal::BadArgument {
                what: "waiter".into(),
                why: format!("waits for job {} already", self.state.jid(other)),
            }),
            _ => Ok(()),
        }
    }

    fn attach_to(&mut self, row: RowId, waiter: ResultWaiter, fx: &mut Effects) {
        if self.state.awaited_by(&waiter).is_none() {
            self.commit(Delta::Attached(row, waiter), fx);
        }
    }

    pub(super) fn attach(
        &mut self,
        now: Timestamp,
        attach: Attach,
        fx: &mut Effects,
    ) -> Result<AttachReply, Refusal> {
        let Attach { jid, waiter } = attach;
        let row = self.state.find(&jid);
        if let Some(row) = row.filter(|row| self.is_unfinished(*row)) {
            self.check_waiter(&waiter, Some(row))?;
            self.attach_to(row, waiter, fx);
            return Ok(AttachReply::Attached);
        }
        let state = row.map(|row| self.state.row(row).state.name());
        let kept = self.result(now, &jid);
        match (state, kept) {
            (None, None) => Err(Refusal::NoSuchJob { jid }),
            (state, kept) => Ok(AttachReply::Ended { state, result: kept }),
        }
    }

    pub(super) fn leave(&mut self, leave: &Detach, fx: &mut Effects) -> u64 {
        let nobody = ResultWaiter { stream_id: 0, connection: 0, number: 0 };
        let (first, leaves): (ResultWaiter, &dyn Fn(&ResultWaiter) -> bool) = match &leave.scope {
            DetachScope::One(one) => (*one, &move |waiter| waiter == one),
            DetachScope::Connection { stream_id: front, connection } => {
                (ResultWaiter { stream_id: *front, connection: *connection, number: 0 }, &move |waiter| {
                    waiter.stream_id == *front && waiter.connection == *connection
                })
            }
            DetachScope::Stream(front) => {
                (ResultWaiter { stream_id: *front, ..nobody }, &move |waiter| waiter.stream_id == *front)
            }
            DetachScope::All => (nobody, &|_| true),
        };
        let left: Vec<(ResultWaiter, RowId)> =
            self.state.waiters_from(first).take_while(|(waiter, _)| leaves(waiter)).collect();
        for (waiter, row) in &left {
            self.commit(Delta::Detached(*row, *waiter), fx);
            self.remove_if_abandoned(*row, fx);
        }
        left.len() as u64
    }

    /// Removes a job that lived only as long as somebody waited for it, if nobody does.
    pub(super) fn remove_if_abandoned(&mut self, row: RowId, fx: &mut Effects) {
        let Some(side) = self.state.extension(row) else { return };
        let queued =
            matches!(self.state.row(row).state, RowState::Scheduled | RowState::Depends | RowState::Waiting);
        let is_needed = side.options.orphan_policy == OrphanPolicy::Always
            || !side.waiters.is_empty()
            || self.state.dependents(row).next().is_some();
        if !queued || is_needed {
            return;
        }
        fx.tell(|| Event::Abandoned {
            jid: self.state.jid(row),
            queue: self.state.queue_name(self.state.row(row).queue),
        });
        self.commit(Delta::Remove(row), fx);
    }

    pub(super) fn progress(&mut self, progress: Progress, fx: &mut Effects) -> Result<(), Refusal> {
        let Progress { jid, holder, progress, text: said } = progress;
        self.check_size("progress", said.as_ref().map_or(0, |said| said.bytes().len()))?;
        let row = self.claimed(&jid, &holder)?;
        self.check_holder(row, &jid, &holder)?;
        fx.passing = self.is_passing(row);
        self.commit(Delta::Progressed(row, progress), fx);
        self.deliver(row, &jid, &StreamItem::Progress { progress, text: said }, fx);
        fx.tell(|| Event::Progress { jid, progress });
        Ok(())
    }

    pub(super) fn chunk(&mut self, chunk: Chunk, fx: &mut Effects) -> Result<u64, Refusal> {
        let Chunk { jid, holder, kind, bytes } = chunk;
        self.check_size("chunk", bytes.bytes().len())?;
        let row = self.claimed(&jid, &holder)?;
        self.check_holder(row, &jid, &holder)?;
        Ok(self.deliver(row, &jid, &StreamItem::Chunk(kind, bytes), fx))
    }

    /// Tells everybody who waits for a job, and says how many they are.
    fn deliver(&self, row: RowId, jid: &Jid, told: &StreamItem, fx: &mut Effects) -> u64 {
        let Some(side) = self.state.extension(row) else { return 0 };
        let tell = |waiter: &ResultWaiter| Delivery { waiter: *waiter, jid: jid.clone(), item: told.clone() };
        fx.deliveries.extend(side.waiters.iter().map(tell));
        side.waiters.len() as u64
    }

    /// What will have to be done when a job ends, which is about to happen.
    pub(super) fn ending(&self, row: RowId) -> Option<Ending> {
        if self.state.row(row).rare == NONE {
            return None;
        }
        let side = self.state.extension(row)?;
        Some(Ending {
            waiters: side.waiters.clone(),
            result_for: side.options.result_ttl,
            forget: side.options.on_end == OnEnd::Forget,
        })
    }

    /// Refuses a result that could not be kept.
    pub(super) fn check_result(&self, row: RowId, result: Option<&JobResult>) -> Result<(), Refusal> {
        let Some(result) = result else { return Ok(()) };
        if self.state.extension(row).is_none_or(|side| side.options.result_ttl.is_none()) {
            return Ok(());
        }
        let max = self.state.numbers().results_bytes.saturating_sub(RESULT_BYTES);
        check_size("result", result.bytes.bytes().len(), max)
    }

    /// Does what is to be done when a job has ended.
    pub(super) fn conclude(
        &mut self,
        row: RowId,
        now: Timestamp,
        ending: Ending,
        how: JobEnding,
        result: Option<Box<JobResult>>,
        fx: &mut Effects,
    ) {
        let Ending { waiters, result_for, forget } = ending;
        let jid = self.state.jid(row);
        let outcome = result.map(|result| *result).unwrap_or_else(|| without_result(&how));
        let told = |waiter| Delivery {
            waiter,
            jid: jid.clone(),
            item: StreamItem::Ended(how.clone(), outcome.clone()),
        };
        fx.deliveries.extend(waiters.into_iter().map(told));
        if let Some(result_for) = result_for {
            let until = now + result_for;
            self.keep_result(
                StoredResult { jid: jid.clone(), ending: how, result: outcome, ended: now, until },
                fx,
            );
        }
        if forget && self.state.dependents(row).next().is_none() {
            self.commit(Delta::Remove(row), fx);
        }
    }

    fn keep_result(&mut self, kept: StoredResult, fx: &mut Effects) {
        let max = self.state.numbers().results_bytes as u64;
        // There is no room for it however much is dropped: what nobody gave, or a failure that took many words.
        if result_size(&kept) > max {
            return;
        }
        fx.tell(|| Event::ResultStored { jid: kept.jid.clone() });
        self.commit(Delta::ResultKept(Box::new(kept)), fx);
        while self.state.results().bytes() > max
            && let Some(oldest) = self.state.results().oldest().cloned()
        {
            self.commit(Delta::ResultDropped(oldest), fx);
        }
    }

    /// Tells those who wait for a job that is about to be cancelled.
    pub(super) fn tell_canceled(&self, row: RowId, fx: &mut Effects) {
        if self.state.extension(row).is_some() {
            let outcome = without_result(&JobEnding::Canceled);
            self.deliver(row, &self.state.jid(row), &StreamItem::Ended(JobEnding::Canceled, outcome), fx);
        }
    }

    /// A result that is kept and not too old.
    pub(super) fn result(&self, now: Timestamp, jid: &Jid) -> Option<Box<StoredResult>> {
        self.state.results().get(jid).filter(|kept| kept.until > now).cloned().map(Box::new)
    }

    pub(super) fn status(&self, status: &Status) -> Option<StatusReply> {
        let row = match &status.of {
            StatusOf::Jid(jid) => self.state.find(jid).filter(|row| self.is_unfinished(*row)),
            StatusOf::Unique(queue, key) => {
                self.state.find_queue(queue.as_str()).and_then(|queue| self.state.keyed(queue, key))
            }
        }?;
        let side = self.state.extension(row);
        Some(StatusReply {
            jid: self.state.jid(row),
            queue: self.state.queue_name(self.state.row(row).queue),
            state: self.state.row(row).state.name(),
            progress: side.and_then(|side| side.progress),
            submissions: self.submissions(row),
            attached: side.map_or(0, |side| side.waiters.len() as u64),
        })
    }

    fn submissions(&self, row: RowId) -> u64 {
        1 + self.state.extension(row).map_or(0, |side| side.joined)
    }
}

fn without_result(how: &JobEnding) -> JobResult {
    JobResult { code: i32::from(*how != JobEnding::Completed), ..JobResult::default() }
}

/// Refuses a time that nothing could be done in, or that is beyond all plans.
pub(super) fn check_span(what: &'static str, span: Option<Seconds>) -> Result<(), Refusal> {
    match span {
        Some(span) if span <= Seconds::ZERO || span > DURATION_MAX => Err(Refusal::BadArgument {
            what: what.into(),
            why: format!("must be above 0 seconds and at most ten years, not {span}"),
        }),
        _ => Ok(()),
    }
}
