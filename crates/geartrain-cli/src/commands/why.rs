//! `geartrain why`: explain in one sentence why a job is not running.

use clap::Args;
use geartrain::{
    Client, Error, FailedDependency, GetLimits, Group, Jid, QueueLimits, QueueName, Rate, Reason, Refusal,
    StateName, Timestamp, Why, WhyReply,
};

use super::why_queue::why_queue;
use super::{Done, canceled, why_recurring};
use crate::failure::Failure;
use crate::output::Output;
use crate::rate;
use crate::timestamp::{self, when};
use geartrain_json::{WhyView, why_stalled as is_stalled};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  geartrain why j1
  geartrain why --queue mail")]
pub(crate) struct WhyArgs {
    /// The id of the job, or of a recurring one
    #[arg(required_unless_present = "queue")]
    pub(super) jid: Option<Jid>,
    /// Explain a whole queue instead: how many of its jobs are not running, and why
    #[arg(long, value_name = "QUEUE", conflicts_with = "jid")]
    pub(super) queue: Option<QueueName>,
}

/// Explains a job or a queue. The commands that help have `url` in them, unless it is the default.
pub(super) async fn why(client: &Client, args: WhyArgs, url: Option<&str>, out: &mut Output<'_>) -> Done {
    // A URL with a password is not repeated.
    let url = url.filter(|url| !url.contains('@')).map(|url| format!(" --url {}", quoted(url)));
    let geartrain = format!("geartrain{}", url.unwrap_or_default());
    let jid = match (args.jid, args.queue) {
        (Some(jid), _) => jid,
        (None, Some(queue)) => return why_queue(client, queue, &geartrain, out).await,
        (None, None) => return Err(Failure::Usage("give a job, or --queue QUEUE".to_owned())),
    };
    let reply = match client.run(Why { jid: jid.clone() }).await {
        // A WorkKit schedule explains no jobs, but the recurring ones are known.
        Err(Error::Refused(Refusal::NoSuchJob { .. } | Refusal::Unsupported { .. }))
            if why_recurring::explain(client, &jid, &geartrain, out).await? =>
        {
            return Ok(());
        }
        Err(Error::Refused(Refusal::NoSuchJob { .. })) => {
            return Err(canceled::explain(client, &jid, out).await);
        }
        reply => reply?,
    };
    // A command that raises the rate has to repeat the other limits, or it would remove them.
    let limits = match (&reply.queue, reply.reasons.first()) {
        (Some(queue), Some(Reason::RateLimit { .. })) if !out.json => {
            client.run(GetLimits { queue: queue.clone() }).await?
        }
        _ => QueueLimits::default(),
    };
    let people = sentence(&reply, &limits, out.now, &geartrain);
    Ok(out.line(&WhyView::new(&reply), people)?)
}

/// The job, its state, the reasons, and commands that help.
fn sentence(reply: &WhyReply, limits: &QueueLimits, now: Timestamp, geartrain: &str) -> String {
    let job = match &reply.queue {
        Some(queue) => format!("job {} of {queue}", reply.jid),
        None => format!("job {}", reply.jid),
    };
    let state = match reply.state {
        StateName::Scheduled => "is scheduled",
        StateName::Depends => "depends on others",
        StateName::Waiting => "is waiting",
        StateName::Running if is_stalled(reply) => "is stalled",
        StateName::Running => "is running",
        StateName::Complete => "is complete",
        StateName::Failed => "failed",
    };
    let mut clauses: Vec<String> = reply.reasons.iter().map(|reason| clause(reason, reply, now)).collect();
    let joined = match clauses.pop() {
        Some(last) if clauses.is_empty() => last,
        Some(last) => format!("{}, and {last}", clauses.join(", ")),
        None => "the reason is not known".to_owned(),
    };
    // The first reason weighs most, and one remedy at a time is enough; but in a paused queue no other helps.
    let paused = reply.reasons.iter().skip(1).find(|reason| matches!(reason, Reason::Paused { .. }));
    let named = reply.reasons.iter().take(1).chain(paused);
    let remedies = named.filter_map(|reason| remedy(reason, reply, limits, geartrain));
    let remedies = remedies.map(|remedy| format!("; {remedy}")).collect::<String>();
    format!("{job} {state}: {joined}{remedies}")
}

fn clause(reason: &Reason, reply: &WhyReply, now: Timestamp) -> String {
    match reason {
        Reason::Running { worker, until, warned: false } => {
            format!("{worker} holds it, and the lock expires {}", when(*until, now))
        }
        Reason::Running { worker, until, .. } => {
            format!(
                "its worker {worker} stopped sending heartbeats and was warned; another worker may get it {}",
                when(*until, now)
            )
        }
        Reason::Stalled { worker, since, remaining, warned } => {
            let next = match (warned, *remaining > 0) {
                (false, _) => {
                    "the worker will be warned at the next pop, and then has the grace period to come back"
                }
                (true, true) => "the next pop by another worker gets it",
                (true, false) => "no retry is left, so it fails at the next pop",
            };
            format!(
                "its worker {worker} stopped sending heartbeats, the lock expired {}, and {next}",
                when(*since, now)
            )
        }
        Reason::Complete { at } => format!("it was completed {}", when(*at, now)),
        Reason::Failed { group, message } => format!("it is in group {group}, with the message {message:?}"),
        Reason::SetAside { crashes, evidence, .. } => {
            let evidence = evidence.as_ref().map(|evidence| format!(" ({evidence})")).unwrap_or_default();
            format!("it crashed {crashes} of its workers{evidence}")
        }
        Reason::DependsOn { failed: Some(failed), count, .. } => {
            let FailedDependency { jid, group, message } = &**failed;
            let which = format!("{jid}, which failed: it is in group {group}, with the message {message:?}");
            match count {
                1 => format!("it waits for job {which}"),
                count => format!("it waits for {count} jobs, among them {which}"),
            }
        }
        Reason::DependsOn { jid, state, count: 1, .. } => {
            format!("it waits for job {jid}, {}", which_is(*state))
        }
        Reason::DependsOn { jid, state, count, .. } => {
            format!("it waits for {count} jobs, among them {jid}, {}", which_is(*state))
        }
        Reason::Scheduled { at } => format!("it may start {}", when(*at, now)),
        Reason::Expired { at } => {
            let (at, ago) = (timestamp::format(*at), timestamp::relative(*at, now));
            format!("it had to start by {at} ({ago}), so it is about to fail")
        }
        Reason::Paused { queue } => format!("queue {queue} is paused"),
        Reason::Concurrency { max, held, running } => {
            let such_as = match held.first() {
                Some((jid, worker)) => format!(" (for example {jid}, held by {worker})"),
                None => String::new(),
            };
            let running = match running.max(max) {
                1 => "1 job of its queue runs".to_owned(),
                running => format!("{running} jobs of its queue run"),
            };
            format!("{running}, and its concurrency limit is {max}{such_as}")
        }
        Reason::RateLimit { until } => {
            format!("its queue is at its rate limit and starts the next job {}", when(*until, now))
        }
        Reason::NoWorker { klass, others, workers, .. } if !others.is_empty() => {
            let queue = reply.queue.as_ref().map_or("its queue", QueueName::as_str);
            let others = geartrain_json::texts(others).join(", ");
            match workers {
                0 => format!("no worker asks for klass {klass}; workers ask {queue} for {others}"),
                1 => format!("no worker asks for klass {klass}; 1 worker asks {queue} for {others}"),
                count => {
                    format!("no worker asks for klass {klass}; {count} workers ask {queue} for {others}")
                }
            }
        }
        Reason::NoWorker { klass, asked: None, .. } => {
            format!("no worker has ever popped from its queue or announced that it can run {klass}")
        }
        Reason::NoWorker { klass, asked: Some(asked), .. } => {
            let asked = when(*asked, now);
            format!(
                "there is no live worker: the last pop was {asked}, and none has announced that it can run {klass}"
            )
        }
        Reason::Behind { jobs: 1 } => "1 job is ahead of it".to_owned(),
        Reason::Behind { jobs } => format!("{jobs} jobs are ahead of it"),
        Reason::Next => "it is next, and the next pop gets it".to_owned(),
        other => other.to_string(),
    }
}

/// The state of another job, as part of a sentence.
fn which_is(state: StateName) -> String {
    match state {
        StateName::Depends => "which depends on other jobs itself".to_owned(),
        StateName::Failed => "which failed".to_owned(),
        state => format!("which is {state}"),
    }
}

/// Whether a group is that of jobs which failed because a dependency did.
fn is_upstream(group: &Group, reply: &WhyReply) -> bool {
    let queue = group.as_str().strip_prefix("upstream-");
    queue.is_some() && queue == reply.queue.as_ref().map(QueueName::as_str)
}

/// What would help, with a command to paste.
fn remedy(reason: &Reason, reply: &WhyReply, limits: &QueueLimits, geartrain: &str) -> Option<String> {
    let jid = quoted(&reply.jid.to_string());
    let queue = reply.queue.as_ref().map(|queue| quoted(queue.as_str()));
    Some(match reason {
        Reason::Running { worker, .. } | Reason::Stalled { worker, .. } => format!(
            "`{geartrain} timeout {jid}` takes it back at once, and `{geartrain} worker-lost {}` \
             all jobs of that worker",
            quoted(worker.as_str())
        ),
        Reason::Complete { .. } => format!("`{geartrain} requeue {jid}` runs it again"),
        // Put back now, it would run without the job that failed.
        Reason::Failed { group, .. } if is_upstream(group, reply) => format!(
            "repair and requeue the job that the message names, then `{geartrain} unfail {}` puts the group back \
             behind it; `{geartrain} requeue {jid}` runs this job without it",
            quoted(group.as_str())
        ),
        Reason::Failed { group, .. } | Reason::SetAside { group, .. } => format!(
            "`{geartrain} requeue {jid}` retries it, `{geartrain} unfail {}` retries the whole group",
            quoted(group.as_str())
        ),
        Reason::DependsOn { failed: Some(failed), .. } => {
            let (on, group) = (quoted(&failed.jid.to_string()), quoted(failed.group.as_str()));
            format!(
                "`{geartrain} requeue {on}` retries that one, `{geartrain} unfail {group}` its whole group, \
                 `{geartrain} undepend {jid} {on}` stops waiting for it, and `{geartrain} cancel --cascade {on}` \
                 cancels it with all jobs that depend on it"
            )
        }
        Reason::DependsOn { jid: on, .. } => {
            let on = quoted(&on.to_string());
            format!(
                "`{geartrain} why {on}` explains that one, and `{geartrain} undepend {jid} {on}` \
                 stops waiting for it"
            )
        }
        Reason::Scheduled { .. } => format!("`{geartrain} requeue {jid}` lets it start now"),
        Reason::Expired { .. } => {
            format!("`{geartrain} tick` fails it now; submit it again with a later --expires")
        }
        Reason::Paused { queue } => format!("`{geartrain} resume {}` resumes it", quoted(queue.as_str())),
        Reason::Concurrency { max, running, .. } => format!(
            "`{geartrain} config set {} {}` lets one more run",
            quoted(&format!("{}-max-concurrency", reply.queue.as_ref()?)),
            running.max(max) + 1
        ),
        Reason::RateLimit { .. } => {
            let queue = queue?;
            let raised = doubled(limits)
                .map(|limits| format!(", and `{geartrain} limits{limits} {queue}` doubles the rate"));
            format!("`{geartrain} limits {queue}` shows the limit{}", raised.unwrap_or_default())
        }
        Reason::NoWorker { klass, others, .. } if !others.is_empty() => {
            let (queue, klass) = (queue?, quoted(klass.as_str()));
            format!("start a worker for it, or take it by hand: `{geartrain} pop {queue} --klass {klass}`")
        }
        Reason::NoWorker { .. } => {
            format!(
                "start a worker for {}, or take the next job by hand: `{geartrain} pop {}`",
                reply.queue.as_ref()?,
                queue?
            )
        }
        Reason::Behind { .. } => {
            format!("`{geartrain} priority {jid} 100` moves it ahead of lower priorities")
        }
        Reason::Next => format!("`{geartrain} pop {}` takes it", queue?),
        _ => return None,
    })
}

/// The flags of `limits` for twice the rate, with all other limits as they are.
fn doubled(limits: &QueueLimits) -> Option<String> {
    let slow = limits.rate?;
    let fast = Rate::new(slow.count().saturating_mul(2), slow.per(), slow.burst()).ok()?;
    let max = limits.jobs_max.map(|max| format!(" --max {max}")).unwrap_or_default();
    let by_priority = limits.by_priority.iter().map(|(priority, max)| format!(" --max-at {priority}={max}"));
    Some(format!("{max}{} --rate {}", by_priority.collect::<String>(), rate::format(fast)))
}

/// An argument as a POSIX shell reads it.
pub(super) fn quoted(argument: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_./:@%+=,-".contains(c);
    if !argument.is_empty() && !argument.starts_with('-') && argument.chars().all(is_plain) {
        return argument.to_owned();
    }
    let text = format!("'{}'", argument.replace('\'', r"'\''"));
    if argument.starts_with('-') { format!("-- {text}") } else { text }
}

#[cfg(test)]
mod tests {
    use geartrain::{Group, Klass, Priority, Seconds, WorkerName};
    use serde_json::json;

    use super::*;

    fn reply(state: StateName, reasons: Vec<Reason>) -> WhyReply {
        let queue = (state != StateName::Complete).then(|| QueueName::new("mail").unwrap());
        WhyReply { jid: jid("j1"), state, queue, reasons }
    }

    fn jid(name: &str) -> Jid {
        Jid::new(name).unwrap()
    }

    fn at(seconds: i32) -> Timestamp {
        Timestamp::from(seconds)
    }

    fn all() -> Vec<(StateName, Vec<Reason>, &'static str)> {
        let worker = || WorkerName::new("w1").unwrap();
        let paused = || Reason::Paused { queue: QueueName::new("mail").unwrap() };
        let group = |name| Group::new(name).unwrap();
        let klass = || Klass::new("welcome").unwrap();
        vec![
            (
                StateName::Running,
                vec![Reason::Running { worker: worker(), until: at(160), warned: false }],
                "job j1 of mail is running: w1 holds it, and the lock expires in 1m (1970-01-01T00:02:40Z); \
                 `geartrain timeout j1` takes it back at once, and `geartrain worker-lost w1` \
                 all jobs of that worker",
            ),
            (
                StateName::Running,
                vec![
                    Reason::Stalled { worker: worker(), since: at(90), remaining: 2, warned: true },
                    paused(),
                ],
                "job j1 of mail is stalled: its worker w1 stopped sending heartbeats, the lock expired 10s ago \
                 (1970-01-01T00:01:30Z), and the next pop by another worker gets it, and queue mail is paused; \
                 `geartrain timeout j1` takes it back at once, and `geartrain worker-lost w1` \
                 all jobs of that worker; `geartrain resume mail` resumes it",
            ),
            (
                StateName::Complete,
                vec![Reason::Complete { at: at(40) }],
                "job j1 is complete: it was completed 1m ago (1970-01-01T00:00:40Z); \
                 `geartrain requeue j1` runs it again",
            ),
            (
                StateName::Failed,
                vec![Reason::Failed { group: group("smtp"), message: "it said 451".to_owned() }],
                "job j1 of mail failed: it is in group smtp, with the message \"it said 451\"; `geartrain requeue j1` \
                 retries it, `geartrain unfail smtp` retries the whole group",
            ),
            (
                StateName::Failed,
                vec![Reason::SetAside {
                    group: group("crashed-mail"),
                    crashes: 3,
                    evidence: Some("signal 9".to_owned()),
                }],
                "job j1 of mail failed: it crashed 3 of its workers (signal 9); \
                 `geartrain requeue j1` retries it, `geartrain unfail crashed-mail` retries the whole group",
            ),
            (
                StateName::Depends,
                vec![
                    Reason::DependsOn { jid: jid("j0"), state: StateName::Running, count: 1, failed: None },
                    Reason::Scheduled { at: at(3_700) },
                    paused(),
                ],
                "job j1 of mail depends on others: it waits for job j0, which is running, it may start \
                 in 1h (1970-01-01T01:01:40Z), and queue mail is paused; `geartrain why j0` explains that one, \
                 and `geartrain undepend j1 j0` stops waiting for it; `geartrain resume mail` resumes it",
            ),
            (
                StateName::Depends,
                vec![Reason::DependsOn {
                    jid: jid("a"),
                    state: StateName::Waiting,
                    count: 2,
                    failed: Some(Box::new(FailedDependency {
                        jid: jid("j0"),
                        group: group("smtp"),
                        message: "no route".to_owned(),
                    })),
                }],
                "job j1 of mail depends on others: it waits for 2 jobs, among them j0, which failed: it is in \
                 group smtp, with the message \"no route\"; `geartrain requeue j0` retries that one, \
                 `geartrain unfail smtp` its whole group, `geartrain undepend j1 j0` stops waiting for it, and \
                 `geartrain cancel --cascade j0` cancels it with all jobs that depend on it",
            ),
            (
                StateName::Scheduled,
                vec![Reason::Scheduled { at: at(3_700) }],
                "job j1 of mail is scheduled: it may start in 1h (1970-01-01T01:01:40Z); \
                 `geartrain requeue j1` lets it start now",
            ),
            (
                StateName::Waiting,
                vec![
                    Reason::Concurrency { max: 2, held: vec![(jid("j7"), worker())], running: 3 },
                    Reason::RateLimit { until: at(105) },
                    Reason::NoWorker { klass: klass(), asked: None, others: vec![], workers: 0 },
                    Reason::Behind { jobs: 3 },
                ],
                "job j1 of mail is waiting: 3 jobs of its queue run, and its concurrency limit is 2 \
                 (for example j7, held by w1), \
                 its queue is at its rate limit and starts the next job in 5s (1970-01-01T00:01:45Z), \
                 no worker has ever popped from its queue or announced that it can run welcome, \
                 and 3 jobs are ahead of it; `geartrain config set mail-max-concurrency 4` lets one more run",
            ),
            (
                StateName::Waiting,
                vec![
                    Reason::Expired { at: at(90) },
                    Reason::NoWorker { klass: klass(), asked: Some(at(40)), others: vec![], workers: 0 },
                ],
                "job j1 of mail is waiting: it had to start by 1970-01-01T00:01:30Z (10s ago), \
                 so it is about to fail, and there is no live worker: the last pop was 1m ago \
                 (1970-01-01T00:00:40Z), and none has announced that it can run welcome; \
                 `geartrain tick` fails it now; submit it again with a later --expires",
            ),
            (
                StateName::Waiting,
                vec![Reason::NoWorker {
                    klass: klass(),
                    asked: None,
                    others: vec![Klass::new("alpha").unwrap(), Klass::new("gamma").unwrap()],
                    workers: 3,
                }],
                "job j1 of mail is waiting: no worker asks for klass welcome; 3 workers ask mail for alpha, \
                 gamma; start a worker for it, or take it by hand: `geartrain pop mail --klass welcome`",
            ),
            (
                StateName::Waiting,
                vec![Reason::Next],
                "job j1 of mail is waiting: it is next, and the next pop gets it; `geartrain pop mail` takes it",
            ),
            (
                StateName::Failed,
                vec![Reason::Failed {
                    group: group("upstream-mail"),
                    message: "Job j0 failed (smtp), and this job depends on it".to_owned(),
                }],
                "job j1 of mail failed: it is in group upstream-mail, with the message \"Job j0 failed (smtp), and \
                 this job depends on it\"; repair and requeue the job that the message names, then \
                 `geartrain unfail upstream-mail` puts the group back behind it; `geartrain requeue j1` runs this \
                 job without it",
            ),
            (
                StateName::Waiting,
                vec![Reason::Concurrency { max: 1, held: vec![], running: 1 }],
                "job j1 of mail is waiting: 1 job of its queue runs, and its concurrency limit is 1; \
                 `geartrain config set mail-max-concurrency 2` lets one more run",
            ),
        ]
    }

    #[test]
    fn every_reason_gives_one_sentence() {
        for (state, reasons, text) in all() {
            let said = sentence(&reply(state, reasons), &QueueLimits::default(), at(100), "geartrain");
            assert_eq!(said, text);
        }
    }

    #[test]
    fn a_faster_rate_keeps_the_other_limits() {
        let slow = || reply(StateName::Waiting, vec![Reason::RateLimit { until: at(160) }]);
        let limits = QueueLimits {
            jobs_max: Some(10),
            by_priority: vec![(Priority::from(-5), 7)],
            rate: Some(Rate::new(100, Seconds::from(60), 20).unwrap()),
        };
        let said = sentence(&slow(), &limits, at(100), "geartrain");
        assert_eq!(
            said,
            "job j1 of mail is waiting: its queue is at its rate limit and starts the next job in 1m \
             (1970-01-01T00:02:40Z); `geartrain limits mail` shows the limit, and \
             `geartrain limits --max 10 --max-at -5=7 --rate 200/1m+20 mail` doubles the rate"
        );
        let said = sentence(&slow(), &QueueLimits::default(), at(100), "geartrain");
        assert!(said.ends_with("; `geartrain limits mail` shows the limit"), "{said}");
    }

    #[test]
    fn commands_can_be_pasted_whatever_the_names_are() {
        for (name, argument) in
            [("mail", "mail"), ("a b", "'a b'"), ("it's", r"'it'\''s'"), ("-f", "-- '-f'"), ("$x", "'$x'")]
        {
            assert_eq!(quoted(name), argument);
        }
        let paused = Reason::Paused { queue: QueueName::new("a;b").unwrap() };
        let said = sentence(
            &reply(StateName::Waiting, vec![paused]),
            &QueueLimits::default(),
            at(100),
            "geartrain --url memory:",
        );
        assert!(said.ends_with("; `geartrain --url memory: resume 'a;b'` resumes it"), "{said}");
    }

    #[test]
    fn every_unfinished_job_gets_a_remedy() {
        for (state, reasons, text) in all() {
            assert!(text.contains("`geartrain "), "{state:?} {reasons:?}");
        }
    }

    #[test]
    fn json_names_each_reason() {
        let shown = |(state, reasons, _)| json!(WhyView::new(&reply(state, reasons)));
        let all: Vec<_> = all().into_iter().map(shown).collect();
        assert_eq!(
            all[5],
            json!({ "jid": "j1", "state": "depends", "queue": "mail", "stalled": false, "reasons": [
                { "reason": "depends-on", "jid": "j0", "state": "running", "count": 1, "failed": null },
                { "reason": "scheduled", "at": 3_700 },
                { "reason": "paused", "queue": "mail" },
            ] })
        );
        let failed = json!({ "jid": "j0", "group": "smtp", "message": "no route" });
        assert_eq!(all[6]["reasons"][0]["failed"], failed);
        assert_eq!(
            all[8]["reasons"],
            json!([
                { "reason": "concurrency", "max": 2, "running": 3, "held": [{ "jid": "j7", "worker": "w1" }] },
                { "reason": "rate-limit", "until": 105 },
                { "reason": "no-worker", "klass": "welcome", "asked": null, "others": [], "workers": 0 },
                { "reason": "behind", "jobs": 3 },
            ])
        );
        assert_eq!(all[2]["queue"], json!(null));
        assert_eq!(
            all[4]["reasons"][0],
            json!({ "reason": "set-aside", "group": "crashed-mail", "crashes": 3, "evidence": "signal 9" })
        );
        assert_eq!(all[11]["reasons"], json!([{ "reason": "next" }]));
    }
}
