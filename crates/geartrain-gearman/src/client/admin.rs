//! Admin commands of Gearman servers, as replies to queue and worker commands.

use std::collections::BTreeMap;

use bytes::Bytes;
use geartrain_core::{
    Announcement, Capability, PriorityCountsReply, QueueCounts, QueueName, Software, WorkerCounts, WorkerName,
};

use super::error::ServerError;
use super::servers::Servers;
use crate::function;

/// Counts of a function over all servers.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FunctionCounts {
    total: u64,
    running: u64,
    workers: u64,
}

/// Requests a list from all servers. Those that do not answer are left out; an error only if none does.
async fn list_from_all(servers: &Servers, command: &str) -> Result<Vec<(String, Vec<Bytes>)>, ServerError> {
    let (mut lists, mut error) = (Vec::new(), None);
    for server in servers.iter() {
        let list = async { server.connection().await?.admin_list(command).await };
        match list.await {
            Ok(lines) => lists.push((server.name.clone(), lines)),
            Err(failed) => {
                tracing::warn!(error = %failed, "a server did not answer and is left out of the counts");
                error = Some(failed);
            }
        }
    }
    match error {
        Some(error) if lists.is_empty() => Err(error),
        _ => Ok(lists),
    }
}

/// Asks the preferred server for its version. gearmand answers `OK 1.1.20`, our own server
/// `OK 1.1.20-geartrain-0.1.0`.
pub(crate) async fn software(servers: &Servers) -> Result<Software, ServerError> {
    let mut error = ServerError::ShutDown;
    for index in servers.preferred_first() {
        let line = async { servers.get(index).connection().await?.admin_line("version").await };
        match line.await {
            Ok(line) => {
                let line = String::from_utf8_lossy(&line);
                let version = line.strip_prefix("OK").unwrap_or(&line).trim();
                let (name, version) = match version.split_once("-geartrain-") {
                    Some((_, ours)) => ("geartrain", ours),
                    None => ("gearmand", version),
                };
                return Ok(Software { name: name.to_owned(), version: Some(version.to_owned()) });
            }
            Err(failed) => error = failed,
        }
    }
    Err(error)
}

/// Parses a line of tab-separated fields: a function and N numbers.
fn parse_counts<const N: usize>(line: &[u8]) -> Option<(QueueName, [u64; N])> {
    let mut fields: Vec<&[u8]> = line.rsplitn(N + 1, |byte| *byte == b'\t').collect();
    let queue = function::queue(fields.pop().filter(|_| fields.len() == N)?).ok()?;
    let mut numbers = [0; N];
    for (number, field) in numbers.iter_mut().rev().zip(fields) {
        *number = std::str::from_utf8(field).ok()?.parse().ok()?;
    }
    Some((queue, numbers))
}

fn bad_line(server: &str, line: &[u8]) -> ServerError {
    let detail = format!("the line {:?}", String::from_utf8_lossy(line));
    ServerError::Protocol { server: server.to_owned(), detail }
}

/// The counts of each function.
pub(crate) async fn function_counts(
    servers: &Servers,
) -> Result<BTreeMap<QueueName, FunctionCounts>, ServerError> {
    let mut all: BTreeMap<QueueName, FunctionCounts> = BTreeMap::new();
    for (server, lines) in list_from_all(servers, "status").await? {
        for line in lines {
            let (queue, [total, running, workers]) =
                parse_counts(&line).ok_or_else(|| bad_line(&server, &line))?;
            let counts = all.entry(queue).or_default();
            counts.total += total;
            counts.running += running;
            counts.workers += workers;
        }
    }
    Ok(all)
}

impl FunctionCounts {
    pub(crate) fn total(self) -> u64 {
        self.total
    }

    pub(crate) fn workers(self) -> u64 {
        self.workers
    }

    /// As the counts of a queue. Servers do not distinguish waiting from scheduled jobs.
    pub(crate) fn of_queue(self, name: QueueName) -> QueueCounts {
        QueueCounts {
            name,
            waiting: self.total.saturating_sub(self.running),
            running: self.running,
            stalled: 0,
            scheduled: 0,
            depends: 0,
            recurring: 0,
            paused: false,
        }
    }
}

/// How many jobs of a queue wait with each priority.
pub(crate) async fn priority_counts(
    servers: &Servers,
    queue: &QueueName,
) -> Result<PriorityCountsReply, ServerError> {
    let mut all = PriorityCountsReply::default();
    for (server, lines) in list_from_all(servers, "prioritystatus").await? {
        for line in lines {
            let (name, [high, normal, low, _]) =
                parse_counts(&line).ok_or_else(|| bad_line(&server, &line))?;
            if name == *queue {
                all.above += high;
                all.at += normal;
                all.below += low;
            }
        }
    }
    Ok(all)
}

/// The functions of each worker: each connection with functions, by its client ID or else by its address.
pub(crate) async fn announcements(servers: &Servers) -> Result<Vec<Announcement>, ServerError> {
    let mut all: BTreeMap<WorkerName, Vec<Capability>> = BTreeMap::new();
    for (server, lines) in list_from_all(servers, "workers").await? {
        for line in lines {
            let (name, functions) = parse_worker(&line).ok_or_else(|| bad_line(&server, &line))?;
            if functions.is_empty() {
                continue;
            }
            let name = WorkerName::new(name).map_err(|_| bad_line(&server, &line))?;
            let capabilities = all.entry(name).or_default();
            for function in functions.split(|byte| *byte == b' ').filter(|function| !function.is_empty()) {
                let queue = function::queue(function).map_err(|_| bad_line(&server, &line))?;
                capabilities.push(Capability { queue, klass: None, attempt_max: None });
            }
        }
    }
    let announcement = |(worker, mut capabilities): (WorkerName, Vec<Capability>)| {
        capabilities.sort();
        capabilities.dedup();
        Announcement { worker, seen: None, capabilities }
    };
    Ok(all.into_iter().map(announcement).collect())
}

/// Parses `FD IP ID : FUNCTION …` into the worker's name and its functions.
fn parse_worker(line: &[u8]) -> Option<(String, &[u8])> {
    let text_end = line.windows(2).position(|pair| pair == b" :")?;
    let (head, functions) = (&line[..text_end], &line[text_end + 2..]);
    let head = String::from_utf8_lossy(head);
    let mut words = head.splitn(3, ' ');
    let (number, address, id) = (words.next()?, words.next()?, words.next()?);
    let name = if id == "-" { format!("{address}#{number}") } else { id.to_owned() };
    Some((name, functions.trim_ascii()))
}

/// Workers with their job counts, which servers do not report: always 0.
pub(crate) fn worker_counts(announced: Vec<Announcement>) -> Vec<WorkerCounts> {
    announced
        .into_iter()
        .map(|announcement| WorkerCounts { name: announcement.worker, jobs: 0, stalled: 0, seen: None })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_parsed_from_the_end_of_the_line() {
        let queue = QueueName::new("a b").unwrap();
        assert_eq!(parse_counts::<3>(b"a b\t3\t1\t2"), Some((queue, [3, 1, 2])));
        for line in ["", "a", "a\t1\t2", "a\t1\t2\tx", "\t1\t2\t3", "ERR what"] {
            assert_eq!(parse_counts::<3>(line.as_bytes()), None, "{line:?}");
        }
    }

    #[test]
    fn a_worker_is_named_by_its_client_id_or_its_address() {
        let read = |line: &'static str| parse_worker(line.as_bytes());
        assert_eq!(read("31 10.0.0.1 w1 : a b"), Some(("w1".to_owned(), &b"a b"[..])));
        assert_eq!(read("31 10.0.0.1 - : a"), Some(("10.0.0.1#31".to_owned(), &b"a"[..])));
        assert_eq!(read("31 10.0.0.1 - :"), Some(("10.0.0.1#31".to_owned(), &b""[..])));
        assert_eq!(read("31"), None);
    }
}
