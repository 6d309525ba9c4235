//! Where a worker works: its connections to all servers, over which it asks for jobs and sleeps until there are some.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use geartrain_core::{Popped, QueueName, WorkerName};
use tokio::sync::Notify;

use super::connection::Connection;
use super::error::ServerError;
use super::servers::Servers;
use crate::function;
use crate::packet::{Assignment, Grab, Request, Response};

/// From so many on, those that nobody uses are given up.
const CACHED_MAX: usize = 64;

/// The connections of one worker for certain queues.
///
/// A pop for other queues has other connections: a server that is told that a worker cannot do something any more may take away the jobs of that kind which it holds.
pub(crate) struct WorkerConns {
    worker: WorkerName,
    queues: Vec<QueueName>,
    /// One for each server, as far as there is one.
    connections: Vec<tokio::sync::Mutex<Option<Arc<Connection>>>>,
    /// Which server is asked first the next time.
    next_server: AtomicUsize,
    /// Told when a server says that there may be a job, or when others that wait here must look again.
    pub(crate) wakeup: Arc<Notify>,
    /// Jobs that were handed out to somebody who had gone.
    unclaimed: Mutex<Vec<Popped>>,
}

impl WorkerConns {
    fn new(worker: WorkerName, queues: Vec<QueueName>, servers: usize) -> WorkerConns {
        let links = (0..servers).map(|_| tokio::sync::Mutex::new(None)).collect();
        let (turn, woken, unclaimed) = (AtomicUsize::new(0), Arc::default(), Mutex::default());
        WorkerConns { worker, queues, connections: links, next_server: turn, wakeup: woken, unclaimed }
    }

    /// All servers, beginning with another one each time.
    pub(crate) fn server_order(&self) -> impl Iterator<Item = usize> + use<> {
        let (turn, servers) = (self.next_server.fetch_add(1, Ordering::Relaxed), self.connections.len());
        (0..servers).map(move |step| (turn.wrapping_add(step)) % servers)
    }

    /// The connection to a server, which is opened if there is none.
    pub(crate) async fn connection(
        &self,
        servers: &Servers,
        place: usize,
    ) -> Result<Arc<Connection>, ServerError> {
        let mut current = self.connections[place].lock().await;
        if let Some(link) = current.as_ref().filter(|link| !link.is_closed()) {
            return Ok(link.clone());
        }
        let link = servers.get(place).open(self.wakeup.clone(), None).await?;
        let functions: Vec<_> = self.queues.iter().map(function::bytes).collect();
        let mut requests = vec![Request::SetClientId { id: self.worker.as_str().as_bytes() }];
        requests
            .extend(functions.iter().map(|function| Request::CanDo { function: &**function, timeout: None }));
        link.send(&requests).await?;
        let link = Arc::new(link);
        *current = Some(link.clone());
        Ok(link)
    }

    /// Tells every server that is there that this worker waits to be woken.
    pub(crate) async fn pre_sleep(&self) {
        for current in &self.connections {
            let link = current.lock().await.clone();
            if let Some(link) = link.filter(|link| !link.is_closed())
                && let Err(trouble) = link.send(&[Request::PreSleep]).await
            {
                tracing::debug!(%trouble, "a worker cannot sleep on a server");
            }
        }
    }

    pub(crate) fn add_unclaimed(&self, job: Popped) {
        self.unclaimed.lock().unwrap_or_else(PoisonError::into_inner).push(job);
        self.wakeup.notify_waiters();
    }

    pub(crate) fn take_unclaimed(&self, count: usize) -> Vec<Popped> {
        let mut unclaimed = self.unclaimed.lock().unwrap_or_else(PoisonError::into_inner);
        let count = count.min(unclaimed.len());
        unclaimed.drain(..count).collect()
    }
}

/// Asks a server for a job.
pub(crate) async fn grab(link: &Connection) -> Result<Option<Assignment>, ServerError> {
    match link.request(Request::Grab(Grab::All)).await? {
        Response::Assign(assignment) => Ok(Some(assignment)),
        Response::NoJob => Ok(None),
        _ => Err(link.protocol_error("neither a job nor that there is none")),
    }
}

/// Who works there, and for which queues.
type Key = (WorkerName, Vec<QueueName>);

/// All stations.
#[derive(Default)]
pub(crate) struct WorkerConnCache {
    cached: Mutex<HashMap<Key, Arc<WorkerConns>>>,
}

impl WorkerConnCache {
    /// The station of a worker for these queues.
    pub(crate) fn get_or_create(
        &self,
        worker: &WorkerName,
        queues: &[QueueName],
        servers: usize,
    ) -> Arc<WorkerConns> {
        let mut queues = queues.to_vec();
        queues.sort_unstable();
        queues.dedup();
        let mut all = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= CACHED_MAX {
            // Whoever pops there, and each job that it holds, has a share in it.
            all.retain(|_, station| Arc::strong_count(station) > 1);
        }
        let new = || Arc::new(WorkerConns::new(worker.clone(), queues.clone(), servers));
        all.entry((worker.clone(), queues.clone())).or_insert_with(new).clone()
    }
}
