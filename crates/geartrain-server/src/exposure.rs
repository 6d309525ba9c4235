//! Which addresses may be listened on: other machines may reach one only with authentication and encryption.

use std::net::SocketAddr;

use geartrain_front::TlsFiles;

use crate::{Address, Settings, StartError};

/// What a refusal of a port names.
pub(crate) struct Port {
    /// The flag of its address.
    pub(crate) flag: &'static str,
    missing: &'static str,
    tls_flags: &'static str,
}

pub(crate) const RESP: Port = Port {
    flag: "--resp",
    missing: "key or password: give --keys-file or --password-file, or --resp-tls-ca to require certificates",
    tls_flags: "--resp-tls-cert and --resp-tls-key",
};
pub(crate) const HTTP: Port = Port {
    flag: "--http",
    missing: "key or password: give --keys-file or --password-file, or --http-tls-ca to require certificates",
    tls_flags: "--http-tls-cert and --http-tls-key",
};
/// Its protocol has no login.
pub(crate) const GEARMAN: Port = Port {
    flag: "--gearman",
    missing: "certificate: give --gearman-tls-cert, --gearman-tls-key and --gearman-tls-ca",
    tls_flags: "",
};

/// Checks an address. A loopback address or a socket file needs nothing, and `--insecure` allows everything. Of a name
/// that has several addresses each counts, because any may be the one that is listened on.
pub(crate) fn check(
    port: &Port,
    address: &Address,
    resolved: &[SocketAddr],
    tls: Option<&TlsFiles>,
    has_login: bool,
    settings: &Settings,
) -> Result<(), StartError> {
    if address.is_unix() && tls.is_some() {
        return Err(StartError::TlsOnSocketFile { address: address.clone() });
    }
    if resolved.iter().all(|address| address.ip().to_canonical().is_loopback()) || settings.insecure {
        return Ok(());
    }
    let address = address.clone();
    match tls {
        // Client certificates authenticate too.
        Some(tls) if has_login || tls.authorities.is_some() => Ok(()),
        None if has_login => Err(StartError::Unencrypted { address, flags: port.tls_flags }),
        _ => Err(StartError::Open { address, missing: port.missing }),
    }
}
