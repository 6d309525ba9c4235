//! Server-sent events: messages as they come, and a comment now and then, so that a client that is gone is
//! noticed and proxies keep the connection open.

use std::convert::Infallible;
use std::pin::Pin;
use std::time::Duration;

use axum::body::Body;
use axum::http::StatusCode;
use bytes::Bytes;
use futures_util::stream;
use tokio_util::sync::CancellationToken;

use crate::respond::{self, Reply};

/// How long a stream may be silent.
const SILENCE_MAX: Duration = Duration::from_secs(15);

/// One message.
pub(crate) struct Message {
    /// What a client sends as `Last-Event-ID` when it connects again.
    pub(crate) id: Option<String>,
    /// Its type; `message` if not given.
    pub(crate) event: Option<&'static str>,
    /// JSON on one line.
    pub(crate) data: String,
}

impl Message {
    fn encode(&self) -> Bytes {
        let id = self.id.as_ref().map(|id| format!("id: {id}\n")).unwrap_or_default();
        let event = self.event.map(|event| format!("event: {event}\n")).unwrap_or_default();
        format!("{id}{event}data: {}\n\n", self.data).into()
    }
}

/// What comes next in a stream.
pub(crate) enum Next {
    Message(Message),
    /// Nothing to show.
    Skip,
    /// The last message.
    Last(Message),
    End,
}

/// Where messages come from. The future may be dropped while it waits, and then loses nothing.
pub(crate) trait Source: Send + 'static {
    fn next(&mut self) -> Pin<Box<dyn Future<Output = Next> + Send + '_>>;
}

/// A response that streams messages until the source, the server or the access of the caller ends.
pub(crate) fn respond(source: impl Source, stop: CancellationToken, revoked: CancellationToken) -> Reply {
    let begin = stream::once(std::future::ready(Ok(Bytes::from_static(b"retry: 2000\n\n"))));
    let messages = stream::unfold(Some((source, stop, revoked)), |state| async move {
        let (mut source, stop, revoked) = state?;
        let next = tokio::select! {
            next = skip(&mut source) => next,
            () = tokio::time::sleep(SILENCE_MAX) => {
                return Some((Ok(Bytes::from_static(b":\n\n")), Some((source, stop, revoked))));
            }
            () = stop.cancelled() => return None,
            () = revoked.cancelled() => return None,
        };
        match next {
            Next::Message(message) => {
                Some((Ok::<_, Infallible>(message.encode()), Some((source, stop, revoked))))
            }
            Next::Last(message) => Some((Ok(message.encode()), None)),
            Next::Skip | Next::End => None,
        }
    });
    let body = Body::from_stream(stream::StreamExt::chain(begin, messages));
    respond::with_type(StatusCode::OK, "text/event-stream", body)
}

/// The next message that is shown, or the end.
async fn skip(source: &mut impl Source) -> Next {
    loop {
        match source.next().await {
            Next::Skip => {}
            next => return next,
        }
    }
}
