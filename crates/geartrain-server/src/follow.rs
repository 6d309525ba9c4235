//! Follows what happens in the queue and has it written into the result log. It only reads: the queue never waits for it.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use geartrain::{
    Call, Client, Clock, Event, GetMany, GetResult, Jid, Job, Refusal, Reply, StoredResult, Subscription,
    SubscriptionEnd,
};
use geartrain_core::SystemClock;
use geartrain_results::{Batch, Change, Gap, Heard, LogPlace, Recorder, changes, job_of, result_of};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::StartError;

/// How many events are written together at the most: as many as a busy queue brings about in a tenth of a second.
const EVENTS_MAX: usize = 8_192;
/// How long the first of them waits for others, so that a queue with little to do is not one sync after the other.
const LINGER: Duration = Duration::from_millis(50);
/// How long to wait before asking a queue again that does not answer, and how often to ask it the same.
const ASK_AGAIN: (Duration, u32) = (Duration::from_secs(1), 3);
/// How many jobs are looked up at once: so many at first, then more, because each look is a wait for the queue, and fewer as long as their payloads are large.
const LOOK_UP: (usize, usize) = (128, 2_048);
/// How many bytes of payloads may come with them.
const PAYLOAD_BYTES_MAX: usize = 16 << 20;

/// Follows a queue.
pub(crate) struct Follower {
    client: Client,
    recorder: Recorder,
    events: Box<dyn Subscription>,
    /// The position of the last event that was passed on.
    position: u64,
    look_up: usize,
}

impl Follower {
    /// Opens the log and listens to the queue, from where the log ends. What happens after this returns is not missed.
    pub(crate) async fn attach(
        client: Client,
        log: &LogPlace,
        retention: Option<Duration>,
    ) -> Result<Follower, StartError> {
        let place = log.clone();
        let opening = move || {
            let (mut opened, known) = Recorder::open(&place)?;
            opened.set_retention(retention);
            opened.size().map(|size| (opened, known, size))
        };
        let (mut opened, known, size) = blocking(opening).await??;
        let days = retention.map(|retention| retention.as_secs_f64() / 86_400.0);
        tracing::info!(%log, bytes = size.bytes, free_bytes = size.free_bytes, keep_days = days, "result log");
        // Held until the next one begins: events are kept as long as somebody listens.
        let listening = client.events().await?;
        let mut position = match known {
            Some(position) => position,
            None => {
                let newest = newest(&client).await?;
                opened = blocking(move || opened.begin_after(newest).map(|()| opened)).await??;
                newest
            }
        };
        let recorder = opened.record().map_err(StartError::LogThread)?;
        let events = subscribe(&client, &recorder, &mut position).await?;
        drop(listening);
        client.backend().ack_events(position);
        Ok(Follower { client, recorder, events, position, look_up: LOOK_UP.0 })
    }

    /// Follows until it is told to stop, and then passes on what was said until then.
    pub(crate) async fn follow(mut self, stop: CancellationToken) {
        loop {
            let (heard, end) = self.hear(&stop).await;
            let more = !heard.is_empty();
            if more && !self.pass_on(&heard).await {
                tracing::error!(
                    "the result log is written no longer: start the server again, and it goes on from where it was"
                );
                break;
            }
            match end {
                _ if stop.is_cancelled() && (end.is_some() || !more) => break,
                Some(end) => self.listen_again(end, &stop).await,
                None => {}
            }
        }
        let recorder = self.recorder;
        // It waits for the disk.
        let _ = tokio::task::spawn_blocking(move || recorder.close()).await;
    }

    /// Waits for events, and takes those that come right behind the first. When it was told to stop, it only takes what is there.
    async fn hear(&mut self, stop: &CancellationToken) -> (Vec<Heard>, Option<SubscriptionEnd>) {
        let mut heard: Vec<Heard> = Vec::new();
        let linger = tokio::time::sleep_until(Instant::now() + LINGER);
        tokio::pin!(linger);
        while heard.len() < EVENTS_MAX {
            // Whoever is not chosen has taken nothing yet: an event is either given or still there.
            let next = tokio::select! {
                biased;
                next = self.events.next() => next,
                () = stop.cancelled() => break,
                () = &mut linger, if !heard.is_empty() => break,
            };
            match next {
                Ok(published) => {
                    if heard.is_empty() {
                        linger.as_mut().reset(Instant::now() + LINGER);
                    }
                    heard.push(Heard { published, at: SystemClock.now() });
                }
                Err(end) => return (heard, Some(end)),
            }
        }
        (heard, None)
    }

    /// Has events written. False if nobody writes any more.
    async fn pass_on(&mut self, heard: &[Heard]) -> bool {
        let events = || heard.iter().map(|heard| &*heard.published.event);
        let jobs = self.jobs(events()).await;
        let results = self.results(events()).await;
        let batch = changes(heard, &jobs, &results);
        self.position = batch.position;
        let written = self.recorder.write(batch).await;
        self.client.backend().ack_events(self.recorder.kept());
        written
    }

    /// Listens again as soon as the queue lets it.
    async fn listen_again(&mut self, end: SubscriptionEnd, stop: &CancellationToken) {
        tracing::debug!(%end, "the result log asks for what it did not hear");
        // Whoever was only too slow is let in at once.
        let mut pause =
            if matches!(end, SubscriptionEnd::Lagged { .. }) { Duration::ZERO } else { ASK_AGAIN.0 };
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => pause = ASK_AGAIN.0,
            }
            match subscribe(&self.client, &self.recorder, &mut self.position).await {
                Ok(events) => break self.events = events,
                Err(error) => tracing::warn!(%error, "the result log cannot listen to the queue now"),
            }
        }
    }

    /// Looks up the jobs that events are about. Those that are gone are left out.
    async fn jobs(&mut self, events: impl Iterator<Item = &Event>) -> HashMap<Jid, Job> {
        let mut left: Vec<Jid> =
            events.filter_map(job_of).cloned().collect::<HashSet<_>>().into_iter().collect();
        let mut jobs = HashMap::with_capacity(left.len());
        while !left.is_empty() {
            let jids = left.split_off(left.len().saturating_sub(self.look_up));
            let found = match ask(&self.client, vec![GetMany { jids: jids.clone() }.into()]).await {
                Some(replies) => many(replies),
                // One whose payload cannot be read spoils the answer for all of them.
                None => {
                    let mut found = Vec::new();
                    for jid in jids {
                        let one = self.client.batch(vec![GetMany { jids: vec![jid] }.into()]).await;
                        found.extend(
                            one.map(|one| many(one.into_iter().flatten().collect())).unwrap_or_default(),
                        );
                    }
                    found
                }
            };
            let bytes: usize = found.iter().map(|job| job.payload.bytes().len()).sum();
            // If the next ones are like these, twice as many fit, or fewer.
            let fit = PAYLOAD_BYTES_MAX.saturating_mul(found.len()) / bytes.max(1);
            self.look_up = fit.clamp(1, (self.look_up * 2).min(LOOK_UP.1));
            // What a job is to do is nothing to the log, and may be large.
            jobs.extend(found.into_iter().map(|job| (job.jid.clone(), Job { payload: "".into(), ..job })));
        }
        jobs
    }

    /// Looks up the results that events tell of.
    async fn results(&mut self, events: impl Iterator<Item = &Event>) -> HashMap<Jid, StoredResult> {
        let calls: Vec<Call> =
            events.filter_map(result_of).map(|jid| GetResult { jid: jid.clone() }.into()).collect();
        if calls.is_empty() {
            return HashMap::new();
        }
        let replies = ask(&self.client, calls).await.unwrap_or_default();
        let kept = replies.into_iter().filter_map(|reply| match reply {
            Reply::GetResult(Some(kept)) => Some((kept.jid.clone(), *kept)),
            _ => None,
        });
        kept.collect()
    }
}

/// Listens to what happens after a position, if the queue knows that; if not, the gap is written down.
async fn subscribe(
    client: &Client,
    recorder: &Recorder,
    position: &mut u64,
) -> Result<Box<dyn Subscription>, geartrain::Error> {
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
                "the queue no longer keeps what the result log has not heard: so many positions are missing in it"
            ),
            None => tracing::warn!(
                after,
                before,
                "the queue does not know the events that the result log has heard of: it is another one, or was emptied"
            ),
        }
        *position = before.saturating_sub(1);
        let batch = Batch { changes: vec![Change::Gap(gap)], position: *position };
        recorder.write(batch).await;
    }
}

/// Asks the queue, a few times if it must be. A row is written in any case, with what is known then.
async fn ask(client: &Client, calls: Vec<Call>) -> Option<Vec<Reply>> {
    for _ in 1..ASK_AGAIN.1 {
        match client.batch(calls.clone()).await {
            Ok(answers) => return Some(answers.into_iter().flatten().collect()),
            Err(error) => tracing::warn!(%error, "the result log cannot look jobs up, and asks again"),
        }
        tokio::time::sleep(ASK_AGAIN.0).await;
    }
    let answers = client.batch(calls).await.ok()?;
    Some(answers.into_iter().flatten().collect())
}

fn many(replies: Vec<Reply>) -> Vec<Job> {
    let jobs = replies.into_iter().filter_map(|reply| match reply {
        Reply::GetMany(jobs) => Some(jobs),
        _ => None,
    });
    jobs.flatten().collect()
}

/// The position of the last event: whoever asks for what comes after all of them is told.
async fn newest(client: &Client) -> Result<u64, StartError> {
    match client.events_after(u64::MAX).await {
        Err(geartrain::Error::Refused(Refusal::CursorAhead { newest, .. })) => Ok(newest),
        Err(error) => Err(error.into()),
        Ok(_) => Ok(u64::MAX),
    }
}

/// Does what waits for a disk where that hurts nobody.
async fn blocking<T: Send + 'static>(task: impl FnOnce() -> T + Send + 'static) -> Result<T, StartError> {
    tokio::task::spawn_blocking(task)
        .await
        .map_err(|error| StartError::LogThread(std::io::Error::other(error)))
}
