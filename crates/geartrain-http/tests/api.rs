//! Resources, batches, long polls, metrics and the OpenAPI description.

use geartrain_core::{Call, Get, Jid, Reply};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

use crate::common::Server;

#[tokio::test]
async fn a_job_goes_from_put_to_its_result() {
    let server = Server::start().await;
    let put = r#"{"klass":"welcome","payload":{"to":"ann"},"jid":"j1","keep_result":true}"#;
    let created = json!({ "jid": "j1", "outcome": "created", "coalesced": false, "due": null });
    assert_eq!(server.ask("POST", "/v1/queues/mail/jobs", put).await, created);
    assert_eq!(server.ask("GET", "/v1/jobs/j1", "").await["payload"], json!({ "to": "ann" }));
    assert_eq!(server.ask("GET", "/v1/jobs/j1/why", "").await["state"], "waiting");
    assert_eq!(server.ask("GET", "/v1/queues/mail/peek?count=2", "").await[0]["jid"], "j1");
    let popped = server.ask("POST", "/v1/queues/mail/pop", r#"{"worker":"w1"}"#).await;
    let token = &popped[0]["token"];
    let progress = json!({ "token": token, "part": 1, "whole": 2 }).to_string();
    assert_eq!(server.ask("POST", "/v1/jobs/j1/progress", &progress).await["progress"]["percent"], 50);
    let complete = json!({ "token": token, "result": [1, 2] }).to_string();
    assert_eq!(server.ask("POST", "/v1/jobs/j1/complete", &complete).await["state"], "complete");
    assert_eq!(server.ask("GET", "/v1/jobs/j1/result", "").await["result"], json!([1, 2]));
    let late = json!({ "token": token }).to_string();
    assert_eq!(server.refused("POST", "/v1/jobs/j1/heartbeat", &late).await, (409, "lock-lost".to_owned()));
    server.end().await;
}

#[tokio::test]
async fn resources_are_listed_and_changed() {
    let server = Server::start().await;
    for number in 0..5 {
        let put = json!({ "queue": "a/b c", "klass": "k", "jid": format!("j{number}"), "tags": ["t"] });
        server.ask("POST", "/v1/jobs", &put.to_string()).await;
    }
    let page = server.ask("GET", "/v1/jobs?queue=a%2Fb+c&limit=3", "").await;
    assert_eq!(page["items"].as_array().unwrap().len(), 3);
    let next = page["next"].as_str().unwrap();
    let encoded: String = next.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let rest = server.ask("GET", &format!("/v1/jobs?queue=a%2Fb%20c&limit=3&after={encoded}"), "").await;
    assert_eq!((rest["items"].as_array().unwrap().len(), &rest["next"]), (2, &Value::Null));
    assert_eq!(server.ask("GET", "/v1/queues/a%2Fb%20c", "").await[0]["waiting"], 5);
    let paused = server.ask("POST", "/v1/queues/a%2Fb%20c/pause", "").await;
    assert_eq!(paused, json!({ "queues": ["a/b c"], "paused": true }));
    assert_eq!(server.ask("POST", "/v1/jobs/j0/tag", r#"{"tags":["u"]}"#).await["tags"], json!(["t", "u"]));
    assert_eq!(server.ask("DELETE", "/v1/jobs/j0?because=a%20test", "").await, json!({ "cancelled": 1 }));
    assert_eq!(server.ask("GET", "/v1/jobs/j0/canceled", "").await["because"], "a test");
    let preview = server.ask("POST", "/v1/bulk/cancel", r#"{"where":"tag=t","dry_run":true}"#).await;
    assert_eq!(preview["matching"], 4);
    assert_eq!(server.ask("POST", "/v1/bulk/cancel", r#"{"where":"tag=t"}"#).await["acted"], 4);
    let limits = server.ask("PUT", "/v1/queues/mail/limits", r#"{"max":10,"rate":"5/s"}"#).await;
    assert_eq!(server.ask("GET", "/v1/queues/mail/limits", "").await, limits);
    assert_eq!(server.ask("PUT", "/v1/options/heartbeat", r#"{"value":90}"#).await["value"], "90");
    assert_eq!(server.ask("DELETE", "/v1/options/heartbeat", "").await["value"], "60");
    let recur = r#"{"queue":"q","klass":"k","cron":"0 9 * * mon-fri","jid":"r1"}"#;
    assert_eq!(server.ask("POST", "/v1/schedules", recur).await["outcome"], "recurring");
    let listed = server.ask("GET", "/v1/schedules", "").await;
    let runs: Vec<f64> =
        listed[0]["next_runs"].as_array().unwrap().iter().map(|run| run.as_f64().unwrap()).collect();
    assert_eq!((&listed[0]["jid"], &listed[0]["next"]), (&json!("r1"), &json!(runs[0] as u64)));
    assert!(runs.len() == 5 && runs.is_sorted(), "{runs:?}");
    let paused = server.ask("POST", "/v1/schedules/r1/pause", "").await;
    assert_eq!((&paused["paused"], &paused["next_runs"]), (&json!(true), &json!([])));
    assert_eq!(server.ask("DELETE", "/v1/schedules/r1", "").await, json!({ "removed": ["r1"] }));
    let can = r#"{"can":[{"queue":"mail"}]}"#;
    assert_eq!(server.ask("POST", "/v1/workers/w1/announce", can).await["can"][0]["queue"], "mail");
    assert_eq!(server.ask("GET", "/v1/queues/mail/roll-call", "").await["workers"], 1);
    assert_eq!(server.ask("GET", "/v1/failures", "").await, json!([]));
    assert_eq!(server.ask("GET", "/v1/tracked", "").await, json!({ "jobs": [], "gone": [] }));
    server.end().await;
}

#[tokio::test]
async fn a_batch_has_an_outcome_for_each_operation() {
    let server = Server::start().await;
    let batch = r#"[{"put":{"queue":"q","klass":"k","jid":"a"}},{"get":{"jid":"b"}},{"pop":{"queue":"q","worker":"w"}}]"#;
    let outcomes = server.ask("POST", "/v1/batch", batch).await;
    assert_eq!(outcomes[0]["outcome"], "created");
    assert_eq!(outcomes[1]["error"]["code"], "no-such-job");
    assert_eq!(outcomes[2][0]["jid"], "a");
    assert_eq!(server.ask("POST", "/v1/batch", r#"{"queues":{}}"#).await[0]["running"], 1);
    server.end().await;
}

#[tokio::test]
async fn a_pop_that_waits_answers_when_there_is_a_job() {
    let server = Server::start().await;
    let headers = "Content-Type: application/json\r\n";
    let wait = br#"{"worker":"w1","wait":"1h"}"#;
    let mut waiting = server.open("POST", "/v1/queues/q/pop", headers, wait).await;
    server.ask("POST", "/v1/queues/q/jobs", r#"{"klass":"k","jid":"j1"}"#).await;
    let mut response = String::new();
    waiting.read_to_string(&mut response).await.unwrap();
    assert!(response.contains(r#""jid":"j1""#), "{response}");
    assert_eq!(server.ask("POST", "/v1/queues/q/pop", r#"{"worker":"w1","wait":0}"#).await, json!([]));
    server.end().await;
}

#[tokio::test]
async fn a_server_that_stops_ends_the_waits() {
    let server = Server::start().await;
    let headers = "Content-Type: application/json\r\n";
    let mut waiting =
        server.open("POST", "/v1/pop", headers, br#"{"queue":"q","worker":"w1","wait":"1h"}"#).await;
    // A worker is seen when its pop was executed.
    while server.ask("GET", "/v1/workers", "").await == json!([]) {}
    server.end().await;
    let mut response = String::new();
    waiting.read_to_string(&mut response).await.unwrap();
    assert!(response.starts_with("HTTP/1.1 503") && response.contains("\"unavailable\""), "{response}");
}

#[tokio::test]
async fn a_client_that_closes_while_it_waits_gets_no_job() {
    let server = Server::start().await;
    let headers = "Content-Type: application/json\r\n";
    let gone = server.open("POST", "/v1/pop", headers, br#"{"queue":"q","worker":"w1","wait":"1h"}"#).await;
    while server.ask("GET", "/v1/workers", "").await == json!([]) {}
    drop(gone);
    server.ask("POST", "/v1/queues/q/jobs", r#"{"klass":"k","jid":"j1"}"#).await;
    // At first the job may be handed to the client that is gone; it is released then.
    let popped = server.ask("POST", "/v1/queues/q/pop", r#"{"worker":"w2","wait":"1m"}"#).await;
    assert_eq!(popped[0]["jid"], "j1");
    let get = Call::from(Get { jid: Jid::new("j1").unwrap() });
    match server.backend.execute(vec![get]).await.unwrap().remove(0) {
        Ok(Reply::Get(Some(job))) => assert_eq!(job.remaining, 5),
        other => panic!("{other:?}"),
    }
    server.end().await;
}

#[tokio::test]
async fn jobs_of_a_batch_that_is_given_up_during_a_wait_are_released() {
    let server = Server::start().await;
    server.ask("POST", "/v1/queues/q/jobs", r#"{"klass":"k","jid":"j1"}"#).await;
    let batch =
        br#"[{"pop":{"queue":"q","worker":"w1"}},{"pop":{"queue":"empty","worker":"w2","wait":"1h"}}]"#;
    let gone = server.open("POST", "/v1/batch", "Content-Type: application/json\r\n", batch).await;
    while server.ask("GET", "/v1/jobs/j1", "").await["state"] != "running" {}
    drop(gone);
    let popped = server.ask("POST", "/v1/queues/q/pop", r#"{"worker":"w3","wait":"30s"}"#).await;
    assert_eq!(popped[0]["jid"], "j1");
    server.end().await;
}

#[tokio::test]
async fn metrics_show_queues_workers_and_requests() {
    let server = Server::start().await;
    server.ask("POST", "/v1/queues/a%22b/jobs", r#"{"klass":"k"}"#).await;
    let metrics = server.send("GET", "/metrics", "").await;
    assert!(metrics.head.contains("content-type: text/plain; version=0.0.4"), "{}", metrics.head);
    for line in [
        r#"geartrain_jobs{queue="a\"b",state="waiting"} 1"#,
        r#"geartrain_queue_paused{queue="a\"b"} 0"#,
        "geartrain_workers 0",
        r#"geartrain_http_requests_total{status="2xx"} 1"#,
    ] {
        assert!(metrics.body.lines().any(|found| found == line), "{line}: {}", metrics.body);
    }
    assert_eq!(server.ask("GET", "/healthz", "").await["status"], "ok");
    assert_eq!(server.ask("GET", "/readyz", "").await["status"], "ready");
    server.end().await;
}

/// What is described is answered, and nothing else.
#[tokio::test]
async fn the_description_agrees_with_the_router() {
    let server = Server::start().await;
    let description = server.ask("GET", "/openapi.json", "").await;
    let paths = description["paths"].as_object().unwrap();
    assert!(paths.len() > 50, "{}", paths.len());
    let mut ids = Vec::new();
    for (path, methods) in paths {
        let concrete: String = path
            .split('/')
            .map(|part| if part.starts_with('{') { "x" } else { part })
            .collect::<Vec<_>>()
            .join("/");
        for method in ["get", "post", "put", "delete", "patch"] {
            let described = &methods[method];
            // A field that no operation has: the request is refused before anything is done.
            let (query, body) = if matches!(method, "get" | "delete") {
                ("?nonsense=1", "")
            } else {
                ("", r#"{"nonsense":1}"#)
            };
            let response =
                server.send(&method.to_ascii_uppercase(), &format!("{concrete}{query}"), body).await;
            assert_eq!(response.status == 405, described.is_null(), "{method} {path}: {response:?}");
            if described.is_null() {
                continue;
            }
            ids.push(described["operationId"].as_str().unwrap().to_owned());
            let named = described["parameters"].as_array().unwrap();
            for part in path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')) {
                assert!(named.iter().any(|parameter| parameter["name"] == part), "{path}");
            }
        }
    }
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count, "operation ids are unique");
    assert_eq!(server.refused("GET", "/v1/nothing", "").await, (404, "not-found".to_owned()));
    server.end().await;
}
