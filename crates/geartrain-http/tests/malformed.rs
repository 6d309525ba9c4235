//! Every endpoint against malformed input: a status of 4xx with a code, and nothing changes.

use serde_json::{Value, json};

use crate::common::Server;

#[tokio::test]
async fn malformed_input_is_refused_with_a_code_and_changes_nothing() {
    let server = Server::start().await;
    let description = server.ask("GET", "/openapi.json", "").await;
    let headers = "Content-Type: application/json\r\n";
    let mut refusals = 0;
    for (path, methods) in description["paths"].as_object().unwrap() {
        let parts = path.split('/').map(|part| if part.starts_with('{') { "x" } else { part });
        let concrete = parts.collect::<Vec<_>>().join("/");
        for (method, described) in methods.as_object().unwrap() {
            let method = method.to_ascii_uppercase();
            let mut requests: Vec<(String, Vec<u8>)> = Vec::new();
            if path.contains('{') {
                let nul = path.split('/').map(|part| if part.starts_with('{') { "%00" } else { part });
                requests.push((nul.collect::<Vec<_>>().join("/"), Vec::new()));
                let bytes = path.split('/').map(|part| if part.starts_with('{') { "%FF" } else { part });
                requests.push((bytes.collect::<Vec<_>>().join("/"), Vec::new()));
            }
            if described["requestBody"].is_null() {
                if described["parameters"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .any(|parameter| parameter["in"] == "query")
                {
                    for query in ["nonsense=1", "%FF=1"] {
                        requests.push((format!("{concrete}?{query}"), Vec::new()));
                    }
                }
            } else {
                for body in [
                    &b"{"[..],
                    b"nonsense",
                    b"7",
                    b"null",
                    b"\"x\"",
                    b"[[]",
                    b"{\"nonsense\":1}",
                    b"\xff",
                    b"{\"\xff\":1}",
                ] {
                    requests.push((concrete.clone(), body.to_vec()));
                }
                let schema = &described["requestBody"]["content"]["application/json"]["schema"];
                for (field, of) in schema["properties"].as_object().into_iter().flatten() {
                    // A field that may be left out may be null.
                    let kind = match of["type"].as_array().map(Vec::as_slice) {
                        Some([one, null]) if null == "null" => one.as_str(),
                        Some(_) => None,
                        None => of["type"].as_str(),
                    };
                    let wrong: &[Value] = match kind {
                        Some("string") => &[json!(7), json!([]), json!({})],
                        Some("array") => &[json!(7), json!("a"), json!([1])],
                        Some("integer") => &[json!(-1), json!(1.5), json!([]), json!("a lot")],
                        Some("number") => &[json!("high"), json!([])],
                        Some("boolean") => &[json!(1), json!("yes")],
                        _ => &[],
                    };
                    for value in wrong {
                        // An option's value may be a number.
                        if path.starts_with("/v1/options") && field == "value" && value.is_number() {
                            continue;
                        }
                        requests.push((concrete.clone(), json!({ field: value }).to_string().into()));
                    }
                    let huge = format!("{{{field:?}:1e999}}");
                    if kind.is_some_and(|kind| kind != "string") {
                        requests.push((concrete.clone(), huge.into()));
                    }
                }
            }
            for (path, body) in requests {
                let type_of_body = if body.is_empty() { "" } else { headers };
                let response = server.send_with(&method, &path, type_of_body, &body).await;
                let given = format!("{method} {path} {}", String::from_utf8_lossy(&body));
                assert!((400..500).contains(&response.status), "{given}: {response:?}");
                let (_, code) = response.refusal();
                assert!(!code.is_empty(), "{given}");
                refusals += 1;
            }
        }
    }
    assert!(refusals > 500, "{refusals}");
    assert_eq!(server.ask("GET", "/v1/queues", "").await, json!([]));
    assert_eq!(server.ask("GET", "/v1/jobs", "").await["items"], json!([]));
    assert_eq!(server.ask("GET", "/v1/workers", "").await, json!([]));
    server.end().await;
}

#[tokio::test]
async fn what_does_not_exist_is_named_with_its_code() {
    let server = Server::start().await;
    for (method, path, body, status, code) in [
        ("GET", "/v1/jobs/nope", "", 404, "no-such-job"),
        ("GET", "/v1/jobs/nope/why", "", 404, "no-such-job"),
        ("GET", "/v1/jobs/nope/result", "", 404, "no-such-job"),
        ("GET", "/v1/jobs/nope/stream", "", 404, "no-such-job"),
        ("GET", "/v1/jobs/nope/status", "", 404, "not-unfinished"),
        ("POST", "/v1/jobs/nope/complete", r#"{"token":"1.0"}"#, 404, "no-such-job"),
        ("POST", "/v1/jobs/nope/complete", r#"{"token":"x"}"#, 400, "bad-argument"),
        ("POST", "/v1/jobs/nope/complete", "{}", 400, "missing-field"),
        ("POST", "/v1/jobs/nope/requeue", "", 404, "no-such-job"),
        ("GET", "/v1/schedules/nope", "", 404, "no-such-recurring"),
        ("GET", "/v1/options/hartbeat", "", 404, "no-such-option"),
        ("GET", "/v1/events?after=999999", "", 400, "cursor-ahead"),
        ("GET", "/v1/events", "", 400, "missing-field"),
        ("POST", "/v1/queues/q/jobs", r#"{"klass":"k","queue":"other"}"#, 400, "unknown-field"),
        ("GET", "/v1/jobs?limit=0", "", 400, "bad-argument"),
        ("GET", "/v1/jobs?limit=1&limit=2", "", 400, "repeated-field"),
        ("GET", "/v1/jobs?state=tired", "", 400, "bad-argument"),
        ("GET", "/v1/jobs?where=nonsense", "", 400, "bad-argument"),
        ("PATCH", "/v1/jobs", "", 405, "method-not-allowed"),
        ("GET", "/v1/queues/q/limits?max=1", "", 400, "unknown-field"),
        ("GET", "/v1", "", 404, "not-found"),
        ("GET", "/v1/../healthz", "", 404, "not-found"),
    ] {
        assert_eq!(
            server.refused(method, path, body).await,
            (status, code.to_owned()),
            "{method} {path} {body}"
        );
    }
    server.end().await;
}
