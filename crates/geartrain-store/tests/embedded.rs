//! The engine on a directory obeys every rule, and remembers.

#![allow(clippy::unwrap_used, reason = "in a test, that is how to fail")]

mod in_a_directory {
    use std::path::{Path, PathBuf};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use geartrain_core::*;
    use geartrain_store::{StoreBackend, StoreOptions};

    /// A backend in a directory that goes with it.
    pub(crate) struct InADirectory {
        backend: Option<StoreBackend>,
        directory: PathBuf,
    }

    impl InADirectory {
        fn backend(&self) -> &StoreBackend {
            self.backend.as_ref().expect("it is there until it is dropped")
        }
    }

    impl Drop for InADirectory {
        fn drop(&mut self) {
            self.backend = None;
            let _ = std::fs::remove_dir_all(&self.directory);
        }
    }

    impl Backend for InADirectory {
        fn execute(&self, batch: Vec<Call>) -> Pending<'_, Vec<Answer>> {
            self.backend().execute(batch)
        }
        fn pop_or_wait(&self, pop: Pop, wait: Seconds) -> Pending<'_, PopReply> {
            self.backend().pop_or_wait(pop, wait)
        }
        fn ready_or_wait(&self, queues: Vec<QueueName>, wait: Seconds) -> Pending<'_, bool> {
            self.backend().ready_or_wait(queues, wait)
        }
        fn subscribe(&self) -> Pending<'_, Box<dyn Events>> {
            self.backend().subscribe()
        }
        fn subscribe_from(&self, after: u64) -> Pending<'_, Box<dyn Events>> {
            self.backend().subscribe_from(after)
        }
        fn follow(&self, front: u64) -> Pending<'_, Box<dyn Deliveries>> {
            self.backend().follow(front)
        }
    }

    fn directory() -> PathBuf {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("conformance-{}-{number}", std::process::id()))
    }

    pub(crate) fn open(options: StoreOptions, clock: Arc<dyn Clock>) -> Arc<InADirectory> {
        let directory = directory();
        let backend = StoreBackend::open(&directory, options, clock).expect("it can be opened");
        Arc::new(InADirectory { backend: Some(backend), directory })
    }
}

mod conformance {
    use geartrain_store::StoreOptions;

    geartrain_testkit::conformance!(|clock| crate::in_a_directory::open(StoreOptions::default(), clock));
}

/// The same when nothing stays in memory, and files are so short that payloads are copied from one to the next all the time.
mod conformance_without_memory {
    use geartrain_store::StoreOptions;

    geartrain_testkit::conformance!(|clock| {
        let options = StoreOptions {
            checkpoint_bytes_min: 4 << 10,
            payload_memory: 0,
            spill_bytes_min: 0,
            payload_file_bytes: 64,
            ..StoreOptions::default()
        };
        crate::in_a_directory::open(options, clock)
    });
}
