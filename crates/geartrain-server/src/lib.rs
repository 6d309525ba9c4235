//! The server: joins one backend to the RESP and Gearman front-ends.

mod demo;
mod gearman;
mod result_recorder;
mod sweep;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use geartrain::{Client, Target};
use geartrain_core::SystemClock;
use geartrain_front::{Admission, RepeatedWarning};
use geartrain_resp::{Front, Options};
use geartrain_results::{LogError, LogTarget};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::result_recorder::ResultRecorder;

/// How long shutdown waits for connections: longer than each of them may take.
const STOP_MAX: Duration = Duration::from_secs(15);

/// The settings of a server.
#[derive(Clone)]
pub struct Settings {
    /// The URL of the queue to serve.
    pub store: String,
    /// The address for RESP. Port 0 picks a free port.
    pub resp: SocketAddr,
    /// The Gearman front-end, if any.
    pub gearman: Option<GearmanSettings>,
    /// The password that clients must send.
    pub password: Option<String>,
    /// Allows an address that other machines can reach without a password.
    pub insecure: bool,
    /// Allows clients to delete everything.
    pub allow_flush: bool,
    /// Submits sample jobs and works on them.
    pub demo: bool,
    /// The result log to write, if any.
    pub result_log: Option<LogTarget>,
    /// How long the result log keeps an attempt after it ended; for ever, if not given.
    pub result_log_keep: Option<Duration>,
}

pub use gearman::{GearmanSettings, TlsFiles};
// A limit of the process, so the program raises it, and not the server.
pub use geartrain_front::raise_descriptor_limit;

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The queue cannot be opened.
    #[error(transparent)]
    Store(#[from] geartrain::Error),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: is another server running? Choose another address with {flag}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The command line flag of the address.
        flag: &'static str,
        /// What failed.
        #[source]
        source: std::io::Error,
    },
    /// Another process owns the directory.
    #[error("another process uses {directory}: stop it, or choose another directory with --data")]
    InUse {
        /// The data directory.
        directory: String,
    },
    /// The result log cannot be opened.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The thread of the result log cannot be started.
    #[error("cannot start the thread that writes the result log")]
    LogThread(#[source] std::io::Error),
    /// Other machines could connect without authentication.
    #[error("{address} can be reached from other machines, and clients need no {missing}, or --insecure")]
    Open {
        /// The address.
        address: SocketAddr,
        /// What is missing, and the flags that add it.
        missing: &'static str,
    },
    /// A TLS file cannot be used.
    #[error("cannot use {what} {file}: {why}")]
    Tls {
        /// What the file is for.
        what: &'static str,
        /// The path.
        file: String,
        /// What is wrong with it.
        why: String,
    },
}

/// A running server.
pub struct Server {
    client: Client,
    target: Target,
    resp: SocketAddr,
    gearman: Option<SocketAddr>,
    stop: CancellationToken,
    /// Cancelled when an administrator sends `shutdown`.
    quit: CancellationToken,
    /// The front-ends, the sweep and the demonstration.
    tasks: JoinSet<()>,
    /// Stopped after everything that may cause events.
    recorder: JoinSet<()>,
    stop_recorder: CancellationToken,
}

impl Server {
    /// Opens the queue and listens. When this returns, the server is ready.
    pub async fn start(settings: &Settings) -> Result<Server, StartError> {
        let address = settings.resp;
        if !address.ip().is_loopback() && settings.password.is_none() && !settings.insecure {
            let missing = "password: give --password";
            return Err(StartError::Open { address, missing });
        }
        let (listener, resp) = listen(address, "--resp").await?;
        let quit = CancellationToken::new();
        let gearman = match &settings.gearman {
            Some(gearman) => Some(gearman::bind(gearman, settings.insecure, &quit).await?),
            None => None,
        };
        let target = Target::of(&settings.store)?;
        if let Target::Gearman(url) = &target {
            let why = "a server stores its jobs itself or in a Redis; connect to Gearman servers directly";
            return Err(geartrain::Error::Url { url: url.to_string(), why }.into());
        }
        let client = match settings.result_log {
            Some(_) => geartrain::connect_as_consumer(&settings.store).await?,
            None => geartrain::connect(&settings.store).await?,
        };
        // It could be used through the socket of its owner, but a server in front of another server is of no
        // use.
        if matches!(target, Target::Directory { .. }) && !client.is_own_directory() {
            return Err(StartError::InUse { directory: target.to_string() });
        }
        // Before clients can connect, so that no event is missed.
        let (stop_recorder, mut recorder) = (CancellationToken::new(), JoinSet::new());
        if let Some(log) = &settings.result_log {
            recorder.spawn(
                ResultRecorder::attach(client.clone(), log, settings.result_log_keep)
                    .await?
                    .run(stop_recorder.clone()),
            );
        }
        let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
        // The embedded engine processes due jobs by itself.
        if let Target::Redis(_) = target {
            tasks.spawn(sweep::sweep(client.clone(), stop.clone()));
        }
        if settings.demo {
            demo::start(&client, &stop, &mut tasks);
        }
        let options = Options {
            allow_flush: settings.allow_flush,
            password: settings.password.clone(),
            ..Options::default()
        };
        let front = Front::new(client.backend().clone(), Arc::new(SystemClock), options);
        let stopped = stop.clone();
        tasks.spawn(async move { front.serve_tcp(listener, stopped).await });
        let gearman = gearman.map(|listening| {
            let alone = !matches!(target, Target::Redis(_));
            gearman::serve(listening, alone, client.backend().clone(), &stop, &mut tasks)
        });
        let connections_max = Admission::of_process().connections_max();
        match gearman {
            Some(gearman) => tracing::info!(store = %target, %resp, %gearman, connections_max, "ready"),
            None => tracing::info!(store = %target, %resp, connections_max, "ready"),
        }
        Ok(Server { client, target, resp, gearman, stop, quit, tasks, recorder, stop_recorder })
    }

    /// The address for RESP.
    pub fn resp(&self) -> SocketAddr {
        self.resp
    }

    /// The address for Gearman.
    pub fn gearman(&self) -> Option<SocketAddr> {
        self.gearman
    }

    /// Returns when an administrator has sent `shutdown`.
    pub async fn shutdown_requested(&self) {
        self.quit.cancelled().await;
    }

    /// The queue that is served.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Graceful shutdown: accepts no more connections, answers the requests that were read, and closes the
    /// queue.
    pub async fn stop(mut self) {
        tracing::info!("stopping");
        self.stop.cancel();
        let ended = async { while self.tasks.join_next().await.is_some() {} };
        // Bounded, because a backend may never answer.
        if tokio::time::timeout(STOP_MAX, ended).await.is_err() {
            tracing::warn!("some connections did not end in time and were closed");
            self.tasks.abort_all();
        }
        self.stop_recorder.cancel();
        let ended = async { while self.recorder.join_next().await.is_some() {} };
        if tokio::time::timeout(STOP_MAX, ended).await.is_err() {
            tracing::warn!("the result log did not end in time: it will continue from where it was");
            self.recorder.abort_all();
        }
        // Also those of connections that were closed just now.
        RepeatedWarning::flush_all();
        let client = self.client;
        // Closing blocks on the disk.
        let _ = tokio::task::spawn_blocking(move || drop(client)).await;
        tracing::info!("stopped");
    }
}

async fn listen(address: SocketAddr, flag: &'static str) -> Result<(TcpListener, SocketAddr), StartError> {
    let failed = |source| StartError::Listen { address, flag, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}
