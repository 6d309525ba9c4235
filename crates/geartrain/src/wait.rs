//! Waiting for the result of a job.

use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use futures_core::Stream;

use crate::put::seconds;
use crate::{
    Attach, AttachReply, BadArgument, Client, Detach, DetachScope, Error, Jid, JobEnding, JobResult, NO_JID,
    OrphanPolicy, Put, PutOptions, PutReply, PutRequest, Refusal, ResultStream, ResultStreamEnd,
    ResultWaiter, Seconds, StateName, StoredResult, StreamItem, StreamMessage, timer,
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

    /// The result as a value, if it is JSON: what [`Client::complete_with`] and typed handlers send.
    pub fn json<T: serde::de::DeserializeOwned>(&self) -> Result<T, Error> {
        serde_json::from_slice(self.result.bytes.bytes()).map_err(|error| {
            let why = format!("of job {} is not what is expected: {error}", self.jid);
            BadArgument { what: "result", why }.into()
        })
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
    jid: Jid,
    joined: bool,
    state: State,
}

/// The next item, with what the wait for it borrowed.
type NextItem = Pin<Box<dyn Future<Output = (Box<Attached>, Result<StreamItem, Error>)> + Send>>;

enum State {
    Idle(Box<Attached>),
    /// A poll of the stream found no item. The future owns what it borrows while it waits.
    Polled(NextItem),
    /// The stream has given the end of the job, or an error.
    Ended(Option<Box<Attached>>),
}

/// A client attached to a job.
struct Attached {
    client: Client,
    jid: Jid,
    waiter: ResultWaiter,
    stream: Box<dyn ResultStream>,
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
        let mut attached = Attached { client: client.clone(), jid, waiter, stream, known: None };
        let plain = add_result_ttl(&mut put);
        let reply = match (client.run(put).await, plain) {
            // A backend without stored results: then the result stream is all there is.
            (Err(Error::Refused(Refusal::Unsupported { .. })), Some(plain)) => client.run(plain).await?,
            (reply, _) => reply?,
        };
        let joined = matches!(reply, PutReply::Coalesced { .. });
        match reply {
            PutReply::Coalesced { jid } | PutReply::Named { jid } | PutReply::NamedExisting { jid } => {
                attached.jid = jid
            }
            PutReply::Unnamed => attached.jid = Jid::new(NO_JID)?,
            // It may have ended long ago, and then this client is not attached.
            PutReply::Existing => attached.attach().await?,
            _ => {}
        }
        Ok(Awaited { jid: attached.jid.clone(), joined, state: State::Idle(Box::new(attached)) })
    }

    /// Attaches to an existing job.
    pub(crate) async fn existing(client: &Client, jid: &Jid) -> Result<Awaited, Error> {
        let (waiter, stream) = follow(client).await?;
        let mut attached = Attached { client: client.clone(), jid: jid.clone(), waiter, stream, known: None };
        attached.attach().await?;
        Ok(Awaited { jid: jid.clone(), joined: false, state: State::Idle(Box::new(attached)) })
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
        if let State::Idle(attached) = &mut self.state {
            return attached.next().await;
        }
        if let State::Ended(attached) = &mut self.state
            && let Some(attached) = attached.take()
        {
            self.state = State::Idle(attached);
        }
        std::future::poll_fn(|context| self.poll_item(context)).await
    }

    /// Waits for the end, at most for `wait` if given. Skips chunks and progress.
    pub async fn end(self, wait: Option<Duration>) -> Result<Ended, Error> {
        wait.map(|wait| seconds("wait", wait)).transpose()?;
        let jid = self.jid.clone();
        match self.state {
            State::Idle(attached) | State::Ended(Some(attached)) => attached.end(wait).await,
            State::Ended(None) => Err(WaitError::Unknown { jid, state: None }.into()),
            // Polled as a stream before: that poll comes first.
            State::Polled(mut polled) => {
                let started = Instant::now();
                let Some((attached, item)) = in_time(&mut polled, wait).await else {
                    let wait = wait.unwrap_or_default();
                    return Err(WaitError::TimedOut { jid, wait }.into());
                };
                match item? {
                    StreamItem::Ended(ending, result) => Ok(Ended { jid, ending, result }),
                    _ => attached.end(wait.map(|wait| wait.saturating_sub(started.elapsed()))).await,
                }
            }
        }
    }

    fn poll_item(&mut self, context: &mut Context<'_>) -> Poll<Result<StreamItem, Error>> {
        loop {
            match &mut self.state {
                State::Polled(polled) => {
                    let (attached, item) = ready!(polled.as_mut().poll(context));
                    self.state = State::Idle(attached);
                    return Poll::Ready(item);
                }
                State::Idle(_) => {
                    let idle = std::mem::replace(&mut self.state, State::Ended(None));
                    let State::Idle(mut attached) = idle else { continue };
                    self.state = State::Polled(Box::pin(async move {
                        let item = attached.next().await;
                        (attached, item)
                    }));
                }
                State::Ended(_) => {
                    let unknown = WaitError::Unknown { jid: self.jid.clone(), state: None };
                    return Poll::Ready(Err(unknown.into()));
                }
            }
        }
    }
}

/// The items of the result stream. The stream ends after the end of the job, or after an error.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
/// use futures_util::TryStreamExt;
/// let client = geartrain::connect("memory:").await?;
/// let mut awaited = client.put_and_follow(client.put("reports", "render", "{}")).await?;
/// let job = client.pop("reports", "worker-1").await?.expect("there is a job");
/// client.complete_with(&job, "done").await?;
/// while let Some(item) = awaited.try_next().await? {
///     println!("{item:?}");
/// }
/// # Ok(()) }) }
/// ```
impl Stream for Awaited {
    type Item = Result<StreamItem, Error>;

    fn poll_next(self: Pin<&mut Awaited>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if let State::Ended(_) = this.state {
            return Poll::Ready(None);
        }
        let item = ready!(this.poll_item(context));
        if matches!(item, Ok(StreamItem::Ended(..)) | Err(_)) {
            let idle = std::mem::replace(&mut this.state, State::Ended(None));
            if let State::Idle(attached) = idle {
                this.state = State::Ended(Some(attached));
            }
        }
        Poll::Ready(Some(item))
    }
}

/// The output of a future, or none if `wait` is over before.
async fn in_time<F: Future + Unpin>(future: &mut F, wait: Option<Duration>) -> Option<F::Output> {
    let mut over = pin!(timer::after(wait.unwrap_or(Duration::MAX)));
    std::future::poll_fn(|context| match Pin::new(&mut *future).poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => over.as_mut().poll(context).map(|()| None),
    })
    .await
}

impl Attached {
    async fn next(&mut self) -> Result<StreamItem, Error> {
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

    async fn end(mut self: Box<Attached>, wait: Option<Duration>) -> Result<Ended, Error> {
        let in_time = in_time(&mut Box::pin(self.ended()), wait).await;
        match in_time {
            Some(ended) => ended,
            None => self.detach(wait.unwrap_or_default()).await,
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
    async fn detach(mut self: Box<Attached>, wait: Duration) -> Result<Ended, Error> {
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
