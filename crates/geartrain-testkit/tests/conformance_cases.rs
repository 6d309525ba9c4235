//! The list of the conformance cases, and the tables of rules that name them.

use std::collections::BTreeSet;
use std::sync::Arc;

use geartrain_core::{Answer, Backend, Call, Pending, Pop, PopReply, Reason, Reply, Seconds, Subscription};
use geartrain_store::StoreBackend;
use geartrain_testkit::clock::ManualClock;
use geartrain_testkit::conformance::{Order, case_names, check};

/// The rows of the tables: the heading that each is under, its title and its case.
fn rows() -> Vec<(&'static str, &'static str, &'static str)> {
    let (mut heading, mut rows) = ("", Vec::new());
    for line in include_str!("../src/conformance/rules.md").lines() {
        if let Some(text) = line.strip_prefix("# ") {
            heading = text;
        }
        let cells = line.strip_prefix('|').and_then(|line| line.strip_suffix('|')?.split_once('|'));
        if let Some((title, case)) = cells {
            rows.push((heading, title.trim(), case.trim().trim_matches('`')));
        }
    }
    rows.retain(|(_, title, _)| *title != "---");
    rows
}

/// The titles under a heading, without the one of the column and those of rows that go on.
fn titles(heading: &str) -> Vec<&'static str> {
    let titles = rows().into_iter().filter(|row| row.0 == heading).map(|row| row.1);
    titles.skip(1).filter(|title| !title.is_empty()).collect()
}

#[test]
fn every_case_is_in_the_tables_and_every_case_in_the_tables_exists() {
    let cases = rows().into_iter().map(|(_, _, case)| case);
    let shown: BTreeSet<&str> = cases.filter(|case| !["case", "for the decoder"].contains(case)).collect();
    let written: BTreeSet<&str> = case_names().collect();
    assert_eq!(shown.difference(&written).collect::<Vec<_>>(), [&""; 0], "are only in the tables");
    assert_eq!(written.difference(&shown).collect::<Vec<_>>(), [&""; 0], "are in no table");
    assert_eq!(written.len(), case_names().count(), "two cases have one name");
}

#[test]
fn every_command_state_trap_and_rule_has_a_row() {
    let commands = [
        "cancel",
        "complete",
        "config.get",
        "config.set",
        "config.unset",
        "depends",
        "fail",
        "failed",
        "get",
        "heartbeat",
        "jobs",
        "length",
        "log",
        "multiget",
        "pause",
        "peek",
        "pop",
        "priority",
        "put",
        "queue.forget",
        "queues",
        "recur",
        "recur.get",
        "recur.tag",
        "recur.untag",
        "recur.update",
        "requeue",
        "retry",
        "stats",
        "tag",
        "timeout",
        "track",
        "unfail",
        "unpause",
        "unrecur",
        "worker.deregister",
        "workers",
    ];
    let mut shown = titles("The commands");
    shown.retain(|title| *title != "complete with next");
    assert_eq!(shown, commands);
    assert_eq!(titles("The states").len(), 20);
    assert_eq!(titles("The traps"), (1..=47).map(|trap| trap.to_string()).collect::<Vec<_>>());
    let decisions: Vec<String> = (1..=21).map(|decision| decision.to_string()).collect();
    assert_eq!(titles("What the engine changes and adds"), decisions);
    // A rule is a line that begins in bold, and called what stands there.
    let rules = include_str!("../../../docs/decisions/0009-beyond-qless.md").lines();
    let rules = rules.filter_map(|line| Some(line.strip_prefix("**")?.split_once("**")?.0));
    let rules: Vec<&str> = rules.map(|rule| rule.trim_end_matches('.')).collect();
    assert_eq!(titles("Beyond Qless"), rules);
}

/// Every function of a theme that looks like a case is one.
#[test]
fn no_case_was_forgotten_in_the_list() {
    let files = [
        include_str!("../src/conformance/put.rs"),
        include_str!("../src/conformance/order.rs"),
        include_str!("../src/conformance/locks.rs"),
        include_str!("../src/conformance/finish.rs"),
        include_str!("../src/conformance/depends.rs"),
        include_str!("../src/conformance/cancel.rs"),
        include_str!("../src/conformance/recur.rs"),
        include_str!("../src/conformance/tags_and_tracking.rs"),
        include_str!("../src/conformance/reading.rs"),
        include_str!("../src/conformance/stats.rs"),
        include_str!("../src/conformance/config.rs"),
        include_str!("../src/conformance/history.rs"),
        include_str!("../src/conformance/events.rs"),
        include_str!("../src/conformance/several_queues.rs"),
        include_str!("../src/conformance/tokens.rs"),
        include_str!("../src/conformance/bad_input.rs"),
        include_str!("../src/conformance/parked_pops.rs"),
        include_str!("../src/conformance/batches.rs"),
        include_str!("../src/conformance/unique.rs"),
        include_str!("../src/conformance/results.rs"),
        include_str!("../src/conformance/backoff_and_deadlines.rs"),
        include_str!("../src/conformance/crashes.rs"),
        include_str!("../src/conformance/relock.rs"),
        include_str!("../src/conformance/set_aside.rs"),
        include_str!("../src/conformance/periodic.rs"),
        include_str!("../src/conformance/capabilities.rs"),
        include_str!("../src/conformance/attempts.rs"),
        include_str!("../src/conformance/canceled.rs"),
        include_str!("../src/conformance/figures.rs"),
        include_str!("../src/conformance/klasses.rs"),
        include_str!("../src/conformance/dependency_policies.rs"),
        include_str!("../src/conformance/limits.rs"),
        include_str!("../src/conformance/why.rs"),
        include_str!("../src/conformance/cursors.rs"),
        include_str!("../src/conformance/ready.rs"),
        include_str!("../src/conformance/numbers.rs"),
        include_str!("../src/conformance/flush.rs"),
        include_str!("../src/conformance/select.rs"),
        include_str!("../src/conformance/functions.rs"),
        include_str!("../src/conformance/trace.rs"),
    ];
    let functions = files
        .iter()
        .flat_map(|file| file.lines())
        .filter_map(|line| line.strip_prefix("pub async fn ")?.split_once('(').map(|(name, _)| name));
    assert_eq!(functions.collect::<BTreeSet<_>>(), case_names().collect::<BTreeSet<_>>());
}

/// A backend that says of every job that it is next.
struct Liar(StoreBackend);

impl Backend for Liar {
    fn execute(&self, batch: Vec<Call>) -> Pending<'_, Vec<Answer>> {
        Box::pin(async move {
            let mut answers = self.0.execute(batch).await?;
            for answer in &mut answers {
                if let Ok(Reply::Why(why)) = answer {
                    why.reasons = vec![Reason::Next];
                }
            }
            Ok(answers)
        })
    }

    fn pop_or_wait(&self, pop: Pop, wait: Seconds) -> Pending<'_, PopReply> {
        self.0.pop_or_wait(pop, wait)
    }

    fn subscribe(&self) -> Pending<'_, Box<dyn Subscription>> {
        self.0.subscribe()
    }
}

fn lie(clock: Arc<ManualClock>) -> Arc<dyn Backend> {
    Arc::new(Liar(StoreBackend::in_memory(clock).expect("a thread can be started")))
}

/// A case that never asks why fails all the same where the answer would be wrong.
#[test]
#[should_panic(expected = "has no worker: [Next]")]
fn a_wrong_reason_is_noticed_in_a_case_that_does_not_ask() {
    check("putting_a_running_job_takes_it_from_its_worker", Order::Exact, lie);
}
