//! Jobs set aside for a transfer. A server hands jobs only to workers, so a connection of the transfer grabs and
//! holds them. That lock does not expire, and a server requeues what a closed connection held.
//!
//! Only background jobs for which no client waits can leave. All others stay held until they are returned, because
//! a job that is requeued at once would be the next one to be grabbed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use geartrain_core::{
    EndSetAside, EndSetAsideReply, Jid, Job, JobDetails, JobState, Payload, Priority, QlessView, QueueName,
    Refusal, SET_ASIDE_BYTES_MAX, SET_ASIDE_MAX, SetAside, SetAsideReply, StateName, StayReason,
    TRANSFER_BYTES_MAX, TRANSFER_GROUP, Timestamp, TransferEnd, UniqueKey,
};
use parking_lot::{Mutex, MutexGuard};

use super::connection::Connection;
use super::error::{ClientError, NAME, ServerError};
use super::{Shared, job_ids};
use crate::packet::{Assignment, Grab, JobStatus, Report, ReportBody, Request, Response};
use crate::{function, unpinned};

/// The client id under which `workers` lists the connections of transfers.
const CLIENT_ID: &[u8] = b"geartrain-move";
/// Between a queue and what follows it in the name of a job that is to be grabbed.
const NEW: &str = "_+";
/// The most GRAB_JOB packets under way, if payloads are small, and how many bytes of them are small.
const GRABS_MAX: usize = 32;
const SMALL_BYTES: usize = 1 << 20;
/// The unique ID by which Gearman means the payload: GET_STATUS_UNIQUE does not find it.
const BY_PAYLOAD: &[u8] = b"-";

/// The connections that hold jobs for transfers.
#[derive(Default)]
pub(crate) struct AsideConns(Mutex<Vec<AsideConn>>);

/// A connection with the jobs that it holds. It is closed once all of them have ended or are to be returned.
struct AsideConn {
    connection: Arc<Connection>,
    queue: QueueName,
    to: String,
    held: HashMap<Jid, Held>,
    /// How many jobs the server counts as running here, with those to be returned when it is closed.
    running: u64,
}

/// A job that a server has assigned.
#[derive(Clone)]
struct Held {
    handle: Bytes,
    /// Its unique ID and the progress that identifies the job under it, if the server can be asked.
    identity: Option<(Bytes, JobStatus)>,
}

/// A job that was grabbed, and whether it may leave.
struct Grabbed {
    assignment: Assignment,
    stay: Option<StayReason>,
    nonce: u32,
}

impl AsideConns {
    fn conns(&self) -> MutexGuard<'_, Vec<AsideConn>> {
        self.0.lock()
    }

    /// How many jobs of a queue the servers count as running because they are held here.
    pub(crate) fn count(&self, queue: &QueueName) -> u64 {
        self.conns().iter().filter(|conn| conn.queue == *queue).map(|conn| conn.running).sum()
    }

    /// Closes connections that hold nothing any more. Their servers requeue the jobs that were to be returned.
    fn close_finished(&self) {
        self.conns().retain(|conn| {
            let is_needed = !conn.held.is_empty();
            if !is_needed {
                conn.connection.close();
            }
            is_needed
        });
    }
}

/// The queue of a job that is to be grabbed: `{QUEUE}_+{ANY}`.
fn queue_of(jid: &Jid) -> Option<QueueName> {
    QueueName::new(jid.to_string().rsplit_once(NEW)?.0).ok()
}

fn bad_argument(what: &'static str, why: String) -> ClientError {
    Refusal::BadArgument { what: what.into(), why }.into()
}

fn check_count(jids: &[Jid]) -> Result<(), ClientError> {
    match jids.len() {
        0 => Err(bad_argument("jids", "must name at least one".to_owned())),
        1..=SET_ASIDE_MAX => Ok(()),
        many => Err(bad_argument("jids", format!("must be at most {SET_ASIDE_MAX}, not {many}"))),
    }
}

/// What a server handed out for one command.
#[derive(Default)]
struct Taken {
    reply: SetAsideReply,
    bytes: usize,
    conns: Vec<AsideConn>,
}

impl Taken {
    fn is_full(&self, wanted: usize) -> bool {
        self.reply.jobs.len() >= wanted
            || self.bytes > SET_ASIDE_BYTES_MAX
            || self.reply.stay.len() >= SET_ASIDE_MAX
    }
}

impl Shared {
    /// Grabs background jobs. A jid `{QUEUE}_+{ANY}` stands for the next job of the queue, whose jid is made of its
    /// handle. Those for which there is no job are answered as unknown, and jobs for which clients wait as awaited,
    /// which are held until they are returned.
    pub(super) async fn set_aside(&self, set: &SetAside) -> Result<SetAsideReply, ClientError> {
        if !(1..=TRANSFER_BYTES_MAX).contains(&set.to.len()) || set.to.contains(char::is_whitespace) {
            let why = format!("must have 1 to {TRANSFER_BYTES_MAX} bytes and no blanks");
            return Err(bad_argument("to", why));
        }
        check_count(&set.jids)?;
        let (mut taken, mut left) = (Taken::default(), &set.jids[..]);
        while let Some(first) = left.first() {
            let Some(queue) = queue_of(first) else {
                taken.reply.stay.push((first.clone(), StayReason::Unknown));
                left = &left[1..];
                continue;
            };
            let named = left.iter().take_while(|jid| queue_of(jid).as_ref() == Some(&queue)).count();
            let before = taken.reply.jobs.len();
            for index in 0..self.servers.len() {
                if !taken.is_full(before + named) {
                    self.grab_aside(index, &queue, before + named, &set.to, &mut taken).await?;
                }
            }
            let (names, rest) = left.split_at(named);
            if !taken.is_full(before + named) {
                let found = taken.reply.jobs.len() - before;
                let missing = names[found..].iter().map(|jid| (jid.clone(), StayReason::Unknown));
                taken.reply.stay.extend(missing);
            }
            left = rest;
        }
        self.aside.conns().append(&mut taken.conns);
        Ok(taken.reply)
    }

    /// Grabs jobs of one server until there are enough, or it has no more.
    async fn grab_aside(
        &self,
        index: usize,
        queue: &QueueName,
        wanted: usize,
        to: &str,
        taken: &mut Taken,
    ) -> Result<(), ClientError> {
        let until = Instant::now() + self.servers.timeout;
        let connection = loop {
            match self.servers.get(index).open(Arc::default(), None).await {
                Ok(connection) => break connection,
                Err(error) => self.servers.back_off(until, error).await?,
            }
        };
        connection.send(&[Request::SetClientId { id: CLIENT_ID }]).await?;
        let lifetime = lifetime_of(&connection).await?;
        self.check_tells(index, &connection).await?;
        let name = function::bytes(queue);
        connection.send(&[Request::CanDo { function: &name, timeout: None }]).await?;
        let mut conn = AsideConn {
            connection: Arc::new(connection),
            queue: queue.clone(),
            to: to.to_owned(),
            held: HashMap::new(),
            running: 0,
        };
        while !taken.is_full(wanted) {
            let missing = wanted - taken.reply.jobs.len();
            let (mut grabbed, is_empty) = grab_many(&conn.connection, missing, &mut taken.bytes).await?;
            classify(&conn.connection, &mut grabbed).await?;
            conn.running += grabbed.len() as u64;
            for Grabbed { assignment, stay, nonce } in grabbed {
                let handle = assignment.handle.clone();
                let jid = job_ids::jid_of(&self.servers, index, &handle)?;
                let status = JobStatus { known: true, running: true, numerator: nonce, denominator: nonce };
                let identity = can_be_asked(&assignment).then(|| (assignment.unique.clone(), status));
                let jid = match stay {
                    Some(reason) => {
                        taken.reply.stay.push((jid.clone(), reason));
                        jid
                    }
                    None => {
                        let job = view(&conn, &assignment, &lifetime)?;
                        let jid = job.jid.clone();
                        taken.reply.jobs.push(job);
                        jid
                    }
                };
                conn.held.insert(jid, Held { handle, identity });
            }
            if is_empty {
                break;
            }
        }
        if !conn.held.is_empty() {
            taken.conns.push(conn);
        }
        Ok(())
    }

    /// Refuses a server that does not tell how many clients wait for a job.
    async fn check_tells(&self, index: usize, connection: &Connection) -> Result<(), ClientError> {
        match connection.request(Request::GetStatusUnique { unique: CLIENT_ID }).await {
            Ok(Response::StatusUnique { .. }) => Ok(()),
            Err(ServerError::Refused { .. } | ServerError::Lost { .. }) => {
                let operation = format!(
                    "move jobs away from the server at {}, which does not tell for which jobs clients wait \
                     (GET_STATUS_UNIQUE)",
                    self.servers.get(index).name
                );
                Err(Refusal::Unsupported { operation: operation.into(), backend: NAME.into() }.into())
            }
            Ok(_) => Err(connection.protocol_error("an answer to GET_STATUS_UNIQUE that is none").into()),
            Err(error) => Err(error.into()),
        }
    }

    /// Ends jobs at their servers, or returns them. They are requeued when all jobs of their connection have ended
    /// or are to be returned.
    pub(super) async fn end_set_aside(&self, end: &EndSetAside) -> Result<EndSetAsideReply, ClientError> {
        check_count(&end.jids)?;
        let mut reply = EndSetAsideReply::default();
        let mut by_connection: Vec<HeldByConnection> = Vec::new();
        {
            let mut conns = self.aside.conns();
            for jid in &end.jids {
                let Some(conn) = conns.iter_mut().find(|conn| conn.held.contains_key(jid)) else {
                    reply.stay.push((jid.clone(), StayReason::NotSetAside));
                    continue;
                };
                let Some(held) = conn.held.get(jid).cloned() else { continue };
                if end.end == TransferEnd::Return {
                    conn.held.remove(jid);
                    reply.ended += 1;
                    continue;
                }
                match by_connection.iter_mut().find(|(of, ..)| Arc::ptr_eq(of, &conn.connection)) {
                    Some((.., jobs)) => jobs.push((jid.clone(), held)),
                    None => {
                        let jobs = vec![(jid.clone(), held)];
                        by_connection.push((conn.connection.clone(), conn.to.clone(), jobs));
                    }
                }
            }
        }
        for (connection, to, jobs) in by_connection {
            let ended = finish(&connection, &to, &jobs).await;
            let mut conns = self.aside.conns();
            let Some(at) = conns.iter().position(|conn| Arc::ptr_eq(&conn.connection, &connection)) else {
                continue;
            };
            let ended = match ended {
                Ok(ended) => ended,
                Err(error) => {
                    // What it held is requeued.
                    conns.swap_remove(at);
                    return Err(error.into());
                }
            };
            for ((jid, _), is_ended) in jobs.into_iter().zip(ended) {
                conns[at].held.remove(&jid);
                conns[at].running -= 1;
                if is_ended {
                    reply.ended += 1;
                } else {
                    reply.stay.push((jid, StayReason::Unknown));
                }
            }
        }
        self.aside.close_finished();
        Ok(reply)
    }
}

/// Held jobs that end at one server: its connection, the target of their transfer, and the jobs.
type HeldByConnection = (Arc<Connection>, String, Vec<(Jid, Held)>);

/// What identifies a server until it is restarted. Handles are unique as long as it runs and begin anew afterwards,
/// and a function lives as long as the server: so the name of one, which is made here if there is none, tells jobs of
/// one handle apart.
async fn lifetime_of(connection: &Connection) -> Result<String, ServerError> {
    for _ in 0..2 {
        let lines = connection.admin_list("status").await?;
        let marker = |line: &Bytes| {
            let name = std::str::from_utf8(line.split(|byte| *byte == b'\t').next()?).ok()?;
            Some(name.strip_prefix(TRANSFER_GROUP)?.strip_prefix(':')?.to_owned())
        };
        // The smallest, should two transfers have begun at the same moment.
        if let Some(found) = lines.iter().filter_map(marker).min() {
            return Ok(found);
        }
        let random = uuid::Uuid::now_v7().as_u64_pair().1;
        // Gearmand takes the last character for a carriage return.
        connection.admin_line(&format!("create function {TRANSFER_GROUP}:{random:016x}\r")).await?;
    }
    Err(connection.protocol_error("a function that was created is not in its status"))
}

/// Grabs up to `wanted` jobs. True if the server has no more.
async fn grab_many(
    connection: &Connection,
    wanted: usize,
    bytes: &mut usize,
) -> Result<(Vec<Grabbed>, bool), ServerError> {
    let (mut grabbed, mut is_empty, mut ahead) = (Vec::new(), false, 1);
    while grabbed.len() < wanted && !is_empty && *bytes <= SET_ASIDE_BYTES_MAX {
        let count = ahead.min(wanted - grabbed.len());
        let before = *bytes;
        for answer in connection.pipeline(&vec![vec![Request::Grab(Grab::All)]; count]).await? {
            match answer? {
                Response::Assign(assignment) => {
                    *bytes += assignment.data.len();
                    grabbed.push(Grabbed { assignment, stay: None, nonce: 0 });
                }
                Response::NoJob => is_empty = true,
                _ => return Err(connection.protocol_error("a reply to GRAB_JOB that is no job")),
            }
        }
        ahead = if *bytes - before < SMALL_BYTES { (ahead * 2).min(GRABS_MAX) } else { 1 };
    }
    Ok((grabbed, is_empty))
}

/// Whether the server finds a job by its unique ID.
fn can_be_asked(assignment: &Assignment) -> bool {
    !assignment.unique.is_empty() && &assignment.unique[..] != BY_PAYLOAD
}

/// Finds out which jobs must stay because a client waits for them, or may.
async fn classify(connection: &Connection, grabbed: &mut [Grabbed]) -> Result<(), ServerError> {
    // Background jobs without a unique ID are joined by no other submission. With the payload as their unique ID
    // they may be, which the server does not tell.
    let asked: Vec<usize> = (0..grabbed.len()).filter(|at| can_be_asked(&grabbed[*at].assignment)).collect();
    let question = |at: &usize| Request::GetStatusUnique { unique: &grabbed[*at].assignment.unique[..] };
    let groups: Vec<_> = asked.iter().map(|at| vec![question(at)]).collect();
    let answers = connection.pipeline(&groups).await?;
    let mut unawaited = Vec::with_capacity(asked.len());
    for (at, answer) in asked.into_iter().zip(answers) {
        match status_unique(connection, answer)? {
            (_, clients) if clients > 0 => grabbed[at].stay = Some(StayReason::Awaited),
            _ => unawaited.push(at),
        }
    }
    // The server may have answered about a job of another function. A progress that no other job has tells.
    let random = uuid::Uuid::now_v7().as_u64_pair().1 as u32;
    for (step, at) in unawaited.iter().enumerate() {
        grabbed[*at].nonce = ((random.wrapping_add(step as u32)) >> 1).max(1);
    }
    let nonces: Vec<String> = unawaited.iter().map(|at| grabbed[*at].nonce.to_string()).collect();
    let groups: Vec<_> = unawaited
        .iter()
        .zip(&nonces)
        .map(|(at, nonce)| {
            let assignment = &grabbed[*at].assignment;
            let number = nonce.as_bytes();
            let body = ReportBody::Status { numerator: number, denominator: number };
            let report = Request::Report(Report { handle: &assignment.handle[..], body });
            vec![report, Request::GetStatusUnique { unique: &assignment.unique[..] }]
        })
        .collect();
    let answers = connection.pipeline(&groups).await?;
    for (at, answer) in unawaited.into_iter().zip(answers) {
        let (status, clients) = status_unique(connection, answer)?;
        let nonce = grabbed[at].nonce;
        grabbed[at].stay = match (status.numerator, status.denominator) == (nonce, nonce) {
            true if clients == 0 => None,
            true => Some(StayReason::Awaited),
            false => Some(StayReason::PerhapsAwaited),
        };
    }
    if grabbed.iter().all(|job| can_be_asked(&job.assignment) && job.stay != Some(StayReason::PerhapsAwaited))
    {
        return Ok(());
    }
    let listed = connection.admin_list("show jobs").await?;
    let in_background: HashMap<&[u8], bool> = listed.iter().filter_map(|line| job_line(line)).collect();
    for job in grabbed {
        let is_in_background = in_background.get(&job.assignment.handle[..]);
        job.stay = match (can_be_asked(&job.assignment), job.stay, is_in_background) {
            (true, Some(StayReason::PerhapsAwaited), Some(false)) => Some(StayReason::Awaited),
            (true, stay, _) => stay,
            (false, _, Some(true)) if job.assignment.unique.is_empty() => None,
            (false, _, Some(false)) => Some(StayReason::Awaited),
            (false, ..) => Some(StayReason::PerhapsAwaited),
        };
    }
    Ok(())
}

/// Handle of a line of `show jobs`, and whether it is a background job.
fn job_line(line: &Bytes) -> Option<(&[u8], bool)> {
    let mut fields = line.rsplitn(4, |byte| *byte == b'\t');
    let in_background = fields.next()? == b"1";
    Some((fields.nth(2)?, in_background))
}

fn status_unique(
    connection: &Connection,
    answer: Result<Response, ServerError>,
) -> Result<(JobStatus, u32), ServerError> {
    match answer? {
        Response::StatusUnique { status, clients, .. } => Ok((status, clients)),
        _ => Err(connection.protocol_error("an answer to GET_STATUS_UNIQUE that is none")),
    }
}

/// A job that leaves.
fn view(conn: &AsideConn, assignment: &Assignment, lifetime: &str) -> Result<Job, ServerError> {
    let bad = |error: geartrain_core::BadName| conn.connection.protocol_error(error.to_string());
    let handle = String::from_utf8_lossy(&assignment.handle);
    let reducer = &assignment.reducer;
    let details = JobDetails {
        unique: can_be_asked(assignment).then(|| UniqueKey::new(&assignment.unique).ok()).flatten(),
        metadata: (!reducer.is_empty()).then(|| Payload::from(unpinned(reducer))),
        submissions: 1,
        ..JobDetails::default()
    };
    Ok(Job {
        jid: Jid::new(format!("{handle}-{lifetime}")).map_err(bad)?,
        klass: function::klass(&conn.queue).map_err(bad)?,
        queue: Some(conn.queue.clone()),
        state: JobState::Waiting,
        priority: Priority::ZERO,
        retries: 0,
        remaining: 0,
        payload: Payload::from(unpinned(&assignment.data)),
        tags: Vec::new(),
        history: Vec::new(),
        past_failure: None,
        spawned_from: None,
        dependents: Vec::new(),
        tracked: false,
        details: Some(Box::new(details)),
        qless: QlessView { state: StateName::Waiting.as_str(), worker: None, expires: Timestamp::ZERO },
        attempts: Vec::new(),
    })
}

/// Ends jobs that have arrived elsewhere. A client that has joined one meanwhile is told that it failed, and why: the
/// result will not come from here. Returns for each whether the server knew it.
async fn finish(connection: &Connection, to: &str, jobs: &[(Jid, Held)]) -> Result<Vec<bool>, ServerError> {
    let asked: Vec<_> = jobs.iter().filter_map(|(_, held)| held.identity.as_ref()).collect();
    let groups: Vec<_> =
        asked.iter().map(|(unique, _)| vec![Request::GetStatusUnique { unique: &unique[..] }]).collect();
    let mut answers = connection.pipeline(&groups).await?.into_iter();
    let moved = format!("the job was moved to {to} before this client joined it");
    let mut groups = Vec::with_capacity(jobs.len());
    for (_, held) in jobs {
        let mut is_joined = false;
        if let Some((_, identity)) = &held.identity
            && let Some(answer) = answers.next()
        {
            let (status, clients) = status_unique(connection, answer)?;
            is_joined = clients > 0 && status.numerator == identity.numerator;
        }
        let body = match is_joined {
            true => ReportBody::Exception(moved.as_bytes()),
            false => ReportBody::Complete(&b""[..]),
        };
        let report = Request::Report(Report { handle: &held.handle[..], body });
        groups.push(vec![report, Request::Echo { data: b"" }]);
    }
    let answers = connection.pipeline(&groups).await?;
    Ok(answers.into_iter().map(|answer| answer.is_ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_of_a_job_to_grab_is_in_its_name() {
        let of = |text: &str| queue_of(&Jid::new(text).unwrap()).map(|queue| queue.to_string());
        assert_eq!(of("mail_+1"), Some("mail".to_owned()));
        assert_eq!(of("a_+b_+1"), Some("a_+b".to_owned()));
        assert_eq!((of("mail"), of("_+1"), of("H:lap:1")), (None, None, None));
    }

    #[test]
    fn lines_of_jobs_are_parsed_from_their_end() {
        let parse = |line: &'static [u8]| job_line(&Bytes::from_static(line)).map(|(h, b)| (h.to_vec(), b));
        assert_eq!(parse(b"H:lap:1\t0\t0\t1"), Some((b"H:lap:1".to_vec(), true)));
        assert_eq!(parse(b"H:lap:2\t3\t1\t0"), Some((b"H:lap:2".to_vec(), false)));
        assert_eq!(parse(b"H:lap:2\t3"), None);
    }
}
