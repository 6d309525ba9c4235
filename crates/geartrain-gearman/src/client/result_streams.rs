//! Result streams of clients that wait for jobs.
//!
//! Each awaited job has a connection of its own: closing it is the only way to detach, and over a shared one
//! the reports on two submissions of the same job could not be told apart.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;

use geartrain_core::{
    ChunkKind, DetachScope, Group, Jid, JobEnding, JobResult, Payload, Portion, Progressed, ResultStream,
    ResultStreamEnd, ResultWaiter, StreamItem, StreamMessage,
};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use crate::packet::{ReportBody, Submission};
use crate::unpinned;

/// Deliveries buffered per stream. When the buffer is full the job's connection is not read (back-pressure).
const DELIVERIES_BUFFERED_MAX: usize = 16;
/// How many ended jobs are remembered per stream, and how many lost submissions in total.
const REMEMBERED_MAX: usize = 1_024;

#[derive(Default)]
pub(crate) struct ResultStreams {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    streams: HashMap<u64, OpenStream>,
    /// Submissions whose connections were lost, to be submitted again by an attach.
    lost: VecDeque<(Jid, AwaitedSubmission)>,
}

/// An open stream and the jobs awaited through it.
struct OpenStream {
    deliveries: mpsc::Sender<StreamMessage>,
    waiting: HashMap<ResultWaiter, Waiting>,
}

struct Waiting {
    jid: Jid,
    /// `None` once the job has ended.
    unfinished: Option<(AwaitedSubmission, AbortHandle)>,
}

/// The submission of an awaited job, so that it can be submitted again.
pub(crate) struct AwaitedSubmission {
    pub(crate) submission: Submission,
    /// Its id in the record.
    pub(crate) record_id: Option<String>,
}

impl ResultStreams {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Opens a stream. A stream with the same id is replaced.
    pub(crate) fn open(self: &Arc<ResultStreams>, stream: u64) -> GearmanStream {
        let (to, deliveries) = mpsc::channel(DELIVERIES_BUFFERED_MAX);
        self.detach(DetachScope::Stream(stream));
        self.state().streams.insert(stream, OpenStream { deliveries: to, waiting: HashMap::new() });
        GearmanStream { stream_id: stream, deliveries, streams: self.clone() }
    }

    /// The sender for this waiter's stream, if it is open.
    pub(crate) fn sender_for(&self, waiter: ResultWaiter) -> Option<mpsc::Sender<StreamMessage>> {
        Some(self.state().streams.get(&waiter.stream_id)?.deliveries.clone())
    }

    /// The job that a waiter waits for, or waited for until it ended.
    pub(crate) fn job_of(&self, waiter: ResultWaiter) -> Option<Jid> {
        Some(self.state().streams.get(&waiter.stream_id)?.waiting.get(&waiter)?.jid.clone())
    }

    /// Adds a waiter. Returns false, and aborts its task, if its stream is closed already.
    pub(crate) fn add(
        &self,
        waiter: ResultWaiter,
        jid: Jid,
        awaited: AwaitedSubmission,
        task: AbortHandle,
    ) -> bool {
        match self.state().streams.get_mut(&waiter.stream_id) {
            Some(stream) => {
                stream.waiting.insert(waiter, Waiting { jid, unfinished: Some((awaited, task)) });
                true
            }
            None => {
                task.abort();
                false
            }
        }
    }

    /// The job has ended; its task still delivers the result.
    pub(crate) fn ended(&self, waiter: ResultWaiter) {
        let mut state = self.state();
        let Some(stream) = state.streams.get_mut(&waiter.stream_id) else { return };
        let ended = stream.waiting.values().filter(|waiting| waiting.unfinished.is_none()).count();
        if ended >= REMEMBERED_MAX {
            stream.waiting.retain(|_, waiting| waiting.unfinished.is_some());
        }
        if let Some(waiting) = stream.waiting.get_mut(&waiter) {
            waiting.unfinished = None;
        }
    }

    /// The connection was lost: the stream ends, and its waiters may attach again.
    pub(crate) fn lost(&self, waiter: ResultWaiter) {
        let mut state = self.state();
        let Some(stream) = state.streams.remove(&waiter.stream_id) else { return };
        for waiting in stream.waiting.into_values() {
            if let Some((awaited, task)) = waiting.unfinished {
                task.abort();
                state.lost.push_back((waiting.jid, awaited));
            }
        }
        let excess = state.lost.len().saturating_sub(REMEMBERED_MAX);
        state.lost.drain(..excess);
    }

    /// The submission of a job whose connection was lost.
    pub(crate) fn take_lost(&self, jid: &Jid) -> Option<AwaitedSubmission> {
        let mut state = self.state();
        let place = state.lost.iter().position(|(lost, _)| lost == jid)?;
        Some(state.lost.remove(place)?.1)
    }

    /// Detaches waiters. Returns how many still waited.
    pub(crate) fn detach(&self, scope: DetachScope) -> u64 {
        let mut state = self.state();
        let matches_scope = |waiter: &ResultWaiter| match scope {
            DetachScope::One(one) => *waiter == one,
            DetachScope::Connection { stream_id: stream, connection } => {
                (waiter.stream_id, waiter.connection) == (stream, connection)
            }
            DetachScope::Stream(stream) => waiter.stream_id == stream,
            _ => true,
        };
        let mut detached = 0;
        for stream in state.streams.values_mut() {
            stream.waiting.retain(|waiter, waiting| {
                if !matches_scope(waiter) {
                    return true;
                }
                if let Some((_, task)) = waiting.unfinished.take() {
                    // The task owns the connection, and closing that detaches at the server.
                    task.abort();
                    detached += 1;
                }
                false
            });
        }
        detached
    }

    fn close(&self, stream: u64) {
        self.detach(DetachScope::Stream(stream));
        self.state().streams.remove(&stream);
    }
}

/// The receiving end of a stream.
pub(crate) struct GearmanStream {
    stream_id: u64,
    deliveries: mpsc::Receiver<StreamMessage>,
    streams: Arc<ResultStreams>,
}

impl ResultStream for GearmanStream {
    fn next(&mut self) -> Pin<Box<dyn Future<Output = Result<StreamMessage, ResultStreamEnd>> + Send + '_>> {
        Box::pin(async move { self.deliveries.recv().await.ok_or(ResultStreamEnd::Closed) })
    }
}

impl Drop for GearmanStream {
    fn drop(&mut self) {
        // Not if another stream has replaced this one, or it has ended by itself.
        if !self.deliveries.is_closed() {
            self.streams.close(self.stream_id);
        }
    }
}

/// The stream item for a server's report. Failure groups are those that our own front-end uses for Gearman
/// workers.
pub(crate) fn stream_item(body: &ReportBody) -> StreamItem {
    let payload = |bytes: &bytes::Bytes| Payload::from(unpinned(bytes));
    let failed = |group: &str, message: String, bytes: Payload| {
        // The group names below are valid; if one were not, the job would still have ended.
        let group = Group::new(group).map(|group| JobEnding::Failed { group, message });
        StreamItem::Ended(group.unwrap_or(JobEnding::Canceled), JobResult { code: 1, bytes })
    };
    match body {
        ReportBody::Data(data) => StreamItem::Chunk(ChunkKind::Data, payload(data)),
        ReportBody::Warning(data) => StreamItem::Chunk(ChunkKind::Warning, payload(data)),
        ReportBody::Status { .. } => {
            let (part, whole) = body.progress().unwrap_or_default();
            let progress = Progressed { portion: Portion::unchecked(part, whole), seconds_left: None };
            StreamItem::Progress { progress, text: None }
        }
        ReportBody::Complete(data) => {
            StreamItem::Ended(JobEnding::Completed, JobResult { code: 0, bytes: payload(data) })
        }
        ReportBody::Fail => failed(
            "gearman-fail",
            "the worker or the server reported a failure without a reason".to_owned(),
            Payload::default(),
        ),
        ReportBody::Exception(data) => {
            failed("gearman-exception", String::from_utf8_lossy(data).into_owned(), payload(data))
        }
    }
}
