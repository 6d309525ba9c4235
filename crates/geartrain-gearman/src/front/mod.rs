//! The front-end: what all connections share, and the listener that they come in by.
//!
//! A function is a queue, and its jobs are jobs like any others. Nothing here decides what becomes of a job: every packet is a command to the backend, and every
//! packet sent is an answer or something that the backend told.

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

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use geartrain_core::{
    Announced, Backend, BackendError, Call, Clock, Jid, QueueName, Reply, Seconds, Timestamp, WorkerLost,
    WorkerName, Workers,
};
use geartrain_front::{Admission, Admitted, RepeatedWarning};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use connection::Connection;
use handles::Handles;
use idle_workers::IdleWorkers;
use mailbox::Mailbox;
use router::Router;

/// How long a peer may be silent before it is asked whether it is still there, and how long between one such question and the next.
const KEEPALIVE: Duration = Duration::from_secs(60);
/// How long to wait when no more connections can be accepted for a while, for want of file descriptors say.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
/// What the names of all workers here begin with.
const WORKER_NAME_PREFIX: &str = "gearman-";

static NOT_ACCEPTED: RepeatedWarning = RepeatedWarning::new();
static REFUSED: RepeatedWarning = RepeatedWarning::new();
static EVICTED: RepeatedWarning = RepeatedWarning::new();

/// How a front behaves.
#[derive(Clone)]
pub struct Options {
    /// The host that handles name.
    pub host: String,
    /// How many sleeping workers a job wakes at first; all of them, if 0.
    pub worker_wakeup: usize,
    /// How many attempts a job has; without end, if not given.
    pub attempts_max: Option<u32>,
    /// Whether clients that did not ask for exceptions get them.
    pub exceptions: bool,
    /// The largest packet.
    pub packet_bytes_max: u32,
    /// What packets of the draft begin with.
    pub draft_magic: crate::draft::Magic,
    /// How long the draft's clients can ask for a result.
    pub result_ttl: Seconds,
    /// Cancelled when an administrator says `shutdown`; if there is none, the word is not known.
    pub shutdown: Option<CancellationToken>,
    /// Whether nobody else serves the backend: then the workers of an earlier server are gone.
    pub sole_server: bool,
    /// How to speak TLS, if that is all that is spoken.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// How many connections there may be at once. By default as many as the process has descriptors for,
    /// with those of all other front-ends.
    pub admission: Arc<Admission>,
    /// How long a connection may take to hear its last replies when the front stops.
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
            drain_timeout: Duration::from_secs(5),
        }
    }
}

/// Speaks Gearman for one backend.
#[derive(Clone)]
pub struct Front {
    shared: Arc<Shared>,
}

/// What all connections share.
pub(crate) struct Shared {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) options: Options,
    pub(crate) handles: Handles,
    pub(crate) idle_workers: Arc<IdleWorkers>,
    pub(crate) router: Router,
    /// Cancelled when nobody more is let in, though those who are in may stay.
    listener_closed: CancellationToken,
    /// No more jobs are taken from the draft's clients, who can be told so.
    pub(crate) draining: AtomicBool,
    peers: Mutex<BTreeMap<u64, Arc<Peer>>>,
    connections_accepted: AtomicU64,
    instance_id: u64,
    tasks_stop: CancellationToken,
}

/// Somebody who is connected, as administrators see them.
pub(crate) struct Peer {
    pub(crate) number: u64,
    pub(crate) address: SocketAddr,
    info: Mutex<PeerInfo>,
}

/// What is known of a peer.
#[derive(Default)]
pub(crate) struct PeerInfo {
    /// What it calls itself.
    pub(crate) id: Bytes,
    /// What it can do, in the order in which it said so.
    pub(crate) functions: Vec<QueueName>,
    /// The jobs that it waits for, by the number of the submission.
    pub(crate) awaited: BTreeMap<u64, AwaitedJob>,
}

/// A job that a peer waits for.
pub(crate) struct AwaitedJob {
    /// The stream through which it is told.
    pub(crate) stream_id: u64,
    pub(crate) jid: Jid,
    pub(crate) handle: Bytes,
    /// Held so that the handle stays valid, if it is not the jid.
    #[allow(dead_code, reason = "a reference that is counted")]
    pub(crate) alias: Option<Arc<handles::Alias>>,
}

impl Peer {
    pub(crate) fn info(&self) -> MutexGuard<'_, PeerInfo> {
        self.info.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    pub(crate) fn peers(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Peer>>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a connection is called as a worker.
    pub(crate) fn worker_name(&self, peer: &Peer) -> Result<WorkerName, BackendError> {
        let name = format!("{WORKER_NAME_PREFIX}{:x}-{}@{}", self.instance_id, peer.number, peer.address);
        WorkerName::new(name).map_err(|bad| BackendError::Broken { backend: "chosen", source: Box::new(bad) })
    }

    /// The address of the worker of this name, if it came in by Gearman.
    pub(crate) fn address_of(worker: &WorkerName) -> Option<&str> {
        worker.as_str().strip_prefix(WORKER_NAME_PREFIX)?.split_once('@').map(|(_, address)| address)
    }

    /// How much longer a lock lasts.
    pub(crate) fn lock_remaining(&self, expires: Timestamp) -> Seconds {
        expires - self.backend.now().unwrap_or_else(|| self.clock.now())
    }

    /// Has one thing done.
    pub(crate) async fn run<O: geartrain_core::Operation>(
        &self,
        operation: O,
    ) -> Result<O::Reply, BackendError> {
        let mut answers = self.backend.execute(vec![Call::from(operation)]).await?;
        match answers.pop() {
            Some(Ok(reply)) => O::answer(reply).ok_or_else(unexpected_reply),
            Some(Err(refusal)) => Err(refusal.into()),
            None => Err(unexpected_reply()),
        }
    }

    /// Lets nobody more in, and stops the server: at once, or when there are no more jobs.
    pub(crate) fn shut_down(self: &Arc<Shared>, gracefully: bool) {
        let Some(stop) = self.options.shutdown.clone() else { return };
        if !gracefully {
            return stop.cancel();
        }
        self.listener_closed.cancel();
        self.draining.store(true, Ordering::Release);
        let shared = self.clone();
        tokio::spawn(async move {
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
                    () = tokio::time::sleep(Duration::from_secs(1)) => {}
                }
            }
        });
    }
}

fn unexpected_reply() -> BackendError {
    BackendError::Broken { backend: "chosen", source: "it answered something else".into() }
}

impl Front {
    /// A front for a backend; it does nothing until it serves.
    pub fn new(backend: Arc<dyn Backend>, clock: Arc<dyn Clock>, options: Options) -> Front {
        let done = CancellationToken::new();
        let shared = Shared {
            handles: Handles::new(&options.host),
            idle_workers: IdleWorkers::new(backend.clone(), options.worker_wakeup, done.clone()),
            router: Router::new(),
            listener_closed: CancellationToken::new(),
            draining: AtomicBool::new(false),
            peers: Mutex::default(),
            connections_accepted: AtomicU64::new(0),
            instance_id: uuid::Uuid::now_v7().as_u64_pair().1,
            backend,
            clock,
            options,
            tasks_stop: done,
        };
        Front { shared: Arc::new(shared) }
    }

    /// Serves whoever connects, until it is told to stop. Then it accepts nobody more, answers what it has read, and returns when every connection has
    /// ended.
    pub async fn serve(&self, listener: TcpListener, stop: CancellationToken) {
        let (ready, is_ready) = tokio::sync::oneshot::channel();
        let shared = self.shared.clone();
        let mail =
            tokio::spawn(async move { shared.router.run(&*shared.backend, ready, &shared.tasks_stop).await });
        tokio::select! {
            // It ends without a word only when it is stopped.
            _ = is_ready => {}
            () = stop.cancelled() => {}
        }
        if self.shared.options.sole_server
            && let Err(error) = self.report_earlier_workers_lost().await
        {
            tracing::warn!(%error, "jobs of workers that are gone come back when their locks expire");
        }
        self.accept(listener, &stop).await;
        self.shared.tasks_stop.cancel();
        let _ = mail.await;
    }

    async fn accept(&self, listener: TcpListener, stop: &CancellationToken) {
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
                            Ok(admitted) => {
                                let shared = self.shared.clone();
                                connections.spawn(serve_connection(shared, stream, address, admitted, stop.clone()));
                            }
                            // Closed without a word: in this protocol the peer speaks first.
                            Err(full) => {
                                REFUSED.warn(format_args!("a Gearman connection is refused: {full}"));
                            }
                        }
                    }
                    Err(error) => {
                        NOT_ACCEPTED.warn(format_args!("a connection cannot be accepted: {error}"));
                        tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                    }
                },
            }
        }
        drop(listener);
        while connections.join_next().await.is_some() {}
    }

    /// Says of the workers of earlier servers that they are gone, so that their jobs come back at once.
    async fn report_earlier_workers_lost(&self) -> Result<(), BackendError> {
        let asked = vec![Call::from(Workers), Call::from(Announced { worker: None })];
        let mut names = Vec::new();
        for answer in self.shared.backend.execute(asked).await? {
            match answer? {
                Reply::Workers(workers) => names.extend(workers.into_iter().map(|worker| worker.name)),
                Reply::Announced(announced) => names.extend(announced.into_iter().map(|said| said.worker)),
                _ => {}
            }
        }
        names.retain(|name| Shared::address_of(name).is_some());
        names.sort();
        names.dedup();
        let evidence = Some("its server ended".to_owned());
        let gone = |worker| Call::from(WorkerLost { worker, evidence: evidence.clone() });
        let gone: Vec<Call> = names.into_iter().map(gone).collect();
        if !gone.is_empty() {
            self.shared.backend.execute(gone).await?;
        }
        Ok(())
    }
}

/// Serves one peer.
async fn serve_connection(
    shared: Arc<Shared>,
    stream: TcpStream,
    address: SocketAddr,
    mut admitted: Admitted,
    stop: CancellationToken,
) {
    if let Err(error) = configure_socket(&stream) {
        tracing::debug!(%error, "a connection ended before it began");
        return;
    }
    let number = shared.connections_accepted.fetch_add(1, Ordering::Relaxed) + 1;
    // As people write it, whichever way it came.
    let address = SocketAddr::new(address.ip().to_canonical(), address.port());
    let peer = Arc::new(Peer { number, address, info: Mutex::default() });
    let _present = PeerGuard::new(&shared, &peer);
    let Ok(worker) = shared.worker_name(&peer) else { return };
    let inbox = Arc::new(Mailbox::default());
    shared.router.add(number, inbox.clone());
    let Some(tls) = shared.options.tls.clone() else {
        let (reader, writer) = stream.into_split();
        return Connection::new(reader, writer, shared.clone(), peer, worker, inbox, stop).serve().await;
    };
    let handshake = async {
        if !starts_tls(&stream).await {
            return Err(io::Error::other("it speaks no TLS"));
        }
        TlsAcceptor::from(tls).accept(stream).await
    };
    let shaken = tokio::select! {
        shaken = handshake => shaken,
        why = admitted.evicted() => {
            return EVICTED.warn(format_args!("the Gearman connection from {address} is closed: {why}"));
        }
        () = stop.cancelled() => return,
    };
    match shaken {
        Ok(stream) => {
            admitted.set_authenticated(true);
            let (reader, writer) = tokio::io::split(stream);
            Connection::new(reader, writer, shared.clone(), peer, worker, inbox, stop).serve().await;
        }
        Err(error) => tracing::debug!(%error, %address, "no TLS with a peer"),
    }
}

/// What TLS begins with, and no line and no packet does.
const TLS_HELLO: u8 = 0x16;

/// Looks at what a peer says first. With TLS the peer speaks first, also a worker that will be silent for
/// days.
async fn starts_tls(stream: &TcpStream) -> bool {
    let mut first = [0];
    matches!(stream.peek(&mut first).await, Ok(1)) && first == [TLS_HELLO]
}

fn configure_socket(stream: &TcpStream) -> io::Result<()> {
    // Replies are written when they are whole; waiting for more to send would only make them late.
    stream.set_nodelay(true)?;
    // A machine that is gone says nothing, and its jobs would never come back.
    let alive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 6).with_retries(3);
    SockRef::from(stream).set_tcp_keepalive(&alive)
}

/// Counts a connection as long as it is there, even if serving it panics.
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
