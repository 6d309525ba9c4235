//! URLs of queues on Redis, on Valkey or on a geartrain server.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use geartrain_core::split_query;

/// How long a call is retried if the URL does not say.
const PATIENCE: Duration = Duration::from_secs(30);

/// The URL of a queue.
///
/// | URL | what |
/// |---|---|
/// | `redis://[USER:PASSWORD@]HOST[:PORT][/DB]` | one Redis, or a geartrain server |
/// | `rediss://…` | the same, encrypted |
/// | `unix:PATH`, `redis+unix:///PATH` | the same, through a socket file |
/// | `redis+sentinel://[USER:PASSWORD@]HOST:PORT,HOST:PORT/MASTER[/DB]` | whichever Redis the sentinels name |
/// | `redis+cluster://[USER:PASSWORD@]HOST:PORT,HOST:PORT` | the node of a Cluster that the namespace is on |
///
/// `valkey` in place of `redis` is the same, and an `s` before the `+` encrypts. Options behind a `?`:
/// `prefix=` goes before every key, so that one Redis holds several queues; `replicas=N` waits for that many
/// replicas after each call; `patience=SECONDS` is how long a call is retried after a lost connection, and
/// how long a node that owes a reply may be silent. With TLS, `ca=FILE` names the authorities (PEM) that may
/// sign the server's certificate, instead of the usual ones, and `cert=FILE` and `key=FILE` are the client's own
/// certificate and its key, for servers that require one.
///
/// ```
/// use geartrain_redis::RedisUrl;
/// let url: RedisUrl = "redis+cluster://a:7000,b:7000?prefix=shop".parse()?;
/// assert_eq!(url.prefix(), "{shop}"); // so that all keys are on one node
/// assert!("redis://".parse::<RedisUrl>().is_err());
/// # Ok::<(), geartrain_redis::BadUrl>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct RedisUrl {
    pub(crate) kind: Kind,
    pub(crate) encrypted: bool,
    pub(crate) tls_files: TlsFiles,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) database: i64,
    pub(crate) prefix: String,
    pub(crate) replicas: u32,
    pub(crate) patience: Duration,
}

/// The PEM files of the URL.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    pub(crate) authorities: Option<PathBuf>,
    pub(crate) certificate: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
}

/// How the node is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    Single(Node),
    Unix(PathBuf),
    Sentinel { sentinels: Vec<Node>, master: String },
    Cluster(Vec<Node>),
}

pub(crate) type Node = (String, u16);

/// Why a text is not such a URL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadUrl(pub(crate) &'static str);

impl BadUrl {
    /// The reason, as a sentence without the URL.
    pub fn why(&self) -> &'static str {
        self.0
    }
}

/// Without the password.
impl std::fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let secure = if self.encrypted { "s" } else { "" };
        let nodes = |nodes: &[Node]| {
            let nodes: Vec<String> = nodes.iter().map(|(host, port)| format!("{host}:{port}")).collect();
            nodes.join(",")
        };
        match &self.kind {
            Kind::Single(node) => write!(f, "redis{secure}://{}", nodes(std::slice::from_ref(node))),
            Kind::Unix(path) => write!(f, "redis+unix://{}", path.display()),
            Kind::Sentinel { sentinels, master } => {
                write!(f, "redis{secure}+sentinel://{}/{master}", nodes(sentinels))
            }
            Kind::Cluster(seeds) => write!(f, "redis{secure}+cluster://{}", nodes(seeds)),
        }
    }
}

/// Without the password, because debug output ends up in logs.
impl std::fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RedisUrl({self})")
    }
}

impl RedisUrl {
    /// The prefix of every key.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// A queue behind a Unix socket.
    pub fn of_socket(path: PathBuf) -> RedisUrl {
        RedisUrl::at(Kind::Unix(path), false)
    }

    fn at(kind: Kind, encrypted: bool) -> RedisUrl {
        RedisUrl {
            kind,
            encrypted,
            tls_files: TlsFiles::default(),
            user: None,
            password: None,
            database: 0,
            prefix: String::new(),
            replicas: 0,
            patience: PATIENCE,
        }
    }
}

struct Scheme {
    encrypted: bool,
    form: Form,
}

#[derive(PartialEq)]
enum Form {
    Single,
    Unix,
    Sentinel,
    Cluster,
}

impl Scheme {
    fn of(scheme: &str) -> Option<Scheme> {
        let (system, form) = scheme.split_once('+').unwrap_or((scheme, ""));
        let encrypted = match system {
            "redis" | "valkey" => false,
            "rediss" | "valkeys" => true,
            _ => return None,
        };
        let form = match form {
            "" => Form::Single,
            "unix" if !encrypted => Form::Unix,
            "sentinel" => Form::Sentinel,
            "cluster" => Form::Cluster,
            _ => return None,
        };
        Some(Scheme { encrypted, form })
    }
}

impl FromStr for RedisUrl {
    type Err = BadUrl;

    fn from_str(url: &str) -> Result<RedisUrl, BadUrl> {
        let (scheme, rest) = match url.strip_prefix("unix:") {
            Some(path) => ("redis+unix", path.strip_prefix("//").unwrap_or(path)),
            None => url.split_once("://").ok_or(BadUrl("write it as redis://HOST:PORT"))?,
        };
        let Scheme { encrypted, form } = Scheme::of(scheme).ok_or(BadUrl(
            "its scheme is none of redis, rediss, redis+unix, redis+sentinel and redis+cluster",
        ))?;
        let (rest, options) = split_query(rest);
        let (credentials, place) = match rest.rsplit_once('@') {
            Some((credentials, place)) => (Some(credentials), place),
            None => (None, rest),
        };
        let (hosts, path) = match form {
            Form::Unix => ("", place),
            _ => place.split_once('/').unwrap_or((place, "")),
        };
        let (kind, database) = match form {
            Form::Single => (Kind::Single(node(hosts, 6379)?), path),
            Form::Unix if path.is_empty() => {
                return Err(BadUrl("name the socket file, as in redis+unix:///run/queue.sock"));
            }
            Form::Unix => (Kind::Unix(PathBuf::from(decoded(path)?)), ""),
            Form::Sentinel => {
                let (master, database) = path.split_once('/').unwrap_or((path, ""));
                if master.is_empty() {
                    return Err(BadUrl(
                        "name the master behind the sentinels, as in redis+sentinel://HOST:PORT/MASTER",
                    ));
                }
                let sentinels = hosts.split(',').map(|host| node(host, 26379)).collect::<Result<_, _>>()?;
                (Kind::Sentinel { sentinels, master: decoded(master)? }, database)
            }
            Form::Cluster if !path.is_empty() => return Err(BadUrl("a Cluster has no database numbers")),
            Form::Cluster => {
                (Kind::Cluster(hosts.split(',').map(|host| node(host, 6379)).collect::<Result<_, _>>()?), "")
            }
        };
        let clustered = matches!(kind, Kind::Cluster(_));
        let mut url = RedisUrl::at(kind, encrypted);
        if !database.is_empty() {
            url.database = database
                .parse()
                .ok()
                .filter(|number| *number >= 0)
                .ok_or(BadUrl("a database is a number"))?;
        }
        if let Some(credentials) = credentials {
            let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
            url.user = Some(decoded(user)?).filter(|user| !user.is_empty());
            url.password = Some(decoded(password)?).filter(|password| !password.is_empty());
        }
        for option in options {
            match option {
                ("prefix", prefix) => url.prefix = decoded(prefix)?,
                ("replicas", count) => {
                    url.replicas = count.parse().map_err(|_| BadUrl("replicas is a number"))?;
                }
                ("patience", seconds) => {
                    let seconds = seconds.parse().map_err(|_| BadUrl("patience is a number of seconds"))?;
                    url.patience = Duration::from_secs(seconds);
                }
                ("ca" | "cert" | "key", file) if !encrypted || file.is_empty() => {
                    return Err(BadUrl("ca, cert and key name files, and only behind rediss://"));
                }
                ("ca", file) => url.tls_files.authorities = Some(decoded(file)?.into()),
                ("cert", file) => url.tls_files.certificate = Some(decoded(file)?.into()),
                ("key", file) => url.tls_files.key = Some(decoded(file)?.into()),
                _ => return Err(BadUrl("the only options are prefix, replicas, patience, ca, cert and key")),
            }
        }
        if url.tls_files.certificate.is_some() != url.tls_files.key.is_some() {
            return Err(BadUrl("cert and key belong together"));
        }
        if clustered && !tagged(&url.prefix) {
            let name = if url.prefix.is_empty() { "geartrain" } else { &url.prefix };
            url.prefix = format!("{{{name}}}");
        }
        Ok(url)
    }
}

/// Whether the prefix has a hash tag, which a Cluster takes instead of the whole key to choose a slot.
fn tagged(prefix: &str) -> bool {
    prefix.split_once('{').is_some_and(|(_, rest)| rest.find('}').is_some_and(|end| end > 0))
}

fn node(text: &str, port: u16) -> Result<Node, BadUrl> {
    let wrong = BadUrl("name a host, as in redis://127.0.0.1:7411");
    // The colons of an IPv6 address are inside brackets.
    let (host, port) = match text.rsplit_once(':') {
        Some((host, number)) if !number.contains(']') => {
            (host, number.parse().map_err(|_| BadUrl("a port is a number up to 65535"))?)
        }
        _ => (text, port),
    };
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    if host.is_empty() { Err(wrong) } else { Ok((host.to_owned(), port)) }
}

/// Percent-decodes.
pub(crate) fn decoded(text: &str) -> Result<String, BadUrl> {
    let wrong = || BadUrl("behind a % come two hex digits");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [byte, after @ ..] = rest {
        rest = after;
        if *byte != b'%' {
            bytes.push(*byte);
            continue;
        }
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok()).ok_or_else(wrong)?;
        bytes.push(u8::from_str_radix(digits, 16).map_err(|_| wrong())?);
        rest = &after[2..];
    }
    String::from_utf8(bytes).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> RedisUrl {
        url.parse().unwrap_or_else(|error| panic!("{url}: {error}"))
    }

    fn node(host: &str, port: u16) -> Node {
        (host.to_owned(), port)
    }

    #[test]
    fn urls_are_parsed() {
        let url = parse("rediss://ann:s%40cret@queue.example:7000/3?prefix=a:&replicas=2&patience=5");
        assert_eq!(url.kind, Kind::Single(node("queue.example", 7000)));
        assert!(url.encrypted);
        assert_eq!((url.user.as_deref(), url.password.as_deref()), (Some("ann"), Some("s@cret")));
        assert_eq!((url.database, url.prefix.as_str(), url.replicas), (3, "a:", 2));
        assert_eq!(url.patience, Duration::from_secs(5));

        let url = parse("rediss://h?ca=/etc/ca.pem&cert=c%20d.pem&key=k");
        let files = [&url.tls_files.authorities, &url.tls_files.certificate, &url.tls_files.key];
        assert_eq!(
            files.map(|file| file.as_deref().unwrap().to_str().unwrap()),
            ["/etc/ca.pem", "c d.pem", "k"]
        );

        assert_eq!(parse("redis://localhost").kind, Kind::Single(node("localhost", 6379)));
        assert_eq!(parse("valkey://[::1]:7411").kind, Kind::Single(node("::1", 7411)));
        assert_eq!(parse("redis://:pw@h").password.as_deref(), Some("pw"));
        for url in ["redis+unix:///run/q.sock", "unix:/run/q.sock", "unix:///run/q.sock"] {
            assert_eq!(parse(url).kind, Kind::Unix("/run/q.sock".into()), "{url}");
        }
        assert_eq!(parse("unix:q.sock?prefix=a").kind, Kind::Unix("q.sock".into()));
        let sentinels = parse("redis+sentinel://a,b:5/main/2");
        let expected =
            Kind::Sentinel { sentinels: vec![node("a", 26379), node("b", 5)], master: "main".into() };
        assert_eq!((sentinels.kind, sentinels.database), (expected, 2));
        assert_eq!(parse("valkeys+cluster://a:1,b:2").prefix(), "{geartrain}");
        assert_eq!(parse("redis+cluster://a:1?prefix=x{y}").prefix(), "x{y}");
    }

    #[test]
    fn bad_urls_are_refused_with_the_reason() {
        for (url, why) in [
            ("redis", "write it as redis://HOST:PORT"),
            ("http://h", "its scheme is none of redis, rediss, redis+unix, redis+sentinel and redis+cluster"),
            ("redis://", "name a host, as in redis://127.0.0.1:7411"),
            ("redis://:7411", "name a host, as in redis://127.0.0.1:7411"),
            ("redis://h:70000", "a port is a number up to 65535"),
            ("redis://h/x", "a database is a number"),
            ("redis://h/-1", "a database is a number"),
            ("redis+unix://", "name the socket file, as in redis+unix:///run/queue.sock"),
            (
                "redis+sentinel://h",
                "name the master behind the sentinels, as in redis+sentinel://HOST:PORT/MASTER",
            ),
            ("redis+cluster://h/1", "a Cluster has no database numbers"),
            ("redis://h?colour=red", "the only options are prefix, replicas, patience, ca, cert and key"),
            ("redis://h?ca=x", "ca, cert and key name files, and only behind rediss://"),
            ("rediss://h?ca=", "ca, cert and key name files, and only behind rediss://"),
            ("rediss://h?cert=x", "cert and key belong together"),
            ("redis://a%4:b@h", "behind a % come two hex digits"),
        ] {
            assert_eq!(url.parse::<RedisUrl>(), Err(BadUrl(why)), "{url}");
        }
    }
}
