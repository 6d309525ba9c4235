//! The report of a benchmark, as JSON and as tables.

use std::io;

use serde::Serialize;

use super::load::{BATCH_JOBS, PAYLOAD_BYTES, THREADS};
use crate::text::{Cell, TextOut, clean, table};

/// Every measurement; `null` if it was not taken.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) url: String,
    pub(super) sync: String,
    /// How long each measurement took.
    pub(super) seconds: f64,
    pub(super) payload_bytes: usize,
    pub(super) lifecycles: Option<Vec<Lifecycles>>,
    pub(super) put: Option<Rate>,
    pub(super) drain: Option<Rate>,
    pub(super) together: Option<Rate>,
    pub(super) latency: Option<Latency>,
    pub(super) queued: Option<Queued>,
    pub(super) reopen: Option<Reopen>,
    pub(super) limits: Option<Limits>,
}

/// Lifecycles per second, by commands in flight.
#[derive(Debug, Serialize)]
pub(super) struct Lifecycles {
    pub(super) in_flight: u32,
    pub(super) batched: f64,
    pub(super) independent: f64,
    pub(super) sync: String,
    pub(super) bare_log: Option<f64>,
    pub(super) batched_of_bare_log: Option<f64>,
    pub(super) independent_of_bare_log: Option<f64>,
}

/// Jobs per second.
#[derive(Debug, Serialize)]
pub(super) struct Rate {
    pub(super) rate: f64,
    pub(super) sync: String,
}

/// Seconds from put to pop on an idle queue.
#[derive(Debug, Serialize)]
pub(super) struct Latency {
    pub(super) p50: f64,
    pub(super) p99: f64,
    pub(super) samples: usize,
    pub(super) sync: String,
}

/// Memory and speed with many queued jobs.
#[derive(Debug, Serialize)]
pub(super) struct Queued {
    pub(super) jobs: u64,
    pub(super) bytes_per_job: Option<f64>,
    pub(super) in_flight: u32,
    pub(super) few: u64,
    /// Lifecycles per second with few queued, and with many.
    pub(super) few_rate: f64,
    pub(super) rate: f64,
    pub(super) ratio: f64,
    pub(super) longest_wait: f64,
    pub(super) sync: String,
}

/// Seconds to reopen a queue.
#[derive(Debug, Serialize)]
pub(super) struct Reopen {
    pub(super) jobs: u64,
    pub(super) clean: Option<f64>,
    pub(super) killed: Option<f64>,
    pub(super) sync: String,
}

/// Limits of the disk.
#[derive(Debug, Serialize)]
pub(super) struct Limits {
    pub(super) flushes: f64,
    pub(super) lifecycle_bytes: f64,
    /// Flushes that one caller waits for per second, as a share of the flush rate of the disk.
    pub(super) one_caller_of_flushes: Option<f64>,
    /// Commands of one caller per second, as a share of the flush rate.
    pub(super) one_caller_commands_of_flushes: Option<f64>,
}

impl Report {
    /// Writes the tables.
    pub(super) fn write(&self, target: &str, out: &mut TextOut<'_>) -> io::Result<()> {
        writeln!(out, "Compare figures only within the same run.")?;
        let seconds = crate::duration::format(self.seconds);
        writeln!(out, "{}; {PAYLOAD_BYTES}-byte payloads; {seconds} for each measurement", clean(target))?;
        if let Some(rows) = &self.lifecycles {
            writeln!(out)?;
            write_lifecycles(rows, out)?;
        }
        let rows = self.rows();
        if !rows.is_empty() {
            writeln!(out)?;
            table(out, ["MEASURED", "FIGURE", "", "SYNC"], &rows)?;
        }
        Ok(())
    }

    fn rows(&self) -> Vec<[Cell; 4]> {
        let mut rows = Vec::new();
        let mut row = |what: String, figure: String, unit: &str, sync: &str| {
            rows.push([Cell::from(what), Cell::right(figure), Cell::from(unit), Cell::from(sync)]);
        };
        if let Some(Rate { rate, sync }) = &self.put {
            row(format!("put, batches of {BATCH_JOBS}"), whole(*rate), "jobs/s", sync);
        }
        if let Some(Rate { rate, sync }) = &self.drain {
            row(format!("pop and complete, batches of {BATCH_JOBS}"), whole(*rate), "jobs/s", sync);
        }
        if let Some(Rate { rate, sync }) = &self.together {
            row(
                format!("{THREADS} threads put, {THREADS} work, batches of {BATCH_JOBS}"),
                whole(*rate),
                "jobs/s",
                sync,
            );
        }
        if let Some(Latency { p50, p99, sync, .. }) = &self.latency {
            row("put to pop on an idle queue, p50".into(), whole(p50 * 1e6), "µs", sync);
            row("put to pop on an idle queue, p99".into(), whole(p99 * 1e6), "µs", sync);
        }
        if let Some(queued) = &self.queued {
            let (many, few) = (whole(queued.jobs as f64), whole(queued.few as f64));
            let in_flight = whole(queued.in_flight.into());
            let sync = &queued.sync;
            let known = queued.bytes_per_job.map_or("unknown".into(), whole);
            row(format!("memory per job, {many} queued"), known, "bytes", sync);
            let what = |queued| format!("lifecycles, {queued} queued, {in_flight} in flight");
            row(what(&few), whole(queued.few_rate), "lifecycles/s", sync);
            row(what(&many), whole(queued.rate), "lifecycles/s", sync);
            row(format!("{many} queued / {few} queued"), ratio(queued.ratio), "", sync);
            row(format!("longest wait, {many} queued"), whole(queued.longest_wait * 1e3), "ms", sync);
        }
        if let Some(Reopen { jobs, clean, killed, sync }) = &self.reopen {
            for (what, seconds) in [("a clean stop", clean), ("kill -9", killed)] {
                if let Some(seconds) = seconds {
                    let what = format!("reopen after {what}, {} queued", whole(*jobs as f64));
                    row(what, whole(seconds * 1e3), "ms", sync);
                }
            }
        }
        if let Some(limits) = &self.limits {
            row("limit: overwrite 4 KiB and fdatasync".into(), whole(limits.flushes), "flushes/s", "always");
            row("bytes logged per lifecycle".into(), whole(limits.lifecycle_bytes), "bytes", &self.sync);
            for (what, share) in [
                ("flushes it waits for", limits.one_caller_of_flushes),
                ("commands", limits.one_caller_commands_of_flushes),
            ] {
                if let Some(share) = share {
                    row(format!("one caller: {what} / flush rate"), ratio(share), "", &self.sync);
                }
            }
        }
        rows
    }
}

fn write_lifecycles(rows: &[Lifecycles], out: &mut TextOut<'_>) -> io::Result<()> {
    let with_limits = rows.iter().any(|row| row.bare_log.is_some());
    let cells: Vec<_> = rows
        .iter()
        .map(|row| {
            [
                Cell::right(whole(row.in_flight.into())),
                Cell::right(whole(row.batched)),
                Cell::right(whole(row.independent)),
                Cell::from(&row.sync),
                Cell::right(row.bare_log.map(whole).unwrap_or_default()),
                Cell::right(row.batched_of_bare_log.map(ratio).unwrap_or_default()),
                Cell::right(row.independent_of_bare_log.map(ratio).unwrap_or_default()),
            ]
        })
        .collect();
    let heading = |limit| if with_limits { limit } else { "" };
    writeln!(out, "Lifecycles/s (put, pop, complete), in batches of one caller and by independent callers")?;
    let limits = ["BARE LOG", "BATCHED / IT", "INDEPENDENT / IT"].map(heading);
    table(out, ["IN FLIGHT", "BATCHED", "INDEPENDENT", "SYNC", limits[0], limits[1], limits[2]], &cells)
}

/// A number without its fraction, in groups of three digits.
fn whole(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn ratio(ratio: f64) -> String {
    format!("{ratio:.2}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_numbers_are_grouped() {
        for (number, text) in [(0.4, "0"), (999.6, "1,000"), (12.0, "12"), (1_234_567.0, "1,234,567")] {
            assert_eq!(whole(number), text);
        }
    }
}
