//! The socket file through which other processes use a directory that this one has.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use geartrain_core::Backend;
use geartrain_core::SystemClock;
use geartrain_resp::{Front, Options};
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
        Serving::try_start(backend, socket_in(directory))
            .inspect_err(|error| tracing::warn!(%error, "no other process can use this directory meanwhile"))
            .ok()
    }

    fn try_start(backend: Arc<dyn Backend>, socket: PathBuf) -> std::io::Result<Serving> {
        // The directory is ours, so a file that is there was left by a process that is not.
        let _ = std::fs::remove_file(&socket);
        // Bound here and not by the thread, so that others can come in as soon as the queue is open.
        let listener = std::os::unix::net::UnixListener::bind(&socket)?;
        // Whatever the umask: to connect to it is to command the queue. Until here the directory's own mode
        // keeps others out.
        std::fs::set_permissions(&socket, Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let serve = async move {
            let listener = UnixListener::from_std(listener)?;
            Front::new(backend, Arc::new(SystemClock), Options::default())
                .serve_unix(listener, stopped)
                .await;
            Ok::<_, std::io::Error>(())
        };
        let thread = std::thread::Builder::new().name("geartrain-socket".into()).spawn(move || {
            if let Err(error) = runtime.block_on(serve) {
                tracing::warn!(%error, "no other process can use this directory any more");
            }
        })?;
        Ok(Serving { stop, thread: Some(thread), socket })
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
