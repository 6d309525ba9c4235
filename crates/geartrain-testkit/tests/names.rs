//! Names are freed with what they were for: after any number of them an engine is as small as before.

use geartrain_core::engine::{Delta, Effects, Engine, Limits};
use geartrain_core::*;
use geartrain_testkit::scaled;

const DAY: f64 = 86_400.0;

/// An engine, and one that repeats its changes as a store does that is opened again.
struct Both {
    engine: Engine,
    replayed: Option<Engine>,
    effects: Effects,
}

impl Both {
    fn new() -> Both {
        let new = || Engine::new(Limits::default());
        Both { engine: new(), replayed: Some(new()), effects: Effects::default() }
    }

    /// Without the one that repeats, which takes as much memory again.
    fn alone() -> Both {
        Both { replayed: None, ..Both::new() }
    }

    fn ask<O: Operation>(&mut self, now: f64, operation: O) -> O::Reply {
        let answer = self.engine.execute(at(now), operation.into(), &mut self.effects);
        self.replay();
        O::answer(answer.unwrap()).unwrap()
    }

    /// Removes all that can be removed at a moment.
    fn reclaim(&mut self, now: f64) {
        while self.engine.reclaim(at(now), 1_000, &mut self.effects) {}
        self.replay();
    }

    fn replay(&mut self) {
        let mut bytes = Vec::new();
        let deltas = self.effects.deltas.drain(..);
        let Some(replayed) = &mut self.replayed else { return };
        deltas.for_each(|delta| delta.encode(&mut bytes));
        let mut left = &bytes[..];
        while !left.is_empty() {
            replayed.apply(&Delta::decode(&mut left).unwrap());
        }
    }

    /// The sizes that must come back, and the engine that comes back with them.
    fn sizes(&mut self) -> (Sizes, Engine) {
        self.engine.check().unwrap();
        let (head, jobs) = snapshot(&mut self.engine);
        if let Some(replayed) = &mut self.replayed {
            replayed.check().unwrap();
            assert_eq!(snapshot(replayed), (head.clone(), jobs.clone()), "replayed, it is the same");
        }
        let mut restoring = Engine::restore(Limits::default(), &head).unwrap();
        restoring.add(&jobs).unwrap();
        let restored = restoring.finish();
        restored.check().unwrap();
        let of = |engine: &Engine| (engine.memory_report().names, engine.memory_report().name_bytes);
        let ((names, bytes), (_, restored_bytes)) = (of(&self.engine), of(&restored));
        (Sizes { names, bytes, restored_bytes, checkpoint: (head.len() + jobs.len()) as u64 }, restored)
    }
}

#[derive(Debug)]
struct Sizes {
    names: u64,
    bytes: u64,
    restored_bytes: u64,
    checkpoint: u64,
}

fn snapshot(engine: &mut Engine) -> (Vec<u8>, Vec<u8>) {
    let (mut head, mut jobs) = (Vec::new(), Vec::new());
    engine.begin_snapshot(&mut head);
    while !engine.continue_snapshot(100, &mut jobs) {}
    (head, jobs)
}

fn at(seconds: f64) -> Timestamp {
    Timestamp::new(seconds).unwrap()
}

fn queue(name: &str) -> QueueName {
    QueueName::new(name).unwrap()
}

fn worker(name: &str) -> WorkerName {
    WorkerName::new(name).unwrap()
}

fn jid(name: &str) -> Jid {
    Jid::new(name).unwrap()
}

fn put(to: &str, name: &str, klass: &str) -> Put {
    Put::new(queue(to), jid(name), Klass::new(klass).unwrap(), "{}")
}

fn pop(both: &mut Both, now: f64, from: &str, by: &str) -> Popped {
    both.ask(now, Pop::new(queue(from), worker(by))).jobs.remove(0)
}

fn fail(both: &mut Both, now: f64, job: &Popped, group: &str) {
    let fail = Fail {
        jid: job.jid.clone(),
        holder: Holder::Token(job.lock.token),
        group: Group::new(group).unwrap(),
        message: "no".into(),
        payload: None,
        result: None,
    };
    both.ask(now, fail);
}

/// A queue, a klass, a worker and a group that are used for one job, which then goes.
fn use_once(both: &mut Both, now: f64, n: u32) {
    let (to, by, name) = (format!("queue-{n}"), format!("worker-{n}"), format!("job-{n}"));
    both.ask(now, put(&to, &name, &format!("klass-{n}")));
    let job = pop(both, now, &to, &by);
    fail(both, now, &job, &format!("group-{n}"));
    both.ask(now, Cancel::new(vec![job.jid]));
    both.ask(now, ForgetQueues { queues: vec![queue(&to)] });
}

/// What stays: queues, workers and jobs of all states.
fn lasting(both: &mut Both) {
    for n in 0..1_500 {
        let (to, by) = (format!("lasting-{}", n % 101), format!("lasting-{}", n % 307));
        both.ask(0.0, put(&to, &format!("stays-{n}"), &format!("klass of {}", n % 211)));
        if n % 2 == 0 {
            let job = pop(both, 0.0, &to, &by);
            if n % 4 == 0 {
                fail(both, 0.0, &job, "lasting");
            }
        }
    }
}

#[test]
fn a_million_names_of_each_kind_leave_nothing_behind() {
    let mut both = scaled(Both::new as fn() -> Both, Both::alone)();
    lasting(&mut both);
    both.reclaim(0.0);
    let (before, _) = both.sizes();
    let names = scaled(3_000, 1_000_000);
    for n in 0..names {
        let now = f64::from(n) / 100.0;
        use_once(&mut both, now, n);
        if n % 1_000 == 0 {
            both.reclaim(now);
        }
    }
    let then = both.engine.memory_report();
    assert!(then.names > before.names + 2 * u64::from(names), "{then:?}");
    // Tombstones and workers are kept for a day, statistics for 30 days and the one that they are of.
    both.ask(f64::from(names) / 100.0 + DAY, Tick { count: Count::MAX });
    let end = f64::from(names) / 100.0 + 32.0 * DAY;
    both.reclaim(end);
    let (after, mut restored) = both.sizes();
    println!("before {before:?}, {names} names later {then:?}, at the end {after:?}");
    for (what, before, after) in [
        ("memory", before.bytes, after.bytes),
        ("memory after a restart", before.restored_bytes, after.restored_bytes),
        ("checkpoint", before.checkpoint, after.checkpoint),
    ] {
        assert!(after * 100 <= before * 105, "{what} is {after} bytes instead of {before}");
    }
    // Those that hold a job are not forgotten, however old; a restart changes nothing of that.
    let mut effects = Effects::default();
    while restored.reclaim(at(end), 1_000, &mut effects) {}
    assert_eq!(effects.deltas, []);
    both.ask(end, put("mail", "new", "klass"));
    both.sizes();
}

#[test]
fn a_number_is_used_again_for_another_name() {
    let mut both = Both::new();
    both.ask(0.0, put("mail", "first", "older"));
    both.ask(0.0, put("mail", "second", "stays"));
    both.ask(0.0, Cancel::new(vec![jid("first")]));
    both.reclaim(0.0);
    // A snapshot that is under way shows the names of its own moment.
    let mut head = Vec::new();
    both.engine.begin_snapshot(&mut head);
    both.ask(1.0, put("mail", "third", "newer"));
    both.ask(1.0, Cancel::new(vec![jid("second")]));
    both.reclaim(1.0);
    both.ask(2.0, put("mail", "fourth", "newest"));
    let mut jobs = Vec::new();
    while !both.engine.continue_snapshot(1, &mut jobs) {}
    let mut restoring = Engine::restore(Limits::default(), &head).unwrap();
    restoring.add(&jobs).unwrap();
    let mut then = restoring.finish();
    then.check().unwrap();
    let klass_of = |engine: &mut Engine, name: &str| {
        let get = engine.execute(at(3.0), Get { jid: jid(name) }.into(), &mut Effects::default());
        match get.unwrap() {
            Reply::Get(job) => job.map(|job| job.klass.to_string()),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(klass_of(&mut then, "second").as_deref(), Some("stays"));
    assert_eq!(klass_of(&mut then, "third"), None);
    for engine in [Some(&mut both.engine), both.replayed.as_mut()].into_iter().flatten() {
        assert_eq!(klass_of(engine, "third").as_deref(), Some("newer"));
        assert_eq!(klass_of(engine, "fourth").as_deref(), Some("newest"));
    }
    both.sizes();
}

#[test]
fn a_worker_that_has_nothing_goes_off_the_list_after_its_age_and_one_that_has_a_job_does_not() {
    let mut both = Both::new();
    both.ask(0.0, SetConfig::new("heartbeat", "1000000"));
    both.ask(0.0, put("mail", "a", "k"));
    pop(&mut both, 0.0, "mail", "busy");
    for n in 0..100 {
        both.ask(f64::from(n), Pop::new(queue("mail"), worker(&format!("connection-{n}"))));
    }
    both.reclaim(DAY - 1.0);
    assert_eq!(both.ask(DAY - 1.0, Workers).len(), 101);
    both.reclaim(DAY + 49.5);
    assert_eq!(both.engine.memory_report().names, 2 + 1 + 50, "a queue, a klass and those workers");
    // A worker that is seen again stays.
    both.ask(DAY + 50.0, Pop::new(queue("mail"), worker("connection-99")));
    both.reclaim(DAY + 500.0);
    assert_eq!(both.engine.memory_report().names, 2 + 1 + 1);
    assert_eq!(both.engine.held_by(&worker("busy")), 1);
    both.sizes();
}

#[test]
fn a_queue_keeps_what_was_said_of_it_until_it_is_forgotten() {
    for (kept, change) in [
        (true, Command::from(Pause { queues: vec![queue("q")] })),
        (true, SetLimits { queue: queue("q"), limits: limits() }.into()),
        (false, SetConfig::new("q-heartbeat", "7").into()),
        (false, Resume { queues: vec![queue("q")] }.into()),
        (false, SetLimits { queue: queue("q"), limits: QueueLimits::default() }.into()),
    ] {
        let mut both = Both::new();
        both.engine.execute(at(0.0), change, &mut both.effects).unwrap();
        both.reclaim(100.0 * DAY);
        assert_eq!(both.engine.memory_report().names, u64::from(kept));
        // Options are kept by name, and are found again.
        both.ask(0.0, SetConfig::new("q-heartbeat", "7"));
        both.ask(0.0, ForgetQueues { queues: vec![queue("q")] });
        both.ask(0.0, Resume { queues: vec![queue("q")] });
        both.ask(0.0, SetLimits { queue: queue("q"), limits: QueueLimits::default() });
        both.reclaim(100.0 * DAY);
        assert_eq!(both.engine.memory_report().names, 0);
        both.ask(0.0, put("q", "a", "k"));
        assert_eq!(pop(&mut both, 0.0, "q", "w").lock.expires, at(7.0));
    }
}

fn limits() -> QueueLimits {
    QueueLimits { jobs_max: Some(1), ..QueueLimits::default() }
}
