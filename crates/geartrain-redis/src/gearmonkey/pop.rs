//! Taking jobs: one script per function, which leases them.

use geartrain_core::{
    Jid, Klass, Lock, Pop, PopOrder, PopReply, Popped, Priority, QueueName, Refusal, Seconds, Timestamp,
    Token,
};
use redis::cmd;

use super::keys::{Keys, jid_of};
use super::read::{Fields, view};
use super::script;
use super::session::{Session, check_klass, check_name, milliseconds, unsupported, whole_seconds};
use crate::layout::{CallError, check_queues, new_token};

/// What the take script replies: jobs, what cannot be run, the next due second, lost jobs and lost workers.
type Taken = (Vec<TakenJob>, Vec<(Vec<u8>, String)>, String, Vec<String>, Vec<String>);
/// ID, queue, input, retries, failed attempts.
type TakenJob = (String, String, Vec<u8>, String, String);

impl Session {
    /// Pops what is due or queued, and returns when the first job is due that is not yet.
    pub(super) async fn pop(
        &self,
        pop: &Pop,
        now: Timestamp,
    ) -> Result<(PopReply, Option<Timestamp>), CallError> {
        check_queues(&pop.queues)?;
        pop.queues.iter().try_for_each(check_name)?;
        let queues = wanted(pop)?;
        let token = new_token();
        let (mut jobs, mut next, count) = (Vec::new(), None, pop.count.get());
        let mut turn = pop.order.turn(queues.len());
        let taken: Result<(), CallError> = match pop.order {
            PopOrder::Strict => {
                async {
                    for queue in &queues {
                        self.take(pop, queue, count, token, now, (&mut jobs, &mut next)).await?;
                    }
                    Ok(())
                }
                .await
            }
            PopOrder::RoundRobin { .. } => {
                async {
                    let mut empty = 0;
                    while jobs.len() < count && empty < queues.len() {
                        let (before, queue) = (jobs.len(), queues[turn]);
                        turn = (turn + 1) % queues.len();
                        self.take(pop, queue, before + 1, token, now, (&mut jobs, &mut next)).await?;
                        empty = if jobs.len() == before { empty + 1 } else { 0 };
                    }
                    Ok(())
                }
                .await
            }
            PopOrder::Priority { .. } => {
                Err(unsupported("order the jobs of several queues by priority").into())
            }
        };
        match taken {
            // The jobs that were taken go to the caller. The error shows again at the next call.
            Err(_) if !jobs.is_empty() => {}
            other => other?,
        }
        let turn = if pop.order == PopOrder::Strict { 0 } else { turn };
        Ok((PopReply { jobs, turn }, next))
    }

    /// Takes jobs of one function until there are `count`.
    async fn take(
        &self,
        pop: &Pop,
        queue: &QueueName,
        count: usize,
        token: Token,
        now: Timestamp,
        (jobs, next): (&mut Vec<Popped>, &mut Option<Timestamp>),
    ) -> Result<(), CallError> {
        let missing = count.saturating_sub(jobs.len());
        if missing == 0 {
            return Ok(());
        }
        let keys = Keys::of(queue.as_str());
        let expires = now + Seconds::from(self.options.lease);
        let arguments = [
            whole_seconds(now),
            milliseconds(expires),
            token.number().to_string(),
            pop.worker.to_string(),
            missing.to_string(),
            milliseconds(now),
            self.options.lost_max.to_string(),
        ];
        let arguments = arguments.each_ref().map(String::as_bytes);
        let (taken, problems, due, lost, gone): Taken = self.run(&script::TAKE, &keys, &arguments).await?;
        for (key, why) in problems {
            let key = String::from_utf8_lossy(&key);
            tracing::warn!(%key, why, "removed an ID from its queue: the job cannot be run");
        }
        warn_lost(queue, &lost, &gone);
        if let Some(due) = due.parse().ok().and_then(|due| Timestamp::new(due).ok()) {
            *next = Some(next.map_or(due, |next| next.min(due)));
        }
        for (id, from, input, retries, used) in taken {
            let lock = Lock { worker: pop.worker.clone(), token, expires };
            let Some(jid) = jid_of(queue, &id) else { continue };
            let fields = Fields {
                input,
                retries: retries.parse().unwrap_or(self.options.retries),
                used: used.parse().unwrap_or(0),
                ..Fields::default()
            };
            jobs.push(popped(queue, jid, fields, priority_of(&from), lock, pop.whole));
        }
        Ok(())
    }

    /// Whether a pop would hand out a job or handle an expired lease.
    pub(super) async fn ready(
        &self,
        queues: &[QueueName],
        now: Timestamp,
    ) -> Result<(bool, Option<Timestamp>), CallError> {
        check_queues(queues)?;
        let mut next: Option<Timestamp> = None;
        for queue in queues {
            self.recover(queue, now).await?;
            let keys = Keys::of(queue.as_str());
            for list in keys.lists() {
                if self.ask::<u64>(list, cmd("LLEN").arg(list)).await? > 0 {
                    return Ok((true, None));
                }
            }
            let key = keys.scheduled();
            let first: Vec<(Vec<u8>, f64)> =
                self.ask(key, cmd("ZRANGE").arg(key).arg(0).arg(0).arg("WITHSCORES")).await?;
            if let Some(due) = first.first().and_then(|(_, due)| Timestamp::new(*due).ok()) {
                if due <= now {
                    return Ok((true, None));
                }
                next = Some(next.map_or(due, |next| next.min(due)));
            }
        }
        Ok((false, next))
    }

    /// Handles expired leases and registrations.
    pub(super) async fn recover(&self, queue: &QueueName, now: Timestamp) -> Result<(), CallError> {
        let arguments = [milliseconds(now), whole_seconds(now), self.options.lost_max.to_string()];
        let arguments = arguments.each_ref().map(String::as_bytes);
        let keys = Keys::of(queue.as_str());
        let (lost, gone): (Vec<String>, Vec<String>) = self.run(&script::RECOVER, &keys, &arguments).await?;
        warn_lost(queue, &lost, &gone);
        Ok(())
    }
}

fn warn_lost(queue: &QueueName, jobs: &[String], workers: &[String]) {
    for id in jobs {
        tracing::warn!(%queue, id, "the lease of a job expired: its worker is lost");
    }
    for worker in workers {
        tracing::warn!(%queue, worker, "took a lost worker off the count of the function");
    }
}

/// The queues whose jobs a pop takes: with klasses, those that are named.
fn wanted(pop: &Pop) -> Result<Vec<&QueueName>, Refusal> {
    let Some(klasses) = &pop.klasses else { return Ok(pop.queues.iter().collect()) };
    let is = |klass: &Klass, queue: &QueueName| klass.as_str() == queue.as_str();
    for klass in klasses {
        if !pop.queues.iter().any(|queue| is(klass, queue)) {
            check_klass(klass, &pop.queues[0])?;
        }
    }
    Ok(pop.queues.iter().filter(|queue| klasses.iter().any(|klass| is(klass, queue))).collect())
}

/// The priority of the jobs of a queue.
pub(super) fn priority_of(queue: &str) -> Priority {
    Priority::from(match queue {
        "high" => 1,
        "low" => -1,
        _ => 0,
    })
}

fn popped(
    queue: &QueueName,
    jid: Jid,
    fields: Fields,
    priority: Priority,
    lock: Lock,
    is_whole: bool,
) -> Popped {
    let state = geartrain_core::JobState::Running { lock: lock.clone() };
    let job = is_whole.then(|| Box::new(view(queue, &jid, &fields, state, priority)));
    Popped {
        jid,
        queue: queue.clone(),
        klass: super::read::klass_of(queue),
        priority,
        retries: fields.retries,
        remaining: fields.remaining(),
        payload: fields.input.into(),
        lock,
        details: None,
        job,
    }
}
