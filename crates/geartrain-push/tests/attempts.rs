//! Attempts at jobs, and their verdicts in one line.

use std::sync::Arc;
use std::time::Instant;

use geartrain_core::{Backend, Call, Jid, Klass, Operation, Pop, Put, QueueName, SystemClock, WorkerName};
use geartrain_push::{Push, PushOptions};
use geartrain_store::StoreBackend;
use geartrain_worker::{Context, JobRequest};
use tokio_util::sync::CancellationToken;
use tower::Service;

/// A put into the queue `mail`.
pub(crate) fn job(jid: &str, payload: impl Into<geartrain_core::Payload>) -> Put {
    let (queue, klass) = (QueueName::new("mail").unwrap(), Klass::new("welcome").unwrap());
    Put::new(queue, Jid::new(jid).unwrap(), klass, payload)
}

/// An attempt at a job: it is put into a queue in memory and popped.
pub(crate) async fn attempt(put: Put) -> Context {
    attempt_until(put, None).await
}

/// An attempt with a deadline.
pub(crate) async fn attempt_until(put: Put, deadline: Option<Instant>) -> Context {
    let backend: Arc<dyn Backend> = Arc::new(StoreBackend::in_memory(Arc::new(SystemClock)).unwrap());
    let pop = Pop::new(put.queue.clone(), WorkerName::new("w1").unwrap());
    let mut answers = backend.execute(vec![Call::from(put), Call::from(pop)]).await.unwrap();
    let popped = Pop::answer(answers.pop().unwrap().unwrap()).unwrap().jobs.pop().unwrap();
    Context::new(backend, popped, deadline, CancellationToken::new())
}

/// Sends a job with the payload `{"to":"a"}`, and returns the verdict.
pub(crate) async fn push(url: &str, options: PushOptions) -> String {
    let push = Push::new(url, options).unwrap();
    send(push, attempt(job("j1", r#"{"to":"a"}"#)).await).await
}

/// Sends a job. The verdict is `complete <result>`, or the debug text of the error.
pub(crate) async fn send(mut push: Push, context: Context) -> String {
    match push.call(JobRequest { context }).await {
        Ok(output) => {
            format!("complete {}", String::from_utf8_lossy(output.result.unwrap().bytes.bytes()))
        }
        Err(error) => {
            let text = format!("{error:?}");
            let text = text.trim_start_matches("HandlerError(JobError { action: ");
            text.trim_end_matches(", .. })").to_owned()
        }
    }
}

/// The debug text of a retry.
pub(crate) fn retry(group: &str, message: &str) -> String {
    format!("Retry {{ delay: None }}, group: Some({group:?}), message: {message:?}")
}
