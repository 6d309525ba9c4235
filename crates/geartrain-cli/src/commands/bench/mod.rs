//! How fast a queue is, measured from outside, as a program would use it.

mod limits;
mod load;
mod place;
mod queued;
mod report;

use std::time::Duration;

use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};

use super::Done;
use crate::args::{BenchArgs, Measure};
use crate::failure::Failure;
use crate::output::Output;
use limits::Scratch;
use load::Load;
use place::Place;
use report::{Latency, Lifecycles, Limits, Rate, Report};

/// How many jobs are carried through before anything is measured. The engine keeps so many complete ones, so that from then on each that
/// completes also drops an old one; and the disk has been asked for all the room that it will be.
const WARM_UP_JOBS: u32 = 51_000;
/// How many times each figure that is compared with others is taken; the median counts.
const ROUNDS: u32 = 9;
/// How many times a caller waits for the disk in each lifecycle: a put and a complete are synced before they are acknowledged. A pop need not be, for
/// if it is lost the job only waits again.
const FLUSHES_PER_LIFECYCLE: f64 = 2.0;
/// Put, pop, complete.
const COMMANDS_PER_LIFECYCLE: f64 = 3.0;

/// What to measure, and how much.
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
        let usual = |usual: &[u32], little: &[u32]| if quick { little.to_vec() } else { usual.to_vec() };
        Plan {
            measures: if args.only.is_empty() { Measure::value_variants().to_vec() } else { args.only },
            in_flight: match args.in_flight {
                none if none.is_empty() => usual(&[1, 10, 100, 1_000, 3_000], &[1, 10]),
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

/// Measures, and shows what was found. `url` is the one that was given for this, if one was.
pub(super) fn bench(args: BenchArgs, url: Option<String>, out: &mut Output<'_>) -> Done {
    if let (Some(queue), Some(url), Some(jobs)) = (&args.fill, &url, args.queued) {
        return queued::be_filled(url, queue.clone(), jobs, out);
    }
    let plan = Plan::new(args);
    let place = Place::find(url)?;
    let report = measure(&plan, &place)?;
    let described = place.describe();
    // Not while the table is being read: what was measured with goes first.
    drop(place);
    Ok(out.show(&report, |out| report.write(&described, out))?)
}

fn measure(plan: &Plan, place: &Place) -> Result<Report, Failure> {
    // On standard error, and only if that is a terminal: the bar sees to it. It only moves when something is said, because a thread that moves it
    // would be measured too.
    let bar = ProgressBar::new_spinner().with_finish(ProgressFinish::AndClear);
    bar.set_style(
        ProgressStyle::with_template("{elapsed} {msg}").unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    let say = |what: &str| {
        bar.set_message(what.to_owned());
        bar.tick();
    };
    let sync = place.sync();
    let mut report = Report {
        url: place.url(""),
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
    measure_one_queue(plan, place, &say, &mut report)?;
    if plan.has(&[Measure::Queued, Measure::Reopen]) {
        let (queued, reopen) =
            queued::measure(place, plan.queued, plan.window, plan.warm_up, plan.rounds, &say)?;
        report.queued = plan.has(&[Measure::Queued]).then_some(queued);
        report.reopen = plan.has(&[Measure::Reopen]).then_some(reopen);
    }
    Ok(report)
}

/// All that is measured on a queue that is not full, in one go.
fn measure_one_queue(
    plan: &Plan,
    place: &Place,
    say: &dyn Fn(&str),
    report: &mut Report,
) -> Result<(), Failure> {
    let (window, sync) = (plan.window, &place.sync());
    let rate = |rate| Rate { rate, sync: sync.clone() };
    let scratch = match (plan.limits, place.directory()) {
        (false, _) => None,
        (true, Some(directory)) => Some((directory, plan.quick)),
        (true, None) => {
            let why = "--limits measures the disk that an embedded: directory is on, and this URL names none";
            return Err(Failure::Usage(why.to_owned()));
        }
    };
    let queue = place.queue("load")?;
    let mut load = Load::new(place.connect("load")?, queue.clone())?;
    say("warming up");
    load.warm_up(plan.warm_up)?;
    let mut scratch = scratch.map(|(directory, quick)| Scratch::new(directory, quick)).transpose()?;
    let lifecycle_bytes = limits::lifecycle_bytes(&load, plan.warm_up)?;
    let in_flight = if plan.has(&[Measure::Lifecycles]) { &plan.in_flight[..] } else { &[] };
    let mut flushes = Vec::new();
    let mut rows = vec![(Vec::new(), Vec::new(), Vec::new()); in_flight.len()];
    // In turns, so that a moment in which the machine or the disk is slow is slow for all of them.
    let slice = window / plan.rounds;
    for _ in 0..plan.rounds {
        if let Some(scratch) = &scratch {
            say("the disk's flush rate");
            flushes.push(scratch.flushes(slice)?);
        }
        for (&in_flight, (batched, independent, bare_log)) in in_flight.iter().zip(&mut rows) {
            say(&format!("lifecycles, {in_flight} in flight"));
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
        say("put alone, then drain");
        let put = load::put_only(&mut load, window)?;
        let drain = load::drain_only(&mut load, window)?;
        report.put = plan.has(&[Measure::Put]).then(|| rate(put));
        report.drain = plan.has(&[Measure::Drain]).then(|| rate(drain));
        place::clear(&load.client, &queue)?;
    }
    if plan.has(&[Measure::Together]) {
        say("producers and workers at once");
        report.together = Some(rate(load::together(&load, window)?));
        place::clear(&load.client, &queue)?;
    }
    if plan.has(&[Measure::Latency]) {
        say("from put to pop on an idle queue");
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
