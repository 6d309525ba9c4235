//! The router: each route of the table, behind the checks of `guard.rs`.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{OriginalUri, Path as AssetPath, RawPathParams, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, header};
use axum::routing::{MethodFilter, MethodRouter, get};
use geartrain_core::{Backend, Call, Clock, Length, QueueName, SystemClock, Timestamp};
use geartrain_front::{AccessControl, Admission, AuditEvent, Caller, GuardedBackend, Identity};
use geartrain_json::{
    FieldInfo, FieldKind, LogRequest, Object, OperationError, OperationInfo, Outcome, Plan, Queue,
    SettingView,
};
use http_body_util::{BodyExt, Limited};
use percent_encoding::percent_decode_str;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use crate::body::PoppedBody;
use crate::front::PeerAddress;
use crate::guard::{self, Access, Hosts};
use crate::history::History;
use crate::respond::{self, Reply};
use crate::routes::{Endpoint, ROUTES, Route, field_of};
use crate::server_info::{self, Readings};
use crate::session::Sessions;
use crate::{archive, dashboard, events, login, metrics, openapi, result_log, result_stream};

/// How long the queue may take to answer before the server is not ready.
const READY_TIMEOUT: Duration = Duration::from_secs(2);

/// Reads the result log, and blocks on the disk meanwhile. The document is JSON.
pub type LogReader = Arc<dyn Fn(&LogRequest) -> Result<String, OperationError> + Send + Sync>;

/// The settings of the API.
#[derive(Clone)]
pub struct Options {
    /// Who may do what: keys are required as bearer tokens, or of the session of a browser.
    pub access: Arc<AccessControl>,
    /// Host names that requests may give, besides `localhost` and IP addresses.
    pub hosts: Vec<String>,
    /// The URL of the queue, without a password, for `/v1/server`.
    pub url: Option<String>,
    /// The settings of the program, for `/v1/settings`.
    pub settings: Vec<SettingView>,
    /// The result log, for `/v1/log`.
    pub result_log: Option<LogReader>,
    /// The largest request body.
    pub body_bytes_max: usize,
    /// How many connections are accepted.
    pub admission: Arc<Admission>,
    /// How long connections may take to end when the server stops.
    pub drain_timeout: Duration,
    /// How long the head of a request may take to arrive, and how long a connection may be idle.
    pub head_timeout: Duration,
    /// How long the body of a request may take to arrive.
    pub body_timeout: Duration,
    /// How long a client may leave a response unread.
    pub write_timeout: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            access: Arc::new(AccessControl::open()),
            hosts: Vec::new(),
            url: None,
            settings: Vec::new(),
            result_log: None,
            // A payload of 64 MiB in base64, and more.
            body_bytes_max: 96 << 20,
            admission: Admission::of_process(),
            drain_timeout: Duration::from_secs(5),
            head_timeout: Duration::from_secs(60),
            body_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(60),
        }
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("access", &self.access)
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
    pub(crate) sessions: Sessions,
    /// Ends waits and streams.
    pub(crate) stop: CancellationToken,
    /// Requests that were answered, by the first digit of the status.
    pub(crate) requests: [AtomicU64; 6],
    pub(crate) history: History,
    pub(crate) readings: Readings,
    pub(crate) started: Timestamp,
}

/// Where a request comes from; none if the router is mounted in another program.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    pub(crate) address: PeerAddress,
    pub(crate) authenticated: Arc<tokio::sync::Notify>,
    pub(crate) is_encrypted: bool,
}

impl Shared {
    pub(crate) fn new(backend: Arc<dyn Backend>, options: Options, stop: CancellationToken) -> Shared {
        Shared {
            backend,
            hosts: Hosts { names: options.hosts.clone() },
            options,
            sessions: Sessions::default(),
            stop,
            requests: Default::default(),
            history: History::default(),
            readings: Readings::default(),
            started: SystemClock.now(),
        }
    }

    /// Who sends a request, as the backend may be used by it.
    fn caller(peer: Option<&Peer>, identity: &Arc<Identity>) -> Caller {
        let from = peer.map_or_else(|| "http".to_owned(), |peer| peer.address.to_string());
        Caller { identity: identity.clone(), from: from.into(), client: None }
    }

    /// The backend, as the sender of one request may use it.
    pub(crate) fn guarded(&self, peer: Option<&Peer>, access: &Access) -> Arc<dyn Backend> {
        GuardedBackend::of(&self.backend, &self.options.access, Shared::caller(peer, &access.identity))
    }

    /// Records what is no command: a login, for example.
    pub(crate) fn record(&self, peer: Option<&Peer>, identity: &Arc<Identity>, action: &'static str) {
        if let Some(audit) = self.options.access.audit() {
            let event: AuditEvent = Shared::caller(peer, identity).event(action);
            audit.record(event);
        }
    }

    /// A queue for the operations of one request.
    pub(crate) fn queue(&self, peer: Option<&Peer>, access: &Access) -> Queue {
        let name = access.identity.name.as_deref();
        let caller = peer.map(|peer| match name {
            Some(name) => format!("{name} ({})", peer.address).into(),
            None => peer.address.to_string().into(),
        });
        let sleep = |wait| -> Pin<Box<dyn Future<Output = ()> + Send>> { Box::pin(tokio::time::sleep(wait)) };
        Queue::new(self.guarded(peer, access), caller, sleep)
    }

    /// Executes an operation. A wait ends when the server stops, or the caller loses its access.
    async fn execute(&self, queue: &Queue, plan: Plan, access: &Access) -> Outcome {
        if !plan.waits() {
            return queue.execute(plan).await;
        }
        self.until_stopped(queue.execute(plan), access).await
    }

    async fn until_stopped(&self, outcome: impl Future<Output = Outcome>, access: &Access) -> Outcome {
        tokio::select! {
            // First, so that a job that was popped already is not lost.
            biased;
            outcome = outcome => outcome,
            () = self.stop.cancelled() => Err(OperationError::new("unavailable", "the server is stopping")),
            () = access.revoked.cancelled() => Err(guard::unauthorized("the access has ended")),
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
/// with [access control](Options::access), or behind an authentication of the program.
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
    add_pages(router, &shared).fallback(move |request: Request| refuse(shared, request, NOT_FOUND))
}

/// The dashboard, which needs no key: what it shows comes from the API.
fn add_pages(router: Router, shared: &Arc<Shared>) -> Router {
    let (root, files) = (shared.clone(), shared.clone());
    router
        .route(
            "/",
            get(move |OriginalUri(uri): OriginalUri, request: Request| {
                page(root, request, move |headers| dashboard::index(uri.path(), headers))
            }),
        )
        .route(
            "/assets/{version}/{*name}",
            get(move |AssetPath((version, name)): AssetPath<(String, String)>, request: Request| {
                page(files, request, move |headers| dashboard::asset(&version, &name, headers))
            }),
        )
}

async fn page(shared: Arc<Shared>, request: Request, answer: impl FnOnce(&HeaderMap) -> Reply) -> Reply {
    let (parts, _) = request.into_parts();
    let reply = match check(&shared, &parts, false).await {
        Ok(()) => answer(&parts.headers),
        Err(error) => respond::error(&error),
    };
    count(&shared, reply)
}

fn filter(method: &str) -> MethodFilter {
    match method {
        "POST" => MethodFilter::POST,
        "PUT" => MethodFilter::PUT,
        "PATCH" => MethodFilter::PATCH,
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

/// Checks a request that needs no caller, or one that does.
async fn check(shared: &Shared, request: &Parts, needs_access: bool) -> Result<(), OperationError> {
    match needs_access {
        true => authorize(shared, request).await.map(drop),
        false => check_site(shared, request),
    }
}

fn check_site(shared: &Shared, request: &Parts) -> Result<(), OperationError> {
    shared.hosts.check(&request.headers, &request.uri)?;
    guard::check_origin(&request.method, &request.headers)
}

/// Checks a request, and finds out who sends it.
async fn authorize(shared: &Shared, request: &Parts) -> Result<Access, OperationError> {
    check_site(shared, request)?;
    let peer = request.extensions.get::<Peer>();
    let access = guard::find_access(
        shared,
        &request.method,
        &request.headers,
        peer.and_then(|peer| peer.address.ip()),
    )
    .await?;
    if let Some(peer) = peer {
        peer.authenticated.notify_one();
    }
    Ok(access)
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
    let (parts, body) = request.into_parts();
    let Some(needed) = route.endpoint.access() else {
        check_site(shared, &parts)?;
        return answer_anyone(shared, route.endpoint, &parts, body).await;
    };
    let access = authorize(shared, &parts).await?;
    // A backup is refused, and the refusal recorded, by the backend.
    if needed > access.identity.role && !matches!(route.endpoint, Endpoint::Backup) {
        return Err(login::forbidden(route.endpoint.name(), needed, access.identity.role));
    }
    let access = &access;
    let bad_path = |_| OperationError::bad_argument("the path is not UTF-8 text when it is decoded");
    let path = path.map_err(bad_path)?;
    let queue = shared.queue(parts.extensions.get::<Peer>(), access);
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
            Ok(shared.document(shared.execute(&queue, plan, access).await))
        }
        Endpoint::Batch => {
            let body = read_body(shared, &parts, body).await?;
            let batch = geartrain_json::Request::read(&body, &queue.times())?;
            let waits = batch.waits();
            let outcome = batch.execute(&queue);
            Ok(shared.document(if waits {
                shared.until_stopped(outcome, access).await
            } else {
                outcome.await
            }))
        }
        Endpoint::Events if wants_stream(&parts.headers) => {
            events::stream(shared, &query, &parts.headers, access).await
        }
        Endpoint::Events => {
            let operation = OperationInfo::find("events")
                .ok_or_else(|| OperationError::new("not-found", "no operation"))?;
            let plan = operation.read(&fields_of(route, &query)?, &queue.times())?;
            Ok(shared.document(shared.execute(&queue, plan, access).await))
        }
        Endpoint::History => {
            History::ensure_sampled(shared);
            respond::view(&shared.history.view(&fields_of(route, &query)?, queue.now())?)
        }
        Endpoint::Server => {
            fields_of(route, &query)?;
            respond::view(&server_info::view(shared).await?)
        }
        Endpoint::Settings => {
            fields_of(route, &query)?;
            respond::view(&shared.options.settings)
        }
        Endpoint::Log => {
            let request = LogRequest::read(&fields_of(route, &query)?, &queue.times())?;
            result_log::read(shared, request).await
        }
        Endpoint::LogSize => {
            fields_of(route, &query)?;
            result_log::read(shared, LogRequest::Size).await
        }
        Endpoint::Backup => {
            fields_of(route, &query)?;
            archive::download(shared, queue.backend(), access).await
        }
        Endpoint::ResultStream => {
            let jid = path.iter().find(|(name, _)| *name == "jid").map(|(_, jid)| jid).unwrap_or_default();
            fields_of(route, &query)?;
            result_stream::stream(shared, &queue, jid, access).await
        }
        Endpoint::Metrics => {
            fields_of(route, &query)?;
            metrics::render(shared).await
        }
        Endpoint::WhoAmI => login::whoami(shared, access),
        Endpoint::Audit => login::audit(shared, &fields_of(route, &query)?).await,
        open => answer_anyone(shared, open, &parts, body).await,
    }
}

/// Answers what tells nothing about the queue, and so needs no key.
async fn answer_anyone(
    shared: &Arc<Shared>,
    endpoint: Endpoint,
    parts: &Parts,
    body: Body,
) -> Result<Reply, OperationError> {
    match endpoint {
        Endpoint::OpenApi => {
            Ok(respond::json(openapi::document(shared.options.access.is_required()).to_owned()))
        }
        Endpoint::Health => Ok(respond::json(r#"{"status":"ok"}"#)),
        Endpoint::LogInPage => Ok(dashboard::login(&parts.headers)),
        Endpoint::LogIn => {
            let form = read_bytes(shared, body, login::FORM_BYTES_MAX).await?;
            login::log_in(shared, parts, &form).await
        }
        Endpoint::LogOut => Ok(login::log_out(shared, parts)),
        _ => ready(shared).await,
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

fn wants_stream(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    accept.contains("text/event-stream")
}

/// Reads the body, which must be JSON if there is one: a page of another site cannot send that type unasked.
async fn read_body(shared: &Shared, parts: &Parts, body: Body) -> Result<Bytes, OperationError> {
    let body = read_bytes(shared, body, shared.options.body_bytes_max).await?;
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

async fn read_bytes(shared: &Shared, body: Body, max: usize) -> Result<Bytes, OperationError> {
    let read = Limited::new(body, max).collect();
    match tokio::time::timeout(shared.options.body_timeout, read).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
            Err(OperationError::new("too-large", format!("the body has more than {max} bytes")))
        }
        Ok(Err(error)) => Err(OperationError::new("bad-json", format!("the body cannot be read: {error}"))),
        Err(_) => Err(OperationError::new("slow-request", "the body did not arrive in time")),
    }
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

/// The query of an endpoint that is no operation.
fn fields_of(route: &Route, query: &Query) -> Result<Object<'static>, OperationError> {
    let known: Vec<&'static FieldInfo> = route.endpoint.fields().iter().collect();
    let mut fields = Object::default();
    add_query(&mut fields, &known, query)?;
    Ok(fields)
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
        if matches!(field.kind, FieldKind::Names(_)) {
            return raw(&serde_json::json!(values).to_string());
        }
        let why = format!("`{}` is there {} times", field.name, values.len());
        return Err(OperationError::new("repeated-field", why));
    };
    let quoted = || serde_json::json!(value).to_string();
    raw(&match field.kind {
        FieldKind::Names(_) => serde_json::json!(values).to_string(),
        FieldKind::Number | FieldKind::Whole(..) | FieldKind::Flag | FieldKind::Backlog => {
            match serde_json::from_str::<&RawValue>(value) {
                // What is no number is refused as a text.
                Ok(json) if !json.get().starts_with('"') && json.get() != "null" => json.get().to_owned(),
                _ => quoted(),
            }
        }
        FieldKind::Retention if matches!(*value, "true" | "false") => (*value).to_owned(),
        // Also a number with an exponent.
        FieldKind::Duration | FieldKind::Span | FieldKind::Interval | FieldKind::Retention
            if serde_json::from_str::<f64>(value).is_ok() =>
        {
            (*value).to_owned()
        }
        FieldKind::Json
        | FieldKind::Object
        | FieldKind::UniqueKey
        | FieldKind::Levels
        | FieldKind::Capabilities
            // A word needs no quotes.
            if value.starts_with(['{', '[', '"']) =>
        {
            (*value).to_owned()
        }
        _ => quoted(),
    })
}

fn raw(json: &str) -> Result<Box<RawValue>, OperationError> {
    RawValue::from_string(json.to_owned())
        .map_err(|error| OperationError::new("bad-json", format!("it is not JSON: {error}")))
}
