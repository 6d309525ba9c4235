//! Servers of both kinds for the client to talk to, and short ways to ask it things.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use geartrain_core::{
    Backend, BackendError, Call, Complete, Holder, Jid, JobResult, Klass, Length, Operation, Pop, Popped,
    Put, PutOptions, PutReply, QueueName, Refusal, RollCall, WorkerName,
};
use geartrain_gearman::client::GearmanBackend;
use geartrain_testkit::peers::Gearmand;

use crate::common::{Peer, Server};

/// How long something that must happen may take on a busy machine, and how often to look whether it did.
const PATIENCE: (Duration, Duration) = (Duration::from_secs(60), Duration::from_millis(5));

/// A server, as long as the test holds it.
pub(crate) enum Kind {
    Ours(Server),
    Theirs(Gearmand),
}

/// One of each.
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

    pub(crate) async fn until_it_has(&self, backend: &GearmanBackend, name: &str, jobs: u64) {
        let begun = Instant::now();
        // gearmand counts a job that nobody wants any more until a worker would get it.
        while let Kind::Ours(_) = self
            && run(backend, Length { queue: queue(name) }).await != jobs
        {
            assert!(begun.elapsed() < PATIENCE.0, "in vain: {jobs} jobs in {name}");
            tokio::time::sleep(PATIENCE.1).await;
        }
    }

    /// Waits until so many are connected, besides whoever asks that.
    pub(crate) async fn until_connected(&self, connections: usize) {
        let begun = Instant::now();
        let mut admin = Peer::connect(self.address()).await;
        while admin.list("workers").await.len() > connections + 1 {
            assert!(begun.elapsed() < PATIENCE.0, "in vain: {connections} connections");
            tokio::time::sleep(PATIENCE.1).await;
        }
    }

    pub(crate) async fn until_somebody_can(&self, backend: &GearmanBackend, name: &str) {
        until_somebody_can(backend, name, 1).await;
    }
}

/// Waits until so many workers, on all servers together, have said that they can do this.
pub(crate) async fn until_somebody_can(backend: &GearmanBackend, name: &str, workers: u64) {
    let begun = Instant::now();
    while run(backend, RollCall { queue: queue(name), klass: None }).await < workers {
        assert!(begun.elapsed() < PATIENCE.0, "in vain: {workers} workers for {name}");
        tokio::time::sleep(PATIENCE.1).await;
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

/// Puts, and gives the jid that the server chose.
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
    Put::new(queue(name), Jid::new("chosen-by-nobody").unwrap(), Klass::new(name).unwrap(), payload)
}

pub(crate) fn with_terms(put: Put, terms: PutOptions) -> Put {
    Put { options: Some(Box::new(terms)), ..put }
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
