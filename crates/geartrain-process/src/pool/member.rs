//! A member of a pool: one child after the other, and the jobs that they have.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use rustix::process::Pid;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::lines::{LineReader, NoLine};
use super::protocol::{self, LINE_BYTES_MAX, Message, READY_BYTES_MAX, cancel_line, excerpt, job_line};
use super::stderr::{self, Tail};
use super::{Assignment, Lost, PoolOptions, Trouble};
use crate::verdict::{megabytes, signal_name};
use crate::{
    Ended, Environment, Launcher, Process, SlotDirectory, Supervised, WorkDirectories, resident_bytes,
};

/// The delay before a child that crashed is replaced for the second time in a row, and the longest one.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));
/// How long a child that has closed its output may take to exit.
const EXIT_WITHIN: Duration = Duration::from_secs(1);

pub(super) struct Member {
    pub(super) number: usize,
    pub(super) launcher: Launcher,
    pub(super) directory: SlotDirectory,
    /// They are removed when the last member has ended.
    pub(super) directories: Arc<WorkDirectories>,
    pub(super) options: PoolOptions,
    pub(super) assignments: flume::Receiver<Assignment>,
    pub(super) trouble: Trouble,
    pub(super) stop: CancellationToken,
    /// Told how the start of the first child went.
    pub(super) first: Option<mpsc::Sender<Result<(), String>>>,
}

/// Why a child is no longer used.
enum Ending {
    /// It has run enough jobs or uses too much memory, or the pool is shut down.
    Retired,
    /// It has an interrupted job, which it did not answer or cannot be asked about.
    Interrupted,
    /// It closed its output or input.
    Closed(&'static str),
    /// It broke the protocol.
    Protocol(String),
}

/// A child of a member.
struct Child {
    supervised: Supervised,
    lines: LineReader<pipe::Receiver>,
    /// Lines to its standard input. Dropped, the input ends.
    input: mpsc::UnboundedSender<Vec<u8>>,
    writer: JoinHandle<()>,
    logger: JoinHandle<()>,
    tail: Tail,
    number: usize,
    is_ready: Arc<AtomicBool>,
    pid: Option<Pid>,
    /// Whether it reads cancel lines while it works.
    reads_cancel: bool,
    jobs: HashMap<String, Running>,
    /// Jobs whose earlier attempt this child still works on.
    deferred: Vec<Assignment>,
    /// Completes with the number of an assignment that is to be cancelled, and `None` for one that has ended.
    cancellations: FuturesUnordered<BoxFuture<'static, Option<u64>>>,
    given: u64,
    answered: u64,
}

/// A job that a child works on.
struct Running {
    number: u64,
    assignment: Assignment,
    /// When the child is killed, if it has not answered.
    kill_at: Option<Instant>,
    _ended: DropGuard,
}

impl Member {
    /// Runs one child after the other until the pool is shut down.
    pub(super) async fn run(mut self) {
        let mut crashes = 0;
        while !self.stop.is_cancelled() {
            let (ended_well, answered) = match self.start().await {
                Ok(Some(child)) => self.serve(child).await,
                Ok(None) => return,
                Err(why) => {
                    self.crashed(&why);
                    (false, 0)
                }
            };
            crashes = match (ended_well, answered) {
                (true, _) => 0,
                (false, 0) => crashes + 1,
                (false, _) => 1,
            };
            tokio::select! {
                () = tokio::time::sleep(backoff(crashes)) => {}
                () = self.stop.cancelled() => {}
            }
        }
        drop(self.directories);
    }

    fn crashed(&mut self, why: &str) {
        *self.trouble.lock() = Some(why.to_owned());
        // An error of the start is told by `Pool::start`.
        let is_told = self.first.take().is_some_and(|first| first.try_send(Err(why.to_owned())).is_ok());
        if !is_told {
            tracing::warn!("child {} of the pool is replaced: {why}", self.number);
        }
    }

    /// Starts a child and waits until it is ready; `None` if the pool was shut down meanwhile.
    async fn start(&mut self) -> Result<Option<Child>, String> {
        let directory = self.directory.clone();
        let emptied = tokio::task::spawn_blocking(move || directory.empty()).await;
        emptied
            .unwrap_or_else(|error| Err(std::io::Error::other(error)))
            .map_err(|error| format!("cannot empty {}: {error}", self.directory.path().display()))?;
        let environment = Environment::new()
            .with("GEARTRAIN_POOL_VERSION", protocol::VERSION.to_string())
            .with("GEARTRAIN_POOL_SLOTS", self.options.slots.to_string());
        let process = self
            .launcher
            .launch(self.directory.path(), &environment)
            .map_err(|error| format!("cannot be started: {error}"))?;
        let mut child = Child::new(process, self.number);
        let ready = tokio::select! {
            ready = timeout(self.options.ready_within, child.lines.next(READY_BYTES_MAX)) => {
                ready.map(|line| line.map(protocol::parse_ready))
            }
            () = self.stop.cancelled() => {
                child.stop().await;
                return Ok(None);
            }
        };
        let why = match ready {
            Ok(Ok(Ok(ready))) => {
                child.reads_cancel = ready.cancel || self.options.slots > 1;
                child.pid = child.supervised.started().await;
                child.log_from_now_on();
                if let Some(first) = self.first.take() {
                    let _ = first.try_send(Ok(()));
                }
                return Ok(Some(child));
            }
            Ok(Ok(Err(why))) => why,
            Ok(Err(NoLine::TooLong(line))) => {
                format!("its first line is longer than {READY_BYTES_MAX} bytes: '{}'", excerpt(&line))
            }
            Ok(Err(NoLine::End)) => {
                let how = child.exit().await;
                return Err(child.with_tail(format!("it ended before it was ready: {how}")).await);
            }
            Err(_elapsed) => format!("it was not ready within {:?}", self.options.ready_within),
        };
        child.stop().await;
        Err(child.with_tail(why).await)
    }

    /// Gives jobs to a child until it is to be replaced. Returns whether it ended as it should, and how many jobs
    /// it answered.
    async fn serve(&mut self, mut child: Child) -> (bool, u64) {
        let ending = self.exchange(&mut child).await;
        let answered = child.answered;
        let (why, lost) = match ending {
            Ending::Retired => {
                child.retire(self.options.grace).await;
                return (true, answered);
            }
            Ending::Interrupted => {
                // One that read the cancel line had its grace period already.
                if child.reads_cancel {
                    child.supervised.kill();
                }
                child.stop().await;
                child.lose_interrupted(self.options.grace).await;
                tracing::info!("child {} of the pool was stopped with its cancelled job", self.number);
                return (true, answered);
            }
            Ending::Closed(which) => {
                let how = child.exit().await;
                let why = format!("the child closed its {which} and ended: {how}");
                let why = child.with_tail(why).await;
                (why.clone(), Lost::Exit(why))
            }
            Ending::Protocol(why) => {
                child.stop().await;
                let why = child.with_tail(why).await;
                (why.clone(), Lost::Protocol(why))
            }
        };
        // A program may exit between two jobs, for example to be loaded again.
        let is_idle_exit = child.jobs.is_empty() && matches!(lost, Lost::Exit(_)) && answered > 0;
        child.lose_all(&lost).await;
        if is_idle_exit {
            tracing::info!("child {} of the pool is replaced: {why}", self.number);
            return (true, answered);
        }
        self.crashed(&why);
        (false, answered)
    }

    /// The exchange of lines with a child.
    async fn exchange(&mut self, child: &mut Child) -> Ending {
        let options = self.options.clone();
        let mut is_retiring = false;
        loop {
            is_retiring |= options.max_jobs.is_some_and(|max| child.given >= max.max(1));
            let is_idle = child.jobs.is_empty();
            if is_idle && (is_retiring || self.stop.is_cancelled()) {
                return Ending::Retired;
            }
            let has_room = child.jobs.len() + child.deferred.len() < options.slots
                && !is_retiring
                && !self.stop.is_cancelled();
            let kill_at = child.jobs.values().filter_map(|running| running.kill_at).min();
            let far = Instant::now() + Duration::from_secs(3_600);
            tokio::select! {
                line = child.lines.next(LINE_BYTES_MAX) => {
                    let line = match line {
                        Ok(line) => protocol::parse(line),
                        Err(NoLine::End) => return Ending::Closed("standard output"),
                        Err(NoLine::TooLong(line)) => Err(format!(
                            "more than {LINE_BYTES_MAX} bytes without a line break: '{}'", excerpt(&line)
                        )),
                    };
                    let is_answer = match line {
                        Ok((jid, message)) => child.handle(jid, message).await,
                        Err(why) => Err(why),
                    };
                    match is_answer {
                        Ok(true) => is_retiring |= self.answered(child).await,
                        Ok(false) => {}
                        Err(why) => return Ending::Protocol(why),
                    }
                }
                assignment = self.assignments.recv_async(), if has_room => match assignment {
                    Ok(assignment) if assignment.take() => child.give(assignment),
                    Ok(_withdrawn) => {}
                    // The pool was dropped.
                    Err(_) => self.stop.cancel(),
                },
                Some(number) = child.cancellations.next() => {
                    if number.is_some_and(|number| child.cancel(number, options.grace)) {
                        return Ending::Interrupted;
                    }
                }
                () = sleep_until(kill_at.unwrap_or(far)) => {
                    if kill_at.is_some() {
                        return Ending::Interrupted;
                    }
                }
                _ = &mut child.writer => return Ending::Closed("standard input"),
                () = self.stop.cancelled(), if !self.stop.is_cancelled() => {}
            }
        }
    }

    /// After each answer: empties the directory, and decides whether the child is replaced.
    async fn answered(&mut self, child: &mut Child) -> bool {
        if self.trouble.lock().is_some() {
            *self.trouble.lock() = None;
        }
        if child.jobs.is_empty() {
            self.clear_directory().await;
        }
        let memory = self.options.max_memory_bytes.and_then(|max| {
            let resident = resident_bytes(child.pid?)?;
            (resident > max).then_some(resident)
        });
        if let Some(bytes) = memory {
            let memory = megabytes(bytes);
            tracing::info!("child {} of the pool is replaced: it uses {memory} of memory", self.number);
        }
        memory.is_some()
    }

    async fn clear_directory(&self) {
        if self.directory.is_empty() {
            return;
        }
        let directory = self.directory.clone();
        let cleared = tokio::task::spawn_blocking(move || directory.clear()).await;
        if let Err(error) = cleared.unwrap_or_else(|error| Err(std::io::Error::other(error))) {
            tracing::warn!("cannot empty {}: {error}", self.directory.path().display());
        }
    }
}

impl Child {
    fn new(process: Process, number: usize) -> Child {
        // Descriptor 3 is for the fork model.
        let Process { stdin, stdout, stderr, reports: _, supervised } = process;
        let (input, lines) = mpsc::unbounded_channel();
        let (tail, is_ready) = (Tail::default(), Arc::new(AtomicBool::new(false)));
        Child {
            supervised,
            lines: LineReader::new(stdout),
            input,
            writer: tokio::spawn(write(stdin, lines)),
            logger: tokio::spawn(stderr::log(stderr, number, tail.clone(), Arc::clone(&is_ready))),
            tail,
            number,
            is_ready,
            pid: None,
            reads_cancel: false,
            jobs: HashMap::new(),
            deferred: Vec::new(),
            cancellations: FuturesUnordered::new(),
            given: 0,
            answered: 0,
        }
    }

    /// Logs what the child wrote to its standard error until it was ready, and from now on each line.
    fn log_from_now_on(&self) {
        self.is_ready.store(true, Ordering::Relaxed);
        for line in self.tail.text().lines() {
            stderr::print(self.number, line.as_bytes());
        }
    }

    /// Sends a job, unless the child still works on an earlier attempt of the same job.
    fn give(&mut self, assignment: Assignment) {
        let jid = assignment.context.jid().to_string();
        if self.jobs.contains_key(&jid) {
            self.deferred.push(assignment);
            return;
        }
        // It fails if the child has closed its input, which the main loop notices.
        let _ = self.input.send(job_line(&assignment.context, &assignment.tags));
        self.given += 1;
        let (number, ended) = (self.given, CancellationToken::new());
        let (context, abandoned) = (assignment.context.clone(), assignment.abandoned.clone());
        let has_ended = ended.clone();
        self.cancellations.push(Box::pin(async move {
            tokio::select! {
                () = has_ended.cancelled() => None,
                () = context.cancellation().cancelled() => Some(number),
                () = abandoned.cancelled() => Some(number),
            }
        }));
        let running = Running { number, assignment, kill_at: None, _ended: ended.drop_guard() };
        self.jobs.insert(jid, running);
    }

    /// Asks the child to stop working on a job. Returns true if the child cannot be asked.
    fn cancel(&mut self, number: u64, grace: Duration) -> bool {
        let Some((jid, running)) = self.jobs.iter_mut().find(|(_, running)| running.number == number) else {
            return false;
        };
        running.kill_at = Some(Instant::now() + if self.reads_cancel { grace } else { Duration::ZERO });
        if self.reads_cancel {
            let _ = self.input.send(cancel_line(jid, running.assignment.context.interruption()));
        }
        !self.reads_cancel
    }

    /// Passes a message on to the caller. Returns whether it ended a job.
    async fn handle(&mut self, jid: String, message: Message) -> Result<bool, String> {
        let is_answer = matches!(message, Message::Answer(_));
        let Some(running) = self.jobs.get(&jid) else {
            return Err(format!("a line about {jid:?}, which the child does not work on"));
        };
        // A caller that no longer waits discards the result.
        let _ = running.assignment.messages.send(Ok(message)).await;
        if is_answer {
            self.jobs.remove(&jid);
            self.answered += 1;
            let again = self.deferred.iter().position(|other| other.context.jid().to_string() == jid);
            if let Some(index) = again {
                let assignment = self.deferred.swap_remove(index);
                self.give(assignment);
            }
        }
        Ok(is_answer)
    }

    /// Waits until the child has exited by itself, or stops it.
    async fn exit(&mut self) -> String {
        let ended = match timeout(EXIT_WITHIN, self.supervised.ended()).await {
            Ok(ended) => ended,
            Err(_elapsed) => self.supervised.stop().await,
        };
        describe(&ended)
    }

    async fn stop(&mut self) {
        let _ = self.supervised.stop().await;
    }

    /// Ends the input of the child and waits until it has exited.
    async fn retire(mut self, grace: Duration) {
        drop(self.input);
        let (lines, supervised) = (&mut self.lines, &mut self.supervised);
        // What it still prints is read, because a full pipe would stop it from exiting.
        let drain = async {
            while lines.next(LINE_BYTES_MAX).await.is_ok() {}
            std::future::pending::<()>().await;
        };
        tokio::select! {
            ended = timeout(grace, supervised.ended()) => {
                if ended.is_ok() {
                    return;
                }
            }
            () = drain => {}
        }
        let _ = self.supervised.stop().await;
    }

    /// Adds the end of standard error, all of which has been read once the child has ended.
    async fn with_tail(&mut self, why: String) -> String {
        let _ = timeout(EXIT_WITHIN, &mut self.logger).await;
        let tail = self.tail.text();
        if tail.is_empty() { why } else { format!("{why}\n{tail}") }
    }

    async fn lose_all(&mut self, lost: &Lost) {
        for (_, running) in self.jobs.drain() {
            let _ = running.assignment.messages.send(Err(lost.clone())).await;
        }
        self.lose_deferred().await;
    }

    /// After the child was stopped because of cancelled jobs: the others are not to blame.
    async fn lose_interrupted(&mut self, grace: Duration) {
        let now = Instant::now();
        for (_, running) in self.jobs.drain() {
            let is_late = running.kill_at.is_some_and(|at| at <= now);
            let lost = match is_late {
                true if self.reads_cancel => Lost::Killed { grace },
                true => Lost::Stopped(running.assignment.context.interruption()),
                false => Lost::Sibling,
            };
            let _ = running.assignment.messages.send(Err(lost)).await;
        }
        self.lose_deferred().await;
    }

    async fn lose_deferred(&mut self) {
        for assignment in self.deferred.drain(..) {
            let _ = assignment.messages.send(Err(Lost::Sibling)).await;
        }
    }
}

/// The delay before a replacement, after this many crashes in a row without an answer.
fn backoff(crashes: u32) -> Duration {
    match crashes {
        0 | 1 => Duration::ZERO,
        _ => BACKOFF.0.saturating_mul(2_u32.saturating_pow(crashes - 2)).min(BACKOFF.1),
    }
}

/// Writes lines to the input of a child, which ends with the last of them.
async fn write(mut stdin: pipe::Sender, mut lines: mpsc::UnboundedReceiver<Vec<u8>>) {
    while let Some(line) = lines.recv().await {
        if stdin.write_all(&line).await.is_err() {
            return;
        }
    }
}

/// How a child ended, in words.
fn describe(ended: &Result<Ended, String>) -> String {
    let ended = match ended {
        Ok(ended) => ended,
        Err(why) => return why.clone(),
    };
    match (ended.code, ended.signal) {
        _ if ended.out_of_memory => format!("out of memory (peak {})", megabytes(ended.peak_memory_bytes)),
        (_, Some(signal)) => format!("killed by {}", signal_name(signal)),
        (Some(code), None) => format!("exit code {code}"),
        (None, None) => "its exit code is not known".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_backoff_doubles_up_to_its_limit() {
        let millis = [0, 1, 2, 3, 4, 10, 11, 12, 1_000].map(|crashes| backoff(crashes).as_millis());
        assert_eq!(millis, [0, 0, 100, 200, 400, 25_600, 30_000, 30_000, 30_000]);
    }
}
