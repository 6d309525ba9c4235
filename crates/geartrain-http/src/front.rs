//! The HTTP front-end: its listener and connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use geartrain_core::Backend;
use geartrain_front::{Admitted, Evicted, RepeatedWarning};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::handlers::{Options, Peer, Shared, router_of};

/// How long the head of a request may take to arrive, and how long a connection may be idle.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// The longest head of a request, in bytes.
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
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                () = self.stop.cancelled() => break,
                Some(_) = connections.join_next(), if !connections.is_empty() => {}
                accepted = listener.accept() => match accepted {
                    Ok((stream, address)) => {
                        let options = &self.shared.options;
                        match options.admission.admit(options.password.is_some()) {
                            Ok(admitted) => {
                                connections.spawn(self.clone().serve(stream, address, admitted));
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

    async fn serve(self, stream: TcpStream, address: SocketAddr, mut admitted: Admitted) {
        // No Nagle delay: responses are written when they are complete. Fails if the client has gone.
        let _ = stream.set_nodelay(true);
        let authenticated = Arc::new(Notify::new());
        let peer = Peer { address, authenticated: authenticated.clone() };
        let service = TowerToHyperService::new(self.router.layer(Extension(peer)));
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_buf_size(HEAD_BYTES_MAX)
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
                Some(why @ (Evicted::Late | Evicted::Crowded)) => {
                    EVICTED.warn(format_args!("the HTTP connection from {address} is closed: {why}"));
                    return;
                }
            }
        }
    }
}

impl std::fmt::Debug for Front {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Front").field("options", &self.shared.options).finish_non_exhaustive()
    }
}
