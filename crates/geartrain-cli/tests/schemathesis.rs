//! The HTTP API under a property-based tester: schemathesis sends requests that /openapi.json describes, and requests
//! that it forbids, and checks the replies. `peers/schemathesis` has its settings and checks.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use geartrain_testkit::peers::Scratch;
use geartrain_testkit::scaled;
use serde_json::{Value, json};

use crate::sandbox::Sandbox;
use crate::server_process::{ServerProcess, until};

/// Where the settings of the tester are.
fn settings() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../peers/schemathesis").canonicalize().unwrap()
}

/// The interpreter that knows the packages of `peers/schemathesis`.
pub(crate) fn python() -> &'static str {
    static PYTHON: LazyLock<String> = LazyLock::new(|| {
        let output = Command::new(settings().join("setup")).stderr(Stdio::inherit()).output();
        let output = output.expect("python3 is installed");
        assert!(output.status.success(), "peers/schemathesis/setup failed");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    });
    &PYTHON
}

/// A server with a result log.
struct Tested {
    server: ServerProcess,
    scratch: Scratch,
}

impl Tested {
    fn start() -> Tested {
        let scratch = Scratch::new("schemathesis");
        let log = format!("sqlite:{}", scratch.path().join("results.db").display());
        let server = ServerProcess::start(&["--http", "127.0.0.1:0", "--result-log", &log]);
        Tested { server, scratch }
    }

    /// Runs the tester with a seed, which is shown if it finds something. It is another one each time in `./test long`.
    fn run(&self, arguments: &[&str]) {
        let random = || (uuid::Uuid::now_v7().as_u128() as u32).to_string();
        let seed = std::env::var("GEARTRAIN_SEED").unwrap_or_else(|_| scaled("1".to_owned(), random()));
        let mut command = Command::new(python());
        command.args(["-m", "schemathesis.cli", "--config-file"]).arg(settings().join("schemathesis.toml"));
        command.arg("run").arg(format!("http://{}/openapi.json", self.server.http()));
        command.args(["--no-color", "--generation-database", "none", "--seed", &seed]).args(arguments);
        // Its hooks are a module, and what it leaves behind goes with the test.
        command.env("PYTHONPATH", settings()).env("PYTHONDONTWRITEBYTECODE", "1");
        let output = command.current_dir(self.scratch.path()).stdin(Stdio::null()).output().unwrap();
        let report = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success(),
            "GEARTRAIN_SEED={seed} finds:\n{report}\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    fn curl(&self, arguments: &[&str], path: &str) -> Value {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--fail-with-body"]).args(arguments);
        let output = curl.arg(format!("http://{}{path}", self.server.http())).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{path}: {text}{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}: {text}"))
    }

    /// How many jobs there are in each state, by the filter of bulk changes.
    fn selected(&self) -> Value {
        let states = ["scheduled", "depends", "waiting", "running", "complete", "failed"];
        let count = |state: &str| {
            let body = json!({ "where": format!("state={state}"), "priority": 0, "dry_run": true });
            self.curl(&["--json", &body.to_string()], "/v1/bulk/priority")["matching"].clone()
        };
        states.iter().map(|state| ((*state).to_owned(), count(state))).collect()
    }

    /// The server answers, its counters agree with its lists, and its directory has the same jobs.
    fn check(mut self) {
        assert_eq!(self.curl(&[], "/healthz"), json!({ "status": "ok" }));
        assert_eq!(self.curl(&[], "/readyz"), json!({ "status": "ready" }));
        // Recurring jobs would go on to put others meanwhile.
        let schedules = self.curl(&[], "/v1/schedules");
        let jids: Vec<&Value> = schedules.as_array().unwrap().iter().map(|job| &job["jid"]).collect();
        self.curl(&["--json", &json!({ "unrecur": { "jids": jids } }).to_string()], "/v1/batch");
        assert_eq!(self.curl(&[], "/v1/schedules"), json!([]));
        let queues = self.curl(&[], "/v1/queues");
        let names: Vec<&Value> = queues.as_array().unwrap().iter().map(|queue| &queue["name"]).collect();
        assert!(!names.is_empty());
        for name in names {
            // Between the two, time may move a job.
            until("the counts of a queue are those of its list", || {
                let page = json!({ "jobs": { "queue": name, "limit": 1000 } });
                let batch = json!([{ "queues": { "queue": name } }, page]).to_string();
                let answers = self.curl(&["--json", &batch], "/v1/batch");
                let (counts, page) = (&answers[0][0], &answers[1]);
                let listed = |state: &str, stalled: bool| {
                    let is_one = |job: &&Value| job["state"] == state && job["stalled"] == stalled;
                    page["items"].as_array().unwrap().iter().filter(is_one).count()
                };
                !page["next"].is_null()
                    || ["waiting", "scheduled", "depends", "running"]
                        .iter()
                        .all(|state| counts[state] == listed(state, false))
                        && counts["stalled"] == listed("running", true)
            });
        }
        let selected = self.selected();
        assert_eq!(self.server.terminate(), Some(0));
        let url = format!("embedded:{}", self.server.data().display());
        let found = Sandbox::new().json(&["check", "--url", &url]);
        let total = |counts: &Value| -> u64 {
            counts.as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum()
        };
        assert_eq!(total(&found["jobs"]), total(&selected), "{found}\n{selected}");
    }
}

#[test]
fn every_reply_is_as_the_description_says() {
    let tested = Tested::start();
    let examples = scaled("8", "100");
    tested.run(&["--phases", "examples,coverage,fuzzing,stateful", "--max-examples", examples]);
    tested.check();
}
