//! Many jobs in one queue: what each takes in memory, whether they slow anything down, and how long it takes to open that again.
//!
//! Another process queues them, so that nothing else is in its memory, and so that it can be killed.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use geartrain::{Client, QueueName};
use pollster::block_on;
use serde::{Deserialize, Serialize};

use super::load::{self, Load};
use super::place::{self, Place};
use super::report::{Queued, Reopen};
use crate::failure::Failure;
use crate::output::Output;

/// How many jobs are few, and how many commands are in flight.
const FEW: u64 = 1_000;
const IN_FLIGHT: u32 = 1_000;

/// What it took to queue the jobs.
#[derive(Debug, Serialize, Deserialize)]
struct Filled {
    /// How much the process grew; not known where there is no /proc.
    resident_bytes: Option<u64>,
    /// The longest that a batch took, in seconds.
    longest_wait: f64,
}

/// Measures with few jobs queued and with many, in turns.
pub(super) fn measure(
    place: &Place,
    jobs: u64,
    window: Duration,
    warm_up: u32,
    rounds: u32,
    say: &dyn Fn(&str),
) -> Result<(Queued, Reopen), Failure> {
    let (part, few_jobs) = ("queued", FEW.min(jobs));
    let queue = place.queue(part)?;
    say("queueing many jobs in a process that is then killed at work");
    let filled = fill_and_kill(&place.url(part), &queue, jobs, window)?;
    let keeps = place.directory().is_some();
    say("opening again after kill -9");
    let (client, killed) = open(place, part)?;
    let mut many = Load::new(client, queue)?;
    if !keeps {
        say("queueing many jobs");
        fill(&mut many, jobs)?;
    }
    say("lifecycles with few and with many jobs queued");
    let few_queue = place.queue("few")?;
    // If there is but one place, both queues are in it.
    let apart = place.url("few") != place.url(part);
    let client = if apart { place.connect("few")? } else { many.client.clone() };
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
    place::clear(&few.client, &few_queue)?;
    drop((few, many));
    say("opening again after a clean stop");
    let clean = if keeps { Some(open(place, part)?.1) } else { None };

    let sync = place.sync();
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
    Ok((queued, Reopen { jobs, clean, killed: keeps.then_some(killed), sync }))
}

/// Opens what is kept, and says how many seconds that took.
fn open(place: &Place, part: &str) -> Result<(Client, f64), Failure> {
    let start = Instant::now();
    let client = place.connect(part)?;
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

/// Has another process queue jobs and then carry more of them through, and kills it in the midst of that.
fn fill_and_kill(url: &str, queue: &QueueName, jobs: u64, window: Duration) -> Result<Filled, Failure> {
    let broken = |why: String| Failure::Unreachable(format!("the process that was to queue jobs {why}"));
    let this = std::env::current_exe().map_err(|error| broken(format!("cannot be found: {error}")))?;
    let mut command = Command::new(this);
    command.args(["bench", "--url", url, "--queued", &jobs.to_string(), "--fill", queue.as_str()]);
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = Killed(child.map_err(|error| broken(format!("cannot be started: {error}")))?);
    let mut line = String::new();
    if let Some(out) = child.0.stdout.take() {
        BufReader::new(out)
            .read_line(&mut line)
            .map_err(|error| broken(format!("cannot be heard: {error}")))?;
    }
    let filled = serde_json::from_str(&line).map_err(|_| broken("ended early".to_owned()))?;
    thread::sleep(window);
    match child.0.try_wait() {
        Ok(None) => Ok(filled),
        _ => Err(broken("ended early".to_owned())),
    }
}

/// A process that ends at the latest when nobody needs it any more.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // If it is gone already, that is what was wanted.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the other process does: queues jobs, says what that took, and works until it is killed, or whoever started it has ended.
pub(super) fn be_filled(url: &str, queue: QueueName, jobs: u64, out: &mut Output<'_>) -> Result<(), Failure> {
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

/// How much memory this process has, where the system says so.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}
