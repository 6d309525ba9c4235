//! TLS for the front-ends: certificates from files that can be reloaded, handshakes, encrypted connections.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use parking_lot::RwLock;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::{Admitted, RepeatedWarning};

static EVICTED: RepeatedWarning = RepeatedWarning::new();
static FAILED: RepeatedWarning = RepeatedWarning::new();

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

/// A TLS file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot use {what} {file}: {why}")]
pub struct TlsError {
    /// What the file is for.
    what: &'static str,
    /// The path.
    file: String,
    /// What is wrong with it.
    why: String,
}

/// The TLS settings of a listener. Reloading them affects new connections only.
#[derive(Debug)]
pub struct Tls {
    files: TlsFiles,
    /// What the protocol is called in a handshake (ALPN); not named, if empty.
    protocol: &'static [u8],
    config: RwLock<Arc<ServerConfig>>,
}

impl Tls {
    /// Reads the files.
    pub fn load(files: TlsFiles) -> Result<Arc<Tls>, TlsError> {
        Tls::load_for(files, b"")
    }

    /// The same for a protocol that clients may ask for by its ALPN name, such as `http/1.1`.
    pub fn load_for(files: TlsFiles, protocol: &'static [u8]) -> Result<Arc<Tls>, TlsError> {
        let config = RwLock::new(config(&files, protocol)?);
        Ok(Arc::new(Tls { files, protocol, config }))
    }

    /// Reads the files again. If one of them is bad, the settings in use stay.
    pub fn reload(&self) -> Result<(), TlsError> {
        let new = config(&self.files, self.protocol)?;
        *self.config.write() = new;
        Ok(())
    }

    /// Performs the handshake with a client of this protocol. `None` if it fails or takes longer than the
    /// client may take to authenticate; both are logged.
    pub async fn accept(
        &self,
        stream: TcpStream,
        (protocol, address): (&str, impl Display),
        admitted: &Admitted,
        stop: &CancellationToken,
    ) -> Option<TlsStream> {
        let handshake = async {
            match first_byte(&stream).await? {
                None => Ok(None),
                Some(TLS_HELLO) => {
                    let config = self.config.read().clone();
                    TlsAcceptor::from(config).accept(stream).await.map(Some)
                }
                Some(_) => Err(io::Error::other("it sent plain text, and this port speaks TLS only")),
            }
        };
        let accepted = tokio::select! {
            accepted = handshake => accepted,
            why = admitted.evicted() => {
                EVICTED.warn(format_args!("the {protocol} connection from {address} is closed: {why}"));
                return None;
            }
            () = stop.cancelled() => return None,
        };
        match accepted {
            Ok(Some(stream)) => Some(TlsStream { stream, unreported: 0 }),
            Ok(None) => {
                tracing::debug!("the {protocol} connection from {address} ended before the TLS handshake");
                None
            }
            Err(error) => {
                FAILED.warn(format_args!("no TLS handshake with the {protocol} client {address}: {error}"));
                None
            }
        }
    }
}

impl Display for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the certificate {}", self.files.certificate.display())
    }
}

/// The first byte of a TLS handshake. No RESP request, Gearman packet or line begins with it.
const TLS_HELLO: u8 = 0x16;

/// Peeks at the first byte, so that plain text gets no answer, not even a TLS alert. `None` if the client hung
/// up. With TLS the client sends first, even a worker that will be silent for days.
async fn first_byte(stream: &TcpStream) -> io::Result<Option<u8>> {
    let mut first = [0];
    let length = stream.peek(&mut first).await?;
    Ok((length == 1).then_some(first[0]))
}

fn config(files: &TlsFiles, protocol: &[u8]) -> Result<Arc<ServerConfig>, TlsError> {
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
    let mut config = config.with_single_cert(certificates, key).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => {
            bad("the key", &files.key, format_args!("it is not that of {}", files.certificate.display()))
        }
        error => bad("the certificate", &files.certificate, error),
    })?;
    if !protocol.is_empty() {
        config.alpn_protocols = vec![protocol.to_vec()];
    }
    Ok(Arc::new(config))
}

fn certificates(what: &'static str, file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = CertificateDer::pem_file_iter(file).and_then(|all| all.collect::<Result<Vec<_>, _>>());
    let found = read.map_err(|error| bad(what, file, error))?;
    if found.is_empty() {
        return Err(bad(what, file, "it contains no certificate"));
    }
    Ok(found)
}

fn bad(what: &'static str, file: &Path, why: impl Display) -> TlsError {
    TlsError { what, file: file.display().to_string(), why: why.to_string() }
}

/// An encrypted connection.
///
/// A write is complete when its ciphertext is handed to the kernel, as on a plain socket: rustls would buffer
/// it and leave the sending to a later write or flush. So a write that returned `Pending` must be repeated with
/// the same bytes, possibly with more behind them. An empty write fails if the client has reset the connection,
/// as on a plain socket.
#[derive(Debug)]
pub struct TlsStream {
    stream: tokio_rustls::server::TlsStream<TcpStream>,
    /// Bytes that are encrypted, but not reported as written.
    unreported: usize,
}

impl AsyncRead for TlsStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for TlsStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if bytes.is_empty() && this.unreported == 0 {
            return Pin::new(this.stream.get_mut().0).poll_write(context, bytes);
        }
        if this.unreported == 0 {
            this.unreported = ready!(Pin::new(&mut this.stream).poll_write(context, bytes))?;
        }
        ready!(Pin::new(&mut this.stream).poll_flush(context))?;
        Poll::Ready(Ok(std::mem::take(&mut this.unreported)))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    /// Does not wait for a client that does not read: its connection just ends.
    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.get_mut().stream).poll_shutdown(context) {
            Poll::Pending => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            done => done,
        }
    }
}
