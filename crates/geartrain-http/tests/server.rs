//! The server itself: history, measurements, backups.

use std::time::{Duration, Instant};

use geartrain_http::Options;
use serde_json::{Value, json};

use crate::common::{Directory, Server, stored};

/// How long a sample may take to come.
const SAMPLED_WITHIN: Duration = Duration::from_secs(30);

/// Asks until a document is as it should be.
async fn until(server: &Server, path: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let begun = Instant::now();
    loop {
        let document = server.ask("GET", path, "").await;
        if is_so(&document) {
            return document;
        }
        assert!(begun.elapsed() < SAMPLED_WITHIN, "{document}");
    }
}

/// The last value that was sampled, if there is one.
fn last(series: &Value) -> Option<f64> {
    series.as_array()?.iter().rev().find_map(Value::as_f64)
}

#[tokio::test]
async fn a_history_shows_what_happened_to_the_queues() {
    let server = Server::start().await;
    server.ask("POST", "/v1/queues/mail/jobs", r#"{"klass":"k","jid":"j0"}"#).await;
    until(&server, "/v1/history?all=true", |history| last(&history["queues"]["mail"]["put"]) == Some(0.0))
        .await;
    for number in 1..=20 {
        let put = json!({ "klass": "k", "jid": format!("j{number}") });
        server.ask("POST", "/v1/queues/mail/jobs", &put.to_string()).await;
    }
    let popped = server.ask("POST", "/v1/queues/mail/pop", r#"{"worker":"w","count":8}"#).await;
    let token = |index: usize| json!({ "token": popped[index]["token"] }).to_string();
    let path =
        |index: usize, verb: &str| format!("/v1/jobs/{}/{verb}", popped[index]["jid"].as_str().unwrap());
    for index in 0..3 {
        server.ask("POST", &path(index, "complete"), &token(index)).await;
    }
    for index in 3..5 {
        server.ask("POST", &path(index, "retry"), &token(index)).await;
    }
    let failed = json!({ "token": popped[5]["token"], "group": "g", "message": "m" }).to_string();
    server.ask("POST", &path(5, "fail"), &failed).await;

    let sum = |series: &Value| series.as_array().unwrap().iter().filter_map(Value::as_f64).sum::<f64>();
    let is_counted = |history: &Value| sum(&history["queues"]["mail"]["failed"]) > 0.0;
    let history = until(&server, "/v1/history?queue=mail", is_counted).await;
    assert_eq!((history["step"].as_f64(), history["queues"].as_object().unwrap().len()), (Some(2.0), 1));
    let (mail, total) = (&history["queues"]["mail"], &history["total"]);
    // There is no other queue, but there may be samples from before this one.
    for (key, series) in mail.as_object().unwrap() {
        for (of_mail, of_all) in series.as_array().unwrap().iter().zip(total[key].as_array().unwrap()) {
            assert!(of_mail.is_null() || of_mail == of_all, "{key}: {of_mail} of {of_all}");
        }
    }
    assert_eq!(mail["put"].as_array().unwrap().len(), 300);
    assert_eq!((last(&mail["waiting"]), last(&mail["running"])), (Some(15.0), Some(2.0)));
    // Rates are per second of the same samples, so their ratio is that of the jobs.
    let failed = sum(&mail["failed"]);
    for (key, ratio) in [("put", 20.0), ("completed", 3.0), ("retried", 2.0)] {
        assert!((sum(&mail[key]) / failed - ratio).abs() < 0.1, "{key}: {mail}");
    }
    for (span, step, points) in [("10m", 2.0, 300), ("1h", 10.0, 360), ("24h", 300.0, 288)] {
        let history = server.ask("GET", &format!("/v1/history?span={span}"), "").await;
        assert_eq!((&history["queues"], history["step"].as_f64()), (&json!({}), Some(step)));
        let completed = history["total"]["completed"].as_array().unwrap();
        assert!(completed.len() == points && sum(&history["total"]["completed"]) > 0.0, "{span}");
    }
    for wrong in ["span=2h", "span=", "all=maybe", "queue=", "queues=mail"] {
        assert_eq!(server.refused("GET", &format!("/v1/history?{wrong}"), "").await.0, 400, "{wrong}");
    }
    server.end().await;
}

#[tokio::test]
async fn a_server_shows_itself() {
    let server = Server::with(Options { url: Some("memory:".to_owned()), ..Options::default() }).await;
    let shown = server.ask("GET", "/v1/server", "").await;
    for (key, value) in [
        ("version", json!(env!("CARGO_PKG_VERSION"))),
        ("url", json!("memory:")),
        ("sync_mode", json!("none")),
        ("store_bytes", Value::Null),
        ("commit", Value::Null),
        ("sync", Value::Null),
        ("round_trip", Value::Null),
    ] {
        assert_eq!(shown[key], value, "{key}: {shown}");
    }
    assert!(shown["memory"].as_u64().is_some_and(|bytes| bytes > 1 << 20), "{shown}");
    assert!(shown["started"].as_f64().is_some() && shown["uptime"].as_f64().is_some(), "{shown}");
    assert!(shown["connections"]["http"].as_u64().is_some_and(|open| open > 0), "{shown}");
    server.end().await;
}

#[tokio::test]
async fn a_directory_has_measurements_and_a_backup() {
    let directory = Directory::new("measured");
    let server = Server::over(stored(directory.path()), Options::default()).await;
    server.ask("POST", "/v1/queues/mail/jobs", r#"{"klass":"k","jid":"j1"}"#).await;
    let shown = server.ask("GET", "/v1/server", "").await;
    assert_eq!(shown["sync_mode"], "always");
    assert!(shown["store_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{shown}");
    for key in ["commit", "sync"] {
        let p50 = shown[key]["p50"].as_f64().unwrap();
        assert!(p50 > 0.0 && shown[key]["p99"].as_f64().unwrap() >= p50, "{shown}");
    }
    let backup = server.send("GET", "/v1/backup", "").await;
    assert!(backup.head.contains("content-type: application/x-tar"), "{}", backup.head);
    assert!(backup.head.contains("content-disposition: attachment"), "{}", backup.head);
    assert!(backup.body.contains("ustar") && backup.body.len() > 1_024, "{}", backup.body.len());
    server.end().await;
}

#[tokio::test]
async fn what_a_server_lacks_is_refused_with_a_code() {
    let server = Server::start().await;
    for (path, status, code) in [
        ("/v1/backup", 409, "backup"),
        ("/v1/log", 404, "no-result-log"),
        ("/v1/log/size", 404, "no-result-log"),
        ("/v1/log?since=soon", 400, "bad-argument"),
        ("/v1/log?limit=0", 400, "bad-argument"),
        ("/v1/server?x=1", 400, "unknown-field"),
        ("/v1/settings?x=1", 400, "unknown-field"),
        ("/v1/backup?x=1", 400, "unknown-field"),
        ("/metrics?x=1", 400, "unknown-field"),
    ] {
        assert_eq!(server.refused("GET", path, "").await, (status, code.to_owned()), "{path}");
    }
    server.end().await;
}
