//! Ticks: due work is executed without a command.

use std::sync::Arc;
use std::task::{Context, Waker};

use geartrain_core::SystemClock;
use geartrain_core::*;
use geartrain_store::{StoreBackend, StoreOptions};
use geartrain_testkit::clock::ManualClock;
use geartrain_testkit::disk::SimDisk;
use pollster::block_on;

/// The same engine in memory and on a disk, each with a clock of its own.
fn backends() -> [(StoreBackend, Arc<ManualClock>); 2] {
    let clocks = [ManualClock::new(), ManualClock::new()];
    let on_disk =
        StoreBackend::open_on(Arc::new(SimDisk::new(1)), StoreOptions::default(), clocks[1].clone()).unwrap();
    let [first, second] = clocks;
    [(StoreBackend::in_memory(first.clone()).unwrap(), first), (on_disk, second)]
}

fn queue() -> QueueName {
    QueueName::new("mail").unwrap()
}

fn put(number: usize, options: PutOptions) -> Put {
    let jid = Jid::new(format!("j{number}")).unwrap();
    Put { options: Some(Box::new(options)), ..Put::new(queue(), jid, Klass::new("welcome").unwrap(), "{}") }
}

fn pop(worker: &str) -> Pop {
    Pop::new(queue(), WorkerName::new(worker).unwrap())
}

fn run<O: Operation>(backend: &StoreBackend, operation: O) -> O::Reply {
    let answer = block_on(backend.execute(vec![Call::from(operation)])).unwrap().remove(0);
    O::answer(answer.unwrap()).unwrap()
}

#[test]
fn an_attempt_past_its_deadline_ends_and_a_parked_pop_gets_the_job() {
    for (backend, clock) in backends() {
        run(&backend, put(1, PutOptions { attempt_max: Some(Seconds::from(10)), ..PutOptions::default() }));
        let first = run(&backend, pop("w1")).jobs.remove(0);
        let mut waiting = backend.pop_or_wait(pop("w2"), Seconds::from(3_600));
        assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        clock.advance(11);
        let second = block_on(waiting).unwrap().jobs.remove(0);
        assert_eq!((&second.jid, second.lock.worker.as_str()), (&first.jid, "w2"));
        let late = Complete::new(first.jid.clone(), Holder::Token(first.lock.token));
        let answers = block_on(backend.execute(vec![late.into()])).unwrap();
        assert!(matches!(answers[..], [Err(Refusal::LockLost { .. })]), "{answers:?}");
    }
}

#[test]
fn a_waiting_client_learns_that_its_job_was_not_started_in_time() {
    for (backend, clock) in backends() {
        let mut stream = block_on(backend.open_result_stream(1)).unwrap();
        let attach = Some(ResultWaiter { stream_id: 1, connection: 0, number: 1 });
        run(
            &backend,
            put(1, PutOptions { attach, expires: Some(Timestamp::from(10)), ..PutOptions::default() }),
        );
        clock.advance(11);
        match block_on(stream.next()).unwrap().item {
            StreamItem::Ended(JobEnding::Failed { group, .. }, _) => {
                assert_eq!(group.as_str(), "expired-mail")
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn all_due_work_is_executed() {
    const JOBS: usize = 5_500;
    for (backend, clock) in backends() {
        let expiring = || PutOptions { expires: Some(Timestamp::from(10)), ..PutOptions::default() };
        let puts = (0..JOBS).map(|number| put(number, expiring()).into()).collect();
        assert!(block_on(backend.execute(puts)).unwrap().iter().all(Result::is_ok));
        let mut events = block_on(backend.subscribe()).unwrap();
        clock.advance(11);
        // No command is sent meanwhile.
        let mut failed = 0;
        while failed < JOBS {
            failed += usize::from(matches!(*block_on(events.next()).unwrap().event, Event::Failed { .. }));
        }
        assert_eq!(run(&backend, Length { queue: queue() }), 0);
    }
}

#[test]
fn events_are_retained_while_subscribed_and_for_a_day_after() {
    for (backend, clock) in backends() {
        let mut events = block_on(backend.subscribe()).unwrap();
        let mut last = 0;
        for day in 0..5 {
            clock.advance(86_400 + 1);
            run(&backend, put(day, PutOptions::default()));
            last = block_on(events.next()).unwrap().position;
        }
        drop(events);
        clock.advance(80_000);
        run(&backend, put(5, PutOptions::default()));
        let mut events = block_on(backend.subscribe_from(last)).unwrap();
        assert_eq!(block_on(events.next()).unwrap().position, last + 1);
        drop(events);
        clock.advance(2 * 86_400);
        run(&backend, put(6, PutOptions::default()));
        let refused = block_on(backend.subscribe_from(last)).err();
        assert!(matches!(refused, Some(BackendError::Refused(Refusal::CursorTooOld { .. }))), "{refused:?}");
    }
}

#[test]
fn a_parked_worker_is_not_silent() {
    for (backend, clock) in backends() {
        let worker = WorkerName::new("w1").unwrap();
        let can = Capability { queue: queue(), klass: None, attempt_max: None };
        run(&backend, Announce { worker, change: AnnounceChange::Can(vec![can]) });
        let mut waiting = backend.pop_or_wait(pop("w1"), Seconds::from(36_000));
        assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        // Later messages are answered later, so the pop is parked by now.
        assert_eq!(run(&backend, RollCall { queue: queue(), klass: None }), 1);
        for _ in 0..5 {
            clock.advance(61);
            assert_eq!(run(&backend, RollCall { queue: queue(), klass: None }), 1);
        }
        drop(waiting);
        // A disconnected worker is noticed when a job is for it.
        run(&backend, put(1, PutOptions { roll_call: true, ..PutOptions::default() }));
        clock.advance(61);
        assert_eq!(run(&backend, RollCall { queue: queue(), klass: None }), 0);
    }
}

#[test]
fn after_the_clock_went_back_a_lock_ends_at_most_one_lock_length_from_now() {
    for (backend, clock) in backends() {
        clock.advance(1_000_000);
        run(&backend, put(1, PutOptions::default()));
        run(&backend, put(2, PutOptions::default()));
        let dead = run(&backend, pop("dead")).jobs.remove(0);
        let alive = run(&backend, pop("alive")).jobs.remove(0);
        assert_eq!(dead.lock.expires, Timestamp::from(1_000_060));
        let mut waiting = backend.pop_or_wait(pop("w2"), Seconds::from(36_000));
        assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        clock.set(500_000);
        // Later messages are answered later, so the engine has read the clock by now.
        run(&backend, Length { queue: queue() });
        let beat = Heartbeat { jid: alive.jid, holder: Holder::Token(alive.lock.token), payload: None };
        clock.advance(30);
        assert_eq!(run(&backend, beat), Timestamp::from(500_090));
        // The worker is warned when its lock ends, and loses the job when the grace period is over.
        clock.advance(31);
        run(&backend, Length { queue: queue() });
        clock.advance(11);
        let job = block_on(waiting).unwrap().jobs.remove(0);
        assert_eq!((job.jid, job.lock.expires), (dead.jid, Timestamp::from(500_132)));
    }
}

/// A clock that is set forward without a notice, like the machine's.
#[derive(Default)]
struct SilentClock {
    ahead: std::sync::atomic::AtomicU32,
}

impl Clock for SilentClock {
    fn now(&self) -> Timestamp {
        let ahead = self.ahead.load(std::sync::atomic::Ordering::SeqCst);
        SystemClock.now() + Seconds::from(ahead as i32)
    }

    fn elapsed(&self) -> Seconds {
        SystemClock.elapsed()
    }
}

#[test]
fn a_clock_that_is_set_forward_is_noticed_without_a_command() {
    let clock = Arc::new(SilentClock::default());
    let backend = StoreBackend::in_memory(clock.clone()).unwrap();
    run(&backend, Put { delay: Seconds::from(600), ..put(1, PutOptions::default()) });
    let mut waiting = backend.pop_or_wait(pop("w1"), Seconds::from(300));
    assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    // Later messages are answered later, so the pop is parked by now.
    run(&backend, Length { queue: queue() });
    clock.ahead.store(601, std::sync::atomic::Ordering::SeqCst);
    // Without noticing the clock this would take five minutes.
    assert_eq!(block_on(waiting).unwrap().jobs.len(), 1);
}
