//! Worker connections: one worker's connections to all servers, for grabbing jobs and for idle waits.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use geartrain_core::{Popped, QueueName, WorkerName};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::connection::Connection;
use super::error::ServerError;
use super::servers::Servers;
use crate::function;
use crate::packet::{Assignment, Grab, Request, Response};

/// From this many on, unused ones are closed.
const CACHED_MAX: usize = 64;

/// The connections of one worker for a set of queues.
///
/// A pop for other queues uses other connections: on CANT_DO a server may take away jobs of that function
/// which the worker holds.
pub(crate) struct WorkerConns {
    worker: WorkerName,
    queues: Vec<QueueName>,
    /// One per server, as far as it is open.
    connections: Vec<tokio::sync::Mutex<Option<Arc<Connection>>>>,
    /// The server to ask first next time (round robin).
    next_server: AtomicUsize,
    /// Notified by a NOOP of any server, and when other pops that wait here must look again.
    pub(crate) wakeup: Arc<Notify>,
    /// Jobs that were assigned to a caller that is gone.
    unclaimed: Mutex<Vec<Popped>>,
}

impl WorkerConns {
    fn new(worker: WorkerName, queues: Vec<QueueName>, servers: usize) -> WorkerConns {
        let connections = (0..servers).map(|_| tokio::sync::Mutex::new(None)).collect();
        let (next_server, wakeup, unclaimed) = (AtomicUsize::new(0), Arc::default(), Mutex::default());
        WorkerConns { worker, queues, connections, next_server, wakeup, unclaimed }
    }

    /// The indexes of all servers, starting with another one each time.
    pub(crate) fn server_order(&self) -> impl Iterator<Item = usize> + use<> {
        let (next_server, servers) =
            (self.next_server.fetch_add(1, Ordering::Relaxed), self.connections.len());
        (0..servers).map(move |step| (next_server.wrapping_add(step)) % servers)
    }

    /// The connection to a server, opened if needed.
    pub(crate) async fn connection(
        &self,
        servers: &Servers,
        index: usize,
    ) -> Result<Arc<Connection>, ServerError> {
        let mut current = self.connections[index].lock().await;
        if let Some(connection) = current.as_ref().filter(|connection| !connection.is_closed()) {
            return Ok(connection.clone());
        }
        let connection = servers.get(index).open(self.wakeup.clone(), None).await?;
        let functions: Vec<_> = self.queues.iter().map(function::bytes).collect();
        let mut requests = vec![Request::SetClientId { id: self.worker.as_str().as_bytes() }];
        requests
            .extend(functions.iter().map(|function| Request::CanDo { function: &**function, timeout: None }));
        connection.send(&requests).await?;
        let connection = Arc::new(connection);
        *current = Some(connection.clone());
        Ok(connection)
    }

    /// Sends PRE_SLEEP to every connected server.
    pub(crate) async fn pre_sleep(&self) {
        for current in &self.connections {
            let connection = current.lock().await.clone();
            if let Some(connection) = connection.filter(|connection| !connection.is_closed())
                && let Err(error) = connection.send(&[Request::PreSleep]).await
            {
                tracing::debug!(%error, "PRE_SLEEP could not be sent to a server");
            }
        }
    }

    pub(crate) fn add_unclaimed(&self, job: Popped) {
        self.unclaimed.lock().push(job);
        self.wakeup.notify_waiters();
    }

    pub(crate) fn take_unclaimed(&self, count: usize) -> Vec<Popped> {
        let mut unclaimed = self.unclaimed.lock();
        let count = count.min(unclaimed.len());
        unclaimed.drain(..count).collect()
    }
}

/// Asks a server for a job.
pub(crate) async fn grab(connection: &Connection) -> Result<Option<Assignment>, ServerError> {
    match connection.request(Request::Grab(Grab::All)).await? {
        Response::Assign(assignment) => Ok(Some(assignment)),
        Response::NoJob => Ok(None),
        _ => Err(connection.protocol_error("a reply to GRAB_JOB that is neither JOB_ASSIGN nor NO_JOB")),
    }
}

type Key = (WorkerName, Vec<QueueName>);

/// Cache of the worker connections.
#[derive(Default)]
pub(crate) struct WorkerConnCache {
    cached: Mutex<HashMap<Key, Arc<WorkerConns>>>,
}

impl WorkerConnCache {
    /// The connections of a worker for these queues.
    pub(crate) fn get_or_create(
        &self,
        worker: &WorkerName,
        queues: &[QueueName],
        servers: usize,
    ) -> Arc<WorkerConns> {
        let mut queues = queues.to_vec();
        queues.sort_unstable();
        queues.dedup();
        let mut cached = self.cached.lock();
        if cached.len() >= CACHED_MAX {
            // Running pops and held jobs keep a reference.
            cached.retain(|_, conns| Arc::strong_count(conns) > 1);
        }
        let new = || Arc::new(WorkerConns::new(worker.clone(), queues.clone(), servers));
        cached.entry((worker.clone(), queues.clone())).or_insert_with(new).clone()
    }
}
