//! The pool model with real children, well-behaved and otherwise.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use geartrain_core::{
    Backend, Call, Get, Jid, Job, Klass, Operation, Payload, Pop, Put, QueueName, SystemClock, Tag,
    WorkerName,
};
use geartrain_process::{Launcher, Pool, PoolError, PoolOptions, WorkDirectories};
use geartrain_store::StoreBackend;
use geartrain_testkit::peers::{Scratch, until};
use geartrain_worker::{Context, JobRequest};
use tokio_util::sync::CancellationToken;
use tower::Service;

/// What the children begin with: a loop that calls `work(job)` for each job and prints what it returns.
const PRELUDE: &str = r#"
import json, os, signal, sys, threading, time
def say(**line): print(json.dumps(line), flush=True)
def loop(work, **ready):
    say(ready=True, **ready)
    for line in sys.stdin:
        job = json.loads(line)
        answer = work(job)
        if answer is not None: say(jid=job["jid"], **answer)
"#;

const TRACEPARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// A pool of Python programs over a queue in memory.
struct Fixture {
    pool: Pool,
    backend: Arc<dyn Backend>,
    scratch: Scratch,
}

impl Fixture {
    async fn start(script: &str, options: PoolOptions) -> Fixture {
        Fixture::try_start(script, options).await.unwrap()
    }

    /// One child with one slot.
    async fn one(script: &str) -> Fixture {
        Fixture::start(script, one_child()).await
    }

    async fn try_start(script: &str, options: PoolOptions) -> Result<Fixture, PoolError> {
        let scratch = Scratch::new("pool");
        let file = scratch.path().join("child.py");
        std::fs::write(&file, format!("{PRELUDE}\n{script}")).unwrap();
        let launcher = Launcher::new("python3", [file])
            .unwrap()
            .supervisor(env!("CARGO_BIN_EXE_geartrain-supervise"))
            .kill_after(Duration::from_millis(500));
        let directories = WorkDirectories::create(Some(scratch.path()), "w1").unwrap();
        let pool = Pool::start(launcher, Arc::new(directories), options).await?;
        let backend: Arc<dyn Backend> = Arc::new(StoreBackend::in_memory(Arc::new(SystemClock)).unwrap());
        Ok(Fixture { pool, backend, scratch })
    }

    /// Puts and pops a job.
    async fn attempt(&self, put: Put) -> Context {
        let pop = Pop::new(put.queue.clone(), WorkerName::new("w1").unwrap());
        let mut answers = self.backend.execute(vec![Call::from(put), Call::from(pop)]).await.unwrap();
        let popped = Pop::answer(answers.pop().unwrap().unwrap()).unwrap().jobs.pop().unwrap();
        let deadline = Some(Instant::now() + Duration::from_secs(3_600));
        Context::new(self.backend.clone(), popped, deadline, CancellationToken::new())
    }

    async fn call(&self, context: Context) -> String {
        call(self.pool.clone(), context).await
    }

    /// Runs a job with this jid and payload, and returns its verdict.
    async fn run(&self, jid: &str, payload: impl Into<Payload>) -> String {
        let context = self.attempt(job(jid, payload)).await;
        self.call(context).await
    }

    async fn get(&self, jid: &str) -> Job {
        let get = Get { jid: Jid::new(jid).unwrap() };
        let mut answers = self.backend.execute(vec![Call::from(get)]).await.unwrap();
        *Get::answer(answers.pop().unwrap().unwrap()).unwrap().unwrap()
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.scratch.path().join(name)
    }

    /// Waits until a child has written a file, and returns what is in it.
    async fn file(&self, name: &str) -> String {
        let file = self.path(name);
        loop {
            match std::fs::read_to_string(&file) {
                Ok(text) if text.ends_with('\n') => return text.trim().to_owned(),
                _ => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    }
}

fn one_child() -> PoolOptions {
    let mut options = PoolOptions::default();
    options.children = 1;
    options.grace = Duration::from_millis(500);
    options
}

fn job(jid: &str, payload: impl Into<Payload>) -> Put {
    let (queue, klass) = (QueueName::new("mail").unwrap(), Klass::new("welcome").unwrap());
    Put::new(queue, Jid::new(jid).unwrap(), klass, payload)
}

/// The verdict: `complete <result>`, or the debug text of the error.
async fn call(mut pool: Pool, context: Context) -> String {
    match pool.call(JobRequest { context }).await {
        Ok(output) => match output.result {
            Some(result) => format!("complete {}", String::from_utf8_lossy(result.bytes.bytes())),
            None => "complete".to_owned(),
        },
        Err(error) => {
            let text = format!("{error:?}");
            let text = text.trim_start_matches("HandlerError(JobError { action: ");
            text.trim_end_matches(", .. })").to_owned()
        }
    }
}

fn retry_in(group: &str) -> String {
    format!("Retry {{ delay: None }}, group: Some({group:?}), message: ")
}

/// Whether a process lives, and is not a zombie.
fn is_alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat"));
    stat.is_ok_and(|stat| !stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" Z")))
}

#[tokio::test]
async fn a_child_gets_all_facts_about_a_job_and_no_settings() {
    let script = r#"
job_env = {name: value for name, value in os.environ.items() if name.startswith("GEARTRAIN_")}
loop(lambda job: {"complete": [job, job_env]})
"#;
    let fixture = Fixture::one(script).await;
    let mut put = job("j1", r#"{"to":"a"}"#);
    put.tags = Some(vec![Tag::new("urgent").unwrap()]);
    put.options.get_or_insert_default().traceparent = Some(TRACEPARENT.parse().unwrap());
    let context = fixture.attempt(put).await;
    let token = context.job().lock.token.to_string();
    let verdict = fixture.call(context).await;
    let result: serde_json::Value = serde_json::from_str(verdict.strip_prefix("complete ").unwrap()).unwrap();
    let facts = result[0].as_object().unwrap();
    let deadline = facts["deadline"].as_f64().unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    assert!((now + 3_000.0..=now + 3_600.0).contains(&deadline), "{deadline} at {now}");
    let expected = serde_json::json!({
        "jid": "j1", "queue": "mail", "klass": "welcome", "payload": {"to": "a"}, "encoding": "json",
        "attempt": 1, "retries": 5, "remaining": 5, "priority": 0.0, "tags": ["urgent"], "token": token,
        "worker": "w1", "deadline": deadline, "traceparent": TRACEPARENT,
    });
    assert_eq!(serde_json::Value::Object(facts.clone()), expected);
    let environment = serde_json::json!({"GEARTRAIN_POOL_VERSION": "1", "GEARTRAIN_POOL_SLOTS": "1"});
    assert_eq!(result[1], environment);
    fixture.pool.shut_down().await;
}

#[tokio::test]
async fn payloads_of_every_kind_come_back_unchanged() {
    let echo = r#"loop(lambda job: {"complete": job["payload"], "encoding": job["encoding"]})"#;
    let fixture = Fixture::one(echo).await;
    let large = "x".repeat(5_000_000);
    let texts = ["{\"a\": [1,\n 2.5]}", "null", "plain\ntext", "", "\"é\"", &large];
    for (number, text) in texts.into_iter().enumerate() {
        let verdict = fixture.run(&format!("j{number}"), text).await;
        // Python writes JSON in its own way.
        let expected = if number == 0 { "{\"a\": [1, 2.5]}" } else { text };
        let verdict = if number == 4 { verdict.replace("\\u00e9", "é") } else { verdict };
        assert!(verdict == format!("complete {expected}"), "{text:.50}: {verdict:.100}");
    }
    let context = fixture.attempt(job("bytes", vec![0, 255, 10])).await;
    let output = fixture.pool.clone().call(JobRequest { context }).await.unwrap();
    assert_eq!(output.result.unwrap().bytes.bytes(), [0, 255, 10]);
    fixture.pool.shut_down().await;
}

#[tokio::test]
async fn each_answer_decides_what_happens_to_the_job() {
    let fixture = Fixture::one("loop(lambda job: job['payload'])").await;
    for (answer, verdict) in [
        (r#"{"complete":null}"#, "complete"),
        (r#"{"complete":[1]}"#, "complete [1]"),
        (r#"{"complete":{"$bytes":"aGk="}}"#, "complete hi"),
        (r#"{"fail":{"group":"g","message":"m"}}"#, r#"Fail, group: Some("g"), message: "m""#),
        (r#"{"fail":{}}"#, r#"Fail, group: Some("mail-failed"), message: "the program gave no reason""#),
        (
            r#"{"retry":{"delay":2,"message":"m"}}"#,
            r#"Retry { delay: Some(2s) }, group: Some("mail-retry"), message: "m""#,
        ),
        (r#"{"snooze":{"delay":60}}"#, "Snooze { delay: 60s }"),
        (r#"{"release":{"message":"later"}}"#, r#"Release, group: None, message: "later""#),
    ] {
        let given = fixture.run(&format!("{answer:.30}"), answer).await;
        assert!(given.starts_with(verdict), "{answer}: {given}");
    }
    fixture.pool.shut_down().await;
}

#[tokio::test]
async fn reports_reach_the_queue_before_the_answer() {
    let script = r#"
def work(job):
    say(jid=job["jid"], progress=[1, 4])
    say(jid=job["jid"], log="halfway", data={"page": 2})
    say(jid=job["jid"], chunk="part", encoding="text")
    say(jid=job["jid"], progress=[3, 4])
    return {"complete": "done"}
loop(work)
"#;
    let fixture = Fixture::one(script).await;
    let context = fixture.attempt(job("j1", "1")).await;
    assert_eq!(context.last_progress(), None);
    assert_eq!(fixture.call(context.clone()).await, r#"complete "done""#);
    let portion = geartrain_core::Portion::new(3, 4).unwrap();
    assert_eq!(context.last_progress(), Some(portion));
    let job = fixture.get("j1").await;
    let progress = job.details.as_ref().unwrap().progress.unwrap();
    assert_eq!(progress.portion, portion);
    assert!(format!("{:?}", job.history).contains("halfway"), "{:?}", job.history);
    fixture.pool.shut_down().await;
}

#[tokio::test]
async fn a_child_with_slots_has_several_jobs_at_once() {
    // It answers none of them before it has all.
    let script = r#"
jobs = []
say(ready=True)
for line in sys.stdin:
    jobs.append(json.loads(line))
    if len(jobs) == 8:
        for job in reversed(jobs): say(jid=job["jid"], complete=job["payload"] * 2)
        jobs = []
"#;
    let mut options = one_child();
    options.slots = 8;
    let fixture = Fixture::start(script, options).await;
    let mut running = tokio::task::JoinSet::new();
    for number in 0..16 {
        let context = fixture.attempt(job(&format!("j{number}"), number.to_string())).await;
        let pool = fixture.pool.clone();
        running.spawn(async move { (number, call(pool, context).await) });
    }
    for (number, verdict) in running.join_all().await {
        assert_eq!(verdict, format!("complete {}", number * 2));
    }
    fixture.pool.shut_down().await;
}

#[tokio::test]
async fn a_cancelled_job_of_a_child_that_reads_cancel_lines_leaves_the_child_alive() {
    let script = r#"
say(ready=True, cancel=True)
for line in sys.stdin:
    line = json.loads(line)
    if "cancel" in line: say(jid=line["cancel"], release={"message": line["why"]})
    elif line["payload"] == "pid": say(jid=line["jid"], complete=os.getpid())
    else: open(line["payload"], "w").write(f"{os.getpid()}\n")
"#;
    let fixture = Fixture::one(script).await;
    let begun = fixture.path("begun").display().to_string();
    let context = fixture.attempt(job("j1", begun)).await;
    let token = context.cancellation().clone();
    let running = tokio::spawn(call(fixture.pool.clone(), context));
    let pid = fixture.file("begun").await;
    token.cancel();
    assert_eq!(running.await.unwrap(), r#"Release, group: None, message: "shutdown""#);
    assert_eq!(fixture.run("j2", "pid").await, format!("complete {pid}"));
    fixture.pool.shut_down().await;
    assert!(!is_alive(&pid));
}

#[tokio::test]
async fn a_cancelled_job_of_a_simple_child_takes_the_child_and_its_children_down() {
    // The grandchild leaves the process group.
    let script = r#"
import subprocess
def work(job):
    if job["payload"] == 1: return {"complete": os.getpid()}
    sleeper = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    open(job["payload"], "w").write(f"{os.getpid()} {sleeper.pid}\n")
    time.sleep(1000)
loop(work)
"#;
    let fixture = Fixture::one(script).await;
    // Dropping the future is what the runtime does at last.
    for (number, is_dropped) in [(1, false), (2, true)] {
        let name = format!("begun{number}");
        let context = fixture.attempt(job(&name, fixture.path(&name).display().to_string())).await;
        let token = context.cancellation().clone();
        let running = tokio::spawn(call(fixture.pool.clone(), context));
        let pids = fixture.file(&name).await;
        if is_dropped {
            running.abort();
        } else {
            token.cancel();
            let verdict = running.await.unwrap();
            assert!(verdict.starts_with(&retry_in("mail-pool-stopped")), "{verdict}");
        }
        let next = fixture.run(&format!("next{number}"), "1").await;
        for pid in pids.split(' ') {
            until("the cancelled job is stopped", || !is_alive(pid));
            assert_ne!(next, format!("complete {pid}"));
        }
    }
    fixture.pool.shut_down().await;
}

#[tokio::test]
async fn a_child_that_ignores_cancel_is_killed_and_its_other_jobs_are_released() {
    let script = r#"
signal.signal(signal.SIGTERM, signal.SIG_IGN)
say(ready=True, cancel=True)
for line in sys.stdin:
    line = json.loads(line)
    if "jid" in line: open(line["payload"], "w").write(f"{os.getpid()}\n")
"#;
    let mut options = one_child();
    options.slots = 2;
    let fixture = Fixture::start(script, options).await;
    let mut running = Vec::new();
    for name in ["a", "b"] {
        let context = fixture.attempt(job(name, fixture.path(name).display().to_string())).await;
        let token = context.cancellation().clone();
        running.push((token, tokio::spawn(call(fixture.pool.clone(), context))));
    }
    let (a, b) = (fixture.file("a").await, fixture.file("b").await);
    assert_eq!(a, b);
    running[0].0.cancel();
    let mut verdicts = Vec::new();
    for (_, task) in running {
        verdicts.push(task.await.unwrap());
    }
    let stopped = "the child was killed: it did not answer the cancel line within 500ms";
    assert_eq!(verdicts[0], format!("{}{stopped:?}", retry_in("mail-pool-stopped")));
    let sibling = "the child was stopped because of another of its jobs";
    assert_eq!(verdicts[1], format!("Release, group: None, message: {sibling:?}"));
    assert!(!is_alive(&a));
    fixture.pool.shut_down().await;
}

#[tokio::test]
async fn what_breaks_the_protocol_is_retried_with_the_evidence() {
    let script = r#"
def work(job):
    payload = job["payload"]
    if payload == "ok": return {"complete": 1}
    print("about to break", file=sys.stderr, flush=True)
    os.write(1, payload.encode())
    time.sleep(1000)
loop(work)
"#;
    let fixture = Fixture::one(script).await;
    for (number, (output, evidence)) in [
        ("hello\n", "not a line of the pool protocol (expected value at line 1 column 1): 'hello'"),
        (
            "{\"jid\":\"other\",\"complete\":1}\n",
            "a line about \\\"other\\\", which the child does not work on",
        ),
        ("{\"jid\":\"j2\"}\n", "a line without an answer or a report"),
        ("\u{0}\n", "not a line of the pool protocol"),
    ]
    .into_iter()
    .enumerate()
    {
        let payload = serde_json::to_string(output).unwrap();
        let verdict = fixture.run(&format!("j{number}"), payload).await;
        assert!(verdict.starts_with(&retry_in("mail-pool-protocol")), "{verdict}");
        assert!(verdict.contains(evidence) && verdict.contains("about to break"), "{verdict}");
        assert_eq!(fixture.run(&format!("ok{number}"), "ok").await, "complete 1");
    }
    fixture.pool.shut_down().await;
}

#[tokio::test]
async fn a_child_that_prints_without_end_is_replaced() {
    let script = r#"
def work(job):
    if job["payload"] == 1: return {"complete": 1}
    while True: os.write(1, b"x" * 65536)
loop(work)
"#;
    let fixture = Fixture::one(script).await;
    let verdict = fixture.run("j1", "2").await;
    assert!(verdict.starts_with(&retry_in("mail-pool-protocol")), "{verdict:.300}");
    assert!(verdict.contains("bytes without a line break: 'xxxx") && verdict.len() < 1_000, "{verdict:.300}");
    assert_eq!(fixture.run("j2", "1").await, "complete 1");
    fixture.pool.shut_down().await;
}

#[tokio::test]
async fn a_child_that_ends_in_the_middle_of_a_job_is_replaced() {
    let script = r#"
def work(job):
    payload = job["payload"]
    if payload == "ok": return {"complete": 1}
    print("Traceback: boom", file=sys.stderr, flush=True)
    exec(payload)
loop(work)
"#;
    let fixture = Fixture::one(script).await;
    for (number, (deed, evidence)) in [
        ("os._exit(3)", "exit code 3"),
        ("os._exit(0)", "exit code 0"),
        ("os.kill(os.getpid(), 9)", "killed by SIGKILL"),
        ("os.close(1); time.sleep(1000)", "closed its standard output"),
        ("raise ValueError('bad')", "ValueError: bad"),
    ]
    .into_iter()
    .enumerate()
    {
        let verdict = fixture.run(&format!("j{number}"), deed).await;
        assert!(verdict.starts_with(&retry_in("mail-pool-exit")), "{deed}: {verdict}");
        assert!(verdict.contains(evidence) && verdict.contains("Traceback: boom"), "{deed}: {verdict}");
        assert_eq!(fixture.run(&format!("ok{number}"), "ok").await, "complete 1");
    }
    fixture.pool.shut_down().await;
}

#[tokio::test]
async fn a_child_that_closes_its_input_is_replaced() {
    let script = r#"
def work(job):
    if job["payload"] == 1: return {"complete": os.getpid()}
    os.close(0)
    say(jid=job["jid"], complete="closed")
    time.sleep(1000)
loop(work)
"#;
    let fixture = Fixture::one(script).await;
    assert_eq!(fixture.run("j1", "2").await, r#"complete "closed""#);
    let verdict = fixture.run("j2", "1").await;
    assert!(verdict.contains("closed its standard input"), "{verdict}");
    assert!(fixture.run("j3", "1").await.starts_with("complete "));
    fixture.pool.shut_down().await;
}

#[tokio::test]
async fn children_are_replaced_after_a_number_of_jobs() {
    let mut options = one_child();
    options.max_jobs = Some(3);
    let fixture = Fixture::start("loop(lambda job: {'complete': os.getpid()})", options).await;
    let mut pids = Vec::new();
    for number in 0..9 {
        pids.push(fixture.run(&format!("j{number}"), "1").await);
    }
    for three in pids.chunks(3) {
        assert_eq!(three, [&*three[0]; 3]);
    }
    assert!(pids[0] != pids[3] && pids[3] != pids[6], "{pids:?}");
    fixture.pool.shut_down().await;
}

#[tokio::test]
async fn a_child_that_uses_much_memory_is_replaced_after_its_job() {
    let script = r#"
kept = []
def work(job):
    kept.append(bytearray(os.urandom(1 << 20)) * job["payload"])
    return {"complete": os.getpid()}
loop(work)
"#;
    let mut options = one_child();
    options.max_memory_bytes = Some(64 << 20);
    let fixture = Fixture::start(script, options).await;
    let mut pids = Vec::new();
    for (number, megabytes) in [1, 1, 100, 1].into_iter().enumerate() {
        pids.push(fixture.run(&format!("j{number}"), megabytes.to_string()).await);
    }
    assert!(pids[0] == pids[1] && pids[1] == pids[2] && pids[2] != pids[3], "{pids:?}");
    fixture.pool.shut_down().await;
}

#[tokio::test]
async fn the_working_directory_is_emptied_between_jobs() {
    let script = r#"
def work(job):
    found = sorted(os.listdir("."))
    os.makedirs("deep/er", exist_ok=True)
    open("deep/er/file", "w").close()
    os.symlink("/etc", "link")
    os.chmod("deep", 0)
    return {"complete": [os.getcwd(), found]}
loop(work)
"#;
    let fixture = Fixture::one(script).await;
    let first = fixture.run("j1", "1").await;
    assert!(first.contains("slot-0") && first.ends_with(", []]"), "{first}");
    assert_eq!(fixture.run("j2", "1").await, first);
    assert!(Path::new("/etc/passwd").exists());
    fixture.pool.shut_down().await;
}

#[tokio::test]
async fn a_program_that_is_no_child_of_a_pool_is_refused_at_the_start() {
    let mut options = one_child();
    options.ready_within = Duration::from_millis(300);
    for (script, why) in [
        ("print('Loading', flush=True); time.sleep(1000)", "as the first line, got 'Loading'"),
        ("sys.exit('no such module')", "it ended before it was ready: exit code 1\nno such module"),
        ("say(ready=True, version=2); time.sleep(1000)", "it speaks version 2 of the pool protocol"),
        ("while True: os.write(1, b'x' * 65536)", "its first line is longer than 65536 bytes"),
    ] {
        let mut patient = options.clone();
        patient.ready_within = Duration::from_secs(60);
        let error = Fixture::try_start(script, patient).await.err().unwrap().to_string();
        assert!(error.contains(why), "{script}: {error}");
    }
    let error = Fixture::try_start("time.sleep(1000)", options).await.err().unwrap().to_string();
    let expected = "the program does not work as a child of a pool: it was not ready within 300ms";
    assert_eq!(error, expected);
}

#[tokio::test]
async fn a_program_that_no_longer_starts_releases_its_jobs() {
    // It works once, and its next start fails.
    let script = r#"
marker = os.path.join(os.path.dirname(__file__), "started")
if os.path.exists(marker): sys.exit("the disk is gone")
open(marker, "w").close()
loop(lambda job: os._exit(1))
"#;
    let mut options = one_child();
    options.child_within = Duration::from_millis(200);
    let fixture = Fixture::start(script, options).await;
    assert!(fixture.run("j1", "1").await.starts_with(&retry_in("mail-pool-exit")));
    // The first of them may see only why the child before ended.
    for number in 2.. {
        let verdict = fixture.run(&format!("j{number}"), "1").await;
        assert!(verdict.starts_with("Release, ") && verdict.contains("no child is ready: "), "{verdict}");
        if verdict.contains("the disk is gone") {
            break;
        }
    }
    fixture.pool.shut_down().await;
}

#[tokio::test]
async fn a_thousand_jobs_over_several_children_have_the_right_results() {
    let mut options = PoolOptions::default();
    (options.children, options.slots, options.max_jobs) = (4, 2, Some(100));
    let fixture = Fixture::start("loop(lambda job: {'complete': job['payload'] ** 2})", options).await;
    let mut running = tokio::task::JoinSet::new();
    for number in 0..1_000_u64 {
        let context = fixture.attempt(job(&format!("j{number}"), number.to_string())).await;
        let pool = fixture.pool.clone();
        running.spawn(async move { (number, call(pool, context).await) });
    }
    for (number, verdict) in running.join_all().await {
        assert_eq!(verdict, format!("complete {}", number * number));
    }
    fixture.pool.shut_down().await;
}
