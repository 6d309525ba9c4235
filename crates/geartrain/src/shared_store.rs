//! A store together with the socket through which other processes use its directory.

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use geartrain_core::{
    Answer, Backend, Backup, BackupTarget, Call, Measures, Pending, Pop, PopReply, QueueName, ResultStream,
    Seconds, Software, Subscription, Timestamp,
};
use geartrain_store::StoreBackend;

#[cfg(feature = "socket")]
use crate::socket::SocketServer;

/// The store of a directory. It is the backend of every client of the directory and of every worker made from
/// one, so the socket is open as long as one of them lives.
///
/// Each method calls the store's without a second dynamic dispatch. A new method of [`Backend`] with a default
/// must be added here, or the default hides the store's.
pub(crate) struct SharedStore {
    /// Declared before the store, so that it stops first.
    #[cfg(feature = "socket")]
    _socket: Option<SocketServer>,
    store: Arc<StoreBackend>,
}

impl SharedStore {
    #[cfg_attr(not(feature = "socket"), allow(unused_variables, reason = "the directory is not shared"))]
    pub(crate) fn new(store: Arc<StoreBackend>, directory: &Path, read_only: bool) -> SharedStore {
        SharedStore {
            #[cfg(feature = "socket")]
            _socket: SocketServer::start(store.clone(), directory, read_only),
            store,
        }
    }
}

impl Backend for SharedStore {
    fn execute(&self, batch: Vec<Call>) -> Pending<'_, Vec<Answer>> {
        self.store.execute(batch)
    }

    fn pop_or_wait(&self, pop: Pop, wait: Seconds) -> Pending<'_, PopReply> {
        self.store.pop_or_wait(pop, wait)
    }

    fn ready_or_wait(&self, queues: Vec<QueueName>, wait: Seconds) -> Pending<'_, bool> {
        self.store.ready_or_wait(queues, wait)
    }

    fn now(&self) -> Option<Timestamp> {
        self.store.now()
    }

    fn identify(&self) -> Pending<'_, Software> {
        self.store.identify()
    }

    fn sync_mode(&self) -> Pending<'_, Option<String>> {
        self.store.sync_mode()
    }

    fn measure(&self) -> Measures {
        self.store.measure()
    }

    fn subscribe(&self) -> Pending<'_, Box<dyn Subscription>> {
        self.store.subscribe()
    }

    fn subscribe_from(&self, after: u64) -> Pending<'_, Box<dyn Subscription>> {
        self.store.subscribe_from(after)
    }

    fn flush_events(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        self.store.flush_events()
    }

    fn publish(&self, channel: &[u8], message: &[u8]) -> Pending<'_, u64> {
        self.store.publish(channel, message)
    }

    fn ack_events(&self, position: u64) {
        self.store.ack_events(position);
    }

    fn open_result_stream(&self, stream_id: u64) -> Pending<'_, Box<dyn ResultStream>> {
        self.store.open_result_stream(stream_id)
    }

    fn backup(&self, to: BackupTarget) -> Pending<'_, Box<dyn Backup>> {
        Backend::backup(&*self.store, to)
    }
}
