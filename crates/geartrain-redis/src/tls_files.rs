//! The PEM files that a URL names for TLS, checked so that an error names the file.

use std::path::Path;

use redis::{ClientTlsConfig, TlsCertificates};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::connection::ConnectionError;
use crate::url::TlsFiles;

/// Reads the files. Without authorities the usual ones are trusted.
pub(crate) fn read(files: &TlsFiles) -> Result<TlsCertificates, ConnectionError> {
    let root_cert = match &files.authorities {
        None => None,
        Some(file) => Some(authorities(file)?),
    };
    let client_tls = match (&files.certificate, &files.key) {
        (Some(certificate), Some(key)) => {
            let (what, client_cert) =
                ("the client certificate", bytes("the client certificate", certificate)?);
            let found = CertificateDer::pem_slice_iter(&client_cert).collect::<Result<Vec<_>, _>>();
            if found.map_err(|error| bad(what, certificate, error))?.is_empty() {
                return Err(bad(what, certificate, "it contains no certificate"));
            }
            let client_key = bytes("the client's key", key)?;
            PrivateKeyDer::from_pem_slice(&client_key)
                .map_err(|error| bad("the client's key", key, error))?;
            Some(ClientTlsConfig { client_cert, client_key })
        }
        _ => None,
    };
    Ok(TlsCertificates { client_tls, root_cert })
}

fn authorities(file: &Path) -> Result<Vec<u8>, ConnectionError> {
    let what = "the list of authorities";
    let pem = bytes(what, file)?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| bad(what, file, error))?;
        roots.add(certificate).map_err(|error| bad(what, file, error))?;
    }
    if roots.is_empty() { Err(bad(what, file, "it contains no certificate")) } else { Ok(pem) }
}

fn bytes(what: &'static str, file: &Path) -> Result<Vec<u8>, ConnectionError> {
    std::fs::read(file).map_err(|error| bad(what, file, error))
}

fn bad(what: &'static str, file: &Path, why: impl std::fmt::Display) -> ConnectionError {
    ConnectionError::TlsFile { what, file: file.display().to_string(), why: why.to_string() }
}
