//! Batches on a Redis: plain commands take fast paths with the same results.

use crate::support;

use geartrain_core::wire::{self, Answers, Request};
use geartrain_core::{
    Answer, Call, Command, Complete, Count, ForgetQueues, Holder, Jid, Klass, Pop, Priority, Put, PutReply,
    QueueLimits, QueueName, Refusal, Reply, SetLimits, Tag, Timestamp, Token, Track, WorkerName,
};
use geartrain_redis::script;
use redis::Connection;
use std::collections::BTreeMap;
use support::{Server, fcall};

/// Enough for the fast paths: the check for subscribers, and the choice of a sorted set's encoding.
const MANY: usize = 100;

/// How a batch is encoded.
#[derive(Clone, Copy)]
enum Writing {
    /// As our driver does.
    Ours,
    /// As any other MessagePack library would.
    Shortest,
}

struct Queue {
    connection: Connection,
    server: Server,
    writing: Writing,
}

impl Queue {
    fn start(writing: Writing) -> Queue {
        let server = Server::start();
        let mut connection = server.connect();
        redis::cmd("FUNCTION").arg("LOAD").arg(&script::library().text).exec(&mut connection).unwrap();
        Queue { connection, server, writing }
    }

    fn send(&mut self, request: &[u8]) -> redis::RedisResult<Vec<u8>> {
        fcall(&script::library().name, request, &mut self.connection)
    }

    fn batch(&mut self, now: i32, commands: Vec<Command>) -> Vec<Answer> {
        let now = Some(Timestamp::from(now));
        let request =
            Request::Batch(commands.into_iter().map(|command| Call { now, ..Call::from(command) }).collect());
        let bytes = match self.writing {
            Writing::Ours => request.encode(),
            Writing::Shortest => wire::encode_value(&(1, &request)),
        };
        wire::decode::<Answers>(&self.send(&bytes).unwrap()).unwrap()
    }

    /// All keys of this Redis with their values.
    fn everything(&mut self) -> BTreeMap<String, Vec<String>> {
        let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut self.connection).unwrap();
        keys.into_iter().map(|key| (key.clone(), self.inside(&key))).collect()
    }

    fn inside(&mut self, key: &str) -> Vec<String> {
        let kind: String = redis::cmd("TYPE").arg(key).query(&mut self.connection).unwrap();
        if kind == "string" {
            let bytes: Vec<u8> = redis::cmd("GET").arg(key).query(&mut self.connection).unwrap();
            return vec![format!("{bytes:?}")];
        }
        let mut ask = |words: &[&str]| {
            redis::cmd(words[0]).arg(key).arg(&words[1..]).query::<Vec<String>>(&mut self.connection).unwrap()
        };
        // Neither hashes nor sets have an order.
        let sorted = |mut members: Vec<String>| {
            members.sort();
            members
        };
        match kind.as_str() {
            "hash" => sorted(ask(&["HGETALL"]).chunks(2).map(|pair| pair.join("=")).collect()),
            "list" => ask(&["LRANGE", "0", "-1"]),
            "zset" => ask(&["ZRANGE", "0", "-1", "WITHSCORES"]),
            _ => sorted(ask(&["SMEMBERS"])),
        }
    }

    fn members(&mut self, key: &str) -> usize {
        redis::cmd("ZCARD").arg(key).query(&mut self.connection).unwrap()
    }
}

fn queue() -> QueueName {
    QueueName::new("q").unwrap()
}

fn jid(number: usize) -> Jid {
    Jid::new(format!("j{number}")).unwrap()
}

fn put(number: usize) -> Put {
    Put::new(queue(), jid(number), Klass::new("k").unwrap(), format!("{{\"number\":{number}}}").as_str())
}

fn pop(count: usize) -> Command {
    let count = Count::new(count.try_into().unwrap()).unwrap();
    Pop { count, ..Pop::new(queue(), WorkerName::new("w").unwrap()) }.into()
}

/// The jobs popped last, with their tokens.
fn popped(answers: &[Answer]) -> Vec<(Jid, Token)> {
    match answers.last() {
        Some(Ok(Reply::Pop(reply))) => {
            reply.jobs.iter().map(|job| (job.jid.clone(), job.lock.token)).collect()
        }
        other => panic!("{other:?}"),
    }
}

fn complete((jid, token): &(Jid, Token)) -> Command {
    Complete::new(jid.clone(), Holder::Token(*token)).into()
}

/// A trace of batches that mix plain and other commands, some of them refused.
fn trace(queue_system: &mut Queue) -> Vec<Answer> {
    let mut puts: Vec<Command> = (0..MANY).map(|number| put(number).into()).collect();
    puts.push(put(7).into());
    puts.insert(40, put(3).into());
    puts.insert(50, Put { tags: Some(vec![Tag::new("t").unwrap()]), ..put(200) }.into());
    puts.insert(51, Put { depends: vec![jid(30), jid(31)], ..put(201) }.into());
    puts.insert(52, Track { jid: jid(20), on: true }.into());
    puts.push(Put { priority: Priority::new(5.0).ok(), ..put(202) }.into());
    let mut all = queue_system.batch(1_000, puts);
    // The same again: all but one exist.
    all.extend(queue_system.batch(1_001, (0..=MANY).map(|number| put(number).into()).collect()));
    let answers = queue_system.batch(1_002, vec![pop(60), pop(60)]);
    let mut held = popped(&answers[..1]);
    held.extend(popped(&answers));
    all.extend(answers);
    let mut completes: Vec<Command> = held.iter().map(complete).collect();
    completes.insert(20, complete(&(jid(999), held[0].1)));
    completes.insert(30, complete(&(held[50].0.clone(), held[0].1)));
    completes.insert(60, completes[10].clone());
    completes.push(pop(10));
    all.extend(queue_system.batch(1_004, completes));
    all
}

#[test]
fn how_a_batch_is_written_makes_no_difference() {
    let (mut ours, mut other) = (Queue::start(Writing::Ours), Queue::start(Writing::Shortest));
    let answers = trace(&mut ours);
    assert_eq!(answers, trace(&mut other));
    assert_eq!(ours.everything(), other.everything());
    let refused = answers.iter().filter(|answer| answer.is_err()).count();
    assert_eq!(refused, 2, "a job that is not there, and a token of another job");
    let existing = |answer: &&Answer| matches!(answer, Ok(Reply::Put(PutReply::Existing)));
    assert_eq!(answers.iter().filter(existing).count(), 2 + MANY);
    // The one that depended on two of the others went last.
    assert_eq!(popped(&answers).into_iter().map(|(jid, _)| jid).collect::<Vec<_>>(), [jid(201)]);
}

#[test]
fn a_refused_command_does_not_affect_the_rest_of_its_batch() {
    let mut queue_system = Queue::start(Writing::Ours);
    let limits = QueueLimits { jobs_max: Some(49), ..QueueLimits::default() };
    queue_system.batch(0, vec![SetLimits { queue: queue(), limits }.into()]);
    let mut commands: Vec<Command> = (0..MANY).map(|number| put(number).into()).collect();
    commands.push(pop(5));
    let answers = queue_system.batch(1, commands);
    for (place, answer) in answers[..MANY].iter().enumerate() {
        match answer {
            Ok(Reply::Put(PutReply::Created)) => assert!(place < 49, "{place}"),
            Err(Refusal::QueueFull { .. }) => assert!(place >= 49, "{place}"),
            other => panic!("{place}: {other:?}"),
        }
    }
    assert_eq!(popped(&answers).len(), 5);
    assert_eq!(queue_system.members("ql:q:q-work"), 44);
}

#[test]
fn a_field_of_the_wrong_type_ends_a_batch_there() {
    let mut queue_system = Queue::start(Writing::Ours);
    // Two runs, because their times differ.
    let now = |number| Some(Timestamp::from(if number < 49 { 1 } else { 2 }));
    let calls = (0..MANY).map(|number| Call { now: now(number), ..Call::from(put(number)) });
    let bytes = Request::Batch(calls.collect()).encode();
    // With as many items as before, but one of the second run's jids is a boolean.
    let wrong = b"\xa3j60";
    let at = bytes.windows(wrong.len()).position(|window| window == wrong).unwrap();
    let spoiled = [&bytes[..at], &b"\xc3"[..], &bytes[at + wrong.len()..]].concat();
    assert!(queue_system.send(&spoiled).is_err());
    assert_eq!(queue_system.members("ql:q:q-work"), 49);
    let cut_off = &bytes[..bytes.len() - 1];
    let error = queue_system.send(cut_off).unwrap_err().to_string();
    assert!(error.contains("cannot be read as MessagePack"), "{error}");
    assert_eq!(queue_system.members("ql:q:q-work"), 49);
}

#[test]
fn a_subscriber_of_the_log_gets_a_message_for_every_job_of_a_large_batch() {
    for pattern in [false, true] {
        let mut queue_system = Queue::start(Writing::Ours);
        // Without subscribers.
        queue_system.batch(0, (0..MANY).map(|number| put(number).into()).collect());
        let mut subscriber = queue_system.server.connect();
        let mut subscription = subscriber.as_pubsub();
        if pattern { subscription.psubscribe("ql:l*") } else { subscription.subscribe("ql:log") }.unwrap();
        let held = popped(&queue_system.batch(1, vec![pop(MANY)]));
        queue_system.batch(2, held.iter().map(complete).collect());
        for (jid, _) in held {
            let text: String = subscription.get_message().unwrap().get_payload().unwrap();
            assert_eq!(text, format!(r#"{{"jid":"{jid}","event":"completed","queue":"q"}}"#));
        }
    }
}

/// What puts of one time have in common is cached, and must not outlive the registration of their queue.
#[test]
fn a_queue_forgotten_within_a_batch_is_registered_by_the_next_put() {
    let mut queue_system = Queue::start(Writing::Ours);
    let forget = ForgetQueues { queues: vec![queue()] };
    queue_system.batch(1, vec![put(1).into(), forget.into(), put(2).into()]);
    assert_eq!(queue_system.members("ql:queues"), 1);
}
