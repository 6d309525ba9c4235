//! What is different if jobs leave Gearman servers: a server hands jobs only to workers, so those that stay are held
//! until they are put back, and a server tells little.

use std::time::{Duration, Instant};

use geartrain_core::{
    GetMany, Jid, JobState, QueueCounts, Queues, StateName, Status, StatusOf, TRANSFER_GROUP,
};

use super::report::Report;
use super::source::Batch;
use super::{System, Transfer, TransferError};

/// How long jobs that stay are held while others are moved. A client may wait for their results.
const HOLD: Duration = Duration::from_secs(2);
/// How long a transfer that follows waits before it asks again for jobs that were not handed out.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// What is said once about all jobs.
const NOT_TOLD: &str = "a Gearman server does not tell a worker the priority of a job: it was not carried";
const REQUEUED: &str = "a Gearman server requeues what an interrupted move held, also jobs that have arrived: stop its \
                        workers, or run the move again before they take them";
const ONLY_COUNTED: &str = "a Gearman server shows a job only to the worker that takes it: these jobs are counted, and \
                            those that are not due or for which a client waits stay";
const NOTHING_ASIDE: &str =
    "nothing is set aside at a Gearman server: it requeues the jobs of a move that ends";

/// The end of the last pass.
pub(super) struct LastPass {
    at: Instant,
    /// Jobs for which clients wait, or may.
    awaited: Vec<Jid>,
    /// How many others wait: those that were not handed out, and those that the target refused.
    others: u64,
}

impl LastPass {
    pub(super) fn of(report: &Report) -> LastPass {
        let stay = report.stay.iter().map(|stay| stay.jid.clone());
        let (refused, awaited): (Vec<Jid>, Vec<Jid>) = stay.partition(|jid| split(jid).is_some());
        LastPass { at: Instant::now(), awaited, others: report.not_handed_out + refused.len() as u64 }
    }
}

impl Transfer {
    fn note(&mut self, note: &'static str) {
        if !self.report.notes.contains(&note) {
            self.report.notes.push(note);
        }
    }

    pub(super) fn note_what_servers_leave_out(&mut self) {
        if self.ends.from == System::Gearman {
            self.note(NOT_TOLD);
            self.note(REQUEUED);
        }
    }

    pub(super) fn note_abort(&mut self) {
        if self.ends.from == System::Gearman {
            self.note(NOTHING_ASIDE);
        }
    }

    async fn counts(&self) -> Result<Vec<QueueCounts>, TransferError> {
        let mut all = Vec::with_capacity(self.ends.queues.len());
        for queue in self.ends.queues.clone() {
            all.extend(self.ends.ask(Queues { queue: Some(queue) }).await?);
        }
        Ok(all)
    }

    /// Counts what waits, which is all that a server shows.
    pub(super) async fn dry_run_gearman(&mut self) -> Result<(), TransferError> {
        let waiting = self.counts().await?.iter().map(|counts| counts.waiting).sum();
        self.report.moved = waiting;
        if waiting > 0 {
            self.report.by_state.insert(StateName::Waiting.as_str(), waiting);
        }
        self.note(ONLY_COUNTED);
        self.count_staying().await?;
        self.report.not_handed_out = 0;
        Ok(())
    }

    /// Whether there may be jobs that the last pass did not see. To ask a server is to take jobs from it, and a job
    /// that is put back has used up an attempt, if the server limits these.
    pub(super) async fn is_worth_a_pass(&self, last: Option<&LastPass>) -> Result<bool, TransferError> {
        let Some(last) = last else { return Ok(true) };
        let waiting: u64 = self.counts().await?.iter().map(|counts| counts.waiting).sum();
        let mut seen = last.others;
        for jid in &last.awaited {
            let status = self.ends.ask(Status { of: StatusOf::Jid(jid.clone()) }).await?;
            seen += u64::from(status.is_some_and(|status| status.state == StateName::Waiting));
        }
        Ok(waiting > seen || (last.others > 0 && last.at.elapsed() >= ASK_AGAIN))
    }

    /// Keeps a job that stays until it is put back.
    pub(super) fn hold(&mut self, jid: Jid) {
        self.refused.push(jid);
        self.held.get_or_insert((Instant::now(), self.report.moved));
    }

    /// Puts jobs back that have been held for long. They are grabbed again in this pass, so only if it has moved others
    /// since: then it comes to its end.
    pub(super) async fn return_held(&mut self) -> Result<(), TransferError> {
        match self.held {
            Some((since, moved)) if since.elapsed() >= HOLD && self.report.moved > moved => {
                self.return_refused().await
            }
            _ => Ok(()),
        }
    }

    /// Refuses a target that is a source under another name: its put would join the job that is being moved.
    pub(super) async fn refuse_itself(&mut self, batch: &Batch) -> Result<(), TransferError> {
        if self.ends.from != System::Gearman {
            return Ok(());
        }
        for job in &batch.jobs {
            let Some((handle, lifetime)) = split(&job.jid) else { continue };
            if !self.distinct.insert(lifetime.clone()) {
                continue;
            }
            let is_same = match self.ends.to {
                System::Gearman => {
                    let marker = format!("{TRANSFER_GROUP}:{lifetime}");
                    let all =
                        self.ends.target.run(Queues { queue: None }).await.map_err(TransferError::Target)?;
                    all.iter().any(|counts| counts.name.as_str() == marker)
                }
                System::Native => {
                    let find = GetMany { jids: vec![handle] };
                    let found = self.ends.target.run(find).await.map_err(TransferError::Target)?;
                    found.iter().any(|there| {
                        matches!(there.state, JobState::Running { .. })
                            && there.queue == job.queue
                            && there.payload.bytes() == job.payload.bytes()
                    })
                }
                System::WorkKit | System::GearMonkey | System::Worqr => false,
            };
            if is_same {
                return Err(TransferError::Same { url: self.ends.name.clone() });
            }
        }
        Ok(())
    }
}

/// The handle in the jid of a job that leaves, and the 16 hexadecimal digits that identify its server.
fn split(jid: &Jid) -> Option<(Jid, String)> {
    let text = jid.to_string();
    let (handle, lifetime) = text.rsplit_once('-')?;
    let is_lifetime = lifetime.len() == 16 && lifetime.bytes().all(|byte| byte.is_ascii_hexdigit());
    Some((Jid::new(handle).ok()?, lifetime.to_owned())).filter(|_| is_lifetime)
}
