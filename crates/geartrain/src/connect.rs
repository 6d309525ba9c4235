//! From a URL to a queue.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use geartrain_core::SystemClock;
use geartrain_gearman::client::{GearmanBackend, GearmanUrl};
use geartrain_redis::{BadUrl, RedisBackend, RedisUrl};
use geartrain_store::{OpenError, StoreBackend, StoreOptions, SyncMode, memory_limit};

use crate::serving::socket_in;
use crate::{Client, Error, timer};

/// Opens the queue that a URL names.
///
/// | URL | queue |
/// |---|---|
/// | `memory:` | in this process, and gone with it |
/// | `embedded:DIR`, or a path with a slash in it | in this process, and kept in a directory |
/// | `redis://HOST:PORT`, and [others](geartrain_redis::RedisUrl) | on a geartrain server, a Redis or a Valkey |
/// | `gearman://HOST:PORT,HOST:PORT` ([more](geartrain_gearman::client::GearmanUrl)) | on one or several Gearman servers, with [what they can do](geartrain_gearman::client) |
///
/// A directory belongs to one process at a time. That process lets others in through a socket file in the directory, so that the same URL works there too.
/// With `?sync=50ms` behind a directory, what is done is forced to the disk so often, and with `?sync=never` when the system likes,
/// instead of before it is acknowledged. With `?memory=512mb` so many bytes of payloads stay in memory, instead of 1 GB, and the others are read from the
/// disk when they are asked for. Both together are `?sync=50ms&memory=512mb`.
///
/// ```
/// # pollster::block_on(async {
/// assert!(geartrain::connect("memory:").await.is_ok());
/// let error = geartrain::connect("carrier-pigeon:").await.err().expect("nobody knows such a queue");
/// assert_eq!(
///     error.to_string(),
///     r#""carrier-pigeon:" is not the URL of a queue: use redis://HOST:PORT, gearman://HOST:PORT, embedded:DIR or memory:"#
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
/// println!("{} came out of {}", ended.outcome.bytes.bytes().len(), ended.jid);
/// # Ok(()) }) }
/// ```
pub async fn connect(url: &str) -> Result<Client, Error> {
    reach(url, 0).await
}

/// How many events a directory holds for whoever is to have every one of them.
const EVENTS_HELD_MAX: usize = 1_000_000;

/// The same for somebody who is to have every event, whatever stops them on the way. A directory of this process holds the events that they have not [let
/// go](crate::Backend::let_events_go), across restarts too, up to a million of them or 256 MB. Other queues keep as many as ever: the last 10,000.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
/// # let directory = std::env::temp_dir().join(format!("geartrain-follow-doc-{}", std::process::id()));
/// # let url = format!("embedded:{}", directory.display());
/// let client = geartrain::connect_to_follow(&url).await?;
/// let mut events = client.events().await?;
/// client.put("mail", "welcome", "{}").await?;
/// let last = events.next().await?.position; // and once that is safe elsewhere:
/// client.backend().let_events_go(last);
/// # drop((events, client));
/// # std::fs::remove_dir_all(directory)?;
/// # Ok(()) }) }
/// ```
pub async fn connect_to_follow(url: &str) -> Result<Client, Error> {
    reach(url, EVENTS_HELD_MAX).await
}

/// Refuses to begin with a clock from which no id can be made: making one would panic later, in the middle of
/// something.
fn check_clock(now: SystemTime) -> Result<(), Error> {
    let since = now.duration_since(UNIX_EPOCH);
    since.map(drop).map_err(|before| Error::Clock { seconds: before.duration().as_secs().max(1) })
}

async fn reach(url: &str, events_held_max: usize) -> Result<Client, Error> {
    check_clock(SystemTime::now())?;
    match Target::of(url)? {
        Target::Memory => Ok(Client::new(Arc::new(StoreBackend::in_memory(Arc::new(SystemClock))?))),
        Target::Directory { directory, sync, memory } => {
            let memory_limit = memory_limit();
            let kept = StoreOptions { sync, payload_memory: memory, memory_limit, ..StoreOptions::default() };
            let options = StoreOptions { events_held_max, ..kept };
            open(&directory, options).await
        }
        Target::Redis(url) => {
            let backend = RedisBackend::connect(url.clone()).await;
            Ok(Client::new(Arc::new(
                backend.map_err(|source| Error::Connect { url: url.to_string(), source })?,
            )))
        }
        Target::Gearman(url) => {
            let backend = GearmanBackend::connect(url.clone()).await;
            Ok(Client::new(Arc::new(
                backend.map_err(|source| Error::Connect { url: url.to_string(), source })?,
            )))
        }
    }
}

/// How often to look whether another process has let go of a directory, and how long it has for that.
const LOOK: (Duration, u32) = (Duration::from_millis(20), 100);

/// Opens a directory, or the socket file of the process that has it.
async fn open(directory: &Path, options: StoreOptions) -> Result<Client, Error> {
    let mut looks = LOOK.1;
    loop {
        match StoreBackend::open(directory, options.clone(), Arc::new(SystemClock)) {
            Ok(store) => return Ok(Client::of_store(Arc::new(store), directory)),
            Err(OpenError::InUse) if looks > 0 => {
                looks -= 1;
                let socket = RedisUrl::of_socket(socket_in(directory));
                if let Ok(backend) = RedisBackend::connect(socket).await {
                    return Ok(Client::new(Arc::new(backend)));
                }
                // It has just begun or is about to end, or lets nobody in.
                timer::after(LOOK.0).await;
            }
            Err(source) => return Err(Error::Open { directory: directory.display().to_string(), source }),
        }
    }
}

/// Where a URL says that the queue is.
///
/// ```
/// use geartrain::Place;
/// assert!(matches!(Place::of("embedded:./data?sync=never")?, Place::Directory { directory, .. } if directory.ends_with("data")));
/// # Ok::<(), geartrain::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Target {
    /// In this process, and gone with it.
    Memory,
    /// In this process, and kept in a directory.
    Directory {
        /// Which.
        directory: PathBuf,
        /// When what is done is forced to the disk.
        sync: SyncMode,
        /// How many bytes of payloads stay in memory.
        memory: u64,
    },
    /// On a geartrain server, a Redis or a Valkey.
    Redis(RedisUrl),
    /// On one or several Gearman servers.
    Gearman(GearmanUrl),
}

impl Target {
    /// The place that a URL names, whether there is anything or not.
    pub fn of(url: &str) -> Result<Target, Error> {
        let wrong = |why: &'static str| Error::Url { url: without_password(url), why };
        if url == "memory:" {
            return Ok(Target::Memory);
        }
        if RedisUrl::is_one(url) {
            return url.parse().map(Target::Redis).map_err(|bad: BadUrl| wrong(bad.why()));
        }
        if GearmanUrl::has_gearman_scheme(url) {
            let parsed: Result<GearmanUrl, geartrain_gearman::client::BadUrl> = url.parse();
            return parsed.map(Target::Gearman).map_err(|bad| wrong(bad.why()));
        }
        let place = match url.strip_prefix("embedded:") {
            Some(place) => place,
            // A scheme that nobody knows is not taken for a directory.
            None if url.contains('/') && !url.contains("://") => url,
            None => return Err(wrong("use redis://HOST:PORT, gearman://HOST:PORT, embedded:DIR or memory:")),
        };
        let (directory, query) = place.split_once('?').unwrap_or((place, ""));
        if directory.is_empty() {
            return Err(wrong("name the directory, as in embedded:./geartrain-data"));
        }
        let StoreOptions { mut sync, payload_memory: mut memory, .. } = StoreOptions::default();
        for option in query.split('&').filter(|option| !option.is_empty()) {
            match option.split_once('=') {
                Some(("sync", mode)) => {
                    sync = sync_mode(mode).ok_or_else(|| wrong("sync is always, never, or like 50ms"))?;
                }
                Some(("memory", size)) => {
                    memory =
                        bytes(size).ok_or_else(|| wrong("memory is a size like 512mb: b, kb, mb or gb"))?;
                }
                _ => {
                    return Err(wrong(
                        "the only options are sync, like sync=50ms, and memory, like memory=512mb",
                    ));
                }
            }
        }
        Ok(Target::Directory { directory: directory.into(), sync, memory })
    }
}

/// A URL as it may be shown: what stands before an `@` is nobody's business.
fn without_password(url: &str) -> String {
    match url.split_once("://").and_then(|(scheme, rest)| Some((scheme, rest.rsplit_once('@')?.1))) {
        Some((scheme, place)) => format!("{scheme}://…@{place}"),
        None => url.to_owned(),
    }
}

/// What a place is called where people and logs see it.
impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Target::Memory => f.write_str("memory"),
            Target::Directory { directory, .. } => directory.display().fmt(f),
            Target::Redis(url) => url.fmt(f),
            Target::Gearman(url) => url.fmt(f),
        }
    }
}

fn sync_mode(mode: &str) -> Option<SyncMode> {
    match mode {
        "always" => Some(SyncMode::Always),
        "never" => Some(SyncMode::Never),
        _ => Some(SyncMode::Every(Duration::from_millis(mode.strip_suffix("ms")?.parse().ok()?))),
    }
}

/// A size like `512mb`, where a kilobyte has 1,024 bytes.
fn bytes(size: &str) -> Option<u64> {
    let digits = size.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = size.split_at(digits);
    let unit: u64 = match unit {
        "b" => 1,
        "kb" => 1 << 10,
        "mb" => 1 << 20,
        "gb" => 1 << 30,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_how_the_directory_is_used() {
        let default = StoreOptions::default().payload_memory;
        for (query, sync, memory) in [
            ("", SyncMode::Always, default),
            ("?sync=never", SyncMode::Never, default),
            ("?sync=50ms", SyncMode::Every(Duration::from_millis(50)), default),
            ("?memory=512mb", SyncMode::Always, 512 << 20),
            ("?memory=0b", SyncMode::Always, 0),
            ("?memory=3kb&sync=never", SyncMode::Never, 3 << 10),
            ("?sync=always&memory=2gb", SyncMode::Always, 2 << 30),
        ] {
            let expected = Target::Directory { directory: "data".into(), sync, memory };
            assert_eq!(Target::of(&format!("embedded:data{query}")).unwrap(), expected, "{query}");
        }
    }

    #[test]
    fn a_clock_before_1970_is_an_error_and_no_panic() {
        assert!(check_clock(UNIX_EPOCH).is_ok());
        let error = check_clock(UNIX_EPOCH - Duration::from_secs(90)).unwrap_err();
        assert_eq!(error.to_string(), "this machine's clock is 90 s before 1970: set it, and try again");
    }

    #[test]
    fn a_password_is_shown_to_nobody() {
        let error = Target::of("redis://ann:secret@h:70000").unwrap_err();
        assert_eq!(
            error.to_string(),
            r#""redis://…@h:70000" is not the URL of a queue: a port is a number up to 65535"#
        );
        let place = Target::of("redis://ann:secret@h:7000").unwrap();
        assert_eq!(place.to_string(), "redis://h:7000");
        assert!(!format!("{place:?}").contains("secret"));
    }

    #[test]
    fn an_option_that_makes_no_sense_is_refused_with_what_would() {
        for (query, why) in [
            ("memory=512", "memory is a size like 512mb: b, kb, mb or gb"),
            ("memory=mb", "memory is a size like 512mb: b, kb, mb or gb"),
            ("memory=-1mb", "memory is a size like 512mb: b, kb, mb or gb"),
            ("memory=1.5gb", "memory is a size like 512mb: b, kb, mb or gb"),
            ("memory=99999999999gb", "memory is a size like 512mb: b, kb, mb or gb"),
            ("sync=often", "sync is always, never, or like 50ms"),
            ("colour=red", "the only options are sync, like sync=50ms, and memory, like memory=512mb"),
            ("sync", "the only options are sync, like sync=50ms, and memory, like memory=512mb"),
        ] {
            let error = Target::of(&format!("embedded:data?{query}")).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("{:?} is not the URL of a queue: {why}", format!("embedded:data?{query}"))
            );
        }
    }
}
