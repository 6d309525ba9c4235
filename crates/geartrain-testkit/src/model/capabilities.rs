//! Workers: what they announce, how they give jobs back, and what becomes of their jobs when they die.

use std::collections::BTreeMap;

use geartrain_core::{
    Announce, AnnounceChange, Announced, Announcement, Capability, EndReason, Event, FailedBy, Failure,
    Group, Jid, Klass, QueueName, RETRIES_MAX, Refusal, Release, Seconds, StateName, Timestamp, WorkerLost,
    WorkerName,
};

use super::pop::exhausted;
use super::put_options::validate_span;
use super::{Ending, Entry, Front, Model, Position, bad_argument, jids};

/// How many abilities a worker may announce.
const ABILITIES_MAX: usize = 1024;

/// How much may be said of a worker's death.
const EVIDENCE_BYTES_MAX: usize = 4_096;

/// The front of a queue. Neither number is looked at: such jobs are ordered by token.
const FRONT: Position =
    Position::Work { front: Front::OfItsPriority, entry: Entry { score: Timestamp::ZERO, arrival: 0 } };

/// What one worker can do, and how long that takes at the most.
pub(super) type Abilities = BTreeMap<(QueueName, Option<Klass>), Option<Seconds>>;

pub(super) fn validate(change: &AnnounceChange) -> Result<(), Refusal> {
    match change {
        AnnounceChange::Can(abilities) | AnnounceChange::Only(abilities) => {
            abilities.iter().try_for_each(|ability| validate_span("timeout", ability.attempt_max))
        }
        AnnounceChange::Cannot(_) => Ok(()),
    }
}

pub(super) fn validate_evidence(evidence: Option<&str>) -> Result<(), Refusal> {
    let (bytes, max) = (evidence.map_or(0, str::len), EVIDENCE_BYTES_MAX);
    if bytes > max { Err(Refusal::TooLarge { what: "evidence".into(), bytes, max }) } else { Ok(()) }
}

impl Model {
    pub(super) fn announce(&mut self, now: Timestamp, announce: &Announce) -> Result<(), Refusal> {
        let worker = &announce.worker;
        let before = self.abilities.get(worker).cloned().unwrap_or_default();
        let (mut abilities, more) = match &announce.change {
            AnnounceChange::Can(more) => (before, more.clone()),
            AnnounceChange::Only(only) => (Abilities::new(), only.clone()),
            AnnounceChange::Cannot(less) => {
                let mut rest = before;
                rest.retain(|what, _| !less.contains(what));
                (rest, Vec::new())
            }
        };
        for Capability { queue, klass, attempt_max } in more.clone() {
            abilities.insert((queue, klass), attempt_max);
        }
        if abilities.len() > ABILITIES_MAX {
            return Err(bad_argument("abilities"));
        }
        self.workers.insert(worker.clone(), now);
        // Decision 0002 has it that this registers the queues.
        more.iter().for_each(|ability| self.register(now, &ability.queue));
        if abilities.is_empty() {
            self.abilities.remove(worker);
        } else {
            self.abilities.insert(worker.clone(), abilities);
        }
        self.events.push(Event::Announced { worker: worker.clone() });
        Ok(())
    }

    /// How many workers have announced that they can do this.
    pub(super) fn roll_call(&self, queue: &QueueName, klass: Option<&Klass>) -> u64 {
        let can = |(of, can): &(QueueName, Option<Klass>)| {
            of == queue && (klass.is_none() || can.is_none() || can.as_ref() == klass)
        };
        self.abilities.values().filter(|abilities| abilities.keys().any(can)).count() as u64
    }

    pub(super) fn announced(&self, announced: &Announced) -> Vec<Announcement> {
        let asked_for = |worker: &WorkerName| announced.worker.as_ref().is_none_or(|only| only == worker);
        let show = |(worker, abilities): (&WorkerName, &Abilities)| Announcement {
            worker: worker.clone(),
            seen: self.workers.get(worker).copied(),
            capabilities: abilities
                .iter()
                .map(|((queue, klass), attempt_max)| Capability {
                    queue: queue.clone(),
                    klass: klass.clone(),
                    attempt_max: *attempt_max,
                })
                .collect(),
        };
        self.abilities.iter().filter(|(worker, _)| asked_for(worker)).map(show).collect()
    }

    /// How long an attempt of a worker at a job may take: the shorter of what the job and the worker say
    /// (rule Deadline).
    pub(super) fn attempt_max(&self, jid: &Jid, worker: &WorkerName) -> Option<Seconds> {
        let job = &self.jobs[jid];
        let of_worker = self.abilities.get(worker).and_then(|abilities| {
            let for_klass = abilities.get(&(job.its_queue(), Some(job.klass.clone())));
            *for_klass.or_else(|| abilities.get(&(job.its_queue(), None)))?
        });
        job.beyond.attempt_max.into_iter().chain(of_worker).min()
    }

    pub(super) fn hand_back(&mut self, now: Timestamp, back: &Release) -> Result<(), Refusal> {
        let worker = self.held(&back.jid, &back.holder, None)?;
        self.note_end(&back.jid, now, EndReason::Released, None, back.message.as_deref());
        let (place, word) = if back.delay > Seconds::ZERO {
            (Position::Scheduled(self.enter(now + back.delay)), "scheduled")
        } else {
            (FRONT, "waiting")
        };
        self.give_back(&back.jid, worker, false, place, word);
        Ok(())
    }

    /// Takes a job from its worker, for a place in its queue.
    fn give_back(
        &mut self,
        jid: &Jid,
        worker: WorkerName,
        crashed: bool,
        place: Position,
        word: &'static str,
    ) {
        let job = self.job_mut(jid);
        job.end_attempt(Ending::Otherwise);
        (job.place, job.word) = (place, word);
        job.worker = None;
        job.expires = Timestamp::ZERO;
        job.listed = None;
        job.grace = false;
        let queue = job.its_queue();
        self.events.push(Event::Released { jid: jid.clone(), queue, worker, crashed });
        self.abandon_if_unwanted(jid);
    }

    /// The running jobs in a worker's list, or that it was warned about, in the order of their tokens.
    pub(super) fn held_by(&self, worker: &WorkerName) -> Vec<Jid> {
        jids(self.container(|job| {
            let known = job.listed.is_some() || job.grace;
            let running = job.place.state() == StateName::Running && known;
            (running && job.worker.as_ref() == Some(worker)).then_some(job.token)
        }))
    }

    pub(super) fn gone(&mut self, now: Timestamp, gone: &WorkerLost) -> Vec<Jid> {
        let worker = &gone.worker;
        let held = self.held_by(worker);
        if held.is_empty() && !self.workers.contains_key(worker) && !self.abilities.contains_key(worker) {
            return held;
        }
        for jid in &held {
            self.crash(now, jid, gone);
        }
        self.abilities.remove(worker);
        self.workers.remove(worker);
        self.events.push(Event::WorkerLost { worker: worker.clone() });
        held
    }

    /// What becomes of one job of a worker that died.
    fn crash(&mut self, now: Timestamp, jid: &Jid, gone: &WorkerLost) {
        let worker = gone.worker.clone();
        self.note_end(jid, now, EndReason::WorkerLost, None, gone.evidence.as_deref());
        let queue = self.jobs[jid].its_queue();
        let remaining = self.spend_retry(jid);
        let beyond = &mut self.job_mut(jid).beyond;
        beyond.crashes += 1;
        beyond.evidence = gone.evidence.clone();
        let (crashes, own_max) = (beyond.crashes, beyond.crashes_max);
        // A job that is tried without end minds only what was said about itself.
        let max_of_all = self.crashes_max().filter(|_| self.jobs[jid].retries != RETRIES_MAX);
        if own_max.or(max_of_all).is_some_and(|max| crashes >= max) {
            let mut message = format!("Job was set aside after {crashes} of its workers died");
            gone.evidence.iter().for_each(|evidence| message += &format!(": {evidence}"));
            let failure = Failure { group: made_up("crashed", &queue), message, when: now, worker: None };
            self.give_up(now, jid, failure, FailedBy::Crashes, Some(worker));
        } else if remaining < 0 {
            self.give_up(now, jid, exhausted(now, &queue, None), FailedBy::WorkerLost, Some(worker));
        } else {
            self.give_back(jid, worker, true, FRONT, "waiting");
        }
    }
}

/// A queue's default group for one kind of failure.
pub(super) fn made_up(kind: &str, queue: &QueueName) -> Group {
    Group::new(format!("{kind}-{queue}")).expect("a group has room for a queue's name")
}
