//! A pop that is dropped loses no job.

use std::sync::Arc;

use geartrain_core::{Backend, SystemClock};
use geartrain_store::{StoreBackend, StoreOptions, SyncMode};
use geartrain_testkit::cancellation::{Return, cancel_pops};
use geartrain_testkit::scaled;

use crate::scratch::Scratch;

#[test]
fn a_dropped_pop_returns_its_jobs_in_memory() {
    let store = StoreBackend::in_memory(Arc::new(SystemClock)).unwrap();
    // Callers execute inline, so a pop may come between the hand-out and the release.
    cancel_pops(&(Arc::new(store) as Arc<dyn Backend>), scaled(1_000, 100_000), Return::Soon);
}

#[test]
fn a_dropped_pop_returns_its_jobs_in_a_directory() {
    for (name, sync, cancellations) in [
        ("cancel-never", SyncMode::Never, scaled(1_000, 100_000)),
        ("cancel-always", SyncMode::Always, scaled(100, 2_000)),
    ] {
        let directory = Scratch::new(name);
        let options = StoreOptions { sync, ..StoreOptions::default() };
        let store = StoreBackend::open(directory.path(), options, Arc::new(SystemClock)).unwrap();
        cancel_pops(&(Arc::new(store) as Arc<dyn Backend>), cancellations, Return::AtOnce);
    }
}
