//! The same without threads, for simulations that replay exactly.

use std::sync::Arc;

use flume::{Receiver, Sender, TryRecvError};
use geartrain_core::engine::Limits;
use geartrain_core::{Answer, Call, Clock};

use crate::delivery::{Answered, BatchSlot, Slot};
use crate::embedded::{OpenError, Started, Store};
use crate::host::{Host, Message, Posted};
use crate::keeper::Keeper;
use crate::large::LargePayloads;
use crate::log::Disk;
use crate::options::StoreOptions;
use crate::seat::Tally;
use crate::trouble::Trouble;

/// The engine and the log that [`StoreBackend`](crate::StoreBackend) runs on two threads, one step at a time: what happens hangs on the steps alone.
///
/// Dropping it is like killing the process: what was not written is gone.
pub struct Lockstep {
    host: Host,
    inbox: Sender<Posted>,
    large: Arc<LargePayloads>,
}

/// A batch that was sent.
pub struct Sent {
    slot: Receiver<Result<Answered, Trouble>>,
}

impl Lockstep {
    /// Opens what is kept on a disk, which nobody else may use meanwhile.
    pub fn open_on(
        disk: Arc<dyn Disk>,
        options: StoreOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<Lockstep, OpenError> {
        let store = Store::on(disk, options, Limits::default()).without_threads();
        let Started { engine, scribe, .. } = store.start(clock.now())?;
        let (inbox, messages) = flume::unbounded();
        let large = store.large().clone();
        let keeper = Keeper::Log { store, scribe };
        Ok(Lockstep {
            large,
            host: Host::new(engine, clock, messages, inbox.downgrade(), &Tally::default(), keeper),
            inbox,
        })
    }

    /// Writes the large payloads of a batch, and sends it. The engine takes it with its next step.
    pub fn send(&self, mut batch: Vec<Call>) -> Sent {
        let (slot, answer): (Slot<Answered>, _) = flume::bounded(1);
        let slot = BatchSlot { slot, under_way: None };
        match self.large.has_large(&batch).then(|| self.large.write(&mut batch)).transpose() {
            // The host, which has the other end, is ours.
            Ok(files) => drop(self.inbox.send(Message::Batch { batch, slot, files }.into())),
            Err(trouble) => slot.send(Err(trouble)),
        }
        Sent { slot: answer }
    }

    /// The engine takes all that was sent, and hands in what is to be written as a group.
    pub fn engine_step(&mut self) {
        self.host.round(None);
    }

    /// So many of the groups that were handed in are written, synced together if they must be, and answered.
    pub fn writer_step(&mut self, groups: usize) {
        self.host.write(groups);
    }

    /// How often it had to read again what was kept, because a write or a sync failed.
    pub fn recoveries(&self) -> u64 {
        self.host.recoveries()
    }
}

impl Sent {
    /// The answers, if there are any by now; an error if there will never be.
    pub fn answers(&self) -> Option<Result<Vec<Answer>, Box<dyn std::error::Error + Send + Sync>>> {
        match self.slot.try_recv() {
            Ok(answered) => Some(answered.map(|answered| answered.answers).map_err(Into::into)),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(Trouble::Gone.into())),
        }
    }
}
