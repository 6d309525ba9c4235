//! Metrics for Prometheus, in its text format: what counters and samples of bounded size tell.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::http::StatusCode;
use geartrain_core::{
    Call, Clock, Failures, Figures, QueueCounts, QueueFigures, Queues, Reply as CommandReply, StatsReply,
    Summary, SystemClock, Timestamp, TimingCounts, Workers,
};
use geartrain_front::FrontEnd;
use geartrain_json::OperationError;

use crate::handlers::Shared;
use crate::history::{History, Totals};
use crate::respond::{self, Reply};
use crate::server_info;

/// The ends of buckets in seconds, and the last entry of a day's histogram that lies before each. It counts seconds
/// 0 to 59, minutes 1 to 59, hours 1 to 23, days 1 to 6.
const SPANS: [(u32, usize); 11] = [
    (1, 0),
    (2, 1),
    (5, 4),
    (10, 9),
    (30, 29),
    (60, 59),
    (300, 63),
    (900, 73),
    (3_600, 118),
    (21_600, 123),
    (86_400, 141),
];

pub(crate) async fn render(shared: &Arc<Shared>) -> Result<Reply, OperationError> {
    History::ensure_sampled(shared);
    let calls = vec![
        Call::from(Queues::default()),
        Call::from(Figures::default()),
        Call::from(Failures),
        Call::from(Workers),
    ];
    let now = shared.backend.now().unwrap_or_else(|| SystemClock.now());
    let mut text = Text::default();
    of_process(&mut text, shared);
    // A backend that lacks one of these, such as a Gearman server, refuses it.
    for answer in shared.backend.execute(calls).await? {
        match answer {
            Ok(CommandReply::Queues(queues)) => of_queues(&mut text, &queues),
            Ok(CommandReply::Figures(figures)) => of_figures(&mut text, &figures, now),
            Ok(CommandReply::Failures(groups)) => {
                text.family("geartrain_failed_jobs_by_group", "gauge", "Failed jobs by failure group.");
                for (group, count) in &groups {
                    text.sample(
                        "geartrain_failed_jobs_by_group",
                        &[("group", group.as_str())],
                        *count as f64,
                    );
                }
            }
            Ok(CommandReply::Workers(workers)) => {
                text.family("geartrain_workers", "gauge", "Workers seen lately.");
                text.sample("geartrain_workers", &[], workers.len() as f64);
            }
            _ => {}
        }
    }
    of_history(&mut text, shared);
    of_backend(&mut text, shared).await;
    Ok(respond::with_type(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text.0))
}

/// The process: its version, memory, requests and connections.
fn of_process(text: &mut Text, shared: &Shared) {
    text.family("geartrain_info", "gauge", "The version of the server.");
    text.sample("geartrain_info", &[("version", env!("CARGO_PKG_VERSION"))], 1.0);
    text.family("process_start_time_seconds", "gauge", "When the server was started.");
    text.sample("process_start_time_seconds", &[], shared.started.get());
    if let Some(bytes) = server_info::memory() {
        text.family("process_resident_memory_bytes", "gauge", "Memory of the process.");
        text.sample("process_resident_memory_bytes", &[], bytes as f64);
    }
    let name = "geartrain_http_requests_total";
    text.family(name, "counter", "HTTP requests that were answered, by class of status.");
    for (digit, count) in shared.requests.iter().enumerate().skip(1) {
        let class = format!("{digit}xx");
        text.sample(name, &[("status", &class)], count.load(Ordering::Relaxed) as f64);
    }
    let admission = &shared.options.admission;
    text.family("geartrain_connections", "gauge", "Open connections by front-end.");
    for front_end in FrontEnd::ALL {
        let count = admission.connections(front_end) as f64;
        text.sample("geartrain_connections", &[("front_end", front_end.as_str())], count);
    }
    text.family("geartrain_connections_max", "gauge", "How many connections the front-ends accept together.");
    text.sample("geartrain_connections_max", &[], admission.connections_max() as f64);
}

fn of_queues(text: &mut Text, queues: &[QueueCounts]) {
    text.family("geartrain_jobs", "gauge", "Unfinished jobs by queue and state.");
    for of in queues {
        let states = [
            ("waiting", of.waiting),
            ("running", of.running),
            ("stalled", of.stalled),
            ("scheduled", of.scheduled),
            ("depends", of.depends),
        ];
        for (state, count) in states {
            text.sample("geartrain_jobs", &[("queue", of.name.as_str()), ("state", state)], count as f64);
        }
    }
    text.family("geartrain_queue_paused", "gauge", "Whether the queue is paused.");
    for of in queues {
        text.sample("geartrain_queue_paused", &[("queue", of.name.as_str())], f64::from(u8::from(of.paused)));
    }
}

fn of_figures(text: &mut Text, figures: &[QueueFigures], now: Timestamp) {
    let name = "geartrain_oldest_waiting_seconds";
    text.family(name, "gauge", "How long the oldest waiting job has waited.");
    for of in figures {
        let age = of.oldest.map_or(0.0, |oldest| (now - oldest).get().max(0.0));
        text.sample(name, &[("queue", of.name.as_str())], age);
    }
    let name = "geartrain_completed_per_minute";
    text.family(name, "gauge", "Completions per minute over the last one to two minutes.");
    for of in figures {
        text.sample(name, &[("queue", of.name.as_str())], of.rate.unwrap_or(0.0));
    }
    text.family("geartrain_failed_jobs", "gauge", "Failed jobs by queue.");
    for of in figures {
        text.sample("geartrain_failed_jobs", &[("queue", of.name.as_str())], of.failed as f64);
    }
}

/// A counter's name, its help, and its value among the totals of a queue.
type Counter = (&'static str, &'static str, fn(&Totals) -> u64);

/// A histogram's name, its help, and the summary in a queue's statistics that it shows.
type DayHistogram = (&'static str, &'static str, fn(&StatsReply) -> &Summary);

/// What the samples of the queues' counters tell.
fn of_history(text: &mut Text, shared: &Shared) {
    let queues = shared.history.queues();
    let totals: [Counter; 4] = [
        ("geartrain_jobs_put_total", "Jobs that came into the queue, less those cancelled.", |of| of.put),
        ("geartrain_jobs_completed_total", "Jobs that were completed.", |of| of.completed),
        ("geartrain_jobs_failed_total", "Jobs that failed.", |of| of.failed),
        ("geartrain_attempts_retried_total", "Attempts that were retried, released or lost.", |of| {
            of.retried
        }),
    ];
    for (name, help, of) in totals {
        text.family(name, "counter", help);
        for (queue, totals, _) in &queues {
            text.sample(name, &[("queue", queue.as_str())], of(totals) as f64);
        }
    }
    let summaries: [DayHistogram; 2] = [
        ("geartrain_wait_seconds", "How long the jobs popped on this day (UTC) had waited.", |of| &of.wait),
        ("geartrain_run_seconds", "How long the jobs completed on this day (UTC) had run.", |of| &of.run),
    ];
    for (name, help, of) in summaries {
        text.family(name, "histogram", help);
        for (queue, _, stats) in &queues {
            let Some(summary) = stats.as_deref().map(of) else { continue };
            let upto = |last: usize| summary.histogram.iter().take(last + 1).sum();
            let buckets = SPANS.iter().map(|(end, last)| (f64::from(*end), upto(*last)));
            let sum = summary.mean * summary.count as f64;
            text.histogram(name, &[("queue", queue.as_str())], buckets, (sum, summary.count));
        }
    }
}

/// What the backend measures of itself.
async fn of_backend(text: &mut Text, shared: &Shared) {
    let measures = server_info::measure(&shared.backend).await;
    if let Some(bytes) = measures.store_bytes {
        text.family("geartrain_store_bytes", "gauge", "Bytes of the files of the store.");
        text.sample("geartrain_store_bytes", &[], bytes as f64);
    }
    let timings: [(&str, &str, Option<TimingCounts>); 3] = [
        ("geartrain_commit_seconds", "How long commits took, with their syncs.", measures.commit),
        ("geartrain_sync_seconds", "How long syncs of the log took.", measures.sync),
        ("geartrain_redis_round_trip_seconds", "How long the Redis took to answer.", measures.round_trip),
    ];
    for (name, help, counts) in timings {
        let Some(counts) = counts else { continue };
        text.family(name, "histogram", help);
        text.histogram(name, &[], counts.cumulative().into_iter(), (counts.seconds(), counts.count()));
    }
}

#[derive(Default)]
struct Text(String);

impl Text {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let labels: Vec<String> = labels
            .iter()
            .map(|(label, value)| {
                let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
                format!("{label}=\"{value}\"")
            })
            .collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }

    /// A histogram: how many values lie below the end of each bucket, their sum and their count.
    fn histogram(
        &mut self,
        name: &str,
        labels: &[(&str, &str)],
        buckets: impl Iterator<Item = (f64, u64)>,
        (sum, count): (f64, u64),
    ) {
        let ends = buckets.map(|(end, below)| (end.to_string(), below));
        for (end, below) in ends.chain([("+Inf".to_owned(), count)]) {
            let with_end: Vec<(&str, &str)> = labels.iter().copied().chain([("le", end.as_str())]).collect();
            self.sample(&format!("{name}_bucket"), &with_end, below as f64);
        }
        self.sample(&format!("{name}_sum"), labels, sum);
        self.sample(&format!("{name}_count"), labels, count as f64);
    }
}
