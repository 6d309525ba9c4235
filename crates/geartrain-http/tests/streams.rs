//! Events and result streams as SSE.

use serde_json::{Value, json};

use crate::common::{Messages, Server};

const ACCEPT: &str = "Accept: text/event-stream\r\n";

async fn put(server: &Server, queue: &str, jid: &str) {
    let put = json!({ "klass": "k", "jid": jid }).to_string();
    server.ask("POST", &format!("/v1/queues/{queue}/jobs"), &put).await;
}

#[tokio::test]
async fn events_are_streamed_filtered_and_resumed() {
    let server = Server::start().await;
    let path = "/v1/events?queue=mail&event=put&event=popped";
    let mut messages = Messages::of(server.open("GET", path, ACCEPT, b"").await).await;
    put(&server, "other", "x").await;
    put(&server, "mail", "a").await;
    put(&server, "mail", "b").await;
    let (first, kind, event) = messages.next().await;
    assert_eq!((kind.as_str(), &event["event"], &event["jid"]), ("", &json!("put"), &json!("a")));
    let (second, _, event) = messages.next().await;
    assert_eq!(event["jid"], "b");
    assert_eq!(event["position"].as_str(), Some(second.as_str()));
    drop(messages);
    server.ask("POST", "/v1/queues/mail/pop", r#"{"worker":"w1"}"#).await;
    // Again from the first on, as a browser asks for it.
    let headers = format!("{ACCEPT}Last-Event-ID: {first}\r\n");
    let mut messages = Messages::of(server.open("GET", path, &headers, b"").await).await;
    assert_eq!(messages.next().await.2["jid"], "b");
    let (_, _, event) = messages.next().await;
    assert_eq!((&event["event"], &event["jid"]), (&json!("popped"), &json!("a")));
    // The same as a list.
    let listed = server.ask("GET", &format!("/v1/events?after={first}"), "").await;
    assert_eq!(listed[0]["jid"], "b");
    let ahead = format!("{ACCEPT}Last-Event-ID: 999999\r\n");
    let refused = server.send_with("GET", path, &ahead, b"").await;
    assert_eq!(refused.refusal(), (400, "cursor-ahead".to_owned()));
    let bad = server.send_with("GET", "/v1/events?nonsense=1", ACCEPT, b"").await;
    assert_eq!(bad.refusal(), (400, "unknown-field".to_owned()));
    server.end().await;
}

#[tokio::test]
async fn a_result_is_streamed_from_the_first_chunk_to_the_end() {
    let server = Server::start().await;
    put(&server, "q", "j1").await;
    let mut messages = Messages::of(server.open("GET", "/v1/jobs/j1/stream", ACCEPT, b"").await).await;
    let popped = server.ask("POST", "/v1/queues/q/pop", r#"{"worker":"w1"}"#).await;
    let with = |more: Value| {
        let mut fields = more;
        fields["token"] = popped[0]["token"].clone();
        fields.to_string()
    };
    let told = server.ask("POST", "/v1/jobs/j1/chunk", &with(json!({ "data": "half" }))).await;
    assert_eq!(told["told"], 1);
    server.ask("POST", "/v1/jobs/j1/chunk", &with(json!({ "data": "hot", "warning": true }))).await;
    server.ask("POST", "/v1/jobs/j1/progress", &with(json!({ "part": 1, "whole": 4 }))).await;
    server.ask("POST", "/v1/jobs/j1/complete", &with(json!({ "result": { "n": 1 } }))).await;
    let mut received = Vec::new();
    for _ in 0..4 {
        let (_, kind, data) = messages.next().await;
        received.push((kind, data));
    }
    assert_eq!(received[0], ("data".to_owned(), json!("half")));
    assert_eq!(received[1], ("warning".to_owned(), json!("hot")));
    assert_eq!((received[2].0.as_str(), &received[2].1["percent"]), ("progress", &json!(25)));
    assert_eq!((received[3].0.as_str(), &received[3].1["result"]), ("ended", &json!({ "n": 1 })));
    let late = server.send("GET", "/v1/jobs/j1/stream", "").await;
    assert_eq!(late.refusal(), (404, "no-result".to_owned()));
    server.end().await;
}

#[tokio::test]
async fn a_result_is_awaited_with_a_long_poll() {
    let server = Server::start().await;
    put(&server, "q", "j1").await;
    let waiting = server.send("GET", "/v1/jobs/j1/result?wait=1h", "");
    let work = async {
        let popped = server.ask("POST", "/v1/queues/q/pop", r#"{"worker":"w1"}"#).await;
        // The client has attached itself before the job ends.
        while server.ask("GET", "/v1/jobs/j1/status", "").await["attached"] == 0 {}
        let complete = json!({ "token": popped[0]["token"], "result": "done" }).to_string();
        server.ask("POST", "/v1/jobs/j1/complete", &complete).await;
    };
    let (result, ()) = futures_util::join!(waiting, work);
    assert_eq!((result.status, &result.json()["result"]), (200, &json!("done")));
    server.end().await;
}
