//! Access keys, the audit log, secrets and read-only servers, with the real command and server.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use geartrain_testkit::peers::Scratch;
use serde_json::{Value, json};

use crate::sandbox::Sandbox;
use crate::server_process::{ServerProcess, try_start, until};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Runs the command with a password or key in the environment: what it printed, and its exit code.
fn run_with(key: &str, arguments: &[&str]) -> (String, String, i32) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_geartrain"));
    let done = command.args(arguments).env("GEARTRAIN_PASSWORD", key).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&done.stdout), text(&done.stderr), done.status.code().unwrap_or(-1))
}

/// A GET with a bearer token: the status and the body.
pub(crate) fn get(address: &str, path: &str, key: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    let bearer = if key.is_empty() { String::new() } else { format!("Authorization: Bearer {key}\r\n") };
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{bearer}\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

#[test]
fn keys_are_made_listed_and_removed_while_the_server_runs() {
    let sandbox = Sandbox::new();
    let server = ServerProcess::start(&["--http", "127.0.0.1:0", "--log", "info"]);
    let (data, url) = (server.data(), server.url());
    let data = text(&data);
    sandbox.run(&["put", "mail", "k", "--url", &url]);

    let ana = sandbox.json(&["key", "add", "ana", "--role", "viewer", "--data", data]);
    let ana = ana["key"].as_str().unwrap().to_owned();
    let bob = sandbox.json(&["key", "add", "bob", "--role", "operator", "--expires", "90d", "--data", data]);
    let bob = bob["key"].as_str().unwrap().to_owned();
    until("the server requires a key", || get(&server.http(), "/v1/whoami", "").0 == 401);
    until("the server has read both", || get(&server.http(), "/v1/whoami", &bob).0 == 200);
    assert_eq!(sandbox.try_run(&["queues", "--url", &url]).2, 3);
    let (shown, _, code) = run_with(&ana, &["queues", "--url", &url, "--json"]);
    assert_eq!((code, &serde_json::from_str::<Value>(&shown).unwrap()[0]["name"]), (0, &json!("mail")));
    let (_, error, code) = run_with(&ana, &["put", "mail", "k", "--url", &url]);
    assert_eq!(code, 1, "{error}");
    assert!(error.contains("put needs the role operator, and this access has the role viewer"), "{error}");
    let (_, error, _) = run_with(&ana, &["pause", "mail", "--url", &url, "--json"]);
    assert_eq!(serde_json::from_str::<Value>(&error).unwrap()["error"]["code"], "forbidden");
    assert_eq!(run_with(&bob, &["pause", "mail", "--url", &url]).2, 0);

    let listed = sandbox.json(&["key", "ls", "--data", data]);
    assert_eq!(listed[0]["name"], "ana");
    assert_eq!((&listed[1]["role"], listed[1]["expires"].is_number()), (&json!("operator"), true));
    let file = std::fs::read_to_string(server.data().join("access-keys")).unwrap();
    for secret in [&ana, &bob] {
        assert!(secret.starts_with("gtk_") && !file.contains(secret.as_str()), "{file}");
        assert!(!listed.to_string().contains(secret.as_str()));
    }
    let again = sandbox.try_run(&["key", "add", "ana", "--role", "admin", "--data", data]);
    assert_eq!(again.2, 1, "{again:?}");
    assert_eq!(sandbox.try_run(&["key", "rm", "eve", "--data", data]).2, 1);
    assert_eq!(sandbox.try_run(&["key", "add", "a b", "--role", "admin", "--data", data]).2, 2);
    assert_eq!(sandbox.try_run(&["key", "add", "eve", "--role", "owner", "--data", data]).2, 2);

    sandbox.run(&["key", "rm", "ana", "--data", data]);
    until("the key is of no use", || get(&server.http(), "/v1/whoami", &ana).0 == 401);
    assert_eq!(run_with(&ana, &["queues", "--url", &url]).2, 3);
    // Without any key the server stays closed.
    sandbox.run(&["key", "rm", "bob", "--data", data]);
    until("no key is of use", || get(&server.http(), "/v1/whoami", &bob).0 == 401);
    assert_eq!(get(&server.http(), "/v1/whoami", "").0, 401);
}

#[test]
fn the_audit_log_is_shown_by_the_command() {
    let sandbox = Sandbox::new();
    let mut server = ServerProcess::start(&[]);
    let url = server.url();
    sandbox.run(&["put", "mail", "k", "--jid", "j1", "--url", &url]);
    sandbox.run(&["pause", "mail", "--url", &url]);
    sandbox.run(&["cancel", "j1", "--url", &url]);
    assert_eq!(server.terminate(), Some(0));
    let data = server.data();
    let audit = sandbox.json(&["audit", "--data", text(&data), "--since", "1h"]);
    let actions: Vec<_> =
        audit.as_array().unwrap().iter().map(|item| (&item["action"], &item["target"])).collect();
    assert_eq!(actions, [(&json!("pause"), &json!("mail")), (&json!("cancel"), &json!("j1"))]);
    assert_eq!(
        (&audit[1]["count"], &audit[1]["outcome"], &audit[1]["role"]),
        (&json!(1), &json!("ok"), &json!("admin"))
    );
    let missing = sandbox.try_run(&["audit", "--audit-log", "/nonexistent/audit.log"]);
    assert_eq!(missing.2, 3, "{missing:?}");
}

#[test]
fn puts_and_reports_are_recorded_on_request_only() {
    let sandbox = Sandbox::new();
    let mut server = ServerProcess::start(&["--audit", "all"]);
    let url = server.url();
    sandbox.run(&["put", "mail", "k", "--jid", "j1", "--url", &url]);
    sandbox.run(&["pop", "mail", "--worker", "w1", "--url", &url]);
    sandbox.run(&["complete", "j1", "--worker", "w1", "--url", &url]);
    assert_eq!(server.terminate(), Some(0));
    let audit = sandbox.json(&["audit", "--data", text(&server.data())]);
    let actions: Vec<_> =
        audit.as_array().unwrap().iter().map(|item| item["action"].as_str().unwrap()).collect();
    assert_eq!(actions, ["put", "pop", "complete"]);
}

#[test]
fn an_audit_log_that_cannot_be_written_stops_nothing() {
    let sandbox = Sandbox::new();
    // Each write fails as on a full disk.
    let server = ServerProcess::start(&["--audit-log", "/dev/full"]);
    for _ in 0..3 {
        sandbox.run(&["pause", "mail", "--url", &server.url()]);
    }
    until("an error in the log", || !server.logged("audit log /dev/full cannot be written").is_empty());
    sandbox.run(&["resume", "mail", "--url", &server.url()]);
    assert_eq!(server.logged("cannot be written").len(), 1);
}

/// Neither the log at its most talkative, nor the arguments of the process, nor what it prints has a secret.
#[test]
fn no_secret_shows_anywhere() {
    let (sandbox, scratch) = (Sandbox::new(), Scratch::new("secrets"));
    let (password, keys) = (scratch.path().join("password"), scratch.path().join("keys"));
    std::fs::write(&password, "hunter2-of-the-server\n").unwrap();
    let added = sandbox.json(&["key", "add", "ana", "--role", "admin", "--keys-file", text(&keys)]);
    let key = added["key"].as_str().unwrap().to_owned();
    let arguments = [
        "--password-file",
        text(&password),
        "--keys-file",
        text(&keys),
        "--http",
        "127.0.0.1:0",
        "--log",
        "trace",
    ];
    let mut server = ServerProcess::start(&arguments);
    for secret in [key.as_str(), "hunter2-of-the-server"] {
        assert_eq!(run_with(secret, &["pause", "mail", "--url", &server.url()]).2, 0);
        assert_eq!(get(&server.http(), "/v1/queues", secret).0, 200);
    }
    let wrong = "gtk_wrongwrongwrongwrongwrongwrongww";
    let (_, error, code) = run_with(wrong, &["queues", "--url", &server.url()]);
    assert_eq!(code, 3);
    assert!(!error.contains(wrong), "{error}");
    assert_eq!(get(&server.http(), "/v1/queues", wrong).0, 401);
    let arguments = std::fs::read(format!("/proc/{}/cmdline", server.pid())).unwrap();
    let arguments = String::from_utf8_lossy(&arguments).into_owned();
    until("refused logins in the log", || !server.logged("wrong password or key").is_empty());
    assert_eq!(server.terminate(), Some(0));
    let audit = std::fs::read_to_string(server.data().join("audit.log")).unwrap();
    for secret in [key.as_str(), "hunter2-of-the-server", wrong] {
        assert_eq!(server.logged(secret), Vec::<String>::new());
        assert!(!arguments.contains(secret) && !audit.contains(secret), "{audit}");
    }
    assert!(audit.contains("\"who\":\"ana\""), "{audit}");
}

#[test]
fn secrets_may_come_from_the_service_manager() {
    let (sandbox, scratch) = (Sandbox::new(), Scratch::new("credentials"));
    std::fs::write(scratch.path().join("password"), "from-the-manager").unwrap();
    let keys = scratch.path().join("access-keys");
    let key = sandbox.json(&["key", "add", "ana", "--role", "viewer", "--keys-file", text(&keys)]);
    let variables = [("CREDENTIALS_DIRECTORY", text(scratch.path()))];
    let server = ServerProcess::start_in(&variables, &["--http", "127.0.0.1:0"]);
    assert_eq!(get(&server.http(), "/v1/queues", "").0, 401);
    assert_eq!(get(&server.http(), "/v1/queues", "from-the-manager").0, 200);
    assert_eq!(get(&server.http(), "/v1/queues", key["key"].as_str().unwrap()).0, 200);
}

#[test]
fn a_key_file_that_cannot_be_read_is_an_error_that_shows_none_of_it() {
    let scratch = Scratch::new("bad-keys");
    let file = scratch.path().join("keys");
    std::fs::write(&file, "gtk_pasted_by_mistake\n").unwrap();
    let (error, code) = try_start(&["--keys-file", text(&file)]).err().unwrap();
    assert_eq!(code, 2, "{error}");
    assert!(error.contains("line 1") && !error.contains("gtk_"), "{error}");
    let (error, code) = try_start(&["--keys-file", "/nonexistent/keys"]).err().unwrap();
    assert_eq!(code, 2);
    assert!(error.contains("geartrain key add NAME"), "{error}");
    let (error, code) = try_start(&["--http", "0.0.0.0:0"]).err().unwrap();
    assert_eq!(code, 2);
    assert!(error.contains("--keys-file") && error.contains("--insecure"), "{error}");
}

#[test]
fn a_read_only_server_shows_what_there_is_and_changes_nothing() {
    let sandbox = Sandbox::new();
    let mut server = ServerProcess::start(&[]);
    sandbox.run(&["put", "mail", "k", "--jid", "j1", "--url", &server.url()]);
    assert_eq!(server.terminate(), Some(0));
    let store = format!("embedded:{}", server.data().display());
    let read_only = ServerProcess::start(&["--store", &store, "--read-only"]);
    for url in [read_only.url(), store] {
        assert_eq!(sandbox.json(&["queues", "mail", "--url", &url])[0]["waiting"], 1);
        let (_, error, code) = sandbox.try_run(&["cancel", "j1", "--url", &url]);
        assert_eq!(code, 1, "{error}");
        assert!(error.contains("this server is read-only: it refuses cancel"), "{error}");
    }
}
