//! Where Gearman servers are.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Where servers listen if nobody says otherwise.
const PORT: u16 = 4730;
/// How long a call may take, if the URL does not say.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The most servers that one URL names.
const SERVERS_MAX: usize = 64;

/// Where one or several Gearman servers are: `gearman://HOST[:PORT][,HOST[:PORT]…]`, and `gearmans://` for TLS.
///
/// Behind a `?`: `timeout=SECONDS` is how long a call is tried before it is given up (30), `record=FILE` keeps a [record](super::Record) of what is put, and `ca=FILE` names the certificates (PEM) that
/// may have signed those of the servers.
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

/// Where one server is.
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

/// A text that is not the URL of Gearman servers.
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
    /// Whether a URL's scheme is one of these, whatever follows it.
    pub fn has_gearman_scheme(url: &str) -> bool {
        matches!(url.split_once("://"), Some(("gearman" | "gearmans", _)))
    }

    /// The same servers, with a record of what is put to them.
    pub fn with_record(self, record: PathBuf) -> GearmanUrl {
        GearmanUrl { record: Some(record), ..self }
    }

    /// Whether there is a record of what is put to them.
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
        let (hosts, query) = rest.split_once('?').unwrap_or((rest, ""));
        let hosts = hosts.strip_suffix('/').unwrap_or(hosts);
        if hosts.contains(['/', '@']) {
            return Err(BadUrl("Gearman has no databases and no passwords: write gearman://HOST:PORT"));
        }
        let servers: Vec<Address> = hosts.split(',').map(address).collect::<Result<_, _>>()?;
        if servers.len() > SERVERS_MAX {
            return Err(BadUrl("name at most 64 servers"));
        }
        if servers.iter().enumerate().any(|(place, server)| servers[..place].contains(server)) {
            return Err(BadUrl("name each server once"));
        }
        let mut url =
            GearmanUrl { servers, tls: encrypted, authorities: None, timeout: TIMEOUT, record: None };
        for option in query.split('&').filter(|option| !option.is_empty()) {
            match option.split_once('=') {
                Some(("timeout", seconds)) => {
                    let seconds = seconds.parse().ok().filter(|seconds| (1..=86_400).contains(seconds));
                    let seconds = seconds.ok_or(BadUrl("timeout is a number of seconds, from 1 to 86400"))?;
                    url.timeout = Duration::from_secs(seconds);
                }
                Some(("record", file)) if !file.is_empty() => url.record = Some(file.into()),
                Some(("ca", file)) if !file.is_empty() && encrypted => url.authorities = Some(file.into()),
                Some(("ca", _)) => return Err(BadUrl("ca names a file, and only behind gearmans://")),
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
    fn a_url_says_where_and_how() {
        let url: GearmanUrl = "gearmans://a,[::1]:5?timeout=2&record=/tmp/r&ca=/etc/ca.pem".parse().unwrap();
        assert_eq!(url.to_string(), "gearmans://a:4730,[::1]:5");
        assert_eq!((url.timeout, url.tls), (Duration::from_secs(2), true));
        assert_eq!((url.record, url.authorities), (Some("/tmp/r".into()), Some("/etc/ca.pem".into())));
        let url: GearmanUrl = "gearman://queue.example/".parse().unwrap();
        assert_eq!((url.to_string().as_str(), url.timeout), ("gearman://queue.example:4730", TIMEOUT));
        assert!(GearmanUrl::has_gearman_scheme("gearman://"));
        assert!(!GearmanUrl::has_gearman_scheme("german://a"));
    }

    #[test]
    fn what_is_no_such_url_is_refused_with_what_is_wrong() {
        let too_many =
            format!("gearman://{}", (0..65).map(|n| format!("h{n}")).collect::<Vec<_>>().join(","));
        for (url, why) in [
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
            assert_eq!(url.parse::<GearmanUrl>(), Err(BadUrl(why)), "{url}");
        }
    }
}
