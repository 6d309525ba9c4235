//! Reply guards: jobs popped for a caller that is gone are released.
//!
//! A caller may drop its future at any moment: before its pop is executed, while the reply waits for the
//! commit, or when the reply is in its channel already. In each case the reply itself is dropped, by the thread
//! that fails to send it or with the channel. So the reply owns the duty to release its jobs, until the caller
//! takes it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use flume::WeakSender;
use geartrain_core::{PopReply, Popped, Refusal, Release, Reply};
use parking_lot::Mutex;

use crate::engine_loop::{Envelope, Message};
use crate::publish::BatchReply;

/// Jobs to release, because their callers are gone.
pub(crate) struct Undelivered {
    inbox: WeakSender<Envelope>,
    jobs: Mutex<Vec<Release>>,
    any: AtomicBool,
}

impl Undelivered {
    /// `inbox` is the engine's.
    pub(crate) fn new(inbox: WeakSender<Envelope>) -> Undelivered {
        Undelivered { inbox, jobs: Mutex::default(), any: AtomicBool::new(false) }
    }

    fn add(&self, jobs: impl Iterator<Item = Release>) {
        self.jobs.lock().extend(jobs);
        self.any.store(true, Ordering::SeqCst);
        // If the inbox is full the engine is awake, and looks for undelivered jobs before it sleeps.
        if let Some(inbox) = self.inbox.upgrade() {
            let _ = inbox.try_send(Message::Wake.into());
        }
    }

    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::SeqCst)
    }

    pub(crate) fn take(&self) -> Vec<Release> {
        if !self.any() {
            return Vec::new();
        }
        self.any.store(false, Ordering::SeqCst);
        std::mem::take(&mut *self.jobs.lock())
    }
}

/// A reply that may hand out jobs.
pub(crate) trait HandsOut {
    fn popped(&self) -> impl Iterator<Item = &Popped>;
}

impl HandsOut for BatchReply {
    fn popped(&self) -> impl Iterator<Item = &Popped> {
        let pops = self.answers.iter().filter_map(|answer| match answer {
            Ok(Reply::Pop(reply)) => Some(reply),
            _ => None,
        });
        pops.flat_map(|reply| &reply.jobs)
    }
}

impl HandsOut for Result<PopReply, Refusal> {
    fn popped(&self) -> impl Iterator<Item = &Popped> {
        self.iter().flat_map(|reply| &reply.jobs)
    }
}

/// A reply on its way to the caller. If it is dropped before the caller takes it, its jobs are released.
pub(crate) struct ReplyGuard<T: HandsOut> {
    /// `None` once taken.
    reply: Option<T>,
    /// `None` if the reply hands out no jobs.
    undelivered: Option<Arc<Undelivered>>,
}

impl<T: HandsOut> ReplyGuard<T> {
    pub(crate) fn new(reply: T, undelivered: &Arc<Undelivered>) -> ReplyGuard<T> {
        let undelivered = reply.popped().next().map(|_| undelivered.clone());
        ReplyGuard { reply: Some(reply), undelivered }
    }

    pub(crate) fn reply_mut(&mut self) -> &mut T {
        self.reply.as_mut().expect("a reply is taken only by value")
    }

    /// The reply; its jobs are the caller's from here on.
    pub(crate) fn take(mut self) -> T {
        self.undelivered = None;
        self.reply.take().expect("a reply is taken only by value")
    }

    /// Drops the reply without a release: the commit failed, and it is unknown whether the jobs were popped.
    pub(crate) fn discard(mut self) {
        self.undelivered = None;
    }
}

impl<T: HandsOut> Drop for ReplyGuard<T> {
    fn drop(&mut self) {
        if let (Some(undelivered), Some(reply)) = (&self.undelivered, &self.reply) {
            undelivered.add(reply.popped().map(Release::of));
        }
    }
}
