//! The queue to measure, and cleaning up after it.

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use geartrain::{
    Cancel, Client, Count, ForgetQueues, ForgetWorkers, Jobs, Listing, Page, QueueName, Target, WorkerName,
};
use pollster::block_on;

use crate::failure::Failure;

/// The prefix of all queues and workers of a benchmark.
const PREFIX: &str = "geartrain-bench-";
/// How many jobs are cancelled per request.
const CANCEL_JOBS_MAX: i64 = 10_000;

/// A queue to measure, cleaned up when dropped.
pub(super) struct BenchTarget {
    kind: Kind,
    /// Like `geartrain-bench-<this run>-`.
    prefix: String,
    /// When changes are synced to disk.
    sync: String,
}

enum Kind {
    /// A directory created for the benchmark, and the options of its URL.
    Created { directory: PathBuf, query: String },
    /// An existing queue that others may use too.
    Given { url: String },
}

impl BenchTarget {
    /// The queue that a URL names, or a new directory.
    pub(super) fn open(url: Option<String>) -> Result<BenchTarget, Failure> {
        let run = uuid::Uuid::now_v7().simple().to_string();
        let prefix = format!("{PREFIX}{}-", &run[run.len() - 12..]);
        let (directory, query) = match &url {
            None => {
                let build = Path::new("target");
                let parent = if build.is_dir() { build.to_owned() } else { std::env::temp_dir() };
                (parent.join(prefix.trim_end_matches('-')), String::new())
            }
            Some(url) => match directory_of(url) {
                Some((directory, query)) => (directory.to_owned(), query.to_owned()),
                None => return BenchTarget::given(url.clone(), prefix),
            },
        };
        // Only a directory that this run creates may be removed.
        match (fs::create_dir(&directory), url) {
            (Ok(()), _) => {
                let sync = sync_in(&query).to_owned();
                Ok(BenchTarget { kind: Kind::Created { directory, query }, prefix, sync })
            }
            (Err(error), Some(url)) if error.kind() == ErrorKind::AlreadyExists => {
                BenchTarget::given(url, prefix)
            }
            (Err(error), _) => Err(Failure::Unreachable(format!(
                "cannot create the directory {}: {error}",
                directory.display()
            ))),
        }
    }

    /// An existing queue, which is asked for its sync mode: the owner of a directory or a server has chosen it.
    fn given(url: String, prefix: String) -> Result<BenchTarget, Failure> {
        let client = block_on(geartrain::connect(&url))?;
        let sync = block_on(client.backend().sync_mode()).map_err(geartrain::Error::from)?;
        let sync = sync.unwrap_or_else(|| "unknown".to_owned());
        Ok(BenchTarget { kind: Kind::Given { url }, prefix, sync })
    }

    /// The URL for one part of the run: a directory of its own, if possible.
    pub(super) fn url(&self, part: &str) -> String {
        match &self.kind {
            Kind::Created { directory, query } => {
                format!("embedded:{}{query}", directory.join(part).display())
            }
            Kind::Given { url } => url.clone(),
        }
    }

    /// For the report.
    pub(super) fn describe(&self) -> String {
        match &self.kind {
            Kind::Created { directory, query } => {
                format!("embedded:{}{query} (temporary, removed afterwards)", directory.display())
            }
            Kind::Given { .. } => self.shown_url(),
        }
    }

    /// The URL without its password.
    pub(super) fn shown_url(&self) -> String {
        let url = self.url("");
        match Target::of(&url) {
            Ok(Target::Redis(shown)) => shown.to_string(),
            _ => url,
        }
    }

    /// Connects for one part of the run.
    pub(super) fn connect(&self, part: &str) -> Result<Client, Failure> {
        Ok(block_on(geartrain::connect(&self.url(part)))?)
    }

    /// A queue for one part of the run.
    pub(super) fn queue(&self, part: &str) -> Result<QueueName, Failure> {
        Ok(QueueName::new(format!("{}{part}", self.prefix)).map_err(geartrain::Error::from)?)
    }

    /// The data directory, if there is one.
    pub(super) fn directory(&self) -> Option<&Path> {
        match &self.kind {
            Kind::Created { directory, .. } => Some(directory),
            Kind::Given { url } => directory_of(url).map(|(directory, _)| directory),
        }
    }

    /// When changes are synced to disk.
    pub(super) fn sync(&self) -> String {
        self.sync.clone()
    }

    fn clean(&self) -> Result<(), Failure> {
        match &self.kind {
            Kind::Created { directory, .. } => fs::remove_dir_all(directory).map_err(|error| {
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

impl Drop for BenchTarget {
    fn drop(&mut self) {
        if let Err(failure) = self.clean() {
            let _ = writeln!(anstream::stderr(), "geartrain: cannot clean up after the benchmark: {failure}");
        }
    }
}

/// Cancels the unfinished jobs of a queue.
pub(super) fn clear(client: &Client, queue: &QueueName) -> Result<(), Failure> {
    let count = Count::new(CANCEL_JOBS_MAX).unwrap_or(Count::ONE);
    for listing in [Listing::Running, Listing::Stalled, Listing::Waiting] {
        loop {
            let page = Page { offset: 0, count };
            let jids = block_on(client.run(Jobs { which: listing(queue.clone()), page }))?;
            // If none could be cancelled, other workers hold them.
            if jids.is_empty() || block_on(client.run(Cancel::new(jids)))? == 0 {
                break;
            }
        }
    }
    Ok(())
}

/// The sync mode in the options of an embedded URL.
fn sync_in(query: &str) -> &str {
    let mut options = query.trim_start_matches('?').split('&');
    options.find_map(|option| option.strip_prefix("sync=")).unwrap_or("always")
}

/// The directory and the options of an embedded URL.
fn directory_of(url: &str) -> Option<(&Path, &str)> {
    let text = match url.strip_prefix("embedded:") {
        Some(text) => text,
        None if url.contains('/') && !url.contains("://") => url,
        None => return None,
    };
    let (directory, query) = text.split_at(text.find('?').unwrap_or(text.len()));
    (!directory.is_empty()).then_some((Path::new(directory), query))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_the_directory_and_the_sync_mode() {
        for (url, directory, sync) in [
            ("embedded:a/b", "a/b", "always"),
            ("./a?sync=never", "./a", "never"),
            ("embedded:a?sync=50ms", "a", "50ms"),
            ("embedded:a?memory=1gb&sync=50ms", "a", "50ms"),
        ] {
            let (found, query) = directory_of(url).unwrap();
            assert_eq!((found, sync_in(query)), (Path::new(directory), sync), "{url}");
        }
        assert_eq!(directory_of("memory:"), None);
    }
}
