//! Launching programs, and stopping them with all that they started.

use std::time::Duration;

use geartrain_process::{Environment, Launcher, Limits, Process};
use geartrain_testkit::peers::{Scratch, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::process_table::{unique_word, with_word, zombies};

/// Launches a shell script. The word is among its arguments, and those of the processes that it starts.
pub(crate) fn shell(script: &str, word: &str) -> Launcher {
    let launcher = Launcher::new("sh", ["-c", script, word]).unwrap();
    launcher.supervisor(env!("CARGO_BIN_EXE_geartrain-supervise")).kill_after(Duration::from_secs(60))
}

fn launch(launcher: &Launcher, scratch: &Scratch) -> Process {
    launcher.launch(scratch.path(), &Environment::new()).unwrap()
}

async fn read(mut pipe: impl AsyncReadExt + Unpin) -> String {
    let mut text = String::new();
    pipe.read_to_string(&mut text).await.unwrap();
    text
}

#[tokio::test]
async fn a_program_has_its_pipes_its_descriptor_3_and_its_directory() {
    let scratch = Scratch::new("launch");
    let script = "cat; pwd; echo oops >&2; echo progress 1/2 >&3; exit 3";
    let mut process = launch(&shell(script, "x"), &scratch);
    process.stdin.write_all(b"payload\n").await.unwrap();
    drop(process.stdin);
    let (out, err, reports) =
        (read(process.stdout).await, read(process.stderr).await, read(process.reports).await);
    let directory = std::fs::canonicalize(scratch.path()).unwrap();
    assert_eq!(out, format!("payload\n{}\n", directory.display()));
    assert_eq!((err.as_str(), reports.as_str()), ("oops\n", "progress 1/2\n"));
    let ended = process.supervised.ended().await.unwrap();
    assert_eq!((ended.code, ended.signal, ended.stragglers), (Some(3), None, 0));
    assert!(ended.peak_memory_bytes > 0);
    until("there is no zombie", || zombies().is_empty());
}

#[tokio::test]
async fn processes_that_a_program_leaves_behind_are_terminated() {
    let scratch = Scratch::new("launch");
    let word = unique_word("left");
    // In the group, in a session of its own, and one whose parent has ended: a double fork.
    let script = r#"
        sh -c 'touch 1; sleep 1000; :' "$0" &
        setsid sh -c 'touch 2; sleep 1000; :' "$0" &
        (setsid sh -c 'trap "" TERM; touch 3; sleep 1000; sleep 1000' "$0" &)
        while ! [ -e 1 -a -e 2 -a -e 3 ]; do :; done; exit 0"#;
    let launcher = shell(script, &word).kill_after(Duration::from_millis(200));
    let mut process = launch(&launcher, &scratch);
    let ended = process.supervised.ended().await.unwrap();
    assert_eq!(ended.code, Some(0), "{}", read(process.stderr).await);
    assert!(ended.stragglers >= 3, "{ended:?}");
    assert_eq!(with_word(&word), Vec::<i32>::new());
}

#[tokio::test]
async fn stopping_reaches_the_whole_tree_and_kills_what_ignores_sigterm() {
    let scratch = Scratch::new("launch");
    let word = unique_word("stop");
    let script = r#"trap "" TERM; (setsid sh -c 'trap "" TERM; while :; do sleep 1; done' "$0" &); echo up >&3
        while :; do sleep 1; done"#;
    let launcher = shell(script, &word).kill_after(Duration::from_millis(100));
    let mut process = launch(&launcher, &scratch);
    let mut up = [0; 3];
    process.reports.read_exact(&mut up).await.unwrap();
    until("the grandchild runs", || with_word(&word).len() >= 3); // the supervisor too
    let ended = process.supervised.stop().await.unwrap();
    assert_eq!(ended.signal, Some(9), "{ended:?}");
    assert!(!ended.out_of_memory, "the supervisor killed it by order");
    assert_eq!(with_word(&word), Vec::<i32>::new());
}

#[tokio::test]
async fn a_program_that_obeys_sigterm_is_not_killed() {
    let scratch = Scratch::new("launch");
    let script = r#"trap 'echo bye; exit 7' TERM; echo up >&3; while :; do sleep 0.05; done"#;
    let mut process = launch(&shell(script, "x"), &scratch);
    let mut up = [0; 3];
    process.reports.read_exact(&mut up).await.unwrap();
    let ended = process.supervised.stop().await.unwrap();
    assert_eq!((ended.code, read(process.stdout).await.as_str()), (Some(7), "bye\n"));
}

#[tokio::test]
async fn dropping_a_process_kills_its_tree() {
    let scratch = Scratch::new("launch");
    let word = unique_word("drop");
    let script = r#"trap "" TERM; (setsid sleep 1000 &); echo up >&3; while :; do sleep 1; done"#;
    let mut process = launch(&shell(script, &word), &scratch);
    let mut up = [0; 3];
    process.reports.read_exact(&mut up).await.unwrap();
    drop(process);
    until("nothing is left", || with_word(&word).is_empty());
}

#[tokio::test]
async fn what_a_killed_supervisor_leaves_behind_is_killed_and_reaped() {
    let scratch = Scratch::new("launch");
    let word = unique_word("orphan");
    let script =
        r#"(setsid sh -c 'while :; do sleep 1; done' "$0" &); echo up >&3; while :; do sleep 1; done"#;
    let mut process = launch(&shell(script, &word), &scratch);
    let mut up = [0; 3];
    process.reports.read_exact(&mut up).await.unwrap();
    let pid = process.supervised.started().await.unwrap();
    let supervisor = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap();
    let parent = supervisor[supervisor.rfind(')').unwrap()..].split(' ').nth(2).unwrap().to_owned();
    assert!(std::process::Command::new("kill").args(["-9", &parent]).status().unwrap().success());
    let error = process.supervised.ended().await.unwrap_err();
    assert!(error.contains("supervisor"), "{error}");
    until("nothing is left", || with_word(&word).is_empty());
    until("there is no zombie", || zombies().is_empty());
}

#[tokio::test]
async fn a_limit_of_memory_holds_for_the_whole_tree() {
    let scratch = Scratch::new("launch");
    // Three processes of 30 MB: each is within the limit, all together are not.
    let script = r#"import os, sys, time
children = [os.fork() for _ in range(2)]
data = bytearray(30 << 20)
for page in range(0, len(data), 4096):
    data[page] = 1
time.sleep(1000)"#;
    let limits = Limits { memory_bytes: Some(64 << 20), cpu: None };
    let launcher = Launcher::new("python3", ["-c", script]).unwrap();
    let launcher = launcher.supervisor(env!("CARGO_BIN_EXE_geartrain-supervise")).limits(limits);
    let mut process = launch(&launcher, &scratch);
    let ended = process.supervised.ended().await.unwrap();
    assert!(ended.out_of_memory && ended.signal == Some(9), "{ended:?}");
    assert!(ended.peak_memory_bytes > 30 << 20, "{ended:?}");
}

#[tokio::test]
async fn a_limit_of_cpu_time_ends_a_busy_program() {
    let scratch = Scratch::new("launch");
    let limits = Limits { memory_bytes: None, cpu: Some(Duration::from_secs(1)) };
    let mut process = launch(&shell("while :; do :; done", "x").limits(limits), &scratch);
    let ended = process.supervised.ended().await.unwrap();
    assert_eq!(ended.signal, Some(24), "SIGXCPU: {ended:?}");
    // The limit counts ticks of the clock, which on a busy machine run ahead of the time that is measured.
    assert!(ended.cpu_seconds > 0.3, "{ended:?}");
}

#[tokio::test]
async fn a_program_that_is_missing_or_not_executable_is_refused() {
    let scratch = Scratch::new("launch");
    let error = |program: &str| Launcher::new(program, [""; 0]).unwrap_err().to_string();
    assert!(error("no-such-program-at-all").contains("no program"));
    assert!(error("./no/such/program").contains("no program"));
    let plain = scratch.path().join("plain");
    std::fs::write(&plain, "echo").unwrap();
    assert!(error(plain.to_str().unwrap()).contains("cannot be executed"));
    assert!(error("/").contains("cannot be executed"));
}
