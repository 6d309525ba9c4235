//! Brings what those are told who wait for jobs to the connections that they wait through.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use geartrain_core::{Backend, ResultStreamEnd};
use tokio_util::sync::CancellationToken;

use super::mailbox::Mailbox;

/// How long to wait when the backend cannot be asked.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Knows everyone's inbox.
pub(crate) struct Router {
    /// The stream that those who begin to wait now are told through.
    stream_id: AtomicU64,
    mailboxes: Mutex<HashMap<u64, Arc<Mailbox>>>,
}

impl Router {
    pub(crate) fn new() -> Router {
        Router { stream_id: AtomicU64::new(fresh_stream_id()), mailboxes: Mutex::default() }
    }

    /// The stream that those who begin to wait now are told through.
    pub(crate) fn stream_id(&self) -> u64 {
        self.stream_id.load(Ordering::Acquire)
    }

    pub(crate) fn add(&self, connection: u64, inbox: Arc<Mailbox>) {
        self.mailboxes().insert(connection, inbox);
    }

    pub(crate) fn remove(&self, connection: u64) {
        self.mailboxes().remove(&connection);
    }

    /// Brings mail until it is stopped. `ready` is told when the first stream is there.
    pub(crate) async fn run(
        &self,
        backend: &dyn Backend,
        ready: tokio::sync::oneshot::Sender<()>,
        stop: &CancellationToken,
    ) {
        let mut ready = Some(ready);
        let mut last_word = String::new();
        loop {
            let front = self.stream_id();
            let mut stream = tokio::select! {
                () = stop.cancelled() => return,
                stream = backend.open_result_stream(front) => match stream {
                    Ok(stream) => stream,
                    Err(error) => {
                        if last_word != error.to_string() {
                            last_word = error.to_string();
                            tracing::warn!(%error, "clients that wait for jobs cannot be told anything now");
                        }
                        // Some other stream may have this number.
                        self.replace_stream(front);
                        tokio::select! {
                            () = stop.cancelled() => return,
                            () = tokio::time::sleep(RETRY_DELAY) => continue,
                        }
                    }
                },
            };
            last_word.clear();
            // If nobody waits for it, that is as well.
            let _ = ready.take().map(|ready| ready.send(()));
            let why = loop {
                tokio::select! {
                    () = stop.cancelled() => return,
                    delivery = stream.next() => match delivery {
                        Ok(delivery) => {
                            let inbox = self.mailboxes().get(&delivery.waiter.connection).cloned();
                            // Whoever has gone is not told.
                            inbox.iter().for_each(|inbox| inbox.deliver(delivery.clone()));
                        }
                        Err(why) => break why,
                    },
                }
            };
            if why == ResultStreamEnd::Lagged {
                tracing::warn!(
                    "clients that wait for jobs were told too much at once; they are told that their jobs failed"
                );
            }
            self.replace_stream(front);
        }
    }

    /// Goes on with another stream. Those who waited through this one are told that nothing more comes.
    fn replace_stream(&self, front: u64) {
        self.stream_id.store(fresh_stream_id(), Ordering::Release);
        self.mailboxes().values().for_each(|inbox| inbox.end_stream(front));
    }

    fn mailboxes(&self) -> MutexGuard<'_, HashMap<u64, Arc<Mailbox>>> {
        self.mailboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A number that nobody else has chosen.
fn fresh_stream_id() -> u64 {
    // Half of it is chance, and the other half differs from one to the next.
    uuid::Uuid::now_v7().as_u64_pair().1
}
