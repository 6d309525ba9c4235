//! `geartrain put --wait`: wait for a job, and print its result stream.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use geartrain::{Awaited, ChunkKind, Client, Ended, NO_JID, Payload, Put, StreamItem, WaitError};
use serde::Serialize;
use serde_json::value::RawValue;

use super::Done;
use super::put::joined;
use super::status::ending_error;
use crate::failure::Failure;
use crate::job_details::progress_text;
use crate::output::Output;
use geartrain_json::{EndedView, payload};

/// Submits a job and waits for its result, or until the timeout.
pub(super) async fn put_and_wait(
    client: &Client,
    put: Put,
    wait: Option<Duration>,
    out: &mut Output<'_>,
) -> Done {
    // A timeout too far away for an `Instant` is none.
    let deadline = wait.and_then(|wait| Instant::now().checked_add(wait));
    let awaited = client.put_and_follow(client.request(put)).await?;
    let coalesced = awaited.joined();
    let jid = awaited.jid().clone();
    if coalesced && !out.json {
        out.remark(joined(&jid))?;
    } else if out.err_is_terminal && !out.json {
        out.remark(format_args!("waiting for job {jid}"))?;
    }
    let known = (jid.to_string() != NO_JID).then(|| jid.to_string());
    let mut received = Received { jid: known, coalesced, ..Received::default() };
    let ended = match print_stream(awaited, deadline, &mut received, out).await {
        Ok(ended) => {
            received.ended = EndedView::new(&ended.ending, &ended.result);
            Ok(ended)
        }
        // The stream only knows its own last wait, not the timeout.
        Err(Failure::TimedOut(_)) => Err(WaitError::TimedOut { jid, wait: wait.unwrap_or_default() }.into()),
        Err(failure) => Err(failure),
    };
    if out.json {
        out.line(&received, "")?;
    }
    let ended = ended?;
    if !out.json {
        out.bytes(ended.result.bytes.bytes())?;
    }
    ending_error(&ended.jid, &ended.ending).map_or(Ok(()), |why| Err(Failure::Refused(why)))
}

/// The result stream of a job, for `--json`.
#[derive(Debug, Default, Serialize)]
struct Received {
    /// None if the backend gives none.
    jid: Option<String>,
    coalesced: bool,
    data: Vec<Box<RawValue>>,
    warnings: Vec<Box<RawValue>>,
    #[serde(flatten)]
    ended: EndedView,
}

impl Received {
    /// Collects a chunk for JSON, or prints it at once.
    fn chunk(&mut self, kind: ChunkKind, bytes: &Payload, out: &mut Output<'_>) -> Done {
        match kind {
            ChunkKind::Data if out.json => self.data.push(payload::to_json(bytes)),
            ChunkKind::Warning if out.json => self.warnings.push(payload::to_json(bytes)),
            ChunkKind::Data => out.bytes(bytes.bytes())?,
            ChunkKind::Warning => {
                out.remark(format_args!("warning: {}", String::from_utf8_lossy(bytes.bytes()).trim_end()))?;
            }
        }
        Ok(())
    }
}

/// Prints the result stream until the job ends or the deadline passes.
async fn print_stream(
    mut awaited: Awaited,
    deadline: Option<Instant>,
    received: &mut Received,
    out: &mut Output<'_>,
) -> Result<Ended, Failure> {
    while let Some(item) = block_until(deadline, awaited.next()) {
        match item? {
            StreamItem::Chunk(kind, bytes) => received.chunk(kind, &bytes, out)?,
            StreamItem::Progress { progress, .. } if out.err_is_terminal && !out.json => {
                out.remark(progress_text(progress))?;
            }
            StreamItem::Ended(ending, result) => {
                return Ok(Ended { jid: awaited.jid().clone(), ending, result });
            }
            _ => {}
        }
    }
    // Stops waiting; a result that arrived in this instant still counts.
    Ok(awaited.end(Some(Duration::ZERO)).await?)
}

/// Blocks on a future until a deadline; none if it is not ready by then.
///
/// The command has one thread and nothing else to do, so blocking it is fine.
fn block_until<F: Future>(deadline: Option<Instant>, future: F) -> Option<F::Output> {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Unpark>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(done);
        }
        match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
            Some(Duration::ZERO) => return None,
            Some(left) => std::thread::park_timeout(left),
            None => std::thread::park(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_at_its_deadline_and_not_before() {
        assert_eq!(block_until(None, std::future::ready(7)), Some(7));
        assert_eq!(block_until(Some(Instant::now()), std::future::ready(7)), Some(7));
        let soon = Instant::now() + Duration::from_millis(5);
        assert_eq!(block_until(Some(soon), std::future::pending::<()>()), None);
        assert!(Instant::now() >= soon);
    }
}
