//! The Gearman front-end of a server: settings, TLS and start.

use std::net::SocketAddr;
use std::sync::Arc;

use geartrain_core::Backend;
use geartrain_core::SystemClock;
use geartrain_front::{AccessControl, Caller, GuardedBackend, Identity, Tls, TlsFiles};
use geartrain_gearman::front::{Front, Options};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::address::Listener;
use crate::{Address, Settings, StartError, exposure};

/// The settings of the Gearman front-end.
#[derive(Debug, Clone)]
pub struct GearmanSettings {
    /// The address. Port 0 picks a free port.
    pub address: Address,
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
            address: address.into(),
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
    listener: Listener,
    address: Address,
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
    let tls = settings.tls.as_ref();
    let (listener, address) =
        crate::listen(&settings.address, &exposure::GEARMAN, tls, false, server).await?;
    let tls = settings.tls.clone().map(Tls::load).transpose()?;
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

/// The backend for Gearman's clients, who cannot log in: the address or their certificates let them in.
pub(crate) fn guarded(backend: &Arc<dyn Backend>, access: &Arc<AccessControl>) -> Arc<dyn Backend> {
    let caller = Caller { identity: Identity::unnamed(), from: "gearman".into(), client: None };
    GuardedBackend::of(backend, access, caller)
}

/// Starts serving and returns the bound address.
pub(crate) fn serve(
    listening: Listening,
    alone: bool,
    backend: Arc<dyn Backend>,
    stop: &CancellationToken,
    tasks: &mut JoinSet<()>,
) -> Address {
    let Listening { listener, address, options } = listening;
    let front = Front::new(backend, Arc::new(SystemClock), Options { sole_server: alone, ..options });
    let stop = stop.clone();
    tasks.spawn(async move {
        match listener {
            Listener::Tcp(listener) => front.serve(listener, stop).await,
            Listener::Unix(listener, _file) => front.serve_unix(listener, stop).await,
        }
    });
    address
}
