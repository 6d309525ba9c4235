//! Held jobs of one worker: which ones, when each heartbeat is due, and which ones were released lately.

use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use geartrain_core::{Holder, Jid, Popped, Seconds, Timestamp, Token};
use hashbrown::HashTable;
use tokio::time::Instant;

use super::handles::Alias;

/// How many attempts of a worker that exceeded their deadlines are kept for a late report.
const LATE_MAX: usize = 64;
/// How many released jobs are remembered.
const RELEASED_MAX: usize = 4_096;
/// Bounds of the heartbeat interval. Locks shorter than 60 ms cannot be renewed in time.
const INTERVAL_MAX: Duration = Duration::from_secs(20);
const INTERVAL_MIN: Duration = Duration::from_millis(20);
/// Delay before a heartbeat that the backend did not take is retried.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The held jobs of one peer.
#[derive(Default)]
pub(crate) struct HeldJobs {
    hasher: RandomState,
    held: HashTable<HeldJob>,
    /// Attempts whose lock was lost by their deadline, the latest last.
    late: VecDeque<(Jid, Token)>,
    /// Hashes of released jobs, the latest last.
    released: VecDeque<u64>,
    /// No heartbeat is due before this instant. It may be too early if the job it was computed for has ended.
    next_heartbeat: Option<Instant>,
}

/// A job held by a worker.
pub(crate) struct HeldJob {
    pub(crate) jid: Jid,
    pub(crate) token: Token,
    /// All data chunks, to be stored with the result, as long as no client has received one.
    pub(crate) chunks: Option<Vec<u8>>,
    /// Data chunks that no client received because the attempt was late, if they are not among `chunks`.
    pub(crate) late_chunks: Vec<u8>,
    /// The worker has reported the end but the report is not stored yet: heartbeats go on, further reports
    /// are ignored.
    pub(crate) end_reported: bool,
    /// The batch that carries the last chunk, until it is answered.
    pub(crate) chunk_in_batch: Option<u64>,
    /// When the attempt must be over. The backend then takes the lock, but accepts a late end of the attempt
    /// until the next one begins.
    deadline: Option<Timestamp>,
    /// The lock is lost, so there are no more heartbeats.
    is_late: bool,
    /// The job's handle if that is not its jid. This reference keeps it valid.
    pub(crate) alias: Option<Arc<Alias>>,
    interval: Duration,
    heartbeat_at: Instant,
}

impl HeldJob {
    /// A job that was just popped, with the remaining time of its lock.
    pub(crate) fn new(job: &Popped, lock: Seconds, alias: Option<Arc<Alias>>) -> HeldJob {
        let interval = heartbeat_interval(lock);
        // Chunks are kept if a client may ask for the result later.
        let keeps_chunks = job.details.as_ref().is_some_and(|details| details.result_ttl.is_some());
        HeldJob {
            jid: job.jid.clone(),
            token: job.lock.token,
            chunks: keeps_chunks.then(Vec::new),
            late_chunks: Vec::new(),
            end_reported: false,
            chunk_in_batch: None,
            deadline: job.details.as_ref().and_then(|details| details.deadline),
            is_late: false,
            alias,
            interval,
            heartbeat_at: Instant::now() + interval,
        }
    }

    /// A job whose end was reported but is not stored yet.
    pub(crate) fn end_reported(jid: Jid, token: Token) -> HeldJob {
        HeldJob {
            jid,
            token,
            chunks: None,
            late_chunks: Vec::new(),
            end_reported: true,
            chunk_in_batch: None,
            deadline: None,
            is_late: false,
            alias: None,
            // Its lock is unknown; the next heartbeat's reply sets the interval.
            interval: INTERVAL_MIN,
            heartbeat_at: Instant::now(),
        }
    }

    pub(crate) fn jid_and_holder(&self) -> (Jid, Holder) {
        (self.jid.clone(), Holder::Token(self.token))
    }

    /// Whether a late end of the attempt may still count.
    pub(crate) fn has_deadline(&self) -> bool {
        self.deadline.is_some()
    }

    /// Whether the attempt has exceeded its deadline.
    pub(crate) fn is_late(&self, now: impl FnOnce() -> Timestamp) -> bool {
        self.is_late || self.deadline.is_some_and(|deadline| deadline <= now())
    }

    fn has_jid(&self, text: &[u8]) -> bool {
        self.jid.with_str(|jid| jid.as_bytes() == text)
    }
}

/// A third of the lock: one heartbeat may be late or get lost.
fn heartbeat_interval(lock: Seconds) -> Duration {
    // Negative if the lock has expired already.
    let third = Duration::try_from_secs_f64(lock.get() / 3.0).unwrap_or_default();
    third.clamp(INTERVAL_MIN, INTERVAL_MAX)
}

impl HeldJobs {
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Any job that the peer still works on and has not lost.
    pub(crate) fn any(&self) -> Option<&HeldJob> {
        self.held.iter().find(|held| !held.end_reported && !held.is_late)
    }

    /// Adds a job. Returns whether its heartbeat is due before all others.
    pub(crate) fn hold(&mut self, held: HeldJob) -> bool {
        let hasher = &self.hasher;
        let hash = held.jid.with_str(|text| hasher.hash_one(text.as_bytes()));
        let rehash = |held: &HeldJob| held.jid.with_str(|text| hasher.hash_one(text.as_bytes()));
        let at = held.heartbeat_at;
        match self.held.find_mut(hash, |other| other.jid == held.jid) {
            Some(other) => *other = held,
            None => drop(self.held.insert_unique(hash, held, rehash)),
        }
        let is_first = self.next_heartbeat.is_none_or(|next| at < next);
        if is_first {
            self.next_heartbeat = Some(at);
        }
        is_first
    }

    /// The job with this jid, if the peer may still report on it.
    pub(crate) fn get(&self, jid: &[u8]) -> Option<&HeldJob> {
        self.held.find(self.hasher.hash_one(jid), |held| held.has_jid(jid)).filter(|held| !held.end_reported)
    }

    pub(crate) fn get_mut(&mut self, jid: &[u8]) -> Option<&mut HeldJob> {
        let held = self.held.find_mut(self.hasher.hash_one(jid), |held| held.has_jid(jid))?;
        (!held.end_reported).then_some(held)
    }

    /// Removes a job.
    pub(crate) fn release(&mut self, jid: &[u8]) -> Option<HeldJob> {
        self.remove(jid, |held| held.has_jid(jid))
    }

    /// Like [`HeldJobs::release`], but only this attempt: the peer may hold the job again since.
    pub(crate) fn release_attempt(&mut self, jid: &Jid, token: Token) -> Option<HeldJob> {
        jid.with_str(|text| self.remove(text.as_bytes(), |held| held.jid == *jid && held.token == token))
    }

    /// The lock of an attempt is lost. If it had a deadline, a late report of its end may still count.
    pub(crate) fn lose_attempt(&mut self, jid: &Jid, token: Token) {
        match self.attempt(jid, token) {
            Some(held) if held.has_deadline() => held.is_late = true,
            _ => return drop(self.release_attempt(jid, token)),
        }
        self.late.push_back((jid.clone(), token));
        if self.late.len() > LATE_MAX
            && let Some((jid, token)) = self.late.pop_front()
        {
            self.release_attempt(&jid, token);
        }
    }

    fn remove(&mut self, jid: &[u8], is: impl FnMut(&HeldJob) -> bool) -> Option<HeldJob> {
        let hash = self.hasher.hash_one(jid);
        let held = self.held.find_entry(hash, is).ok()?.remove().0;
        self.remember_released(hash);
        if let Some(alias) = &held.alias {
            // The peer reports by handle.
            self.remember_released(self.hasher.hash_one(&alias.handle[..]));
        }
        Some(held)
    }

    fn remember_released(&mut self, hash: u64) {
        if self.released.len() >= RELEASED_MAX {
            self.released.pop_front();
        }
        self.released.push_back(hash);
    }

    /// Whether a job with this jid or handle was held lately.
    pub(crate) fn was_held(&self, jid: &[u8]) -> bool {
        self.released.contains(&self.hasher.hash_one(jid))
    }

    pub(crate) fn next_heartbeat(&self) -> Option<Instant> {
        self.next_heartbeat
    }

    /// The attempts whose heartbeats are due. Each is due again after its interval, whether it is answered or
    /// not.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<(Jid, Token)> {
        let mut due = Vec::new();
        for held in self.held.iter_mut().filter(|held| !held.is_late) {
            // Heartbeats that are due soon go along, which makes fewer batches.
            if held.heartbeat_at <= now + held.interval / 4 {
                held.heartbeat_at = now + held.interval;
                due.push((held.jid.clone(), held.token));
            }
        }
        self.update_next_heartbeat();
        due
    }

    /// A heartbeat succeeded. Each reply sets the interval, because the queue's option may have changed.
    pub(crate) fn renewed(&mut self, jid: &Jid, token: Token, lock: Seconds, now: Instant) {
        if let Some(held) = self.attempt(jid, token) {
            held.interval = heartbeat_interval(lock);
            held.heartbeat_at = now + held.interval;
        }
    }

    /// The backend did not take a heartbeat.
    pub(crate) fn not_renewed(&mut self, jid: &Jid, token: Token, now: Instant) {
        if let Some(held) = self.attempt(jid, token) {
            held.heartbeat_at = now + held.interval.min(RETRY_AFTER);
        }
    }

    /// The job, if the peer still holds this attempt.
    pub(crate) fn attempt(&mut self, jid: &Jid, token: Token) -> Option<&mut HeldJob> {
        let hash = jid.with_str(|text| self.hasher.hash_one(text.as_bytes()));
        self.held.find_mut(hash, |held| held.jid == *jid && held.token == token)
    }

    pub(crate) fn update_next_heartbeat(&mut self) {
        let renewed = self.held.iter().filter(|held| !held.is_late);
        self.next_heartbeat = renewed.map(|held| held.heartbeat_at).min();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jid(number: usize) -> Jid {
        Jid::new(format!("H:lap:{number}")).expect("a good name")
    }

    fn held(number: usize, lock: f64) -> HeldJob {
        let interval = heartbeat_interval(Seconds::new(lock).expect("a good number"));
        let heartbeat_at = Instant::now() + interval;
        HeldJob {
            interval,
            heartbeat_at,
            end_reported: false,
            ..HeldJob::end_reported(jid(number), Token::new(7))
        }
    }

    #[test]
    fn released_jobs_are_remembered_up_to_a_limit() {
        let mut jobs = HeldJobs::default();
        for number in 0..=RELEASED_MAX {
            jobs.hold(held(number, 60.0));
        }
        assert!(jobs.get(b"H:lap:0").is_some() && !jobs.was_held(b"H:lap:0"));
        for number in 0..=RELEASED_MAX {
            assert!(jobs.release(format!("H:lap:{number}").as_bytes()).is_some());
        }
        assert!(jobs.is_empty() && jobs.release(b"H:lap:1").is_none());
        assert!(jobs.was_held(b"H:lap:1") && !jobs.was_held(b"H:lap:0"));
    }

    #[test]
    fn attempts_that_lost_their_locks_by_a_deadline_are_kept_up_to_a_limit() {
        let mut jobs = HeldJobs::default();
        let token = Token::new(7);
        jobs.hold(held(0, 60.0));
        jobs.lose_attempt(&jid(0), token);
        assert!(jobs.is_empty() && jobs.was_held(b"H:lap:0"));
        for number in 1..=LATE_MAX + 1 {
            jobs.hold(HeldJob { deadline: Some(Timestamp::ZERO), ..held(number, 60.0) });
            jobs.lose_attempt(&jid(number), token);
        }
        assert!(jobs.get(b"H:lap:1").is_none() && jobs.get(b"H:lap:2").is_some());
        jobs.update_next_heartbeat();
        assert!(jobs.any().is_none() && jobs.next_heartbeat().is_none());
    }

    #[test]
    fn a_heartbeat_is_due_after_a_third_of_the_lock_within_bounds() {
        for (lock, after) in
            [(60.0, 20_000), (1e9, 20_000), (3.0, 1_000), (1.0, 333), (0.06, 20), (0.0, 20), (-5.0, 20)]
        {
            let seconds = Seconds::new(lock).expect("a good number");
            assert_eq!(heartbeat_interval(seconds).as_millis(), after, "{lock}");
        }
    }

    #[test]
    fn a_job_with_a_short_lock_comes_before_those_with_longer_ones() {
        let mut jobs = HeldJobs::default();
        assert!(jobs.hold(held(1, 60.0)));
        assert!(!jobs.hold(held(2, 60.0)));
        assert!(jobs.hold(held(3, 1.0)));
        let at = jobs.next_heartbeat().expect("a job is held");
        assert_eq!(jobs.due(at), [(jid(3), Token::new(7))]);
        assert!(jobs.due(at).is_empty());
        assert!(jobs.next_heartbeat().is_some_and(|next| next > at));
    }

    #[test]
    fn each_renewal_sets_the_heartbeat_interval() {
        let mut jobs = HeldJobs::default();
        jobs.hold(held(1, 60.0));
        let token = Token::new(7);
        let mut at = jobs.next_heartbeat().expect("a job is held");
        // The option was lowered, then raised, while the job was held.
        for (lock, after) in [(1.0, 333), (0.3, 100), (30.0, 10_000)] {
            assert_eq!(jobs.due(at).len(), 1);
            jobs.renewed(&jid(1), token, Seconds::new(lock).expect("a good number"), at);
            jobs.update_next_heartbeat();
            let next = jobs.next_heartbeat().expect("a job is held");
            assert_eq!((next - at).as_millis(), after);
            at = next;
        }
        // A failed heartbeat is retried soon; the reply to another attempt is ignored.
        assert_eq!(jobs.due(at).len(), 1);
        jobs.not_renewed(&jid(1), token, at);
        jobs.renewed(&jid(1), Token::new(8), Seconds::from(900), at);
        jobs.update_next_heartbeat();
        assert_eq!(jobs.next_heartbeat(), Some(at + RETRY_AFTER));
        assert!(
            jobs.release_attempt(&jid(1), Token::new(8)).is_none()
                && jobs.release_attempt(&jid(1), token).is_some()
        );
    }
}
