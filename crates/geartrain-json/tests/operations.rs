//! Operations as JSON, on a queue in memory.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use geartrain_core::{Backend, Call, Length, QueueName, Reply, SystemClock};
use geartrain_json::{FieldKind, Queue, Request, operations};
use geartrain_store::StoreBackend;
use serde_json::{Value, json};

fn queue() -> Queue {
    let backend: Arc<dyn Backend> = Arc::new(StoreBackend::in_memory(Arc::new(SystemClock)).unwrap());
    // A wait that is over at once: these tests wait for nothing.
    Queue::new(backend, Some("tester".into()), |_| Box::pin(std::future::ready(())))
}

fn try_ask(queue: &Queue, request: &[u8]) -> Result<Value, Value> {
    let parse = |json: &str| serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {json}"));
    let outcome =
        Request::read(request, &queue.times()).map(|request| pollster::block_on(request.execute(queue)));
    match outcome.and_then(|outcome| outcome) {
        Ok(document) => Ok(parse(&document.json)),
        Err(error) => Err(parse(&error.document())),
    }
}

fn ask(queue: &Queue, request: Value) -> Value {
    let text = request.to_string();
    try_ask(queue, text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn refused(queue: &Queue, request: Value) -> String {
    let text = request.to_string();
    let error = try_ask(queue, text.as_bytes()).expect_err(&text);
    assert!(error["error"]["message"].as_str().is_some_and(|message| !message.is_empty()), "{error}");
    error["error"]["code"].as_str().unwrap_or_else(|| panic!("{error}")).to_owned()
}

fn pop(queue: &Queue, name: &str) -> (String, String) {
    let popped = ask(queue, json!({ "pop": { "queue": name, "worker": "w1" } }));
    let text = |key: &str| popped[0][key].as_str().unwrap_or_else(|| panic!("{popped}")).to_owned();
    (text("jid"), text("token"))
}

#[test]
fn a_job_goes_from_put_to_its_result() {
    let queue = queue();
    let put = json!({ "put": { "queue": "mail", "klass": "welcome", "payload": { "to": "ann" }, "jid": "j1",
        "keep_result": true, "tags": ["new"] } });
    assert_eq!(
        ask(&queue, put.clone()),
        json!({ "jid": "j1", "outcome": "created", "coalesced": false, "due": null })
    );
    assert_eq!(ask(&queue, put)["outcome"], "existing");
    assert_eq!(ask(&queue, json!({ "status": { "jid": "j1" } }))["state"], "waiting");
    assert_eq!(ask(&queue, json!({ "why": { "jid": "j1" } }))["reasons"][0]["reason"], "no-worker");
    assert_eq!(ask(&queue, json!({ "peek": { "queue": "mail" } }))[0]["jid"], "j1");
    assert_eq!(refused(&queue, json!({ "result": { "jid": "j1" } })), "unfinished");
    assert_eq!(refused(&queue, json!({ "result": { "jid": "j1", "wait": 1 } })), "unfinished");
    let (jid, token) = pop(&queue, "mail");
    assert_eq!(
        ask(&queue, json!({ "progress": { "jid": jid, "token": token, "part": 1, "whole": 4 } }))["progress"]
            ["percent"],
        25
    );
    assert!(ask(&queue, json!({ "heartbeat": { "jid": jid, "token": token } }))["expires"].is_number());
    assert_eq!(
        ask(&queue, json!({ "chunk": { "jid": jid, "token": token, "data": "half" } })),
        json!({ "jid": "j1", "told": 0 })
    );
    assert_eq!(
        ask(&queue, json!({ "complete": { "jid": jid, "token": token, "result": { "sent": 1 } } })),
        json!({ "jid": "j1", "state": "complete", "queue": null })
    );
    let result = ask(&queue, json!({ "result": { "jid": "j1" } }));
    assert_eq!((&result["how"], &result["result"]), (&json!("completed"), &json!({ "sent": 1 })));
    assert_eq!(ask(&queue, json!({ "get": { "jid": "j1" } }))["state"], "complete");
    assert_eq!(refused(&queue, json!({ "status": { "jid": "j1" } })), "not-unfinished");
    assert_eq!(refused(&queue, json!({ "heartbeat": { "jid": "j1", "token": token } })), "lock-lost");
    assert_eq!(ask(&queue, json!({ "requeue": { "jid": "j1" } }))["outcome"], "replaced");
}

#[test]
fn digits_of_payloads_are_kept() {
    let queue = queue();
    let digits = "123456789012345678901234567890.10";
    let put = format!(r#"{{"put":{{"queue":"q","klass":"k","jid":"j1","payload":[{digits}]}}}}"#);
    try_ask(&queue, put.as_bytes()).unwrap();
    let request = Request::read(br#"{"get":{"jid":"j1"}}"#, &queue.times()).unwrap();
    let document = pollster::block_on(request.execute(&queue)).unwrap();
    assert!(document.json.contains(&format!("\"payload\":[{digits}]")), "{document:?}");
}

#[test]
fn a_batch_is_executed_in_order_and_an_error_does_not_stop_it() {
    let queue = queue();
    let answers = ask(
        &queue,
        json!([
            { "put": { "queue": "q", "klass": "k", "jid": "a" } },
            { "put": { "queue": "q" } },
            { "nonsense": {} },
            { "queues": {} },
            { "pop": { "queue": "q", "worker": "w1" } },
            { "cancel": { "jid": "b" } },
            { "get": { "jid": "b" } },
        ]),
    );
    let codes: Vec<_> = answers.as_array().unwrap().iter().map(|answer| &answer["error"]["code"]).collect();
    let none = Value::Null;
    assert_eq!(
        codes,
        [
            &none,
            &json!("missing-field"),
            &json!("unknown-operation"),
            &none,
            &none,
            &none,
            &json!("no-such-job")
        ]
    );
    assert_eq!(answers[3][0]["waiting"], 1);
    assert_eq!(answers[4][0]["jid"], "a");
    assert_eq!(answers[5], json!({ "cancelled": 0 }));
}

#[test]
fn jobs_are_changed_one_by_one_and_by_filter() {
    let queue = queue();
    for number in 0..30 {
        let put = json!({ "put": { "queue": "mail", "klass": "k", "jid": format!("j{number:02}"),
            "payload": { "n": number } } });
        ask(&queue, put);
    }
    assert_eq!(ask(&queue, json!({ "priority": { "jid": "j00", "priority": 5 } }))["priority"], 5);
    assert_eq!(
        ask(&queue, json!({ "tag": { "jid": "j00", "tags": ["a", "b"] } }))["tags"],
        json!(["a", "b"])
    );
    assert_eq!(ask(&queue, json!({ "untag": { "jid": "j00", "tags": ["b"] } }))["tags"], json!(["a"]));
    assert_eq!(ask(&queue, json!({ "track": { "jid": "j00" } }))["changed"], true);
    assert_eq!(ask(&queue, json!({ "tracked": {} }))["jobs"][0]["jid"], "j00");
    assert_eq!(ask(&queue, json!({ "untrack": { "jid": "j00" } }))["tracked"], false);

    let first = ask(&queue, json!({ "jobs": { "where": "queue=mail state=waiting" } }));
    assert_eq!(first["items"].as_array().unwrap().len(), 25);
    let rest = ask(
        &queue,
        json!({ "jobs": { "where": "queue=mail state=waiting", "after": first["next"], "limit": 100 } }),
    );
    assert_eq!((rest["items"].as_array().unwrap().len(), &rest["next"]), (5, &Value::Null));
    assert_eq!(ask(&queue, json!({ "jobs": { "tag": "a" } }))["items"][0]["jid"], "j00");

    let preview = ask(&queue, json!({ "cancel": { "where": "args.n=7", "dry_run": true } }));
    assert_eq!((&preview["matching"], &preview["samples"][0]["jid"]), (&json!(1), &json!("j07")));
    let done = ask(&queue, json!({ "cancel": { "where": "args.n=7", "because": "a test" } }));
    assert_eq!((&done["acted"], &done["refused"], &done["changed"]), (&json!(1), &json!(0), &json!(0)));
    let left = ask(&queue, json!({ "canceled": { "jid": "j07" } }));
    assert_eq!((&left["because"], &left["by"]), (&json!("a test"), &json!("tester")));
    assert_eq!(refused(&queue, json!({ "cancel": { "where": "" } })), "bad-argument");
    assert_eq!(refused(&queue, json!({ "cancel": { "dry_run": true } })), "bad-argument");
    assert_eq!(ask(&queue, json!({ "priority": { "all": true, "priority": 1 } }))["acted"], 29);
    assert_eq!(ask(&queue, json!({ "cancel": { "jids": ["j01", "j02"] } })), json!({ "cancelled": 2 }));
}

#[test]
fn failures_dependencies_and_queues_have_operations() {
    let queue = queue();
    ask(&queue, json!({ "put": { "queue": "mail", "klass": "k", "jid": "a" } }));
    ask(&queue, json!({ "put": { "queue": "mail", "klass": "k", "jid": "b", "depends": ["a"] } }));
    ask(&queue, json!({ "put": { "queue": "mail", "klass": "k", "jid": "c", "in": "1h" } }));
    assert_eq!(
        ask(&queue, json!({ "depend": { "jid": "b", "on": ["c"] } }))["dependencies"],
        json!(["a", "c"])
    );
    assert_eq!(ask(&queue, json!({ "undepend": { "jid": "b", "on": ["c"] } }))["dependencies"], json!(["a"]));
    let (_, token) = pop(&queue, "mail");
    let retried = ask(&queue, json!({ "retry": { "jid": "a", "token": token, "in": 0 } }));
    assert_eq!(retried, json!({ "jid": "a", "remaining": 4, "failed": false }));
    let (_, token) = pop(&queue, "mail");
    assert_eq!(ask(&queue, json!({ "release": { "jid": "a", "token": token } })), json!({ "jid": "a" }));
    let (_, token) = pop(&queue, "mail");
    let fail = json!({ "fail": { "jid": "a", "token": token, "group": "smtp", "message": "no route" } });
    assert_eq!(ask(&queue, fail), json!({ "jid": "a", "state": "failed", "group": "smtp" }));
    assert_eq!(ask(&queue, json!({ "failed": {} })), json!([{ "group": "smtp", "count": 1 }]));
    assert_eq!(ask(&queue, json!({ "failed": { "group": "smtp" } }))[0]["jid"], "a");
    assert_eq!(ask(&queue, json!({ "unfail": { "group": "smtp" } })), json!({ "group": "smtp", "moved": 1 }));
    assert_eq!(
        ask(&queue, json!({ "pause": { "queues": ["mail"] } })),
        json!({ "queues": ["mail"], "paused": true })
    );
    assert_eq!(ask(&queue, json!({ "queues": { "queue": "mail" } }))[0]["paused"], true);
    ask(&queue, json!({ "resume": { "queues": ["mail"] } }));
    let limits = json!({ "limits": { "queue": "mail", "max": 100, "rate": "10/s", "max_concurrency": 4,
        "by_priority": [{ "priority": 5, "max": 200 }] } });
    assert_eq!(
        ask(&queue, limits),
        json!({ "queue": "mail", "max": 100, "by_priority": [{ "priority": 5, "max": 200 }],
            "rate": { "count": 10, "per": 1, "burst": 1 }, "max_concurrency": 4 })
    );
    assert_eq!(
        ask(&queue, json!({ "limits": { "queue": "mail", "none": true } }))["max_concurrency"],
        Value::Null
    );
    assert_eq!(ask(&queue, json!({ "stats": { "queue": "mail" } }))["failures"], 1);
    assert_eq!(ask(&queue, json!({ "why": { "queue": "mail" } }))["depends"], 1);
}

#[test]
fn workers_options_and_recurring_jobs_have_operations() {
    let queue = queue();
    let can = json!({ "announce": { "worker": "w1", "can": [{ "queue": "mail", "klass": "k" }] } });
    assert_eq!(ask(&queue, can)["can"], json!([{ "queue": "mail", "klass": "k", "timeout": null }]));
    let call = json!({ "roll-call": { "queue": "mail", "klass": "k" } });
    assert_eq!(ask(&queue, call), json!({ "queue": "mail", "klass": "k", "workers": 1 }));
    assert_eq!(ask(&queue, json!({ "workers": {} }))[0]["name"], "w1");
    assert_eq!(ask(&queue, json!({ "workers": { "worker": "w1" } })), json!([]));
    assert_eq!(
        ask(&queue, json!({ "worker-lost": { "worker": "w1" } })),
        json!({ "worker": "w1", "jids": [] })
    );

    assert_eq!(ask(&queue, json!({ "set-config": { "key": "heartbeat", "value": 90 } }))["value"], "90");
    assert_eq!(ask(&queue, json!({ "config": { "key": "heartbeat" } }))["default"], false);
    assert_eq!(ask(&queue, json!({ "unset-config": { "key": "heartbeat" } }))["value"], "60");
    assert!(ask(&queue, json!({ "config": {} })).as_array().unwrap().len() > 10);
    assert_eq!(
        refused(&queue, json!({ "set-config": { "key": "hartbeat", "value": "1" } })),
        "no-such-option"
    );
    assert_eq!(
        refused(&queue, json!({ "set-config": { "key": "heartbeat", "value": "-1" } })),
        "bad-argument"
    );

    let plain = json!({ "recur": { "queue": "q", "klass": "k", "every": "1h", "jid": "r1" } });
    assert_eq!(
        ask(&queue, plain),
        json!({ "jid": "r1", "outcome": "recurring", "coalesced": false, "due": null })
    );
    let cron = json!({ "recur": { "queue": "q", "klass": "k", "cron": "every monday at 9:00", "jid": "r2",
        "overlap": "skip", "timeout": "10m" } });
    assert!(ask(&queue, cron)["due"].is_number());
    let jids = |listed: Value| -> Vec<String> {
        listed.as_array().unwrap().iter().map(|job| job["jid"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(jids(ask(&queue, json!({ "recurring": { "queue": "q" } }))), ["r1", "r2"]);
    assert_eq!(ask(&queue, json!({ "recurring": { "jid": "r2" } }))["overlap"], "skip");
    assert_eq!(ask(&queue, json!({ "recur-pause": { "jid": "r2" } }))["paused"], true);
    assert_eq!(ask(&queue, json!({ "recur-resume": { "jid": "r2" } }))["paused"], false);
    assert_eq!(ask(&queue, json!({ "recur-run": { "jid": "r2" } }))["outcome"], "created");
    assert_eq!(
        ask(&queue, json!({ "unrecur": { "jids": ["r1", "r2"] } })),
        json!({ "removed": ["r1", "r2"] })
    );
    assert_eq!(refused(&queue, json!({ "recurring": { "jid": "r1" } })), "no-such-recurring");
}

#[test]
fn events_are_read_from_a_position() {
    let queue = queue();
    let begin = pollster::block_on(queue.backend().subscribe()).unwrap().position();
    ask(&queue, json!({ "put": { "queue": "q", "klass": "k", "jid": "a" } }));
    let events = ask(&queue, json!({ "events": { "after": begin } }));
    assert_eq!((&events[0]["event"], &events[0]["jid"]), (&json!("put"), &json!("a")));
    let last = events.as_array().unwrap().last().unwrap()["position"].clone();
    assert_eq!(ask(&queue, json!({ "events": { "after": last, "wait": 1 } })), json!([]));
    assert_eq!(refused(&queue, json!({ "events": { "after": "999999" } })), "cursor-ahead");
}

#[test]
fn whole_numbers_may_have_a_point() {
    let queue = queue();
    ask(&queue, json!({ "put": { "queue": "q", "klass": "k", "jid": "a", "retries": 3.0 } }));
    assert_eq!(ask(&queue, json!({ "get": { "jid": "a" } }))["retries"], 3);
    let popped = try_ask(&queue, br#"{"pop":{"queue":"q","worker":"w","count":1e0}}"#).unwrap();
    assert_eq!(popped.as_array().unwrap().len(), 1);
}

#[test]
fn fields_for_one_job_are_refused_beside_a_filter() {
    let queue = queue();
    ask(&queue, json!({ "put": { "queue": "q", "klass": "k", "jid": "a" } }));
    for request in [
        json!({ "requeue": { "where": "queue=q", "klass": "other" } }),
        json!({ "requeue": { "all": true, "payload": 1 } }),
        json!({ "requeue": { "all": true, "in": 60 } }),
        json!({ "cancel": { "where": "queue=q", "cascade": true } }),
        json!({ "cancel": { "where": "queue=q", "jid": "a" } }),
        json!({ "unfail": { "where": "queue=q", "count": 1 } }),
        json!({ "unfail": { "all": true, "group": "g" } }),
    ] {
        assert_eq!(refused(&queue, request.clone()), "bad-argument", "{request}");
    }
    let job = ask(&queue, json!({ "get": { "jid": "a" } }));
    assert_eq!((&job["klass"], &job["state"]), (&json!("k"), &json!("waiting")));
}

/// Values that no field of a kind takes.
fn wrong(kind: FieldKind) -> &'static [&'static str] {
    match kind {
        FieldKind::Text
        | FieldKind::Name
        | FieldKind::LongName
        | FieldKind::Choice(_)
        | FieldKind::Pattern(_)
        | FieldKind::Format(_) => &["7", "[]", "{}", "true", "\"\\ud800\""],
        FieldKind::OptionValue => &["[]", "{}", "true", "\"\\ud800\""],
        FieldKind::Names(_) => &["7", "\"a\"", "{}", "[1]", "[null]"],
        FieldKind::Number => &["\"high\"", "[]", "1e999", "true"],
        FieldKind::Whole(..) => &["\"many\"", "1.5", "1e999", "99999999999999999999999999", "[]"],
        FieldKind::Position | FieldKind::Backlog => &["\"many\"", "-1", "1.5", "1e999", "[]"],
        FieldKind::Flag => &["1", "\"yes\"", "[]"],
        FieldKind::Duration | FieldKind::Span | FieldKind::Interval | FieldKind::Retention => {
            &["\"soon\"", "-1", "1e999", "[]", "\"999999999999w\""]
        }
        FieldKind::Time | FieldKind::Past | FieldKind::Day => &["\"soon-ish\"", "1e999", "[]"],
        FieldKind::Json => &["\"\\ud800\""],
        FieldKind::Object => &["7", "[]", "\"a\"", "true"],
        FieldKind::UniqueKey => &["7", "[]", "\"\"", "{\"$bytes\":\"?\"}"],
        FieldKind::Levels | FieldKind::Capabilities => &["7", "{}", "[7]", "[{\"x\": 1}]"],
    }
}

/// Every field of every operation, with values of the wrong type: a coded error, and nothing changes.
#[test]
fn wrong_values_are_refused_with_a_code_and_change_nothing() {
    let queue = queue();
    let mut refusals = 0;
    for operation in operations() {
        for field in operation.fields {
            for value in wrong(field.kind) {
                let rest =
                    operation.fields.iter().filter(|other| other.is_required() && other.name != field.name);
                let mut fields: Vec<String> =
                    rest.map(|other| format!("{:?}:{}", other.name, right(other.kind))).collect();
                fields.push(format!("{:?}:{value}", field.name));
                let request = format!("{{{:?}:{{{}}}}}", operation.name, fields.join(","));
                let error = try_ask(&queue, request.as_bytes()).expect_err(&request);
                let code = error["error"]["code"].as_str().unwrap();
                assert!(
                    ["bad-argument", "bad-json", "no-such-option", "missing-field"].contains(&code),
                    "{request}: {error}"
                );
                refusals += 1;
            }
        }
        let request = format!("{{{:?}:{{\"nonsense\":1}}}}", operation.name);
        let error = try_ask(&queue, request.as_bytes()).expect_err(&request);
        assert_eq!(error["error"]["code"], "unknown-field", "{request}");
        assert!(error["error"]["message"].as_str().unwrap().contains("`nonsense`"), "{error}");
    }
    assert!(refusals > 300, "{refusals}");
    assert_eq!(ask(&queue, json!({ "queues": {} })), json!([]));
    let length = Length { queue: QueueName::new("x").unwrap() };
    let answers = pollster::block_on(queue.backend().execute(vec![Call::from(length)])).unwrap();
    assert_eq!(answers, [Ok(Reply::Length(0))]);
}

fn right(kind: FieldKind) -> &'static str {
    match kind {
        FieldKind::Names(_) => "[\"x\"]",
        FieldKind::Number
        | FieldKind::Whole(..)
        | FieldKind::Duration
        | FieldKind::Span
        | FieldKind::Interval => "1",
        FieldKind::Flag | FieldKind::Retention => "false",
        FieldKind::Time | FieldKind::Past | FieldKind::Day | FieldKind::Position | FieldKind::Backlog => "0",
        FieldKind::Json | FieldKind::Object => "{}",
        FieldKind::Levels | FieldKind::Capabilities => "[]",
        _ => "\"x\"",
    }
}

#[test]
fn requests_that_are_no_operations_are_refused_with_a_code() {
    let queue = queue();
    let deep = format!("{{\"put\":{}", "[".repeat(100_000));
    for (request, code) in [
        (&b""[..], "bad-json"),
        (b"null", "bad-json"),
        (b"7", "bad-json"),
        (b"\"put\"", "bad-json"),
        (b"{", "bad-json"),
        (b"{}", "bad-json"),
        (b"[", "bad-json"),
        (b"[1,]", "bad-json"),
        (b"\xff", "bad-json"),
        (b"{\"put\":{\"queue\":\"\xff\"}}", "bad-json"),
        (b"{\"put\":{},\"pop\":{}}", "bad-json"),
        (b"{\"put\":null}", "bad-json"),
        (b"{\"put\":[]}", "bad-json"),
        (b"{\"put\":{}} x", "bad-json"),
        (b"{\"put\":{\"queue\":\"q\",\"queue\":\"q\"}}", "repeated-field"),
        (b"{\"frobnicate\":{}}", "unknown-operation"),
        (b"{\"put\":{}}", "missing-field"),
        (b"{\"put\":{\"queue\":\"\",\"klass\":\"k\"}}", "bad-argument"),
        (b"{\"put\":{\"queue\":\"a\\u0000b\",\"klass\":\"k\"}}", "bad-argument"),
        (b"{\"get\":{\"jid\":\"nope\"}}", "no-such-job"),
        (b"{\"heartbeat\":{\"jid\":\"nope\",\"token\":\"1.0\"}}", "no-such-job"),
        (b"{\"heartbeat\":{\"jid\":\"nope\",\"token\":\"x\"}}", "bad-argument"),
        (b"{\"heartbeat\":{\"jid\":\"nope\"}}", "missing-field"),
        (deep.as_bytes(), "bad-json"),
    ] {
        let error = try_ask(&queue, request).expect_err(code);
        assert_eq!(error["error"]["code"], code, "{}: {error}", String::from_utf8_lossy(request));
    }
}
