//! Gearman front-end: the listener, the state that all connections share, and the shutdown.
//!
//! A function is a queue, and its jobs are ordinary jobs. The front-end decides nothing about them: every
//! packet received becomes a command to the backend, and every packet sent is a reply or an item of a result
//! stream.

mod admin;
mod calendar;
mod connection;
mod draft;
mod handles;
mod heartbeats;
mod held_jobs;
mod idle_workers;
mod mailbox;
mod quick_ack;
mod report_retry;
mod router;
mod session;
mod tasks;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use geartrain_core::{
    Announced, Backend, BackendError, Call, Clock, Jid, QueueName, Reply, Seconds, Timestamp, WorkerLost,
    WorkerName, Workers,
};
use geartrain_front::{Admission, Admitted, FrontEnd, RepeatedWarning, Tls};
use parking_lot::{Mutex, MutexGuard};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use connection::Connection;
use handles::Handles;
use idle_workers::IdleWorkers;
use mailbox::Mailbox;
use router::Router;
use tasks::Tasks;

/// TCP keepalive: how long a peer may be silent before it is probed.
const KEEPALIVE: Duration = Duration::from_secs(60);
/// Pause after `accept` failed, for example because the process is out of file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
/// How often a graceful shutdown checks whether all jobs have ended.
const IDLE_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Prefix of the worker names of all Gearman connections.
const WORKER_NAME_PREFIX: &str = "gearman-";

static NOT_ACCEPTED: RepeatedWarning = RepeatedWarning::new();
static REFUSED: RepeatedWarning = RepeatedWarning::new();

/// Settings of a front-end.
#[derive(Clone)]
pub struct Options {
    /// The host part of job handles.
    pub host: String,
    /// How many idle workers a job wakes at first; 0 wakes all.
    pub worker_wakeup: usize,
    /// Attempts per job; unlimited if `None`.
    pub attempts_max: Option<u32>,
    /// Whether clients receive WORK_EXCEPTION without having set the option `exceptions`.
    pub exceptions: bool,
    /// The largest packet that is accepted.
    pub packet_bytes_max: u32,
    /// The magic of the draft's packets.
    pub draft_magic: crate::draft::Magic,
    /// How long results are stored for clients of the draft that ask for them by handle.
    pub result_ttl: Seconds,
    /// Cancelled by the admin command `shutdown`. Without a token the command is unknown.
    pub shutdown: Option<CancellationToken>,
    /// Whether this is the only server of the backend: then workers left over from an earlier server are
    /// lost.
    pub sole_server: bool,
    /// TLS configuration. If set, the port accepts TLS only.
    pub tls: Option<Arc<Tls>>,
    /// Limit on open connections, shared with the other front-ends. By default as many as the process has
    /// file descriptors for.
    pub admission: Arc<Admission>,
    /// Commands that take at least this long are logged.
    pub slow_after: Option<Duration>,
    /// How long a connection may take to read its last replies when the front-end stops.
    pub drain_timeout: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            host: "localhost".to_owned(),
            worker_wakeup: 1,
            attempts_max: None,
            exceptions: false,
            packet_bytes_max: 64 << 20,
            draft_magic: crate::draft::Magic::default(),
            result_ttl: Seconds::from(3_600),
            shutdown: None,
            sole_server: false,
            tls: None,
            admission: Admission::of_process(),
            slow_after: None,
            drain_timeout: Duration::from_secs(5),
        }
    }
}

/// The Gearman front-end of one backend.
#[derive(Clone)]
pub struct Front {
    shared: Arc<Shared>,
}

/// State shared by all connections.
pub(crate) struct Shared {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) options: Options,
    pub(crate) handles: Handles,
    pub(crate) idle_workers: Arc<IdleWorkers>,
    pub(crate) router: Router,
    /// Cancelled by a graceful shutdown: the listener closes, open connections stay.
    listener_closed: CancellationToken,
    /// Set by a graceful shutdown: the draft has an error code for refusing new jobs.
    pub(crate) draining: AtomicBool,
    peers: Mutex<BTreeMap<u64, Arc<Peer>>>,
    connections_accepted: AtomicU64,
    instance_id: u64,
    tasks: Arc<Tasks>,
}

/// A connected peer, as the admin commands show it.
pub(crate) struct Peer {
    pub(crate) number: u64,
    pub(crate) address: SocketAddr,
    info: Mutex<PeerInfo>,
}

/// What a peer has announced about itself.
#[derive(Default)]
pub(crate) struct PeerInfo {
    /// Set by SET_CLIENT_ID.
    pub(crate) id: Bytes,
    /// In the order in which they were announced.
    pub(crate) functions: Vec<QueueName>,
    /// The jobs that it waits for, by submission number.
    pub(crate) awaited: BTreeMap<u64, AwaitedJob>,
}

/// A job that a client waits for.
pub(crate) struct AwaitedJob {
    /// The result stream that carries its items.
    pub(crate) stream_id: u64,
    pub(crate) jid: Jid,
    pub(crate) handle: Bytes,
    /// Keeps the handle valid if it is not the jid.
    #[allow(dead_code, reason = "a reference that is counted")]
    pub(crate) alias: Option<Arc<handles::Alias>>,
}

impl Peer {
    pub(crate) fn info(&self) -> MutexGuard<'_, PeerInfo> {
        self.info.lock()
    }
}

impl Shared {
    pub(crate) fn peers(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Peer>>> {
        self.peers.lock()
    }

    /// The worker name of a connection.
    pub(crate) fn worker_name(&self, peer: &Peer) -> Result<WorkerName, BackendError> {
        let name = format!("{WORKER_NAME_PREFIX}{:x}-{}@{}", self.instance_id, peer.number, peer.address);
        WorkerName::new(name).map_err(|bad| BackendError::Broken { backend: "chosen", source: Box::new(bad) })
    }

    /// The peer address in a worker's name, if it is a Gearman worker.
    pub(crate) fn address_of(worker: &WorkerName) -> Option<&str> {
        worker.as_str().strip_prefix(WORKER_NAME_PREFIX)?.split_once('@').map(|(_, address)| address)
    }

    /// How long a lock still lasts.
    pub(crate) fn lock_remaining(&self, expires: Timestamp) -> Seconds {
        expires - self.now()
    }

    /// The backend's time.
    pub(crate) fn now(&self) -> Timestamp {
        self.backend.now().unwrap_or_else(|| self.clock.now())
    }

    /// Executes one operation.
    pub(crate) async fn run<O: geartrain_core::Operation>(
        &self,
        operation: O,
    ) -> Result<O::Reply, BackendError> {
        self.call::<O>(Call::from(operation)).await
    }

    /// The same for a call.
    pub(crate) async fn call<O: geartrain_core::Operation>(
        &self,
        call: Call,
    ) -> Result<O::Reply, BackendError> {
        let mut answers = self.backend.execute(vec![call]).await?;
        match answers.pop() {
            Some(Ok(reply)) => O::answer(reply).ok_or_else(unexpected_reply),
            Some(Err(refusal)) => Err(refusal.into()),
            None => Err(unexpected_reply()),
        }
    }

    /// Stops the server: at once, or gracefully when no jobs are left. A graceful shutdown accepts no new
    /// connections.
    pub(crate) fn shut_down(self: &Arc<Shared>, gracefully: bool) {
        let Some(stop) = self.options.shutdown.clone() else { return };
        if !gracefully {
            return stop.cancel();
        }
        self.listener_closed.cancel();
        self.draining.store(true, Ordering::Release);
        let shared = self.clone();
        self.tasks.spawn(async move {
            loop {
                let queues = shared.run(geartrain_core::Queues { queue: None }).await;
                let is_idle = |queues: &Vec<geartrain_core::QueueCounts>| {
                    queues.iter().all(|queue| admin::unfinished(queue) == 0)
                };
                if queues.as_ref().is_ok_and(is_idle) {
                    return stop.cancel();
                }
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(IDLE_POLL_INTERVAL) => {}
                }
            }
        });
    }
}

fn unexpected_reply() -> BackendError {
    BackendError::Broken { backend: "chosen", source: "it sent an unexpected reply".into() }
}

impl Front {
    /// Creates a front-end. It does nothing until [`Front::serve`] runs.
    pub fn new(backend: Arc<dyn Backend>, clock: Arc<dyn Clock>, options: Options) -> Front {
        let tasks = Arc::new(Tasks::default());
        let shared = Shared {
            handles: Handles::new(&options.host),
            idle_workers: IdleWorkers::new(backend.clone(), options.worker_wakeup, tasks.clone()),
            router: Router::new(),
            listener_closed: CancellationToken::new(),
            draining: AtomicBool::new(false),
            peers: Mutex::default(),
            connections_accepted: AtomicU64::new(0),
            instance_id: uuid::Uuid::now_v7().as_u64_pair().1,
            backend,
            clock,
            options,
            tasks,
        };
        Front { shared: Arc::new(shared) }
    }

    /// Serves connections until `stop` is cancelled. Then it closes the listener, answers the requests
    /// already read, and returns when every connection and every background task has ended.
    pub async fn serve(&self, listener: TcpListener, stop: CancellationToken) {
        self.serve_listener(Listener::Tcp(listener), stop).await;
    }

    /// The same on a Unix socket, without TLS.
    pub async fn serve_unix(&self, listener: UnixListener, stop: CancellationToken) {
        self.serve_listener(Listener::Unix(listener), stop).await;
    }

    async fn serve_listener(&self, listener: Listener, stop: CancellationToken) {
        // If this future is dropped half-way, the tasks end as well.
        let _stop_tasks = self.shared.tasks.stop_on_drop();
        let (ready, is_ready) = tokio::sync::oneshot::channel();
        let shared = self.shared.clone();
        self.shared.tasks.spawn(async move { shared.router.run(&*shared.backend, ready).await });
        tokio::select! {
            // Its sender is only dropped when the task is stopped.
            _ = is_ready => {}
            () = stop.cancelled() => {}
        }
        if self.shared.options.sole_server
            && let Err(error) = self.report_earlier_workers_lost().await
        {
            tracing::warn!(%error, "jobs of an earlier server stay locked until their locks expire");
        }
        self.accept(listener, &stop).await;
        self.shared.tasks.shut_down().await;
    }

    async fn accept(&self, listener: Listener, stop: &CancellationToken) {
        let mut connections = JoinSet::new();
        let mut listener = Some(listener);
        loop {
            let accepted = async {
                match &listener {
                    Some(listener) => listener.accept().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = stop.cancelled() => break,
                () = self.shared.listener_closed.cancelled(), if listener.is_some() => listener = None,
                Some(_) = connections.join_next(), if !connections.is_empty() => {}
                accepted = accepted => match accepted {
                    Ok((stream, address)) => {
                        // Until the TLS handshake is over, the client counts as unauthenticated.
                        match self.shared.options.admission.admit(self.shared.options.tls.is_some()) {
                            Ok(mut admitted) => {
                                admitted.count_as(FrontEnd::Gearman);
                                let shared = self.shared.clone();
                                let stop = stop.clone();
                                connections.spawn(serve_connection(shared, stream, address, admitted, stop));
                            }
                            // Closed without a reply: in this protocol the client sends first.
                            Err(full) => {
                                REFUSED.warn(format_args!("a Gearman connection is refused: {full}"));
                            }
                        }
                    }
                    Err(error) => {
                        NOT_ACCEPTED.warn(format_args!("cannot accept a Gearman connection: {error}"));
                        tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                    }
                },
            }
        }
        drop(listener);
        while connections.join_next().await.is_some() {}
        RepeatedWarning::flush_all();
    }

    /// Reports the workers of earlier servers as lost, so that their jobs return to the queue at once.
    async fn report_earlier_workers_lost(&self) -> Result<(), BackendError> {
        let queries = vec![Call::from(Workers), Call::from(Announced { worker: None })];
        let mut names = Vec::new();
        for answer in self.shared.backend.execute(queries).await? {
            match answer? {
                Reply::Workers(workers) => names.extend(workers.into_iter().map(|worker| worker.name)),
                Reply::Announced(announced) => {
                    names.extend(announced.into_iter().map(|announcement| announcement.worker))
                }
                _ => {}
            }
        }
        names.retain(|name| Shared::address_of(name).is_some());
        names.sort();
        names.dedup();
        let evidence = Some("its server ended".to_owned());
        let lost = |worker| Call::from(WorkerLost { worker, evidence: evidence.clone() });
        let calls: Vec<Call> = names.into_iter().map(lost).collect();
        if !calls.is_empty() {
            self.shared.backend.execute(calls).await?;
        }
        Ok(())
    }
}

/// Serves one connection.
async fn serve_connection(
    shared: Arc<Shared>,
    stream: Stream,
    address: SocketAddr,
    mut admitted: Admitted,
    stop: CancellationToken,
) {
    if let Stream::Tcp(stream) = &stream
        && let Err(error) = configure_socket(stream)
    {
        tracing::debug!(%error, "a connection ended before it was set up");
        return;
    }
    let number = shared.connections_accepted.fetch_add(1, Ordering::Relaxed) + 1;
    // An IPv4 address mapped into IPv6 is shown as IPv4.
    let address = SocketAddr::new(address.ip().to_canonical(), address.port());
    let peer = Arc::new(Peer { number, address, info: Mutex::default() });
    let _peer_guard = PeerGuard::new(&shared, &peer);
    let Ok(worker) = shared.worker_name(&peer) else { return };
    let mailbox = Arc::new(Mailbox::default());
    shared.router.add(number, mailbox.clone());
    let opened = Instant::now();
    tracing::debug!("Gearman connection {number} from {address} is open");
    match (stream, shared.options.tls.clone()) {
        (Stream::Unix(stream), _) => {
            let (reader, writer) = stream.into_split();
            Connection::new(reader, writer, shared.clone(), peer, worker, mailbox, stop).serve().await;
        }
        (Stream::Tcp(stream), None) => {
            let (reader, writer) = stream.into_split();
            Connection::new(reader, writer, shared.clone(), peer, worker, mailbox, stop).serve().await;
        }
        (Stream::Tcp(stream), Some(tls)) => {
            let Some(stream) = tls.accept(stream, ("Gearman", address), &admitted, &stop).await else {
                return;
            };
            admitted.set_authenticated(true);
            let (reader, writer) = tokio::io::split(stream);
            Connection::new(reader, writer, shared.clone(), peer, worker, mailbox, stop).serve().await;
        }
    }
    let seconds = opened.elapsed().as_secs_f64();
    tracing::debug!("Gearman connection {number} from {address} is closed after {seconds:.1} s");
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// The address of a client behind a Unix socket: the texts of the protocol have room for an IP address only.
const UNIX_CLIENT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

impl Listener {
    async fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        match self {
            Listener::Tcp(listener) => {
                listener.accept().await.map(|(stream, address)| (Stream::Tcp(stream), address))
            }
            Listener::Unix(listener) => {
                listener.accept().await.map(|(stream, _)| (Stream::Unix(stream), UNIX_CLIENT))
            }
        }
    }
}

fn configure_socket(stream: &TcpStream) -> io::Result<()> {
    // Replies are written whole; Nagle's algorithm would only delay them.
    stream.set_nodelay(true)?;
    // A crashed machine sends nothing, and without keepalive its jobs would stay locked.
    let alive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 6).with_retries(3);
    SockRef::from(stream).set_tcp_keepalive(&alive)
}

/// Removes the peer from the shared tables when its connection ends, even by a panic.
struct PeerGuard {
    shared: Arc<Shared>,
    number: u64,
}

impl PeerGuard {
    fn new(shared: &Arc<Shared>, peer: &Arc<Peer>) -> PeerGuard {
        shared.peers().insert(peer.number, peer.clone());
        PeerGuard { shared: shared.clone(), number: peer.number }
    }
}

impl Drop for PeerGuard {
    fn drop(&mut self) {
        self.shared.peers().remove(&self.number);
        self.shared.router.remove(self.number);
    }
}
