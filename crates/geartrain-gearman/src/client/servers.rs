//! Servers of a URL: reconnection with exponential back-off, and the server that this application prefers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc};
use tokio_rustls::TlsConnector;

use super::connection::Connection;
use super::error::ServerError;
use super::url::{Address, GearmanUrl};
use crate::packet::Report;

/// Back-off after a failed connect: the first delay, and the largest.
const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// Connect timeout, if the call's own is longer: the next server may answer at once.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// TCP keepalive: how long a server may be silent before it is probed.
const KEEPALIVE: Duration = Duration::from_secs(30);

pub(crate) struct Servers {
    list: Vec<Server>,
    /// The server that jobs are put to, as long as it answers.
    preferred: AtomicUsize,
    pub(crate) timeout: Duration,
}

pub(crate) struct Server {
    address: Address,
    pub(crate) name: String,
    timeout: Duration,
    tls: Option<TlsConnector>,
    /// The connection for requests that are answered at once.
    connection: tokio::sync::Mutex<Option<Arc<Connection>>>,
    backoff: Mutex<Option<Backoff>>,
}

/// The back-off of a server that could not be reached.
#[derive(Clone)]
struct Backoff {
    /// No connect before this instant.
    until: Instant,
    delay: Duration,
    error: ServerError,
}

impl Servers {
    /// The servers of a URL, a random one preferred. Does not connect yet.
    pub(crate) fn new(url: &GearmanUrl) -> Result<Servers, ServerError> {
        let tls = url.tls.then(|| tls_connector(url)).transpose()?;
        let server = |address: &Address| Server {
            address: address.clone(),
            name: address.to_string(),
            timeout: url.timeout,
            tls: tls.clone(),
            connection: tokio::sync::Mutex::new(None),
            backoff: Mutex::new(None),
        };
        let list: Vec<Server> = url.servers.iter().map(server).collect();
        let preferred = AtomicUsize::new(random_index(list.len()));
        Ok(Servers { list, preferred, timeout: url.timeout })
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    pub(crate) fn get(&self, index: usize) -> &Server {
        &self.list[index]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Server> {
        self.list.iter()
    }

    /// The index of the server with this name.
    pub(crate) fn index_of(&self, name: &str) -> Option<usize> {
        self.list.iter().position(|server| server.name == name)
    }

    /// The indexes of all servers, the preferred one first.
    pub(crate) fn preferred_first(&self) -> impl Iterator<Item = usize> + use<> {
        let (preferred, servers) = (self.preferred.load(Ordering::Relaxed), self.list.len());
        (0..servers).map(move |step| (preferred + step) % servers)
    }

    /// Prefers this server from now on.
    pub(crate) fn prefer(&self, index: usize) {
        self.preferred.store(index, Ordering::Relaxed);
    }

    /// Time until the next server in back-off may be tried, if there is any.
    pub(crate) fn next_retry(&self) -> Option<Duration> {
        let now = Instant::now();
        self.list
            .iter()
            .filter_map(|server| Some(server.backoff()?.until.saturating_duration_since(now)))
            .min()
    }

    /// Waits until a server may be tried again. Returns the error if it is permanent or the wait would exceed
    /// `until`.
    pub(crate) async fn back_off(&self, until: Instant, error: ServerError) -> Result<(), ServerError> {
        let delay = self.next_retry().unwrap_or(BACKOFF_MIN).max(Duration::from_millis(1));
        if !error.is_transient() || Instant::now() + delay > until {
            return Err(error);
        }
        tracing::debug!(%error, ?delay, "retrying");
        tokio::time::sleep(delay).await;
        Ok(())
    }
}

impl Server {
    fn backoff(&self) -> Option<Backoff> {
        self.lock_backoff().clone()
    }

    fn lock_backoff(&self) -> MutexGuard<'_, Option<Backoff>> {
        self.backoff.lock()
    }

    /// The connection for requests, opened if needed.
    pub(crate) async fn connection(&self) -> Result<Arc<Connection>, ServerError> {
        let mut current = self.connection.lock().await;
        if let Some(connection) = current.as_ref().filter(|connection| !connection.is_closed()) {
            return Ok(connection.clone());
        }
        let connection = Arc::new(self.open(Arc::default(), None).await?);
        *current = Some(connection.clone());
        Ok(connection)
    }

    /// Opens a connection, unless the server is in back-off.
    pub(crate) async fn open(
        &self,
        wakeup: Arc<Notify>,
        reports: Option<mpsc::Sender<Report>>,
    ) -> Result<Connection, ServerError> {
        let backoff = self.backoff();
        if let Some(backoff) = backoff.as_ref().filter(|backoff| backoff.until > Instant::now()) {
            return Err(backoff.error.clone());
        }
        let within = self.timeout.min(CONNECT_MAX);
        let opened = match tokio::time::timeout(within, self.connect(wakeup, reports)).await {
            Ok(opened) => opened,
            Err(_) => {
                Err(self.unreachable(format!("it does not answer within {} seconds", within.as_secs())))
            }
        };
        *self.lock_backoff() = opened.as_ref().err().map(|why| {
            let delay = backoff.map_or(BACKOFF_MIN, |backoff| (backoff.delay * 2).min(BACKOFF_MAX));
            Backoff { until: Instant::now() + delay, delay, error: why.clone() }
        });
        opened
    }

    async fn connect(
        &self,
        wakeup: Arc<Notify>,
        reports: Option<mpsc::Sender<Report>>,
    ) -> Result<Connection, ServerError> {
        let failed = |error: std::io::Error| self.unreachable(error.to_string());
        let stream =
            TcpStream::connect((self.address.host.as_str(), self.address.port)).await.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        // A crashed machine sends nothing, and without keepalive its callers would wait for ever.
        let alive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 6).with_retries(3);
        SockRef::from(&stream).set_tcp_keepalive(&alive).map_err(failed)?;
        let (name, timeout) = (self.name.clone(), self.timeout);
        let Some(tls) = &self.tls else { return Ok(Connection::new(stream, name, timeout, wakeup, reports)) };
        let host = ServerName::try_from(self.address.host.clone());
        let host = host.map_err(|error| self.unreachable(error.to_string()))?;
        let stream = tls.connect(host, stream).await.map_err(failed)?;
        Ok(Connection::new(stream, name, timeout, wakeup, reports))
    }

    fn unreachable(&self, why: String) -> ServerError {
        ServerError::Unreachable { server: self.name.clone(), why }
    }
}

fn random_index(of: usize) -> usize {
    // The second half of such a UUID is random.
    (uuid::Uuid::now_v7().as_u64_pair().1 % of as u64) as usize
}

/// Trusts the authorities in the URL's file, or else the usual web roots.
fn tls_connector(url: &GearmanUrl) -> Result<TlsConnector, ServerError> {
    let wrong = |why: String| ServerError::Unreachable { server: url.to_string(), why };
    let mut roots = rustls::RootCertStore::empty();
    match &url.authorities {
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        Some(file) => {
            let read = CertificateDer::pem_file_iter(file).and_then(|all| all.collect::<Result<Vec<_>, _>>());
            let bad = |error: String| wrong(format!("{} has no certificates: {error}", file.display()));
            for certificate in read.map_err(|error| bad(error.to_string()))? {
                roots.add(certificate).map_err(|error| bad(error.to_string()))?;
            }
            if roots.is_empty() {
                return Err(bad("it is empty".to_owned()));
            }
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}
