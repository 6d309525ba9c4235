//! `geartrain why --queue`: explain why the jobs of a queue are not running.

use geartrain::{Client, QueueName, Timestamp, WORKER_SILENCE_MAX, WhyQueue, WhyQueueReply};

use super::Done;
use super::queue::{find_queue, no_queue};
use super::why::quoted;
use crate::failure::Failure;
use crate::output::Output;
use crate::text::count;
use crate::timestamp::when;
use geartrain_json::WhyQueueView;

/// Explains a queue. The commands that help begin with `geartrain`.
pub(super) async fn why_queue(
    client: &Client,
    queue: QueueName,
    geartrain: &str,
    out: &mut Output<'_>,
) -> Done {
    let reply = client.run(WhyQueue { queue: queue.clone() }).await?;
    if jobs(&reply) == 0 && find_queue(client, &queue).await?.is_none() {
        return Err(Failure::Refused(no_queue(&queue)));
    }
    let now = out.now;
    Ok(out.show(&WhyQueueView::new(&reply), |out| {
        let (heading, reasons) = explain(&reply, now, geartrain);
        writeln!(out, "{heading}")?;
        reasons.iter().try_for_each(|reason| writeln!(out, "  {reason}"))
    })?)
}

fn jobs(reply: &WhyQueueReply) -> u64 {
    let counts = &reply.counts;
    counts.waiting + counts.running + counts.stalled + counts.scheduled + counts.depends
}

/// A number found in a sample, as the number in the whole: `about` if not all were examined.
fn scaled(found: u64, examined: u64, all: u64) -> String {
    if examined >= all || examined == 0 {
        return grouped(found);
    }
    format!("about {}", grouped((found as f64 * all as f64 / examined as f64).round() as u64))
}

/// A number with commas between thousands.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The heading, and one line for each reason: how many jobs, why, and what would help.
fn explain(reply: &WhyQueueReply, now: Timestamp, geartrain: &str) -> (String, Vec<String>) {
    let counts = &reply.counts;
    let name = counts.name.as_str();
    let (queue, all) = (quoted(name), jobs(reply));
    let heading = match all {
        0 => format!("{name} has no jobs that could run"),
        1 => format!("of the one job in {name}:"),
        _ => format!("of {} jobs in {name}:", grouped(all)),
    };
    let mut reasons = Vec::new();
    let mut add = |jobs: u64, reason: String| {
        if jobs > 0 {
            reasons.push(format!("{} {reason}", grouped(jobs)));
        }
    };
    add(counts.running, "running".to_owned());
    add(
        counts.stalled,
        format!(
            "stalled: their workers stopped sending heartbeats, and the next pop takes them over; `{geartrain} jobs --queue {queue} --state stalled` lists them"
        ),
    );
    add(
        counts.scheduled,
        match reply.next_due {
            Some(due) => format!("scheduled, the next {}", when(due, now)),
            None => "scheduled".to_owned(),
        },
    );
    if counts.paused {
        add(
            counts.waiting,
            format!("waiting, and the queue is paused; `{geartrain} resume {queue}` resumes it"),
        );
    }
    let is_asked = reply.asked.is_some_and(|asked| now - asked <= WORKER_SILENCE_MAX);
    if counts.waiting > 0 && !is_asked && reply.workers == 0 {
        let asked = match reply.asked {
            Some(asked) => format!("the last pop was {}", when(asked, now)),
            None => "no worker has ever popped from it".to_owned(),
        };
        add(counts.waiting, format!("waiting without a live worker: {asked}; start a worker for {name}"));
    } else {
        for (klass, found) in &reply.unasked {
            let jobs = scaled(*found, reply.waiting_examined, counts.waiting);
            reasons.push(format!(
                "{jobs} of klass {klass} that no worker asks for; start a worker for it, or `{geartrain} pop {queue} --klass {}`",
                quoted(klass.as_str())
            ));
        }
        let unasked: u64 = reply.unasked.iter().map(|(_, jobs)| jobs).sum();
        let others = counts.waiting.saturating_sub(unasked * counts.waiting / reply.waiting_examined.max(1));
        if others > 0 && !counts.paused {
            reasons.push(obstacle(reply, others, &queue, now, geartrain));
        }
    }
    let behind = scaled(reply.behind_failed, reply.depends_examined, counts.depends);
    if let Some(failed) = &reply.failed_dependency {
        reasons.push(format!(
            "{behind} behind failed dependencies, for example {failed}; `{geartrain} why {}` explains that one",
            quoted(&failed.to_string())
        ));
    }
    let unfinished =
        counts.depends.saturating_sub(reply.behind_failed * counts.depends / reply.depends_examined.max(1));
    if unfinished > 0 {
        reasons.push(format!("{} behind jobs that are not complete yet", grouped(unfinished)));
    }
    (heading, reasons)
}

/// Why waiting jobs that a worker asks for have not started.
fn obstacle(reply: &WhyQueueReply, jobs: u64, queue: &str, now: Timestamp, geartrain: &str) -> String {
    let jobs = grouped(jobs);
    if let Some(max) = reply.concurrency_max {
        return format!(
            "{jobs} over the concurrency limit of {max}; `{geartrain} config set {} {}` lets one more run",
            quoted(&format!("{}-max-concurrency", reply.counts.name)),
            max.max(reply.counts.running) + 1
        );
    }
    if let Some(until) = reply.rate_limited_until {
        return format!(
            "{jobs} over the rate limit, which lets the next one start {}; `{geartrain} limits {queue}` shows it",
            when(until, now)
        );
    }
    match reply.workers {
        0 => format!("{jobs} waiting for a worker to ask"),
        workers => format!("{jobs} waiting for {} to ask", count(workers, "worker")),
    }
}

#[cfg(test)]
mod tests {
    use geartrain::{Jid, Klass, QueueCounts};
    use serde_json::json;

    use super::*;

    fn reply() -> WhyQueueReply {
        WhyQueueReply {
            counts: QueueCounts {
                name: QueueName::new("mail").unwrap(),
                waiting: 2_600,
                running: 0,
                stalled: 0,
                scheduled: 9_800,
                depends: 31,
                recurring: 0,
                paused: false,
            },
            next_due: Some(Timestamp::from(160)),
            concurrency_max: None,
            rate_limited_until: Some(Timestamp::from(101)),
            asked: None,
            workers: 3,
            waiting_examined: 1_000,
            unasked: vec![(Klass::new("beta").unwrap(), 770)],
            depends_examined: 31,
            behind_failed: 31,
            failed_dependency: Some(Jid::new("j1").unwrap()),
        }
    }

    fn lines(reply: &WhyQueueReply) -> Vec<String> {
        let (heading, reasons) = explain(reply, Timestamp::from(100), "geartrain");
        [vec![heading], reasons].concat()
    }

    #[test]
    fn a_queue_is_explained_by_numbers_and_remedies() {
        assert_eq!(
            lines(&reply()),
            [
                "of 12,431 jobs in mail:",
                "9,800 scheduled, the next in 1m (1970-01-01T00:02:40Z)",
                "about 2,002 of klass beta that no worker asks for; start a worker for it, or \
                 `geartrain pop mail --klass beta`",
                "598 over the rate limit, which lets the next one start in 1s (1970-01-01T00:01:41Z); \
                 `geartrain limits mail` shows it",
                "31 behind failed dependencies, for example j1; `geartrain why j1` explains that one",
            ]
        );
    }

    #[test]
    fn a_queue_without_workers_and_a_paused_one_say_so() {
        let mut alone = WhyQueueReply { workers: 0, ..reply() };
        alone.counts = QueueCounts { scheduled: 0, depends: 0, waiting: 1, paused: true, ..alone.counts };
        alone.failed_dependency = None;
        assert_eq!(
            lines(&alone),
            [
                "of the one job in mail:",
                "1 waiting, and the queue is paused; `geartrain resume mail` resumes it",
                "1 waiting without a live worker: no worker has ever popped from it; start a worker for mail",
            ]
        );
    }

    #[test]
    fn json_has_the_figures_as_they_are() {
        let view = json!(WhyQueueView::new(&reply()));
        assert_eq!(view["name"], "mail");
        assert_eq!(view["waiting"], 2_600);
        assert_eq!(view["unasked"], json!([{ "klass": "beta", "jobs": 770 }]));
        assert_eq!(view["rate_limited_until"], 101);
    }

    #[test]
    fn thousands_are_grouped() {
        for (number, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(number), text);
        }
    }
}
