//! Work for a queue: jobs of no use, put, popped and completed as fast as it lets us.

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

/// How many bytes a payload has.
pub(super) const PAYLOAD_BYTES: usize = 100;
/// How many jobs are put or popped at a time where nobody said otherwise.
pub(super) const BATCH_JOBS: u32 = 100;
/// How many commands a batch has at least, and how many batches there are at most, where one caller keeps many commands in flight.
const BATCH_COMMANDS_MIN: u32 = 250;
const BATCHES_MAX: u32 = 4;
/// How long a run-up is: such a part of what is measured.
const RUN_UP: u32 = 4;
/// How many at a time before anything is measured.
const WARM_UP_BATCH: u32 = 1_000;
/// How many threads put, and how many work, where both happen at once.
pub(super) const THREADS: u64 = 2;
/// How many jobs a queue is given at the most while only puts are measured.
const PUT_JOBS_MAX: u64 = 3_000_000;
/// How many jobs may wait while producers and workers run at once.
const BACKLOG_MAX: u64 = 20_000;
/// How often the latency is measured at the most.
const SAMPLES_MAX: usize = 100_000;
/// How long a thread that has nothing to do waits before it looks again.
const PAUSE: Duration = Duration::from_micros(100);
/// How long the queue is left idle between one put and the next, and how long a worker waits at a time.
const IDLE: Duration = Duration::from_millis(1);
const WAIT: Duration = Duration::from_millis(200);
/// How long a job that was put may take to arrive before nobody waits for it any more.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Whoever puts jobs into one queue and works on them.
#[derive(Clone)]
pub(super) struct Load {
    pub(super) client: Client,
    pub(super) queue: QueueName,
    klass: Klass,
    worker: WorkerName,
    payload: Payload,
    jids: Jids,
    /// The longest that a batch took, so far.
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

    /// The same work, by somebody else.
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

    /// Sends a batch and waits for its answers.
    async fn send(&mut self, calls: Vec<Call>) -> Result<Vec<Answer>, Failure> {
        let start = Instant::now();
        let answers = self.client.batch(calls).await?;
        self.longest = self.longest.max(start.elapsed());
        Ok(answers)
    }

    /// The same, and counts the answers, none of which may be a refusal.
    async fn count(&mut self, calls: Vec<Call>) -> Result<u64, Failure> {
        let answers = self.send(calls).await?;
        let count = answers.len() as u64;
        answers.into_iter().try_for_each(|answer| answer.map(drop))?;
        Ok(count)
    }

    /// Puts so many jobs with one batch.
    pub(super) async fn put(&mut self, jobs: u32) -> Result<u64, Failure> {
        let calls = (0..jobs).map(|_| self.next_put().into()).collect();
        self.count(calls).await
    }

    /// Takes up to so many jobs with one pop and completes them with one batch. Answers how many there were.
    pub(super) async fn work(&mut self, jobs: u32) -> Result<u64, Failure> {
        let count = Count::new(jobs.into()).map_err(Error::from)?;
        let popped = self.send(vec![Pop { count, ..self.next_pop() }.into()]).await?;
        self.complete(popped).await
    }

    /// Completes what is held and takes up to so many more, with one batch. Answers how to complete those.
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

    /// Carries so many jobs through their whole life: that many puts at once, then pops, then completes.
    async fn lifecycles(&mut self, jobs: u32) -> Result<u64, Failure> {
        self.put(jobs).await?;
        let pops = (0..jobs).map(|_| self.next_pop().into()).collect();
        let popped = self.send(pops).await?;
        match self.complete(popped).await? {
            done if done == u64::from(jobs) => Ok(done),
            _ => Err(nothing_there()),
        }
    }

    /// Carries so many jobs through before anything is measured.
    pub(super) fn warm_up(&mut self, jobs: u32) -> Result<(), Failure> {
        let mut left = jobs;
        while left > 0 {
            let batch = left.min(WARM_UP_BATCH);
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

/// What a pop found, in the reply to it.
pub(super) fn popped(answer: Answer) -> Option<Popped> {
    match answer {
        Ok(Reply::Pop(reply)) => reply.jobs.into_iter().next(),
        _ => None,
    }
}

fn nothing_there() -> Failure {
    Failure::Unreachable(
        "a job that was put was not there to be popped; does another worker use these queues?".into(),
    )
}

/// Counts what is done in a stretch of time. The first part of it only counts as a run-up: a core that was idle, or did something else, is slow at first.
struct Meter {
    start: Instant,
    run_up: Duration,
    window: Duration,
    /// Since when it counts, how much was done since, and whether the run-up is over. What ends earlier counts from its beginning.
    counted: Cell<(Instant, u64, bool)>,
}

impl Meter {
    fn new(window: Duration) -> Meter {
        let start = Instant::now();
        Meter { start, run_up: window / RUN_UP, window, counted: Cell::new((start, 0, false)) }
    }

    fn is_over(&self) -> bool {
        self.start.elapsed() >= self.run_up + self.window
    }

    fn add(&self, more: u64) {
        let (since, done, is_run_up) = self.counted.get();
        self.counted.set(match is_run_up || self.start.elapsed() < self.run_up {
            true => (since, done + more, is_run_up),
            false => (Instant::now(), 0, true),
        });
    }

    /// How much was done per second.
    fn rate(&self) -> f64 {
        let (since, done, _) = self.counted.get();
        done as f64 / since.elapsed().as_secs_f64()
    }
}

/// Does a step again and again until the time is over, or a step finds nothing to do, or so much is done. Answers how much was done per second.
pub(super) fn rate(
    window: Duration,
    most: u64,
    mut step: impl FnMut() -> Result<u64, Failure>,
) -> Result<f64, Failure> {
    let (meter, mut done) = (Meter::new(window), 0);
    while !meter.is_over() && done < most {
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

/// Lifecycles per second of one caller that keeps so many commands in flight. If they are many they are in several batches: one is made, and another
/// answered, while the rest are worked on.
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
    all((0..batches).map(batch))?;
    load.longest = longest.get();
    Ok(meter.rate())
}

/// Does several things at once, on this thread, until the last is done or one fails.
fn all(futures: impl Iterator<Item: Future<Output = Result<(), Failure>>>) -> Result<(), Failure> {
    let mut futures: FuturesUnordered<_> = futures.collect();
    block_on(async {
        while let Some(ended) = futures.next().await {
            ended?;
        }
        Ok(())
    })
}

/// Lifecycles per second of so many callers, each of which sends one command at a time and waits for its answer. All are on one thread, because
/// what they cost is then one thread's time, however many there are.
pub(super) fn independent(load: &Load, in_flight: u32, window: Duration) -> Result<f64, Failure> {
    let meter = Meter::new(window);
    let jids = RefCell::new(Jids::new());
    let caller = |_| async {
        while !meter.is_over() {
            let jid = jids.borrow_mut().next();
            load.client.run(load.put_of(jid)).await?;
            let popped = load.client.run(load.next_pop()).await?;
            let job = popped.jobs.into_iter().next().ok_or_else(nothing_there)?;
            load.client.run(completed(job)).await?;
            meter.add(1);
        }
        Ok(())
    };
    all((0..in_flight).map(caller))?;
    Ok(meter.rate())
}

/// Jobs put per second in batches of one caller.
pub(super) fn put_only(load: &mut Load, window: Duration) -> Result<f64, Failure> {
    rate(window, PUT_JOBS_MAX, || block_on(load.put(BATCH_JOBS)))
}

/// Jobs popped and completed per second in batches of one caller, until there are none or twice the time is over.
pub(super) fn drain_only(load: &mut Load, window: Duration) -> Result<f64, Failure> {
    rate(2 * window, u64::MAX, || block_on(load.work(BATCH_JOBS)))
}

/// Jobs completed per second while some threads put and as many work.
pub(super) fn together(load: &Load, window: Duration) -> Result<f64, Failure> {
    let (start, put, done) = (Instant::now(), AtomicU64::new(0), AtomicU64::new(0));
    let is_over = || start.elapsed() >= window;
    let produce = || {
        let mut load = load.another();
        // However short the time is, there is something to do.
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
    Failure::Unreachable("a thread that measured ended early".to_owned())
}

/// How long it takes from before a put to a waiting worker having the job, on a queue where nothing else happens; the shortest first.
pub(super) fn latencies(load: &Load, window: Duration) -> Result<Vec<Duration>, Failure> {
    let stop = AtomicBool::new(false);
    let (report, reports) = mpsc::channel();
    let work = |report: mpsc::Sender<Instant>| {
        while !stop.load(Ordering::Relaxed) {
            let reply = block_on(load.client.pop_any(load.next_pop(), WAIT))?;
            let popped = Instant::now();
            if let Some(job) = reply.jobs.into_iter().next() {
                block_on(load.client.run(completed(job)))?;
                // If nobody listens any more, the loop ends.
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
            // The worker lets go of its end if it fails, and says why when it is joined.
            Ok::<_, Failure>(
                reports.recv_timeout(ANSWER_MAX).ok().map(|popped| popped.saturating_duration_since(put)),
            )
        };
        let mut failed = Ok(());
        while start.elapsed() < window && samples.len() < SAMPLES_MAX {
            match sample() {
                Ok(Some(latency)) => samples.push(latency),
                other => {
                    failed = other.and(Err(nothing_there()));
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

/// UUIDs of version 7. Ours, because the crate's ask the system for randomness each time, and it is not the system that is measured.
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

    /// SplitMix64: fast, and all 2^64 of them differ.
    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.state ^ self.state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }
}
