//! Job endings: waiters receive the result, the result is stored, and the job may be forgotten.

use geartrain_core::{Event, Jid, JobEnding, JobResult, OnEnd, Refusal, StoredResult, StreamItem, Timestamp};

use super::{Model, Position};

/// What a result counts besides its bytes.
const RESULT_BYTES_MORE: usize = 128;

/// How many bytes a result counts.
fn counted(how: &JobEnding, outcome: &JobResult) -> usize {
    let said = if let JobEnding::Failed { message, .. } = how { message.len() } else { 0 };
    outcome.bytes.bytes().len() + said + RESULT_BYTES_MORE
}

impl Model {
    /// Refuses what is said to have come out of a job, if it is to be kept and there is no room for it
    /// however much is dropped.
    pub(super) fn refuse_result(&self, jid: &Jid, said: Option<&JobResult>) -> Result<(), Refusal> {
        let Some(said) = said else { return Ok(()) };
        let (bytes, max) = (said.bytes.bytes().len(), self.results_bytes().saturating_sub(RESULT_BYTES_MORE));
        if self.jobs[jid].beyond.result_ttl.is_some() && bytes > max {
            return Err(Refusal::TooLarge { what: "result".into(), bytes, max });
        }
        Ok(())
    }

    /// What becomes of a job that was just completed for good, or failed.
    pub(super) fn end(&mut self, now: Timestamp, jid: &Jid, how: JobEnding, outcome: JobResult) {
        self.job_mut(jid).holds_key = false;
        self.tell_the_end(jid, &how, &outcome);
        self.keep_result(now, jid, how, outcome);
        self.forget(jid);
    }

    /// Delivers the ending to all waiters of a job, and detaches them.
    pub(super) fn tell_the_end(&mut self, jid: &Jid, how: &JobEnding, outcome: &JobResult) {
        self.deliver(jid, &StreamItem::Ended(how.clone(), outcome.clone()));
        self.waiters.retain(|(_, of)| of != jid);
    }

    fn keep_result(&mut self, now: Timestamp, jid: &Jid, how: JobEnding, outcome: JobResult) {
        let Some(result_for) = self.jobs[jid].beyond.result_ttl else { return };
        let max = self.results_bytes();
        if counted(&how, &outcome) > max {
            // There is no result, or it is too large to be stored.
            return;
        }
        self.results.retain(|other| other.jid != *jid);
        self.results.push(StoredResult {
            jid: jid.clone(),
            ending: how,
            result: outcome,
            ended: now,
            until: now + result_for,
        });
        while self.results.iter().map(|kept| counted(&kept.ending, &kept.result)).sum::<usize>() > max {
            self.results.remove(0);
        }
        self.events.push(Event::ResultStored { jid: jid.clone() });
    }

    /// A result that is kept and not too old.
    pub(super) fn result(&self, now: Timestamp, jid: &Jid) -> Option<StoredResult> {
        self.results.iter().find(|kept| kept.jid == *jid && now < kept.until).cloned()
    }

    /// Removes a job that was to be forgotten once it ended, unless another depends on it.
    fn forget(&mut self, jid: &Jid) {
        let job = &self.jobs[jid];
        if job.beyond.on_end == OnEnd::Keep || !self.dependents(jid).is_empty() {
            return;
        }
        // It no longer counts among those that failed on that day and still are.
        if let (Position::Failed { .. }, Some(failure), Some(queue)) =
            (job.place, job.failure.clone(), job.queue.clone())
        {
            self.day(&queue, failure.when).failed -= 1;
        }
        self.drop_job(jid);
    }
}
