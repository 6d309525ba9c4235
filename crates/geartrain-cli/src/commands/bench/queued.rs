//! Many queued jobs: memory per job, the effect on throughput, and the time to reopen.
//!
//! A child process queues them, so that nothing else is in its memory, and so that it can be killed.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use geartrain::{Client, QueueName};
use pollster::block_on;
use serde::{Deserialize, Serialize};

use super::load::{self, Load};
use super::report::{Queued, Reopen};
use super::target::{self, BenchTarget};
use crate::failure::Failure;
use crate::output::Output;

/// The size of the short queue, and the commands in flight.
const FEW_JOBS: u64 = 1_000;
const IN_FLIGHT: u32 = 1_000;

/// The report of the child process.
#[derive(Debug, Serialize, Deserialize)]
struct Filled {
    /// Growth of the process; unknown without /proc.
    resident_bytes: Option<u64>,
    /// The duration of the slowest batch, in seconds.
    longest_wait: f64,
}

/// Measures with few and with many jobs queued, in turns.
pub(super) fn measure(
    target: &BenchTarget,
    jobs: u64,
    window: Duration,
    warm_up: u32,
    rounds: u32,
    show_step: &dyn Fn(&str),
) -> Result<(Queued, Reopen), Failure> {
    let (part, few_jobs) = ("queued", FEW_JOBS.min(jobs));
    let queue = target.queue(part)?;
    show_step("queueing many jobs in a process that is then killed");
    let filled = fill_and_kill(&target.url(part), &queue, jobs, window)?;
    let durable = target.directory().is_some();
    show_step("reopening after kill -9");
    let (client, killed) = open(target, part)?;
    let mut many = Load::new(client, queue)?;
    if !durable {
        show_step("queueing many jobs");
        fill(&mut many, jobs)?;
    }
    show_step("lifecycles with few and with many jobs queued");
    let few_queue = target.queue("few")?;
    // An existing queue holds both.
    let apart = target.url("few") != target.url(part);
    let client = if apart { target.connect("few")? } else { many.client.clone() };
    let mut few = Load::new(client, few_queue.clone())?;
    fill(&mut few, few_jobs)?;
    few.warm_up(warm_up)?;
    many.warm_up(warm_up)?;
    let (mut few_rates, mut rates) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        few_rates.push(load::batched(&mut few, IN_FLIGHT, window / rounds)?);
        rates.push(load::batched(&mut many, IN_FLIGHT, window / rounds)?);
    }
    let ratio = super::median(super::shares(&rates, &few_rates)).unwrap_or_default();
    let (few_rate, rate) =
        (super::median(few_rates).unwrap_or_default(), super::median(rates).unwrap_or_default());
    let longest_wait = many.longest.as_secs_f64().max(filled.longest_wait);
    target::clear(&few.client, &few_queue)?;
    drop((few, many));
    show_step("reopening after a clean stop");
    let clean = if durable { Some(open(target, part)?.1) } else { None };

    let sync = target.sync();
    let queued = Queued {
        jobs,
        bytes_per_job: filled.resident_bytes.map(|bytes| bytes as f64 / jobs as f64),
        in_flight: IN_FLIGHT,
        few: few_jobs,
        few_rate,
        rate,
        ratio,
        longest_wait,
        sync: sync.clone(),
    };
    Ok((queued, Reopen { jobs, clean, killed: durable.then_some(killed), sync }))
}

/// Reopens the queue and returns the seconds that took.
fn open(target: &BenchTarget, part: &str) -> Result<(Client, f64), Failure> {
    let start = Instant::now();
    let client = target.connect(part)?;
    Ok((client, start.elapsed().as_secs_f64()))
}

fn fill(load: &mut Load, jobs: u64) -> Result<(), Failure> {
    let mut left = jobs;
    while left > 0 {
        let batch = left.min(IN_FLIGHT.into());
        block_on(load.put(batch as u32))?;
        left -= batch;
    }
    Ok(())
}

/// Starts a child process that queues jobs and then runs lifecycles, and kills it during that.
fn fill_and_kill(url: &str, queue: &QueueName, jobs: u64, window: Duration) -> Result<Filled, Failure> {
    let broken = |why: String| Failure::Unreachable(format!("the child process that queues jobs {why}"));
    let this = std::env::current_exe().map_err(|error| broken(format!("cannot be found: {error}")))?;
    let mut command = Command::new(this);
    // Arguments are visible to other users, and the URL may have a password.
    command
        .args(["bench", "--queued", &jobs.to_string(), "--fill", queue.as_str()])
        .env("GEARTRAIN_URL", url);
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = KillOnDrop(child.map_err(|error| broken(format!("cannot be started: {error}")))?);
    let mut line = String::new();
    if let Some(out) = child.0.stdout.take() {
        BufReader::new(out)
            .read_line(&mut line)
            .map_err(|error| broken(format!("cannot be read from: {error}")))?;
    }
    let filled = serde_json::from_str(&line).map_err(|_| broken("ended early".to_owned()))?;
    thread::sleep(window);
    match child.0.try_wait() {
        Ok(None) => Ok(filled),
        _ => Err(broken("ended early".to_owned())),
    }
}

/// A child process, killed when dropped.
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        // Fails only if it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The child process: queues jobs, reports, and runs lifecycles until it is killed or its parent has ended.
pub(super) fn run_filler(
    url: &str,
    queue: QueueName,
    jobs: u64,
    out: &mut Output<'_>,
) -> Result<(), Failure> {
    let mut load = Load::new(block_on(geartrain::connect(url))?, queue)?;
    let before = resident_bytes();
    fill(&mut load, jobs)?;
    let grown = resident_bytes().zip(before).map(|(after, before)| after.saturating_sub(before));
    let filled = Filled { resident_bytes: grown, longest_wait: load.longest.as_secs_f64() };
    serde_json::to_writer(&mut *out.out, &filled).map_err(std::io::Error::from)?;
    writeln!(out.out)?;
    out.out.flush()?;
    let orphaned = thread::spawn(|| std::io::stdin().read_to_end(&mut Vec::new()));
    while !orphaned.is_finished() {
        load.warm_up(IN_FLIGHT)?;
    }
    Ok(())
}

/// The resident memory of this process, from /proc.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}
