//! Cancelled pops: a caller that drops its future gets no jobs, and the jobs that were popped for it are
//! released.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use geartrain_core::{Answer, Call, PopReply, Release};

use crate::connection::ConnectionError;
use crate::driver::Shared;

/// A batch with pops. If the caller drops it before the reply is there, it goes on without the caller and
/// releases the jobs: the request may have been sent already.
pub(crate) struct PopCall {
    shared: Arc<Shared>,
    /// None once answered.
    call: Option<AnswersFuture>,
}

type AnswersFuture = Pin<Box<dyn Future<Output = Result<Vec<Answer>, ConnectionError>> + Send>>;

impl PopCall {
    pub(crate) fn new(shared: &Arc<Shared>, batch: Vec<Call>) -> PopCall {
        let its_shared = shared.clone();
        let call: AnswersFuture = Box::pin(async move { its_shared.execute(batch).await });
        PopCall { shared: shared.clone(), call: Some(call) }
    }
}

impl Future for PopCall {
    type Output = Result<Vec<Answer>, ConnectionError>;

    fn poll(mut self: Pin<&mut PopCall>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(call) = &mut self.call else { return Poll::Pending };
        let answered = call.as_mut().poll(context);
        if answered.is_ready() {
            self.call = None;
        }
        answered
    }
}

impl Drop for PopCall {
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            self.shared
                .clone()
                .clean_up(async move { call.await.map(|answers| Release::of_answers(&answers)) });
        }
    }
}

/// The reply to a parked pop on its way to the caller. If it is dropped before the caller takes it, its jobs
/// are released.
pub(crate) struct PopGuard {
    reply: PopReply,
    /// None if there is nothing to release.
    shared: Option<Arc<Shared>>,
}

impl PopGuard {
    pub(crate) fn new(reply: PopReply, shared: &Arc<Shared>) -> PopGuard {
        let shared = (!reply.jobs.is_empty()).then(|| shared.clone());
        PopGuard { reply, shared }
    }

    pub(crate) fn without_jobs(reply: PopReply) -> PopGuard {
        PopGuard { reply, shared: None }
    }

    /// The reply; its jobs are the caller's from here on.
    pub(crate) fn take(mut self) -> PopReply {
        self.shared = None;
        PopReply { jobs: std::mem::take(&mut self.reply.jobs), turn: self.reply.turn }
    }
}

impl Drop for PopGuard {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.take() {
            shared.release(self.reply.jobs.iter().map(Release::of).collect());
        }
    }
}
