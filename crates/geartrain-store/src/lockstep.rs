//! Lockstep: the store without threads, for simulations that replay exactly.

use std::sync::Arc;

use flume::{Receiver, Sender, TryRecvError};
use geartrain_core::engine::Limits;
use geartrain_core::{Answer, Call, Clock};

use crate::commit::pipeline::CommitPipeline;
use crate::engine_loop::{EngineLoop, Envelope, Message};
use crate::error::StoreError;
use crate::inline_exec::InFlight;
use crate::options::StoreOptions;
use crate::publish::{BatchReply, BatchSlot, Slot};
use crate::recovery::{OpenError, Started, Store};
use crate::reply_guard::ReplyGuard;
use crate::spill::large::LargePayloads;
use crate::wal::Disk;

/// The engine and the log that [`StoreBackend`](crate::StoreBackend) runs on two threads, one step at a time:
/// the outcome depends on the steps alone.
///
/// Dropping it is like killing the process: what was not written is lost.
pub struct Lockstep {
    engine_loop: EngineLoop,
    inbox: Sender<Envelope>,
    large: Arc<LargePayloads>,
}

/// A batch on its way, and where its answers arrive.
pub struct Sent {
    slot: Receiver<Result<ReplyGuard<BatchReply>, StoreError>>,
}

impl Lockstep {
    /// Opens a store on a disk that no other store uses.
    pub fn open_on(
        disk: Arc<dyn Disk>,
        options: StoreOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<Lockstep, OpenError> {
        let store = Store::on(disk, options, Limits::default()).without_committer_thread();
        let Started { engine, pipeline, .. } = store.start(clock.now())?;
        let (inbox, messages) = flume::unbounded();
        let large = store.large().clone();
        let pipeline = CommitPipeline::Wal { store, pipeline };
        Ok(Lockstep {
            large,
            engine_loop: EngineLoop::new(
                engine,
                clock,
                messages,
                inbox.downgrade(),
                &InFlight::default(),
                pipeline,
            ),
            inbox,
        })
    }

    /// Writes the large payloads of a batch, and sends it. The engine executes it in its next step.
    pub fn send(&self, mut batch: Vec<Call>) -> Sent {
        let (slot, answer): (Slot<ReplyGuard<BatchReply>>, _) = flume::bounded(1);
        let slot = BatchSlot { slot, in_flight: None };
        match self.large.has_large(&batch).then(|| self.large.write(&mut batch)).transpose() {
            // Cannot fail: the engine loop in this struct has the receiver.
            Ok(files) => drop(self.inbox.send(Message::Batch { batch, slot, files }.into())),
            Err(failure) => slot.send(Err(failure)),
        }
        Sent { slot: answer }
    }

    /// The engine executes all sent batches, and queues their changes as one commit group.
    pub fn engine_step(&mut self) {
        self.engine_loop.run_once(None);
    }

    /// Commits this many of the queued groups: they are written, synced together if required, and answered.
    pub fn writer_step(&mut self, groups: usize) {
        self.engine_loop.commit_queued(groups);
    }

    /// How often the engine was recovered from disk, because a write or a sync failed.
    pub fn recoveries(&self) -> u64 {
        self.engine_loop.recoveries()
    }
}

impl Sent {
    /// The answers, if they have arrived; an error if they never will.
    pub fn answers(&self) -> Option<Result<Vec<Answer>, Box<dyn std::error::Error + Send + Sync>>> {
        match self.slot.try_recv() {
            Ok(reply) => Some(reply.map(|reply| reply.take().answers).map_err(Into::into)),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(StoreError::Stopped.into())),
        }
    }
}
