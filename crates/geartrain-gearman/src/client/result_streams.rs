//! Those who wait for jobs. Each has a connection of its own, because leaving is closing it, and because news of two submissions that are one job could not be told apart over one.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use geartrain_core::{
    ChunkKind, Delivery, DetachScope, Group, Jid, JobEnding, JobResult, Payload, Portion, Progressed,
    ResultStream, ResultStreamEnd, ResultWaiter, StreamItem,
};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use crate::packet::{ReportBody, Submission};
use crate::unpinned;

/// How much is told ahead of whoever listens. Then their connection is not read, and its server waits.
const DELIVERIES_BUFFERED_MAX: usize = 16;
/// How many that have ended, or were lost, are remembered: of each stream, and of all.
const REMEMBERED_MAX: usize = 1_024;

/// All who wait.
#[derive(Default)]
pub(crate) struct ResultStreams {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    streams: HashMap<u64, OpenStream>,
    /// What was submitted over connections that were lost, so that it can be submitted again.
    lost: VecDeque<(Jid, AwaitedSubmission)>,
}

/// One stream, and all who wait through it.
struct OpenStream {
    deliveries: mpsc::Sender<Delivery>,
    waiting: HashMap<ResultWaiter, Waiting>,
}

struct Waiting {
    jid: Jid,
    /// None once the job has ended.
    unfinished: Option<(AwaitedSubmission, AbortHandle)>,
}

/// A job that somebody waits for, as it can be submitted again.
pub(crate) struct AwaitedSubmission {
    pub(crate) submission: Submission,
    /// What it is called in the record.
    pub(crate) record_id: Option<String>,
}

impl ResultStreams {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a stream.
    pub(crate) fn open(self: &Arc<ResultStreams>, front: u64) -> GearmanStream {
        let (to, told) = mpsc::channel(DELIVERIES_BUFFERED_MAX);
        self.detach(DetachScope::Stream(front));
        self.state().streams.insert(front, OpenStream { deliveries: to, waiting: HashMap::new() });
        GearmanStream { stream_id: front, deliveries: told, streams: self.clone() }
    }

    /// Where somebody is told, if there is a stream for them.
    pub(crate) fn sender_for(&self, waiter: ResultWaiter) -> Option<mpsc::Sender<Delivery>> {
        Some(self.state().streams.get(&waiter.stream_id)?.deliveries.clone())
    }

    /// The job that somebody waits for, or waited for until it ended.
    pub(crate) fn job_of(&self, waiter: ResultWaiter) -> Option<Jid> {
        Some(self.state().streams.get(&waiter.stream_id)?.waiting.get(&waiter)?.jid.clone())
    }

    /// Somebody waits from now on; false if their stream has gone in the meantime.
    pub(crate) fn add(
        &self,
        waiter: ResultWaiter,
        jid: Jid,
        awaited: AwaitedSubmission,
        task: AbortHandle,
    ) -> bool {
        match self.state().streams.get_mut(&waiter.stream_id) {
            Some(front) => {
                front.waiting.insert(waiter, Waiting { jid, unfinished: Some((awaited, task)) });
                true
            }
            None => {
                task.abort();
                false
            }
        }
    }

    /// The job has ended, and whoever waits will hear of it.
    pub(crate) fn ended(&self, waiter: ResultWaiter) {
        let mut state = self.state();
        let Some(front) = state.streams.get_mut(&waiter.stream_id) else { return };
        let ended = front.waiting.values().filter(|waiting| waiting.unfinished.is_none()).count();
        if ended >= REMEMBERED_MAX {
            front.waiting.retain(|_, waiting| waiting.unfinished.is_some());
        }
        if let Some(waiting) = front.waiting.get_mut(&waiter) {
            waiting.unfinished = None;
        }
    }

    /// The connection was lost: the stream ends, and whoever waits through it may attach again.
    pub(crate) fn lost(&self, waiter: ResultWaiter) {
        let mut state = self.state();
        let Some(front) = state.streams.remove(&waiter.stream_id) else { return };
        for waiting in front.waiting.into_values() {
            if let Some((awaited, task)) = waiting.unfinished {
                task.abort();
                state.lost.push_back((waiting.jid, awaited));
            }
        }
        let surplus = state.lost.len().saturating_sub(REMEMBERED_MAX);
        state.lost.drain(..surplus);
    }

    /// What was submitted for a job whose connection was lost.
    pub(crate) fn take_lost(&self, jid: &Jid) -> Option<AwaitedSubmission> {
        let mut state = self.state();
        let place = state.lost.iter().position(|(lost, _)| lost == jid)?;
        Some(state.lost.remove(place)?.1)
    }

    /// Ends waits. Answers how many.
    pub(crate) fn detach(&self, who: DetachScope) -> u64 {
        let mut state = self.state();
        let leaves = |waiter: &ResultWaiter| match who {
            DetachScope::One(one) => *waiter == one,
            DetachScope::Connection { stream_id: front, connection } => {
                (waiter.stream_id, waiter.connection) == (front, connection)
            }
            DetachScope::Stream(front) => waiter.stream_id == front,
            _ => true,
        };
        let mut left = 0;
        for front in state.streams.values_mut() {
            front.waiting.retain(|waiter, waiting| {
                if !leaves(waiter) {
                    return true;
                }
                if let Some((_, task)) = waiting.unfinished.take() {
                    // With the task goes its connection, and that is how a server is told.
                    task.abort();
                    left += 1;
                }
                false
            });
        }
        left
    }

    fn close(&self, front: u64) {
        self.detach(DetachScope::Stream(front));
        self.state().streams.remove(&front);
    }
}

/// What is told through one stream.
pub(crate) struct GearmanStream {
    stream_id: u64,
    deliveries: mpsc::Receiver<Delivery>,
    streams: Arc<ResultStreams>,
}

impl ResultStream for GearmanStream {
    fn next(&mut self) -> Pin<Box<dyn Future<Output = Result<Delivery, ResultStreamEnd>> + Send + '_>> {
        Box::pin(async move { self.deliveries.recv().await.ok_or(ResultStreamEnd::Closed) })
    }
}

impl Drop for GearmanStream {
    fn drop(&mut self) {
        // Not if another stream has taken its place, or it has ended by itself.
        if !self.deliveries.is_closed() {
            self.streams.close(self.stream_id);
        }
    }
}

/// What whoever waits is told of what a server says. Failures are called what our own server calls those of Gearman's workers.
pub(crate) fn stream_item(news: &ReportBody) -> StreamItem {
    let payload = |bytes: &bytes::Bytes| Payload::from(unpinned(bytes));
    let failed = |group: &str, message: String, bytes: Payload| {
        // A name that is written below cannot be a bad one; if it were, the job would still have ended.
        let group = Group::new(group).map(|group| JobEnding::Failed { group, message });
        StreamItem::Ended(group.unwrap_or(JobEnding::Canceled), JobResult { code: 1, bytes })
    };
    match news {
        ReportBody::Data(data) => StreamItem::Chunk(ChunkKind::Data, payload(data)),
        ReportBody::Warning(data) => StreamItem::Chunk(ChunkKind::Warning, payload(data)),
        ReportBody::Status { .. } => {
            let (part, whole) = news.progress().unwrap_or_default();
            let progress = Progressed { portion: Portion::unchecked(part, whole), seconds_left: None };
            StreamItem::Progress { progress, text: None }
        }
        ReportBody::Complete(data) => {
            StreamItem::Ended(JobEnding::Completed, JobResult { code: 0, bytes: payload(data) })
        }
        ReportBody::Fail => failed(
            "gearman-fail",
            "its worker, or its server, said no more than that".to_owned(),
            Payload::default(),
        ),
        ReportBody::Exception(data) => {
            failed("gearman-exception", String::from_utf8_lossy(data).into_owned(), payload(data))
        }
    }
}
