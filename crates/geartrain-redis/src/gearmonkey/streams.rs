//! Result streams: clients that wait for jobs.
//!
//! Only the creator of a job takes the element of its lock list, because it wakes one client. All other waits
//! use `finish` events, and both read the hash again each second.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use geartrain_core::{
    Attach, AttachReply, DetachScope, Jid, Progressed, Refusal, ResultStream, ResultStreamEnd, ResultWaiter,
    StreamItem, StreamMessage, Timestamp,
};
use parking_lot::Mutex;
use redis::cmd;
use tokio::sync::{broadcast, mpsc};
use tokio::task::AbortHandle;

use super::keys::{JobName, Keys};
use super::session::Session;
use crate::connection::Connection;
use crate::layout::{CallError, Notice, Topic, bad_argument};

/// How often a wait reads the hash again.
const READ_EVERY: Duration = Duration::from_secs(1);

/// The open streams of a backend.
#[derive(Default)]
pub(super) struct Streams {
    open: Mutex<HashMap<u64, OpenStream>>,
}

struct OpenStream {
    to: mpsc::UnboundedSender<StreamMessage>,
    waits: HashMap<ResultWaiter, (Jid, AbortHandle)>,
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.waits.values().for_each(|(_, task)| task.abort());
    }
}

impl Streams {
    /// Opens a stream. One with the same id is replaced.
    pub(super) fn open(self: &Arc<Streams>, id: u64) -> JobStream {
        let (to, messages) = mpsc::unbounded_channel();
        self.open.lock().insert(id, OpenStream { to, waits: HashMap::new() });
        JobStream { id, messages, streams: self.clone() }
    }

    /// Refuses a waiter whose stream is not open.
    pub(super) fn check(&self, waiter: ResultWaiter) -> Result<(), Refusal> {
        let is_open = self.open.lock().contains_key(&waiter.stream_id);
        if is_open { Ok(()) } else { Err(bad_argument("waiter", "has no open result stream")) }
    }

    /// Waits for a job. With `creator`, by its lock list.
    pub(super) fn attach(
        &self,
        session: &Session,
        waiter: ResultWaiter,
        job: &JobName,
        creator: bool,
    ) -> Result<(), Refusal> {
        self.check(waiter)?;
        let mut open = self.open.lock();
        let Some(stream) = open.get_mut(&waiter.stream_id) else { return Ok(()) };
        let wait = Wait { session: session.clone(), job: job.clone(), waiter, to: stream.to.clone() };
        let task = session.shared.handle.spawn(wait.run(creator));
        if let Some((_, before)) = stream.waits.insert(waiter, (job.jid(), task.abort_handle())) {
            before.abort();
        }
        Ok(())
    }

    fn waits_for(&self, waiter: ResultWaiter, jid: &Jid) -> bool {
        let open = self.open.lock();
        let wait = open.get(&waiter.stream_id).and_then(|stream| stream.waits.get(&waiter));
        wait.is_some_and(|(of, task)| of == jid && !task.is_finished())
    }

    /// How many clients of this process wait for a job.
    pub(super) fn attached(&self, jid: &Jid) -> u64 {
        let open = self.open.lock();
        let waits = open.values().flat_map(|stream| stream.waits.values());
        waits.filter(|(of, task)| of == jid && !task.is_finished()).count() as u64
    }

    /// Ends waits. Returns how many there were.
    pub(super) fn detach(&self, scope: DetachScope) -> u64 {
        let is_meant = |waiter: &ResultWaiter| match scope {
            DetachScope::One(one) => *waiter == one,
            DetachScope::Connection { stream_id, connection } => {
                (waiter.stream_id, waiter.connection) == (stream_id, connection)
            }
            DetachScope::Stream(stream_id) => waiter.stream_id == stream_id,
            _ => true,
        };
        let mut detached = 0;
        for stream in self.open.lock().values_mut() {
            stream.waits.retain(|waiter, (_, task)| {
                let meant = is_meant(waiter);
                if meant && !task.is_finished() {
                    task.abort();
                    detached += 1;
                }
                !meant
            });
        }
        detached
    }
}

/// The receiving end of a stream.
pub(super) struct JobStream {
    id: u64,
    messages: mpsc::UnboundedReceiver<StreamMessage>,
    streams: Arc<Streams>,
}

impl ResultStream for JobStream {
    fn next(&mut self) -> Pin<Box<dyn Future<Output = Result<StreamMessage, ResultStreamEnd>> + Send + '_>> {
        Box::pin(async move { self.messages.recv().await.ok_or(ResultStreamEnd::Closed) })
    }
}

impl Drop for JobStream {
    fn drop(&mut self) {
        // Not if another stream has replaced this one.
        if !self.messages.is_closed() {
            self.streams.open.lock().remove(&self.id);
        }
    }
}

impl Session {
    /// Waits for a job of any client, or tells how it has ended.
    pub(super) async fn attach(&self, attach: &Attach, now: Timestamp) -> Result<AttachReply, CallError> {
        let job = JobName::of(&attach.jid)?;
        let Some(fields) = self.fields(&job).await? else {
            return Err(Refusal::NoSuchJob { jid: attach.jid.clone() }.into());
        };
        if fields.ending().is_some()
            && let Some(result) = self.result(&attach.jid, now).await?
        {
            let state = self.find(&attach.jid, now).await?.map(|job| job.state.name());
            return Ok(AttachReply::Ended { state, result: Some(Box::new(result)) });
        }
        if !self.streams.waits_for(attach.waiter, &attach.jid) {
            self.streams.attach(self, attach.waiter, &job, false)?;
        }
        Ok(AttachReply::Attached)
    }
}

/// A client that waits for a job.
struct Wait {
    session: Session,
    job: JobName,
    waiter: ResultWaiter,
    to: mpsc::UnboundedSender<StreamMessage>,
}

impl Wait {
    async fn run(self, creator: bool) {
        let keys = Keys::of(self.job.function.as_str());
        let lock = format!("{}{}", keys.lock, self.job.id);
        let mut source = if creator { Source::Lock(None) } else { Source::Events(None) };
        let mut shown: Option<Progressed> = None;
        loop {
            match self.session.fields(&self.job).await {
                Ok(Some(fields)) => {
                    if let Some((ending, result)) = fields.ending() {
                        self.deliver(StreamItem::Ended(ending, result));
                        return;
                    }
                    if let Some(progress) = fields.progress.filter(|progress| shown != Some(*progress)) {
                        shown = Some(progress);
                        self.deliver(StreamItem::Progress { progress, text: None });
                    }
                }
                // The client asks again, and learns that there is no such job.
                Ok(None) => return,
                Err(error) => tracing::debug!(?error, "cannot read a job that a client waits for"),
            }
            self.pause(&mut source, &keys.channel, &lock).await;
        }
    }

    fn deliver(&self, item: StreamItem) {
        // The client may be gone.
        let _ = self.to.send(StreamMessage { waiter: self.waiter, jid: self.job.jid(), item });
    }

    /// Waits until the job may have ended, at most for a second.
    async fn pause(&self, source: &mut Source, channel: &str, lock: &str) {
        let opened = match source {
            Source::Lock(connection @ None) => match self.session.shared.connector.open(None).await {
                Ok(opened) => {
                    *connection = Some(opened);
                    true
                }
                Err(_) => false,
            },
            Source::Events(events @ None) => {
                *events = self.session.notices.listen(vec![Topic::Channel(channel.to_owned())]).await.ok();
                // The job may have ended before the subscription.
                return;
            }
            _ => true,
        };
        match source {
            Source::Lock(Some(connection)) if opened => {
                // Over a connection of its own: nothing else is answered on it meanwhile.
                let seconds = READ_EVERY.as_secs();
                if connection.send(cmd("BRPOP").arg(lock).arg(seconds)).await.is_err() {
                    *source = Source::Lock(None);
                    tokio::time::sleep(READ_EVERY).await;
                }
            }
            Source::Events(Some(events)) => {
                let finish = format!("finish:{}", self.job.id);
                let finished = async {
                    loop {
                        match events.recv().await {
                            Ok(Notice::Message { channel: on, message })
                                if *on != *channel || *message != *finish => {}
                            Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
                            _ => return,
                        }
                    }
                };
                // Over after a second without an event, too.
                let _ = tokio::time::timeout(READ_EVERY, finished).await;
            }
            _ => tokio::time::sleep(READ_EVERY).await,
        }
    }
}

/// What tells a wait that its job has ended.
enum Source {
    Lock(Option<Connection>),
    Events(Option<broadcast::Receiver<Notice>>),
}
