//! From a URL to a queue.

use std::path::PathBuf;
use std::sync::Arc;

use geartrain_store::{StoreBackend, StoreOptions, SyncMode, SystemClock};

use crate::{Client, Error};

/// Opens the queue that a URL names.
///
/// | URL | queue |
/// |---|---|
/// | `memory:` | in this process, and gone with it |
/// | `embedded:DIR`, or a path with a slash in it | in this process, and kept in a directory |
///
/// With `?sync=50ms` behind a directory, what is done is forced to the disk so often, and with `?sync=never` when the system likes,
/// instead of before it is acknowledged.
///
/// ```
/// # pollster::block_on(async {
/// assert!(geartrain::connect("memory:").await.is_ok());
/// let error = geartrain::connect("carrier-pigeon:").await.err().expect("nobody knows such a queue");
/// assert_eq!(
///     error.to_string(),
///     r#""carrier-pigeon:" is not the URL of a queue: use embedded:DIR or memory:"#
/// );
/// # });
/// ```
pub async fn connect(url: &str) -> Result<Client, Error> {
    match Place::of(url)? {
        Place::Memory => Ok(Client::new(Arc::new(StoreBackend::in_memory(Arc::new(SystemClock))?))),
        Place::Directory { directory, sync } => {
            let options = StoreOptions { sync, ..StoreOptions::default() };
            let opened = StoreBackend::open(&directory, options, Arc::new(SystemClock));
            let directory = directory.display().to_string();
            let backend = opened.map_err(|source| Error::Open { directory, source })?;
            Ok(Client::of_store(Arc::new(backend)))
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
pub enum Place {
    /// In this process, and gone with it.
    Memory,
    /// In this process, and kept in a directory.
    Directory {
        /// Which.
        directory: PathBuf,
        /// When what is done is forced to the disk.
        sync: SyncMode,
    },
}

impl Place {
    /// The place that a URL names, whether there is anything or not.
    pub fn of(url: &str) -> Result<Place, Error> {
        let wrong = |why: &'static str| Error::Url { url: url.to_owned(), why };
        if url == "memory:" {
            return Ok(Place::Memory);
        }
        let place = match url.strip_prefix("embedded:") {
            Some(place) => place,
            // A scheme that nobody knows is not taken for a directory.
            None if url.contains('/') && !url.contains("://") => url,
            None => return Err(wrong("use embedded:DIR or memory:")),
        };
        let (directory, query) = place.split_once('?').unwrap_or((place, ""));
        if directory.is_empty() {
            return Err(wrong("name the directory, as in embedded:./geartrain-data"));
        }
        let sync = match query {
            "" | "sync=always" => SyncMode::Always,
            "sync=never" => SyncMode::Never,
            _ => {
                let span = query.strip_prefix("sync=").and_then(|span| span.strip_suffix("ms"));
                let span = span.and_then(|span| span.parse().ok()).map(std::time::Duration::from_millis);
                SyncMode::Every(
                    span.ok_or_else(|| wrong("the only option is sync: always, never, or like 50ms"))?,
                )
            }
        };
        Ok(Place::Directory { directory: directory.into(), sync })
    }
}
