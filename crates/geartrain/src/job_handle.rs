//! A handle of one job.

use std::time::Duration;

use crate::{
    AddTags, Awaited, BadArgument, Cancel, Canceled, Client, Cycles, Depend, DependChange, Ended, Error,
    Existing, GetResult, HistoryEvent, Jid, Job, Log, Priority, Put, QueueName, Refusal, RemoveTags,
    SetPriority, Status, StatusOf, StatusReply, StoredResult, Tag, Timeout, Tombstone, Track, Why, WhyReply,
};

/// One job, from [`Client::job`].
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
/// let client = geartrain::connect("memory:").await?.named("billing");
/// let jid = client.put("mail", "welcome", "{}").await?;
/// let job = client.job(&jid);
/// job.tag(["new", "vip"]).await?;
/// job.log("checked by hand").await?;
/// println!("{}", job.why().await?.reasons[0]); // no worker has asked for it
/// job.cancel_because("the account is closed").await?;
/// assert_eq!(job.tombstone().await?.expect("it was cancelled").by.as_deref(), Some("billing"));
/// # Ok(()) }) }
/// ```
#[derive(Debug, Clone)]
pub struct JobHandle {
    client: Client,
    jid: Jid,
}

impl JobHandle {
    pub(crate) fn new(client: Client, jid: Jid) -> JobHandle {
        JobHandle { client, jid }
    }

    /// The id of the job.
    pub fn jid(&self) -> &Jid {
        &self.jid
    }

    /// Looks up the job.
    pub async fn get(&self) -> Result<Option<Job>, Error> {
        self.client.get(&self.jid).await
    }

    /// The state and progress of the job, if it is unfinished.
    pub async fn status(&self) -> Result<Option<StatusReply>, Error> {
        self.client.run(Status { of: StatusOf::Jid(self.jid.clone()) }).await
    }

    /// Explains why the job is not running.
    pub async fn why(&self) -> Result<WhyReply, Error> {
        Ok(*self.client.run(Why { jid: self.jid.clone() }).await?)
    }

    /// Waits for the result, at most for `wait` if given, see [`Client::wait_for`].
    pub async fn wait(&self, wait: Option<Duration>) -> Result<Ended, Error> {
        self.client.wait_for(&self.jid, wait).await
    }

    /// Opens the result stream of the job, from now on.
    pub async fn follow(&self) -> Result<Awaited, Error> {
        self.client.follow_job(&self.jid).await
    }

    /// The stored result, if the job has ended and the put asked to
    /// [keep it](crate::PutRequest::keep_result).
    pub async fn result(&self) -> Result<Option<StoredResult>, Error> {
        Ok(self.client.run(GetResult { jid: self.jid.clone() }).await?.map(|result| *result))
    }

    /// Removes the job, unless it is complete or another job depends on it. Returns whether it was removed.
    pub async fn cancel(&self) -> Result<bool, Error> {
        self.client.cancel(&self.jid).await
    }

    /// Like [`cancel`](JobHandle::cancel), with a reason that is kept for a day.
    pub async fn cancel_because(&self, because: &str) -> Result<bool, Error> {
        let because = Some(because.to_owned());
        Ok(self.client.run(Cancel { because, ..Cancel::new(vec![self.jid.clone()]) }).await? > 0)
    }

    /// Cancels the job and all jobs that depend on it. Returns how many were cancelled.
    pub async fn cancel_cascade(&self) -> Result<u64, Error> {
        self.client.run(Cancel { cascade: true, ..Cancel::new(vec![self.jid.clone()]) }).await
    }

    /// What is left of the job after it was cancelled.
    pub async fn tombstone(&self) -> Result<Option<Tombstone>, Error> {
        Ok(self.client.run(Canceled { jid: self.jid.clone() }).await?.map(|tombstone| *tombstone))
    }

    /// Changes the priority.
    pub async fn set_priority(&self, priority: f64) -> Result<(), Error> {
        self.client.run(SetPriority { jid: self.jid.clone(), priority: Priority::new(priority)? }).await
    }

    /// Adds tags. Returns all tags of the job.
    pub async fn tag<T: AsRef<str>>(&self, tags: impl IntoIterator<Item = T>) -> Result<Vec<Tag>, Error> {
        self.client.run(AddTags { jid: self.jid.clone(), tags: names(tags)? }).await
    }

    /// Removes tags. Returns the remaining ones.
    pub async fn untag<T: AsRef<str>>(&self, tags: impl IntoIterator<Item = T>) -> Result<Vec<Tag>, Error> {
        self.client.run(RemoveTags { jid: self.jid.clone(), tags: names(tags)? }).await
    }

    /// Tracks the job: its [milestones](crate::Event::Milestone) are published. Returns whether that is new.
    pub async fn track(&self) -> Result<bool, Error> {
        self.client.run(Track { jid: self.jid.clone(), on: true }).await
    }

    /// Stops tracking the job. Returns whether it was tracked.
    pub async fn untrack(&self) -> Result<bool, Error> {
        self.client.run(Track { jid: self.jid.clone(), on: false }).await
    }

    /// Adds jobs that must be complete before this one runs. Only a job that waits for others already takes
    /// them.
    pub async fn depend(&self, on: &[Jid]) -> Result<(), Error> {
        self.change_dependencies(DependChange::On(on.to_vec())).await
    }

    /// Removes jobs that this one waits for.
    pub async fn undepend(&self, on: &[Jid]) -> Result<(), Error> {
        self.change_dependencies(DependChange::Off(on.to_vec())).await
    }

    /// Removes all jobs that this one waits for, so that it may run.
    pub async fn undepend_all(&self) -> Result<(), Error> {
        self.change_dependencies(DependChange::OffAll).await
    }

    async fn change_dependencies(&self, change: DependChange) -> Result<(), Error> {
        self.client.run(Depend { jid: self.jid.clone(), change, cycles: Cycles::Refuse }).await
    }

    /// Puts the job again, whatever its state, into the queue that it is in or was in last. It has all of its
    /// retries again.
    pub async fn requeue(&self) -> Result<(), Error> {
        self.requeue_in(None).await
    }

    /// Puts the job again into this queue.
    pub async fn requeue_to(&self, queue: &str) -> Result<(), Error> {
        self.requeue_in(Some(QueueName::new(queue)?)).await
    }

    async fn requeue_in(&self, queue: Option<QueueName>) -> Result<(), Error> {
        let jid = &self.jid;
        let job = self.get().await?.ok_or_else(|| Refusal::NoSuchJob { jid: jid.clone() })?;
        let Some(queue) = queue.or_else(|| last_queue(&job)) else {
            let why = format!("of job {jid} is not known any more: name one");
            return Err(BadArgument { what: "queue", why }.into());
        };
        let put = Put::new(queue, jid.clone(), job.klass, job.payload);
        self.client.run(Put { existing: Existing::Require, ..put }).await.map(|_reply| ())
    }

    /// Takes the running job away from its worker; it goes to the front of its queue.
    pub async fn time_out(&self) -> Result<(), Error> {
        self.client.run(Timeout { jids: vec![self.jid.clone()] }).await
    }

    /// Appends a message to the history of the job.
    pub async fn log(&self, message: impl Into<String>) -> Result<(), Error> {
        self.client.run(Log { jid: self.jid.clone(), message: message.into(), data: None }).await
    }
}

fn names<T: AsRef<str>>(tags: impl IntoIterator<Item = T>) -> Result<Vec<Tag>, Error> {
    tags.into_iter().map(|tag| Ok(Tag::new(tag)?)).collect()
}

/// The queue that a job is in, or was in last.
fn last_queue(job: &Job) -> Option<QueueName> {
    let put = |entry: &crate::HistoryEntry| match &entry.what {
        HistoryEvent::Put { queue } => Some(queue.clone()),
        _ => None,
    };
    job.queue.clone().or_else(|| job.history.iter().rev().find_map(put))
}
