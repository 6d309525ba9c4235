//! Enqueueing: the payload goes into the queue as it is.

use geartrain_core::{
    Answer, Call, Command, Existing, PAYLOAD_BYTES_MAX, Payload, Put, PutOptions, PutReply, QueueName,
    Refusal, Reply, Seconds,
};

use super::names::{Notice, check_queue, check_unique, digest};
use super::script;
use super::session::{Session, unsupported};
use super::streams::AwaitedTask;
use crate::layout::{CallError, bad_argument};

/// The most tasks, and the most of their bytes, that one script adds.
const TASKS_MAX: usize = 1_000;
const BYTES_MAX: usize = 8 << 20;

/// Whether a batch is of puts that can be sent together.
pub(super) fn is_plain(batch: &[Call]) -> bool {
    batch.len() > 1
        && batch.iter().all(|call| matches!(&call.command, Command::Put(put) if put.options.is_none()))
}

impl Session {
    pub(super) async fn put(&self, put: &Put) -> Result<PutReply, CallError> {
        check(put)?;
        let options = put.options.as_deref();
        let waiter = options.and_then(|options| options.attach);
        if let Some(waiter) = waiter {
            self.listen_for_end(&put.queue).await;
            let waiter = AwaitedTask::new(waiter, put);
            self.streams.lock().attach(waiter)?;
        }
        let unique = options.is_some_and(|options| options.unique.is_some());
        let added = if unique { self.enqueue_unique(put).await } else { self.enqueue(&[put]).await };
        if let (Err(_), Some(waiter)) = (&added, waiter) {
            self.streams.lock().detach(|waiting| *waiting == waiter);
        }
        added.map(|()| PutReply::Unnamed)
    }

    /// Adds tasks of one queue.
    async fn enqueue(&self, puts: &[&Put]) -> Result<(), CallError> {
        let queue = puts[0].queue.as_str();
        let (key, channel) = (self.names.queue(queue), self.names.channel(queue, Notice::Work));
        let mut arguments = vec![channel.as_bytes()];
        arguments.extend(puts.iter().map(|put| put.payload.bytes()));
        self.run(&script::ENQUEUE, &[&key], arguments).await
    }

    async fn enqueue_unique(&self, put: &Put) -> Result<(), CallError> {
        let queue = put.queue.as_str();
        let (key, channel) = (self.names.queue(queue), self.names.channel(queue, Notice::Work));
        let marker = self.names.marker(&digest(put.payload.bytes()));
        let arguments = [channel.as_bytes(), put.payload.bytes()];
        match self.run::<i64>(&script::ENQUEUE_UNIQUE, &[&key, &marker], &arguments[..]).await? {
            0 => Err(bad_argument(
                "unique key",
                format!("is taken: an equal task is unfinished, or the key {marker} was left behind"),
            )
            .into()),
            _ => Ok(()),
        }
    }

    /// Executes a batch of plain puts: those of one queue in one step.
    pub(super) async fn put_all(&self, batch: &[Call]) -> Result<Vec<Answer>, CallError> {
        let puts = batch.iter().filter_map(|call| match &call.command {
            Command::Put(put) => Some(put),
            _ => None,
        });
        let (mut answers, mut group, mut bytes): (Vec<Answer>, Vec<(usize, &Put)>, usize) =
            (Vec::with_capacity(batch.len()), Vec::new(), 0);
        for (place, put) in puts.enumerate() {
            answers.push(Ok(Reply::Put(PutReply::Unnamed)));
            if let Err(refusal) = check(put) {
                answers[place] = Err(refusal);
                continue;
            }
            let is_other = group.first().is_some_and(|(_, first)| first.queue != put.queue);
            if is_other || group.len() == TASKS_MAX || bytes + put.payload.byte_len() > BYTES_MAX {
                self.put_group(&mut group, &mut answers).await?;
                bytes = 0;
            }
            bytes += put.payload.byte_len();
            group.push((place, put));
        }
        self.put_group(&mut group, &mut answers).await?;
        Ok(answers)
    }

    async fn put_group(
        &self,
        group: &mut Vec<(usize, &Put)>,
        answers: &mut [Answer],
    ) -> Result<(), CallError> {
        if group.is_empty() {
            return Ok(());
        }
        let puts: Vec<&Put> = group.iter().map(|(_, put)| *put).collect();
        match self.enqueue(&puts).await {
            Err(CallError::Refused(refusal)) => {
                for (place, _) in group.iter() {
                    answers[*place] = Err(refusal.clone());
                }
            }
            other => other?,
        }
        group.clear();
        Ok(())
    }

    /// Removes all equal tasks of a queue, and tells the workers that run them. Returns how many were waiting.
    pub(super) async fn cancel(&self, queue: &QueueName, task: &Payload) -> Result<u64, CallError> {
        check_queue(queue)?;
        let digest = digest(task.bytes());
        let (key, attempts) = (self.names.queue(queue.as_str()), self.names.attempts(queue.as_str()));
        let (marker, channel) =
            (self.names.marker(&digest), self.names.channel(queue.as_str(), Notice::Cancel));
        let arguments = [channel.as_bytes(), task.bytes(), digest.as_bytes()];
        self.run(&script::CANCEL, &[&key, &marker, &attempts], &arguments[..]).await
    }
}

/// Refuses what Worqr has no notion of.
fn check(put: &Put) -> Result<(), Refusal> {
    let none = PutOptions::default();
    let options = put.options.as_deref().unwrap_or(&none);
    for (is_given, operation) in [
        (put.delay > Seconds::ZERO, "delay a task"),
        (put.priority.is_some_and(|priority| priority.get() != 0.0), "order tasks by priority"),
        (put.retries.is_some(), "keep retries with a task: they are an option of the URL"),
        (put.tags.is_some(), "tag a task"),
        (!put.depends.is_empty(), "make a task depend on others"),
        (put.existing != Existing::Keep, "put a task again: it has no id"),
        (options.result_ttl.is_some(), "keep a result"),
        (options.expires.is_some(), "let a task expire"),
        (options.attempt_max.is_some(), "limit how long an attempt takes"),
        (options.backoff.is_some(), "keep a backoff with a task: it is an option of the URL"),
        (options.crashes_max.is_some(), "count lost workers"),
        (options.roll_call, "call the roll of workers with a put"),
        (options.metadata.is_some(), "keep metadata with a task"),
        (options.traceparent.is_some(), "keep a trace context with a task"),
        (
            PutOptions { unique: None, attach: None, ..options.clone() } != none,
            "keep such an option with a task",
        ),
    ] {
        if is_given {
            return Err(unsupported(operation));
        }
    }
    check_queue(&put.queue)?;
    if put.klass.as_str() != put.queue.as_str() {
        let why = format!("must be {}, as the queue is: a task of Worqr has no other kind", put.queue);
        return Err(bad_argument("klass", why));
    }
    check_size("payload", &put.payload)?;
    match &options.unique {
        Some(key) => check_unique(key.as_bytes(), &put.payload),
        None => Ok(()),
    }
}

pub(super) fn check_size(what: &'static str, payload: &Payload) -> Result<(), Refusal> {
    let bytes = payload.byte_len();
    if bytes > PAYLOAD_BYTES_MAX {
        return Err(Refusal::TooLarge { what: what.into(), bytes, max: PAYLOAD_BYTES_MAX });
    }
    Ok(())
}
