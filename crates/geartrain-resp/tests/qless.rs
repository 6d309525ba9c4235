//! The Qless API over a real connection: every command, its replies, and its errors.

use crate::common;

use common::{Server, Value};
use serde_json::json;

/// Calls and their expected replies. Words are separated by single blanks.
async fn expect(server: &Server, table: &[(&str, Value)]) {
    let mut peer = server.qless().await;
    for (call, expected) in table {
        assert_eq!(peer.qless(call).await, *expected, "{call}");
    }
}

#[tokio::test]
async fn the_worked_trace_of_the_specification() {
    let server = Server::start().await;
    let mut listener = server.peer().await;
    listener.ask(&["PSUBSCRIBE", "*"]).await;
    let mut peer = server.qless().await;
    let (log, w1) = ("ql:log".to_owned(), "ql:w:w1".to_owned());

    assert_eq!(peer.qless(r#"put 0 w1 q a k {"x":[]} 0 priority 5 tags ["t"]"#).await, "a".into());
    assert_eq!(listener.message().await, (log.clone(), r#"{"jid":"a","event":"put","queue":"q"}"#.into()));
    let job = peer.qless("pop 10 q w1 1").await.json();
    assert_eq!(job[0]["state"], "running");
    assert_eq!(job[0]["expires"], 70);
    assert_eq!(job[0]["data"], r#"{"x":[]}"#);
    assert_eq!(peer.qless("workers 10").await.json(), json!([{"name": "w1", "jobs": 1, "stalled": 0}]));
    let stats = peer.qless("stats 10 q 0").await.json();
    assert_eq!((&stats["wait"]["count"], &stats["wait"]["mean"]), (&json!(1), &json!(10)));

    assert_eq!(peer.qless("pop 70 q w2 1").await, "{}".into());
    let lost = r#"{"jid":"a","event":"lock_lost","worker":"w1"}"#.to_owned();
    assert_eq!(listener.message().await, (w1, lost.clone()));
    assert_eq!(listener.message().await, (log.clone(), lost));
    assert_eq!(peer.qless("stats 70 q 0").await.json()["retries"], 1);
    assert_eq!(peer.qless("heartbeat 75 a w1").await, 135.into());

    let job = peer.qless("pop 135 q w2 1").await.json();
    assert_eq!(
        (&job[0]["worker"], &job[0]["remaining"], &job[0]["expires"]),
        (&json!("w2"), &json!(4), &json!(195))
    );
    assert_eq!(
        peer.qless("heartbeat 136 a w1").await,
        Value::wrong("Heartbeat(): Job a given out to another worker: w2")
    );
    assert_eq!(peer.qless("complete 140 a w2 q [] next r delay 5").await, "scheduled".into());
    let advanced = r#"{"jid":"a","to":"r","event":"advanced","queue":"q"}"#;
    assert_eq!(listener.message().await, (log.clone(), advanced.into()));
    let job = peer.qless("get 140 a").await.json();
    assert_eq!(
        (&job["state"], &job["remaining"], &job["data"]),
        (&json!("waiting"), &json!(5), &json!("[]"))
    );
    assert_eq!(peer.qless("stats 140 q 0").await.json()["run"]["mean"], 5);
    assert_eq!(peer.qless("pop 146 r w3 1").await.json()[0]["jid"], "a");
    assert_eq!(peer.qless("fail 147.8 a w3 g oops").await, "a".into());
    let failed = r#"{"message":"oops","jid":"a","group":"g","event":"failed","worker":"w3"}"#;
    assert_eq!(listener.message().await, (log.clone(), failed.into()));
    assert_eq!(
        peer.qless("get 147.8 a").await.json()["failure"],
        json!({"group": "g", "message": "oops", "when": 147, "worker": "w3"})
    );
    assert_eq!(peer.qless("failed 150").await, r#"{"g":1}"#.into());
    assert_eq!(peer.qless("cancel 151 a").await, Value::array(["a"]));
    let canceled = r#"{"jid":"a","queue":"r","event":"canceled","worker":""}"#;
    assert_eq!(listener.message().await, (log, canceled.into()));
    let stats = peer.qless("stats 151 r 0").await.json();
    assert_eq!((&stats["failures"], &stats["failed"]), (&json!(1), &json!(0)));
    assert_eq!(peer.qless("get 152 a").await, Value::Nil);
    server.end().await;
}

#[tokio::test]
async fn a_call_needs_a_command_a_moment_and_no_keys() {
    let server = Server::start().await;
    let mut peer = server.qless().await;
    let sha = peer.sha.clone();
    for (words, expected) in [
        (vec!["EVALSHA", &sha, "0"], Value::wrong("Must provide a command")),
        (vec!["EVALSHA", &sha, "0", "nonsense", "0"], Value::wrong("Unknown command nonsense")),
        (vec!["EVALSHA", &sha, "0", "PUT", "0"], Value::wrong("Unknown command PUT")),
        (vec!["EVALSHA", &sha, "0", "queues", "x"], Value::wrong("Arg \"now\" missing or not a number: nil")),
        (vec!["EVALSHA", &sha, "0", "queues"], Value::wrong("Arg \"now\" missing or not a number: nil")),
        (
            vec!["EVALSHA", &sha, "0", "queues", "inf"],
            Value::wrong("Arg \"now\" missing or not a number: nil"),
        ),
        (vec!["EVALSHA", &sha, "1", "k", "queues", "0"], Value::wrong("No Keys should be provided")),
        (
            vec!["EVALSHA", &sha, "5", "queues", "0"],
            Value::error("ERR Number of keys can't be greater than number of args"),
        ),
        (vec!["EVALSHA", &sha, "-1"], Value::error("ERR Number of keys can't be negative")),
        (vec!["EVALSHA", &sha, "x"], Value::error("ERR value is not an integer or out of range")),
        (vec!["EVALSHA", &sha], Value::error("ERR wrong number of arguments for 'evalsha' command")),
        (
            vec!["EVALSHA", "00", "0", "queues", "0"],
            Value::error("NOSCRIPT No matching script. Please use EVAL."),
        ),
        (vec!["evalsha_ro", &sha, "0", "queues", " 0x10 "], "{}".into()),
        (vec!["Eval", "another body", "0", "queues", "1e3"], "{}".into()),
        (vec!["EVAL_RO", "another body", "0", "queues", "1."], "{}".into()),
    ] {
        assert_eq!(peer.ask(&words).await, expected, "{words:?}");
    }
    server.end().await;
}

#[tokio::test]
async fn a_script_must_be_loaded_before_it_is_called_by_its_digest() {
    let server = Server::start().await;
    let mut peer = server.peer().await;
    let unknown = Value::error("NOSCRIPT No matching script. Please use EVAL.");
    let sha = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";
    let call = ["EVALSHA", sha, "0", "queues", "0"];
    assert_eq!(peer.ask(&call).await, unknown);
    assert_eq!(peer.ask(&["SCRIPT", "EXISTS", sha, "x"]).await, Value::array([0, 0]));
    assert_eq!(peer.ask(&["EVAL", "return 1", "0", "queues", "0"]).await, "{}".into());
    assert_eq!(peer.ask(&call).await, "{}".into());
    assert_eq!(peer.ask(&["SCRIPT", "EXISTS", sha, "x"]).await, Value::array([1, 0]));
    assert_eq!(peer.ask(&["SCRIPT", "FLUSH"]).await, Value::simple("OK"));
    assert_eq!(peer.ask(&call).await, unknown);
    assert_eq!(peer.ask(&["script", "load", "return 1"]).await, sha.into());
    assert_eq!(peer.ask(&call).await, "{}".into());
    assert_eq!(
        peer.ask(&["SCRIPT", "KILL"]).await,
        Value::error("NOTBUSY No scripts in execution right now.")
    );
    server.end().await;
}

#[tokio::test]
async fn errors_of_put() {
    let server = Server::start().await;
    let no_queue = "Queue(): no queue name provided";
    expect(
        &server,
        &[
            ("put 0", Value::wrong(no_queue)),
            ("put 0 w", Value::wrong("Put(): Arg \"jid\" missing")),
            ("put 0 w q", Value::wrong("Put(): Arg \"jid\" missing")),
            ("put 0 w q j k", Value::wrong("Put(): Arg \"data\" missing")),
            ("put 0 w q j k false 0", Value::wrong("Put(): Arg \"data\" missing or not JSON: false")),
            ("put 0 w q j k {} soon", Value::wrong("Put(): Arg \"delay\" not a number: soon")),
            ("put 0 w q", Value::wrong("Put(): Arg \"jid\" missing")),
            ("put 0 w q j k {} 0 retries x", Value::wrong("Put(): Arg \"retries\" not a number: x")),
            ("put 0 w q j k {} 0 priority x", Value::wrong("Put(): Arg \"priority\" not a numberx")),
            (
                "put 0 w q j k {} 0 tags t",
                Value::wrong("Expected a value but found something else at character 1"),
            ),
            ("put 0 w q j k {} 0 tags \"t\"", Value::wrong("tags must be a JSON list of strings")),
            (
                "put 0 w q j k {} 0 depends [",
                Value::wrong("Expected a value but found something else at character 2"),
            ),
            // The order of the checks: retries, tags, priority, depends.
            (
                "put 0 w q j k {} 0 depends [ priority x tags t retries x",
                Value::wrong("Put(): Arg \"retries\" not a number: x"),
            ),
            (
                "put 0 w q j k {} 0 depends [ priority x tags t",
                Value::wrong("Expected a value but found something else at character 1"),
            ),
            (
                "put 0 w q j k {} 0 depends [ priority x",
                Value::wrong("Put(): Arg \"priority\" not a numberx"),
            ),
            ("get 0 j", Value::Nil),
            ("queues 0", "{}".into()),
        ],
    )
    .await;
    server.end().await;
}

#[tokio::test]
async fn a_requeue_looks_for_the_job_before_it_looks_at_the_rest() {
    let server = Server::start().await;
    let missing = Value::wrong("Requeue(): Job j does not exist");
    expect(
        &server,
        &[
            ("requeue 0", Value::wrong("Job(): no jid provided")),
            ("requeue 0 w q", Value::wrong("Job(): no jid provided")),
            ("requeue 0 w q j", missing.clone()),
            ("requeue 0 w q j k {} 0", missing),
            ("put 0 w q j k {} 0", "j".into()),
            ("requeue 0 w q j", Value::wrong("Put(): Arg \"klass\" missing")),
            ("requeue 0 w q j k {} 0 tags", Value::wrong("Odd number of additional args: tags")),
            ("requeue 1 w r j k [1] 0", "j".into()),
        ],
    )
    .await;
    let mut peer = server.qless().await;
    assert_eq!(peer.qless("get 2 j").await.json()["queue"], "r");
    server.end().await;
}

#[tokio::test]
async fn both_forms_of_put_are_accepted() {
    let server = Server::start().await;
    let mut listener = server.peer().await;
    listener.ask(&["SUBSCRIBE", "ql:w:w"]).await;
    let mut peer = server.qless().await;
    assert_eq!(peer.qless(r#"put 0 q old k {"a":1} 0 priority 3"#).await, "old".into());
    assert_eq!(peer.qless(r#"put 0 w q new k {"a":1} 0 priority 4"#).await, "new".into());
    let jobs = peer.qless("pop 1 q w 5").await.json();
    assert_eq!((&jobs[0]["jid"], &jobs[0]["priority"]), (&json!("new"), &json!(4)));
    assert_eq!((&jobs[1]["jid"], &jobs[1]["priority"]), (&json!("old"), &json!(3)));
    // The holder moves one job itself and gets no message; for the other it does.
    assert_eq!(peer.qless("put 2 w q new k {} 0").await, "new".into());
    assert_eq!(peer.qless("put 2 q old k {} 0").await, "old".into());
    let lost = r#"{"jid":"old","event":"lock_lost","worker":"w"}"#;
    assert_eq!(listener.message().await, ("ql:w:w".to_owned(), lost.to_owned()));
    server.end().await;
}

#[tokio::test]
async fn a_second_put_keeps_what_is_not_given() {
    let server = Server::start().await;
    let mut peer = server.qless().await;
    peer.qless(r#"put 0 w q j k [] 0 priority 2.7 retries 2 tags ["a",7,"a"]"#).await;
    peer.qless(r#"put 1 w q j k [] 0 unknown thing retries 9 retries 3"#).await;
    let job = peer.qless("get 2 j").await.json();
    assert_eq!(job["tags"], json!(["a", "7", "a"]));
    assert_eq!((&job["priority"], &job["retries"], &job["data"]), (&json!(2.7), &json!(3), &json!("[]")));
    peer.qless(r#"put 1 w q j k [] 0 tags []"#).await;
    assert!(peer.qless("get 2 j").await.text().contains(r#""tags":{}"#));
    server.end().await;
}

#[tokio::test]
async fn working_on_a_job_and_its_errors() {
    let server = Server::start().await;
    let no_jid = || Value::wrong("Job(): no jid provided");
    let bad_json = || Value::wrong("Expected a value but found something else at character 1");
    expect(
        &server,
        &[
            ("pop 0", Value::wrong("Queue(): no queue name provided")),
            ("pop 0 q", Value::wrong("Pop(): Arg \"worker\" missing")),
            ("pop 0 q w", Value::wrong("Pop(): Arg \"count\" missing or not a number: nil")),
            ("pop 0 q w x", Value::wrong("Pop(): Arg \"count\" missing or not a number: x")),
            ("pop 0 q w -1", Value::wrong("a count is a whole number from 0 to 100000, not -1")),
            ("pop 0 q w 1.5", Value::wrong("a count is a whole number from 0 to 100000, not 1.5")),
            ("pop 0 q w 1", "{}".into()),
            ("peek 0", Value::wrong("Queue(): no queue name provided")),
            ("peek 0 q", Value::wrong("Peek(): Arg \"count\" missing or not a number: nil")),
            ("peek 0 q 1", "{}".into()),
            ("heartbeat 0", no_jid()),
            ("heartbeat 0 j", Value::wrong("Heatbeat(): Arg \"worker\" missing")),
            ("heartbeat 0 j w ?", bad_json()),
            ("heartbeat 0 j w {}", Value::wrong("Heartbeat(): Job j does not exist")),
            ("complete 0", no_jid()),
            ("complete 0 j", Value::wrong("Complete(): Arg \"worker\" missing")),
            ("complete 0 j w", Value::wrong("Complete(): Arg \"queue\" missing")),
            ("complete 0 j w q ?", bad_json()),
            ("complete 0 j w q {} delay x", Value::wrong("Complete(): Arg \"delay\" not a number: x")),
            ("complete 0 j w q {} depends ?", bad_json()),
            (
                "complete 0 j w q {} delay 0",
                Value::wrong("Complete(): \"delay\" cannot be used without a \"next\"."),
            ),
            (
                "complete 0 j w q {} depends []",
                Value::wrong("Complete(): \"depends\" cannot be used without a \"next\"."),
            ),
            ("complete 0 j w q {}", Value::wrong("Complete(): Job j does not exist")),
            ("fail 0", no_jid()),
            ("fail 0 j", Value::wrong("Fail(): Arg \"worker\" missing")),
            ("fail 0 j w", Value::wrong("Fail(): Arg \"group\" missing")),
            ("fail 0 j w g", Value::wrong("Fail(): Arg \"message\" missing")),
            ("fail 0 j w g m ?", bad_json()),
            ("fail 0 j w g m", Value::wrong("Fail(): Job jdoes not exist")),
            ("retry 0", no_jid()),
            ("retry 0 j", Value::wrong("Retry(): Arg \"queue\" missing")),
            ("retry 0 j q", Value::wrong("Retry(): Arg \"worker\" missing")),
            ("retry 0 j q w x", Value::wrong("Retry(): Arg \"delay\" not a number: x")),
            ("retry 0 j q w", Value::wrong("Retry(): Job j does not exist")),
            ("timeout 0 j", Value::wrong("Timeout(): Job j does not exist")),
            ("timeout 0", Value::Nil),
            ("put 0 w q j k {} 0", "j".into()),
            ("heartbeat 0 j w", Value::wrong("Heartbeat(): Job j not currently running: waiting")),
            ("complete 0 j w q {}", Value::wrong("Complete(): Job j is not currently running: waiting")),
            ("fail 0 j w g m", Value::wrong("Fail(): Job jnot currently running: waiting")),
            ("retry 0 j q w", Value::wrong("Retry(): Job j is not currently running: waiting")),
            ("timeout 0 j", Value::wrong("Timeout(): Job j not running")),
        ],
    )
    .await;
    let mut peer = server.qless().await;
    assert_eq!(peer.qless("pop 10 q holder 1").await.json()[0]["jid"], "j");
    expect(
        &server,
        &[
            ("heartbeat 10 j w", Value::wrong("Heartbeat(): Job j given out to another worker: holder")),
            (
                "complete 10 j w q {}",
                Value::wrong("Complete(): Job j has been handed out to another worker: holder"),
            ),
            ("fail 10 j w g m", Value::wrong("Fail(): Job j running with another worker: holder")),
            ("retry 10 j q w", Value::wrong("Retry(): Job j has been given to another worker: holder")),
            ("complete 10 j holder r {}", Value::wrong("Complete(): Job j running in another queue: q")),
            ("retry 10 j r holder", Value::wrong("Retry(): Job j running in another queue: q")),
            (r#"heartbeat 1352375215.12 j holder {"a":[],"b":12345678901234567890}"#, 1352375275.into()),
            ("retry 20 j q holder 5 g m", 4.into()),
            ("heartbeat 20 j holder", Value::wrong("Heartbeat(): Job j not currently running: scheduled")),
        ],
    )
    .await;
    let job = peer.qless("get 20 j").await.json();
    assert_eq!(job["data"], r#"{"a":{},"b":1.2345678901235e+19}"#);
    assert_eq!(job["failure"], json!({"group": "g", "message": "m", "when": 20, "worker": "holder"}));
    assert_eq!(job["worker"], "holder");
    peer.qless("pop 30 q w 1").await;
    expect(
        &server,
        &[
            ("timeout 30 j", Value::Nil),
            ("heartbeat 30 j w", Value::wrong("Heartbeat(): Job j not currently running: stalled")),
            ("priority 30 j 2.7", 2.into()),
            ("unfail 30 q none", 0.into()),
        ],
    )
    .await;
    peer.qless("pop 40 q w 1").await;
    expect(
        &server,
        &[
            ("complete 40 j w q {} next", "complete".into()),
            ("complete 40 j w q {}", Value::wrong("Complete(): Job j is not currently running: complete")),
            ("cancel 40 j nobody j", Value::array(["j", "nobody", "j"])),
            ("jobs 40 complete", Value::array(["j"])),
        ],
    )
    .await;
    server.end().await;
}

#[tokio::test]
async fn retries_run_out_and_failures_come_back() {
    let server = Server::start().await;
    let mut peer = server.qless().await;
    peer.qless("put 0 w q j k {} 0 retries 0").await;
    peer.qless("pop 1 q w 1").await;
    expect(
        &server,
        &[
            ("retry 2 j q w", (-1).into()),
            ("failed 2", r#"{"failed-retries-q":1}"#.into()),
            ("failed 2 failed-retries-q", r#"{"total":1,"jobs":["j"]}"#.into()),
            ("failed 2 none", r#"{"total":0,"jobs":{}}"#.into()),
            ("failed 2 g x", Value::wrong("Failed(): Arg \"start\" is not a number: x")),
            ("failed 2 g 0 x", Value::wrong("Failed(): Arg \"limit\" is not a number: x")),
            ("unfail 3", Value::wrong("Queue(): no queue name provided")),
            ("unfail 3 q", Value::wrong("Unfail(): Arg \"group\" missing")),
            ("unfail 3 q g x", Value::wrong("Unfail(): Arg \"count\" not a number: x")),
            ("unfail 3 q g 0", Value::wrong("count must be at least 1")),
            ("unfail 3 q failed-retries-q", 1.into()),
            ("failed 3", "{}".into()),
        ],
    )
    .await;
    let job = peer.qless("get 3 j").await.json();
    assert_eq!(job["failure"]["message"], "Job exhausted retries in queue \"q\"");
    assert_eq!((&job["failure"]["worker"], &job["remaining"]), (&json!(""), &json!(0)));
    server.end().await;
}

#[tokio::test]
async fn data_is_kept_as_given_but_for_heartbeat_and_fail() {
    let server = Server::start().await;
    let mut peer = server.qless().await;
    let data = r#" {"a" : [ ], "b/": "\u00e9" } "#;
    peer.qless_words(&["put", "0", "w", "q", "j", "k", data, "0"]).await;
    assert_eq!(peer.qless("get 0 j").await.json()["data"], data);
    peer.qless("pop 0 q w 1").await;
    peer.qless_words(&["fail", "1", "j", "w", "g", "m", data]).await;
    assert_eq!(peer.qless("get 1 j").await.json()["data"], "{\"a\":{},\"b\\/\":\"\u{e9}\"}");
    let deep = "[".repeat(1001) + &"]".repeat(1001);
    assert_eq!(
        peer.qless_words(&["put", "0", "w", "q", "j", "k", &deep, "0"]).await,
        Value::wrong("Found too many nested data structures (1001)")
    );
    server.end().await;
}

#[tokio::test]
async fn a_payload_that_is_not_json_can_be_read_and_sent_back() {
    use geartrain_core::{Backend, Jid, Klass, Put, QueueName};
    let server = Server::start().await;
    let mut peer = server.qless().await;
    let queue = QueueName::new("q").unwrap();
    let put = Put::new(queue, Jid::new("j").unwrap(), Klass::new("k").unwrap(), b"\xff\x00/");
    server.backend.execute(vec![put.into()]).await.unwrap();
    let data = peer.qless("get 0 j").await.json()["data"].as_str().unwrap().to_owned();
    assert_eq!(data, r#"{"$bytes":"/wAv"}"#);
    peer.qless_words(&["put", "0", "w", "q", "again", "k", &data, "0"]).await;
    peer.qless_words(&["put", "0", "w", "q", "json", "k", r#"{"$bytes":"e30="}"#, "0"]).await;
    let get = |jid: &str| geartrain_core::Call::from(geartrain_core::Get { jid: Jid::new(jid).unwrap() });
    let answers = server.backend.execute(vec![get("again"), get("json")]).await.unwrap();
    let payloads: Vec<Vec<u8>> = answers
        .into_iter()
        .map(|answer| match answer {
            Ok(geartrain_core::Reply::Get(Some(job))) => job.payload.bytes().to_vec(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(payloads, [b"\xff\x00/".to_vec(), b"{}".to_vec()]);
    peer.qless_words(&["put", "0", "w", "q", "blanks", "k", r#" { "$bytes" : "/wAv" } "#, "0"]).await;
    assert_eq!(peer.qless("get 0 blanks").await.json()["data"], r#"{"$bytes":"/wAv"}"#);
    // Not base64, so plain JSON.
    peer.qless_words(&["put", "0", "w", "q", "other", "k", r#"{"$bytes":"?"}"#, "0"]).await;
    assert_eq!(peer.qless("get 0 other").await.json()["data"], r#"{"$bytes":"?"}"#);
    server.end().await;
}

#[tokio::test]
async fn changing_a_job_and_its_errors() {
    let server = Server::start().await;
    let no_jid = || Value::wrong("Job(): no jid provided");
    expect(
        &server,
        &[
            ("priority 0", no_jid()),
            ("priority 0 j", Value::wrong("Priority(): Arg \"priority\" missing or not a number: nil")),
            ("priority 0 j x", Value::wrong("Priority(): Arg \"priority\" missing or not a number: x")),
            ("priority 0 j 1", Value::wrong("Priority(): Job j does not exist")),
            ("depends 0", no_jid()),
            ("depends 0 j", Value::wrong("Depends(): Arg \"command\" missing")),
            ("depends 0 j on x", Value::wrong("Depends(): Job j not in the depends state: false")),
            ("depends 0 j maybe", Value::wrong("Depends(): Job j not in the depends state: false")),
            ("log 0", Value::wrong("Log(): Argument 'jid' missing")),
            ("log 0 j", Value::wrong("Log(): Argument 'message' missing")),
            ("log 0 j m ?", Value::wrong("Expected a value but found something else at character 1")),
            ("log 0 j m 7", Value::wrong("Log(): Argument \"data\" must be a JSON object: 7")),
            ("log 0 j m", Value::wrong("Log(): Job j does not exist")),
            ("track 0 track", Value::wrong("Track(): Arg \"jid\" missing")),
            ("track 0 track j", Value::wrong("Track(): Job does not exist")),
            ("track 0 untrack j", Value::wrong("Track(): Job does not exist")),
            ("track 0 hunt j", Value::wrong("Track(): Job does not exist")),
            ("track 0", r#"{"jobs":{},"expired":{}}"#.into()),
            ("tag 0", Value::wrong("Tag(): Arg \"command\" must be \"add\", \"remove\", \"get\" or \"top\"")),
            ("tag 0 paint", Value::wrong("Tag(): First argument must be \"add\", \"remove\" or \"get\"")),
            ("tag 0 add", Value::wrong("Tag(): Arg \"jid\" missing")),
            ("tag 0 add j t", Value::wrong("Tag(): Job j does not exist")),
            ("tag 0 remove", Value::wrong("Tag(): Arg \"jid\" missing")),
            ("tag 0 remove j t", Value::wrong("Tag(): Job j does not exist")),
            ("tag 0 get", Value::wrong("Tag(): Arg \"tag\" missing")),
            ("tag 0 get t x", Value::wrong("Tag(): Arg \"offset\" not a number: x")),
            ("tag 0 get t 0 x", Value::wrong("Tag(): Arg \"count\" not a number: x")),
            ("tag 0 get t", r#"{"total":0,"jobs":{}}"#.into()),
            ("tag 0 top x", Value::wrong("Tag(): Arg \"offset\" not a number: x")),
            ("tag 0 top", "{}".into()),
            ("put 0 w q a k {} 0", "a".into()),
            ("put 0 w q b k {} 0", "b".into()),
            (r#"put 0 w q j k {} 0 depends ["b","a"]"#, "j".into()),
            ("depends 0 a on b", Value::wrong("Depends(): Job a not in the depends state: waiting")),
            ("depends 0 a maybe", Value::wrong("Depends(): Job a not in the depends state: waiting")),
            ("depends 0 j maybe", Value::wrong("Depends(): Argument \"command\" must be \"on\" or \"off\"")),
            ("depends 0 j off a", 1.into()),
            ("depends 0 j on a nobody", 1.into()),
            (
                "cancel 0 a",
                Value::wrong("Cancel(): a is a dependency of j but is not mentioned to be canceled"),
            ),
            ("log 0 j m []", Value::Nil),
            (r#"log 5.5 j note {"a":[],"when":7,"what":8}"#, Value::Nil),
            ("track 0 TRACK j", "1".into()),
            ("track 0 track j", "0".into()),
            ("track 0 hunt j", Value::wrong("Track(): Unknown action \"hunt\"")),
            ("tag 0 add j t u t", r#"["t","u"]"#.into()),
            ("tag 0 top", r#"["t"]"#.into()),
            ("tag 0 get u", r#"{"total":1,"jobs":["j"]}"#.into()),
            ("tag 0 remove j t", r#"["u"]"#.into()),
            ("length 0 q", 2.into()),
        ],
    )
    .await;
    let mut peer = server.qless().await;
    let job = peer.qless("get 0 j").await;
    let text = job.text();
    assert!(text.contains(r#""dependencies":["a","b"]"#) && text.contains(r#""dependents":{}"#), "{text}");
    assert!(text.contains(r#""spawned_from_jid":false"#) && text.contains(r#""failure":{}"#), "{text}");
    assert!(text.contains(r#"{"what":"note","when":5,"a":{}}"#), "{text}");
    let job = job.json();
    assert_eq!((&job["tracked"], &job["state"]), (&json!(true), &json!("depends")));
    assert_eq!(job["history"][0], json!({"what": "put", "when": 0, "q": "q"}));
    let tracked = peer.qless("track 0").await.json();
    assert_eq!(tracked["jobs"][0]["jid"], "j");
    peer.qless("cancel 0 j").await;
    assert_eq!(peer.qless("track 0").await, r#"{"jobs":{},"expired":["j"]}"#.into());
    server.end().await;
}

#[tokio::test]
async fn reading_and_its_errors() {
    let server = Server::start().await;
    let no_queue = || Value::wrong("Queue(): no queue name provided");
    expect(
        &server,
        &[
            ("get 0", Value::wrong("Job(): no jid provided")),
            ("get 0 j", Value::Nil),
            ("multiget 0", "{}".into()),
            ("multiget 0 a b", "{}".into()),
            ("length 0", no_queue()),
            ("length 0 q", 0.into()),
            ("queues 0", "{}".into()),
            (
                "queues 0 q",
                r#"{"name":"q","waiting":0,"stalled":0,"running":0,"scheduled":0,"depends":0,"recurring":0,"paused":false}"#
                    .into(),
            ),
            ("workers 0", "{}".into()),
            ("workers 0 w", r#"{"jobs":{},"stalled":{}}"#.into()),
            ("jobs 0", Value::wrong("Jobs(): Arg \"state\" missing")),
            ("jobs 0 nonsense", Value::wrong("Jobs(): Arg \"queue\" missing")),
            ("jobs 0 nonsense q", Value::wrong("Jobs(): Unknown type \"nonsense\"")),
            ("jobs 0 running q x", Value::wrong("Jobs(): Arg \"offset\" not a number: x")),
            ("jobs 0 running q 0 x", Value::wrong("Jobs(): Arg \"count\" not a number: x")),
            ("jobs 0 complete x", Value::wrong("Jobs(): Arg \"offset\" not a number: x")),
            ("jobs 0 complete", Value::Array(vec![])),
            ("stats 0", no_queue()),
            ("stats 0 q", Value::wrong("Stats(): Arg \"date\" missing or not a number: nil")),
            ("stats 0 q x", Value::wrong("Stats(): Arg \"date\" missing or not a number: x")),
            ("cancel 0", Value::Array(vec![])),
            ("put 0 w q run k {} 0", "run".into()),
            ("put 0 w q late k {} 10", "late".into()),
            (r#"put 0 w q dep k {} 0 depends ["run"]"#, "dep".into()),
            ("recur 0 q rec k {} interval 60 100", "rec".into()),
            ("pause 0", Value::wrong("queues must name at least one")),
            ("unpause 0", Value::wrong("queues must name at least one")),
            ("queue.forget 0", Value::wrong("queues must name at least one")),
            ("worker.deregister 0", Value::wrong("workers must name at least one")),
            ("pause 0 q", Value::Nil),
            ("pop 0 q w 1", "{}".into()),
            ("unpause 0 q", Value::Nil),
        ],
    )
    .await;
    let mut peer = server.qless().await;
    assert_eq!(peer.qless("pop 0 q w 1").await.json()[0]["jid"], "run");
    expect(
        &server,
        &[
            ("jobs 60 running q", Value::array(["run"])),
            ("jobs 60 stalled q", Value::array(["run"])),
            ("jobs 61 running q", Value::Array(vec![])),
            ("jobs 5 scheduled q", Value::array(["late"])),
            ("jobs 5 depends q", Value::array(["dep"])),
            ("jobs 5 recurring q", Value::array(["rec"])),
            ("workers 60 w", r#"{"jobs":["run"],"stalled":["run"]}"#.into()),
            ("workers 61", r#"[{"name":"w","jobs":0,"stalled":1}]"#.into()),
            (
                "queues 61",
                r#"[{"name":"q","waiting":1,"stalled":1,"running":0,"scheduled":0,"depends":1,"recurring":1,"paused":false}]"#
                    .into(),
            ),
            ("worker.deregister 61 w", Value::Nil),
            ("workers 61", "{}".into()),
            ("queue.forget 61 q", Value::Nil),
            ("queues 61", "{}".into()),
        ],
    )
    .await;
    let many = peer.qless("multiget 61 late nobody run").await.json();
    assert_eq!(
        (&many[0]["jid"], &many[1]["jid"], many.as_array().unwrap().len()),
        (&json!("late"), &json!("run"), 2)
    );
    assert_eq!(peer.qless("peek 61 q 5").await.json()[0]["jid"], "run");
    let stats = peer.qless("stats 61 q 0").await.json();
    assert_eq!(stats["wait"]["histogram"].as_array().unwrap().len(), 148);
    assert_eq!((&stats["run"]["count"], &stats["run"]["std"]), (&json!(0), &json!(0)));
    server.end().await;
}

#[tokio::test]
async fn options_and_their_errors() {
    let server = Server::start().await;
    expect(
        &server,
        &[
            (
                "config.get 0",
                r#"{"application":"qless","grace-period":10,"heartbeat":60,"histogram-history":7,"jobs-history":604800,"jobs-history-count":50000,"stats-history":30}"#
                    .into(),
            ),
            ("config.get 0 heartbeat", 60.into()),
            ("config.get 0 application", "qless".into()),
            ("config.get 0 nonsense", Value::Nil),
            ("config.set 0", Value::wrong("config.set(): Arg \"option\" missing")),
            ("config.set 0 heartbeat", Value::wrong("config.set(): Arg \"value\" missing")),
            ("config.unset 0", Value::wrong("config.unset(): Arg \"option\" missing")),
            // Qless takes any value. One that is no number counts as not set.
            ("config.set 0 heartbeat soon", Value::Nil),
            ("config.get 0 heartbeat", "soon".into()),
            ("config.set 0 heartbeat 100", Value::Nil),
            ("config.get 0 heartbeat", "100".into()),
            ("config.unset 0 heartbeat", Value::Nil),
            ("config.get 0 heartbeat", 60.into()),
        ],
    )
    .await;
    server.end().await;
}

#[tokio::test]
async fn recurring_jobs_and_their_errors() {
    let server = Server::start().await;
    let no_jid = || Value::wrong("Recurring(): no jid provided");
    let bad_json = || Value::wrong("Expected a value but found something else at character 1");
    expect(
        &server,
        &[
            ("recur 0", Value::wrong("Queue(): no queue name provided")),
            ("recur 0 q", Value::wrong("RecurringJob On(): Arg \"jid\" missing")),
            ("recur 0 q r", Value::wrong("RecurringJob On(): Arg \"klass\" missing")),
            ("recur 0 q r k ?", Value::wrong("RecurringJob On(): Arg \"spec\" missing")),
            ("recur 0 q r k ? cron", bad_json()),
            ("recur 0 q r k {} cron", Value::wrong("Recur(): schedule type \"cron\" unknown")),
            ("recur 0 q r k {} interval", Value::wrong("Recur(): Arg \"interval\" not a number: nil")),
            ("recur 0 q r k {} interval 0", Value::wrong("Recur(): Arg \"offset\" not a number: nil")),
            ("recur 0 q r k {} interval 0 0", Value::wrong("Recur(): Arg \"interval\" must be greater than 0")),
            ("recur 0 q r k {} interval 1 0 tags", Value::wrong("Odd number of additional args: tags")),
            ("recur 0 q r k {} interval 1 0 tags ?", bad_json()),
            ("recur 0 q r k {} interval 1 0 priority x", Value::wrong("Recur(): Arg \"priority\" not a number: x")),
            ("recur 0 q r k {} interval 1 0 retries x", Value::wrong("Recur(): Arg \"retries\" not a number: x")),
            ("recur 0 q r k {} interval 1 0 backlog x", Value::wrong("Recur(): Arg \"backlog\" not a number: x")),
            ("recur.get 0", no_jid()),
            ("recur.get 0 r", Value::Nil),
            ("unrecur 0", no_jid()),
            ("unrecur 0 r", 1.into()),
            ("recur.update 0", no_jid()),
            ("recur.update 0 r", Value::wrong("Recur(): No recurring job r")),
            ("recur.update 0 r priority x", Value::wrong("Recur(): No recurring job r")),
            ("recur.tag 0", no_jid()),
            ("recur.tag 0 r t", Value::wrong("Tag(): Job r does not exist")),
            ("recur.untag 0", no_jid()),
            ("recur.untag 0 r t", Value::wrong("Untag(): Job r does not exist")),
            (r#"recur 0 q r k {"a":1} interval 60 10 tags ["t"] priority 2 retries 3 backlog 4"#, "r".into()),
            (
                "recur.get 0 r",
                r#"{"jid":"r","klass":"k","state":"recur","queue":"q","priority":2,"interval":60,"retries":3,"count":0,"data":"{\"a\":1}","tags":["t"],"backlog":4}"#
                    .into(),
            ),
            ("recur.update 0 r priority x", Value::wrong("Recur(): Arg \"priority\" must be a number: x")),
            ("recur.update 0 r retries x", Value::wrong("Recur(): Arg \"retries\" must be a number: x")),
            ("recur.update 0 r interval x", Value::wrong("Recur(): Arg \"interval\" must be a number: x")),
            ("recur.update 0 r backlog x", Value::wrong("Recur(): Arg \"backlog\" not a number: x")),
            ("recur.update 0 r data ?", bad_json()),
            ("recur.update 0 r klass", Value::wrong("No value provided for klass")),
            ("recur.update 0 r tags []", Value::wrong("Recur(): Unrecognized option \"tags\"")),
            ("recur.update 0 r klass l priority x", Value::wrong("Recur(): Arg \"priority\" must be a number: x")),
            ("recur.update 0 r interval 30 data [] klass l queue p", 1.into()),
            ("recur.tag 0 r t u u", r#"["t","u","u"]"#.into()),
            ("recur.untag 0 r u", r#"["t"]"#.into()),
        ],
    )
    .await;
    let mut peer = server.qless().await;
    let found = peer.qless("recur.get 0 r").await.json();
    assert_eq!(
        (&found["klass"], &found["queue"], &found["interval"], &found["data"]),
        (&json!("l"), &json!("p"), &json!(30), &json!("[]"))
    );
    // The next one moved by the difference: 10 + (30 - 60).
    assert_eq!(peer.ask(&["ZSCORE", "ql:q:p-recur", "r"]).await, "-20".into());
    assert_eq!(peer.ask(&["ZSCORE", "ql:q:q-recur", "r"]).await, Value::Nil);
    assert_eq!(peer.ask(&["ZSCORE", "ql:q:p-recur", "nobody"]).await, Value::Nil);
    assert!(peer.ask(&["ZSCORE", "ql:workers", "w"]).await.text().starts_with("ERR geartrain"));
    assert_eq!(peer.qless("unrecur 0 r").await, 1.into());
    assert_eq!(peer.qless("recur.get 0 r").await, Value::Nil);
    server.end().await;
}

#[tokio::test]
async fn where_a_job_goes_when_it_is_completed_on() {
    let server = Server::start().await;
    let mut peer = server.qless().await;
    peer.qless("put 0 w other open k {} 0").await;
    for (jid, options, word) in [
        ("a", "next r", "waiting"),
        ("b", "next r delay 5", "scheduled"),
        ("c", r#"next r depends ["open"]"#, "depends"),
        ("d", r#"next r delay 5 depends ["open"]"#, "depends"),
        ("e", r#"next r delay 5 depends ["nobody"]"#, "waiting"),
    ] {
        peer.qless(&format!("put 0 w q {jid} k {{}} 0")).await;
        assert_eq!(peer.qless("pop 0 q w 1").await.json()[0]["jid"], jid);
        assert_eq!(
            peer.qless(&format!("complete 0 {jid} w q {{}} {options}")).await,
            word.into(),
            "{options}"
        );
    }
    server.end().await;
}

#[tokio::test]
async fn limits_of_the_queue_are_refused_with_its_own_texts() {
    let server = Server::start().await;
    let mut peer = server.qless().await;
    let long = "x".repeat(513);
    for (words, message) in [
        (vec!["put", "0", "w", "", "j", "k", "{}", "0"], "a queue needs at least one byte"),
        (
            vec!["put", "0", "w", &long, "j", "k", "{}", "0"],
            "a queue has at most 512 bytes, this one has 513",
        ),
        (vec!["put", "0", "w", "q", "a\0b", "k", "{}", "0"], "a jid must not hold a NUL byte"),
        (
            vec!["put", "0", "w", "q", "j", "k", "{}", "0", "retries", "-1"],
            "retries must be a whole number that is not negative and fits 32 bits, not -1",
        ),
        (
            vec!["put", "0", "w", "q", "j", "k", "{}", "0", "retries", "3000000000"],
            "retries must be at most 2147483647, not 3000000000",
        ),
        (vec!["jobs", "0", "complete", "-1"], "an offset is a whole number that is not negative, not -1"),
    ] {
        assert_eq!(peer.qless_words(&words).await, Value::wrong(message), "{words:?}");
    }
    let sha = peer.sha.clone();
    let not_utf8: Vec<&[u8]> = vec![b"EVALSHA", sha.as_bytes(), b"0", b"get", b"0", b"\xff"];
    assert_eq!(peer.ask(&not_utf8).await, Value::wrong("a jid must be UTF-8"));
    server.end().await;
}
