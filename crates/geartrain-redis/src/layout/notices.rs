//! Messages that other clients of a layout publish: one connection subscribes for all calls of this process.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use redis::{PushInfo, PushKind, Value};
use tokio::sync::{broadcast, mpsc, oneshot};

use crate::connection::{Connection, ConnectionError};
use crate::driver::Shared;

/// Messages that a slow receiver may be behind; then it is told that some were missed.
const BEHIND_MAX: usize = 4_096;
/// Pause before a lost connection is opened again.
const REOPEN: Duration = Duration::from_secs(1);

/// A published message, or that some may have been missed.
#[derive(Debug, Clone)]
pub(crate) enum Notice {
    Message { channel: Arc<str>, message: Arc<str> },
    Missed,
}

/// What to subscribe to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Topic {
    Channel(String),
    Pattern(String),
}

/// The subscriptions of a layout.
pub(crate) struct Notices {
    shared: Arc<Shared>,
    notices: broadcast::Sender<Notice>,
    /// To the task that has the connection. It starts with the first subscription.
    task: parking_lot::Mutex<Option<mpsc::UnboundedSender<Request>>>,
}

type Request = (Vec<Topic>, oneshot::Sender<()>);

impl Notices {
    pub(crate) fn new(shared: Arc<Shared>) -> Notices {
        Notices { shared, notices: broadcast::Sender::new(BEHIND_MAX), task: parking_lot::Mutex::default() }
    }

    /// Receives the messages of these topics, and maybe those of others, from now on. Subscriptions stay until
    /// the backend is dropped.
    pub(crate) async fn listen(
        &self,
        topics: Vec<Topic>,
    ) -> Result<broadcast::Receiver<Notice>, ConnectionError> {
        let receiver = self.notices.subscribe();
        let (subscribed, done) = oneshot::channel();
        let request = (topics, subscribed);
        {
            let mut task = self.task.lock();
            let to = task.get_or_insert_with(|| {
                let (to, requests) = mpsc::unbounded_channel();
                let subscriber = Subscriber {
                    shared: self.shared.clone(),
                    notices: self.notices.clone(),
                    topics: BTreeSet::new(),
                };
                self.shared.handle.spawn(subscriber.run(requests));
                to
            });
            to.send(request).map_err(|_| ConnectionError::ShutDown)?;
        }
        done.await.map_err(|_| ConnectionError::ShutDown)?;
        Ok(receiver)
    }
}

struct Subscriber {
    shared: Arc<Shared>,
    notices: broadcast::Sender<Notice>,
    topics: BTreeSet<Topic>,
}

impl Subscriber {
    async fn run(mut self, mut requests: mpsc::UnboundedReceiver<Request>) {
        // Requests that came while there was no connection.
        let mut waiting: Vec<Request> = Vec::new();
        loop {
            match self.serve(&mut requests, &mut waiting).await {
                Ok(()) => return,
                Err(error) => tracing::debug!(%error, "lost the subscription to messages of other clients"),
            }
            tokio::time::sleep(REOPEN).await;
        }
    }

    /// Serves one connection. Returns when the backend is dropped.
    async fn serve(
        &mut self,
        requests: &mut mpsc::UnboundedReceiver<Request>,
        waiting: &mut Vec<Request>,
    ) -> Result<(), ConnectionError> {
        let (to, mut pushes) = mpsc::unbounded_channel();
        let mut connection = self.shared.connector.open(Some(to)).await?;
        let topics: Vec<Topic> = self.topics.iter().cloned().collect();
        subscribe(&mut connection, &topics).await?;
        // There is no receiver yet if this is the first connection.
        let _ = self.notices.send(Notice::Missed);
        loop {
            for (topics, subscribed) in waiting.drain(..) {
                let new: Vec<Topic> = topics.into_iter().filter(|it| !self.topics.contains(it)).collect();
                self.topics.extend(new.iter().cloned());
                subscribe(&mut connection, &new).await?;
                let _ = subscribed.send(());
            }
            tokio::select! {
                request = requests.recv() => match request {
                    Some(request) => waiting.push(request),
                    None => return Ok(()),
                },
                push = pushes.recv() => match push {
                    Some(push) if push.kind == PushKind::Disconnection => return Err(ConnectionError::ShutDown),
                    Some(push) => self.forward(push),
                    None => return Err(ConnectionError::ShutDown),
                },
            }
        }
    }

    fn forward(&self, PushInfo { kind, data }: PushInfo) {
        // A message to a pattern begins with the pattern.
        let data = match kind {
            PushKind::Message => &data[..],
            PushKind::PMessage => data.get(1..).unwrap_or_default(),
            _ => return,
        };
        if let [Value::BulkString(channel), Value::BulkString(message)] = data
            && let (Ok(channel), Ok(message)) = (std::str::from_utf8(channel), std::str::from_utf8(message))
        {
            // There may be no receiver.
            let _ = self.notices.send(Notice::Message { channel: channel.into(), message: message.into() });
        }
    }
}

async fn subscribe(connection: &mut Connection, topics: &[Topic]) -> Result<(), ConnectionError> {
    for topic in topics {
        match topic {
            Topic::Channel(channel) => connection.subscribe(std::slice::from_ref(channel)).await?,
            Topic::Pattern(pattern) => connection.subscribe_to_pattern(pattern).await?,
        }
    }
    Ok(())
}
