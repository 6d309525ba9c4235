//! Snapshots of version 1 are read for ever, and what cannot be read is refused.
//!
//! Those in the fixture show a queue `mail` in which `done` was completed with the result `42`, `running` has
//! got somewhere, `waiting`, `plain` and `heard` wait, a worker has announced capabilities and there is a
//! subscriber. The second also has allocated ids, `waiting` carries `sum` beside its payload, and the worker
//! of `running` has said 5 of 4.

use geartrain_core::engine::{CodecError, Effects, Engine, Limits};
use geartrain_core::{
    AllocateIds, Cancel, Canceled, Count, DependencyPolicy, Existing, Fail, Failures, Get, Group, Holder,
    Jid, JobState, Klass, Operation, Payload, Pop, PriorityCounts, PriorityCountsReply, Put, PutOptions,
    QueueName, Retry, Tick, Timestamp, WorkerName,
};

const FIXTURE: &str = include_str!("fixtures/snapshots-v1.hex");

/// A snapshot: its head, and its jobs.
type EncodedSnapshot = (Vec<u8>, Vec<u8>);

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.chars().map(|digit| digit.to_digit(16).unwrap() as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

fn lines() -> [Vec<u8>; 6] {
    let lines: Vec<Vec<u8>> = FIXTURE.lines().filter(|line| !line.starts_with('#')).map(unhex).collect();
    lines.try_into().unwrap()
}

fn snapshots() -> [EncodedSnapshot; 2] {
    let [head, jobs, later_head, later_jobs, ..] = lines();
    [(head, jobs), (later_head, later_jobs)]
}

/// The third: it also has an attempt that ended, and a tombstone.
fn with_ends() -> EncodedSnapshot {
    let [.., head, jobs] = lines();
    (head, jobs)
}

fn written(engine: &mut Engine) -> EncodedSnapshot {
    let (mut head, mut jobs) = (Vec::new(), Vec::new());
    engine.begin_snapshot(&mut head);
    while !engine.continue_snapshot(10, &mut jobs) {}
    (head, jobs)
}

fn restored((head, jobs): &EncodedSnapshot) -> Result<Engine, CodecError> {
    let mut restoring = Engine::restore(Limits::default(), head)?;
    restoring.add(jobs)?;
    Ok(restoring.finish())
}

fn ask<O: Operation>(engine: &mut Engine, operation: O) -> O::Reply {
    let reply = engine.execute(Timestamp::from(20), operation.into(), &mut Effects::default());
    O::answer(reply.unwrap()).unwrap()
}

/// What a job carries beside its payload, and how far it has got.
fn beyond(engine: &mut Engine, name: &str) -> (Option<Payload>, Option<(u64, u64)>) {
    let job = ask(engine, Get { jid: Jid::new(name).unwrap() }).unwrap();
    let details = job.details.unwrap();
    let portion = details.progress.map(|progress| progress.portion);
    (details.metadata, portion.map(|portion| (portion.part(), portion.whole())))
}

fn allot(engine: &mut Engine, counter: &str) -> u64 {
    ask(engine, AllocateIds { counter: counter.into(), count: Count::ONE })
}

#[test]
fn what_was_written_by_version_1_is_read_for_ever_and_written_just_so() {
    for snapshot in snapshots() {
        let mut engine = restored(&snapshot).unwrap();
        engine.check().unwrap();
        assert_eq!(written(&mut engine), snapshot);
        let queue = QueueName::new("mail").unwrap();
        let counts = ask(&mut engine, PriorityCounts { queue });
        assert_eq!(counts, PriorityCountsReply { above: 0, at: 3, below: 0 });
    }
}

#[test]
fn counters_and_what_is_carried_aside_are_there_if_they_were() {
    let [before, after] = snapshots();
    let engine = &mut restored(&before).unwrap();
    assert_eq!((allot(engine, "handles"), allot(engine, "fronts")), (1, 1));
    assert_eq!(beyond(engine, "waiting"), (None, None));
    assert_eq!(beyond(engine, "running"), (None, Some((1, 4))));
    let engine = &mut restored(&after).unwrap();
    assert_eq!((allot(engine, "handles"), allot(engine, "fronts")), (1_001, 2));
    assert_eq!(beyond(engine, "waiting"), (Some("sum".into()), None));
    assert_eq!(beyond(engine, "running"), (None, Some((5, 4))));
}

#[test]
fn ends_of_attempts_and_tombstones_are_there_if_they_were() {
    let [_, before] = snapshots();
    let engine = &mut restored(&before).unwrap();
    let jid = |name: &str| Jid::new(name).unwrap();
    let running = ask(engine, Get { jid: jid("running") }).unwrap();
    assert_eq!((running.attempts, ask(engine, Canceled { jid: jid("plain") })), (vec![], None));
    let JobState::Running { lock } = running.state else { panic!("it is running") };
    let (group, message) = (Some(Group::new("smtp").unwrap()), Some("it said 451".to_owned()));
    let retry = Retry { group, message, ..Retry::new(jid("running"), Holder::Token(lock.token)) };
    ask(engine, retry);
    let cancel = Cancel { because: Some("test data".into()), ..Cancel::new(vec![jid("plain")]) };
    let mut effects = Effects { by: Some("ana".into()), ..Effects::default() };
    engine.execute(Timestamp::from(20), cancel.into(), &mut effects).unwrap();
    assert_eq!(written(engine), with_ends());

    let engine = &mut restored(&with_ends()).unwrap();
    engine.check().unwrap();
    assert_eq!(written(engine), with_ends());
    let attempts = ask(engine, Get { jid: jid("running") }).unwrap().attempts;
    assert_eq!((attempts.len(), attempts[0].message.as_deref()), (1, Some("it said 451")));
    let tombstone = ask(engine, Canceled { jid: jid("plain") }).unwrap();
    assert_eq!((tombstone.by.as_deref(), tombstone.because.as_deref()), (Some("ana"), Some("test data")));
}

#[test]
fn damaged_counters_are_refused() {
    let [(older, _), (head, jobs)] = snapshots();
    // Without any of its counters it is the head of another snapshot, and a good one.
    for length in older.len() + 1..head.len() {
        assert!(restored(&(head[..length].to_vec(), jobs.clone())).is_err(), "{length} bytes");
    }
    for (counters, what) in
        [(&[1, 0, 1][..], "counter"), (&[1, 1, b'c', 1, 0], "section"), (&[0, 9, 0], "a section")]
    {
        let error = restored(&([&older[..], counters].concat(), jobs.clone())).unwrap_err();
        assert_eq!(error.what, what);
    }
}

#[test]
fn what_is_carried_aside_belongs_to_what_goes_beyond_qless() {
    let [(_, _), (head, jobs)] = snapshots();
    // The flags of `waiting`, whose jid has seven bytes: those of what goes beyond Qless and of what is
    // carried aside.
    let place = jobs.windows(8).position(|window| window == b"\x07waiting").unwrap() + 9;
    assert_eq!(jobs[place..place + 3], [0x80, 0x80, 0x18]);
    let mut damaged = jobs.clone();
    damaged[place + 2] = 0x10;
    let error = restored(&(head.clone(), damaged)).unwrap_err();
    assert_eq!(error.what, "metadata, policy or trace without an extension");
    // The first flag that has no meaning yet, bit 22.
    let mut damaged = jobs;
    damaged.splice(place + 2..place + 3, [0x98, 0x02]);
    assert_eq!(restored(&(head, damaged)).unwrap_err().what, "flags");
}

/// Policies and what they are about to do survive a restart: dependents that one command leaves for the next,
/// and the dependencies of a job that failed because of another.
#[test]
fn dependency_policies_are_there_after_a_restart() {
    const DEPENDENTS: usize = 250;
    let jid = |name: String| Jid::new(name).unwrap();
    let put = |name: String, on: &str| {
        let options = PutOptions { on_dependency_failure: DependencyPolicy::Fail, ..PutOptions::default() };
        let (queue, klass) = (QueueName::new("mail").unwrap(), Klass::new("k").unwrap());
        let (depends, options) = (vec![jid(on.into())], Some(Box::new(options)));
        Put { depends, options, ..Put::new(queue, jid(name), klass, "{}") }
    };
    let engine = &mut Engine::new(Limits::default());
    ask(engine, put("cause".into(), "none"));
    let pop = Pop::new(QueueName::new("mail").unwrap(), WorkerName::new("w").unwrap());
    let holder = ask(engine, pop).jobs[0].holder();
    for number in 0..DEPENDENTS {
        ask(engine, put(format!("x{number}"), "cause"));
    }
    ask(engine, Fail::new(jid("cause".into()), holder, Group::new("g").unwrap(), "oops"));
    let upstream = Group::new("upstream-mail").unwrap();
    let failed = |engine: &mut Engine| ask(engine, Failures).get(&upstream).copied().unwrap_or_default();
    assert_eq!(failed(engine), 100);
    let (mut head, mut jobs) = (Vec::new(), Vec::new());
    engine.begin_snapshot(&mut head);
    while !engine.continue_snapshot(10, &mut jobs) {}
    let engine = &mut restored(&(head, jobs)).unwrap();
    engine.check().unwrap();
    assert_eq!(failed(engine), 100);
    assert_eq!(engine.next_tick(Timestamp::from(20)), Some(Timestamp::from(20)));
    assert_eq!(ask(engine, Tick { count: Count::MAX }).done, 150);
    assert_eq!(failed(engine), DEPENDENTS as u64);
    let requeue = |name: &str| Put { existing: Existing::Require, options: None, ..put(name.into(), "none") };
    ask(engine, requeue("cause"));
    ask(engine, Put { depends: Vec::new(), ..requeue("x0") });
    let job = ask(engine, Get { jid: jid("x0".into()) }).unwrap();
    assert_eq!(job.dependencies(), [jid("cause".into())]);
    engine.check().unwrap();
}
