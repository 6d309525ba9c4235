//! `/metrics` as the parser of Prometheus's own client reads it, compared with the list in docs/operations.md.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use geartrain_testkit::peers::RedisServer;
use serde_json::Value;

use crate::sandbox::Sandbox;
use crate::schemathesis::python;
use crate::server_process::{ServerProcess, until};

/// A metric: its type and the labels of its samples.
type Metric = (String, BTreeSet<String>);

fn root() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The rows of the page: `` | `name{label,label}` | type | … ``.
fn documented() -> BTreeMap<String, Metric> {
    let page = std::fs::read_to_string(root().join("docs/operations.md")).unwrap();
    let row = |line: &str| {
        let mut cells = line.strip_prefix("| `")?.split(" | ");
        let (metric, kind) = (cells.next()?.strip_suffix('`')?.to_owned(), cells.next()?.to_owned());
        let (name, labels) = metric.split_once('{').unwrap_or((&metric, "}"));
        let labels = labels.trim_end_matches('}').split(',').filter(|label| !label.is_empty());
        let is_metric = name.starts_with("geartrain_") || name.starts_with("process_");
        is_metric.then(|| (name.to_owned(), (kind, labels.map(str::to_owned).collect())))
    };
    page.lines().filter_map(row).collect()
}

/// The text of a server's metrics.
fn scrape(server: &ServerProcess) -> String {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--fail"]).arg(format!("http://{}/metrics", server.http()));
    String::from_utf8(curl.output().unwrap().stdout).unwrap()
}

/// The metrics in a text, as Prometheus's client reads them.
fn parsed(text: &str) -> BTreeMap<String, Metric> {
    let mut parser = Command::new(python());
    parser.arg(root().join("peers/schemathesis/metrics.py")).env("PYTHONDONTWRITEBYTECODE", "1");
    let mut parser = parser.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    parser.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = parser.wait_with_output().unwrap();
    assert!(output.status.success(), "{text}");
    let families: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let word = |value: &Value| value.as_str().unwrap().to_owned();
    let metric = |family: &Value| {
        assert!(!word(&family["help"]).is_empty(), "{family}");
        let labels = family["labels"].as_array().unwrap().iter().map(word).collect();
        (word(&family["name"]), (word(&family["type"]), labels))
    };
    // A family without samples has no labels to compare.
    families.iter().filter(|family| family["samples"] != 0).map(metric).collect()
}

/// The value of one sample.
fn sample(text: &str, name: &str) -> Option<f64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.map(|value| value.parse().unwrap())
}

/// Submits and works on jobs until each family has a sample.
fn run_jobs(server: &ServerProcess) {
    let sandbox = Sandbox::new();
    let url = server.url();
    let run = |arguments: &[&str]| sandbox.json(&[&["--url", &url], arguments].concat());
    let attempt = || {
        run(&["put", "a \"b\"", "k"]);
        let popped = run(&["pop", "a \"b\"", "--worker", "w1"]);
        let word = |key: &str| popped[0][key].as_str().unwrap().to_owned();
        (word("jid"), word("token"))
    };
    let (jid, token) = attempt();
    run(&["fail", &jid, "smtp", "451", "--token", &token]);
    // The counters begin with the second sample of a queue.
    until("completed jobs are counted", || {
        let (jid, token) = attempt();
        run(&["complete", &jid, "--token", &token]);
        sample(&scrape(server), "geartrain_jobs_completed_total{queue=\"a \\\"b\\\"\"}")
            .is_some_and(|count| count >= 2.0)
    });
}

#[test]
fn the_metrics_are_those_of_the_page() {
    let redis = RedisServer::start(&[]);
    let stored = ServerProcess::start(&["--http", "127.0.0.1:0"]);
    let before_redis = ServerProcess::start(&["--http", "127.0.0.1:0", "--store", &redis.url()]);
    let mut found = BTreeMap::new();
    for server in [&stored, &before_redis] {
        run_jobs(server);
        found.extend(parsed(&scrape(server)));
    }
    assert_eq!(found, documented(), "left: /metrics, right: docs/operations.md");

    let text = scrape(&stored);
    let value = |name: &str| sample(&text, name).unwrap_or_else(|| panic!("{name}: {text}"));
    let of_queue = |name: &str| value(&format!("{name}{{queue=\"a \\\"b\\\"\"}}"));
    assert_eq!(of_queue("geartrain_failed_jobs"), 1.0);
    assert_eq!(value("geartrain_failed_jobs_by_group{group=\"smtp\"}"), 1.0);
    assert!(of_queue("geartrain_run_seconds_count") >= 2.0);
    assert_eq!(
        value("geartrain_run_seconds_bucket{queue=\"a \\\"b\\\"\",le=\"+Inf\"}"),
        of_queue("geartrain_run_seconds_count")
    );
    assert!(of_queue("geartrain_oldest_waiting_seconds") >= 0.0);
    assert!(value("geartrain_commit_seconds_count") > 0.0 && value("geartrain_sync_seconds_count") > 0.0);
    assert!(value("geartrain_connections{front_end=\"http\"}") >= 1.0);
    let waiting = "geartrain_jobs{queue=\"a \\\"b\\\"\",state=\"waiting\"}";
    let queues = Sandbox::new().json(&["queues", "--url", &stored.url()]);
    assert_eq!(value(waiting), queues[0]["waiting"].as_f64().unwrap());
}
