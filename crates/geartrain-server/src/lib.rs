//! Joins one backend to the front-ends.

mod demo;
mod follow;
mod gearman;
mod sweep;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use geartrain::{Client, Target};
use geartrain_core::SystemClock;
use geartrain_front::Admission;
use geartrain_resp::{Front, Options};
use geartrain_results::{LogError, LogPlace};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::follow::Follower;

/// How long connections may take to end: longer than each of them is given.
const STOP_MAX: Duration = Duration::from_secs(15);

/// What a server is to do.
#[derive(Clone)]
pub struct Settings {
    /// The URL of the queue that it serves.
    pub store: String,
    /// Where RESP is spoken. Port 0 takes one that is free.
    pub resp: SocketAddr,
    /// How Gearman is spoken; not at all, if not given.
    pub gearman: Option<GearmanSettings>,
    /// What clients must say to be let in.
    pub password: Option<String>,
    /// Lets everybody in who can reach the address, although it is not this machine's own.
    pub insecure: bool,
    /// Lets clients remove everything.
    pub allow_flush: bool,
    /// Makes jobs and works on them, so that there is something to look at.
    pub demo: bool,
    /// Where to write down what becomes of every job, if anywhere.
    pub result_log: Option<LogPlace>,
    /// How long ago attempts may have ended before they are removed from there; they never are, if not given.
    pub result_log_keep: Option<Duration>,
}

pub use gearman::{GearmanSettings, TlsFiles};
// A limit of the process, so the program raises it, and not the server in it.
pub use geartrain_front::raise_descriptor_limit;

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The queue cannot be opened.
    #[error(transparent)]
    Store(#[from] geartrain::Error),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: is another server running? Choose another address with {flag}")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// What it is chosen with.
        flag: &'static str,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Somebody else has the directory.
    #[error("another process has {directory}: stop it, or name another directory with --data")]
    InUse {
        /// Which.
        directory: String,
    },
    /// The result log cannot be opened.
    #[error(transparent)]
    Log(#[from] LogError),
    /// There is no thread to write it.
    #[error("the result log cannot be written")]
    LogThread(#[source] std::io::Error),
    /// Anybody could come in.
    #[error(
        "{address} can be reached from other machines, and nobody is asked {question}, or say --insecure"
    )]
    Open {
        /// Which.
        address: SocketAddr,
        /// For what, and how that is changed.
        question: &'static str,
    },
    /// TLS cannot be spoken.
    #[error("{what} {file} cannot be used: {why}")]
    Tls {
        /// What the file was to be.
        what: &'static str,
        /// The file.
        file: String,
        /// What is wrong with it.
        why: String,
    },
}

/// A server at work.
pub struct Server {
    client: Client,
    place: Target,
    resp: SocketAddr,
    gearman: Option<SocketAddr>,
    stop: CancellationToken,
    /// Cancelled when an administrator asks for the end.
    quit: CancellationToken,
    /// Stopped after the front-ends, because it uses what they do not.
    tasks: JoinSet<()>,
    /// Writes the result log, and ends after all that could have something to say.
    follower: JoinSet<()>,
    stop_follower: CancellationToken,
}

impl Server {
    /// Opens the queue and listens. When this returns, the server is ready.
    pub async fn start(settings: &Settings) -> Result<Server, StartError> {
        let address = settings.resp;
        if !address.ip().is_loopback() && settings.password.is_none() && !settings.insecure {
            let question = "for a password: give one with --password";
            return Err(StartError::Open { address, question });
        }
        let (listener, resp) = listen(address, "--resp").await?;
        let quit = CancellationToken::new();
        let gearman = match &settings.gearman {
            Some(gearman) => Some(gearman::prepare(gearman, settings.insecure, &quit).await?),
            None => None,
        };
        let place = Target::of(&settings.store)?;
        if let Target::Gearman(url) = &place {
            let why = "a server keeps its jobs itself or on a Redis; to Gearman servers connect directly";
            return Err(geartrain::Error::Url { url: url.to_string(), why }.into());
        }
        let client = match settings.result_log {
            Some(_) => geartrain::connect_to_follow(&settings.store).await?,
            None => geartrain::connect(&settings.store).await?,
        };
        // It could be reached through the process that has it, but then there would be two servers of which one is of no use.
        if matches!(place, Target::Directory { .. }) && !client.is_own_directory() {
            return Err(StartError::InUse { directory: place.to_string() });
        }
        // Before anybody is let in, so that nothing of what they do is missed.
        let (stop_follower, mut follower) = (CancellationToken::new(), JoinSet::new());
        if let Some(log) = &settings.result_log {
            follower.spawn(
                Follower::attach(client.clone(), log, settings.result_log_keep)
                    .await?
                    .follow(stop_follower.clone()),
            );
        }
        let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
        // An engine in this process does what is due by itself.
        if let Target::Redis(_) = place {
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
        let gearman = gearman.map(|prepared| {
            let alone = !matches!(place, Target::Redis(_));
            gearman::serve(prepared, alone, client.backend().clone(), &stop, &mut tasks)
        });
        let connections_max = Admission::of_process().connections_max();
        match gearman {
            Some(gearman) => tracing::info!(store = %place, %resp, %gearman, connections_max, "ready"),
            None => tracing::info!(store = %place, %resp, connections_max, "ready"),
        }
        Ok(Server { client, place, resp, gearman, stop, quit, tasks, follower, stop_follower })
    }

    /// Where RESP is spoken.
    pub fn resp(&self) -> SocketAddr {
        self.resp
    }

    /// Where Gearman is spoken.
    pub fn gearman(&self) -> Option<SocketAddr> {
        self.gearman
    }

    /// Returns when an administrator has asked for the end.
    pub async fn asked_to_end(&self) {
        self.quit.cancelled().await;
    }

    /// Where the queue is.
    pub fn place(&self) -> &Target {
        &self.place
    }

    /// Takes no more connections, answers what was read, has it kept, and closes the queue.
    pub async fn stop(mut self) {
        tracing::info!("stopping");
        self.stop.cancel();
        let ended = async { while self.tasks.join_next().await.is_some() {} };
        // A backend that answers nobody is not waited for for ever.
        if tokio::time::timeout(STOP_MAX, ended).await.is_err() {
            tracing::warn!("some connections did not end in time");
            self.tasks.abort_all();
        }
        self.stop_follower.cancel();
        let ended = async { while self.follower.join_next().await.is_some() {} };
        if tokio::time::timeout(STOP_MAX, ended).await.is_err() {
            tracing::warn!("the result log did not end in time: next time it goes on from where it was");
            self.follower.abort_all();
        }
        let client = self.client;
        // Closing waits for the disk.
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
