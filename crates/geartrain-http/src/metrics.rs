//! Metrics for Prometheus, in its text format: what counters and samples of bounded size tell.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::http::StatusCode;
use geartrain_core::{
    Call, Clock, Failures, Figures, QueueCounts, Queues, Reply as CommandReply, SystemClock, Workers,
};
use geartrain_json::OperationError;

use crate::handlers::Shared;
use crate::respond::{self, Reply};

pub(crate) async fn render(shared: &Arc<Shared>) -> Result<Reply, OperationError> {
    let calls = vec![
        Call::from(Queues::default()),
        Call::from(Figures::default()),
        Call::from(Failures),
        Call::from(Workers),
    ];
    let now = shared.backend.now().unwrap_or_else(|| SystemClock.now());
    let mut text = Text::default();
    text.family("geartrain_info", "gauge", "The version of the server.");
    text.sample("geartrain_info", &[("version", env!("CARGO_PKG_VERSION"))], 1.0);
    text.family(
        "geartrain_http_requests_total",
        "counter",
        "HTTP requests that were answered, by class of status.",
    );
    for (digit, count) in shared.requests.iter().enumerate().skip(1) {
        let class = format!("{digit}xx");
        text.sample(
            "geartrain_http_requests_total",
            &[("status", &class)],
            count.load(Ordering::Relaxed) as f64,
        );
    }
    // A backend that lacks one of these, such as a Gearman server, refuses it.
    for answer in shared.backend.execute(calls).await? {
        match answer {
            Ok(CommandReply::Queues(queues)) => of_queues(&mut text, &queues),
            Ok(CommandReply::Figures(figures)) => {
                text.family(
                    "geartrain_oldest_waiting_seconds",
                    "gauge",
                    "How long the oldest waiting job has waited.",
                );
                for of in &figures {
                    let age = of.oldest.map_or(0.0, |oldest| (now - oldest).get().max(0.0));
                    text.sample("geartrain_oldest_waiting_seconds", &[("queue", of.name.as_str())], age);
                }
                text.family(
                    "geartrain_completed_per_minute",
                    "gauge",
                    "Completions per minute over the last one to two minutes.",
                );
                for of in &figures {
                    let rate = of.rate.unwrap_or(0.0);
                    text.sample("geartrain_completed_per_minute", &[("queue", of.name.as_str())], rate);
                }
                text.family("geartrain_failed_jobs", "gauge", "Failed jobs by queue.");
                for of in &figures {
                    text.sample("geartrain_failed_jobs", &[("queue", of.name.as_str())], of.failed as f64);
                }
            }
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
    Ok(respond::with_type(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text.0))
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
}
