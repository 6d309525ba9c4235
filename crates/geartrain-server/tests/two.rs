//! Two servers on one Redis are one queue: whoever waits at one is served by what happens at the other, and nothing is done twice.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use geartrain::{
    Client, Complete, Event, Holder, Jid, JobResult, Put, PutOptions, PutReply, StateName, Tick, UniqueKey,
};
use geartrain_server::{Server, Settings};
use geartrain_testkit::peers::{RedisServer, until};
use tokio::runtime::Runtime;

/// How long a wait may take that must not: the tests do not depend on it.
const LONG: Duration = Duration::from_secs(60);

/// Two servers, a client of each, and the Redis behind both.
struct Two {
    servers: Vec<Server>,
    here: Client,
    there: Client,
    redis: RedisServer,
    runtime: Runtime,
}

impl Two {
    fn start() -> Two {
        // It has on its disk whatever it has answered.
        let redis = RedisServer::start(&["--appendonly", "yes", "--appendfsync", "always"]);
        let runtime = Runtime::new().unwrap();
        let settings = Settings {
            gearman: None,
            store: redis.url(),
            resp: (Ipv4Addr::LOCALHOST, 0).into(),
            password: None,
            insecure: false,
            allow_flush: false,
            demo: false,
            result_log: None,
            result_log_keep: None,
        };
        let servers: Vec<Server> =
            (0..2).map(|_| runtime.block_on(Server::start(&settings)).unwrap()).collect();
        let client = |server: &Server| {
            runtime.block_on(geartrain::connect(&format!("redis://{}", server.resp()))).unwrap()
        };
        let (here, there) = (client(&servers[0]), client(&servers[1]));
        Two { servers, here, there, redis, runtime }
    }

    fn run<T>(&self, what: impl Future<Output = Result<T, geartrain::Error>>) -> T {
        self.runtime.block_on(what).unwrap()
    }

    /// What somebody does at the Redis who knows nothing of us.
    fn foreign(&self, words: &[&str]) {
        let mut connection = redis::Client::open(self.redis.url()).unwrap().get_connection().unwrap();
        redis::cmd(words[0]).arg(&words[1..]).exec(&mut connection).unwrap();
    }

    fn stop(self) {
        drop((self.here, self.there));
        for server in self.servers {
            self.runtime.block_on(server.stop());
        }
    }
}

fn jid(name: &str) -> Jid {
    Jid::new(name).unwrap()
}

#[test]
fn what_is_put_at_one_server_is_worked_on_at_the_other() {
    let two = Two::start();
    let (asks, works) = (two.here.clone(), two.there.clone());
    // The sleeper is at one server before the job is put at the other.
    let sleeping = two.runtime.spawn(async move {
        let job = works.pop_wait("sums", "w1", LONG).await?.expect("there is a job");
        let result = Some(Box::new(JobResult { code: 0, bytes: "42".into() }));
        works.run(Complete { result, ..Complete::new(job.jid, Holder::Token(job.lock.token)) }).await
    });
    let ended = two.run(asks.put_and_wait(asks.put("sums", "add", "[40,2]"), Some(LONG)));
    assert!(ended.is_completed());
    assert_eq!(ended.outcome.bytes.text(), Some("42"));
    two.runtime.block_on(sleeping).unwrap().unwrap();
    drop(asks);
    two.stop();
}

#[test]
fn what_is_due_is_done_once_though_both_servers_look() {
    let two = Two::start();
    let mut events = two.run(two.here.events());
    for number in 0..20 {
        let put = two.here.put("mail", "k", "{}").jid(&format!("j{number}")).retries(2);
        two.run(put.timeout(Duration::from_millis(1)).into_future());
    }
    let mut held = 0;
    while two.run(two.there.pop("mail", "w1")).is_some() {
        held += 1;
    }
    assert!(held >= 20);
    // Each attempt has run out of time, and is ended once. Besides the servers' own, both are asked by hand at once.
    let count = geartrain::Count::new(1_000).unwrap();
    let begun = Instant::now();
    let mut lost = std::collections::BTreeMap::<Jid, u32>::new();
    while lost.values().sum::<u32>() < held {
        assert!(begun.elapsed() < LONG, "in vain: {lost:?}");
        let (here, there) = (two.here.clone(), two.there.clone());
        let (one, other) = two
            .runtime
            .block_on(async move { tokio::join!(here.run(Tick { count }), there.run(Tick { count })) });
        one.unwrap();
        other.unwrap();
        let (marker, mut heard) = (format!("marker-{:?}", begun.elapsed()), false);
        two.run(two.here.put("markers", "k", "{}").jid(&marker).into_future());
        while !heard {
            match &*two.runtime.block_on(events.next()).unwrap().event {
                Event::LockLost { jid, .. } => *lost.entry(jid.clone()).or_default() += 1,
                Event::Put { jid, .. } => heard = jid.to_string() == marker,
                _ => {}
            }
        }
    }
    for number in 0..20 {
        let job = two.run(two.here.get(&jid(&format!("j{number}")))).unwrap();
        let attempts = lost[&job.jid];
        assert_eq!(i64::from(attempts), 2 - job.remaining, "{job:?}");
    }
    drop(events);
    two.stop();
}

#[test]
fn a_key_whose_job_somebody_else_ended_is_free() {
    let two = Two::start();
    let put = |name: &str| Put {
        options: Some(Box::new(PutOptions { unique: UniqueKey::new(b"key").ok(), ..PutOptions::default() })),
        ..Put::new(
            geartrain::QueueName::new("mail").unwrap(),
            jid(name),
            geartrain::Klass::new("k").unwrap(),
            "{}",
        )
    };
    assert_eq!(two.run(two.here.run(put("a"))), PutReply::Created);
    assert_eq!(two.run(two.there.run(put("b"))), PutReply::Coalesced { jid: jid("a") });

    // Popped and completed by a worker of Qless, whose script writes what the specification says and nothing else.
    two.foreign(&["ZREM", "ql:q:mail-work", "a"]);
    two.foreign(&["HSET", "ql:j:a", "state", "complete", "worker", "", "queue", "", "expires", "0"]);
    two.foreign(&["ZADD", "ql:completed", "1", "a"]);
    assert_eq!(two.run(two.there.run(put("c"))), PutReply::Created);
    assert_eq!(two.run(two.here.run(put("d"))), PutReply::Coalesced { jid: jid("c") });

    // Cancelled by one.
    two.foreign(&["ZREM", "ql:q:mail-work", "c"]);
    two.foreign(&["DEL", "ql:j:c", "ql:j:c-history"]);
    assert_eq!(two.run(two.here.run(put("e"))), PutReply::Created);
    let job = two.run(two.there.pop("mail", "w1")).unwrap();
    assert_eq!(job.jid, jid("e"));
    two.run(two.there.complete(&job));
    assert_eq!(two.run(two.here.get(&job.jid)).unwrap().state.name(), StateName::Complete);
    two.stop();
}

#[test]
fn whoever_waits_for_a_job_that_somebody_else_completes_hears_no_lie() {
    let two = Two::start();
    let awaited = two.run(two.here.put_and_follow(two.here.put("mail", "k", "{}").jid("a")));
    two.foreign(&["ZREM", "ql:q:mail-work", "a"]);
    two.foreign(&["HSET", "ql:j:a", "state", "complete", "worker", "", "queue", "", "expires", "0"]);
    two.foreign(&["ZADD", "ql:completed", "1", "a"]);
    // Nobody told us, so that the wait ends when it is time; asked again, what is so is said.
    let late = two.runtime.block_on(awaited.end(Some(Duration::from_millis(50))));
    assert!(late.is_err(), "{late:?}");
    let again = two.runtime.block_on(two.here.wait_for(&jid("a"), Some(LONG))).unwrap_err();
    assert!(again.to_string().contains("is complete"), "{again}");
    two.stop();
}

#[test]
fn both_go_on_when_their_redis_was_away() {
    let mut two = Two::start();
    let mut events = two.run(two.there.events());
    let (asks, works) = (two.here.clone(), two.there.clone());
    let sleeping = two.runtime.spawn(async move { works.pop_wait("later", "w1", LONG).await });
    let put = asks.put("sums", "add", "[1,1]").jid("sum").keep_result(LONG);
    let awaited = two.run(asks.put_and_follow(put));
    let waiting = two.runtime.spawn(awaited.end(Some(LONG)));

    two.redis.kill();
    let (late, puts) = (two.here.clone(), two.there.clone());
    // Asked while it is away: answered when it is back.
    let popping = two.runtime.spawn(async move { late.pop("sums", "w2").await });
    let putting = two.runtime.spawn(async move { puts.put("later", "k", "{}").jid("later").await });
    two.redis.start_again();

    let job = two.runtime.block_on(popping).unwrap().unwrap().unwrap();
    two.run(two.there.complete(&job));
    two.runtime.block_on(putting).unwrap().unwrap();
    assert!(two.runtime.block_on(waiting).unwrap().unwrap().is_completed());
    assert_eq!(two.runtime.block_on(sleeping).unwrap().unwrap().unwrap().jid, jid("later"));
    let mut seen = std::collections::BTreeSet::new();
    while !(seen.contains("put") && seen.contains("completed")) {
        match &*two.runtime.block_on(events.next()).unwrap().event {
            Event::Put { jid, .. } if jid.to_string() == "later" => seen.insert("put"),
            Event::Completed { jid, .. } if jid.to_string() == "sum" => seen.insert("completed"),
            _ => false,
        };
    }
    drop((events, asks));
    two.stop();
}

/// Events of foreign scripts have no positions of their own, and come between ours however many they are.
#[test]
fn nothing_of_ours_is_missed_after_many_events_of_foreign_scripts() {
    let two = Two::start();
    let mut events = two.run(two.here.events());
    two.run(two.here.put("mail", "k", "{}").jid("before").into_future());
    let mut connection = redis::Client::open(two.redis.url()).unwrap().get_connection().unwrap();
    let mut foreign = redis::pipe();
    for number in 0..FOREIGN {
        foreign.publish("ql:log", format!(r#"{{"jid":"f{number}","event":"put","queue":"mail"}}"#)).ignore();
    }
    foreign.exec(&mut connection).unwrap();
    two.run(two.there.put("mail", "k", "{}").jid("after").into_future());

    let names = (0..FOREIGN).map(|number| format!("f{number}"));
    let mut last = 0;
    for name in ["before".to_owned()].into_iter().chain(names).chain(["after".to_owned()]) {
        let next = two.runtime.block_on(async { tokio::time::timeout(LONG, events.next()).await });
        let published = next.unwrap_or_else(|_| panic!("{name} is heard of")).unwrap();
        assert!(
            matches!(&*published.event, Event::Put { jid, .. } if jid.to_string() == name),
            "{published:?}"
        );
        assert!(published.position >= last, "{last} {published:?}");
        last = published.position;
    }
    // From the last of them on, what comes is what comes after it.
    drop(events);
    let mut events = two.run(two.here.events_after(last));
    two.run(two.there.put("mail", "k", "{}").jid("later").into_future());
    let next = two.runtime.block_on(events.next()).unwrap();
    assert!(matches!(&*next.event, Event::Put { jid, .. } if *jid == self::jid("later")), "{next:?}");
    drop(events);
    two.stop();
}

/// More than there is room for between two positions.
const FOREIGN: usize = 3_000;

/// A foreign script tells nobody of ours that it completed a job; whoever waits finds out all the same.
#[test]
fn whoever_waits_finds_out_that_a_foreign_script_completed_the_job() {
    let two = Two::start();
    two.runtime.block_on(async {
        let awaited = two.here.put_and_follow(two.here.put("mail", "welcome", "{}").jid("a")).await.unwrap();
        two.foreign(&["ZREM", "ql:q:mail-work", "a"]);
        two.foreign(&["HSET", "ql:j:a", "state", "complete", "worker", "", "queue", "", "expires", "0"]);
        two.foreign(&["ZADD", "ql:completed", "1", "a"]);
        assert!(awaited.end(Some(LONG)).await.unwrap().is_completed());
    });
}

/// Once a wait is over, nothing is left of it: neither a server nor the Redis goes on telling anybody.
#[test]
fn nobody_listens_for_a_job_that_was_waited_for() {
    let two = Two::start();
    let listeners = || {
        let client = redis::Client::open(two.redis.url()).unwrap();
        let mut connection = client.get_connection().unwrap();
        let listed = redis::cmd("PUBSUB").arg("CHANNELS").arg("gt:front:*").query(&mut connection);
        let channels: Vec<String> = listed.unwrap();
        channels.len()
    };
    let awaited = two.run(two.here.put_and_follow(two.here.put("mail", "k", "{}").jid("a")));
    assert_eq!(listeners(), 1);
    let job = two.run(two.there.pop("mail", "w1")).unwrap();
    two.run(two.there.complete(&job));
    assert!(two.run(awaited.end(Some(LONG))).is_completed());
    until("everybody has stopped listening", || listeners() == 0);
    two.stop();
}
