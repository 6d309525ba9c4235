//! Addresses to listen on: an IP address, a host name, or a socket file.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use geartrain_front::SocketFile;
use tokio::net::{TcpListener, UnixListener};

/// Where a front-end listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// An IP address. Port 0 picks a free port.
    Ip(SocketAddr),
    /// A host name and a port. The name is resolved when the server starts.
    Host(String, u16),
    /// A socket file.
    Unix(PathBuf),
}

/// Why a text is no address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("write it like 127.0.0.1:7411, localhost:7411 or unix:/run/geartrain/queue.sock")]
pub struct BadAddress;

impl Address {
    /// The IP address, if it has one.
    pub fn ip(&self) -> Option<SocketAddr> {
        match self {
            Address::Ip(address) => Some(*address),
            Address::Host(..) | Address::Unix(_) => None,
        }
    }

    pub(crate) fn is_unix(&self) -> bool {
        matches!(self, Address::Unix(_))
    }

    /// The IP addresses, those of version 4 first: that is where clients look. None for a socket file.
    pub(crate) async fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        match self {
            Address::Ip(address) => Ok(vec![*address]),
            Address::Unix(_) => Ok(Vec::new()),
            Address::Host(name, port) => {
                let mut addresses: Vec<_> = tokio::net::lookup_host((name.as_str(), *port)).await?.collect();
                addresses.sort_by_key(SocketAddr::is_ipv6);
                addresses.dedup();
                Ok(addresses)
            }
        }
    }
}

impl<T: Into<SocketAddr>> From<T> for Address {
    fn from(address: T) -> Address {
        Address::Ip(address.into())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Ip(address) => address.fmt(f),
            Address::Host(name, port) => write!(f, "{name}:{port}"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl FromStr for Address {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Address, BadAddress> {
        if let Some(path) = text.strip_prefix("unix:") {
            // Also as a URL: unix:///run/queue.sock.
            let path = path.strip_prefix("//").unwrap_or(path);
            return if path.is_empty() { Err(BadAddress) } else { Ok(Address::Unix(path.into())) };
        }
        if let Ok(address) = text.parse() {
            return Ok(Address::Ip(address));
        }
        let (name, port) = text.rsplit_once(':').ok_or(BadAddress)?;
        let port = port.parse().map_err(|_| BadAddress)?;
        let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
        // What consists of numbers is an IP address with a mistake in it.
        let is_name = name.bytes().all(is_letter) && name.bytes().any(|byte| byte.is_ascii_alphabetic());
        if is_name { Ok(Address::Host(name.to_owned(), port)) } else { Err(BadAddress) }
    }
}

/// A listener of a front-end.
pub(crate) enum Listener {
    Tcp(TcpListener),
    /// With the file, which is removed at the end.
    Unix(UnixListener, SocketFile),
}

impl Listener {
    /// Listens on an address, or on the first that its name has.
    pub(crate) async fn bind(address: &Address, resolved: &[SocketAddr]) -> io::Result<(Listener, Address)> {
        if let Address::Unix(path) = address {
            let (listener, file) = SocketFile::listen(path)?;
            return Ok((Listener::Unix(listener, file), address.clone()));
        }
        let listener = TcpListener::bind(resolved).await?;
        let bound = listener.local_addr()?;
        Ok((Listener::Tcp(listener), bound.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_an_ip_address_a_host_name_or_a_socket_file() {
        for (text, shown) in [
            ("127.0.0.1:7411", Some("127.0.0.1:7411")),
            ("[::1]:0", Some("[::1]:0")),
            ("localhost:7411", Some("localhost:7411")),
            ("queue-1.example:80", Some("queue-1.example:80")),
            ("unix:/run/q.sock", Some("unix:/run/q.sock")),
            ("unix:///run/q.sock", Some("unix:/run/q.sock")),
            ("unix:q.sock", Some("unix:q.sock")),
            ("unix:", None),
            ("7411", None),
            ("localhost", None),
            (":7411", None),
            ("localhost:70000", None),
            ("127.0.0.300:7411", None),
            ("::1:7411", None),
            ("ho st:7411", None),
            ("http://localhost:7411", None),
        ] {
            let parsed = text.parse::<Address>().map(|address| address.to_string());
            assert_eq!(parsed.ok().as_deref(), shown, "{text}");
        }
    }

    #[tokio::test]
    async fn a_name_is_resolved_to_addresses_of_version_4_first() {
        let localhost = Address::Host("localhost".to_owned(), 7_411);
        let addresses = localhost.resolve().await.expect("the name is known");
        assert!(addresses[0].is_ipv4() && addresses.iter().all(|address| address.ip().is_loopback()));
        assert!(Address::Host("name.invalid".to_owned(), 1).resolve().await.is_err());
    }
}
