//! The client: one method per everyday operation, and [`Client::run`] for the others.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "embedded")]
use geartrain_store::StoreBackend;

use serde::Serialize;

use crate::put::{seconds, to_json};
use crate::random;
#[cfg(feature = "embedded")]
use crate::shared_store::SharedStore;
use crate::{
    Answer, Awaited, Backend, Backup, BackupStep, BackupSummary, BackupTarget, Call, Cancel, Complete,
    CompleteReply, Ended, Error, Events, Fail, Get, Group, Heartbeat, Jid, Job, JobHandle, JobResult, Next,
    Operation, Payload, Pop, PopReply, Popped, Put, PutRequest, QueueCounts, QueueHandle, QueueName, Queues,
    Release, Relock, ResultStream, Retry, Timestamp, WorkerName,
};

/// A connection to a queue. Clones share it.
///
/// A worker takes it as its backend:
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
/// use std::sync::Arc;
/// use geartrain::Backend;
/// let client = geartrain::connect("memory:").await?;
/// let backend: Arc<dyn Backend> = client.into();
/// # Ok(()) }) }
/// ```
#[derive(Clone)]
pub struct Client {
    backend: Arc<dyn Backend>,
    /// Who uses this client, for commands that record it.
    by: Option<Arc<str>>,
    /// Whether the backend is the store of a directory that this process owns.
    is_own_directory: bool,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Client")
    }
}

/// The backend of the client, without its [name](Client::named). An `embedded:` directory stays open, and
/// shared with other processes, as long as the backend is in use.
impl From<Client> for Arc<dyn Backend> {
    fn from(client: Client) -> Arc<dyn Backend> {
        client.backend
    }
}

impl From<&Client> for Arc<dyn Backend> {
    fn from(client: &Client) -> Arc<dyn Backend> {
        client.backend.clone()
    }
}

impl Client {
    /// Wraps a backend.
    pub fn new(backend: Arc<dyn Backend>) -> Client {
        Client { backend, by: None, is_own_directory: false }
    }

    #[cfg(feature = "embedded")]
    pub(crate) fn of_store(store: Arc<StoreBackend>, directory: &Path, read_only: bool) -> Client {
        let backend = Arc::new(SharedStore::new(store, directory, read_only));
        Client { is_own_directory: true, ..Client::new(backend) }
    }

    /// Whether this process owned the queue's directory when it connected. It may become the owner later, when the
    /// process that was ends.
    pub fn is_own_directory(&self) -> bool {
        self.is_own_directory
    }

    /// The same client for a named user or program: cancelled jobs remember who cancelled them.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
    /// use geartrain::{Cancel, Canceled};
    /// let client = geartrain::connect("memory:").await?.named("billing");
    /// let jid = client.put("mail", "welcome", "{}").await?;
    /// let because = Some("the account is closed".to_owned());
    /// client.run(Cancel { because, ..Cancel::new(vec![jid.clone()]) }).await?;
    /// let tombstone = client.run(Canceled { jid }).await?.expect("it was just cancelled");
    /// assert_eq!(tombstone.by.as_deref(), Some("billing"));
    /// # Ok(()) }) }
    /// ```
    pub fn named(self, name: &str) -> Client {
        Client { by: Some(name.into()), ..self }
    }

    /// Fills in what a client adds to each call.
    fn complete_call(&self, call: &mut Call) {
        random::draw_for(call);
        if call.command.records_caller() && call.by.is_none() {
            call.by.clone_from(&self.by);
        }
    }

    /// The backend that executes the commands.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// Copies a queue into a directory, which must be empty or missing, while work goes on: an `embedded:`
    /// queue, or that of a geartrain server on this machine, which writes the directory itself. The copy
    /// opens like the original and has everything that was acknowledged before the call. Dropping the future
    /// cancels the backup, and nothing is left behind.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
    /// # let root = std::env::temp_dir().join(format!("geartrain-backup-doc-{}", std::process::id()));
    /// # let (data, copy) = (root.join("data"), root.join("copy"));
    /// let client = geartrain::connect(&format!("embedded:{}", data.display())).await?;
    /// let jid = client.put("mail", "welcome", "{}").await?;
    /// let summary = client.backup(&copy).await?;
    /// assert_eq!(summary.jobs, 1);
    ///
    /// let other = geartrain::connect(&format!("embedded:{}", copy.display())).await?;
    /// assert!(other.get(&jid).await?.is_some());
    /// # drop((client, other));
    /// # std::fs::remove_dir_all(root)?;
    /// # Ok(()) }) }
    /// ```
    pub async fn backup(&self, to: &Path) -> Result<BackupSummary, Error> {
        let mut backup = self.begin_backup(BackupTarget::Directory(to.to_owned())).await?;
        loop {
            if let BackupStep::Done(summary) = backup.next().await? {
                return Ok(summary);
            }
        }
    }

    /// Begins a backup, into a directory or as a tar archive, whose steps the caller takes one by one.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
    /// # let data = std::env::temp_dir().join(format!("geartrain-archive-doc-{}", std::process::id()));
    /// use geartrain::{BackupStep, BackupTarget};
    /// let client = geartrain::connect(&format!("embedded:{}", data.display())).await?;
    /// let (mut backup, mut archive) = (client.begin_backup(BackupTarget::Archive).await?, Vec::new());
    /// loop {
    ///     match backup.next().await? {
    ///         BackupStep::Chunk(chunk) => archive.extend(chunk), // or to a file
    ///         BackupStep::Done(_) => break,
    ///         _ => {}
    ///     }
    /// }
    /// # drop((backup, client));
    /// # std::fs::remove_dir_all(data)?;
    /// # Ok(()) }) }
    /// ```
    pub async fn begin_backup(&self, to: BackupTarget) -> Result<Box<dyn Backup>, Error> {
        let to = match to {
            // A server has another working directory.
            BackupTarget::Directory(path) => {
                BackupTarget::Directory(std::path::absolute(&path).unwrap_or(path))
            }
            archive => archive,
        };
        Ok(self.backend.backup(to).await?)
    }

    /// Runs any operation.
    ///
    /// Cancel safety, here and in the other methods: if the future is dropped, the operation may have been
    /// executed or not. Repeating it is safe for a put with its jid, and for complete and fail, which name the
    /// attempt; a retry or cancel that is repeated may be refused. Popped jobs are returned, see
    /// [`pop_wait`](Client::pop_wait).
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
        let mut call = Call::from(operation);
        self.complete_call(&mut call);
        let mut answers = self.backend.execute(vec![call]).await?;
        let reply = answers.pop().transpose()?.and_then(O::answer);
        reply.ok_or(Error::WrongAnswer)
    }

    /// Runs several operations in one batch, which is much faster than one at a time. A refused operation
    /// does not stop the next one. If the future is dropped, some, all or none of them may have been executed,
    /// and popped jobs are returned, see [`pop_wait`](Client::pop_wait).
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
    pub async fn batch(&self, mut calls: Vec<Call>) -> Result<Vec<Answer>, Error> {
        calls.iter_mut().for_each(|call| self.complete_call(call));
        Ok(self.backend.execute(calls).await?)
    }

    /// Submits a job to a queue. `klass` names the code that runs it, and the payload is opaque to the queue.
    /// If the future is dropped, the job may have been put or not; a repeated put with the same
    /// [jid](PutRequest::jid) adds none.
    pub fn put(&self, queue: &str, klass: &str, payload: impl Into<Payload>) -> PutRequest {
        PutRequest::new(self.clone(), queue, klass, payload.into())
    }

    /// Submits a typed job: to the queue and as the klass of its type, with its JSON as payload. The type's
    /// defaults apply unless the request says otherwise.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
    /// use serde::{Deserialize, Serialize};
    ///
    /// #[derive(Serialize, Deserialize, geartrain::Job)]
    /// #[job(queue = "mail", retries = 3)]
    /// struct SendInvoice { to: String }
    ///
    /// let client = geartrain::connect("memory:").await?;
    /// client.put_job(&SendInvoice { to: "a@example.org".into() }).priority(5.0).await?;
    /// let job = client.pop("mail", "worker-1").await?.expect("there is a job");
    /// assert_eq!((job.klass.as_str(), job.retries), ("send-invoice", 3));
    /// assert_eq!(job.payload.text(), Some(r#"{"to":"a@example.org"}"#));
    /// # Ok(()) }) }
    /// ```
    #[cfg(feature = "worker")]
    pub fn put_job<J: crate::TypedJob>(&self, job: &J) -> PutRequest {
        PutRequest::of_job(self.clone(), job)
    }

    /// Submits a job that is already built as a [`Put`].
    pub fn request(&self, put: Put) -> PutRequest {
        PutRequest::of(self.clone(), put)
    }

    /// Submits a job and waits for its result, at most for `wait` if given. After that the error is
    /// [`WaitError::TimedOut`](crate::WaitError::TimedOut), and the job goes on without this client. The same
    /// happens if the future is dropped.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
    /// use std::time::Duration;
    /// use geartrain::{Complete, Error, Holder, JobResult, WaitError};
    /// let client = geartrain::connect("memory:").await?;
    ///
    /// let worker = client.clone();
    /// let at_work = std::thread::spawn(move || pollster::block_on(async {
    ///     let job = worker.pop_wait("sums", "worker-1", Duration::from_secs(30)).await?.expect("there is a job");
    ///     let result = Some(Box::new(JobResult { code: 0, bytes: "42".into() }));
    ///     worker.run(Complete { result, ..Complete::new(job.jid, Holder::Token(job.lock.token)) }).await
    /// }));
    /// let ended = client.put_and_wait(client.put("sums", "add", "[40,2]"), None).await?;
    /// assert!(ended.is_completed());
    /// assert_eq!(ended.result.bytes.text(), Some("42"));
    /// # at_work.join().expect("it does not panic")?;
    ///
    /// let put = client.put("no-workers", "add", "[1,1]").while_awaited();
    /// let late = client.put_and_wait(put, Some(Duration::from_millis(1))).await;
    /// assert!(matches!(late, Err(Error::Wait(WaitError::TimedOut { .. }))));
    /// # Ok(()) }) }
    /// ```
    pub async fn put_and_wait(&self, put: PutRequest, wait: Option<Duration>) -> Result<Ended, Error> {
        wait.map(|wait| seconds("wait", wait)).transpose()?;
        self.put_and_follow(put).await?.end(wait).await
    }

    /// Submits a job and opens its result stream: chunks, warnings and progress while it runs, then its
    /// result.
    pub async fn put_and_follow(&self, put: PutRequest) -> Result<Awaited, Error> {
        Awaited::put(self, put).await
    }

    /// Waits for the result of a job, at most for `wait` if given. If the job has ended already this is its
    /// stored result, and without one the error is [`WaitError::Unknown`](crate::WaitError::Unknown).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
    /// use std::time::Duration;
    /// let client = geartrain::connect("memory:").await?;
    /// let jid = client.put("mail", "welcome", "{}").keep_result(Duration::from_secs(3_600)).await?;
    /// let job = client.pop("mail", "worker-1").await?.expect("there is a job");
    /// client.fail(&job, "no-such-user", "there is no such user").await?;
    /// assert!(!client.wait_for(&jid, None).await?.is_completed());
    /// # Ok(()) }) }
    /// ```
    pub async fn wait_for(&self, jid: &Jid, wait: Option<Duration>) -> Result<Ended, Error> {
        self.follow_job(jid).await?.end(wait).await
    }

    /// Opens the result stream of an existing job, from now on.
    pub async fn follow_job(&self, jid: &Jid) -> Result<Awaited, Error> {
        Awaited::existing(self, jid).await
    }

    pub(crate) async fn follow(&self, stream_id: u64) -> Result<Box<dyn ResultStream>, Error> {
        Ok(self.backend.open_result_stream(stream_id).await?)
    }

    /// Takes the next job of a queue, if there is one, for this worker. Cancel safe, like
    /// [`pop_wait`](Client::pop_wait).
    pub async fn pop(&self, queue: &str, worker: &str) -> Result<Option<Popped>, Error> {
        let reply = self.run(Pop::new(QueueName::new(queue)?, WorkerName::new(worker)?)).await?;
        Ok(reply.jobs.into_iter().next())
    }

    /// Takes the next job of a queue; if there is none, waits for one up to `wait`.
    ///
    /// Cancel safe: the future may be dropped at any moment, for example by `select!`. A job that was on its
    /// way goes back to the front of its queue, with all its retries. Over a connection that takes a round
    /// trip, for which dropping the last clone of the client waits, up to a second.
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

    /// Takes several jobs from several queues in the given order; if there are none, waits for one up to
    /// `wait`. Cancel safe, like [`pop_wait`](Client::pop_wait).
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
    /// assert_eq!(reply.turn, 0); // the queue that the next pop should begin with
    /// # Ok(()) }) }
    /// ```
    pub async fn pop_any(&self, pop: Pop, wait: Duration) -> Result<PopReply, Error> {
        Ok(self.backend.pop_or_wait(pop, seconds("wait", wait)?).await?)
    }

    /// Locks all running jobs of a worker again that was restarted, in these queues or, if none is given, in
    /// all: each has a new token, and the earlier one is refused from now on. No retry is used up. To be
    /// called before the worker pops, with a name that no other process has.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
    /// let client = geartrain::connect("memory:").await?;
    /// client.put("mail", "welcome", "{}").await?;
    /// let before = client.pop("mail", "worker-1").await?.expect("there is a job");
    /// let jobs = client.relock("worker-1", &["mail"]).await?;
    /// assert_eq!((jobs.len(), &jobs[0].jid), (1, &before.jid));
    /// assert!(client.complete(&before).await.is_err());
    /// client.complete(&jobs[0]).await?;
    /// # Ok(()) }) }
    /// ```
    pub async fn relock(&self, worker: &str, queues: &[&str]) -> Result<Vec<Popped>, Error> {
        let queues = queues.iter().map(|queue| QueueName::new(*queue)).collect::<Result<_, _>>()?;
        let mut relock = Relock { queues, ..Relock::new(WorkerName::new(worker)?) };
        let mut jobs = Vec::new();
        loop {
            let page = self.run(relock.clone()).await?;
            let Some(first) = page.first() else { return Ok(jobs) };
            relock.before.get_or_insert(first.lock.token);
            jobs.extend(page);
        }
    }

    /// Renews the lock of a running job. Returns when the new lock expires.
    pub async fn heartbeat(&self, job: &Popped) -> Result<Timestamp, Error> {
        self.run(Heartbeat { jid: job.jid.clone(), holder: job.holder(), payload: None }).await
    }

    /// Completes a job.
    pub async fn complete(&self, job: &Popped) -> Result<CompleteReply, Error> {
        self.run(Complete::new(job.jid.clone(), job.holder())).await
    }

    /// Completes a job with a result, as JSON: for clients that wait for the job, and for later lookup if the
    /// put asked to [keep it](PutRequest::keep_result).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
    /// use std::time::Duration;
    /// let client = geartrain::connect("memory:").await?;
    /// let jid = client.put("sums", "add", "[40,2]").keep_result(Duration::from_secs(3_600)).await?;
    /// let job = client.pop("sums", "worker-1").await?.expect("there is a job");
    /// client.complete_with(&job, 42).await?;
    /// assert_eq!(client.wait_for(&jid, None).await?.json::<u32>()?, 42);
    /// # Ok(()) }) }
    /// ```
    pub async fn complete_with(&self, job: &Popped, value: impl Serialize) -> Result<CompleteReply, Error> {
        let result = Some(Box::new(JobResult { code: 0, bytes: to_json("result", &value)? }));
        self.run(Complete { result, ..Complete::new(job.jid.clone(), job.holder()) }).await
    }

    /// Completes a job and moves it to another queue.
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

    /// Fails a job. It stays in this failure group until it is requeued or cancelled.
    pub async fn fail(&self, job: &Popped, group: &str, message: &str) -> Result<(), Error> {
        self.run(Fail::new(job.jid.clone(), job.holder(), Group::new(group)?, message)).await
    }

    /// Returns a job to its queue to be tried again, which uses up one retry. Returns how many are left; -1
    /// if there was none, and the job failed.
    ///
    /// With a delay of zero the job waits as its [backoff](PutRequest::backoff) says, or as
    /// [the default](crate::Backoff::DEFAULT) if it has none; another delay replaces both. To hand back a job
    /// without using up a retry, use [`release`](Client::release) or [`snooze`](Client::snooze).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
    /// use std::time::Duration;
    /// use geartrain::StateName;
    /// let client = geartrain::connect("memory:").await?;
    /// client.put("mail", "welcome", "{}").await?;
    /// let job = client.pop("mail", "worker-1").await?.expect("there is a job");
    /// assert_eq!(client.retry(&job, Duration::ZERO).await?, 4);
    /// let job = client.get(&job.jid).await?.expect("it is there");
    /// assert_eq!(job.state.name(), StateName::Scheduled); // for about a second
    /// # Ok(()) }) }
    /// ```
    pub async fn retry(&self, job: &Popped, delay: Duration) -> Result<i64, Error> {
        let delay = delay.into();
        self.run(Retry { delay, ..Retry::new(job.jid.clone(), job.holder()) }).await
    }

    /// Like [`retry`](Client::retry) as the job's backoff says, with the reason of the failed attempt. If no
    /// retry is left, the job fails in this failure group.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
    /// let client = geartrain::connect("memory:").await?;
    /// let jid = client.put("mail", "welcome", "{}").retries(0).await?;
    /// let job = client.pop("mail", "worker-1").await?.expect("there is a job");
    /// assert_eq!(client.retry_because(&job, "smtp", "the server said 451").await?, -1);
    /// let failed = client.get(&jid).await?.expect("it is there");
    /// assert_eq!(failed.failure().expect("no retry was left").group.as_str(), "smtp");
    /// # Ok(()) }) }
    /// ```
    pub async fn retry_because(&self, job: &Popped, group: &str, message: &str) -> Result<i64, Error> {
        let (group, message) = (Some(Group::new(group)?), Some(message.to_owned()));
        self.run(Retry { group, message, ..Retry::new(job.jid.clone(), job.holder()) }).await
    }

    /// Returns a job to the front of its queue for another worker, without using up a retry.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
    /// let client = geartrain::connect("memory:").await?;
    /// client.put("mail", "welcome", "{}").await?;
    /// let job = client.pop("mail", "worker-1").await?.expect("there is a job");
    /// client.release(&job).await?;
    /// let again = client.pop("mail", "worker-2").await?.expect("it is the first of its queue");
    /// assert_eq!((again.jid, again.remaining), (job.jid, job.remaining));
    /// # Ok(()) }) }
    /// ```
    pub async fn release(&self, job: &Popped) -> Result<(), Error> {
        self.run(Release::of(job)).await
    }

    /// Returns a job to its queue without using up a retry, to run again after a delay. Without a delay it goes
    /// to the front of its queue.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
    /// use std::time::Duration;
    /// use geartrain::StateName;
    /// let client = geartrain::connect("memory:").await?;
    /// client.put("mail", "welcome", "{}").await?;
    /// let job = client.pop("mail", "worker-1").await?.expect("there is a job");
    /// client.snooze(&job, Duration::from_secs(300)).await?;
    /// let job = client.get(&job.jid).await?.expect("it is there");
    /// assert_eq!((job.state.name(), job.remaining), (StateName::Scheduled, 5));
    /// # Ok(()) }) }
    /// ```
    pub async fn snooze(&self, job: &Popped, delay: Duration) -> Result<(), Error> {
        self.run(Release { delay: delay.into(), ..Release::of(job) }).await
    }

    /// Removes a job, unless it is complete or another job depends on it. Returns whether it was removed.
    pub async fn cancel(&self, jid: &Jid) -> Result<bool, Error> {
        Ok(self.run(Cancel::new(vec![jid.clone()])).await? > 0)
    }

    /// Looks up a job.
    pub async fn get(&self, jid: &Jid) -> Result<Option<Job>, Error> {
        Ok(self.run(Get { jid: jid.clone() }).await?.map(|job| *job))
    }

    /// A handle of one job, for operations on it.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
    /// let client = geartrain::connect("memory:").await?;
    /// let jid = client.put("mail", "welcome", "{}").await?;
    /// client.job(&jid).set_priority(5.0).await?;
    /// client.job(&jid).cancel_because("the account is closed").await?;
    /// # Ok(()) }) }
    /// ```
    pub fn job(&self, jid: &Jid) -> JobHandle {
        JobHandle::new(self.clone(), jid.clone())
    }

    /// A handle of one queue, for operations on it. An invalid name is reported by the first of them.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
    /// let client = geartrain::connect("memory:").await?;
    /// let mail = client.queue("mail");
    /// mail.pause().await?;
    /// mail.put("welcome", "{}").await?;
    /// assert!(client.pop("mail", "worker-1").await?.is_none());
    /// mail.resume().await?;
    /// assert_eq!(mail.counts().await?.waiting, 1);
    /// # Ok(()) }) }
    /// ```
    pub fn queue(&self, name: &str) -> QueueHandle {
        QueueHandle::new(self.clone(), name)
    }

    /// Counts the jobs of each queue.
    pub async fn queues(&self) -> Result<Vec<QueueCounts>, Error> {
        self.run(Queues::default()).await
    }

    /// Subscribes to events from now on.
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
    pub async fn events(&self) -> Result<Events, Error> {
        Ok(Events::new(self.backend.subscribe().await?))
    }

    /// Subscribes to events after a position: first those retained, then live ones, with no gap and no
    /// duplicate. Events are retained from the first subscription on, in a directory also across restarts,
    /// but not for ever: a position that is too old is refused.
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
    pub async fn events_after(&self, position: u64) -> Result<Events, Error> {
        Ok(Events::new(self.backend.subscribe_from(position).await?))
    }
}
