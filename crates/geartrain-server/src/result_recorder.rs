//! Result recorder: subscribes to the queue's events and writes the result log. It only reads, so the queue
//! never waits for it.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use geartrain::{
    Call, Canceled, Client, Clock, Event, Events, GetMany, GetResult, Jid, Job, Refusal, Reply, StoredResult,
    SubscriptionEnd, Tombstone,
};
use geartrain_core::SystemClock;
use geartrain_results::{
    Batch, Change, Gap, LogTarget, ReceivedEvent, Recorder, changes, job_of, result_of, tombstone_of,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::StartError;

/// How many events are written in one batch: about a tenth of a second of a busy queue.
const BATCH_EVENTS_MAX: usize = 8_192;
/// How long the first event of a batch waits for others, so that a quiet queue does not cause a sync per
/// event.
const LINGER: Duration = Duration::from_millis(50);
/// How long to wait before retrying a queue that does not answer, and how often to try a lookup.
const RETRY: (Duration, u32) = (Duration::from_secs(1), 3);
/// How many jobs are looked up per request, at first and at most: more saves round trips, fewer bounds the
/// payloads that come with them.
const LOOK_UP_JOBS: (usize, usize) = (128, 2_048);
/// How many bytes of payloads one lookup should return at most.
const PAYLOAD_BYTES_MAX: usize = 16 << 20;

pub(crate) struct ResultRecorder {
    client: Client,
    log: Recorder,
    events: Events,
    /// The position of the last event handed to the log.
    position: u64,
    look_up: usize,
}

impl ResultRecorder {
    /// Opens the log and subscribes to the queue from where the log ends. No event after this returns is
    /// missed.
    pub(crate) async fn attach(
        client: Client,
        target: &LogTarget,
        retention: Option<Duration>,
    ) -> Result<ResultRecorder, StartError> {
        let opened_target = target.clone();
        let opening = move || {
            let (mut opened, known) = Recorder::open(&opened_target)?;
            opened.set_retention(retention);
            opened.size().map(|size| (opened, known, size))
        };
        let (mut opened, known, size) = blocking(opening).await??;
        let days = retention.map(|retention| retention.as_secs_f64() / 86_400.0);
        tracing::info!(log = %target, bytes = size.bytes, free_bytes = size.free_bytes, keep_days = days, "the result log is open");
        // Held until the real subscription begins: events are retained from the first subscription on.
        let retaining = client.events().await?;
        let mut position = match known {
            Some(position) => position,
            None => {
                let newest = retaining.position();
                opened = blocking(move || opened.begin_after(newest).map(|()| opened)).await??;
                newest
            }
        };
        let log = opened.start().map_err(StartError::LogThread)?;
        let events = subscribe(&client, &log, &mut position).await?;
        drop(retaining);
        client.backend().ack_events(position);
        Ok(ResultRecorder { client, log, events, position, look_up: LOOK_UP_JOBS.0 })
    }

    /// Records events until stopped, and then those that arrived until then.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        loop {
            let (received, end) = self.receive(&stop).await;
            let more = !received.is_empty();
            if more && !self.record(&received).await {
                tracing::error!(
                    "the result log is no longer written: restart the server, and it continues from where it was"
                );
                break;
            }
            match end {
                _ if stop.is_cancelled() && (end.is_some() || !more) => break,
                Some(end) => self.resubscribe(end, &stop).await,
                None => {}
            }
        }
        let log = self.log;
        // Closing blocks on the disk.
        let _ = tokio::task::spawn_blocking(move || log.close()).await;
    }

    /// Waits for events, and collects those that follow within [`LINGER`]. Once stopped, it only takes
    /// pending ones.
    async fn receive(&mut self, stop: &CancellationToken) -> (Vec<ReceivedEvent>, Option<SubscriptionEnd>) {
        let mut received: Vec<ReceivedEvent> = Vec::new();
        let linger = tokio::time::sleep_until(Instant::now() + LINGER);
        tokio::pin!(linger);
        while received.len() < BATCH_EVENTS_MAX {
            // Cancel safe: `next` either returns an event or leaves it in the subscription.
            let next = tokio::select! {
                biased;
                next = self.events.next() => next,
                () = stop.cancelled() => break,
                () = &mut linger, if !received.is_empty() => break,
            };
            match next {
                Ok(published) => {
                    if received.is_empty() {
                        linger.as_mut().reset(Instant::now() + LINGER);
                    }
                    received.push(ReceivedEvent { published, at: SystemClock.now() });
                }
                Err(end) => return (received, Some(end)),
            }
        }
        (received, None)
    }

    /// Hands events to the log. False if its thread has ended.
    async fn record(&mut self, received: &[ReceivedEvent]) -> bool {
        let events = || received.iter().map(|received| &*received.published.event);
        let jobs = self.jobs(events()).await;
        let results = self.results(events()).await;
        let tombstones = self.tombstones(events()).await;
        let batch = changes(received, &jobs, &results, &tombstones);
        self.position = batch.position;
        let written = self.log.write(batch).await;
        self.client.backend().ack_events(self.log.durable_position());
        written
    }

    /// Subscribes again as soon as the queue allows it.
    async fn resubscribe(&mut self, end: SubscriptionEnd, stop: &CancellationToken) {
        tracing::debug!(%end, "the result log subscribes again from its position");
        // A subscription that only lagged is accepted at once.
        let mut pause = if matches!(end, SubscriptionEnd::Lagged { .. }) { Duration::ZERO } else { RETRY.0 };
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => pause = RETRY.0,
            }
            match subscribe(&self.client, &self.log, &mut self.position).await {
                Ok(events) => break self.events = events,
                Err(error) => {
                    let error: &dyn std::error::Error = &error;
                    tracing::warn!(error, "the result log cannot subscribe to the queue, trying again")
                }
            }
        }
    }

    /// Looks up the jobs of events. Removed ones are left out.
    async fn jobs(&mut self, events: impl Iterator<Item = &Event>) -> HashMap<Jid, Job> {
        let mut left: Vec<Jid> =
            events.filter_map(job_of).cloned().collect::<HashSet<_>>().into_iter().collect();
        let mut jobs = HashMap::with_capacity(left.len());
        while !left.is_empty() {
            let jids = left.split_off(left.len().saturating_sub(self.look_up));
            let found = match request(&self.client, vec![GetMany { jids: jids.clone() }.into()]).await {
                Some(replies) => jobs_of(replies),
                // One job with an unreadable payload fails the whole request: look them up one by one.
                None => {
                    let mut found = Vec::new();
                    for jid in jids {
                        let one = self.client.batch(vec![GetMany { jids: vec![jid] }.into()]).await;
                        found.extend(
                            one.map(|one| jobs_of(one.into_iter().flatten().collect())).unwrap_or_default(),
                        );
                    }
                    found
                }
            };
            let bytes: usize = found.iter().map(|job| job.payload.bytes().len()).sum();
            // Sized by the payloads of these, and at most doubled.
            let fit = PAYLOAD_BYTES_MAX.saturating_mul(found.len()) / bytes.max(1);
            self.look_up = fit.clamp(1, (self.look_up * 2).min(LOOK_UP_JOBS.1));
            // The log does not need payloads, and they may be large.
            jobs.extend(found.into_iter().map(|job| (job.jid.clone(), Job { payload: "".into(), ..job })));
        }
        jobs
    }

    /// Looks up the results of events.
    async fn results(&mut self, events: impl Iterator<Item = &Event>) -> HashMap<Jid, StoredResult> {
        let calls: Vec<Call> =
            events.filter_map(result_of).map(|jid| GetResult { jid: jid.clone() }.into()).collect();
        if calls.is_empty() {
            return HashMap::new();
        }
        let replies = request(&self.client, calls).await.unwrap_or_default();
        let results = replies.into_iter().filter_map(|reply| match reply {
            Reply::GetResult(Some(result)) => Some((result.jid.clone(), *result)),
            _ => None,
        });
        results.collect()
    }

    async fn tombstones(&mut self, events: impl Iterator<Item = &Event>) -> HashMap<Jid, Tombstone> {
        let calls: Vec<Call> =
            events.filter_map(tombstone_of).map(|jid| Canceled { jid: jid.clone() }.into()).collect();
        if calls.is_empty() {
            return HashMap::new();
        }
        let replies = request(&self.client, calls).await.unwrap_or_default();
        let tombstones = replies.into_iter().filter_map(|reply| match reply {
            Reply::Canceled(Some(tombstone)) => Some((tombstone.jid.clone(), *tombstone)),
            _ => None,
        });
        tombstones.collect()
    }
}

/// Subscribes after a position; if the queue no longer retains it, records the gap.
async fn subscribe(client: &Client, log: &Recorder, position: &mut u64) -> Result<Events, geartrain::Error> {
    loop {
        let after = *position;
        let before = match client.events_after(after).await {
            Ok(events) => return Ok(events),
            Err(geartrain::Error::Refused(Refusal::CursorTooOld { oldest, .. })) => oldest,
            Err(geartrain::Error::Refused(Refusal::CursorAhead { newest, .. })) => newest + 1,
            Err(error) => return Err(error),
        };
        let gap = Gap { after, before, noticed: SystemClock.now().get() };
        match gap.missing_max() {
            Some(missing) => tracing::warn!(
                after,
                before,
                missing,
                "the queue no longer retains events that the result log has not received: they are missing in it"
            ),
            None => tracing::warn!(
                after,
                before,
                "the queue does not know the position of the result log: it is another queue, or was emptied"
            ),
        }
        *position = before.saturating_sub(1);
        let batch = Batch { changes: vec![Change::Gap(gap)], position: *position };
        log.write(batch).await;
    }
}

/// Sends a request, with retries. If it fails, rows are written with what is known.
async fn request(client: &Client, calls: Vec<Call>) -> Option<Vec<Reply>> {
    for _ in 1..RETRY.1 {
        match client.batch(calls.clone()).await {
            Ok(answers) => return Some(answers.into_iter().flatten().collect()),
            Err(error) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(error, "the result log cannot look up jobs, trying again");
            }
        }
        tokio::time::sleep(RETRY.0).await;
    }
    let answers = client.batch(calls).await.ok()?;
    Some(answers.into_iter().flatten().collect())
}

fn jobs_of(replies: Vec<Reply>) -> Vec<Job> {
    let jobs = replies.into_iter().filter_map(|reply| match reply {
        Reply::GetMany(jobs) => Some(jobs),
        _ => None,
    });
    jobs.flatten().collect()
}

/// Runs a blocking task off the runtime's threads.
async fn blocking<T: Send + 'static>(task: impl FnOnce() -> T + Send + 'static) -> Result<T, StartError> {
    tokio::task::spawn_blocking(task)
        .await
        .map_err(|error| StartError::LogThread(std::io::Error::other(error)))
}
