//! The result stream of a job as SSE: chunks, progress, and at last how it ended.

use std::pin::Pin;
use std::sync::Arc;

use geartrain_core::{
    Attach, AttachReply, Backend, BackendError, Call, ChunkKind, Jid, Reply as CommandReply, ResultStream,
    ResultWaiter, StoredResult, StreamItem,
};
use geartrain_json::{OperationError, ProgressView, Queue, StoredResultView, payload, random_stream};

use crate::guard::Access;
use crate::handlers::Shared;
use crate::respond::Reply;
use crate::sse::{self, Message, Next, Source};

/// Attaches to a job and streams what its waiting clients get.
pub(crate) async fn stream(
    shared: &Arc<Shared>,
    queue: &Queue,
    jid: &str,
    access: &Access,
) -> Result<Reply, OperationError> {
    let jid = Jid::new(jid)?;
    let stream_id = random_stream();
    let stream = shared.backend.open_result_stream(stream_id).await?;
    let waiter = ResultWaiter { stream_id, connection: 0, number: 0 };
    let attach = Attach { jid: jid.clone(), waiter };
    let attached = match execute(&*shared.backend, attach.into()).await? {
        CommandReply::Attach(reply) => reply,
        _ => {
            return Err(OperationError::new("unavailable", "the backend's reply does not match the request"));
        }
    };
    let source = match attached {
        AttachReply::Attached => Items { stream, jid, queue: queue.clone(), ended: None },
        AttachReply::Ended { result: Some(result), .. } => {
            Items { stream, jid, queue: queue.clone(), ended: Some(result) }
        }
        AttachReply::Ended { .. } => {
            return Err(OperationError::new(
                "no-result",
                format!("job {jid} has ended, and its result was not stored"),
            ));
        }
    };
    Ok(sse::respond(source, shared.stop.clone(), access.revoked.clone()))
}

async fn execute(backend: &dyn Backend, call: Call) -> Result<CommandReply, OperationError> {
    match backend.execute(vec![call]).await?.pop() {
        Some(answer) => Ok(answer?),
        None => Err(OperationError::new("unavailable", "the backend sent too few answers")),
    }
}

struct Items {
    stream: Box<dyn ResultStream>,
    jid: Jid,
    queue: Queue,
    /// It had ended before.
    ended: Option<Box<StoredResult>>,
}

impl Source for Items {
    fn next(&mut self) -> Pin<Box<dyn Future<Output = Next> + Send + '_>> {
        Box::pin(async move {
            if let Some(stored) = self.ended.take() {
                return last("ended", serde_json::to_string(&StoredResultView::new(&stored)));
            }
            match self.stream.next().await.map(|message| message.item) {
                Ok(StreamItem::Chunk(kind, bytes)) => {
                    let event = if kind == ChunkKind::Warning { "warning" } else { "data" };
                    message(event, Ok(payload::to_json(&bytes).get().to_owned()))
                }
                Ok(StreamItem::Progress { progress, .. }) => {
                    message("progress", serde_json::to_string(&ProgressView::new(progress)))
                }
                Ok(StreamItem::Ended(ending, result)) => {
                    let view = StoredResultView::not_stored(&self.jid, &ending, &result, self.queue.now());
                    last("ended", serde_json::to_string(&view))
                }
                Ok(_) => Next::Skip,
                Err(end) => {
                    let error: OperationError =
                        BackendError::Broken { backend: "chosen", source: Box::new(end) }.into();
                    last("error", Ok(error.document()))
                }
            }
        })
    }
}

fn message(event: &'static str, data: serde_json::Result<String>) -> Next {
    match data {
        Ok(data) => Next::Message(Message { id: None, event: Some(event), data }),
        Err(_) => Next::Skip,
    }
}

fn last(event: &'static str, data: serde_json::Result<String>) -> Next {
    match data {
        Ok(data) => Next::Last(Message { id: None, event: Some(event), data }),
        Err(_) => Next::End,
    }
}
