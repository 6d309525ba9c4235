//! The HTTP front-end: its listener and connections.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use geartrain_core::Backend;
use geartrain_front::{Admitted, FrontEnd, RepeatedWarning, Tls};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::handlers::{Options, Peer, Shared, router_of};
use crate::history::History;
use crate::idle_writes::IdleWrites;

/// With so many bytes of a head it must be complete. As many may have been read behind them.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// The pause after a connection could not be accepted.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

static NOT_ACCEPTED: RepeatedWarning = RepeatedWarning::new();
static REFUSED: RepeatedWarning = RepeatedWarning::new();
static EVICTED: RepeatedWarning = RepeatedWarning::new();

/// Serves the API on a listener.
#[derive(Clone)]
pub struct Front {
    shared: Arc<Shared>,
    router: axum::Router,
    stop: CancellationToken,
}

impl Front {
    /// A front-end of a backend. It ends its waits and streams when `stop` is cancelled.
    pub fn new(backend: Arc<dyn Backend>, options: Options, stop: CancellationToken) -> Front {
        let shared = Arc::new(Shared::new(backend, options, stop.clone()));
        Front { router: router_of(shared.clone()), shared, stop }
    }

    /// Serves connections until it is stopped: those that are open end with the request that they answer.
    pub async fn serve_tcp(&self, listener: TcpListener) {
        self.serve_listener(Listener::Tcp(listener), None).await;
    }

    /// The same with TLS, and nothing but TLS.
    pub async fn serve_tls(&self, listener: TcpListener, tls: Arc<Tls>) {
        self.serve_listener(Listener::Tcp(listener), Some(tls)).await;
    }

    /// The same on a Unix socket.
    pub async fn serve_unix(&self, listener: UnixListener) {
        self.serve_listener(Listener::Unix(listener), None).await;
    }

    async fn serve_listener(&self, listener: Listener, tls: Option<Arc<Tls>>) {
        let mut connections = JoinSet::new();
        History::ensure_sampled(&self.shared);
        loop {
            tokio::select! {
                () = self.stop.cancelled() => break,
                Some(_) = connections.join_next(), if !connections.is_empty() => {}
                accepted = listener.accept() => match accepted {
                    Ok(accepted) => {
                        let options = &self.shared.options;
                        // Until its handshake is over, a connection counts as unauthenticated.
                        match options.admission.admit(tls.is_some() || options.access.is_required()) {
                            Ok(admitted) => {
                                connections.spawn(self.clone().open(accepted, admitted, tls.clone()));
                            }
                            Err(full) => REFUSED.warn(format_args!("an HTTP connection is refused: {full}")),
                        }
                    }
                    Err(error) => {
                        NOT_ACCEPTED.warn(format_args!("a connection cannot be accepted: {error}"));
                        tokio::time::sleep(ACCEPT_AGAIN).await;
                    }
                },
            }
        }
        drop(listener);
        let ended = async { while connections.join_next().await.is_some() {} };
        // Those that do not end in time are closed with the set.
        let _ = tokio::time::timeout(self.shared.options.drain_timeout, ended).await;
        RepeatedWarning::flush_all();
    }

    async fn open(self, accepted: Accepted, mut admitted: Admitted, tls: Option<Arc<Tls>>) {
        admitted.count_as(FrontEnd::Http);
        let (stream, address) = match accepted {
            Accepted::Tcp(stream, address) => (stream, address),
            Accepted::Unix(stream) => return self.serve(stream, PeerAddress::Unix, admitted, false).await,
        };
        // No Nagle delay: responses are written when they are complete. Fails if the client has gone.
        let _ = stream.set_nodelay(true);
        let Some(tls) = tls else {
            return self.serve(stream, PeerAddress::Ip(address), admitted, false).await;
        };
        let Some(stream) = tls.accept(stream, ("HTTP", address), &admitted, &self.stop).await else { return };
        if !self.shared.options.access.is_required() {
            admitted.set_authenticated(true);
        }
        self.serve(stream, PeerAddress::Ip(address), admitted, true).await;
    }

    async fn serve<S>(self, stream: S, address: PeerAddress, mut admitted: Admitted, is_encrypted: bool)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let authenticated = Arc::new(Notify::new());
        let peer = Peer { address, authenticated: authenticated.clone(), is_encrypted };
        let stream = IdleWrites::new(stream, self.shared.options.write_timeout);
        let service = TowerToHyperService::new(self.router.layer(Extension(peer)));
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.shared.options.head_timeout)
            // A read may add as much again to a buffer that is almost full.
            .max_buf_size(HEAD_BYTES_MAX / 2)
            .serve_connection(TokioIo::new(stream), service);
        let mut connection = std::pin::pin!(connection);
        let mut is_stopping = false;
        loop {
            let evicted = tokio::select! {
                // An error is one of the client, which has gone or sent no HTTP.
                _ = connection.as_mut() => return,
                () = self.stop.cancelled(), if !is_stopping => {
                    is_stopping = true;
                    connection.as_mut().graceful_shutdown();
                    continue;
                }
                () = authenticated.notified() => None,
                why = admitted.evicted() => Some(why),
            };
            match evicted {
                None => admitted.set_authenticated(true),
                Some(why) => {
                    EVICTED.warn(format_args!("the HTTP connection from {address} is closed: {why}"));
                    return;
                }
            }
        }
    }
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// An accepted connection.
enum Accepted {
    Tcp(TcpStream, SocketAddr),
    Unix(UnixStream),
}

impl Listener {
    async fn accept(&self) -> io::Result<Accepted> {
        match self {
            Listener::Tcp(listener) => {
                listener.accept().await.map(|(stream, address)| Accepted::Tcp(stream, address))
            }
            Listener::Unix(listener) => listener.accept().await.map(|(stream, _)| Accepted::Unix(stream)),
        }
    }
}

/// Where a connection comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PeerAddress {
    Ip(SocketAddr),
    /// A program of this machine, through a socket file.
    Unix,
}

impl PeerAddress {
    pub(crate) fn ip(self) -> Option<IpAddr> {
        match self {
            PeerAddress::Ip(address) => Some(address.ip()),
            PeerAddress::Unix => None,
        }
    }
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PeerAddress::Ip(address) => address.fmt(f),
            PeerAddress::Unix => f.write_str("unix-socket"),
        }
    }
}

impl fmt::Debug for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Front").field("options", &self.shared.options).finish_non_exhaustive()
    }
}
