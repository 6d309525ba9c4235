//! The front: what all connections share, and the listeners that they come in by.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use geartrain_core::{Backend, Clock, Timestamp};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener, tcp, unix};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::channels::Channels;
use crate::connection::Connection;
use crate::scripts::Scripts;

/// How long a peer may be silent before it is asked whether it is still there, and how long between one such question and the next.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// How long to wait when no more connections can be accepted for a while, for want of file descriptors say.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// How a front behaves.
#[derive(Clone)]
pub struct Options {
    /// Whether `FLUSHDB`, `FLUSHALL` and `KEYS` do anything.
    pub allow_flush: bool,
    /// What everybody has to say first, with `AUTH` or `HELLO`; if there is none, nobody has to.
    pub password: Option<String>,
    /// How many connections there may be at once. More are turned away.
    pub connections_max: usize,
    /// How long a connection may take to hear its last replies when the front stops.
    pub farewell: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            allow_flush: false,
            password: None,
            connections_max: 10_000,
            farewell: Duration::from_secs(5),
        }
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the password: what is printed may be kept.
        f.debug_struct("Options")
            .field("allow_flush", &self.allow_flush)
            .field("has_password", &self.password.is_some())
            .field("connections_max", &self.connections_max)
            .field("farewell", &self.farewell)
            .finish()
    }
}

/// Speaks RESP for one backend.
#[derive(Clone)]
pub struct Front {
    shared: Arc<Shared>,
}

/// What all connections share.
pub(crate) struct Shared {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) options: Options,
    pub(crate) scripts: Scripts,
    pub(crate) channels: Arc<Channels>,
    pub(crate) started: Timestamp,
    /// Who is connected: address and name, by number.
    peers: Mutex<BTreeMap<u64, (String, String)>>,
    numbers: AtomicU64,
    connected: AtomicUsize,
    pub(crate) calls: AtomicU64,
}

impl Shared {
    pub(crate) fn peers(&self) -> MutexGuard<'_, BTreeMap<u64, (String, String)>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many connections there have been.
    pub(crate) fn connections(&self) -> u64 {
        self.numbers.load(Ordering::Relaxed)
    }
}

impl Front {
    /// A front for a backend; it does nothing until it serves.
    pub fn new(backend: Arc<dyn Backend>, clock: Arc<dyn Clock>, options: Options) -> Front {
        let shared = Shared {
            channels: Arc::new(Channels::new(backend.clone())),
            started: clock.now(),
            backend,
            clock,
            options,
            scripts: Scripts::default(),
            peers: Mutex::default(),
            numbers: AtomicU64::new(0),
            connected: AtomicUsize::new(0),
            calls: AtomicU64::new(0),
        };
        Front { shared: Arc::new(shared) }
    }

    /// Serves whoever connects, until it is told to stop. Then it accepts nobody more, answers what it has read, and returns when every connection has
    /// ended.
    pub async fn serve_tcp(&self, listener: TcpListener, stop: CancellationToken) {
        self.serve(listener, stop).await;
    }

    /// The same on a socket in the file system.
    pub async fn serve_unix(&self, listener: UnixListener, stop: CancellationToken) {
        self.serve(listener, stop).await;
    }

    async fn serve<L: Listener>(&self, listener: L, stop: CancellationToken) {
        self.shared.channels.employ();
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                Some(_) = connections.join_next(), if !connections.is_empty() => {}
                accepted = listener.accept() => match accepted {
                    Ok((reader, writer, address)) => {
                        connections.spawn(welcome(self.shared.clone(), reader, writer, address, stop.clone()));
                    }
                    Err(error) => {
                        tracing::warn!("a connection cannot be accepted: {error}");
                        tokio::time::sleep(ACCEPT_AGAIN).await;
                    }
                },
            }
        }
        while connections.join_next().await.is_some() {}
        self.shared.channels.dismiss().await;
    }
}

/// Where peers come in.
trait Listener: Send + Sync {
    type Reader: AsyncRead + Unpin + Send + 'static;
    type Writer: AsyncWrite + Unpin + Send + 'static;

    /// The next peer's two ends, and where it comes from.
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Reader, Self::Writer, String)>> + Send;
}

impl Listener for TcpListener {
    type Reader = tcp::OwnedReadHalf;
    type Writer = tcp::OwnedWriteHalf;

    async fn accept(&self) -> io::Result<(Self::Reader, Self::Writer, String)> {
        let (stream, address) = self.accept().await?;
        // Replies are written when they are whole; waiting for more to send would only make them late.
        stream.set_nodelay(true)?;
        // A machine that is gone says nothing, and jobs that are sent to it would wait for their locks to expire.
        let alive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE).with_retries(3);
        SockRef::from(&stream).set_tcp_keepalive(&alive)?;
        let (reader, writer) = stream.into_split();
        Ok((reader, writer, address.to_string()))
    }
}

impl Listener for UnixListener {
    type Reader = unix::OwnedReadHalf;
    type Writer = unix::OwnedWriteHalf;

    async fn accept(&self) -> io::Result<(Self::Reader, Self::Writer, String)> {
        let (stream, _) = self.accept().await?;
        let (reader, writer) = stream.into_split();
        Ok((reader, writer, "unix-socket".to_owned()))
    }
}

/// Serves one peer, or turns it away if there are too many.
async fn welcome<R, W>(
    shared: Arc<Shared>,
    reader: R,
    mut writer: W,
    address: String,
    stop: CancellationToken,
) where
    R: AsyncRead + Unpin + Send,
    W: AsyncWrite + Unpin + Send,
{
    let present = Present::new(shared.clone());
    if present.others >= shared.options.connections_max {
        let text =
            format!("-ERR there are {} connections already, and no more are taken\r\n", present.others);
        // It may not even hear that.
        let _ = tokio::time::timeout(shared.options.farewell, writer.write_all(text.as_bytes())).await;
        return;
    }
    let number = shared.numbers.fetch_add(1, Ordering::Relaxed) + 1;
    shared.peers().insert(number, (address, String::new()));
    Connection::new(reader, writer, shared, number, stop).serve().await;
}

/// Counts a connection as long as it is there, even if serving it panics.
struct Present {
    shared: Arc<Shared>,
    others: usize,
}

impl Present {
    fn new(shared: Arc<Shared>) -> Present {
        let others = shared.connected.fetch_add(1, Ordering::Relaxed);
        Present { shared, others }
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        self.shared.connected.fetch_sub(1, Ordering::Relaxed);
    }
}
