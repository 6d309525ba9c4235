//! Task tracker: owns the background tasks of a front-end, cancels them at shutdown and waits for their end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;
use tokio_util::sync::{CancellationToken, DropGuard};

/// The background tasks of one front-end. A counter rather than a `JoinSet`: the task that watches a function
/// may start and end with every job, and finished tasks need no bookkeeping.
#[derive(Default)]
pub(crate) struct Tasks {
    running: AtomicUsize,
    /// Notified when the last task has ended.
    all_ended: Notify,
    stop: CancellationToken,
}

/// Counts a task for as long as its future exists, even if it panics or its runtime ends.
struct Running(Arc<Tasks>);

impl Drop for Running {
    fn drop(&mut self) {
        if self.0.running.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.all_ended.notify_waiters();
        }
    }
}

impl Tasks {
    /// Starts a task, which is dropped at its next await when the front-end stops.
    pub(crate) fn spawn(self: &Arc<Tasks>, task: impl Future<Output = ()> + Send + 'static) {
        self.running.fetch_add(1, Ordering::Relaxed);
        let running = Running(self.clone());
        tokio::spawn(async move {
            // `select!` drops the task before `running` reports its end.
            tokio::select! {
                biased;
                () = running.0.stop.cancelled() => {}
                () = task => {}
            }
        });
    }

    /// Cancels all tasks when the guard is dropped, without waiting for them.
    pub(crate) fn stop_on_drop(&self) -> DropGuard {
        self.stop.clone().drop_guard()
    }

    /// Cancels all tasks and waits until each has ended.
    pub(crate) async fn shut_down(&self) {
        self.stop.cancel();
        loop {
            let all_ended = self.all_ended.notified();
            if self.running.load(Ordering::Acquire) == 0 {
                return;
            }
            all_ended.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn shut_down_returns_when_every_task_is_dropped() {
        let (tasks, held) = (Arc::new(Tasks::default()), Arc::new(()));
        for _ in 0..10 {
            let held = held.clone();
            tasks.spawn(async move {
                std::future::pending::<()>().await;
                drop(held);
            });
        }
        let ended = held.clone();
        tasks.spawn(async move { drop(ended) });
        assert_eq!(Arc::strong_count(&held), 12);
        tasks.shut_down().await;
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
