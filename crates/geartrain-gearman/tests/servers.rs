//! The client with several servers: failover, idle waits on all of them, and resubmission.
use crate::common;
use crate::workers;

use std::collections::BTreeSet;
use std::sync::Arc;

use common::Server;
use geartrain_core::SystemClock;
use geartrain_core::{
    Attach, AttachReply, Backend, BackendError, Cancel, Jid, Length, PutOptions, Refusal, ResultStreamEnd,
    ResultWaiter, Seconds, StateName, Status, StatusOf, StreamItem, UniqueKey,
};
use geartrain_gearman::client::{GearmanBackend, ResubmitScope, Resubmitted};
use geartrain_gearman::front::{Front, Options};
use geartrain_store::StoreBackend;
use geartrain_testkit::peers::{Gearmand, Scratch};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use workers::{
    ask, complete, connect, jid_of, pop, pop_one, put, queue, refusal, run, until_a_worker_offers,
    with_options,
};

/// One of our servers that can stop and restart, at the same address and with its jobs.
struct RestartableServer {
    store: Arc<StoreBackend>,
    port: u16,
    running: Option<(CancellationToken, JoinHandle<()>)>,
}

impl RestartableServer {
    async fn start() -> RestartableServer {
        let store = Arc::new(StoreBackend::in_memory(Arc::new(SystemClock)).unwrap());
        let mut server = RestartableServer { store, port: 0, running: None };
        server.restart().await;
        server
    }

    async fn restart(&mut self) {
        let listener = TcpListener::bind(("127.0.0.1", self.port)).await.unwrap();
        self.port = listener.local_addr().unwrap().port();
        let front = Front::new(self.store.clone(), Arc::new(SystemClock), Options::default());
        let stop = CancellationToken::new();
        let ended = stop.clone();
        let task = tokio::spawn(async move { front.serve(listener, ended).await });
        self.running = Some((stop, task));
    }

    async fn stop(&mut self) {
        let (stop, task) = self.running.take().unwrap();
        stop.cancel();
        task.await.unwrap();
    }

    fn name(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

fn url(servers: &[&str]) -> String {
    format!("gearman://{}?timeout=20", servers.join(","))
}

fn recorded(servers: &[&str], scratch: &Scratch) -> String {
    format!("{}&record={}", url(servers), scratch.path().join("record").display())
}

fn name(server: &Gearmand) -> String {
    format!("127.0.0.1:{}", server.port())
}

/// The server that has a job.
fn server_of(jid: &Jid) -> String {
    jid.to_string().split_once('@').unwrap().1.to_owned()
}

async fn length(backend: &GearmanBackend) -> u64 {
    run(backend, Length { queue: queue("resize") }).await
}

#[tokio::test]
async fn an_application_stays_with_its_server_until_it_fails() {
    let mut servers = [Gearmand::start(&[]), Gearmand::start(&[])];
    let names = [name(&servers[0]), name(&servers[1])];
    let backend = connect(&url(&[&names[0], &names[1]])).await;
    let first = jid_of(&backend, put("resize", "0")).await;
    for payload in ["1", "2", "3"] {
        assert_eq!(server_of(&jid_of(&backend, put("resize", payload)).await), server_of(&first));
    }
    let lost = usize::from(server_of(&first) == names[1]);
    servers[lost].kill();
    let other = jid_of(&backend, put("resize", "4")).await;
    assert_eq!(server_of(&other), names[1 - lost]);
    assert_eq!(server_of(&jid_of(&backend, put("resize", "5")).await), names[1 - lost]);
    let job = pop_one(&backend, "resize").await.unwrap();
    assert_eq!(job.jid, other);
    run(&backend, complete(&job, "")).await;
}

#[tokio::test]
async fn applications_spread_over_all_servers() {
    let servers = [Server::start().await, Server::start().await];
    let names = servers.each_ref().map(|server| server.address.to_string());
    let mut used = BTreeSet::new();
    // The probability that the same one is chosen every time is 2^-39.
    for _ in 0..40 {
        let backend = connect(&url(&[&names[0], &names[1]])).await;
        used.insert(server_of(&jid_of(&backend, put("resize", "")).await));
        if used.len() == 2 {
            return;
        }
    }
    panic!("only {used:?} were used");
}

#[tokio::test]
async fn an_idle_worker_gets_jobs_from_all_servers() {
    let theirs = Gearmand::start(&[]);
    let ours = Server::start().await;
    let names = [name(&theirs), ours.address.to_string()];
    let worker = connect(&url(&[&names[0], &names[1]])).await;
    for server in [0, 1, 0, 1] {
        let application = connect(&url(&[&names[server]])).await;
        let both = connect(&url(&[&names[0], &names[1]])).await;
        let asleep = worker.pop_or_wait(pop("resize"), Seconds::from(60));
        let waking = async {
            until_a_worker_offers(&both, "resize", 2).await;
            jid_of(&application, put("resize", "cat")).await
        };
        let (popped, jid) = tokio::join!(asleep, waking);
        let job = popped.unwrap().jobs.remove(0);
        assert_eq!(job.jid.to_string(), format!("{jid}@{}", names[server]));
        run(&worker, complete(&job, "done")).await;
        assert_eq!(run(&application, Status { of: StatusOf::Jid(jid) }).await, None);
    }
}

#[tokio::test]
async fn a_worker_continues_with_the_remaining_servers_and_with_restarted_ones() {
    let mut servers = [RestartableServer::start().await, RestartableServer::start().await];
    let names = servers.each_ref().map(RestartableServer::name);
    let worker = connect(&url(&[&names[0], &names[1]])).await;
    assert!(pop_one(&worker, "resize").await.is_none());
    servers[0].stop().await;
    let second = connect(&url(&[&names[1]])).await;
    jid_of(&second, put("resize", "cat")).await;
    let job = worker.pop_or_wait(pop("resize"), Seconds::from(60)).await.unwrap().jobs.remove(0);
    assert_eq!(server_of(&job.jid), names[1]);
    run(&worker, complete(&job, "")).await;

    servers[0].restart().await;
    let asleep = worker.pop_or_wait(pop("resize"), Seconds::from(60));
    let first = connect(&url(&[&names[0]])).await;
    let (popped, _) = tokio::join!(asleep, jid_of(&first, put("resize", "dog")));
    assert_eq!(server_of(&popped.unwrap().jobs[0].jid), names[0]);
}

#[tokio::test]
async fn with_several_servers_a_jid_without_its_server_is_refused() {
    let servers = [Server::start().await, Server::start().await];
    let names = servers.each_ref().map(|server| server.address.to_string());
    let backend = connect(&url(&[&names[0], &names[1]])).await;
    let jid = jid_of(&backend, put("resize", "cat")).await;
    let status = run(&backend, Status { of: StatusOf::Jid(jid.clone()) }).await.unwrap();
    assert_eq!((status.jid, status.state), (jid.clone(), StateName::Waiting));
    let alone = connect(&url(&[&server_of(&jid)])).await;
    assert!(run(&alone, Status { of: StatusOf::Jid(jid.clone()) }).await.is_some());
    let short = Jid::new("H:lap:1").unwrap();
    let refused = refusal(&backend, Status { of: StatusOf::Jid(short) }).await.to_string();
    let expected = format!(
        "jid must say which server has the job, as in HANDLE@{} or @{}; H:lap:1 does not",
        names[0], names[1]
    );
    assert_eq!(refused, expected);
    assert_eq!(run(&backend, Cancel::new(vec![jid])).await, 1);
}

#[tokio::test]
async fn a_lost_connection_is_a_lost_lock() {
    let mut server = RestartableServer::start().await;
    let backend = connect(&url(&[&server.name()])).await;
    let jid = jid_of(&backend, put("resize", "cat")).await;
    let job = pop_one(&backend, "resize").await.unwrap();
    server.stop().await;
    server.restart().await;
    let answer = ask(&backend, complete(&job, "")).await;
    // It may or may not have been sent over the old connection, but it was not stored.
    match answer {
        Ok(Err(Refusal::LockLost { jid: lost, state })) => {
            assert_eq!((lost, state), (jid.clone(), StateName::Waiting))
        }
        Err(BackendError::Broken { .. }) => {}
        other => panic!("not lost: {other:?}"),
    }
    let again = pop_one(&backend, "resize").await.unwrap();
    assert_eq!(again.jid, jid);
    run(&backend, complete(&again, "")).await;
}

#[tokio::test]
async fn a_client_whose_connection_was_lost_waits_on_another_server() {
    let mut servers = [Gearmand::start(&[]), Gearmand::start(&[])];
    let names = [name(&servers[0]), name(&servers[1])];
    let backend = connect(&url(&[&names[0], &names[1]])).await;
    let waiter = ResultWaiter { stream_id: 1, connection: 1, number: 1 };
    let mut stream = backend.open_result_stream(1).await.unwrap();
    let jid = jid_of(
        &backend,
        with_options(put("resize", "cat"), PutOptions { attach: Some(waiter), ..PutOptions::default() }),
    )
    .await;
    servers[usize::from(server_of(&jid) == names[1])].kill();
    assert_eq!(stream.next().await, Err(ResultStreamEnd::Closed));

    let waiter = ResultWaiter { stream_id: 2, ..waiter };
    let mut stream = backend.open_result_stream(2).await.unwrap();
    assert_eq!(run(&backend, Attach { jid: jid.clone(), waiter }).await, AttachReply::Attached);
    let job = pop_one(&backend, "resize").await.unwrap();
    assert_ne!(server_of(&job.jid), server_of(&jid));
    run(&backend, complete(&job, "small cat")).await;
    let delivery = stream.next().await.unwrap();
    assert!(
        matches!(delivery.item, StreamItem::Ended(_, outcome) if outcome.bytes.text() == Some("small cat"))
    );
    assert_eq!(delivery.jid, jid);
}

#[tokio::test]
async fn an_unreachable_server_is_an_error_within_the_timeout() {
    let mut server = Gearmand::start(&[]);
    let url = format!("gearman://{}?timeout=1", name(&server));
    let backend = connect(&url).await;
    server.kill();
    let error = ask(&backend, put("resize", "cat")).await.err().unwrap();
    assert_eq!(error.to_string(), "the gearman backend cannot answer");
    let why = std::error::Error::source(&error).unwrap().to_string();
    assert!(why.contains(&name(&server)), "{why}");
    assert!(ask(&backend, pop("resize")).await.is_err());
    assert!(GearmanBackend::connect(url.parse().unwrap()).await.is_err());
}

/// The kinds of the record's lines.
fn line_kinds(scratch: &Scratch) -> Vec<String> {
    let text = std::fs::read_to_string(scratch.path().join("record")).unwrap();
    text.lines().map(|line| line.split('"').nth(1).unwrap().to_owned()).collect()
}

#[tokio::test]
async fn the_jobs_of_a_lost_server_are_resubmitted_to_another() {
    let scratch = Scratch::new("resubmit");
    let (mut lost, other) = (Gearmand::start(&[]), Gearmand::start(&[]));
    let names = [name(&lost), name(&other)];
    let application = connect(&recorded(&[&names[0]], &scratch)).await;
    for payload in ["1", "2", "3"] {
        jid_of(&application, put("resize", payload)).await;
    }
    let keyed = PutOptions { unique: Some(UniqueKey::new("cat-7").unwrap()), ..PutOptions::default() };
    jid_of(&application, with_options(put("resize", "4"), keyed)).await;
    let cancelled = jid_of(&application, put("resize", "5")).await;
    assert_eq!(run(&application, Cancel::new(vec![cancelled])).await, 1);
    lost.kill();
    drop(application);

    let operator = connect(&recorded(&[&names[0], &names[1]], &scratch)).await;
    let done = operator.resubmit(ResubmitScope::Lost).await.unwrap();
    assert_eq!((done.resubmitted.len(), done.known, done.unknown, done.not_accepted), (4, 0, 0, 0));
    assert_eq!(line_kinds(&scratch), ["put", "taken"].repeat(4));
    // Their server knows them now, and a second resubmission changes nothing.
    let done = operator.resubmit(ResubmitScope::All).await.unwrap();
    assert_eq!((done.resubmitted.len(), done.known), (0, 4));

    let worker = connect(&url(&[&names[1]])).await;
    let mut payloads = BTreeSet::new();
    while let Some(job) = pop_one(&worker, "resize").await {
        payloads.insert(job.payload.text().unwrap().to_owned());
        run(&worker, complete(&job, "")).await;
    }
    assert_eq!(payloads.into_iter().collect::<Vec<_>>(), ["1", "2", "3", "4"]);
}

#[tokio::test]
async fn a_server_restarted_with_its_jobs_does_not_get_them_twice() {
    let scratch = Scratch::new("resubmit");
    let mut server = RestartableServer::start().await;
    let url = recorded(&[&server.name()], &scratch);
    let backend = connect(&url).await;
    for payload in ["1", "2"] {
        jid_of(&backend, put("resize", payload)).await;
    }
    server.stop().await;
    server.restart().await;
    let backend = connect(&url).await;
    for which in [ResubmitScope::Lost, ResubmitScope::All] {
        let done = backend.resubmit(which).await.unwrap();
        assert_eq!((done.resubmitted.len(), done.known), (0, 2));
    }
    // As if the process had been killed before the replies arrived.
    let record = scratch.path().join("record");
    let text = std::fs::read_to_string(&record).unwrap();
    let unheard: String =
        text.lines().filter(|line| line.contains("\"put\"")).map(|line| format!("{line}\n")).collect();
    std::fs::write(&record, unheard).unwrap();
    let done = backend.resubmit(ResubmitScope::Lost).await.unwrap();
    assert_eq!((done.resubmitted.len(), done.known), (0, 2));
    assert_eq!(length(&backend).await, 2);
}

#[tokio::test]
async fn a_server_restarted_without_its_jobs_gets_them_again_on_request() {
    let scratch = Scratch::new("resubmit");
    let mut server = Gearmand::start(&[]);
    let url = recorded(&[&name(&server)], &scratch);
    let backend = connect(&url).await;
    jid_of(&backend, put("resize", "1")).await;
    server.start_again();
    let backend = connect(&url).await;
    let done = backend.resubmit(ResubmitScope::Lost).await.unwrap();
    assert_eq!((done.resubmitted.len(), done.known, done.unknown), (0, 0, 1));
    let done = backend.resubmit(ResubmitScope::All).await.unwrap();
    assert_eq!((done.resubmitted.len(), done.unknown), (1, 0));
    assert_eq!(length(&backend).await, 1);
}

/// Killed after any line, jobs may be sent a second time, but with the same key: none is duplicated or lost.
#[tokio::test]
async fn a_resubmission_killed_at_any_point_can_be_repeated() {
    let scratch = Scratch::new("resubmit");
    let (mut lost, other) = (Gearmand::start(&[]), Server::start().await);
    let names = [name(&lost), other.address.to_string()];
    let application = connect(&recorded(&[&names[0]], &scratch)).await;
    for payload in ["1", "2"] {
        jid_of(&application, put("resize", payload)).await;
    }
    drop(application);
    lost.kill();
    let record = scratch.path().join("record");
    let before = std::fs::read(&record).unwrap();
    let operator = connect(&recorded(&[&names[0], &names[1]], &scratch)).await;
    operator.resubmit(ResubmitScope::Lost).await.unwrap();
    // The record as it was after each line that the resubmission appended.
    let after = std::fs::read_to_string(&record).unwrap();
    let ids: Vec<String> =
        after.lines().filter_map(|line| Some(line.split_once("\"id\":\"")?.1[..32].to_owned())).collect();
    let (first, second) = (&ids[0], &ids[2]);
    let server = &names[1];
    let written = [
        format!("{{\"sent\":{{\"id\":\"{first}\",\"server\":\"{server}\"}}}}\n"),
        format!("{{\"taken\":{{\"id\":\"{first}\",\"handle\":\"H:lap:1\"}}}}\n"),
        format!("{{\"sent\":{{\"id\":\"{second}\",\"server\":\"{server}\"}}}}\n"),
        format!("{{\"taken\":{{\"id\":\"{second}\",\"handle\":\"H:lap:2\"}}}}\n"),
    ];
    for lines in 0..=written.len() {
        let text = [before.clone(), written[..lines].concat().into_bytes()].concat();
        std::fs::write(&record, text).unwrap();
        operator.resubmit(ResubmitScope::Lost).await.unwrap();
        let there = connect(&url(&[server])).await;
        assert_eq!(length(&there).await, 2, "killed after {lines} lines");
    }
}

#[tokio::test]
async fn a_job_that_no_server_accepts_stays_in_the_record() {
    let scratch = Scratch::new("resubmit");
    let (mut lost, mut other) = (Gearmand::start(&[]), Gearmand::start(&[]));
    let names = [name(&lost), name(&other)];
    let application = connect(&recorded(&[&names[0]], &scratch)).await;
    jid_of(&application, put("resize", "1")).await;
    drop(application);
    lost.kill();
    let operator = connect(&recorded(&[&names[0], &names[1]], &scratch)).await;
    other.kill();
    // The server counts as unreachable once its connection is seen to be closed.
    assert!(ask(&operator, Length { queue: queue("resize") }).await.is_err());
    let done: Resubmitted = operator.resubmit(ResubmitScope::Lost).await.unwrap();
    assert_eq!((done.resubmitted.len(), done.not_accepted), (0, 1));

    // The lost server is not in the URL any more.
    let third = Server::start().await;
    let operator = connect(&recorded(&[&third.address.to_string()], &scratch)).await;
    let done = operator.resubmit(ResubmitScope::Lost).await.unwrap();
    assert_eq!((done.resubmitted.len(), done.not_accepted), (1, 0));
    assert_eq!(length(&operator).await, 1);

    let without = connect(&url(&[&third.address.to_string()])).await;
    let error = without.resubmit(ResubmitScope::Lost).await.err().unwrap();
    assert_eq!(error.to_string(), "record is missing: name the file, as in gearman://HOST?record=FILE");
}

#[tokio::test]
async fn an_ended_job_leaves_the_record() {
    let scratch = Scratch::new("record");
    let server = Server::start().await;
    let backend = connect(&recorded(&[&server.address.to_string()], &scratch)).await;
    let waiter = ResultWaiter { stream_id: 1, connection: 1, number: 1 };
    let mut stream = backend.open_result_stream(1).await.unwrap();
    jid_of(
        &backend,
        with_options(put("resize", "1"), PutOptions { attach: Some(waiter), ..PutOptions::default() }),
    )
    .await;
    let job = pop_one(&backend, "resize").await.unwrap();
    run(&backend, complete(&job, "")).await;
    assert!(matches!(stream.next().await.unwrap().item, StreamItem::Ended(..)));
    assert_eq!(line_kinds(&scratch), ["put", "taken", "done"]);

    // A background job is done when its server does not know it any more.
    let jid = jid_of(&backend, put("resize", "2")).await;
    assert!(run(&backend, Status { of: StatusOf::Jid(jid.clone()) }).await.is_some());
    assert_eq!(line_kinds(&scratch)[3..], ["put", "taken"]);
    let job = pop_one(&backend, "resize").await.unwrap();
    run(&backend, complete(&job, "")).await;
    assert!(run(&backend, Status { of: StatusOf::Jid(jid) }).await.is_none());
    assert_eq!(line_kinds(&scratch)[3..], ["put", "taken", "done"]);
}

#[tokio::test]
async fn a_job_that_cannot_be_recorded_is_not_sent() {
    let server = Server::start().await;
    let address = server.address.to_string();
    let backend = connect(&format!("{}&record=/nowhere/at/all", url(&[&address]))).await;
    let error = ask(&backend, put("resize", "1")).await.err().unwrap();
    let why = std::error::Error::source(&error).unwrap().to_string();
    assert!(why.starts_with("the record of what was put, /nowhere/at/all, cannot be used: "), "{why}");
    assert_eq!(length(&backend).await, 0);
}

#[tokio::test]
async fn a_job_whose_resubmission_is_refused_stays_in_the_record() {
    let scratch = Scratch::new("resubmit");
    let (mut lost, full) = (Gearmand::start(&[]), Server::start().await);
    let application = connect(&recorded(&[&name(&lost)], &scratch)).await;
    jid_of(&application, put("resize", "1")).await;
    drop(application);
    lost.kill();
    let mut admin = full.peer().await;
    assert_eq!(admin.ask("maxqueue resize 1").await, "OK");
    admin.background("resize", "", "other").await;
    let operator = connect(&recorded(&[&full.address.to_string()], &scratch)).await;
    let done = operator.resubmit(ResubmitScope::Lost).await.unwrap();
    assert_eq!((done.resubmitted.len(), done.not_accepted), (0, 1));
    assert_eq!(admin.ask("maxqueue resize 2").await, "OK");
    let done = operator.resubmit(ResubmitScope::Lost).await.unwrap();
    assert_eq!((done.resubmitted.len(), done.not_accepted), (1, 0));
    // A job refused by its first put is done.
    let refused = refusal(&operator, put("resize", "2")).await;
    assert!(refused.to_string().contains("QUEUE_ERROR"), "{refused}");
    assert_eq!(line_kinds(&scratch), ["put", "taken", "put", "done"]);
}
