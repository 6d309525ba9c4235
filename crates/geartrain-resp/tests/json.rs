//! JSON over RESP.

use serde_json::{Value as Json, json};

use crate::common::{Peer, Server, Value, request};

fn call(json: &str) -> Vec<u8> {
    request(&["FCALL", "geartrain_json", "1", "", json])
}

async fn ask(peer: &mut Peer, json: Json) -> Json {
    peer.send(&call(&json.to_string())).await;
    peer.read().await.json()
}

#[tokio::test]
async fn a_job_is_put_popped_and_completed_in_json() {
    let server = Server::start().await;
    let mut peer = server.peer().await;
    let put = ask(&mut peer, json!({ "put": { "queue": "mail", "klass": "k", "jid": "j1" } })).await;
    assert_eq!(put, json!({ "jid": "j1", "outcome": "created", "coalesced": false, "due": null }));
    let popped = ask(&mut peer, json!({ "pop": { "queue": "mail", "worker": "w1" } })).await;
    let complete = json!({ "complete": { "jid": "j1", "token": popped[0]["token"] } });
    assert_eq!(ask(&mut peer, complete).await, json!({ "jid": "j1", "state": "complete", "queue": null }));
    let error = ask(&mut peer, json!({ "get": { "jid": "j2" } })).await;
    assert_eq!(error["error"]["code"], "no-such-job");
    let batch = ask(&mut peer, json!([{ "queues": {} }, { "cancel": { "jid": 7 } }])).await;
    assert_eq!((&batch[0][0]["name"], &batch[1]["error"]["code"]), (&json!("mail"), &json!("bad-argument")));
    server.end().await;
}

#[tokio::test]
async fn requests_of_one_connection_are_answered_in_order() {
    let server = Server::start().await;
    let mut peer = server.peer().await;
    let mut bytes = Vec::new();
    for json in [
        r#"{"put":{"queue":"q","klass":"k","jid":"a"}}"#,
        r#"{"requeue":{"jid":"a","queue":"other"}}"#,
        r#"{"get":{"jid":"a"}}"#,
        "nonsense",
    ] {
        bytes.extend(call(json));
    }
    bytes.extend(request(&["PING"]));
    peer.send(&bytes).await;
    assert_eq!(peer.read().await.json()["outcome"], "created");
    assert_eq!(peer.read().await.json()["outcome"], "replaced");
    assert_eq!(peer.read().await.json()["queue"], "other");
    assert_eq!(peer.read().await.json()["error"]["code"], "bad-json");
    assert_eq!(peer.read().await, Value::simple("PONG"));
    server.end().await;
}

const WAIT: &str = r#"{"pop":{"queue":"q","worker":"w1","wait":"1h"}}"#;

#[tokio::test]
async fn a_pop_that_waits_answers_when_there_is_a_job() {
    let server = Server::start().await;
    let (mut worker, mut client) = (server.peer().await, server.peer().await);
    worker.send(&call(WAIT)).await;
    ask(&mut client, json!({ "put": { "queue": "q", "klass": "k", "jid": "j1" } })).await;
    assert_eq!(worker.read().await.json()[0]["jid"], "j1");
    server.end().await;
}

#[tokio::test]
async fn a_client_that_closes_while_it_waits_gets_no_job() {
    let server = Server::start().await;
    let (mut gone, mut client) = (server.peer().await, server.peer().await);
    gone.send(&call(WAIT)).await;
    // Its wait has begun when a request behind it was executed.
    gone.send(&call(r#"{"put":{"queue":"begun","klass":"k","jid":"b"}}"#)).await;
    while ask(&mut client, json!({ "get": { "jid": "b" } })).await["jid"] != "b" {}
    drop(gone);
    // The connection is gone when it is off the list of clients.
    while client.ask(&["CLIENT", "LIST"]).await.text().lines().count() > 1 {}
    ask(&mut client, json!({ "put": { "queue": "q", "klass": "k", "jid": "j1" } })).await;
    let popped = ask(&mut client, json!({ "pop": { "queue": "q", "worker": "w2" } })).await;
    assert_eq!(popped[0]["jid"], "j1");
    server.end().await;
}

#[tokio::test]
async fn a_server_that_stops_ends_the_waits() {
    let server = Server::start().await;
    let mut peer = server.peer().await;
    peer.send(&call(WAIT)).await;
    peer.send(&call(r#"{"put":{"queue":"begun","klass":"k","jid":"b"}}"#)).await;
    let mut client = server.peer().await;
    while ask(&mut client, json!({ "get": { "jid": "b" } })).await["jid"] != "b" {}
    server.stop.cancel();
    assert_eq!(peer.read().await.json()["error"]["code"], "unavailable");
    server.end().await;
}

#[tokio::test]
async fn a_call_that_is_none_is_an_error() {
    let server = Server::start().await;
    let mut peer = server.peer().await;
    for words in [
        &["FCALL", "geartrain_json"][..],
        &["FCALL", "geartrain_json", "0", "{}"],
        &["FCALL", "geartrain_json", "1", "tenant", "{}"],
        &["FCALL", "geartrain_json", "1", "", "{}", "more"],
    ] {
        assert!(matches!(peer.ask(words).await, Value::Error(_)), "{words:?}");
    }
    server.end().await;
}
