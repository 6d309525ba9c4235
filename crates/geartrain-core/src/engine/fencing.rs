//! Fencing tokens: each attempt at a job has a token, and only the current one may change the job. If the
//! attempt ended by its deadline, its token may still complete or fail the job until the next attempt begins.
//!
//! A token is the arrival number of its pop. The numbers only grow, within an epoch and from epoch to epoch.

use super::{Delta, Effects, Ended, Engine, RowId, RowState};
use crate::{CompleteReply, Holder, Jid, Refusal};

impl Engine {
    /// Begins a new epoch: no fencing token is issued twice, even if deltas were lost in a crash.
    pub fn begin_epoch(&mut self, effects: &mut Effects) {
        // One epoch is skipped: lost tokens may have overflowed into it.
        self.commit(Delta::Epoch(self.state.epoch() + 2), effects);
    }

    /// The job that a caller claims to hold. A fencing token's hint finds the row without the index.
    pub(super) fn claimed(&self, jid: &Jid, holder: &Holder) -> Result<RowId, Refusal> {
        match holder {
            Holder::Token(token) => {
                self.state.find_at(token.hint, jid).ok_or_else(|| Refusal::NoSuchJob { jid: jid.clone() })
            }
            Holder::Worker(_) => self.existing(jid),
        }
    }

    /// Refuses a caller that does not hold the job. A fencing token must be that of the current attempt.
    pub(super) fn check_holder(&self, row: RowId, jid: &Jid, holder: &Holder) -> Result<(), Refusal> {
        let of = self.state.row(row);
        let (jid, state) = (|| jid.clone(), of.state.name());
        match holder {
            Holder::Token(token) if of.state == RowState::Running && of.seq == token.number => Ok(()),
            Holder::Token(_) => Err(Refusal::LockLost { jid: jid(), state }),
            Holder::Worker(_) if of.state != RowState::Running => {
                Err(Refusal::NotRunning { jid: jid(), state, qless: self.state.qless_word(row) })
            }
            Holder::Worker(worker) => match self.state.worker_name(of.worker) {
                Some(other) if other != *worker => {
                    Err(Refusal::HeldByAnother { jid: jid(), worker: worker.clone(), holder: other })
                }
                _ => Ok(()),
            },
        }
    }

    /// How this holder's attempt ended, if it did and that is remembered. Makes repeated calls idempotent,
    /// and lets a token complete or fail a job after its deadline, as long as the job waits for its next
    /// attempt.
    pub(super) fn ended(&self, row: RowId, holder: &Holder) -> Option<Ended> {
        let Holder::Token(token) = holder else { return None };
        let of = self.state.row(row);
        if of.state == RowState::Complete && of.seq == token.number {
            return Some(Ended::Completed(CompleteReply::Complete));
        }
        let queued = matches!(of.state, RowState::Waiting | RowState::Scheduled);
        self.state.ended(row, token.number).filter(|ended| queued || *ended != Ended::TimedOut)
    }
}
