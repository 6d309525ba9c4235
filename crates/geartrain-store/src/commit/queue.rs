//! The commit queue: hands commit groups to the committer thread, or commits inline when nothing is pending.
//!
//! While the committer waits for the disk, the engine executes the next commands. When no command is waiting,
//! the hand-over would only cost time, and the engine's thread commits itself. Back-pressure: the queue is
//! bounded, so an engine that is faster than the disk waits here.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use flume::{Receiver, RecvTimeoutError, Sender};
use parking_lot::Mutex;

use crate::commit::committer::{AckPoint, CommitGroup, CommitRequest, Committer, ReservationPurpose};
use crate::error::StoreError;
use crate::publish::Publication;
use crate::subscribers::Subscribers;

/// Groups of the engine's own thread in the queue, at most. With more, none would be written sooner, and each
/// would be smaller.
const ENGINE_GROUPS_MAX: usize = 1;
/// Groups in the queue, at most: a caller that executes a bulk batch inline should not wait for a place. The
/// last place is for a snapshot that begins.
const QUEUED_GROUPS_MAX: usize = 5;

/// Which thread runs the committer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Threading {
    /// A thread of its own.
    CommitterThread,
    /// None: the owner of the queue calls [`CommitQueue::commit_queued`].
    Manual,
}

/// How a group is submitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SubmitMode {
    /// No other command is waiting, so handing the group to another thread would only cost time.
    pub(crate) inline: bool,
    /// The submitting thread may wait for the disk.
    pub(crate) may_block: bool,
}

/// The queue between the engine and the committer.
pub(crate) struct CommitQueue {
    /// Locked while groups are committed. `None` once stopped.
    committer: Arc<Mutex<Option<Committer>>>,
    driver: Driver,
    failure: Arc<OnceLock<StoreError>>,
}

enum Driver {
    Thread {
        /// `None` once stopped.
        requests: Option<Sender<CommitRequest>>,
        /// A submitter that may block leaves a permit here with each group, until the thread takes it.
        permits: Sender<()>,
        thread: Option<JoinHandle<()>>,
        /// Requests sent to the thread, and how many of them are done.
        submitted: u64,
        completed: Arc<AtomicU64>,
        /// Whether the engine's thread may commit too.
        inline_allowed: bool,
        never_syncs: bool,
    },
    Manual {
        queued: Vec<CommitRequest>,
    },
}

impl CommitQueue {
    pub(crate) fn new(mut committer: Committer, threading: Threading) -> io::Result<CommitQueue> {
        if threading == Threading::CommitterThread {
            committer.defer_large_reads();
        }
        let (inline_allowed, never_syncs, failure) =
            (committer.can_commit_inline(), committer.never_syncs(), committer.failure());
        let committer = Arc::new(Mutex::new(Some(committer)));
        let driver = match threading {
            Threading::Manual => Driver::Manual { queued: Vec::new() },
            Threading::CommitterThread => {
                let (requests, inbox) = flume::bounded(QUEUED_GROUPS_MAX);
                let (permits, permits_given) = flume::bounded(ENGINE_GROUPS_MAX);
                let completed = Arc::new(AtomicU64::new(0));
                let committer_thread = CommitterThread {
                    committer: committer.clone(),
                    permits: permits_given,
                    completed: completed.clone(),
                    failure: failure.clone(),
                };
                let thread = std::thread::Builder::new()
                    .name("geartrain-commit".into())
                    .spawn(move || committer_thread.run(&inbox))?;
                Driver::Thread {
                    requests: Some(requests),
                    permits,
                    thread: Some(thread),
                    submitted: 0,
                    completed,
                    inline_allowed,
                    never_syncs,
                }
            }
        };
        Ok(CommitQueue { committer, driver, failure })
    }

    /// Commits a group inline if the mode allows that and nothing is pending; queues it otherwise.
    pub(crate) fn submit(&mut self, group: CommitGroup, mode: SubmitMode) {
        let idle = self.is_idle();
        match &mut self.driver {
            Driver::Thread { inline_allowed: true, never_syncs, .. }
                if idle && mode.inline && (mode.may_block || group.never_blocks(*never_syncs)) =>
            {
                if let Some(committer) = &mut *self.committer.lock() {
                    committer.process([CommitRequest::Write(group)], false);
                }
            }
            Driver::Thread { requests: Some(requests), permits, submitted, .. } => {
                *submitted += 1;
                if mode.may_block {
                    let _ = permits.send(());
                }
                // If the thread has ended, dropping the group fails its callers.
                let _ = requests.send(CommitRequest::Write(group));
            }
            Driver::Thread { requests: None, .. } => {
                group.publication.cancel(self.failure().unwrap_or(&StoreError::Stopped));
            }
            Driver::Manual { queued } => {
                queued.push(CommitRequest::Write(group));
                if queued.len() > ENGINE_GROUPS_MAX + 1 {
                    self.commit_queued(usize::MAX);
                }
            }
        }
    }

    /// Whether nothing is pending, so that a publication that needs no commit can go out at once.
    pub(crate) fn may_publish_now(&self) -> bool {
        matches!(self.driver, Driver::Thread { inline_allowed: true, .. })
            && self.is_idle()
            && self.failure().is_none()
    }

    /// Publishes without writing anything.
    pub(crate) fn publish_now(&mut self, publication: Publication) {
        if let Some(committer) = &mut *self.committer.lock() {
            let group = CommitGroup { publication, ack: AckPoint::Written, ..CommitGroup::default() };
            committer.process([CommitRequest::Write(group)], false);
        }
    }

    /// Why nothing is acknowledged any more, if the committer has failed.
    pub(crate) fn failure(&self) -> Option<&StoreError> {
        self.failure.get()
    }

    /// Whether there is a committer thread and it has nothing to do.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(
            &self.driver,
            Driver::Thread { submitted, completed, .. } if *submitted == completed.load(Ordering::Acquire)
        )
    }

    /// Whether a group can be queued without waiting.
    pub(crate) fn has_capacity(&self) -> bool {
        matches!(
            &self.driver,
            Driver::Thread { requests: Some(requests), .. } if requests.len() + 2 <= QUEUED_GROUPS_MAX
        )
    }

    /// Requests a reservation behind all queued groups, without waiting for the reply.
    pub(crate) fn request_reservation(
        &mut self,
        bytes: usize,
        purpose: ReservationPurpose,
    ) -> Option<Receiver<Result<(), StoreError>>> {
        match &mut self.driver {
            Driver::Thread { requests: Some(requests), submitted, .. } => {
                let (slot, reply) = flume::bounded(1);
                requests.try_send(CommitRequest::Reserve { bytes, purpose, slot }).ok()?;
                *submitted += 1;
                Some(reply)
            }
            _ => None,
        }
    }

    /// Reserves log space behind all queued groups.
    pub(crate) fn reserve(&mut self, bytes: usize, purpose: ReservationPurpose) -> Result<(), StoreError> {
        match &mut self.driver {
            Driver::Thread { requests, submitted, .. } => {
                let (slot, reply) = flume::bounded(1);
                let requests = requests.as_ref().ok_or(StoreError::Stopped)?;
                let request = CommitRequest::Reserve { bytes, purpose, slot };
                requests.send(request).map_err(|_| StoreError::Stopped)?;
                *submitted += 1;
                reply.recv().map_err(|_| StoreError::Stopped)?
            }
            Driver::Manual { .. } => {
                self.commit_queued(usize::MAX);
                self.committer.lock().as_mut().ok_or(StoreError::Stopped)?.reserve(bytes, purpose)
            }
        }
    }

    /// Without a committer thread, commits this many of the queued groups.
    pub(crate) fn commit_queued(&mut self, groups: usize) {
        if let Driver::Manual { queued } = &mut self.driver
            && let Some(committer) = &mut *self.committer.lock()
        {
            let groups = groups.min(queued.len());
            committer.process(queued.drain(..groups), false);
        }
    }

    /// Commits what is queued, ends the thread and closes all files. Returns the subscribers, the first time.
    pub(crate) fn stop(&mut self) -> Option<Subscribers> {
        if let Driver::Thread { requests, thread, .. } = &mut self.driver {
            *requests = None;
            let _ = thread.take().map(JoinHandle::join);
        }
        self.committer.lock().take().map(Committer::into_subscribers)
    }

    pub(crate) fn set_subscribers(&mut self, subscribers: Subscribers) {
        if let Some(committer) = &mut *self.committer.lock() {
            committer.set_subscribers(subscribers);
        }
    }
}

impl CommitGroup {
    /// Whether committing the group waits neither for a sync nor for a checkpoint.
    fn never_blocks(&self, never_syncs: bool) -> bool {
        (self.ack == AckPoint::Written || never_syncs) && self.snapshot.is_none()
    }
}

impl Drop for CommitQueue {
    fn drop(&mut self) {
        self.stop();
    }
}

struct CommitterThread {
    committer: Arc<Mutex<Option<Committer>>>,
    permits: Receiver<()>,
    completed: Arc<AtomicU64>,
    failure: Arc<OnceLock<StoreError>>,
}

impl CommitterThread {
    /// Commits until the queue is stopped.
    fn run(&self, inbox: &Receiver<CommitRequest>) {
        loop {
            let wake_in = self.committer.lock().as_ref().and_then(Committer::wake_in);
            let first = match wake_in {
                None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(wait) => inbox.recv_timeout(wait),
            };
            let stop = matches!(first, Err(RecvTimeoutError::Disconnected));
            let requests: Vec<CommitRequest> = first.into_iter().chain(inbox.drain()).collect();
            // One by one: `drain` would not wake the submitters that wait to leave a permit.
            while self.permits.try_recv().is_ok() {}
            let count = requests.len() as u64;
            let process = || {
                if let Some(committer) = &mut *self.committer.lock() {
                    committer.process(requests, stop);
                }
            };
            // After a panic, which prints its message, nothing is acknowledged any more: it is unknown what
            // was written. The thread stays, so that no submitter waits for it in vain.
            if catch_unwind(AssertUnwindSafe(process)).is_err() {
                let _ = self.failure.set(StoreError::Stopped);
                self.committer.lock().iter_mut().for_each(Committer::close_result_streams);
            }
            self.completed.fetch_add(count, Ordering::Release);
            if stop {
                return;
            }
        }
    }
}
