//! Result streams: what a client that waits for a job receives, from the first chunk to the result.

use std::pin::Pin;

use crate::{Jid, JobEnding, JobResult, Payload, Progressed, ResultWaiter};

/// One item of a result stream, addressed to one submission.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct StreamMessage {
    /// The submission that receives it.
    pub waiter: ResultWaiter,
    /// The job that the submission waits for.
    pub jid: Jid,
    /// The chunk, progress or result.
    #[serde(rename = "told")]
    pub item: StreamItem,
}

impl StreamMessage {
    /// The number of payload and message bytes; the limits for slow clients count them.
    pub fn byte_len(&self) -> usize {
        match &self.item {
            StreamItem::Chunk(_, payload) => payload.byte_len(),
            StreamItem::Progress { text, .. } => text.as_ref().map_or(0, Payload::byte_len),
            StreamItem::Ended(ending, result) => {
                let message = if let JobEnding::Failed { message, .. } = ending { message.len() } else { 0 };
                result.bytes.byte_len() + message
            }
        }
    }
}

/// The content of a [`StreamMessage`].
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum StreamItem {
    /// The worker sent data or a warning.
    Chunk(ChunkKind, Payload),
    /// The worker reported progress.
    Progress {
        /// How much is done.
        progress: Progressed,
        /// The message that came with it.
        #[serde(default, rename = "said")]
        text: Option<Payload>,
    },
    /// The job ended. Nothing follows.
    Ended(JobEnding, JobResult),
}

/// The kind of data that a worker sends while it runs a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum ChunkKind {
    /// Part of the result.
    Data,
    /// A warning.
    Warning,
}

/// The receiving end of a result stream, see
/// [`Backend::open_result_stream`](crate::Backend::open_result_stream).
pub trait ResultStream: Send {
    /// Waits for the next item.
    fn next(&mut self) -> Pin<Box<dyn Future<Output = Result<StreamMessage, ResultStreamEnd>> + Send + '_>>;
}

/// Why a result stream ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResultStreamEnd {
    /// The client was too slow. A backend never blocks on a client.
    #[error("the result stream was closed: its client did not keep up")]
    Lagged,
    /// The backend was shut down or restarted. Look up the results, or attach again.
    #[error("the backend was shut down or restarted: look up the result, or wait again")]
    Closed,
}
