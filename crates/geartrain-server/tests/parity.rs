//! Parity: a geartrain server and a Redis with our script give the same replies, errors and messages for
//! random Qless calls.
//!
//! They differ where Redis orders equal scores by jid (docs/formats/redis.md). So no two calls of a trace
//! have the same time, and jobs are popped one at a time. `GEARTRAIN_SEED=7041` replays one trace,
//! `GEARTRAIN_TRACES=100` runs that many.

pub(crate) mod connection;
pub(crate) mod generator;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::parity::connection::{CallResult, Connection, MemoryServer, Reply};
use crate::parity::generator::{Call, Generator};
use geartrain_redis::script;
use geartrain_testkit::peers::RedisServer;
use geartrain_testkit::trace::shrink;
use serde_json::Value as Json;

const TRACES: u64 = 104;
const TRACE_CALLS: usize = 220;

/// The prefix of every error message.
const PREFIX: &str = "ERR user_script:1: ";

/// All commands of Qless.
const COMMANDS: &str = "cancel complete config.get config.set config.unset depends fail failed get heartbeat jobs \
    length log multiget pause peek pop priority put queue.forget queues recur recur.get recur.tag \
    recur.untag recur.update requeue retry stats tag timeout track unfail unpause unrecur \
    worker.deregister workers";

#[test]
fn server_and_redis_give_the_same_replies_to_random_calls() {
    let redis = RedisServer::start(&[]);
    let seeds = geartrain_testkit::seeds(TRACES);
    // How often each command succeeded.
    let mut done: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
    let traces = seeds.end - seeds.start;
    let mut calls = 0;
    for seed in seeds {
        let (trace, outcome) = run_random(&redis, seed, |call, reply| {
            if let (Some(command), false) = (call.words.first(), matches!(reply, Reply::Error(_))) {
                *done.entry(command.clone()).or_default() += 1;
            }
        });
        calls += trace.len();
        if let Err(why) = outcome {
            report(&redis, seed, trace, &why);
        }
    }
    println!("{traces} traces, {calls} calls");
    if traces == TRACES {
        assert!(calls >= 30_000, "{calls} calls are too few");
        for command in COMMANDS.split(' ') {
            let times = done.get(command.as_bytes()).copied().unwrap_or_default();
            assert!(times > 20, "{command} succeeded only {times} times");
        }
    }
}

fn report(redis: &RedisServer, seed: u64, trace: Vec<Call>, why: &str) -> ! {
    let short = shrink(trace, |calls| run_trace(redis, calls).is_err());
    let calls: Vec<String> = short.iter().map(Call::to_string).collect();
    let short_why = run_trace(redis, &short).err().unwrap_or_default();
    panic!("GEARTRAIN_SEED={seed} goes wrong: {why}\n\nCut short:\n\n{}\n\n{short_why}\n", calls.join("\n"));
}

/// An empty server and an empty Redis.
struct Pair {
    server: Connection,
    redis: Connection,
    _served: MemoryServer,
}

impl Pair {
    fn new(redis: &RedisServer) -> Pair {
        let served = MemoryServer::start();
        let server = Connection::open(served.address);
        let mut redis = Connection::open(SocketAddr::from(([127, 0, 0, 1], redis.port())));
        redis.call(&[b"FLUSHALL"]);
        Pair { server, redis, _served: served }
    }

    /// Sends a call to both and returns the result, unless they differ.
    fn call(&mut self, call: &Call) -> Result<CallResult, String> {
        let mut request: Vec<&[u8]> = vec![b"EVALSHA", script::script().sha.as_bytes(), b"0"];
        request.extend(call.words.iter().map(Vec::as_slice));
        self.server.begin(&request);
        self.redis.begin(&request);
        let (server, redis) = (self.server.end(), self.redis.end());
        if is_same(&server.reply, &redis.reply) && server.messages == redis.messages {
            return Ok(redis);
        }
        Err(format!("{call}\n--- server\n{}\n--- redis\n{}", show(&server), show(&redis)))
    }
}

/// Generates and runs a trace. Returns the calls, and the first difference.
fn run_random(
    redis: &RedisServer,
    seed: u64,
    mut observe: impl FnMut(&Call, &Reply),
) -> (Vec<Call>, Result<(), String>) {
    let (mut pair, mut generator, mut trace) = (Pair::new(redis), Generator::new(seed), Vec::new());
    for _ in 0..TRACE_CALLS {
        let call = generator.call();
        trace.push(call.clone());
        match pair.call(&call) {
            Ok(result) => {
                if let Reply::Bulk(reply) = &result.reply {
                    generator.learn(reply);
                }
                observe(&call, &result.reply);
            }
            Err(why) => return (trace, Err(why)),
        }
    }
    for call in generator.readings() {
        trace.push(call.clone());
        match pair.call(&call) {
            Ok(result) => observe(&call, &result.reply),
            Err(why) => return (trace, Err(why)),
        }
    }
    (trace, Ok(()))
}

/// Runs a given trace.
fn run_trace(redis: &RedisServer, trace: &[Call]) -> Result<(), String> {
    let mut pair = Pair::new(redis);
    trace.iter().try_for_each(|call| pair.call(call).map(drop))
}

fn show(result: &CallResult) -> String {
    let messages = result.messages.iter().map(|(channel, text)| {
        format!("\n  {} {}", String::from_utf8_lossy(channel), String::from_utf8_lossy(text))
    });
    format!("{}{}", result.reply, messages.collect::<String>())
}

/// Whether two replies are equal, up to the order of keys in JSON.
fn is_same(server: &Reply, redis: &Reply) -> bool {
    match (server, redis) {
        (Reply::Error(server), Reply::Error(redis)) => {
            match (server.strip_prefix(PREFIX), redis.strip_prefix(PREFIX)) {
                // The texts for malformed JSON may differ.
                (Some(server), Some(redis)) => {
                    server == redis || is_about_json(server) && is_about_json(redis)
                }
                _ => false,
            }
        }
        (Reply::Bulk(server), Reply::Bulk(redis)) => {
            match (serde_json::from_slice(server), serde_json::from_slice(redis)) {
                (Ok(server), Ok(redis)) => comparable(server) == comparable(redis),
                // Not JSON, or nested too deeply to parse. With another order of keys the sorted bytes are
                // still equal.
                _ => sorted(server) == sorted(redis),
            }
        }
        _ => server == redis,
    }
}

fn sorted(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes.sort_unstable();
    bytes
}

fn is_about_json(message: &str) -> bool {
    let begins = [
        "Expected ",
        "Found too many nested data structures",
        "The number at",
        "Cannot serialise",
        "JSON parser",
    ];
    begins.iter().any(|beginning| message.starts_with(beginning))
}

/// Normalises JSON. `data` is JSON in a string and may have been re-encoded, so its keys are normalised too.
fn comparable(json: Json) -> Json {
    match json {
        Json::Array(list) => Json::Array(list.into_iter().map(comparable).collect()),
        Json::Object(fields) => Json::Object(
            fields
                .into_iter()
                .map(|(key, value)| match &value {
                    Json::String(text) if key == "data" => {
                        let data = serde_json::from_str(text).map(comparable);
                        (key, data.unwrap_or(value))
                    }
                    _ => (key, comparable(value)),
                })
                .collect(),
        ),
        other => other,
    }
}

/// A call from words separated by blanks.
fn call_of(words: &str) -> Call {
    Call { words: words.split(' ').map(|word| word.as_bytes().to_vec()).collect() }
}

/// A call from raw words.
fn raw_call(words: &[&[u8]]) -> Call {
    Call { words: words.iter().map(|word| word.to_vec()).collect() }
}

impl Pair {
    /// Sends a call to both, which must agree, and returns the result.
    #[track_caller]
    fn both(&mut self, call: &Call) -> CallResult {
        self.call(call).unwrap_or_else(|why| panic!("{why}"))
    }

    /// Like `both`, from words separated by blanks.
    #[track_caller]
    fn say(&mut self, words: &str) -> CallResult {
        self.both(&call_of(words))
    }
}

fn bulk(text: &str) -> Reply {
    Reply::Bulk(text.into())
}

#[test]
fn the_example_trace_of_the_specification_is_the_same_on_both() {
    let redis = RedisServer::start(&[]);
    let mut pair = Pair::new(&redis);
    let lost = r#"{"jid":"a","event":"lock_lost","worker":"w1"}"#;
    let held = Reply::Error(format!("{PREFIX}Heartbeat(): Job a given out to another worker: w2"));
    let messages = |messages: &[(&str, &str)]| -> Vec<(Vec<u8>, Vec<u8>)> {
        messages.iter().map(|(channel, text)| ((*channel).into(), (*text).into())).collect()
    };
    // Where no reply is given it is a JSON document, and both must agree.
    for (words, reply, messages) in [
        (
            r#"put 0 w1 q a k {"x":[]} 0 priority 5 tags ["t"]"#,
            Some(bulk("a")),
            messages(&[("ql:log", r#"{"jid":"a","event":"put","queue":"q"}"#)]),
        ),
        ("pop 10 q w1 1", None, messages(&[])),
        ("pop 70 q w2 1", Some(bulk("{}")), messages(&[("ql:w:w1", lost), ("ql:log", lost)])),
        ("heartbeat 75 a w1", Some(Reply::Number(135)), messages(&[])),
        ("pop 135 q w2 1", None, messages(&[])),
        ("heartbeat 136 a w1", Some(held), messages(&[])),
        (
            "complete 140 a w2 q [] next r delay 5",
            Some(bulk("scheduled")),
            messages(&[("ql:log", r#"{"jid":"a","to":"r","event":"advanced","queue":"q"}"#)]),
        ),
        ("get 140 a", None, messages(&[])),
        ("pop 146 r w3 1", None, messages(&[])),
        (
            "fail 147.8 a w3 g oops",
            Some(bulk("a")),
            messages(&[(
                "ql:log",
                r#"{"message":"oops","jid":"a","group":"g","event":"failed","worker":"w3"}"#,
            )]),
        ),
        ("get 148 a", None, messages(&[])),
        ("failed 150", Some(bulk(r#"{"g":1}"#)), messages(&[])),
        (
            "cancel 151 a",
            Some(Reply::List(vec![bulk("a")])),
            messages(&[("ql:log", r#"{"jid":"a","queue":"r","event":"canceled","worker":""}"#)]),
        ),
        ("get 152 a", Some(Reply::Nil), messages(&[])),
        ("stats 152 q 0", None, messages(&[])),
        ("stats 152 r 0", None, messages(&[])),
        ("queues 152", None, messages(&[])),
        ("workers 152", None, messages(&[])),
        ("tag 152 top", Some(bulk("{}")), messages(&[])),
    ] {
        let result = pair.say(words);
        if let Some(reply) = reply {
            assert_eq!(result.reply, reply, "{words}");
        }
        assert_eq!(result.messages, messages, "{words}");
    }
}

#[test]
fn malformed_calls_are_refused_by_both() {
    let redis = RedisServer::start(&[]);
    let mut pair = Pair::new(&redis);
    let sha = script::script().sha.as_bytes();
    let unknown = [b'0'; 40];
    // None where the text is Redis's own, or our driver's, and only the refusal counts.
    for (request, message) in [
        (vec![&b"EVALSHA"[..], sha, b"0"], Some("ERR user_script:1: Must provide a command")),
        (
            vec![b"EVALSHA", sha, b"0", b"put"],
            Some("ERR user_script:1: Arg \"now\" missing or not a number: nil"),
        ),
        (
            vec![b"EVALSHA", sha, b"2", b"a", b"b", b"get", b"0", b"a"],
            Some("ERR user_script:1: No Keys should be provided"),
        ),
        (vec![b"EVALSHA", sha, b"1", b"a", b"get", b"0", b"a"], None),
        (vec![b"EVALSHA", sha, b"1", b"", b"get", b"0", b"a"], None),
        (vec![b"EVALSHA", sha, b"-1", b"get", b"0", b"a"], None),
        (vec![b"EVALSHA", sha, b"9", b"get", b"0", b"a"], None),
        (vec![b"EVALSHA", sha, b"some", b"get", b"0", b"a"], None),
        (vec![b"EVALSHA", sha], None),
        (
            vec![b"EVALSHA", &unknown, b"0", b"get", b"0", b"a"],
            Some("NOSCRIPT No matching script. Please use EVAL."),
        ),
        (
            vec![b"EVALSHA", b"short", b"0", b"get", b"0", b"a"],
            Some("NOSCRIPT No matching script. Please use EVAL."),
        ),
    ] {
        let replies = [pair.server.call(&request).reply, pair.redis.call(&request).reply];
        let shown: Vec<_> = request.iter().map(|word| String::from_utf8_lossy(word)).collect();
        for reply in replies {
            let Reply::Error(text) = reply else { panic!("{shown:?} is answered {reply}") };
            assert!(message.is_none_or(|message| text == message), "{shown:?}: {text}");
        }
    }
}

#[test]
fn both_accept_the_same_json() {
    let redis = RedisServer::start(&[]);
    let mut pair = Pair::new(&redis);
    let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    let mut texts: Vec<String> = [
        "",
        " ",
        "{",
        "}",
        "[1,]",
        "{\"a\"}",
        "{\"a\":}",
        "{a:1}",
        "[1 2]",
        "01",
        "-01",
        "1.",
        "1.e5",
        "[-.5]",
        ".5",
        "+1",
        "-",
        "1e",
        "1e+",
        "0x10",
        "nan",
        "NaN",
        "-nan",
        "inf",
        "Infinity",
        "-Infinity",
        "tru",
        "nullx",
        "\"a",
        "\"\\x\"",
        "\"\\u12\"",
        "\"\\ud800\"",
        "\"\\ud800\\u0041\"",
        "\"\\udc00\"",
        "[] []",
        "'a'",
        "[}",
        "{]",
        ",",
        "/**/1",
        "\u{b}1",
        "\u{feff}1",
        "\0",
        "1\0",
        "\"a\0b\"",
        "null",
        "true",
        "\"\"",
        "\"\n\t\u{7f}\"",
        "\"\\u0000\\u001f\\u007f\\/\\b\"",
        "\"\\ud83d\\ude00\"",
        " { \"a\" : [ ] , \"b\":[1, 2.50] } ",
        "-0",
        "[-0.0]",
        "1E5",
        "1e-7",
        "12345678901234567890",
        "0.1",
        "123456.789012345678",
        "1e300",
        "1e999",
        "-1e999",
        "\"1. -.5 nan\"",
        "{\"1. \":\"\\\"-.5\"}",
        "[1.5,-0.5]",
        "{\"\":{}}",
        "[[],{},[[]]]",
        "{\"1\":2,\"3\":[null,false]}",
    ]
    .map(str::to_owned)
    .into();
    texts.extend([899, 900, 901, 999, 1000, 1001, 5000].map(nested));
    let mut now = 0;
    for text in &texts {
        let mut call = |words: &[&str]| {
            now += 1;
            let mut all: Vec<Vec<u8>> = words.iter().map(|word| word.as_bytes().to_vec()).collect();
            all.insert(1, now.to_string().into_bytes());
            pair.both(&Call { words: all })
        };
        call(&["put", "w", "q", "j", "k", text, "0"]);
        call(&["put", "w", "q", "j", "k", "{}", "0", "tags", text]);
        call(&["put", "w", "q", "j", "k", "{}", "0", "depends", text]);
        call(&["get", "j"]);
        call(&["put", "w", "q", "j", "k", "{}", "0"]);
        call(&["depends", "j", "off", "all"]);
        call(&["pop", "q", "w", "1"]);
        call(&["heartbeat", "j", "w", text]);
        call(&["log", "j", "said", text]);
        call(&["multiget", "j"]);
        call(&["fail", "j", "w", "g", "m", text]);
        call(&["get", "j"]);
        call(&["recur", "q", "n", "k", text, "interval", "60", "1000000", "tags", text]);
        call(&["recur.update", "n", "data", text]);
        call(&["recur.get", "n"]);
        call(&["cancel", "j"]);
    }
}

#[test]
fn both_accept_the_same_numbers_and_names() {
    let redis = RedisServer::start(&[]);
    let mut pair = Pair::new(&redis);
    let long = "x".repeat(513);
    let mut now = 0;
    for text in [
        "",
        " ",
        "0",
        " 12.5 ",
        "\t-7\n",
        "\u{b}3\u{c}",
        "+3",
        ".5",
        "5.",
        "1e2",
        "1E-2",
        "0x10",
        "-0XfF",
        "0x",
        "0xg",
        "0x1.8",
        "0x1p4",
        "0x-1",
        "nan",
        "inf",
        "-inf",
        "infinity",
        "1e999",
        "-0",
        ".",
        "1 2",
        "1a",
        "--1",
        "+-1",
        "1\0",
        "\0",
        "１",
        "\u{a0}1",
        "1e",
        "1_0",
        "2147483647",
        "2147483648",
        "4294967295",
        "4294967296",
        "100000",
        "100001",
        "1e15",
        "-1",
        "0.5",
        "0.001",
        "0.0009",
        "all",
        "é",
        "a b",
        "a\nb",
        "\u{7f}",
        "a/b",
        "\"",
        &long[..512],
        &long[..490],
        &long[..491],
        &long,
        "\u{1f600}",
    ] {
        let mut call = |words: &[&[u8]]| {
            now += 1;
            let mut all = words.to_vec();
            let moment = now.to_string();
            all.insert(1, moment.as_bytes());
            pair.both(&raw_call(&all))
        };
        for bytes in [text.as_bytes(), &[text.as_bytes(), b"\xff"].concat()] {
            call(&[b"put", b"w", b"q", b"j", b"k", b"{}", bytes]);
            for option in [&b"priority"[..], b"retries"] {
                call(&[b"put", b"w", b"q", b"j", b"k", b"{}", b"0", option, bytes]);
                call(&[b"recur", b"q", b"n", b"k", b"{}", b"interval", b"60", b"1e6", option, bytes]);
                call(&[b"recur.update", b"n", option, bytes]);
            }
            call(&[b"recur", b"q", b"n", b"k", b"{}", b"interval", b"60", b"1e6", b"backlog", bytes]);
            call(&[b"recur", b"q", b"n", b"k", b"{}", b"interval", bytes, b"1e6"]);
            call(&[b"recur", b"q", b"n", b"k", b"{}", b"interval", b"60", bytes]);
            call(&[b"recur.update", b"n", b"interval", bytes]);
            call(&[b"recur.get", b"n"]);
            call(&[b"unrecur", b"n"]);
            call(&[b"priority", b"j", bytes]);
            call(&[b"get", b"j"]);
            call(&[b"peek", b"q", bytes]);
            call(&[b"unfail", b"q", b"g", bytes]);
            call(&[b"jobs", b"complete", bytes, bytes]);
            call(&[b"failed", b"g", b"0", bytes]);
            call(&[b"tag", b"top", bytes]);
            call(&[b"stats", b"q", bytes]);
            for option in [&b"heartbeat"[..], b"max-job-hitrace", b"q-max-concurrency", b"colour"] {
                call(&[b"config.set", option, bytes]);
                call(&[b"config.get", option]);
            }
            call(&[b"pop", b"q", b"w", b"1"]);
            call(&[b"heartbeat", b"j", b"w"]);
            call(&[b"retry", b"j", b"q", b"w", bytes]);
            for option in [&b"heartbeat"[..], b"max-job-hitrace", b"q-max-concurrency"] {
                call(&[b"config.unset", option]);
            }
            call(&[b"get", b"j"]);
            call(&[b"cancel", b"j"]);
            // The same texts as names.
            call(&[b"put", bytes, b"q", b"j", b"k", b"{}", b"0"]);
            call(&[b"put", b"w", bytes, b"j", b"k", b"{}", b"0"]);
            call(&[b"put", b"w", b"q", bytes, b"k", b"{}", b"0"]);
            call(&[b"put", b"w", b"q", b"j", bytes, b"{}", b"0"]);
            call(&[b"tag", b"add", b"j", bytes]);
            call(&[b"tag", b"get", bytes]);
            call(&[b"track", b"track", bytes]);
            call(&[b"recur", b"q", bytes, b"k", b"{}", b"interval", b"60", b"1e6"]);
            call(&[b"unrecur", bytes]);
            for words in [
                &[&b"get"[..], bytes][..],
                &[b"multiget", bytes],
                &[b"length", bytes],
                &[b"queues", bytes],
                &[b"workers", bytes],
                &[b"failed", bytes],
                &[b"config.get", bytes],
                &[b"config.set", bytes, b"1"],
                &[b"config.unset", bytes],
                &[b"jobs", bytes, b"q"],
                &[b"jobs", b"running", bytes],
                &[b"timeout", bytes],
                &[b"pop", bytes, b"w", b"1"],
                &[b"pop", b"q", bytes, b"1"],
                &[b"heartbeat", bytes, b"w"],
                &[b"heartbeat", b"j", bytes],
                &[b"complete", bytes, b"w", b"q", b"{}"],
                &[b"complete", b"j", bytes, b"q", b"{}"],
                &[b"complete", b"j", b"w", bytes, b"{}"],
                &[b"complete", b"j", b"w", b"q", b"{}", b"next", bytes],
                &[b"fail", b"j", b"w", bytes, b"m"],
                &[b"fail", b"j", b"w", b"g", bytes],
                &[b"log", b"j", bytes],
                &[b"depends", b"j", b"on", bytes],
                &[b"depends", b"j", bytes],
                &[b"pause", bytes],
                &[b"unpause", bytes],
                &[b"queue.forget", bytes],
                &[b"worker.deregister", bytes],
                &[b"cancel", bytes, b"j"],
                &[bytes],
            ] {
                call(words);
            }
            call(&[b"get", b"j"]);
            call(&[b"cancel", b"j"]);
        }
    }
}

#[test]
fn both_have_the_same_limits() {
    let redis = RedisServer::start(&[]);
    let mut pair = Pair::new(&redis);
    let tags = |count: usize| (0..count).map(|tag| format!("\"t{tag}\"")).collect::<Vec<_>>().join(",");
    pair.say("put 0 w q j k {} 0");
    for count in [999, 1000, 1001] {
        pair.say(&format!("put 1 w q j k {{}} 0 tags [{}]", tags(count)));
        pair.say(&format!("recur 2 q n k {{}} interval 60 60 tags [{}]", tags(count)));
        pair.say("tag 3 add j more");
        pair.say("recur.tag 3 n more");
        pair.say("get 3 j");
        pair.say("recur.get 3 n");
        let named = tags(count).replace(['"', ','], " ").replace("  ", " ");
        pair.say(&format!("tag 4 remove j {}", named.trim()));
        pair.say(&format!("recur.untag 4 n {}", named.trim()));
    }
    for bytes in [65_535, 65_536, 65_537] {
        let text = "x".repeat(bytes);
        pair.say(&format!("log 5 j {text}"));
        pair.say(&format!("log 5 j m {{\"a\":\"{}\"}}", &text[8..]));
        pair.say("get 5 j");
    }
    for bytes in [4160, 4161] {
        let text = "x".repeat(bytes);
        pair.say(&format!("config.set 6 {text} v"));
        pair.say(&format!("config.unset 6 {text}"));
        pair.say(&format!("failed 6 {text}"));
    }
    for command in ["pause", "unpause", "queue.forget", "worker.deregister", "cancel", "timeout", "multiget"]
    {
        pair.say(&format!("{command} 7"));
    }
    pair.say("timeout 8 j j");
    pair.say("pop 8 q w 1");
    pair.say("timeout 9 j j");
    pair.say("cancel 10 j j");
}

/// The texts are Qless's, as far as it has one.
#[test]
fn both_take_false_for_missing_data_and_name_an_option_without_a_value() {
    let redis = RedisServer::start(&[]);
    let mut pair = Pair::new(&redis);
    let error = |text: &str| Some(Reply::Error(format!("{PREFIX}{text}")));
    for (words, reply) in [
        (r#"put 0 w q j k {"a":1} 0"#, Some(bulk("j"))),
        ("put 0 w q x k false 0", error("Put(): Arg \"data\" missing or not JSON: false")),
        ("pop 1 q w 1", None),
        ("heartbeat 2 j w false", Some(Reply::Number(62))),
        ("get 2 j", None),
        ("complete 3 j w q false", error("Complete(): Arg \"data\" missing or not JSON: false")),
        ("complete 3 j w q false next r", error("Complete(): Arg \"data\" missing or not JSON: false")),
        ("fail 4 j w g m false", Some(bulk("j"))),
        ("get 4 j", None),
        ("recur 5 q n k false interval 60 60", error("RecurringJob On(): Arg \"data\" not JSON: false")),
        ("recur 5 q n k {} interval 60 60", Some(bulk("n"))),
        ("recur.update 5 n data false", error("Recur(): Arg \"data\" is not JSON-encoded: false")),
        ("log 5 j m false", error("Log(): Argument \"data\" must be a JSON object: false")),
        ("put 6 w q x k {} 0 retries", error("Odd number of additional args: retries")),
        ("put 6 w q x k {} 0 priority 1 tags", error("Odd number of additional args: priority 1 tags")),
        ("put 6 w q x k [1] 1.5 depends", error("Odd number of additional args: depends")),
        // The older form, without a worker.
        ("put 6 q x k {} 0 retries", error("Odd number of additional args: retries")),
        ("put 6 q x k {} 0 retries 1 tags", error("Odd number of additional args: retries 1 tags")),
        ("put 6 q x k {} 0 retries 1", Some(bulk("x"))),
        ("put 6 w q x k {} soon", error("Put(): Arg \"delay\" not a number: soon")),
        ("put 6 w q x k 0 soon", error("Put(): Arg \"delay\" not a number: soon")),
        ("requeue 6 w q x k {} 0 retries", error("Odd number of additional args: retries")),
        ("recur 6 q n k {} interval 60 60 tags", error("Odd number of additional args: tags")),
        ("recur.update 6 n priority", error("No value provided for priority")),
        ("put 7 w q y k null 0", Some(bulk("y"))),
        ("get 7 y", None),
    ] {
        let result = pair.say(words);
        if let Some(reply) = reply {
            assert_eq!(result.reply, reply, "{words}");
        }
    }
}

/// The successor of Qless has calls and options that would change what is done if they were ignored.
#[test]
fn both_refuse_what_only_reqless_has() {
    let redis = RedisServer::start(&[]);
    let mut pair = Pair::new(&redis);
    let put = r#"put 0 w q j k {} 0 priority 0 tags [] retries 5 depends [] throttles"#;
    for throttles in ["[]", "{}"] {
        assert_eq!(pair.say(&format!("{put} {throttles}")).reply, bulk("j"));
    }
    for words in [
        &format!(r#"{put} ["t"]"#),
        &format!("{put} 1"),
        &format!("{put} nonsense"),
        r#"requeue 0 w q j k {} 0 throttles ["t"]"#,
        r#"recur 0 q n k {} interval 60 60 throttles ["t"]"#,
        r#"complete 0 j w q {} next r throttles ["t"]"#,
        "throttle.set 0 t 1 0",
        "throttle.get 0 t",
        "throttle.delete 0 t",
        "throttle.locks 0 t",
        "throttle.pending 0 t",
        "throttle.ttl 0 t",
        "throttle.release 0 t j",
        "queue.throttle.get 0 q",
        "queue.throttle.set 0 q 1",
        "peek 0 q 0 10",
    ] {
        let Reply::Error(text) = pair.say(words).reply else { panic!("{words} is not refused") };
        assert!(text.contains("reqless"), "{words}: {text}");
    }
    pair.say("recur 1 q n k {} interval 60 60 throttles []");
    let Reply::Error(text) = pair.say(r#"recur.update 1 n throttles ["t"]"#).reply else {
        panic!("not refused")
    };
    assert!(text.contains("reqless"), "{text}");
    // Other unknown options are ignored, as in Qless.
    assert_eq!(pair.say("put 2 w q o k {} 0 backoff {} retries 3").reply, bulk("o"));
    pair.say("get 2 o");
    pair.say("jobs 2 throttled q");
    pair.say("peek 3 q 10");
}

/// How clients stop all jobs of a queue.
#[test]
fn both_list_all_running_jobs_for_a_count_of_minus_one() {
    let redis = RedisServer::start(&[]);
    let mut pair = Pair::new(&redis);
    let jids = |reply: Reply| match reply {
        Reply::List(jids) => jids.len(),
        other => panic!("{other}"),
    };
    for number in 0..30 {
        pair.say(&format!("put {number} w q j{number} k {{}} 0"));
        pair.say(&format!("pop {number} q w 1"));
    }
    assert_eq!(jids(pair.say("jobs 40 running q 0 -1").reply), 30);
    assert_eq!(jids(pair.say("jobs 40 running q 10 -1").reply), 20);
    assert_eq!(jids(pair.say("jobs 1000 stalled q 0 -1").reply), 30);
    for words in [
        "jobs 40 depends q 0 -1",
        "jobs 40 complete 0 -1",
        "jobs 40 running q 0 -2",
        "jobs 40 running q x -1",
    ] {
        assert!(matches!(pair.say(words).reply, Reply::Error(_)), "{words}");
    }
}

/// The differences that docs/resp.md lists. A change that removes one must update the list.
#[test]
fn the_documented_differences_exist() {
    let redis = RedisServer::start(&[]);
    let mut pair = Pair::new(&redis);
    let not_utf8 = raw_call(&[b"put", b"0", b"w", b"q", b"j", b"k", b"\"\xff\"", b"0"]);
    assert!(pair.call(&not_utf8).is_err());
    let blanks = raw_call(&[b"put", b"1", b"w", b"q", b"b", b"k", b"{ \"$bytes\" : \"aGk=\" }", b"0"]);
    pair.both(&blanks);
    let data = |result: CallResult| {
        let Reply::Bulk(bytes) = result.reply else { panic!("{}", result.reply) };
        serde_json::from_slice::<Json>(&bytes).expect("a document is JSON")["data"].clone()
    };
    let get: [&[u8]; 6] = [b"EVALSHA", script::script().sha.as_bytes(), b"0", b"get", b"2", b"b"];
    assert_eq!(data(pair.server.call(&get)), "{\"$bytes\":\"aGk=\"}");
    assert_eq!(data(pair.redis.call(&get)), "{ \"$bytes\" : \"aGk=\" }");
    // Same put time and due time: ordered by arrival here, by jid there.
    pair.say("put 3 w r second k {} 5");
    pair.say("put 3 w r first k {} 5");
    assert!(pair.call(&call_of("jobs 4 scheduled r")).is_err());
}
