//! The events of all functions: create, start and finish.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;

use geartrain_core::{
    Event, FailedBy, JobEnding, PositionedEvent, QueueName, Subscription, SubscriptionEnd, WorkerName,
};
use redis::cmd;
use tokio::sync::broadcast;

use super::keys::{JobName, Keys, channel_of, valid_id};
use super::read::unknown_worker;
use super::session::Session;
use crate::layout::{CallError, Notice, Topic};

impl Session {
    /// Subscribes to the events of all functions. Their positions count from 1 in each subscription: events
    /// are not stored.
    pub(super) async fn subscribe(&self) -> Result<Events, CallError> {
        let notices = self.events.listen(vec![Topic::Pattern(channel_of("*"))]).await?;
        Ok(Events { session: self.clone(), notices, position: 0, ready: VecDeque::new() })
    }

    /// The event that a message stands for, with what the job's hash adds to it.
    async fn event_of(&self, word: &str, job: &JobName) -> Result<Option<Event>, CallError> {
        let (jid, queue) = (job.jid(), job.function.clone());
        Ok(match word {
            "create" => Some(Event::Put { jid, queue }),
            "start" => {
                let keys = Keys::of(queue.as_str());
                let record: Option<String> =
                    self.ask(keys.inflight(), cmd("HGET").arg(keys.inflight()).arg(&job.id)).await?;
                let worker = record.and_then(|record| WorkerName::new(record.splitn(3, ' ').nth(2)?).ok());
                Some(Event::Popped { jid, queue, worker: worker.unwrap_or_else(unknown_worker) })
            }
            "finish" => {
                self.fields(job).await?.and_then(|fields| fields.ending()).map(|(ending, _)| match ending {
                    JobEnding::Failed { group, message } => {
                        let by = FailedBy::Worker;
                        Event::Failed { jid, queue, worker: None, group, message, by }
                    }
                    JobEnding::Canceled => Event::Canceled { jid, was: Some((queue, None)) },
                    _ => Event::Completed { jid, queue },
                })
            }
            // Peers may use more words.
            _ => None,
        })
    }
}

/// A subscription to the events of all functions.
pub(super) struct Events {
    session: Session,
    notices: broadcast::Receiver<Notice>,
    position: u64,
    /// Messages that were received and not handled yet. A cancelled `next` leaves them here.
    ready: VecDeque<(String, JobName)>,
}

impl Subscription for Events {
    fn next(
        &mut self,
    ) -> Pin<Box<dyn Future<Output = Result<PositionedEvent, SubscriptionEnd>> + Send + '_>> {
        Box::pin(async move {
            loop {
                while let Some((word, job)) = self.ready.front() {
                    let event = self.session.event_of(word, job).await;
                    self.ready.pop_front();
                    match event {
                        Ok(Some(event)) => {
                            self.position += 1;
                            let at = Some(self.session.shared.clock.now());
                            return Ok(PositionedEvent {
                                position: self.position,
                                event: Arc::new(event),
                                at,
                            });
                        }
                        Ok(None) => {}
                        Err(error) => tracing::warn!(?error, "cannot read the job of an event"),
                    }
                }
                match self.notices.recv().await {
                    Ok(Notice::Message { channel, message }) => {
                        self.ready.extend(parts_of(&channel, &message));
                    }
                    Ok(Notice::Missed) => {}
                    Err(broadcast::error::RecvError::Lagged(_)) => {
                        return Err(SubscriptionEnd::Lagged { missed: self.position + 1 });
                    }
                    Err(broadcast::error::RecvError::Closed) => return Err(SubscriptionEnd::Closed),
                }
            }
        })
    }

    fn position(&self) -> u64 {
        0
    }
}

/// The word of a message and its job.
fn parts_of(channel: &str, message: &str) -> Option<(String, JobName)> {
    let function = QueueName::new(channel.strip_prefix("channel:")?).ok()?;
    let (word, id) = message.split_once(':')?;
    Some((word.to_owned(), JobName { function, id: valid_id(id)?.to_owned() }))
}
