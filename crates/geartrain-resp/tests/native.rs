//! The native API: batches, parked pops, events and deliveries.
use crate::common;

use std::sync::Arc;

use common::{Peer, Server, Value};
use geartrain_core::SystemClock;
use geartrain_core::wire::{self, EventBatch, EventsReply, ParkReply, ParkedPop, ParkedPopNotice, Request};
use geartrain_core::{
    Answer, Backend, Call, Count, Event, Get, Holder, Jid, Klass, Length, Pop, PopReply, Put, PutOptions,
    PutReply, QueueName, Refusal, Reply, ResultWaiter, Seconds, StateName, StreamItem, StreamMessage,
    Timestamp, WorkerName,
};
use geartrain_resp::{Front, Options};
use geartrain_store::StoreBackend;
use tokio_util::sync::CancellationToken;

fn queue(name: &str) -> QueueName {
    QueueName::new(name).unwrap()
}

fn put(jid: &str) -> Put {
    Put::new(queue("q"), Jid::new(jid).unwrap(), Klass::new("k").unwrap(), "{}")
}

fn pop() -> Pop {
    Pop::new(queue("q"), WorkerName::new("w").unwrap())
}

fn call(request: &Request) -> Vec<u8> {
    common::request(&[&b"FCALL"[..], b"geartrain_abc", b"1", b"", &request.encode()])
}

/// Sends a request and decodes its reply.
async fn ask<T: wire::Message>(peer: &mut Peer, request: &Request) -> T {
    peer.send(&call(request)).await;
    wire::decode(&peer.bytes().await).unwrap()
}

fn wait(number: u64) -> Request {
    wait_for(number, pop(), 1000)
}

/// A wait for readiness.
fn wait_for_readiness(number: u64, seconds: i32) -> Request {
    wait_for(number, Pop { count: Count::new(0).unwrap(), ..pop() }, seconds)
}

fn wait_for(number: u64, pop: Pop, seconds: i32) -> Request {
    let wait = ParkedPop { number, pop, wait: Seconds::from(seconds) };
    Request::Park { process: "p".into(), now: None, waits: vec![wait], tick: false }
}

async fn state(server: &Server, jid: &str) -> StateName {
    let get = Call::from(Get { jid: Jid::new(jid).unwrap() });
    match server.backend.execute(vec![get]).await.unwrap().remove(0) {
        Ok(Reply::Get(Some(job))) => job.state.name(),
        other => panic!("{other:?}"),
    }
}

/// A client as our driver has one, for parked pops and subscriptions.
async fn driver(server: &Server) -> Peer {
    let mut peer = server.peer().await;
    peer.ask(&["HELLO", "3"]).await;
    peer.ask(&["SUBSCRIBE", "gt:to:p"]).await;
    peer
}

#[tokio::test]
async fn a_batch_is_answered_command_by_command() {
    let server = Server::start().await;
    let mut peer = server.peer().await;
    let batch = Request::Batch(vec![
        Call::at(Timestamp::from(7), put("j")),
        Call::from(Length { queue: queue("q") }),
        Call::from(geartrain_core::Release::new(
            Jid::new("nobody").unwrap(),
            Holder::Worker(WorkerName::new("w").unwrap()),
        )),
    ]);
    let answers: Vec<Answer> = ask(&mut peer, &batch).await;
    let refused = Refusal::NoSuchJob { jid: Jid::new("nobody").unwrap() };
    assert_eq!(answers, [Ok(Reply::Put(PutReply::Created)), Ok(Reply::Length(1)), Err(refused)]);
    let nothing: Vec<Answer> = ask(&mut peer, &Request::Batch(vec![])).await;
    assert_eq!(nothing, []);
    server.end().await;
}

#[tokio::test]
async fn our_calls_and_qlesss_are_answered_in_order() {
    let server = Server::start().await;
    let mut peer = server.qless().await;
    let length = Request::Batch(vec![Call::from(Length { queue: queue("q") })]);
    let calls =
        [peer.call("put 0 w q a k {} 0"), call(&length), peer.call("put 0 w q b k {} 0"), call(&length)];
    peer.send(&calls.concat()).await;
    assert_eq!(peer.read().await, "a".into());
    assert_eq!(wire::decode::<Vec<Answer>>(&peer.bytes().await).unwrap(), [Ok(Reply::Length(1))]);
    assert_eq!(peer.read().await, "b".into());
    assert_eq!(wire::decode::<Vec<Answer>>(&peer.bytes().await).unwrap(), [Ok(Reply::Length(2))]);
    server.end().await;
}

#[tokio::test]
async fn a_malformed_call_changes_nothing_and_gets_an_error() {
    let server = Server::start().await;
    let mut peer = server.peer().await;
    let good = Request::Batch(vec![put("j").into()]).encode();
    for (words, error) in [
        (vec![&b"FCALL"[..], b"other", b"1", b"", &good], "ERR Function not found"),
        (
            vec![b"FCALL", b"geartrain_x", b"0", &good],
            "ERR a call of geartrain has one key, the prefix, and one argument, the request",
        ),
        (
            vec![b"FCALL", b"geartrain_x", b"1", b"prefix", &good],
            "ERR a geartrain server has one namespace: the prefix must be empty",
        ),
        (
            vec![b"FCALL", b"geartrain_x", b"1", b"", b"\x92\x07\xc0"],
            "ERR this is version 7 of the wire, and version 1 is spoken here",
        ),
    ] {
        assert_eq!(peer.ask(&words).await, Value::error(error));
    }
    let cut = &good[..good.len() - 1];
    let error = peer.ask(&[&b"FCALL_RO"[..], b"geartrain_x", b"1", b"", cut]).await;
    assert!(error.text().starts_with("ERR what came cannot be read"), "{error:?}");
    peer.send(&call(&wait(1))).await;
    assert_eq!(peer.read().await, Value::error("ERR waiting for jobs requires RESP3 (send HELLO 3)"));
    let answers: Vec<Answer> =
        ask(&mut peer, &Request::Batch(vec![Length { queue: queue("q") }.into()])).await;
    assert_eq!(answers, [Ok(Reply::Length(0))]);
    server.end().await;
}

#[tokio::test]
async fn a_parked_pop_is_answered_when_there_is_a_job() {
    let server = Server::start().await;
    let mut waiting = driver(&server).await;
    let parked: Vec<ParkReply> = ask(&mut waiting, &wait(7)).await;
    assert_eq!(parked, [ParkReply::Parked { next: None }]);
    // The same pop again is still one parked pop.
    let parked: Vec<ParkReply> = ask(&mut waiting, &wait(7)).await;
    assert_eq!(parked, [ParkReply::Parked { next: None }]);
    server.backend.execute(vec![put("a").into(), put("b").into()]).await.unwrap();
    let (channel, message) = waiting.push().await;
    assert_eq!(channel, "gt:to:p");
    match wire::decode(&message).unwrap() {
        ParkedPopNotice::Popped { number: 7, reply: Ok(reply) } => {
            assert_eq!(reply.jobs[0].jid.to_string(), "a")
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(state(&server, "b").await, StateName::Waiting);
    let popped: Vec<ParkReply> = ask(&mut waiting, &wait(8)).await;
    assert!(matches!(&popped[..], [ParkReply::Popped(reply)] if reply.jobs[0].jid.to_string() == "b"));
    server.end().await;
}

/// The answer to a wait for readiness.
fn ready_reply() -> PopReply {
    PopReply { jobs: Vec::new(), turn: 0 }
}

#[tokio::test]
async fn a_wait_for_readiness_is_answered_and_takes_nothing() {
    let server = Server::start().await;
    let mut waiting = driver(&server).await;
    for seconds in [0, 1000, 1000] {
        let parked: Vec<ParkReply> = ask(&mut waiting, &wait_for_readiness(7, seconds)).await;
        assert_eq!(parked, [ParkReply::Parked { next: None }]);
    }
    server.backend.execute(vec![put("a").into()]).await.unwrap();
    let (channel, message) = waiting.push().await;
    assert_eq!(channel, "gt:to:p");
    assert_eq!(
        wire::decode::<ParkedPopNotice>(&message).unwrap(),
        ParkedPopNotice::Popped { number: 7, reply: Ok(ready_reply()) }
    );
    for (number, seconds) in [(8, 0), (9, 1000)] {
        let answered: Vec<ParkReply> = ask(&mut waiting, &wait_for_readiness(number, seconds)).await;
        assert_eq!(answered, [ParkReply::Popped(ready_reply())]);
    }
    assert_eq!(state(&server, "a").await, StateName::Waiting);
    server.end().await;
}

#[tokio::test]
async fn readiness_counts_what_the_pops_of_the_same_request_leave() {
    let server = Server::start().await;
    let mut waiting = driver(&server).await;
    server.backend.execute(vec![put("a").into()]).await.unwrap();
    let nothing = Pop { count: Count::new(0).unwrap(), ..pop() };
    let nowhere = Pop { queues: Vec::new(), ..nothing.clone() };
    let wait = |number, pop| ParkedPop { number, pop, wait: Seconds::from(1000) };
    let waits = vec![wait(1, nothing), wait(2, nowhere), wait(3, pop())];
    let request = Request::Park { process: "p".into(), now: None, waits, tick: false };
    let became: Vec<ParkReply> = ask(&mut waiting, &request).await;
    assert!(
        matches!(&became[..], [
            ParkReply::Parked { next: None },
            ParkReply::Refused(Refusal::BadArgument { what, .. }),
            ParkReply::Popped(reply),
        ] if what == "queues" && reply.jobs.len() == 1),
        "{became:?}"
    );
    let (): () = ask(&mut waiting, &Request::Unpark { process: "p".into(), number: 1 }).await;
    let parked: Vec<ParkReply> = ask(&mut waiting, &wait_for_readiness(4, 1000)).await;
    assert_eq!(parked, [ParkReply::Parked { next: None }]);
    server.backend.execute(vec![put("b").into()]).await.unwrap();
    let (_, message) = waiting.push().await;
    assert_eq!(
        wire::decode::<ParkedPopNotice>(&message).unwrap(),
        ParkedPopNotice::Popped { number: 4, reply: Ok(ready_reply()) }
    );
    server.end().await;
}

#[tokio::test]
async fn a_parked_pop_ends_when_it_is_cancelled_or_its_connection_ends() {
    let server = Server::start().await;
    let mut waiting = driver(&server).await;
    let _: Vec<ParkReply> = ask(&mut waiting, &wait(1)).await;
    let _: Vec<ParkReply> = ask(&mut waiting, &wait(2)).await;
    let (): () = ask(&mut waiting, &Request::Unpark { process: "p".into(), number: 1 }).await;
    server.backend.execute(vec![put("a").into()]).await.unwrap();
    let (_, message) = waiting.push().await;
    assert!(matches!(wire::decode(&message).unwrap(), ParkedPopNotice::Popped { number: 2, .. }));
    let _: Vec<ParkReply> = ask(&mut waiting, &wait(3)).await;
    drop(waiting);
    // When the server has ended, so has every parked pop, and its job is waiting or was released.
    let backend = server.backend.clone();
    server.end().await;
    backend.execute(vec![put("b").into()]).await.unwrap();
    let get = Call::from(Get { jid: Jid::new("b").unwrap() });
    match backend.execute(vec![get]).await.unwrap().remove(0) {
        Ok(Reply::Get(Some(job))) => assert_eq!(job.state.name(), StateName::Waiting),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn events_are_published_and_can_be_replayed() {
    let server = Server::start().await;
    let mut peer = driver(&server).await;
    peer.ask(&["SUBSCRIBE", "gt:events"]).await;
    let newest: u64 = ask(&mut peer, &Request::Listen { now: None }).await;
    server.backend.execute(vec![put("a").into(), put("b").into()]).await.unwrap();
    let mut events = Vec::new();
    while events.len() < 2 {
        let (channel, message) = peer.push().await;
        assert_eq!(channel, "gt:events");
        let (ql, heard): EventBatch = wire::decode(&message).unwrap();
        assert_eq!(ql, 0);
        events.extend(heard);
    }
    let put_event = |jid: &str| Event::Put { jid: Jid::new(jid).unwrap(), queue: queue("q") };
    assert!(newest < events[0].position && events[0].position < events[1].position);
    assert_eq!(
        events.iter().map(|record| record.event.clone()).collect::<Vec<_>>(),
        [put_event("a"), put_event("b")]
    );
    let since = |after, count| Request::Since { after, count: Count::new(count).unwrap() };
    let replayed: EventsReply = ask(&mut peer, &since(newest, 10)).await;
    assert_eq!(replayed.unwrap(), events);
    let replayed: EventsReply = ask(&mut peer, &since(newest, 1)).await;
    assert_eq!(replayed.unwrap(), events[..1]);
    let replayed: EventsReply = ask(&mut peer, &since(events[1].position + 1, 1)).await;
    assert!(matches!(replayed, Err(Refusal::CursorAhead { .. })), "{replayed:?}");
    server.end().await;
}

#[tokio::test]
async fn a_job_ending_is_delivered_to_the_result_stream_of_its_waiter() {
    let server = Server::start().await;
    let mut peer = driver(&server).await;
    peer.ask(&["SUBSCRIBE", "gt:front:5"]).await;
    let waiter = ResultWaiter { stream_id: 5, connection: 1, number: 9 };
    let options = PutOptions { attach: Some(waiter), ..PutOptions::default() };
    let awaited = Put { options: Some(Box::new(options)), ..put("j") };
    let cancel = geartrain_core::Cancel::new(vec![Jid::new("j").unwrap()]);
    let batch = Request::Batch(vec![awaited.into(), cancel.into()]);
    peer.send(&call(&batch)).await;
    // Delivered before the reply to the call that caused it.
    let (channel, message) = peer.push().await;
    assert_eq!(channel, "gt:front:5");
    let delivery: StreamMessage = wire::decode(&message).unwrap();
    assert_eq!((delivery.waiter, delivery.jid.to_string().as_str()), (waiter, "j"));
    assert!(matches!(delivery.item, StreamItem::Ended(..)));
    assert_eq!(wire::decode::<Vec<Answer>>(&peer.bytes().await).unwrap().len(), 2);
    peer.ask(&["UNSUBSCRIBE", "gt:front:5"]).await;
    server.end().await;
}

/// A tombstone names the client's address, and the name that it has set or that the call gives.
#[tokio::test]
async fn who_cancelled_a_job_is_known_by_name_and_address() {
    let server = Server::start().await;
    let mut peer = driver(&server).await;
    let jid = |name: &str| Jid::new(name).unwrap();
    let mut callers = Vec::new();
    for (name, by) in [("a", None), ("b", None), ("c", Some("ana@desk".into()))] {
        if name == "b" {
            peer.ask(&["CLIENT", "SETNAME", "billing"]).await;
        }
        let cancel = Call { by, ..Call::from(geartrain_core::Cancel::new(vec![jid(name)])) };
        let canceled = geartrain_core::Canceled { jid: jid(name) };
        let batch = Request::Batch(vec![put(name).into(), cancel, canceled.into()]);
        let mut answers: Vec<Answer> = ask(&mut peer, &batch).await;
        let Some(Ok(Reply::Canceled(Some(tombstone)))) = answers.pop() else { panic!("{answers:?}") };
        callers.push(tombstone.by.unwrap());
    }
    let address = callers[0].clone();
    assert!(address.starts_with("127.0.0.1:"), "{address}");
    assert_eq!(callers[1..], [format!("billing ({address})"), format!("ana@desk ({address})")]);
    // Qless's calls name the client too.
    peer.ask(&["EVAL", "return 1", "0", "put", "7", "w", "q", "d", "k", "{}", "0"]).await;
    peer.ask(&["EVAL", "return 1", "0", "cancel", "8", "d"]).await;
    let batch = Request::Batch(vec![geartrain_core::Canceled { jid: jid("d") }.into()]);
    let mut answers: Vec<Answer> = ask(&mut peer, &batch).await;
    let Some(Ok(Reply::Canceled(Some(tombstone)))) = answers.pop() else { panic!("{answers:?}") };
    assert_eq!(tombstone.by, Some(format!("billing ({address})")));
    server.end().await;
}

#[tokio::test]
async fn a_unix_socket_serves_the_same_protocol() {
    let scratch = geartrain_testkit::peers::Scratch::new("resp");
    let path = scratch.path().join("socket");
    let backend = Arc::new(StoreBackend::in_memory(Arc::new(SystemClock)).unwrap());
    let front = Front::new(backend, Arc::new(SystemClock), Options::default());
    let stop = CancellationToken::new();
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    let serving = tokio::spawn({
        let stop = stop.clone();
        async move { front.serve_unix(listener, stop).await }
    });
    let mut stream = tokio::net::UnixStream::connect(&path).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut stream, b"PING\r\n").await.unwrap();
    let mut reply = [0; 7];
    tokio::io::AsyncReadExt::read_exact(&mut stream, &mut reply).await.unwrap();
    assert_eq!(&reply, b"+PONG\r\n");
    stop.cancel();
    serving.await.unwrap();
}
