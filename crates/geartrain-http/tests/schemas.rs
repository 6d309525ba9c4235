//! Real documents of every route against the schemas of the OpenAPI description: each key is described, and each
//! key that is required is there.

use std::collections::BTreeSet;
use std::sync::Arc;

use geartrain_front::{AccessControl, AuditLog, AuditScope};
use geartrain_http::Options;
use geartrain_json::{AttemptView, LogRequest, LogSizeView, LogView};
use serde_json::{Value, json};

use crate::common::{Directory, Server, stored};

/// Checks a value strictly: keys that no schema describes are refused. `outer` are those of the schema around.
fn check(root: &Value, schema: &Value, value: &Value, outer: &[&str]) -> Result<(), String> {
    if let Some(reference) = schema["$ref"].as_str() {
        let of = root.pointer(reference.strip_prefix('#').unwrap()).unwrap();
        return check(root, of, value, outer);
    }
    if let Some(expected) = schema.get("const").filter(|expected| *expected != value) {
        return Err(format!("{value} is not {expected}"));
    }
    let types: Vec<&str> = match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(several) => several.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let is_of = |name: &&str| match *name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("{other}"),
    };
    if !types.is_empty() && !types.iter().any(is_of) {
        return Err(format!("{value} is not of type {types:?}"));
    }
    let properties = schema["properties"].as_object();
    let mut known: Vec<&str> = outer.to_vec();
    known.extend(properties.into_iter().flatten().map(|(key, _)| key.as_str()));
    for (key, of) in properties.into_iter().flatten() {
        if let Some(field) = value.get(key) {
            check(root, of, field, &[]).map_err(|why| format!("{key}: {why}"))?;
        }
    }
    for key in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        value.get(key).ok_or_else(|| format!("{key} is missing in {value}"))?;
    }
    for item in value.as_array().into_iter().flatten() {
        if let Some(of) = schema.get("items") {
            check(root, of, item, &[])?;
        }
    }
    let branches = schema.get("anyOf").or_else(|| schema.get("oneOf")).and_then(Value::as_array);
    if let Some(branches) = branches {
        let tried: Result<Vec<()>, Vec<String>> =
            match branches.iter().map(|branch| check(root, branch, value, &known)).find(Result::is_ok) {
                Some(_) => Ok(Vec::new()),
                None => Err(branches.iter().filter_map(|of| check(root, of, value, &known).err()).collect()),
            };
        return tried.map(drop).map_err(|why| why.join(" | "));
    }
    if let (Some(fields), true) = (value.as_object(), properties.is_some() || !outer.is_empty()) {
        let more = schema.get("additionalProperties").filter(|more| more.is_object());
        for (key, field) in fields.iter().filter(|(key, _)| !known.contains(&key.as_str())) {
            let of = more.ok_or_else(|| format!("the key {key} is not described"))?;
            check(root, of, field, &[])?;
        }
    } else if let (Some(fields), Some(of)) = (value.as_object(), schema.get("additionalProperties")) {
        fields.values().try_for_each(|field| check(root, of, field, &[]))?;
    }
    Ok(())
}

/// A server, its description, and the routes that were asked.
struct Checked {
    server: Server,
    description: Value,
    asked: BTreeSet<String>,
}

impl Checked {
    /// Sends a request to a route whose parameters stand in braces, and checks the document.
    async fn ask(&mut self, method: &str, path: &str, body: Value) -> Value {
        // `/v1/jobs/{jid=j1}?x=y`: the route has the names, the request the values.
        let (mut route, mut concrete) = (String::new(), String::new());
        for part in path.split_inclusive(['{', '}']) {
            match part.strip_suffix('}').and_then(|parameter| parameter.split_once('=')) {
                Some((name, value)) => {
                    route.push_str(&format!("{name}}}"));
                    concrete.push_str(value);
                }
                None => {
                    route.push_str(part);
                    concrete.push_str(part.trim_end_matches('{'));
                }
            }
        }
        let route = route.split('?').next().unwrap().to_owned();
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let document = self.server.ask(method, &concrete, &body).await;
        let described = &self.description["paths"][&route][method.to_ascii_lowercase()];
        let schema = &described["responses"]["200"]["content"]["application/json"]["schema"];
        assert!(schema.is_object(), "{method} {route} is not described");
        check(&self.description, schema, &document, &[])
            .unwrap_or_else(|why| panic!("{method} {concrete}: {why}: {document}"));
        self.asked.insert(format!("{method} {route}"));
        document
    }
}

fn log() -> Options {
    let attempt = AttemptView {
        jid: "j1".to_owned(),
        attempt: Some(1),
        queue: None,
        klass: None,
        worker: None,
        started: None,
        ended: None,
        took: None,
        outcome: "running".into(),
        group: None,
        message: None,
        code: None,
        result: None,
        result_bytes: 0,
        cut: false,
        exact: true,
    };
    let attempts = LogView { attempts: vec![attempt], gaps: Vec::new(), more: false };
    let attempts = serde_json::to_string(&attempts).unwrap();
    let size = serde_json::to_string(&LogSizeView { bytes: 1, free_bytes: 0, oldest: None }).unwrap();
    let read = move |request: &LogRequest| {
        Ok(match request {
            LogRequest::Attempts(_) => attempts.clone(),
            LogRequest::Size => size.clone(),
        })
    };
    Options { result_log: Some(Arc::new(read)), ..Options::default() }
}

#[tokio::test]
async fn every_document_has_the_schema_of_its_route() {
    let directory = Directory::new("schemas");
    let backend = stored(directory.path());
    // Events are kept from the first subscription on.
    let subscription = backend.subscribe().await.unwrap();
    let audit = AuditLog::open(directory.path().join("audit.log"), AuditScope::Administrative, 1 << 20);
    let access = Arc::new(AccessControl::open().with_audit(Some(audit.unwrap())));
    let server = Server::over(backend, Options { access, ..log() }).await;
    let description = server.ask("GET", "/openapi.json", "").await;
    let mut to = Checked { server, description, asked: BTreeSet::new() };
    let none = Value::Null;

    // A job with everything, and its attempt.
    let full = json!({
        "queue": "mail", "klass": "k", "jid": "j1", "payload": { "n": 1 }, "tags": ["t"], "keep_result": true,
        "unique": "u", "timeout": "1h", "backoff": "10s..1h", "crashes": 3, "priority": 2.5,
    });
    to.ask("POST", "/v1/jobs", full).await;
    to.ask("POST", "/v1/queues/{queue=mail}/jobs", json!({ "klass": "k", "jid": "j2", "in": "1h" })).await;
    to.ask("POST", "/v1/queues/{queue=mail}/jobs", json!({ "klass": "k", "jid": "j3", "depends": ["j1"] }))
        .await;
    for path in ["", "/status", "/why"] {
        to.ask("GET", &format!("/v1/jobs/{{jid=j1}}{path}"), none.clone()).await;
    }
    to.ask("GET", "/v1/jobs/{jid=j3}/why", none.clone()).await;
    to.ask("GET", "/v1/queues/{queue=mail}/status?unique=u", none.clone()).await;
    to.ask("GET", "/v1/queues/{queue=mail}/peek", none.clone()).await;
    to.ask("GET", "/v1/queues/{queue=mail}/why", none.clone()).await;
    to.ask("POST", "/v1/jobs/{jid=j1}/track", none.clone()).await;
    to.ask("GET", "/v1/tracked", none.clone()).await;
    to.ask("POST", "/v1/jobs/{jid=j1}/tag", json!({ "tags": ["v"] })).await;
    to.ask("POST", "/v1/jobs/{jid=j1}/untag", json!({ "tags": ["v"] })).await;
    to.ask("POST", "/v1/jobs/{jid=j1}/priority", json!({ "priority": 3 })).await;
    to.ask("POST", "/v1/jobs/{jid=j1}/log", json!({ "message": "m", "data": { "page": 7 } })).await;
    let can = json!({ "can": [{ "queue": "mail", "klass": "k", "timeout": 60 }] });
    to.ask("POST", "/v1/workers/{worker=w1}/announce", can).await;
    to.ask("GET", "/v1/queues/{queue=mail}/roll-call", none.clone()).await;
    let popped = to.ask("POST", "/v1/queues/{queue=mail}/pop", json!({ "worker": "w1" })).await;
    let token = popped[0]["token"].clone();
    to.ask("GET", "/v1/workers", none.clone()).await;
    to.ask("GET", "/v1/workers/{worker=w1}", none.clone()).await;
    to.ask("POST", "/v1/jobs/{jid=j1}/heartbeat", json!({ "token": token })).await;
    let progress = json!({ "token": token, "part": 1, "whole": 4, "left": 9 });
    to.ask("POST", "/v1/jobs/{jid=j1}/progress", progress).await;
    to.ask("POST", "/v1/jobs/{jid=j1}/chunk", json!({ "token": token, "data": "d" })).await;
    to.ask("GET", "/v1/jobs/{jid=j1}", none.clone()).await;
    to.ask("POST", "/v1/workers/{worker=w1}/relock", none.clone()).await;
    let token = to.ask("GET", "/v1/jobs/{jid=j1}", none.clone()).await["lock"]["token"].clone();
    to.ask("POST", "/v1/jobs/{jid=j1}/complete", json!({ "token": token, "result": [1] })).await;
    to.ask("GET", "/v1/jobs/{jid=j1}/result", none.clone()).await;
    to.ask("POST", "/v1/jobs/{jid=j1}/untrack", none.clone()).await;

    // Attempts that end otherwise.
    let attempt = async |to: &mut Checked, jid: &str| {
        let put = json!({ "klass": "k", "jid": jid });
        to.ask("POST", "/v1/queues/{queue=post}/jobs", put).await;
        let popped = to.ask("POST", "/v1/pop", json!({ "queues": ["post"], "worker": "w2" })).await;
        json!({ "token": popped[0]["token"] })
    };
    let retried = attempt(&mut to, "r1").await;
    to.ask("POST", "/v1/jobs/{jid=r1}/retry", retried).await;
    to.ask("DELETE", "/v1/jobs/{jid=r1}?because=x", none.clone()).await;
    to.ask("GET", "/v1/jobs/{jid=r1}/canceled", none.clone()).await;
    let released = attempt(&mut to, "r2").await;
    to.ask("POST", "/v1/jobs/{jid=r2}/release", released).await;
    to.ask("POST", "/v1/pop", json!({ "queue": "post", "worker": "w2" })).await;
    to.ask("POST", "/v1/jobs/{jid=r2}/timeout", none.clone()).await;
    to.ask("DELETE", "/v1/jobs/{jid=r2}", none.clone()).await;
    attempt(&mut to, "r3").await;
    to.ask("POST", "/v1/workers/{worker=w2}/lost", json!({ "evidence": "signal 9" })).await;
    to.ask("DELETE", "/v1/workers/{worker=w2}", none.clone()).await;
    to.ask("DELETE", "/v1/jobs/{jid=r3}", none.clone()).await;
    for jid in ["f1", "f2"] {
        let mut failed = attempt(&mut to, jid).await;
        failed["group"] = json!("g");
        failed["message"] = json!("m");
        to.ask("POST", &format!("/v1/jobs/{{jid={jid}}}/fail"), failed).await;
    }
    to.ask("GET", "/v1/jobs/{jid=f1}", none.clone()).await;
    to.ask("GET", "/v1/failures", none.clone()).await;
    to.ask("GET", "/v1/failures/{group=g}", none.clone()).await;
    to.ask("POST", "/v1/jobs/{jid=f2}/requeue", none.clone()).await;
    to.ask("POST", "/v1/failures/{group=g}/unfail", none.clone()).await;
    to.ask("POST", "/v1/jobs/{jid=j2}/requeue", json!({ "klass": "other" })).await;
    let dependent = json!({ "klass": "k", "jid": "d1", "depends": ["f1"] });
    to.ask("POST", "/v1/queues/{queue=mail}/jobs", dependent).await;
    to.ask("POST", "/v1/jobs/{jid=d1}/depend", json!({ "on": ["f2"] })).await;
    to.ask("POST", "/v1/jobs/{jid=d1}/undepend", json!({ "all": true })).await;
    to.ask("GET", "/v1/jobs?queue=mail&limit=1", none.clone()).await;

    // Many jobs.
    for (verb, more) in [
        ("priority", json!({ "priority": 1 })),
        ("tag", json!({ "tags": ["x"] })),
        ("untag", json!({ "tags": ["x"] })),
        ("unfail", json!({})),
        ("requeue", json!({})),
        ("cancel", json!({})),
    ] {
        for dry_run in [true, false] {
            let mut body = json!({ "where": "queue=mail", "dry_run": dry_run });
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            to.ask("POST", &format!("/v1/bulk/{verb}"), body).await;
        }
    }

    // Queues, recurring jobs, options.
    to.ask("POST", "/v1/queues/{queue=mail}/pause", none.clone()).await;
    to.ask("POST", "/v1/queues/{queue=mail}/resume", none.clone()).await;
    let limits = json!({ "max": 9, "rate": "5/s", "max_concurrency": 2, "by_priority": [{ "priority": 1, "max": 2 }] });
    to.ask("PUT", "/v1/queues/{queue=mail}/limits", limits).await;
    for path in ["", "/stats", "/limits"] {
        to.ask("GET", &format!("/v1/queues/{{queue=mail}}{path}"), none.clone()).await;
    }
    to.ask("GET", "/v1/queues", none.clone()).await;
    to.ask("POST", "/v1/schedules", json!({ "queue": "q", "klass": "k", "every": "1h", "jid": "qless" }))
        .await;
    let cron =
        json!({ "queue": "q", "klass": "k", "cron": "every day at 3am", "jid": "cron", "unique": "u" });
    to.ask("POST", "/v1/schedules", cron).await;
    to.ask("GET", "/v1/schedules", none.clone()).await;
    to.ask("POST", "/v1/schedules/{jid=cron}/run", none.clone()).await;
    to.ask("PATCH", "/v1/schedules/{jid=cron}", json!({ "every": "2h", "tags": ["t"] })).await;
    to.ask("PATCH", "/v1/schedules/{jid=qless}", json!({ "every": "2h", "tags": ["t"] })).await;
    to.ask("GET", "/v1/schedules/{jid=qless}", none.clone()).await;
    to.ask("POST", "/v1/schedules/{jid=cron}/pause", none.clone()).await;
    to.ask("POST", "/v1/schedules/{jid=cron}/resume", none.clone()).await;
    to.ask("GET", "/v1/schedules/{jid=cron}", none.clone()).await;
    to.ask("DELETE", "/v1/schedules/{jid=cron}", none.clone()).await;
    to.ask("DELETE", "/v1/queues/{queue=q}", none.clone()).await;
    to.ask("PUT", "/v1/options/{key=heartbeat}", json!({ "value": 90 })).await;
    to.ask("GET", "/v1/options", none.clone()).await;
    to.ask("GET", "/v1/options/{key=heartbeat}", none.clone()).await;
    to.ask("DELETE", "/v1/options/{key=heartbeat}", none.clone()).await;

    // The server.
    to.ask("GET", &format!("/v1/events?after={}", subscription.position()), none.clone()).await;
    to.ask("GET", "/v1/history?all=true&span=1h", none.clone()).await;
    for path in [
        "/v1/whoami",
        "/v1/audit",
        "/v1/server",
        "/v1/settings",
        "/v1/log",
        "/v1/log/size",
        "/openapi.json",
        "/healthz",
        "/readyz",
    ] {
        to.ask("GET", path, none.clone()).await;
    }
    to.ask("POST", "/v1/batch", json!([{ "queues": {} }])).await;

    let paths = to.description["paths"].as_object().unwrap();
    for (path, methods) in paths {
        for (method, described) in methods.as_object().unwrap() {
            let has_document = described["responses"]["200"]["content"].get("application/json").is_some();
            let route = format!("{} {path}", method.to_ascii_uppercase());
            assert!(!has_document || to.asked.contains(&route), "{route} was not asked");
        }
    }
    to.server.end().await;
}

#[test]
fn a_document_that_does_not_have_its_schema_is_found() {
    let root =
        json!({ "of": { "type": "object", "required": ["a"], "properties": { "a": { "type": "string" } } } });
    let schema = json!({ "$ref": "#/of" });
    for (value, is_valid) in [
        (json!({ "a": "x" }), true),
        (json!({}), false),
        (json!({ "a": 1 }), false),
        (json!({ "a": "x", "b": 1 }), false),
        (json!([]), false),
    ] {
        assert_eq!(check(&root, &schema, &value, &[]).is_ok(), is_valid, "{value}");
    }
}
