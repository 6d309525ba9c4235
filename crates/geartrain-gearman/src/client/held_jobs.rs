//! The jobs that this process holds. A lock is a connection: as long as it lasts, its jobs are held, and nobody needs to say so.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use geartrain_core::{Holder, Jid, QueueName, Token, WorkerName};

use super::connection::Connection;
use super::worker_conns::WorkerConns;

/// A job that a server handed to this process.
#[derive(Clone)]
pub(crate) struct HeldJob {
    pub(crate) jid: Jid,
    pub(crate) handle: Vec<u8>,
    pub(crate) queue: QueueName,
    pub(crate) worker: WorkerName,
    pub(crate) connection: Arc<Connection>,
    /// Not let go of while a job of it is held.
    pub(crate) worker_conns: Arc<WorkerConns>,
}

/// All of them, by the number of their token.
pub(crate) struct HeldJobs {
    jobs: Mutex<HashMap<u64, HeldJob>>,
    next_token: AtomicU64,
}

impl HeldJobs {
    pub(crate) fn new() -> HeldJobs {
        // Tokens of another process must not be taken for ours, so they do not begin at 1. Half of such an id is chance.
        let begin = uuid::Uuid::now_v7().as_u64_pair().1 >> 2;
        HeldJobs { jobs: Mutex::default(), next_token: AtomicU64::new(begin) }
    }

    fn jobs(&self) -> MutexGuard<'_, HashMap<u64, HeldJob>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a job up, and forgets those whose connections are gone: they are back on their servers.
    pub(crate) fn add(&self, held: HeldJob) -> Token {
        let token = self.next_token.fetch_add(1, Ordering::Relaxed);
        let mut jobs = self.jobs();
        jobs.retain(|_, other| !other.connection.is_closed());
        jobs.insert(token, held);
        Token::new(token)
    }

    /// The job, if whoever says so holds it.
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

    /// Whether a connection holds any.
    pub(crate) fn any_on(&self, link: &Arc<Connection>) -> bool {
        self.jobs().values().any(|held| Arc::ptr_eq(&held.connection, link))
    }
}
