//! Held jobs of this process. A lock is a connection: it lasts as long as the connection, without heartbeats.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use geartrain_core::{Holder, Jid, QueueName, Token, WorkerName};
use parking_lot::{Mutex, MutexGuard};

use super::connection::Connection;
use super::worker_conns::WorkerConns;

/// A job assigned to this process.
#[derive(Clone)]
pub(crate) struct HeldJob {
    pub(crate) jid: Jid,
    pub(crate) handle: Vec<u8>,
    pub(crate) queue: QueueName,
    pub(crate) worker: WorkerName,
    pub(crate) connection: Arc<Connection>,
    /// Keeps the worker's connections alive while the job is held.
    pub(crate) worker_conns: Arc<WorkerConns>,
}

/// The held jobs by the number of their token.
pub(crate) struct HeldJobs {
    jobs: Mutex<HashMap<u64, HeldJob>>,
    next_token: AtomicU64,
}

impl HeldJobs {
    pub(crate) fn new() -> HeldJobs {
        // Starts at a random number, so that tokens of another process are not mistaken for ours.
        let begin = uuid::Uuid::now_v7().as_u64_pair().1 >> 2;
        HeldJobs { jobs: Mutex::default(), next_token: AtomicU64::new(begin) }
    }

    fn jobs(&self) -> MutexGuard<'_, HashMap<u64, HeldJob>> {
        self.jobs.lock()
    }

    /// Adds a job, and forgets jobs with a closed connection, which their servers have requeued.
    pub(crate) fn add(&self, held: HeldJob) -> Token {
        let token = self.next_token.fetch_add(1, Ordering::Relaxed);
        let mut jobs = self.jobs();
        jobs.retain(|_, other| !other.connection.is_closed());
        jobs.insert(token, held);
        Token::new(token)
    }

    /// The job, if this holder holds it.
    pub(crate) fn find(&self, jid: &Jid, holder: &Holder) -> Option<(Token, HeldJob)> {
        let jobs = self.jobs();
        let found = match holder {
            Holder::Token(token) => jobs.get_key_value(&token.number()),
            Holder::Worker(worker) => {
                jobs.iter().find(|(_, held)| held.jid == *jid && held.worker == *worker)
            }
        };
        let (token, held) = found.filter(|(_, held)| held.jid == *jid && !held.connection.is_closed())?;
        Some((Token::new(*token), held.clone()))
    }

    pub(crate) fn remove(&self, token: Token) -> Option<HeldJob> {
        self.jobs().remove(&token.number())
    }

    /// Whether a connection has any held jobs.
    pub(crate) fn any_on(&self, connection: &Arc<Connection>) -> bool {
        self.jobs().values().any(|held| Arc::ptr_eq(&held.connection, connection))
    }
}
