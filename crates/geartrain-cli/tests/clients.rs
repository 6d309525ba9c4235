//! Clients in other languages: ten operations by four ways, the clients for Python and Node with their workers, and
//! Django's tasks.

use std::collections::{BTreeSet, HashMap};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;

use geartrain_testkit::peers::{RedisServer, Scratch};
use serde_json::{Value, json};

use crate::sandbox::Sandbox;
use crate::server_process::{ServerProcess, until};

pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The interpreter of a Python environment, which its setup installs once.
pub(crate) fn interpreter(setup: &str) -> String {
    let output = Command::new(repository().join(setup)).stderr(Stdio::inherit()).output();
    let output =
        output.expect("python3 is installed (on Debian and Ubuntu: apt-get install python3 python3-venv)");
    assert!(output.status.success(), "{setup} failed");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// The interpreter that knows the packages of `peers/json`.
fn python() -> &'static str {
    static PYTHON: LazyLock<String> = LazyLock::new(|| interpreter("peers/json/setup"));
    &PYTHON
}

/// A program of the repository, under Python or Node.
fn program(interpreter: &str, path: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(interpreter);
    command.arg(repository().join(path)).args(arguments).stdin(Stdio::null());
    command.env("PYTHONPATH", repository().join("clients/python")).env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

fn output(mut command: Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{command:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// Leaves out times and tokens.
fn timeless(document: &mut Value) {
    match document {
        Value::Object(fields) => {
            for (key, value) in fields.iter_mut() {
                match key.as_str() {
                    "token" | "expires" | "when" | "oldest" | "ended" | "until" | "asked"
                        if !value.is_null() =>
                    {
                        *value = json!("…");
                    }
                    _ => timeless(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(timeless),
        _ => {}
    }
}

/// One operation by four ways. TOKEN stands for the token of the job.
struct Ways<'a> {
    command: &'a [&'a str],
    document: &'a str,
    method: &'a str,
    path: &'a str,
    body: &'a str,
}

const TEN: [Ways<'_>; 10] = [
    Ways {
        command: &[
            "put",
            "mail",
            "welcome",
            r#"{"to":"ann","n":1.5}"#,
            "--jid",
            "j1",
            "--keep-result",
            "--tag",
            "new",
        ],
        document: r#"{"put":{"queue":"mail","klass":"welcome","payload":{"to":"ann","n":1.5},"jid":"j1","keep_result":true,"tags":["new"]}}"#,
        method: "POST",
        path: "/v1/queues/mail/jobs",
        body: r#"{"klass":"welcome","payload":{"to":"ann","n":1.5},"jid":"j1","keep_result":true,"tags":["new"]}"#,
    },
    Ways {
        command: &["why", "j1"],
        document: r#"{"why":{"jid":"j1"}}"#,
        method: "GET",
        path: "/v1/jobs/j1/why",
        body: "",
    },
    Ways {
        command: &["tag", "j1", "vip"],
        document: r#"{"tag":{"jid":"j1","tags":["vip"]}}"#,
        method: "POST",
        path: "/v1/jobs/j1/tag",
        body: r#"{"tags":["vip"]}"#,
    },
    Ways {
        command: &["pop", "mail", "--worker", "w1"],
        document: r#"{"pop":{"queue":"mail","worker":"w1"}}"#,
        method: "POST",
        path: "/v1/queues/mail/pop",
        body: r#"{"worker":"w1"}"#,
    },
    Ways {
        command: &["heartbeat", "j1", "--token", "TOKEN"],
        document: r#"{"heartbeat":{"jid":"j1","token":"TOKEN"}}"#,
        method: "POST",
        path: "/v1/jobs/j1/heartbeat",
        body: r#"{"token":"TOKEN"}"#,
    },
    Ways {
        command: &["progress", "j1", "1/4", "--token", "TOKEN"],
        document: r#"{"progress":{"jid":"j1","token":"TOKEN","part":1,"whole":4}}"#,
        method: "POST",
        path: "/v1/jobs/j1/progress",
        body: r#"{"token":"TOKEN","part":1,"whole":4}"#,
    },
    Ways {
        command: &["get", "j1"],
        document: r#"{"get":{"jid":"j1"}}"#,
        method: "GET",
        path: "/v1/jobs/j1",
        body: "",
    },
    Ways {
        command: &["complete", "j1", "--token", "TOKEN", "--result", r#"{"sent":true}"#],
        document: r#"{"complete":{"jid":"j1","token":"TOKEN","result":{"sent":true}}}"#,
        method: "POST",
        path: "/v1/jobs/j1/complete",
        body: r#"{"token":"TOKEN","result":{"sent":true}}"#,
    },
    Ways {
        command: &["result", "j1"],
        document: r#"{"result":{"jid":"j1"}}"#,
        method: "GET",
        path: "/v1/jobs/j1/result",
        body: "",
    },
    Ways { command: &["queues"], document: r#"{"queues":{}}"#, method: "GET", path: "/v1/queues", body: "" },
];

/// The documents of the ten operations by one way, on a server of its own.
fn ten(way: impl Fn(&ServerProcess, &Ways<'_>, &str) -> String) -> Vec<Value> {
    let server = ServerProcess::start(&["--http", "127.0.0.1:0", "--store", "memory:"]);
    let mut token = String::new();
    let execute = |operation: &Ways<'_>| {
        let text = way(&server, operation, &token);
        let mut document: Value =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        if let Some(given) = document[0]["token"].as_str() {
            token = given.to_owned();
        }
        timeless(&mut document);
        document
    };
    TEN.iter().map(execute).collect()
}

#[test]
fn ten_operations_give_the_same_documents_from_python_node_curl_and_the_command() {
    let sandbox = Sandbox::new();
    let by_command = ten(|server, operation, token| {
        let words: Vec<String> = operation.command.iter().map(|word| word.replace("TOKEN", token)).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        sandbox.run(&[&["--url", &server.url(), "--json"], words.as_slice()].concat())
    });
    let from_python = ten(|server, operation, token| {
        let address = server.address();
        let (_, port) = address.rsplit_once(':').unwrap();
        output(program(python(), "peers/json/fcall.py", &[port, &operation.document.replace("TOKEN", token)]))
    });
    let from_node = ten(|server, operation, token| {
        let url = format!("http://{}{}", server.http(), operation.path);
        output(program(
            "node",
            "peers/json/fetch.mjs",
            &[operation.method, &url, &operation.body.replace("TOKEN", token)],
        ))
    });
    let by_curl = ten(|server, operation, token| {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--fail-with-body", "--request", operation.method]);
        if !operation.body.is_empty() {
            curl.args([
                "--header",
                "Content-Type: application/json",
                "--data",
                &operation.body.replace("TOKEN", token),
            ]);
        }
        curl.arg(format!("http://{}{}", server.http(), operation.path));
        output(curl)
    });
    for (index, operation) in TEN.iter().enumerate() {
        let name = operation.command[0];
        assert_eq!(by_command[index], from_python[index], "{name}: the command and Python");
        assert_eq!(from_python[index], from_node[index], "{name}: Python and Node");
        assert_eq!(from_node[index], by_curl[index], "{name}: Node and curl");
    }
}

// Golden vectors --------------------------------------------------------------------------------------------

const VECTORS: &str = "clients/vectors/client.json";

#[test]
fn a_server_gives_the_replies_of_the_golden_vectors() {
    let text = std::fs::read_to_string(repository().join(VECTORS)).unwrap();
    let vectors: Vec<Value> = serde_json::from_str(&text).unwrap();
    let server = ServerProcess::start(&["--store", "memory:"]);
    let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let mut tokens: HashMap<String, String> = HashMap::new();
    for vector in vectors {
        let mut request = vector["request"].to_string();
        for (jid, token) in &tokens {
            request = request.replace(&format!("TOKEN({jid})"), token);
        }
        let mut call = redis::cmd("FCALL");
        let reply: String =
            call.arg("geartrain_json").arg(1).arg("").arg(&request).query(&mut connection).unwrap();
        let (mut reply, mut expected): (Value, Value) =
            (serde_json::from_str(&reply).unwrap(), vector["reply"].clone());
        if let (Some(jid), Some(token)) = (reply[0]["jid"].as_str(), reply[0]["token"].as_str()) {
            tokens.insert(jid.to_owned(), token.to_owned());
        }
        if reply["error"]["code"] == "unknown-operation" {
            // Its sentence names every operation.
            (reply["error"]["message"], expected["error"]["message"]) = (json!("…"), json!("…"));
        }
        timeless(&mut reply);
        timeless(&mut expected);
        assert_eq!(reply, expected, "{request}");
    }
}

#[test]
fn the_clients_send_and_return_what_the_golden_vectors_say() {
    for (interpreter, path) in
        [(python(), "clients/python/tests/vectors.py"), ("node", "clients/node/tests/vectors.mjs")]
    {
        let file = repository().join(VECTORS);
        let count: usize =
            output(program(interpreter, path, &[file.to_str().unwrap()])).trim().parse().unwrap();
        assert!(count >= 20, "{path}: {count}");
    }
}

// Workers ---------------------------------------------------------------------------------------------------

/// A running worker, killed when dropped.
struct WorkerProcess(Child);

impl WorkerProcess {
    fn start(mut command: Command) -> WorkerProcess {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        WorkerProcess(child)
    }

    /// SIGTERM; it must end by itself, with success.
    fn terminate(mut self) {
        assert!(Command::new("kill").args(["-TERM", &self.0.id().to_string()]).status().unwrap().success());
        let mut status = None;
        until("the worker has ended", || {
            status = self.0.try_wait().unwrap();
            status.is_some()
        });
        assert!(status.unwrap().success(), "{status:?}");
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// As many as a worker runs at a time: while it has them, it gets no further.
const SLOW: usize = 8;
const FLAKY: usize = 100;
const BROKEN: usize = 5;
/// The job whose result is no JSON.
const STRANGE: usize = SLOW + FLAKY + BROKEN + 1;
const JOBS: usize = 1_000;

/// The put of one of the 1,000 jobs, as a line of a batch.
fn put_of(number: usize) -> Value {
    let jid = format!("j{number}");
    match number {
        0 => json!({ "klass": "endless", "jid": jid, "priority": 2, "payload": {} }),
        _ if number <= SLOW => json!({ "klass": "slow", "jid": jid, "payload": {} }),
        _ if number <= SLOW + FLAKY => json!({ "klass": "flaky", "jid": jid, "payload": {} }),
        _ if number <= SLOW + FLAKY + BROKEN => {
            json!({ "klass": "broken", "jid": jid, "payload": { "n": "x" }, "retries": 1, "backoff": "0" })
        }
        STRANGE => json!({ "klass": "strange", "jid": jid, "payload": {} }),
        _ => json!({ "klass": "double", "jid": jid, "payload": { "n": number }, "keep_result": true }),
    }
}

/// 1,000 jobs with retries, failures, results, a cancellation, and a SIGTERM in the middle.
fn soak(url: &str, start: impl Fn(&[&str]) -> Command) {
    let (sandbox, scratch) = (Sandbox::new(), Scratch::new("ledger"));
    let run = |line: &[&str]| sandbox.json(&[&["--url", url], line].concat());
    let ledger = scratch.path().join("ledger");
    std::fs::write(&ledger, "").unwrap();
    let ledger_path = ledger.to_str().unwrap();
    // The slow jobs come in the middle: the worker is told to stop while it has them.
    let mut order: Vec<usize> = (SLOW + 1..JOBS).collect();
    order.splice(300..300, 1..=SLOW);
    order.insert(0, 0);
    let lines: String = order.into_iter().map(|number| format!("{}\n", put_of(number))).collect();
    sandbox.run(&["--url", url, "put", "work", "--batch", &sandbox.file("jobs", &lines)]);
    let noted = |word: &str| -> Vec<String> {
        let text = std::fs::read_to_string(&ledger).unwrap();
        let mut jids: Vec<_> = text
            .lines()
            .filter_map(|line| line.strip_prefix(&format!("{word} ")))
            .map(str::to_owned)
            .collect();
        jids.sort_unstable();
        jids
    };

    let first = WorkerProcess::start(start(&[url, "work", "first", ledger_path]));
    until("the endless job runs", || noted("began").contains(&"j0".to_owned()));
    run(&["cancel", "j0"]);
    until("the worker has stopped working on the cancelled job", || noted("lost") == ["j0"]);
    until("the slow jobs run", || noted("began").len() == 1 + SLOW);
    first.terminate();
    for number in 1..=SLOW {
        let job = run(&["get", &format!("j{number}")]);
        let state = (&job["state"], &job["remaining"], &job["retries"]);
        assert_eq!(
            state,
            (&json!("waiting"), &json!(5), &json!(5)),
            "handed back without using up a retry: {job}"
        );
    }
    assert!(noted("done").len() < JOBS / 2, "it was told to stop in the middle");

    let second = WorkerProcess::start(start(&[url, "work", "second", ledger_path]));
    until("every job has ended", || {
        let queue = run(&["queues"])[0].take();
        ["waiting", "running", "stalled", "scheduled"].iter().all(|state| queue[state] == 0)
    });
    second.terminate();
    let ends_well =
        |number: &usize| !["broken", "strange"].contains(&put_of(*number)["klass"].as_str().unwrap());
    let mut expected: Vec<String> = (1..JOBS).filter(ends_well).map(|number| format!("j{number}")).collect();
    expected.sort_unstable();
    assert_eq!(noted("done"), expected, "no handler was left out, none ran twice to its end");
    let mut groups = run(&["failed"]);
    groups.as_array_mut().unwrap().sort_by_key(|group| group["count"].as_u64());
    let expected =
        json!([{ "group": "report-not-json", "count": 1 }, { "group": "KeyError", "count": BROKEN }]);
    assert_eq!(groups, expected);

    // The same as the queue has it.
    let get: Vec<Value> = (0..JOBS).map(|number| json!({ "get": { "jid": format!("j{number}") } })).collect();
    for (number, job) in call(url, &json!(get)).as_array().unwrap().iter().enumerate() {
        let klass = put_of(number)["klass"].as_str().unwrap().to_owned();
        let history = job["history"].as_array().map_or(&[][..], Vec::as_slice);
        let count = |what: &str| history.iter().filter(|entry| entry["what"] == what).count();
        let retries = history.iter().filter(|entry| entry["reason"] == "retried").count();
        match &klass[..] {
            "endless" => assert_eq!(job["error"]["code"], "no-such-job", "{job}"),
            "broken" => assert_eq!((&job["state"], retries), (&json!("failed"), 2), "{job}"),
            "strange" => assert_eq!((&job["state"], retries), (&json!("failed"), 0), "{job}"),
            _ => {
                let retried = usize::from(klass == "flaky");
                assert_eq!((&job["state"], retries), (&json!("complete"), retried), "{job}");
                assert_eq!(count("done"), 1, "{job}");
            }
        }
    }
    let doubles: Vec<usize> = (STRANGE + 1..JOBS).collect();
    let result: Vec<Value> =
        doubles.iter().map(|number| json!({ "result": { "jid": format!("j{number}") } })).collect();
    for (number, result) in doubles.iter().zip(call(url, &json!(result)).as_array().unwrap()) {
        assert_eq!(result["result"], json!(2 * number), "{result}");
    }
}

/// Executes operations, and returns their documents.
fn call(url: &str, operations: &Value) -> Value {
    let mut connection = redis::Client::open(url).unwrap().get_connection().unwrap();
    let mut call = redis::cmd("FCALL");
    let call = call.arg("geartrain_json").arg(1).arg("").arg(operations.to_string());
    serde_json::from_str(&call.query::<String>(&mut connection).unwrap()).unwrap()
}

fn python_worker(arguments: &[&str]) -> Command {
    program("python3", "clients/python/tests/soak.py", arguments)
}

fn node_worker(arguments: &[&str]) -> Command {
    program("node", "clients/node/tests/soak.mjs", arguments)
}

/// A Redis with the JSON library.
fn redis_with_the_library() -> RedisServer {
    let server = RedisServer::start(&[]);
    let library = Sandbox::new().run(&["lua", "--json"]);
    let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let loaded: String = redis::cmd("FUNCTION").arg("LOAD").arg(library).query(&mut connection).unwrap();
    assert_eq!(loaded, "geartrain_json");
    server
}

mod a_thousand_jobs {
    use super::*;

    #[test]
    fn of_a_server_through_the_python_worker() {
        soak(&ServerProcess::start(&[]).url(), python_worker);
    }

    #[test]
    fn of_a_server_through_the_node_worker() {
        soak(&ServerProcess::start(&[]).url(), node_worker);
    }

    #[test]
    fn of_a_redis_through_the_python_worker() {
        soak(&redis_with_the_library().url(), python_worker);
    }

    #[test]
    fn of_a_redis_through_the_node_worker() {
        soak(&redis_with_the_library().url(), node_worker);
    }
}

/// A job that runs when the server dies is left to its lock, and the worker ends.
#[test]
fn a_worker_can_be_ended_when_its_server_is_gone() {
    for start in [python_worker, node_worker] {
        let (mut server, scratch) = (ServerProcess::start(&[]), Scratch::new("ledger"));
        let ledger = scratch.path().join("ledger");
        std::fs::write(&ledger, "").unwrap();
        let sandbox = Sandbox::new();
        sandbox.run(&["put", "work", "slow", "--jid", "j1", "--url", &server.url()]);
        let worker = WorkerProcess::start(start(&[&server.url(), "work", "first", ledger.to_str().unwrap()]));
        until("the job runs", || std::fs::read_to_string(&ledger).unwrap() == "began j1\n");
        server.kill();
        worker.terminate();
    }
}

// Errors and types ------------------------------------------------------------------------------------------

const ERROR_PROGRAMS: [(&str, &str); 2] =
    [("python3", "clients/python/tests/errors.py"), ("node", "clients/node/tests/errors.mjs")];

fn lines_as_json(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The codes with a class of their own; `geartrain.errors` in Python and the declarations for TypeScript have the same.
const CLASSES: [(&str, &str); 10] = [
    ("no-such-job", "NoSuchJob"),
    ("lock-lost", "LockLost"),
    ("unfinished", "Unfinished"),
    ("no-result", "NoResult"),
    ("queue-full", "QueueFull"),
    ("no-capable-worker", "NoCapableWorker"),
    ("bad-argument", "BadArgument"),
    ("too-large", "TooLarge"),
    ("unsupported", "Unsupported"),
    ("unavailable", "Unavailable"),
];

#[test]
fn every_code_of_the_documentation_is_a_typed_error() {
    let page = std::fs::read_to_string(repository().join("docs/formats/json.md")).unwrap();
    let (_, table) = page.split_once("\n| code | means |\n").unwrap();
    let cells = table
        .lines()
        .skip(1)
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.split('|').nth(1).unwrap());
    let codes: Vec<&str> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    assert!(codes.len() > 40, "{codes:?}");
    for (code, _) in CLASSES {
        assert!(codes.contains(&code), "{code} is not documented");
    }
    for (interpreter, path) in ERROR_PROGRAMS {
        let raised = lines_as_json(&output(program(interpreter, path, &[&["codes"], &codes[..]].concat())));
        assert_eq!(raised.len(), codes.len());
        for (code, raised) in codes.iter().zip(raised) {
            let class =
                CLASSES.iter().find(|(of, _)| of == code).map_or("GeartrainError", |(_, class)| class);
            let expected =
                json!({ "class": class, "code": code, "message": "what is wrong", "help": "what to do" });
            assert_eq!(raised, expected, "{path}");
        }
    }
}

#[test]
fn refusals_are_the_same_from_python_node_and_http() {
    let put = |jid: &str, more: Value| {
        let mut fields = json!({ "queue": "q", "klass": "k", "jid": jid });
        fields.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({ "put": fields })
    };
    let operations = [
        put("j1", json!({ "keep_result": true })),
        json!({ "get": { "jid": "unknown" } }),
        json!({ "result": { "jid": "j1" } }),
        json!({ "complete": { "jid": "j1", "worker": "w1" } }),
        json!({ "pop": { "queue": "q", "worker": "w1" } }),
        json!({ "complete": { "jid": "j1", "worker": "w2" } }),
        json!({ "heartbeat": { "jid": "j1", "token": "1.1" } }),
        json!({ "complete": { "jid": "j1", "worker": "w1" } }),
        put("j2", json!({})),
        put("j3", json!({ "depends": ["j2"] })),
        json!({ "cancel": { "jid": "j2" } }),
        json!({ "depend": { "jid": "j2", "on": ["j3"] } }),
        json!({ "fail": { "jid": "j2", "worker": "w1", "group": "g", "message": "m" } }),
        json!({ "limits": { "queue": "q", "max": 2 } }),
        put("j4", json!({})),
        put("j5", json!({ "queue": "other", "roll_call": true })),
        put("j6", json!({ "queue": "" })),
        put("j7", json!({ "priorty": 5 })),
        json!({ "put": { "queue": "q" } }),
        json!({ "nothing": {} }),
        json!({ "recur-pause": { "jids": ["unknown"] } }),
        json!({ "unset-config": { "key": "unknown" } }),
        json!({ "events": { "after": "1000000" } }),
        json!({ "pop": { "queue": "q", "worker": "w1", "count": -1 } }),
        put("j8", json!({ "tags": ["t".repeat(2_000)] })),
    ];
    let sandbox = Sandbox::new();
    let file = sandbox.file("operations", &json!(operations).to_string());
    let serve = || ServerProcess::start(&["--http", "127.0.0.1:0", "--store", "memory:"]);

    let server = serve();
    let by_http: Vec<Value> = operations
        .iter()
        .map(|operation| {
            let mut curl = Command::new("curl");
            curl.args(["--silent", "--show-error", "--json", &operation.to_string()]);
            curl.arg(format!("http://{}/v1/batch", server.http()));
            let reply: Value = serde_json::from_str(&output(curl)).unwrap();
            reply.get("error").cloned().unwrap_or(Value::Null)
        })
        .collect();
    let codes: BTreeSet<&str> = by_http.iter().filter_map(|error| error["code"].as_str()).collect();
    assert!(codes.len() >= 14, "these operations are refused for many reasons: {codes:?}");
    for (interpreter, path) in ERROR_PROGRAMS {
        let server = serve();
        let raised = lines_as_json(&output(program(interpreter, path, &["refusals", &server.url(), &file])));
        for ((operation, expected), mut raised) in operations.iter().zip(&by_http).zip(raised) {
            if let Some(raised) = raised.as_object_mut() {
                let class = raised.remove("class").unwrap();
                let found = CLASSES.iter().find(|(code, _)| raised["code"] == *code);
                assert_eq!(class, found.map_or("GeartrainError", |(_, class)| class), "{operation}");
            }
            assert_eq!(raised, *expected, "{path}: {operation}");
        }
    }
}

#[test]
fn the_type_checkers_have_no_complaints() {
    let mut mypy = Command::new(interpreter("peers/mypy/setup"));
    mypy.args(["-m", "mypy", "--strict", "--cache-dir=/dev/null", "geartrain"]);
    mypy.current_dir(repository().join("clients/python"));
    let said = output(mypy);
    assert!(said.starts_with("Success"), "{said}");

    let modules = Path::new(&interpreter("peers/typescript/setup")).join("node_modules");
    let mut tsc = Command::new("node");
    tsc.arg(modules.join("typescript/bin/tsc"));
    tsc.args([
        "--noEmit",
        "--strict",
        "--module",
        "nodenext",
        "--target",
        "es2022",
        "--types",
        "node",
        "--typeRoots",
    ]);
    tsc.arg(modules.join("@types")).arg(repository().join("clients/node/tests/types.ts"));
    output(tsc);
}

#[test]
fn the_declarations_for_typescript_name_what_the_package_exports() {
    let declared = std::fs::read_to_string(repository().join("clients/node/index.d.ts")).unwrap();
    let declared: BTreeSet<&str> = declared
        .lines()
        .filter_map(|line| {
            line.strip_prefix("export class ").or_else(|| line.strip_prefix("export function "))
        })
        .filter_map(|rest| rest.split(|c: char| !c.is_alphanumeric()).next())
        .collect();
    let mut node = Command::new("node");
    node.args(["--input-type=module", "--eval"]);
    node.arg("console.log(Object.keys(await import(process.env.PACKAGE)).join('\\n'))");
    node.env("PACKAGE", repository().join("clients/node/index.js"));
    let exported = output(node);
    assert_eq!(declared, exported.lines().collect());
}

#[test]
fn the_clients_are_short() {
    let package = |directory: &str, extension: &str| -> usize {
        let files = std::fs::read_dir(repository().join(directory)).unwrap().map(|file| file.unwrap().path());
        // The wheel's command is no part of the client.
        let is_client = |file: &PathBuf| !file.ends_with("command.py");
        let files =
            files.filter(|file| file.extension().is_some_and(|found| found == extension) && is_client(file));
        files.map(|file| lines_of_code(&std::fs::read_to_string(file).unwrap())).sum()
    };
    for (directory, extension) in [("clients/python/geartrain", "py"), ("clients/node", "js")] {
        let lines = package(directory, extension);
        assert!((300..400).contains(&lines), "{directory}: {lines} lines of code");
    }
}

/// Lines that are neither empty nor a comment nor documentation.
fn lines_of_code(text: &str) -> usize {
    let mut in_text = false;
    let is_code = |line: &&str| {
        let line = line.trim();
        let quotes = line.matches("\"\"\"").count();
        let is_documentation = in_text || quotes > 0;
        in_text ^= quotes == 1;
        let is_comment = ["#", "//", "/**", "*"].iter().any(|mark| line.starts_with(mark));
        !(line.is_empty() || is_comment || is_documentation)
    };
    text.lines().filter(is_code).count()
}

// Django ----------------------------------------------------------------------------------------------------

#[test]
fn tasks_of_django_run_as_jobs_and_give_their_results() {
    let (server, redis) = (ServerProcess::start(&[]), redis_with_the_library());
    for url in [server.url(), redis.url()] {
        let mut command = program(python(), "clients/python/tests/django_project/check.py", &[]);
        command.env("QUEUE_URL", &url);
        assert_eq!(output(command), "all is well\n");
    }
}
