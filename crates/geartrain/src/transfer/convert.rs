//! What a job becomes at the target: the put for each kind of queue system, or why there is none.

use geartrain_core::{
    Job, JobState, Put, PutOptions, Seconds, StayReason, TRANSFER_GROUP, Timestamp, UniqueKey,
};

use crate::Target;
#[cfg(feature = "redis")]
use geartrain_redis::workkit::is_function;

/// The kinds of queue systems, as far as they differ in what jobs have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum System {
    /// With geartrain's rules: a directory, a server, a Redis with Qless's keys.
    Native,
    /// WorkKit schedules.
    WorkKit,
    /// Gearman servers.
    Gearman,
    /// GearMonkey functions.
    GearMonkey,
    /// Worqr's queues.
    Worqr,
}

impl System {
    pub(super) fn of(target: &Target) -> System {
        match target {
            #[cfg(feature = "redis")]
            Target::WorkKit(_) => System::WorkKit,
            #[cfg(feature = "redis")]
            Target::GearMonkey(_) => System::GearMonkey,
            #[cfg(feature = "redis")]
            Target::Worqr(_) => System::Worqr,
            #[cfg(feature = "gearman")]
            Target::Gearman(_) => System::Gearman,
            #[allow(unreachable_patterns, reason = "which there are depends on the features")]
            _ => System::Native,
        }
    }

    /// Whether jobs have jids before they are set aside.
    pub(super) fn names_jobs(self) -> bool {
        !matches!(self, System::Gearman | System::Worqr)
    }

    /// Whether jobs that are put back would be the next to be set aside.
    pub(super) fn returns_to_front(self) -> bool {
        matches!(self, System::Gearman | System::GearMonkey | System::Worqr)
    }

    /// Whether jobs have the jids that a put names.
    pub(super) fn keeps_jids(self) -> bool {
        self == System::Native
    }

    /// Whether a job that is put twice under its transfer id is one job, also if the first has ended.
    pub(super) fn recognises(self) -> bool {
        match self {
            System::Native => true,
            // By a side key, while the ended job is there.
            System::GearMonkey => true,
            // While the job is unfinished, by its unique key or by its content and second.
            System::Gearman | System::WorkKit | System::Worqr => false,
        }
    }
}

/// The unique key under which a job is put on a GearMonkey function.
pub(super) fn transfer_key(job: &Job) -> Option<UniqueKey> {
    UniqueKey::new(format!("{TRANSFER_GROUP}:{}", job.jid)).ok()
}

/// Why a job cannot leave, as far as that is known before it is set aside.
pub(super) fn stays(job: &Job, from: System) -> Option<StayReason> {
    if job.details.as_ref().is_some_and(|details| details.attached > 0) {
        return Some(StayReason::Awaited);
    }
    match job.state {
        _ if from != System::WorkKit => None,
        JobState::Failed { .. } => Some(StayReason::Unreadable),
        _ => (!is_function(&job.klass)).then_some(StayReason::Literal),
    }
}

/// There are no schedules.
#[cfg(not(feature = "redis"))]
fn is_function(_: &geartrain_core::Klass) -> bool {
    true
}

/// Whether this is a UUID as text: a unique key that a Gearman client library makes up if there is none.
fn is_generated(unique: &UniqueKey) -> bool {
    std::str::from_utf8(unique.as_bytes()).is_ok_and(|text| uuid::Uuid::try_parse(text).is_ok())
}

/// The put of a job at a target of this kind.
pub(super) fn put_of(job: &Job, from: System, to: System, now: Timestamp) -> Result<Put, String> {
    let Some(queue) = job.queue.clone() else { return Err("has no queue".to_owned()) };
    let mut put = Put::new(queue, job.jid.clone(), job.klass.clone(), job.payload.clone());
    let due = match &job.state {
        JobState::Scheduled { due } => Some(*due),
        JobState::Depends { due, .. } => *due,
        _ => None,
    };
    put.delay = due.map_or(Seconds::ZERO, |due| (due - now).max(Seconds::ZERO));
    put.depends = job.dependencies().to_vec();
    put.priority = (job.priority.get() != 0.0).then_some(job.priority);
    put.tags = (!job.tags.is_empty()).then(|| job.tags.clone());
    let failure = match &job.state {
        JobState::Failed { failure } => Some(Box::new((failure.group.clone(), failure.message.clone()))),
        _ => None,
    };
    // Retries are counted anew at the target: what is left is what it gets.
    let left = u32::try_from(job.remaining).unwrap_or_default();
    put.retries = Some(if failure.is_some() { job.retries } else { left });
    let mut options = PutOptions { failure, ..PutOptions::default() };
    if let Some(details) = &job.details {
        options = PutOptions {
            unique: details.unique.clone(),
            orphan_policy: details.orphan_policy,
            on_end: details.on_end,
            result_ttl: details.result_ttl,
            expires: details.expires,
            attempt_max: details.attempt_max,
            backoff: details.backoff,
            crashes_max: details.crashes_max,
            metadata: details.metadata.clone(),
            on_dependency_failure: details.on_dependency_failure,
            traceparent: details.traceparent.clone(),
            ..options
        };
    }
    if from == System::Gearman {
        // Its jobs have no retries, so the target's default counts.
        put.retries = None;
        if !matches!(to, System::Native | System::Gearman)
            && options.unique.as_ref().is_some_and(is_generated)
        {
            options.unique = None;
        }
    }
    if to != System::Native && options.failure.is_some() {
        return Err("is failed, which the target has no notion of".to_owned());
    }
    if to == System::Gearman {
        // A server has neither retries nor tags; its unique key is the transfer id.
        put.retries = None;
        if options.unique.is_none() {
            options.unique = UniqueKey::new(job.jid.to_string()).ok();
        }
    }
    if matches!(to, System::GearMonkey | System::Worqr) && options.unique.is_some() {
        return Err("has a unique key, which the target has no notion of".to_owned());
    }
    match to {
        System::GearMonkey => options.unique = transfer_key(job),
        System::Worqr => put.retries = None,
        _ => {}
    }
    put.options = (options != PutOptions::default()).then(|| Box::new(options));
    Ok(put)
}
