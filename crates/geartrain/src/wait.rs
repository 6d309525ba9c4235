//! Waiting for what comes out of a job.

use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use crate::{
    Attach, AttachReply, Client, Delivery, Detach, DetachScope, Error, Jid, JobEnding, JobResult,
    OrphanPolicy, Put, PutOptions, PutReply, PutRequest, Refusal, ResultStream, ResultStreamEnd,
    ResultWaiter, Seconds, StateName, StoredResult, StreamItem, timer,
};

/// How a job ended, and what came out of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// The job: another than the one that was put, if that joined one with the same unique key.
    pub jid: Jid,
    /// How it ended.
    pub how: JobEnding,
    /// What came out.
    pub outcome: JobResult,
}

impl Ended {
    /// Whether it was completed.
    pub fn is_completed(&self) -> bool {
        self.how == JobEnding::Completed
    }
}

/// Why a wait came to nothing. The job is where it is; only this program does not know how it ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// It took too long. Nobody waits any more, and unless the job lived only as long as somebody did, it goes on.
    #[error("job {jid} has not ended within {wait:?}; nobody waits for it any more")]
    TimedOut {
        /// The job.
        jid: Jid,
        /// How long somebody waited.
        wait: Duration,
    },
    /// It ended while nobody could be told, and what came out of it was not kept.
    #[error(
        "what came out of job {jid} is not known: it {}; put it with keep_result() to be able to ask later",
        .state.map_or("ended and was forgotten, or was removed".to_owned(), |state| format!("is {state}"))
    )]
    Unknown {
        /// The job.
        jid: Jid,
        /// Where it stands; none if there is no such job any more.
        state: Option<StateName>,
    },
}

/// A job that somebody waits for. Dropping it ends the wait.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
/// use geartrain::{Chunk, ChunkKind, Holder, Told};
/// let client = geartrain::connect("memory:").await?;
/// let mut awaited = client.put_and_follow(client.put("reports", "render", "{}")).await?;
///
/// let job = client.pop("reports", "worker-1").await?.expect("there is a job");
/// let holder = Holder::Token(job.lock.token);
/// client.run(Chunk { jid: job.jid.clone(), holder, kind: ChunkKind::Data, bytes: "page 1".into() }).await?;
/// client.complete(&job).await?;
///
/// assert!(matches!(awaited.next().await?, Told::Chunk(ChunkKind::Data, page) if page.bytes() == b"page 1"));
/// assert!(awaited.end(None).await?.is_completed());
/// # Ok(()) }) }
/// ```
pub struct Awaited {
    client: Client,
    jid: Jid,
    waiter: ResultWaiter,
    stream: Box<dyn ResultStream>,
    /// Whether another job stands for the one that was put.
    joined: bool,
    /// What is known if nothing more is told: it has ended.
    known: Option<Result<StreamItem, WaitError>>,
}

impl std::fmt::Debug for Awaited {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Awaited").field("jid", &self.jid).finish_non_exhaustive()
    }
}

impl Awaited {
    /// Puts a job and waits for it.
    pub(crate) async fn put(client: &Client, put: PutRequest) -> Result<Awaited, Error> {
        let (waiter, stream) = follow(client).await?;
        let mut put = put.attach(waiter).into_put()?;
        let jid = put.jid.clone();
        let mut awaited = Awaited { client: client.clone(), jid, waiter, stream, joined: false, known: None };
        let plain = keep_result_for_a_while(&mut put);
        let reply = match (client.run(put).await, plain) {
            // A backend without stored results: then the result stream is all there is.
            (Err(Error::Refused(Refusal::Unsupported { .. })), Some(plain)) => client.run(plain).await?,
            (reply, _) => reply?,
        };
        match reply {
            PutReply::Coalesced { jid } => (awaited.jid, awaited.joined) = (jid, true),
            PutReply::Named { jid } => awaited.jid = jid,
            // It may have ended long ago, and then nobody is attached.
            PutReply::Existing => awaited.attach().await?,
            _ => {}
        }
        Ok(awaited)
    }

    /// Waits for a job that is there.
    pub(crate) async fn existing(client: &Client, jid: &Jid) -> Result<Awaited, Error> {
        let (waiter, stream) = follow(client).await?;
        let mut awaited =
            Awaited { client: client.clone(), jid: jid.clone(), waiter, stream, joined: false, known: None };
        awaited.attach().await?;
        Ok(awaited)
    }

    /// The job: another than the one that was put, if that joined one with the same unique key, or if the backend chooses jids itself.
    pub fn jid(&self) -> &Jid {
        &self.jid
    }

    /// Whether that which was put joined an unfinished job with the same unique key, as far as the backend says.
    pub fn joined(&self) -> bool {
        self.joined
    }

    /// What the worker says next: a chunk, how far it got, or, at last, how the job ended.
    ///
    /// Whoever asks on hears again how it ended. If the backend had to be started again, chunks and progress may be missing, and if the job ended meanwhile its result is that which was kept.
    pub async fn next(&mut self) -> Result<StreamItem, Error> {
        loop {
            let next = {
                let mut next = self.stream.next();
                let mut look = pin!(timer::after(if self.client.is_own_directory() {
                    Duration::MAX
                } else {
                    LOOK_AGAIN
                }));
                std::future::poll_fn(|context| match next.as_mut().poll(context) {
                    Poll::Ready(told) => Poll::Ready(Next::Told(told)),
                    // All that was told is heard first.
                    Poll::Pending if self.known.is_some() => Poll::Ready(Next::Nothing),
                    Poll::Pending => look.as_mut().poll(context).map(|()| Next::Look),
                })
                .await
            };
            match (next, &self.known) {
                (Next::Look, None) => self.look().await?,
                (Next::Told(Ok(delivery)), _) => {
                    if let StreamItem::Ended(..) = &delivery.item {
                        self.known = Some(Ok(delivery.item.clone()));
                    }
                    return Ok(delivery.item);
                }
                (_, Some(known)) => return Ok(known.clone()?),
                (_, None) => self.again().await?,
            }
        }
    }

    /// Looks whether the job has ended and nobody said so: on a Redis foreign scripts complete jobs, and know nothing of us.
    async fn look(&mut self) -> Result<(), Error> {
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

    /// Waits for the end, but no longer than so if a time is given. Chunks and progress are passed over.
    pub async fn end(mut self, wait: Option<Duration>) -> Result<Ended, Error> {
        let Some(wait) = wait else { return self.ended().await };
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
            None => self.leave(wait).await,
        }
    }

    async fn ended(&mut self) -> Result<Ended, Error> {
        loop {
            if let StreamItem::Ended(how, outcome) = self.next().await? {
                return Ok(Ended { jid: self.jid.clone(), how, outcome });
            }
        }
    }

    /// Waits no longer; but what was told until now counts.
    async fn leave(mut self, wait: Duration) -> Result<Ended, Error> {
        self.client.run(Detach { scope: DetachScope::One(self.waiter) }).await?;
        self.known = Some(Err(WaitError::TimedOut { jid: self.jid.clone(), wait }));
        self.ended().await
    }

    /// Waits through another stream, because this one has ended. The job may have ended as well.
    async fn again(&mut self) -> Result<(), Error> {
        let (waiter, stream) = follow(&self.client).await?;
        self.waiter = waiter;
        // Let go of only then, because the job may live no longer than somebody waits for it.
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
        if let AttachReply::Ended { state, result: kept } = self.client.run(attach).await? {
            self.known = Some(match kept {
                Some(kept) => {
                    let StoredResult { ending: how, result: outcome, .. } = *kept;
                    Ok(StreamItem::Ended(how, outcome))
                }
                None => Err(WaitError::Unknown { jid: self.jid.clone(), state }),
            });
        }
        Ok(())
    }
}

/// How many seconds the result of a job is kept whose put waits for it. Longer than a driver tries to connect
/// again, if its URL does not say how long.
const KEPT_WHILE_AWAITED: i32 = 120;

/// Has the result of a job kept for a while, and answers the put as it was; none if nothing was changed.
///
/// A result stream ends with its connection. If a server restarts, a worker may connect again and complete
/// the job before this client is attached again; then the client finds the kept result. A job that lives only
/// while a client waits for it is gone by then, and its result with it.
fn keep_result_for_a_while(put: &mut Put) -> Option<Put> {
    let is_changed =
        |terms: &PutOptions| terms.orphan_policy == OrphanPolicy::Always && terms.result_ttl.is_none();
    if !put.options.as_deref().is_some_and(is_changed) {
        return None;
    }
    let plain = put.clone();
    put.options.get_or_insert_default().result_ttl = Some(Seconds::from(KEPT_WHILE_AWAITED));
    Some(plain)
}

/// How often to look whether a job has ended that somebody else may have ended.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// What comes first.
enum Next {
    Told(Result<Delivery, ResultStreamEnd>),
    Nothing,
    Look,
}

/// A stream of its own, and who waits through it.
async fn follow(client: &Client) -> Result<(ResultWaiter, Box<dyn ResultStream>), Error> {
    // Half of it is chance, and the other half differs from one to the next.
    let front = uuid::Uuid::now_v7().as_u64_pair().1;
    let stream = client.follow(front).await?;
    Ok((ResultWaiter { stream_id: front, connection: 0, number: 0 }, stream))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_waited_in_vain_is_told_what_to_do() {
        let jid = Jid::new("j1").expect("a good name");
        let unknown = |state| WaitError::Unknown { jid: jid.clone(), state }.to_string();
        assert_eq!(
            unknown(Some(StateName::Complete)),
            "what came out of job j1 is not known: it is complete; put it with keep_result() to be able to ask later"
        );
        assert!(unknown(None).contains("it ended and was forgotten, or was removed"));
        let late = WaitError::TimedOut { jid, wait: Duration::from_secs(3) };
        assert_eq!(late.to_string(), "job j1 has not ended within 3s; nobody waits for it any more");
    }

    #[test]
    fn a_wait_ends_in_time_whoever_else_waits_longer() {
        let _long = timer::after(Duration::from_secs(3_600));
        let _for_ever = timer::after(Duration::MAX);
        pollster::block_on(timer::after(Duration::from_millis(1)));
    }
}
