//! Servers of both kinds for the client, and shorthands for its operations.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use geartrain_core::{
    Backend, BackendError, Call, Complete, Holder, Jid, JobResult, Klass, Length, Operation, Pop, Popped,
    Put, PutOptions, PutReply, QueueName, Refusal, RollCall, WorkerName,
};
use geartrain_gearman::client::GearmanBackend;
use geartrain_testkit::peers::Gearmand;

use crate::common::{Peer, Server};

/// Timeout of anything that must happen, for a busy machine, and the poll interval.
const TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A running server, ours or gearmand.
pub(crate) enum Kind {
    Ours(Server),
    Theirs(Gearmand),
}

/// One of each kind.
pub(crate) async fn each_kind() -> [Kind; 2] {
    [ours().await, Kind::Theirs(Gearmand::start(&[]))]
}

pub(crate) async fn ours() -> Kind {
    Kind::Ours(Server::start().await)
}

impl Kind {
    pub(crate) fn address(&self) -> SocketAddr {
        match self {
            Kind::Ours(server) => server.address,
            Kind::Theirs(server) => SocketAddr::from(([127, 0, 0, 1], server.port())),
        }
    }

    pub(crate) async fn connect(&self) -> GearmanBackend {
        connect(&format!("gearman://{}?timeout=20", self.address())).await
    }

    pub(crate) async fn until_it_has_jobs(&self, backend: &GearmanBackend, name: &str, jobs: u64) {
        let begun = Instant::now();
        // gearmand counts an abandoned job until a worker would get it.
        while let Kind::Ours(_) = self
            && run(backend, Length { queue: queue(name) }).await != jobs
        {
            assert!(begun.elapsed() < TIMEOUT, "timed out: {jobs} jobs in {name}");
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits until only this many peers are connected, besides the admin connection.
    pub(crate) async fn until_connected(&self, connections: usize) {
        let begun = Instant::now();
        let mut admin = Peer::connect(self.address()).await;
        while admin.list("workers").await.len() > connections + 1 {
            assert!(begun.elapsed() < TIMEOUT, "timed out: {connections} connections");
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    pub(crate) async fn until_a_worker_offers(&self, backend: &GearmanBackend, name: &str) {
        until_a_worker_offers(backend, name, 1).await;
    }
}

/// Waits until this many workers, on all servers together, offer the function.
pub(crate) async fn until_a_worker_offers(backend: &GearmanBackend, name: &str, workers: u64) {
    let begun = Instant::now();
    while run(backend, RollCall { queue: queue(name), klass: None }).await < workers {
        assert!(begun.elapsed() < TIMEOUT, "timed out: {workers} workers for {name}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

pub(crate) async fn connect(url: &str) -> GearmanBackend {
    GearmanBackend::connect(url.parse().unwrap()).await.unwrap()
}

pub(crate) async fn ask<O: Operation>(
    backend: &GearmanBackend,
    operation: O,
) -> Result<Result<O::Reply, Refusal>, BackendError> {
    let answer = backend.execute(vec![Call::from(operation)]).await?.pop().unwrap();
    Ok(answer.map(|reply| O::answer(reply).unwrap()))
}

pub(crate) async fn run<O: Operation>(backend: &GearmanBackend, operation: O) -> O::Reply {
    ask(backend, operation).await.unwrap().unwrap()
}

pub(crate) async fn refusal<O: Operation>(backend: &GearmanBackend, operation: O) -> Refusal {
    ask(backend, operation).await.unwrap().err().expect("it is refused")
}

/// Puts a job and returns the jid that the server chose.
pub(crate) async fn jid_of(backend: &GearmanBackend, put: Put) -> Jid {
    match run(backend, put).await {
        PutReply::Named { jid } => jid,
        other => panic!("not named: {other:?}"),
    }
}

pub(crate) fn queue(name: &str) -> QueueName {
    QueueName::new(name).unwrap()
}

pub(crate) fn worker(name: &str) -> WorkerName {
    WorkerName::new(name).unwrap()
}

pub(crate) fn put(name: &str, payload: &str) -> Put {
    Put::new(queue(name), Jid::new("ignored").unwrap(), Klass::new(name).unwrap(), payload)
}

pub(crate) fn with_options(put: Put, options: PutOptions) -> Put {
    Put { options: Some(Box::new(options)), ..put }
}

pub(crate) fn pop(name: &str) -> Pop {
    Pop::new(queue(name), worker("w1"))
}

pub(crate) async fn pop_one(backend: &GearmanBackend, name: &str) -> Option<Popped> {
    run(backend, pop(name)).await.jobs.pop()
}

pub(crate) fn complete(job: &Popped, result: &str) -> Complete {
    let result = Some(Box::new(JobResult { code: 0, bytes: result.into() }));
    Complete { result, ..Complete::new(job.jid.clone(), Holder::Token(job.lock.token)) }
}
