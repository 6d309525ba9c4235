//! The builder of a put.

use std::pin::Pin;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::{
    Backoff, BadArgument, BadInput, Client, DELAY_MAX, DependencyPolicy, Error, Existing, Jid, Klass, NO_JID,
    OnEnd, OrphanPolicy, Payload, Priority, Put, PutOptions, PutReply, QueueName, ResultWaiter, Seconds, Tag,
    Timestamp, UniqueKey,
};

/// A put under construction: add options, then await it for the job's id.
///
/// Nothing is sent until then, and invalid names or numbers are reported then.
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

    #[cfg(feature = "worker")]
    pub(crate) fn of_job<J: crate::TypedJob>(client: Client, job: &J) -> PutRequest {
        let payload = match to_json("payload", job) {
            Ok(payload) => payload,
            Err(error) => return PutRequest { client, put: Err(error) },
        };
        let crate::JobDefaults { priority, retries, timeout, backoff, keep_result } = J::DEFAULTS;
        let mut request = PutRequest::new(client, J::QUEUE, J::KLASS, payload);
        if let Some(priority) = priority {
            request = request.priority(priority);
        }
        if let Some(retries) = retries {
            request = request.retries(retries);
        }
        if let Some(timeout) = timeout {
            request = request.timeout(timeout);
        }
        if let Some(backoff) = backoff {
            request = request.backoff(backoff);
        }
        if let Some(span) = keep_result {
            request = request.keep_result(span);
        }
        request
    }

    fn with(mut self, change: impl FnOnce(&mut Put) -> Result<(), BadInput>) -> PutRequest {
        self.put = self.put.and_then(|mut put| change(&mut put).map(|()| put));
        self
    }

    /// Sets the job id. An existing job with this id is left unchanged, and that is no error: puts are
    /// idempotent.
    pub fn jid(self, jid: &str) -> PutRequest {
        self.with(|put| {
            put.jid = Jid::new(jid)?;
            Ok(())
        })
    }

    /// Sets the priority: higher runs first; 0 by default.
    pub fn priority(self, priority: f64) -> PutRequest {
        self.with(|put| {
            put.priority = Some(Priority::new(priority)?);
            Ok(())
        })
    }

    /// Delays the job, at most for a hundred years.
    pub fn delay(self, delay: Duration) -> PutRequest {
        self.with(|put| {
            put.delay = seconds("delay", delay)?;
            Ok(())
        })
    }

    /// Sets how many times the job may be retried; 5 by default.
    pub fn retries(self, retries: u32) -> PutRequest {
        self.with(|put| {
            put.retries = Some(retries);
            Ok(())
        })
    }

    /// Adds a tag to find the job by.
    pub fn tag(self, tag: &str) -> PutRequest {
        self.with(|put| {
            put.tags.get_or_insert_default().push(Tag::new(tag)?);
            Ok(())
        })
    }

    /// Makes the job depend on another: it runs after that one is complete.
    pub fn after(self, jid: &Jid) -> PutRequest {
        self.with(|put| {
            put.depends.push(jid.clone());
            Ok(())
        })
    }

    /// Submits an existing job again, whatever its state, instead of leaving it unchanged.
    pub fn replace(self) -> PutRequest {
        self.with(|put| {
            put.existing = Existing::Replace;
            Ok(())
        })
    }

    fn with_options(self, change: impl FnOnce(&mut PutOptions) -> Result<(), BadInput>) -> PutRequest {
        self.with(|put| change(put.options.get_or_insert_default()))
    }

    /// Deduplicates: joins an unfinished job of the queue with the same key, if there is one. The returned id
    /// is then that job's.
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
        self.with_options(|options| {
            options.unique = Some(UniqueKey::new(key)?);
            Ok(())
        })
    }

    /// Limits the duration of one attempt, regardless of heartbeats. After that it is retried, or fails if no
    /// retry is left.
    pub fn timeout(self, attempt_max: Duration) -> PutRequest {
        self.with_options(|options| {
            options.attempt_max = Some(attempt_max.into());
            Ok(())
        })
    }

    /// Fails the job if it has not started by this time.
    pub fn expires(self, at: SystemTime) -> PutRequest {
        self.with_options(|options| {
            options.expires = Some(timestamp(at));
            Ok(())
        })
    }

    /// Sets the delay before retries, unless the worker gives one; [`Backoff::DEFAULT`] by default.
    pub fn backoff(self, backoff: Backoff) -> PutRequest {
        self.with_options(|options| {
            options.backoff = Some(backoff);
            Ok(())
        })
    }

    /// Fails the job after it was lost with this many workers; the option `crashes-max` is the default.
    pub fn crashes_max(self, crashes: u32) -> PutRequest {
        self.with_options(|options| {
            options.crashes_max = Some(crashes);
            Ok(())
        })
    }

    /// Says what the job does when a job that it depends on fails; by default it waits.
    pub fn on_dependency_failure(self, policy: DependencyPolicy) -> PutRequest {
        self.with_options(|options| {
            options.on_dependency_failure = policy;
            Ok(())
        })
    }

    /// Names the trace that the job belongs to, in the form of W3C's `traceparent` header. Its worker finds
    /// it in [`JobDetails::traceparent`](crate::JobDetails::traceparent).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
    /// let client = geartrain::connect("memory:").await?;
    /// let context = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    /// client.put("mail", "welcome", "{}").traceparent(context).await?;
    /// let job = client.pop("mail", "worker-1").await?.expect("there is a job");
    /// let details = job.details.expect("it has a trace context");
    /// assert_eq!(details.traceparent.expect("this one").to_string(), context);
    /// # Ok(()) }) }
    /// ```
    pub fn traceparent(self, traceparent: &str) -> PutRequest {
        self.with_options(|options| {
            options.traceparent = Some(traceparent.parse()?);
            Ok(())
        })
    }

    /// Refuses the put if no live worker has announced that it can run the job.
    pub fn roll_call(self) -> PutRequest {
        self.with_options(|options| {
            options.roll_call = true;
            Ok(())
        })
    }

    /// Stores the result of the job for this long after it ended.
    pub fn keep_result(self, span: Duration) -> PutRequest {
        self.with_options(|options| {
            options.result_ttl = Some(span.into());
            Ok(())
        })
    }

    /// Makes the job ephemeral: it is removed when no client [waits](Client::put_and_wait) for it and it is
    /// not running.
    pub fn while_awaited(self) -> PutRequest {
        self.with_options(|options| {
            options.orphan_policy = OrphanPolicy::WhileAwaited;
            Ok(())
        })
    }

    /// Removes the job when it ends, unless other jobs depend on it.
    pub fn forget(self) -> PutRequest {
        self.with_options(|options| {
            options.on_end = OnEnd::Forget;
            Ok(())
        })
    }

    pub(crate) fn attach(self, waiter: ResultWaiter) -> PutRequest {
        self.with_options(|options| {
            options.attach = Some(waiter);
            Ok(())
        })
    }

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
                PutReply::Coalesced { jid } | PutReply::Named { jid } | PutReply::NamedExisting { jid } => {
                    Ok(jid)
                }
                PutReply::Unnamed => Ok(Jid::new(NO_JID)?),
                _ => Ok(jid),
            }
        })
    }
}

/// A delay or a wait in seconds. Refuses one over a hundred years, such as [`Duration::MAX`].
pub(crate) fn seconds(what: &'static str, span: Duration) -> Result<Seconds, BadInput> {
    let seconds = Seconds::from(span);
    if seconds > DELAY_MAX {
        let why = format!("must be at most a hundred years, not {:e} seconds", seconds.get());
        return Err(BadArgument { what, why }.into());
    }
    Ok(seconds)
}

/// A value as JSON.
pub(crate) fn to_json(what: &'static str, value: &impl serde::Serialize) -> Result<Payload, BadInput> {
    match serde_json::to_vec(value) {
        Ok(json) => Ok(json.into()),
        Err(error) => Err(BadArgument { what, why: format!("cannot be written as JSON: {error}") }.into()),
    }
}

/// Saturates at the limits of a timestamp.
pub(crate) fn timestamp(at: SystemTime) -> Timestamp {
    match at.duration_since(UNIX_EPOCH) {
        Ok(since) => Timestamp::ZERO + Seconds::from(since),
        Err(before) => Timestamp::ZERO - Seconds::from(before.duration()),
    }
}
