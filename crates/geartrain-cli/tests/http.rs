//! The same operations by the command, over HTTP and as JSON over RESP: the same documents.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::sandbox::Sandbox;
use crate::server_process::ServerProcess;

/// Sends a request, and returns the status and the document.
fn http(address: &str, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
    let body = body.map(Value::to_string).unwrap_or_default();
    let content_type = if body.is_empty() { "" } else { "Content-Type: application/json\r\n" };
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\n{content_type}Connection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {response}")))
}

/// The reply to one operation as JSON over RESP.
fn resp(address: &str, operation: &Value) -> Value {
    let operation = operation.to_string();
    let words = ["FCALL", "geartrain_json", "1", "", &operation];
    let mut request = format!("*{}\r\n", words.len());
    words.iter().for_each(|word| request.push_str(&format!("${}\r\n{word}\r\n", word.len())));
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    let (_, document) = reply.split_once("\r\n").unwrap();
    serde_json::from_str(document.trim_end()).unwrap_or_else(|error| panic!("{error}: {reply}"))
}

/// Leaves out what differs from one time to the next: times, and tokens.
fn timeless(mut document: Value) -> Value {
    match &mut document {
        Value::Object(fields) => {
            for (key, value) in fields.iter_mut() {
                *value = match key.as_str() {
                    "token" | "expires" | "when" | "oldest" | "ended" | "until" | "at" | "put" | "seen"
                    | "per_minute"
                        if !value.is_null() =>
                    {
                        json!("…")
                    }
                    "run" | "wait" => json!("…"),
                    _ => timeless(value.take()),
                };
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| *item = timeless(item.take())),
        _ => {}
    }
    document
}

#[test]
fn the_command_http_and_resp_give_the_same_documents() {
    let server = ServerProcess::start(&["--http", "127.0.0.1:0"]);
    let (sandbox, http_address) = (Sandbox::new(), server.http());
    let url = server.url();
    let command = |line: &[&str]| timeless(sandbox.json(&[&["--url", &url], line].concat()));
    let web = |method: &str, path: &str, body: Option<Value>| {
        let (status, document) = http(&http_address, method, path, body.as_ref());
        assert_eq!(status, 200, "{method} {path}: {document}");
        timeless(document)
    };
    let redis = |operation: Value| timeless(resp(&server.address(), &operation));
    // Each way has a queue of its own, of the same name in the documents.
    let token = |jid: &str| {
        let (_, job) = http(&http_address, "GET", &format!("/v1/jobs/{jid}"), None);
        job["lock"]["token"].as_str().unwrap_or_else(|| panic!("{job}")).to_owned()
    };
    let same = |what: &str, [a, b, c]: [Value; 3]| {
        assert_eq!(a, b, "{what}: the command and HTTP");
        assert_eq!(b, c, "{what}: HTTP and RESP");
    };
    let names = ["j1", "j2", "j3"];
    let renamed = |mut documents: [Value; 3]| {
        for (document, name) in documents.iter_mut().zip(names) {
            let text = document.to_string().replace(name, "j");
            *document = serde_json::from_str(&text).unwrap();
        }
        documents
    };
    let put = |jid: &str| json!({ "klass": "k", "payload": { "n": 1 }, "tags": ["t"], "keep_result": true, "jid": jid });
    let mut with_queue = put("j3");
    with_queue["queue"] = json!("mail");
    same(
        "put",
        renamed([
            command(&["put", "mail", "k", r#"{"n":1}"#, "--tag", "t", "--keep-result", "--jid", "j1"]),
            web("POST", "/v1/queues/mail/jobs", Some(put("j2"))),
            redis(json!({ "put": with_queue })),
        ]),
    );
    same(
        "pop",
        renamed([
            command(&["pop", "mail", "--worker", "w1"]),
            web("POST", "/v1/queues/mail/pop", Some(json!({ "worker": "w1" }))),
            redis(json!({ "pop": { "queue": "mail", "worker": "w1" } })),
        ]),
    );
    let tokens = names.map(token);
    same(
        "progress",
        renamed([
            command(&["progress", "j1", "1/4", "--token", &tokens[0]]),
            web("POST", "/v1/jobs/j2/progress", Some(json!({ "token": tokens[1], "part": 1, "whole": 4 }))),
            redis(json!({ "progress": { "jid": "j3", "token": tokens[2], "part": 1, "whole": 4 } })),
        ]),
    );
    same(
        "heartbeat",
        renamed([
            command(&["heartbeat", "j1", "--token", &tokens[0]]),
            web("POST", "/v1/jobs/j2/heartbeat", Some(json!({ "token": tokens[1] }))),
            redis(json!({ "heartbeat": { "jid": "j3", "token": tokens[2] } })),
        ]),
    );
    same(
        "get",
        renamed([
            command(&["get", "j1"]),
            web("GET", "/v1/jobs/j2", None),
            redis(json!({ "get": { "jid": "j3" } })),
        ]),
    );
    same(
        "complete",
        renamed([
            command(&["complete", "j1", "--token", &tokens[0], "--result", "done"]),
            web("POST", "/v1/jobs/j2/complete", Some(json!({ "token": tokens[1], "result": "done" }))),
            redis(json!({ "complete": { "jid": "j3", "token": tokens[2], "result": "done" } })),
        ]),
    );
    same(
        "result",
        renamed([
            command(&["result", "j1"]),
            web("GET", "/v1/jobs/j2/result", None),
            redis(json!({ "result": { "jid": "j3" } })),
        ]),
    );
    same("queues", [command(&["queues"]), web("GET", "/v1/queues", None), redis(json!({ "queues": {} }))]);
    same(
        "workers",
        [command(&["workers"]), web("GET", "/v1/workers", None), redis(json!({ "workers": {} }))].map(
            |mut list| {
                list[0]["seen"] = json!("…");
                list
            },
        ),
    );
    same(
        "stats",
        [
            command(&["stats", "mail"]),
            web("GET", "/v1/queues/mail/stats", None),
            redis(json!({ "stats": { "queue": "mail" } })),
        ],
    );
    same(
        "limits",
        [
            command(&["limits", "mail", "--max", "10", "--rate", "5/s"]),
            web("GET", "/v1/queues/mail/limits", None),
            redis(json!({ "limits": { "queue": "mail" } })),
        ],
    );
    same(
        "options",
        [command(&["config", "get"]), web("GET", "/v1/options", None), redis(json!({ "config": {} }))],
    );

    // Errors have the same code.
    let (out, err, code) = sandbox.try_run(&["--url", &url, "priority", "nope", "5", "--json"]);
    assert_eq!((out.as_str(), code), ("", 1));
    let error: Value = serde_json::from_str(&err).unwrap();
    let (status, over_http) =
        http(&http_address, "POST", "/v1/jobs/nope/priority", Some(&json!({ "priority": 5 })));
    let over_resp = redis(json!({ "priority": { "jid": "nope", "priority": 5 } }));
    assert_eq!(status, 404);
    for document in [error, over_http, over_resp] {
        assert_eq!(document["error"]["code"], "no-such-job", "{document}");
    }
}
