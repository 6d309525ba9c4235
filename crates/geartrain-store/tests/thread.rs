//! What the engine's thread owes to those who call it.

use std::collections::BTreeSet;
use std::sync::Arc;
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
fn every_job_is_done_once_however_many_put_and_work_at_once() {
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
                // The last job is called off when all are done, which ends the wait of those who found nothing.
                loop {
                    let reply = block_on(backend.pop_or_wait(pop(worker), Seconds::from(60))).unwrap();
                    let job = reply.jobs.into_iter().next().expect("somebody puts a job within a minute");
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
            // Put behind all others, once they are there or done.
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

/// Workers that pop only when they were told that there is something, as those of Gearman do: were one wake-up lost, one would sleep through a job.
#[test]
fn nobody_who_waits_for_word_sleeps_through_a_job() {
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
                        panic!("a pop is answered as a pop")
                    };
                    match reply.jobs.into_iter().next() {
                        Some(job) if job.klass.as_str() == "stop" => return done,
                        Some(job) => done.push(job.jid),
                        None => {
                            let told = block_on(backend.ready_or_wait(mail(), Seconds::from(60))).unwrap();
                            assert!(told, "{worker} heard nothing for a minute");
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
fn a_subscriber_that_does_not_keep_up_is_dropped_with_its_position_and_others_are_not() {
    let backend = backend();
    let mut slow = block_on(backend.subscribe()).unwrap();
    let mut quick = block_on(backend.subscribe()).unwrap();
    let (mut heard, mut first) = (0_u64, None);
    for batch in 0..300 {
        block_on(backend.execute((0..1_000).map(|n| put(batch * 1_000 + n)).collect())).unwrap();
        for _ in 0..1_000 {
            let position = block_on(quick.next()).unwrap().position;
            assert_eq!(position, *first.get_or_insert(position) + heard);
            heard += 1;
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
    assert!(got < heard);
}

#[test]
fn whoever_waits_when_it_shuts_down_is_told_so() {
    let backend = backend();
    let mut events = block_on(backend.subscribe()).unwrap();
    let mut waiting = backend.pop_or_wait(pop("w1"), Seconds::from(3_600));
    let mut context = Context::from_waker(Waker::noop());
    assert!(waiting.as_mut().poll(&mut context).is_pending());
    let mut word = backend.ready_or_wait(vec![QueueName::new("mail").unwrap()], Seconds::from(3_600));
    assert!(word.as_mut().poll(&mut context).is_pending());
    let pause = Pause { queues: vec![QueueName::new("mail").unwrap()] };
    block_on(backend.execute(vec![pause.into(), put(1)])).unwrap();
    block_on(backend.shut_down());
    let error = block_on(waiting).unwrap_err();
    assert!(matches!(error, BackendError::Broken { backend: "memory", .. }), "{error:?}");
    let error = block_on(word).unwrap_err();
    assert!(matches!(error, BackendError::Broken { backend: "memory", .. }), "{error:?}");
    let error = block_on(backend.execute(vec![put(2)])).unwrap_err();
    assert_eq!(error.to_string(), "the memory backend cannot answer");
    assert!(matches!(*block_on(events.next()).unwrap().event, Event::Put { .. }));
    assert_eq!(block_on(events.next()), Err(SubscriptionEnd::Closed));
    block_on(backend.shut_down());
}

#[test]
fn events_of_a_command_are_there_before_its_answer() {
    let backend = backend();
    let mut events = block_on(backend.subscribe()).unwrap();
    block_on(backend.execute(vec![put(1)])).unwrap();
    let mut next = events.next();
    let mut context = Context::from_waker(Waker::noop());
    assert!(next.as_mut().poll(&mut context).is_ready());
}

#[test]
fn whoever_asked_to_listen_hears_of_the_large_batch_that_they_send_next() {
    const JOBS: usize = 100;
    for _ in 0..200 {
        let backend = backend();
        let mut asked = backend.subscribe();
        // It is asked as soon as it is looked at.
        let now = match asked.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(events) => Some(events.unwrap()),
            Poll::Pending => None,
        };
        block_on(backend.execute((0..JOBS).map(put).collect())).unwrap();
        let mut events = now.unwrap_or_else(|| block_on(asked).unwrap());
        for _ in 0..JOBS {
            let mut context = Context::from_waker(Waker::noop());
            assert!(events.next().as_mut().poll(&mut context).is_ready(), "the batch overtook the question");
        }
    }
}

#[test]
fn whoever_calls_while_it_shuts_down_gets_an_answer_or_an_error_but_never_nothing() {
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
