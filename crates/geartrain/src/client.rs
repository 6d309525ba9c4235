//! What a program does with a queue.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use geartrain_store::StoreBackend;

use crate::serving::Serving;
use crate::{
    Answer, Awaited, BackedUp, Backend, Call, Cancel, Complete, CompleteReply, Ended, Error, Fail, Get,
    Group, Heartbeat, Jid, Job, Next, OpenError, Operation, Payload, Pop, PopReply, Popped, Put, PutRequest,
    QueueCounts, QueueName, Queues, ResultStream, Retry, Subscription, Timestamp, WorkerName,
};

/// A queue, as a program uses it. Clones share the same one.
#[derive(Clone)]
pub struct Client {
    backend: Arc<dyn Backend>,
    /// Lets other processes in, if the queue is in a directory of this one. Before the store, because it ends first.
    _serving: Option<Arc<Serving>>,
    /// The same backend, if it is in this process.
    store: Option<Arc<StoreBackend>>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Client")
    }
}

impl Client {
    /// A client of a backend.
    pub fn new(backend: Arc<dyn Backend>) -> Client {
        Client { backend, _serving: None, store: None }
    }

    pub(crate) fn of_store(store: Arc<StoreBackend>, directory: &Path) -> Client {
        let serving = Serving::start(store.clone(), directory).map(Arc::new);
        Client { backend: store.clone(), _serving: serving, store: Some(store) }
    }

    /// Whether the queue is in a directory of this process.
    pub fn is_own_directory(&self) -> bool {
        self.store.is_some()
    }

    /// What carries out the commands.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// Copies all that the queue keeps into a directory, which must be empty or not there, while work goes on. The copy opens like the original, and
    /// all that was acknowledged before the call is in it. Only an `embedded:` queue can be copied so.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
    /// # let place = std::env::temp_dir().join(format!("geartrain-backup-doc-{}", std::process::id()));
    /// # let (data, copy) = (place.join("data"), place.join("copy"));
    /// let client = geartrain::connect(&format!("embedded:{}", data.display())).await?;
    /// let jid = client.put("mail", "welcome", "{}").await?;
    /// client.backup(&copy).await?;
    ///
    /// let other = geartrain::connect(&format!("embedded:{}", copy.display())).await?;
    /// assert!(other.get(&jid).await?.is_some());
    /// # drop((client, other));
    /// # std::fs::remove_dir_all(place)?;
    /// # Ok(()) }) }
    /// ```
    pub async fn backup(&self, to: &Path) -> Result<BackedUp, Error> {
        let why = "only the process that has an embedded: directory can copy it, and this one has none";
        let store = self.store.as_ref().ok_or(Error::Backup(OpenError::NothingKept { why }))?;
        store.backup(to).await.map_err(Error::Backup)
    }

    /// Asks for any operation.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
    /// use geartrain::{Pause, QueueName};
    /// let client = geartrain::connect("memory:").await?;
    /// client.run(Pause { queues: vec![QueueName::new("mail")?] }).await?;
    /// client.put("mail", "welcome", "{}").await?;
    /// assert!(client.pop("mail", "worker-1").await?.is_none());
    /// # Ok(()) }) }
    /// ```
    pub async fn run<O: Operation>(&self, operation: O) -> Result<O::Reply, Error> {
        let mut answers = self.backend.execute(vec![Call { now: None, command: operation.into() }]).await?;
        let reply = answers.pop().transpose()?.and_then(O::answer);
        reply.ok_or(Error::WrongAnswer)
    }

    /// Asks for several operations at once, which is much faster than one after the other. One may be refused and the next one done.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
    /// use geartrain::{Call, Jid, Klass, Length, Put, QueueName};
    /// let client = geartrain::connect("memory:").await?;
    /// let (mail, welcome) = (QueueName::new("mail")?, Klass::new("welcome")?);
    /// let jids = ["a", "b", "c"].map(Jid::new).into_iter().collect::<Result<Vec<_>, _>>()?;
    /// let puts = jids.into_iter().map(|jid| Put::new(mail.clone(), jid, welcome.clone(), "{}"));
    /// let answers = client.batch(puts.map(Call::from).collect()).await?;
    /// assert!(answers.iter().all(Result::is_ok));
    /// assert_eq!(client.run(Length { queue: mail }).await?, 3);
    /// # Ok(()) }) }
    /// ```
    pub async fn batch(&self, calls: Vec<Call>) -> Result<Vec<Answer>, Error> {
        Ok(self.backend.execute(calls).await?)
    }

    /// Puts a job into a queue, for the code that `klass` names, with a payload that nobody but that code looks at.
    pub fn put(&self, queue: &str, klass: &str, payload: impl Into<Payload>) -> PutRequest {
        PutRequest::new(self.clone(), queue, klass, payload.into())
    }

    /// The same for a put that is written already.
    pub fn request(&self, put: Put) -> PutRequest {
        PutRequest::of(self.clone(), put)
    }

    /// Puts a job and waits until it has ended, but no longer than so if a time is given. If that is over, the error is
    /// [`WaitError::TimedOut`](crate::WaitError::TimedOut), nobody waits any more, and the job goes on.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
    /// use std::time::Duration;
    /// use geartrain::{Complete, Error, Holder, Outcome, WaitError};
    /// let client = geartrain::connect("memory:").await?;
    ///
    /// let worker = client.clone();
    /// let at_work = std::thread::spawn(move || pollster::block_on(async {
    ///     let job = worker.pop_wait("sums", "worker-1", Duration::from_secs(30)).await?.expect("there is a job");
    ///     let result = Some(Box::new(Outcome { code: 0, bytes: "42".into() }));
    ///     worker.run(Complete { result, ..Complete::new(job.jid, Holder::Token(job.lock.token)) }).await
    /// }));
    /// let ended = client.put_and_wait(client.put("sums", "add", "[40,2]"), None).await?;
    /// assert!(ended.is_completed());
    /// assert_eq!(ended.outcome.bytes.text(), Some("42"));
    /// # at_work.join().expect("it does not panic")?;
    ///
    /// let put = client.put("nobody-works-here", "add", "[1,1]").while_awaited();
    /// let late = client.put_and_wait(put, Some(Duration::from_millis(1))).await;
    /// assert!(matches!(late, Err(Error::Wait(WaitError::TimedOut { .. }))));
    /// # Ok(()) }) }
    /// ```
    pub async fn put_and_wait(&self, put: PutRequest, wait: Option<Duration>) -> Result<Ended, Error> {
        self.put_and_follow(put).await?.end(wait).await
    }

    /// Puts a job, to hear what its worker says while it works and how it ends.
    pub async fn put_and_follow(&self, put: PutRequest) -> Result<Awaited, Error> {
        Awaited::put(self, put).await
    }

    /// Waits until a job has ended, but no longer than so if a time is given. If it ended before, the answer is the result that was kept, and without
    /// one the error is [`WaitError::Unknown`](crate::WaitError::Unknown).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
    /// use std::time::Duration;
    /// let client = geartrain::connect("memory:").await?;
    /// let jid = client.put("mail", "welcome", "{}").keep_result(Duration::from_secs(3_600)).await?;
    /// let job = client.pop("mail", "worker-1").await?.expect("there is a job");
    /// client.fail(&job, "no-such-user", "nobody of that name").await?;
    /// assert!(!client.wait_for(&jid, None).await?.is_completed());
    /// # Ok(()) }) }
    /// ```
    pub async fn wait_for(&self, jid: &Jid, wait: Option<Duration>) -> Result<Ended, Error> {
        self.follow_job(jid).await?.end(wait).await
    }

    /// Waits for a job that is there, to hear what its worker says from now on and how it ends.
    pub async fn follow_job(&self, jid: &Jid) -> Result<Awaited, Error> {
        Awaited::existing(self, jid).await
    }

    pub(crate) async fn follow(&self, front: u64) -> Result<Box<dyn ResultStream>, Error> {
        Ok(self.backend.open_result_stream(front).await?)
    }

    /// Takes the next job of a queue, if there is one.
    pub async fn pop(&self, queue: &str, worker: &str) -> Result<Option<Popped>, Error> {
        let reply = self.run(Pop::new(QueueName::new(queue)?, WorkerName::new(worker)?)).await?;
        Ok(reply.jobs.into_iter().next())
    }

    /// Takes the next job of a queue, and if there is none waits for one, but no longer than so.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
    /// use std::time::Duration;
    /// let client = geartrain::connect("memory:").await?;
    /// client.put("mail", "welcome", "{}").await?;
    /// assert!(client.pop_wait("mail", "worker-1", Duration::from_secs(30)).await?.is_some());
    /// assert!(client.pop_wait("mail", "worker-1", Duration::from_millis(1)).await?.is_none());
    /// # Ok(()) }) }
    /// ```
    pub async fn pop_wait(&self, queue: &str, worker: &str, wait: Duration) -> Result<Option<Popped>, Error> {
        let pop = Pop::new(QueueName::new(queue)?, WorkerName::new(worker)?);
        Ok(self.pop_any(pop, wait).await?.jobs.into_iter().next())
    }

    /// Takes jobs from any of several queues, many at once, in any order, and if there are none waits for one.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
    /// use std::time::Duration;
    /// use geartrain::{Count, Pop, PopOrder, QueueName, WorkerName};
    /// let client = geartrain::connect("memory:").await?;
    /// for queue in ["mail", "mail", "thumbnails"] {
    ///     client.put(queue, "welcome", "{}").await?;
    /// }
    /// let pop = Pop {
    ///     queues: vec![QueueName::new("mail")?, QueueName::new("thumbnails")?],
    ///     count: Count::new(2)?,
    ///     order: PopOrder::RoundRobin { turn: 0 },
    ///     ..Pop::new(QueueName::new("mail")?, WorkerName::new("worker-1")?)
    /// };
    /// let reply = client.pop_any(pop, Duration::from_secs(30)).await?;
    /// assert_eq!(reply.jobs[1].queue.as_str(), "thumbnails");
    /// assert_eq!(reply.turn, 0); // where the next pop should begin
    /// # Ok(()) }) }
    /// ```
    pub async fn pop_any(&self, pop: Pop, wait: Duration) -> Result<PopReply, Error> {
        Ok(self.backend.pop_or_wait(pop, wait.into()).await?)
    }

    /// Says that a job is still being worked on. Answers until when it is held.
    pub async fn heartbeat(&self, job: &Popped) -> Result<Timestamp, Error> {
        self.run(Heartbeat { jid: job.jid.clone(), holder: job.holder(), payload: None }).await
    }

    /// Says that a job is done.
    pub async fn complete(&self, job: &Popped) -> Result<CompleteReply, Error> {
        self.run(Complete::new(job.jid.clone(), job.holder())).await
    }

    /// Says that a job is done here, and sends it on to another queue.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
    /// let client = geartrain::connect("memory:").await?;
    /// client.put("render", "video", "{}").await?;
    /// let job = client.pop("render", "worker-1").await?.expect("there is a job");
    /// client.advance(&job, "upload").await?;
    /// assert!(client.pop("upload", "worker-2").await?.is_some());
    /// # Ok(()) }) }
    /// ```
    pub async fn advance(&self, job: &Popped, queue: &str) -> Result<CompleteReply, Error> {
        let next = Some(Next::new(QueueName::new(queue)?));
        self.run(Complete { next, ..Complete::new(job.jid.clone(), job.holder()) }).await
    }

    /// Says that a job failed, and sets it aside under a kind of failure.
    pub async fn fail(&self, job: &Popped, group: &str, message: &str) -> Result<(), Error> {
        self.run(Fail::new(job.jid.clone(), job.holder(), Group::new(group)?, message)).await
    }

    /// Gives a job back to be tried again, at the price of one retry. Answers how many are left; -1: none were, and it failed.
    pub async fn retry(&self, job: &Popped, delay: Duration) -> Result<i64, Error> {
        let delay = delay.into();
        self.run(Retry { delay, ..Retry::new(job.jid.clone(), job.holder()) }).await
    }

    /// Removes a job, unless it is complete or another one waits for it. Answers whether there was one to remove.
    pub async fn cancel(&self, jid: &Jid) -> Result<bool, Error> {
        Ok(self.run(Cancel { jids: vec![jid.clone()] }).await? > 0)
    }

    /// Looks a job up.
    pub async fn get(&self, jid: &Jid) -> Result<Option<Job>, Error> {
        Ok(self.run(Get { jid: jid.clone() }).await?.map(|job| *job))
    }

    /// Counts the jobs of each queue.
    pub async fn queues(&self) -> Result<Vec<QueueCounts>, Error> {
        self.run(Queues::default()).await
    }

    /// Listens to what happens from now on.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
    /// use geartrain::Event;
    /// let client = geartrain::connect("memory:").await?;
    /// let mut events = client.events().await?;
    /// client.put("mail", "welcome", "{}").jid("j1").await?;
    /// assert!(matches!(*events.next().await?.event, Event::Put { .. }));
    /// # Ok(()) }) }
    /// ```
    pub async fn events(&self) -> Result<Box<dyn Subscription>, Error> {
        Ok(self.backend.subscribe().await?)
    }

    /// Listens to what happened after a position, and goes on with what happens: nothing is left out and nothing comes twice. Events are kept from
    /// the first subscription on, on a disk across restarts, and not for ever: a position that is too old is refused.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
    /// let client = geartrain::connect("memory:").await?;
    /// let mut events = client.events().await?;
    /// client.put("mail", "welcome", "{}").jid("j1").await?;
    /// let last = events.next().await?.position;
    /// drop(events);
    ///
    /// client.put("mail", "welcome", "{}").jid("j2").await?;
    /// let mut events = client.events_after(last).await?;
    /// assert_eq!(events.next().await?.position, last + 1);
    /// # Ok(()) }) }
    /// ```
    pub async fn events_after(&self, position: u64) -> Result<Box<dyn Subscription>, Error> {
        Ok(self.backend.subscribe_from(position).await?)
    }
}
