//! Work that is done beside everything else.

use std::sync::{Arc, Mutex, PoisonError};

use super::disk::{Disk, Join};

/// Work that was put aside, and what comes of it.
///
/// To drop it is to wait for it: whoever opens a directory next must not meet a file that somebody is still at.
pub(crate) struct Aside<T> {
    join: Option<Join>,
    /// What came of it. Whoever works holds the other end, and lets go of it last.
    slot: Arc<Mutex<Option<T>>>,
}

impl<T> Aside<T> {
    /// Puts work aside.
    pub(crate) fn new(disk: &dyn Disk, work: impl FnOnce() -> T + Send + 'static) -> Aside<T>
    where
        T: Send + 'static,
    {
        let slot = Arc::new(Mutex::new(None));
        let theirs = slot.clone();
        let join = disk.aside(Box::new(move || {
            let done = work();
            *theirs.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
        }));
        Aside { join: Some(join), slot }
    }

    /// Whether nobody has to wait for it any more.
    pub(crate) fn is_done(&self) -> bool {
        Arc::strong_count(&self.slot) == 1
    }

    /// Waits for it. None if it panicked.
    pub(crate) fn join(mut self) -> Option<T> {
        self.wait();
        self.slot.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn wait(&mut self) {
        if let Some(join) = self.join.take() {
            join();
        }
    }
}

impl<T> Drop for Aside<T> {
    fn drop(&mut self) {
        self.wait();
    }
}
