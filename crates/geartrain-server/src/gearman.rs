//! The Gearman front-end of a server: settings, TLS and start.

use std::net::SocketAddr;
use std::sync::Arc;

use geartrain_core::Backend;
use geartrain_core::SystemClock;
use geartrain_front::{Tls, TlsFiles};
use geartrain_gearman::front::{Front, Options};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{Settings, StartError};

/// The settings of the Gearman front-end.
#[derive(Debug, Clone)]
pub struct GearmanSettings {
    /// The address. Port 0 picks a free port.
    pub address: SocketAddr,
    /// The host name in job handles; this machine's name, if not given.
    pub host: Option<String>,
    /// How many attempts a job gets; no limit, if not given.
    pub attempts_max: Option<u32>,
    /// How many idle workers a new job wakes up at first; all of them, if 0.
    pub wake: usize,
    /// Whether all clients receive exceptions, not only those that ask for them.
    pub exceptions: bool,
    /// Whether administrators can stop the server with `shutdown`.
    pub shutdown: bool,
    /// TLS; required, if given.
    pub tls: Option<TlsFiles>,
}

impl GearmanSettings {
    /// The defaults.
    pub fn new(address: SocketAddr) -> GearmanSettings {
        GearmanSettings {
            address,
            host: None,
            attempts_max: None,
            wake: Options::default().worker_wakeup,
            exceptions: false,
            shutdown: false,
            tls: None,
        }
    }
}

/// A front-end that listens and does not serve yet.
pub(crate) struct Listening {
    listener: TcpListener,
    address: SocketAddr,
    options: Options,
}

impl Listening {
    /// Its TLS settings, if any.
    pub(crate) fn tls(&self) -> Option<Arc<Tls>> {
        self.options.tls.clone()
    }
}

/// Binds the address. Early connections wait in the backlog.
pub(crate) async fn bind(
    settings: &GearmanSettings,
    server: &Settings,
    quit: &CancellationToken,
) -> Result<Listening, StartError> {
    let address = settings.address;
    let authenticates = settings.tls.as_ref().is_some_and(|tls| tls.authorities.is_some());
    if !address.ip().is_loopback() && !authenticates && !server.insecure {
        let missing = "certificate: give --gearman-tls-cert, --gearman-tls-key and --gearman-tls-ca";
        return Err(StartError::Open { address, missing });
    }
    let tls = settings.tls.clone().map(Tls::load).transpose()?;
    let (listener, address) = crate::listen(address, "--gearman").await?;
    let host = settings.host.clone();
    let options = Options {
        host: host.unwrap_or_else(|| gethostname::gethostname().to_string_lossy().into_owned()),
        attempts_max: settings.attempts_max,
        worker_wakeup: settings.wake,
        exceptions: settings.exceptions,
        shutdown: settings.shutdown.then(|| quit.clone()),
        tls,
        slow_after: server.slow_after,
        ..Options::default()
    };
    Ok(Listening { listener, address, options })
}

/// Starts serving and returns the bound address.
pub(crate) fn serve(
    listening: Listening,
    alone: bool,
    backend: Arc<dyn Backend>,
    stop: &CancellationToken,
    tasks: &mut JoinSet<()>,
) -> SocketAddr {
    let Listening { listener, address, options } = listening;
    let front = Front::new(backend, Arc::new(SystemClock), Options { sole_server: alone, ..options });
    let stop = stop.clone();
    tasks.spawn(async move { front.serve(listener, stop).await });
    address
}
