//! Waiting for a job that was just put, and passing on what comes out of it.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use geartrain::{Awaited, ChunkKind, Client, Ended, Payload, Put, StreamItem, WaitError};
use serde::Serialize;
use serde_json::value::RawValue;

use super::Done;
use super::put::joined;
use super::status::{EndedView, ended_badly};
use crate::failure::Failure;
use crate::output::Output;
use crate::particulars::progress_text;
use crate::payload;

/// Puts a job, and waits until it ended or the time is up.
pub(super) async fn put_and_wait(
    client: &Client,
    put: Put,
    wait: Option<Duration>,
    out: &mut Output<'_>,
) -> Done {
    // A wait too long to be told from one for ever is one.
    let until = wait.and_then(|wait| Instant::now().checked_add(wait));
    let awaited = client.put_and_follow(client.request(put)).await?;
    let coalesced = awaited.joined();
    let jid = awaited.jid().clone();
    if coalesced && !out.json {
        out.remark(joined(&jid))?;
    } else if out.err_is_terminal && !out.json {
        out.remark(format_args!("waiting for job {jid}"))?;
    }
    let mut heard = Heard { jid: jid.to_string(), coalesced, ..Heard::default() };
    let ended = match listen(awaited, until, &mut heard, out).await {
        Ok(ended) => {
            heard.ended = EndedView::new(&ended.how, &ended.outcome);
            Ok(ended)
        }
        // It only knows how long it waited in the end.
        Err(Failure::TimedOut(_)) => Err(WaitError::TimedOut { jid, wait: wait.unwrap_or_default() }.into()),
        Err(failure) => Err(failure),
    };
    if out.json {
        out.line(&heard, "")?;
    }
    let ended = ended?;
    if !out.json {
        out.bytes(ended.outcome.bytes.bytes())?;
    }
    ended_badly(&ended.jid, &ended.how).map_or(Ok(()), |why| Err(Failure::Refused(why)))
}

/// What was heard of a job, for `--json`.
#[derive(Debug, Default, Serialize)]
struct Heard {
    jid: String,
    coalesced: bool,
    data: Vec<Box<RawValue>>,
    warnings: Vec<Box<RawValue>>,
    #[serde(flatten)]
    ended: EndedView,
}

impl Heard {
    /// Keeps what the worker sent, or passes it on.
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

/// Passes on what comes until the job ended, or the time is up.
async fn listen(
    mut awaited: Awaited,
    until: Option<Instant>,
    heard: &mut Heard,
    out: &mut Output<'_>,
) -> Result<Ended, Failure> {
    while let Some(told) = by(until, awaited.next()) {
        match told? {
            StreamItem::Chunk(kind, bytes) => heard.chunk(kind, &bytes, out)?,
            StreamItem::Progress { progress, .. } if out.err_is_terminal && !out.json => {
                out.remark(progress_text(progress))?;
            }
            StreamItem::Ended(how, outcome) => return Ok(Ended { jid: awaited.jid().clone(), how, outcome }),
            _ => {}
        }
    }
    // Leaves; and if the job ended in that instant, it has ended.
    Ok(awaited.end(Some(Duration::ZERO)).await?)
}

/// Waits for a future, but not past a moment; none if it was not ready by then.
///
/// The command has one thread and nothing else to do with it, so the thread may sleep.
fn by<F: Future>(until: Option<Instant>, future: F) -> Option<F::Output> {
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
        match until.map(|until| until.saturating_duration_since(Instant::now())) {
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
    fn a_wait_ends_when_it_is_time_and_not_before_it_must() {
        assert_eq!(by(None, std::future::ready(7)), Some(7));
        assert_eq!(by(Some(Instant::now()), std::future::ready(7)), Some(7));
        let soon = Instant::now() + Duration::from_millis(5);
        assert_eq!(by(Some(soon), std::future::pending::<()>()), None);
        assert!(Instant::now() >= soon);
    }
}
