//! Where it is measured, and leaving that place as it was.

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use geartrain::{
    Cancel, Client, Count, ForgetQueues, ForgetWorkers, Jobs, Listing, Page, QueueName, WorkerName,
};
use pollster::block_on;

use crate::failure::Failure;

/// What every queue and worker of every run is called, at the beginning.
const PREFIX: &str = "geartrain-bench-";
/// How many jobs are cancelled at a time.
const CANCEL_JOBS: i64 = 10_000;

/// A place to measure in. Dropping it leaves the place as it was.
pub(super) struct Place {
    kind: Kind,
    /// Like `geartrain-bench-<this run>-`.
    prefix: String,
}

enum Kind {
    /// A directory that was not there before, and what stands behind it in the URL.
    Made { directory: PathBuf, query: String },
    /// A queue that others may use too.
    Given { url: String },
}

impl Place {
    /// The place that a URL names, or a new directory.
    pub(super) fn find(url: Option<String>) -> Result<Place, Failure> {
        let run = uuid::Uuid::now_v7().simple().to_string();
        let prefix = format!("{PREFIX}{}-", &run[run.len() - 12..]);
        let (directory, query) = match &url {
            None => {
                let target = Path::new("target");
                let parent = if target.is_dir() { target.to_owned() } else { std::env::temp_dir() };
                (parent.join(prefix.trim_end_matches('-')), String::new())
            }
            Some(url) => match directory_of(url) {
                Some((directory, query)) => (directory.to_owned(), query.to_owned()),
                None => return Ok(Place { kind: Kind::Given { url: url.clone() }, prefix }),
            },
        };
        // Whoever makes a directory may remove it, and nobody else.
        match (fs::create_dir(&directory), url) {
            (Ok(()), _) => Ok(Place { kind: Kind::Made { directory, query }, prefix }),
            (Err(error), Some(url)) if error.kind() == ErrorKind::AlreadyExists => {
                Ok(Place { kind: Kind::Given { url }, prefix })
            }
            (Err(error), _) => Err(Failure::Unreachable(format!(
                "cannot make the directory {}: {error}",
                directory.display()
            ))),
        }
    }

    /// The URL for one part of the run. Parts have a directory each if that is possible.
    pub(super) fn url(&self, part: &str) -> String {
        match &self.kind {
            Kind::Made { directory, query } => format!("embedded:{}{query}", directory.join(part).display()),
            Kind::Given { url } => url.clone(),
        }
    }

    /// The place, and what becomes of it.
    pub(super) fn describe(&self) -> String {
        match &self.kind {
            Kind::Made { directory, query } => {
                format!("embedded:{}{query} (made for this, removed afterwards)", directory.display())
            }
            Kind::Given { url } => url.clone(),
        }
    }

    /// Opens it for one part of the run.
    pub(super) fn connect(&self, part: &str) -> Result<Client, Failure> {
        Ok(block_on(geartrain::connect(&self.url(part)))?)
    }

    /// A queue for one part of the run.
    pub(super) fn queue(&self, part: &str) -> Result<QueueName, Failure> {
        Ok(QueueName::new(format!("{}{part}", self.prefix)).map_err(geartrain::Error::from)?)
    }

    /// The directory where the data is, if it is in one.
    pub(super) fn directory(&self) -> Option<&Path> {
        match &self.kind {
            Kind::Made { directory, .. } => Some(directory),
            Kind::Given { url } => directory_of(url).map(|(directory, _)| directory),
        }
    }

    /// When what was done is forced to the disk.
    pub(super) fn sync(&self) -> String {
        let query = match &self.kind {
            Kind::Made { query, .. } => query.as_str(),
            Kind::Given { url } if url == "memory:" => return "none".to_owned(),
            Kind::Given { url } => directory_of(url).map_or("", |(_, query)| query),
        };
        let mut options = query.trim_start_matches('?').split('&');
        options.find_map(|option| option.strip_prefix("sync=")).unwrap_or("always").to_owned()
    }

    fn clean(&self) -> Result<(), Failure> {
        match &self.kind {
            Kind::Made { directory, .. } => fs::remove_dir_all(directory).map_err(|error| {
                Failure::Unreachable(format!("cannot remove the directory {}: {error}", directory.display()))
            }),
            Kind::Given { url } if url == "memory:" => Ok(()),
            Kind::Given { .. } => {
                let client = self.connect("")?;
                let ours = |name: &str| name.starts_with(&self.prefix);
                let queues = block_on(client.queues())?.into_iter().map(|queue| queue.name);
                let queues: Vec<QueueName> = queues.filter(|name| ours(name.as_str())).collect();
                for queue in &queues {
                    clear(&client, queue)?;
                }
                let workers = block_on(client.run(geartrain::Workers))?.into_iter().map(|worker| worker.name);
                let workers: Vec<WorkerName> = workers.filter(|name| ours(name.as_str())).collect();
                block_on(client.run(ForgetQueues { queues }))?;
                Ok(block_on(client.run(ForgetWorkers { workers }))?)
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Err(failure) = self.clean() {
            let _ =
                writeln!(anstream::stderr(), "geartrain: what was measured with is left behind: {failure}");
        }
    }
}

/// Removes the jobs of a queue that are not complete.
pub(super) fn clear(client: &Client, queue: &QueueName) -> Result<(), Failure> {
    let count = Count::new(CANCEL_JOBS).unwrap_or(Count::ONE);
    for listing in [Listing::Running, Listing::Stalled, Listing::Waiting] {
        loop {
            let page = Page { offset: 0, count };
            let jids = block_on(client.run(Jobs { which: listing(queue.clone()), page }))?;
            // None were cancelled if somebody else works on them: then they are no longer ours to remove.
            if jids.is_empty() || block_on(client.run(Cancel { jids }))? == 0 {
                break;
            }
        }
    }
    Ok(())
}

/// The directory that a URL names, and what stands behind it, if it names one.
fn directory_of(url: &str) -> Option<(&Path, &str)> {
    let place = match url.strip_prefix("embedded:") {
        Some(place) => place,
        None if url.contains('/') && !url.contains("://") => url,
        None => return None,
    };
    let (directory, query) = place.split_at(place.find('?').unwrap_or(place.len()));
    (!directory.is_empty()).then_some((Path::new(directory), query))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_where_the_data_is_and_how_it_is_synced() {
        for (url, directory, sync) in [
            ("memory:", None, "none"),
            ("embedded:a/b", Some("a/b"), "always"),
            ("./a?sync=never", Some("./a"), "never"),
            ("embedded:a?sync=50ms", Some("a"), "50ms"),
            ("embedded:a?memory=1gb&sync=50ms", Some("a"), "50ms"),
        ] {
            let kind = Kind::Given { url: url.to_owned() };
            let place = std::mem::ManuallyDrop::new(Place { kind, prefix: PREFIX.to_owned() });
            assert_eq!((place.directory(), place.sync().as_str()), (directory.map(Path::new), sync), "{url}");
        }
    }
}
