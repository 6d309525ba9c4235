//! The listener: a connection of its own for what is published, subscribed again after an outage.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use geartrain_core::QueueName;
use redis::{PushInfo, PushKind, Value};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use super::names::Notice;
use super::session::Session;
use crate::connection::{Connection, ConnectionError};

/// How long a call waits for its subscription. Without one it goes on: queues are polled as well.
const SUBSCRIBE_MAX: Duration = Duration::from_secs(2);
/// Pause before a lost connection is opened again; it grows with the outage.
const RECONNECT_PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// What subscribers to events receive.
pub(super) enum Message {
    Published {
        queue: QueueName,
        notice: Notice,
        text: Vec<u8>,
    },
    /// The connection was lost, and with it what was published since.
    Lost,
}

/// A subscription to be made.
pub(super) struct Request {
    channels: Vec<String>,
    pattern: Option<String>,
    ready: oneshot::Sender<()>,
}

/// The sending end of the task's requests.
pub(super) struct Listener {
    to: UnboundedSender<Request>,
}

impl Listener {
    pub(super) fn new() -> (Listener, UnboundedReceiver<Request>) {
        let (to, requests) = unbounded_channel();
        (Listener { to }, requests)
    }

    /// Subscribes to channels, and returns when the Redis has confirmed it. False if it has not in time.
    pub(super) async fn subscribe(&self, channels: Vec<String>) -> bool {
        self.request(channels, None).await
    }

    /// Subscribes to all channels of a pattern, for subscribers to events.
    pub(super) async fn subscribe_pattern(&self, pattern: String) -> bool {
        self.request(Vec::new(), Some(pattern)).await
    }

    async fn request(&self, channels: Vec<String>, pattern: Option<String>) -> bool {
        let (ready, is_ready) = oneshot::channel();
        // Fails if the backend is shut down.
        let _ = self.to.send(Request { channels, pattern, ready });
        matches!(tokio::time::timeout(SUBSCRIBE_MAX, is_ready).await, Ok(Ok(())))
    }
}

/// The task that owns the connection.
pub(super) struct ListenerTask {
    session: Arc<Session>,
    requests: UnboundedReceiver<Request>,
    channels: BTreeSet<String>,
    patterns: BTreeSet<String>,
    connection: Option<(Connection, UnboundedReceiver<PushInfo>)>,
    /// Calls whose subscriptions are not confirmed yet.
    waiting: Vec<oneshot::Sender<()>>,
}

impl ListenerTask {
    pub(super) fn new(session: Arc<Session>, requests: UnboundedReceiver<Request>) -> ListenerTask {
        ListenerTask {
            session,
            requests,
            channels: BTreeSet::new(),
            patterns: BTreeSet::new(),
            connection: None,
            waiting: Vec::new(),
        }
    }

    /// Listens until the backend is shut down.
    pub(super) async fn run(mut self) {
        let mut pause = RECONNECT_PAUSE.0;
        loop {
            let is_idle = self.channels.is_empty() && self.patterns.is_empty();
            if self.connection.is_none() && !is_idle {
                match self.open().await {
                    Ok(()) => pause = RECONNECT_PAUSE.0,
                    Err(error) => {
                        tracing::debug!(%error, "cannot subscribe");
                        tokio::time::sleep(pause).await;
                        pause = (pause * 2).min(RECONNECT_PAUSE.1);
                        continue;
                    }
                }
            }
            tokio::select! {
                request = self.requests.recv() => match request {
                    Some(request) => self.subscribe(request).await,
                    None => return,
                },
                push = next_push(&mut self.connection) => match push {
                    Some(push) if push.kind != PushKind::Disconnection => self.received(push),
                    _ => self.lost(),
                },
            }
        }
    }

    /// Opens the connection and subscribes to everything again.
    async fn open(&mut self) -> Result<(), ConnectionError> {
        let (to, pushes) = unbounded_channel();
        let mut connection = self.session.shared.connector.open(Some(to)).await?;
        let channels: Vec<String> = self.channels.iter().cloned().collect();
        if !channels.is_empty() {
            connection.subscribe(&channels).await?;
        }
        for pattern in &self.patterns {
            connection.subscribe_to_pattern(pattern).await?;
        }
        self.connection = Some((connection, pushes));
        self.confirm();
        // What was published meanwhile is lost, so that parked pops look again.
        self.session.work.notify_waiters();
        Ok(())
    }

    async fn subscribe(&mut self, request: Request) {
        let new: Vec<String> =
            request.channels.into_iter().filter(|channel| self.channels.insert(channel.clone())).collect();
        let pattern = request.pattern.filter(|pattern| self.patterns.insert(pattern.clone()));
        self.waiting.push(request.ready);
        // Without a connection, the next one is opened with them.
        let Some((connection, _)) = &mut self.connection else { return };
        let subscribed = async {
            if !new.is_empty() {
                connection.subscribe(&new).await?;
            }
            match &pattern {
                Some(pattern) => connection.subscribe_to_pattern(pattern).await,
                None => Ok(()),
            }
        };
        match subscribed.await {
            Ok(()) => self.confirm(),
            Err(_) => self.lost(),
        }
    }

    fn confirm(&mut self) {
        for ready in self.waiting.drain(..) {
            // The caller may have given up.
            let _ = ready.send(());
        }
    }

    fn lost(&mut self) {
        self.connection = None;
        self.session.streams.lock().close();
        let _ = self.session.published.send(Arc::new(Message::Lost));
    }

    fn received(&self, push: PushInfo) {
        let is_pattern = push.kind == PushKind::PMessage;
        let data = match (&push.kind, &push.data[..]) {
            (PushKind::Message, [channel, text]) | (PushKind::PMessage, [_, channel, text]) => {
                (channel, text)
            }
            _ => return,
        };
        let (Value::BulkString(channel), Value::BulkString(text)) = data else { return };
        let channel = std::str::from_utf8(channel).unwrap_or_default();
        let Some((queue, notice)) = self.session.names.parts_of_channel(channel) else { return };
        let Ok(queue) = QueueName::new(queue) else { return };
        if is_pattern {
            // Fails if there are no subscribers.
            let message = Message::Published { queue, notice, text: text.clone() };
            let _ = self.session.published.send(Arc::new(message));
            return;
        }
        match notice {
            Notice::Work => self.session.work.notify_waiters(),
            Notice::Done => self.session.streams.lock().done(&queue, text),
            Notice::Delete => self.session.streams.lock().deleted(&queue),
            Notice::Cancel => {
                self.session.streams.lock().cancelled(&queue, text);
                let (session, text) = (self.session.clone(), text.clone());
                tokio::spawn(async move { session.finish_cancelled(&queue, &text).await });
            }
        }
    }
}

/// The next message; never without a connection.
async fn next_push(connection: &mut Option<(Connection, UnboundedReceiver<PushInfo>)>) -> Option<PushInfo> {
    match connection {
        Some((_, pushes)) => pushes.recv().await,
        None => std::future::pending().await,
    }
}
