//! The Gearman front-end of a server: settings, TLS and start.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use geartrain_core::Backend;
use geartrain_core::SystemClock;
use geartrain_gearman::front::{Front, Options};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::StartError;

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

/// The files for TLS, all in PEM.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The server's certificate chain.
    pub certificate: PathBuf,
    /// The private key of the certificate.
    pub key: PathBuf,
    /// The authorities that must have signed the client certificates; without it, clients need none.
    pub authorities: Option<PathBuf>,
}

/// A front-end that listens and does not serve yet.
pub(crate) struct Listening {
    listener: TcpListener,
    address: SocketAddr,
    options: Options,
}

/// Binds the address. Early connections wait in the backlog.
pub(crate) async fn bind(
    settings: &GearmanSettings,
    insecure: bool,
    quit: &CancellationToken,
) -> Result<Listening, StartError> {
    let address = settings.address;
    let authenticates = settings.tls.as_ref().is_some_and(|tls| tls.authorities.is_some());
    if !address.ip().is_loopback() && !authenticates && !insecure {
        let missing = "certificate: give --gearman-tls-cert, --gearman-tls-key and --gearman-tls-ca";
        return Err(StartError::Open { address, missing });
    }
    let tls = settings.tls.as_ref().map(tls_config).transpose()?;
    let (listener, address) = crate::listen(address, "--gearman").await?;
    let host = settings.host.clone();
    let options = Options {
        host: host.unwrap_or_else(|| gethostname::gethostname().to_string_lossy().into_owned()),
        attempts_max: settings.attempts_max,
        worker_wakeup: settings.wake,
        exceptions: settings.exceptions,
        shutdown: settings.shutdown.then(|| quit.clone()),
        tls,
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

fn tls_config(files: &TlsFiles) -> Result<Arc<ServerConfig>, StartError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let certificates = certificates("the certificate", &files.certificate)?;
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| bad("the key", &files.key, error))?;
    let config = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| bad("the certificate", &files.certificate, error))?;
    let config = match &files.authorities {
        None => config.with_no_client_auth(),
        Some(file) => {
            let mut roots = RootCertStore::empty();
            for certificate in self::certificates("the list of authorities", file)? {
                roots.add(certificate).map_err(|error| bad("the list of authorities", file, error))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .build()
                .map_err(|error| bad("the list of authorities", file, error))?;
            config.with_client_cert_verifier(verifier)
        }
    };
    let config = config
        .with_single_cert(certificates, key)
        .map_err(|error| bad("the certificate", &files.certificate, error))?;
    Ok(Arc::new(config))
}

fn certificates(what: &'static str, file: &PathBuf) -> Result<Vec<CertificateDer<'static>>, StartError> {
    let read = CertificateDer::pem_file_iter(file).and_then(|all| all.collect::<Result<Vec<_>, _>>());
    let found = read.map_err(|error| bad(what, file, error))?;
    if found.is_empty() {
        return Err(bad(what, file, "it contains no certificate"));
    }
    Ok(found)
}

fn bad(what: &'static str, file: &std::path::Path, why: impl std::fmt::Display) -> StartError {
    StartError::Tls { what, file: file.display().to_string(), why: why.to_string() }
}
