//! A put that is being written.

use std::pin::Pin;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::{
    Backoff, BadInput, Client, Error, Existing, Jid, Klass, OnEnd, OrphanPolicy, Payload, Priority, Put,
    PutOptions, PutReply, QueueName, ResultWaiter, Seconds, Tag, Timestamp, UniqueKey,
};

/// A put that is being written: add what you like, then await it for the job's id.
///
/// Nothing is sent until then, and a name or number that makes no sense is an error then.
#[must_use = "nothing is put until it is awaited"]
#[derive(Debug)]
pub struct PutRequest {
    client: Client,
    put: Result<Put, BadInput>,
}

impl PutRequest {
    pub(crate) fn new(client: Client, queue: &str, klass: &str, payload: Payload) -> PutRequest {
        let put = || {
            let jid = Jid::from_uuid(uuid::Uuid::now_v7().into_bytes());
            Ok(Put::new(QueueName::new(queue)?, jid, Klass::new(klass)?, payload))
        };
        PutRequest { client, put: put() }
    }

    pub(crate) fn of(client: Client, put: Put) -> PutRequest {
        PutRequest { client, put: Ok(put) }
    }

    fn with(mut self, change: impl FnOnce(&mut Put) -> Result<(), BadInput>) -> PutRequest {
        self.put = self.put.and_then(|mut put| change(&mut put).map(|()| put));
        self
    }

    /// Names the job. If a job of that name exists, it is left alone, and that is no error: so a put may be sent again.
    pub fn jid(self, jid: &str) -> PutRequest {
        self.with(|put| {
            put.jid = Jid::new(jid)?;
            Ok(())
        })
    }

    /// Says how much the job matters: higher goes first, and 0 is usual.
    pub fn priority(self, priority: f64) -> PutRequest {
        self.with(|put| {
            put.priority = Some(Priority::new(priority)?);
            Ok(())
        })
    }

    /// Holds the job back for so long.
    pub fn delay(self, delay: Duration) -> PutRequest {
        self.with(|put| {
            put.delay = delay.into();
            Ok(())
        })
    }

    /// Says how often the job may be tried again; 5 times is usual.
    pub fn retries(self, retries: u32) -> PutRequest {
        self.with(|put| {
            put.retries = Some(retries);
            Ok(())
        })
    }

    /// Adds a word to find the job by.
    pub fn tag(self, tag: &str) -> PutRequest {
        self.with(|put| {
            put.tags.get_or_insert_default().push(Tag::new(tag)?);
            Ok(())
        })
    }

    /// Lets the job wait until another is complete.
    pub fn after(self, jid: &Jid) -> PutRequest {
        self.with(|put| {
            put.depends.push(jid.clone());
            Ok(())
        })
    }

    /// Puts the job again if it exists, wherever it stands, rather than leaving it alone.
    pub fn replace(self) -> PutRequest {
        self.with(|put| {
            put.existing = Existing::Replace;
            Ok(())
        })
    }

    fn ask(self, change: impl FnOnce(&mut PutOptions) -> Result<(), BadInput>) -> PutRequest {
        self.with(|put| change(put.options.get_or_insert_default()))
    }

    /// Joins an unfinished job of the queue with the same key, if there is one, instead of putting another. The id that comes back is then that job's.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
    /// let client = geartrain::connect("memory:").await?;
    /// let first = client.put("reports", "render", "{}").unique("report-7").await?;
    /// let second = client.put("reports", "render", "{}").unique("report-7").await?;
    /// assert_eq!(first, second);
    /// # Ok(()) }) }
    /// ```
    pub fn unique(self, key: impl AsRef<[u8]>) -> PutRequest {
        self.ask(|terms| {
            terms.unique = Some(UniqueKey::new(key)?);
            Ok(())
        })
    }

    /// Says how long one attempt may take, however often its worker sends heartbeats. Then it is retried, or fails if no retry is left.
    pub fn timeout(self, attempt_max: Duration) -> PutRequest {
        self.ask(|terms| {
            terms.attempt_max = Some(attempt_max.into());
            Ok(())
        })
    }

    /// Fails the job if it is not started by this moment.
    pub fn expires(self, at: SystemTime) -> PutRequest {
        self.ask(|terms| {
            terms.expires = Some(moment(at));
            Ok(())
        })
    }

    /// Says how long a retry waits, unless whoever retries says so.
    pub fn backoff(self, backoff: Backoff) -> PutRequest {
        self.ask(|terms| {
            terms.backoff = Some(backoff);
            Ok(())
        })
    }

    /// Says how many of its workers may die before the job is set aside; as the option `crashes-max` says, if not given.
    pub fn crashes_max(self, crashes: u32) -> PutRequest {
        self.ask(|terms| {
            terms.crashes_max = Some(crashes);
            Ok(())
        })
    }

    /// Refuses the put if no worker has announced that it can do the job.
    pub fn roll_call(self) -> PutRequest {
        self.ask(|terms| {
            terms.roll_call = true;
            Ok(())
        })
    }

    /// Keeps what comes out of the job for so long after it ended, for those who ask later.
    pub fn keep_result(self, span: Duration) -> PutRequest {
        self.ask(|terms| {
            terms.result_ttl = Some(span.into());
            Ok(())
        })
    }

    /// Removes the job when nobody waits for it any more and it does not run: it is only worth doing for those who [wait](Client::put_and_wait).
    pub fn while_awaited(self) -> PutRequest {
        self.ask(|terms| {
            terms.orphan_policy = OrphanPolicy::WhileAwaited;
            Ok(())
        })
    }

    /// Forgets the job when it has ended, unless other jobs depend on it.
    pub fn forget(self) -> PutRequest {
        self.ask(|terms| {
            terms.on_end = OnEnd::Forget;
            Ok(())
        })
    }

    pub(crate) fn attach(self, waiter: ResultWaiter) -> PutRequest {
        self.ask(|terms| {
            terms.attach = Some(waiter);
            Ok(())
        })
    }

    /// What is sent.
    pub(crate) fn into_put(self) -> Result<Put, BadInput> {
        self.put
    }
}

impl IntoFuture for PutRequest {
    type Output = Result<Jid, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let put = self.put?;
            let jid = put.jid.clone();
            match self.client.run(put).await? {
                PutReply::Coalesced { jid } | PutReply::Named { jid } => Ok(jid),
                _ => Ok(jid),
            }
        })
    }
}

/// A moment of the system's clock. One so far away that it cannot be told is as far as can be.
fn moment(at: SystemTime) -> Timestamp {
    match at.duration_since(UNIX_EPOCH) {
        Ok(since) => Timestamp::ZERO + Seconds::from(since),
        Err(before) => Timestamp::ZERO - Seconds::from(before.duration()),
    }
}
