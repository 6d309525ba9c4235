//! A backend with injected faults.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use geartrain_core::{
    Answer, Backend, BackendError, Call, Command, Pending, Pop, PopReply, QueueName, ResultStream, Seconds,
    Subscription,
};
use tokio::sync::Notify;

/// Which calls fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Fault {
    Nothing,
    /// Batches with a report on a job.
    Reports,
    /// Chunks; the call fails only when the fault is changed.
    ChunksLate,
    Everything,
}

/// Forwards calls to the inner backend, except those that are to fail.
pub(crate) struct Faulty {
    inner: Arc<dyn Backend>,
    fault: AtomicU8,
    heartbeats: AtomicU64,
    refused: AtomicU64,
    counted: Notify,
}

impl Faulty {
    pub(crate) fn new(inner: Arc<dyn Backend>) -> Arc<Faulty> {
        let counter = || AtomicU64::new(0);
        let (heartbeats, refused, fault) = (counter(), counter(), AtomicU8::new(0));
        Arc::new(Faulty { inner, fault, heartbeats, refused, counted: Notify::new() })
    }

    pub(crate) fn set(&self, fault: Fault) {
        self.fault.store(fault as u8, Ordering::SeqCst);
        self.counted.notify_waiters();
    }

    /// Waits for `count` more heartbeats to be answered.
    pub(crate) async fn heartbeats(&self, count: u64) {
        self.more(&self.heartbeats, count).await;
    }

    /// Waits for `count` more batches to fail.
    pub(crate) async fn refusals(&self, count: u64) {
        self.more(&self.refused, count).await;
    }

    async fn more(&self, counter: &AtomicU64, count: u64) {
        let until = counter.load(Ordering::SeqCst) + count;
        let reached = async {
            loop {
                let counted = self.counted.notified();
                if counter.load(Ordering::SeqCst) >= until {
                    return;
                }
                counted.await;
            }
        };
        // Less than the 20 s between two heartbeats of a long lock, and far more than a busy machine needs.
        tokio::time::timeout(Duration::from_secs(15), reached).await.expect("it is counted in time");
    }

    fn count(&self, counter: &AtomicU64, more: u64) {
        counter.fetch_add(more, Ordering::SeqCst);
        self.counted.notify_waiters();
    }

    fn takes(&self, batch: &[Call]) -> bool {
        let is_report = |call: &Call| {
            matches!(
                call.command,
                Command::Complete(_) | Command::Fail(_) | Command::Chunk(_) | Command::Progress(_)
            )
        };
        match self.fault.load(Ordering::SeqCst) {
            0 => true,
            1 => !batch.iter().any(is_report),
            2 => !batch.iter().any(|call| matches!(call.command, Command::Chunk(_))),
            _ => false,
        }
    }
}

impl Backend for Faulty {
    fn execute(&self, batch: Vec<Call>) -> Pending<'_, Vec<Answer>> {
        if !self.takes(&batch) {
            return Box::pin(async {
                self.count(&self.refused, 1);
                loop {
                    let changed = self.counted.notified();
                    if self.fault.load(Ordering::SeqCst) != Fault::ChunksLate as u8 {
                        break;
                    }
                    changed.await;
                }
                Err(BackendError::Broken { backend: "faulty", source: "no space left on device".into() })
            });
        }
        let beats = batch.iter().filter(|call| matches!(call.command, Command::Heartbeat(_))).count() as u64;
        let answers = self.inner.execute(batch);
        Box::pin(async move {
            let answers = answers.await;
            if beats > 0 {
                self.count(&self.heartbeats, beats);
            }
            answers
        })
    }

    fn pop_or_wait(&self, pop: Pop, wait: Seconds) -> Pending<'_, PopReply> {
        self.inner.pop_or_wait(pop, wait)
    }

    fn ready_or_wait(&self, queues: Vec<QueueName>, wait: Seconds) -> Pending<'_, bool> {
        self.inner.ready_or_wait(queues, wait)
    }

    fn subscribe(&self) -> Pending<'_, Box<dyn Subscription>> {
        self.inner.subscribe()
    }

    fn open_result_stream(&self, front: u64) -> Pending<'_, Box<dyn ResultStream>> {
        self.inner.open_result_stream(front)
    }
}
