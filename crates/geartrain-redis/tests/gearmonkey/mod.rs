//! GearMonkey functions: our backend beside a peer that is written with plain Redis commands.

mod killed;
mod peer;
mod refused;
mod set_aside;

use std::sync::Arc;

use geartrain_core::{
    Announce, AnnounceChange, Announced, Attach, AttachReply, Backend, BackendError, Call, Cancel,
    Capability, Command, Complete, Count, Event, Fail, Failed, Failures, Get, GetResult, Group, Heartbeat,
    Holder, Jid, JobEnding, JobResult, JobState, Jobs, Klass, Length, Listed, Listing, Operation, Page, Peek,
    Pop, PopOrder, Popped, Portion, Priority, PriorityCounts, Progress, Progressed, Put, PutOptions,
    PutReply, QueueName, Queues, Refusal, Release, ResultWaiter, Retry, RollCall, Seconds, StateName, Status,
    StatusOf, StreamItem, WorkerJobs, WorkerName, Workers,
};
use geartrain_redis::gearmonkey::GearMonkeyBackend;
use geartrain_testkit::peers::{RedisServer, until};
use pollster::block_on;

use crate::peers::ask;
use peer::Peer;

/// Connects with options such as `?lease=5`.
fn connect(redis: &RedisServer, options: &str) -> Arc<dyn Backend> {
    let url = format!("gearmonkey+{}{options}", redis.url());
    Arc::new(block_on(GearMonkeyBackend::connect(url.parse().unwrap())).unwrap())
}

fn run<O: Operation>(backend: &dyn Backend, operation: O) -> Result<O::Reply, Refusal> {
    execute(backend, Call::from(operation.into())).map(|reply| O::answer(reply).unwrap())
}

/// Executes an operation some seconds from now.
fn run_in<O: Operation>(backend: &dyn Backend, seconds: f64, operation: O) -> Result<O::Reply, Refusal> {
    let at = backend.now().unwrap() + Seconds::new(seconds).unwrap();
    let command: Command = operation.into();
    execute(backend, Call::at(at, command)).map(|reply| O::answer(reply).unwrap())
}

fn execute(backend: &dyn Backend, call: Call) -> Result<geartrain_core::Reply, Refusal> {
    block_on(backend.execute(vec![call])).unwrap().remove(0)
}

fn queue(name: &str) -> QueueName {
    QueueName::new(name).unwrap()
}

fn jid(id: &str) -> Jid {
    Jid::new(id).unwrap()
}

fn worker(name: &str) -> WorkerName {
    WorkerName::new(name).unwrap()
}

fn seconds(seconds: f64) -> Seconds {
    Seconds::new(seconds).unwrap()
}

/// A put into a function; the jid does not matter.
fn put(function: &str, input: impl AsRef<[u8]>) -> Put {
    Put::new(queue(function), jid("-"), Klass::new(function).unwrap(), input.as_ref())
}

fn with_options(put: Put, change: impl FnOnce(&mut PutOptions)) -> Put {
    let mut put = put;
    change(put.options.get_or_insert_default());
    put
}

/// Puts a job, and returns its jid.
fn add(backend: &dyn Backend, put: Put) -> Jid {
    match run(backend, put) {
        Ok(PutReply::Named { jid }) => jid,
        other => panic!("not put: {other:?}"),
    }
}

fn take(backend: &dyn Backend, function: &str) -> Option<Popped> {
    run(backend, Pop::new(queue(function), worker("w"))).unwrap().jobs.pop()
}

fn done(job: &Popped, output: &[u8]) -> Complete {
    let result = JobResult { code: 0, bytes: output.into() };
    Complete { result: Some(Box::new(result)), ..Complete::new(job.jid.clone(), job.holder()) }
}

/// All keys of the database.
fn keys(redis: &RedisServer) -> Vec<String> {
    let mut keys: Vec<String> = ask(redis.port(), &["KEYS", "*"]).unwrap();
    keys.sort();
    keys
}

fn registered(function: &str, names: &[&str]) -> Announce {
    let capability = |name: &&str| Capability { queue: queue(name), klass: None, attempt_max: None };
    let capabilities = names.iter().map(capability).collect();
    Announce { worker: worker(function), change: AnnounceChange::Only(capabilities) }
}

#[test]
fn a_put_writes_what_the_protocol_says() {
    let redis = RedisServer::start(&[]);
    let (backend, mut peer) = (connect(&redis, ""), Peer::of(&redis));
    let mut events = block_on(backend.subscribe()).unwrap();
    assert_eq!(add(&*backend, put("up", "hello")), jid("up:1"));
    assert_eq!(keys(&redis), ["job:up:1", "queue:up:normal", "uid:up"]);
    assert_eq!(
        peer.job("up", "1"),
        [("status", b"idle".to_vec()), ("input", b"hello".to_vec())].map(|(k, v)| (k.to_owned(), v)).into()
    );
    assert_eq!(peer.say::<Vec<String>>("LRANGE queue:up:normal 0 -1"), ["1"]);
    assert_eq!(*block_on(events.next()).unwrap().event, Event::Put { jid: jid("up:1"), queue: queue("up") });
    // Functions count on their own, also with colons in their names.
    assert_eq!(add(&*backend, put("a:b", [0, 255])), jid("a:b:1"));
    assert_eq!(add(&*backend, put("a:b", "")), jid("a:b:2"));
    assert_eq!(peer.job("a:b", "1")["input"], [0, 255]);
    // Pushed on the left.
    assert_eq!(peer.say::<Vec<String>>("LRANGE queue:a:b:normal 0 -1"), ["2", "1"]);
    // A put with a delay becomes due in a whole second, rounded up.
    let now = backend.now().unwrap();
    add(&*backend, Put { delay: seconds(1.5), ..put("up", "later") });
    let due: f64 = peer.say("ZSCORE queue:up:scheduled 2");
    assert!(due.fract() == 0.0 && due >= now.get() + 1.5 && due < now.get() + 60.0, "{due} after {now}");
    assert!(matches!(
        run(&*backend, Get { jid: jid("up:2") }).unwrap().unwrap().state,
        JobState::Scheduled { .. }
    ));
}

#[test]
fn a_job_of_ours_is_run_by_a_foreign_worker() {
    let redis = RedisServer::start(&[]);
    let (backend, mut peer) = (connect(&redis, ""), Peer::of(&redis));
    let mut events = block_on(backend.subscribe()).unwrap();
    let priority = |number: i32| Some(Priority::from(number));
    for (input, priority) in [("low", priority(-7)), ("normal", None), ("high", priority(1))] {
        add(&*backend, Put { priority, ..put("up", input) });
    }
    add(&*backend, Put { delay: seconds(0.001), ..put("up", "due") });
    peer.accept("up");
    assert_eq!(run(&*backend, RollCall { queue: queue("up"), klass: None }), Ok(1));
    // The scheduled one as soon as it is due, then by priority.
    until("the scheduled job is due", || {
        let due: f64 = peer.say::<Option<f64>>("ZSCORE queue:up:scheduled 4").unwrap();
        backend.now().unwrap().get() >= due
    });
    let order: Vec<(String, String)> = std::iter::from_fn(|| peer.pop("up")).take(4).collect();
    let expected = [("4", "scheduled"), ("3", "high"), ("2", "normal"), ("1", "low")];
    assert_eq!(order, expected.map(|(id, queue)| (id.to_owned(), queue.to_owned())));

    peer.begin("up", "3");
    let running = run(&*backend, Get { jid: jid("up:3") }).unwrap().unwrap();
    assert!(matches!(running.state, JobState::Running { lock } if lock.worker == worker("?")));
    peer.progress("up", "3", "1", "4");
    let status = run(&*backend, Status { of: StatusOf::Jid(jid("up:3")) }).unwrap().unwrap();
    assert_eq!((status.state, status.progress.unwrap().portion.percent()), (StateName::Running, 25));
    peer.finish("up", "3", "success", &[0, 159, 146]);
    peer.begin("up", "4");
    peer.finish("up", "4", "error", b"no luck");
    peer.exit("up");

    let result = run(&*backend, GetResult { jid: jid("up:3") }).unwrap().unwrap();
    assert_eq!((result.ending, result.result.bytes.bytes()), (JobEnding::Completed, &[0, 159, 146][..]));
    assert!(matches!(
        run(&*backend, Get { jid: jid("up:3") }).unwrap().unwrap().state,
        JobState::Complete { .. }
    ));
    let failed = run(&*backend, Get { jid: jid("up:4") }).unwrap().unwrap();
    assert!(matches!(failed.state, JobState::Failed { failure } if failure.message == "no luck"));
    assert_eq!(run(&*backend, Status { of: StatusOf::Jid(jid("up:4")) }), Ok(None));
    let group = Group::new("gearmonkey-error").unwrap();
    assert_eq!(run(&*backend, Failures), Ok([(group.clone(), 1)].into()));
    let page = Page { offset: 0, count: Count::new(9).unwrap() };
    assert_eq!(run(&*backend, Failed { group, page }), Ok(Listed { total: 1, jids: vec![jid("up:4")] }));
    assert_eq!(run(&*backend, Jobs { which: Listing::Complete, page }), Ok(vec![jid("up:3")]));

    let seen: Vec<String> = (0..8).map(|_| format!("{:?}", block_on(events.next()).unwrap().event)).collect();
    let words: Vec<&str> = seen.iter().map(|event| event.split(' ').next().unwrap()).collect();
    assert_eq!(words, ["Put", "Put", "Put", "Put", "Popped", "Completed", "Popped", "Failed"], "{seen:?}");
}

#[test]
fn a_foreign_job_is_run_by_our_worker() {
    let redis = RedisServer::start(&[]);
    let (backend, mut peer) = (connect(&redis, ""), Peer::of(&redis));
    let mut events = block_on(backend.subscribe()).unwrap();
    let (now, _): (i64, i64) = peer.say("TIME");
    for (input, priority, due) in
        [("l", "low", 0), ("n", "normal", 0), ("h", "high", 0), ("s", "scheduled", now)]
    {
        peer.run("up", input.as_bytes(), priority, due);
    }
    let waiting = run(&*backend, Peek { queue: queue("up"), count: Count::new(9).unwrap() }).unwrap();
    let ids: Vec<String> = waiting.iter().map(|job| job.jid.to_string()).collect();
    assert_eq!(ids, ["up:4", "up:3", "up:2", "up:1"]);
    assert_eq!(waiting.iter().map(|job| job.priority.get()).collect::<Vec<_>>(), [0.0, 1.0, 0.0, -1.0]);
    for skipped in 0..4 {
        let page = Page { offset: skipped, count: Count::new(2).unwrap() };
        let listed = run(&*backend, Jobs { which: Listing::Waiting(queue("up")), page }).unwrap();
        let listed: Vec<String> = listed.iter().map(Jid::to_string).collect();
        assert_eq!(listed, ids.iter().skip(skipped).take(2).cloned().collect::<Vec<_>>(), "{skipped}");
    }
    assert_eq!(run(&*backend, Length { queue: queue("up") }), Ok(4));

    let pop = Pop { count: Count::new(9).unwrap(), whole: true, ..Pop::new(queue("up"), worker("w 1")) };
    let jobs = run(&*backend, pop).unwrap().jobs;
    let got: Vec<(&[u8], String)> =
        jobs.iter().map(|job| (job.payload.bytes(), job.queue.to_string())).collect();
    assert_eq!(got, [b"s", b"h", b"n", b"l"].map(|input| (&input[..], "up".to_owned())));
    assert_eq!(jobs[1].klass.as_str(), "up");
    assert_eq!(jobs[1].job.as_ref().unwrap().state, JobState::Running { lock: jobs[1].lock.clone() });
    assert_eq!(peer.status("up", "4").as_deref(), Some("busy"));

    let holder = jobs[0].holder();
    let progressed = Progressed { portion: Portion::new(3, 10).unwrap(), seconds_left: None };
    run(&*backend, Progress::new(jid("up:4"), holder, progressed)).unwrap();
    let fields = peer.job("up", "4");
    assert_eq!((&fields["status:dividend"][..], &fields["status:divisor"][..]), (&b"3"[..], &b"10"[..]));
    assert!(!fields.contains_key("output"));
    run(&*backend, done(&jobs[0], &[9, 0, 200])).unwrap();
    let fields = peer.job("up", "4");
    assert_eq!((&fields["status"][..], &fields["output"][..]), (&b"success"[..], &[9, 0, 200][..]));
    let left: i64 = peer.say("TTL job:up:4");
    assert!((89_900..=90_000).contains(&left), "{left}");
    let left: i64 = peer.say("TTL lock:up:4");
    assert!((1..=10).contains(&left), "{left}");
    assert!(peer.block("up", "4", 1), "one OK");
    assert_eq!(peer.say::<i64>("LLEN lock:up:4"), 0, "and no more than one");

    let group = Group::new("g").unwrap();
    run(&*backend, Fail::new(jid("up:3"), jobs[1].holder(), group, "it broke")).unwrap();
    assert_eq!(peer.job("up", "3")["output"], b"it broke");
    assert_eq!(peer.status("up", "3").as_deref(), Some("error"));
    let heartbeat = Heartbeat { jid: jid("up:2"), holder: jobs[2].holder(), payload: None };
    assert!(run(&*backend, heartbeat).unwrap() >= jobs[2].lock.expires);
    run(&*backend, Release::new(jid("up:2"), Holder::Worker(worker("w 1")))).unwrap();
    run(&*backend, Release::new(jid("up:1"), jobs[3].holder())).unwrap();
    assert_eq!(peer.status("up", "2").as_deref(), Some("idle"));
    assert_eq!(peer.say::<Vec<String>>("LRANGE queue:up:low 0 -1"), ["1"], "in its own queue");
    assert_eq!(keys(&redis).iter().filter(|key| key.starts_with("geartrain:")).count(), 0);

    let seen: Vec<Event> = (0..8).map(|_| (*block_on(events.next()).unwrap().event).clone()).collect();
    let popped = Event::Popped { jid: jid("up:4"), queue: queue("up"), worker: worker("w 1") };
    assert!(seen.contains(&Event::Put { jid: jid("up:1"), queue: queue("up") }), "{seen:?}");
    // The name of a worker is read when the event arrives.
    assert!(
        seen.contains(&popped) || seen.iter().any(|event| matches!(event, Event::Popped { .. })),
        "{seen:?}"
    );
}

#[test]
fn a_waiting_pop_is_woken_by_a_foreign_job_that_is_queued_after_its_event() {
    let redis = RedisServer::start(&[]);
    let (backend, port) = (connect(&redis, ""), redis.port());
    std::thread::scope(|scope| {
        let popped = scope.spawn(|| {
            let pop = Pop { queues: vec![queue("a"), queue("b")], ..Pop::new(queue("a"), worker("w")) };
            block_on(backend.pop_or_wait(pop, Seconds::from(60))).unwrap().jobs
        });
        until("the pop has subscribed", || {
            let subscribed: (String, i64) = ask(port, &["PUBSUB", "NUMSUB", "channel:b"]).unwrap();
            subscribed.1 == 1
        });
        Peer::at(port).run("b", b"x", "normal", 0);
        let jobs = popped.join().unwrap();
        assert_eq!((jobs.len(), &jobs[0].jid), (1, &jid("b:1")));
    });
}

#[test]
fn a_foreign_client_that_blocks_is_woken_while_we_wait_for_the_same_job() {
    let redis = RedisServer::start(&[]);
    let (backend, mut peer, port) = (connect(&redis, ""), Peer::of(&redis), redis.port());
    let id = peer.run("up", b"x", "normal", 0);
    let mut stream = block_on(backend.open_result_stream(7)).unwrap();
    let waiter = ResultWaiter { stream_id: 7, connection: 0, number: 0 };
    assert_eq!(run(&*backend, Attach { jid: jid("up:1"), waiter }), Ok(AttachReply::Attached));
    assert_eq!(run(&*backend, Attach { jid: jid("up:1"), waiter }), Ok(AttachReply::Attached), "once more");
    std::thread::scope(|scope| {
        let blocked = scope.spawn(|| Peer::at(port).block("up", &id, 60));
        let job = take(&*backend, "up").unwrap();
        run(&*backend, done(&job, b"y")).unwrap();
        assert!(blocked.join().unwrap());
    });
    loop {
        let message = block_on(stream.next()).unwrap();
        assert_eq!(message.waiter, waiter);
        if let StreamItem::Ended(ending, result) = message.item {
            assert_eq!((ending, result.bytes.bytes()), (JobEnding::Completed, &b"y"[..]));
            break;
        }
    }
    // A wait that comes later does not depend on the lock list.
    let late = run(&*backend, Attach { jid: jid("up:1"), waiter }).unwrap();
    let AttachReply::Ended { state: Some(StateName::Complete), result: Some(result) } = late else {
        panic!("{late:?}")
    };
    assert_eq!(result.result.bytes.bytes(), b"y");
    assert_eq!(
        run(&*backend, Attach { jid: jid("up:9"), waiter }),
        Err(Refusal::NoSuchJob { jid: jid("up:9") })
    );
}

#[test]
fn a_put_that_waits_takes_the_lock_list_of_its_job() {
    let redis = RedisServer::start(&[]);
    let (backend, mut peer, port) = (connect(&redis, ""), Peer::of(&redis), redis.port());
    peer.accept("up");
    let mut stream = block_on(backend.open_result_stream(7)).unwrap();
    let waiter = ResultWaiter { stream_id: 7, connection: 0, number: 0 };
    // Blocking and scheduled go together.
    let job = add(
        &*backend,
        with_options(put("up", "x"), |options| {
            options.attach = Some(waiter);
            options.roll_call = true;
        }),
    );
    assert_eq!(run(&*backend, Status { of: StatusOf::Jid(job) }).unwrap().unwrap().attached, 1);
    until("our client blocks on the lock list", || {
        let clients: String = ask(port, &["CLIENT", "LIST"]).unwrap();
        clients.contains("cmd=brpop")
    });
    assert_eq!(peer.pop("up"), Some(("1".to_owned(), "normal".to_owned())));
    peer.begin("up", "1");
    peer.progress("up", "1", "1", "2");
    let message = block_on(stream.next()).unwrap();
    assert!(
        matches!(message.item, StreamItem::Progress { progress, .. } if progress.portion.percent() == 50)
    );
    peer.finish("up", "1", "error", b"broken");
    let failed =
        JobEnding::Failed { group: Group::new("gearmonkey-error").unwrap(), message: "broken".into() };
    match block_on(stream.next()).unwrap().item {
        StreamItem::Ended(ending, result) => assert_eq!((ending, result.code), (failed, 1)),
        other => panic!("{other:?}"),
    }
    until("the OK is taken", || peer.say::<i64>("EXISTS lock:up:1") == 0);
}

#[test]
fn a_roll_call_counts_workers_of_both_kinds() {
    let redis = RedisServer::start(&[]);
    let (backend, mut peer) = (connect(&redis, ""), Peer::of(&redis));
    let called = |put: Put| with_options(put, |options| options.roll_call = true);
    for count in [None, Some("0"), Some("-1"), Some("many"), Some("1.5")] {
        if let Some(count) = count {
            peer.say::<String>(&format!("SET count:up {count}"));
        }
        let refused = run(&*backend, called(put("up", "x")));
        let klass = Klass::new("up").unwrap();
        assert_eq!(refused, Err(Refusal::NoCapableWorker { queue: queue("up"), klass }), "{count:?}");
        assert_eq!(run(&*backend, RollCall { queue: queue("up"), klass: None }), Ok(0), "{count:?}");
    }
    peer.say::<i64>("DEL count:up");
    assert_eq!(keys(&redis), [] as [&str; 0], "nothing was written");

    run(&*backend, registered("ours", &["up", "down"])).unwrap();
    run(&*backend, registered("ours", &["up", "down"])).unwrap();
    assert_eq!((peer.workers("up"), peer.workers("down")), (1, 1), "a worker counts once");
    peer.accept("up");
    assert_eq!(run(&*backend, RollCall { queue: queue("up"), klass: None }), Ok(2));
    assert_eq!(add(&*backend, called(put("up", "x"))), jid("up:1"));
    let announced = run(&*backend, Announced { worker: None }).unwrap();
    assert_eq!((announced.len(), announced[0].capabilities.len()), (1, 2));
    take(&*backend, "up").unwrap();
    let counts: Vec<(String, u64)> =
        run(&*backend, Workers).unwrap().into_iter().map(|it| (it.name.to_string(), it.jobs)).collect();
    assert_eq!(counts, [("ours".to_owned(), 0), ("w".to_owned(), 1)]);
    assert_eq!(run(&*backend, WorkerJobs { worker: worker("w") }).unwrap().jobs, [jid("up:1")]);
    run(&*backend, registered("ours", &["up"])).unwrap();
    assert_eq!((peer.workers("up"), peer.workers("down")), (2, 0));
    peer.exit("up");
    run(&*backend, registered("ours", &[])).unwrap();
    assert_eq!(peer.workers("up"), 0);

    // Our share of a counter that others have reset: never below zero.
    run(&*backend, registered("ours", &["up"])).unwrap();
    peer.say::<String>("SET count:up 0");
    run(&*backend, registered("ours", &[])).unwrap();
    assert_eq!(peer.workers("up"), 0);
    // A registration that was lost with the data is renewed by the next announcement.
    run(&*backend, registered("ours", &["up"])).unwrap();
    peer.say::<String>("FLUSHDB");
    run(&*backend, registered("ours", &["up"])).unwrap();
    assert_eq!(peer.workers("up"), 1);
}

#[test]
fn a_lost_lease_brings_the_job_back_and_the_late_worker_changes_nothing() {
    let redis = RedisServer::start(&[]);
    let (backend, mut peer) = (connect(&redis, "?lease=5"), Peer::of(&redis));
    for priority in ["low", "low", "normal"] {
        peer.run("up", b"x", priority, 0);
    }
    assert_eq!(take(&*backend, "up").unwrap().jid, jid("up:3"));
    let first = take(&*backend, "up").unwrap();
    assert_eq!(first.jid, jid("up:1"));
    let stalled = run_in(&*backend, 6.0, Queues::default()).unwrap().remove(0);
    assert_eq!((stalled.waiting, stalled.running, stalled.stalled), (1, 0, 2));
    // Six seconds later the leases have expired. Each job is at the front of its own queue.
    let pop = Pop { count: Count::new(9).unwrap(), ..Pop::new(queue("up"), worker("w2")) };
    let again: Vec<Popped> = run_in(&*backend, 6.0, pop).unwrap().jobs;
    let ids: Vec<String> = again.iter().map(|job| job.jid.to_string()).collect();
    assert_eq!(ids, ["up:3", "up:1", "up:2"]);
    let lost = Err(Refusal::LockLost { jid: jid("up:1"), state: StateName::Running });
    assert_eq!(run(&*backend, done(&first, b"late")), lost);
    let by_name = Complete::new(jid("up:1"), Holder::Worker(worker("w")));
    let (holder, me) = (worker("w2"), worker("w"));
    assert_eq!(
        run(&*backend, by_name).map(drop),
        Err(Refusal::HeldByAnother { jid: jid("up:1"), worker: me, holder })
    );
    run(&*backend, done(&again[1], b"first")).unwrap();
    let late = Refusal::LockLost { jid: jid("up:1"), state: StateName::Complete };
    assert_eq!(run(&*backend, done(&first, b"late")), Err(late.clone()));
    assert_eq!(run(&*backend, done(&again[1], b"twice")), Err(late));
    assert_eq!(peer.job("up", "1")["output"], b"first");
    // A foreign worker runs the next attempt as well.
    run(&*backend, Release::new(jid("up:2"), again[2].holder())).unwrap();
    run(&*backend, Release::new(jid("up:3"), again[0].holder())).unwrap();
    peer.accept("up");
    assert_eq!(peer.pop("up").unwrap().0, "3");
    assert_eq!(peer.pop("up").unwrap().0, "2");
}

#[test]
fn a_job_that_loses_its_workers_again_and_again_ends_in_error() {
    let redis = RedisServer::start(&[]);
    let (backend, mut peer) = (connect(&redis, "?lease=1&lost=2"), Peer::of(&redis));
    add(&*backend, put("up", "x"));
    take(&*backend, "up").unwrap();
    let pop = |worker_name| Pop::new(queue("up"), worker(worker_name));
    assert_eq!(run_in(&*backend, 2.0, pop("w2")).unwrap().jobs.len(), 1);
    assert_eq!(run_in(&*backend, 9.0, pop("w3")).unwrap().jobs.len(), 0);
    let fields = peer.job("up", "1");
    assert_eq!((&fields["status"][..], &fields["gt:reason"][..]), (&b"error"[..], &b"worker-lost"[..]));
    assert!(peer.say::<i64>("TTL job:up:1") > 0);
    assert_eq!(run(&*backend, Queues::default()).unwrap()[0].stalled, 0);
}

#[test]
fn an_error_is_final_unless_retries_are_left() {
    let redis = RedisServer::start(&[]);
    let (backend, mut peer) = (connect(&redis, ""), Peer::of(&redis));
    let retry = |job: &Popped, delay: f64| Retry {
        delay: seconds(delay),
        message: Some("why".into()),
        ..Retry::new(job.jid.clone(), job.holder())
    };
    add(&*backend, put("up", "x"));
    let job = take(&*backend, "up").unwrap();
    assert_eq!((job.retries, job.remaining), (0, 0));
    assert_eq!(run(&*backend, retry(&job, 0.0)), Ok(-1));
    assert_eq!(peer.status("up", "1").as_deref(), Some("error"));
    assert_eq!(peer.job("up", "1")["output"], b"why");

    add(&*backend, Put { retries: Some(2), priority: Some(Priority::from(1)), ..put("up", "y") });
    let job = take(&*backend, "up").unwrap();
    assert_eq!(run(&*backend, retry(&job, 0.0)), Ok(1));
    assert_eq!(peer.say::<Vec<String>>("LRANGE queue:up:high 0 -1"), ["2"]);
    let job = take(&*backend, "up").unwrap();
    assert_eq!((job.retries, job.remaining), (2, 1));
    assert_eq!(run(&*backend, retry(&job, 30.2)), Ok(0));
    let due: f64 = peer.say("ZSCORE queue:up:scheduled 2");
    assert!(due.fract() == 0.0 && due >= backend.now().unwrap().get() + 29.0);
    assert_eq!(peer.say::<i64>("TTL job:up:2"), -1, "it is not final");
    assert!(take(&*backend, "up").is_none());
    let job = run_in(&*backend, 40.0, Pop::new(queue("up"), worker("w"))).unwrap().jobs.remove(0);
    assert_eq!(job.remaining, 0);
    assert_eq!(run(&*backend, retry(&job, 0.0)), Ok(-1));
    assert_eq!(peer.job("up", "2")["gt:attempts"], b"2");
}

#[test]
fn a_cancelled_job_ends_in_error_where_it_is_ours_to_end() {
    let redis = RedisServer::start(&[]);
    let (backend, mut peer) = (connect(&redis, ""), Peer::of(&redis));
    for (priority, delay) in [(1, 0.0), (0, 0.0), (-1, 0.0), (0, 60.0)] {
        let priority = Some(Priority::from(priority));
        add(&*backend, Put { priority, delay: seconds(delay), ..put("up", "x") });
    }
    let all = (1..=4).map(|id| jid(&format!("up:{id}"))).collect();
    assert_eq!(run(&*backend, Cancel::new(all)), Ok(4));
    for id in ["1", "2", "3", "4"] {
        let fields = peer.job("up", id);
        assert_eq!((&fields["status"][..], &fields["output"][..]), (&b"error"[..], &b"cancelled"[..]));
        assert!(peer.say::<i64>(&format!("TTL job:up:{id}")) > 0);
        assert!(peer.block("up", id, 1), "its creator is woken");
    }
    assert!(keys(&redis).iter().all(|key| !key.starts_with("queue:")));
    assert_eq!(run(&*backend, GetResult { jid: jid("up:1") }).unwrap().unwrap().ending, JobEnding::Canceled);
    assert_eq!(run(&*backend, Cancel::new(vec![jid("up:1"), jid("up:9")])), Ok(0));

    // Running in geartrain: the next heartbeat says so.
    add(&*backend, put("up", "x"));
    let job = take(&*backend, "up").unwrap();
    assert_eq!(run(&*backend, Cancel::new(vec![jid("up:5")])), Ok(1));
    assert_eq!(peer.status("up", "5").as_deref(), Some("busy"));
    let beat = Heartbeat { jid: jid("up:5"), holder: job.holder(), payload: None };
    let lost = Refusal::LockLost { jid: jid("up:5"), state: StateName::Failed };
    assert_eq!(run(&*backend, beat), Err(lost));
    assert_eq!(peer.job("up", "5")["gt:reason"], b"cancelled");

    // Running elsewhere, and popped elsewhere.
    let elsewhere = "the gearmonkey backend cannot cancel a job that another implementation has taken";
    add(&*backend, put("up", "x"));
    peer.accept("up");
    assert_eq!(peer.pop("up").unwrap().0, "6");
    let refused = run(&*backend, Cancel::new(vec![jid("up:6")])).unwrap_err();
    assert_eq!(refused.to_string(), elsewhere);
    peer.begin("up", "6");
    assert_eq!(run(&*backend, Cancel::new(vec![jid("up:6")])).unwrap_err().to_string(), elsewhere);
    assert_eq!(peer.status("up", "6").as_deref(), Some("busy"));
}

#[test]
fn jobs_that_others_may_have_lost_are_reported_and_queued_again_on_request() {
    let redis = RedisServer::start(&[]);
    let (backend, mut peer) = (connect(&redis, ""), Peer::of(&redis));
    for _ in 0..5 {
        peer.run("a*b", b"x", "normal", 0);
    }
    peer.accept("a*b");
    for id in ["1", "2"] {
        assert_eq!(peer.pop("a*b").unwrap().0, id);
    }
    peer.begin("a*b", "2");
    take(&*backend, "a*b").unwrap();
    // Another function, which the name would match as a pattern.
    peer.run("aXb", b"x", "normal", 0);
    peer.say::<i64>("DEL queue:aXb:normal");
    let page = Page { offset: 0, count: Count::new(9).unwrap() };
    let stuck = run(&*backend, Jobs { which: Listing::Stalled(queue("a*b")), page }).unwrap();
    assert_eq!(stuck, [jid("a*b:2"), jid("a*b:1")], "busy without a lease, and idle in no queue");
    // Nothing is queued again by itself.
    run_in(&*backend, 1e6, Queues::default()).unwrap();
    assert_eq!(peer.say::<i64>("LLEN queue:a*b:normal"), 2);
    let again = |id: &str, input: &str| Put {
        jid: jid(id),
        existing: geartrain_core::Existing::Require,
        ..put("a*b", input)
    };
    assert_eq!(run(&*backend, again("a*b:2", "x")), Ok(PutReply::Replaced));
    assert_eq!(run(&*backend, again("a*b:2", "x")), Ok(PutReply::Existing), "it is queued already");
    assert_eq!(run(&*backend, again("a*b:9", "x")), Err(Refusal::NoSuchJob { jid: jid("a*b:9") }));
    assert!(run(&*backend, again("a*b:1", "another")).is_err());
    assert_eq!(peer.pop("a*b").unwrap().0, "2", "at the front");
    let job = run(&*backend, Pop::new(queue("a*b"), worker("w"))).unwrap().jobs.remove(0);
    run(&*backend, done(&job, b"")).unwrap();
    assert!(matches!(run(&*backend, again(&job.jid.to_string(), "x")), Err(Refusal::Unsupported { .. })));
}

#[test]
fn pops_take_several_functions_in_order_or_in_turn() {
    let redis = RedisServer::start(&[]);
    let backend = connect(&redis, "");
    for (function, priority) in [("a", 0), ("a", 0), ("b", 1), ("b", 0)] {
        add(&*backend, Put { priority: Some(Priority::from(priority)), ..put(function, "x") });
    }
    let pop = |order, count| Pop {
        queues: vec![queue("a"), queue("b")],
        order,
        count: Count::new(count).unwrap(),
        ..Pop::new(queue("a"), worker("w"))
    };
    let ids = |pop: Pop| {
        let reply = run(&*backend, pop).unwrap();
        let ids: Vec<String> = reply.jobs.iter().map(|job| job.jid.to_string()).collect();
        for job in &reply.jobs {
            run(&*backend, Release::new(job.jid.clone(), job.holder())).unwrap();
        }
        (ids, reply.turn)
    };
    assert_eq!(ids(pop(PopOrder::Strict, 3)), (vec!["a:1".into(), "a:2".into(), "b:1".into()], 0));
    let turns = ids(pop(PopOrder::RoundRobin { turn: 1 }, 3));
    assert_eq!((turns.0.len(), turns.1), (3, 0));
    assert!(turns.0[0].starts_with("b:") && turns.0[1].starts_with("a:") && turns.0[2].starts_with("b:"));
    let only = Pop { klasses: Some(vec![Klass::new("b").unwrap()]), ..pop(PopOrder::Strict, 9) };
    assert_eq!(ids(only).0.len(), 2, "those of the klass, which is the function");
    assert!(block_on(backend.ready_or_wait(vec![queue("c"), queue("b")], Seconds::from(60))).unwrap());
    assert!(!block_on(backend.ready_or_wait(vec![queue("c")], Seconds::ZERO)).unwrap());
    let counts = run(&*backend, PriorityCounts { queue: queue("b") }).unwrap();
    assert_eq!((counts.above, counts.at, counts.below), (1, 1, 0));
}

#[test]
fn a_dropped_pop_gives_its_job_back() {
    let redis = RedisServer::start(&[]);
    let (backend, mut peer) = (connect(&redis, ""), Peer::of(&redis));
    let functions: Vec<String> = (0..50).map(|number| format!("up{number}")).collect();
    for function in &functions {
        let mut waiting = backend.pop_or_wait(Pop::new(queue(function), worker("w")), Seconds::from(60));
        let waker = std::task::Waker::noop();
        assert!(waiting.as_mut().poll(&mut std::task::Context::from_waker(waker)).is_pending());
        peer.run(function, b"x", "normal", 0);
        drop(waiting);
    }
    until("all jobs are queued again", || {
        let queued = |function: &String, peer: &mut Peer| {
            peer.status(function, "1").as_deref() == Some("idle")
                && peer.say::<i64>(&format!("LLEN queue:{function}:normal")) == 1
        };
        functions.iter().all(|function| queued(function, &mut peer))
    });
    assert!(keys(&redis).iter().all(|key| !key.starts_with("geartrain:")), "no lease is left");
}

#[test]
fn a_backend_goes_on_after_the_script_cache_is_gone_and_ids_of_jobs_are_not_given_out_twice() {
    let redis = RedisServer::start(&[]);
    let (backend, mut peer) = (connect(&redis, ""), Peer::of(&redis));
    add(&*backend, put("up", "x"));
    add(&*backend, put("up", "y"));
    peer.say::<String>("SCRIPT FLUSH");
    let job = take(&*backend, "up").unwrap();
    run(&*backend, done(&job, b"z")).unwrap();
    // A counter that restarted, as after a loss of data.
    peer.say::<i64>("DEL uid:up");
    assert_eq!(add(&*backend, put("up", "new")), jid("up:3"));
    assert_eq!(peer.say::<i64>("TTL job:up:3"), -1);
}

#[test]
fn events_after_a_position_are_refused() {
    let redis = RedisServer::start(&[]);
    let backend = connect(&redis, "");
    let Err(BackendError::Refused(refusal)) = block_on(backend.subscribe_from(0)) else {
        panic!("not refused")
    };
    let expected = "the gearmonkey backend cannot store events: only those from now on are seen";
    assert_eq!(refusal.to_string(), expected);
}
