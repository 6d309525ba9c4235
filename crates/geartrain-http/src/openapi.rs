//! The OpenAPI description, from what makes the API itself: the tables of routes and operations, and the views that
//! write the documents.

use geartrain_front::AuditPage;
use geartrain_json::{
    FieldInfo, FieldKind, LogSizeView, LogView, Need, OperationInfo, SettingView, object_schema, operations,
};
use std::sync::OnceLock;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::events::FILTERS;
use crate::history::HistoryView;
use crate::login::WhoAmIView;
use crate::routes::{Endpoint, ROUTES, Route, field_of};
use crate::server_info::ServerView;
use crate::session::COOKIE;

/// A request body for operations that most clients begin with. A test executes them.
const EXAMPLES: &[(&str, &str)] = &[
    ("put", r#"{"klass": "welcome", "payload": {"to": "ann"}, "priority": 5, "keep_result": true}"#),
    ("pop", r#"{"worker": "w1", "count": 10, "wait": "30s"}"#),
    ("complete", r#"{"token": "1.0", "result": {"sent": true}}"#),
    ("fail", r#"{"token": "1.0", "group": "smtp", "message": "the server said 451"}"#),
    ("retry", r#"{"token": "1.0", "in": "5m"}"#),
    ("heartbeat", r#"{"token": "1.0"}"#),
    ("progress", r#"{"token": "1.0", "part": 3, "whole": 10}"#),
    ("recur", r#"{"queue": "reports", "klass": "nightly", "cron": "0 3 * * *", "timeout": "10m"}"#),
    ("recur-edit", r#"{"cron": "weekdays at 9:00"}"#),
    ("limits", r#"{"max": 10000, "rate": "100/1m+20", "max_concurrency": 8}"#),
    ("set-config", r#"{"value": "90"}"#),
];

/// The body of a batch.
const BATCH_EXAMPLE: &str = r#"[{"put": {"queue": "mail", "klass": "welcome"}}, {"queues": {}}]"#;

/// The description of a server on which a key is required, or none.
pub(crate) fn document(is_key_required: bool) -> &'static str {
    static DOCUMENTS: [OnceLock<String>; 2] = [const { OnceLock::new() }; 2];
    DOCUMENTS[usize::from(is_key_required)].get_or_init(|| write(is_key_required))
}

fn write(is_key_required: bool) -> String {
    let settings = SchemaSettings::draft2020_12().for_serialize().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut generator = settings.into_generator();
    let mut paths = Map::new();
    for route in ROUTES {
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method.to_ascii_lowercase()] = describe(route, is_key_required, &mut generator);
    }
    let batch: Vec<Value> = operations()
        .map(|operation| {
            let fields: Vec<&FieldInfo> = operation.fields.iter().collect();
            json!({ "type": "object", "required": [operation.name], "additionalProperties": false,
                "properties": { operation.name: object_schema(&fields) } })
        })
        .collect();
    let mut schemas = generator.take_definitions(true);
    schemas.insert("Operation".to_owned(), json!({ "oneOf": batch }));
    schemas.insert("Error".to_owned(), error_schema());
    let tags: Vec<Value> =
        TAGS.iter().map(|(name, meaning)| json!({ "name": name, "description": meaning })).collect();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "geartrain", "version": env!("CARGO_PKG_VERSION"), "license": { "name": "MIT OR Apache-2.0" },
            "description": "A job queue. The documents are those of `--json` and of JSON over RESP.",
        },
        // Relative, so that it holds under a prefix.
        "servers": [{ "url": "." }],
        "tags": tags,
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": { "type": "http", "scheme": "bearer", "description": "The password, or an access key" },
                "session": { "type": "apiKey", "in": "cookie", "name": COOKIE,
                    "description": "The session of the dashboard" },
            },
        },
    })
    .to_string()
}

/// The first part of a path below `/v1`, and what it is about.
const TAGS: &[(&str, &str)] = &[
    ("jobs", "Jobs, one by one"),
    ("pop", "Pops from several queues"),
    ("tracked", "Tracked jobs"),
    ("bulk", "Changes of all jobs that a filter selects"),
    ("batch", "Operations in a list"),
    ("queues", "Queues, their limits and statistics"),
    ("failures", "Failed jobs by group"),
    ("workers", "Workers and their capabilities"),
    ("schedules", "Recurring jobs"),
    ("options", "Options of the queue"),
    ("events", "Events, as a list or as a stream"),
    ("history", "Rates and depths over the last day"),
    ("log", "The result log"),
    ("server", "The server itself"),
    ("settings", "The settings of the server"),
    ("whoami", "The caller's key"),
    ("audit", "The audit log"),
    ("backup", "Backups"),
    ("monitoring", "Metrics and health"),
];

/// The tag of a route.
fn tag(route: &Route) -> &'static str {
    let part = route.path.strip_prefix("/v1/").and_then(|path| path.split('/').next());
    part.unwrap_or("monitoring")
}

fn error_schema() -> Value {
    json!({
        "type": "object", "required": ["error"], "properties": { "error": {
            "type": "object", "required": ["code", "message", "help"], "properties": {
                "code": { "type": "string", "description": "A stable word" },
                "message": { "type": "string", "description": "A sentence" },
                "help": { "type": ["string", "null"], "description": "What to do, if the message does not say it" },
            },
        } },
        "example": { "error": { "code": "no-such-job", "message": "job j1 does not exist",
            "help": "list the jobs to see which exist" } },
    })
}

const JSON: &str = "application/json";
const STREAM: &str = "text/event-stream";

/// What a route does, and its replies by content type.
fn replies(route: &Route, generator: &mut SchemaGenerator) -> (&'static str, Vec<(&'static str, Value)>) {
    let text = || json!({ "type": "string" });
    match route.endpoint {
        Endpoint::Operation(name) => {
            let operation = OperationInfo::find(name);
            let schema = operation.and_then(|operation| operation.document_schema(generator));
            let schema = schema.map_or_else(|| json!({}), Value::from);
            (operation.map_or("", |operation| operation.meaning), vec![(JSON, schema)])
        }
        Endpoint::Batch => (
            "Executes an operation, or a list of operations in order.",
            vec![(
                JSON,
                json!({ "type": ["object", "array"],
                    "description": "The document of the operation, or a list of documents and errors" }),
            )],
        ),
        Endpoint::Events => {
            let events = OperationInfo::find("events").and_then(|events| events.document_schema(generator));
            (
                "Streams events, if text/event-stream is accepted; or lists those after a position.",
                vec![(JSON, events.map_or_else(|| json!({}), Value::from)), (STREAM, json!({}))],
            )
        }
        Endpoint::ResultStream => {
            ("Streams what the worker of a job sends, and how the job ends.", vec![(STREAM, json!({}))])
        }
        Endpoint::History => (
            "Shows rates and depths of queues over the last day, since this server was started.",
            vec![(JSON, of::<HistoryView>(generator))],
        ),
        Endpoint::Server => ("Shows the server itself.", vec![(JSON, of::<ServerView>(generator))]),
        Endpoint::Settings => (
            "Lists the settings of the server, and where each comes from.",
            vec![(JSON, of::<Vec<SettingView>>(generator))],
        ),
        Endpoint::Log => (
            "Lists the newest attempts of the result log, the latest last.",
            vec![(JSON, of::<LogView>(generator))],
        ),
        Endpoint::LogSize => {
            ("Shows how large the result log is.", vec![(JSON, of::<LogSizeView>(generator))])
        }
        Endpoint::Backup => (
            "Makes a backup, as a tar archive.",
            vec![("application/x-tar", json!({ "type": "string", "format": "binary" }))],
        ),
        Endpoint::Metrics => ("Metrics for Prometheus.", vec![("text/plain", text())]),
        Endpoint::OpenApi => ("This description.", vec![(JSON, json!({ "type": "object" }))]),
        Endpoint::Health => ("Whether the process answers.", vec![(JSON, health("ok"))]),
        Endpoint::Ready => ("Whether the queue answers.", vec![(JSON, health("ready"))]),
        Endpoint::WhoAmI => {
            ("Shows who asks, and with which role.", vec![(JSON, of::<WhoAmIView>(generator))])
        }
        Endpoint::Audit => {
            ("Lists who changed what, newest first.", vec![(JSON, of::<AuditPage>(generator))])
        }
        Endpoint::LogInPage => ("The login page.", vec![("text/html", text())]),
        Endpoint::LogIn => ("Begins a session, with a cookie.", Vec::new()),
        Endpoint::LogOut => ("Ends the session.", Vec::new()),
    }
}

fn of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Value {
    generator.subschema_for::<T>().into()
}

fn health(status: &str) -> Value {
    json!({ "type": "object", "required": ["status"], "properties": { "status": { "const": status } } })
}

fn describe(route: &Route, is_key_required: bool, generator: &mut SchemaGenerator) -> Value {
    let error = json!({ "description": "Refused, or failed: the code says why",
        "content": { JSON: { "schema": { "$ref": "#/components/schemas/Error" } } } });
    let (meaning, replies) = replies(route, generator);
    let content: Map<String, Value> = replies
        .into_iter()
        .map(|(content_type, schema)| (content_type.to_owned(), json!({ "schema": schema })))
        .collect();
    let id = format!("{}{}", route.method.to_ascii_lowercase(), route.path);
    let id = id.replace(['/', '-', '.'], "_").replace(['{', '}'], "");
    let mut parameters: Vec<Value> = route
        .parameters()
        .map(|name| {
            let field = match route.endpoint {
                Endpoint::Operation(of) => OperationInfo::find(of).and_then(|of| field_of(of, name)),
                _ => None,
            };
            let kind = field.map_or(FieldKind::Name, |field| match field.kind {
                FieldKind::Names(_) => FieldKind::Name,
                kind => kind,
            });
            json!({ "name": name, "in": "path", "required": true, "schema": kind.schema() })
        })
        .collect();
    let of_operation = match route.endpoint {
        Endpoint::Operation(name) => OperationInfo::find(name).map(|operation| operation.access),
        _ => None,
    };
    let access = of_operation.or(route.endpoint.access());
    // The forms lead to a page.
    let done = match content.is_empty() {
        true => json!({ "303": { "description": "Done", "headers": { "Location": { "required": true,
            "schema": { "type": "string", "format": "uri-reference" } } } } }),
        false => json!({ "200": { "description": "Done", "content": content } }),
    };
    let mut described = json!({
        "operationId": id, "summary": meaning, "tags": [tag(route)], "responses": done,
        "security": match access {
            Some(_) if is_key_required => json!([{ "bearer": [] }, { "session": [] }]),
            Some(_) => json!([{}, { "bearer": [] }, { "session": [] }]),
            None => json!([]),
        },
    });
    described["responses"]["4XX"] = error.clone();
    described["responses"]["5XX"] = error;
    if let Some(role) = access {
        described["x-role"] = role.as_str().into();
    }
    let in_body = matches!(route.method, "POST" | "PUT" | "PATCH");
    match route.endpoint {
        Endpoint::Operation(name) => {
            if let Some(operation) = OperationInfo::find(name) {
                let fields = route.fields(operation);
                if in_body {
                    let mut body = json!({ "schema": object_schema(&fields) });
                    if let Some(example) = example(route) {
                        body["example"] = example;
                    }
                    let is_required = fields.iter().any(|field| {
                        matches!(field.need, Need::Required | Need::ExactlyOne | Need::AtLeastOne)
                    });
                    described["requestBody"] = json!({ "required": is_required, "content": { JSON: body } });
                } else {
                    // One of several that is left is required.
                    let is_alone = fields.iter().filter(|field| field.need == Need::ExactlyOne).count() == 1;
                    parameters.extend(fields.iter().map(|field| {
                        let is_needed = is_alone && field.need == Need::ExactlyOne;
                        parameter(&FieldInfo {
                            need: if is_needed { Need::Required } else { field.need },
                            ..**field
                        })
                    }));
                }
            }
        }
        Endpoint::Batch => {
            let one = json!({ "$ref": "#/components/schemas/Operation" });
            // In a list, what is no operation has an error in its place.
            let several = json!({ "type": "array", "items": { "anyOf": [one, {}] } });
            let schema = json!({ "oneOf": [one, several] });
            let body = json!({ "schema": schema, "example": parsed(BATCH_EXAMPLE) });
            described["requestBody"] = json!({ "required": true, "content": { JSON: body } });
        }
        Endpoint::LogIn => {
            let schema = json!({ "type": "object", "required": ["key"], "properties": { "key": { "type": "string" } } });
            described["requestBody"] = json!({ "required": true,
                "content": { "application/x-www-form-urlencoded": { "schema": schema } } });
        }
        Endpoint::Events => {
            parameters.extend(route.endpoint.fields().iter().map(|field| {
                // A stream needs no position.
                parameter(&FieldInfo { need: Need::Optional, ..*field })
            }));
            let text = FieldKind::Text.schema();
            let position = json!({ "type": "string", "pattern": "^[0-9]{1,19}$",
                "description": "Of a stream: the last event that was received" });
            parameters.extend(FILTERS.iter().map(|name| {
                json!({ "name": name, "in": "query", "required": false, "schema": text,
                    "description": "Of a stream: only events with this value" })
            }));
            parameters.push(
                json!({ "name": "Last-Event-ID", "in": "header", "required": false, "schema": position }),
            );
        }
        endpoint => parameters.extend(endpoint.fields().iter().map(parameter)),
    }
    described["parameters"] = parameters.into();
    described
}

/// The example of a route's body: that of its operation, with the fields that the path does not give.
fn example(route: &Route) -> Option<Value> {
    let Endpoint::Operation(name) = route.endpoint else { return None };
    let (_, example) = EXAMPLES.iter().find(|(operation, _)| *operation == name)?;
    let mut example = parsed(example);
    if route.path == "/v1/jobs" || route.path == "/v1/pop" {
        example["queue"] = "mail".into();
    }
    Some(example)
}

fn parsed(json: &str) -> Value {
    serde_json::from_str(json).unwrap_or_default()
}

fn parameter(field: &FieldInfo) -> Value {
    json!({ "name": field.name, "in": "query", "required": field.is_required(), "description": field.meaning,
        "schema": field.kind.query_schema() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_has_a_document_and_every_route_a_tag() {
        let mut generator = SchemaGenerator::default();
        for operation in operations() {
            assert!(operation.document_schema(&mut generator).is_some(), "{}", operation.name);
        }
        for route in ROUTES {
            assert!(TAGS.iter().any(|(name, _)| *name == tag(route)), "{}", route.path);
        }
    }

    #[test]
    fn every_reference_has_a_schema() {
        let document: Value = serde_json::from_str(document(false)).unwrap();
        let mut left = vec![&document];
        while let Some(value) = left.pop() {
            match value {
                Value::Object(fields) => {
                    if let Some(reference) = fields.get("$ref").and_then(Value::as_str) {
                        let pointer = reference.strip_prefix('#').unwrap();
                        assert!(document.pointer(pointer).is_some(), "{reference}");
                    }
                    left.extend(fields.values());
                }
                Value::Array(items) => left.extend(items),
                _ => {}
            }
        }
    }

    #[test]
    fn every_example_is_a_valid_request() {
        use geartrain_core::Timestamp;
        use geartrain_json::{Object, time::Times};
        for route in ROUTES {
            let Some(mut example) = example(route) else { continue };
            let Endpoint::Operation(name) = route.endpoint else { continue };
            for parameter in route.parameters() {
                assert!(example.get(parameter).is_none(), "{}", route.path);
                example[parameter] = if parameter == "key" { "heartbeat" } else { "x" }.into();
            }
            let text = example.to_string();
            let operation = OperationInfo::find(name).unwrap();
            let fields = Object::parse(&text, "{}").unwrap();
            operation.read(&fields, &Times::utc(Timestamp::from(1_775_098_800))).unwrap();
        }
        for (name, _) in EXAMPLES {
            let is_shown = |route: &Route| matches!(route.endpoint, Endpoint::Operation(of) if of == *name);
            assert!(ROUTES.iter().any(|route| is_shown(route) && example(route).is_some()), "{name}");
        }
    }
}
