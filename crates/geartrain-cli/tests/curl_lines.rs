//! The `curl` lines of the documentation are run, in the order of their page, against a real server.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use geartrain_testkit::peers::Scratch;
use geartrain_testkit::tls::Authority;
use serde_json::Value;

use crate::sandbox::Sandbox;
use crate::server_process::{ServerProcess, until};

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").canonicalize().unwrap()
}

/// The lines in the shell blocks of a page that begin with `curl`, continued ones as one.
fn curl_lines(page: &str) -> Vec<String> {
    let text = std::fs::read_to_string(docs().join(page)).unwrap().replace("\\\n", " ");
    let (mut lines, mut is_shell) = (Vec::new(), false);
    for line in text.lines() {
        match line.strip_prefix("```") {
            Some(language) => is_shell = language == "sh",
            None if is_shell && line.starts_with("curl ") => lines.push(line.to_owned()),
            None => {}
        }
    }
    lines
}

/// Runs a line in a shell, in a directory with the files that it names, and returns what it printed.
fn run(line: &str, directory: &Path) -> String {
    // A stream has no end: what has come after a second must do.
    let is_stream = line.contains("curl -N ");
    let limit = if is_stream { "--max-time 1" } else { "--fail-with-body --max-time 30" };
    let line = line.replacen("curl ", &format!("curl --silent --show-error {limit} "), 1);
    let output = Command::new("sh").args(["-c", &line]).current_dir(directory).stdin(Stdio::null()).output();
    let output = output.unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // 28 is the code of a curl whose time is over.
    let is_done = output.status.success() || is_stream && output.status.code() == Some(28);
    assert!(is_done, "{line}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// Runs the lines of a page. The jid and the token of the latest job stand for `JID` and `1.0`.
fn run_page(page: &str, prepare: impl Fn(String) -> String, directory: &Path) -> usize {
    let (mut jid, mut token) = ("JID".to_owned(), "1.0".to_owned());
    let lines = curl_lines(page);
    for line in &lines {
        let line = prepare(line.replace("JID", &jid).replace("\"1.0\"", &format!("\"{token}\"")));
        let printed = run(&line, directory);
        if line.contains("curl -N ") {
            assert!(printed.starts_with("retry: "), "{line}: {printed}");
            continue;
        }
        let Ok(document) = serde_json::from_str::<Value>(&printed) else {
            assert!(!printed.is_empty() || line.contains(" -o "), "{line}");
            continue;
        };
        let job = if document.is_array() { &document[0] } else { &document };
        if let Some(found) = job["jid"].as_str() {
            jid = found.to_owned();
        }
        if let Some(found) = job["token"].as_str() {
            token = found.to_owned();
        }
    }
    lines.len()
}

#[test]
fn the_lines_of_the_http_page_succeed() {
    let scratch = Scratch::new("curl-lines");
    let log = format!("sqlite:{}", scratch.path().join("results.db").display());
    let server = ServerProcess::start(&["--http", "127.0.0.1:0", "--result-log", &log]);
    let address = server.http();
    let count = run_page("http.md", |line| line.replace("localhost:7410", &address), scratch.path());
    assert!(count >= 8, "{count}");
}

#[test]
fn the_lines_of_the_security_page_succeed() {
    let scratch = Scratch::new("curl-lines");
    let authority = Authority::new();
    authority.write(&scratch, "ca.pem");
    let (certificate, private_key) = authority.sign(&scratch, "server", "queue.example");
    let server = ServerProcess::start(&[
        "--http",
        "127.0.0.1:0",
        "--http-host",
        "queue.example",
        "--http-tls-cert",
        certificate.to_str().unwrap(),
        "--http-tls-key",
        private_key.to_str().unwrap(),
    ]);
    let data = server.data().display().to_string();
    let key = Sandbox::new().run(&["key", "add", "mailer", "--role", "operator", "--data", &data]);
    std::fs::write(scratch.path().join("mailer.key"), key).unwrap();
    until("the server requires the key", || {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--insecure", "--output", "/dev/null", "--write-out", "%{http_code}"]);
        curl.arg(format!("https://{}/v1/whoami", server.http())).output().unwrap().stdout == b"401"
    });
    let (host, port) =
        server.http().rsplit_once(':').map(|(host, port)| (host.to_owned(), port.to_owned())).unwrap();
    let prepare = |line: String| {
        let line = line.replace("queue.example:7410", &format!("queue.example:{port}"));
        line.replacen("curl ", &format!("curl --resolve queue.example:{port}:{host} "), 1)
    };
    assert!(run_page("security.md", prepare, scratch.path()) >= 1);
}

#[test]
fn no_other_page_has_a_curl_line() {
    let mut pages = Vec::new();
    for directory in [docs(), docs().join("formats")] {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path.strip_prefix(docs()).unwrap().display().to_string());
            }
        }
    }
    let run = ["http.md", "security.md"];
    let others: Vec<&String> =
        pages.iter().filter(|page| !run.contains(&page.as_str()) && !curl_lines(page).is_empty()).collect();
    assert!(others.is_empty(), "their lines are not run: {others:?}");
}
