//! The RESP front-end: what all connections share, and its listeners.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use geartrain_core::{Backend, Clock, Timestamp};
use geartrain_front::{AccessControl, Admission, Admitted, FrontEnd, RepeatedWarning, Tls, TlsStream};
use parking_lot::{Mutex, MutexGuard};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream, tcp, unix};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::channels::Channels;
use crate::connection::Connection;
use crate::reset::Writer;
use crate::scripts::Scripts;
use crate::session::Session;

/// TCP keepalive: after so long without traffic, and at this interval.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// Pause after `accept` failed, for example without free file descriptors.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

static NOT_ACCEPTED: RepeatedWarning = RepeatedWarning::new();
static REFUSED: RepeatedWarning = RepeatedWarning::new();

/// Settings of a front-end.
#[derive(Clone)]
pub struct Options {
    /// Whether `FLUSHDB`, `FLUSHALL` and `KEYS` are allowed.
    pub allow_flush: bool,
    /// Who may do what: keys are required by `AUTH` or `HELLO` before anything else, if there are any.
    pub access: Arc<AccessControl>,
    /// The limit of connections. By default shared with all other front-ends of the process, from its limit
    /// of file descriptors.
    pub admission: Arc<Admission>,
    /// Commands that take at least this long are logged.
    pub slow_after: Option<Duration>,
    /// When changes are synced to disk, for `INFO`.
    pub sync_mode: Option<String>,
    /// How long connections may take to receive their last replies when the server stops.
    pub drain_timeout: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            allow_flush: false,
            access: Arc::new(AccessControl::open()),
            admission: Admission::of_process(),
            slow_after: None,
            sync_mode: None,
            drain_timeout: Duration::from_secs(5),
        }
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("allow_flush", &self.allow_flush)
            .field("access", &self.access)
            .field("admission", &self.admission)
            .field("slow_after", &self.slow_after)
            .field("sync_mode", &self.sync_mode)
            .field("drain_timeout", &self.drain_timeout)
            .finish()
    }
}

/// Serves RESP for one backend.
#[derive(Clone)]
pub struct Front {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) options: Options,
    pub(crate) scripts: Scripts,
    pub(crate) channels: Arc<Channels>,
    pub(crate) started: Timestamp,
    /// Address and name of each connection, by number.
    peers: Mutex<BTreeMap<u64, (String, String)>>,
    numbers: AtomicU64,
    pub(crate) calls: AtomicU64,
}

impl Shared {
    pub(crate) fn peers(&self) -> MutexGuard<'_, BTreeMap<u64, (String, String)>> {
        self.peers.lock()
    }

    /// Admits one more connection, or returns the error reply. Until its handshake is over, it counts as
    /// unauthenticated.
    fn admit(&self, has_handshake: bool) -> Result<Admitted, String> {
        self.options.admission.admit(has_handshake || self.options.access.is_required()).map_err(|full| {
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
    /// A front-end for a backend; it does nothing until it serves.
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
            calls: AtomicU64::new(0),
        };
        Front { shared: Arc::new(shared) }
    }

    /// Serves connections until `stop`. Then accepts no more, answers the requests that were read, and
    /// returns when every connection has ended.
    pub async fn serve_tcp(&self, listener: TcpListener, stop: CancellationToken) {
        self.serve(listener, stop).await;
    }

    /// The same with TLS, and nothing but TLS.
    pub async fn serve_tls(&self, listener: TcpListener, tls: Arc<Tls>, stop: CancellationToken) {
        self.serve(TlsListener { listener, tls }, stop).await;
    }

    /// The same on a Unix socket.
    pub async fn serve_unix(&self, listener: UnixListener, stop: CancellationToken) {
        self.serve(listener, stop).await;
    }

    async fn serve<L: Listener>(&self, listener: L, stop: CancellationToken) {
        self.shared.channels.start();
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                Some(_) = connections.join_next(), if !connections.is_empty() => {}
                accepted = listener.accept() => match accepted {
                    Ok((stream, from)) => match self.shared.admit(L::Stream::HAS_HANDSHAKE) {
                        Ok(mut admitted) => {
                            admitted.count_as(FrontEnd::Resp);
                            let (shared, stop) = (self.shared.clone(), stop.clone());
                            connections.spawn(serve_peer(shared, stream, from, admitted, stop));
                        }
                        // Here and not in a task, which would hold a descriptor meanwhile.
                        Err(text) => stream.refuse(&text),
                    },
                    Err(error) => {
                        NOT_ACCEPTED.warn(format_args!("a connection cannot be accepted: {error}"));
                        tokio::time::sleep(ACCEPT_AGAIN).await;
                    }
                },
            }
        }
        while connections.join_next().await.is_some() {}
        self.shared.channels.stop().await;
        RepeatedWarning::flush_all();
    }
}

struct Origin {
    address: String,
    /// None for a Unix socket.
    ip: Option<IpAddr>,
}

trait Listener: Send + Sync {
    type Stream: Stream;

    /// The next connection, and its origin.
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Stream, Origin)>> + Send;
}

/// An accepted connection.
trait Stream: Send + Sized + 'static {
    type Reader: AsyncRead + Unpin + Send + 'static;
    type Writer: Writer + 'static;

    /// Whether the client has to complete a handshake before its first request.
    const HAS_HANDSHAKE: bool = false;

    /// Performs the handshake, if there is one, and returns the two halves; none if it failed.
    fn open(
        self,
        from: &Origin,
        admitted: &Admitted,
        stop: &CancellationToken,
    ) -> impl Future<Output = Option<(Self::Reader, Self::Writer)>> + Send;

    /// Sends the error without waiting, if that is possible, and closes the connection.
    fn refuse(self, text: &str);
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<(TcpStream, Origin)> {
        let (stream, address) = self.accept().await?;
        // No Nagle delay: replies are written when they are complete.
        stream.set_nodelay(true)?;
        // A machine that is gone closes nothing, and jobs popped for it would wait for their locks to expire.
        let alive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE).with_retries(3);
        SockRef::from(&stream).set_tcp_keepalive(&alive)?;
        Ok((stream, Origin { address: address.to_string(), ip: Some(address.ip()) }))
    }
}

impl Stream for TcpStream {
    type Reader = tcp::OwnedReadHalf;
    type Writer = tcp::OwnedWriteHalf;

    async fn open(
        self,
        _: &Origin,
        _: &Admitted,
        _: &CancellationToken,
    ) -> Option<(Self::Reader, Self::Writer)> {
        Some(self.into_split())
    }

    fn refuse(self, text: &str) {
        refuse(self, text);
    }
}

impl Listener for UnixListener {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<(UnixStream, Origin)> {
        let (stream, _) = self.accept().await?;
        Ok((stream, Origin { address: "unix-socket".to_owned(), ip: None }))
    }
}

impl Stream for UnixStream {
    type Reader = unix::OwnedReadHalf;
    type Writer = unix::OwnedWriteHalf;

    async fn open(
        self,
        _: &Origin,
        _: &Admitted,
        _: &CancellationToken,
    ) -> Option<(Self::Reader, Self::Writer)> {
        Some(self.into_split())
    }

    fn refuse(self, text: &str) {
        refuse(self, text);
    }
}

struct TlsListener {
    listener: TcpListener,
    tls: Arc<Tls>,
}

impl Listener for TlsListener {
    type Stream = (TcpStream, Arc<Tls>);

    async fn accept(&self) -> io::Result<(Self::Stream, Origin)> {
        let (stream, from) = Listener::accept(&self.listener).await?;
        Ok(((stream, self.tls.clone()), from))
    }
}

impl Stream for (TcpStream, Arc<Tls>) {
    type Reader = ReadHalf<TlsStream>;
    type Writer = WriteHalf<TlsStream>;

    const HAS_HANDSHAKE: bool = true;

    async fn open(
        self,
        from: &Origin,
        admitted: &Admitted,
        stop: &CancellationToken,
    ) -> Option<(Self::Reader, Self::Writer)> {
        let (stream, tls) = self;
        tls.accept(stream, ("RESP", &from.address), admitted, stop).await.map(tokio::io::split)
    }

    /// Without a word: it would have to come after the handshake.
    fn refuse(self, _: &str) {}
}

fn refuse(mut stream: impl AsyncWrite + Unpin, text: &str) {
    // Fails if the client has disconnected.
    let _ = stream.write(format!("-ERR {text}\r\n").as_bytes()).now_or_never();
}

async fn serve_peer<S: Stream>(
    shared: Arc<Shared>,
    stream: S,
    from: Origin,
    admitted: Admitted,
    stop: CancellationToken,
) {
    let Some((reader, writer)) = stream.open(&from, &admitted, &stop).await else { return };
    let number = shared.numbers.fetch_add(1, Ordering::Relaxed) + 1;
    let (address, opened) = (from.address.clone(), Instant::now());
    tracing::debug!("RESP connection {number} from {address} is open");
    shared.peers().insert(number, (from.address, String::new()));
    let session = Session::new(number, from.ip, admitted, shared.clone());
    Connection::new(reader, writer, session, shared, stop).serve().await;
    let seconds = opened.elapsed().as_secs_f64();
    tracing::debug!("RESP connection {number} from {address} is closed after {seconds:.1} s");
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use geartrain_core::wire::Request;
    use geartrain_core::{
        Call, Get, Jid, Klass, Pop, Put, QueueName, Reply, StateName, SystemClock, WorkerName,
    };
    use geartrain_store::StoreBackend;
    use tokio::io::DuplexStream;
    use tokio::sync::mpsc;

    use super::*;

    /// A connection on which the first write succeeds and the second fails: the client has reset it.
    struct Resets {
        reader: DuplexStream,
        writer: ResetWriter,
    }

    /// Reports each write.
    struct ResetWriter {
        written: mpsc::UnboundedSender<()>,
        has_written: bool,
    }

    impl Stream for Resets {
        type Reader = DuplexStream;
        type Writer = ResetWriter;

        async fn open(
            self,
            _: &Origin,
            _: &Admitted,
            _: &CancellationToken,
        ) -> Option<(DuplexStream, ResetWriter)> {
            Some((self.reader, self.writer))
        }

        fn refuse(self, _: &str) {}
    }

    impl Writer for ResetWriter {
        async fn is_reset(&mut self) -> bool {
            true
        }
    }

    impl AsyncWrite for ResetWriter {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            if std::mem::replace(&mut self.has_written, true) {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            self.written.send(()).expect("the test waits for it");
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn a_failed_write_releases_the_jobs_of_the_reply_before_it() {
        let clock = Arc::new(SystemClock);
        let backend = Arc::new(StoreBackend::in_memory(clock.clone()).unwrap());
        let queue = QueueName::new("q").unwrap();
        let jids = ["a", "b"].map(|jid| Jid::new(jid).unwrap());
        let put = |jid: &Jid| Put::new(queue.clone(), jid.clone(), Klass::new("k").unwrap(), "{}").into();
        backend.execute(jids.iter().map(put).collect()).await.unwrap();
        let front = Front::new(backend.clone(), clock, Options::default());
        let (mut client, reader) = tokio::io::duplex(4096);
        let (written, mut writes) = mpsc::unbounded_channel();
        let admitted = front.shared.admit(false).unwrap();
        let from = Origin { address: "test".to_owned(), ip: None };
        let stream = Resets { reader, writer: ResetWriter { written, has_written: false } };
        let serving =
            tokio::spawn(serve_peer(front.shared.clone(), stream, from, admitted, CancellationToken::new()));
        let pop = Call::from(Pop::new(queue, WorkerName::new("gone").unwrap()));
        let pop = Request::Batch(vec![pop]).encode();
        let head =
            format!("*5\r\n$5\r\nFCALL\r\n$11\r\ngeartrain_a\r\n$1\r\n1\r\n$0\r\n\r\n${}\r\n", pop.len());
        let pop = [head.as_bytes(), &pop, b"\r\n"].concat();
        client.write_all(&pop).await.unwrap();
        writes.recv().await.unwrap();
        client.write_all(&pop).await.unwrap();
        serving.await.unwrap();
        for jid in jids {
            match backend.execute(vec![Get { jid }.into()]).await.unwrap().remove(0).unwrap() {
                Reply::Get(Some(job)) => assert_eq!(job.state.name(), StateName::Waiting, "{:?}", job.jid),
                other => panic!("{other:?}"),
            }
        }
    }
}
