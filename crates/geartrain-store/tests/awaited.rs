//! Those who wait for a job are told, whatever happens in between; and what is to outlive the process does.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use geartrain_core::SystemClock;
use geartrain_core::*;
use geartrain_store::{StoreBackend, StoreOptions};
use geartrain_testkit::clock::ManualClock;
use geartrain_testkit::disk::SimDisk;
use pollster::block_on;

fn in_memory() -> StoreBackend {
    StoreBackend::in_memory(Arc::new(SystemClock)).unwrap()
}

fn open(disk: &SimDisk) -> StoreBackend {
    StoreBackend::open_on(Arc::new(disk.clone()), StoreOptions::default(), ManualClock::new()).unwrap()
}

fn jid(jid: &str) -> Jid {
    Jid::new(jid).unwrap()
}

fn put(name: &str, terms: PutOptions) -> Put {
    let queue = QueueName::new("mail").unwrap();
    let terms = Some(Box::new(terms));
    Put { options: terms, ..Put::new(queue, jid(name), Klass::new("welcome").unwrap(), "{}") }
}

/// Terms of somebody who waits through a front, with a number.
fn awaited_by(front: u64, number: u64) -> PutOptions {
    PutOptions {
        attach: Some(ResultWaiter { stream_id: front, connection: 0, number }),
        ..PutOptions::default()
    }
}

fn unique(key: &str) -> Option<UniqueKey> {
    Some(UniqueKey::new(key).unwrap())
}

fn run<O: Operation>(backend: &StoreBackend, operation: O) -> O::Reply {
    let answer =
        block_on(backend.execute(vec![Call { now: None, command: operation.into() }])).unwrap().remove(0);
    O::answer(answer.unwrap()).unwrap()
}

fn follow(backend: &StoreBackend, front: u64) -> Box<dyn ResultStream> {
    block_on(backend.open_result_stream(front)).unwrap()
}

fn pop(backend: &StoreBackend) -> Popped {
    let pop = Pop::new(QueueName::new("mail").unwrap(), WorkerName::new("w1").unwrap());
    run(backend, pop).jobs.remove(0)
}

fn complete(job: &Popped, result: &str) -> Complete {
    let result = Some(Box::new(JobResult { code: 0, bytes: result.into() }));
    Complete { result, ..Complete::new(job.jid.clone(), Holder::Token(job.lock.token)) }
}

fn chunk(job: &Popped, bytes: impl Into<Payload>) -> Chunk {
    let holder = Holder::Token(job.lock.token);
    Chunk { jid: job.jid.clone(), holder, kind: ChunkKind::Data, bytes: bytes.into() }
}

/// What is there without waiting for it.
fn at_once(stream: &mut Box<dyn ResultStream>) -> Option<Result<Delivery, ResultStreamEnd>> {
    match stream.next().as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(next) => Some(next),
        Poll::Pending => None,
    }
}

/// Something goes wrong with the disk, and somebody is told so.
fn trouble(backend: &StoreBackend, disk: &SimDisk) {
    disk.fail_after(0);
    let put = put("unlucky", PutOptions { unique: unique("unlucky"), ..PutOptions::default() });
    assert!(block_on(backend.execute(vec![put.into()])).is_err());
}

#[test]
fn whoever_waits_has_been_told_when_the_worker_is_answered() {
    for backend in [in_memory(), open(&SimDisk::new(1))] {
        let (mut ours, mut theirs) = (follow(&backend, 1), follow(&backend, 2));
        let both = [(1, 7, PutReply::Created), (2, 8, PutReply::Coalesced { jid: jid("j1") })];
        for (front, number, expected) in both {
            let terms = PutOptions { unique: unique("k"), ..awaited_by(front, number) };
            assert_eq!(run(&backend, put(&format!("j{front}"), terms)), expected);
        }
        let job = pop(&backend);
        assert_eq!(run(&backend, chunk(&job, "half")), 2);
        run(&backend, complete(&job, "whole"));
        let outcome = JobResult { code: 0, bytes: "whole".into() };
        let told = [
            StreamItem::Chunk(ChunkKind::Data, "half".into()),
            StreamItem::Ended(JobEnding::Completed, outcome),
        ];
        for (stream, front, number) in [(&mut ours, 1, 7), (&mut theirs, 2, 8)] {
            for told in told.clone() {
                let waiter = ResultWaiter { stream_id: front, connection: 0, number };
                assert_eq!(at_once(stream), Some(Ok(Delivery { waiter, jid: jid("j1"), item: told })));
            }
            assert_eq!(at_once(stream), None);
        }
    }
}

#[test]
fn a_front_is_followed_once_and_is_free_when_its_stream_is_dropped() {
    let backend = in_memory();
    let stream = follow(&backend, 1);
    match block_on(backend.open_result_stream(1)).err() {
        Some(BackendError::Refused(Refusal::BadArgument { what, .. })) if what == "front" => {}
        other => panic!("{other:?}"),
    }
    drop(stream);
    drop(follow(&backend, 1));
}

#[test]
fn those_who_wait_leave_when_their_stream_is_dropped() {
    let backend = in_memory();
    let stream = follow(&backend, 1);
    let awaited = PutOptions { orphan_policy: OrphanPolicy::WhileAwaited, ..awaited_by(1, 1) };
    run(&backend, put("j1", awaited.clone()));
    run(&backend, put("j2", awaited_by(1, 2)));
    drop(stream);
    // Whoever asks next finds that they have left.
    assert_eq!(run(&backend, Get { jid: jid("j1") }), None);
    let status = run(&backend, Status { of: StatusOf::Jid(jid("j2")) }).unwrap();
    assert_eq!((status.attached, status.submissions), (0, 1));

    // They do even if nobody asks for anything more.
    let mut events = block_on(backend.subscribe()).unwrap();
    let stream = follow(&backend, 1);
    run(&backend, put("j3", awaited));
    drop(stream);
    while !matches!(&*block_on(events.next()).unwrap().event, Event::Abandoned { jid: it, .. } if *it == jid("j3"))
    {
    }
}

#[test]
fn what_was_asked_for_before_a_stream_was_dropped_is_done_before_they_leave() {
    let backend = in_memory();
    for front in 0..500 {
        let stream = follow(&backend, front);
        let awaited = PutOptions { orphan_policy: OrphanPolicy::WhileAwaited, ..awaited_by(front, 1) };
        let mut put = backend.execute(vec![put(&format!("j{front}"), awaited).into()]);
        // It is sent, and nobody waits for the answer.
        let _ = put.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        drop((put, stream));
    }
    while run(&backend, Length { queue: QueueName::new("mail").unwrap() }) > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn a_follower_that_does_not_take_what_it_is_told_is_cut_off_and_nobody_waits_for_it() {
    let backend = in_memory();
    let (mut slow, mut quick) = (follow(&backend, 1), follow(&backend, 2));
    run(&backend, put("j1", PutOptions { unique: unique("k"), ..awaited_by(1, 1) }));
    run(&backend, put("j2", PutOptions { unique: unique("k"), ..awaited_by(2, 1) }));
    let job = pop(&backend);
    for _ in 0..20 {
        let chunks = (0..1_000).map(|_| chunk(&job, "x").into()).collect();
        assert!(block_on(backend.execute(chunks)).unwrap().iter().all(Result::is_ok));
        (0..1_000).for_each(|_| assert!(matches!(at_once(&mut quick), Some(Ok(_)))));
    }
    let mut heard = 0;
    let end = loop {
        match block_on(slow.next()) {
            Ok(_) => heard += 1,
            Err(end) => break end,
        }
    };
    assert_eq!((heard, end), (10_000, ResultStreamEnd::Lagged));
    run(&backend, complete(&job, ""));
    assert!(matches!(at_once(&mut quick), Some(Ok(Delivery { item: StreamItem::Ended(..), .. }))));
}

#[test]
fn streams_end_when_the_backend_is_shut_down() {
    for backend in [in_memory(), open(&SimDisk::new(1))] {
        let mut stream = follow(&backend, 1);
        run(&backend, put("j1", awaited_by(1, 1)));
        run(&backend, Cancel { jids: vec![jid("j1")] });
        block_on(backend.shut_down());
        // What was told before is heard.
        assert!(matches!(
            block_on(stream.next()),
            Ok(Delivery { item: StreamItem::Ended(JobEnding::Canceled, _), .. })
        ));
        assert_eq!(block_on(stream.next()), Err(ResultStreamEnd::Closed));
        assert!(matches!(block_on(backend.open_result_stream(2)).err(), Some(BackendError::Broken { .. })));
    }
}

#[test]
fn streams_end_when_something_went_wrong_even_if_nobody_asks_for_anything_more() {
    let disk = SimDisk::new(1);
    let backend = open(&disk);
    let mut stream = follow(&backend, 1);
    run(&backend, put("j1", awaited_by(1, 1)));
    run(&backend, put("j2", PutOptions { orphan_policy: OrphanPolicy::WhileAwaited, ..awaited_by(1, 2) }));
    trouble(&backend, &disk);
    assert_eq!(block_on(stream.next()), Err(ResultStreamEnd::Closed));

    // The front can be had again, although the stream that ended is still there, and dropping that one harms nobody.
    let mut again = follow(&backend, 1);
    let waiter = ResultWaiter { stream_id: 1, connection: 0, number: 1 };
    assert_eq!(run(&backend, Attach { jid: jid("j1"), waiter }), AttachReply::Attached);
    drop(stream);
    assert_eq!(run(&backend, Get { jid: jid("j2") }), None);
    let job = pop(&backend);
    run(&backend, complete(&job, "done"));
    assert!(matches!(at_once(&mut again), Some(Ok(Delivery { item: StreamItem::Ended(..), .. }))));
}

#[test]
fn a_job_that_lived_while_somebody_waited_is_gone_when_the_directory_is_opened_again_and_so_is_its_key() {
    for how in [SimDisk::crash, SimDisk::kill] {
        let disk = SimDisk::new(1);
        let backend = open(&disk);
        let stream = follow(&backend, 1);
        let terms =
            PutOptions { unique: unique("k"), orphan_policy: OrphanPolicy::WhileAwaited, ..awaited_by(1, 1) };
        run(&backend, put("j1", terms));
        let disk = how(&disk);
        let backend = open(&disk);
        assert_eq!(run(&backend, Get { jid: jid("j1") }), None);
        let keyed = PutOptions { unique: unique("k"), ..PutOptions::default() };
        assert_eq!(run(&backend, put("j2", keyed)), PutReply::Created);
        drop(stream);
    }
}

#[test]
fn a_unique_key_is_still_taken_when_the_directory_is_opened_again() {
    let disk = SimDisk::new(1);
    let keyed = || PutOptions { unique: unique("k"), ..PutOptions::default() };
    run(&open(&disk), put("j1", keyed()));
    let backend = open(&disk.crash());
    assert_eq!(run(&backend, put("j2", keyed())), PutReply::Coalesced { jid: jid("j1") });
    let of = StatusOf::Unique(QueueName::new("mail").unwrap(), unique("k").unwrap());
    assert_eq!(run(&backend, Status { of }).unwrap().submissions, 2);
}

#[test]
fn a_result_is_still_there_when_the_directory_is_opened_again() {
    let disk = SimDisk::new(1);
    let backend = open(&disk);
    let afterwards = OnEnd::Forget;
    run(
        &backend,
        put(
            "j1",
            PutOptions { result_ttl: Some(RESULT_TTL_DEFAULT), on_end: afterwards, ..PutOptions::default() },
        ),
    );
    let job = pop(&backend);
    run(&backend, complete(&job, "forty-two"));
    let disk = disk.crash();
    drop(backend);
    let backend = open(&disk);
    assert_eq!(run(&backend, Get { jid: jid("j1") }), None);
    let kept = run(&backend, GetResult { jid: jid("j1") }).unwrap();
    assert_eq!((kept.ending, kept.result.bytes.text()), (JobEnding::Completed, Some("forty-two")));
    let waiter = ResultWaiter { stream_id: 1, connection: 0, number: 1 };
    match run(&backend, Attach { jid: jid("j1"), waiter }) {
        AttachReply::Ended { state: None, result: Some(kept) } => {
            assert_eq!(kept.result.bytes.text(), Some("forty-two"));
        }
        other => panic!("{other:?}"),
    }
}

/// A stream ends at the moment of trouble, and whoever has it may not have noticed before they put the next job.
#[test]
fn those_who_began_to_wait_through_a_stream_that_had_ended_leave_with_it() {
    let disk = SimDisk::new(1);
    let backend = open(&disk);
    let stream = follow(&backend, 1);
    trouble(&backend, &disk);
    run(&backend, put("j1", PutOptions { orphan_policy: OrphanPolicy::WhileAwaited, ..awaited_by(1, 1) }));
    drop(stream);
    assert_eq!(run(&backend, Status { of: StatusOf::Jid(jid("j1")) }), None);
}

/// A job that somebody waits for, and that leaves nothing behind.
fn passing(number: u64) -> PutOptions {
    PutOptions { orphan_policy: OrphanPolicy::WhileAwaited, on_end: OnEnd::Forget, ..awaited_by(1, number) }
}

#[test]
fn a_job_that_nobody_would_miss_does_not_touch_the_disk_and_those_who_wait_are_told() {
    let disk = SimDisk::new(1);
    let backend = open(&disk);
    let mut stream = follow(&backend, 1);
    // Makes room in the log, and the names known.
    run(&backend, put("j0", PutOptions::default()));
    run(&backend, complete(&pop(&backend), ""));
    let mut numbers = 1..;
    let mut operations_of_one = || {
        let (before, number) = (disk.operations(), numbers.next().unwrap());
        run(&backend, put(&format!("p{number}"), passing(number)));
        run(&backend, complete(&pop(&backend), "done"));
        assert!(matches!(at_once(&mut stream), Some(Ok(Delivery { item: StreamItem::Ended(..), .. }))));
        disk.operations() - before
    };
    // Whoever writes is at it for a moment after it has answered, and then what comes is written too.
    assert!((0..1_000).any(|_| operations_of_one() == 0));
    assert!((0..100).all(|_| operations_of_one() == 0));
}

#[test]
fn what_was_put_off_is_written_before_what_rests_on_it() {
    for number in 0..200 {
        let disk = SimDisk::new(number);
        let backend = open(&disk);
        let _stream = follow(&backend, 1);
        run(&backend, put("p1", passing(1)));
        let held = pop(&backend);
        run(&backend, put("p2", passing(2)));
        // A key that a passing job has is not free, and a job that joins it makes it stay.
        run(&backend, put("p3", PutOptions { unique: unique("k"), ..passing(3) }));
        let keyed = PutOptions { unique: unique("k"), ..PutOptions::default() };
        assert_eq!(run(&backend, put("j1", keyed)), PutReply::Coalesced { jid: jid("p3") });
        run(&backend, put("j2", PutOptions::default()));
        if number % 2 == 0 {
            run(&backend, complete(&held, ""));
        }
        // The power goes, or only the process.
        let disk = if number % 3 == 0 { disk.kill() } else { disk.crash() };
        drop(backend);
        let backend = open(&disk);
        assert!(
            run(&backend, Get { jid: jid("p3") }).is_some()
                && run(&backend, Get { jid: jid("j2") }).is_some()
        );
        assert_eq!(run(&backend, Get { jid: jid("p2") }), None);
    }
}
