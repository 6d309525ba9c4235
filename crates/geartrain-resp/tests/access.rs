//! Access keys over RESP: logging in, roles, what ends with a key, and servers that refuse every change.

use std::sync::Arc;

use geartrain_core::Role;
use geartrain_front::{AccessControl, change_keys, new_access_key};
use geartrain_json::operations;
use geartrain_resp::Options;
use geartrain_testkit::peers::Scratch;
use serde_json::{Value as Json, json};

use crate::common::{Peer, Server, Value};

/// A key for each role, in a file.
struct Keys {
    access: Arc<AccessControl>,
    texts: Vec<(Role, String)>,
    scratch: Scratch,
}

impl Keys {
    fn new() -> Keys {
        let (scratch, mut texts) = (Scratch::new("access"), Vec::new());
        for role in Role::ALL {
            let (key, text) = new_access_key(role.as_str(), role, 0, None).unwrap();
            change_keys(&scratch.path().join("keys"), |keys| {
                keys.push(key);
                Ok(())
            })
            .unwrap();
            texts.push((role, text));
        }
        let access = AccessControl::open().with_key_file(scratch.path().join("keys")).unwrap();
        Keys { access: Arc::new(access), texts, scratch }
    }

    async fn server(&self) -> Server {
        Server::with(Options { access: self.access.clone(), ..Options::default() }).await
    }

    fn of(&self, role: Role) -> &str {
        &self.texts.iter().find(|(of, _)| *of == role).unwrap().1
    }

    async fn peer(&self, server: &Server, role: Role) -> Peer {
        let mut peer = server.peer().await;
        assert_eq!(peer.ask(&["AUTH", role.as_str(), self.of(role)]).await, Value::simple("OK"));
        peer
    }
}

async fn ask(peer: &mut Peer, json: &Json) -> Json {
    peer.ask(&["FCALL", "geartrain_json", "1", "", &json.to_string()]).await.json()
}

/// Fields with which an operation gets as far as it can.
fn fields(operation: &str) -> Json {
    match operation {
        "put" => json!({ "queue": "q", "klass": "k" }),
        "pop" => json!({ "queue": "empty", "worker": "w" }),
        "relock" => json!({ "queues": ["empty"], "worker": "w" }),
        "heartbeat" | "release" | "retry" | "complete" => json!({ "jid": "none", "worker": "w" }),
        "progress" => json!({ "jid": "none", "worker": "w", "part": 1, "whole": 2 }),
        "chunk" => json!({ "jid": "none", "worker": "w", "data": 1 }),
        "fail" => json!({ "jid": "none", "worker": "w", "group": "g", "message": "m" }),
        "timeout" => json!({ "jids": ["none"] }),
        "get" | "canceled" | "status" | "why" | "result" | "track" | "untrack" => json!({ "jid": "j1" }),
        "requeue" => json!({ "jid": "j1" }),
        "cancel" => json!({ "jid": "none" }),
        "priority" => json!({ "jid": "j1", "priority": 1 }),
        "tag" | "untag" => json!({ "jid": "j1", "tags": ["t"] }),
        "depend" => json!({ "jid": "j1", "on": ["none"] }),
        "undepend" => json!({ "jid": "j1", "all": true }),
        "log" => json!({ "jid": "j1", "message": "m" }),
        "peek" | "stats" => json!({ "queue": "q" }),
        "limits" => json!({ "queue": "q", "max": 1_000, "max_concurrency": 5 }),
        "pause" | "resume" => json!({ "queues": ["q"] }),
        "forget" => json!({ "queues": ["none"] }),
        "unfail" => json!({ "group": "g" }),
        "recur" => json!({ "queue": "q", "klass": "k", "every": "1h", "jid": "r2" }),
        "unrecur" => json!({ "jids": ["r1"] }),
        "recur-pause" | "recur-resume" | "recur-run" | "recur-edit" => json!({ "jid": "r1" }),
        "roll-call" => json!({ "queue": "q" }),
        "announce" => json!({ "worker": "w", "can": [{ "queue": "q" }] }),
        "worker-lost" => json!({ "worker": "w" }),
        "events" => json!({ "after": "0", "count": 1 }),
        "set-config" => json!({ "key": "heartbeat", "value": 60 }),
        "unset-config" => json!({ "key": "heartbeat" }),
        _ => json!({}),
    }
}

/// The table and the commands that an operation sends are two statements of one rule: the commands are refused.
#[tokio::test]
async fn the_commands_of_an_operation_need_the_role_of_its_table() {
    let keys = Keys::new();
    let server = keys.server().await;
    let mut admin = keys.peer(&server, Role::Admin).await;
    for operation in operations() {
        for role in Role::ALL {
            // What the operation finds, whatever was done before.
            for json in [
                json!({ "put": { "queue": "q", "klass": "k", "jid": "j1" } }),
                json!({ "put": { "queue": "failing", "klass": "k", "jid": "f1" } }),
                json!({ "pop": { "queue": "failing", "worker": "w" } }),
                json!({ "fail": { "jid": "f1", "worker": "w", "group": "g", "message": "m" } }),
                json!({ "recur": { "queue": "q", "klass": "k", "cron": "0 3 * * *", "jid": "r1" } }),
            ] {
                ask(&mut admin, &json).await;
            }
            let mut peer = keys.peer(&server, role).await;
            let reply = ask(&mut peer, &json!({ operation.name: fields(operation.name) })).await;
            let code = reply["error"]["code"].as_str();
            let is_read =
                !matches!(code, Some("bad-argument" | "missing-field" | "unknown-field" | "bad-json"));
            assert!(is_read, "{}: {reply}", operation.name);
            let is_forbidden = code == Some("forbidden");
            assert_eq!(is_forbidden, operation.access > role, "{} by a {role}: {reply}", operation.name);
            if is_forbidden {
                let message = reply["error"]["message"].as_str().unwrap();
                assert!(message.contains(&format!("the role {}", operation.access)), "{message}");
            }
        }
    }
    server.end().await;
}

#[tokio::test]
async fn limits_are_shown_to_viewers_and_set_by_operators() {
    let keys = Keys::new();
    let server = keys.server().await;
    let mut viewer = keys.peer(&server, Role::Viewer).await;
    let shown = ask(&mut viewer, &json!({ "limits": { "queue": "q" } })).await;
    assert!(shown.get("error").is_none(), "{shown}");
    let refused =
        ask(&mut viewer, &json!([{ "limits": { "queue": "q", "max": 5 } }, { "queues": {} }])).await;
    assert_eq!(refused[0]["error"]["code"], "forbidden");
    assert!(refused[1].is_array());
    server.end().await;
}

#[tokio::test]
async fn a_qless_call_of_a_viewer_may_only_read() {
    let keys = Keys::new();
    let server = keys.server().await;
    let mut viewer = keys.peer(&server, Role::Viewer).await;
    viewer.sha = viewer.ask(&["SCRIPT", "LOAD", "return qless"]).await.text().to_owned();
    // Pipelined, so that they are one batch.
    let requests = ["put 0 w q j1 k {} 0", "length 0 q", "pop 0 q w 1", "queues 0"]
        .map(|text| viewer.call(text))
        .concat();
    viewer.send(&requests).await;
    assert_eq!(
        viewer.read().await,
        Value::error("NOPERM put needs the role operator, and this access has the role viewer")
    );
    assert_eq!(viewer.read().await, Value::from(0));
    assert!(viewer.read().await.text().starts_with("NOPERM pop needs"));
    assert_eq!(viewer.read().await.text(), "{}");
    for (request, refused) in [
        (&["PUBLISH", "c", "m"][..], true),
        (&["SCRIPT", "FLUSH"], true),
        (&["SCRIPT", "LOAD", "return 1"], false),
        (&["SUBSCRIBE", "ql:log"], false),
    ] {
        let reply = viewer.ask(request).await;
        assert_eq!(matches!(&reply, Value::Error(text) if text.starts_with("NOPERM")), refused, "{reply:?}");
    }
    let mut operator = keys.peer(&server, Role::Operator).await;
    operator.sha = viewer.sha.clone();
    assert_eq!(operator.qless("put 0 w q j1 k {} 0").await, Value::from("j1"));
    assert!(
        operator
            .qless("config.set 0 heartbeat 5")
            .await
            .text()
            .starts_with("NOPERM set-config needs the role admin")
    );
    assert!(!matches!(operator.qless("config.set 0 q-max-concurrency 5").await, Value::Error(_)));
    server.end().await;
}

#[tokio::test]
async fn a_key_is_accepted_under_its_name_or_none() {
    let keys = Keys::new();
    let server = keys.server().await;
    let viewer = keys.of(Role::Viewer);
    let hello = ["HELLO", "3", "AUTH", "viewer", viewer, "SETNAME", "me"];
    assert!(matches!(server.peer().await.ask(&hello).await, Value::Map(_)));
    for (request, accepted) in [
        (&["AUTH", viewer][..], true),
        (&["AUTH", "default", viewer], true),
        (&["AUTH", "viewer", viewer], true),
        (&["AUTH", "admin", viewer], false),
        (&["AUTH", "gtk_00000000000000000000000000000000"], false),
        (&["HELLO", "2", "AUTH", "admin", viewer], false),
    ] {
        let mut peer = server.peer().await;
        let reply = peer.ask(request).await;
        assert_eq!(!matches!(reply, Value::Error(_)), accepted, "{request:?}: {reply:?}");
        let pong = peer.ask(&["PING"]).await;
        assert_eq!(pong == Value::simple("PONG"), accepted, "{pong:?}");
        if accepted {
            peer.ask(&["RESET"]).await;
            assert!(peer.ask(&["PING"]).await.text().starts_with("NOAUTH"));
        }
    }
    server.end().await;
}

#[tokio::test]
async fn the_connections_of_a_removed_key_end_and_no_others() {
    let keys = Keys::new();
    let server = keys.server().await;
    let mut viewer = keys.peer(&server, Role::Viewer).await;
    viewer.ask(&["SUBSCRIBE", "ql:log"]).await;
    let mut admin = keys.peer(&server, Role::Admin).await;
    change_keys(&keys.scratch.path().join("keys"), |list| {
        list.retain(|key| key.name != "viewer");
        Ok(())
    })
    .unwrap();
    assert!(keys.access.reload().unwrap());
    assert_eq!(viewer.next().await, None);
    assert_eq!(admin.ask(&["PING"]).await, Value::simple("PONG"));
    let again = server.peer().await.ask(&["AUTH", keys.of(Role::Viewer)]).await;
    assert!(again.text().starts_with("WRONGPASS"), "{again:?}");
    server.end().await;
}

#[tokio::test]
async fn a_read_only_server_changes_nothing_for_any_caller() {
    let access = Arc::new(AccessControl::open().read_only(true));
    let server = Server::with(Options { access, allow_flush: true, ..Options::default() }).await;
    let mut peer = server.qless().await;
    let put = peer.qless("put 0 w q j1 k {} 0").await;
    assert_eq!(put, Value::error("READONLY this server is read-only: it refuses put"));
    assert!(peer.ask(&["FLUSHDB"]).await.text().starts_with("READONLY"));
    assert_eq!(peer.qless("queues 0").await.text(), "{}");
    for operation in operations() {
        let reply = ask(&mut peer, &json!({ operation.name: fields(operation.name) })).await;
        let code = reply["error"]["code"].as_str().unwrap_or_default();
        assert!(operation.access > Role::Viewer || code != "read-only", "{}: {reply}", operation.name);
        assert!(
            operation.access == Role::Viewer
                || ["read-only", "no-such-job", "no-such-recurring"].contains(&code)
                || operation.name == "unfail",
            "{}: {reply}",
            operation.name
        );
    }
    assert_eq!(peer.qless("queues 0").await.text(), "{}");
    server.end().await;
}
