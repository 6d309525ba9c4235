//! Scratch directories: removed when the test ends.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// An empty directory of its own.
pub(crate) struct Scratch {
    path: PathBuf,
    fresh: AtomicU64,
}

impl Scratch {
    pub(crate) fn new(name: &str) -> Scratch {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}-{number}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Scratch { path, fresh: AtomicU64::new(0) }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Where a test has its data directory.
    pub(crate) fn data(&self) -> PathBuf {
        self.join("data")
    }

    /// A path in it that does not exist yet.
    pub(crate) fn fresh(&self) -> PathBuf {
        self.join(&format!("fresh-{}", self.fresh.fetch_add(1, Ordering::Relaxed)))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
