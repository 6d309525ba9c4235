//! What those who wait for a job are told.

use std::pin::Pin;

use crate::{Jid, JobEnding, JobResult, Payload, Progressed, ResultWaiter};

/// Something for one submission that waits.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Delivery {
    /// Which.
    pub waiter: ResultWaiter,
    /// The job that it waits for.
    pub jid: Jid,
    /// What.
    #[serde(rename = "told")]
    pub item: StreamItem,
}

impl Delivery {
    /// The bytes of variable length that it carries; limits on slow clients count these.
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

/// What somebody who waits is told.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum StreamItem {
    /// The worker sent something.
    Chunk(ChunkKind, Payload),
    /// The worker got further.
    Progress {
        /// How far.
        progress: Progressed,
        /// The same in the worker's own words, if it said more.
        #[serde(default, rename = "said")]
        text: Option<Payload>,
    },
    /// The job ended; nothing more follows.
    Ended(JobEnding, JobResult),
}

/// What a worker sends while it works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum ChunkKind {
    /// A part of what comes out.
    Data,
    /// Something that somebody should look at.
    Warning,
}

/// What those are told who wait through one stream.
pub trait ResultStream: Send {
    /// The next one, as soon as there is one.
    fn next(&mut self) -> Pin<Box<dyn Future<Output = Result<Delivery, ResultStreamEnd>> + Send + '_>>;
}

/// Why nothing more is told.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResultStreamEnd {
    /// Nobody took what was told, and nobody waits for that.
    #[error("whoever waits for jobs was too slow to be told")]
    Lagged,
    /// The backend is gone, or had to be started again: who waited must ask how their jobs ended, or attach again.
    #[error("the backend was shut down or started again; ask for the result, or wait again")]
    Closed,
}
