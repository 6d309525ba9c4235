//! Background task: work done off the commit path, on a thread of its own.

use std::sync::Arc;

use parking_lot::Mutex;

use super::disk::{Disk, Join};

/// A running background task and its result.
///
/// Dropping it waits for it: the next opening of the directory must not meet a file that is still being
/// written.
pub(crate) struct BackgroundTask<T> {
    join: Option<Join>,
    /// The result. The task drops its reference last.
    slot: Arc<Mutex<Option<T>>>,
}

impl<T> BackgroundTask<T> {
    /// Starts a task.
    pub(crate) fn new(disk: &dyn Disk, work: impl FnOnce() -> T + Send + 'static) -> BackgroundTask<T>
    where
        T: Send + 'static,
    {
        let slot = Arc::new(Mutex::new(None));
        let shared = slot.clone();
        let join = disk.spawn(Box::new(move || {
            let done = work();
            *shared.lock() = Some(done);
        }));
        BackgroundTask { join: Some(join), slot }
    }

    /// Whether joining would not block.
    pub(crate) fn is_done(&self) -> bool {
        Arc::strong_count(&self.slot) == 1
    }

    /// Waits for the result; `None` if the task panicked.
    pub(crate) fn join(mut self) -> Option<T> {
        self.wait();
        self.slot.lock().take()
    }

    fn wait(&mut self) {
        if let Some(join) = self.join.take() {
            join();
        }
    }
}

impl<T> Drop for BackgroundTask<T> {
    fn drop(&mut self) {
        self.wait();
    }
}
