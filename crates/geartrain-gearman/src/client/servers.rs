//! The servers: which of them answer, and which one this application has picked.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

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

/// How long a server that could not be reached is left alone: at first, and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));
/// How long it may take to connect, if a call may take longer than that: the next server may be there at once.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// How long a server may be silent before it is asked whether it is still there.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// All servers of one URL.
pub(crate) struct Servers {
    list: Vec<Server>,
    /// The one that this application puts its jobs to, as long as it answers.
    preferred: AtomicUsize,
    pub(crate) timeout: Duration,
}

/// One server.
pub(crate) struct Server {
    address: Address,
    pub(crate) name: String,
    timeout: Duration,
    tls: Option<TlsConnector>,
    /// The connection for all that is asked and answered at once.
    connection: tokio::sync::Mutex<Option<Arc<Connection>>>,
    backoff: Mutex<Option<Backoff>>,
}

/// A server that could not be reached.
#[derive(Clone)]
struct Backoff {
    /// It is left alone until then.
    until: Instant,
    delay: Duration,
    error: ServerError,
}

impl Servers {
    /// Those of a URL, one of which is picked at random. Nothing is connected yet.
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
        let picked = AtomicUsize::new(random_index(list.len()));
        Ok(Servers { list, preferred: picked, timeout: url.timeout })
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    pub(crate) fn get(&self, place: usize) -> &Server {
        &self.list[place]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Server> {
        self.list.iter()
    }

    /// The place of the server of this name.
    pub(crate) fn index_of(&self, name: &str) -> Option<usize> {
        self.list.iter().position(|server| server.name == name)
    }

    /// All of them, beginning with the one that was picked.
    pub(crate) fn preferred_first(&self) -> impl Iterator<Item = usize> + use<> {
        let (picked, servers) = (self.preferred.load(Ordering::Relaxed), self.list.len());
        (0..servers).map(move |step| (picked + step) % servers)
    }

    /// Stays with this one from now on.
    pub(crate) fn prefer(&self, place: usize) {
        self.preferred.store(place, Ordering::Relaxed);
    }

    /// Until one of those that are left alone is tried again, if there is any.
    pub(crate) fn next_retry(&self) -> Option<Duration> {
        let now = Instant::now();
        self.list
            .iter()
            .filter_map(|server| Some(server.backoff()?.until.saturating_duration_since(now)))
            .min()
    }

    /// Waits until a server may be there again, or answers what is wrong if that would be too late.
    pub(crate) async fn back_off(&self, until: Instant, trouble: ServerError) -> Result<(), ServerError> {
        let pause = self.next_retry().unwrap_or(PAUSE.0).max(Duration::from_millis(1));
        if !trouble.is_transient() || Instant::now() + pause > until {
            return Err(trouble);
        }
        tracing::debug!(%trouble, ?pause, "trying again");
        tokio::time::sleep(pause).await;
        Ok(())
    }
}

impl Server {
    fn backoff(&self) -> Option<Backoff> {
        self.lock_backoff().clone()
    }

    fn lock_backoff(&self) -> MutexGuard<'_, Option<Backoff>> {
        self.backoff.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection for questions, which is opened if there is none.
    pub(crate) async fn connection(&self) -> Result<Arc<Connection>, ServerError> {
        let mut current = self.connection.lock().await;
        if let Some(link) = current.as_ref().filter(|link| !link.is_closed()) {
            return Ok(link.clone());
        }
        let link = Arc::new(self.open(Arc::default(), None).await?);
        *current = Some(link.clone());
        Ok(link)
    }

    /// Opens a connection, unless the server could not be reached a moment ago.
    pub(crate) async fn open(
        &self,
        woken: Arc<Notify>,
        news: Option<mpsc::Sender<Report>>,
    ) -> Result<Connection, ServerError> {
        let down = self.backoff();
        if let Some(down) = down.as_ref().filter(|down| down.until > Instant::now()) {
            return Err(down.error.clone());
        }
        let within = self.timeout.min(CONNECT_MAX);
        let opened = match tokio::time::timeout(within, self.connect(woken, news)).await {
            Ok(opened) => opened,
            Err(_) => {
                Err(self.unreachable(format!("it does not answer within {} seconds", within.as_secs())))
            }
        };
        *self.lock_backoff() = opened.as_ref().err().map(|why| {
            let pause = down.map_or(PAUSE.0, |down| (down.delay * 2).min(PAUSE.1));
            Backoff { until: Instant::now() + pause, delay: pause, error: why.clone() }
        });
        opened
    }

    async fn connect(
        &self,
        woken: Arc<Notify>,
        news: Option<mpsc::Sender<Report>>,
    ) -> Result<Connection, ServerError> {
        let failed = |error: std::io::Error| self.unreachable(error.to_string());
        let stream =
            TcpStream::connect((self.address.host.as_str(), self.address.port)).await.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        // A machine that is gone says nothing, and whoever waits for it would wait for ever.
        let alive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 6).with_retries(3);
        SockRef::from(&stream).set_tcp_keepalive(&alive).map_err(failed)?;
        let (name, timeout) = (self.name.clone(), self.timeout);
        let Some(tls) = &self.tls else { return Ok(Connection::new(stream, name, timeout, woken, news)) };
        let host = ServerName::try_from(self.address.host.clone());
        let host = host.map_err(|error| self.unreachable(error.to_string()))?;
        let stream = tls.connect(host, stream).await.map_err(failed)?;
        Ok(Connection::new(stream, name, timeout, woken, news))
    }

    fn unreachable(&self, why: String) -> ServerError {
        ServerError::Unreachable { server: self.name.clone(), why }
    }
}

/// One of so many, as chance has it.
fn random_index(of: usize) -> usize {
    // The second half of such an id is chance.
    (uuid::Uuid::now_v7().as_u64_pair().1 % of as u64) as usize
}

/// Trusts the authorities in the file that the URL names, or else those that everybody trusts.
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
