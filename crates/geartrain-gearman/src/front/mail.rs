//! Brings what those are told who wait for jobs to the connections that they wait through.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use geartrain_core::{Backend, ResultStreamEnd};
use tokio_util::sync::CancellationToken;

use super::inbox::Inbox;

/// How long to wait when the backend cannot be asked.
const TROUBLE: Duration = Duration::from_secs(1);

/// Knows everyone's inbox.
pub(crate) struct Mail {
    /// The stream that those who begin to wait now are told through.
    front: AtomicU64,
    inboxes: Mutex<HashMap<u64, Arc<Inbox>>>,
}

impl Mail {
    pub(crate) fn new() -> Mail {
        Mail { front: AtomicU64::new(fresh_front()), inboxes: Mutex::default() }
    }

    /// The stream that those who begin to wait now are told through.
    pub(crate) fn front(&self) -> u64 {
        self.front.load(Ordering::Acquire)
    }

    pub(crate) fn add(&self, connection: u64, inbox: Arc<Inbox>) {
        self.inboxes().insert(connection, inbox);
    }

    pub(crate) fn remove(&self, connection: u64) {
        self.inboxes().remove(&connection);
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
            let front = self.front();
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
                        self.end(front);
                        tokio::select! {
                            () = stop.cancelled() => return,
                            () = tokio::time::sleep(TROUBLE) => continue,
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
                            let inbox = self.inboxes().get(&delivery.waiter.connection).cloned();
                            // Whoever has gone is not told.
                            inbox.iter().for_each(|inbox| inbox.tell(delivery.clone()));
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
            self.end(front);
        }
    }

    /// Goes on with another stream. Those who waited through this one are told that nothing more comes.
    fn end(&self, front: u64) {
        self.front.store(fresh_front(), Ordering::Release);
        self.inboxes().values().for_each(|inbox| inbox.end(front));
    }

    fn inboxes(&self) -> MutexGuard<'_, HashMap<u64, Arc<Inbox>>> {
        self.inboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A number that nobody else has chosen.
fn fresh_front() -> u64 {
    // Half of it is chance, and the other half differs from one to the next.
    uuid::Uuid::now_v7().as_u64_pair().1
}
