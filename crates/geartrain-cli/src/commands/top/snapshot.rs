//! What `geartrain top` shows of a queue, as of one moment; as JSON, and as plain tables.

use std::io;

use geartrain::{
    Group, Jid, Klass, QueueCounts, QueueFigures, QueueName, Timestamp, WorkerCounts, WorkerName,
};
use geartrain_json::{Number, QueueView};
use serde_json::{Value, json};

use crate::commands::queue::oldest_text;
use crate::commands::why_queue::grouped;
use crate::text::{Cell, HEADING, TextOut, clean, table};
use crate::timestamp::relative;
use crate::{duration, timestamp};

/// The overview. What a backend does not know is none.
#[derive(Debug, Clone, Default)]
pub(super) struct Snapshot {
    /// By the clock of the backend.
    pub(super) at: Timestamp,
    pub(super) queues: Vec<QueueRow>,
    pub(super) workers: Option<Vec<WorkerRow>>,
    pub(super) failures: Option<Vec<(Group, u64)>>,
    /// Of all queues together.
    pub(super) trend: Trend,
}

/// The last refreshes, oldest first.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Trend {
    /// Jobs done per second.
    Done(Vec<f64>),
    /// Waiting jobs, on a backend that does not count what is done.
    Waiting(Vec<f64>),
}

impl Default for Trend {
    fn default() -> Trend {
        Trend::Waiting(Vec::new())
    }
}

impl Trend {
    pub(super) fn points(&self) -> &[f64] {
        match self {
            Trend::Done(points) | Trend::Waiting(points) => points,
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct QueueRow {
    pub(super) counts: QueueCounts,
    pub(super) figures: Option<QueueFigures>,
    /// Jobs done per second.
    pub(super) rate: Option<f64>,
    pub(super) trend: Trend,
}

#[derive(Debug, Clone)]
pub(super) struct WorkerRow {
    pub(super) counts: WorkerCounts,
    /// Some of the jobs that it holds, the longest held first.
    pub(super) holds: Vec<HeldJob>,
}

/// A job that a worker holds. Of one that was not looked up, only the id is known.
#[derive(Debug, Clone)]
pub(super) struct HeldJob {
    pub(super) jid: Jid,
    pub(super) queue: Option<QueueName>,
    pub(super) klass: Option<Klass>,
    pub(super) since: Option<Timestamp>,
    pub(super) is_stalled: bool,
}

/// Sums over all queues.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Totals {
    pub(super) waiting: u64,
    pub(super) running: u64,
    pub(super) stalled: u64,
    /// Scheduled jobs, and those that wait for others.
    pub(super) later: u64,
    pub(super) failed: Option<u64>,
    pub(super) rate: Option<f64>,
}

/// Which jobs a list has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ListOf {
    Queue(QueueName),
    Worker(WorkerName),
    Group(Group),
}

/// The first jobs of a queue by state, of a worker, or of a group of failures.
#[derive(Debug, Clone)]
pub(super) struct JobList {
    pub(super) of: ListOf,
    pub(super) jobs: Vec<JobRow>,
    /// Why there is no list, or not all of it.
    pub(super) remark: Option<String>,
}

#[derive(Debug, Clone)]
pub(super) struct JobRow {
    /// None if the queue gives waiting jobs no ids.
    pub(super) jid: Option<Jid>,
    pub(super) state: &'static str,
    pub(super) klass: Klass,
    pub(super) note: String,
}

impl JobList {
    /// The rows, by the ids of the jobs where they have any.
    pub(super) fn names(&self) -> Vec<String> {
        let name = |(number, job): (usize, &JobRow)| match &job.jid {
            Some(jid) => jid.to_string(),
            None => format!("row {number}"),
        };
        self.jobs.iter().enumerate().map(name).collect()
    }
}

/// A job and the reason why it is not running, as text with ANSI styles.
#[derive(Debug, Clone)]
pub(super) struct JobCard {
    pub(super) jid: Jid,
    pub(super) text: String,
}

impl Snapshot {
    pub(super) fn totals(&self) -> Totals {
        let sum = |number: fn(&QueueCounts) -> u64| self.queues.iter().map(|row| number(&row.counts)).sum();
        let rates = || self.queues.iter().filter_map(|row| row.rate);
        Totals {
            waiting: sum(|counts| counts.waiting),
            running: sum(|counts| counts.running),
            stalled: sum(|counts| counts.stalled),
            later: sum(|counts| counts.scheduled + counts.depends),
            failed: self.failures.as_ref().map(|groups| groups.iter().map(|(_, jobs)| jobs).sum()),
            rate: rates().next().map(|_| rates().sum()),
        }
    }

    pub(super) fn paused(&self) -> Vec<&QueueName> {
        self.queues.iter().map(|row| &row.counts).filter(|row| row.paused).map(|row| &row.name).collect()
    }

    /// The document of `--json`.
    pub(super) fn view(&self) -> Value {
        let totals = self.totals();
        let queue = |row: &QueueRow| {
            let mut view = json!(QueueView::new(&row.counts, row.figures.as_ref()));
            view["per_second"] = json!(row.rate.map(Number));
            view
        };
        let job = |job: &HeldJob| {
            json!({
                "jid": job.jid.to_string(),
                "queue": job.queue.as_ref().map(QueueName::as_str),
                "klass": job.klass.as_ref().map(Klass::as_str),
                "since": job.since.map(Number::from),
                "stalled": job.is_stalled,
            })
        };
        let worker = |row: &WorkerRow| {
            json!({
                "name": row.counts.name.as_str(),
                "running": row.counts.jobs,
                "stalled": row.counts.stalled,
                "seen": row.counts.seen.map(Number::from),
                "holds": row.holds.iter().map(job).collect::<Vec<_>>(),
            })
        };
        let group = |(group, count): &(Group, u64)| json!({ "group": group.as_str(), "count": count });
        let workers = self.workers.as_ref().map(|rows| rows.iter().map(worker).collect::<Vec<_>>());
        let failures = self.failures.as_ref().map(|groups| groups.iter().map(group).collect::<Vec<_>>());
        json!({
            "at": Number::from(self.at),
            "waiting": totals.waiting,
            "running": totals.running,
            "stalled": totals.stalled,
            "later": totals.later,
            "failed": totals.failed,
            "per_second": totals.rate.map(Number),
            "paused": geartrain_json::texts(&self.paused()),
            "queues": self.queues.iter().map(queue).collect::<Vec<_>>(),
            "workers": workers,
            "failures": failures,
        })
    }

    /// The overview as plain tables.
    pub(super) fn write(&self, url: &str, out: &mut TextOut<'_>) -> io::Result<()> {
        writeln!(out, "{HEADING}{}{HEADING:#}  {}", clean(url), timestamp::format(self.at))?;
        writeln!(out, "{}", self.totals().text())?;
        let paused = geartrain_json::texts(&self.paused());
        if !paused.is_empty() {
            writeln!(out, "paused: {}", clean(&paused.join(", ")))?;
        }
        let optional = |text: Option<String>| Cell::right(text.unwrap_or_default());
        let queues = self.queues.iter().map(|row| {
            let counts = &row.counts;
            [
                Cell::from(&counts.name),
                Cell::number(counts.waiting),
                Cell::number(counts.running),
                Cell::number(counts.stalled),
                Cell::number(counts.scheduled),
                Cell::number(counts.depends),
                optional(row.failed()),
                optional(row.oldest(self.at)),
                optional(row.rate.map(rate_text)),
                Cell::state(if counts.paused { "paused" } else { "" }),
            ]
        });
        let queues: Vec<_> = queues.collect();
        writeln!(out)?;
        let heading = [
            "QUEUE",
            "WAITING",
            "RUNNING",
            "STALLED",
            "SCHEDULED",
            "DEPENDS",
            "FAILED",
            "OLDEST",
            "DONE/S",
            "",
        ];
        table(out, heading, &queues)?;
        writeln!(out)?;
        match &self.workers {
            None => writeln!(out, "workers: {UNKNOWN}")?,
            Some(rows) if rows.is_empty() => writeln!(out, "no workers")?,
            Some(rows) => {
                let rows = rows.iter().map(|row| {
                    [
                        Cell::from(&row.counts.name),
                        Cell::number(row.counts.jobs),
                        Cell::number(row.counts.stalled),
                        Cell::whole(row.counts.seen.map(|seen| relative(seen, self.at)).unwrap_or_default()),
                        Cell::faint(row.holds_text(self.at)),
                    ]
                });
                table(out, ["WORKER", "JOBS", "STALLED", "SEEN", "HOLDS"], &rows.collect::<Vec<_>>())?;
            }
        }
        writeln!(out)?;
        match &self.failures {
            None => writeln!(out, "failures: {UNKNOWN}"),
            Some(groups) if groups.is_empty() => writeln!(out, "no failed jobs"),
            Some(groups) => {
                let rows = groups.iter().map(|(group, jobs)| [Cell::from(group), Cell::number(*jobs)]);
                table(out, ["FAILURES", "JOBS"], &rows.collect::<Vec<_>>())
            }
        }
    }
}

/// In place of what a backend cannot tell.
pub(super) const UNKNOWN: &str = "not known by this queue";

impl Totals {
    fn text(&self) -> String {
        let mut text = format!("{} waiting, {} running", grouped(self.waiting), grouped(self.running));
        for (number, word) in
            [(self.stalled, "stalled"), (self.later, "later"), (self.failed.unwrap_or(0), "failed")]
        {
            if number > 0 {
                text += &format!(", {} {word}", grouped(number));
            }
        }
        if let Some(rate) = self.rate {
            text += &format!(", {} done per second", rate_text(rate));
        }
        text
    }
}

impl QueueRow {
    /// The number of failed jobs, `1000+` if there may be more.
    pub(super) fn failed(&self) -> Option<String> {
        let figures = self.figures.as_ref()?;
        Some(format!("{}{}", grouped(figures.failed), if figures.failed_or_more { "+" } else { "" }))
    }

    /// How long the oldest job has waited.
    pub(super) fn oldest(&self, now: Timestamp) -> Option<String> {
        Some(oldest_text(self.figures.as_ref()?.oldest?, now))
    }
}

impl WorkerRow {
    /// What it holds, and for how long.
    pub(super) fn holds_text(&self, now: Timestamp) -> String {
        let Some(job) = self.holds.first() else { return String::new() };
        let others = (self.counts.jobs + self.counts.stalled).saturating_sub(1);
        let others = if others > 0 { format!(" and {others} more") } else { String::new() };
        format!("{}{others}", job.text(now))
    }
}

impl HeldJob {
    /// `welcome of mail for 12s`, or the id.
    fn text(&self, now: Timestamp) -> String {
        let stalled = if self.is_stalled { "stalled: " } else { "" };
        let what = match (&self.klass, &self.queue) {
            (Some(klass), Some(queue)) => format!("{klass} of {queue}"),
            _ => self.jid.to_string(),
        };
        let since = self.since.map(|since| format!(" for {}", age(since, now)));
        format!("{stalled}{what}{}", since.unwrap_or_default())
    }
}

/// The time since, in whole seconds.
pub(super) fn age(since: Timestamp, now: Timestamp) -> String {
    duration::format((now - since).get().max(0.0).round())
}

/// A number per second, to two digits below ten.
pub(super) fn rate_text(per_second: f64) -> String {
    match per_second {
        ..0.05 => "0".to_owned(),
        ..10.0 => format!("{per_second:.1}"),
        _ => grouped(per_second.round() as u64),
    }
}
