//! The engine on a directory obeys every rule, and remembers.

#![allow(clippy::unwrap_used, reason = "in a test, that is how to fail")]

mod conformance {
    use std::path::{Path, PathBuf};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use geartrain_core::*;
    use geartrain_store::{StoreBackend, StoreOptions};

    /// A backend in a directory that goes with it.
    struct InADirectory {
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
        fn subscribe(&self) -> Pending<'_, Box<dyn Events>> {
            self.backend().subscribe()
        }
    }

    fn directory() -> PathBuf {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("conformance-{}-{number}", std::process::id()))
    }

    geartrain_testkit::conformance!(|clock| {
        let directory = directory();
        let backend =
            StoreBackend::open(&directory, StoreOptions::default(), clock).expect("it can be opened");
        Arc::new(InADirectory { backend: Some(backend), directory })
    });
}
