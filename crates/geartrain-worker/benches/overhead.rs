//! Overhead of the worker: no-op jobs by async handlers, beside a bare loop that pops and completes them.
//!
//! `cargo bench -p geartrain-worker --bench overhead` prints a table. Each round puts `-- --jobs 100000` jobs
//! and works them off, by the loop in batches of 32 (one batch completes 32 jobs and pops 32 more) and by a
//! worker with `-- --concurrency 32`, in turns; the table has the medians of five rounds. `-- --directory DIR`
//! is the data directory, `-- --memory yes` leaves the disk out, `-- --redis 127.0.0.1:6379` uses a Redis.
//! `-- --until-handled yes` measures as `peers/apalis` does: one round of the worker alone, with the options of a
//! new queue, until the last handler runs.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use geartrain_core::{
    Backend, Call, Complete, Count, Flush, Jid, Klass, Pop, Put, QueueName, Reply, SetConfig, SystemClock,
    WorkerName,
};
use geartrain_redis::{RedisBackend, RedisUrl};
use geartrain_store::{StoreBackend, StoreOptions};
use geartrain_worker::Worker;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const ROUNDS: usize = 5;
const BATCH: usize = 32;
const PUT_BATCH: usize = 1_000;

fn main() -> Result<(), Failure> {
    let arguments = Arguments::read()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(measure(&arguments))
}

async fn measure(arguments: &Arguments) -> Result<(), Failure> {
    let backend = arguments.backend().await?;
    if arguments.until_handled {
        put(&*backend, arguments.jobs, 1).await?;
        println!(
            "worker, {} handlers:    {:>9.0} jobs/s",
            arguments.concurrency,
            work(&backend, arguments).await?
        );
        return Ok(());
    }
    // Completed jobs are removed at once, so that every round begins with an empty queue.
    backend.execute(vec![SetConfig::new("jobs-history-count", "0").into()]).await?;
    let (mut bare, mut worker) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        put(&*backend, arguments.jobs, round * 2).await?;
        bare.push(rate(arguments.jobs, bare_loop(&*backend, arguments.jobs)).await?);
        put(&*backend, arguments.jobs, round * 2 + 1).await?;
        worker.push(work(&backend, arguments).await?);
    }
    drop(backend);
    if arguments.uses_disk() {
        std::fs::remove_dir_all(&arguments.directory)?;
    }
    let ratio = median(worker.iter().zip(&bare).map(|(worker, bare)| worker / bare).collect());
    let (bare, worker) = (median(bare), median(worker));
    println!("bare loop in batches of {BATCH}: {bare:>9.0} jobs/s");
    println!("worker, {} handlers:    {worker:>9.0} jobs/s", arguments.concurrency);
    println!("ratio (median of {ROUNDS} rounds): {ratio:.2}");
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

async fn rate(jobs: usize, run: impl Future<Output = Result<(), Failure>>) -> Result<f64, Failure> {
    let began = Instant::now();
    run.await?;
    Ok(jobs as f64 / began.elapsed().as_secs_f64())
}

/// The loop and the worker have a queue each: on a Redis, the klasses that a worker asks for are indexed.
fn queue(round: usize) -> QueueName {
    QueueName::new(if round.is_multiple_of(2) { "bare" } else { "worker" }).expect("a good name")
}

async fn put(backend: &dyn Backend, jobs: usize, round: usize) -> Result<(), Failure> {
    let klass = Klass::new("no-op")?;
    for first in (0..jobs).step_by(PUT_BATCH) {
        let puts = (first..jobs.min(first + PUT_BATCH)).map(|number| {
            let jid = Jid::new(format!("{round}-{number}")).expect("a good name");
            Call::from(Put::new(queue(round), jid, klass.clone(), "{}"))
        });
        backend.execute(puts.collect()).await?;
    }
    Ok(())
}

async fn bare_loop(backend: &dyn Backend, jobs: usize) -> Result<(), Failure> {
    let count = Count::new(BATCH as i64)?;
    let pop = Pop { count, ..Pop::new(queue(0), WorkerName::new("bare")?) };
    let (mut done, mut batch) = (0, vec![Call::from(pop.clone())]);
    while done < jobs {
        let answers = backend.execute(batch).await?;
        let Some(Ok(Reply::Pop(reply))) = answers.into_iter().last() else { return Err("no pop".into()) };
        done += reply.jobs.len();
        let completes = reply.jobs.into_iter().map(|job| Complete::new(job.jid.clone(), job.holder()).into());
        batch = completes.chain([Call::from(pop.clone())]).collect();
    }
    backend.execute(batch).await?;
    Ok(())
}

/// Works all jobs off, and returns how many in a second.
async fn work(backend: &Arc<dyn Backend>, arguments: &Arguments) -> Result<f64, Failure> {
    let (left, handled) = (Arc::new(AtomicUsize::new(arguments.jobs)), Arc::new(OnceLock::new()));
    let (counter, last) = (left.clone(), handled.clone());
    let began = Instant::now();
    let report = Worker::new(backend.clone())
        .queues(["worker"])
        .on_klass("no-op", move |_, _, _| {
            if counter.fetch_sub(1, Ordering::Relaxed) == 1 {
                let _ = last.set(began.elapsed());
            }
            std::future::ready(Ok(""))
        })
        .concurrency(arguments.concurrency)
        .drain(true)
        .run_until(std::future::pending::<()>())
        .await?;
    if report.completed != arguments.jobs as u64 {
        return Err(format!("{report:?}").into());
    }
    let took = if arguments.until_handled { handled.get().copied() } else { None };
    Ok(arguments.jobs as f64 / took.unwrap_or_else(|| began.elapsed()).as_secs_f64())
}

struct Arguments {
    jobs: usize,
    concurrency: usize,
    directory: PathBuf,
    memory: bool,
    redis: Option<String>,
    until_handled: bool,
}

impl Arguments {
    fn read() -> Result<Arguments, Failure> {
        let directory = std::env::temp_dir().join(format!("geartrain-overhead-{}", std::process::id()));
        let (jobs, concurrency) = (100_000, 32);
        let mut read =
            Arguments { jobs, concurrency, directory, memory: false, redis: None, until_handled: false };
        let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
        while let Some(word) = words.next() {
            let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
            match word.as_str() {
                "--jobs" => read.jobs = value.parse()?,
                "--concurrency" => read.concurrency = value.parse()?,
                "--directory" => read.directory = value.into(),
                "--memory" => read.memory = value == "yes",
                "--until-handled" => read.until_handled = value == "yes",
                "--redis" => read.redis = Some(value),
                _ => return Err(format!("unknown argument {word}").into()),
            }
        }
        Ok(read)
    }

    fn uses_disk(&self) -> bool {
        !self.memory && self.redis.is_none()
    }

    async fn backend(&self) -> Result<Arc<dyn Backend>, Failure> {
        let clock = Arc::new(SystemClock);
        if let Some(address) = &self.redis {
            let backend = RedisBackend::connect(format!("redis://{address}").parse::<RedisUrl>()?).await?;
            backend.execute(vec![Flush { count: Count::ONE }.into()]).await?;
            return Ok(Arc::new(backend));
        }
        if self.memory {
            return Ok(Arc::new(StoreBackend::in_memory(clock)?));
        }
        Ok(Arc::new(StoreBackend::open(&self.directory, StoreOptions::default(), clock)?))
    }
}
