//! Our script as a Qless client sees it: every command, its replies, messages, errors, and the keys that it
//! writes.

use crate::support;

use geartrain_redis::script;
use redis::{Connection, Value};
use serde_json::{Value as Json, json};
use support::Server;

/// A Redis with our script, and a subscriber to everything.
struct Qless {
    connection: Connection,
    subscriber: Connection,
    _server: Server,
}

impl Qless {
    fn start() -> Qless {
        let server = Server::start();
        let (mut connection, subscriber) = (server.connect(), server.connect());
        let sha: String =
            redis::cmd("SCRIPT").arg("LOAD").arg(&script::script().text).query(&mut connection).unwrap();
        assert_eq!(sha, script::script().sha);
        Qless { connection, subscriber, _server: server }
    }

    fn call(&mut self, arguments: &[&str]) -> Result<Value, String> {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&script::script().sha).arg(0);
        arguments.iter().for_each(|argument| {
            command.arg(argument);
        });
        command.query(&mut self.connection).map_err(|error| error.to_string())
    }

    /// A call whose words are separated by blanks.
    fn say(&mut self, words: &str) -> Value {
        let arguments: Vec<&str> = words.split(' ').collect();
        self.call(&arguments).unwrap_or_else(|error| panic!("{words}: {error}"))
    }

    fn text(&mut self, words: &str) -> String {
        match self.say(words) {
            Value::BulkString(bytes) => String::from_utf8(bytes).unwrap(),
            other => panic!("{words} answers {other:?}"),
        }
    }

    fn json(&mut self, words: &str) -> Json {
        serde_json::from_str(&self.text(words)).unwrap()
    }

    fn error(&mut self, words: &str) -> String {
        let arguments: Vec<&str> = if words.is_empty() { vec![] } else { words.split(' ').collect() };
        self.call(&arguments).expect_err(words)
    }

    /// Makes a call, and returns its reply and the messages, each as `channel message`.
    fn call_and_messages(&mut self, words: &str) -> (Value, Vec<String>) {
        let mut subscription = self.subscriber.as_pubsub();
        subscription.psubscribe("*").unwrap();
        let arguments: Vec<&str> = words.split(' ').collect();
        let mut command = redis::cmd("EVALSHA");
        command.arg(&script::script().sha).arg(0).arg(&arguments);
        let reply = command.query(&mut self.connection).unwrap_or_else(|error| panic!("{words}: {error}"));
        // Marks the end of the call's messages.
        redis::cmd("PUBLISH").arg("over").arg("").exec(&mut self.connection).unwrap();
        let mut call_and_messages = Vec::new();
        loop {
            let message = subscription.get_message().unwrap();
            if message.get_channel_name() == "over" {
                break;
            }
            call_and_messages.push(format!(
                "{} {}",
                message.get_channel_name(),
                message.get_payload::<String>().unwrap()
            ));
        }
        (reply, call_and_messages)
    }

    /// The job's hash has these fields, each as `name=value`.
    fn assert_job_has(&mut self, jid: &str, fields: &[&str]) {
        let flat = redis::cmd("HGETALL").arg(format!("ql:j:{jid}")).query(&mut self.connection).unwrap();
        let found = pairs(flat, true);
        for field in fields {
            assert!(found.iter().any(|found| found == field), "{field} is not in {found:#?}");
        }
    }

    /// Keys and values, as text.
    fn dump(&mut self, pattern: &str) -> Vec<String> {
        let mut keys: Vec<String> = redis::cmd("KEYS").arg(pattern).query(&mut self.connection).unwrap();
        keys.sort();
        let mut lines = Vec::new();
        for key in keys {
            let kind: String = redis::cmd("TYPE").arg(&key).query(&mut self.connection).unwrap();
            let connection = &mut self.connection;
            let held: Vec<String> = match kind.as_str() {
                "hash" => pairs(redis::cmd("HGETALL").arg(&key).query(connection).unwrap(), true),
                "zset" => pairs(
                    redis::cmd("ZRANGE")
                        .arg(&key)
                        .arg(0)
                        .arg(-1)
                        .arg("WITHSCORES")
                        .query(connection)
                        .unwrap(),
                    false,
                ),
                "list" => redis::cmd("LRANGE").arg(&key).arg(0).arg(-1).query(connection).unwrap(),
                "set" => redis::cmd("SMEMBERS").arg(&key).query(connection).unwrap(),
                _ => {
                    let bytes: Vec<u8> = redis::cmd("GET").arg(&key).query(connection).unwrap();
                    vec![format!("{bytes:?}")]
                }
            };
            lines.push(format!("{key}: {}", held.join(" | ")));
        }
        lines
    }
}

fn pairs(flat: Vec<String>, sorted: bool) -> Vec<String> {
    let mut pairs: Vec<String> = flat.chunks(2).map(|pair| format!("{}={}", pair[0], pair[1])).collect();
    if sorted {
        pairs.sort();
    }
    pairs
}

fn bulk(text: &str) -> Value {
    Value::BulkString(text.into())
}

fn nothing() -> Vec<String> {
    Vec::new()
}

#[test]
fn the_worked_trace_of_the_specification_is_as_it_says() {
    let mut qless = Qless::start();
    let (reply, call_and_messages) =
        qless.call_and_messages(r#"put 0 w1 q a k {"x":[]} 0 priority 5 tags ["t"]"#);
    assert_eq!(reply, bulk("a"));
    assert_eq!(call_and_messages, [r#"ql:log {"jid":"a","event":"put","queue":"q"}"#]);
    assert_eq!(
        qless.dump("ql:*"),
        [
            r#"ql:j:a: data={"x":[]} | expires=0 | jid=a | klass=k | priority=5 | queue=q | remaining=5 | retries=5 | state=waiting | tags=["t"] | time=0.00000000000000000000 | worker="#,
            r#"ql:j:a-history: [0,"put",{"q":"q"}]"#,
            "ql:q:q-work: a=5",
            "ql:queues: q=0",
            "ql:t:t: a=0",
            "ql:tags: t=1",
        ]
    );

    let (reply, call_and_messages) = qless.call_and_messages("pop 10 q w1 1");
    assert_eq!(call_and_messages, nothing());
    let Value::BulkString(bytes) = reply else { panic!("{reply:?}") };
    let popped: Json = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(
        popped,
        json!([{
            "jid": "a", "klass": "k", "state": "running", "queue": "q", "worker": "w1", "tracked": false, "priority": 5, "expires": 70, "retries": 5,
            "remaining": 5, "data": "{\"x\":[]}", "tags": ["t"], "failure": {}, "spawned_from_jid": false, "dependents": {}, "dependencies": {},
            "history": [{"what": "put", "when": 0, "q": "q"}, {"what": "popped", "when": 10, "worker": "w1"}]
        }])
    );
    let lines = qless.dump("ql:*");
    for line in [
        "ql:q:q-locks: a=70",
        "ql:w:w1:jobs: a=70",
        "ql:workers: w1=10",
        "ql:s:wait:0:q: mean=10 | s10=1 | total=1 | vk=0",
    ] {
        assert!(lines.iter().any(|found| found == line), "{line} is not in {lines:#?}");
    }

    let lost = r#"{"jid":"a","event":"lock_lost","worker":"w1"}"#;
    let (reply, call_and_messages) = qless.call_and_messages("pop 70 q w2 1");
    assert_eq!(
        (reply, call_and_messages),
        (bulk("{}"), vec![format!("ql:w:w1 {lost}"), format!("ql:log {lost}")])
    );
    let lines = qless.dump("ql:*");
    assert!(lines.contains(&"ql:q:q-locks: a=80".to_owned()), "{lines:#?}");
    assert!(lines.contains(&"ql:s:stats:0:q: retries=1".to_owned()), "{lines:#?}");
    assert!(!lines.iter().any(|line| line.starts_with("ql:w:w1")), "{lines:#?}");
    let warned = [
        "state=running",
        "worker=w1",
        "expires=70",
        "grace=1",
        "remaining=5",
        "time=10.00000000000000000000",
    ];
    qless.assert_job_has("a", &warned);
    assert_eq!(qless.call_and_messages("heartbeat 75 a w1"), (Value::Int(135), nothing()));
    qless.assert_job_has("a", &["worker=w1", "expires=135", "grace=1"]);
    assert_eq!(qless.json("pop 135 q w2 1")[0]["remaining"], 4);
    assert!(qless.error("heartbeat 136 a w1").contains("Heartbeat(): Job a given out to another worker: w2"));
    assert_eq!(
        qless.call_and_messages("complete 140 a w2 q [] next r delay 5"),
        (bulk("scheduled"), vec![r#"ql:log {"jid":"a","to":"r","event":"advanced","queue":"q"}"#.to_owned()])
    );
    let lines = qless.dump("ql:*");
    assert!(lines.contains(&"ql:q:r-scheduled: a=145".to_owned()), "{lines:#?}");
    let advanced = [
        "state=waiting",
        "queue=r",
        "worker=",
        "expires=0",
        "remaining=5",
        "data=[]",
        "failure={}",
        "time=140.00000000000000000000",
    ];
    qless.assert_job_has("a", &advanced);
    assert!(!lines.iter().any(|line| line.contains("grace=")), "taking it over ended the grace: {lines:#?}");
    let job = qless.json("get 140 a");
    assert_eq!(
        (&job["state"], &job["remaining"], &job["data"]),
        (&json!("waiting"), &json!(5), &json!("[]"))
    );
    assert_eq!(qless.json("pop 146 r w3 1")[0]["worker"], "w3");
    assert_eq!(
        qless.call_and_messages("fail 147.8 a w3 g oops"),
        (
            bulk("a"),
            vec![
                r#"ql:log {"message":"oops","jid":"a","group":"g","event":"failed","worker":"w3"}"#
                    .to_owned()
            ]
        )
    );
    let failed = [
        r#"failure={"group":"g","message":"oops","when":147,"worker":"w3"}"#,
        "state=failed",
        "queue=r",
        "worker=",
        "expires=",
    ];
    qless.assert_job_has("a", &failed);
    assert_eq!(qless.dump("ql:f*"), ["ql:f:g: a", "ql:failures: g"]);
    let failure = json!({"group": "g", "message": "oops", "when": 147, "worker": "w3"});
    assert_eq!(qless.json("get 150 a")["failure"], failure);
    assert_eq!(qless.text("failed 150"), r#"{"g":1}"#);
    assert_eq!(
        qless.call_and_messages("cancel 151 a"),
        (
            Value::Array(vec![bulk("a")]),
            vec![r#"ql:log {"jid":"a","queue":"r","event":"canceled","worker":""}"#.to_owned()]
        )
    );
    assert_eq!(
        qless.dump("ql:*"),
        [
            "ql:queues: q=0 | r=140",
            "ql:s:run:0:q: mean=5 | s5=1 | total=1 | vk=0",
            "ql:s:stats:0:q: retries=1",
            "ql:s:stats:0:r: failed=0 | failures=1",
            "ql:s:wait:0:q: m2=1 | mean=67.5 | s10=1 | total=2 | vk=6612.5",
            "ql:s:wait:0:r: mean=6 | s6=1 | total=1 | vk=0",
            "ql:tags: t=0",
            "ql:workers: w1=75 | w2=135 | w3=146",
        ]
    );
}

#[test]
fn errors_have_the_texts_that_clients_match() {
    let mut qless = Qless::start();
    qless.say("put 0 w q done k {} 0");
    qless.say("pop 0 q w 1");
    qless.say("complete 0 done w q {}");
    qless.say("put 0 w q j k {} 0");
    qless.say("put 0 w q child k {} 0 depends [\"j\"]");
    qless.say("pop 0 q w 1");
    qless.say("put 0 w q waits k {} 0");
    let before = qless.dump("*");
    for (call, said) in [
        ("", "Must provide a command"),
        ("dance 0", "Unknown command dance"),
        ("put soon w q a k {} 0", r#"Arg "now" missing or not a number: nil"#),
        ("put", r#"Arg "now" missing or not a number: nil"#),
        ("put nan w q a k {} 0", r#"Arg "now" missing or not a number: nil"#),
        ("put 0", "Queue(): no queue name provided"),
        ("put 0 w q", r#"Put(): Arg "jid" missing"#),
        ("put 0 q a", r#"Put(): Arg "jid" missing"#),
        ("put 0 q a k", r#"Put(): Arg "data" missing"#),
        ("put 0 w q a k false 0", r#"Put(): Arg "data" missing or not JSON: false"#),
        ("put 0 w q a k } 0", "Expected value but found T_OBJ_END at character 1"),
        ("put 0 w q a k {} soon", r#"Put(): Arg "delay" not a number: soon"#),
        ("put 0 w q a k {} 0 retries many", r#"Put(): Arg "retries" not a number: many"#),
        ("put 0 w q a k {} 0 priority high", r#"Put(): Arg "priority" not a numberhigh"#),
        ("put 0 w q a k {} 0 tags no", "Expected"),
        ("put 0 w q a k {} 0 depends no", "Expected"),
        ("requeue 0 w q nobody k {} 0", "Requeue(): Job nobody does not exist"),
        ("requeue 0 w q", "Job(): no jid provided"),
        ("pop 0", "Queue(): no queue name provided"),
        ("pop 0 q", r#"Pop(): Arg "worker" missing"#),
        ("pop 0 q w", r#"Pop(): Arg "count" missing or not a number: nil"#),
        ("pop 0 q w some", r#"Pop(): Arg "count" missing or not a number: some"#),
        ("pop 0 q w -1", "a count is a whole number from 0 to 100000, not -1"),
        ("peek 0", "Queue(): no queue name provided"),
        ("peek 0 q some", r#"Peek(): Arg "count" missing or not a number: some"#),
        ("heartbeat 0", "Job(): no jid provided"),
        ("heartbeat 0 j", r#"Heatbeat(): Arg "worker" missing"#),
        ("heartbeat 0 j w no", "Expected"),
        ("heartbeat 0 nobody w", "Heartbeat(): Job nobody does not exist"),
        ("heartbeat 0 waits w", "Heartbeat(): Job waits not currently running: waiting"),
        ("heartbeat 0 j v", "Heartbeat(): Job j given out to another worker: w"),
        ("complete 0", "Job(): no jid provided"),
        ("complete 0 j", r#"Complete(): Arg "worker" missing"#),
        ("complete 0 j w", r#"Complete(): Arg "queue" missing"#),
        ("complete 0 j w q", "Complete(): Arg \"data\" missing"),
        ("complete 0 j w q no", "Expected"),
        ("complete 0 j w q {} next r delay soon", "soon"),
        ("complete 0 j w q {} delay 0", r#"Complete(): "delay" cannot be used without a "next"."#),
        ("complete 0 j w q {} depends []", r#"Complete(): "depends" cannot be used without a "next"."#),
        ("complete 0 nobody w q {}", "Complete(): Job nobody does not exist"),
        ("complete 0 waits w q {}", "Complete(): Job waits is not currently running: waiting"),
        ("complete 0 done w q {}", "Complete(): Job done is not currently running: complete"),
        ("complete 0 j v q {}", "Complete(): Job j has been handed out to another worker: w"),
        ("complete 0 j w r {}", "Complete(): Job j running in another queue: q"),
        ("fail 0", "Job(): no jid provided"),
        ("fail 0 j", r#"Fail(): Arg "worker" missing"#),
        ("fail 0 j w", r#"Fail(): Arg "group" missing"#),
        ("fail 0 j w g", r#"Fail(): Arg "message" missing"#),
        ("fail 0 nobody w g m", "Fail(): Job nobodydoes not exist"),
        ("fail 0 waits w g m", "Fail(): Job waitsnot currently running: waiting"),
        ("fail 0 j v g m", "Fail(): Job j running with another worker: w"),
        ("retry 0", "Job(): no jid provided"),
        ("retry 0 j", r#"Retry(): Arg "queue" missing"#),
        ("retry 0 j q", r#"Retry(): Arg "worker" missing"#),
        ("retry 0 j q w soon", r#"Retry(): Arg "delay" not a number: soon"#),
        ("retry 0 nobody q w", "Retry(): Job nobody does not exist"),
        ("retry 0 child q w", "Retry(): Job child is not currently running: depends"),
        ("retry 0 j q v", "Retry(): Job j has been given to another worker: w"),
        ("retry 0 j r w", "Retry(): Job j running in another queue: q"),
        ("timeout 0 j nobody", "Timeout(): Job nobody does not exist"),
        ("timeout 0 j waits", "Timeout(): Job waits not running"),
        ("cancel 0 j", "Cancel(): j is a dependency of child but is not mentioned to be canceled"),
        ("unfail 0", "Queue(): no queue name provided"),
        ("unfail 0 q", r#"Unfail(): Arg "group" missing"#),
        ("unfail 0 q g all", r#"Unfail(): Arg "count" not a number: all"#),
        ("unfail 0 q g 0", "count must be at least 1"),
        ("priority 0", "Job(): no jid provided"),
        ("priority 0 j", r#"Priority(): Arg "priority" missing or not a number: nil"#),
        ("priority 0 j high", r#"Priority(): Arg "priority" missing or not a number: high"#),
        ("priority 0 nobody 1", "Priority(): Job nobody does not exist"),
        ("depends 0", "Job(): no jid provided"),
        ("depends 0 child", r#"Depends(): Arg "command" missing"#),
        ("depends 0 j on a", "Depends(): Job j not in the depends state: running"),
        ("depends 0 nobody on a", "Depends(): Job nobody not in the depends state: false"),
        ("depends 0 child upon a", r#"Depends(): Argument "command" must be "on" or "off""#),
        ("log 0", "Log(): Argument 'jid' missing"),
        ("log 0 j", "Log(): Argument 'message' missing"),
        ("log 0 nobody m", "Log(): Job nobody does not exist"),
        ("log 0 j m 7", "must be a JSON object"),
        ("track 0 track", r#"Track(): Arg "jid" missing"#),
        ("track 0 track nobody", "Track(): Job does not exist"),
        ("track 0 follow j", r#"Track(): Unknown action "follow""#),
        ("tag 0", r#"Tag(): Arg "command" must be "add", "remove", "get" or "top""#),
        ("tag 0 paint", r#"Tag(): First argument must be "add", "remove" or "get""#),
        ("tag 0 add", r#"Tag(): Arg "jid" missing"#),
        ("tag 0 add nobody t", "Tag(): Job nobody does not exist"),
        ("tag 0 remove nobody t", "Tag(): Job nobody does not exist"),
        ("tag 0 get", r#"Tag(): Arg "tag" missing"#),
        ("tag 0 get t some", r#"Tag(): Arg "offset" not a number: some"#),
        ("tag 0 get t 0 some", r#"Tag(): Arg "count" not a number: some"#),
        ("get 0", "Job(): no jid provided"),
        ("length 0", "Queue(): no queue name provided"),
        ("jobs 0", r#"Jobs(): Arg "state" missing"#),
        ("jobs 0 odd", r#"Jobs(): Arg "queue" missing"#),
        ("jobs 0 odd q", r#"Jobs(): Unknown type "odd""#),
        ("jobs 0 waiting q", r#"Jobs(): Unknown type "waiting""#),
        ("jobs 0 running q some", r#"Jobs(): Arg "offset" not a number: some"#),
        ("jobs 0 complete 0 some", r#"Jobs(): Arg "count" not a number: some"#),
        ("failed 0 g some", r#"Failed(): Arg "start" is not a number: some"#),
        ("failed 0 g 0 some", r#"Failed(): Arg "limit" is not a number: some"#),
        ("stats 0", "Queue(): no queue name provided"),
        ("stats 0 q", r#"Stats(): Arg "date" missing or not a number: nil"#),
        ("pause 0", "queues must name at least one"),
        ("unpause 0", "queues must name at least one"),
        ("queue.forget 0", "queues must name at least one"),
        ("worker.deregister 0", "workers must name at least one"),
        ("config.set 0", r#"config.set(): Arg "option" missing"#),
        ("config.set 0 heartbeat", r#"config.set(): Arg "value" missing"#),
        ("config.unset 0", r#"config.unset(): Arg "option" missing"#),
        ("recur 0", "Queue(): no queue name provided"),
        ("recur 0 q", r#"RecurringJob On(): Arg "jid" missing"#),
        ("recur 0 q n", r#"RecurringJob On(): Arg "klass" missing"#),
        ("recur 0 q n k {}", r#"RecurringJob On(): Arg "spec" missing"#),
        ("recur 0 q n k no interval 60 0", "Expected"),
        ("recur 0 q n k {} moon 60 0", r#"Recur(): schedule type "moon" unknown"#),
        ("recur 0 q n k {} interval often 0", r#"Recur(): Arg "interval" not a number: often"#),
        ("recur 0 q n k {} interval 60 soon", r#"Recur(): Arg "offset" not a number: soon"#),
        ("recur 0 q n k {} interval 0 0", r#"Recur(): Arg "interval" must be greater than 0"#),
        ("recur 0 q n k {} interval 60 0 tags", "Odd number of additional args: tags"),
        ("recur 0 q n k {} interval 60 0 backlog b", r#"Recur(): Arg "backlog" not a number: b"#),
        ("unrecur 0", "Recurring(): no jid provided"),
        ("recur.get 0", "Recurring(): no jid provided"),
        ("recur.update 0 nobody", "Recur(): No recurring job nobody"),
        ("recur.tag 0 nobody t", "Tag(): Job nobody does not exist"),
        ("recur.untag 0 nobody t", "Untag(): Job nobody does not exist"),
    ] {
        let error = qless.error(call);
        assert!(error.contains(said), "{call}: {error}, and not {said}");
        assert!(error.contains("user_script:1: "), "{call}: {error}");
    }
    assert_eq!(qless.dump("*"), before, "what was refused changed something");
    qless.say("recur 0 q n k {} interval 60 100");
    for (call, said) in [
        ("recur.update 0 n priority", "No value provided for priority"),
        ("recur.update 0 n priority 1 colour red", r#"Recur(): Unrecognized option "colour""#),
        ("recur.update 0 n interval often", r#"Recur(): Arg "interval" must be a number: often"#),
        ("recur.update 0 n backlog b", r#"Recur(): Arg "backlog" not a number: b"#),
    ] {
        assert!(qless.error(call).contains(said), "{call}");
    }
    assert_eq!(qless.json("recur.get 0 n")["priority"], 0);
}

#[test]
fn names_that_are_not_utf8_are_refused() {
    let mut qless = Qless::start();
    let long = "x".repeat(513);
    for (call, said) in [
        (["put", "0", "w", "", "a", "k", "{}", "0"], "a queue needs at least one byte"),
        (["put", "0", "w", "q", &long, "k", "{}", "0"], "a jid has at most 512 bytes, this one has 513"),
        (["put", "0", "w", "q", "a", "k\0", "{}", "0"], "a klass must not hold a NUL byte"),
    ] {
        let error = qless.call(&call).unwrap_err();
        assert!(error.contains(said), "{error}");
    }
    for bad in [&b"\"\xff\""[..], b"\"\xc0\x80\"", b"\"\xed\xa0\x80\""] {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&script::script().sha).arg(0).arg(&["put", "0", "w", "q", "a", "k"]).arg(bad).arg("0");
        let error = command.exec(&mut qless.connection).unwrap_err().to_string();
        assert!(error.contains("data must be UTF-8"), "{error}");
    }
    assert_eq!(qless.dump("*"), nothing());
    qless.say("put 0 w q Ä€𝄞 k \"Ä€𝄞\" 0");
    assert_eq!(qless.json("get 0 Ä€𝄞")["data"], "\"Ä€𝄞\"");
}

#[test]
fn each_command_replies_in_its_own_form() {
    let mut qless = Qless::start();
    assert_eq!(
        qless.say("put 0 q older k {} 0 priority 9"),
        bulk("older"),
        "the older form without a worker"
    );
    assert_eq!(qless.say("put 1 w q a k [] 0"), bulk("a"));
    assert_eq!(qless.say("requeue 2 w q a k {} 0 retries 1"), bulk("a"));
    assert_eq!(qless.say("length 2 q"), Value::Int(2));
    assert_eq!(qless.json("peek 2 q 5").as_array().map(Vec::len), Some(2));
    assert_eq!(qless.json("pop 2 q w 1")[0]["jid"], "older");
    assert_eq!(qless.say("complete 3 older w q {}"), bulk("complete"));
    assert_eq!(qless.json("pop 3 q w 1")[0]["jid"], "a");
    assert_eq!(qless.say("heartbeat 3.7 a w [1]"), Value::Int(63));
    assert_eq!(qless.say("retry 4 a q w 10 g m"), Value::Int(0));
    let job = qless.json("get 5 a");
    assert_eq!(
        (&job["state"], &job["worker"]),
        (&json!("scheduled"), &json!("w")),
        "as in Qless, the last holder stays named"
    );
    assert_eq!(job["failure"], json!({"group": "g", "message": "m", "when": 4, "worker": "w"}));
    assert_eq!(qless.say("jobs 5 scheduled q"), Value::Array(vec![bulk("a")]));
    assert_eq!(qless.say("jobs 5 complete"), Value::Array(vec![bulk("older")]));
    assert_eq!(qless.say("jobs 5 stalled q"), Value::Array(vec![]));
    assert_eq!(qless.json("pop 14 q w 1")[0]["jid"], "a");
    assert_eq!(qless.say("timeout 15 a"), Value::Nil);
    assert_eq!(qless.json("get 15 a")["state"], "stalled");
    assert_eq!(qless.json("pop 15 q w 1")[0]["jid"], "a");
    assert_eq!(qless.say("retry 16 a q w"), Value::Int(-1), "no retry was left");
    assert_eq!(qless.json("failed 16 failed-retries-q"), json!({"total": 1, "jobs": ["a"]}));
    assert_eq!(qless.say("unfail 17 q failed-retries-q"), Value::Int(1));
    assert_eq!(qless.say("priority 17 a 2.7"), Value::Int(2));
    assert_eq!(qless.say(r#"put 17 w q b k {} 0 depends ["a"]"#), bulk("b"));
    assert_eq!(qless.say("depends 17 b on older"), Value::Int(1));
    assert_eq!(qless.say("depends 17 b off all"), Value::Int(1));
    assert_eq!(qless.json("get 17 b")["state"], "waiting");
    assert_eq!(qless.say(r#"log 17 b hello {"by":"me"}"#), Value::Nil);
    assert_eq!(qless.json("get 17 b")["history"][1], json!({"what": "hello", "when": 17, "by": "me"}));
    assert_eq!(qless.text("track 17 TRACK b"), "1");
    assert_eq!(qless.text("track 17 track b"), "0");
    assert_eq!(qless.json("track 17")["jobs"][0]["jid"], "b");
    assert_eq!(qless.text("tag 17 add b t u t"), r#"["t","u"]"#);
    assert_eq!(qless.text("tag 17 remove b u"), r#"["t"]"#);
    assert_eq!(qless.json("tag 17 get t"), json!({"total": 1, "jobs": ["b"]}));
    assert_eq!(qless.text("tag 17 top"), r#"["t"]"#);
    assert_eq!(qless.json("multiget 17 b nobody a").as_array().map(Vec::len), Some(2));
    assert_eq!(qless.say("get 17 nobody"), Value::Nil);
    let queue = json!({"name": "q", "waiting": 2, "running": 0, "stalled": 0, "scheduled": 0, "depends": 0, "recurring": 0, "paused": false});
    assert_eq!(qless.json("queues 17 q"), queue);
    assert_eq!(qless.json("queues 17"), json!([queue]));
    assert_eq!(qless.json("workers 17"), json!([{"name": "w", "jobs": 0, "stalled": 0}]));
    assert_eq!(qless.json("workers 17 w"), json!({"jobs": {}, "stalled": {}}));
    let stats = qless.json("stats 17 q 0");
    assert_eq!((&stats["wait"]["count"], &stats["failures"]), (&json!(4), &json!(1)));
    assert_eq!(stats["run"]["histogram"].as_array().map(Vec::len), Some(148));
    assert_eq!(qless.say("pause 17 q r"), Value::Nil);
    assert_eq!(qless.text("pop 17 q w 1"), "{}");
    assert_eq!(qless.say("unpause 17 q r"), Value::Nil);
    assert_eq!(qless.say("queue.forget 17 q"), Value::Nil);
    assert_eq!(qless.text("queues 17"), "{}");
    assert_eq!(qless.say("worker.deregister 17 w"), Value::Nil);
    assert_eq!(qless.text("workers 17"), "{}");
    assert_eq!(qless.say("config.get 17 heartbeat"), Value::Int(60));
    assert_eq!(qless.say("config.get 17 application"), bulk("qless"));
    assert_eq!(qless.say("config.get 17 nothing"), Value::Nil);
    assert_eq!(
        qless.call_and_messages("config.set 17 heartbeat 100").1,
        [r#"ql:log {"option":"heartbeat","event":"config_set","value":"100"}"#]
    );
    assert_eq!(qless.say("config.get 17 heartbeat"), bulk("100"));
    assert_eq!(qless.json("config.get 17")["heartbeat"], "100");
    for (option, value) in [("heartbeat", "soon"), ("heartbeat", "-60"), ("colour", "green")] {
        assert_eq!(qless.say(&format!("config.set 17 {option} {value}")), Value::Nil);
        assert_eq!(qless.say(&format!("config.get 17 {option}")), bulk(value));
    }
    qless.say("config.unset 17 colour");
    assert_eq!(
        qless.call_and_messages("config.unset 17 heartbeat").1,
        [r#"ql:log {"event":"config_unset","option":"heartbeat"}"#]
    );
    assert_eq!(qless.say("recur 20 q n k {} interval 60 0 backlog 1"), bulk("n"));
    assert_eq!(
        qless.json("recur.get 20 n"),
        json!({
            "jid": "n", "klass": "k", "state": "recur", "queue": "q", "priority": 0, "interval": 60, "retries": 0, "count": 0, "data": "{}", "tags": {},
            "backlog": 1
        })
    );
    assert_eq!(qless.text("recur.tag 20 n x x"), r#"["x","x"]"#);
    assert_eq!(qless.text("recur.untag 20 n x"), "{}");
    assert_eq!(qless.say("recur.update 20 n klass other"), Value::Int(1));
    assert_eq!(qless.say("jobs 20 recurring q"), Value::Array(vec![bulk("n")]));
    let spawned = qless.json("peek 20 q 9");
    assert_eq!(spawned[2]["spawned_from_jid"], "n");
    assert_eq!(qless.say("unrecur 20 n"), Value::Int(1));
    assert_eq!(qless.say("unrecur 20 n"), Value::Int(1));
    assert_eq!(
        qless.say("cancel 20 a b nobody a"),
        Value::Array(["a", "b", "nobody", "a"].map(bulk).to_vec())
    );
}

#[test]
fn messages_about_a_tracked_job_come_in_their_order() {
    let mut qless = Qless::start();
    qless.say("put 0 w q j k {} 0 retries 0");
    assert_eq!(qless.call_and_messages("track 0 track j").1, ["ql:track j"]);
    assert_eq!(qless.call_and_messages("pop 0 q w 1").1, ["ql:popped j"]);
    let lost = r#"{"jid":"j","event":"lock_lost","worker":"w"}"#;
    assert_eq!(
        qless.call_and_messages("put 1 v q j k {} 0").1,
        [
            r#"ql:log {"jid":"j","event":"put","queue":"q"}"#.to_owned(),
            format!("ql:w:w {lost}"),
            format!("ql:log {lost}"),
            "ql:put j".into()
        ]
    );
    qless.say("pop 2 q w 1");
    let failed = r#"ql:log {"message":"Job exhausted retries in queue \"q\"","jid":"j","group":"failed-retries-q","event":"failed","worker":"w"}"#;
    qless.say("config.set 2 grace-period 0");
    assert_eq!(
        qless.call_and_messages("pop 62 q w 1").1,
        [
            "ql:stalled j".to_owned(),
            format!("ql:w:w {lost}"),
            format!("ql:log {lost}"),
            "ql:failed j".into(),
            failed.into()
        ]
    );
    qless.say("put 63 w q j k {} 0 retries 0");
    qless.say("pop 63 q w 1");
    assert_eq!(
        qless.call_and_messages("timeout 64 j").1,
        [format!("ql:w:w {lost}"), format!("ql:log {lost}")]
    );
    qless.say("pop 64 q w 1");
    assert_eq!(qless.call_and_messages("retry 65 j q w").1, ["ql:failed j"]);
    qless.say("put 66 w q j k {} 0");
    qless.say("pop 66 q w 1");
    assert_eq!(
        qless.call_and_messages("fail 67 j w g a\"b/c").1,
        [
            r#"ql:log {"message":"a\"b\/c","jid":"j","group":"g","event":"failed","worker":"w"}"#,
            "ql:failed j"
        ]
    );
    qless.say("put 68 w q j k {} 0");
    qless.say("pop 68 q w 1");
    assert_eq!(
        qless.call_and_messages("complete 69 j w q {}").1,
        ["ql:completed j", r#"ql:log {"jid":"j","event":"completed","queue":"q"}"#]
    );
    qless.say("put 70 w q j k {} 0");
    qless.say("pop 70 q w 1");
    let canceled = r#"{"jid":"j","queue":"q","event":"canceled","worker":"w"}"#;
    assert_eq!(
        qless.call_and_messages("cancel 71 j").1,
        [format!("ql:log {canceled}"), format!("ql:w:w {canceled}"), "ql:canceled j".into()]
    );
    assert_eq!(
        qless.call_and_messages("cancel 71 j").1,
        [r#"ql:log {"jid":"j","queue":false,"event":"canceled","worker":false}"#, "ql:canceled j"]
    );
    assert_eq!(qless.json("track 72")["expired"], json!(["j"]));
}

#[test]
fn equal_jobs_go_in_the_order_in_which_they_came() {
    let mut qless = Qless::start();
    for jid in ["b", "a", "c"] {
        qless.say(&format!("put 0 w q {jid} k {{}} 0"));
    }
    let jids: Vec<String> = qless
        .json("pop 0 q w 9")
        .as_array()
        .unwrap()
        .iter()
        .map(|job| job["jid"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(jids, ["b", "a", "c"]);
}

#[test]
fn a_history_of_older_scripts_becomes_a_list() {
    let mut qless = Qless::start();
    qless.say("put 5 w q j k {} 0");
    let connection = &mut qless.connection;
    redis::cmd("DEL").arg("ql:j:j-history").exec(connection).unwrap();
    let old = r#"[{"q":"q","put":1.5,"popped":2.5,"worker":"w","done":3.5},{"q":"r","put":4.5}]"#;
    redis::cmd("HSET").arg("ql:j:j").arg("history").arg(old).exec(connection).unwrap();
    qless.say("pop 9 q v 1");
    assert_eq!(
        qless.dump("ql:j:j-history"),
        [
            r#"ql:j:j-history: [1,"put",{"q":"q"}] | [2,"popped",{"worker":"w"}] | [3,"done"] | [4,"put",{"q":"r"}] | [9,"popped",{"worker":"v"}]"#
        ]
    );
}
