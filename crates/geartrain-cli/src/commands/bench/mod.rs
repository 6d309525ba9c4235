//! `geartrain bench`: throughput and latency of a queue, measured through the client library.

mod limits;
mod load;
mod queued;
mod report;
mod target;

use std::time::Duration;

use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};

use super::Done;
use crate::duration;
use crate::failure::Failure;
use crate::output::Output;
use clap::Args;
use geartrain::QueueName;
use limits::Scratch;
use load::Load;
use report::{Latency, Lifecycles, Limits, Rate, Report};
use target::BenchTarget;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  geartrain bench --limits
  geartrain bench --only lifecycles --in-flight 100,1000 --seconds 5
  geartrain bench --url 'embedded:/mnt/disk/bench?sync=never' --json

Without --url it creates a directory under ./target, or else under the system's temporary directory, and removes it
afterwards. GEARTRAIN_URL is ignored, so that a queue in use is never measured by mistake.
With --url it uses queues named geartrain-bench-... there, and removes the jobs that it did not complete.")]
pub(crate) struct BenchArgs {
    /// Commands in flight, one row of lifecycles for each [default: 1,10,100,1000,3000]
    #[arg(
        long,
        value_name = "N,..",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..=100_000)
    )]
    in_flight: Vec<u32>,
    /// Queued jobs, for the measures with a long queue [default: 1000000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    queued: Option<u64>,
    /// How long each measurement takes [default: 2]
    #[arg(long, value_name = "DURATION", value_parser = window)]
    seconds: Option<Duration>,
    /// Measure only these
    #[arg(long, value_name = "NAME,..", value_enum, value_delimiter = ',')]
    only: Vec<Measure>,
    /// Also measure what the disk can do without a queue, in the same directory
    #[arg(long)]
    limits: bool,
    /// Measure little and briefly, as a smoke test
    #[arg(long)]
    quick: bool,
    /// Put --queued jobs into this queue, report what that took, and wait: the child process that bench
    /// starts and kills
    #[arg(long, value_name = "QUEUE", hide = true)]
    fill: Option<QueueName>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Measure {
    /// Put, pop and complete, by commands in flight
    Lifecycles,
    /// Put only
    Put,
    /// Pop and complete what was put
    Drain,
    /// Producers and workers at once
    Together,
    /// From put to pop on an idle queue
    Latency,
    /// Memory, and lifecycles with many jobs queued
    Queued,
    /// Reopening with many jobs queued
    Reopen,
}

/// Parses the duration of a measurement.
fn window(text: &str) -> Result<Duration, String> {
    let window = duration::parse(text)?;
    let allowed = Duration::from_millis(1)..=Duration::from_secs(3600);
    if allowed.contains(&window) { Ok(window) } else { Err("it must be 1ms to 1h".to_owned()) }
}

/// How many jobs are completed before anything is measured. The engine retains this many complete jobs, so
/// that from then on each completion also drops an old one, and the disk space is allocated.
const WARM_UP_JOBS: u32 = 51_000;
/// How many times each compared figure is measured; the median counts.
const ROUNDS: u32 = 9;
/// How many times a caller waits for the disk per lifecycle: put and complete are synced before they are
/// acknowledged. A pop is not: if it is lost, the job is just waiting again.
const FLUSHES_PER_LIFECYCLE: f64 = 2.0;
/// Put, pop, complete.
const COMMANDS_PER_LIFECYCLE: f64 = 3.0;

struct Plan {
    measures: Vec<Measure>,
    in_flight: Vec<u32>,
    queued: u64,
    window: Duration,
    warm_up: u32,
    rounds: u32,
    limits: bool,
    quick: bool,
}

impl Plan {
    fn new(args: BenchArgs) -> Plan {
        let quick = args.quick;
        let choose = |full: &[u32], short: &[u32]| if quick { short.to_vec() } else { full.to_vec() };
        Plan {
            measures: if args.only.is_empty() { Measure::value_variants().to_vec() } else { args.only },
            in_flight: match args.in_flight {
                none if none.is_empty() => choose(&[1, 10, 100, 1_000, 3_000], &[1, 10]),
                given => given,
            },
            queued: args.queued.unwrap_or(if quick { 2_000 } else { 1_000_000 }),
            window: args.seconds.unwrap_or(Duration::from_millis(if quick { 20 } else { 2_000 })),
            warm_up: if quick { 100 } else { WARM_UP_JOBS },
            rounds: if quick { 1 } else { ROUNDS },
            limits: args.limits,
            quick,
        }
    }

    fn has(&self, any_of: &[Measure]) -> bool {
        self.measures.iter().any(|measure| any_of.contains(measure))
    }
}

/// Runs the benchmark and prints the report. The URL counts only if it was given with `--url`.
pub(super) fn bench(args: BenchArgs, (is_given, url): (bool, String), out: &mut Output<'_>) -> Done {
    if let (Some(queue), Some(jobs)) = (&args.fill, args.queued) {
        return queued::run_filler(&url, queue.clone(), jobs, out);
    }
    let plan = Plan::new(args);
    let target = BenchTarget::open(is_given.then_some(url))?;
    let report = measure(&plan, &target)?;
    let described = target.describe();
    // Clean up before the table is printed.
    drop(target);
    Ok(out.show(&report, |out| report.write(&described, out))?)
}

fn measure(plan: &Plan, target: &BenchTarget) -> Result<Report, Failure> {
    // The bar is drawn on standard error, and only if that is a terminal. It only moves when a measurement
    // starts, because a thread that moves it would be measured too.
    let bar = ProgressBar::new_spinner().with_finish(ProgressFinish::AndClear);
    bar.set_style(
        ProgressStyle::with_template("{elapsed} {msg}").unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    let show_step = |what: &str| {
        bar.set_message(what.to_owned());
        bar.tick();
    };
    let sync = target.sync();
    let mut report = Report {
        url: target.shown_url(),
        sync: sync.clone(),
        seconds: plan.window.as_secs_f64(),
        payload_bytes: load::PAYLOAD_BYTES,
        lifecycles: None,
        put: None,
        drain: None,
        together: None,
        latency: None,
        queued: None,
        reopen: None,
        limits: None,
    };
    measure_one_queue(plan, target, &show_step, &mut report)?;
    if plan.has(&[Measure::Queued, Measure::Reopen]) {
        let (queued, reopen) =
            queued::measure(target, plan.queued, plan.window, plan.warm_up, plan.rounds, &show_step)?;
        report.queued = plan.has(&[Measure::Queued]).then_some(queued);
        report.reopen = plan.has(&[Measure::Reopen]).then_some(reopen);
    }
    Ok(report)
}

/// The measurements on a short queue.
fn measure_one_queue(
    plan: &Plan,
    target: &BenchTarget,
    show_step: &dyn Fn(&str),
    report: &mut Report,
) -> Result<(), Failure> {
    let (window, sync) = (plan.window, &target.sync());
    let rate = |rate| Rate { rate, sync: sync.clone() };
    let scratch = match (plan.limits, target.directory()) {
        (false, _) => None,
        (true, Some(directory)) => Some((directory, plan.quick)),
        (true, None) => {
            let why = "--limits measures the disk that an embedded: directory is on, and this URL names none";
            return Err(Failure::Usage(why.to_owned()));
        }
    };
    let queue = target.queue("load")?;
    let mut load = Load::new(target.connect("load")?, queue.clone())?;
    show_step("warming up");
    load.warm_up(plan.warm_up)?;
    let mut scratch = scratch.map(|(directory, quick)| Scratch::new(directory, quick)).transpose()?;
    let lifecycle_bytes = limits::lifecycle_bytes(&load, plan.warm_up)?;
    let in_flight = if plan.has(&[Measure::Lifecycles]) { &plan.in_flight[..] } else { &[] };
    let mut flushes = Vec::new();
    let mut rows = vec![(Vec::new(), Vec::new(), Vec::new()); in_flight.len()];
    // In turns, so that a slow phase of the machine or the disk affects all of them.
    let slice = window / plan.rounds;
    for _ in 0..plan.rounds {
        if let Some(scratch) = &scratch {
            show_step("the disk's flush rate");
            flushes.push(scratch.flushes(slice)?);
        }
        for (&in_flight, (batched, independent, bare_log)) in in_flight.iter().zip(&mut rows) {
            show_step(&format!("lifecycles, {in_flight} in flight"));
            batched.push(load::batched(&mut load, in_flight, slice)?);
            independent.push(load::independent(&load, in_flight, slice)?);
            if let Some(scratch) = &mut scratch {
                bare_log.push(scratch.bare_log(in_flight, lifecycle_bytes, slice)?);
            }
        }
    }
    let one = in_flight.iter().position(|&in_flight| in_flight == 1).map(|one| rows[one].0.clone());
    let rows = in_flight.iter().zip(rows).filter_map(|(&in_flight, (batched, independent, bare_log))| {
        Some(Lifecycles {
            in_flight,
            sync: sync.clone(),
            batched_of_bare_log: median(shares(&batched, &bare_log)),
            independent_of_bare_log: median(shares(&independent, &bare_log)),
            batched: median(batched)?,
            independent: median(independent)?,
            bare_log: median(bare_log),
        })
    });
    let rows: Vec<Lifecycles> = rows.collect();
    let of_flushes = median(shares(&one.unwrap_or_default(), &flushes));
    report.limits = median(flushes).map(|flushes| Limits {
        flushes,
        lifecycle_bytes,
        one_caller_of_flushes: of_flushes.map(|share| share * FLUSHES_PER_LIFECYCLE),
        one_caller_commands_of_flushes: of_flushes.map(|share| share * COMMANDS_PER_LIFECYCLE),
    });
    report.lifecycles = plan.has(&[Measure::Lifecycles]).then_some(rows);
    drop(scratch);
    if plan.has(&[Measure::Put, Measure::Drain]) {
        show_step("put alone, then drain");
        let put = load::put_only(&mut load, window)?;
        let drain = load::drain_only(&mut load, window)?;
        report.put = plan.has(&[Measure::Put]).then(|| rate(put));
        report.drain = plan.has(&[Measure::Drain]).then(|| rate(drain));
        target::clear(&load.client, &queue)?;
    }
    if plan.has(&[Measure::Together]) {
        show_step("producers and workers at once");
        report.together = Some(rate(load::together(&load, window)?));
        target::clear(&load.client, &queue)?;
    }
    if plan.has(&[Measure::Latency]) {
        show_step("from put to pop on an idle queue");
        let samples = load::latencies(&load, window)?;
        let at = |share: f64| samples.get((samples.len() as f64 * share) as usize).map(Duration::as_secs_f64);
        if let (Some(p50), Some(p99)) = (at(0.5), at(0.99)) {
            report.latency = Some(Latency { p50, p99, samples: samples.len(), sync: sync.clone() });
        }
    }
    Ok(())
}

/// What share of each limit was reached, each beside the one of its own round.
fn shares(figures: &[f64], limits: &[f64]) -> Vec<f64> {
    figures.iter().zip(limits).map(|(figure, limit)| figure / limit).collect()
}

fn median(mut figures: Vec<f64>) -> Option<f64> {
    figures.sort_unstable_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied()
}
