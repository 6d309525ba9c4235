//! The front: what all connections share, and the listeners that they come in by.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use geartrain_core::{Backend, Clock, Timestamp};
use geartrain_front::{Admission, Admitted, AuthThrottle, RepeatedWarning};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener, tcp, unix};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::channels::Channels;
use crate::connection::Connection;
use crate::scripts::Scripts;
use crate::session::Session;

/// How long a peer may be silent before it is asked whether it is still there, and how long between one such question and the next.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// How long to wait when no more connections can be accepted for a while, for want of file descriptors say.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

static NOT_ACCEPTED: RepeatedWarning = RepeatedWarning::new();
static REFUSED: RepeatedWarning = RepeatedWarning::new();

/// How a front behaves.
#[derive(Clone)]
pub struct Options {
    /// Whether `FLUSHDB`, `FLUSHALL` and `KEYS` do anything.
    pub allow_flush: bool,
    /// What everybody has to say first, with `AUTH` or `HELLO`; if there is none, nobody has to.
    pub password: Option<String>,
    /// How many connections there may be at once. By default as many as the process has descriptors for,
    /// with those of all other front-ends.
    pub admission: Arc<Admission>,
    /// How long a connection may take to hear its last replies when the front stops.
    pub farewell: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            allow_flush: false,
            password: None,
            admission: Admission::of_process(),
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
            .field("admission", &self.admission)
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
    pub(crate) auth: AuthThrottle,
    pub(crate) calls: AtomicU64,
}

impl Shared {
    pub(crate) fn peers(&self) -> MutexGuard<'_, BTreeMap<u64, (String, String)>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one more connection, or says why not.
    fn admit(&self) -> Result<Admitted, String> {
        self.options.admission.admit(self.options.password.is_some()).map_err(|full| {
            REFUSED.warn(format_args!("a RESP connection is refused: {full}"));
            full.to_string()
        })
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
            auth: AuthThrottle::default(),
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
                    Ok((reader, writer, from)) => match self.shared.admit() {
                        Ok(admitted) => {
                            let (shared, stop) = (self.shared.clone(), stop.clone());
                            connections.spawn(welcome(shared, reader, writer, from, admitted, stop));
                        }
                        // Here and at once: tasks that refuse would take descriptors meanwhile.
                        Err(text) => refuse(writer, &text),
                    },
                    Err(error) => {
                        NOT_ACCEPTED.warn(format_args!("a connection cannot be accepted: {error}"));
                        tokio::time::sleep(ACCEPT_AGAIN).await;
                    }
                },
            }
        }
        while connections.join_next().await.is_some() {}
        self.shared.channels.dismiss().await;
    }
}

/// Where a connection comes from.
struct Origin {
    address: String,
    /// None for a socket in the file system.
    ip: Option<IpAddr>,
}

/// Where peers come in.
trait Listener: Send + Sync {
    type Reader: AsyncRead + Unpin + Send + 'static;
    type Writer: AsyncWrite + Unpin + Send + 'static;

    /// The next peer's two ends, and where it comes from.
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Reader, Self::Writer, Origin)>> + Send;
}

impl Listener for TcpListener {
    type Reader = tcp::OwnedReadHalf;
    type Writer = tcp::OwnedWriteHalf;

    async fn accept(&self) -> io::Result<(Self::Reader, Self::Writer, Origin)> {
        let (stream, address) = self.accept().await?;
        // Replies are written when they are whole; waiting for more to send would only make them late.
        stream.set_nodelay(true)?;
        // A machine that is gone says nothing, and jobs that are sent to it would wait for their locks to expire.
        let alive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE).with_retries(3);
        SockRef::from(&stream).set_tcp_keepalive(&alive)?;
        let (reader, writer) = stream.into_split();
        Ok((reader, writer, Origin { address: address.to_string(), ip: Some(address.ip()) }))
    }
}

impl Listener for UnixListener {
    type Reader = unix::OwnedReadHalf;
    type Writer = unix::OwnedWriteHalf;

    async fn accept(&self) -> io::Result<(Self::Reader, Self::Writer, Origin)> {
        let (stream, _) = self.accept().await?;
        let (reader, writer) = stream.into_split();
        Ok((reader, writer, Origin { address: "unix-socket".to_owned(), ip: None }))
    }
}

/// Says why there is no room for a connection, if that can be said without waiting, and closes it.
fn refuse(mut writer: impl AsyncWrite + Unpin, text: &str) {
    // It may not even hear that.
    let _ = writer.write(format!("-ERR {text}\r\n").as_bytes()).now_or_never();
}

/// Serves one peer.
async fn welcome<R, W>(
    shared: Arc<Shared>,
    reader: R,
    writer: W,
    from: Origin,
    admitted: Admitted,
    stop: CancellationToken,
) where
    R: AsyncRead + Unpin + Send,
    W: AsyncWrite + Unpin + Send,
{
    let number = shared.numbers.fetch_add(1, Ordering::Relaxed) + 1;
    shared.peers().insert(number, (from.address, String::new()));
    let session = Session::new(number, from.ip, admitted, shared.clone());
    Connection::new(reader, writer, session, shared, stop).serve().await;
}
