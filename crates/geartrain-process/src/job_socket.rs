//! The socket of a launched program: the queue, restricted to the job that the program runs.

use std::collections::HashMap;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use geartrain_core::{
    Answer, Backend, BackendError, Call, Command, Holder, Jid, Pending, Pop, PopReply, Popped, Refusal,
    Seconds, Software, Subscription, SystemClock, Timestamp, Token,
};
use geartrain_front::Admission;
use geartrain_resp::{Front, Options};
use parking_lot::RwLock;
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;

/// How many connections a program may open.
const CONNECTIONS_MAX: usize = 32;
/// How long connections may take to receive their last replies when the job has ended.
const DRAIN: Duration = Duration::from_secs(1);

/// A backend that admits only reports about certain attempts: heartbeat, progress and chunk with their tokens,
/// log and get of their jobs. Everything else is refused by name.
pub struct JobGate {
    backend: Arc<dyn Backend>,
    admitted: RwLock<HashMap<Jid, Token>>,
}

impl JobGate {
    /// Admits nothing yet.
    pub fn new(backend: Arc<dyn Backend>) -> JobGate {
        JobGate { backend, admitted: RwLock::default() }
    }

    /// Admits reports about an attempt from now on.
    pub fn admit(&self, job: &Popped) {
        self.admitted.write().insert(job.jid.clone(), job.lock.token);
    }

    /// Refuses reports about an attempt from now on.
    pub fn dismiss(&self, job: &Popped) {
        let mut admitted = self.admitted.write();
        if admitted.get(&job.jid) == Some(&job.lock.token) {
            admitted.remove(&job.jid);
        }
    }

    fn check(&self, command: &Command) -> Result<(), Refusal> {
        let (jid, holder) = match command {
            Command::Heartbeat(heartbeat) => (&heartbeat.jid, Some(&heartbeat.holder)),
            Command::Progress(progress) => (&progress.jid, Some(&progress.holder)),
            Command::Chunk(chunk) => (&chunk.jid, Some(&chunk.holder)),
            Command::Log(log) => (&log.jid, None),
            Command::Get(get) => (&get.jid, None),
            other => return Err(not_admitted(other.name())),
        };
        match (self.admitted.read().get(jid), holder) {
            (None, _) => Err(Refusal::BadArgument {
                what: format!("job {jid}").into(),
                why: "is not the job of this program, and its socket admits no other".to_owned(),
            }),
            (Some(token), Some(holder)) if *holder != Holder::Token(*token) => Err(Refusal::BadArgument {
                what: "the token".into(),
                why: format!("is not that of this attempt at job {jid}"),
            }),
            (Some(_), _) => Ok(()),
        }
    }
}

fn not_admitted(name: &'static str) -> Refusal {
    let why = "is not allowed on the socket of a job: use heartbeat, progress, chunk, log or get of this job";
    Refusal::BadArgument { what: name.into(), why: why.to_owned() }
}

fn refused<T: Send + 'static>(name: &'static str) -> Pending<'static, T> {
    Box::pin(async move { Err(not_admitted(name).into()) })
}

impl Backend for JobGate {
    fn execute(&self, batch: Vec<Call>) -> Pending<'_, Vec<Answer>> {
        Box::pin(async move {
            let mut answers: Vec<Option<Answer>> = Vec::with_capacity(batch.len());
            let mut calls = Vec::new();
            for call in batch {
                match self.check(&call.command) {
                    Ok(()) => {
                        // By the clock of the backend, and not by that of the program.
                        calls.push(Call { now: None, ..call });
                        answers.push(None);
                    }
                    Err(refusal) => answers.push(Some(Err(refusal))),
                }
            }
            if calls.is_empty() {
                return Ok(answers.into_iter().flatten().collect());
            }
            let mut executed = self.backend.execute(calls).await?.into_iter();
            let missing = || BackendError::Broken {
                backend: "job socket",
                source: Box::new(io::Error::other("an answer is missing")),
            };
            answers.into_iter().map(|answer| answer.or_else(|| executed.next()).ok_or_else(missing)).collect()
        })
    }

    fn pop_or_wait(&self, _pop: Pop, _wait: Seconds) -> Pending<'_, PopReply> {
        refused("Pop")
    }

    fn now(&self) -> Option<Timestamp> {
        self.backend.now()
    }

    fn identify(&self) -> Pending<'_, Software> {
        self.backend.identify()
    }

    fn subscribe(&self) -> Pending<'_, Box<dyn Subscription>> {
        refused("Subscribe")
    }

    fn subscribe_from(&self, _after: u64) -> Pending<'_, Box<dyn Subscription>> {
        refused("Subscribe")
    }

    fn publish(&self, _channel: &[u8], _message: &[u8]) -> Pending<'_, u64> {
        refused("Publish")
    }
}

/// A socket file that serves RESP for one program. It is gone when dropped.
#[derive(Debug)]
pub struct JobSocket {
    path: PathBuf,
    stop: CancellationToken,
}

impl JobSocket {
    /// Serves a gate on a new socket file of mode 0600 in a private directory.
    pub fn serve(directory: &Path, name: &str, gate: Arc<JobGate>) -> io::Result<JobSocket> {
        let path = directory.join(format!("{name}.sock"));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path)?;
        // Until this line the mode of the directory keeps other users out.
        std::fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        let stop = CancellationToken::new();
        let options = Options {
            admission: Admission::with_limits(CONNECTIONS_MAX, Duration::from_secs(10)),
            drain_timeout: DRAIN,
            ..Options::default()
        };
        let front = Front::new(gate, Arc::new(SystemClock), options);
        let stopped = stop.clone();
        tokio::spawn(async move { front.serve_unix(listener, stopped).await });
        Ok(JobSocket { path, stop })
    }

    /// The URL for the program, as `GEARTRAIN_URL`.
    pub fn url(&self) -> String {
        format!("redis+unix://{}", self.path.display())
    }
}

impl Drop for JobSocket {
    fn drop(&mut self) {
        self.stop.cancel();
        let _ = std::fs::remove_file(&self.path);
    }
}
