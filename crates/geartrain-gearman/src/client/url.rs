//! URLs of Gearman servers.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use geartrain_core::split_query;

/// The default port.
const PORT: u16 = 4730;
/// The default timeout of a call.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Most servers in one URL.
const SERVERS_MAX: usize = 64;

/// The URL of one or several Gearman servers: `gearman://HOST[:PORT][,HOST[:PORT]…]`, and `gearmans://` for
/// TLS.
///
/// Options: `timeout=SECONDS` is how long a call is tried (30), `record=FILE` keeps a [record](super::Record)
/// of submitted jobs, and `ca=FILE` names the authorities (PEM) that may sign the servers' certificates.
///
/// ```
/// use geartrain_gearman::client::GearmanUrl;
/// let url: GearmanUrl = "gearman://a,b:4731?timeout=5".parse()?;
/// assert_eq!(url.to_string(), "gearman://a:4730,b:4731");
/// assert!("gearman://".parse::<GearmanUrl>().is_err());
/// # Ok::<(), geartrain_gearman::client::BadUrl>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GearmanUrl {
    pub(crate) servers: Vec<Address>,
    pub(crate) tls: bool,
    pub(crate) authorities: Option<PathBuf>,
    pub(crate) timeout: Duration,
    pub(crate) record: Option<PathBuf>,
}

/// The address of one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// An invalid URL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadUrl(&'static str);

impl BadUrl {
    /// What is wrong with it.
    pub fn why(&self) -> &'static str {
        self.0
    }
}

impl fmt::Display for GearmanUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let servers: Vec<String> = self.servers.iter().map(Address::to_string).collect();
        write!(f, "gearman{}://{}", if self.tls { "s" } else { "" }, servers.join(","))
    }
}

impl GearmanUrl {
    /// Sets the record file.
    pub fn with_record(self, record: PathBuf) -> GearmanUrl {
        GearmanUrl { record: Some(record), ..self }
    }

    /// Whether the URL names a record file.
    pub fn has_record(&self) -> bool {
        self.record.is_some()
    }
}

impl FromStr for GearmanUrl {
    type Err = BadUrl;

    fn from_str(url: &str) -> Result<GearmanUrl, BadUrl> {
        let (scheme, rest) = url.split_once("://").ok_or(BadUrl("write it as gearman://HOST:PORT"))?;
        let encrypted = match scheme {
            "gearman" => false,
            "gearmans" => true,
            _ => return Err(BadUrl("its scheme is neither gearman nor gearmans")),
        };
        let (hosts, options) = split_query(rest);
        let hosts = hosts.strip_suffix('/').unwrap_or(hosts);
        if hosts.contains(['/', '@']) {
            return Err(BadUrl("Gearman has no databases and no passwords: write gearman://HOST:PORT"));
        }
        let servers: Vec<Address> = hosts.split(',').map(address).collect::<Result<_, _>>()?;
        if servers.len() > SERVERS_MAX {
            return Err(BadUrl("name at most 64 servers"));
        }
        if servers.iter().enumerate().any(|(position, server)| servers[..position].contains(server)) {
            return Err(BadUrl("name each server once"));
        }
        let mut url =
            GearmanUrl { servers, tls: encrypted, authorities: None, timeout: TIMEOUT, record: None };
        for option in options {
            match option {
                ("timeout", seconds) => {
                    let seconds = seconds.parse().ok().filter(|seconds| (1..=86_400).contains(seconds));
                    let seconds = seconds.ok_or(BadUrl("timeout is a number of seconds, from 1 to 86400"))?;
                    url.timeout = Duration::from_secs(seconds);
                }
                ("record", file) if !file.is_empty() => url.record = Some(file.into()),
                ("ca", file) if !file.is_empty() && encrypted => url.authorities = Some(file.into()),
                ("ca", _) => return Err(BadUrl("ca names a file, and only behind gearmans://")),
                _ => return Err(BadUrl("the only options are timeout, record and ca")),
            }
        }
        Ok(url)
    }
}

fn address(text: &str) -> Result<Address, BadUrl> {
    // The colons of an IPv6 address are within brackets.
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => {
            (host, port.parse().map_err(|_| BadUrl("a port is a number up to 65535"))?)
        }
        _ => (text, PORT),
    };
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    if host.is_empty() {
        return Err(BadUrl("name a host, as in gearman://127.0.0.1:4730"));
    }
    Ok(Address { host: host.to_owned(), port })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_servers_and_options() {
        let url: GearmanUrl = "gearmans://a,[::1]:5?timeout=2&record=/tmp/r&ca=/etc/ca.pem".parse().unwrap();
        assert_eq!(url.to_string(), "gearmans://a:4730,[::1]:5");
        assert_eq!((url.timeout, url.tls), (Duration::from_secs(2), true));
        assert_eq!((url.record, url.authorities), (Some("/tmp/r".into()), Some("/etc/ca.pem".into())));
        let url: GearmanUrl = "gearman://queue.example/".parse().unwrap();
        assert_eq!((url.to_string().as_str(), url.timeout), ("gearman://queue.example:4730", TIMEOUT));
    }

    #[test]
    fn an_invalid_url_is_refused_with_a_reason() {
        let too_many =
            format!("gearman://{}", (0..65).map(|n| format!("h{n}")).collect::<Vec<_>>().join(","));
        for (url, reason) in [
            ("gearman", "write it as gearman://HOST:PORT"),
            ("redis://h", "its scheme is neither gearman nor gearmans"),
            ("gearman://", "name a host, as in gearman://127.0.0.1:4730"),
            ("gearman://a,,b", "name a host, as in gearman://127.0.0.1:4730"),
            ("gearman://a:70000", "a port is a number up to 65535"),
            ("gearman://a,b,a:4730", "name each server once"),
            ("gearman://a/3", "Gearman has no databases and no passwords: write gearman://HOST:PORT"),
            ("gearman://me:pw@a", "Gearman has no databases and no passwords: write gearman://HOST:PORT"),
            ("gearman://a?timeout=0", "timeout is a number of seconds, from 1 to 86400"),
            ("gearman://a?timeout=soon", "timeout is a number of seconds, from 1 to 86400"),
            ("gearman://a?ca=x", "ca names a file, and only behind gearmans://"),
            ("gearman://a?colour=red", "the only options are timeout, record and ca"),
            ("gearman://a?record=", "the only options are timeout, record and ca"),
            (&too_many, "name at most 64 servers"),
        ] {
            assert_eq!(url.parse::<GearmanUrl>(), Err(BadUrl(reason)), "{url}");
        }
    }
}
