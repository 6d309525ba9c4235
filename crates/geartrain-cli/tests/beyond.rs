//! Features beyond Qless, each step in its own process.

use crate::sandbox;

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use sandbox::Sandbox;
use serde_json::{Value, json};

impl Sandbox {
    fn bytes(&self, arguments: &[&str]) -> Vec<u8> {
        let output = self.command(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}");
        output.stdout
    }

    /// Pops one job and returns its token.
    fn pop(&self, queue: &str) -> String {
        let popped = self.json(&["pop", queue, "--worker", "w1"]);
        popped[0]["token"].as_str().unwrap_or_else(|| panic!("there is no job in {queue}")).to_owned()
    }
}

#[test]
fn a_stored_result_survives_byte_for_byte() {
    let sandbox = Sandbox::new();
    sandbox.run(&["put", "q", "k", "--jid", "a", "--keep-result"]);
    let token = sandbox.pop("q");
    let file = sandbox.path("result");
    let result = b"\xff\0\x1b[2J\r\n";
    std::fs::write(&file, result).unwrap();
    sandbox.run(&["complete", "a", "--token", &token, "--result", &format!("@{file}"), "--code", "-2"]);
    assert_eq!(sandbox.bytes(&["result", "a"]), result);
    let stored = sandbox.json(&["result", "a"]);
    assert_eq!((&stored["result"], &stored["code"]), (&json!({ "$bytes": "/wAbWzJKDQo=" }), &json!(-2)));
    let (out, err, code) = sandbox.try_run(&["result", "b"]);
    assert_eq!((out.as_str(), code), ("", 1));
    assert!(err.starts_with("geartrain: there is no stored result of job b; "), "{err}");
}

#[test]
fn unique_keys_limits_and_crashes_are_stored() {
    let sandbox = Sandbox::new();
    let put = ["put", "q", "k", "--unique", "key", "--crashes", "2", "--backoff", "10s..1h"];
    let first = sandbox.run(&put);
    assert_eq!(sandbox.run(&put), first);
    let jid = first.trim_end();
    sandbox.run(&["limits", "q", "--max", "1", "--rate", "10/s+5"]);
    assert_eq!(sandbox.run(&["limits", "q"]), "queue  q\nmax    1 unfinished job\nrate   10/1s+5\n");
    let (_, err, code) = sandbox.try_run(&["put", "q", "k"]);
    assert_eq!(code, 1);
    assert!(err.contains("queue q has 1 unfinished jobs and takes 1"), "{err}");

    sandbox.pop("q");
    sandbox.run(&["progress", jid, "1/4", "--worker", "w1"]);
    assert_eq!(sandbox.json(&["status", "--unique", "key", "q"])["progress"]["percent"], 25);
    sandbox.run(&["gone", "w1", "--evidence", "killed by signal 9"]);
    let job = sandbox.json(&["get", jid]);
    assert_eq!((&job["particulars"]["crashes"], &job["particulars"]["submissions"]), (&json!(1), &json!(2)));
    assert_eq!(job["particulars"]["progress"], Value::Null);
    sandbox.pop("q");
    sandbox.run(&["hand-back", jid, "--worker", "w1"]);
    let job = sandbox.json(&["get", jid]);
    let what: Vec<&Value> = job["history"].as_array().unwrap().iter().map(|entry| &entry["what"]).collect();
    assert_eq!(what, ["put", "popped", "attempt-ended", "popped", "attempt-ended"]);
    let why = sandbox.run(&["why", jid]);
    assert!(why.starts_with(&format!("job {jid} of q is waiting: it is next, ")), "{why}");
    sandbox.run(&["check"]);
}

#[test]
fn events_are_retained_from_the_first_subscription_on() {
    let sandbox = Sandbox::new();
    // Its first remark comes once it has subscribed. Then it is stopped like with Ctrl-C.
    let mut listener =
        sandbox.command(&["events"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(listener.stderr.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "geartrain: stop with Ctrl-C; continue with --after and the last position printed\n");
    listener.kill().unwrap();
    listener.wait().unwrap();

    sandbox.run(&["put", "q", "k", "--jid", "a"]);
    sandbox.run(&["put", "q", "k", "--jid", "b"]);
    let (out, err, code) = sandbox.try_run(&["events", "--after", "0", "--count", "1"]);
    assert_eq!((out.as_str(), code), ("", 1), "{err}");
    let first = err.split("--after ").nth(1).unwrap().split('`').next().unwrap();
    let (out, err, code) = sandbox.try_run(&["events", "--after", first, "--count", "1"]);
    assert_eq!(code, 0, "{err}");
    assert!(out.ends_with("  a was submitted to q\n"), "{out}");
    let last = out.split(' ').next().unwrap();
    assert_eq!(err, format!("geartrain: continue with `geartrain events --after {last}`\n"));
    let on = sandbox.json(&["events", "--after", last, "--count", "1"]);
    assert_eq!((&on["event"], &on["jid"]), (&json!("put"), &json!("b")));

    let (out, err, code) = sandbox.try_run(&["events", "--after", "18446744073709551615"]);
    assert_eq!((out.as_str(), code), ("", 1));
    assert!(err.contains("takes a position that was printed") && err.matches('\n').count() == 1, "{err}");
}

#[test]
fn a_wait_that_times_out_leaves_the_job() {
    let sandbox = Sandbox::new();
    let (out, err, code) =
        sandbox.try_run(&["put", "q", "k", "--jid", "a", "--wait", "1ms", "--keep-result"]);
    assert_eq!((out.as_str(), code), ("", 4));
    assert!(err.starts_with("geartrain: job a had not ended after 1ms; it goes on, and "), "{err}");
    assert_eq!(sandbox.json(&["status", "a"])["attached"], 0);
    sandbox.pop("q");
    sandbox.run(&["complete", "a", "--worker", "w1", "--result", "done"]);
    assert_eq!(sandbox.run(&["put", "q", "k", "--jid", "a", "--wait"]), "done");
}

#[cfg(unix)]
#[test]
fn a_unique_key_may_be_any_bytes() {
    use std::os::unix::ffi::OsStrExt;
    let sandbox = Sandbox::new();
    let key = std::ffi::OsStr::from_bytes(b"\xff1");
    let put = sandbox.command(&["put", "q", "k", "--jid", "a", "--unique"]).arg(key).output().unwrap();
    assert!(put.status.success());
    assert_eq!(sandbox.json(&["get", "a"])["particulars"]["unique"], json!({ "$bytes": "/zE=" }));
    let status = sandbox.command(&["status", "q", "--unique"]).arg(key).output().unwrap();
    assert!(status.status.success());
}

#[test]
fn a_batch_has_put_options_too() {
    let sandbox = Sandbox::new();
    let lines = r#"{"klass":"k","jid":"a","unique":{"$bytes":"/zE="},"timeout":"10m","keep_result":true}
{"klass":"k","jid":"b","unique":{"$bytes":"/zE="}}
{"klass":"k","jid":"c","backoff":"10sx3..1h","crashes":2,"expires":"1h"}
{"klass":"k","jid":"d","roll_call":true}
"#;
    let mut command = sandbox.command(&["put", "q", "--batch", "-", "--json"]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(output.stdout, b"{\"put\":2,\"existing\":0,\"coalesced\":1,\"refused\":1}\n");
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(
        err.starts_with("geartrain: line 4: no worker has announced that it can do k in queue q"),
        "{err}"
    );
    let about = sandbox.json(&["get", "a"])["particulars"].clone();
    assert_eq!((&about["timeout"], &about["keep_result"]), (&json!(600), &json!(90_000)));
    assert_eq!((&about["unique"], &about["submissions"]), (&json!({ "$bytes": "/zE=" }), &json!(2)));
    assert_eq!(sandbox.json(&["get", "c"])["particulars"]["backoff"]["factor"], 3);
    assert_eq!(sandbox.try_run(&["get", "b"]).2, 1);
}

#[test]
fn bad_input_is_one_sentence_and_changes_nothing() {
    let sandbox = Sandbox::new();
    sandbox.run(&["put", "q", "k", "--jid", "a"]);
    sandbox.run(&["limits", "q", "--max", "7"]);
    sandbox.pop("q");
    let before = (sandbox.json(&["get", "a"]), sandbox.json(&["queues"]), sandbox.json(&["limits", "q"]));
    let long = "x".repeat(4_096);
    for (arguments, code, why) in [
        (&["put", "q", "k", "--unique", ""][..], 2, "unique key needs at least one byte"),
        (&["put", "q", "k", "--unique", &long], 2, "has at most 4095 bytes, this one has 4096"),
        (&["put", "q", "k", "--timeout", "0"], 2, "it must be more than 0 and at most ten years"),
        (&["put", "q", "k", "--timeout", "574w"], 2, "it must be more than 0 and at most ten years"),
        (&["put", "q", "k", "--expires", "5"], 1, "expires "),
        (&["progress", "a", "1/0", "--worker", "w1"], 2, "progress must be out of at least 1"),
        (&["progress", "a", "5/4", "--worker", "w1"], 2, "progress must be at most 4 of 4, not 5"),
        (&["limits", "q", "--max", "0"], 2, "it must be a whole number of at least 1"),
        (&["limits", "q", "--max", "-1"], 2, "it must be a whole number of at least 1"),
        (&["limits", "q", "--max-at", "1=0"], 2, "is not a limit of at least 1 for a priority"),
        (&["limits", "q", "--rate", "0/s"], 2, "to let none start, pause the queue"),
        (&["limits", "q", "--rate", "-1/s"], 2, "is not a rate: write it like 10/s"),
        (&["put", "q", "k", "--timeout", "-5"], 2, "it is negative"),
        (&["limits", "q", "--rate", "1/0"], 2, "must be for a time of up to ten years"),
    ] {
        let (out, err, found) = sandbox.try_run(arguments);
        assert_eq!((out.as_str(), found), ("", code), "{arguments:?}: {err}");
        assert!(err.starts_with("geartrain: ") && err.matches('\n').count() == 1, "{err}");
        assert!(err.contains(why), "{arguments:?}: {err}");
    }
    assert_eq!(
        (sandbox.json(&["get", "a"]), sandbox.json(&["queues"]), sandbox.json(&["limits", "q"])),
        before
    );
}
