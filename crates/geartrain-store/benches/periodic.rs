//! Periodic jobs at scale: how late they fire, and what an idle store costs.
//!
//! `cargo bench -p geartrain-store --bench periodic` puts `-- 100000` templates that run once an hour, their moments
//! spread over it, into a directory, and pops their jobs for 30 seconds: the table has how long after its nominal
//! time a job was popped. Then all templates run once a year, and the CPU time of ten idle seconds is measured.

use std::sync::Arc;
use std::time::{Duration, Instant};

use geartrain_core::{
    Backend, Call, Clock, Complete, Count, Get, Jid, Klass, Period, PeriodicTemplate, Pop, Put, PutPeriodic,
    QueueName, Reply, Seconds, SystemClock, WorkerName,
};
use geartrain_store::{StoreBackend, StoreOptions};

type Failure = Box<dyn std::error::Error>;

const LOAD: Duration = Duration::from_secs(30);
const IDLE: Duration = Duration::from_secs(10);

fn main() -> Result<(), Failure> {
    let number = std::env::args().skip(1).find_map(|argument| argument.parse().ok());
    let templates: usize = number.unwrap_or(100_000);
    let directory = std::env::temp_dir().join(format!("geartrain-periodic-{}", std::process::id()));
    let measured = pollster::block_on(measure(&directory, templates));
    std::fs::remove_dir_all(&directory)?;
    measured
}

async fn measure(directory: &std::path::Path, templates: usize) -> Result<(), Failure> {
    let backend = StoreBackend::open(directory, StoreOptions::default(), Arc::new(SystemClock))?;
    let began = Instant::now();
    put(&backend, templates, |number| format!("{} {} * * * *", number % 60, number / 60 % 60)).await?;
    println!("{templates} templates put in {:.1?}", began.elapsed());
    let mut late = fire(&backend).await?;
    late.sort_by(f64::total_cmp);
    let at = |part: f64| late.get((late.len() as f64 * part) as usize).copied().unwrap_or_default() * 1e3;
    println!(
        "{} jobs in {LOAD:?}: p50 {:.1} ms, p99 {:.1} ms, latest {:.1} ms late",
        late.len(),
        at(0.5),
        at(0.99),
        at(0.9999)
    );
    put(&backend, templates, |_| "0 0 1 1 *".to_owned()).await?;
    let before = cpu_seconds()?;
    std::thread::sleep(IDLE);
    println!("idle: {:.3} s of CPU time in {IDLE:?}", cpu_seconds()? - before);
    Ok(())
}

async fn put(backend: &dyn Backend, templates: usize, cron: impl Fn(usize) -> String) -> Result<(), Failure> {
    let (queue, klass) = (QueueName::new("bench")?, Klass::new("k")?);
    for first in (0..templates).step_by(1_000) {
        let puts = (first..templates.min(first + 1_000)).map(|number| {
            let jid = Jid::new(format!("t{number}")).expect("a good name");
            let put = Put::new(queue.clone(), jid, klass.clone(), "{}");
            let template = PeriodicTemplate::new(put, Period::Cron(cron(number)));
            Call::from(PutPeriodic::new(template, SystemClock.now()))
        });
        backend.execute(puts.collect()).await?;
    }
    Ok(())
}

/// Pops the jobs that fire, and returns how late each was, in seconds.
async fn fire(backend: &dyn Backend) -> Result<Vec<f64>, Failure> {
    let count = Count::new(1_000)?;
    let pop = Pop { count, ..Pop::new(QueueName::new("bench")?, WorkerName::new("w")?) };
    let (began, first, mut late) = (Instant::now(), SystemClock.now(), Vec::new());
    while began.elapsed() < LOAD {
        let reply = backend.pop_or_wait(pop.clone(), Seconds::from(1)).await?;
        let now = SystemClock.now();
        let reads = reply.jobs.iter().map(|job| Call::from(Get { jid: job.jid.clone() })).collect();
        for answer in backend.execute(reads).await? {
            let Ok(Reply::Get(Some(job))) = answer else { return Err("no job".into()) };
            // Those of before came due while templates were put.
            if job.history[0].when > first {
                late.push((now - job.history[0].when).get());
            }
        }
        let completes = reply.jobs.into_iter().map(|job| Complete::new(job.jid.clone(), job.holder()).into());
        backend.execute(completes.collect()).await?;
    }
    Ok(late)
}

/// The CPU time of this process, in seconds.
fn cpu_seconds() -> Result<f64, Failure> {
    let text = std::fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks: f64 = fields[11].parse::<f64>()? + fields[12].parse::<f64>()?;
    Ok(ticks / 100.0)
}
