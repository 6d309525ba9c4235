//! The engine loop: concurrent callers, parked pops, subscribers, shutdown, and a panic in the engine.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use geartrain_core::SystemClock;
use geartrain_core::*;
use geartrain_store::StoreBackend;
use pollster::block_on;

fn backend() -> StoreBackend {
    StoreBackend::in_memory(Arc::new(SystemClock)).unwrap()
}

fn put(number: usize) -> Call {
    let jid = Jid::new(format!("{number:032x}")).unwrap();
    Put::new(QueueName::new("mail").unwrap(), jid, Klass::new("welcome").unwrap(), "{}").into()
}

fn pop(worker: &str) -> Pop {
    Pop::new(QueueName::new("mail").unwrap(), WorkerName::new(worker).unwrap())
}

#[test]
fn concurrent_producers_and_workers_complete_every_job_once() {
    const PRODUCERS: usize = 3;
    const JOBS_EACH: usize = 2_000;
    let backend = backend();
    let mut done = Vec::new();
    std::thread::scope(|scope| {
        for producer in 0..PRODUCERS {
            let backend = &backend;
            scope.spawn(move || {
                for batch in 0..JOBS_EACH / 10 {
                    let calls = (0..10).map(|n| put(producer * JOBS_EACH + batch * 10 + n)).collect();
                    let answers = block_on(backend.execute(calls)).unwrap();
                    assert!(answers.iter().all(|answer| *answer == Ok(Reply::Put(PutReply::Created))));
                }
            });
        }
        let work = |worker: &'static str| {
            let backend = &backend;
            move || {
                let mut done = Vec::new();
                // A stop job of the lowest priority ends each worker after all other jobs.
                loop {
                    let reply = block_on(backend.pop_or_wait(pop(worker), Seconds::from(60))).unwrap();
                    let job = reply.jobs.into_iter().next().expect("a job is put within a minute");
                    if job.klass.as_str() == "stop" {
                        return done;
                    }
                    let complete = Complete::new(job.jid.clone(), Holder::Token(job.lock.token));
                    let answers = block_on(backend.execute(vec![complete.into()])).unwrap();
                    assert_eq!(answers, [Ok(Reply::Complete(CompleteReply::Complete))]);
                    done.push(job.jid);
                }
            }
        };
        let workers = ["w1", "w2"].map(|worker| scope.spawn(work(worker)));
        for stop in ["stop-1", "stop-2"] {
            let stop = Put {
                priority: Some(Priority::from(-1)),
                ..Put::new(
                    QueueName::new("mail").unwrap(),
                    Jid::new(stop).unwrap(),
                    Klass::new("stop").unwrap(),
                    "",
                )
            };
            // Put once all other jobs exist or are done.
            let all_put = || {
                let last = (0..PRODUCERS).map(|producer| Get {
                    jid: Jid::new(format!("{:032x}", (producer + 1) * JOBS_EACH - 1)).unwrap(),
                });
                let answers = block_on(backend.execute(last.map(Call::from).collect())).unwrap();
                answers.iter().all(|answer| matches!(answer, Ok(Reply::Get(Some(_)))))
            };
            while !all_put() {
                std::thread::yield_now();
            }
            block_on(backend.execute(vec![stop.into()])).unwrap();
        }
        done = workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect();
    });
    assert_eq!(done.len(), PRODUCERS * JOBS_EACH);
    assert_eq!(done.iter().collect::<BTreeSet<_>>().len(), PRODUCERS * JOBS_EACH);
}

/// Workers that pop only after a readiness wait, as Gearman workers do: a lost wake-up would leave a job
/// behind.
#[test]
fn a_readiness_wait_never_misses_a_job() {
    const JOBS: usize = 3_000;
    let backend = backend();
    let mail = || vec![QueueName::new("mail").unwrap()];
    let done = std::thread::scope(|scope| {
        let work = |worker: &'static str| {
            let backend = &backend;
            move || {
                let mut done = Vec::new();
                loop {
                    let Ok(Reply::Pop(reply)) =
                        block_on(backend.execute(vec![pop(worker).into()])).unwrap().remove(0)
                    else {
                        panic!("the reply to a pop is a pop reply")
                    };
                    match reply.jobs.into_iter().next() {
                        Some(job) if job.klass.as_str() == "stop" => return done,
                        Some(job) => done.push(job.jid),
                        None => {
                            let is_ready =
                                block_on(backend.ready_or_wait(mail(), Seconds::from(60))).unwrap();
                            assert!(is_ready, "{worker} waited for a minute");
                        }
                    }
                }
            }
        };
        let workers = ["w1", "w2", "w3"].map(|worker| scope.spawn(work(worker)));
        // One at a time, so that the workers run out of jobs again and again.
        for number in 0..JOBS {
            block_on(backend.execute(vec![put(number)])).unwrap();
        }
        for stop in ["stop-1", "stop-2", "stop-3"] {
            let (jid, klass) = (Jid::new(stop).unwrap(), Klass::new("stop").unwrap());
            let priority = Some(Priority::from(-1));
            let stop = Put { priority, ..Put::new(mail().remove(0), jid, klass, "") };
            block_on(backend.execute(vec![stop.into()])).unwrap();
        }
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(done.len(), JOBS);
    assert_eq!(done.iter().collect::<BTreeSet<_>>().len(), JOBS);
}

#[test]
fn a_slow_subscriber_is_dropped_with_its_position_and_a_fast_one_is_not() {
    let backend = backend();
    let mut slow = block_on(backend.subscribe()).unwrap();
    let mut fast = block_on(backend.subscribe()).unwrap();
    let (mut received, mut first) = (0_u64, None);
    for batch in 0..300 {
        block_on(backend.execute((0..1_000).map(|n| put(batch * 1_000 + n)).collect())).unwrap();
        for _ in 0..1_000 {
            let position = block_on(fast.next()).unwrap().position;
            assert_eq!(position, *first.get_or_insert(position) + received);
            received += 1;
        }
    }
    let first = first.unwrap();
    let mut got = 0;
    let missed = loop {
        match block_on(slow.next()) {
            Ok(published) => {
                assert_eq!(published.position, first + got);
                got += 1;
            }
            Err(end) => break end,
        }
    };
    assert_eq!(missed, SubscriptionEnd::Lagged { missed: first + got });
    assert!(got < received);
}

#[test]
fn parked_requests_get_an_error_at_shutdown() {
    let backend = backend();
    let mut events = block_on(backend.subscribe()).unwrap();
    let mut parked = backend.pop_or_wait(pop("w1"), Seconds::from(3_600));
    let mut context = Context::from_waker(Waker::noop());
    assert!(parked.as_mut().poll(&mut context).is_pending());
    let mut ready = backend.ready_or_wait(vec![QueueName::new("mail").unwrap()], Seconds::from(3_600));
    assert!(ready.as_mut().poll(&mut context).is_pending());
    let pause = Pause { queues: vec![QueueName::new("mail").unwrap()] };
    block_on(backend.execute(vec![pause.into(), put(1)])).unwrap();
    block_on(backend.shut_down());
    let error = block_on(parked).unwrap_err();
    assert!(matches!(error, BackendError::Broken { backend: "memory", .. }), "{error:?}");
    let error = block_on(ready).unwrap_err();
    assert!(matches!(error, BackendError::Broken { backend: "memory", .. }), "{error:?}");
    let error = block_on(backend.execute(vec![put(2)])).unwrap_err();
    assert_eq!(error.to_string(), "the memory backend cannot answer");
    assert!(matches!(*block_on(events.next()).unwrap().event, Event::Put { .. }));
    assert_eq!(block_on(events.next()), Err(SubscriptionEnd::Closed));
    block_on(backend.shut_down());
}

#[test]
fn events_of_a_command_are_published_before_its_reply() {
    let backend = backend();
    let mut events = block_on(backend.subscribe()).unwrap();
    block_on(backend.execute(vec![put(1)])).unwrap();
    let mut next = events.next();
    let mut context = Context::from_waker(Waker::noop());
    assert!(next.as_mut().poll(&mut context).is_ready());
}

#[test]
fn a_subscription_receives_the_events_of_the_next_bulk_batch() {
    const JOBS: usize = 100;
    for _ in 0..200 {
        let backend = backend();
        let mut subscribing = backend.subscribe();
        // The first poll sends the message.
        let now = match subscribing.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(events) => Some(events.unwrap()),
            Poll::Pending => None,
        };
        block_on(backend.execute((0..JOBS).map(put).collect())).unwrap();
        let mut events = now.unwrap_or_else(|| block_on(subscribing).unwrap());
        for _ in 0..JOBS {
            let mut context = Context::from_waker(Waker::noop());
            assert!(
                events.next().as_mut().poll(&mut context).is_ready(),
                "the batch overtook the subscription"
            );
        }
    }
}

#[test]
fn a_call_during_shutdown_gets_a_reply_or_an_error() {
    for _ in 0..300 {
        let backend = backend();
        std::thread::scope(|scope| {
            for caller in 0..3 {
                let backend = &backend;
                scope.spawn(move || {
                    let mut number = caller * 1_000_000;
                    while block_on(backend.execute(vec![put(number)])).is_ok() {
                        number += 1;
                    }
                });
            }
            block_on(backend.shut_down());
        });
    }
}

/// A clock that panics when it is read, once it is told to.
#[derive(Default)]
struct PanickingClock {
    panics: AtomicBool,
}

impl Clock for PanickingClock {
    fn now(&self) -> Timestamp {
        assert!(!self.panics.load(Ordering::SeqCst), "the test makes the engine panic");
        Timestamp::ZERO
    }

    fn elapsed(&self) -> Seconds {
        Seconds::ZERO
    }

    fn on_jump(&self, _: Box<dyn Fn() + Send + Sync>) {}
}

/// The engine may have stopped half-way through a change, so nothing may be executed on it any more: whether
/// the panic was on the thread of a caller that executes inline, or on the engine's own.
#[test]
fn after_a_panic_in_the_engine_every_command_is_refused() {
    for inline in [true, false] {
        let clock = Arc::new(PanickingClock::default());
        let backend = StoreBackend::in_memory(clock.clone()).unwrap();
        block_on(backend.execute(vec![put(1)])).unwrap();
        clock.panics.store(true, Ordering::SeqCst);
        let panicked = catch_unwind(AssertUnwindSafe(|| match inline {
            true => block_on(backend.execute(vec![put(2)])).is_err(),
            false => block_on(backend.pop_or_wait(pop("w1"), Seconds::from(60))).is_err(),
        }));
        assert!(panicked.unwrap_or(true));
        clock.panics.store(false, Ordering::SeqCst);
        for number in 3..6 {
            let error = block_on(backend.execute(vec![put(number)])).unwrap_err();
            assert!(matches!(error, BackendError::Broken { backend: "memory", .. }), "{error:?}");
        }
        let error = block_on(backend.pop_or_wait(pop("w1"), Seconds::from(60))).unwrap_err();
        assert!(matches!(error, BackendError::Broken { backend: "memory", .. }), "{error:?}");
    }
}
