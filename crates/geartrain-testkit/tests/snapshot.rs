//! Snapshots of version 1 are read for ever, and what cannot be read is refused.
//!
//! Those in the fixture show a queue `mail` in which `done` was completed with the result `42`, `running` has
//! got somewhere, `waiting`, `plain` and `heard` wait, a worker has announced capabilities and there is a
//! subscriber. The second also has allocated ids, `waiting` carries `sum` beside its payload, and the worker
//! of `running` has said 5 of 4.

use geartrain_core::engine::{CodecError, Effects, Engine, Limits};
use geartrain_core::{
    AllocateIds, Count, Get, Jid, Operation, Payload, PriorityCounts, PriorityCountsReply, QueueName,
    Timestamp,
};

const FIXTURE: &str = include_str!("fixtures/snapshots-v1.hex");

/// A snapshot: its head, and its jobs.
type EncodedSnapshot = (Vec<u8>, Vec<u8>);

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.chars().map(|digit| digit.to_digit(16).unwrap() as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

fn snapshots() -> [EncodedSnapshot; 2] {
    let lines: Vec<Vec<u8>> = FIXTURE.lines().filter(|line| !line.starts_with('#')).map(unhex).collect();
    let [head, jobs, later_head, later_jobs] = lines.try_into().unwrap();
    [(head, jobs), (later_head, later_jobs)]
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
        let (mut head, mut jobs) = (Vec::new(), Vec::new());
        engine.begin_snapshot(&mut head);
        while !engine.continue_snapshot(10, &mut jobs) {}
        assert_eq!((head, jobs), snapshot);
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
fn damaged_counters_are_refused() {
    let [(older, _), (head, jobs)] = snapshots();
    // Without any of its counters it is the head of another snapshot, and a good one.
    for length in older.len() + 1..head.len() {
        assert!(restored(&(head[..length].to_vec(), jobs.clone())).is_err(), "{length} bytes");
    }
    for (counters, what) in
        [(&[1, 0, 1][..], "counter"), (&[1, 1, b'c', 1, 0], "the end of a snapshot's head")]
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
    assert_eq!(error.what, "metadata without an extension");
    let mut damaged = jobs;
    damaged[place + 2] = 0x38;
    assert_eq!(restored(&(head, damaged)).unwrap_err().what, "flags");
}
