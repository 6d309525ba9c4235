//! The router: each route of the table, behind the checks of `guard.rs`.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{RawPathParams, Request};
use axum::http::request::Parts;
use axum::http::{Method, header};
use axum::routing::{MethodFilter, MethodRouter};
use geartrain_core::{Backend, Call, Length, QueueName};
use geartrain_front::{Admission, AuthThrottle};
use geartrain_json::{FieldInfo, FieldKind, Object, OperationError, OperationInfo, Outcome, Plan, Queue};
use http_body_util::{BodyExt, Limited};
use percent_encoding::percent_decode_str;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use crate::body::PoppedBody;
use crate::guard::{self, Hosts};
use crate::respond::{self, Reply};
use crate::routes::{Endpoint, ROUTES, Route, field_of};
use crate::{events, metrics, openapi, result_stream};

/// How long a request body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the queue may take to answer before the server is not ready.
const READY_TIMEOUT: Duration = Duration::from_secs(2);

/// The settings of the API.
#[derive(Clone)]
pub struct Options {
    /// Required of every request, as a bearer token.
    pub password: Option<String>,
    /// Host names that requests may give, besides `localhost` and IP addresses.
    pub hosts: Vec<String>,
    /// The largest request body.
    pub body_bytes_max: usize,
    /// How many connections are accepted.
    pub admission: Arc<Admission>,
    /// How long connections may take to end when the server stops.
    pub drain_timeout: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            password: None,
            hosts: Vec::new(),
            // A payload of 64 MiB in base64, and more.
            body_bytes_max: 96 << 20,
            admission: Admission::of_process(),
            drain_timeout: Duration::from_secs(5),
        }
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without the password, because debug output ends up in logs.
        f.debug_struct("Options")
            .field("has_password", &self.password.is_some())
            .field("hosts", &self.hosts)
            .field("body_bytes_max", &self.body_bytes_max)
            .finish_non_exhaustive()
    }
}

/// What all requests share.
pub(crate) struct Shared {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) options: Options,
    hosts: Hosts,
    throttle: AuthThrottle,
    /// Ends waits and streams.
    pub(crate) stop: CancellationToken,
    /// Requests that were answered, by the first digit of the status.
    pub(crate) requests: [AtomicU64; 6],
    pub(crate) openapi: String,
}

/// Where a request comes from; none if the router is mounted in another program.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    pub(crate) address: std::net::SocketAddr,
    pub(crate) authenticated: Arc<tokio::sync::Notify>,
}

impl Shared {
    pub(crate) fn new(backend: Arc<dyn Backend>, options: Options, stop: CancellationToken) -> Shared {
        Shared {
            backend,
            hosts: Hosts { names: options.hosts.clone() },
            options,
            throttle: AuthThrottle::default(),
            stop,
            requests: Default::default(),
            openapi: openapi::document(),
        }
    }

    /// A queue for the operations of one request.
    pub(crate) fn queue(&self, peer: Option<&Peer>) -> Queue {
        let caller = peer.map(|peer| peer.address.to_string().into());
        let sleep = |wait| -> Pin<Box<dyn Future<Output = ()> + Send>> { Box::pin(tokio::time::sleep(wait)) };
        Queue::new(self.backend.clone(), caller, sleep)
    }

    /// Executes an operation. A wait ends when the server stops.
    async fn execute(&self, queue: &Queue, plan: Plan) -> Outcome {
        if !plan.waits() {
            return queue.execute(plan).await;
        }
        self.until_stopped(queue.execute(plan)).await
    }

    async fn until_stopped(&self, outcome: impl Future<Output = Outcome>) -> Outcome {
        tokio::select! {
            // First, so that a job that was popped already is not lost.
            biased;
            outcome = outcome => outcome,
            () = self.stop.cancelled() => Err(OperationError::new("unavailable", "the server is stopping")),
        }
    }

    fn document(&self, outcome: Outcome) -> Reply {
        match outcome {
            Ok(document) if document.jobs.is_empty() => respond::json(document.json),
            Ok(document) => {
                let body = PoppedBody::new(document.json, document.jobs, self.backend.clone());
                respond::json(Body::new(body))
            }
            Err(error) => respond::error(&error),
        }
    }
}

/// A router for a user's own axum program, also under a prefix. Requests are checked as by the server: mount it
/// with a password, or behind an authentication of the program.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::Arc;
/// use geartrain_core::SystemClock;
/// use geartrain_store::StoreBackend;
/// let backend = Arc::new(StoreBackend::in_memory(Arc::new(SystemClock))?);
/// let api = geartrain_http::router(backend, geartrain_http::Options::default());
/// let app: axum::Router = axum::Router::new().nest("/queue", api);
/// # Ok(()) }
/// ```
pub fn router(backend: Arc<dyn Backend>, options: Options) -> Router {
    router_of(Arc::new(Shared::new(backend, options, CancellationToken::new())))
}

pub(crate) fn router_of(shared: Arc<Shared>) -> Router {
    let mut router = Router::new();
    for (index, route) in ROUTES.iter().enumerate() {
        // One router for all methods of a path, whose other methods are refused with a code.
        if ROUTES[..index].iter().any(|earlier| earlier.path == route.path) {
            continue;
        }
        let mut methods = MethodRouter::new();
        for route in ROUTES.iter().filter(|other| other.path == route.path) {
            let (filter, shared) = (filter(route.method), shared.clone());
            methods = methods
                .on(filter, move |path: PathParams, request: Request| handle(shared, route, path, request));
        }
        let of_path = shared.clone();
        router = router.route(
            route.path,
            methods.fallback(move |request: Request| refuse(of_path, request, NOT_ALLOWED)),
        );
    }
    router.fallback(move |request: Request| refuse(shared, request, NOT_FOUND))
}

fn filter(method: &str) -> MethodFilter {
    match method {
        "POST" => MethodFilter::POST,
        "PUT" => MethodFilter::PUT,
        "DELETE" => MethodFilter::DELETE,
        _ => MethodFilter::GET,
    }
}

const NOT_FOUND: (&str, &str) =
    ("not-found", "there is nothing at this path: /openapi.json lists what there is");
const NOT_ALLOWED: (&str, &str) =
    ("method-not-allowed", "this path has other methods: /openapi.json lists them");

/// The decoded parameters of a path, or why they cannot be.
type PathParams = Result<RawPathParams, axum::extract::rejection::RawPathParamsRejection>;

/// Answers a request for which there is no route.
async fn refuse(shared: Arc<Shared>, request: Request, (code, why): (&'static str, &str)) -> Reply {
    // Not the request, which cannot be shared between threads because of its body.
    let (parts, _) = request.into_parts();
    let reply = match check(&shared, &parts, true).await {
        Ok(()) => respond::error(&OperationError::new(code, why)),
        Err(error) => respond::error(&error),
    };
    count(&shared, reply)
}

fn count(shared: &Shared, reply: Reply) -> Reply {
    let digit = usize::from(reply.status().as_u16() / 100).min(5);
    shared.requests[digit].fetch_add(1, Ordering::Relaxed);
    reply
}

async fn check(shared: &Shared, request: &Parts, needs_password: bool) -> Result<(), OperationError> {
    shared.hosts.check(&request.headers, &request.uri)?;
    guard::check_origin(&request.method, &request.headers)?;
    let Some(password) = shared.options.password.as_deref().filter(|_| needs_password) else { return Ok(()) };
    let peer = request.extensions.get::<Peer>();
    let ip: Option<IpAddr> = peer.map(|peer| peer.address.ip());
    guard::check_password(password, &request.headers, &shared.throttle, ip).await?;
    if let Some(peer) = peer {
        peer.authenticated.notify_one();
    }
    Ok(())
}

async fn handle(shared: Arc<Shared>, route: &'static Route, path: PathParams, request: Request) -> Reply {
    let reply = match answer(&shared, route, path, request).await {
        Ok(reply) => reply,
        Err(error) => respond::error(&error),
    };
    count(&shared, reply)
}

async fn answer(
    shared: &Arc<Shared>,
    route: &'static Route,
    path: PathParams,
    request: Request,
) -> Result<Reply, OperationError> {
    // These tell nothing about the queue.
    let is_open = matches!(route.endpoint, Endpoint::Health | Endpoint::Ready | Endpoint::OpenApi);
    let (parts, body) = request.into_parts();
    check(shared, &parts, !is_open).await?;
    let bad_path = |_| OperationError::bad_argument("the path is not UTF-8 text when it is decoded");
    let path = path.map_err(bad_path)?;
    let queue = shared.queue(parts.extensions.get::<Peer>());
    let query = read_query(parts.uri.query().unwrap_or_default())?;
    match route.endpoint {
        Endpoint::Operation(name) => {
            let operation =
                OperationInfo::find(name).ok_or_else(|| OperationError::new("not-found", "no operation"))?;
            let body = read_body(shared, &parts, body).await?;
            let mut fields = match body.trim_ascii() {
                [] => Object::default(),
                _ => Object::parse_bytes(&body, r#"{"key":"value"}"#)?,
            };
            fields.allow(route.fields(operation).into_iter().map(|field| field.name))?;
            add_query(&mut fields, &route.fields(operation), &query)?;
            for (parameter, value) in &path {
                if let Some(field) = field_of(operation, parameter) {
                    fields.insert(field.name, value_of(field, &[value])?)?;
                }
            }
            let plan = operation.read(&fields, &queue.times())?;
            Ok(shared.document(shared.execute(&queue, plan).await))
        }
        Endpoint::Batch => {
            let body = read_body(shared, &parts, body).await?;
            let batch = geartrain_json::Request::read(&body, &queue.times())?;
            let waits = batch.waits();
            let outcome = batch.execute(&queue);
            Ok(shared.document(if waits { shared.until_stopped(outcome).await } else { outcome.await }))
        }
        Endpoint::Events if wants_stream(&parts.headers) => {
            events::stream(shared, &query, &parts.headers).await
        }
        Endpoint::Events => {
            let operation = OperationInfo::find("events")
                .ok_or_else(|| OperationError::new("not-found", "no operation"))?;
            let mut fields = Object::default();
            let of_query: Vec<&FieldInfo> = operation.fields.iter().collect();
            add_query(&mut fields, &of_query, &query)?;
            let plan = operation.read(&fields, &queue.times())?;
            Ok(shared.document(shared.execute(&queue, plan).await))
        }
        Endpoint::ResultStream => {
            let jid = path.iter().find(|(name, _)| *name == "jid").map(|(_, jid)| jid).unwrap_or_default();
            result_stream::stream(shared, &queue, jid).await
        }
        Endpoint::Metrics => metrics::render(shared).await,
        Endpoint::OpenApi => Ok(respond::json(shared.openapi.clone())),
        Endpoint::Health => Ok(respond::json(r#"{"status":"ok"}"#)),
        Endpoint::Ready => ready(shared).await,
    }
}

/// Whether the queue answers.
async fn ready(shared: &Shared) -> Result<Reply, OperationError> {
    let queue = QueueName::new("geartrain-ready")?;
    let asked = shared.backend.execute(vec![Call::from(Length { queue })]);
    match tokio::time::timeout(READY_TIMEOUT, asked).await {
        Ok(Ok(_)) => Ok(respond::json(r#"{"status":"ready"}"#)),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(OperationError::new("unavailable", "the queue does not answer in time")),
    }
}

fn wants_stream(headers: &axum::http::HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    accept.contains("text/event-stream")
}

/// Reads the body, which must be JSON if there is one: a page of another site cannot send that type unasked.
async fn read_body(shared: &Shared, parts: &Parts, body: Body) -> Result<Bytes, OperationError> {
    let max = shared.options.body_bytes_max;
    let read = Limited::new(body, max).collect();
    let body = match tokio::time::timeout(BODY_TIMEOUT, read).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
            return Err(OperationError::new("too-large", format!("the body has more than {max} bytes")));
        }
        Ok(Err(error)) => {
            return Err(OperationError::new("bad-json", format!("the body cannot be read: {error}")));
        }
        Err(_) => return Err(OperationError::new("slow-request", "the body did not arrive in time")),
    };
    let is_read = parts.method == Method::GET || parts.method == Method::HEAD;
    if body.is_empty() {
        return Ok(body);
    }
    if is_read {
        return Err(OperationError::new("bad-json", "a GET has no body: put the fields into the query"));
    }
    let content_type = parts.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let media_type = content_type.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    if !media_type.eq_ignore_ascii_case("application/json") {
        return Err(OperationError {
            help: Some("send `Content-Type: application/json`; curl does with --json".to_owned()),
            ..OperationError::new("not-json-content", "the body is not declared as JSON")
        });
    }
    Ok(body)
}

/// The names and values of a query, decoded.
pub(crate) type Query = Vec<(String, String)>;

fn read_query(query: &str) -> Result<Query, OperationError> {
    let decode = |text: &str| {
        let text = text.replace('+', " ");
        let decoded = percent_decode_str(&text).decode_utf8().map(std::borrow::Cow::into_owned);
        decoded.map_err(|_| OperationError::bad_argument("the query is not UTF-8 text when it is decoded"))
    };
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(name, value)| Ok((decode(name)?, decode(value)?)))
        .collect()
}

/// Adds the fields of a query. A list is a field that is there several times.
fn add_query<'a>(
    fields: &mut Object<'a>,
    known: &[&'a FieldInfo],
    query: &Query,
) -> Result<(), OperationError> {
    for (name, _) in query {
        if !known.iter().any(|field| field.name == name) {
            let names: Vec<_> = known.iter().map(|field| field.name).collect();
            let name = geartrain_json::excerpt(name);
            let why = format!("there is no parameter `{name}`; the parameters are {}", names.join(", "));
            return Err(OperationError::new("unknown-field", why));
        }
    }
    for field in known {
        let values: Vec<&str> =
            query.iter().filter(|(name, _)| name == field.name).map(|(_, value)| value.as_str()).collect();
        if !values.is_empty() {
            fields.insert(field.name, value_of(field, &values)?)?;
        }
    }
    Ok(())
}

/// The JSON of a field that is given as text.
fn value_of(field: &FieldInfo, values: &[&str]) -> Result<Box<RawValue>, OperationError> {
    let [value] = values else {
        if field.kind == FieldKind::Texts {
            return raw(&serde_json::json!(values).to_string());
        }
        let why = format!("`{}` is there {} times", field.name, values.len());
        return Err(OperationError::new("repeated-field", why));
    };
    let quoted = || serde_json::json!(value).to_string();
    raw(&match field.kind {
        FieldKind::Texts => serde_json::json!(values).to_string(),
        FieldKind::Text | FieldKind::Time => quoted(),
        FieldKind::Number | FieldKind::Whole | FieldKind::Flag => {
            match serde_json::from_str::<&RawValue>(value) {
                // What is no number is refused as a text.
                Ok(json) if !json.get().starts_with('"') && json.get() != "null" => json.get().to_owned(),
                _ => quoted(),
            }
        }
        FieldKind::Duration => match *value {
            "true" | "false" => (*value).to_owned(),
            _ => quoted(),
        },
        // A word needs no quotes.
        FieldKind::Json | FieldKind::Objects if !value.starts_with(['{', '[', '"']) => quoted(),
        FieldKind::Json | FieldKind::Objects => (*value).to_owned(),
    })
}

fn raw(json: &str) -> Result<Box<RawValue>, OperationError> {
    RawValue::from_string(json.to_owned())
        .map_err(|error| OperationError::new("bad-json", format!("it is not JSON: {error}")))
}
