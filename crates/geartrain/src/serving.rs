//! The socket file through which other processes use a directory that this one has.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use geartrain_core::Backend;
use geartrain_resp::{Front, Options};
use geartrain_store::SystemClock;
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;

/// Where the socket file of a directory is.
pub(crate) fn socket_in(directory: &Path) -> PathBuf {
    directory.join("geartrain.sock")
}

/// Lets other processes in until it is dropped.
pub(crate) struct Serving {
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
    socket: PathBuf,
}

impl Serving {
    /// Begins, on a thread of its own, because the program may have no executor that reads sockets. If it cannot, nobody is let in and the program works as well.
    pub(crate) fn start(backend: Arc<dyn Backend>, directory: &Path) -> Option<Serving> {
        let socket = socket_in(directory);
        let stop = CancellationToken::new();
        let (path, stopped) = (socket.clone(), stop.clone());
        let serve = move || -> std::io::Result<()> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async move {
                // The directory is ours, so a file that is there was left by a process that is not.
                let _ = std::fs::remove_file(&path);
                let listener = UnixListener::bind(&path)?;
                Front::new(backend, Arc::new(SystemClock), Options::default())
                    .serve_unix(listener, stopped)
                    .await;
                Ok(())
            })
        };
        let thread = std::thread::Builder::new().name("geartrain-socket".into()).spawn(move || {
            if let Err(error) = serve() {
                tracing::warn!(%error, "no other process can use this directory meanwhile");
            }
        });
        let thread = thread
            .inspect_err(|error| tracing::warn!(%error, "no other process can use this directory meanwhile"));
        Some(Serving { stop, thread: Some(thread.ok()?), socket })
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            // If it panicked, it said why, and nobody else waits for it.
            let _ = thread.join();
        }
        // Before the directory is let go of: what is there afterwards may be another process's.
        let _ = std::fs::remove_file(&self.socket);
    }
}
