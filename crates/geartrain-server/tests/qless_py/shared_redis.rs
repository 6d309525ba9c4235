//! Our workers and Qless workers together on one Redis, without a geartrain server.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use geartrain::{
    Client, Complete, CompleteReply, Count, Error, Event, Events, Fail, FailedBy, Group, Holder, Jid,
    Payload, Pop, PopOrder, Popped, QueueName, Refusal, SetConfig, StateName, Stats, Timestamp, WorkerName,
};
use geartrain_testkit::peers::RedisServer;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::{Program, assert_same_lines};

/// A timeout that must not be reached: the tests do not depend on it.
const TIMEOUT: Duration = Duration::from_secs(60);

/// All errands with their classes, as in errands.py.
const ERRANDS: [(&str, &str); 6] = [
    ("greet", "jobs.Greet"),
    ("relay", "jobs.Relay"),
    ("persist", "jobs.Persist"),
    ("refuse", "jobs.Refuse"),
    ("stumble", "jobs.Stumble"),
    ("unknown", "nowhere.Nobody"),
];

const EXPECTED: &str = include_str!("../../../../peers/qless-py/errands.expected");

/// A Redis, and our client connected to it directly.
struct SharedRedis {
    // Dropped before the Redis.
    client: Client,
    redis: RedisServer,
    runtime: Runtime,
}

impl SharedRedis {
    fn new() -> SharedRedis {
        let redis = RedisServer::start(&[]);
        let runtime = Runtime::new().expect("threads can be started");
        let client = runtime.block_on(geartrain::connect(&redis.url())).expect("a Redis is there");
        SharedRedis { client, redis, runtime }
    }

    #[track_caller]
    fn run<T>(&self, what: impl Future<Output = Result<T, Error>>) -> T {
        self.runtime.block_on(what).expect("it is done")
    }

    fn worker(&self, queues: &[&str]) -> Program {
        let mut arguments = vec!["--name", "peer"];
        arguments.extend(queues.iter().flat_map(|queue| ["--queue", *queue]));
        let mut worker = Program::start("worker.py", self.redis.port(), &arguments);
        assert_eq!(worker.line().as_deref(), Some("ready"));
        worker
    }

    /// Jobs and their queue as Qless's own client sees them.
    fn look(&self, queue: &str, jids: &[&str]) -> String {
        let arguments = [&["--queue", queue], jids].concat();
        Program::start("look.py", self.redis.port(), &arguments).output()
    }

    /// The statistics of a queue as our client sees them, in the format of the programs.
    fn statistics(&self, queue: &str) -> Value {
        let now =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("it is after 1970").as_secs_f64();
        let (hour, day) = (3_600.0, 86_400.0);
        // Midnight may have passed since the first put.
        let mut days = vec![((now - hour) / day).floor(), (now / day).floor()];
        days.dedup();
        let mut shown = [0_i64; 5];
        for number in days {
            let date = Timestamp::new(number * day).expect("a day is a moment");
            let stats = self.run(self.client.run(Stats { queue: queue_name(queue), date }));
            let count = |count: u64| i64::try_from(count).expect("there are few");
            let figures = [
                stats.failed,
                stats.failures,
                stats.retries,
                count(stats.run.count),
                count(stats.wait.count),
            ];
            for (sum, figure) in shown.iter_mut().zip(figures) {
                *sum += figure;
            }
        }
        let [failed, failures, retries, runs, waits] = shown;
        json!({ "failed": failed, "failures": failures, "retries": retries, "runs": runs, "waits": waits })
    }

    /// Both clients see these statistics.
    #[track_caller]
    fn assert_statistics(&self, queue: &str, printed: &str, expected: &Value) {
        assert_eq!(&seen(printed, "statistics"), expected, "as Qless sees it");
        assert_eq!(&self.statistics(queue), expected, "as we see it");
    }

    /// The next event that `wanted` accepts.
    #[track_caller]
    fn next_event<T>(&self, events: &mut Events, wanted: impl Fn(&Event) -> Option<T>) -> T {
        let received = async {
            loop {
                let published = events.next().await.expect("events go on");
                if let Some(found) = wanted(&published.event) {
                    return found;
                }
            }
        };
        self.runtime
            .block_on(async { tokio::time::timeout(TIMEOUT, received).await })
            .expect("the event is received")
    }

    /// Waits until a subscriber listens on a worker's channel.
    fn await_listener(&self, worker: &str) {
        let mut connection = redis::Client::open(self.redis.url())
            .and_then(|client| client.get_connection())
            .expect("it answers");
        let channel = format!("ql:w:{worker}");
        let started = Instant::now();
        loop {
            let counted: (String, u64) =
                redis::cmd("PUBSUB").arg("NUMSUB").arg(&channel).query(&mut connection).expect("it counts");
            if counted.1 > 0 {
                return;
            }
            assert!(started.elapsed() < TIMEOUT, "no subscriber on {channel}");
            std::thread::yield_now();
        }
    }
}

/// The value printed under a name.
#[track_caller]
fn seen(printed: &str, what: &str) -> Value {
    let lines =
        printed.lines().map(|line| serde_json::from_str::<(String, Value)>(line).expect("lines are JSON"));
    lines.filter(|(name, _)| name == what).map(|(_, value)| value).next().expect("it was printed")
}

fn queue_name(name: &str) -> QueueName {
    QueueName::new(name).expect("it is a name")
}

fn jid(name: &str) -> Jid {
    Jid::new(name).expect("it is a name")
}

/// Our worker: does the same as the classes in jobs.py, until `endings` jobs have ended.
async fn work(client: Client, queues: Vec<&str>, mut endings: usize) -> Result<(), Error> {
    let worker = WorkerName::new("peer")?;
    let mut pop = Pop {
        queues: queues.iter().map(|queue| queue_name(queue)).collect(),
        count: Count::ONE,
        order: PopOrder::RoundRobin { turn: 0 },
        ..Pop::new(queue_name(queues[0]), worker)
    };
    while endings > 0 {
        let reply = client.pop_any(pop.clone(), TIMEOUT).await?;
        pop.order = PopOrder::RoundRobin { turn: reply.turn };
        let job = reply.jobs.into_iter().next().expect("there is a job soon");
        client.heartbeat(&job).await?;
        if run_errand(&client, &job).await? {
            endings -= 1;
        }
    }
    Ok(())
}

/// Returns whether the job has ended.
async fn run_errand(client: &Client, job: &Popped) -> Result<bool, Error> {
    let mut data: Value = serde_json::from_slice(job.payload.bytes()).expect("Qless keeps JSON");
    let name = data["name"].as_str().expect("it has a name").to_owned();
    let queue = job.queue.as_str();
    match (job.klass.as_str(), queue) {
        ("jobs.Greet", _) => {
            data["greeting"] = json!(format!("Hello, {name}"));
            complete_with(client, job, &data).await?;
        }
        ("jobs.Relay", "goal") => {
            data["arrived"] = json!(true);
            complete_with(client, job, &data).await?;
        }
        ("jobs.Relay", _) => {
            client.advance(job, data["next"].as_str().expect("it goes somewhere")).await?;
            return Ok(false);
        }
        ("jobs.Persist", _) if job.remaining > 0 => {
            assert_eq!(client.retry(job, Duration::ZERO).await?, job.remaining - 1);
            return Ok(false);
        }
        ("jobs.Persist", _) => {
            client.complete(job).await?;
        }
        ("jobs.Refuse", _) => client.fail(job, "refused", &format!("Not for {name}")).await?,
        ("jobs.Stumble", _) => {
            client
                .fail(job, &format!("{queue}-ValueError"), &format!("ValueError: {name} is no number"))
                .await?;
        }
        (klass, _) => {
            let group = format!("{queue}-ModuleNotFoundError");
            client.fail(job, &group, &format!("Failed to import {klass}")).await?;
        }
    }
    Ok(true)
}

async fn complete_with(client: &Client, job: &Popped, data: &Value) -> Result<CompleteReply, Error> {
    let payload = Some(Payload::from(data.to_string()));
    client.run(Complete { payload, ..Complete::new(job.jid.clone(), Holder::Token(job.lock.token)) }).await
}

fn statistics_of_errands() -> Value {
    json!({ "failed": 3, "failures": 3, "retries": 0, "runs": 4, "waits": 9 })
}

/// Our worker runs the jobs of Qless's client, with the same visible results as Qless's own worker.
#[test]
fn our_worker_runs_the_jobs_of_a_qless_client() {
    let redis_and_client = SharedRedis::new();
    let working =
        redis_and_client.runtime.spawn(work(redis_and_client.client.clone(), vec!["errands", "goal"], 7));
    let printed =
        Program::start("errands.py", redis_and_client.redis.port(), &["--queue", "errands"]).output();
    assert_same_lines(&printed, EXPECTED);
    redis_and_client.runtime.block_on(working).expect("it does not panic").expect("nothing is refused");
    redis_and_client.assert_statistics("errands", &printed, &statistics_of_errands());
}

/// Both kinds of workers, each on one of two queues, so that one job passes through both.
#[test]
fn a_job_passes_through_both_kinds_of_workers() {
    for (ours, theirs, endings) in [("errands", "goal", 6), ("goal", "errands", 1)] {
        let redis_and_client = SharedRedis::new();
        let working =
            redis_and_client.runtime.spawn(work(redis_and_client.client.clone(), vec![ours], endings));
        let mut worker = redis_and_client.worker(&[theirs]);
        let printed =
            Program::start("errands.py", redis_and_client.redis.port(), &["--queue", "errands"]).output();
        assert_same_lines(&printed, EXPECTED);
        redis_and_client.runtime.block_on(working).expect("it does not panic").expect("nothing is refused");
        worker.end_input();
        assert_eq!(worker.exit_code(), Some(0));
        redis_and_client.assert_statistics("errands", &printed, &statistics_of_errands());
    }
}

/// A Qless worker runs the jobs of our client, which receives all of Qless's events.
#[test]
fn a_qless_worker_runs_the_jobs_of_our_client_which_sees_its_events() {
    let redis_and_client = SharedRedis::new();
    let mut events = redis_and_client.run(redis_and_client.client.events());
    for (name, klass) in ERRANDS {
        let put = redis_and_client
            .client
            .put("errands", klass, r#"{"name":"Ada","next":"goal"}"#)
            .jid(name)
            .retries(2);
        redis_and_client.run(put.into_future());
    }
    let dependent =
        redis_and_client.client.put("errands", "jobs.Greet", r#"{"name":"Grace"}"#).jid("dependent");
    redis_and_client.run(dependent.after(&jid("greet")).after(&jid("relay")).into_future());

    let mut worker = redis_and_client.worker(&["errands", "goal"]);
    let mut received = BTreeMap::<String, Vec<Event>>::new();
    let mut ended = 0;
    while ended < 7 {
        let (jid, event) =
            redis_and_client.next_event(&mut events, |event| Some((job_of_event(event)?, event.clone())));
        ended += usize::from(matches!(event, Event::Completed { .. } | Event::Failed { .. }));
        received.entry(jid).or_default().push(event);
    }
    worker.end_input();
    assert_eq!(worker.exit_code(), Some(0));

    let put = |name: &str| Event::Put { jid: jid(name), queue: queue_name("errands") };
    let completed = |name: &str, queue: &str| Event::Completed { jid: jid(name), queue: queue_name(queue) };
    for name in ["greet", "persist", "dependent"] {
        assert_eq!(received[name], [put(name), completed(name, "errands")]);
    }
    let advanced =
        Event::Advanced { jid: jid("relay"), queue: queue_name("errands"), to: queue_name("goal") };
    assert_eq!(received["relay"], [put("relay"), advanced, completed("relay", "goal")]);
    for (name, group, message) in [
        ("refuse", "refused", "Not for Ada"),
        ("stumble", "errands-ValueError", "ValueError: Ada is no number"),
        ("unknown", "errands-ModuleNotFoundError", "Failed to import nowhere.Nobody"),
    ] {
        let Event::Failed { queue, worker, group: failure_group, message: said, by, .. } = &received[name][1]
        else {
            panic!("{name}: {received:?}");
        };
        assert_eq!((queue.as_str(), failure_group.as_str(), *by), ("errands", group, FailedBy::Worker));
        assert_eq!(worker.as_ref().map(WorkerName::as_str), Some("peer"));
        // The end of a stack trace.
        assert!(said.trim_end().ends_with(message), "{said}");
        assert_eq!((received[name].len(), &received[name][0]), (2, &put(name)));
    }

    let jids: Vec<&str> = ERRANDS.iter().map(|(name, _)| *name).chain(["dependent"]).collect();
    let printed = redis_and_client.look("errands", &jids);
    assert_same_lines(&printed, EXPECTED);
    redis_and_client.assert_statistics("errands", &printed, &statistics_of_errands());
}

/// The job of an event, if a Qless worker can cause that event.
fn job_of_event(event: &Event) -> Option<String> {
    match event {
        Event::Put { jid, .. }
        | Event::Popped { jid, .. }
        | Event::Retried { jid, .. }
        | Event::Completed { jid, .. }
        | Event::Advanced { jid, .. }
        | Event::Failed { jid, .. }
        | Event::LockLost { jid, .. }
        | Event::Canceled { jid, .. } => Some(jid.to_string()),
        _ => None,
    }
}

/// Retries are counted across both kinds of workers.
#[test]
fn a_qless_worker_retries_a_job_that_our_worker_returned() {
    let redis_and_client = SharedRedis::new();
    let mut events = redis_and_client.run(redis_and_client.client.events());
    let put = redis_and_client.client.put("errands", "jobs.Persist", "{}").jid("persist").retries(2);
    redis_and_client.run(put.into_future());
    let job = redis_and_client.run(redis_and_client.client.pop("errands", "ours")).expect("there is a job");
    redis_and_client.run(redis_and_client.client.heartbeat(&job));
    assert_eq!(redis_and_client.run(redis_and_client.client.retry(&job, Duration::ZERO)), 1);

    let mut worker = redis_and_client.worker(&["errands"]);
    redis_and_client.next_event(&mut events, |event| matches!(event, Event::Completed { .. }).then_some(()));
    worker.end_input();
    assert_eq!(worker.exit_code(), Some(0));

    let printed = redis_and_client.look("errands", &["persist"]);
    let history = &seen(&printed, "persist")["history"];
    let popped = |worker: &str| json!({ "what": "popped", "worker": worker });
    let put = json!({ "what": "put", "q": "errands" });
    assert_eq!(*history, json!([put, popped("ours"), popped("peer"), popped("peer"), { "what": "done" }]));
    let expected = json!({ "failed": 0, "failures": 0, "retries": 0, "runs": 1, "waits": 3 });
    redis_and_client.assert_statistics("errands", &printed, &expected);
    assert_lost(&redis_and_client, &job);
}

/// Makes locks expire at once, without a grace period.
fn let_locks_expire(redis_and_client: &SharedRedis, queue: &str) {
    for (option, value) in [(format!("{queue}-heartbeat"), "-60"), ("grace-period".to_owned(), "0")] {
        redis_and_client
            .run(redis_and_client.client.run(SetConfig { any: true, ..SetConfig::new(option, value) }));
    }
}

/// A worker that lost its lock cannot change the job.
#[track_caller]
fn assert_lost(redis_and_client: &SharedRedis, job: &Popped) {
    let holder = || Holder::Token(job.lock.token);
    let group = Group::new("g").expect("it is a name");
    let client = &redis_and_client.client;
    let refusals = redis_and_client.runtime.block_on(async {
        [
            client.heartbeat(job).await.map(drop),
            client.complete(job).await.map(drop),
            client.retry(job, Duration::ZERO).await.map(drop),
            client.run(Fail::new(job.jid.clone(), holder(), group, "late")).await,
        ]
    });
    for refusal in refusals {
        assert!(matches!(refusal, Err(Error::Refused(Refusal::LockLost { .. }))), "{refusal:?}");
    }
}

#[test]
fn a_qless_worker_loses_its_lock_to_ours() {
    let redis_and_client = SharedRedis::new();
    let_locks_expire(&redis_and_client, "linger");
    let mut events = redis_and_client.run(redis_and_client.client.events());
    redis_and_client.run(
        redis_and_client.client.put("linger", "jobs.Linger", "{}").jid("linger").retries(1).into_future(),
    );
    let mut worker = redis_and_client.worker(&["linger"]);
    // The worker reports its start before it has subscribed.
    redis_and_client.next_event(&mut events, |event| matches!(event, Event::Track { .. }).then_some(()));
    redis_and_client.await_listener("peer");

    let job =
        redis_and_client.run(redis_and_client.client.pop("linger", "ours")).expect("its lock has expired");
    assert_eq!((&job.jid, job.remaining), (&jid("linger"), 0));
    assert_eq!(worker.line().as_deref(), Some("lost linger"));
    assert_eq!(worker.exit_code(), Some(3));
    let lost = redis_and_client.next_event(&mut events, |event| match event {
        Event::LockLost { worker, .. } => Some(worker.clone()),
        _ => None,
    });
    assert_eq!(lost.as_str(), "peer");

    // The attempt of the other worker was the first of two.
    redis_and_client.run(redis_and_client.client.heartbeat(&job));
    assert_eq!(redis_and_client.run(redis_and_client.client.retry(&job, Duration::ZERO)), -1);
    let printed = redis_and_client.look("linger", &["linger"]);
    let shown = seen(&printed, "linger");
    assert_eq!((&shown["state"], &shown["group"]), (&json!("failed"), &json!("failed-retries-linger")));
    let history = json!([
        { "what": "put", "q": "linger" },
        { "what": "popped", "worker": "peer" },
        { "what": "timed-out" },
        { "what": "popped", "worker": "ours" },
        { "what": "failed", "group": "failed-retries-linger" },
    ]);
    assert_eq!(shown["history"], history);
    assert_eq!(seen(&printed, "groups"), json!({ "failed-retries-linger": 1 }));
    let expected = json!({ "failed": 1, "failures": 1, "retries": 1, "runs": 0, "waits": 2 });
    redis_and_client.assert_statistics("linger", &printed, &expected);
}

#[test]
fn our_worker_loses_its_lock_to_a_qless_worker() {
    let redis_and_client = SharedRedis::new();
    let_locks_expire(&redis_and_client, "errands");
    let mut events = redis_and_client.run(redis_and_client.client.events());
    let put =
        redis_and_client.client.put("errands", "jobs.Greet", r#"{"name":"Ada"}"#).jid("greet").retries(1);
    redis_and_client.run(put.into_future());
    let job = redis_and_client.run(redis_and_client.client.pop("errands", "ours")).expect("there is a job");
    // Until another worker pops, it may continue.
    redis_and_client.run(redis_and_client.client.heartbeat(&job));

    let mut worker = redis_and_client.worker(&["errands"]);
    let lost = redis_and_client.next_event(&mut events, |event| match event {
        Event::LockLost { worker, .. } => Some(worker.clone()),
        _ => None,
    });
    assert_eq!(lost.as_str(), "ours");
    redis_and_client.next_event(&mut events, |event| matches!(event, Event::Completed { .. }).then_some(()));
    worker.end_input();
    assert_eq!(worker.exit_code(), Some(0));

    assert_lost(&redis_and_client, &job);
    let done = redis_and_client.run(redis_and_client.client.get(&job.jid)).expect("it is kept");
    assert_eq!(done.state.name(), StateName::Complete);
    let printed = redis_and_client.look("errands", &["greet"]);
    let shown = seen(&printed, "greet");
    assert_eq!(shown["data"], json!({ "name": "Ada", "greeting": "Hello, Ada" }));
    let history = json!([
        { "what": "put", "q": "errands" },
        { "what": "popped", "worker": "ours" },
        { "what": "timed-out" },
        { "what": "popped", "worker": "peer" },
        { "what": "done" },
    ]);
    assert_eq!(shown["history"], history);
    let expected = json!({ "failed": 0, "failures": 0, "retries": 1, "runs": 1, "waits": 2 });
    redis_and_client.assert_statistics("errands", &printed, &expected);
}
