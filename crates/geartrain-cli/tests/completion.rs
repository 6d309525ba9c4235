//! Completion in a real Bash, and what the scripts of other shells ask.

use std::process::{Command, Stdio};

use crate::sandbox::Sandbox;
use crate::server_process::ServerProcess;

/// Loads the script, and completes a line as Bash does at its end. Prints one candidate per line.
const BASH: &str = r#"
source <(geartrain completions bash)
line=$1
shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE=$line COMP_POINT=${#line}
_clap_complete_geartrain geartrain "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\n' "${COMPREPLY[@]}"
"#;

fn with_our_path(mut command: Command, url: &str) -> Command {
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_geartrain"));
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let directories = [program.parent().unwrap().to_owned()].into_iter().chain(std::env::split_paths(&paths));
    command.env("PATH", std::env::join_paths(directories).unwrap());
    command.env("GEARTRAIN_URL", url).stdin(Stdio::null());
    command
}

/// The candidates for words as Bash splits them: colons and equals signs are words of their own.
fn in_bash(url: &str, words: &[&str]) -> Vec<String> {
    let mut bash = with_our_path(Command::new("bash"), url);
    bash.args(["--noprofile", "--norc", "-c", BASH, "bash", &words.join(" ")]).args(words);
    let output = bash.output().expect("bash is installed: apt-get install bash");
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "", "{words:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

#[test]
fn bash_completes_queues_jobs_groups_and_workers() {
    let (sandbox, server) = (Sandbox::new(), ServerProcess::start(&["--store", "memory:"]));
    let (url, address) = (server.url(), server.address());
    let run = |arguments: &[&str]| sandbox.run(&[&["--url", url.as_str()], arguments].concat());
    for (queue, jid) in [("mail", "j1"), ("mail:new", "a:b"), ("news", "$(touch ran)"), ("mail", "j2")] {
        run(&["put", queue, "welcome", "{}", "--jid", jid]);
    }
    run(&["pop", "mail", "--worker", "w1"]);
    run(&["fail", "j1", "smtp", "broken", "--worker", "w1"]);

    assert_eq!(in_bash(&url, &["geartrain", "que"]), ["queues"]);
    assert_eq!(in_bash(&url, &["geartrain", "put", "--prio"]), ["--priority"]);
    assert!(in_bash(&url, &["geartrain", "jobs", "--state", ""]).contains(&"scheduled".to_owned()));
    assert_eq!(in_bash(&url, &["geartrain", "pause", ""]), ["mail", "mail:new", "news"]);
    assert_eq!(in_bash(&url, &["geartrain", "pause", "mail", "ne"]), ["news"]);
    assert_eq!(in_bash(&url, &["geartrain", "put", "ma"]), ["mail", "mail:new"]);
    assert_eq!(in_bash(&url, &["geartrain", "jobs", "--queue", "n"]), ["news"]);
    assert_eq!(in_bash(&url, &["geartrain", "get", "j"]), ["j1", "j2"], "a failed and a waiting job");
    assert_eq!(
        in_bash(&url, &["geartrain", "get", "$"]),
        Vec::<String>::new(),
        "never what a shell executes"
    );
    assert_eq!(in_bash(&url, &["geartrain", "unfail", ""]), ["smtp"]);
    assert_eq!(in_bash(&url, &["geartrain", "forget", "worker", ""]), ["w1"]);
    // Bash replaces only what is behind the last colon.
    assert_eq!(in_bash(&url, &["geartrain", "get", "a", ":", "b"]), ["b"]);
    assert_eq!(in_bash(&url, &["geartrain", "peek", "mail", ":", "n"]), ["new"]);
    // The URL on the line counts, with its colons.
    let (host, port) = address.rsplit_once(':').unwrap();
    let host = format!("//{host}");
    let words = ["geartrain", "--url", "redis", ":", &host, ":", port, "get", "j"];
    assert_eq!(in_bash("redis://127.0.0.1:1", &words), ["j1", "j2"]);
    let words =
        ["geartrain", "move", "--from", "redis", ":", &host, ":", port, "--to", "embedded", ":", "d", "m"];
    assert_eq!(in_bash("redis://127.0.0.1:1", &words), ["mail", "mail:new"]);
}

#[test]
fn completion_says_nothing_when_the_queue_does_not_answer() {
    let sandbox = Sandbox::new();
    // It accepts connections and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let directory = sandbox.url("none");
    for url in [
        "redis://127.0.0.1:1",
        &format!("redis://{}", silent.local_addr().unwrap()),
        &directory,
        "memory:",
        "nonsense",
    ] {
        assert_eq!(in_bash(url, &["geartrain", "get", "j"]), Vec::<String>::new(), "{url}");
        assert_eq!(in_bash(url, &["geartrain", "pin"]), ["ping"], "{url}");
    }
    assert!(!std::path::Path::new(&sandbox.path("none")).exists(), "completing creates no directory");
}

#[test]
fn jobs_of_a_directory_are_completed_through_its_owner() {
    let server = ServerProcess::start(&[]);
    Sandbox::new().run(&["put", "mail", "welcome", "{}", "--jid", "j1", "--url", &server.url()]);
    let url = format!("embedded:{}", server.data().display());
    assert_eq!(in_bash(&url, &["geartrain", "get", ""]), ["j1"]);
}

#[test]
fn zsh_and_fish_get_candidates_too() {
    let (sandbox, server) = (Sandbox::new(), ServerProcess::start(&["--store", "memory:"]));
    sandbox.run(&["put", "mail", "welcome", "{}", "--url", &server.url()]);
    for shell in ["zsh", "fish"] {
        let script = sandbox.run(&["completions", shell]);
        assert!(script.contains("GEARTRAIN_COMPLETE"), "{script}");
        let mut command = with_our_path(Command::new(env!("CARGO_BIN_EXE_geartrain")), &server.url());
        command.env("GEARTRAIN_COMPLETE", shell).env("_CLAP_COMPLETE_INDEX", "2");
        let output = command.args(["--", "geartrain", "peek", "m"]).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), "mail");
    }
}
