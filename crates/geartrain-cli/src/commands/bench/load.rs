//! Load generation: jobs that are put, popped and completed as fast as possible.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use geartrain::{
    Answer, BadName, Call, Client, Complete, Count, Error, Jid, Klass, Payload, Pop, Popped, Put, QueueName,
    Reply, WorkerName,
};
use pollster::block_on;

use crate::failure::Failure;

pub(super) const PAYLOAD_BYTES: usize = 100;
/// Jobs per batch, unless given.
pub(super) const BATCH_JOBS: u32 = 100;
/// The minimum size of a batch, and the maximum number of batches, if one caller keeps many commands in
/// flight.
const BATCH_COMMANDS_MIN: u32 = 250;
const BATCHES_MAX: u32 = 4;
/// The warm-up before each measurement: this fraction of it.
const WARM_UP_FRACTION: u32 = 4;
/// Jobs per batch before anything is measured.
const WARM_UP_BATCH_JOBS: u32 = 1_000;
/// The number of producer threads, and of worker threads.
pub(super) const THREADS: u64 = 2;
/// The maximum number of jobs while only puts are measured.
const PUT_JOBS_MAX: u64 = 3_000_000;
/// The maximum backlog while producers and workers run at once.
const BACKLOG_MAX: u64 = 20_000;
/// The maximum number of latency samples.
const SAMPLES_MAX: usize = 100_000;
/// How long an idle thread sleeps.
const PAUSE: Duration = Duration::from_micros(100);
/// The idle time between two puts, and the timeout of a parked pop.
const IDLE: Duration = Duration::from_millis(1);
const WAIT: Duration = Duration::from_millis(200);
/// How long a job may take to arrive before the measurement fails.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// A producer and worker on one queue.
#[derive(Clone)]
pub(super) struct Load {
    pub(super) client: Client,
    pub(super) queue: QueueName,
    klass: Klass,
    worker: WorkerName,
    payload: Payload,
    jids: Jids,
    /// The duration of the slowest batch so far.
    pub(super) longest: Duration,
}

impl Load {
    pub(super) fn new(client: Client, queue: QueueName) -> Result<Load, Failure> {
        let names = || Ok::<_, BadName>((Klass::new("app.jobs.Welcome")?, WorkerName::new(queue.as_str())?));
        let (klass, worker) = names().map_err(Error::from)?;
        // JSON, as most payloads are.
        let payload = format!("\"{}\"", "x".repeat(PAYLOAD_BYTES - 2)).into();
        Ok(Load { client, queue, klass, worker, payload, jids: Jids::new(), longest: Duration::ZERO })
    }

    /// The same load with ids of its own.
    fn another(&self) -> Load {
        Load { jids: Jids::new(), ..self.clone() }
    }

    fn put_of(&self, jid: Jid) -> Put {
        Put::new(self.queue.clone(), jid, self.klass.clone(), self.payload.clone())
    }

    pub(super) fn next_put(&mut self) -> Put {
        let jid = self.jids.next();
        self.put_of(jid)
    }

    pub(super) fn next_pop(&self) -> Pop {
        Pop::new(self.queue.clone(), self.worker.clone())
    }

    /// Sends a batch and waits for its replies.
    async fn send(&mut self, calls: Vec<Call>) -> Result<Vec<Answer>, Failure> {
        let start = Instant::now();
        let answers = self.client.batch(calls).await?;
        self.longest = self.longest.max(start.elapsed());
        Ok(answers)
    }

    /// Sends a batch and counts the replies, none of which may be a refusal.
    async fn count(&mut self, calls: Vec<Call>) -> Result<u64, Failure> {
        let answers = self.send(calls).await?;
        let count = answers.len() as u64;
        answers.into_iter().try_for_each(|answer| answer.map(drop))?;
        Ok(count)
    }

    /// Puts jobs in one batch.
    pub(super) async fn put(&mut self, jobs: u32) -> Result<u64, Failure> {
        let calls = (0..jobs).map(|_| self.next_put().into()).collect();
        self.count(calls).await
    }

    /// Pops up to `jobs` jobs and completes them in one batch. Returns how many there were.
    pub(super) async fn work(&mut self, jobs: u32) -> Result<u64, Failure> {
        let count = Count::new(jobs.into()).map_err(Error::from)?;
        let popped = self.send(vec![Pop { count, ..self.next_pop() }.into()]).await?;
        self.complete(popped).await
    }

    /// Completes the held jobs and pops up to `jobs` more, in one batch. Returns the commands that complete
    /// those.
    async fn complete_and_pop(&mut self, held: Vec<Call>, jobs: u32) -> Result<Vec<Call>, Failure> {
        let count = Count::new(jobs.into()).map_err(Error::from)?;
        let mut calls = held;
        calls.push(Pop { count, ..self.next_pop() }.into());
        let mut completes = Vec::with_capacity(jobs as usize + 1);
        for answer in self.send(calls).await? {
            if let Reply::Pop(reply) = answer? {
                completes.extend(reply.jobs.into_iter().map(|job| Call::from(completed(job))));
            }
        }
        Ok(completes)
    }

    /// Runs the lifecycles of `jobs` jobs: a batch of puts, then of pops, then of completes.
    async fn lifecycles(&mut self, jobs: u32) -> Result<u64, Failure> {
        self.put(jobs).await?;
        let pops = (0..jobs).map(|_| self.next_pop().into()).collect();
        let popped = self.send(pops).await?;
        match self.complete(popped).await? {
            done if done == u64::from(jobs) => Ok(done),
            _ => Err(job_missing()),
        }
    }

    /// Runs lifecycles before anything is measured.
    pub(super) fn warm_up(&mut self, jobs: u32) -> Result<(), Failure> {
        let mut left = jobs;
        while left > 0 {
            let batch = left.min(WARM_UP_BATCH_JOBS);
            block_on(self.lifecycles(batch))?;
            left -= batch;
        }
        Ok(())
    }

    async fn complete(&mut self, popped: Vec<Answer>) -> Result<u64, Failure> {
        let mut completes = Vec::with_capacity(popped.len());
        for answer in popped {
            if let Reply::Pop(reply) = answer? {
                completes.extend(reply.jobs.into_iter().map(|job| Call::from(completed(job))));
            }
        }
        if completes.is_empty() {
            return Ok(0);
        }
        self.count(completes).await
    }
}

pub(super) fn completed(job: Popped) -> Complete {
    let holder = job.holder();
    Complete::new(job.jid, holder)
}

/// The job in the reply to a pop.
pub(super) fn popped(answer: Answer) -> Option<Popped> {
    match answer {
        Ok(Reply::Pop(reply)) => reply.jobs.into_iter().next(),
        _ => None,
    }
}

fn job_missing() -> Failure {
    Failure::Unreachable(
        "a job that was put could not be popped; does another worker use these queues?".into(),
    )
}

/// Measures a rate over a window. A warm-up comes first, because a core that was idle or did something else
/// is slow at first.
struct Meter {
    start: Instant,
    warm_up: Duration,
    window: Duration,
    /// The start of the count, the count, and whether the warm-up is over. A measurement that ends earlier
    /// counts from its beginning.
    counted: Cell<(Instant, u64, bool)>,
}

impl Meter {
    fn new(window: Duration) -> Meter {
        let start = Instant::now();
        Meter { start, warm_up: window / WARM_UP_FRACTION, window, counted: Cell::new((start, 0, false)) }
    }

    fn is_over(&self) -> bool {
        self.start.elapsed() >= self.warm_up + self.window
    }

    fn add(&self, more: u64) {
        let (since, done, is_warm) = self.counted.get();
        self.counted.set(match is_warm || self.start.elapsed() < self.warm_up {
            true => (since, done + more, is_warm),
            false => (Instant::now(), 0, true),
        });
    }

    fn rate(&self) -> f64 {
        let (since, done, _) = self.counted.get();
        done as f64 / since.elapsed().as_secs_f64()
    }
}

/// Repeats a step until the window is over, a step does nothing, or `count_max` is reached. Returns the rate
/// per second.
pub(super) fn rate(
    window: Duration,
    count_max: u64,
    mut step: impl FnMut() -> Result<u64, Failure>,
) -> Result<f64, Failure> {
    let (meter, mut done) = (Meter::new(window), 0);
    while !meter.is_over() && done < count_max {
        match step()? {
            0 => break,
            more => {
                meter.add(more);
                done += more;
            }
        }
    }
    Ok(meter.rate())
}

/// Lifecycles per second of one caller with `in_flight` commands. Many commands are split into several
/// batches, so that one is built and another answered while the rest are executed.
pub(super) fn batched(load: &mut Load, in_flight: u32, window: Duration) -> Result<f64, Failure> {
    let batches = (in_flight / BATCH_COMMANDS_MIN).clamp(1, BATCHES_MAX);
    let (meter, longest) = (Meter::new(window), Cell::new(load.longest));
    let batch = |number: u32| {
        let mut load = load.another();
        let jobs = in_flight / batches + u32::from(number < in_flight % batches);
        let (meter, longest) = (&meter, &longest);
        async move {
            while !meter.is_over() {
                meter.add(load.lifecycles(jobs).await?);
            }
            longest.set(load.longest.max(longest.get()));
            Ok(())
        }
    };
    join_all((0..batches).map(batch))?;
    load.longest = longest.get();
    Ok(meter.rate())
}

/// Runs futures concurrently on this thread until all are done or one fails.
fn join_all(futures: impl Iterator<Item: Future<Output = Result<(), Failure>>>) -> Result<(), Failure> {
    let mut futures: FuturesUnordered<_> = futures.collect();
    block_on(async {
        while let Some(ended) = futures.next().await {
            ended?;
        }
        Ok(())
    })
}

/// Lifecycles per second of `in_flight` callers, each with one command at a time. All run on one thread, so
/// that their cost is that of one thread, however many there are.
pub(super) fn independent(load: &Load, in_flight: u32, window: Duration) -> Result<f64, Failure> {
    let meter = Meter::new(window);
    let jids = RefCell::new(Jids::new());
    let caller = |_| async {
        while !meter.is_over() {
            let jid = jids.borrow_mut().next();
            load.client.run(load.put_of(jid)).await?;
            let popped = load.client.run(load.next_pop()).await?;
            let job = popped.jobs.into_iter().next().ok_or_else(job_missing)?;
            load.client.run(completed(job)).await?;
            meter.add(1);
        }
        Ok(())
    };
    join_all((0..in_flight).map(caller))?;
    Ok(meter.rate())
}

/// Puts per second, in batches of one caller.
pub(super) fn put_only(load: &mut Load, window: Duration) -> Result<f64, Failure> {
    rate(window, PUT_JOBS_MAX, || block_on(load.put(BATCH_JOBS)))
}

/// Pops and completes per second, in batches of one caller, until the queue is empty or twice the window is
/// over.
pub(super) fn drain_only(load: &mut Load, window: Duration) -> Result<f64, Failure> {
    rate(2 * window, u64::MAX, || block_on(load.work(BATCH_JOBS)))
}

/// Jobs completed per second with producer and worker threads.
pub(super) fn together(load: &Load, window: Duration) -> Result<f64, Failure> {
    let (start, put, done) = (Instant::now(), AtomicU64::new(0), AtomicU64::new(0));
    let is_over = || start.elapsed() >= window;
    let produce = || {
        let mut load = load.another();
        // At least one put, however short the window.
        loop {
            let backlog = put.load(Ordering::Relaxed).saturating_sub(done.load(Ordering::Relaxed));
            if backlog < BACKLOG_MAX {
                put.fetch_add(block_on(load.put(BATCH_JOBS))?, Ordering::Relaxed);
            } else {
                thread::sleep(PAUSE);
            }
            if is_over() {
                return Ok::<(), Failure>(());
            }
        }
    };
    let work = || {
        let mut load = load.another();
        let mut held = Vec::new();
        let is_idle = || done.load(Ordering::Relaxed) == 0 && start.elapsed() < window + ANSWER_MAX;
        while !is_over() || is_idle() {
            let completed = held.len() as u64;
            held = block_on(load.complete_and_pop(held, BATCH_JOBS))?;
            done.fetch_add(completed, Ordering::Relaxed);
            if completed == 0 && held.is_empty() {
                thread::sleep(PAUSE);
            }
        }
        if !held.is_empty() {
            block_on(load.count(held))?;
        }
        Ok::<(), Failure>(())
    };
    thread::scope(|scope| {
        let producers = (0..THREADS).map(|_| scope.spawn(produce));
        let threads: Vec<_> = producers.chain((0..THREADS).map(|_| scope.spawn(work))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| Err(panicked())))
    })?;
    Ok(done.into_inner() as f64 / start.elapsed().as_secs_f64())
}

fn panicked() -> Failure {
    Failure::Unreachable("a thread of the benchmark panicked".to_owned())
}

/// Latencies from a put to its parked pop on an idle queue, sorted.
pub(super) fn latencies(load: &Load, window: Duration) -> Result<Vec<Duration>, Failure> {
    let stop = AtomicBool::new(false);
    let (report, reports) = mpsc::channel();
    let work = |report: mpsc::Sender<Instant>| {
        while !stop.load(Ordering::Relaxed) {
            let reply = block_on(load.client.pop_any(load.next_pop(), WAIT))?;
            let popped = Instant::now();
            if let Some(job) = reply.jobs.into_iter().next() {
                block_on(load.client.run(completed(job)))?;
                // Fails only after the measurement has ended.
                let _ = report.send(popped);
            }
        }
        Ok::<(), Failure>(())
    };
    thread::scope(|scope| {
        let worker = scope.spawn(|| work(report));
        let mut load = load.another();
        let (start, mut samples) = (Instant::now(), Vec::new());
        let mut sample = || {
            thread::sleep(IDLE);
            let put = Instant::now();
            block_on(load.put(1))?;
            // If the worker fails it drops its sender, and its error comes from join.
            Ok::<_, Failure>(
                reports.recv_timeout(ANSWER_MAX).ok().map(|popped| popped.saturating_duration_since(put)),
            )
        };
        let mut failed = Ok(());
        while start.elapsed() < window && samples.len() < SAMPLES_MAX {
            match sample() {
                Ok(Some(latency)) => samples.push(latency),
                other => {
                    failed = other.and(Err(job_missing()));
                    break;
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
        worker.join().unwrap_or_else(|_| Err(panicked()))?;
        failed?;
        samples.sort_unstable();
        Ok(samples)
    })
}

/// Fast UUIDs of version 7: the crate's generator makes a system call for each one, which would be measured
/// too.
#[derive(Clone)]
pub(super) struct Jids {
    milliseconds: u64,
    state: u64,
}

impl Jids {
    pub(super) fn new() -> Jids {
        let (high, low) = uuid::Uuid::now_v7().as_u64_pair();
        Jids { milliseconds: high >> 16, state: high.rotate_left(32) ^ low }
    }

    pub(super) fn next(&mut self) -> Jid {
        let mut random = [0; 10];
        random[..8].copy_from_slice(&self.random().to_le_bytes());
        random[8..].copy_from_slice(&self.random().to_le_bytes()[..2]);
        let uuid = uuid::Builder::from_unix_timestamp_millis(self.milliseconds, &random).into_uuid();
        Jid::from_uuid(uuid.into_bytes())
    }

    /// SplitMix64: fast, with a period of 2^64.
    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.state ^ self.state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }
}
