//! Connecting: from a URL to a [`Client`].

#[cfg(feature = "embedded")]
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

#[cfg(feature = "gearman")]
use geartrain_gearman::client::{GearmanBackend, GearmanUrl};
#[cfg(feature = "redis")]
use geartrain_redis::gearmonkey::{GearMonkeyBackend, GearMonkeyUrl};
#[cfg(feature = "redis")]
use geartrain_redis::workkit::{WorkKitBackend, WorkKitUrl};
#[cfg(feature = "redis")]
use geartrain_redis::worqr::{WorqrBackend, WorqrUrl};
#[cfg(feature = "redis")]
use geartrain_redis::{RedisBackend, RedisUrl};
#[cfg(feature = "embedded")]
use geartrain_store::SyncMode;

#[cfg(feature = "embedded")]
use crate::embedded;
use crate::{Client, Error};

/// Opens the queue that a URL names.
///
/// | URL | queue | feature |
/// |---|---|---|
/// | `memory:` | in this process, lost when it ends | `embedded` |
/// | `embedded:DIR`, or a path with a slash in it | in this process, stored in a directory | `embedded` |
/// | `redis://HOST:PORT` and the other forms of `RedisUrl` | on a geartrain server, a Redis or a Valkey | `redis` |
/// | `gearmonkey+redis://HOST:PORT`, see `GearMonkeyUrl` | GearMonkey functions on a Redis or a Valkey, within its protocol's limits | `redis` |
/// | `workkit+redis://HOST:PORT`, see `WorkKitUrl` | WorkKit schedules on a Redis or a Valkey, within WorkKit's limits | `redis` |
/// | `worqr+redis://HOST:PORT`, see `WorqrUrl` | Worqr's queues on a Redis or a Valkey, within Worqr's limits | `redis` |
/// | `gearman://HOST:PORT,HOST:PORT`, see `GearmanUrl` | on one or more Gearman servers, within their protocol's limits | `gearman` |
///
/// A URL whose feature is disabled gives [`Error::FeatureDisabled`], which names the feature.
///
/// One process at a time owns a directory. With the feature `socket` it lets other processes in through a
/// socket file in the directory; a process with the feature `redis` that connects to the same URL uses that
/// socket. When the owner ends, one of the others opens the directory and serves the socket.
///
/// Options of a directory: `?sync=50ms` syncs to disk at this interval, and `?sync=never` leaves it to the
/// operating system, instead of syncing before each acknowledgement. `?memory=512mb` is how many bytes of
/// payloads stay in memory (1 GB by default); the rest is read from disk on demand. Combined:
/// `?sync=50ms&memory=512mb`.
///
/// ```
/// # pollster::block_on(async {
/// assert!(geartrain::connect("memory:").await.is_ok());
/// let error = geartrain::connect("carrier-pigeon:").await.err().expect("there is no such scheme");
/// assert_eq!(
///     error.to_string(),
///     r#""carrier-pigeon:" is not the URL of a queue: use redis://HOST:PORT, gearman://HOST:PORT, gearmonkey+redis://HOST:PORT, workkit+redis://HOST:PORT, worqr+redis://HOST:PORT, embedded:DIR or memory:"#
/// );
/// # });
/// ```
///
/// On Gearman servers the server chooses the job's id, and a job's klass is its queue:
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
/// use std::time::Duration;
/// let client = geartrain::connect("gearman://10.0.0.1,10.0.0.2").await?;
/// let put = client.put("resize", "resize", "cat.jpg").priority(1.0);
/// let ended = client.put_and_wait(put, Some(Duration::from_secs(30))).await?;
/// println!("{} returned {} bytes", ended.jid, ended.result.bytes.bytes().len());
/// # Ok(()) }) }
/// ```
pub async fn connect(url: &str) -> Result<Client, Error> {
    connect_as_host(url, HostOptions::default()).await
}

/// Connects as the reliable consumer of events: one that must receive every event, across its own restarts.
///
/// A directory owned by this process retains the events that the consumer has not [acknowledged](
/// crate::Backend::ack_events), also across restarts, up to a million of them or 256 MB. Other queues retain
/// the last 10,000 events, as always.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
/// # let directory = std::env::temp_dir().join(format!("geartrain-consumer-doc-{}", std::process::id()));
/// # let url = format!("embedded:{}", directory.display());
/// let client = geartrain::connect_as_consumer(&url).await?;
/// let mut events = client.events().await?;
/// client.put("mail", "welcome", "{}").await?;
/// let last = events.next().await?.position; // and once that is stored elsewhere:
/// client.backend().ack_events(last);
/// # drop((events, client));
/// # std::fs::remove_dir_all(directory)?;
/// # Ok(()) }) }
/// ```
pub async fn connect_as_consumer(url: &str) -> Result<Client, Error> {
    connect_as_host(url, HostOptions { is_consumer: true, ..HostOptions::default() }).await
}

/// Rejects a clock before 1970. Creating a job id from it would panic later, in the middle of a command.
fn check_clock(now: SystemTime) -> Result<(), Error> {
    let since = now.duration_since(UNIX_EPOCH);
    since.map(drop).map_err(|before| Error::Clock { seconds: before.duration().as_secs().max(1) })
}

/// How the owner of a directory hosts it. Without effect for other queues.
#[derive(Debug, Clone, Copy, Default)]
pub struct HostOptions {
    /// The owner is the [reliable consumer](connect_as_consumer) of events.
    pub is_consumer: bool,
    /// Processes that use the directory through its owner may change nothing. The owner itself may.
    pub read_only: bool,
}

/// Connects as a server does.
#[cfg_attr(not(feature = "embedded"), allow(unused_variables, reason = "only a directory has a host"))]
pub async fn connect_as_host(url: &str, host: HostOptions) -> Result<Client, Error> {
    check_clock(SystemTime::now())?;
    match Target::of(url)? {
        #[cfg(feature = "embedded")]
        Target::Memory => embedded::in_memory(),
        #[cfg(feature = "embedded")]
        Target::Directory { directory, sync, memory } => embedded::open(&directory, sync, memory, host).await,
        #[cfg(feature = "redis")]
        Target::Redis(url) => client(&url, RedisBackend::connect(url.clone()).await),
        #[cfg(feature = "redis")]
        Target::GearMonkey(url) => client(&url, GearMonkeyBackend::connect(url.clone()).await),
        #[cfg(feature = "redis")]
        Target::WorkKit(url) => client(&url, WorkKitBackend::connect(url.clone()).await),
        #[cfg(feature = "redis")]
        Target::Worqr(url) => client(&url, WorqrBackend::connect(url.clone()).await),
        #[cfg(feature = "gearman")]
        Target::Gearman(url) => client(&url, GearmanBackend::connect(url.clone()).await),
    }
}

#[cfg(any(feature = "redis", feature = "gearman"))]
fn client<B: crate::Backend>(
    url: &impl std::fmt::Display,
    connected: Result<B, crate::BackendError>,
) -> Result<Client, Error> {
    match connected {
        Ok(backend) => Ok(Client::new(std::sync::Arc::new(backend))),
        Err(source) => Err(Error::Connect { url: url.to_string(), source }),
    }
}

/// The backend that a URL names, parsed. A variant exists if its feature is enabled.
///
/// ```
/// use geartrain::Target;
/// let target = Target::of("embedded:./data?sync=never")?;
/// assert!(matches!(target, Target::Directory { directory, .. } if directory.ends_with("data")));
/// # Ok::<(), geartrain::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Target {
    /// In this process, lost when it ends.
    #[cfg(feature = "embedded")]
    Memory,
    /// In this process, stored in a directory.
    #[cfg(feature = "embedded")]
    Directory {
        /// Where the files are.
        directory: PathBuf,
        /// When changes are synced to disk.
        sync: SyncMode,
        /// How many bytes of payloads stay in memory.
        memory: u64,
    },
    /// On a geartrain server, a Redis or a Valkey.
    #[cfg(feature = "redis")]
    Redis(RedisUrl),
    /// GearMonkey functions on a Redis or a Valkey.
    #[cfg(feature = "redis")]
    GearMonkey(GearMonkeyUrl),
    /// WorkKit schedules on a Redis or a Valkey.
    #[cfg(feature = "redis")]
    WorkKit(WorkKitUrl),
    /// Worqr's queues on a Redis or a Valkey.
    #[cfg(feature = "redis")]
    Worqr(WorqrUrl),
    /// On one or more Gearman servers.
    #[cfg(feature = "gearman")]
    Gearman(GearmanUrl),
}

/// The kinds of backend, whether or not their features are enabled.
enum Kind {
    Memory,
    Directory,
    Redis,
    GearMonkey,
    WorkKit,
    Worqr,
    Gearman,
}

impl Kind {
    fn of(url: &str) -> Option<Kind> {
        if url.starts_with("embedded:") {
            return Some(Kind::Directory);
        }
        if url.starts_with("unix:") {
            return Some(Kind::Redis);
        }
        match url.split_once("://") {
            Some((scheme, _)) => match scheme.split('+').next() {
                Some("redis" | "rediss" | "valkey" | "valkeys") => Some(Kind::Redis),
                Some("gearmonkey") => Some(Kind::GearMonkey),
                Some("workkit") => Some(Kind::WorkKit),
                Some("worqr") => Some(Kind::Worqr),
                Some("gearman" | "gearmans") => Some(Kind::Gearman),
                // An unknown scheme is not taken for a directory.
                _ => None,
            },
            None if url == "memory:" => Some(Kind::Memory),
            None if url.contains('/') => Some(Kind::Directory),
            None => None,
        }
    }
}

impl Target {
    /// Parses a URL. Does not check whether there is a queue.
    pub fn of(url: &str) -> Result<Target, Error> {
        let wrong = |why: &'static str| Error::Url { url: without_password(url), why };
        #[cfg_attr(
            all(feature = "embedded", feature = "redis", feature = "gearman"),
            allow(unused_variables, reason = "nothing is disabled")
        )]
        let disabled = |feature| Error::FeatureDisabled { url: without_password(url), feature };
        #[cfg(feature = "redis")]
        let bad_redis_url = |bad: geartrain_redis::BadUrl| wrong(bad.why());
        let Some(kind) = Kind::of(url) else {
            return Err(wrong(
                "use redis://HOST:PORT, gearman://HOST:PORT, gearmonkey+redis://HOST:PORT, workkit+redis://HOST:PORT, \
                 worqr+redis://HOST:PORT, \
                 embedded:DIR or memory:",
            ));
        };
        match kind {
            #[cfg(feature = "embedded")]
            Kind::Memory => Ok(Target::Memory),
            #[cfg(feature = "embedded")]
            Kind::Directory => {
                let directory = url.strip_prefix("embedded:").unwrap_or(url);
                embedded::parse_directory(directory).map_err(wrong)
            }
            #[cfg(feature = "redis")]
            Kind::Redis => url.parse().map(Target::Redis).map_err(bad_redis_url),
            #[cfg(feature = "redis")]
            Kind::GearMonkey => url.parse().map(Target::GearMonkey).map_err(bad_redis_url),
            #[cfg(feature = "redis")]
            Kind::WorkKit => url.parse().map(Target::WorkKit).map_err(bad_redis_url),
            #[cfg(feature = "redis")]
            Kind::Worqr => url.parse().map(Target::Worqr).map_err(bad_redis_url),
            #[cfg(feature = "gearman")]
            Kind::Gearman => url
                .parse()
                .map(Target::Gearman)
                .map_err(|bad: geartrain_gearman::client::BadUrl| wrong(bad.why())),
            #[cfg(not(feature = "embedded"))]
            Kind::Memory | Kind::Directory => Err(disabled("embedded")),
            #[cfg(not(feature = "redis"))]
            Kind::Redis | Kind::GearMonkey | Kind::WorkKit | Kind::Worqr => Err(disabled("redis")),
            #[cfg(not(feature = "gearman"))]
            Kind::Gearman => Err(disabled("gearman")),
        }
    }
}

/// A URL for errors and logs, without the user name and the password.
pub fn without_password(url: &str) -> String {
    match url.split_once("://").and_then(|(scheme, rest)| Some((scheme, rest.rsplit_once('@')?.1))) {
        Some((scheme, target)) => format!("{scheme}://…@{target}"),
        None => url.to_owned(),
    }
}

/// For people and logs: without passwords.
impl std::fmt::Display for Target {
    #[cfg_attr(
        not(any(feature = "embedded", feature = "redis", feature = "gearman")),
        allow(unused_variables, reason = "there is no variant to show")
    )]
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            #[cfg(feature = "embedded")]
            Target::Memory => f.write_str("memory"),
            #[cfg(feature = "embedded")]
            Target::Directory { ref directory, .. } => directory.display().fmt(f),
            #[cfg(feature = "redis")]
            Target::Redis(ref url) => url.fmt(f),
            #[cfg(feature = "redis")]
            Target::GearMonkey(ref url) => url.fmt(f),
            #[cfg(feature = "redis")]
            Target::WorkKit(ref url) => url.fmt(f),
            #[cfg(feature = "redis")]
            Target::Worqr(ref url) => url.fmt(f),
            #[cfg(feature = "gearman")]
            Target::Gearman(ref url) => url.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_clock_before_1970_is_an_error_and_no_panic() {
        assert!(check_clock(UNIX_EPOCH).is_ok());
        let error = check_clock(UNIX_EPOCH - Duration::from_secs(90)).unwrap_err();
        assert_eq!(error.to_string(), "this machine's clock is 90 s before 1970: set it, and try again");
    }

    #[test]
    fn a_url_whose_feature_is_disabled_is_refused_with_its_name() {
        for (url, feature, enabled) in [
            ("memory:", "embedded", cfg!(feature = "embedded")),
            ("embedded:data", "embedded", cfg!(feature = "embedded")),
            ("./data", "embedded", cfg!(feature = "embedded")),
            ("redis://h", "redis", cfg!(feature = "redis")),
            ("rediss+cluster://h", "redis", cfg!(feature = "redis")),
            ("valkey+sentinel://h/main", "redis", cfg!(feature = "redis")),
            ("unix:/run/q.sock", "redis", cfg!(feature = "redis")),
            ("gearmonkey+redis://h", "redis", cfg!(feature = "redis")),
            ("workkit+redis://h", "redis", cfg!(feature = "redis")),
            ("worqr+redis://h", "redis", cfg!(feature = "redis")),
            ("gearman://h", "gearman", cfg!(feature = "gearman")),
            ("gearmans://h", "gearman", cfg!(feature = "gearman")),
        ] {
            match Target::of(url) {
                Ok(target) => assert!(enabled, "{target}"),
                Err(error) => {
                    assert!(!enabled, "{error}");
                    assert_eq!(
                        error.to_string(),
                        format!(
                            "{url:?} needs the crate feature `{feature}`: \
                             write features = [\"{feature}\"] for geartrain in Cargo.toml"
                        )
                    );
                }
            }
        }
        assert!(matches!(Target::of("http://h"), Err(Error::Url { .. })));
    }

    #[cfg(feature = "redis")]
    #[test]
    fn a_password_is_never_shown() {
        let error = Target::of("redis://ann:secret@h:70000").unwrap_err();
        assert_eq!(
            error.to_string(),
            r#""redis://…@h:70000" is not the URL of a queue: a port is a number up to 65535"#
        );
        let target = Target::of("redis://ann:secret@h:7000").unwrap();
        assert_eq!(target.to_string(), "redis://h:7000");
        assert!(!format!("{target:?}").contains("secret"));
    }
}
