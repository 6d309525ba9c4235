//! Interference: commit latency of a client with small jobs, alone and beside a client with large payloads.
//!
//! `cargo bench -p geartrain-store --bench interference` prints a table. The small client puts a job of 100
//! bytes every 5 ms, whatever the last one took, and its latency counts from the time at which it was due.
//! The large client puts a payload of 16 MiB, pops it and completes it, one after the other without a pause.
//! Both run for `-- --seconds 4`, five rounds each, alone and beside in turn; the table has the medians. `--
//! --megabytes 16` and `-- --directory DIR` change the rest. `-- --own-file-bytes 1000000000` keeps all
//! payloads in the log, to compare.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use geartrain_core::SystemClock;
use geartrain_core::{
    Answer, Backend, Call, Cancel, Complete, Count, Holder, Jid, Klass, Pop, Put, QueueName, Reply,
    SetConfig, WorkerName,
};
use geartrain_store::{StoreBackend, StoreOptions};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const ROUNDS: usize = 5;
const EVERY: Duration = Duration::from_millis(5);
const SMALL_BYTES: usize = 100;

fn main() -> Result<(), Failure> {
    let Arguments { seconds, megabytes, options, directory } = arguments()?;
    let _ = std::fs::remove_dir_all(&directory);
    let backend = StoreBackend::open(&directory, options, Arc::new(SystemClock))?;
    // Completed jobs are removed at once, so that the disk holds only the queued ones.
    let keep_none = SetConfig::new("jobs-history-count", "0");
    one(&backend, keep_none)?;
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        alone.push(round_of(&backend, seconds, round, None)?);
        beside.push(round_of(&backend, seconds, round, Some(megabytes << 20))?);
    }
    drop(backend);
    std::fs::remove_dir_all(&directory)?;
    println!("{:<8} {:>9} {:>9} {:>9} {:>12}", "", "p50 us", "p99 us", "max us", "large MB/s");
    let (alone, beside) = (median(alone), median(beside));
    for (name, run) in [("alone", &alone), ("beside", &beside)] {
        println!("{:<8} {:>9.0} {:>9.0} {:>9.0} {:>12.1}", name, run.p50, run.p99, run.max, run.large);
    }
    println!("p99 beside is {:.1} times p99 alone", beside.p99 / alone.p99);
    Ok(())
}

struct Run {
    p50: f64,
    p99: f64,
    max: f64,
    /// Payload bytes of the large client, in MB per second.
    large: f64,
}

/// The run with the median p99.
fn median(mut runs: Vec<Run>) -> Run {
    runs.sort_by(|one, other| one.p99.total_cmp(&other.p99));
    runs.swap_remove(ROUNDS / 2)
}

fn round_of(
    backend: &StoreBackend,
    seconds: f64,
    round: usize,
    large_bytes: Option<usize>,
) -> Result<Run, Failure> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let large = scope.spawn(|| large_client(backend, round, large_bytes, &stop));
        let small = small_client(backend, seconds, &format!("{round}-{}", large_bytes.is_some()));
        stop.store(true, Ordering::Relaxed);
        let large = large.join().map_err(|_| "the large client panicked")??;
        let mut latencies = small?;
        latencies.sort_unstable();
        let at = |part: f64| latencies[((latencies.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e6;
        Ok(Run { p50: at(0.5), p99: at(0.99), max: at(1.0), large })
    })
}

fn small_client(backend: &StoreBackend, seconds: f64, run: &str) -> Result<Vec<Duration>, Failure> {
    let queue = QueueName::new("small")?;
    let (began, mut latencies, mut jids) = (Instant::now(), Vec::new(), Vec::new());
    while began.elapsed().as_secs_f64() < seconds {
        let due = began + EVERY * latencies.len() as u32;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let jid = Jid::new(format!("{run}-{}", latencies.len()))?;
        let put = Put::new(queue.clone(), jid.clone(), Klass::new("k")?, vec![b'x'; SMALL_BYTES]);
        one(backend, put)?;
        latencies.push(due.elapsed());
        jids.push(jid);
    }
    one(backend, Cancel::new(jids))?;
    Ok(latencies)
}

fn large_client(
    backend: &StoreBackend,
    round: usize,
    bytes: Option<usize>,
    stop: &AtomicBool,
) -> Result<f64, Failure> {
    let Some(bytes) = bytes else { return Ok(0.0) };
    let (queue, worker) = (QueueName::new("large")?, WorkerName::new("w")?);
    let (began, mut jobs) = (Instant::now(), 0_usize);
    let payload = vec![b'x'; bytes];
    while !stop.load(Ordering::Relaxed) {
        let jid = Jid::new(format!("large-{round}-{jobs}"))?;
        one(backend, Put::new(queue.clone(), jid.clone(), Klass::new("k")?, payload.clone()))?;
        let pop = Pop { count: Count::new(1)?, ..Pop::new(queue.clone(), worker.clone()) };
        let Reply::Pop(popped) = one(backend, pop)? else { return Err("a pop is answered as a pop".into()) };
        assert_eq!(popped.jobs[0].payload.bytes().len(), bytes);
        one(backend, Complete::new(jid, Holder::Token(popped.jobs[0].lock.token)))?;
        jobs += 1;
    }
    Ok(jobs as f64 * bytes as f64 / 1e6 / began.elapsed().as_secs_f64())
}

fn one(backend: &StoreBackend, command: impl Into<geartrain_core::Command>) -> Result<Reply, Failure> {
    let answers: Vec<Answer> = pollster::block_on(backend.execute(vec![Call::from(command.into())]))?;
    Ok(answers.into_iter().next().ok_or("there is no answer")??)
}

struct Arguments {
    seconds: f64,
    megabytes: usize,
    options: StoreOptions,
    directory: PathBuf,
}

fn arguments() -> Result<Arguments, Failure> {
    let target = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/bench-beside");
    let mut of = Arguments {
        seconds: 4.0,
        megabytes: 16,
        options: StoreOptions::default(),
        directory: PathBuf::from(target),
    };
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    while let Some(argument) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{argument} needs a value"))?;
        match argument.as_str() {
            "--seconds" => of.seconds = value.parse()?,
            "--megabytes" => of.megabytes = value.parse()?,
            "--own-file-bytes" => of.options.own_file_bytes_min = value.parse()?,
            "--directory" => of.directory = PathBuf::from(value).join("bench-beside"),
            _ => return Err(format!("{argument} is not an option of this bench").into()),
        }
    }
    Ok(of)
}
