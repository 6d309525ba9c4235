//! The command line: exit codes, help, payloads and JSON, each test in one process.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

/// The output of a process, and its exit code.
struct Printed {
    out: String,
    err: String,
    code: i32,
}

fn geartrain_with(arguments: &[&str], input: &[u8]) -> Printed {
    let mut child = Command::new(env!("CARGO_BIN_EXE_geartrain"))
        .args(arguments)
        .env_remove("GEARTRAIN_URL")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A process that reads nothing may have ended already.
    let _ = child.stdin.take().unwrap().write_all(input);
    let output = child.wait_with_output().unwrap();
    Printed {
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
        code: output.status.code().unwrap(),
    }
}

fn geartrain(arguments: &[&str]) -> Printed {
    geartrain_with(arguments, b"")
}

fn memory(arguments: &[&str]) -> Printed {
    geartrain(&[&["--url", "memory:"], arguments].concat())
}

#[test]
fn put_prints_only_the_jid() {
    let put = memory(&["put", "mail", "welcome", "{}"]);
    assert_eq!((put.code, put.err.as_str()), (0, ""));
    let jid = put.out.strip_suffix('\n').unwrap();
    assert!(jid.len() == 32 && jid.bytes().all(|byte| byte.is_ascii_hexdigit()), "{jid}");
    let named = memory(&["put", "mail", "welcome", "--jid", "j1", "--json"]);
    assert_eq!(
        serde_json::from_str::<Value>(&named.out).unwrap(),
        json!({ "jid": "j1", "outcome": "created", "coalesced": false, "due": null })
    );
}

#[test]
fn the_url_comes_from_the_flag_or_the_environment() {
    let output = Command::new(env!("CARGO_BIN_EXE_geartrain"))
        .args(["queues", "--json"])
        .env("GEARTRAIN_URL", "memory:")
        .output()
        .unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), &b"[]\n"[..]));
    let flag = geartrain(&["queues", "--json", "--url", "memory:"]);
    assert_eq!((flag.code, flag.out.as_str()), (0, "[]\n"));
    let unknown = geartrain(&["--url", "carrier-pigeon:", "queues"]);
    assert_eq!((unknown.code, unknown.out.as_str()), (2, ""));
    assert!(
        unknown.err.starts_with("geartrain: \"carrier-pigeon:\" is not the URL of a queue: "),
        "{}",
        unknown.err
    );
}

/// Without a queue: `next` connects to none.
#[test]
fn times_in_words_are_read_in_the_zone_of_the_terminal_and_recurrences_in_utc() {
    let next = |zone: &str, arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_geartrain"));
        command.args(["next", "--count", "1", "--from", "2026-06-01T00:00:00Z"]).args(arguments);
        let output = command.env("TZ", zone).output().unwrap();
        let (out, err) =
            (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        (out.split(' ').next().unwrap_or_default().to_owned(), err, output.status.code())
    };
    for (zone, arguments, shown) in [
        ("Europe/Berlin", &["7pm"][..], "2026-06-01T19:00:00+02:00"),
        ("Europe/Berlin", &["7pm utc"], "2026-06-01T21:00:00+02:00"),
        ("Europe/Berlin", &["7pm", "--utc"], "2026-06-01T19:00:00Z"),
        ("Europe/Berlin", &["7pm", "--zone", "Asia/Tokyo"], "2026-06-01T19:00:00+09:00"),
        ("Europe/Berlin", &["7pm", "--zone=Asia/Tokyo"], "2026-06-01T19:00:00+09:00"),
        ("Europe/Berlin", &["daily at 7pm"], "2026-06-01T19:00:00Z"),
        ("Europe/Berlin", &["daily at 7pm", "--zone", "Asia/Tokyo"], "2026-06-01T19:00:00+09:00"),
        ("Europe/Berlin", &["daily at 7pm Asia/Tokyo"], "2026-06-01T19:00:00+09:00"),
        ("NPT-5:45", &["7pm"], "2026-06-01T19:00:00+05:45"),
    ] {
        let (out, err, code) = next(zone, arguments);
        assert_eq!((out.as_str(), code), (shown, Some(0)), "{arguments:?}: {err}");
    }
    let (_, err, code) = next("Mars/Olympus", &["7pm"]);
    assert_eq!(code, Some(2));
    assert!(err.contains("give --zone: there is no time zone \"Mars/Olympus\""), "{err}");
    assert_eq!(next("Mars/Olympus", &["7pm", "--utc"]).2, Some(0));
}

#[test]
fn every_kind_of_error_has_its_exit_code() {
    for (arguments, code) in [
        (&["queues"][..], 0),
        (&["pop", "mail"], 0),
        (&["get", "j1"], 1),
        (&["cancel", "j1"], 1),
        (&["complete", "j1", "--worker", "w1"], 1),
        (&["put", "mail", "k", "--jid", "j1", "--depends", "j1"], 1),
        (&[], 2),
        (&["recur"], 2),
        (&["nonsense"], 2),
        (&["put"], 2),
        (&["put", "", "k"], 2),
        (&["put", "mail", "k", "@/no/such/file"], 2),
        (&["put", "mail", "k", "--in", "soon"], 2),
        (&["put", "mail", "k", "--in", "7pm"], 2),
        (&["put", "mail", "k", "--at", "yesterday"], 2),
        (&["put", "mail", "k", "--at", "every day"], 2),
        (&["put", "mail", "k", "--at", "7pm", "--zone", "Mars/Olympus"], 2),
        (&["put", "mail", "k", "--at", "7pm", "--zone", "Europe/Berlin", "--utc"], 2),
        (&["log", "--since", "tomorrow"], 2),
        (&["next", "soon"], 2),
        (&["next", "2013 1 1 * 0 0 0"], 1),
        (&["next", "every day at 9am", "--count", "0"], 2),
        (&["put", "mail", "k", "--in", "5", "--at", "5"], 2),
        (&["put", "mail", "k", "--every", "1h", "--depends", "j1"], 2),
        (&["put", "mail", "k", "--replace"], 2),
        (&["put", "mail", "--batch", "/no/such/file"], 2),
        (&["put", "mail", "k", "{}", "--batch", "-"], 2),
        (&["put", "mail", "k", "--priority", "inf"], 2),
        (&["pop", "mail", "--count", "0"], 2),
        (&["pop", "mail", "--count", "1000000"], 2),
        (&["complete", "j1"], 2),
        (&["complete", "j1", "--worker", "w1", "--token", "1.0"], 2),
        (&["complete", "j1", "--worker", "w1", "--delay", "5"], 2),
        (&["complete", "j1", "--token", "x"], 2),
        (&["retry", "j1", "--worker", "w1", "--group", "g"], 2),
        (&["undepend", "j1"], 2),
        (&["log", "j1", "hello", "--data", "[]"], 2),
        (&["jobs", "--state", "lost"], 2),
        (&["stats", "mail", "someday"], 2),
        (&["result", "j1"], 1),
        (&["status", "j1"], 1),
        (&["why", "j1"], 1),
        (&["progress", "j1", "1/2", "--worker", "w1"], 1),
        (&["chunk", "j1", "data", "--worker", "w1"], 1),
        (&["hand-back", "j1", "--worker", "w1"], 1),
        (&["release", "j1", "--worker", "w1"], 1),
        (&["events", "--after", "1000000"], 1),
        (&["put", "mail", "k", "--expires", "5"], 1),
        (&["put", "mail", "k", "--roll-call"], 1),
        (&["gone", "w1", "--evidence", &"x".repeat(65_537)], 1),
        (&["worker-lost", "w1", "--evidence", &"x".repeat(65_537)], 1),
        (&["limits", "mail", "--max-at", "5=1", "--max-at", "5=2"], 1),
        (&["put", "mail", "k", "--unique", ""], 2),
        (&["put", "mail", "k", "--unique", &"x".repeat(4_096)], 2),
        (&["put", "mail", "k", "--timeout", "0"], 2),
        (&["put", "mail", "k", "--timeout", "574w"], 2),
        (&["put", "mail", "k", "--timeout", "-5"], 2),
        (&["put", "mail", "k", "--keep-result", "0"], 2),
        (&["put", "mail", "k", "--expires", "soon"], 2),
        (&["put", "mail", "k", "--backoff", "soon"], 2),
        (&["put", "mail", "k", "--backoff", "1h..10s"], 2),
        (&["put", "mail", "k", "--crashes", "0"], 2),
        (&["put", "mail", "k", "--wait", "soon"], 2),
        (&["put", "mail", "k", "--wait", "--every", "1h"], 2),
        (&["put", "mail", "k", "--unique", "x", "--batch", "-"], 2),
        (&["complete", "j1", "--worker", "w1", "--next", "q", "--result", "x"], 2),
        (&["complete", "j1", "--worker", "w1", "--payload", "-", "--result", "-"], 2),
        (&["complete", "j1", "--worker", "w1", "--result", "@/no/such/file"], 2),
        (&["complete", "j1", "--worker", "w1", "--code", "x"], 2),
        (&["progress", "j1", "1/0", "--worker", "w1"], 2),
        (&["progress", "j1", "5/4", "--worker", "w1"], 2),
        (&["progress", "j1", "half", "--worker", "w1"], 2),
        (&["progress", "j1", "1/2"], 2),
        (&["progress", "j1", "1/2", "--worker", "w1", "--left", "-1"], 2),
        (&["limits", "mail", "--max", "0"], 2),
        (&["limits", "mail", "--max", "-1"], 2),
        (&["limits", "mail", "--max-at", "5=0"], 2),
        (&["limits", "mail", "--max-at", "5"], 2),
        (&["limits", "mail", "--rate", "0/s"], 2),
        (&["limits", "mail", "--rate", "10/0"], 2),
        (&["limits", "mail", "--rate", "-1/s"], 2),
        (&["limits", "mail", "--none", "--max", "5"], 2),
        (&["announce", "w1"], 2),
        (&["announce", "w1", "mail:"], 2),
        (&["announce", "w1", "mail", "--only", "--cannot"], 2),
        (&["announce", "w1", "mail", "--timeout", "0"], 2),
        (&["status", "--unique", "", "mail"], 2),
        (&["status", "--unique", "key"], 2),
        (&["events", "--after", "-1"], 2),
        (&["events", "--count", "0"], 2),
        (&["tick", "--count", "0"], 2),
        (&["put", "mail", "k", "--wait", "1ms"], 4),
        (&["pop", "mail", "--wait", "1ms"], 4),
    ] {
        let printed = memory(arguments);
        assert_eq!(printed.code, code, "{arguments:?}: {}", printed.err);
        let is_help = arguments.is_empty() || arguments == ["recur"];
        if code != 0 && !is_help {
            assert!(printed.err.starts_with("geartrain: "), "{arguments:?}: {}", printed.err);
            assert_eq!(printed.err.matches('\n').count(), 1, "{arguments:?}: {}", printed.err);
            assert_eq!(printed.out, "", "{arguments:?}");
        }
    }
}

#[test]
fn usage_errors_name_the_help() {
    let missing = memory(&["put", "mail"]);
    assert_eq!(
        missing.err,
        "geartrain: the following required arguments were not provided: <KLASS>; see `geartrain put --help`\n"
    );
    let holder = memory(&["complete", "j1"]);
    assert_eq!(
        (holder.code, holder.err.as_str()),
        (2, "geartrain: give --token or --worker: the holder of the job's lock\n")
    );
    let typo = memory(&["que"]);
    assert!(typo.err.contains("a similar subcommand exists"), "{}", typo.err);
}

#[test]
fn help_is_a_command_too() {
    let help = geartrain(&["help"]);
    assert_eq!((help.code, help.out), (0, geartrain(&["--help"]).out));
    let help = geartrain(&["help", "put"]);
    assert_eq!((help.code, help.out), (0, geartrain(&["put", "--help"]).out));
    let unknown = geartrain(&["help", "putt"]);
    assert_eq!(unknown.code, 2);
    assert!(unknown.err.starts_with("geartrain: unrecognized subcommand 'putt'"), "{}", unknown.err);
}

#[test]
fn help_has_headings_and_examples() {
    let help = geartrain(&["--help"]);
    assert_eq!((help.code, help.err.as_str()), (0, ""));
    for line in [
        "Submit jobs\n  put ",
        "Work on jobs\n  work ",
        "Inspect\n  top ",
        "Examples:\n",
        "Exit codes: 0 done, 1 ",
    ] {
        assert!(help.out.contains(line), "{line:?} is not in\n{}", help.out);
    }
    assert!(!help.out.contains('\u{1b}'));
    let put = geartrain(&["put", "--help"]);
    for text in ["--batch <FILE>", "--in <DURATION>", "Examples:\n", "--url <URL>", "GEARTRAIN_URL"] {
        assert!(put.out.contains(text), "{text:?} is not in\n{}", put.out);
    }
    let none = geartrain(&[]);
    assert!(none.out.is_empty() && none.err.contains("Submit jobs"), "{}{}", none.out, none.err);
}

#[test]
fn a_payload_comes_from_the_argument_a_file_or_standard_input() {
    // tests/embedded.rs checks the bytes, with a second process.
    let directory = tempdir();
    let file = directory.join("payload");
    std::fs::write(&file, b"\xff\0").unwrap();
    let from_file = memory(&["put", "mail", "k", &format!("@{}", file.display())]);
    assert_eq!(from_file.code, 0, "{}", from_file.err);
    let from_stdin = geartrain_with(&["--url", "memory:", "put", "mail", "k", "-"], b"{}\n");
    assert_eq!(from_stdin.code, 0, "{}", from_stdin.err);
    let too_large =
        geartrain_with(&["--url", "memory:", "put", "mail", "k", "-"], &vec![b'x'; (64 << 20) + 1]);
    assert_eq!(too_large.code, 1);
    assert!(too_large.err.contains("payload of 67108865 bytes is over the limit"), "{}", too_large.err);
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_batch_reports_how_many_jobs_were_submitted() {
    let lines = "{\"klass\":\"k\",\"payload\":{\"n\":1}}\n".repeat(1_234);
    let put = geartrain_with(&["--url", "memory:", "put", "mail", "--batch", "-"], lines.as_bytes());
    assert_eq!((put.code, put.out.as_str(), put.err.as_str()), (0, "1234 jobs submitted\n", ""));

    let directory = tempdir();
    let file = directory.join("jobs.ndjson");
    std::fs::write(&file, "{\"jid\":\"a\"}\r\n\n{\"jid\":\"a\"}\n{\"queue\":\"news\",\"jid\":\"b\"}")
        .unwrap();
    let put = memory(&["put", "mail", "k", "--json", "--batch", file.to_str().unwrap()]);
    assert_eq!((put.code, put.err.as_str()), (0, ""));
    assert_eq!(
        serde_json::from_str::<Value>(&put.out).unwrap(),
        json!({ "put": 2, "existing": 1, "coalesced": 0, "refused": 0 })
    );
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_bad_line_ends_a_batch_and_is_reported() {
    let lines = b"{\"klass\":\"k\"}\n{\"klass\":\"k\"}\n{\"klass\":\"k\",\"prio\":1}\n{\"klass\":\"k\"}\n";
    let put = geartrain_with(&["--url", "memory:", "put", "mail", "--batch", "-"], lines);
    assert_eq!((put.code, put.out.as_str()), (2, "2 jobs submitted\n"));
    assert!(
        put.err.starts_with("geartrain: line 3: there is no key `prio`; the keys are queue, klass, "),
        "{}",
        put.err
    );
    assert!(put.err.contains("nothing was submitted from this line on"), "{}", put.err);
    assert!(put.err.contains("go on with --from-line 3"), "{}", put.err);
}

#[test]
fn bad_lines_are_written_to_a_file_that_can_be_corrected_and_submitted() {
    let directory = tempdir();
    let path = |name: &str| directory.join(name).display().to_string();
    let (jobs, bad, url) = (path("jobs.ndjson"), path("bad.ndjson"), format!("embedded:{}", path("data")));
    let good = r#"{"klass":"k","jid":"a"}"#;
    let lines = [
        good,
        r#"{"klass":7}"#,
        "",
        r#"{"klass":"k","jid":"b","depends":["b"]}"#,
        r#"{"klass":"k","jid":"c"}"#,
    ];
    std::fs::write(&jobs, lines.join("\n")).unwrap();
    let put = |more: &[&str]| geartrain(&[&["--url", &url, "put", "mail", "--batch"][..], more].concat());

    let check = put(&[&jobs, "--check", "--json"]);
    assert_eq!((check.code, check.out.as_str()), (2, "{\"bad\":2,\"valid\":2}\n"));
    let error: serde_json::Value = serde_json::from_str(check.err.lines().last().unwrap()).unwrap();
    assert_eq!(error["error"]["message"], "2 lines would not be submitted", "{}", check.err);
    assert!(!directory.join("data").exists(), "a check opens no queue");

    let skipped = put(&[&jobs, "--skip-bad", &bad]);
    assert_eq!((skipped.code, skipped.out.as_str()), (1, "2 jobs submitted\n"));
    assert!(
        skipped.err.contains("geartrain: line 2: `klass` must be a text in quotes, not 7\n"),
        "{}",
        skipped.err
    );
    assert!(
        skipped.err.contains(&format!("geartrain: 2 lines written to {bad} with what is wrong")),
        "{}",
        skipped.err
    );
    let written = std::fs::read_to_string(&bad).unwrap();
    assert!(
        written
            .starts_with("# line 2: `klass` must be a text in quotes, not 7\n{\"klass\":7}\n# line 4: job b"),
        "{written}"
    );
    assert!(written.ends_with("\n{\"klass\":\"k\",\"jid\":\"b\",\"depends\":[\"b\"]}\n"), "{written}");

    // Nothing is overwritten, and the batch itself is no such file.
    assert_eq!(put(&[&bad, "--skip-bad", &bad]).code, 2);
    let itself = Command::new(env!("CARGO_BIN_EXE_geartrain"))
        .args(["--url", &url, "put", "mail", "--batch", "-", "--skip-bad", &bad])
        .stdin(std::fs::File::open(&bad).unwrap())
        .output()
        .unwrap();
    assert_eq!(itself.status.code(), Some(2));
    assert_eq!(std::fs::read_to_string(&bad).unwrap(), written);
    std::fs::write(&bad, written.replace(":7", ":\"k\"").replace("[\"b\"]", "[]")).unwrap();
    let corrected = put(&[&bad, "--skip-bad", &path("worse.ndjson")]);
    assert_eq!(
        (corrected.code, corrected.out.as_str(), corrected.err.as_str()),
        (0, "2 jobs submitted\n", "")
    );
    assert!(!directory.join("worse.ndjson").exists());
    let rest = put(&[&jobs, "--from-line", "5"]);
    assert_eq!((rest.code, rest.out.as_str()), (0, "0 jobs submitted, 1 existed already\n"));
    assert_eq!(
        put(&[&jobs, "--from-line", "6"]).err,
        "geartrain: --from-line 6 is too far: the batch has 5 lines\n"
    );
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn refused_lines_are_reported_and_the_others_submitted() {
    let lines = b"{\"klass\":\"k\",\"jid\":\"a\",\"depends\":[\"a\"]}\n{\"klass\":\"k\"}\n";
    let put = geartrain_with(&["--url", "memory:", "put", "mail", "--batch", "-"], lines);
    assert_eq!((put.code, put.out.as_str()), (1, "1 job submitted\n"));
    assert!(put.err.starts_with("geartrain: line 1: job a would depend on itself"), "{}", put.err);
    assert!(put.err.ends_with("geartrain: 1 line refused, the others were submitted\n"), "{}", put.err);
}

#[test]
fn lists_are_json_arrays_even_when_empty() {
    for arguments in [
        &["queues"][..],
        &["workers"],
        &["jobs"],
        &["peek", "mail"],
        &["failed"],
        &["failed", "smtp"],
        &["recur", "ls"],
        &["pop", "mail"],
    ] {
        let printed = memory(&[arguments, &["--json"]].concat());
        assert_eq!(
            (printed.out.as_str(), printed.err.as_str(), printed.code),
            ("[]\n", "", 0),
            "{arguments:?}"
        );
    }
}

#[test]
fn version_and_completions_are_printed() {
    let version = format!("geartrain {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(geartrain(&["version"]).out, version);
    assert_eq!(geartrain(&["--version"]).out, version);
    assert_eq!(
        serde_json::from_str::<Value>(&geartrain(&["version", "--json"]).out).unwrap(),
        json!({ "version": env!("CARGO_PKG_VERSION") })
    );
    for shell in ["bash", "zsh", "fish"] {
        let script = geartrain(&["completions", shell]);
        assert!(script.code == 0 && script.out.contains("GEARTRAIN_COMPLETE"), "{shell}: {}", script.out);
    }
}

#[test]
fn every_command_has_a_manual_page() {
    let directory = tempdir();
    let main_page = geartrain(&["man"]).out;
    assert!(main_page.starts_with(".ie") && main_page.contains("geartrain\\-put"), "{main_page}");
    assert_eq!(geartrain(&["man", "--dir", directory.to_str().unwrap()]).code, 0);
    let page = |name: &str| std::fs::read_to_string(directory.join(name)).unwrap();
    assert_eq!(page("geartrain.1"), main_page);
    assert!(page("geartrain-put.1").contains("\\-\\-priority"));
    assert!(page("geartrain-recur-add.1").contains("\\-\\-every"));
    let file = directory.join("geartrain.1/pages");
    let refused = geartrain(&["man", "--dir", file.to_str().unwrap()]);
    assert!(refused.code == 2 && refused.err.contains("cannot make the directory"), "{}", refused.err);
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_reader_that_has_read_enough_is_no_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_geartrain"))
        .args(["completions", "zsh"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}

fn tempdir() -> std::path::PathBuf {
    let directory = std::env::temp_dir().join(format!("geartrain-cli-{}", uuid::Uuid::now_v7().simple()));
    std::fs::create_dir(&directory).unwrap();
    directory
}
