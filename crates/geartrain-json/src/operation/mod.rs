//! Operations as JSON: `{"put": {"queue": "mail", "klass": "welcome"}}` becomes commands, and their replies a
//! document. One table for JSON over RESP, HTTP and its OpenAPI.

mod attempt;
mod bulk;
mod change;
mod config;
mod documents;
pub(crate) mod field;
mod jobs;
mod queues;
mod recur_edit;
mod recurring;
mod results;
mod worker;

pub use change::last_queue;
pub use config::option_keys;
pub use field::{FieldInfo, FieldKind, Need, Reach, object_schema};
pub use results::random_stream;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use geartrain_core::{
    Answer, Backend, BackendError, Call, Clock, Command, Operation, Pop, PopReply, Refusal, Release, Reply,
    Role, Seconds, SystemClock, Timestamp,
};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::object::utf8;
use crate::time::Times;
use crate::{Object, OperationError, syntax_error};

/// The most operations of one batch.
pub const BATCH_MAX: usize = 10_000;

/// A document.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// JSON on one line.
    pub json: String,
    /// The jobs that it hands out. If it cannot be delivered, release them.
    pub jobs: Vec<Release>,
}

/// What came of an operation.
pub type Outcome = Result<Document, OperationError>;

type Steps = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// An operation: its name, its fields, and how it is read.
pub struct OperationInfo {
    /// Its name, such as `put`.
    pub name: &'static str,
    /// The role that a caller needs.
    pub access: Role,
    /// What it does, in a sentence.
    pub meaning: &'static str,
    /// Its fields, in the order in which errors list them.
    pub fields: &'static [FieldInfo],
    read: fn(&Object<'_>, &Times) -> Result<Plan, OperationError>,
}

const JID: FieldInfo = FieldInfo::required("jid", FieldKind::Name, "The id of the job");
const QUEUE: FieldInfo = FieldInfo::required("queue", FieldKind::Name, "The queue");
const TOKEN: FieldInfo = FieldInfo::new("token", field::TOKEN, "The fencing token that came with the job")
    .needed(Need::AtLeastOne);
const HOLDER: FieldInfo =
    FieldInfo::new("worker", FieldKind::Name, "Instead of the token: the worker that holds the job")
        .needed(Need::AtLeastOne);

/// Every operation, by slice.
pub fn operations() -> impl Iterator<Item = &'static OperationInfo> {
    [
        attempt::OPERATIONS,
        jobs::OPERATIONS,
        change::OPERATIONS,
        results::OPERATIONS,
        queues::OPERATIONS,
        worker::OPERATIONS,
        recurring::OPERATIONS,
        recur_edit::OPERATIONS,
        config::OPERATIONS,
    ]
    .into_iter()
    .flatten()
}

impl OperationInfo {
    /// Finds an operation by its name.
    pub fn find(name: &str) -> Option<&'static OperationInfo> {
        operations().find(|operation| operation.name == name)
    }

    /// Reads the fields of this operation. Nothing is executed before all are valid.
    pub fn read(&self, fields: &Object<'_>, times: &Times) -> Result<Plan, OperationError> {
        fields.allow(self.fields.iter().map(|field| field.name))?;
        self.check_reach(fields)?;
        (self.read)(fields, times)
    }

    /// Refuses fields for one job beside a filter: they would have no effect.
    fn check_reach(&self, fields: &Object<'_>) -> Result<(), OperationError> {
        let is_given = |field: &&FieldInfo| fields.raw(field.name).is_some();
        let selects = |field: &FieldInfo| {
            field.need == Need::AtLeastOne
                && fields.raw(field.name).is_some_and(|value| value.get() != "false")
        };
        let of = |reach: Reach| self.fields.iter().filter(move |field| field.reach == reach);
        if !of(Reach::Many).any(selects) {
            return Ok(());
        }
        match of(Reach::One).find(is_given) {
            Some(field) if matches!(field.need, Need::ExactlyOne) => {
                Err(OperationError::bad_argument(format!("give either `{}` or a filter", field.name)))
            }
            Some(field) => Err(OperationError::bad_argument(format!(
                "`{}` goes with one job, and not with a filter",
                field.name
            ))),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for OperationInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OperationInfo").field("name", &self.name).finish_non_exhaustive()
    }
}

/// An operation that was read and can be executed.
pub struct Plan {
    kind: Kind,
}

type Finish = Box<dyn FnOnce(Reply, Timestamp) -> Outcome + Send>;

enum Kind {
    /// One command. A batch sends such commands together.
    Command(Box<Command>, Finish),
    /// Waits for something, for as long as the caller asked.
    Wait(Box<dyn FnOnce(Queue) -> Steps + Send>),
    /// Commands that depend on each other's replies.
    Steps(Box<dyn FnOnce(Queue) -> Steps + Send>),
}

impl Plan {
    /// One command, and the document of its reply.
    fn command<O>(
        operation: O,
        document: impl FnOnce(O::Reply, Timestamp) -> Outcome + Send + 'static,
    ) -> Result<Plan, OperationError>
    where
        O: Operation + 'static,
    {
        let finish = |reply, now| match O::answer(reply) {
            Some(reply) => document(reply, now),
            None => Err(wrong_answer()),
        };
        Plan::new(Kind::Command(Box::new(operation.into()), Box::new(finish)))
    }

    /// Several commands.
    fn steps<F>(steps: impl FnOnce(Queue) -> F + Send + 'static) -> Result<Plan, OperationError>
    where
        F: Future<Output = Outcome> + Send + 'static,
    {
        Plan::new(Kind::Steps(Box::new(|queue| Box::pin(steps(queue)))))
    }

    /// The same, as a wait.
    fn wait<F>(steps: impl FnOnce(Queue) -> F + Send + 'static) -> Result<Plan, OperationError>
    where
        F: Future<Output = Outcome> + Send + 'static,
    {
        Plan::new(Kind::Wait(Box::new(|queue| Box::pin(steps(queue)))))
    }

    fn new(kind: Kind) -> Result<Plan, OperationError> {
        Ok(Plan { kind })
    }

    /// Whether it waits for something.
    pub fn waits(&self) -> bool {
        matches!(self.kind, Kind::Wait(_))
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.kind {
            Kind::Command(command, _) => command.name(),
            Kind::Wait(_) => "Wait",
            Kind::Steps(_) => "Steps",
        })
    }
}

fn wrong_answer() -> OperationError {
    OperationError::new("unavailable", "the backend's reply does not match the request")
}

/// A document of a value.
fn document(value: &(impl Serialize + ?Sized)) -> Outcome {
    serde_json::to_string(value)
        .map(|json| Document { json, jobs: Vec::new() })
        .map_err(|error| OperationError::new("unavailable", format!("the reply cannot be shown: {error}")))
}

/// A timer: returns after so long.
pub type Sleep = fn(Duration) -> Pin<Box<dyn Future<Output = ()> + Send>>;

/// A backend on which operations are executed, and who asks.
#[derive(Clone)]
pub struct Queue {
    backend: Arc<dyn Backend>,
    caller: Option<Arc<str>>,
    sleep: Sleep,
}

impl Queue {
    /// For operations of one caller, whose name is stored with cancelled jobs. What the role of the caller does not
    /// allow is refused, and recorded, by the backend.
    pub fn new(backend: Arc<dyn Backend>, caller: Option<Arc<str>>, sleep: Sleep) -> Queue {
        Queue { backend, caller, sleep }
    }

    /// The backend.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// The time of the backend, or of this machine.
    pub fn now(&self) -> Timestamp {
        self.backend.now().unwrap_or_else(|| SystemClock.now())
    }

    /// How times are read: phrases are in UTC.
    pub fn times(&self) -> Times {
        Times::utc(self.now())
    }

    /// Executes one operation.
    pub async fn execute(&self, plan: Plan) -> Outcome {
        match plan.kind {
            Kind::Wait(steps) | Kind::Steps(steps) => steps(self.clone()).await,
            Kind::Command(command, finish) => {
                let answer = self.send(vec![self.call(*command)]).await?.pop().ok_or_else(wrong_answer)?;
                finish(answer?, self.now())
            }
        }
    }

    /// Executes operations in order. One that was not read, or is refused, does not stop the next.
    pub async fn execute_all(&self, plans: Vec<Result<Plan, OperationError>>) -> Vec<Outcome> {
        let mut undelivered =
            Undelivered { backend: &self.backend, outcomes: Vec::with_capacity(plans.len()) };
        let outcomes = &mut undelivered.outcomes;
        let (mut calls, mut finishes) = (Vec::new(), Vec::new());
        for plan in plans {
            match plan.map(|plan| plan.kind) {
                Ok(Kind::Command(command, finish)) => {
                    calls.push(self.call(*command));
                    finishes.push(Ok(finish));
                }
                Err(error) => finishes.push(Err(error)),
                Ok(Kind::Wait(steps) | Kind::Steps(steps)) => {
                    self.finish(&mut calls, &mut finishes, outcomes).await;
                    outcomes.push(steps(self.clone()).await);
                }
            }
        }
        self.finish(&mut calls, &mut finishes, outcomes).await;
        std::mem::take(outcomes)
    }

    /// Sends the commands so far as one batch.
    async fn finish(
        &self,
        calls: &mut Vec<Call>,
        finishes: &mut Vec<Result<Finish, OperationError>>,
        outcomes: &mut Vec<Outcome>,
    ) {
        let calls = std::mem::take(calls);
        let answers = if calls.is_empty() { Ok(Vec::new()) } else { self.send(calls).await };
        let mut answers = answers.map(Vec::into_iter);
        let now = self.now();
        outcomes.extend(finishes.drain(..).map(|finish| {
            let finish = finish?;
            let answer = match &mut answers {
                Ok(answers) => answers.next().ok_or_else(wrong_answer)?,
                Err(error) => return Err(error.clone()),
            };
            finish(answer?, now)
        }));
    }

    fn call(&self, command: Command) -> Call {
        let by = if command.records_caller() { self.caller.clone() } else { None };
        Call { by, ..Call::from(command) }
    }

    async fn send(&self, calls: Vec<Call>) -> Result<Vec<Answer>, OperationError> {
        Ok(self.backend.execute(calls).await?)
    }

    /// Executes one command of an operation that has several.
    async fn run<O: Operation>(&self, operation: O) -> Result<O::Reply, OperationError> {
        let answer = self.send(vec![self.call(operation.into())]).await?.pop().ok_or_else(wrong_answer)?;
        O::answer(answer?).ok_or_else(wrong_answer)
    }

    /// The same; none if the backend has no such operation.
    async fn run_if_supported<O: Operation>(&self, operation: O) -> Result<Option<O::Reply>, OperationError> {
        let answer = self.send(vec![self.call(operation.into())]).await?.pop().ok_or_else(wrong_answer)?;
        match answer {
            Err(Refusal::Unsupported { .. }) => Ok(None),
            answer => O::answer(answer?).map(Some).ok_or_else(wrong_answer),
        }
    }

    async fn pop_or_wait(&self, pop: Pop, wait: Seconds) -> Result<PopReply, BackendError> {
        self.backend.pop_or_wait(pop, wait).await
    }

    /// The output of a future; none if `wait` is over before.
    async fn within<T>(&self, wait: Duration, future: impl Future<Output = T>) -> Option<T> {
        let mut future = std::pin::pin!(future);
        let mut over = (self.sleep)(wait);
        std::future::poll_fn(|context| match future.as_mut().poll(context) {
            std::task::Poll::Ready(output) => std::task::Poll::Ready(Some(output)),
            std::task::Poll::Pending => over.as_mut().poll(context).map(|()| None),
        })
        .await
    }
}

/// The outcomes of a batch so far. If it is given up during a wait, because the client is gone, the jobs that it
/// popped before are released.
struct Undelivered<'q> {
    backend: &'q Arc<dyn Backend>,
    outcomes: Vec<Outcome>,
}

impl Drop for Undelivered<'_> {
    fn drop(&mut self) {
        let delivered = self.outcomes.drain(..).flatten();
        let calls: Vec<Call> = delivered.flat_map(|document| document.jobs).map(Call::from).collect();
        if calls.is_empty() {
            return;
        }
        // The first poll sends the calls. Nothing can wait for the answers here; if they are lost, locks expire.
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let _ = self.backend.execute(calls).as_mut().poll(&mut context);
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("caller", &self.caller).finish_non_exhaustive()
    }
}

/// What a request asks for: one operation, or several.
#[derive(Debug)]
pub enum Request {
    /// `{"put": {…}}`
    One(Box<Result<Plan, OperationError>>),
    /// `[{"put": {…}}, {"pop": {…}}]`
    Batch(Vec<Result<Plan, OperationError>>),
}

impl Request {
    /// Reads a request. A batch with a bad operation is read: that operation has an error as its outcome.
    pub fn read(json: &[u8], times: &Times) -> Result<Request, OperationError> {
        let text = utf8(json)?;
        if !text.trim_ascii_start().starts_with('[') {
            return Ok(Request::One(Box::new(read(text, times))));
        }
        let operations: Vec<&RawValue> = serde_json::from_str(text)
            .map_err(|error| OperationError::new("bad-json", syntax_error(&error, text)))?;
        if operations.len() > BATCH_MAX {
            let why = format!("a batch has at most {BATCH_MAX} operations, not {}", operations.len());
            return Err(OperationError::new("too-large", why));
        }
        Ok(Request::Batch(operations.into_iter().map(|json| read(json.get(), times)).collect()))
    }

    /// Whether it waits for something, so that it may take long.
    pub fn waits(&self) -> bool {
        self.plans().any(Plan::waits)
    }

    /// Whether it is one batch of commands, and so executed as a whole in its turn.
    pub fn is_one_batch(&self) -> bool {
        self.plans().all(|plan| matches!(plan.kind, Kind::Command(..)))
    }

    fn plans(&self) -> impl Iterator<Item = &Plan> {
        let (one, batch) = match self {
            Request::One(plan) => (Some(&**plan), &[][..]),
            Request::Batch(plans) => (None, plans.as_slice()),
        };
        one.into_iter().chain(batch).flatten()
    }

    /// Executes it. Of a batch the document is a list, in which an operation that was not done is its error.
    pub async fn execute(self, queue: &Queue) -> Outcome {
        match self {
            Request::One(plan) => queue.execute((*plan)?).await,
            Request::Batch(plans) => {
                let outcomes = queue.execute_all(plans).await;
                let (mut documents, mut jobs) = (Vec::with_capacity(outcomes.len()), Vec::new());
                for outcome in outcomes {
                    documents.push(match outcome {
                        Ok(document) => {
                            jobs.extend(document.jobs);
                            document.json
                        }
                        Err(error) => error.document(),
                    });
                }
                Ok(Document { json: format!("[{}]", documents.join(",")), jobs })
            }
        }
    }
}

/// Reads one operation.
fn read(text: &str, times: &Times) -> Result<Plan, OperationError> {
    const EXAMPLE: &str = r#"{"put":{"queue":"mail","klass":"welcome"}}"#;
    let object = Object::parse(text, EXAMPLE)?;
    let Some((name, fields)) = object.only() else {
        let why = format!("an operation is an object with one key, like {EXAMPLE}");
        return Err(OperationError::new("bad-json", why));
    };
    let Some(operation) = OperationInfo::find(name) else {
        let known: Vec<_> = operations().map(|operation| operation.name).collect();
        let why = format!(
            "there is no operation {:?}; the operations are {}",
            crate::excerpt(name),
            known.join(", ")
        );
        return Err(OperationError::new("unknown-operation", why));
    };
    let fields = Object::parse(fields.get(), r#"{"queue":"mail"}"#)?;
    operation.read(&fields, times)
}
