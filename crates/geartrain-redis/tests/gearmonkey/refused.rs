//! What GearMonkey has no notion of is refused by name, and bad input by the key that is wrong; neither writes.

use std::collections::{BTreeMap, BTreeSet};

use geartrain_core::{
    AnnounceChange, Backoff, Cancel, Capability, Chunk, ChunkKind, Command, Complete, Count,
    DependencyPolicy, Existing, Get, Heartbeat, Holder, Klass, Next, OrphanPolicy, Peek, Pop, PopOrder,
    Priority, Progress, Progressed, Put, PutOptions, Queues, Refusal, Release, RollCall, Tag, Token,
    UniqueKey,
};
use geartrain_testkit::peers::RedisServer;
use geartrain_testkit::trace;

use super::peer::Peer;
use super::*;

/// The commands that mean something to GearMonkey. Every other one is refused.
const KNOWN: [&str; 31] = [
    "Announce",
    "Announced",
    "Attach",
    "Cancel",
    "Canceled",
    "Complete",
    "Detach",
    "EndSetAside",
    "Fail",
    "Failed",
    "Failures",
    "Get",
    "GetMany",
    "GetRecurring",
    "GetResult",
    "Heartbeat",
    "Jobs",
    "Length",
    "Peek",
    "Pop",
    "PriorityCounts",
    "Progress",
    "Put",
    "Queues",
    "Release",
    "Retry",
    "RollCall",
    "SetAside",
    "Status",
    "WorkerJobs",
    "Workers",
];

#[test]
fn every_other_command_is_refused_by_name() {
    let redis = RedisServer::start(&[]);
    let backend = connect(&redis, "");
    let mut commands: BTreeMap<&str, Command> = BTreeMap::new();
    for seed in 0..16 {
        commands.extend(trace::generate(seed).into_iter().map(|step| (step.command.name(), step.command)));
    }
    assert!(commands.len() >= 65, "the traces have {} commands", commands.len());
    let known: BTreeSet<&str> = KNOWN.into();
    for name in &known {
        assert!(commands.contains_key(name), "{name}");
    }
    for (name, command) in commands {
        if known.contains(name) {
            continue;
        }
        match execute(&*backend, Call::from(command)) {
            Err(Refusal::Unsupported { operation, backend }) => {
                assert_eq!(backend, "gearmonkey");
                assert!(operation.contains(' '), "{name}: {operation} is no sentence");
            }
            other => panic!("{name}: {other:?}"),
        }
    }
    assert_eq!(keys(&redis), [] as [&str; 0]);
}

fn with(change: impl FnOnce(&mut Put)) -> Command {
    let mut put = put("up", "x");
    change(&mut put);
    put.into()
}

fn with_option(change: impl FnOnce(&mut PutOptions)) -> Command {
    with_options(put("up", "x"), change).into()
}

#[test]
fn what_a_command_asks_beyond_the_protocol_is_refused_by_name() {
    let redis = RedisServer::start(&[]);
    let backend = connect(&redis, "");
    let holder = || Holder::Token(Token::new(1));
    let complete = || Complete::new(jid("up:1"), holder());
    let capability = Capability { queue: queue("up"), klass: None, attempt_max: Some(seconds(1.0)) };
    let progressed = Progressed { portion: Portion::new(1, 2).unwrap(), seconds_left: None };
    let progress = || Progress::new(jid("up:1"), holder(), progressed);
    let hold = || seconds(9.0);
    let announce =
        |capability| Announce { worker: worker("w"), change: AnnounceChange::Only(vec![capability]) };
    let commands: Vec<(Command, &str)> = vec![
        (with(|put| put.tags = Some(vec![Tag::new("t").unwrap()])), "tag a job"),
        (with(|put| put.depends = vec![jid("x")]), "make a job depend on others"),
        (with(|put| put.existing = Existing::Replace), "replace a job: its id is given out by the Redis"),
        (
            with(|put| (put.delay, put.priority) = (seconds(5.0), Some(Priority::from(1)))),
            "delay a job that has a priority",
        ),
        (with_option(|it| it.unique = Some(UniqueKey::new("k").unwrap())), "take a unique key"),
        (with_option(|it| it.result_ttl = Some(seconds(90_001.0))), "keep a result for more than 25 hours"),
        (with_option(|it| it.expires = Some(backend.now().unwrap())), "let a job expire"),
        (with_option(|it| it.attempt_max = Some(hold())), "limit how long an attempt takes"),
        (with_option(|it| it.backoff = Some(Backoff::DEFAULT)), "keep a job's backoff"),
        (
            with_option(|it| it.crashes_max = Some(1)),
            "keep with a job how many lost workers end it: use ?lost= in the URL",
        ),
        (with_option(|it| it.metadata = Some("m".into())), "keep metadata with a job"),
        (
            with_option(|it| it.orphan_policy = OrphanPolicy::WhileAwaited),
            "remove a job that no client waits for",
        ),
        (with_option(|it| it.on_dependency_failure = DependencyPolicy::Fail), "make a job depend on others"),
        (Complete { payload: Some("p".into()), ..complete() }.into(), "change a job's payload"),
        (
            Complete { next: Some(Next::new(queue("q"))), ..complete() }.into(),
            "send a job on to another queue",
        ),
        (
            Complete { result: Some(Box::new(JobResult { code: 3, bytes: "x".into() })), ..complete() }
                .into(),
            "keep the code of a result",
        ),
        (
            Heartbeat { jid: jid("up:1"), holder: holder(), payload: Some("p".into()) }.into(),
            "change a job's payload",
        ),
        (Progress { text: Some("half".into()), ..progress() }.into(), "report progress in words"),
        (
            Progress { progress: Progressed { seconds_left: Some(3), ..progressed }, ..progress() }.into(),
            "report the seconds left",
        ),
        (
            Chunk { jid: jid("up:1"), holder: holder(), kind: ChunkKind::Data, bytes: "x".into() }.into(),
            "send parts of a result",
        ),
        (
            Cancel { because: Some("no".into()), ..Cancel::new(vec![jid("up:1")]) }.into(),
            "remember why a job was cancelled",
        ),
        (Cancel { cascade: true, ..Cancel::new(vec![jid("up:1")]) }.into(), "make a job depend on others"),
        (announce(capability).into(), "limit how long an attempt takes"),
        (
            Pop { order: PopOrder::Priority { turn: 0 }, ..Pop::new(queue("up"), worker("w")) }.into(),
            "order the jobs of several queues by priority",
        ),
    ];
    for (command, operation) in commands {
        let (name, answer) = (command.name(), execute(&*backend, Call::from(command)));
        let refusal = Refusal::Unsupported { operation: operation.into(), backend: "gearmonkey".into() };
        assert_eq!(answer, Err(refusal), "{name}");
    }
    let other = Klass::new("other").unwrap();
    let klass = "klass must be up, as the queue is: to GearMonkey a job's function is all there is";
    let long = "q".repeat(500);
    let bad: Vec<(Command, String)> = vec![
        (with(|put| put.klass = other.clone()), klass.to_owned()),
        (
            Pop { klasses: Some(vec![other.clone()]), ..Pop::new(queue("up"), worker("w")) }.into(),
            klass.to_owned(),
        ),
        (RollCall { queue: queue("up"), klass: Some(other.clone()) }.into(), klass.to_owned()),
        (
            announce(Capability { queue: queue("up"), klass: Some(other), attempt_max: None }).into(),
            klass.to_owned(),
        ),
        (put(&long, "x").into(), "queue is too long: a jid is the queue, a colon and a number".to_owned()),
        (
            Pop::new(queue(&long), worker("w")).into(),
            "queue is too long: a jid is the queue, a colon and a number".to_owned(),
        ),
        (
            with_option(|it| it.attach = Some(ResultWaiter { stream_id: 1, connection: 0, number: 0 })),
            "waiter has no open result stream".to_owned(),
        ),
        (
            Pop { queues: Vec::new(), ..Pop::new(queue("up"), worker("w")) }.into(),
            "queues must be 1 to 1024, not 0".to_owned(),
        ),
        (Get { jid: jid("up") }.into(), "jid must be FUNCTION:NUMBER, as in resize:7, not up".to_owned()),
        (complete_of("up:x").into(), "jid must be FUNCTION:NUMBER, as in resize:7, not up:x".to_owned()),
    ];
    for (command, expected) in bad {
        assert_eq!(execute(&*backend, Call::from(command)).unwrap_err().to_string(), expected);
    }
    assert_eq!(keys(&redis), [] as [&str; 0]);
}

fn complete_of(id: &str) -> Complete {
    Complete::new(jid(id), Holder::Token(Token::new(1)))
}

#[test]
fn keys_of_another_type_are_named_and_left_alone() {
    let redis = RedisServer::start(&[]);
    let (backend, mut peer) = (connect(&redis, ""), Peer::of(&redis));
    let put_up = || Command::from(put("up", "x"));
    let pop_up = || Command::from(Pop::new(queue("up"), worker("w")));
    let cases: Vec<(&str, &str, Command, &str)> = vec![
        ("SET queue:up:high x", "queue:up:high", pop_up(), "is a string, not a list"),
        ("SET queue:up:normal x", "queue:up:normal", put_up(), "is a string, not a list"),
        ("LPUSH queue:up:scheduled x", "queue:up:scheduled", pop_up(), "is a list, not a zset"),
        ("HSET uid:up a b", "uid:up", put_up(), "is a hash, not a string"),
        ("ZADD count:up 1 b", "count:up", registered("w", &["up"]).into(), "is a zset, not a string"),
        ("SET uid:up seven", "uid:up", put_up(), "is no integer: seven"),
        ("SET uid:up -7", "uid:up", put_up(), "is negative: -7"),
        ("SET count:up 1.5", "count:up", registered("w", &["up"]).into(), "is no integer: 1.5"),
        ("SET geartrain:gm:up:leases x", "geartrain:gm:up:leases", pop_up(), "is a string, not a zset"),
        ("LPUSH job:up:7 x", "job:up:7", Cancel::new(vec![jid("up:7")]).into(), "is a list, not a hash"),
        (
            "LPUSH job:up:7 x",
            "job:up:7",
            Get { jid: jid("up:7") }.into(),
            "has another type: it belongs to something else",
        ),
        (
            "HSET job:up:7 input x",
            "job:up:7",
            Get { jid: jid("up:7") }.into(),
            "is no job: it has no field status",
        ),
        (
            "HSET job:up:7 status idle",
            "job:up:7",
            Get { jid: jid("up:7") }.into(),
            "is no job: it has no field input",
        ),
        (
            "HSET job:up:7 status lost input x",
            "job:up:7",
            Get { jid: jid("up:7") }.into(),
            r#"has the status "lost", which does not exist"#,
        ),
        ("HSET job:up:7 input x", "job:up:7", Cancel::new(vec![jid("up:7")]).into(), "has no status"),
        (
            "SET queue:up:low x",
            "queue:up:low",
            Peek { queue: queue("up"), count: Count::new(9).unwrap() }.into(),
            "has another type: it belongs to something else",
        ),
    ];
    for (write, key, command, why) in cases {
        peer.say::<redis::Value>(write);
        let before: Vec<u8> = peer.say(&format!("DUMP {key}"));
        let refused = execute(&*backend, Call::from(command)).unwrap_err();
        assert_eq!(refused.to_string(), format!("key {key} {why}"), "{write}");
        assert_eq!(peer.say::<Vec<u8>>(&format!("DUMP {key}")), before);
        assert_eq!(keys(&redis), [key], "{write}");
        peer.say::<i64>(&format!("DEL {key}"));
    }
    // Other functions go on beside them.
    peer.say::<redis::Value>("SET queue:up:high x");
    assert_eq!(add(&*backend, put("down", "x")), jid("down:1"));
    assert_eq!(take(&*backend, "down").unwrap().jid, jid("down:1"));
}

#[test]
fn the_names_of_another_dialect_in_the_same_database_are_refused() {
    let redis = RedisServer::start(&[]);
    let (backend, mut peer) = (connect(&redis, ""), Peer::of(&redis));
    // A WorkKit schedule called `count`, and one called `uid`.
    peer.say::<i64>("HSET count:jobs id {}");
    peer.say::<i64>("ZADD count:next 1 x");
    peer.say::<i64>("HSET uid:jobs id {}");
    let before = keys(&redis);
    for (function, key) in [("jobs", "count:jobs is a hash"), ("next", "count:next is a zset")] {
        let expected = format!("key {key}, not a string");
        assert_eq!(run(&*backend, put(function, "x")).unwrap_err().to_string(), expected);
        assert_eq!(run(&*backend, registered("w", &[function])).unwrap_err().to_string(), expected);
    }
    assert_eq!(keys(&redis), before);
    assert_eq!(run(&*backend, Queues::default()), Ok(Vec::new()), "and they are no functions");
}

#[test]
fn ids_that_cannot_be_run_leave_their_queue_and_the_rest_goes_on() {
    let redis = RedisServer::start(&[]);
    let (backend, mut peer) = (connect(&redis, ""), Peer::of(&redis));
    peer.say::<i64>("HSET job:up:11 status success input x");
    peer.say::<i64>("HSET job:up:12 input x");
    peer.say::<i64>("HSET job:up:13 status idle");
    peer.say::<i64>("LPUSH job:up:14 x");
    for id in ["10", "11", "12", "13", "14", "01", "-3", "seven", "1.5", "99999999999999999999"] {
        peer.say::<i64>(&format!("LPUSH queue:up:high {id}"));
        peer.say::<i64>(&format!("ZADD queue:up:scheduled -5 {id}"));
    }
    peer.send::<i64>(&[b"LPUSH", b"queue:up:high", &[0, 255, 10]]);
    let before: Vec<String> = keys(&redis).into_iter().filter(|key| key.starts_with("job:")).collect();
    let id = peer.run("up", b"x", "normal", 0);
    let peeked = run(&*backend, Peek { queue: queue("up"), count: Count::new(1).unwrap() });
    assert!(peeked.is_err() || peeked.is_ok_and(|jobs| jobs.len() <= 1));
    let job = take(&*backend, "up").unwrap();
    assert_eq!(job.jid, jid(&format!("up:{id}")));
    assert!(keys(&redis).iter().all(|key| !key.starts_with("queue:")), "{:?}", keys(&redis));
    run(&*backend, Release::new(job.jid.clone(), job.holder())).unwrap();
    // No hash came into being, and none changed.
    peer.say::<i64>(&format!("DEL job:up:{id}"));
    let after: Vec<String> = keys(&redis).into_iter().filter(|key| key.starts_with("job:")).collect();
    assert_eq!(after, before);
    assert_eq!(peer.status("up", "11").as_deref(), Some("success"));
}

#[test]
fn a_job_that_is_gone_or_final_is_not_made_again_by_its_late_end() {
    let redis = RedisServer::start(&[]);
    let (backend, mut peer) = (connect(&redis, ""), Peer::of(&redis));
    add(&*backend, put("up", "x"));
    let job = take(&*backend, "up").unwrap();
    peer.say::<i64>("DEL job:up:1");
    let refused = run(&*backend, done(&job, b"y"));
    assert_eq!(refused, Err(Refusal::NoSuchJob { jid: jid("up:1") }));
    assert_eq!(keys(&redis), ["uid:up"]);
    add(&*backend, put("up", "x"));
    let job = take(&*backend, "up").unwrap();
    peer.finish("up", "2", "error", b"an operator's");
    let lost = Refusal::LockLost { jid: jid("up:2"), state: StateName::Failed };
    assert_eq!(run(&*backend, done(&job, b"y")), Err(lost));
    assert_eq!(peer.job("up", "2")["output"], b"an operator's");
}
