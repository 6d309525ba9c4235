//! Views: jobs and recurring jobs as replies show them, made from rows.

use super::cold::FailureRow;
use super::history::{self, Mark};
use super::{Flags, NONE, Row, RowId, RowState, State};
use crate::engine::set_aside::TransferRecord;
use crate::{
    Failure, Group, HistoryEntry, HistoryEvent, Jid, Job, JobState, Klass, Lock, Payload, Popped, QlessView,
    Recurring, StateName, TRANSFER_GROUP, Timestamp, Token,
};

impl State {
    /// The whole job.
    pub(crate) fn job(&self, at: RowId) -> Job {
        let ends = self.cold(at).and_then(|cold| cold.attempts.as_ref());
        Job {
            history: self.history(&self.rows[at]),
            attempts: ends.map_or(Vec::new(), |ends| ends.0.iter().cloned().collect()),
            ..self.present_job(at)
        }
    }

    /// The job without its past: its history and the ends of its attempts.
    fn present_job(&self, at: RowId) -> Job {
        let row = &self.rows[at];
        let cold = self.cold(at);
        let failure = cold.and_then(|cold| cold.failure.as_ref()).map(|failure| self.failure(failure));
        let (state, past_failure) = match (row.state, failure) {
            (RowState::Failed, Some(failure)) => (JobState::Failed { failure }, None),
            (_, failure) => (self.state_of(at, row), failure),
        };
        Job {
            jid: self.rows.jid(at),
            klass: self.klass(row.klass),
            queue: (row.queue != NONE).then(|| self.queue_name(row.queue)),
            state,
            priority: row.priority,
            retries: row.retries,
            remaining: i64::from(row.remaining),
            payload: self.payload(at),
            tags: self.tags_of(at),
            history: Vec::new(),
            past_failure,
            spawned_from: cold.and_then(|cold| cold.spawned_from.clone()),
            dependents: self.sorted_jids(self.dependents(at)),
            tracked: row.flags.has(Flags::TRACKED),
            details: if row.cold == NONE { None } else { self.details(at) },
            qless: QlessView {
                state: self.qless_word(at),
                worker: self.worker_name(row.worker),
                expires: self.expires(at),
            },
            attempts: Vec::new(),
        }
    }

    /// The length of a job's failure message.
    pub(crate) fn failure_bytes(&self, at: RowId) -> usize {
        self.cold(at).and_then(|cold| cold.failure.as_ref()).map_or(0, |failure| failure.message.len())
    }

    /// When a job failed the last time, and the worker that failed it.
    pub(crate) fn failure_origin(&self, at: RowId) -> Option<(Timestamp, Option<u32>)> {
        let failure = self.cold(at)?.failure.as_ref()?;
        Some((failure.when, (failure.worker != NONE).then_some(failure.worker)))
    }

    /// The record of a job that is set aside.
    pub(crate) fn transfer_record(&self, at: RowId) -> Option<TransferRecord> {
        let failure = self.cold(at)?.failure.as_ref()?;
        let is_aside =
            self.rows[at].state == RowState::Failed && **self.groups.name(failure.group) == *TRANSFER_GROUP;
        is_aside.then(|| TransferRecord::parse(&failure.message)).flatten()
    }

    /// Whether a job is set aside.
    pub(crate) fn is_set_aside(&self, at: RowId) -> bool {
        self.transfer_record(at).is_some()
    }

    /// A job that is set aside, in the state that it had before, without its past.
    pub(crate) fn job_before_transfer(&self, at: RowId) -> Job {
        let mut job = self.present_job(at);
        let (Some(TransferRecord { was, failure, .. }), JobState::Failed { failure: now }) =
            (self.transfer_record(at), &job.state)
        else {
            return job;
        };
        let failure = failure.map(|(group, message)| {
            let group = Group::new(group).expect("it was the group of this job");
            Failure { group, message, ..now.clone() }
        });
        let due = self.cold(at).and_then(|cold| cold.due);
        job.state = match (was, failure) {
            (StateName::Failed, Some(failure)) => JobState::Failed { failure },
            (was, failure) => {
                job.past_failure = failure;
                match (was, due) {
                    (StateName::Scheduled, Some(due)) => JobState::Scheduled { due },
                    (StateName::Depends, due) => {
                        let on = self.extension(at).map(|extension| extension.dropped_dependencies.to_vec());
                        JobState::Depends { on: on.unwrap_or_default(), due }
                    }
                    _ => JobState::Waiting,
                }
            }
        };
        job.qless.state = was.as_str();
        job
    }

    /// The failure of a job: the current one, or a past one.
    pub(crate) fn failure_of(&self, at: RowId) -> Option<Failure> {
        self.cold(at)?.failure.as_ref().map(|failure| self.failure(failure))
    }

    /// What a worker gets of a job that it popped.
    pub(crate) fn popped(&self, at: RowId, whole: bool) -> Popped {
        let row = &self.rows[at];
        Popped {
            jid: self.rows.jid(at),
            queue: self.queue_name(row.queue),
            klass: self.klass(row.klass),
            payload: self.payload(at),
            priority: row.priority,
            retries: row.retries,
            remaining: i64::from(row.remaining),
            lock: self.lock(at),
            details: if row.cold == NONE { None } else { self.details(at) },
            job: whole.then(|| Box::new(self.job(at))),
        }
    }

    pub(crate) fn recurring(&self, template: u32) -> Recurring {
        let of = self.template(template);
        Recurring {
            jid: of.jid.clone(),
            queue: self.queue_name(of.queue),
            klass: self.klass(of.klass),
            payload: of.payload.clone(),
            priority: of.priority,
            retries: of.retries,
            tags: of.tags.clone(),
            every: of.every.clone(),
            backlog: of.backlog,
            count: of.count,
            next: of.next,
        }
    }

    /// The state of a job in Qless's words.
    pub(crate) fn qless_word(&self, at: RowId) -> &'static str {
        let row = &self.rows[at];
        match row.state {
            RowState::Waiting if row.flags.has(Flags::STALLED) => "stalled",
            RowState::Scheduled if row.flags.has(Flags::ADVANCED) => "waiting",
            state => state.name().as_str(),
        }
    }

    pub(crate) fn sorted_jids(&self, rows: impl Iterator<Item = RowId>) -> Vec<Jid> {
        let mut jids: Vec<Jid> = rows.map(|row| self.rows.jid(row)).collect();
        jids.sort_unstable();
        jids
    }

    fn payload(&self, at: RowId) -> Payload {
        let row = &self.rows[at];
        self.blobs.payload(row.payload, row.payload_bytes)
    }

    pub(crate) fn klass(&self, klass: u32) -> Klass {
        Klass::from_checked(self.klasses.name(klass).clone())
    }

    fn group_name(&self, group: u32) -> Group {
        Group::from_checked(self.groups.name(group).clone())
    }

    fn lock(&self, at: RowId) -> Lock {
        let row = &self.rows[at];
        let worker = self.worker_name(row.worker).expect("a running job has a worker");
        Lock { worker, token: Token { number: row.seq, hint: at }, expires: row.score }
    }

    /// The deadline that Qless names; zero for none.
    pub(super) fn expires(&self, at: RowId) -> Timestamp {
        let row = &self.rows[at];
        if row.flags.has(Flags::EXPIRES) {
            return self.cold(at).and_then(|cold| cold.expires).unwrap_or_default();
        }
        match row.state {
            RowState::Running => row.score,
            _ => Timestamp::ZERO,
        }
    }

    fn state_of(&self, at: RowId, row: &Row) -> JobState {
        match row.state {
            RowState::Scheduled => JobState::Scheduled { due: row.score },
            RowState::Depends => JobState::Depends {
                on: self.sorted_jids(self.dependencies(at)),
                due: self.cold(at).and_then(|cold| cold.due),
            },
            RowState::Waiting => JobState::Waiting,
            RowState::Running => JobState::Running { lock: self.lock(at) },
            RowState::Complete => JobState::Complete { at: row.score },
            RowState::Free | RowState::Failed => {
                unreachable!("a job has a row, and a failed one has a failure")
            }
        }
    }

    fn failure(&self, failure: &FailureRow) -> Failure {
        Failure {
            group: self.group_name(failure.group),
            message: failure.message.to_string(),
            when: failure.when,
            worker: self.worker_name(failure.worker),
        }
    }

    fn history(&self, row: &Row) -> Vec<HistoryEntry> {
        if row.history == super::blobs::BlobRef::NONE {
            let put = HistoryEvent::Put { queue: self.queue_name(row.queue) };
            return vec![HistoryEntry { when: row.time.floor(), what: put }];
        }
        let entry = |(when, mark)| HistoryEntry { when, what: self.what(mark) };
        history::read(&self.blobs, row.history).map(entry).collect()
    }

    fn what(&self, mark: Mark<'_>) -> HistoryEvent {
        match mark {
            Mark::Put { queue } => HistoryEvent::Put { queue: self.queue_name(queue) },
            Mark::Popped { worker } => {
                HistoryEvent::Popped { worker: self.worker_name(worker).expect("only a worker can pop") }
            }
            Mark::Done => HistoryEvent::Done,
            Mark::Failed { worker, group } => {
                HistoryEvent::Failed { worker: self.worker_name(worker), group: self.group_name(group) }
            }
            Mark::TimedOut => HistoryEvent::TimedOut,
            Mark::Released { worker } => HistoryEvent::Released {
                worker: self.worker_name(worker).expect("only a worker can hand back"),
            },
            Mark::Crashed { worker } => {
                HistoryEvent::Crashed { worker: self.worker_name(worker).expect("only a worker can crash") }
            }
            Mark::Log { message, data } => {
                HistoryEvent::Log { message: message.to_owned(), data: data.map(ToOwned::to_owned) }
            }
        }
    }
}
