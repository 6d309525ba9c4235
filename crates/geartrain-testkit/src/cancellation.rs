//! Provoked cancellations: pops whose futures are dropped while jobs arrive for them.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use geartrain_core::{
    Answer, Backend, BackendError, Call, Complete, Count, EndReason, HistoryEvent, Jid, Klass, Length,
    Pending, Pop, Popped, Put, QueueName, Queues, Reply, WorkerName,
};
use pollster::block_on;

/// How long a job may take to come back. Far more than it ever takes: only a lost job makes a test wait for it.
const COMES_BACK_MAX: Duration = Duration::from_secs(20);
/// How many rounds measure the latency of the backend.
const MEASURED: u32 = 32;

/// Where a released job is, once the future of its pop is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Return {
    /// At the front before the next command of the same caller.
    AtOnce,
    /// On its way over a connection: the next pop may take a later job first.
    Soon,
}

/// Drops this many pops of a backend at varying moments, while another thread puts jobs for them. Every job
/// must come back to the front of its queue, without having lost a retry, and be delivered exactly once.
///
/// # Panics
///
/// If a job is lost, doubled, out of order, or left locked without a holder.
pub fn cancel_pops(backend: &Arc<dyn Backend>, cancellations: usize, returned: Return) {
    let fixture = Fixture::new(backend.clone());
    let latency = fixture.latency();
    let (mut rng, mut cancelled, mut released, mut round) = (fastrand::Rng::with_seed(7_041), 0, 0, 0);
    let (go, rounds) = mpsc::channel::<(Vec<Put>, Duration)>();
    let (done, puts_done) = mpsc::channel();
    thread::scope(|scope| {
        let putter = &fixture;
        scope.spawn(move || {
            for (puts, delay) in rounds {
                spin(delay);
                putter.execute(puts.into_iter().map(Call::from).collect());
                if done.send(()).is_err() {
                    return;
                }
            }
        });
        // Dropped first, also by a panic: it ends the thread.
        let go = go;
        while cancelled < cancellations {
            round += 1;
            let puts: Vec<Put> = (0..rng.usize(1..=2)).map(|job| fixture.put(round, job)).collect();
            let expected: Vec<Jid> = puts.iter().map(|put| put.jid.clone()).collect();
            go.send((puts, latency.mul_f64(rng.f64()))).expect("the thread runs until the end");
            let pop = fixture.pop("cancelled", rng.i64(1..=3));
            let call: Pending<'_, Vec<Popped>> = match rng.u8(0..3) {
                0 => fixture.pop_now(pop),
                _ => fixture.pop_or_wait(pop),
            };
            // Sometimes the drop comes last, so that the jobs are in the reply; and sometimes the future is not
            // polled when its reply is there.
            let (waits_for_put, polls_again) = (rng.u8(0..8) == 0, rng.bool());
            let mut call = CancelledCall::start(call);
            let mut received = if waits_for_put {
                puts_done.recv().expect("the puts are answered");
                call.ready.take()
            } else {
                call.poll_for(latency.mul_f64(2.0 * rng.f64()), polls_again)
            };
            drop(call);
            cancelled += usize::from(received.is_none());
            if !waits_for_put {
                puts_done.recv().expect("the puts are answered");
            }
            let mut seen = Vec::new();
            loop {
                for job in received.take().unwrap_or_default() {
                    released += usize::from(fixture.check_and_complete(&job));
                    seen.push(job.jid);
                }
                if seen.len() >= expected.len() {
                    break;
                }
                let jobs =
                    block_on(fixture.pop_or_wait(fixture.pop("patient", 3))).expect("the backend answers");
                assert!(!jobs.is_empty(), "round {round}: {expected:?} were put, and only {seen:?} came");
                received = Some(jobs);
            }
            if returned == Return::Soon {
                seen.sort();
            }
            assert_eq!(seen, expected, "round {round}");
        }
    });
    assert!(released > 0, "none of {round} rounds dropped a pop that had a job");
    fixture.check_empty();
}

/// Drops a pop that has a job, and then its backend, which is all that a process does before it ends. The job
/// must come back at once, not when its lock expires. `connect` opens another backend for the same queues.
///
/// # Panics
///
/// If a job is lost, doubled, or left locked without a holder.
pub fn drop_backends(backend: &Arc<dyn Backend>, rounds: usize, connect: impl Fn() -> Arc<dyn Backend>) {
    let fixture = Fixture::new(backend.clone());
    for round in 1..=rounds {
        let other = Fixture::new(connect());
        // Not a jid of `cancel_pops`, which may have used the same queue.
        let put = fixture.put(round, 9);
        let (waits, polls) = (round % 2 == 0, round % 3 == 0);
        let mut call = if waits {
            let call = CancelledCall::start(other.pop_or_wait(other.pop("cancelled", 1)));
            fixture.execute(vec![put.into()]);
            call
        } else {
            fixture.execute(vec![put.into()]);
            CancelledCall::start(other.pop_now(other.pop("cancelled", 1)))
        };
        if polls && call.ready.is_none() {
            call.poll();
        }
        let received = call.ready.take();
        drop(call);
        let jobs = match received {
            Some(jobs) if !jobs.is_empty() => jobs,
            _ => {
                drop(other);
                block_on(fixture.pop_or_wait(fixture.pop("patient", 3))).expect("the backend answers")
            }
        };
        assert_eq!(jobs.len(), 1, "round {round}");
        fixture.check_and_complete(&jobs[0]);
    }
    fixture.check_empty();
}

struct Fixture {
    backend: Arc<dyn Backend>,
    queue: QueueName,
    klass: Klass,
}

impl Fixture {
    fn new(backend: Arc<dyn Backend>) -> Fixture {
        let queue = QueueName::new("cancelled-pops").expect("a good name");
        Fixture { backend, queue, klass: Klass::new("welcome").expect("a good name") }
    }

    fn execute(&self, batch: Vec<Call>) -> Vec<Reply> {
        let answers = block_on(self.backend.execute(batch)).expect("the backend answers");
        answers.into_iter().collect::<Result<_, _>>().expect("nothing is refused")
    }

    /// How long a put and a pop of it take.
    fn latency(&self) -> Duration {
        let begun = Instant::now();
        for job in 0..MEASURED {
            self.execute(vec![self.put(0, job as usize).into()]);
            let jobs = block_on(self.pop_or_wait(self.pop("patient", 1))).expect("the backend answers");
            self.check_and_complete(&jobs[0]);
        }
        begun.elapsed() / MEASURED
    }

    fn put(&self, round: usize, job: usize) -> Put {
        let jid = Jid::new(format!("{round}-{job}")).expect("a good name");
        Put::new(self.queue.clone(), jid, self.klass.clone(), "{}")
    }

    fn pop(&self, worker: &str, count: i64) -> Pop {
        let (worker, count) =
            (WorkerName::new(worker).expect("a good name"), Count::new(count).expect("a small number"));
        Pop { count, whole: true, ..Pop::new(self.queue.clone(), worker) }
    }

    fn pop_or_wait(&self, pop: Pop) -> Pending<'_, Vec<Popped>> {
        Box::pin(async { Ok(self.backend.pop_or_wait(pop, COMES_BACK_MAX.into()).await?.jobs) })
    }

    /// In the middle of a batch.
    fn pop_now(&self, pop: Pop) -> Pending<'_, Vec<Popped>> {
        let length = || Call::from(Length { queue: self.queue.clone() });
        let batch = vec![length(), pop.into(), length()];
        Box::pin(async {
            let popped =
                self.backend.execute(batch).await?.into_iter().flat_map(|answer: Answer| match answer {
                    Ok(Reply::Pop(reply)) => reply.jobs,
                    _ => Vec::new(),
                });
            Ok(popped.collect())
        })
    }

    /// Completes a job. Returns whether it was released before.
    fn check_and_complete(&self, popped: &Popped) -> bool {
        let job = popped.job.as_ref().expect("the pop asked for the whole job");
        assert_eq!((job.remaining, &job.past_failure), (i64::from(popped.retries), &None), "{job:?}");
        let releases = job.attempts.iter().filter(|end| end.reason == EndReason::Released).count();
        let pops = job.history.iter().filter(|entry| matches!(entry.what, HistoryEvent::Popped { .. }));
        assert_eq!(pops.count(), releases + 1, "each pop but the last was released: {job:?}");
        self.execute(vec![Complete::new(popped.jid.clone(), popped.holder()).into()]);
        releases > 0
    }

    fn check_empty(&self) {
        let Some(Reply::Queues(queues)) = self.execute(vec![Queues::default().into()]).pop() else {
            panic!("expected the counts of the queues")
        };
        for counts in queues.iter().filter(|counts| counts.name == self.queue) {
            assert_eq!((counts.waiting, counts.running, counts.stalled), (0, 0, 0), "{counts:?}");
        }
    }
}

/// A call that is polled once, and then for a while.
struct CancelledCall<'a> {
    call: Pending<'a, Vec<Popped>>,
    woken: Arc<Woken>,
    ready: Option<Vec<Popped>>,
}

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Woken>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl<'a> CancelledCall<'a> {
    fn start(call: Pending<'a, Vec<Popped>>) -> CancelledCall<'a> {
        let mut started = CancelledCall { call, woken: Arc::new(Woken(AtomicBool::new(false))), ready: None };
        started.poll();
        started
    }

    fn poll(&mut self) {
        let waker = Waker::from(self.woken.clone());
        let mut call = pin!(&mut self.call);
        if let Poll::Ready(reply) = call.as_mut().poll(&mut Context::from_waker(&waker)) {
            let reply: Result<Vec<Popped>, BackendError> = reply;
            self.ready = Some(reply.expect("the backend answers"));
        }
    }

    /// The reply, if it comes within this time.
    fn poll_for(&mut self, lasts: Duration, polls_again: bool) -> Option<Vec<Popped>> {
        let begun = Instant::now();
        while self.ready.is_none() && begun.elapsed() < lasts {
            if polls_again && self.woken.0.swap(false, Ordering::SeqCst) {
                self.poll();
            }
            thread::yield_now();
        }
        self.ready.take()
    }
}

fn spin(lasts: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < lasts {
        thread::yield_now();
    }
}
