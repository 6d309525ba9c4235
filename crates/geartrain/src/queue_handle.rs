//! A handle of one queue.

use std::time::{Duration, SystemTime};

use crate::put::timestamp;
use crate::{
    BadName, Client, Count, Error, Figures, ForgetQueues, GetConfig, GetLimits, Group, Jid, Job, Jobs,
    Length, Listing, Page, Pause, Payload, Peek, Popped, PutRequest, QueueCounts, QueueFigures, QueueLimits,
    QueueName, Queues, Resume, SetConfig, SetLimits, Setting, Stats, StatsReply, Unfail, UnsetConfig,
    WhyQueue, WhyQueueReply,
};

/// One queue, from [`Client::queue`].
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
/// use geartrain::{Listing, Page, QueueLimits};
/// let client = geartrain::connect("memory:").await?;
/// let mail = client.queue("mail");
/// let jid = mail.put("welcome", "{}").await?;
/// assert_eq!(mail.jobs(Listing::Waiting, Page::default()).await?, [jid]);
/// assert_eq!(mail.peek(10).await?[0].klass.as_str(), "welcome");
///
/// mail.set_limits(QueueLimits { jobs_max: Some(1), ..QueueLimits::default() }).await?;
/// assert!(mail.put("welcome", "{}").await.is_err());
/// mail.set_option("heartbeat", "120").await?;
/// # Ok(()) }) }
/// ```
#[derive(Debug, Clone)]
pub struct QueueHandle {
    client: Client,
    name: Result<QueueName, BadName>,
}

impl QueueHandle {
    pub(crate) fn new(client: Client, name: &str) -> QueueHandle {
        QueueHandle { client, name: QueueName::new(name) }
    }

    /// The name of the queue, if it is valid.
    pub fn name(&self) -> Result<QueueName, Error> {
        Ok(self.name.clone()?)
    }

    /// Submits a job to this queue, see [`Client::put`].
    pub fn put(&self, klass: &str, payload: impl Into<Payload>) -> PutRequest {
        let name = self.name.as_ref().map_or("", QueueName::as_str);
        self.client.put(name, klass, payload)
    }

    /// Takes the next job, if there is one.
    pub async fn pop(&self, worker: &str) -> Result<Option<Popped>, Error> {
        self.client.pop(self.name()?.as_str(), worker).await
    }

    /// Takes the next job; if there is none, waits for one up to `wait`. Cancel safe, see
    /// [`Client::pop_wait`].
    pub async fn pop_wait(&self, worker: &str, wait: Duration) -> Result<Option<Popped>, Error> {
        self.client.pop_wait(self.name()?.as_str(), worker, wait).await
    }

    /// Pauses the queue: pops get none of its jobs. Running jobs go on.
    pub async fn pause(&self) -> Result<(), Error> {
        self.client.run(Pause { queues: vec![self.name()?] }).await
    }

    /// Resumes the queue.
    pub async fn resume(&self) -> Result<(), Error> {
        self.client.run(Resume { queues: vec![self.name()?] }).await
    }

    /// Counts its jobs by state.
    pub async fn counts(&self) -> Result<QueueCounts, Error> {
        let counts = self.client.run(Queues { queue: Some(self.name()?) }).await?;
        counts.into_iter().next().ok_or(Error::WrongAnswer)
    }

    /// Counts its running, waiting and scheduled jobs.
    pub async fn length(&self) -> Result<u64, Error> {
        self.client.run(Length { queue: self.name()? }).await
    }

    /// Lists its jobs in a state, such as [`Listing::Waiting`], a page at a time.
    pub async fn jobs(
        &self,
        which: impl FnOnce(QueueName) -> Listing,
        page: Page,
    ) -> Result<Vec<Jid>, Error> {
        self.client.run(Jobs { which: which(self.name()?), page }).await
    }

    /// The jobs that the next pops would hand out, at most `count`.
    pub async fn peek(&self, count: u32) -> Result<Vec<Job>, Error> {
        self.client.run(Peek { queue: self.name()?, count: Count::new(count.into())? }).await
    }

    /// Its limits.
    pub async fn limits(&self) -> Result<QueueLimits, Error> {
        self.client.run(GetLimits { queue: self.name()? }).await
    }

    /// Sets its limits, which replace the earlier ones.
    pub async fn set_limits(&self, limits: QueueLimits) -> Result<(), Error> {
        self.client.run(SetLimits { queue: self.name()?, limits }).await
    }

    /// Looks up an [option](crate::OPTIONS) of this queue, such as `heartbeat`; `None` if it is not set for
    /// this queue.
    pub async fn option(&self, option: &str) -> Result<Option<String>, Error> {
        let option = format!("{}-{option}", self.name()?);
        Ok(match self.client.run(GetConfig { option }).await? {
            Some(Setting::Chosen(value)) => Some(value),
            _ => None,
        })
    }

    /// Sets an [option](crate::OPTIONS) of this queue, such as `heartbeat` or `max-concurrency`.
    pub async fn set_option(&self, option: &str, value: &str) -> Result<(), Error> {
        self.client.run(SetConfig::new(format!("{}-{option}", self.name()?), value)).await
    }

    /// Resets an option of this queue.
    pub async fn unset_option(&self, option: &str) -> Result<(), Error> {
        self.client.run(UnsetConfig { option: format!("{}-{option}", self.name()?) }).await
    }

    /// Its statistics of the day (UTC) of a time.
    pub async fn stats(&self, day: SystemTime) -> Result<StatsReply, Error> {
        Ok(*self.client.run(Stats { queue: self.name()?, date: timestamp(day) }).await?)
    }

    /// Its failed jobs, the age of its oldest job, and its rate.
    pub async fn figures(&self) -> Result<QueueFigures, Error> {
        let figures = self.client.run(Figures { queue: Some(self.name()?) }).await?;
        figures.into_iter().next().ok_or(Error::WrongAnswer)
    }

    /// Explains why its jobs are not running.
    pub async fn why(&self) -> Result<WhyQueueReply, Error> {
        Ok(*self.client.run(WhyQueue { queue: self.name()? }).await?)
    }

    /// Moves the oldest failed jobs of a failure group into this queue, at most `count`. Returns how many.
    pub async fn unfail(&self, group: &str, count: u32) -> Result<u64, Error> {
        let (group, count) = (Group::new(group)?, Count::new(count.into())?);
        self.client.run(Unfail { queue: self.name()?, group, count }).await
    }

    /// Removes the queue from the list of queues; its jobs stay.
    pub async fn forget(&self) -> Result<(), Error> {
        self.client.run(ForgetQueues { queues: vec![self.name()?] }).await
    }
}
