//! Put options beyond Qless: unique keys and coalescing, result waiters and their result streams, stored
//! results, status.

use std::collections::VecDeque;

use super::{Delta, Effects, Engine, NONE, NameId, RowId, RowState, check_size};
use crate::engine::state::{RESULT_BYTES, result_size};
use crate::{
    Attach, AttachReply, Chunk, DURATION_MAX, Detach, DetachScope, Event, Jid, JobEnding, JobResult,
    METADATA_BYTES_MAX, OnEnd, OrphanPolicy, Progress, Put, PutOptions, PutReply, Refusal, ResultWaiter,
    Seconds, Status, StatusOf, StatusReply, StoredResult, StreamItem, StreamMessage, Timestamp,
};

/// What to do when a job ends, collected before it does.
#[derive(Default)]
pub(super) struct EndActions {
    waiters: VecDeque<ResultWaiter>,
    result_ttl: Option<Seconds>,
    forget: bool,
}

impl Engine {
    /// Refuses invalid put options.
    pub(super) fn check_put_options(options: &PutOptions) -> Result<(), Refusal> {
        check_span("timeout", options.attempt_max)?;
        check_span("result_for", options.result_ttl)?;
        check_size(
            "aside",
            options.metadata.as_ref().map_or(0, |metadata| metadata.bytes().len()),
            METADATA_BYTES_MAX,
        )?;
        match options.crashes_max {
            Some(0) => {
                Err(Refusal::BadArgument { what: "crashes_max".into(), why: "must be at least 1".into() })
            }
            _ => Ok(()),
        }
    }

    /// Answers a put that keeps an existing job, and attaches its waiter.
    pub(super) fn join_existing(
        &mut self,
        row: RowId,
        put: &Put,
        fx: &mut Effects,
    ) -> Result<PutReply, Refusal> {
        if let Some(waiter) = put.options.as_ref().and_then(|options| options.attach)
            && self.is_unfinished(row)
        {
            self.check_waiter(&waiter, Some(row))?;
            self.attach_to(row, waiter, fx);
        }
        Ok(PutReply::Existing)
    }

    /// Checks the options of a put that makes a job or puts it again. Coalesces it with the job that has its
    /// unique key, if there is one, and then returns the reply.
    pub(super) fn coalesce_or_check(
        &mut self,
        now: Timestamp,
        row: Option<RowId>,
        queue: Option<NameId>,
        options: &PutOptions,
        put: &Put,
        fx: &mut Effects,
    ) -> Result<Option<PutReply>, Refusal> {
        let keyed = queue.zip(options.unique.as_ref()).and_then(|(queue, key)| self.state.keyed(queue, key));
        if let (None, Some(other)) = (row, keyed) {
            return self.coalesce(other, options, put, fx).map(Some);
        }
        if let Some(waiter) = &options.attach {
            self.check_waiter(waiter, row)?;
        }
        match options.expires {
            Some(expires) if expires <= now => {
                return Err(Refusal::BadArgument {
                    what: "expires".into(),
                    why: format!("must be after {now}, which is now, not {expires}"),
                });
            }
            _ => {}
        }
        if options.roll_call {
            let klass = self.state.find_name(super::Kind::Klass, put.klass.shared());
            if queue.is_none_or(|queue| self.state.capable_workers(queue, klass) == 0) {
                return Err(Refusal::NoCapableWorker { queue: put.queue.clone(), klass: put.klass.clone() });
            }
        }
        Ok(None)
    }

    fn coalesce(
        &mut self,
        row: RowId,
        options: &PutOptions,
        put: &Put,
        fx: &mut Effects,
    ) -> Result<PutReply, Refusal> {
        if let Some(waiter) = &options.attach {
            self.check_waiter(waiter, Some(row))?;
        }
        let always = options.orphan_policy == OrphanPolicy::Always;
        self.commit(Delta::Coalesced { row, result_ttl: options.result_ttl, always }, fx);
        if let Some(waiter) = options.attach {
            self.attach_to(row, waiter, fx);
        }
        let jid = self.state.jid(row);
        let submissions = self.submissions(row);
        fx.publish(|| Event::Coalesced { jid: jid.clone(), queue: put.queue.clone(), submissions });
        Ok(PutReply::Coalesced { jid })
    }

    /// Stores the options of a job that was just put, and attaches its waiter.
    pub(super) fn set_put_options(&mut self, row: RowId, options: &mut PutOptions, fx: &mut Effects) {
        let options = std::mem::take(options);
        let attach = options.attach;
        if options != PutOptions::default() {
            let options = PutOptions { attach: None, roll_call: false, ..options };
            self.commit(Delta::PutOptions(row, Box::new(options)), fx);
        }
        if let Some(waiter) = attach {
            self.attach_to(row, waiter, fx);
        }
    }

    fn is_unfinished(&self, row: RowId) -> bool {
        !matches!(self.state.row(row).state, RowState::Complete | RowState::Failed)
    }

    /// Refuses a waiter that waits for another job.
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
        let stored = self.result(now, &jid);
        match (state, stored) {
            (None, None) => Err(Refusal::NoSuchJob { jid }),
            (state, stored) => Ok(AttachReply::Ended { state, result: stored }),
        }
    }

    pub(super) fn detach(&mut self, detach: &Detach, fx: &mut Effects) -> u64 {
        let lowest = ResultWaiter { stream_id: 0, connection: 0, number: 0 };
        let (first, is_detached): (ResultWaiter, &dyn Fn(&ResultWaiter) -> bool) = match &detach.scope {
            DetachScope::One(one) => (*one, &move |waiter| waiter == one),
            DetachScope::Connection { stream_id: front, connection } => {
                (ResultWaiter { stream_id: *front, connection: *connection, number: 0 }, &move |waiter| {
                    waiter.stream_id == *front && waiter.connection == *connection
                })
            }
            DetachScope::Stream(front) => {
                (ResultWaiter { stream_id: *front, ..lowest }, &move |waiter| waiter.stream_id == *front)
            }
            DetachScope::All => (lowest, &|_| true),
        };
        let detached: Vec<(ResultWaiter, RowId)> =
            self.state.waiters_from(first).take_while(|(waiter, _)| is_detached(waiter)).collect();
        for (waiter, row) in &detached {
            self.commit(Delta::Detached(*row, *waiter), fx);
            self.remove_if_abandoned(*row, fx);
        }
        detached.len() as u64
    }

    /// Removes a queued job without waiters, if its orphan policy says so.
    pub(super) fn remove_if_abandoned(&mut self, row: RowId, fx: &mut Effects) {
        let Some(extension) = self.state.extension(row) else { return };
        let queued =
            matches!(self.state.row(row).state, RowState::Scheduled | RowState::Depends | RowState::Waiting);
        let is_needed = extension.options.orphan_policy == OrphanPolicy::Always
            || !extension.waiters.is_empty()
            || self.state.dependents(row).next().is_some();
        if !queued || is_needed {
            return;
        }
        fx.publish(|| Event::Abandoned {
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
        fx.ephemeral = self.is_ephemeral(row);
        self.commit(Delta::Progressed(row, progress), fx);
        self.deliver(row, &jid, &StreamItem::Progress { progress, text: said }, fx);
        fx.publish(|| Event::Progress { jid, progress });
        Ok(())
    }

    pub(super) fn chunk(&mut self, chunk: Chunk, fx: &mut Effects) -> Result<u64, Refusal> {
        let Chunk { jid, holder, kind, bytes } = chunk;
        self.check_size("chunk", bytes.bytes().len())?;
        let row = self.claimed(&jid, &holder)?;
        self.check_holder(row, &jid, &holder)?;
        Ok(self.deliver(row, &jid, &StreamItem::Chunk(kind, bytes), fx))
    }

    /// Delivers an item to the result streams of a job. Returns their number.
    fn deliver(&self, row: RowId, jid: &Jid, item: &StreamItem, fx: &mut Effects) -> u64 {
        let Some(extension) = self.state.extension(row) else { return 0 };
        let delivery =
            |waiter: &ResultWaiter| StreamMessage { waiter: *waiter, jid: jid.clone(), item: item.clone() };
        fx.deliveries.extend(extension.waiters.iter().map(delivery));
        extension.waiters.len() as u64
    }

    /// What to do when this job ends; call it before.
    pub(super) fn end_actions(&self, row: RowId) -> Option<EndActions> {
        if self.state.row(row).cold == NONE {
            return None;
        }
        let extension = self.state.extension(row)?;
        Some(EndActions {
            waiters: extension.waiters.clone(),
            result_ttl: extension.options.result_ttl,
            forget: extension.options.on_end == OnEnd::Forget,
        })
    }

    /// Refuses a result that is too large to be stored.
    pub(super) fn check_result(&self, row: RowId, result: Option<&JobResult>) -> Result<(), Refusal> {
        let Some(result) = result else { return Ok(()) };
        if self.state.extension(row).is_none_or(|extension| extension.options.result_ttl.is_none()) {
            return Ok(());
        }
        let max = self.state.numbers().results_bytes.saturating_sub(RESULT_BYTES);
        check_size("result", result.bytes.bytes().len(), max)
    }

    /// Ends a job: delivers the ending, stores the result, and removes the job if it is not to be kept.
    pub(super) fn conclude(
        &mut self,
        row: RowId,
        now: Timestamp,
        actions: EndActions,
        ending: JobEnding,
        result: Option<Box<JobResult>>,
        fx: &mut Effects,
    ) {
        let EndActions { waiters, result_ttl, forget } = actions;
        let jid = self.state.jid(row);
        let result = result.map(|result| *result).unwrap_or_else(|| without_result(&ending));
        let delivery = |waiter| StreamMessage {
            waiter,
            jid: jid.clone(),
            item: StreamItem::Ended(ending.clone(), result.clone()),
        };
        fx.deliveries.extend(waiters.into_iter().map(delivery));
        if let Some(result_ttl) = result_ttl {
            let until = now + result_ttl;
            self.store_result(StoredResult { jid: jid.clone(), ending, result, ended: now, until }, fx);
        }
        if forget && self.state.dependents(row).next().is_none() {
            self.commit(Delta::Remove(row), fx);
        }
    }

    fn store_result(&mut self, stored: StoredResult, fx: &mut Effects) {
        let max = self.state.numbers().results_bytes as u64;
        // Dropping others would not make enough room: the limit is tiny, or the failure's message is long.
        if result_size(&stored) > max {
            return;
        }
        fx.publish(|| Event::ResultStored { jid: stored.jid.clone() });
        self.commit(Delta::ResultStored(Box::new(stored)), fx);
        while self.state.results().bytes() > max
            && let Some(oldest) = self.state.results().oldest().cloned()
        {
            self.commit(Delta::ResultDropped(oldest), fx);
        }
    }

    /// Delivers the cancellation of a job to its result streams.
    pub(super) fn deliver_canceled(&self, row: RowId, fx: &mut Effects) {
        if self.state.extension(row).is_some() {
            let result = without_result(&JobEnding::Canceled);
            self.deliver(row, &self.state.jid(row), &StreamItem::Ended(JobEnding::Canceled, result), fx);
        }
    }

    /// A stored result that has not expired.
    pub(super) fn result(&self, now: Timestamp, jid: &Jid) -> Option<Box<StoredResult>> {
        self.state.results().get(jid).filter(|stored| stored.until > now).cloned().map(Box::new)
    }

    pub(super) fn status(&self, status: &Status) -> Option<StatusReply> {
        let row = match &status.of {
            StatusOf::Jid(jid) => self.state.find(jid).filter(|row| self.is_unfinished(*row)),
            StatusOf::Unique(queue, key) => {
                self.state.find_queue(queue.as_str()).and_then(|queue| self.state.keyed(queue, key))
            }
        }?;
        let extension = self.state.extension(row);
        Some(StatusReply {
            jid: self.state.jid(row),
            queue: self.state.queue_name(self.state.row(row).queue),
            state: self.state.row(row).state.name(),
            progress: extension.and_then(|extension| extension.progress),
            submissions: self.submissions(row),
            attached: extension.map_or(0, |extension| extension.waiters.len() as u64),
        })
    }

    fn submissions(&self, row: RowId) -> u64 {
        1 + self.state.extension(row).map_or(0, |extension| extension.joined)
    }
}

fn without_result(ending: &JobEnding) -> JobResult {
    JobResult { code: i32::from(*ending != JobEnding::Completed), ..JobResult::default() }
}

/// Refuses a duration that is not positive or longer than ten years.
pub(super) fn check_span(what: &'static str, span: Option<Seconds>) -> Result<(), Refusal> {
    match span {
        Some(span) if span <= Seconds::ZERO || span > DURATION_MAX => Err(Refusal::BadArgument {
            what: what.into(),
            why: format!("must be above 0 seconds and at most ten years, not {span}"),
        }),
        _ => Ok(()),
    }
}
