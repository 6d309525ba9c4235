//! The OpenAPI description, from the tables that make the router: routes, operations and their fields.

use geartrain_json::{FieldInfo, FieldKind, OperationInfo, operations};
use serde_json::{Map, Value, json};

use crate::events::FILTERS;
use crate::routes::{Endpoint, ROUTES, Route};

pub(crate) fn document() -> String {
    let mut paths = Map::new();
    for route in ROUTES {
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method.to_ascii_lowercase()] = describe(route);
    }
    let batch: Vec<Value> = operations()
        .map(|operation| {
            let fields: Vec<&FieldInfo> = operation.fields.iter().collect();
            json!({ "type": "object", "required": [operation.name], "additionalProperties": false,
                "properties": { operation.name: object(&fields) } })
        })
        .collect();
    json!({
        "openapi": "3.1.0",
        "info": { "title": "geartrain", "version": env!("CARGO_PKG_VERSION"),
            "description": "A job queue. The documents are those of --json." },
        "paths": paths,
        "components": {
            "schemas": {
                "Error": { "type": "object", "required": ["error"], "properties": { "error": {
                    "type": "object", "required": ["code", "message", "help"], "properties": {
                        "code": { "type": "string" }, "message": { "type": "string" },
                        "help": { "type": ["string", "null"] } } } } },
                "Operation": { "oneOf": batch },
            },
            "securitySchemes": { "password": { "type": "http", "scheme": "bearer" } },
        },
    })
    .to_string()
}

fn describe(route: &Route) -> Value {
    let error = json!({ "description": "Refused, or failed: the code says why",
        "content": { "application/json": { "schema": { "$ref": "#/components/schemas/Error" } } } });
    let (meaning, content_type) = match route.endpoint {
        Endpoint::Operation(name) => {
            (OperationInfo::find(name).map_or("", |operation| operation.meaning), "application/json")
        }
        Endpoint::Batch => ("Executes an operation, or a list of operations in order.", "application/json"),
        Endpoint::Events => (
            "Streams events, if text/event-stream is accepted; or lists those after a position.",
            "text/event-stream",
        ),
        Endpoint::ResultStream => {
            ("Streams what the worker of a job sends, and how the job ends.", "text/event-stream")
        }
        Endpoint::Metrics => ("Metrics for Prometheus.", "text/plain"),
        Endpoint::OpenApi => ("This description.", "application/json"),
        Endpoint::Health => ("Whether the process answers.", "application/json"),
        Endpoint::Ready => ("Whether the queue answers.", "application/json"),
    };
    let id = format!("{}{}", route.method.to_ascii_lowercase(), route.path);
    let id = id.replace(['/', '-', '.'], "_").replace(['{', '}'], "");
    let mut parameters: Vec<Value> = route
        .parameters()
        .map(|name| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } }))
        .collect();
    let mut described = json!({
        "operationId": id, "summary": meaning,
        "responses": {
            "200": { "description": "Done", "content": { content_type: { "schema": {} } } },
            "4XX": error, "5XX": error,
        },
        "security": [{}, { "password": [] }],
    });
    let in_body = matches!(route.method, "POST" | "PUT");
    match route.endpoint {
        Endpoint::Operation(name) => {
            if let Some(operation) = OperationInfo::find(name) {
                let fields = route.fields(operation);
                if in_body {
                    let is_required = fields.iter().any(|field| field.is_required);
                    described["requestBody"] = json!({ "required": is_required,
                        "content": { "application/json": { "schema": object(&fields) } } });
                } else {
                    parameters.extend(fields.iter().map(|field| parameter(field)));
                }
            }
        }
        Endpoint::Batch => {
            let one = json!({ "$ref": "#/components/schemas/Operation" });
            let schema = json!({ "oneOf": [one, { "type": "array", "items": one }] });
            described["requestBody"] =
                json!({ "required": true, "content": { "application/json": { "schema": schema } } });
        }
        Endpoint::Events => {
            let text = json!({ "type": "string" });
            parameters.extend(
                ["after", "count", "wait"]
                    .into_iter()
                    .chain(FILTERS)
                    .map(|name| json!({ "name": name, "in": "query", "required": false, "schema": text })),
            );
            parameters
                .push(json!({ "name": "Last-Event-ID", "in": "header", "required": false, "schema": text }));
        }
        _ => {}
    }
    described["parameters"] = parameters.into();
    described
}

fn parameter(field: &FieldInfo) -> Value {
    json!({ "name": field.name, "in": "query", "required": field.is_required, "description": field.meaning,
        "schema": schema(field.kind) })
}

fn object(fields: &[&FieldInfo]) -> Value {
    let properties: Map<String, Value> = fields
        .iter()
        .map(|field| {
            let mut schema = schema(field.kind);
            schema["description"] = field.meaning.into();
            (field.name.to_owned(), schema)
        })
        .collect();
    let required: Vec<&str> =
        fields.iter().filter(|field| field.is_required).map(|field| field.name).collect();
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

fn schema(kind: FieldKind) -> Value {
    match kind {
        FieldKind::Text => json!({ "type": "string" }),
        FieldKind::Texts => json!({ "type": "array", "items": { "type": "string" } }),
        FieldKind::Number => json!({ "type": "number" }),
        FieldKind::Whole => json!({ "type": "integer", "minimum": 0 }),
        FieldKind::Flag => json!({ "type": "boolean" }),
        FieldKind::Duration => json!({ "type": ["number", "string", "boolean"] }),
        FieldKind::Time => json!({ "type": ["number", "string"] }),
        FieldKind::Json => json!({}),
        FieldKind::Objects => json!({ "type": "array", "items": { "type": "object" } }),
    }
}
