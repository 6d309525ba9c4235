//! A response body with popped jobs, which are released if it is dropped before it was sent.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use geartrain_core::{Backend, Call, Release};
use http_body::{Body, Frame, SizeHint};

/// The document of a pop. The client may have gone while it waited.
pub(crate) struct PoppedBody {
    json: Option<Bytes>,
    jobs: Vec<Release>,
    backend: Arc<dyn Backend>,
}

impl PoppedBody {
    pub(crate) fn new(json: String, jobs: Vec<Release>, backend: Arc<dyn Backend>) -> PoppedBody {
        PoppedBody { json: Some(json.into()), jobs, backend }
    }
}

impl Body for PoppedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut PoppedBody>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.jobs.clear();
        Poll::Ready(self.json.take().map(|json| Ok(Frame::data(json))))
    }

    fn is_end_stream(&self) -> bool {
        self.json.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.json.as_ref().map_or(0, |json| json.len() as u64))
    }
}

impl Drop for PoppedBody {
    fn drop(&mut self) {
        if self.jobs.is_empty() {
            return;
        }
        let calls: Vec<Call> = self.jobs.drain(..).map(Call::from).collect();
        let backend = self.backend.clone();
        // Without a runtime the process is ending, and the locks expire.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                if let Err(error) = backend.execute(calls).await {
                    tracing::warn!("cannot release jobs of a client that is gone: they wait for their locks to expire: {error}");
                }
            });
        }
    }
}
