//! WorkKit schedules: our backend beside a peer that is written with plain Redis commands.

mod killed;
mod peer;
mod recurring;
mod refused;
mod set_aside;

use std::sync::Arc;

use geartrain_core::{
    Backend, Call, Cancel, Command, Complete, CompleteReply, Count, Fail, Failed, Failures, Get, GetMany,
    Group, Heartbeat, Holder, Jid, JobState, Jobs, Klass, Length, Listing, Operation, Page, Peek, Pop,
    PopOrder, PopReply, Popped, Put, PutReply, QueueName, Queues, Refusal, Release, Retry, Seconds,
    StateName, Timestamp, Token, WorkerName,
};
use geartrain_redis::workkit::WorkKitBackend;
use geartrain_testkit::peers::{RedisServer, until};
use pollster::block_on;

use crate::peers::ask;
use peer::Peer;

/// 2014-03-05T09:34:16Z, a Wednesday.
const NOW: f64 = 1_394_012_056.0;
/// The same as a score.
const NOW_MS: i64 = 1_394_012_056_000;

fn at(seconds: f64) -> Timestamp {
    Timestamp::new(NOW + seconds).unwrap()
}

/// Connects with options such as `?all=true`.
fn connect(redis: &RedisServer, options: &str) -> Arc<dyn Backend> {
    let url = format!("workkit+{}{options}", redis.url());
    Arc::new(block_on(WorkKitBackend::connect(url.parse().unwrap())).unwrap())
}

/// Executes an operation some seconds after [`NOW`].
fn run_at<O: Operation>(backend: &dyn Backend, seconds: f64, operation: O) -> Result<O::Reply, Refusal> {
    let command: Command = operation.into();
    let mut answers = block_on(backend.execute(vec![Call::at(at(seconds), command)])).unwrap();
    answers.remove(0).map(|reply| O::answer(reply).unwrap())
}

fn queue(name: &str) -> QueueName {
    QueueName::new(name).unwrap()
}

fn klass(name: &str) -> Klass {
    Klass::new(name).unwrap()
}

fn jid(id: &str) -> Jid {
    Jid::new(id).unwrap()
}

fn worker(name: &str) -> WorkerName {
    WorkerName::new(name).unwrap()
}

fn put(args: &str) -> Put {
    Put::new(queue("s"), jid("-"), klass("a/b"), args)
}

fn pop(count: i64) -> Pop {
    Pop {
        count: Count::new(count).unwrap(),
        klasses: Some(vec![klass("a/b")]),
        ..Pop::new(queue("s"), worker("w1"))
    }
}

fn named(reply: PutReply) -> Jid {
    match reply {
        PutReply::Named { jid } => jid,
        other => panic!("the job is not new: {other:?}"),
    }
}

fn take(backend: &dyn Backend, seconds: f64) -> Option<Popped> {
    run_at(backend, seconds, pop(1)).unwrap().jobs.pop()
}

fn complete(job: &Popped) -> Complete {
    Complete::new(job.jid.clone(), job.holder())
}

/// Keys of the Redis, sorted.
fn keys(redis: &RedisServer) -> Vec<String> {
    let mut keys: Vec<String> = ask(redis.port(), &["KEYS", "*"]).unwrap();
    keys.sort();
    keys
}

#[test]
fn equal_jobs_of_one_second_are_one_job() {
    let redis = RedisServer::start(&[]);
    let backend = connect(&redis, "");
    let id = named(run_at(&*backend, 0.2, put(r#"["a/b", 1]"#)).unwrap());
    let text = r##"{"args":["a\/b",1],"cron":"2014 3 5 * 9 34 16","job":"#'a\/b"}"##;
    assert_eq!(ask::<String>(redis.port(), &["HGET", "s:jobs", &id.to_string()]).unwrap(), text);
    let entries: Vec<(String, i64)> =
        ask(redis.port(), &["ZRANGE", "s:next", "0", "-1", "WITHSCORES"]).unwrap();
    assert_eq!(entries, [(format!(r#"{{"id":"{id}"}}"#), NOW_MS)]);

    let again = run_at(&*backend, 0.9, put(r#"[ "a\/b",1 ]"#)).unwrap();
    assert_eq!(again, PutReply::NamedExisting { jid: id.clone() });
    assert_ne!(named(run_at(&*backend, 1.0, put(r#"["a/b",1]"#)).unwrap()), id);
    assert_ne!(named(run_at(&*backend, 0.9, put("[]")).unwrap()), id);

    let different = connect(&redis, "?nonce=true");
    let one = named(run_at(&*different, 0.2, put(r#"["a/b",1]"#)).unwrap());
    let other = named(run_at(&*different, 0.2, put(r#"["a/b",1]"#)).unwrap());
    assert!(one != other && one != id);
    let text: String = ask(redis.port(), &["HGET", "s:jobs", &one.to_string()]).unwrap();
    assert!(text.contains(r#","nonce":""#), "{text}");
}

#[test]
fn a_delay_ends_with_a_whole_second() {
    let redis = RedisServer::start(&[]);
    let backend = connect(&redis, "");
    for (delay, score) in [(0.0, 0), (-5.0, 0), (0.2, 1_000), (300.0, 301_000)] {
        let put = Put { delay: Seconds::new(delay).unwrap(), ..put(&format!("[{delay}]")) };
        let id = named(run_at(&*backend, 0.5, put).unwrap());
        let entry = format!(r#"{{"id":"{id}"}}"#);
        let found: i64 = ask(redis.port(), &["ZSCORE", "s:next", &entry]).unwrap();
        assert_eq!(found, NOW_MS + score, "{delay}");
    }
}

#[test]
fn a_job_runs_once_and_leaves_nothing() {
    let redis = RedisServer::start(&[]);
    let backend = connect(&redis, "");
    let id = named(run_at(&*backend, 0.0, put("[1]")).unwrap());
    assert_eq!(take(&*backend, -1.0), None, "it is not due");
    let job = take(&*backend, 0.0).unwrap();
    assert_eq!((&job.jid, job.klass.as_str(), job.payload.text()), (&id, "a/b", Some("[1]")));
    assert_eq!((job.queue.as_str(), job.lock.expires), ("s", at(60.0)));
    assert_eq!(take(&*backend, 1.0), None);
    assert_eq!(
        run_at(&*backend, 1.0, put("[1]")).map(|reply| matches!(reply, PutReply::Named { .. })),
        Ok(true),
        "the next second is another job"
    );
    let state = run_at(&*backend, 1.0, Get { jid: id.clone() }).unwrap().unwrap().state;
    assert_eq!(state, JobState::Running { lock: job.lock.clone() });
    assert_eq!(
        run_at(&*backend, 30.0, Heartbeat { jid: id.clone(), holder: job.holder(), payload: None }),
        Ok(at(90.0))
    );
    assert_eq!(run_at(&*backend, 61.0, complete(&job)), Ok(CompleteReply::Complete));
    let gone = Refusal::NoSuchJob { jid: id.clone() };
    assert_eq!(run_at(&*backend, 61.0, complete(&job)), Err(gone));

    let rest = take(&*backend, 61.0).unwrap();
    run_at(&*backend, 61.0, complete(&rest)).unwrap();
    assert_eq!(keys(&redis), ["geartrain:wk:schedules"]);
}

#[test]
fn jobs_are_listed_and_counted() {
    let redis = RedisServer::start(&[]);
    let backend = connect(&redis, "");
    let first = named(run_at(&*backend, 0.0, put("[1]")).unwrap());
    let second = named(run_at(&*backend, 1.0, put("[2]")).unwrap());
    let later = Put { delay: Seconds::from(60), ..put("[3]") };
    let later = named(run_at(&*backend, 1.0, later).unwrap());
    let job = take(&*backend, 2.0).unwrap();
    assert_eq!(job.jid, first);

    let counts = run_at(&*backend, 2.0, Queues::default()).unwrap();
    assert_eq!(counts.len(), 1);
    let counts = &counts[0];
    assert_eq!((counts.name.as_str(), counts.waiting, counts.scheduled), ("s", 1, 1));
    assert_eq!((counts.running, counts.stalled), (1, 0));
    assert_eq!(run_at(&*backend, 2.0, Length { queue: queue("s") }), Ok(3));
    let list = |seconds: f64, which: fn(QueueName) -> Listing| {
        run_at(&*backend, seconds, Jobs { which: which(queue("s")), page: Page::default() }).unwrap()
    };
    assert_eq!(list(2.0, Listing::Waiting), std::slice::from_ref(&second));
    assert_eq!(list(2.0, Listing::Scheduled), std::slice::from_ref(&later));
    assert_eq!(list(2.0, Listing::Running), std::slice::from_ref(&first));
    assert_eq!(list(2.0, Listing::Stalled), []);
    assert_eq!(list(62.0, Listing::Stalled), std::slice::from_ref(&first));
    assert_eq!(list(62.0, Listing::Waiting), [second.clone(), later.clone()]);
    let peeked = run_at(&*backend, 2.0, Peek { queue: queue("s"), count: Count::MAX }).unwrap();
    assert_eq!(peeked.iter().map(|job| &job.jid).collect::<Vec<_>>(), [&second]);
    let all = run_at(&*backend, 2.0, GetMany { jids: vec![first, jid("x"), later] }).unwrap();
    let states: Vec<StateName> = all.iter().map(|job| job.state.name()).collect();
    assert_eq!(states, [StateName::Running, StateName::Scheduled]);

    // Another process, which has used no schedule, finds a job by its id, also one of a peer.
    let other = connect(&redis, "");
    assert!(run_at(&*other, 2.0, Get { jid: second }).unwrap().is_some());
    let peer = Peer::of(&redis, "foreign");
    peer.enqueue("abc", r##"{"cron": "2014 3 5 * 9 34 16", "job": "#'c/d"}"##, NOW_MS);
    let found = run_at(&*other, 2.0, Get { jid: jid("abc") }).unwrap().unwrap();
    assert_eq!(
        (found.klass.as_str(), found.queue, found.state),
        ("c/d", Some(queue("foreign")), JobState::Waiting)
    );
}

#[test]
fn jobs_of_other_functions_are_left_alone() {
    let redis = RedisServer::start(&[]);
    let (backend, peer) = (connect(&redis, ""), Peer::of(&redis, "s"));
    for number in 0..40 {
        let job = if number % 2 == 0 { "(fn [x] (println x))" } else { "#'other/function" };
        let payload = format!(r#"{{"args":[{number}],"cron":"2014 3 5 * 9 34 16","job":"{job}"}}"#);
        peer.enqueue(&format!("id-{number:02}"), &payload, NOW_MS - 5_000);
    }
    let id = named(run_at(&*backend, 0.0, put("[]")).unwrap());
    assert_eq!(take(&*backend, 0.0).unwrap().jid, id, "it is not blocked by what is before it");
    assert_eq!(take(&*backend, 0.0), None);
    assert_eq!(peer.entries().len(), 40);

    let any = Pop { klasses: None, ..pop(100) };
    let refused = run_at(&*backend, 0.0, any.clone()).unwrap_err().to_string();
    assert!(refused.starts_with("klasses must name the functions to take"), "{refused}");
    let all = connect(&redis, "?all=true");
    let taken = run_at(&*all, 0.0, any).unwrap().jobs;
    assert_eq!(taken.len(), 20);
    assert!(taken.iter().all(|job| job.klass.as_str() == "other/function"));
    assert_eq!(peer.entries().len(), 20, "function literals are left");
    let literal = run_at(&*backend, 0.0, Get { jid: jid("id-00") }).unwrap().unwrap();
    assert_eq!(literal.klass.as_str(), "(fn [x] (println x))");

    // Unless a worker asks for them, and gets their text.
    let literals = connect(&redis, "?literals=true");
    let taken = run_at(&*literals, 0.0, Pop { klasses: None, ..pop(100) }).unwrap().jobs;
    assert_eq!(taken.len(), 20);
    assert_eq!(taken[0].klass.as_str(), "literal");
    assert_eq!(taken[0].payload.text(), Some(r#"{"job":"(fn [x] (println x))","args":[0]}"#));
    assert_eq!(run_at(&*literals, 0.0, complete(&taken[0])), Ok(CompleteReply::Complete));
}

#[test]
fn damaged_jobs_are_reported_and_the_rest_goes_on() {
    let redis = RedisServer::start(&[]);
    let (backend, peer) = (connect(&redis, ""), Peer::of(&redis, "s"));
    for (id, payload) in [
        ("json", "{"),
        ("binary", "\u{0}"),
        ("cron", r##"{"args":[],"cron":"* 2 30 * 0 0 0","job":"#'a/b"}"##),
        ("order", r##"{"args":[],"cron":"0 0 12 * *","job":"#'a/b"}"##),
        ("args", r##"{"args":{},"cron":"* * * * * * *","job":"#'a/b"}"##),
        ("no-job", r##"{"args":[],"cron":"* * * * * * *"}"##),
    ] {
        peer.enqueue(id, payload, NOW_MS - 9_000);
    }
    ask::<i64>(redis.port(), &["ZADD", "s:next", "1", r#"{"id":"without-a-job"}"#]).unwrap();
    ask::<i64>(redis.port(), &["ZADD", "s:next", "2", "no JSON"]).unwrap();
    ask::<i64>(redis.port(), &["ZADD", "s:next", "-inf", r#"{"no":"id"}"#]).unwrap();
    let id = named(run_at(&*backend, 0.0, put("[]")).unwrap());
    let job = take(&*backend, 0.0).unwrap();
    assert_eq!(job.jid, id);
    run_at(&*backend, 0.0, complete(&job)).unwrap();
    assert_eq!(take(&*backend, 1.0), None);

    let dead = Group::new("workkit-dead").unwrap();
    assert_eq!(run_at(&*backend, 1.0, Failures), Ok([(dead.clone(), 9)].into()));
    let listed = run_at(&*backend, 1.0, Failed { group: dead, page: Page::default() }).unwrap();
    assert_eq!((listed.total, listed.jids.len()), (9, 9));
    let state = |id: &str| run_at(&*backend, 1.0, Get { jid: jid(id) }).unwrap().unwrap().state;
    for (id, expected) in [
        ("json", "the payload cannot be read"),
        ("cron", "the cron string"),
        ("order", "?cron_order=cuckoo"),
        ("without-a-job", "there is no job with this id"),
    ] {
        let JobState::Failed { failure } = state(id) else { panic!("{id} is not failed") };
        assert!(failure.message.contains(expected), "{id}: {}", failure.message);
    }
    // What cannot be read stays where it is, for listeners that can. What has no job cannot be run by any.
    assert_eq!(peer.entries().len(), 8);
    assert_eq!(run_at(&*backend, 1.0, Cancel::new(vec![jid("json"), jid("without-a-job")])), Ok(2));
    assert_eq!(peer.entries().len(), 7);
}

#[test]
fn entries_without_jobs_are_removed_and_hide_no_job_behind_them() {
    let redis = RedisServer::start(&[]);
    let backend = connect(&redis, "");
    for number in 0..20 {
        let entry = format!(r#"{{"id":"gone-{number}"}}"#);
        ask::<i64>(redis.port(), &["ZADD", "s:next", "1", &entry]).unwrap();
    }
    run_at(&*backend, 0.0, put("[]")).unwrap();
    assert!(take(&*backend, 0.0).is_some(), "one look is enough");
    assert_eq!(ask::<u64>(redis.port(), &["ZCARD", "s:next"]).unwrap(), 0);
}

#[test]
fn a_job_of_a_lost_worker_comes_back_when_its_lease_expires() {
    let redis = RedisServer::start(&[]);
    let backend = connect(&redis, "?lease=10");
    named(run_at(&*backend, 0.0, put("[]")).unwrap());
    let lost = take(&*backend, 0.0).unwrap();
    assert_eq!(take(&*backend, 9.9), None);
    let again = take(&*backend, 10.0).unwrap();
    assert_eq!(again.jid, lost.jid);
    assert_ne!(again.lock.token, lost.lock.token);
    let refused = run_at(&*backend, 10.0, complete(&lost));
    assert_eq!(refused, Err(Refusal::LockLost { jid: lost.jid.clone(), state: StateName::Running }));
    let by_name = Complete::new(lost.jid.clone(), Holder::Worker(worker("w2")));
    let held = Refusal::HeldByAnother { jid: lost.jid.clone(), worker: worker("w2"), holder: worker("w1") };
    assert_eq!(run_at(&*backend, 10.0, by_name), Err(held));
    let by_name = Complete::new(lost.jid.clone(), Holder::Worker(worker("w1")));
    assert_eq!(run_at(&*backend, 10.0, by_name), Ok(CompleteReply::Complete));
    assert_eq!(keys(&redis), ["geartrain:wk:schedules"]);
}

#[test]
fn an_error_is_final_unless_retries_were_asked_for() {
    let redis = RedisServer::start(&[]);
    let backend = connect(&redis, "?keep_failed=true");
    let retry = |job: &Popped, delay: i32| Retry {
        delay: Seconds::from(delay),
        group: Some(Group::new("smtp").unwrap()),
        message: Some("it said 451".into()),
        ..Retry::new(job.jid.clone(), job.holder())
    };
    named(run_at(&*backend, 0.0, put("[1]")).unwrap());
    let job = take(&*backend, 0.0).unwrap();
    assert_eq!((job.retries, job.remaining), (0, 0));
    assert_eq!(run_at(&*backend, 0.0, retry(&job, 5)), Ok(-1));
    let JobState::Failed { failure } =
        run_at(&*backend, 0.0, Get { jid: job.jid.clone() }).unwrap().unwrap().state
    else {
        panic!("it is not kept")
    };
    assert_eq!(failure.message, "smtp: it said 451");
    assert!(take(&*backend, 99.0).is_none());

    named(run_at(&*backend, 0.0, Put { retries: Some(2), ..put("[2]") }).unwrap());
    for (time, left) in [(0.0, 1), (5.0, 0), (10.0, -1)] {
        assert!(take(&*backend, time - 0.1).is_none());
        let job = take(&*backend, time).unwrap();
        assert_eq!((job.retries, job.remaining), (2, left + 1));
        assert_eq!(run_at(&*backend, time, retry(&job, 5)), Ok(left));
    }
    // By default nothing is kept of a failure.
    let plain = connect(&redis, "?retries=1");
    let id = named(run_at(&*plain, 0.0, put("[3]")).unwrap());
    let job = take(&*plain, 0.0).unwrap();
    assert_eq!(job.remaining, 1);
    let fail = Fail::new(id.clone(), job.holder(), Group::new("smtp").unwrap(), "it said 550");
    assert_eq!(run_at(&*plain, 0.0, fail), Ok(()));
    assert_eq!(run_at(&*plain, 0.0, Get { jid: id }), Ok(None));
    assert!(!keys(&redis).iter().any(|key| key.starts_with("s:")), "{:?}", keys(&redis));
}

#[test]
fn a_released_job_goes_back_to_its_time() {
    let redis = RedisServer::start(&[]);
    let backend = connect(&redis, "");
    named(run_at(&*backend, 0.0, put("[]")).unwrap());
    let job = take(&*backend, 3.0).unwrap();
    assert_eq!(run_at(&*backend, 3.0, Release::of(&job)), Ok(()));
    assert_eq!(Peer::of(&redis, "s").entries()[0].1, NOW_MS as f64);
    let job = take(&*backend, 3.0).unwrap();
    let later = Release { delay: Seconds::from(5), ..Release::of(&job) };
    assert_eq!(run_at(&*backend, 3.0, later), Ok(()));
    assert!(take(&*backend, 7.9).is_none());
    assert!(take(&*backend, 8.0).is_some());
}

#[test]
fn a_running_job_that_is_cancelled_finishes_and_does_not_come_back() {
    let redis = RedisServer::start(&[]);
    let backend = connect(&redis, "?retries=3");
    let waiting = named(run_at(&*backend, 0.0, put("[1]")).unwrap());
    assert_eq!(run_at(&*backend, 0.0, Cancel::new(vec![waiting, jid("x")])), Ok(1));
    let id = named(run_at(&*backend, 0.0, put("[2]")).unwrap());
    let job = take(&*backend, 0.0).unwrap();
    assert_eq!(run_at(&*backend, 0.0, Cancel::new(vec![id])), Ok(1));
    assert_eq!(run_at(&*backend, 0.0, Retry::new(job.jid.clone(), job.holder())), Ok(2));
    assert!(take(&*backend, 9.0).is_none());
    assert_eq!(keys(&redis), ["geartrain:wk:schedules"]);
}

#[test]
fn several_schedules_are_served_in_order_or_in_turn() {
    let redis = RedisServer::start(&[]);
    let backend = connect(&redis, "");
    for name in ["high", "low"] {
        for number in 0..3 {
            let put = Put::new(queue(name), jid("-"), klass("a/b"), format!("[{number}]"));
            named(run_at(&*backend, 0.0, put).unwrap());
        }
    }
    let both = |count, order| Pop { queues: vec![queue("high"), queue("low")], order, ..pop(count) };
    let from =
        |reply: PopReply| -> Vec<String> { reply.jobs.iter().map(|job| job.queue.to_string()).collect() };
    let reply = run_at(&*backend, 0.0, both(2, PopOrder::RoundRobin { turn: 1 })).unwrap();
    assert_eq!((reply.turn, from(reply)), (1, vec!["low".to_owned(), "high".to_owned()]));
    let reply = run_at(&*backend, 0.0, both(3, PopOrder::Strict)).unwrap();
    assert_eq!(from(reply), ["high", "high", "low"]);
    let reply = run_at(&*backend, 0.0, both(9, PopOrder::Priority { turn: 0 })).unwrap();
    assert_eq!(from(reply), ["low"]);
}

#[test]
fn a_job_that_two_schedules_have_is_not_confused() {
    let redis = RedisServer::start(&[]);
    let backend = connect(&redis, "");
    let ids: Vec<Jid> = ["one", "two"]
        .into_iter()
        .map(|name| named(run_at(&*backend, 0.0, Put { queue: queue(name), ..put("[]") }).unwrap()))
        .collect();
    assert_eq!(ids[0], ids[1]);
    let refused = run_at(&*backend, 0.0, Cancel::new(ids.clone())).unwrap_err().to_string();
    assert!(refused.contains("is in one and in two, choose with ?schedule="), "{refused}");
    let job = run_at(&*backend, 0.0, Pop { queues: vec![queue("two")], ..pop(1) }).unwrap().jobs.remove(0);
    run_at(&*backend, 0.0, complete(&job)).unwrap();
    let one = connect(&redis, "?schedule=one");
    assert_eq!(run_at(&*one, 0.0, Cancel::new(vec![ids[0].clone()])), Ok(1));
    let other = run_at(&*one, 0.0, Length { queue: queue("two") }).unwrap_err().to_string();
    assert_eq!(other, "queue must be one, the schedule of the URL, not two");
}

#[test]
fn a_pop_waits_for_a_job_of_a_peer() {
    let redis = RedisServer::start(&[]);
    let (backend, peer) = (connect(&redis, ""), Peer::of(&redis, "s"));
    let wait = Seconds::from(60);
    let waiting = std::thread::scope(|scope| {
        let ready = scope.spawn(|| block_on(backend.ready_or_wait(vec![queue("s")], wait)).unwrap());
        let popped = scope.spawn(|| block_on(backend.pop_or_wait(pop(1), wait)).unwrap());
        // Not due for half a second, so that the pop waits for its score.
        let due = peer.now_ms() + 500;
        peer.enqueue("x", r##"{"cron":"2014 3 5 * 9 34 16","job":"#'a/b","args":[7]}"##, due);
        let popped = popped.join().unwrap();
        // The pop may have been faster than the look of the other.
        peer.enqueue("y", r##"{"cron":"2014 3 5 * 9 34 16","job":"#'a/b"}"##, 1);
        assert!(ready.join().unwrap());
        assert!(peer.now_ms() >= due);
        popped.jobs
    });
    assert_eq!(waiting.len(), 1);
    assert_eq!(waiting[0].payload.text(), Some("[7]"));
    assert!(!block_on(backend.ready_or_wait(vec![queue("empty")], Seconds::ZERO)).unwrap());
    assert!(
        block_on(backend.pop_or_wait(Pop { queues: vec![queue("empty")], ..pop(1) }, Seconds::ZERO))
            .unwrap()
            .jobs
            .is_empty()
    );
}

#[test]
fn a_job_of_a_dropped_pop_is_released() {
    let redis = RedisServer::start(&[]);
    let (backend, peer) = (connect(&redis, ""), Peer::of(&redis, "s"));
    peer.enqueue("x", r##"{"cron":"2014 3 5 * 9 34 16","job":"#'a/b"}"##, 1);
    let mut popping = Box::pin(backend.execute(vec![Call::from(pop(1))]));
    // Polled once, so that it is sent.
    let context = &mut std::task::Context::from_waker(std::task::Waker::noop());
    let _ = std::future::Future::poll(popping.as_mut(), context);
    drop(popping);
    // The first call of each script sends its text: one for the claim, one for the release.
    let evals = || {
        let stats: String = ask(redis.port(), &["INFO", "commandstats"]).unwrap();
        let calls = stats.split("cmdstat_eval:calls=").nth(1).and_then(|rest| rest.split(',').next());
        calls.map_or(0, |calls| calls.parse::<u64>().unwrap())
    };
    until("it was claimed and released", || evals() == 2);
    assert_eq!(peer.entries(), [(r#"{"id":"x"}"#.to_owned(), 1.0)]);
    assert_eq!(ask::<u64>(redis.port(), &["ZCARD", "geartrain:wk:s:inflight"]).unwrap(), 0);
}

#[test]
fn a_process_completes_what_another_one_popped() {
    let redis = RedisServer::start(&[]);
    Peer::of(&redis, "s").enqueue("x", r##"{"cron":"2014 3 5 * 9 34 16","job":"#'a/b"}"##, 1);
    let job = take(&*connect(&redis, ""), 0.0).unwrap();
    let other = connect(&redis, "");
    assert_eq!(run_at(&*other, 1.0, complete(&job)), Ok(CompleteReply::Complete));
    assert_eq!(keys(&redis), ["geartrain:wk:schedules"]);
}

#[test]
fn a_schedule_behind_sentinels_is_served() {
    let group = crate::peers::SentinelGroup::start(&[], &[]);
    let url = format!("workkit+{}", group.url());
    let backend = block_on(WorkKitBackend::connect(url.parse().unwrap())).unwrap();
    named(run_at(&backend, 0.0, put("[]")).unwrap());
    let job = take(&backend, 0.0).unwrap();
    assert_eq!(run_at(&backend, 0.0, complete(&job)), Ok(CompleteReply::Complete));
}

#[test]
fn an_unknown_attempt_is_refused() {
    let redis = RedisServer::start(&[]);
    let backend = connect(&redis, "");
    let id = named(run_at(&*backend, 0.0, put("[]")).unwrap());
    let not_held = Complete::new(id.clone(), Holder::Token(Token::new(7)));
    let lost = Refusal::LockLost { jid: id.clone(), state: StateName::Waiting };
    // Its state is told by the present time, when it is due.
    assert_eq!(run_at(&*backend, 0.0, not_held), Err(lost));
    let job = take(&*backend, 0.0).unwrap();
    let wrong = Complete { queue: Some(queue("other")), ..complete(&job) };
    let refused = Refusal::WrongQueue { jid: id, queue: queue("s"), given: queue("other") };
    assert_eq!(run_at(&*backend, 0.0, wrong), Err(refused));
    assert_eq!(run_at(&*backend, 0.0, complete(&job)), Ok(CompleteReply::Complete));
}

#[test]
fn the_clock_is_the_one_of_the_redis() {
    let redis = RedisServer::start(&[]);
    let backend = connect(&redis, "");
    let apart = (backend.now().unwrap().get() * 1_000.0 - Peer::of(&redis, "s").now_ms() as f64).abs();
    assert!(apart < 60_000.0, "{apart} ms apart");
    assert_eq!(block_on(backend.identify()).unwrap().name, "Redis");
}
