//! The fork model, with programs that behave and programs that do not.

use std::time::Duration;

use geartrain::worker::{Report, Worker};
use geartrain::{Client, HistoryEvent, Jid, Job, JobState, Payload};
use geartrain_process::{ForkModel, Launcher, Limits, WorkDirectories};
use geartrain_testkit::peers::{Scratch, until};

use crate::process_table::{unique_word, with_word, zombies};

/// A queue in memory, and a program that runs its jobs.
struct Bench {
    client: Client,
    launcher: Launcher,
    timeout: Option<Duration>,
    result_bytes_max: usize,
    scratch: Scratch,
}

impl Bench {
    async fn new(program: &str, arguments: &[&str]) -> Bench {
        let launcher = Launcher::new(program, arguments).unwrap();
        let launcher = launcher
            .supervisor(env!("CARGO_BIN_EXE_geartrain-supervise"))
            .kill_after(Duration::from_millis(200));
        let client = geartrain::connect("memory:").await.unwrap();
        Bench { client, launcher, timeout: None, result_bytes_max: 1 << 20, scratch: Scratch::new("fork") }
    }

    async fn shell(script: &str) -> Bench {
        Bench::new("sh", &["-c", script]).await
    }

    async fn put(&self, payload: impl Into<Payload>) -> Jid {
        let put = self.client.put("q", "k", payload).retries(0).tag("a tag");
        put.keep_result(Duration::from_secs(600)).await.unwrap()
    }

    fn worker(&self) -> (Worker, ForkModel) {
        let directories = WorkDirectories::create(Some(self.scratch.path()), "w1").unwrap();
        let model = ForkModel::new(self.launcher.clone(), directories, 2);
        let model = model.result_bytes_max(self.result_bytes_max);
        let worker = Worker::new(&self.client).name("w1").queues(["q"]).concurrency(2).on_any(model.clone());
        let worker = match self.timeout {
            Some(timeout) => worker.timeout(timeout),
            None => worker,
        };
        (worker, model)
    }

    async fn drain(&self) -> Report {
        let (worker, model) = self.worker();
        let report = worker.drain(true).run_until(std::future::pending::<()>()).await.unwrap();
        model.idle().await;
        report
    }

    async fn job(&self, jid: &Jid) -> Job {
        self.client.get(jid).await.unwrap().unwrap()
    }

    async fn result(&self, jid: &Jid) -> Option<String> {
        let stored = self.client.run(geartrain::GetResult { jid: jid.clone() }).await.unwrap()?;
        Some(String::from_utf8_lossy(stored.result.bytes.bytes()).into_owned())
    }

    /// Runs one job without retries, which must fail. Returns its group and the message.
    async fn failure(&self, payload: impl Into<Payload>) -> (String, String) {
        let jid = self.put(payload).await;
        self.drain().await;
        match self.job(&jid).await.state {
            JobState::Failed { failure, .. } => (failure.group.to_string(), failure.message),
            other => panic!("it did not fail: {other:?}"),
        }
    }
}

fn logs(job: &Job) -> Vec<String> {
    let logs = job.history.iter().filter_map(|entry| match &entry.what {
        HistoryEvent::Log { message, .. } => Some(message.clone()),
        _ => None,
    });
    logs.collect()
}

#[tokio::test]
async fn a_program_gets_payload_and_environment_and_its_output_is_the_result() {
    let bench = Bench::shell("cat; env | grep ^GEARTRAIN_ | sort; echo 'log hello' >&3").await;
    let jid = bench.put("the payload\n").await;
    let report = bench.drain().await;
    assert_eq!((report.completed, report.attempts()), (1, 1));
    let result = bench.result(&jid).await.unwrap();
    let lines: Vec<&str> = result.lines().collect();
    let names: Vec<&str> = lines[1..].iter().map(|line| line.split('=').next().unwrap()).collect();
    assert_eq!(lines[0], "the payload");
    // No variable of the worker's own, and no deadline because there is none.
    assert_eq!(
        names,
        [
            "GEARTRAIN_JOB_ATTEMPT",
            "GEARTRAIN_JOB_JID",
            "GEARTRAIN_JOB_KLASS",
            "GEARTRAIN_JOB_PRIORITY",
            "GEARTRAIN_JOB_QUEUE",
            "GEARTRAIN_JOB_TAGS",
            "GEARTRAIN_JOB_TOKEN",
            "GEARTRAIN_JOB_WORKER",
            "GEARTRAIN_URL"
        ]
    );
    assert!(lines.contains(&"GEARTRAIN_JOB_TAGS=[\"a tag\"]") && lines.contains(&"GEARTRAIN_JOB_ATTEMPT=1"));
    let job = bench.job(&jid).await;
    assert_eq!(logs(&job)[0], "hello");
    assert!(
        logs(&job)[1].contains("exited with code 0") && logs(&job)[1].contains("CPU time"),
        "{:?}",
        logs(&job)
    );
}

#[tokio::test]
async fn exit_codes_decide() {
    let script = r#"read code; echo "why $code" >&2; exit $code"#;
    let bench = Bench::shell(script).await;
    assert_eq!(bench.failure("3\n").await, ("q-exit-3".into(), "exit code 3: why 3".into()));
    assert_eq!(bench.failure("64\n").await, ("q-exit-64".into(), "exit code 64: why 64".into()));
    assert_eq!(bench.failure("75\n").await, ("q-exit-75".into(), "exit code 75: why 75".into()));
    // With a retry left, all but 64 are retried.
    for (code, state) in
        [("75\n", "scheduled"), ("1\n", "scheduled"), ("64\n", "failed"), ("0\n", "complete")]
    {
        let jid = bench.client.put("q", "k", code).retries(5).await.unwrap();
        bench.drain().await;
        assert_eq!(bench.job(&jid).await.state.name().as_str(), state, "{code}");
    }
}

#[tokio::test]
async fn a_program_chooses_the_group_of_its_failure() {
    let script =
        r#"read code; echo 'group first' >&3; echo 'group smtp down' >&3; echo 'group ' >&3; exit $code"#;
    let bench = Bench::shell(script).await;
    for code in ["64", "75", "3"] {
        let expected = ("smtp down".into(), format!("exit code {code}"));
        assert_eq!(bench.failure(format!("{code}\n").as_str()).await, expected);
    }
    // A group of a program that succeeds is of no consequence; the one without a name was reported.
    let jid = bench.put("0\n").await;
    bench.drain().await;
    let job = bench.job(&jid).await;
    assert_eq!(job.state.name().as_str(), "complete");
    assert!(logs(&job)[0].contains("not understood"), "{:?}", logs(&job));
    // What happens to a program is not its own choice.
    let bench = Bench::shell("echo 'group smtp' >&3; kill -SEGV $$").await;
    assert_eq!(bench.failure("x").await.0, "q-signal-SIGSEGV");
}

#[tokio::test]
async fn the_trace_of_a_put_reaches_the_program() {
    let bench = Bench::shell("echo $GEARTRAIN_JOB_TRACEPARENT").await;
    let context = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let put = bench.client.put("q", "k", "x").traceparent(context).keep_result(Duration::from_secs(600));
    let jid = put.await.unwrap();
    bench.drain().await;
    assert_eq!(bench.result(&jid).await.unwrap().trim(), context);
}

#[tokio::test]
async fn a_signal_is_told_from_an_exit_code() {
    let (group, message) = Bench::shell("echo dying >&2; kill -SEGV $$").await.failure("").await;
    assert_eq!((group.as_str(), message.as_str()), ("q-signal-SIGSEGV", "killed by SIGSEGV: dying"));
}

#[tokio::test]
async fn out_of_memory_is_told_from_other_failures() {
    let limits = Limits { memory_bytes: Some(64 << 20), cpu: None };
    let mut bench = Bench::new("python3", &["-c", "x = bytearray(1 << 30)"]).await;
    bench.launcher = bench.launcher.limits(limits);
    let (group, message) = bench.failure("").await;
    assert_eq!(group, "q-out-of-memory", "{message}");
    assert!(message.contains("limit 67.1 MB") && message.contains("MemoryError"), "{message}");
    // A program may use as much as it is allowed to.
    let mut bench = Bench::new("python3", &["-c", "x = bytearray(16 << 20)"]).await;
    bench.launcher = bench.launcher.limits(limits);
    let jid = bench.put("").await;
    bench.drain().await;
    assert_eq!(bench.job(&jid).await.state.name().as_str(), "complete");
}

#[tokio::test]
async fn a_program_that_writes_too_much_is_stopped() {
    let word = unique_word("yes");
    let bench = Bench::new("sh", &["-c", "trap '' PIPE TERM; yes; sleep 1000", &word]).await;
    let (group, message) = bench.failure("").await;
    assert_eq!(group, "q-result-too-large");
    assert!(message.contains("larger than 1048576 bytes"), "{message}");
    assert_eq!(with_word(&word), Vec::<i32>::new());
}

#[tokio::test]
async fn megabytes_on_standard_error_are_kept_as_a_tail() {
    let bench = Bench::new(
        "python3",
        &["-c", "import sys; sys.stderr.write('x\\n' * 5000000 + 'the end'); sys.exit(2)"],
    )
    .await;
    let (group, message) = bench.failure("").await;
    assert_eq!(group, "q-exit-2");
    assert!(message.ends_with("the end") && message.len() < 9_000, "{} bytes", message.len());
}

#[tokio::test]
async fn a_program_need_not_read_its_input() {
    // More than a pipe holds, for a program that exits before it reads, and for one that never does.
    for script in ["echo done", "exec <&-; echo done", "sleep 0.1; echo done"] {
        let bench = Bench::shell(script).await;
        let jid = bench.put(vec![b'x'; 4 << 20]).await;
        bench.drain().await;
        assert_eq!(bench.result(&jid).await.as_deref(), Some("done\n"), "{script}");
    }
}

#[tokio::test]
async fn a_program_may_close_its_descriptors() {
    let bench = Bench::shell("exec 0<&- 1>&- 2>&- 3>&-; sleep 0.1; exit 0").await;
    let jid = bench.put("x").await;
    bench.drain().await;
    assert_eq!(bench.result(&jid).await.as_deref(), Some(""));
}

#[tokio::test]
async fn nonsense_on_descriptor_3_is_reported_once() {
    let script = r#"printf 'progress x/y\nprogress 5/2x\nhello\n\377\376\nprogress 1/2' >&3;
        head -c 100000 /dev/zero >&3"#;
    let bench = Bench::shell(script).await;
    let jid = bench.put("x").await;
    bench.drain().await;
    let job = bench.job(&jid).await;
    assert_eq!(job.state.name().as_str(), "complete");
    assert_eq!(
        logs(&job).iter().filter(|line| line.contains("not understood")).count(),
        1,
        "{:?}",
        logs(&job)
    );
}

#[tokio::test]
async fn a_timeout_stops_the_whole_tree_and_retries_the_job() {
    let word = unique_word("late");
    let script = r#"trap "" TERM; (setsid sh -c 'trap "" TERM; while :; do sleep 1; done' "$0" &)
        while :; do sleep 1; done"#;
    let mut bench = Bench::new("sh", &["-c", script, &word]).await;
    bench.timeout = Some(Duration::from_millis(300));
    let (group, message) = bench.failure("").await;
    assert_eq!(group, "q-timeout", "{message}");
    assert_eq!(with_word(&word), Vec::<i32>::new());
}

#[tokio::test]
async fn a_cancelled_job_stops_its_program_and_all_that_it_started() {
    let word = unique_word("cancel");
    let script =
        r#"(setsid sh -c 'trap "" TERM; while :; do sleep 1; done' "$0" &) ; while :; do sleep 1; done"#;
    let bench = Bench::new("sh", &["-c", script, &word]).await;
    let jid = bench.put("").await;
    let (worker, model) = bench.worker();
    let running = tokio::spawn(worker.once(true).run_until(std::future::pending::<()>()));
    // Supervisor, program and grandchild.
    let started = word.clone();
    tokio::task::spawn_blocking(move || until("it runs", || with_word(&started).len() >= 3)).await.unwrap();
    assert!(bench.client.cancel(&jid).await.unwrap());
    let report = running.await.unwrap().unwrap();
    assert_eq!(report.lost, 1, "{report:?}");
    model.idle().await;
    assert_eq!(with_word(&word), Vec::<i32>::new());
}

#[tokio::test]
async fn a_job_that_is_running_at_shutdown_is_handed_back_without_a_retry() {
    let word = unique_word("shutdown");
    let bench = Bench::new("sh", &["-c", "while :; do sleep 1; done", &word]).await;
    let jid = bench.put("").await;
    let (worker, model) = bench.worker();
    let stop = tokio_util::sync::CancellationToken::new();
    let running = tokio::spawn(worker.grace(Duration::ZERO).run_until(stop.clone().cancelled_owned()));
    let started = word.clone();
    tokio::task::spawn_blocking(move || until("it runs", || with_word(&started).len() >= 2)).await.unwrap();
    stop.cancel();
    let report = running.await.unwrap().unwrap();
    assert_eq!(report.released, 1, "{report:?}");
    model.idle().await;
    let job = bench.job(&jid).await;
    assert_eq!((job.state.name().as_str(), job.remaining), ("waiting", 0));
    assert_eq!(with_word(&word), Vec::<i32>::new());
}

#[tokio::test]
async fn the_working_directory_is_empty_for_each_job_and_afterwards() {
    let script = "ls -A; touch file; mkdir dir; ln -s / dir/link; chmod 0 dir";
    let bench = Bench::shell(script).await;
    let jids = [bench.put("1").await, bench.put("2").await, bench.put("3").await];
    bench.drain().await;
    for jid in &jids {
        assert_eq!(bench.result(jid).await.as_deref(), Some(""), "files of the job before are seen");
    }
    let left: Vec<_> = std::fs::read_dir(bench.scratch.path()).unwrap().flatten().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn many_jobs_leave_no_zombie_and_no_orphan() {
    let word = unique_word("many");
    let script = r#"read n; (setsid sleep 1000 "$0" 2>/dev/null &); [ $((n % 3)) = 0 ] && kill -9 $$; echo $((n * n))"#;
    let bench = Bench::new("sh", &["-c", script, &word]).await;
    for number in 0..30 {
        bench.put(format!("{number}\n")).await;
    }
    let report = bench.drain().await;
    assert_eq!((report.completed, report.attempts()), (20, 30));
    assert_eq!(with_word(&word), Vec::<i32>::new());
    until("there is no zombie", || zombies().is_empty());
}
