//! Two servers on one Redis are one queue: parked pops and waits on one are served by the other, and nothing
//! is done twice.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use geartrain::{
    Client, Complete, Event, Holder, Jid, JobResult, Put, PutOptions, PutReply, StateName, Tick, UniqueKey,
};
use geartrain_server::{Server, Settings};
use geartrain_testkit::peers::{RedisServer, until};
use tokio::runtime::Runtime;

/// A timeout that must not be reached: the tests do not depend on it.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Two servers, a client of each, and their Redis.
struct TwoServers {
    servers: Vec<Server>,
    here: Client,
    there: Client,
    redis: RedisServer,
    runtime: Runtime,
}

impl TwoServers {
    fn start() -> TwoServers {
        // It syncs before it answers.
        let redis = RedisServer::start(&["--appendonly", "yes", "--appendfsync", "always"]);
        let runtime = Runtime::new().unwrap();
        let settings = Settings::new(redis.url(), (Ipv4Addr::LOCALHOST, 0).into());
        let servers: Vec<Server> =
            (0..2).map(|_| runtime.block_on(Server::start(&settings)).unwrap()).collect();
        let client = |server: &Server| {
            runtime.block_on(geartrain::connect(&format!("redis://{}", server.resp()))).unwrap()
        };
        let (here, there) = (client(&servers[0]), client(&servers[1]));
        TwoServers { servers, here, there, redis, runtime }
    }

    fn run<T>(&self, what: impl Future<Output = Result<T, geartrain::Error>>) -> T {
        self.runtime.block_on(what).unwrap()
    }

    /// Runs a command of a foreign client on the Redis.
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
fn a_job_put_on_one_server_is_popped_on_the_other() {
    let two = TwoServers::start();
    let (asks, works) = (two.here.clone(), two.there.clone());
    // The pop is parked on one server before the job is put on the other.
    let parked_pop = two.runtime.spawn(async move {
        let job = works.pop_wait("sums", "w1", TIMEOUT).await?.expect("there is a job");
        let result = Some(Box::new(JobResult { code: 0, bytes: "42".into() }));
        works.run(Complete { result, ..Complete::new(job.jid, Holder::Token(job.lock.token)) }).await
    });
    let ended = two.run(asks.put_and_wait(asks.put("sums", "add", "[40,2]"), Some(TIMEOUT)));
    assert!(ended.is_completed());
    assert_eq!(ended.result.bytes.text(), Some("42"));
    two.runtime.block_on(parked_pop).unwrap().unwrap();
    drop(asks);
    two.stop();
}

#[test]
fn due_work_is_done_once_although_both_servers_sweep() {
    let two = TwoServers::start();
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
    // Each attempt has timed out and is ended once. Besides the servers' own sweeps, both get a tick at once.
    let count = geartrain::Count::new(1_000).unwrap();
    let started = Instant::now();
    let mut lost = std::collections::BTreeMap::<Jid, u32>::new();
    while lost.values().sum::<u32>() < held {
        assert!(started.elapsed() < TIMEOUT, "in vain: {lost:?}");
        let (here, there) = (two.here.clone(), two.there.clone());
        let (one, other) = two
            .runtime
            .block_on(async move { tokio::join!(here.run(Tick { count }), there.run(Tick { count })) });
        one.unwrap();
        other.unwrap();
        let (marker, mut found) = (format!("marker-{:?}", started.elapsed()), false);
        two.run(two.here.put("markers", "k", "{}").jid(&marker).into_future());
        while !found {
            match &*two.runtime.block_on(events.next()).unwrap().event {
                Event::LockLost { jid, .. } => *lost.entry(jid.clone()).or_default() += 1,
                Event::Put { jid, .. } => found = jid.to_string() == marker,
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
fn a_unique_key_is_free_after_a_foreign_script_ended_its_job() {
    let two = TwoServers::start();
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

    // Popped and completed by a Qless worker, whose script writes only what the specification says.
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
fn a_wait_for_a_job_completed_by_a_foreign_script_reports_the_truth() {
    let two = TwoServers::start();
    let awaited = two.run(two.here.put_and_follow(two.here.put("mail", "k", "{}").jid("a")));
    two.foreign(&["ZREM", "ql:q:mail-work", "a"]);
    two.foreign(&["HSET", "ql:j:a", "state", "complete", "worker", "", "queue", "", "expires", "0"]);
    two.foreign(&["ZADD", "ql:completed", "1", "a"]);
    // No message came, so the wait times out; the next one reports the state.
    let late = two.runtime.block_on(awaited.end(Some(Duration::from_millis(50))));
    assert!(late.is_err(), "{late:?}");
    let again = two.runtime.block_on(two.here.wait_for(&jid("a"), Some(TIMEOUT))).unwrap_err();
    assert!(again.to_string().contains("is complete"), "{again}");
    two.stop();
}

#[test]
fn both_servers_continue_after_their_redis_restarted() {
    let mut two = TwoServers::start();
    let mut events = two.run(two.there.events());
    let (asks, works) = (two.here.clone(), two.there.clone());
    let parked_pop = two.runtime.spawn(async move { works.pop_wait("later", "w1", TIMEOUT).await });
    let put = asks.put("sums", "add", "[1,1]").jid("sum").keep_result(TIMEOUT);
    let awaited = two.run(asks.put_and_follow(put));
    let waiting = two.runtime.spawn(awaited.end(Some(TIMEOUT)));

    two.redis.kill();
    let (late, puts) = (two.here.clone(), two.there.clone());
    // Requested while Redis is down, answered when it is back.
    let popping = two.runtime.spawn(async move { late.pop("sums", "w2").await });
    let putting = two.runtime.spawn(async move { puts.put("later", "k", "{}").jid("later").await });
    two.redis.start_again();

    let job = two.runtime.block_on(popping).unwrap().unwrap().unwrap();
    two.run(two.there.complete(&job));
    two.runtime.block_on(putting).unwrap().unwrap();
    assert!(two.runtime.block_on(waiting).unwrap().unwrap().is_completed());
    assert_eq!(two.runtime.block_on(parked_pop).unwrap().unwrap().unwrap().jid, jid("later"));
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

/// Events of foreign scripts have no positions of their own, and fit between ours however many there are.
#[test]
fn no_event_is_missed_after_many_events_of_foreign_scripts() {
    let two = TwoServers::start();
    let mut events = two.run(two.here.events());
    two.run(two.here.put("mail", "k", "{}").jid("before").into_future());
    let mut connection = redis::Client::open(two.redis.url()).unwrap().get_connection().unwrap();
    let mut foreign = redis::pipe();
    for number in 0..FOREIGN_EVENTS {
        foreign.publish("ql:log", format!(r#"{{"jid":"f{number}","event":"put","queue":"mail"}}"#)).ignore();
    }
    foreign.exec(&mut connection).unwrap();
    two.run(two.there.put("mail", "k", "{}").jid("after").into_future());

    let names = (0..FOREIGN_EVENTS).map(|number| format!("f{number}"));
    let mut last = 0;
    for name in ["before".to_owned()].into_iter().chain(names).chain(["after".to_owned()]) {
        let next = two.runtime.block_on(async { tokio::time::timeout(TIMEOUT, events.next()).await });
        let published = next.unwrap_or_else(|_| panic!("{name} is received")).unwrap();
        assert!(
            matches!(&*published.event, Event::Put { jid, .. } if jid.to_string() == name),
            "{published:?}"
        );
        assert!(published.position >= last, "{last} {published:?}");
        last = published.position;
    }
    // A subscription after the last of them starts with the next event.
    drop(events);
    let mut events = two.run(two.here.events_after(last));
    two.run(two.there.put("mail", "k", "{}").jid("later").into_future());
    let next = two.runtime.block_on(events.next()).unwrap();
    assert!(matches!(&*next.event, Event::Put { jid, .. } if *jid == self::jid("later")), "{next:?}");
    drop(events);
    two.stop();
}

/// More than fit between two positions.
const FOREIGN_EVENTS: usize = 3_000;

/// A foreign script sends no message when it completes a job; a waiting client notices by polling.
#[test]
fn a_wait_notices_that_a_foreign_script_completed_the_job() {
    let two = TwoServers::start();
    two.runtime.block_on(async {
        let awaited = two.here.put_and_follow(two.here.put("mail", "welcome", "{}").jid("a")).await.unwrap();
        two.foreign(&["ZREM", "ql:q:mail-work", "a"]);
        two.foreign(&["HSET", "ql:j:a", "state", "complete", "worker", "", "queue", "", "expires", "0"]);
        two.foreign(&["ZADD", "ql:completed", "1", "a"]);
        assert!(awaited.end(Some(TIMEOUT)).await.unwrap().is_completed());
    });
}

/// After a wait nothing is left of it: no subscription on a server or on the Redis.
#[test]
fn a_finished_wait_leaves_no_subscription() {
    let two = TwoServers::start();
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
    assert!(two.run(awaited.end(Some(TIMEOUT))).is_completed());
    until("all subscriptions have ended", || listeners() == 0);
    two.stop();
}
