//! `geartrain bench` measures everything and leaves nothing behind. The figures themselves do not matter
//! here.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// A temporary directory, removed after the test.
struct Sandbox(PathBuf);

impl Sandbox {
    fn new() -> Sandbox {
        let directory =
            std::env::temp_dir().join(format!("geartrain-cli-bench-{}", uuid::Uuid::now_v7().simple()));
        std::fs::create_dir(&directory).unwrap();
        Sandbox(directory)
    }

    fn is_empty(&self) -> bool {
        std::fs::read_dir(&self.0).unwrap().next().is_none()
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn try_geartrain(here: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_geartrain"));
    // A queue that must not be touched, because it was not given with --url.
    command.env("GEARTRAIN_URL", "embedded:in-use").env("TMPDIR", here);
    command.args(arguments).current_dir(here).output().unwrap()
}

fn geartrain(here: &Path, arguments: &[&str]) -> String {
    let output = try_geartrain(here, arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn json(here: &Path, arguments: &[&str]) -> Value {
    serde_json::from_str(&geartrain(here, &[arguments, &["--json"]].concat())).unwrap()
}

/// Checks that the report has these figures, each with its sync mode.
fn assert_measured(report: &Value, sync: &str, figures: &[&str]) {
    for figure in figures {
        let value = report.pointer(figure).unwrap_or_else(|| panic!("{figure} is missing: {report}"));
        assert!(value.as_f64().is_some_and(|value| value > 0.0), "{figure}: {value}");
        let beside = figure.rsplit_once('/').unwrap().0;
        if beside != "/limits" {
            assert_eq!(report.pointer(&format!("{beside}/sync")).unwrap(), sync, "{figure}");
        }
    }
}

const EVERYWHERE: [&str; 16] = [
    "/lifecycles/0/in_flight",
    "/lifecycles/0/batched",
    "/lifecycles/0/independent",
    "/lifecycles/1/batched",
    "/lifecycles/1/independent",
    "/put/rate",
    "/drain/rate",
    "/together/rate",
    "/latency/p50",
    "/latency/p99",
    "/latency/samples",
    "/queued/jobs",
    "/queued/few_rate",
    "/queued/rate",
    "/queued/ratio",
    "/queued/longest_wait",
];

#[test]
fn everything_is_measured_in_a_directory_that_is_removed_afterwards() {
    let here = Sandbox::new();
    let report = json(&here.0, &["bench", "--quick", "--limits"]);
    assert_measured(&report, "always", &EVERYWHERE);
    let limits = [
        "/lifecycles/0/bare_log",
        "/lifecycles/0/batched_of_bare_log",
        "/lifecycles/0/independent_of_bare_log",
        "/reopen/clean",
        "/reopen/killed",
        "/limits/flushes",
        "/limits/lifecycle_bytes",
        "/limits/one_caller_of_flushes",
        "/limits/one_caller_commands_of_flushes",
    ];
    assert_measured(&report, "always", &limits);
    if cfg!(target_os = "linux") {
        assert_measured(&report, "always", &["/queued/bytes_per_job"]);
    }
    assert!(report["url"].as_str().unwrap().contains("geartrain-bench-"), "{report}");
    assert!(here.is_empty());
}

#[test]
fn a_queue_in_memory_is_measured_without_a_disk() {
    let here = Sandbox::new();
    let report = json(&here.0, &["bench", "--quick", "--url", "memory:"]);
    assert_measured(&report, "none", &EVERYWHERE);
    assert_eq!(report["limits"], Value::Null);
    assert_eq!((&report["reopen"]["clean"], &report["reopen"]["killed"]), (&Value::Null, &Value::Null));
    let limits = try_geartrain(&here.0, &["bench", "--quick", "--limits", "--url", "memory:"]);
    assert_eq!(limits.status.code(), Some(2));
    assert!(here.is_empty());
}

#[test]
fn a_directory_that_bench_created_is_removed() {
    let here = Sandbox::new();
    let report =
        json(&here.0, &["bench", "--quick", "--url", "embedded:new?sync=never", "--only", "put,reopen"]);
    assert_measured(&report, "never", &["/put/rate", "/reopen/clean", "/reopen/killed"]);
    assert_eq!(
        (&report["drain"], &report["queued"], &report["lifecycles"]),
        (&Value::Null, &Value::Null, &Value::Null)
    );
    assert!(here.is_empty());
}

#[test]
fn a_queue_in_use_keeps_its_own_jobs_and_no_others() {
    let here = Sandbox::new();
    let used = ["--url", "embedded:used"];
    geartrain(&here.0, &[&["put", "mail", "welcome", "--jid", "j1"], &used[..]].concat());
    let before = json(&here.0, &[&["queues"], &used[..]].concat());
    let report = json(&here.0, &[&["bench", "--quick", "--limits"], &used[..]].concat());
    assert_measured(&report, "always", &EVERYWHERE);
    assert_eq!(json(&here.0, &[&["queues"], &used[..]].concat()), before);
    assert_eq!(json(&here.0, &[&["workers"], &used[..]].concat()), Value::Array(Vec::new()));
    assert!(!here.0.join("used/geartrain-bench-limits").exists());
    assert!(!here.0.join("in-use").exists());
}

#[test]
fn the_table_has_the_sync_mode_in_every_row() {
    let here = Sandbox::new();
    let text = geartrain(&here.0, &["bench", "--quick", "--limits", "--in-flight", "7"]);
    assert!(text.starts_with("Compare figures only within the same run.\nembedded:"), "{text}");
    assert!(text.contains("(temporary, removed afterwards)"), "{text}");
    let rows = text.lines().filter(|line| line.contains("/s ") || line.trim_start().starts_with("7 "));
    for row in rows.filter(|line| !line.starts_with("Lifecycles/s")) {
        assert!(row.contains("always"), "{row}");
    }
    assert!(here.is_empty());
}
