//! That deltas come back as they were, and that damage is noticed.

use std::sync::Arc;

use geartrain_core::engine::{
    AdvanceDelta, Delta, EPOCH_MAX, Effects, Engine, FailDelta, FailureDelta, ITSELF, Kind, PeriodicRun,
    PutDelta, RecurDelta,
};
use geartrain_core::{
    Backoff, BadNameWhy, CompleteReply, Count, DependencyPolicy, EndReason, Event, Every, FUNCTION_BYTES_MAX,
    FailedBy, Flush, Group, Jid, JobEnding, JobResult, Klass, Milestone, Missed, OnEnd, OrphanPolicy,
    Overlap, Payload, Period, Periodic, PeriodicTemplate, Portion, Priority, Progressed, Put, PutOptions,
    QueueLimits, QueueName, Rate, Refusal, Reply, ResultWaiter, Seconds, SpillLocation, StoredResult, Tag,
    Timestamp, Traceparent, UniqueKey, WorkerName,
};
use geartrain_testkit::trace::{Tokens, generate, limits};

use geartrain_core::engine::CodecError;
use geartrain_core::engine::CodecErrorWhy::*;

const FIXTURE: &str = include_str!("fixtures/deltas-v1.hex");
const FORMAT: &str = include_str!("../../../docs/formats/deltas.md");

fn encoded(delta: &Delta) -> Vec<u8> {
    let mut bytes = Vec::new();
    delta.encode(&mut bytes);
    bytes
}

/// Decodes bytes that hold one delta and nothing else.
fn decoded(bytes: &[u8]) -> Result<Delta, CodecError> {
    let mut left = bytes;
    let delta = Delta::decode(&mut left)?;
    assert_eq!(left, [0; 0], "behind {delta:?}");
    Ok(delta)
}

fn comes_back(delta: &Delta) {
    let bytes = encoded(delta);
    let back = decoded(&bytes).unwrap();
    assert_eq!(&back, delta);
    // Doubles that are equal could still differ; their bytes cannot.
    assert_eq!(encoded(&back), bytes, "{delta:?}");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of hex digits, with anything between them.
fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|digit| digit.to_digit(16)).collect();
    assert!(digits.len().is_multiple_of(2), "half a byte in {text:?}");
    digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
}

fn at(seconds: f64) -> Timestamp {
    Timestamp::new(seconds).unwrap()
}

fn uuid() -> Jid {
    Jid::new("0198c0ffee00700080000000000000ff").unwrap()
}

fn traceparent() -> Traceparent {
    "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".parse().unwrap()
}

fn tags(names: &[&str]) -> Box<[Tag]> {
    names.iter().map(|name| Tag::new(name).unwrap()).collect()
}

fn failure() -> FailureDelta {
    FailureDelta { group: 3, message: "no such host".into(), when: at(1_800_000_000.0), worker: Some(300) }
}

/// A put with nothing that it can do without.
fn plain_put() -> PutDelta {
    PutDelta {
        row: None,
        jid: uuid(),
        now: at(1_800_000_000.25),
        queue: 0,
        klass: 1,
        payload: "{}".into(),
        priority: Priority::ZERO,
        retries: 5,
        due: None,
        tags: None,
        depends: None,
    }
}

fn full_put() -> PutDelta {
    PutDelta {
        row: Some(70_000),
        jid: Jid::new("nightly-7").unwrap(),
        priority: Priority::new(-2.5).unwrap(),
        due: Some(at(1_800_000_060.5)),
        tags: Some(tags(&["a", "é"])),
        depends: Some([1, 128, ITSELF].into()),
        ..plain_put()
    }
}

/// A recurring job as it is first made.
fn new_recur() -> RecurDelta {
    RecurDelta {
        template: None,
        jid: Jid::new("nightly").unwrap(),
        queue: 0,
        klass: 1,
        payload: "{}".into(),
        priority: Priority::ZERO,
        retries: 0,
        tags: tags(&["night"]),
        every: Every::Interval(Seconds::new(86_400.0).unwrap()),
        backlog: 0,
        next: at(1_800_000_000.0),
        arrives: true,
        registers: Some(at(1_799_999_999.75)),
    }
}

/// What is in the fixture, line by line: each kind of delta, and with and without what it may lack. Lines are
/// only ever added.
fn samples() -> Vec<Delta> {
    let (now, later, payload) = (at(1_800_000_000.25), at(1_800_000_060.25), Some(Payload::from("[1]")));
    let advance = AdvanceDelta {
        row: 200,
        now,
        queue: 2,
        due: Some(later),
        depends: [5, 6].into(),
        payload: payload.clone(),
        reply: CompleteReply::Depends,
    };
    let advance_with =
        |due, reply| AdvanceDelta { due, reply, depends: [].into(), payload: None, ..advance.clone() };
    let fail = FailDelta { row: 9, now, failure: failure(), by_worker: true, payload: payload.clone() };
    let silent = FailureDelta { message: "".into(), worker: None, ..failure() };
    [
        Delta::Name(Kind::Queue, "mail".into()),
        Delta::Name(Kind::Klass, "welcome".into()),
        Delta::Name(Kind::Worker, "host-7".into()),
        Delta::Name(Kind::Group, "failed-retries-mail".into()),
        Delta::Seen(300, now),
        Delta::Put(plain_put()),
        Delta::Put(full_put()),
        Delta::Spawn {
            template: 4,
            jid: Jid::new("nightly-12").unwrap(),
            count: 12,
            at: at(1_800_000_000.0),
            next: later,
            now,
        },
        Delta::Promote(200, now),
        Delta::Pop { row: 200, worker: 300, now, expires: later },
        Delta::Warn { row: 200, now, until: later },
        Delta::SpendRetry(200),
        Delta::Heartbeat { row: 200, expires: later, payload: None },
        Delta::Heartbeat { row: 200, expires: later, payload: payload.clone() },
        Delta::Complete { row: 200, now, payload: None },
        Delta::Complete { row: 200, now, payload },
        Delta::Advance(Box::new(advance_with(None, CompleteReply::Complete))),
        Delta::Advance(Box::new(advance_with(None, CompleteReply::Waiting))),
        Delta::Advance(Box::new(advance_with(Some(later), CompleteReply::Scheduled))),
        Delta::Advance(Box::new(advance)),
        Delta::Fail(Box::new(fail.clone())),
        Delta::Fail(Box::new(FailDelta { failure: silent, by_worker: false, payload: None, ..fail })),
        Delta::Retry { row: 200, now, due: None, failure: None },
        Delta::Retry { row: 200, now, due: Some(later), failure: Some(Box::new(failure())) },
        Delta::Timeout(200, now),
        Delta::Remove(200),
        Delta::Unfail(200, 2, now),
        Delta::Priority(200, Priority::from(-1)),
        Delta::Depend(200, [5, 6].into()),
        Delta::Undepend(200, [5].into(), now),
        Delta::Log { row: 200, now, message: "half-way".into(), data: None },
        Delta::Log { row: 200, now, message: "half-way".into(), data: Some("{\"done\":50}".into()) },
        Delta::Track(uuid(), now),
        Delta::Untrack(uuid()),
        Delta::Tag(200, Tag::new("urgent").unwrap(), now),
        Delta::Untag(200, Tag::new("urgent").unwrap()),
        Delta::Pause(2, true),
        Delta::Pause(2, false),
        Delta::ForgetQueue(2),
        Delta::ForgetWorker(300),
        Delta::AgeWorker(300),
        Delta::Config("heartbeat".into(), Some("60".into())),
        Delta::Config("heartbeat".into(), None),
        Delta::Recur(Box::new(new_recur())),
        Delta::Recur(Box::new(RecurDelta {
            template: Some(4),
            jid: uuid(),
            priority: Priority::from(7),
            tags: [].into(),
            every: Every::Interval(Seconds::new(0.001).unwrap()),
            backlog: 1000,
            arrives: false,
            registers: None,
            ..new_recur()
        })),
        Delta::Unrecur(4),
        Delta::Epoch(258),
    ]
    .into_iter()
    .chain(samples_beyond_qless())
    .collect()
}

/// A payload in a file of its own.
fn in_file() -> Payload {
    SpillLocation { file: 5 << 32 | SpillLocation::OWN_FILE, offset: 16, bytes: 1 << 20 }.into()
}

fn samples_beyond_qless() -> Vec<Delta> {
    let terms = PutOptions {
        unique: Some(UniqueKey::new([0, 0xff]).unwrap()),
        orphan_policy: OrphanPolicy::WhileAwaited,
        on_end: OnEnd::Forget,
        result_ttl: Some(Seconds::from(90_000)),
        expires: Some(at(1_800_000_000.5)),
        attempt_max: Some(Seconds::from(30)),
        backoff: Some(Backoff::exponential(Seconds::from(1), 2.0, Seconds::from(60), 0.25).unwrap()),
        crashes_max: Some(3),
        ..PutOptions::default()
    };
    let waiter = ResultWaiter { stream_id: u64::MAX, connection: 7, number: 300 };
    let progress = Progressed { portion: Portion::new(1, 4).unwrap(), seconds_left: Some(90) };
    let limits = QueueLimits {
        jobs_max: Some(1000),
        by_priority: vec![(Priority::from(-1), 10), (Priority::from(1), 200)],
        rate: Some(Rate::new(10, Seconds::from(60), 5).unwrap()),
    };
    let kept = |how, code, bytes: &'static str| {
        let outcome = JobResult { code, bytes: bytes.into() };
        Delta::ResultStored(Box::new(StoredResult {
            jid: uuid(),
            ending: how,
            result: outcome,
            ended: at(5.0),
            until: at(90_005.0),
        }))
    };
    let group = || Group::new("io").unwrap();
    let policy = |on_dependency_failure, metadata| PutOptions {
        metadata,
        on_dependency_failure,
        ..PutOptions::default()
    };
    let ended = |reason, group, message: Option<&str>| Delta::AttemptEnded {
        row: 9,
        now: at(37.5),
        reason,
        group,
        message: message.map(Into::into),
    };
    let mut samples = vec![
        Delta::PutOptions(9, Box::default()),
        Delta::PutOptions(9, Box::new(terms.clone())),
        Delta::Coalesced { row: 9, result_ttl: None, always: true },
        Delta::Coalesced { row: 9, result_ttl: Some(Seconds::from(60)), always: false },
        Delta::Attached(9, waiter),
        Delta::Detached(9, ResultWaiter { stream_id: 1, connection: 0, number: 0 }),
        Delta::Progressed(9, progress),
        Delta::Deadline(9, at(30.5)),
        Delta::AttemptTimedOut(9, at(31.0)),
        Delta::Crashed { row: 9, now: at(32.0), evidence: None },
        Delta::Crashed { row: 9, now: at(32.0), evidence: Some("signal 9".into()) },
        Delta::Release(9, at(33.0)),
        Delta::ToFront(300),
        Delta::CapabilityAdded { worker: 1, queue: 2, klass: None, attempt_max: None },
        Delta::CapabilityAdded { worker: 1, queue: 2, klass: Some(3), attempt_max: Some(Seconds::from(10)) },
        Delta::CapabilityRemoved { worker: 1, queue: 2, klass: Some(3) },
        Delta::CapabilitiesCleared(1),
        Delta::Limits(2, None),
        Delta::Limits(2, Some(Box::new(limits))),
        Delta::Polled(2, at(34.0)),
        kept(JobEnding::Completed, 0, "42"),
        kept(JobEnding::Failed { group: group(), message: "no such host".into() }, -1, ""),
        Delta::ResultDropped(uuid()),
        Delta::Listening(Some(at(35.0))),
        Delta::Listening(None),
    ];
    samples.extend(events().into_iter().map(|event| Delta::EventLogged { event: Box::new(event), at: None }));
    samples.extend([
        Delta::IdsAllocated("handles".into(), 1_000),
        Delta::PutOptions(9, Box::new(PutOptions { metadata: Some("sum".into()), ..PutOptions::default() })),
        Delta::PutOptions(9, Box::new(PutOptions { metadata: Some("".into()), ..terms })),
        Delta::Progressed(9, Progressed { portion: Portion::unchecked(0, 0), seconds_left: None }),
        Delta::Progressed(9, Progressed { portion: Portion::unchecked(5, 4), seconds_left: None }),
        Delta::ReuseNameId(Kind::Worker, 300, "host-8".into()),
        Delta::FreeNameId(Kind::Klass, 3),
        Delta::Put(PutDelta { payload: in_file(), ..plain_put() }),
        Delta::Complete { row: 9, now: at(36.0), payload: Some(in_file()) },
        Delta::TagCleared(Tag::new("urgent").unwrap()),
        Delta::QueueCleared(300),
        Delta::PutOptions(9, Box::new(policy(DependencyPolicy::Fail, None))),
        Delta::PutOptions(9, Box::new(policy(DependencyPolicy::Skip, Some("sum".into())))),
        Delta::PutOptions(9, Box::new(policy(DependencyPolicy::Run, Some("".into())))),
        Delta::RunWithout(9, [3, 300].into(), at(37.0)),
        Delta::EventLogged {
            event: Box::new(Event::Failed {
                jid: uuid(),
                queue: QueueName::new("mail").unwrap(),
                worker: None,
                group: Group::new("upstream-mail").unwrap(),
                message: "Job j1 failed (io), and this job depends on it".into(),
                by: FailedBy::Upstream,
            }),
            at: None,
        },
        ended(EndReason::Retried, Some(group()), Some("no such host")),
        ended(EndReason::LockExpired, None, None),
        ended(EndReason::Deadline, None, None),
        ended(EndReason::WorkerLost, None, Some("")),
        ended(EndReason::Released, None, Some("shutting down")),
        ended(EndReason::TakenAway, None, None),
        ended(EndReason::PutAgain, None, None),
        Delta::Canceled { row: 9, now: at(38.0), by: None, because: None },
        Delta::Canceled { row: 9, now: at(38.0), by: Some("ana".into()), because: Some("test data".into()) },
        Delta::TombstoneDropped(uuid()),
        Delta::Requeue(300, 4, at(37.5)),
        Delta::EventLogged { event: Box::new(Event::Track { jid: uuid() }), at: Some(at(37.0)) },
        Delta::RatesSampled(Some(at(38.0))),
        Delta::RatesSampled(None),
        Delta::Snooze(300, at(39.5)),
        Delta::Relock { row: 300, now: at(39.5), expires: at(40.0) },
        ended(EndReason::Resumed, None, None),
        Delta::PutOptions(
            9,
            Box::new(PutOptions { traceparent: Some(traceparent()), ..PutOptions::default() }),
        ),
        Delta::PutOptions(
            9,
            Box::new(PutOptions {
                traceparent: Some(traceparent()),
                ..policy(DependencyPolicy::Skip, Some("sum".into()))
            }),
        ),
        Delta::Periodic(Arc::new(periodic(Period::Cron("0 3 * * *".into())))),
        Delta::Periodic(Arc::new(Periodic {
            next: Some(at(40.0)),
            count: 300,
            last: Some(uuid()),
            error: Some(Box::new(Refusal::NoSuchJob { jid: uuid() })),
            ..periodic(Period::Interval(Seconds::from(60)))
        })),
        Delta::PeriodicRemoved(uuid()),
        Delta::PeriodicRan(Box::new(PeriodicRun {
            jid: uuid(),
            next: None,
            count: 2,
            last: Some(uuid()),
            error: None,
        })),
        Delta::SpawnedFrom(300, uuid()),
        Delta::Periodic(Arc::new({
            let mut of = periodic(Period::Cron("* * * 1-5 9 0 0".into()));
            of.template.phrase = Some("weekdays at 9:00".to_owned());
            of
        })),
        Delta::SetAside(Box::new(FailDelta {
            row: 300,
            now: at(39.5),
            failure: failure(),
            by_worker: false,
            payload: None,
        })),
        Delta::Return { row: 300, now: at(39.5), failure: None },
        Delta::Return { row: 300, now: at(39.5), failure: Some(Box::new(failure())) },
        Delta::EventLogged {
            event: Box::new(Event::Failed {
                jid: uuid(),
                queue: QueueName::new("mail").unwrap(),
                worker: None,
                group: group(),
                message: "no such host".into(),
                by: FailedBy::Moved,
            }),
            at: None,
        },
    ]);
    samples
}

/// A periodic job that has not run.
fn periodic(every: Period) -> Periodic {
    let klass = Klass::new("nightly").unwrap();
    let put = Put {
        priority: Some(Priority::from(2)),
        tags: Some(vec![Tag::new("t").unwrap()]),
        options: Some(Box::new(PutOptions { attempt_max: Some(Seconds::from(30)), ..PutOptions::default() })),
        ..Put::new(QueueName::new("reports").unwrap(), uuid(), klass, "{}")
    };
    let template = PeriodicTemplate {
        missed: Missed::Last(3),
        overlap: Overlap::CancelOld,
        expires_in: Some(Seconds::from(90)),
        is_paused: true,
        ..PeriodicTemplate::new(put, every)
    };
    Periodic { template: Box::new(template), next: None, count: 0, last: None, error: None }
}

/// One of each, and what can be there or not.
fn events() -> Vec<Event> {
    let (jid, queue) = (uuid, || QueueName::new("mail").unwrap());
    let worker = || WorkerName::new("w1").unwrap();
    let progress = Progressed { portion: Portion::new(3, 4).unwrap(), seconds_left: None };
    let failed = |by, worker| Event::Failed {
        jid: jid(),
        queue: queue(),
        worker,
        group: Group::new("io").unwrap(),
        message: "no such host".into(),
        by,
    };
    let milestone = |what| Event::Milestone { jid: jid(), what };
    vec![
        Event::Put { jid: jid(), queue: queue() },
        Event::Popped { jid: jid(), queue: queue(), worker: worker() },
        Event::Completed { jid: jid(), queue: queue() },
        Event::Advanced { jid: jid(), queue: queue(), to: QueueName::new("sent").unwrap() },
        Event::Retried { jid: jid(), queue: queue() },
        failed(FailedBy::Worker, Some(worker())),
        failed(FailedBy::Expiry, None),
        failed(FailedBy::Retry, None),
        failed(FailedBy::WorkerLost, None),
        failed(FailedBy::Crashes, None),
        failed(FailedBy::Deadline, None),
        failed(FailedBy::Expired, None),
        Event::Canceled { jid: jid(), was: None },
        Event::Canceled { jid: jid(), was: Some((queue(), None)) },
        Event::Canceled { jid: jid(), was: Some((queue(), Some(worker()))) },
        Event::LockLost { jid: jid(), worker: worker() },
        Event::ConfigSet { option: "heartbeat".into(), value: "60".into() },
        Event::ConfigUnset { option: "heartbeat".into() },
        Event::Track { jid: jid() },
        Event::Untrack { jid: jid() },
        milestone(Milestone::Put),
        milestone(Milestone::Popped),
        milestone(Milestone::Stalled),
        milestone(Milestone::Completed),
        milestone(Milestone::Failed),
        milestone(Milestone::Canceled),
        Event::Coalesced { jid: jid(), queue: queue(), submissions: 300 },
        Event::Abandoned { jid: jid(), queue: queue() },
        Event::Progress { jid: jid(), progress },
        Event::ResultStored { jid: jid() },
        Event::Released { jid: jid(), queue: queue(), worker: worker(), crashed: true },
        Event::Announced { worker: worker() },
        Event::WorkerLost { worker: worker() },
        Event::LimitsSet { queue: queue() },
    ]
}

#[test]
fn what_was_written_by_version_1_is_read_for_ever() {
    let lines: Vec<&str> = FIXTURE.lines().filter(|line| !line.starts_with('#')).collect();
    let samples = samples();
    // For a new kind, append `hex(&encoded(…))` of its sample. A line that is there is never changed.
    assert_eq!(lines.len(), samples.len());
    for (line, sample) in lines.into_iter().zip(&samples) {
        assert_eq!(&decoded(&unhex(line)).unwrap(), sample);
        assert_eq!(hex(&encoded(sample)), line, "{sample:?}");
    }
}

#[test]
fn each_kind_is_in_the_fixture_and_no_other_byte_begins_a_delta() {
    let kinds: std::collections::BTreeSet<u8> = samples().iter().map(|sample| encoded(sample)[0]).collect();
    assert!(kinds.iter().copied().eq(1..=75), "{kinds:?}");
    for other in (0..=255).filter(|byte| !kinds.contains(byte)) {
        let error = CodecError { at: 0, what: "kind of delta", why: Unknown(other) };
        assert_eq!(decoded(&[other; 64]), Err(error));
    }
}

#[test]
fn the_example_in_the_documentation_is_true() {
    let (_, example) = FORMAT.split_once("```hex\n").unwrap();
    let (example, _) = example.split_once("```").unwrap();
    assert_eq!(hex(&encoded(&Delta::Put(plain_put()))), hex(&unhex(example)));
}

#[test]
fn whatever_an_engine_decides_comes_back() {
    let mut deltas = 0;
    let mut kinds = [0; 256];
    for seed in 0..300 {
        // Every other trace has a subscriber, so that its events are kept.
        let listening = seed % 2 == 0;
        let (mut engine, mut effects) = (Engine::new(limits()), Effects { listening, ..Effects::default() });
        if listening {
            engine.start_event_log(Timestamp::ZERO, &mut effects);
        }
        let mut tokens = Tokens::default();
        let trace = generate(seed);
        for (told, step) in trace.iter().enumerate() {
            if told % 100 == 50 {
                engine.begin_epoch(&mut effects);
                engine.reclaim(step.now, usize::MAX, &mut effects);
            }
            let answer = engine.execute(step.now, tokens.command(&step.command), &mut effects);
            tokens.learn(step.number, &answer);
        }
        if seed % 10 == 0 {
            let now = trace.last().map_or(Timestamp::ZERO, |step| step.now);
            let flush = || Flush { count: Count::new(7).unwrap() };
            while engine.execute(now, flush().into(), &mut effects) == Ok(Reply::Flush(true)) {}
        }

        let mut log = Vec::new();
        for delta in &effects.deltas {
            let begin = log.len();
            delta.encode(&mut log);
            kinds[usize::from(log[begin])] += 1;
        }
        let (mut rebuilt, mut left) = (Engine::new(limits()), &log[..]);
        let mut again = Vec::new();
        for delta in &effects.deltas {
            let back =
                Delta::decode(&mut left).unwrap_or_else(|error| panic!("trace {seed}, {delta:?}: {error}"));
            assert_eq!(&back, delta, "trace {seed}");
            back.encode(&mut again);
            rebuilt.apply(&back);
            deltas += 1;
        }
        assert_eq!(left, [0; 0], "trace {seed}");
        assert!(again == log, "trace {seed} is written differently the second time");
        rebuilt.check().unwrap_or_else(|wrong| panic!("trace {seed}: {wrong}"));
    }
    assert!(deltas > 50_000, "only {deltas} deltas");
    // Events without a time are of earlier programs.
    let missing: Vec<u8> =
        (1..=66).filter(|kind| ![51, 63, 64].contains(kind) && kinds[usize::from(*kind)] == 0).collect();
    assert_eq!(missing, [0; 0], "no trace has these kinds");
}

#[test]
fn extremes_come_back() {
    let (least, most) = (at(f64::MIN), at(f64::MAX));
    let smallest = at(f64::from_bits(1));
    let long = "x".repeat(512);
    for delta in [
        Delta::Name(Kind::Worker, long.as_str().into()),
        Delta::Name(Kind::Queue, "x".repeat(FUNCTION_BYTES_MAX).into()),
        Delta::Name(Kind::Klass, "x".repeat(FUNCTION_BYTES_MAX).into()),
        Delta::Name(Kind::Group, "x".repeat(4160).into()),
        Delta::Seen(u32::MAX, least),
        Delta::Promote(0, most),
        Delta::Warn { row: u32::MAX, now: smallest, until: Timestamp::ZERO },
        Delta::Spawn {
            template: u32::MAX,
            jid: Jid::new(&long).unwrap(),
            count: u64::MAX,
            at: least,
            next: most,
            now: at(-f64::from_bits(1)),
        },
        Delta::Put(PutDelta {
            row: Some(u32::MAX),
            jid: Jid::from_uuid([0; 16]),
            queue: u32::MAX,
            klass: u32::MAX,
            payload: Payload::default(),
            priority: Priority::new(f64::MIN).unwrap(),
            retries: u32::MAX,
            due: Some(least),
            tags: Some([].into()),
            depends: Some([].into()),
            ..plain_put()
        }),
        Delta::Put(PutDelta {
            // Looks like a UUID and is none.
            jid: Jid::new("0198C0FFEE00700080000000000000FF").unwrap(),
            payload: vec![0xff; 300_000].into(),
            tags: Some(tags(&["t"; 1_000])),
            depends: Some(vec![ITSELF; 10_000].into()),
            ..plain_put()
        }),
        Delta::Depend(u32::MAX, [].into()),
        Delta::Undepend(0, [0, u32::MAX].into(), least),
        Delta::Log { row: 0, now: least, message: "".into(), data: Some("".into()) },
        Delta::Complete { row: 0, now: most, payload: Some(Payload::default()) },
        Delta::Config("".into(), Some("".into())),
        Delta::Epoch(0),
        Delta::Epoch(EPOCH_MAX),
        Delta::IdsAllocated(long.as_str().into(), u64::MAX),
        Delta::PutOptions(
            0,
            Box::new(PutOptions { metadata: Some(vec![0xff; 4096].into()), ..PutOptions::default() }),
        ),
        Delta::Progressed(0, Progressed { portion: (u64::MAX, 0).into(), seconds_left: Some(u32::MAX) }),
    ] {
        comes_back(&delta);
    }
    // What a moment makes of minus zero is zero, so there is none to write.
    assert_eq!(encoded(&Delta::Seen(0, at(-0.0))), encoded(&Delta::Seen(0, Timestamp::ZERO)));
}

#[test]
fn every_prefix_is_cut_short() {
    for sample in samples() {
        let bytes = encoded(&sample);
        for length in 0..bytes.len() {
            let mut left = &bytes[..length];
            let error = Delta::decode(&mut left).expect_err("a part is not the whole");
            assert!(matches!(error.why, CutShort { .. }), "{length} bytes of {sample:?}: {error}");
            assert!(error.at <= length);
            assert_eq!(left, &bytes[..length], "nothing is taken");
        }
    }
}

#[test]
fn damage_is_told_with_its_place() {
    let inf = hex(&f64::INFINITY.to_le_bytes());
    let minus_nought = hex(&(-0.0_f64).to_le_bytes());
    let long_name = format!("01 02 8104 {}", "61".repeat(513));
    let long_queue = format!("01 00 8120 {}", "61".repeat(4097));
    let long_counter = format!("34 8104 {} 01", "61".repeat(513));
    let long_aside = format!("35 09 00 00 00 00 00 00 00 00 8120 {}", "61".repeat(4097));
    let uuid_text = format!("16 20 {}", hex("0198c0ffee00700080000000000000ff".as_bytes()));
    let zero_priority = format!("03 02 01 61 {zero} 00 01 00 {zero} 05", zero = "00".repeat(8));
    for (bytes, at, what, why) in [
        ("", 0, "kind of delta", CutShort { needed: 1, left: 0 }),
        ("00", 0, "kind of delta", Unknown(0)),
        ("0f", 1, "row", CutShort { needed: 1, left: 0 }),
        ("0f 80", 1, "row", CutShort { needed: 1, left: 0 }),
        ("0f 8000", 1, "row", Overlong),
        ("0f 8080808010", 1, "row", TooLarge { value: 1 << 32, max: u64::from(u32::MAX) }),
        ("0f ffffffffffffffffff02", 1, "row", Overflow),
        ("0f ffffffffffffffffffff01", 1, "row", Overflow),
        ("0f ffffffffffffffffff8100", 1, "row", Overflow),
        ("20 80808008", 1, "epoch", TooLarge { value: 1 << 24, max: u64::from(EPOCH_MAX) }),
        ("02 00 00000000000000", 2, "now", CutShort { needed: 8, left: 7 }),
        (&format!("02 00 {inf}"), 2, "now", BadDouble(f64::INFINITY)),
        (&format!("11 00 {inf}"), 2, "priority", BadDouble(f64::INFINITY)),
        (&format!("02 00 {minus_nought}"), 2, "now", BadDouble(-0.0)),
        ("01 04 0161", 1, "kind of name", Unknown(4)),
        ("01 00 00", 2, "name", BadName(BadNameWhy::Empty)),
        ("01 02 03 610062", 2, "name", BadName(BadNameWhy::Nul)),
        (&long_name, 2, "name", BadName(BadNameWhy::TooLong { bytes: 513, max: 512 })),
        (&long_queue, 2, "name", BadName(BadNameWhy::TooLong { bytes: 4097, max: 4096 })),
        ("01 00 01 ff", 2, "name", NotUtf8),
        ("01 00 05 6d61696c", 2, "name", CutShort { needed: 5, left: 4 }),
        ("1d ffffffffffffffffff01 61", 1, "option", CutShort { needed: u64::MAX, left: 1 }),
        ("12 00 ffffffffffffffffff01 00", 2, "depends", CutShort { needed: u64::MAX, left: 1 }),
        ("12 00 03 0000", 2, "depends", CutShort { needed: 3, left: 2 }),
        ("18 00 00", 2, "tag", BadName(BadNameWhy::Empty)),
        ("16 00 0000000000000000", 2, "jid", CutShort { needed: 16, left: 8 }),
        (&uuid_text, 1, "jid", Overlong),
        ("16 01 00", 1, "jid", BadName(BadNameWhy::Nul)),
        ("19 00 02", 2, "paused", Unknown(2)),
        ("1d 00 02", 2, "value", Unknown(2)),
        ("03 20", 1, "bits of a put", Unknown(0x20)),
        (&zero_priority, 15, "priority", Overlong),
        ("36 02 00 00", 3, "name", BadName(BadNameWhy::Empty)),
        ("37 04 00", 1, "kind of name", Unknown(4)),
        ("34 00 01", 2, "counter", Misfit),
        ("3b 00 0000000000000000 08", 10, "end of an attempt", Unknown(8)),
        ("3b 00 0000000000000000 00 01 00", 12, "group", BadName(BadNameWhy::Empty)),
        ("3c 00 0000000000000000 02", 10, "by", Unknown(2)),
        (&long_counter, 516, "counter", Misfit),
        (&long_aside, 4109, "metadata", Misfit),
        // A payload in a file, before a delta without a payload, with another one, and before itself.
        ("40 01 10 02 0f 09", 4, "delta of a payload in a file", Unknown(0x0f)),
        ("40 01 10 02 0a 09 0000000000000000 01 01 61", 4, "delta of a payload in a file", Unknown(0x0a)),
        ("40 01 10 02 40 01 10 02", 4, "kind of delta", Unknown(0x40)),
    ] {
        let (got, bytes) = (decoded(&unhex(bytes)).expect_err(bytes), bytes);
        // Not by `==`, for which minus zero is zero.
        assert_eq!(format!("{got:?}"), format!("{:?}", CodecError { at, what, why }), "{bytes}");
    }
    // Comparing cannot tell that one NaN is another.
    let nan = decoded(&unhex("02 00 000000000000f87f")).unwrap_err();
    assert!(matches!(nan, CodecError { at: 2, what: "now", why: BadDouble(number) } if number.is_nan()));
    assert_eq!(nan.to_string(), "byte 2: now must be a finite number and not minus zero, not NaN");
}

#[test]
fn random_damage_is_an_error_or_another_delta_that_is_written_just_so() {
    let mut random = fastrand::Rng::with_seed(7041);
    let samples: Vec<Vec<u8>> = samples().iter().map(encoded).collect();
    let (mut errors, mut others) = (0, 0);
    for _ in 0..200_000 {
        let mut bytes = samples[random.usize(..samples.len())].clone();
        for _ in 0..random.usize(1..4) {
            damage(&mut bytes, &mut random, &samples);
        }
        let mut left = &bytes[..];
        match Delta::decode(&mut left) {
            Ok(delta) => {
                others += 1;
                assert_eq!(hex(&encoded(&delta)), hex(&bytes[..bytes.len() - left.len()]), "{delta:?}");
            }
            Err(error) => {
                errors += 1;
                assert!(error.at <= bytes.len());
                assert_eq!(left, bytes);
            }
        }
    }
    assert!(errors > 20_000 && others > 20_000, "{errors} errors and {others} others");
}

fn damage(bytes: &mut Vec<u8>, random: &mut fastrand::Rng, samples: &[Vec<u8>]) {
    let place = random.usize(..=bytes.len());
    match random.u8(..6) {
        0 => bytes.insert(place, random.u8(..)),
        1 => bytes.truncate(place),
        2 => {
            let other = &samples[random.usize(..samples.len())];
            bytes.truncate(place);
            bytes.extend_from_slice(&other[random.usize(..other.len())..]);
        }
        // The rest needs a byte that is there.
        _ if place == bytes.len() => bytes.push([0, 1, 0x7f, 0x80, 0xff][random.usize(..5)]),
        3 => {
            bytes.remove(place);
        }
        4 => bytes[place] ^= 1 << random.u8(..8),
        _ => bytes[place] = [0, 1, 0x7f, 0x80, 0xff][random.usize(..5)],
    }
}
