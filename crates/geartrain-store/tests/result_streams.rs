//! Result streams, through failures and restarts; ephemeral jobs; results and keys that outlive the process.

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

fn put(name: &str, options: PutOptions) -> Put {
    let queue = QueueName::new("mail").unwrap();
    let options = Some(Box::new(options));
    Put { options, ..Put::new(queue, jid(name), Klass::new("welcome").unwrap(), "{}") }
}

/// Put options of a client that waits through a stream, with a number.
fn awaited_by(stream_id: u64, number: u64) -> PutOptions {
    PutOptions { attach: Some(ResultWaiter { stream_id, connection: 0, number }), ..PutOptions::default() }
}

fn unique(key: &str) -> Option<UniqueKey> {
    Some(UniqueKey::new(key).unwrap())
}

fn run<O: Operation>(backend: &StoreBackend, operation: O) -> O::Reply {
    let answer = block_on(backend.execute(vec![Call::from(operation)])).unwrap().remove(0);
    O::answer(answer.unwrap()).unwrap()
}

fn open_stream(backend: &StoreBackend, stream_id: u64) -> Box<dyn ResultStream> {
    block_on(backend.open_result_stream(stream_id)).unwrap()
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

/// The next item if it has arrived already.
fn try_next(stream: &mut Box<dyn ResultStream>) -> Option<Result<StreamMessage, ResultStreamEnd>> {
    match stream.next().as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(next) => Some(next),
        Poll::Pending => None,
    }
}

/// Makes one disk operation fail, and a command that gets the error.
fn fail_once(backend: &StoreBackend, disk: &SimDisk) {
    disk.fail_after(0);
    let put = put("unlucky", PutOptions { unique: unique("unlucky"), ..PutOptions::default() });
    assert!(block_on(backend.execute(vec![put.into()])).is_err());
}

#[test]
fn a_result_is_delivered_before_the_worker_gets_its_reply() {
    for backend in [in_memory(), open(&SimDisk::new(1))] {
        let (mut ours, mut theirs) = (open_stream(&backend, 1), open_stream(&backend, 2));
        let both = [(1, 7, PutReply::Created), (2, 8, PutReply::Coalesced { jid: jid("j1") })];
        for (stream_id, number, expected) in both {
            let options = PutOptions { unique: unique("k"), ..awaited_by(stream_id, number) };
            assert_eq!(run(&backend, put(&format!("j{stream_id}"), options)), expected);
        }
        let job = pop(&backend);
        assert_eq!(run(&backend, chunk(&job, "half")), 2);
        run(&backend, complete(&job, "whole"));
        let outcome = JobResult { code: 0, bytes: "whole".into() };
        let items = [
            StreamItem::Chunk(ChunkKind::Data, "half".into()),
            StreamItem::Ended(JobEnding::Completed, outcome),
        ];
        for (stream, stream_id, number) in [(&mut ours, 1, 7), (&mut theirs, 2, 8)] {
            for item in items.clone() {
                let waiter = ResultWaiter { stream_id, connection: 0, number };
                assert_eq!(try_next(stream), Some(Ok(StreamMessage { waiter, jid: jid("j1"), item })));
            }
            assert_eq!(try_next(stream), None);
        }
    }
}

#[test]
fn a_stream_id_is_in_use_until_its_stream_is_dropped() {
    let backend = in_memory();
    let stream = open_stream(&backend, 1);
    match block_on(backend.open_result_stream(1)).err() {
        Some(BackendError::Refused(Refusal::BadArgument { what, .. })) if what == "front" => {}
        other => panic!("{other:?}"),
    }
    drop(stream);
    drop(open_stream(&backend, 1));
}

#[test]
fn dropping_a_stream_detaches_its_clients() {
    let backend = in_memory();
    let stream = open_stream(&backend, 1);
    let awaited = PutOptions { orphan_policy: OrphanPolicy::WhileAwaited, ..awaited_by(1, 1) };
    run(&backend, put("j1", awaited.clone()));
    run(&backend, put("j2", awaited_by(1, 2)));
    drop(stream);
    // The next command finds the job detached.
    assert_eq!(run(&backend, Get { jid: jid("j1") }), None);
    let status = run(&backend, Status { of: StatusOf::Jid(jid("j2")) }).unwrap();
    assert_eq!((status.attached, status.submissions), (0, 1));

    // Also if no further command comes.
    let mut events = block_on(backend.subscribe()).unwrap();
    let stream = open_stream(&backend, 1);
    run(&backend, put("j3", awaited));
    drop(stream);
    while !matches!(&*block_on(events.next()).unwrap().event, Event::Abandoned { jid: it, .. } if *it == jid("j3"))
    {
    }
}

#[test]
fn commands_sent_before_a_drop_are_executed_before_the_detach() {
    let backend = in_memory();
    for stream_id in 0..500 {
        let stream = open_stream(&backend, stream_id);
        let awaited = PutOptions { orphan_policy: OrphanPolicy::WhileAwaited, ..awaited_by(stream_id, 1) };
        let mut put = backend.execute(vec![put(&format!("j{stream_id}"), awaited).into()]);
        // The first poll sends it, and its reply is not awaited.
        let _ = put.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        drop((put, stream));
    }
    while run(&backend, Length { queue: QueueName::new("mail").unwrap() }) > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn a_slow_stream_is_disconnected_and_blocks_no_command() {
    let backend = in_memory();
    let (mut slow, mut fast) = (open_stream(&backend, 1), open_stream(&backend, 2));
    run(&backend, put("j1", PutOptions { unique: unique("k"), ..awaited_by(1, 1) }));
    run(&backend, put("j2", PutOptions { unique: unique("k"), ..awaited_by(2, 1) }));
    let job = pop(&backend);
    for _ in 0..20 {
        let chunks = (0..1_000).map(|_| chunk(&job, "x").into()).collect();
        assert!(block_on(backend.execute(chunks)).unwrap().iter().all(Result::is_ok));
        (0..1_000).for_each(|_| assert!(matches!(try_next(&mut fast), Some(Ok(_)))));
    }
    let mut received = 0;
    let end = loop {
        match block_on(slow.next()) {
            Ok(_) => received += 1,
            Err(end) => break end,
        }
    };
    assert_eq!((received, end), (10_000, ResultStreamEnd::Lagged));
    run(&backend, complete(&job, ""));
    assert!(matches!(try_next(&mut fast), Some(Ok(StreamMessage { item: StreamItem::Ended(..), .. }))));
}

#[test]
fn streams_end_when_the_backend_is_shut_down() {
    for backend in [in_memory(), open(&SimDisk::new(1))] {
        let mut stream = open_stream(&backend, 1);
        run(&backend, put("j1", awaited_by(1, 1)));
        run(&backend, Cancel::new(vec![jid("j1")]));
        block_on(backend.shut_down());
        // Items sent before are still received.
        assert!(matches!(
            block_on(stream.next()),
            Ok(StreamMessage { item: StreamItem::Ended(JobEnding::Canceled, _), .. })
        ));
        assert_eq!(block_on(stream.next()), Err(ResultStreamEnd::Closed));
        assert!(matches!(block_on(backend.open_result_stream(2)).err(), Some(BackendError::Broken { .. })));
    }
}

#[test]
fn streams_end_at_a_failure_without_a_further_command() {
    let disk = SimDisk::new(1);
    let backend = open(&disk);
    let mut stream = open_stream(&backend, 1);
    run(&backend, put("j1", awaited_by(1, 1)));
    run(&backend, put("j2", PutOptions { orphan_policy: OrphanPolicy::WhileAwaited, ..awaited_by(1, 2) }));
    fail_once(&backend, &disk);
    assert_eq!(block_on(stream.next()), Err(ResultStreamEnd::Closed));

    // The id can be used again, although the ended stream still exists, and dropping that one detaches no
    // client.
    let mut again = open_stream(&backend, 1);
    let waiter = ResultWaiter { stream_id: 1, connection: 0, number: 1 };
    assert_eq!(run(&backend, Attach { jid: jid("j1"), waiter }), AttachReply::Attached);
    drop(stream);
    assert_eq!(run(&backend, Get { jid: jid("j2") }), None);
    let job = pop(&backend);
    run(&backend, complete(&job, "done"));
    assert!(matches!(try_next(&mut again), Some(Ok(StreamMessage { item: StreamItem::Ended(..), .. }))));
}

#[test]
fn an_ephemeral_job_and_its_key_are_gone_after_a_restart() {
    for how in [SimDisk::crash, SimDisk::kill] {
        let disk = SimDisk::new(1);
        let backend = open(&disk);
        let stream = open_stream(&backend, 1);
        let options =
            PutOptions { unique: unique("k"), orphan_policy: OrphanPolicy::WhileAwaited, ..awaited_by(1, 1) };
        run(&backend, put("j1", options));
        let disk = how(&disk);
        let backend = open(&disk);
        assert_eq!(run(&backend, Get { jid: jid("j1") }), None);
        let keyed = PutOptions { unique: unique("k"), ..PutOptions::default() };
        assert_eq!(run(&backend, put("j2", keyed)), PutReply::Created);
        drop(stream);
    }
}

#[test]
fn a_unique_key_is_still_taken_after_a_restart() {
    let disk = SimDisk::new(1);
    let keyed = || PutOptions { unique: unique("k"), ..PutOptions::default() };
    run(&open(&disk), put("j1", keyed()));
    let backend = open(&disk.crash());
    assert_eq!(run(&backend, put("j2", keyed())), PutReply::Coalesced { jid: jid("j1") });
    let of = StatusOf::Unique(QueueName::new("mail").unwrap(), unique("k").unwrap());
    assert_eq!(run(&backend, Status { of }).unwrap().submissions, 2);
}

#[test]
fn a_stored_result_survives_a_restart() {
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

/// A stream ends at the moment of the failure, and its client may not have noticed before it puts the next
/// job.
#[test]
fn clients_of_an_ended_stream_are_detached_when_it_is_dropped() {
    let disk = SimDisk::new(1);
    let backend = open(&disk);
    let stream = open_stream(&backend, 1);
    fail_once(&backend, &disk);
    run(&backend, put("j1", PutOptions { orphan_policy: OrphanPolicy::WhileAwaited, ..awaited_by(1, 1) }));
    drop(stream);
    assert_eq!(run(&backend, Status { of: StatusOf::Jid(jid("j1")) }), None);
}

/// Put options of an ephemeral job that a client waits for.
fn ephemeral(number: u64) -> PutOptions {
    PutOptions { orphan_policy: OrphanPolicy::WhileAwaited, on_end: OnEnd::Forget, ..awaited_by(1, number) }
}

#[test]
fn an_ephemeral_job_is_delivered_without_touching_the_disk() {
    let disk = SimDisk::new(1);
    let backend = open(&disk);
    let mut stream = open_stream(&backend, 1);
    // Reserves log space, and makes the names known.
    run(&backend, put("j0", PutOptions::default()));
    run(&backend, complete(&pop(&backend), ""));
    let mut numbers = 1..;
    let mut operations_of_one = || {
        let (before, number) = (disk.operations(), numbers.next().unwrap());
        run(&backend, put(&format!("p{number}"), ephemeral(number)));
        run(&backend, complete(&pop(&backend), "done"));
        assert!(matches!(try_next(&mut stream), Some(Ok(StreamMessage { item: StreamItem::Ended(..), .. }))));
        disk.operations() - before
    };
    // The committer is busy for a moment after it has replied, and then the next change is written too.
    assert!((0..1_000).any(|_| operations_of_one() == 0));
    assert!((0..100).all(|_| operations_of_one() == 0));
}

#[test]
fn deferred_changes_are_written_before_those_that_depend_on_them() {
    for number in 0..200 {
        let disk = SimDisk::new(number);
        let backend = open(&disk);
        let _stream = open_stream(&backend, 1);
        run(&backend, put("p1", ephemeral(1)));
        let held = pop(&backend);
        run(&backend, put("p2", ephemeral(2)));
        // A key of an ephemeral job is taken, and a job that joins it makes it durable.
        run(&backend, put("p3", PutOptions { unique: unique("k"), ..ephemeral(3) }));
        let keyed = PutOptions { unique: unique("k"), ..PutOptions::default() };
        assert_eq!(run(&backend, put("j1", keyed)), PutReply::Coalesced { jid: jid("p3") });
        run(&backend, put("j2", PutOptions::default()));
        if number % 2 == 0 {
            run(&backend, complete(&held, ""));
        }
        // A power cut, or only the end of the process.
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
