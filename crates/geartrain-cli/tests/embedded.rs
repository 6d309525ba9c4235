//! Scripts on an embedded queue: each step in its own process.

use crate::sandbox;

use std::io::Write;
use std::process::Stdio;

use sandbox::Sandbox;
use serde_json::{Value, json};
use unicode_width::UnicodeWidthStr;

impl Sandbox {
    fn run_with(&self, arguments: &[&str], input: &[u8]) -> String {
        let mut command = self.command(arguments);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{arguments:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

#[test]
fn several_processes_take_a_job_from_put_to_complete() {
    let sandbox = Sandbox::new();
    let put = sandbox.run(&["put", "mail", "welcome", r#"{"to":"a"}"#]);
    let jid = put.trim_end();
    let queues = sandbox.json(&["queues"]);
    assert_eq!((&queues[0]["name"], &queues[0]["waiting"]), (&json!("mail"), &json!(1)));
    let popped = sandbox.json(&["pop", "mail", "--worker", "w1"]);
    assert_eq!((&popped[0]["jid"], &popped[0]["payload"]), (&json!(jid), &json!({ "to": "a" })));
    let token = popped[0]["token"].as_str().unwrap();
    sandbox.run(&["heartbeat", jid, "--token", token]);
    assert_eq!(sandbox.run(&["complete", jid, "--token", token]), "complete\n");
    let job = sandbox.json(&["get", jid]);
    assert_eq!(job["state"], "complete");
    let what: Vec<&Value> = job["history"].as_array().unwrap().iter().map(|entry| &entry["what"]).collect();
    assert_eq!(what, ["put", "popped", "done"]);
    assert!(sandbox.run(&["get", jid]).contains("popped by w1\n"));
}

#[test]
fn payloads_are_stored_byte_for_byte() {
    let sandbox = Sandbox::new();
    let file = sandbox.directory.join("payload");
    std::fs::write(&file, b"\xff\0").unwrap();
    sandbox.run(&["put", "q", "k", &format!("@{}", file.display()), "--jid", "file"]);
    sandbox.run_with(&["put", "q", "k", "-", "--jid", "stdin"], b"two\nlines\n");
    sandbox.run(&["put", "q", "k", "--jid", "none"]);
    for (jid, payload) in
        [("file", json!({ "$bytes": "/wA=" })), ("stdin", json!("two\nlines\n")), ("none", json!(""))]
    {
        assert_eq!(sandbox.json(&["get", jid])["payload"], payload);
    }
}

#[test]
fn a_worker_whose_lock_was_taken_is_refused() {
    let sandbox = Sandbox::new();
    sandbox.run(&["put", "mail", "k", "--jid", "j1"]);
    let token = sandbox.json(&["pop", "mail", "--worker", "w1"])[0]["token"].as_str().unwrap().to_owned();
    sandbox.run(&["timeout", "j1"]);
    let (out, err, code) = sandbox.try_run(&["complete", "j1", "--token", &token]);
    assert_eq!((out.as_str(), code), ("", 1));
    assert!(err.starts_with("geartrain: the lock on job j1 is lost: "), "{err}");
}

#[test]
fn unfail_returns_jobs_to_their_queues() {
    let sandbox = Sandbox::new();
    for queue in ["mail", "news"] {
        sandbox.run(&["put", queue, "k", queue, "--jid", queue]);
        sandbox.run(&["pop", queue, "--worker", "w1"]);
        sandbox.run(&["fail", queue, "smtp", "it said 451", "--worker", "w1"]);
    }
    assert_eq!(sandbox.json(&["failed"]), json!([{ "group": "smtp", "count": 2 }]));
    assert_eq!(sandbox.json(&["unfail", "smtp"]), json!({ "group": "smtp", "moved": 2 }));
    for queue in ["mail", "news"] {
        assert_eq!(sandbox.json(&["pop", queue])[0]["payload"], queue);
    }
}

#[test]
fn the_next_process_finds_the_jobs_of_a_batch() {
    let sandbox = Sandbox::new();
    let lines: String = (0..1_500)
        .map(|n| format!("{{\"klass\":\"k\",\"jid\":\"j{n}\",\"payload\":{n},\"tags\":[\"t\"]}}\n"))
        .collect();
    assert_eq!(sandbox.run_with(&["put", "mail", "--batch", "-"], lines.as_bytes()), "1500 jobs submitted\n");
    assert_eq!(sandbox.json(&["queues", "mail"])[0]["waiting"], 1_500);
    assert_eq!(sandbox.json(&["get", "j1499"])["payload"], 1_499);
    let listed = sandbox.json(&["jobs", "--tag", "t", "--limit", "2", "--offset", "1000"]);
    assert_eq!((&listed[0]["jid"], &listed[1]["jid"]), (&json!("j1000"), &json!("j1001")));
    // Sending it again changes nothing.
    let again = sandbox.run_with(&["put", "mail", "--batch", "-", "--json"], lines.as_bytes());
    assert_eq!(again, "{\"put\":0,\"existing\":1500,\"coalesced\":0,\"refused\":0}\n");
}

#[test]
fn options_recurring_jobs_and_pauses_are_stored() {
    let sandbox = Sandbox::new();
    sandbox.run(&["config", "set", "heartbeat", "90"]);
    sandbox.run(&["recur", "add", "reports", "nightly", "--every", "1d", "--jid", "r1", "--in", "1h"]);
    sandbox.run(&["pause", "mail"]);
    sandbox.run(&["put", "mail", "k"]);
    sandbox.run(&["track", "--", sandbox.json(&["peek", "mail"])[0]["jid"].as_str().unwrap()]);
    assert_eq!(sandbox.run(&["config", "get", "heartbeat"]), "90\n");
    assert_eq!(sandbox.json(&["recur", "get", "r1"])["every"], 86_400);
    assert_eq!(sandbox.json(&["pop", "mail"]), json!([]));
    assert_eq!(sandbox.json(&["tracked"])["jobs"].as_array().unwrap().len(), 1);
    assert_eq!(sandbox.json(&["stats", "mail"])["wait"]["count"], 0);
}

#[test]
fn an_unreachable_queue_is_an_error_that_says_how_to_start_a_server() {
    let sandbox = Sandbox::new();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("redis://127.0.0.1:{port}");
    let (out, err, code) = sandbox.try_run(&["queues", "--url", &url]);
    assert_eq!((out.as_str(), code), ("", 3), "{err}");
    assert!(err.contains(&url) && err.contains("`geartrain server`"), "{err}");
}

/// The sandbox sets GEARTRAIN_URL, which counts as an argument.
#[test]
fn without_a_command_the_help_is_shown() {
    let sandbox = Sandbox::new();
    for (arguments, usage) in [
        (&[][..], "Usage: geartrain [OPTIONS] <COMMAND>\n"),
        (&["config"], "Usage: geartrain config [OPTIONS] <COMMAND>\n"),
        (&["--json", "recur"], "Usage: geartrain recur [OPTIONS] <COMMAND>\n"),
    ] {
        let (out, err, code) = sandbox.try_run(arguments);
        assert_eq!((out.as_str(), code), ("", 2), "{err}");
        assert!(err.contains(usage) && !err.contains("requires a subcommand"), "{err}");
    }
}

#[test]
fn bad_values_are_refused_without_words_of_parsers() {
    let sandbox = Sandbox::new();
    for (arguments, why) in [
        (&["log", "j1", "hi", "--data", "{bad"][..], "it is not JSON from column 2 on: bad"),
        (&["log", "j1", "hi", "--data", "{"], "its JSON is cut off"),
        (&["events", "--after", "soon"], "it must be a whole number of 0 or more"),
        (&["jobs", "--offset", "soon"], "it must be a whole number of 0 or more"),
    ] {
        let (_, err, code) = sandbox.try_run(arguments);
        assert_eq!(code, 2, "{err}");
        assert!(err.contains(why), "{err}");
    }
}

#[test]
fn an_unusable_directory_is_exit_code_3() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.directory.join("data"), b"a file, not a directory").unwrap();
    let (out, err, code) = sandbox.try_run(&["queues"]);
    assert_eq!((out.as_str(), code), ("", 3), "{err}");
    assert!(err.starts_with("geartrain: ") && err.matches('\n').count() == 1, "{err}");
}

#[test]
fn times_are_shown_in_the_local_zone_or_in_utc() {
    let sandbox = Sandbox::new();
    sandbox.run(&["put", "mail", "k", "--jid", "j1", "--at", "2099-04-01T12:00:00Z"]);
    let shown = |arguments: &[&str]| {
        let output = sandbox.command(arguments).env("TZ", "NPT-5:45").output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let local = shown(&["get", "j1"]);
    assert!(local.contains("(2099-04-01T17:45:00+05:45)"), "{local}");
    let utc = shown(&["get", "j1", "--utc"]);
    assert!(utc.contains("(2099-04-01T12:00:00Z)") && !utc.contains("+05:45"), "{utc}");
    assert!(shown(&["get", "j1", "--json"]).contains("\"due\":4078728000"));
}

/// `script` of util-linux runs a command on a pseudo-terminal.
#[test]
fn tables_fit_a_real_terminal_and_the_remark_comes_last() {
    let sandbox = Sandbox::new();
    for number in 0..3 {
        let jid = format!("j{number}");
        sandbox.run(&[
            "put",
            "invoices-of-customers-in-the-north-größe-日本語",
            "Reports::Monthly",
            "--jid",
            &jid,
        ]);
    }
    let whole = sandbox.run(&["jobs"]);
    for columns in [40, 60, 200] {
        let command =
            format!("stty rows 24 cols {columns}; exec {} jobs --limit 2", env!("CARGO_BIN_EXE_geartrain"));
        let mut script = std::process::Command::new("script");
        script.args(["-qec", &command, "/dev/null"]).env("GEARTRAIN_URL", sandbox.url("data"));
        let output =
            script.stdin(std::process::Stdio::null()).output().expect("install script: apt install bsdutils");
        let text = String::from_utf8(output.stdout).unwrap().replace("\r\n", "\n");
        let text = anstream::adapter::strip_str(&text).to_string();
        let (table, remark) = text.trim_end().rsplit_once('\n').unwrap();
        assert!(remark.starts_with("geartrain: 2 of 3 jobs; --limit 3 shows all"), "{text}");
        assert!(table.lines().all(|line| line.width() <= columns), "{columns}:\n{text}");
        assert_eq!(table.contains('…'), columns < 200, "{columns}:\n{text}");
        assert_eq!(whole.starts_with(table), columns == 200, "{columns}:\n{text}");
    }
}
