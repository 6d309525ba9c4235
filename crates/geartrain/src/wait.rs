//! Waiting for the result of a job.

use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use crate::put::seconds;
use crate::{
    Attach, AttachReply, Client, Detach, DetachScope, Error, Jid, JobEnding, JobResult, OrphanPolicy, Put,
    PutOptions, PutReply, PutRequest, Refusal, ResultStream, ResultStreamEnd, ResultWaiter, Seconds,
    StateName, StoredResult, StreamItem, StreamMessage, timer,
};

/// The end of a job, with its result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// The job id: another than the one submitted, if the put joined a job with the same unique key.
    pub jid: Jid,
    /// Completed, failed or cancelled.
    pub ending: JobEnding,
    /// What the worker sent.
    pub result: JobResult,
}

impl Ended {
    /// Whether the job was completed.
    pub fn is_completed(&self) -> bool {
        self.ending == JobEnding::Completed
    }
}

/// Why a wait gave no result. It does not affect the job.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// The wait timed out. The job goes on, unless it is ephemeral.
    #[error("job {jid} has not ended within {wait:?}; it goes on without this client")]
    TimedOut {
        /// The job id.
        jid: Jid,
        /// How long the client waited.
        wait: Duration,
    },
    /// The job ended while this client was disconnected, and its result was not stored.
    #[error(
        "the result of job {jid} is not known: it {}; submit it with keep_result() to read the result later",
        .state.map_or("has ended or was removed".to_owned(), |state| format!("is {state}"))
    )]
    Unknown {
        /// The job id.
        jid: Jid,
        /// Its state; none if the job no longer exists.
        state: Option<StateName>,
    },
}

/// A job that this client waits for: its result stream. Dropping it ends the wait.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
/// use geartrain::{Chunk, ChunkKind, Holder, StreamItem};
/// let client = geartrain::connect("memory:").await?;
/// let mut awaited = client.put_and_follow(client.put("reports", "render", "{}")).await?;
///
/// let job = client.pop("reports", "worker-1").await?.expect("there is a job");
/// let holder = Holder::Token(job.lock.token);
/// client.run(Chunk { jid: job.jid.clone(), holder, kind: ChunkKind::Data, bytes: "page 1".into() }).await?;
/// client.complete(&job).await?;
///
/// assert!(matches!(awaited.next().await?, StreamItem::Chunk(ChunkKind::Data, page) if page.bytes() == b"page 1"));
/// assert!(awaited.end(None).await?.is_completed());
/// # Ok(()) }) }
/// ```
pub struct Awaited {
    client: Client,
    jid: Jid,
    waiter: ResultWaiter,
    stream: Box<dyn ResultStream>,
    joined: bool,
    /// How it ended, once known. Items still in the stream come first.
    known: Option<Result<StreamItem, WaitError>>,
}

impl std::fmt::Debug for Awaited {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Awaited").field("jid", &self.jid).finish_non_exhaustive()
    }
}

impl Awaited {
    /// Submits a job and attaches to it.
    pub(crate) async fn put(client: &Client, put: PutRequest) -> Result<Awaited, Error> {
        let (waiter, stream) = follow(client).await?;
        let mut put = put.attach(waiter).into_put()?;
        let jid = put.jid.clone();
        let mut awaited = Awaited { client: client.clone(), jid, waiter, stream, joined: false, known: None };
        let plain = add_result_ttl(&mut put);
        let reply = match (client.run(put).await, plain) {
            // A backend without stored results: then the result stream is all there is.
            (Err(Error::Refused(Refusal::Unsupported { .. })), Some(plain)) => client.run(plain).await?,
            (reply, _) => reply?,
        };
        match reply {
            PutReply::Coalesced { jid } => (awaited.jid, awaited.joined) = (jid, true),
            PutReply::Named { jid } => awaited.jid = jid,
            // It may have ended long ago, and then this client is not attached.
            PutReply::Existing => awaited.attach().await?,
            _ => {}
        }
        Ok(awaited)
    }

    /// Attaches to an existing job.
    pub(crate) async fn existing(client: &Client, jid: &Jid) -> Result<Awaited, Error> {
        let (waiter, stream) = follow(client).await?;
        let mut awaited =
            Awaited { client: client.clone(), jid: jid.clone(), waiter, stream, joined: false, known: None };
        awaited.attach().await?;
        Ok(awaited)
    }

    /// The job id: another than the one submitted, if the put joined a job with the same unique key, or if
    /// the backend chooses ids itself.
    pub fn jid(&self) -> &Jid {
        &self.jid
    }

    /// Whether the put joined an unfinished job with the same unique key, as far as the backend reports it.
    pub fn joined(&self) -> bool {
        self.joined
    }

    /// The next item of the result stream: a chunk, progress, or at last the end of the job.
    ///
    /// After the end, it returns the end again. If the backend restarted, chunks and progress may be missing,
    /// and if the job ended meanwhile its result is the stored one.
    pub async fn next(&mut self) -> Result<StreamItem, Error> {
        loop {
            let next = {
                let mut next = self.stream.next();
                let mut poll = pin!(timer::after(if self.client.is_own_directory() {
                    Duration::MAX
                } else {
                    POLL_EVERY
                }));
                std::future::poll_fn(|context| match next.as_mut().poll(context) {
                    Poll::Ready(item) => Poll::Ready(Next::Item(item)),
                    // Items in the stream come before the known end.
                    Poll::Pending if self.known.is_some() => Poll::Ready(Next::Nothing),
                    Poll::Pending => poll.as_mut().poll(context).map(|()| Next::Poll),
                })
                .await
            };
            match (next, &self.known) {
                (Next::Poll, None) => self.poll_end().await?,
                (Next::Item(Ok(delivery)), _) => {
                    if let StreamItem::Ended(..) = &delivery.item {
                        self.known = Some(Ok(delivery.item.clone()));
                    }
                    return Ok(delivery.item);
                }
                (_, Some(known)) => return Ok(known.clone()?),
                (_, None) => self.reconnect().await?,
            }
        }
    }

    /// Checks whether the job has ended without a message: on a Redis, Qless's own script completes jobs
    /// without our result streams.
    async fn poll_end(&mut self) -> Result<(), Error> {
        match self.attach().await {
            Err(Error::Refused(Refusal::NoSuchJob { jid })) => {
                self.known = Some(Err(WaitError::Unknown { jid, state: None }));
            }
            attached => attached?,
        }
        if let Some(Err(WaitError::Unknown { state: Some(StateName::Complete), .. })) = self.known {
            self.known = Some(Ok(StreamItem::Ended(JobEnding::Completed, JobResult::default())));
        }
        Ok(())
    }

    /// Waits for the end, at most for `wait` if given. Skips chunks and progress.
    pub async fn end(mut self, wait: Option<Duration>) -> Result<Ended, Error> {
        let Some(wait) = wait else { return self.ended().await };
        seconds("wait", wait)?;
        let in_time = {
            let (mut ended, mut over) = (pin!(self.ended()), pin!(timer::after(wait)));
            std::future::poll_fn(|context| match ended.as_mut().poll(context) {
                Poll::Ready(ended) => Poll::Ready(Some(ended)),
                Poll::Pending => over.as_mut().poll(context).map(|()| None),
            })
            .await
        };
        match in_time {
            Some(ended) => ended,
            None => self.detach(wait).await,
        }
    }

    async fn ended(&mut self) -> Result<Ended, Error> {
        loop {
            if let StreamItem::Ended(ending, result) = self.next().await? {
                return Ok(Ended { jid: self.jid.clone(), ending, result });
            }
        }
    }

    /// Stops waiting. An end that arrived until now still counts.
    async fn detach(mut self, wait: Duration) -> Result<Ended, Error> {
        self.client.run(Detach { scope: DetachScope::One(self.waiter) }).await?;
        self.known = Some(Err(WaitError::TimedOut { jid: self.jid.clone(), wait }));
        self.ended().await
    }

    /// Opens a new stream after this one has ended. The job may have ended as well.
    async fn reconnect(&mut self) -> Result<(), Error> {
        let (waiter, stream) = follow(&self.client).await?;
        self.waiter = waiter;
        // Dropped only after attaching again, because an ephemeral job is removed when no client waits for
        // it.
        let _until_attached = std::mem::replace(&mut self.stream, stream);
        match self.attach().await {
            Err(Error::Refused(Refusal::NoSuchJob { jid })) => {
                self.known = Some(Err(WaitError::Unknown { jid, state: None }));
                Ok(())
            }
            attached => attached,
        }
    }

    async fn attach(&mut self) -> Result<(), Error> {
        let attach = Attach { jid: self.jid.clone(), waiter: self.waiter };
        if let AttachReply::Ended { state, result: stored } = self.client.run(attach).await? {
            self.known = Some(match stored {
                Some(stored) => {
                    let StoredResult { ending, result, .. } = *stored;
                    Ok(StreamItem::Ended(ending, result))
                }
                None => Err(WaitError::Unknown { jid: self.jid.clone(), state }),
            });
        }
        Ok(())
    }
}

/// How many seconds the result of a job is stored if its put waits for it: longer than the default time for
/// which a driver tries to reconnect.
const AWAITED_RESULT_TTL_SECONDS: i32 = 120;

/// Adds a short result TTL to a put, and returns the original; none if nothing was changed.
///
/// A result stream ends with its connection. If a server restarts, a worker may reconnect and complete the
/// job before this client is attached again; then the client finds the stored result. An ephemeral job is
/// removed by then, and its result with it.
fn add_result_ttl(put: &mut Put) -> Option<Put> {
    let is_changed =
        |options: &PutOptions| options.orphan_policy == OrphanPolicy::Always && options.result_ttl.is_none();
    if !put.options.as_deref().is_some_and(is_changed) {
        return None;
    }
    let plain = put.clone();
    put.options.get_or_insert_default().result_ttl = Some(Seconds::from(AWAITED_RESULT_TTL_SECONDS));
    Some(plain)
}

/// How often to check for an end that came without a message.
const POLL_EVERY: Duration = Duration::from_secs(5);

enum Next {
    Item(Result<StreamMessage, ResultStreamEnd>),
    Nothing,
    Poll,
}

/// Opens a result stream with an id of its own.
async fn follow(client: &Client) -> Result<(ResultWaiter, Box<dyn ResultStream>), Error> {
    // The second half of a UUID is random.
    let stream_id = uuid::Uuid::now_v7().as_u64_pair().1;
    let stream = client.follow(stream_id).await?;
    Ok((ResultWaiter { stream_id, connection: 0, number: 0 }, stream))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_a_wait_says_what_to_do() {
        let jid = Jid::new("j1").expect("a good name");
        let unknown = |state| WaitError::Unknown { jid: jid.clone(), state }.to_string();
        assert_eq!(
            unknown(Some(StateName::Complete)),
            "the result of job j1 is not known: it is complete; submit it with keep_result() to read the result later"
        );
        assert!(unknown(None).contains("it has ended or was removed"));
        let late = WaitError::TimedOut { jid, wait: Duration::from_secs(3) };
        assert_eq!(late.to_string(), "job j1 has not ended within 3s; it goes on without this client");
    }

    #[test]
    fn a_timeout_ends_in_time_while_longer_ones_are_pending() {
        let _long = timer::after(Duration::from_secs(3_600));
        let _for_ever = timer::after(Duration::MAX);
        pollster::block_on(timer::after(Duration::from_millis(1)));
    }
}
