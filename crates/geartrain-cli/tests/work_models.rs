//! `geartrain work --model pool` and `--push`: the command, real programs, a real HTTP server.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use geartrain_testkit::peers::until;

use crate::sandbox::Sandbox;

/// How many jobs a test runs.
fn jobs() -> usize {
    if std::env::var_os("GEARTRAIN_QUICK").is_some() { 100 } else { 1_000 }
}

/// Puts jobs `j0`, `j1` … of queue `math` from NDJSON. Their payloads are their numbers.
fn put_batch(sandbox: &Sandbox, jobs: usize) {
    let lines: String = (0..jobs)
        .map(|number| {
            format!(r#"{{"klass":"square","payload":{number},"jid":"j{number}","keep_result":3600}}"#) + "\n"
        })
        .collect();
    let file = sandbox.file("jobs.ndjson", &lines);
    assert_eq!(sandbox.run(&["put", "math", "--batch", &file]), format!("{jobs} jobs submitted\n"));
}

/// Every result must be the square of the payload.
fn check_results(sandbox: &Sandbox, jobs: usize) {
    // A process for each would take long; the count below is that of all jobs.
    for number in (0..jobs).step_by(jobs.div_ceil(20)).chain([jobs - 1]) {
        let result = sandbox.run(&["result", &format!("j{number}")]);
        assert_eq!(result.trim(), (number * number).to_string());
    }
    let queues = sandbox.json(&["queues"]);
    assert_eq!((&queues[0]["waiting"], &queues[0]["running"]), (&0.into(), &0.into()), "{queues}");
}

const SQUARES: &str = r#"
import json, sys
print('{"ready":true}', flush=True)
for line in sys.stdin:
    job = json.loads(line)
    print(json.dumps({"jid": job["jid"], "complete": job["payload"] ** 2}), flush=True)
"#;

#[test]
fn a_pool_works_through_a_batch() {
    let sandbox = Sandbox::new();
    let (jobs, child) = (jobs(), sandbox.file("child.py", SQUARES));
    put_batch(&sandbox, jobs);
    let work = ["work", "math", "--drain", "--model", "pool", "--concurrency", "8", "--max-jobs", "100"];
    let mut command = sandbox.command(&[&work[..], &["--", "python3", "child.py"]].concat());
    let output = command.current_dir(Path::new(&child).parent().unwrap()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    assert_eq!(text(output.stdout), format!("{jobs} jobs completed\n"), "{}", text(output.stderr));
    check_results(&sandbox, jobs);
}

#[test]
fn a_pool_of_one_child_with_slots_works_through_a_batch() {
    let script = r#"
import asyncio, json, sys
async def work(job):
    await asyncio.sleep(0)
    print(json.dumps({"jid": job["jid"], "complete": job["payload"] ** 2}), flush=True)
async def main():
    loop, tasks = asyncio.get_running_loop(), set()
    print('{"ready":true,"cancel":true}', flush=True)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        task = asyncio.create_task(work(json.loads(line)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)
asyncio.run(main())
"#;
    let sandbox = Sandbox::new();
    let child = sandbox.file("child.py", script);
    put_batch(&sandbox, 200);
    let work = ["work", "math", "--drain", "--model", "pool", "--slots", "16", "--concurrency", "16"];
    let (out, err, code) = sandbox.try_run(&[&work[..], &["--", "python3", &child]].concat());
    assert_eq!((out.as_str(), code), ("200 jobs completed\n", 0), "{err}");
    check_results(&sandbox, 200);
}

/// A worker that is killed if the test fails.
struct RunningWorker(Child);

impl RunningWorker {
    fn start(sandbox: &Sandbox, arguments: &[&str]) -> RunningWorker {
        let mut command = sandbox.command(arguments);
        RunningWorker(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap())
    }

    fn signal(&self, signal: &str) {
        let pid = self.0.id().to_string();
        assert!(std::process::Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    fn wait(mut self) -> (String, i32) {
        let mut out = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        (out, self.0.wait().unwrap().code().unwrap())
    }
}

impl Drop for RunningWorker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn is_alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat"));
    stat.is_ok_and(|stat| !stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" Z")))
}

/// Writes the pids of a child and a grandchild into the file that the payload names, and sleeps.
const SLEEPER: &str = r#"
import json, os, subprocess, sys, time
print('{"ready":true}', flush=True)
for line in sys.stdin:
    job = json.loads(line)
    sleeper = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    open(job["payload"] + ".new", "w").write(f"{os.getpid()} {sleeper.pid}")
    os.rename(job["payload"] + ".new", job["payload"])
    time.sleep(1000)
"#;

fn pids(sandbox: &Sandbox, name: &str) -> Vec<String> {
    let file = sandbox.path(name);
    until("the job begins", || Path::new(&file).exists());
    std::fs::read_to_string(&file).unwrap().split(' ').map(ToOwned::to_owned).collect()
}

#[test]
fn a_cancelled_job_and_a_stopped_worker_leave_no_process_of_a_pool() {
    let sandbox = Sandbox::new();
    let child = sandbox.file("child.py", SLEEPER);
    let work = ["work", "slow", "--model", "pool", "--concurrency", "1", "--grace", "0s"];
    let worker = RunningWorker::start(&sandbox, &[&work[..], &["--", "python3", &child]].concat());

    sandbox.run(&["put", "slow", "sleep", &sandbox.path("first"), "--jid", "first"]);
    let first = pids(&sandbox, "first");
    sandbox.run(&["cancel", "first"]);
    until("the cancelled job is stopped", || !first.iter().any(|pid| is_alive(pid)));

    sandbox.run(&["put", "slow", "sleep", &sandbox.path("second"), "--jid", "second"]);
    let second = pids(&sandbox, "second");
    assert_ne!(first[0], second[0]);
    worker.signal("-TERM");
    assert_eq!(worker.wait(), ("0 jobs completed, 1 handed back, 1 lost\n".to_owned(), 0));
    assert!(!second.iter().any(|pid| is_alive(pid)));
    let job = sandbox.json(&["get", "second"]);
    assert_eq!((&job["state"], &job["remaining"]), (&"waiting".into(), &5.into()), "{job}");

    // And after `kill -9`, which the worker cannot react to.
    let worker = RunningWorker::start(&sandbox, &[&work[..], &["--", "python3", &child]].concat());
    std::fs::remove_file(sandbox.path("second")).unwrap();
    let third = pids(&sandbox, "second");
    worker.signal("-KILL");
    until("the children of a killed worker are gone", || !third.iter().any(|pid| is_alive(pid)));
}

#[test]
fn a_program_that_is_no_child_of_a_pool_is_an_error_at_the_start() {
    let sandbox = Sandbox::new();
    let put = ["put", "math", "square", "1", "--jid", "j1"];
    sandbox.run(&put);
    let work = ["work", "math", "--drain", "--model", "pool", "--concurrency", "1", "--"];
    for (program, why) in [
        (&["no-such-program"][..], "there is no program \"no-such-program\""),
        (&["false"], "it ended before it was ready: exit code 1"),
        (&["echo", "hi"], "expected {\"ready\":true} as the first line, got 'hi'"),
    ] {
        let (_, err, code) = sandbox.try_run(&[&work[..], program].concat());
        assert!(code == 2 && err.lines().last().unwrap().contains(why), "{program:?}: {code} {err}");
    }
    assert_eq!(sandbox.json(&["get", "j1"])["remaining"], 5);
    // What the program printed is shown once, line by line.
    let script = "echo 'no module: mail' >&2; echo 'see the manual' >&2; exit 3";
    let (_, err, code) = sandbox.try_run(&[&work[..], &["sh", "-c", script]].concat());
    let expected = "geartrain: the program does not work as a child of a pool: it ended before it was ready: \
                    exit code 3\nno module: mail\nsee the manual\n";
    assert_eq!((err.as_str(), code), (expected, 2));
}

#[test]
fn options_of_one_model_are_refused_with_another() {
    let sandbox = Sandbox::new();
    for (arguments, why) in [
        (&["--slots", "2", "--", "true"][..], "--slots needs --model pool"),
        (&["--max-memory", "1gb", "--push", "http://127.0.0.1/"], "--max-memory needs --model pool"),
        (&["--push", "http://127.0.0.1/", "--", "true"], "cannot be used with"),
        (&["--push", "http://127.0.0.1/", "--model", "pool"], "cannot be used with"),
        (&["--push", "http://127.0.0.1/", "--limit-memory", "1gb"], "cannot be used with"),
        (&["--push-4xx", "fail", "--", "true"], "--push-4xx needs --push URL"),
        (&["--push", "example.org"], "'example.org' is not a URL: it must begin with http:// or https://"),
        (&["--push", "http://me:pw@127.0.0.1/"], "must not contain a user name or password"),
        (
            &["--push", "http://127.0.0.1/", "--push-secret-file", "/nonexistent"],
            "cannot read the secret file",
        ),
        (&[], "CMD"),
    ] {
        let (_, err, code) = sandbox.try_run(&[&["work", "math", "--drain"], arguments].concat());
        assert!(code == 2 && err.contains(why), "{arguments:?}: {code} {err}");
    }
}

/// A target that squares the number in each body, and wants a signature.
struct Target {
    port: u16,
    stop: Arc<AtomicBool>,
}

impl Target {
    fn start(answer: fn(usize, &str) -> (u16, String)) -> Target {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, stop) = (listener.local_addr().unwrap().port(), Arc::new(AtomicBool::new(false)));
        let stopped = Arc::clone(&stop);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                std::thread::spawn(move || serve(stream.unwrap(), answer));
            }
        });
        Target { port, stop }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}/jobs", self.port)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // Wakes the listener.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

fn serve(stream: TcpStream, answer: fn(usize, &str) -> (u16, String)) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    loop {
        let (mut head, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if line == "\r\n" {
                break;
            }
            head.push_str(&line);
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let number = String::from_utf8(body).unwrap().parse().unwrap();
        let (status, body) = answer(number, &head.to_lowercase());
        let response = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        if stream.write_all(response.as_bytes()).is_err() {
            return;
        }
    }
}

#[test]
fn a_push_target_works_through_a_batch() {
    let target = Target::start(|number, head| {
        let is_signed = head.contains("webhook-signature: v1,") && head.contains("geartrain-klass: square");
        (if is_signed { 200 } else { 400 }, (number * number).to_string())
    });
    let sandbox = Sandbox::new();
    let (jobs, secret) = (jobs(), sandbox.file("secret", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n"));
    put_batch(&sandbox, jobs);
    let url = target.url();
    let work =
        ["work", "math", "--drain", "--push", &url, "--push-secret-file", &secret, "--push-4xx", "fail"];
    let (out, err, code) = sandbox.try_run(&work);
    assert_eq!((out.as_str(), code), (&*format!("{jobs} jobs completed\n"), 0), "{err}");
    check_results(&sandbox, jobs);
}

#[test]
fn a_push_target_decides_what_happens_to_jobs() {
    let target = Target::start(|number, _| match number {
        404 | 503 => (number as u16, "not now".to_owned()),
        _ => (200, "fine".to_owned()),
    });
    let sandbox = Sandbox::new();
    for number in ["1", "404", "503"] {
        sandbox.run(&["put", "web", "hook", number, "--jid", number, "--retries", "1"]);
    }
    let url = target.url();
    let work = ["work", "web", "--drain", "--push", &url, "--push-4xx", "fail", "--retry-delay", "1h"];
    assert_eq!(sandbox.run(&work), "1 job completed, 1 failed, 1 retried\n");
    let failed = sandbox.json(&["get", "404"]);
    assert_eq!(failed["failure"]["group"], "web-http-404", "{failed}");
    assert_eq!(failed["failure"]["message"], "the target answered 404 Not Found: not now");
    let retried = sandbox.json(&["get", "503"]);
    assert_eq!((&retried["state"], &retried["remaining"]), (&"scheduled".into(), &0.into()), "{retried}");
}
