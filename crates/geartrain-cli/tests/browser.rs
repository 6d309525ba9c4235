//! The dashboard of a real server in Chromium, driven by the scripts of `peers/browser`.

use geartrain_testkit::peers::{Scratch, browse, free_port};
use serde_json::Value;

use crate::sandbox::Sandbox;
use crate::server_process::ServerProcess;

fn dashboard(server: &ServerProcess) -> String {
    format!("http://{}/", server.http())
}

/// Without a result log its page shows an error of the API, which the browser reports.
fn with_result_log(scratch: &Scratch, arguments: &[&str]) -> ServerProcess {
    let results = format!("sqlite:{}/results.db", scratch.path().display());
    ServerProcess::start(&[&["--http", "127.0.0.1:0", "--result-log", &results], arguments].concat())
}

fn nothing(line: &str) {
    panic!("the script asks for something unknown: {line}");
}

#[test]
fn an_admin_watches_and_changes_the_demonstration() {
    let server = ServerProcess::start(&["--demo", "--http", "127.0.0.1:0"]);
    browse("tour.mjs", &[&dashboard(&server)], nothing);
}

#[test]
fn a_viewer_finds_no_actions_and_the_api_refuses_them() {
    let scratch = Scratch::new("browser-results");
    let server = with_result_log(&scratch, &[]);
    let (sandbox, url, data) = (Sandbox::new(), server.url(), server.data());
    let job = |line: &[&str]| drop(sandbox.run(&[&["--url", &url], line].concat()));
    job(&["put", "mail", "welcome", "--jid", "j1"]);
    job(&["put", "mail", "welcome", "--jid", "j2"]);
    job(&["pop", "mail", "--worker", "w1"]);
    job(&["fail", "j1", "broken", "it broke", "--worker", "w1"]);
    job(&["pop", "mail", "--worker", "w1"]);
    job(&["recur", "add", "mail", "report", "--every", "1h", "--jid", "hourly"]);
    job(&["track", "j2"]);
    let key = ["key", "add", "ana", "--role", "viewer", "--data", data.to_str().unwrap()];
    let key: Value = sandbox.json(&key);
    browse("viewer.mjs", &[&dashboard(&server), key["key"].as_str().unwrap()], nothing);
}

#[test]
fn pages_follow_a_server_that_was_away() {
    let http = format!("127.0.0.1:{}", free_port());
    let mut server = ServerProcess::start(&["--http", &http]);
    browse("reconnect.mjs", &[&dashboard(&server)], |line| match line {
        "kill" => server.kill(),
        "restart" => server.restart(),
        other => nothing(other),
    });
}

#[test]
fn every_page_is_accessible_and_fits_a_phone() {
    let scratch = Scratch::new("browser-results");
    let server = with_result_log(&scratch, &["--demo"]);
    browse("pages.mjs", &[&dashboard(&server)], nothing);
}

#[test]
fn names_and_payloads_with_markup_are_shown_as_text() {
    let server = ServerProcess::start(&["--http", "127.0.0.1:0"]);
    browse("markup.mjs", &[&dashboard(&server)], nothing);
}
