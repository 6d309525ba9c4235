//! The JSON library on a bare Redis: the documents of a server, waits with BLPOP, versions that coexist.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;

use geartrain_testkit::peers::{RedisServer, until};
use serde_json::{Value, json};

use crate::sandbox::Sandbox;
use crate::server_process::ServerProcess;

/// A connection that sends commands and reads their replies.
struct Redis(BufReader<TcpStream>);

impl Redis {
    fn connect(address: &str) -> Redis {
        Redis(BufReader::new(TcpStream::connect(address).unwrap()))
    }

    fn send(&mut self, words: &[&str]) {
        let mut request = format!("*{}\r\n", words.len());
        words.iter().for_each(|word| request.push_str(&format!("${}\r\n{word}\r\n", word.len())));
        self.0.get_mut().write_all(request.as_bytes()).unwrap();
    }

    /// A reply as JSON; errors panic.
    fn receive(&mut self) -> Value {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        let (kind, rest) = line.trim_end().split_at(1);
        match kind {
            "$" | "*" if rest == "-1" => Value::Null,
            "$" => {
                let mut text = vec![0; rest.parse::<usize>().unwrap() + 2];
                self.0.read_exact(&mut text).unwrap();
                Value::from(std::str::from_utf8(&text[..text.len() - 2]).unwrap())
            }
            "*" => (0..rest.parse::<usize>().unwrap()).map(|_| self.receive()).collect(),
            ":" => rest.parse::<i64>().unwrap().into(),
            "+" => rest.into(),
            _ => panic!("{line}"),
        }
    }

    fn call(&mut self, words: &[&str]) -> Value {
        self.send(words);
        self.receive()
    }

    /// The text of the reply to a document.
    fn text(&mut self, request: &str) -> String {
        self.call(&["FCALL", "geartrain_json", "1", "", request]).as_str().unwrap().to_owned()
    }

    fn ask(&mut self, request: &Value) -> Value {
        serde_json::from_str(&self.text(&request.to_string())).unwrap()
    }
}

fn library(arguments: &[&str]) -> String {
    Sandbox::new().run(&[&["lua", "--json"], arguments].concat())
}

/// A Redis with the library.
fn redis() -> (RedisServer, Redis) {
    let server = RedisServer::start(&[]);
    let mut connection = Redis::connect(&format!("127.0.0.1:{}", server.port()));
    assert_eq!(connection.call(&["FUNCTION", "LOAD", "REPLACE", &library(&[])]), "geartrain_json");
    (server, connection)
}

/// What differs between two runs of the same requests.
#[derive(Default)]
struct Names {
    tokens: HashMap<String, String>,
    jids: Vec<String>,
}

impl Names {
    /// Puts tokens in the place of TOKEN(jid).
    fn request(&self, line: &str) -> String {
        let mut request = line.to_owned();
        for (jid, token) in &self.tokens {
            request = request.replace(&format!("TOKEN({jid})"), token);
        }
        request
    }

    /// Leaves out times and tokens, and numbers new jids.
    fn normalise(&mut self, document: &mut Value) {
        match document {
            Value::Object(fields) => {
                if let (Some(Value::String(jid)), Some(Value::String(token))) =
                    (fields.get("jid"), fields.get("token"))
                {
                    self.tokens.insert(jid.clone(), token.clone());
                } else if let (Some(Value::String(jid)), Some(token)) =
                    (fields.get("jid"), fields.get("lock").and_then(|lock| lock["token"].as_str()))
                {
                    self.tokens.insert(jid.clone(), token.to_owned());
                }
                for (key, value) in fields {
                    let is_time = matches!(
                        key.as_str(),
                        "token"
                            | "expires"
                            | "when"
                            | "oldest"
                            | "ended"
                            | "until"
                            | "at"
                            | "due"
                            | "seen"
                            | "deadline"
                            | "asked"
                            | "next_due"
                            | "completed"
                            | "since"
                            | "per_minute"
                            | "next"
                            | "next_runs"
                    );
                    // A server records the address of the caller, which a script does not know.
                    if is_time && !value.is_null() || key == "by" {
                        *value = json!("…");
                    } else if key == "wait" || key == "run" {
                        value["mean"] = json!("…");
                        value["std"] = json!("…");
                        value["histogram"] = json!("…");
                    } else {
                        self.normalise(value);
                    }
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.normalise(item)),
            Value::String(text) if text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
                let known = self.jids.iter().position(|jid| jid == text);
                let number = known.unwrap_or_else(|| {
                    self.jids.push(text.clone());
                    self.jids.len() - 1
                });
                *text = format!("jid {number}");
            }
            _ => {}
        }
    }
}

#[test]
fn a_server_and_a_redis_with_the_library_give_the_same_documents() {
    let server = ServerProcess::start(&[]);
    let mut on_server = (Redis::connect(&server.address()), Names::default());
    let (_redis, connection) = redis();
    let mut on_redis = (connection, Names::default());
    let mut different = Vec::new();
    for line in include_str!("json_library/operations.jsonl").lines() {
        let (only_code, line) = line.strip_prefix('~').map_or((false, line), |line| (true, line));
        if line.starts_with('#') || line.is_empty() && !only_code {
            continue;
        }
        let mut replies = [&mut on_server, &mut on_redis].map(|(connection, names)| {
            let text = connection.text(&names.request(line));
            let mut reply: Value =
                serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
            names.normalise(&mut reply);
            reply
        });
        if only_code {
            replies.iter_mut().for_each(|reply| *reply = reply["error"]["code"].take());
        }
        let [of_server, of_redis] = replies;
        if of_server != of_redis {
            different.push(format!("{line}\n  server: {of_server}\n  redis:  {of_redis}"));
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
}

#[test]
fn payloads_and_results_keep_their_digits() {
    let (_server, mut redis) = redis();
    let digits = "123456789012345678901234567890.10";
    redis.text(&format!(
        r#"{{"put":{{"queue":"q","klass":"k","jid":"j1","keep_result":true,"payload":[{digits}, 1E2]}}}}"#
    ));
    assert!(redis.text(r#"{"get":{"jid":"j1"}}"#).contains(&format!("\"payload\":[{digits}, 1E2]")));
    let popped = redis.text(r#"{"pop":{"queue":"q","worker":"w"}}"#);
    assert!(popped.contains(&format!("\"payload\":[{digits}, 1E2]")), "{popped}");
    redis.text(&format!(r#"{{"complete":{{"jid":"j1","worker":"w","result":{{"sum":{digits}}}}}}}"#));
    let result = redis.text(r#"{"result":{"jid":"j1"}}"#);
    assert!(result.contains(&format!("\"result\":{{\"sum\":{digits}}}")), "{result}");
}

/// The list that a reply says to wait on, and for how long.
fn wait_of(reply: &Value) -> (String, f64) {
    let wait = &reply["wait"];
    (
        wait["blpop"].as_str().unwrap_or_else(|| panic!("{reply}")).to_owned(),
        wait["seconds"].as_f64().unwrap(),
    )
}

#[test]
fn an_empty_pop_waits_on_a_list_that_a_put_of_any_client_wakes() {
    let (server, mut redis) = redis();
    let pop = json!({ "pop": { "queue": "mail", "worker": "w1", "wait": "30s" } });
    let (list, seconds) = wait_of(&redis.ask(&pop));
    assert!(seconds > 1.0 && seconds <= 5.0, "{seconds}");
    // A put of the driver of the Redis layout.
    redis.send(&["BLPOP", &list, "30"]);
    let sandbox = Sandbox::new();
    let jid = sandbox.run(&["--url", &server.url(), "put", "mail", "welcome", "{}"]);
    assert_eq!(redis.receive(), json!([list, "mail"]));
    let popped = redis.ask(&pop);
    assert_eq!(popped[0]["jid"], jid.trim());
    // A put in JSON, into another queue: only the pop that waits for that queue is woken.
    let mut other = Redis::connect(&format!("127.0.0.1:{}", server.port()));
    let both = json!({ "pop": { "queues": ["mail", "news"], "worker": "w2", "wait": 30 } });
    let (list, _) = wait_of(&redis.ask(&both));
    let (mail_only, _) = wait_of(&redis.ask(&pop));
    other.ask(&json!({ "put": { "queue": "news", "klass": "k", "jid": "n1" } }));
    assert_eq!(redis.call(&["BLPOP", &list, "30"]), json!([list, "news"]));
    assert_eq!(redis.call(&["LLEN", &mail_only]), 0);
    assert_eq!(redis.ask(&both)[0]["jid"], "n1");
    // A job that falls due soon makes the wait short.
    other.ask(&json!({ "put": { "queue": "news", "klass": "k", "jid": "n2", "in": 1 } }));
    let (_, seconds) = wait_of(&redis.ask(&both));
    assert!(seconds <= 1.0, "{seconds}");
    until("the job is due", || redis.ask(&both)[0]["jid"] == "n2");
}

/// A script that handles every expired lock, or looks for one again and again, would block the Redis meanwhile.
#[test]
fn a_pop_that_waits_handles_a_bounded_number_of_expired_locks() {
    let (server, mut redis) = redis();
    Sandbox::new().run(&["--url", &server.url(), "config", "set", "heartbeat", "0.001"]);
    let puts: Vec<Value> = (0..150).map(|_| json!({ "put": { "queue": "q", "klass": "k" } })).collect();
    redis.ask(&Value::from(puts));
    let popped = redis.ask(&json!({ "pop": { "queue": "q", "worker": "dead", "count": 150 } }));
    assert_eq!(popped.as_array().unwrap().len(), 150);
    until("the locks have expired", || {
        redis.ask(&json!({ "queues": { "queue": "q" } }))[0]["stalled"] == 150
    });
    assert_eq!(
        redis.ask(&json!({ "pop": { "queue": "q", "worker": "w", "count": 0, "wait": 5 } })),
        json!([])
    );
    let pop = json!({ "pop": { "queue": "q", "worker": "w", "wait": 5 } });
    // Most holders are warned by the first pop, and the others by the next.
    let (_, seconds) = wait_of(&redis.ask(&pop));
    assert!(seconds < 0.1, "{seconds}");
    let stalled = redis.ask(&json!({ "queues": { "queue": "q" } }))[0]["stalled"].as_u64().unwrap();
    assert!((1..=50).contains(&stalled), "{stalled}");
    let (_, seconds) = wait_of(&redis.ask(&pop));
    assert!(seconds > 1.0, "{seconds}");
}

#[test]
fn clients_that_wait_for_a_result_are_woken_at_the_end_of_the_job() {
    let (server, mut redis) = redis();
    for (jid, keep) in [("kept", json!(true)), ("not-kept", json!(false))] {
        redis.ask(&json!({ "put": { "queue": "q", "klass": "k", "jid": jid, "keep_result": keep } }));
        let wait = json!({ "result": { "jid": jid, "wait": 30 } });
        let lists: Vec<String> = (0..2).map(|_| wait_of(&redis.ask(&wait)).0).collect();
        assert_eq!(lists[0], lists[1]);
        assert_eq!(redis.ask(&json!({ "status": { "jid": jid } }))["attached"], 1);
        let mut waiting: Vec<Redis> =
            (0..2).map(|_| Redis::connect(&format!("127.0.0.1:{}", server.port()))).collect();
        waiting.iter_mut().for_each(|client| client.send(&["BLPOP", &lists[0], "30"]));
        // Completed by the driver.
        let sandbox = Sandbox::new();
        let popped = sandbox.json(&["--url", &server.url(), "pop", "q", "--worker", "w"]);
        let token = popped[0]["token"].as_str().unwrap().to_owned();
        sandbox.run(&["--url", &server.url(), "complete", jid, "--token", &token, "--result", "[1]"]);
        for _ in 0..2 {
            // The first one that asks wakes the next.
            let ready = until_one(&mut waiting);
            let mut client = waiting.remove(ready);
            assert_eq!(client.receive(), json!([lists[0], "1"]));
            let result = client.ask(&wait);
            assert_eq!((&result["how"], &result["result"]), (&json!("completed"), &json!([1])), "{result}");
            assert_eq!(result["until"].is_null(), jid == "not-kept");
        }
    }
}

/// Waits until one of the clients has a reply, and returns which.
fn until_one(clients: &mut [Redis]) -> usize {
    let mut ready = None;
    until("a client is woken", || {
        ready = clients.iter_mut().position(|client| {
            let stream = client.0.get_mut();
            stream.set_nonblocking(true).unwrap();
            let has_reply = stream.peek(&mut [0]).is_ok();
            stream.set_nonblocking(false).unwrap();
            has_reply
        });
        ready.is_some()
    });
    ready.unwrap()
}

#[test]
fn what_only_a_server_can_do_is_refused_by_name() {
    let (_server, mut redis) = redis();
    for request in [
        json!({ "put": { "queue": "q", "klass": "k", "at": "7pm tomorrow" } }),
        json!({ "put": { "queue": "q", "klass": "k", "in": "a fortnight" } }),
        json!({ "recur": { "queue": "q", "klass": "k", "cron": "0 9 * * 1" } }),
        json!({ "recur": { "queue": "q", "klass": "k", "every": 60, "overlap": "skip" } }),
        json!({ "cancel": { "where": "queue=q" } }),
        json!({ "unfail": { "all": true } }),
        json!({ "jobs": { "where": "queue=q" } }),
        json!({ "events": { "after": "0" } }),
        json!({ "recur-run": { "jid": "r" } }),
        json!({ "config": {} }),
    ] {
        let reply = redis.ask(&request);
        assert_eq!(reply["error"]["code"], "unsupported", "{request}: {reply}");
    }
    assert_eq!(redis.ask(&json!({ "queues": {} })), json!([]));
}

#[test]
fn a_namespace_is_a_queue_of_its_own() {
    let (_server, mut redis) = redis();
    redis.ask(&json!({ "put": { "queue": "q", "klass": "k", "jid": "j1" } }));
    let other = redis.call(&["FCALL", "geartrain_json", "1", "{shop}", r#"{"get":{"jid":"j1"}}"#]);
    assert!(other.as_str().unwrap().contains("no-such-job"), "{other}");
}

#[test]
fn versions_coexist_under_pinned_names() {
    let (_server, mut redis) = redis();
    let pinned = library(&["--pinned"]);
    let name = redis.call(&["FUNCTION", "LOAD", &pinned]).as_str().unwrap().to_owned();
    let hash = name.strip_prefix("geartrain_json_").unwrap();
    assert!(hash.len() == 16 && hash.bytes().all(|digit| digit.is_ascii_hexdigit()), "{name}");
    let other_name = "geartrain_json_0123456789abcdef";
    redis.call(&["FUNCTION", "LOAD", &pinned.replace(&name, other_name)]);
    redis.call(&["FCALL", &name, "1", "", r#"{"put":{"queue":"q","klass":"k","jid":"j1"}}"#]);
    for name in ["geartrain_json", &name, other_name] {
        let job = redis.call(&["FCALL", name, "1", "", r#"{"get":{"jid":"j1"}}"#]);
        assert!(job.as_str().unwrap().contains(r#""state":"waiting""#), "{name}: {job}");
    }
}
