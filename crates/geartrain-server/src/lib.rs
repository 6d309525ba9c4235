//! The server: joins one backend to the RESP, Gearman and HTTP front-ends.

mod address;
mod demo;
mod exposure;
mod gearman;
mod result_recorder;
mod sweep;
mod systemd;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use geartrain::{Client, HostOptions, QueueName, Target};
use geartrain_core::SystemClock;
use geartrain_front::{AccessControl, Admission, AuditLog, AuditScope, RepeatedWarning, Tls, TlsError};
use geartrain_http::LogReader;
use geartrain_json::{OperationError, SettingView};
use geartrain_resp::{Front, Options};
use geartrain_results::{LogError, LogTarget, ResultLog};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::address::Listener;
use crate::result_recorder::ResultRecorder;

/// How long shutdown waits for connections: longer than each of them may take.
const STOP_MAX: Duration = Duration::from_secs(15);

/// The settings of a server.
#[derive(Clone)]
pub struct Settings {
    /// The URL of the queue to serve.
    pub store: String,
    /// The address for RESP. Port 0 picks a free port.
    pub resp: Address,
    /// TLS for RESP; required, if given.
    pub resp_tls: Option<TlsFiles>,
    /// The Gearman front-end, if any.
    pub gearman: Option<GearmanSettings>,
    /// The HTTP front-end, if any.
    pub http: Option<HttpSettings>,
    /// The password that clients may send instead of a key; its owner is an administrator.
    pub password: Option<String>,
    /// The file of the access keys. As soon as it exists, clients need a key.
    pub keys: Option<PathBuf>,
    /// The audit log, if any.
    pub audit: Option<AuditSettings>,
    /// Refuses every change.
    pub read_only: bool,
    /// Allows an address that other machines can reach without a key or without encryption.
    pub insecure: bool,
    /// Allows clients to delete everything.
    pub allow_flush: bool,
    /// Commands that take at least this long are logged.
    pub slow_after: Option<Duration>,
    /// Submits sample jobs and works on them.
    pub demo: bool,
    /// The result log to write, if any.
    pub result_log: Option<LogTarget>,
    /// How long the result log keeps an attempt after it ended; for ever, if not given.
    pub result_log_keep: Option<Duration>,
}

impl Settings {
    /// The defaults: RESP only, without TLS and without a password.
    pub fn new(store: impl Into<String>, resp: SocketAddr) -> Settings {
        Settings {
            store: store.into(),
            resp: resp.into(),
            resp_tls: None,
            gearman: None,
            http: None,
            password: None,
            keys: None,
            audit: None,
            read_only: false,
            insecure: false,
            allow_flush: false,
            slow_after: None,
            demo: false,
            result_log: None,
            result_log_keep: None,
        }
    }
}

/// The settings of HTTP.
#[derive(Debug, Clone)]
pub struct HttpSettings {
    /// The address. Port 0 picks a free port.
    pub address: Address,
    /// Host names that requests may give, besides `localhost` and IP addresses.
    pub hosts: Vec<String>,
    /// TLS; required, if given.
    pub tls: Option<TlsFiles>,
    /// The settings of the whole program, which administrators see.
    pub settings: Vec<SettingView>,
}

/// The settings of the audit log.
#[derive(Debug, Clone)]
pub struct AuditSettings {
    /// The file. With a larger one than [`AUDIT_BYTES_MAX`] there are two: `FILE` and `FILE.1`.
    pub file: PathBuf,
    /// Also records puts, pops and the reports of workers.
    pub all: bool,
}

/// How long the file of the audit log may become; then another one begins.
pub const AUDIT_BYTES_MAX: u64 = 16 << 20;

pub use address::{Address, BadAddress};
pub use gearman::GearmanSettings;
pub use geartrain_front::TlsFiles;
pub use geartrain_front::{
    AccessKey, AuditPage, AuditRecord, KeyFileError, change_keys, new_access_key, read_audit, read_keys,
};
pub use systemd::ServiceManager;
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
    #[error("cannot listen on {address}: {}", listen_advice(.address, .flag, .source))]
    Listen {
        /// The address.
        address: Address,
        /// The command line flag of the address.
        flag: &'static str,
        /// What failed; its text is in that of this error.
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
        address: Address,
        /// What is missing, and the flags that add it.
        missing: &'static str,
    },
    /// Other machines on the way could read keys and passwords.
    #[error(
        "{address} can be reached from other machines, and keys would be sent unencrypted: give {flags}, listen on a \
         loopback address behind a proxy with TLS, or give --insecure"
    )]
    Unencrypted {
        /// The address.
        address: Address,
        /// The flags that add TLS.
        flags: &'static str,
    },
    /// Nothing crosses a network there.
    #[error("{address} is a file of this machine: leave TLS out, or give an address with a port")]
    TlsOnSocketFile {
        /// The address.
        address: Address,
    },
    /// The key file cannot be used.
    #[error(transparent)]
    Keys(#[from] KeyFileError),
    /// The audit log cannot be opened.
    #[error("cannot open the audit log {}: {source}", file.display())]
    Audit {
        /// The file.
        file: PathBuf,
        /// What failed; its text is in that of this error.
        source: std::io::Error,
    },
    /// A TLS file cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// A running server.
pub struct Server {
    client: Client,
    target: Target,
    resp: Address,
    gearman: Option<Address>,
    http: Option<Address>,
    /// The TLS settings of all ports.
    tls: Vec<Arc<Tls>>,
    access: Arc<AccessControl>,
    service_manager: Option<Arc<ServiceManager>>,
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
        let mut access = AccessControl::open().read_only(settings.read_only);
        if let Some(password) = &settings.password {
            access = access.with_password(password);
        }
        if let Some(keys) = &settings.keys {
            access = access.with_key_file(keys.clone())?;
        }
        let has_login = access.is_required();
        let tls = settings.resp_tls.as_ref();
        let (listener, resp) = listen(&settings.resp, &exposure::RESP, tls, has_login, settings).await?;
        let resp_tls = settings.resp_tls.clone().map(Tls::load).transpose()?;
        let quit = CancellationToken::new();
        let gearman = match &settings.gearman {
            Some(gearman) => Some(gearman::bind(gearman, settings, &quit).await?),
            None => None,
        };
        let http = match &settings.http {
            Some(http) => {
                let tls = http.tls.as_ref();
                let bound = listen(&http.address, &exposure::HTTP, tls, has_login, settings).await?;
                let tls = http.tls.clone().map(|files| Tls::load_for(files, b"http/1.1")).transpose()?;
                Some((bound, http, tls))
            }
            None => None,
        };
        let target = Target::of(&settings.store)?;
        if let Target::Gearman(url) = &target {
            let why = "a server stores its jobs itself or in a Redis; connect to Gearman servers directly";
            return Err(geartrain::Error::Url { url: url.to_string(), why }.into());
        }
        if let Target::GearMonkey(url) = &target {
            let why =
                "a server stores its jobs itself or in a Redis; connect to GearMonkey functions directly";
            return Err(geartrain::Error::Url { url: url.to_string(), why }.into());
        }
        if let Target::WorkKit(url) = &target {
            let why = "a server stores its jobs itself or in a Redis; connect to WorkKit schedules directly";
            return Err(geartrain::Error::Url { url: url.to_string(), why }.into());
        }
        if let Target::Worqr(url) = &target {
            let why = "a server stores its jobs itself or in a Redis; connect to Worqr's queues directly";
            return Err(geartrain::Error::Url { url: url.to_string(), why }.into());
        }
        let host = HostOptions { is_consumer: settings.result_log.is_some(), read_only: settings.read_only };
        let client = geartrain::connect_as_host(&settings.store, host).await?;
        // It could be used through the socket of its owner, but a server in front of another server is of no
        // use.
        if matches!(target, Target::Directory { .. }) && !client.is_own_directory() {
            return Err(StartError::InUse { directory: target.to_string() });
        }
        // In the data directory, which exists now.
        if let Some(AuditSettings { file, all }) = &settings.audit {
            let scope = if *all { AuditScope::All } else { AuditScope::Administrative };
            let log = AuditLog::open(file.clone(), scope, AUDIT_BYTES_MAX)
                .map_err(|source| StartError::Audit { file: file.clone(), source })?;
            access = access.with_audit(Some(log));
        }
        let access = Arc::new(access);
        if access.is_locked_out() {
            tracing::warn!("no access key can be used: `geartrain key add NAME --role ROLE` makes one");
        }
        let gearman_is_open = gearman.as_ref().is_some_and(|_| {
            settings.gearman.as_ref().and_then(|gearman| gearman.tls.as_ref()?.authorities.as_ref()).is_none()
        });
        if access.is_required() && gearman_is_open {
            tracing::info!(
                "Gearman has no login: programs of this machine need no key there (--gearman off)"
            );
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
        if let Target::Redis(_) = target
            && !settings.read_only
        {
            tasks.spawn(sweep::sweep(client.clone(), stop.clone()));
            let (backend, stopped) = (Arc::from(client.clone()), stop.clone());
            tasks.spawn(async move {
                stopped.run_until_cancelled(geartrain::worker::fire_periodics(backend)).await;
            });
        }
        if settings.demo {
            demo::start(&client, &stop, &mut tasks);
        }
        let options = Options {
            allow_flush: settings.allow_flush,
            access: access.clone(),
            slow_after: settings.slow_after,
            sync_mode: client.backend().sync_mode().await.unwrap_or_default(),
            ..Options::default()
        };
        let front = Front::new(client.backend().clone(), Arc::new(SystemClock), options);
        let stopped = stop.clone();
        let of_http = http.iter().filter_map(|(.., tls)| tls.clone());
        let of_gearman = gearman.as_ref().and_then(gearman::Listening::tls);
        let tls = resp_tls.iter().cloned().chain(of_gearman).chain(of_http).collect();
        tasks.spawn(access.clone().watch(stop.clone()));
        tasks.spawn(async move {
            match (listener, resp_tls) {
                (Listener::Tcp(listener), None) => front.serve_tcp(listener, stopped).await,
                (Listener::Tcp(listener), Some(tls)) => front.serve_tls(listener, tls, stopped).await,
                (Listener::Unix(listener, _file), _) => front.serve_unix(listener, stopped).await,
            }
        });
        let gearman = gearman.map(|listening| {
            let alone = !matches!(target, Target::Redis(_));
            gearman::serve(listening, alone, gearman::guarded(client.backend(), &access), &stop, &mut tasks)
        });
        let result_log = settings.result_log.as_ref().map(log_reader).transpose()?;
        let http = http.map(|((listener, address), http, tls)| {
            let options = geartrain_http::Options {
                access: access.clone(),
                hosts: http.hosts.clone(),
                url: Some(url_of(&target)),
                settings: http.settings.clone(),
                result_log,
                ..Default::default()
            };
            let front = geartrain_http::Front::new(client.backend().clone(), options, stop.clone());
            tasks.spawn(async move {
                match (listener, tls) {
                    (Listener::Tcp(listener), None) => front.serve_tcp(listener).await,
                    (Listener::Tcp(listener), Some(tls)) => front.serve_tls(listener, tls).await,
                    (Listener::Unix(listener, _file), _) => front.serve_unix(listener).await,
                }
            });
            address
        });
        let connections_max = Admission::of_process().connections_max();
        let shown = |address: &Option<Address>| address.clone().map(tracing::field::display);
        let (at_gearman, at_http) = (shown(&gearman), shown(&http));
        tracing::info!(
            store = %target, %resp, gearman = at_gearman, http = at_http, connections_max, "the server is ready"
        );
        Ok(Server {
            client,
            target,
            resp,
            gearman,
            http,
            tls,
            access,
            service_manager: None,
            stop,
            quit,
            tasks,
            recorder,
            stop_recorder,
        })
    }

    /// The address for RESP.
    pub fn resp(&self) -> &Address {
        &self.resp
    }

    /// The address for Gearman.
    pub fn gearman(&self) -> Option<&Address> {
        self.gearman.as_ref()
    }

    /// The address for HTTP.
    pub fn http(&self) -> Option<&Address> {
        self.http.as_ref()
    }

    /// Whether clients need a key or the password.
    pub fn requires_login(&self) -> bool {
        self.access.is_required()
    }

    /// Returns when an administrator has sent `shutdown`.
    pub async fn shutdown_requested(&self) {
        self.quit.cancelled().await;
    }

    /// Reads the TLS files again, for new connections, and the access keys. Bad files are logged, and what is in
    /// use stays.
    pub fn reload(&self) {
        self.access.reload_and_log();
        if self.tls.is_empty() {
            tracing::info!("there are no certificates to reload");
        }
        for tls in &self.tls {
            match tls.reload() {
                Ok(()) => tracing::info!("reloaded {tls}, for new connections"),
                Err(error) => tracing::error!("{error}; the certificate read before stays in use"),
            }
        }
    }

    /// Notifies the service manager that the server is ready, from now on its watchdog, and in the end that
    /// the server is stopping.
    pub fn notify(&mut self, service_manager: ServiceManager) {
        let service_manager = Arc::new(service_manager);
        let gearman = self.gearman().map(|address| format!(", Gearman on {address}"));
        let http = self.http().map(|address| format!(", HTTP on {address}"));
        let at = gearman.unwrap_or_default() + &http.unwrap_or_default();
        service_manager.ready(&format!("RESP on {}{at}; jobs are stored in {}", self.resp, self.target));
        if let Some(interval) = service_manager.watchdog_interval() {
            let (notified, stop) = (service_manager.clone(), self.stop.clone());
            // A Redis that is away would not come back by a restart of the server.
            let engine = (!matches!(self.target, Target::Redis(_))).then(|| self.client.clone());
            let watch = async move {
                let mut ticks = tokio::time::interval(interval);
                ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
                loop {
                    ticks.tick().await;
                    notified.beat(interval, probe(engine.as_ref())).await;
                }
            };
            self.tasks.spawn(async move {
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = watch => {}
                }
            });
        }
        self.service_manager = Some(service_manager);
    }

    /// The queue that is served.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Graceful shutdown: accepts no more connections, answers the requests that were read, and closes the
    /// queue.
    pub async fn stop(mut self) {
        tracing::info!("the server is stopping");
        if let Some(service_manager) = &self.service_manager {
            service_manager.stopping();
        }
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
        tracing::info!("the server has stopped");
    }
}

/// The URL of the queue, without a password.
fn url_of(target: &Target) -> String {
    match target {
        Target::Memory => "memory:".to_owned(),
        Target::Directory { .. } => format!("embedded:{target}"),
        other => other.to_string(),
    }
}

/// Reads the result log for requests. Its writer has created it.
fn log_reader(log: &LogTarget) -> Result<LogReader, LogError> {
    let log = ResultLog::open_existing(log)?;
    Ok(Arc::new(move |request| {
        log.answer(request).map_err(|error| {
            tracing::error!(error = &error as &dyn std::error::Error, "the result log cannot be read");
            OperationError::new("unavailable", "the result log cannot be read")
        })
    }))
}

/// Why an address cannot be listened on, and what to do about it.
fn listen_advice(address: &Address, flag: &str, error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            format!("another program listens there; stop it, or choose another address with {flag}")
        }
        std::io::ErrorKind::AddrNotAvailable => {
            format!("this machine does not have that address; choose one of its own with {flag}")
        }
        std::io::ErrorKind::PermissionDenied
            if address.ip().is_some_and(|address| address.port() < 1_024) =>
        {
            format!(
                "ports below 1024 need the capability CAP_NET_BIND_SERVICE; grant it, or choose another port with {flag}"
            )
        }
        _ => format!("{error}; choose another address with {flag}"),
    }
}

/// Returns when the engine has answered. An error is an answer as well: a full disk is no reason for a restart.
async fn probe(engine: Option<&Client>) {
    if let (Some(engine), Ok(queue)) = (engine, QueueName::new("geartrain-watchdog")) {
        let _ = engine.run(geartrain::Length { queue }).await;
    }
}

/// Listens on an address, if that is safe.
async fn listen(
    address: &Address,
    port: &exposure::Port,
    tls: Option<&TlsFiles>,
    has_login: bool,
    settings: &Settings,
) -> Result<(Listener, Address), StartError> {
    let failed = |source| StartError::Listen { address: address.clone(), flag: port.flag, source };
    let resolved = address.resolve().await.map_err(failed)?;
    exposure::check(port, address, &resolved, tls, has_login, settings)?;
    Listener::bind(address, &resolved).await.map_err(failed)
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};

    use super::*;

    #[test]
    fn an_address_that_cannot_be_listened_on_has_its_own_advice() {
        for (address, kind, text) in [
            (
                "127.0.0.1:7411",
                ErrorKind::AddrInUse,
                "cannot listen on 127.0.0.1:7411: another program listens there; stop it, or choose another \
                 address with --resp",
            ),
            (
                "192.0.2.1:7411",
                ErrorKind::AddrNotAvailable,
                "cannot listen on 192.0.2.1:7411: this machine does not have that address; choose one of its own \
                 with --resp",
            ),
            (
                "127.0.0.1:80",
                ErrorKind::PermissionDenied,
                "cannot listen on 127.0.0.1:80: ports below 1024 need the capability CAP_NET_BIND_SERVICE; grant \
                 it, or choose another port with --resp",
            ),
            (
                "127.0.0.1:7411",
                ErrorKind::PermissionDenied,
                "cannot listen on 127.0.0.1:7411: permission denied; choose another address with --resp",
            ),
        ] {
            let address = address.parse().expect("it is an address");
            let error = StartError::Listen { address, flag: "--resp", source: Error::from(kind) };
            assert_eq!(error.to_string(), text);
        }
    }
}
