//! What is particular to a Redis: foreign scripts write to it too, there is no timer, and parked pops are
//! woken by messages.

use crate::support;

use geartrain_core::wire::{self, Answers, EventBatch, EventRecord, ParkReply, ParkedPopNotice, Request};
use geartrain_core::{
    AllocateIds, Announce, AnnounceChange, Answer, Attach, AttachReply, Call, Cancel, Canceled, Command,
    Complete, Count, DependencyPolicy, Detach, DetachScope, Event, Existing, Fail, Failures, Get, Group,
    Holder, Jid, JobResult, Klass, Pop, PopReply, Priority, PriorityCounts, PriorityCountsReply, Put,
    PutOptions, PutReply, QueueName, Refusal, Release, Relock, Reply, ResultWaiter, Seconds, SetConfig,
    SetPriority, Tick, Timestamp, Token, Unfail, UniqueKey, WorkerName,
};
use geartrain_redis::script;
use redis::Connection;
use support::{Server, fcall};

/// A Redis with our library.
struct Queue {
    connection: Connection,
    server: Server,
}

impl Queue {
    fn start() -> Queue {
        let server = Server::start();
        let mut connection = server.connect();
        redis::cmd("FUNCTION").arg("LOAD").arg(&script::library().text).exec(&mut connection).unwrap();
        Queue { connection, server }
    }

    fn ask<T: wire::Message>(&mut self, request: &Request) -> T {
        let answer = fcall(&script::library().name, &request.encode(), &mut self.connection).unwrap();
        wire::decode(&answer).unwrap()
    }

    fn batch(&mut self, now: i32, commands: Vec<Command>) -> Vec<Answer> {
        let now = Some(Timestamp::from(now));
        self.ask::<Answers>(&Request::Batch(
            commands.into_iter().map(|command| Call { now, ..Call::from(command) }).collect(),
        ))
    }

    fn at(&mut self, now: i32, command: impl Into<Command>) -> Reply {
        self.batch(now, vec![command.into()]).remove(0).unwrap()
    }

    /// Pops up to so many jobs, and returns their jids and tokens.
    fn pop(&mut self, now: i32, count: i64) -> Vec<(String, Token)> {
        let count = geartrain_core::Count::new(count).unwrap();
        match self.at(now, Pop { count, ..Pop::new(queue(), worker("w")) }) {
            Reply::Pop(reply) => {
                reply.jobs.into_iter().map(|job| (job.jid.to_string(), job.lock.token)).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    fn wait(&mut self, process: &str, number: u64) -> ParkReply {
        self.wait_for(process, number, Pop::new(queue(), worker("w")))
    }

    /// Waits for readiness.
    fn wait_for_readiness(&mut self, process: &str, number: u64) -> ParkReply {
        let count = Count::new(0).unwrap();
        self.wait_for(process, number, Pop { count, ..Pop::new(queue(), worker("-")) })
    }

    fn wait_for(&mut self, process: &str, number: u64, pop: Pop) -> ParkReply {
        let wait = wire::ParkedPop { number, pop, wait: Seconds::from(10) };
        let request = Request::Park {
            process: process.into(),
            now: Some(Timestamp::ZERO),
            waits: vec![wait],
            tick: false,
        };
        self.ask::<Vec<ParkReply>>(&request).remove(0)
    }

    /// Runs a Redis command as a foreign script would.
    fn redis(&mut self, words: &[&str]) {
        redis::cmd(words[0]).arg(&words[1..]).exec(&mut self.connection).unwrap();
    }

    fn keys(&mut self, pattern: &str) -> Vec<String> {
        let mut keys: Vec<String> = redis::cmd("KEYS").arg(pattern).query(&mut self.connection).unwrap();
        keys.sort();
        keys
    }
}

fn queue() -> QueueName {
    QueueName::new("q").unwrap()
}

fn worker(name: &str) -> WorkerName {
    WorkerName::new(name).unwrap()
}

fn jid(name: &str) -> Jid {
    Jid::new(name).unwrap()
}

fn put(name: &str) -> Put {
    Put::new(queue(), jid(name), Klass::new("k").unwrap(), "{}")
}

fn with_terms(name: &str, terms: PutOptions) -> Put {
    Put { options: Some(Box::new(terms)), ..put(name) }
}

/// The next message of the one channel subscribed to.
fn message<T: wire::Message>(subscription: &mut redis::PubSub<'_>) -> T {
    wire::decode(&subscription.get_message().unwrap().get_payload::<Vec<u8>>().unwrap()).unwrap()
}

#[test]
fn each_job_wakes_one_parked_pop() {
    let mut queue_system = Queue::start();
    let mut subscriber = queue_system.server.connect();
    let mut subscription = subscriber.as_pubsub();
    subscription.subscribe("gt:to:p").unwrap();
    for number in [1, 2, 3] {
        assert_eq!(queue_system.wait("p", number), ParkReply::Parked { next: None });
    }
    queue_system.batch(0, vec![put("a").into(), put("b").into()]);
    for _ in 0..2 {
        assert_eq!(message::<ParkedPopNotice>(&mut subscription), ParkedPopNotice::Wake(queue()));
    }
    let parked: Vec<String> =
        redis::cmd("ZRANGE").arg("gt:sleep:q").arg(0).arg(-1).query(&mut queue_system.connection).unwrap();
    assert_eq!(parked, ["0000000000000003 p"]);
    let ParkReply::Popped(reply) = queue_system.wait("p", 1) else { panic!("there are jobs") };
    assert_eq!(reply.jobs[0].jid, jid("a"));
    queue_system.ask::<()>(&Request::Unpark { process: "p".into(), number: 3 });
    assert_eq!(queue_system.keys("gt:sleep:*"), Vec::<String>::new());
}

#[test]
fn a_dead_process_does_not_swallow_wake_ups() {
    let mut queue_system = Queue::start();
    let mut subscriber = queue_system.server.connect();
    let mut subscription = subscriber.as_pubsub();
    subscription.subscribe("gt:to:here").unwrap();
    queue_system.wait("gone", 1);
    queue_system.wait("here", 1);
    queue_system.at(0, put("a"));
    assert_eq!(message::<ParkedPopNotice>(&mut subscription), ParkedPopNotice::Wake(queue()));
}

#[test]
fn readiness_is_announced_once_per_process_after_its_pops_are_woken() {
    let mut queue_system = Queue::start();
    let mut subscriber = queue_system.server.connect();
    let mut subscription = subscriber.as_pubsub();
    subscription.subscribe(&["gt:to:p", "gt:to:other"]).unwrap();
    for (process, number) in [("p", 1), ("p", 2), ("other", 1)] {
        assert_eq!(queue_system.wait_for_readiness(process, number), ParkReply::Parked { next: None });
    }
    assert_eq!(queue_system.wait("p", 3), ParkReply::Parked { next: None });
    queue_system.batch(0, vec![put("a").into(), put("b").into()]);
    let mut next_notice = || {
        let message = subscription.get_message().unwrap();
        let notice: ParkedPopNotice = wire::decode(&message.get_payload::<Vec<u8>>().unwrap()).unwrap();
        (message.get_channel_name().to_owned(), notice)
    };
    assert_eq!(next_notice(), ("gt:to:p".into(), ParkedPopNotice::Wake(queue())));
    let mut notices = [next_notice(), next_notice()];
    notices.sort_by(|one, other| one.0.cmp(&other.0));
    let ready = |process: &str| (format!("gt:to:{process}"), ParkedPopNotice::Ready(queue()));
    assert_eq!(notices, [ready("other"), ready("p")]);
    assert_eq!(queue_system.keys("gt:watch:*"), Vec::<String>::new());
    // No other message was published.
    queue_system.redis(&["PUBLISH", "gt:to:p", "the end"]);
    assert_eq!(subscription.get_message().unwrap().get_payload::<String>().unwrap(), "the end");
}

#[test]
fn a_readiness_check_changes_nothing() {
    let mut queue_system = Queue::start();
    queue_system.at(0, put("a"));
    let before = queue_system.keys("*");
    let word = PopReply { jobs: Vec::new(), turn: 0 };
    assert_eq!(queue_system.wait_for_readiness("p", 1), ParkReply::Popped(word));
    assert_eq!(queue_system.keys("*"), before);
}

#[test]
fn a_wait_for_readiness_learns_when_a_job_falls_due() {
    let mut queue_system = Queue::start();
    queue_system.at(0, Put { delay: Seconds::from(50), ..put("a") });
    assert_eq!(
        queue_system.wait_for_readiness("p", 1),
        ParkReply::Parked { next: Some(Timestamp::from(50)) }
    );
}

#[test]
fn a_counter_beyond_the_integers_of_a_double_is_refused() {
    let mut queue_system = Queue::start();
    let allot = |count| Command::from(AllocateIds { counter: "c".into(), count: Count::new(count).unwrap() });
    queue_system.redis(&["HSET", "gt:counters", "c", "9007199254740989"]);
    assert_eq!(queue_system.batch(0, vec![allot(1)]), [Ok(Reply::AllocateIds(9007199254740990))]);
    let answers = queue_system.batch(0, vec![allot(2), allot(1), allot(1)]);
    assert!(
        matches!(
            &answers[..],
            [
                Err(Refusal::BadArgument { what: first, .. }),
                Ok(Reply::AllocateIds(9007199254740991)),
                Err(Refusal::BadArgument { what: last, .. }),
            ] if first == "counter" && last == "counter"
        ),
        "{answers:?}"
    );
}

#[test]
fn jobs_are_counted_by_priority_from_current_scores() {
    let mut queue_system = Queue::start();
    let today = 1_900_000_000;
    let of = |name: &str, priority: i32| Put { priority: Some(Priority::from(priority)), ..put(name) };
    // One put long ago, one that got its priority later, and one that was released to the front.
    queue_system.at(1_000_000_000, of("old", 0));
    queue_system.at(today, of("back", 0));
    for (name, token) in queue_system.pop(today, 2) {
        let back = Release::new(jid(&name), Holder::Token(token));
        queue_system.at(today, back);
    }
    let puts = [of("high", 1), of("low", -1), of("lower", -100), of("changed", 9), of("new", 0)];
    queue_system.batch(today, puts.map(Into::into).into());
    queue_system.at(today, SetPriority { jid: jid("changed"), priority: Priority::from(0) });
    let counts = PriorityCountsReply { above: 1, at: 4, below: 2 };
    assert_eq!(queue_system.at(today, PriorityCounts { queue: queue() }), Reply::PriorityCounts(counts));
}

#[test]
fn a_parked_pop_learns_when_a_job_falls_due() {
    let mut queue_system = Queue::start();
    queue_system.at(0, Put { delay: Seconds::from(50), ..put("a") });
    assert_eq!(queue_system.wait("p", 1), ParkReply::Parked { next: Some(Timestamp::from(50)) });
}

#[test]
fn events_say_how_many_messages_of_qless_follow() {
    let mut queue_system = Queue::start();
    let mut subscriber = queue_system.server.connect();
    let mut subscription = subscriber.as_pubsub();
    subscription.subscribe("gt:events").unwrap();
    queue_system.at(0, put("unheard"));
    let newest: u64 = queue_system.ask(&Request::Listen { now: Some(Timestamp::ZERO) });
    queue_system.batch(0, vec![put("a").into(), put("b").into()]);
    let record = |position, name| {
        let event = Event::Put { jid: jid(name), queue: queue() };
        EventRecord { position, event, at: Some(Timestamp::ZERO) }
    };
    let (following, events) = message::<EventBatch>(&mut subscription);
    assert_eq!((following, events), (2, vec![record(newest + 1, "a"), record(newest + 2, "b")]));
}

#[test]
fn jobs_of_one_moment_keep_their_order_within_calls_and_across_them() {
    let mut queue_system = Queue::start();
    let names: Vec<String> = (0..400).map(|number| format!("{}-{number}", number * 7 % 10)).collect();
    for part in names.chunks(100) {
        queue_system.batch(1_794_770_000, part.iter().map(|name| put(name).into()).collect());
    }
    let popped: Vec<String> =
        queue_system.pop(1_794_770_001, 1_000).into_iter().map(|(jid, _)| jid).collect();
    assert_eq!(popped, names);
}

#[test]
fn released_jobs_go_first_in_the_order_of_their_tokens() {
    let mut queue_system = Queue::start();
    queue_system.batch(0, ["a", "b", "c", "d"].map(|name| put(name).into()).to_vec());
    let held = queue_system.pop(1, 3);
    for place in [1, 0, 2] {
        let (name, token) = &held[place];
        queue_system.at(2, Release::new(jid(name), Holder::Token(*token)));
    }
    let again: Vec<String> = queue_system.pop(3, 9).into_iter().map(|(jid, _)| jid).collect();
    assert_eq!(again, ["a", "b", "c", "d"]);
}

#[test]
fn no_token_is_given_twice_even_if_the_last_one_is_forgotten() {
    let mut queue_system = Queue::start();
    queue_system.batch(100, ["a", "b", "c"].map(|name| put(name).into()).to_vec());
    let first = queue_system.pop(100, 1)[0].1;
    assert!(first.number() >= 100_000_000, "{first}");
    let second = queue_system.pop(50, 1)[0].1;
    assert!(second > first, "the clock went back: {second} after {first}");
    queue_system.redis(&["DEL", "gt:token"]);
    let third = queue_system.pop(101, 1)[0].1;
    assert!(third > second, "{third} after {second}");
}

#[test]
fn a_unique_key_is_free_once_a_foreign_script_has_ended_its_job() {
    let mut queue_system = Queue::start();
    let terms = PutOptions { unique: UniqueKey::new(b"key").ok(), ..PutOptions::default() };
    assert_eq!(queue_system.at(0, with_terms("a", terms.clone())), Reply::Put(PutReply::Created));
    let joined = Reply::Put(PutReply::Coalesced { jid: jid("a") });
    assert_eq!(queue_system.at(0, with_terms("b", terms.clone())), joined);
    queue_system.redis(&["HSET", "ql:j:a", "state", "complete", "queue", ""]);
    assert_eq!(queue_system.at(0, with_terms("b", terms.clone())), Reply::Put(PutReply::Created));
    queue_system.redis(&["DEL", "ql:j:b"]);
    assert_eq!(queue_system.at(0, with_terms("c", terms)), Reply::Put(PutReply::Created));
}

#[test]
fn a_waiter_of_a_job_ended_by_a_foreign_script_may_wait_for_another() {
    let mut queue_system = Queue::start();
    let waiter = ResultWaiter { stream_id: u64::MAX - 1, connection: u64::MAX, number: 1 << 60 };
    queue_system.batch(0, vec![put("a").into(), put("b").into()]);
    assert_eq!(queue_system.at(0, Attach { jid: jid("a"), waiter }), Reply::Attach(AttachReply::Attached));
    assert!(queue_system.batch(0, vec![Attach { jid: jid("b"), waiter }.into()])[0].is_err());
    queue_system.redis(&["DEL", "ql:j:a"]);
    assert_eq!(queue_system.at(0, Attach { jid: jid("b"), waiter }), Reply::Attach(AttachReply::Attached));
    assert_eq!(queue_system.at(0, Detach { scope: DetachScope::Stream(u64::MAX - 1) }), Reply::Detach(1));
    assert_eq!(queue_system.keys("gt:wait*"), Vec::<String>::new());
}

#[test]
fn entries_made_invalid_by_a_foreign_script_are_no_longer_due() {
    let mut queue_system = Queue::start();
    let late = PutOptions { expires: Some(Timestamp::from(10)), ..PutOptions::default() };
    let slow = PutOptions { attempt_max: Some(Seconds::from(10)), ..PutOptions::default() };
    queue_system.batch(0, vec![with_terms("slow", slow).into()]);
    queue_system.pop(0, 1);
    queue_system.at(0, with_terms("late", late));
    // A foreign script cancels one, and gives the other to another worker.
    queue_system.redis(&["DEL", "ql:j:late"]);
    queue_system.redis(&["HSET", "ql:j:slow", "worker", "other", "time", "5.00000000000000000000"]);
    let tick = queue_system.at(100, Tick { count: geartrain_core::Count::MAX });
    assert_eq!(tick, Reply::Tick(geartrain_core::TickReply { done: 0, next: None }));
    assert_eq!(queue_system.keys("gt:deadlines"), Vec::<String>::new());
    assert_eq!(queue_system.keys("gt:expiries"), Vec::<String>::new());
}

#[test]
fn a_worker_removed_by_a_foreign_script_has_no_capabilities() {
    let mut queue_system = Queue::start();
    let ability = geartrain_core::Capability { queue: queue(), klass: None, attempt_max: None };
    queue_system.at(0, Announce { worker: worker("w"), change: AnnounceChange::Can(vec![ability]) });
    let call = geartrain_core::RollCall { queue: queue(), klass: None };
    assert_eq!(queue_system.at(0, call.clone()), Reply::RollCall(1));
    queue_system.redis(&["ZREM", "ql:workers", "w"]);
    assert_eq!(queue_system.at(0, call), Reply::RollCall(0));
}

/// Completions of a batch look for dependents once. Those that the batch itself adds count as well.
#[test]
fn a_dependent_that_a_batch_adds_is_released_by_its_next_completion() {
    let mut queue_system = Queue::start();
    queue_system.batch(0, vec![put("a").into(), put("b").into()]);
    let popped = queue_system.pop(1, 2);
    let complete = |place: usize| {
        let (name, token) = &popped[place];
        let result = Some(Box::new(JobResult { code: 0, bytes: "done".into() }));
        Command::from(Complete { result, ..Complete::new(jid(name), Holder::Token(*token)) })
    };
    let dependent = Put { depends: vec![jid("b")], ..put("c") };
    for answer in queue_system.batch(2, vec![complete(0), dependent.into(), complete(1)]) {
        answer.unwrap();
    }
    assert_eq!(queue_system.pop(3, 1)[0].0, "c");
}

/// The first job of the queue, of a klass that no pop asks for: pops by klass need the index.
fn in_front() -> Put {
    Put { klass: Klass::new("front").unwrap(), priority: Some(Priority::from(100)), ..put("front") }
}

/// Building an index costs several calls for each job. Pops whose klasses are at the front make none, and remove
/// their jobs from one that there is.
#[test]
fn pops_by_klass_index_a_queue_only_if_its_first_job_is_of_another_klass() {
    let mut queue_system = Queue::start();
    let pop = |queue_system: &mut Queue, klass: &str| {
        let (klasses, count) = (Some(vec![Klass::new(klass).unwrap()]), Count::new(2).unwrap());
        match queue_system.at(1, Pop { klasses, count, ..Pop::new(queue(), worker("w")) }) {
            Reply::Pop(reply) => reply.jobs.iter().map(|job| job.jid.to_string()).collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        }
    };
    queue_system.batch(0, ["a", "b", "c", "d", "e"].map(|name| put(name).into()).into());
    assert_eq!(pop(&mut queue_system, "k"), ["a", "b"]);
    assert_eq!(queue_system.keys("gt:work:*"), [""; 0]);
    queue_system.at(0, in_front());
    assert_eq!(pop(&mut queue_system, "k"), ["c", "d"]);
    assert_eq!(queue_system.keys("gt:work:*"), ["gt:work:1:q:front", "gt:work:1:q:k"]);
    assert_eq!(pop(&mut queue_system, "front"), ["front"]);
    assert_eq!(queue_system.keys("gt:work:*"), ["gt:work:1:q:k"]);
    assert_eq!(pop(&mut queue_system, "k"), ["e"]);
    assert_eq!(queue_system.keys("gt:work:*"), [""; 0]);
}

/// What foreign scripts put, move and change is popped by klass as if our calls had done it.
#[test]
fn jobs_of_foreign_scripts_are_popped_by_their_klass() {
    let mut queue_system = Queue::start();
    let klass = |name: &str| Klass::new(name).unwrap();
    let of = |name: &str, kind: &str| Put { klass: klass(kind), ..put(name) };
    let pop = |queue_system: &mut Queue, kind: &str| {
        let asked = Pop { klasses: Some(vec![klass(kind)]), ..Pop::new(queue(), worker("w")) };
        match queue_system.at(1, asked) {
            Reply::Pop(reply) => reply.jobs.first().map(|job| job.jid.to_string()),
            other => panic!("{other:?}"),
        }
    };
    queue_system.batch(0, vec![of("first", "k").into(), of("a", "k").into(), of("b", "k").into()]);
    // From the first pop on the queue has an index by klass.
    queue_system.at(0, in_front());
    assert_eq!(pop(&mut queue_system, "k").as_deref(), Some("first"));
    assert_eq!(pop(&mut queue_system, "front").as_deref(), Some("front"));
    let foreign = ["jid", "f", "klass", "k", "queue", "q", "state", "waiting", "data", "{}", "priority", "9"];
    let hash =
        [&["HSET", "ql:j:f"], &foreign[..], &["retries", "5", "remaining", "5", "tags", "[]"]].concat();
    queue_system.redis(&hash);
    queue_system.redis(&["ZADD", "ql:q:q-work", "9", "f"]);
    assert_eq!(pop(&mut queue_system, "k").as_deref(), Some("f"), "it was put with a high priority");
    queue_system.at(0, of("c", "k"));
    queue_system.redis(&["HSET", "ql:j:c", "priority", "5"]);
    queue_system.redis(&["ZADD", "ql:q:q-work", "5", "c"]);
    assert_eq!(pop(&mut queue_system, "k").as_deref(), Some("c"), "its priority was raised");
    queue_system.redis(&["HSET", "ql:j:a", "klass", "other"]);
    queue_system.redis(&["ZREM", "ql:q:q-work", "b"]);
    assert_eq!(pop(&mut queue_system, "k"), None, "one is of another klass, and one no longer waits");
    assert_eq!(pop(&mut queue_system, "other").as_deref(), Some("a"));
    // Behind more jobs than a pop looks through.
    queue_system.batch(0, vec![of("lowered", "k").into(), Put { jid: jid("front-2"), ..in_front() }.into()]);
    queue_system.batch(1, (0..150).map(|number| of(&format!("x{number:03}"), "k").into()).collect());
    queue_system.redis(&["HSET", "ql:j:lowered", "priority", "-5"]);
    queue_system.redis(&["ZADD", "ql:q:q-work", "-5", "lowered"]);
    assert_eq!(pop(&mut queue_system, "k").as_deref(), Some("x000"), "the priority of the first was lowered");
}

/// The index by klass is built over several calls. Until it is complete, a parked pop is due again at once.
#[test]
fn a_klass_behind_many_other_jobs_is_found_by_a_bounded_number_of_calls() {
    let mut queue_system = Queue::start();
    let klass = |name: &str| Klass::new(name).unwrap();
    for first in (0..25_000).step_by(5_000) {
        queue_system.batch(0, (first..first + 5_000).map(|number| put(&number.to_string()).into()).collect());
    }
    queue_system.at(1, Put { klass: klass("rare"), ..put("rare") });
    let pop = || Pop { klasses: Some(vec![klass("rare")]), ..Pop::new(queue(), worker("w")) };
    let mut calls = 0;
    loop {
        calls += 1;
        match queue_system.wait_for("p", 1, pop()) {
            ParkReply::Popped(reply) => break assert_eq!(reply.jobs[0].jid, jid("rare")),
            ParkReply::Parked { next } => assert_eq!(next, Some(Timestamp::ZERO), "it goes on at once"),
            other => panic!("{other:?}"),
        }
        assert!(calls < 10, "the index is not complete after {calls} calls");
    }
    let asleep = queue_system.wait_for("p", 2, pop());
    let at_once = Some(Timestamp::ZERO);
    assert!(
        matches!(asleep, ParkReply::Parked { next } if next != at_once),
        "the index is complete: {asleep:?}"
    );
}

/// A foreign script popped one job and put another, so that counts tell nothing.
#[test]
fn a_job_that_a_foreign_script_exchanged_for_another_is_found_by_its_klass() {
    let mut queue_system = Queue::start();
    let klasses = Some(vec![Klass::new("k").unwrap()]);
    let pop = || Pop { klasses: klasses.clone(), ..Pop::new(queue(), worker("w")) };
    queue_system.batch(0, vec![in_front().into(), put("a").into(), put("b").into(), put("c").into()]);
    assert!(matches!(queue_system.at(1, pop()), Reply::Pop(reply) if reply.jobs[0].jid == jid("a")));
    queue_system.redis(&["ZREM", "ql:q:q-work", "c"]);
    let foreign =
        ["HSET", "ql:j:f", "jid", "f", "klass", "k", "queue", "q", "state", "waiting", "data", "{}"];
    queue_system
        .redis(&[&foreign[..], &["priority", "-9", "retries", "5", "remaining", "5", "tags", "[]"]].concat());
    queue_system.redis(&["ZADD", "ql:q:q-work", "-9", "f"]);
    for expected in ["b", "f"] {
        match queue_system.at(1, pop()) {
            Reply::Pop(reply) => assert_eq!(reply.jobs[0].jid, jid(expected)),
            other => panic!("{other:?}"),
        }
    }
}

/// The index is derived, so a key of it with another type is replaced.
#[test]
fn an_index_key_of_another_type_is_replaced() {
    let mut queue_system = Queue::start();
    let klasses = Some(vec![Klass::new("k").unwrap()]);
    let pop = || Pop { klasses: klasses.clone(), ..Pop::new(queue(), worker("w")) };
    queue_system.batch(0, vec![in_front().into(), put("a").into()]);
    queue_system.redis(&["SET", "gt:work:1:q:k", "text"]);
    assert!(matches!(queue_system.at(1, pop()), Reply::Pop(reply) if reply.jobs[0].jid == jid("a")));
    queue_system.redis(&["SET", "gt:work:1:q:k", "text"]);
    assert_eq!(queue_system.at(1, put("b")), Reply::Put(PutReply::Created));
    assert!(matches!(queue_system.at(1, pop()), Reply::Pop(reply) if reply.jobs[0].jid == jid("b")));
}

/// A foreign script that puts a cancelled job anew does not know of tombstones.
#[test]
fn a_job_that_a_foreign_script_put_anew_is_not_a_cancelled_one() {
    let mut queue_system = Queue::start();
    queue_system.at(0, put("a"));
    queue_system.at(1, Cancel::new(vec![jid("a")]));
    let asked = || Canceled { jid: jid("a") };
    assert!(matches!(queue_system.at(2, asked()), Reply::Canceled(Some(_))));
    queue_system.redis(&["HSET", "ql:j:a", "jid", "a", "klass", "k", "queue", "q", "state", "waiting"]);
    assert_eq!(queue_system.at(2, asked()), Reply::Canceled(None));
}

/// A foreign script tells nobody that it failed a job, so ticks go through the jobs with a policy, a hundred at
/// a time, and find those behind it. Those that no longer depend on any job leave the index on the way.
#[test]
fn ticks_apply_policies_behind_a_job_that_a_foreign_script_failed() {
    const DEPENDENTS: usize = 250;
    let mut queue_system = Queue::start();
    let fails = PutOptions { on_dependency_failure: DependencyPolicy::Fail, ..PutOptions::default() };
    queue_system.batch(0, vec![put("cause").into(), put("other").into()]);
    let behind = |name: String, on: &str| Put { depends: vec![jid(on)], ..with_terms(&name, fails.clone()) };
    for number in 0..DEPENDENTS {
        queue_system.at(0, behind(format!("x{number:03}"), "cause"));
        queue_system.at(0, behind(format!("y{number:03}"), "other"));
    }
    let failure = r#"{"group":"g","message":"oops","when":1,"worker":"w"}"#;
    queue_system.redis(&["HSET", "ql:j:cause", "state", "failed", "failure", failure]);
    queue_system.redis(&["ZREM", "ql:q:q-work", "cause"]);
    queue_system.redis(&["LPUSH", "ql:f:g", "cause"]);
    queue_system.redis(&["SADD", "ql:failures", "g"]);
    // A foreign script releases one of the others.
    queue_system.redis(&["DEL", "ql:j:y000-dependencies"]);
    queue_system.redis(&["HSET", "ql:j:y000", "state", "waiting"]);
    queue_system.redis(&["ZREM", "ql:q:q-depends", "y000"]);
    for _ in 0..12 {
        queue_system.at(2, Tick { count: Count::new(50).unwrap() });
    }
    let Reply::Failures(groups) = queue_system.at(2, Failures) else { panic!("expected groups") };
    assert_eq!(groups.get(&Group::new("upstream-q").unwrap()), Some(&(DEPENDENTS as u64)));
    let Reply::Get(Some(job)) = queue_system.at(2, Get { jid: jid("x249") }) else { panic!("it is there") };
    let message = "Job cause failed (g), and this job depends on it";
    assert_eq!(job.failure().map(|failure| failure.message.as_str()), Some(message));
    let mut indexed =
        || -> usize { redis::cmd("ZCARD").arg("gt:policies").query(&mut queue_system.connection).unwrap() };
    assert_eq!(indexed(), DEPENDENTS - 1);
    assert_eq!(queue_system.keys("gt:behind"), Vec::<String>::new());
}

/// The rest is done by ticks.
#[test]
fn a_command_fails_a_hundred_dependents() {
    let mut queue_system = Queue::start();
    let fails = PutOptions { on_dependency_failure: DependencyPolicy::Fail, ..PutOptions::default() };
    queue_system.at(0, put("cause"));
    let token = queue_system.pop(0, 1).remove(0).1;
    for number in 0..130 {
        let dependent = with_terms(&format!("x{number:03}"), fails.clone());
        queue_system.at(0, Put { depends: vec![jid("cause")], ..dependent });
    }
    let group = Group::new("g").unwrap();
    queue_system.at(1, Fail::new(jid("cause"), Holder::Token(token), group, "oops"));
    let Reply::Failures(groups) = queue_system.at(1, Failures) else { panic!("expected groups") };
    assert_eq!(groups.get(&Group::new("upstream-q").unwrap()), Some(&100));
    queue_system.at(1, Tick { count: Count::new(50).unwrap() });
    let Reply::Failures(groups) = queue_system.at(1, Failures) else { panic!("expected groups") };
    assert_eq!(groups.get(&Group::new("upstream-q").unwrap()), Some(&130));
}

/// What a job depended on before it failed because of another no longer counts, if a foreign script has put it
/// back and it failed by itself since.
#[test]
fn dropped_dependencies_end_with_the_failure_that_dropped_them() {
    let mut queue_system = Queue::start();
    let fails = PutOptions { on_dependency_failure: DependencyPolicy::Fail, ..PutOptions::default() };
    queue_system.at(0, put("cause"));
    let token = queue_system.pop(0, 1).remove(0).1;
    let group = Group::new("g").unwrap();
    queue_system.at(0, Fail::new(jid("cause"), Holder::Token(token), group, "oops"));
    queue_system.at(0, Put { depends: vec![jid("cause")], ..with_terms("x", fails) });
    queue_system.at(0, Put { existing: Existing::Require, delay: Seconds::from(99), ..put("cause") });
    let failure = r#"{"group":"h","message":"oops","when":1,"worker":"w"}"#;
    queue_system.redis(&["LREM", "ql:f:upstream-q", "0", "x"]);
    queue_system.redis(&["HSET", "ql:j:x", "failure", failure]);
    queue_system.redis(&["LPUSH", "ql:f:h", "x"]);
    queue_system.at(1, Unfail { queue: queue(), group: Group::new("h").unwrap(), count: Count::ONE });
    assert_eq!(queue_system.pop(1, 5).remove(0).0, "x");
}

/// A policy that the script does not know is refused, and nothing is put.
#[test]
fn an_unknown_policy_is_refused() {
    let mut queue_system = Queue::start();
    let fails = PutOptions { on_dependency_failure: DependencyPolicy::Skip, ..PutOptions::default() };
    let command = Command::from(with_terms("x", fails));
    let bytes = Request::Batch(vec![Call::from(command)]).encode();
    let at = bytes.windows(5).position(|window| window == b"\xa4Skip").unwrap();
    let later = [&bytes[..at], b"\xa4Stop", &bytes[at + 5..]].concat();
    let answer = fcall(&script::library().name, &later, &mut queue_system.connection).unwrap();
    let refused = wire::decode::<Answers>(&answer).unwrap().remove(0).unwrap_err();
    let text = "on_dependency_failure must be Wait, Fail, Skip or Run, not Stop";
    assert!(refused.to_string().contains(text), "{refused}");
    assert_eq!(queue_system.keys("ql:*"), Vec::<String>::new());
}

#[test]
fn entries_left_behind_by_a_foreign_script_are_skipped() {
    let mut queue_system = Queue::start();
    queue_system.redis(&["ZADD", "ql:q:q-work", "9", "ghost"]);
    queue_system.redis(&["ZADD", "ql:q:q-locks", "-5", "ghost"]);
    queue_system.at(0, put("a"));
    assert_eq!(queue_system.pop(0, 5).len(), 1);
    assert_eq!(queue_system.keys("ql:q:q-work"), Vec::<String>::new());
}

#[test]
fn fractional_and_negative_retries_are_shown_as_counts() {
    let mut queue_system = Queue::start();
    queue_system.at(0, put("a"));
    queue_system.redis(&["HSET", "ql:j:a", "retries", "-2.5", "remaining", "2.7"]);
    let Reply::Get(Some(job)) = queue_system.at(0, Get { jid: jid("a") }) else { panic!("it is there") };
    assert_eq!((job.retries, job.remaining), (0, 2));
    assert_eq!(queue_system.pop(0, 1).len(), 1);
}

#[test]
fn a_payload_of_a_qless_client_is_replaced_and_kept_as_bytes() {
    let mut queue_system = Queue::start();
    queue_system.at(0, Put { payload: (&[0xff, 0][..]).into(), ..put("a") });
    let data: String =
        redis::cmd("HGET").arg("ql:j:a").arg("data").query(&mut queue_system.connection).unwrap();
    assert_eq!(data, r#"{"$bytes":"/wA="}"#);
    let (_, token) = queue_system.pop(0, 1)[0].clone();
    let complete =
        Complete { payload: Some("[ 1 ]".into()), ..Complete::new(jid("a"), Holder::Token(token)) };
    queue_system.at(1, complete);
    let Reply::Get(Some(job)) = queue_system.at(1, Get { jid: jid("a") }) else { panic!("it is there") };
    assert_eq!(job.payload.bytes(), b"[ 1 ]");
}

/// A driver of ours cannot send one, but others could.
#[test]
fn a_text_that_is_no_trace_context_is_refused() {
    let mut queue_system = Queue::start();
    let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let options = PutOptions { traceparent: Some(good.parse().unwrap()), ..PutOptions::default() };
    let traced = Put { options: Some(Box::new(options)), ..put("a") };
    let request = Request::Batch(vec![Call { now: Some(Timestamp::from(0)), ..Call::from(traced) }]).encode();
    for bad in [
        good.to_uppercase(),
        good.replace("00-0af7", "01-0af7"),
        good.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
        good.replace("b7ad6b7169203331", &"0".repeat(16)),
        good.replace('-', "_"),
    ] {
        let at = request.windows(good.len()).position(|window| window == good.as_bytes()).unwrap();
        let request = [&request[..at], bad.as_bytes(), &request[at + good.len()..]].concat();
        let answer = fcall(&script::library().name, &request, &mut queue_system.connection).unwrap();
        let answers: Answers = wire::decode(&answer).unwrap();
        let [Err(Refusal::BadArgument { what, .. })] = &answers[..] else { panic!("{bad}: {answers:?}") };
        assert_eq!(what, "traceparent");
    }
    assert_eq!(queue_system.at(1, Get { jid: jid("a") }), Reply::Get(None));
}

/// A foreign script leaves a job without a token. It counts as popped before all others.
#[test]
fn a_job_that_a_foreign_script_popped_is_locked_again() {
    let mut queue_system = Queue::start();
    queue_system.batch(0, vec![put("a").into(), put("b").into()]);
    assert_eq!(queue_system.pop(1, 2).len(), 2);
    // As Qless's own pop of that moment would leave it.
    redis::cmd("HSET").arg("ql:j:b").arg("time").arg("2.5").exec(&mut queue_system.connection).unwrap();
    let Reply::Relock(jobs) = queue_system.at(3, Relock::new(worker("w"))) else { panic!("a relock") };
    let names: Vec<String> = jobs.iter().map(|job| job.jid.to_string()).collect();
    assert_eq!(names, ["b", "a"]);
    for job in jobs {
        assert_eq!(job.payload, "{}".into());
        queue_system.at(4, Complete::new(job.jid, Holder::Token(job.lock.token)));
    }
}

#[test]
fn old_jobs_are_dropped_a_thousand_at_a_time() {
    let mut queue_system = Queue::start();
    let names: Vec<String> = (0..1_500).map(|number| number.to_string()).collect();
    queue_system.batch(0, names.iter().map(|name| put(name).into()).collect());
    let held = queue_system.pop(0, 2_000);
    let complete = |(name, token): &(String, Token)| Complete::new(jid(name), Holder::Token(*token)).into();
    queue_system.batch(1, held.iter().take(1_499).map(complete).collect());
    queue_system.at(2, SetConfig::new("jobs-history-count", "10"));
    queue_system.batch(3, vec![complete(&held[1_499])]);
    let left: i64 = redis::cmd("ZCARD").arg("ql:completed").query(&mut queue_system.connection).unwrap();
    assert_eq!(left, 500);
    queue_system.at(4, put("last"));
    let (name, token) = queue_system.pop(4, 1)[0].clone();
    queue_system.at(5, Complete::new(jid(&name), Holder::Token(token)));
    let left: i64 = redis::cmd("ZCARD").arg("ql:completed").query(&mut queue_system.connection).unwrap();
    assert_eq!(left, 10);
}
