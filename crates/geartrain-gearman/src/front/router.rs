//! Router: reads the front-end's result stream and puts each item into the mailbox of its connection.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use geartrain_core::{Backend, ResultStreamEnd};
use parking_lot::{Mutex, MutexGuard};

use super::mailbox::Mailbox;

/// Pause after the backend did not open a stream.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// The mailboxes of all connections, and the result stream that feeds them.
pub(crate) struct Router {
    stream_id: AtomicU64,
    mailboxes: Mutex<HashMap<u64, Arc<Mailbox>>>,
}

impl Router {
    pub(crate) fn new() -> Router {
        Router { stream_id: AtomicU64::new(fresh_stream_id()), mailboxes: Mutex::default() }
    }

    /// The stream for clients that begin to wait now.
    pub(crate) fn stream_id(&self) -> u64 {
        self.stream_id.load(Ordering::Acquire)
    }

    pub(crate) fn add(&self, connection: u64, mailbox: Arc<Mailbox>) {
        self.mailboxes().insert(connection, mailbox);
    }

    pub(crate) fn remove(&self, connection: u64) {
        self.mailboxes().remove(&connection);
    }

    /// Routes deliveries until it is dropped. Signals `ready` when the first stream is open.
    pub(crate) async fn run(&self, backend: &dyn Backend, ready: tokio::sync::oneshot::Sender<()>) {
        let mut ready = Some(ready);
        let mut last_error = String::new();
        loop {
            let stream_id = self.stream_id();
            let mut stream = match backend.open_result_stream(stream_id).await {
                Ok(stream) => stream,
                Err(error) => {
                    if last_error != error.to_string() {
                        last_error = error.to_string();
                        tracing::warn!(%error, "waiting clients receive no results now: no result stream");
                    }
                    // Another stream may have this number.
                    self.replace_stream(stream_id);
                    tokio::time::sleep(RETRY_DELAY).await;
                    continue;
                }
            };
            last_error.clear();
            // The receiver is gone if the front-end stops already.
            let _ = ready.take().map(|ready| ready.send(()));
            let end = loop {
                match stream.next().await {
                    Ok(delivery) => {
                        let mailbox = self.mailboxes().get(&delivery.waiter.connection).cloned();
                        // None if the connection has ended.
                        mailbox.iter().for_each(|mailbox| mailbox.deliver(delivery.clone()));
                    }
                    Err(end) => break end,
                }
            };
            if end == ResultStreamEnd::Lagged {
                tracing::warn!(
                    "the result stream fell behind and was closed; waiting clients receive WORK_FAIL"
                );
            }
            self.replace_stream(stream_id);
        }
    }

    /// Chooses a new stream id, and tells every connection that the old stream has ended.
    fn replace_stream(&self, ended: u64) {
        self.stream_id.store(fresh_stream_id(), Ordering::Release);
        self.mailboxes().values().for_each(|mailbox| mailbox.end_stream(ended));
    }

    fn mailboxes(&self) -> MutexGuard<'_, HashMap<u64, Arc<Mailbox>>> {
        self.mailboxes.lock()
    }
}

/// A stream id that no other server has chosen: half of it is random, the rest counts up.
fn fresh_stream_id() -> u64 {
    uuid::Uuid::now_v7().as_u64_pair().1
}
