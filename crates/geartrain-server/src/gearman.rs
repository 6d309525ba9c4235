//! The Gearman front-end, as a server has it.

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

/// How Gearman is spoken.
#[derive(Debug, Clone)]
pub struct GearmanSettings {
    /// Where. Port 0 takes one that is free.
    pub address: SocketAddr,
    /// The host that handles name; this machine's name, if not given.
    pub host: Option<String>,
    /// How many attempts a job has; without end, if not given.
    pub attempts_max: Option<u32>,
    /// How many sleeping workers a job wakes at first; all of them, if 0.
    pub wake: usize,
    /// Whether all clients are told why jobs fail, and not only those who ask for it.
    pub exceptions: bool,
    /// Whether administrators can stop the server with a word.
    pub shutdown: bool,
    /// How TLS is spoken, and then nothing else.
    pub tls: Option<TlsFiles>,
}

impl GearmanSettings {
    /// Everything as it is without a word about it.
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

/// The files that TLS needs, all in PEM.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The server's certificate, and those between it and its root.
    pub certificate: PathBuf,
    /// The certificate's key.
    pub key: PathBuf,
    /// Those who sign the certificates that clients must have; if there are none, clients need none.
    pub authorities: Option<PathBuf>,
}

/// A front that is not at work yet.
pub(crate) struct Prepared {
    listener: TcpListener,
    address: SocketAddr,
    options: Options,
}

/// Listens, so that whoever connects early waits.
pub(crate) async fn prepare(
    settings: &GearmanSettings,
    insecure: bool,
    quit: &CancellationToken,
) -> Result<Prepared, StartError> {
    let address = settings.address;
    let asks = settings.tls.as_ref().is_some_and(|tls| tls.authorities.is_some());
    if !address.ip().is_loopback() && !asks && !insecure {
        let question = "for a certificate: give --gearman-tls-cert, --gearman-tls-key and --gearman-tls-ca";
        return Err(StartError::Open { address, question });
    }
    let tls = settings.tls.as_ref().map(configure).transpose()?;
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
    Ok(Prepared { listener, address, options })
}

/// Begins to serve. Answers where.
pub(crate) fn serve(
    prepared: Prepared,
    alone: bool,
    backend: Arc<dyn Backend>,
    stop: &CancellationToken,
    tasks: &mut JoinSet<()>,
) -> SocketAddr {
    let Prepared { listener, address, options } = prepared;
    let front = Front::new(backend, Arc::new(SystemClock), Options { sole_server: alone, ..options });
    let stop = stop.clone();
    tasks.spawn(async move { front.serve(listener, stop).await });
    address
}

fn configure(files: &TlsFiles) -> Result<Arc<ServerConfig>, StartError> {
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
        return Err(bad(what, file, "there is no certificate in it"));
    }
    Ok(found)
}

fn bad(what: &'static str, file: &std::path::Path, why: impl std::fmt::Display) -> StartError {
    StartError::Tls { what, file: file.display().to_string(), why: why.to_string() }
}
