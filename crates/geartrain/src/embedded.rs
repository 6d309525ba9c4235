//! The queue in this process: `memory:`, and directories that one process owns and others share.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use geartrain_core::{SystemClock, split_query};
use geartrain_store::{OpenError, StoreBackend, StoreOptions, SyncMode, memory_limit};

use crate::connect::HostOptions;
#[cfg(feature = "redis")]
use crate::directory_guest::DirectoryGuest;
use crate::{Client, Error, Target, timer};

/// How many unacknowledged events a directory retains for its reliable consumer.
const EVENTS_HELD_MAX: usize = 1_000_000;

pub(crate) fn in_memory() -> Result<Client, Error> {
    Ok(Client::new(Arc::new(StoreBackend::in_memory(Arc::new(SystemClock))?)))
}

/// How often to try again while another process owns a directory, and how many times: it may be about to end,
/// or has not opened its socket yet.
const RETRY: (Duration, u32) = (Duration::from_millis(20), 100);

/// Opens a directory, or connects to the socket of the process that owns it.
pub(crate) async fn open(
    directory: &Path,
    sync: SyncMode,
    payload_memory: u64,
    host: HostOptions,
) -> Result<Client, Error> {
    let events_held_max = if host.is_consumer { EVENTS_HELD_MAX } else { 0 };
    let memory_limit = memory_limit();
    let options =
        StoreOptions { sync, payload_memory, memory_limit, events_held_max, ..StoreOptions::default() };
    let mut retries_left = RETRY.1;
    loop {
        match StoreBackend::open(directory, options.clone(), Arc::new(SystemClock)) {
            Ok(store) => return Ok(Client::of_store(Arc::new(store), directory, host.read_only)),
            Err(OpenError::InUse) if retries_left > 0 => {
                retries_left -= 1;
                #[cfg(feature = "redis")]
                {
                    let socket = geartrain_redis::RedisUrl::of_socket(socket_in(directory));
                    if let Ok(owner) = geartrain_redis::RedisBackend::connect(socket).await {
                        let guest = DirectoryGuest::start(owner, directory.to_owned(), options);
                        let guest = guest.map_err(|error| Error::Open {
                            directory: directory.display().to_string(),
                            source: OpenError::Io(error),
                        })?;
                        return Ok(Client::new(Arc::new(guest)));
                    }
                }
                timer::after(RETRY.0).await;
            }
            #[cfg(not(feature = "redis"))]
            Err(OpenError::InUse) => {
                return Err(Error::InUse { directory: directory.display().to_string() });
            }
            Err(source) => return Err(Error::Open { directory: directory.display().to_string(), source }),
        }
    }
}

/// The socket file of a directory, through which other processes use the queue while one has it open.
#[cfg(any(feature = "redis", feature = "socket"))]
pub fn socket_in(directory: &Path) -> std::path::PathBuf {
    directory.join("geartrain.sock")
}

/// Parses `DIR?sync=50ms&memory=1gb`.
pub(crate) fn parse_directory(text: &str) -> Result<Target, &'static str> {
    let (directory, options) = split_query(text);
    if directory.is_empty() {
        return Err("name the directory, as in embedded:./geartrain-data");
    }
    let StoreOptions { mut sync, payload_memory: mut memory, .. } = StoreOptions::default();
    for (name, value) in options {
        match name {
            "sync" => sync = sync_mode(value).ok_or("sync is always, never, or like 50ms")?,
            "memory" => memory = bytes(value).ok_or("memory is a size like 512mb: b, kb, mb or gb")?,
            _ => return Err("the only options are sync, like sync=50ms, and memory, like memory=512mb"),
        }
    }
    Ok(Target::Directory { directory: directory.into(), sync, memory })
}

fn sync_mode(mode: &str) -> Option<SyncMode> {
    match mode {
        "always" => Some(SyncMode::Always),
        "never" => Some(SyncMode::Never),
        _ => Some(SyncMode::Every(Duration::from_millis(mode.strip_suffix("ms")?.parse().ok()?))),
    }
}

/// A size like `512mb`; a kilobyte is 1,024 bytes.
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
    fn a_bad_option_is_refused_with_a_good_one() {
        for (query, why) in [
            ("memory=512", "memory is a size like 512mb: b, kb, mb or gb"),
            ("memory=mb", "memory is a size like 512mb: b, kb, mb or gb"),
            ("memory=-1mb", "memory is a size like 512mb: b, kb, mb or gb"),
            ("memory=1.5gb", "memory is a size like 512mb: b, kb, mb or gb"),
            ("memory=99999999999gb", "memory is a size like 512mb: b, kb, mb or gb"),
            ("sync=often", "sync is always, never, or like 50ms"),
            ("colour=red", "the only options are sync, like sync=50ms, and memory, like memory=512mb"),
            ("sync", "sync is always, never, or like 50ms"),
        ] {
            let error = Target::of(&format!("embedded:data?{query}")).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("{:?} is not the URL of a queue: {why}", format!("embedded:data?{query}"))
            );
        }
    }

    #[cfg(not(feature = "redis"))]
    #[test]
    fn a_directory_in_use_is_refused_with_the_feature_that_shares_it() {
        let data = std::env::temp_dir().join(format!("geartrain-in-use-{}", std::process::id()));
        let owner = StoreBackend::open(&data, StoreOptions::default(), Arc::new(SystemClock)).unwrap();
        let url = format!("embedded:{}", data.display());
        let error = pollster::block_on(crate::connect(&url)).unwrap_err();
        drop(owner);
        std::fs::remove_dir_all(&data).unwrap();
        assert!(error.to_string().contains("enable the crate feature `redis`"), "{error}");
    }
}
