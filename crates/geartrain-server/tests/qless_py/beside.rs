//! A worker of ours beside workers of Qless, all directly on one Redis: no server is needed for that.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use geartrain::{
    Client, Complete, CompleteReply, Count, Error, Event, Fail, FailedBy, Group, Holder, Jid, Payload, Pop,
    PopOrder, Popped, QueueName, Refusal, SetConfig, StateName, Stats, Subscription, Timestamp, WorkerName,
};
use geartrain_testkit::peers::RedisServer;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::{Program, assert_same_lines};

/// How long something may take that happens soon: the tests do not depend on it.
const LONG: Duration = Duration::from_secs(60);

/// All errands, with their classes; as in errands.py.
const ERRANDS: [(&str, &str); 6] = [
    ("greet", "jobs.Greet"),
    ("relay", "jobs.Relay"),
    ("persist", "jobs.Persist"),
    ("refuse", "jobs.Refuse"),
    ("stumble", "jobs.Stumble"),
    ("unknown", "nowhere.Nobody"),
];

const EXPECTED: &str = include_str!("../../../../peers/qless-py/errands.expected");

/// A Redis, and a client of ours that uses it directly.
struct Place {
    // Dropped before the Redis that it talks to.
    client: Client,
    redis: RedisServer,
    runtime: Runtime,
}

impl Place {
    fn new() -> Place {
        let redis = RedisServer::start(&[]);
        let runtime = Runtime::new().expect("threads can be started");
        let client = runtime.block_on(geartrain::connect(&redis.url())).expect("a Redis is there");
        Place { client, redis, runtime }
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

    /// What Qless's own client sees of jobs and their queue.
    fn look(&self, queue: &str, jids: &[&str]) -> String {
        let arguments = [&["--queue", queue], jids].concat();
        Program::start("look.py", self.redis.port(), &arguments).output()
    }

    /// The queue's figures as our own client sees them, as the programs print theirs.
    fn statistics(&self, queue: &str) -> Value {
        let now =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("it is after 1970").as_secs_f64();
        let (hour, day) = (3_600.0, 86_400.0);
        // It may have been midnight since the first was put.
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

    /// Both see the same figures, and these.
    #[track_caller]
    fn assert_statistics(&self, queue: &str, printed: &str, expected: &Value) {
        assert_eq!(&seen(printed, "statistics"), expected, "as Qless sees it");
        assert_eq!(&self.statistics(queue), expected, "as we see it");
    }

    /// The next event for which this gives something.
    #[track_caller]
    fn hear<T>(&self, events: &mut Box<dyn Subscription>, wanted: impl Fn(&Event) -> Option<T>) -> T {
        let heard = async {
            loop {
                let published = events.next().await.expect("events go on");
                if let Some(found) = wanted(&published.event) {
                    return found;
                }
            }
        };
        self.runtime.block_on(async { tokio::time::timeout(LONG, heard).await }).expect("it is heard of soon")
    }

    /// Waits until somebody listens to what a worker is told.
    fn await_listener(&self, worker: &str) {
        let mut connection = redis::Client::open(self.redis.url())
            .and_then(|client| client.get_connection())
            .expect("it answers");
        let channel = format!("ql:w:{worker}");
        let begun = Instant::now();
        loop {
            let counted: (String, u64) =
                redis::cmd("PUBSUB").arg("NUMSUB").arg(&channel).query(&mut connection).expect("it counts");
            if counted.1 > 0 {
                return;
            }
            assert!(begun.elapsed() < LONG, "nobody listens on {channel}");
            std::thread::yield_now();
        }
    }
}

/// What was printed under a name.
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

/// A worker of ours that does what those in jobs.py do, until so many jobs have ended with it.
async fn work(client: Client, queues: Vec<&str>, mut endings: usize) -> Result<(), Error> {
    let worker = WorkerName::new("peer")?;
    let mut pop = Pop {
        queues: queues.iter().map(|queue| queue_name(queue)).collect(),
        count: Count::ONE,
        order: PopOrder::RoundRobin { turn: 0 },
        ..Pop::new(queue_name(queues[0]), worker)
    };
    while endings > 0 {
        let reply = client.pop_any(pop.clone(), LONG).await?;
        pop.order = PopOrder::RoundRobin { turn: reply.turn };
        let job = reply.jobs.into_iter().next().expect("there is a job soon");
        client.heartbeat(&job).await?;
        if run_errand(&client, &job).await? {
            endings -= 1;
        }
    }
    Ok(())
}

/// Whether the job has ended with this.
async fn run_errand(client: &Client, job: &Popped) -> Result<bool, Error> {
    let mut data: Value = serde_json::from_slice(job.payload.bytes()).expect("Qless keeps JSON");
    let name = data["name"].as_str().expect("it is for somebody").to_owned();
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

/// What Qless's client puts, a worker of ours does, with the same to be seen of it as if Qless's own had done it.
#[test]
fn our_worker_does_what_a_qless_client_puts() {
    let place = Place::new();
    let working = place.runtime.spawn(work(place.client.clone(), vec!["errands", "goal"], 7));
    let printed = Program::start("errands.py", place.redis.port(), &["--queue", "errands"]).output();
    assert_same_lines(&printed, EXPECTED);
    place.runtime.block_on(working).expect("it does not panic").expect("nothing is refused");
    place.assert_statistics("errands", &printed, &statistics_of_errands());
}

/// Both kinds of workers, each at one of two queues, so that one job goes through the hands of both.
#[test]
fn a_job_goes_through_the_hands_of_both() {
    for (ours, theirs, endings) in [("errands", "goal", 6), ("goal", "errands", 1)] {
        let place = Place::new();
        let working = place.runtime.spawn(work(place.client.clone(), vec![ours], endings));
        let mut worker = place.worker(&[theirs]);
        let printed = Program::start("errands.py", place.redis.port(), &["--queue", "errands"]).output();
        assert_same_lines(&printed, EXPECTED);
        place.runtime.block_on(working).expect("it does not panic").expect("nothing is refused");
        worker.end_input();
        assert_eq!(worker.exit_code(), Some(0));
        place.assert_statistics("errands", &printed, &statistics_of_errands());
    }
}

/// What our client puts, a worker of Qless does, and our client hears of all that Qless tells.
#[test]
fn a_qless_worker_does_what_our_client_puts_and_is_heard_of() {
    let place = Place::new();
    let mut events = place.run(place.client.events());
    for (name, klass) in ERRANDS {
        let put = place.client.put("errands", klass, r#"{"name":"Ada","next":"goal"}"#).jid(name).retries(2);
        place.run(put.into_future());
    }
    let dependent = place.client.put("errands", "jobs.Greet", r#"{"name":"Grace"}"#).jid("dependent");
    place.run(dependent.after(&jid("greet")).after(&jid("relay")).into_future());

    let mut worker = place.worker(&["errands", "goal"]);
    let mut heard = BTreeMap::<String, Vec<Event>>::new();
    let mut ended = 0;
    while ended < 7 {
        let (jid, event) = place.hear(&mut events, |event| Some((told_of(event)?, event.clone())));
        ended += usize::from(matches!(event, Event::Completed { .. } | Event::Failed { .. }));
        heard.entry(jid).or_default().push(event);
    }
    worker.end_input();
    assert_eq!(worker.exit_code(), Some(0));

    let put = |name: &str| Event::Put { jid: jid(name), queue: queue_name("errands") };
    let completed = |name: &str, queue: &str| Event::Completed { jid: jid(name), queue: queue_name(queue) };
    for name in ["greet", "persist", "dependent"] {
        assert_eq!(heard[name], [put(name), completed(name, "errands")]);
    }
    let advanced =
        Event::Advanced { jid: jid("relay"), queue: queue_name("errands"), to: queue_name("goal") };
    assert_eq!(heard["relay"], [put("relay"), advanced, completed("relay", "goal")]);
    for (name, group, message) in [
        ("refuse", "refused", "Not for Ada"),
        ("stumble", "errands-ValueError", "ValueError: Ada is no number"),
        ("unknown", "errands-ModuleNotFoundError", "Failed to import nowhere.Nobody"),
    ] {
        let Event::Failed { queue, worker, group: heard_group, message: said, by, .. } = &heard[name][1]
        else {
            panic!("{name}: {heard:?}");
        };
        assert_eq!((queue.as_str(), heard_group.as_str(), *by), ("errands", group, FailedBy::Worker));
        assert_eq!(worker.as_ref().map(WorkerName::as_str), Some("peer"));
        // Of a stack trace the end.
        assert!(said.trim_end().ends_with(message), "{said}");
        assert_eq!((heard[name].len(), &heard[name][0]), (2, &put(name)));
    }

    let jids: Vec<&str> = ERRANDS.iter().map(|(name, _)| *name).chain(["dependent"]).collect();
    let printed = place.look("errands", &jids);
    assert_same_lines(&printed, EXPECTED);
    place.assert_statistics("errands", &printed, &statistics_of_errands());
}

/// The job that an event is about, if it is one of those that a worker of Qless may cause.
fn told_of(event: &Event) -> Option<String> {
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

/// Attempts count, whoever made them.
#[test]
fn what_we_give_back_a_qless_worker_tries_again() {
    let place = Place::new();
    let mut events = place.run(place.client.events());
    let put = place.client.put("errands", "jobs.Persist", "{}").jid("persist").retries(2);
    place.run(put.into_future());
    let job = place.run(place.client.pop("errands", "ours")).expect("there is a job");
    place.run(place.client.heartbeat(&job));
    assert_eq!(place.run(place.client.retry(&job, Duration::ZERO)), 1);

    let mut worker = place.worker(&["errands"]);
    place.hear(&mut events, |event| matches!(event, Event::Completed { .. }).then_some(()));
    worker.end_input();
    assert_eq!(worker.exit_code(), Some(0));

    let printed = place.look("errands", &["persist"]);
    let history = &seen(&printed, "persist")["history"];
    let popped = |worker: &str| json!({ "what": "popped", "worker": worker });
    let put = json!({ "what": "put", "q": "errands" });
    assert_eq!(*history, json!([put, popped("ours"), popped("peer"), popped("peer"), { "what": "done" }]));
    let expected = json!({ "failed": 0, "failures": 0, "retries": 0, "runs": 1, "waits": 3 });
    place.assert_statistics("errands", &printed, &expected);
    assert_lost(&place, &job);
}

/// Makes locks expire as soon as they are given, and lets the next who asks have the job.
fn let_locks_expire(place: &Place, queue: &str) {
    for (option, value) in [(format!("{queue}-heartbeat"), "-60"), ("grace-period".to_owned(), "0")] {
        place.run(place.client.run(SetConfig { option, value: value.to_owned() }));
    }
}

/// Whoever lost a job can do nothing to it.
#[track_caller]
fn assert_lost(place: &Place, job: &Popped) {
    let holder = || Holder::Token(job.lock.token);
    let group = Group::new("g").expect("it is a name");
    let client = &place.client;
    let refusals = place.runtime.block_on(async {
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
    let place = Place::new();
    let_locks_expire(&place, "linger");
    let mut events = place.run(place.client.events());
    place.run(place.client.put("linger", "jobs.Linger", "{}").jid("linger").retries(1).into_future());
    let mut worker = place.worker(&["linger"]);
    // It says that it has begun, and begins to listen in its own time.
    place.hear(&mut events, |event| matches!(event, Event::Track { .. }).then_some(()));
    place.await_listener("peer");

    let job = place.run(place.client.pop("linger", "ours")).expect("its lock has expired");
    assert_eq!((&job.jid, job.remaining), (&jid("linger"), 0));
    assert_eq!(worker.line().as_deref(), Some("lost linger"));
    assert_eq!(worker.exit_code(), Some(3));
    let lost = place.hear(&mut events, |event| match event {
        Event::LockLost { worker, .. } => Some(worker.clone()),
        _ => None,
    });
    assert_eq!(lost.as_str(), "peer");

    // The attempt of the other worker was the first of two.
    place.run(place.client.heartbeat(&job));
    assert_eq!(place.run(place.client.retry(&job, Duration::ZERO)), -1);
    let printed = place.look("linger", &["linger"]);
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
    place.assert_statistics("linger", &printed, &expected);
}

#[test]
fn our_worker_loses_its_lock_to_one_of_qless() {
    let place = Place::new();
    let_locks_expire(&place, "errands");
    let mut events = place.run(place.client.events());
    let put = place.client.put("errands", "jobs.Greet", r#"{"name":"Ada"}"#).jid("greet").retries(1);
    place.run(put.into_future());
    let job = place.run(place.client.pop("errands", "ours")).expect("there is a job");
    // As long as nobody else has asked, it goes on.
    place.run(place.client.heartbeat(&job));

    let mut worker = place.worker(&["errands"]);
    let lost = place.hear(&mut events, |event| match event {
        Event::LockLost { worker, .. } => Some(worker.clone()),
        _ => None,
    });
    assert_eq!(lost.as_str(), "ours");
    place.hear(&mut events, |event| matches!(event, Event::Completed { .. }).then_some(()));
    worker.end_input();
    assert_eq!(worker.exit_code(), Some(0));

    assert_lost(&place, &job);
    let done = place.run(place.client.get(&job.jid)).expect("it is kept");
    assert_eq!(done.state.name(), StateName::Complete);
    let printed = place.look("errands", &["greet"]);
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
    place.assert_statistics("errands", &printed, &expected);
}
