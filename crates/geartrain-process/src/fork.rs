//! The fork model: one process per job. The payload is its standard input, its standard output is the result, and
//! its exit code decides.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use geartrain_core::{Call, Get, Reply, Tag};
use geartrain_worker::{Context, Interruption, JobError, JobOutput, JobRequest};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::{BoxError, Service};

use crate::report_lines::{self, ChosenGroup};
use crate::verdict::{Outcome, ResultError, history, verdict};
use crate::{Ended, Environment, JobGate, JobSocket, Launcher, Process, WorkDirectories};

/// How large a result may be by default, as a payload.
const RESULT_BYTES_MAX: usize = 64 << 20;
/// How much of standard error is kept with a failure: its end.
const STDERR_BYTES_MAX: usize = 8 * 1024;
/// How long pipes may stay open after the program and all that it started have ended.
const PIPES_CLOSE: Duration = Duration::from_secs(2);

/// Runs each job in a process of its own. Clones share the slots.
#[derive(Clone)]
pub struct ForkModel(Arc<Shared>);

struct Shared {
    launcher: Launcher,
    directories: WorkDirectories,
    result_bytes_max: usize,
    retry_delay: Option<Duration>,
    /// Free slots.
    slots: Mutex<Vec<usize>>,
    permits: Arc<Semaphore>,
    running: TaskTracker,
    sockets: AtomicU64,
}

impl ForkModel {
    /// Launches at most `slots` programs at a time.
    pub fn new(launcher: Launcher, directories: WorkDirectories, slots: usize) -> ForkModel {
        let slots = slots.max(1);
        ForkModel(Arc::new(Shared {
            launcher,
            directories,
            result_bytes_max: RESULT_BYTES_MAX,
            retry_delay: None,
            slots: Mutex::new((0..slots).rev().collect()),
            permits: Arc::new(Semaphore::new(slots)),
            running: TaskTracker::new(),
            sockets: AtomicU64::new(0),
        }))
    }

    /// Limits the size of a result; 64 MiB by default.
    ///
    /// # Panics
    ///
    /// If the model has been cloned.
    pub fn result_bytes_max(mut self, bytes: usize) -> ForkModel {
        Arc::get_mut(&mut self.0).expect("the model is not shared yet").result_bytes_max = bytes;
        self
    }

    /// Sets the delay of retries, instead of the backoff of each job.
    ///
    /// # Panics
    ///
    /// If the model has been cloned.
    pub fn retry_delay(mut self, delay: Option<Duration>) -> ForkModel {
        Arc::get_mut(&mut self.0).expect("the model is not shared yet").retry_delay = delay;
        self
    }

    /// Waits until no program is left, and its directory is empty. Called after the worker has stopped.
    pub async fn idle(&self) {
        self.0.running.close();
        self.0.running.wait().await;
    }
}

impl Service<JobRequest> for ForkModel {
    type Response = JobOutput;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<JobOutput, BoxError>> + Send>>;

    fn poll_ready(&mut self, _task: &mut TaskContext<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: JobRequest) -> Self::Future {
        let shared = self.0.clone();
        Box::pin(async move {
            // The program is stopped on a task of its own, which goes on if this future is dropped.
            let abandoned = CancellationToken::new();
            let guard = abandoned.clone().drop_guard();
            let (sender, received) = oneshot::channel();
            let task = Arc::clone(&shared).run(request.context, abandoned, sender);
            shared.running.spawn(task);
            let ended = received.await;
            guard.disarm();
            match ended {
                Ok(verdict) => verdict.map_err(JobError::into_service_error),
                Err(_) => Err(JobError::retry("the program was lost").into_service_error()),
            }
        })
    }
}

/// A slot that is taken; free again when dropped.
struct Slot {
    shared: Arc<Shared>,
    number: usize,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.shared.slots.lock().push(self.number);
    }
}

type Verdict = Result<JobOutput, JobError>;

impl Shared {
    async fn run(
        self: Arc<Shared>,
        context: Context,
        abandoned: CancellationToken,
        verdict: oneshot::Sender<Verdict>,
    ) {
        let slot = tokio::select! {
            slot = self.clone().slot() => slot,
            () = abandoned.cancelled() => return,
            () = context.cancellation().cancelled() => {
                let _ = verdict.send(Err(JobError::release("interrupted before the program started")));
                return;
            }
        };
        let directory = self.directories.slot(slot.number);
        let empty = {
            let directory = directory.clone();
            move || directory.empty()
        };
        let ended = match tokio::task::spawn_blocking(empty.clone()).await.unwrap_or_else(|_| panicked()) {
            Ok(()) => self.run_in(slot.number, &context, &abandoned).await,
            Err(error) => {
                let path = directory.path().display();
                Err(launch_error(
                    &context,
                    &format!("the working directory {path} cannot be emptied: {error}"),
                ))
            }
        };
        let _ = verdict.send(ended);
        // After the verdict, which need not wait for it, and before the slot is free.
        if let Err(error) = tokio::task::spawn_blocking(empty).await.unwrap_or_else(|_| panicked()) {
            tracing::warn!(directory = %directory.path().display(), %error, "cannot empty a working directory");
        }
    }

    async fn slot(self: Arc<Shared>) -> Slot {
        let permit = self.permits.clone().acquire_owned().await.expect("the semaphore is never closed");
        let number = self.slots.lock().pop().expect("there are as many slots as permits");
        Slot { shared: self, number, _permit: permit }
    }

    async fn run_in(&self, slot: usize, context: &Context, abandoned: &CancellationToken) -> Verdict {
        let gate = Arc::new(JobGate::new(context.backend().clone()));
        gate.admit(context.job());
        let number = self.sockets.fetch_add(1, Ordering::Relaxed);
        let socket = JobSocket::serve(self.directories.private(), &format!("{slot}.{number}"), gate)
            .map_err(|error| {
                launch_error(context, &format!("the socket of the job cannot be served: {error}"))
            })?;
        let environment =
            Environment::of_job(context, &tags(context).await).with("GEARTRAIN_URL", socket.url());
        let directory = self.directories.slot(slot);
        let process = self.launcher.launch(directory.path(), &environment).map_err(|error| {
            let program = self.launcher.program().display();
            launch_error(context, &format!("cannot launch {program}: {error}"))
        })?;
        let outcome =
            self.converse(process, context, abandoned).await.map_err(|why| launch_error(context, &why))?;
        if !context.interruption().is_some_and(Interruption::discards_result) {
            let (text, data) = history(outcome.ended);
            // Not all queues have a history.
            let _ = context.log_with(text, Some(data)).await;
        }
        verdict(context, self.launcher.current_limits(), self.retry_delay, outcome)
    }

    /// Writes the payload, reads what the program writes, and waits for its end.
    async fn converse(
        &self,
        process: Process,
        context: &Context,
        abandoned: &CancellationToken,
    ) -> Result<Outcome, String> {
        let Process { mut stdin, stdout, stderr, reports, mut supervised } = process;
        let payload = context.payload().to_shared();
        let too_large = CancellationToken::new();
        let feed = async move {
            // A program need not read its input.
            let _ = stdin.write_all(&payload).await;
        };
        let is_too_large = too_large.clone();
        let max = self.result_bytes_max;
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(feed);
        let group = ChosenGroup::default();
        tasks.spawn(report_lines::forward(reports, context.clone(), Arc::clone(&group)));
        let stdout = tokio::spawn(async move {
            let result = read_bounded(stdout, max).await;
            if result.is_err() {
                is_too_large.cancel();
            }
            result
        });
        let stderr = tokio::spawn(read_tail(stderr));
        let stop = async {
            tokio::select! {
                () = context.cancellation().cancelled() => {}
                () = abandoned.cancelled() => {}
                () = too_large.cancelled() => {}
            }
        };
        let ended: Result<Ended, String> = tokio::select! {
            ended = supervised.ended() => ended,
            () = stop => supervised.stop().await,
        };
        // Nothing is left that could write, unless a pipe was passed to a process elsewhere.
        let _ = tokio::time::timeout(PIPES_CLOSE, async { while tasks.join_next().await.is_some() {} }).await;
        tasks.abort_all();
        let result = closed(stdout).await.unwrap_or(Err(ResultError::NotClosed));
        let stderr = closed(stderr).await.unwrap_or_default();
        match ended {
            Ok(ended) => Ok(Outcome { ended, result, stderr, group: group.lock().take() }),
            Err(why) if stderr.is_empty() => Err(why),
            Err(why) => Err(format!("{why}: {stderr}")),
        }
    }
}

fn panicked() -> io::Result<()> {
    Err(io::Error::other("the task panicked"))
}

fn launch_error(context: &Context, why: &str) -> JobError {
    JobError::retry(why).group(format!("{}-launch-failed", context.queue()))
}

/// The output of a reader; none if its pipe stays open.
async fn closed<T>(reader: tokio::task::JoinHandle<T>) -> Option<T> {
    let abort = reader.abort_handle();
    match tokio::time::timeout(PIPES_CLOSE, reader).await {
        Ok(read) => read.ok(),
        Err(_) => {
            abort.abort();
            None
        }
    }
}

/// Tags are not part of a pop. Queues that do not tell have none.
pub(crate) async fn tags(context: &Context) -> Vec<Tag> {
    if let Some(job) = &context.job().job {
        return job.tags.clone();
    }
    let get = Call::from(Get { jid: context.jid().clone() });
    match context.backend().execute(vec![get]).await.ok().and_then(|mut answers| answers.pop()) {
        Some(Ok(Reply::Get(Some(job)))) => job.tags,
        _ => Vec::new(),
    }
}

/// Everything up to the end, or the limit that it exceeds.
async fn read_bounded(mut pipe: impl AsyncRead + Unpin, max: usize) -> Result<Vec<u8>, ResultError> {
    let mut bytes = Vec::new();
    loop {
        match pipe.read_buf(&mut bytes).await {
            Ok(0) | Err(_) => return Ok(bytes),
            Ok(_) if bytes.len() > max => return Err(ResultError::TooLarge { max }),
            Ok(_) => {}
        }
    }
}

/// The end of a text.
async fn read_tail(mut pipe: impl AsyncRead + Unpin) -> String {
    let (mut bytes, mut is_cut) = (Vec::new(), false);
    while pipe.read_buf(&mut bytes).await.is_ok_and(|count| count > 0) {
        if bytes.len() > 2 * STDERR_BYTES_MAX {
            bytes.drain(..bytes.len() - STDERR_BYTES_MAX);
            is_cut = true;
        }
    }
    if bytes.len() > STDERR_BYTES_MAX {
        bytes.drain(..bytes.len() - STDERR_BYTES_MAX);
        is_cut = true;
    }
    let text = String::from_utf8_lossy(&bytes);
    // A first line that is cut is left out, if there are others.
    let whole = text.split_once('\n').filter(|(_, rest)| is_cut && !rest.trim().is_empty());
    match whole {
        Some((_, rest)) => format!("[…] {rest}"),
        None => text.into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_tail_of_a_long_text_begins_with_a_whole_line() {
        let text: String = (0..10_000).map(|number| format!("line {number}\n")).collect();
        let tail = read_tail(text.as_bytes()).await;
        assert!(tail.starts_with("[…] line ") && tail.ends_with("line 9999\n"), "{tail}");
        assert!(tail.len() <= STDERR_BYTES_MAX + 10, "{}", tail.len());
        assert_eq!(read_tail("short".as_bytes()).await, "short");
    }

    #[tokio::test]
    async fn a_result_of_exactly_the_limit_is_read() {
        assert_eq!(read_bounded(&[7; 100][..], 100).await, Ok(vec![7; 100]));
        assert_eq!(read_bounded(&[7; 101][..], 100).await, Err(ResultError::TooLarge { max: 100 }));
    }
}
