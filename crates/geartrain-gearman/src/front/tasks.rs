//! Background tasks of a front-end: cancelled at shutdown, which waits for their end.

use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// The background tasks of one front-end. A tracker rather than a `JoinSet`: the task that watches a function
/// may start and end with every job, and finished tasks need no bookkeeping.
#[derive(Default)]
pub(crate) struct Tasks {
    running: TaskTracker,
    stop: CancellationToken,
}

impl Tasks {
    /// Starts a task, which is dropped at its next await when the front-end stops.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.running.spawn(self.stop.clone().run_until_cancelled_owned(task));
    }

    /// Cancels all tasks when the guard is dropped, without waiting for them.
    pub(crate) fn stop_on_drop(&self) -> DropGuard {
        self.stop.clone().drop_guard()
    }

    /// Cancels all tasks and waits until each has ended.
    pub(crate) async fn shut_down(&self) {
        self.stop.cancel();
        self.running.close();
        self.running.wait().await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn shut_down_returns_when_every_task_is_dropped() {
        let (tasks, held) = (Tasks::default(), Arc::new(()));
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
