//! The socket file of a data directory: other processes use the queue through the process that owns it.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use geartrain_core::Backend;
use geartrain_core::SystemClock;
use geartrain_resp::{AccessControl, Front, Options};
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;

use crate::embedded::socket_in;

/// A RESP server on the socket file. Stops when dropped.
pub(crate) struct SocketServer {
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
    socket: PathBuf,
}

impl SocketServer {
    /// Starts a thread of its own, because the program may have no executor that polls sockets. If that
    /// fails, the program works as before and no other process can connect.
    pub(crate) fn start(
        backend: Arc<dyn Backend>,
        directory: &Path,
        read_only: bool,
    ) -> Option<SocketServer> {
        SocketServer::try_start(backend, socket_in(directory), read_only)
            .inspect_err(
                |error| tracing::warn!(%error, "cannot share this data directory with other processes"),
            )
            .ok()
    }

    fn try_start(
        backend: Arc<dyn Backend>,
        socket: PathBuf,
        read_only: bool,
    ) -> std::io::Result<SocketServer> {
        // This process holds the directory's lock, so an existing file is left over from a dead process.
        let _ = std::fs::remove_file(&socket);
        // Bound here and not by the thread, so that others can connect as soon as the queue is open.
        let listener = std::os::unix::net::UnixListener::bind(&socket)?;
        // Independent of the umask: a connection may run every command. Until this line the mode of the
        // directory keeps other users out.
        std::fs::set_permissions(&socket, Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let serve = async move {
            let listener = UnixListener::from_std(listener)?;
            let sync_mode = backend.sync_mode().await.unwrap_or_default();
            let access = Arc::new(AccessControl::open().read_only(read_only));
            let options = Options { sync_mode, access, ..Options::default() };
            Front::new(backend, Arc::new(SystemClock), options).serve_unix(listener, stopped).await;
            Ok::<_, std::io::Error>(())
        };
        let thread = std::thread::Builder::new().name("geartrain-socket".into()).spawn(move || {
            if let Err(error) = runtime.block_on(serve) {
                tracing::warn!(%error, "other processes can no longer use this data directory");
            }
        })?;
        Ok(SocketServer { stop, thread: Some(thread), socket })
    }
}

impl Drop for SocketServer {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed by the panic hook.
            let _ = thread.join();
        }
        // Before the directory's lock is released: afterwards the file may belong to another process.
        let _ = std::fs::remove_file(&self.socket);
    }
}
