//! Admin commands: the text lines `status`, `workers`, `show jobs`, `cancel job` and others.

use bytes::{Bytes, BytesMut};
use geartrain_core::{
    Announce, AnnounceChange, BackendError, Call, Cancel, Capability, Count, ForgetQueues, GetLimits,
    GetMany, Job, JobState, Jobs, Listing, Page, Priority, PriorityCounts, QueueCounts, QueueLimits,
    QueueName, Queues, Reply, RollCall, SetLimits, StateName, Status, StatusOf, StatusReply, UniqueKey,
};

use super::Shared;
use super::connection::BACKEND_UNAVAILABLE;
use super::session::{Session, error_fault, job_status, unique_id, with_causes, write_packet};
use crate::function;
use crate::packet::{JobStatus, Response};
use crate::text::{self, Command, ErrorReply, Line, write_end, write_ok, write_value};

/// Jobs read per call when listing all of them.
const PAGE_JOBS: i64 = 1_000;

/// Executes a line. The reply is appended in one piece.
pub(crate) async fn answer(line: &Bytes, session: &mut Session, out: &mut BytesMut) {
    let shared = session.shared.clone();
    let command = match Command::parse(line, shared.options.shutdown.is_some()) {
        Ok(command) => command,
        Err(refused) => return refused.write(out),
    };
    let mut reply = BytesMut::new();
    match execute(command, session, &mut reply).await {
        Ok(()) => out.extend_from_slice(&reply),
        Err(Failure::Refused(refused)) => refused.write(out),
        Err(Failure::Backend(error)) => {
            BACKEND_UNAVAILABLE.warn(format_args!("an admin command failed: {}", with_causes(&error)));
            out.extend_from_slice(
                format!("ERR QUEUE_ERROR {}\r\n", with_causes(&error).replace(' ', "+")).as_bytes(),
            );
        }
    }
}

enum Failure {
    Refused(ErrorReply),
    Backend(BackendError),
}

impl From<BackendError> for Failure {
    fn from(error: BackendError) -> Failure {
        Failure::Backend(error)
    }
}

impl From<ErrorReply> for Failure {
    fn from(refused: ErrorReply) -> Failure {
        Failure::Refused(refused)
    }
}

/// Who asks: the id that the client has set, if it has, and its address.
fn caller(session: &Session) -> std::sync::Arc<str> {
    let (address, info) = (session.peer.address, session.peer.info.lock());
    match info.id.is_empty() {
        true => format!("gearman ({address})").into(),
        false => format!("{} ({address})", String::from_utf8_lossy(&info.id)).into(),
    }
}

async fn execute(command: Command, session: &mut Session, out: &mut BytesMut) -> Result<(), Failure> {
    let shared = session.shared.clone();
    match command {
        Command::Status => status(&shared, out).await?,
        Command::PriorityStatus => priority_status(&shared, out).await?,
        Command::Workers => workers(&shared, out),
        Command::ShowJobs => {
            each_job(&shared, |job| {
                let handle = session.handle_of(&job.jid);
                let is_background = job
                    .details
                    .as_ref()
                    .is_none_or(|details| details.orphan_policy == geartrain_core::OrphanPolicy::Always);
                let retries = (i64::from(job.retries) - job.remaining).max(0);
                Line::Job {
                    handle: &handle,
                    retries: retries.unsigned_abs(),
                    ignored: false,
                    queued: is_background,
                }
                .write(out);
            })
            .await?;
            write_end(out);
        }
        Command::ShowUniqueJobs => {
            each_job(&shared, |job| Line::Unique { unique: unique_of(job) }.write(out)).await?;
            write_end(out);
        }
        Command::Jobs => {
            each_job(&shared, |job| {
                let function = function_of(job);
                let listeners = job.details.as_ref().map_or(0, |details| details.attached);
                Line::Attached {
                    function: &function,
                    unique: unique_of(job),
                    worker: worker_of(job),
                    listeners,
                }
                .write(out);
            })
            .await?;
            write_end(out);
        }
        Command::Clients => clients(&shared, out).await?,
        Command::CancelJob { handle } => {
            let jid = session.jid_of(&handle).ok_or(ErrorReply::UnknownJob)?;
            let is_unfinished = shared.run(Status { of: StatusOf::Jid(jid.clone()) }).await?.is_some();
            let cancel = Call { by: Some(caller(session)), ..Call::from(Cancel::new(vec![jid])) };
            if !is_unfinished || shared.call::<Cancel>(cancel).await? == 0 {
                return Err(ErrorReply::UnknownJob.into());
            }
            write_ok(out);
        }
        Command::CreateFunction { function } => {
            let queue = function::queue(&function).map_err(|_| ErrorReply::InvalidArguments("create"))?;
            // A function exists from the first worker that announces it, and stays when the worker withdraws
            // it.
            let can = Capability { queue: queue.clone(), klass: None, attempt_max: None };
            let worker = &session.worker;
            let announce = |change| Call::from(Announce { worker: worker.clone(), change });
            let mut calls = vec![announce(AnnounceChange::Can(vec![can]))];
            if !session.functions().contains(&queue) {
                calls.push(announce(AnnounceChange::Cannot(vec![(queue, None)])));
            }
            for answer in shared.backend.execute(calls).await? {
                answer.map_err(BackendError::from)?;
            }
            session.mark_worker();
            write_ok(out);
        }
        Command::DropFunction { function } => {
            let queue = function::queue(&function).map_err(|_| ErrorReply::FunctionNotFound)?;
            let known = shared.run(Queues { queue: None }).await?;
            let counts =
                known.iter().find(|counts| counts.name == queue).ok_or(ErrorReply::FunctionNotFound)?;
            let workers = shared.run(RollCall { queue: queue.clone(), klass: None }).await?;
            if unfinished(counts) > 0 || workers > 0 {
                return Err(ErrorReply::FunctionInUse.into());
            }
            shared.run(ForgetQueues { queues: vec![queue] }).await?;
            write_ok(out);
        }
        Command::MaxQueue { function, limits } => {
            let queue = function::queue(&function).map_err(|_| ErrorReply::InvalidArguments("maxqueue"))?;
            let before = shared.run(GetLimits { queue: queue.clone() }).await?;
            let limits = QueueLimits { by_priority: by_priority(limits), ..before };
            shared.run(SetLimits { queue, limits }).await?;
            write_ok(out);
        }
        Command::GetPid => write_value(out, std::process::id()),
        Command::Verbose => write_value(out, "INFO"),
        Command::Version => write_value(out, concat!("1.1.20-geartrain-", env!("CARGO_PKG_VERSION"))),
        Command::Shutdown { graceful } => {
            write_ok(out);
            shared.shut_down(graceful);
        }
    }
    Ok(())
}

/// The limits of the three priorities. A priority without a limit gets one that is never reached; otherwise
/// the next lower limit would apply to it.
fn by_priority(limits: text::QueueLimits) -> Vec<(Priority, u64)> {
    if limits == text::QueueLimits::default() {
        return Vec::new();
    }
    let levels = [(-1, limits.low), (0, limits.normal), (1, limits.high)];
    levels.into_iter().map(|(level, max)| (Priority::from(level), max.unwrap_or(u64::MAX))).collect()
}

/// Jobs of a queue that have not ended.
pub(crate) fn unfinished(counts: &QueueCounts) -> u64 {
    counts.waiting + counts.running + counts.stalled + counts.scheduled + counts.depends
}

/// All functions sorted by name, each with the replies to `ask`.
async fn query_functions<O, T>(
    shared: &Shared,
    ask: impl Fn(QueueName) -> Vec<O>,
    take: impl Fn(Reply) -> Option<T>,
) -> Result<Vec<(QueueCounts, Vec<T>)>, BackendError>
where
    Call: From<O>,
{
    let mut all = shared.run(Queues { queue: None }).await?;
    all.sort_by(|one, other| function::bytes(&one.name).cmp(&function::bytes(&other.name)));
    let calls: Vec<Vec<O>> = all.iter().map(|counts| ask(counts.name.clone())).collect();
    let counts: Vec<usize> = calls.iter().map(Vec::len).collect();
    let calls: Vec<Call> = calls.into_iter().flatten().map(Call::from).collect();
    let answers = if calls.is_empty() { Vec::new() } else { shared.backend.execute(calls).await? };
    let mut answers = answers.into_iter();
    let mut functions = Vec::with_capacity(all.len());
    for (queue, count) in all.into_iter().zip(counts) {
        let mut replies = Vec::with_capacity(count);
        for answer in answers.by_ref().take(count) {
            replies.extend(take(answer?));
        }
        functions.push((queue, replies));
    }
    Ok(functions)
}

async fn status(shared: &Shared, out: &mut BytesMut) -> Result<(), BackendError> {
    let roll_call = |queue| vec![RollCall { queue, klass: None }];
    let count = |reply| if let Reply::RollCall(count) = reply { Some(count) } else { None };
    for (counts, workers) in query_functions(shared, roll_call, count).await? {
        let line = Line::Status {
            function: &function::bytes(&counts.name),
            total: unfinished(&counts),
            running: counts.running + counts.stalled,
            workers: workers.first().copied().unwrap_or(0),
        };
        line.write(out);
    }
    write_end(out);
    Ok(())
}

async fn priority_status(shared: &Shared, out: &mut BytesMut) -> Result<(), BackendError> {
    let ask = |queue: QueueName| {
        let by_priority = PriorityCounts { queue: queue.clone() };
        vec![Call::from(by_priority), Call::from(RollCall { queue, klass: None })]
    };
    for (counts, replies) in query_functions(shared, ask, Some).await? {
        let (mut priorities, mut workers) = (geartrain_core::PriorityCountsReply::default(), 0);
        for reply in replies {
            match reply {
                Reply::PriorityCounts(counts) => priorities = counts,
                Reply::RollCall(count) => workers = count,
                _ => {}
            }
        }
        let line = Line::PriorityStatus {
            function: &function::bytes(&counts.name),
            high: priorities.above,
            // Scheduled jobs count as normal: Gearman's scheduled jobs have no other priority.
            normal: priorities.at + counts.scheduled + counts.depends,
            low: priorities.below,
            workers,
        };
        line.write(out);
    }
    write_end(out);
    Ok(())
}

fn workers(shared: &Shared, out: &mut BytesMut) {
    for peer in shared.peers().values() {
        let details = peer.info();
        let functions: Vec<_> = details.functions.iter().map(function::bytes).collect();
        let functions: Vec<&[u8]> = functions.iter().map(|function| &function[..]).collect();
        let (number, address) = (peer.number, peer.address.ip());
        Line::Connection { number, address, id: &details.id, functions: &functions }.write(out);
    }
    write_end(out);
}

async fn clients(shared: &Shared, out: &mut BytesMut) -> Result<(), BackendError> {
    let peers: Vec<_> = shared.peers().values().cloned().collect();
    for peer in peers {
        let jids = peer.info().awaited.values().map(|awaited| awaited.jid.clone()).collect();
        let jobs = shared.run(GetMany { jids }).await?;
        Line::Client { address: peer.address }.write(out);
        for job in jobs {
            let function = function_of(&job);
            Line::ClientJob { function: &function, unique: unique_of(&job), worker: worker_of(&job) }
                .write(out);
        }
    }
    write_end(out);
    Ok(())
}

/// Passes every unfinished job to `look`.
async fn each_job(shared: &Shared, mut look: impl FnMut(&Job)) -> Result<(), BackendError> {
    let count = Count::new(PAGE_JOBS).unwrap_or(Count::MAX);
    for counts in shared.run(Queues { queue: None }).await? {
        let queue = counts.name;
        for which in [
            Listing::Running(queue.clone()),
            Listing::Stalled(queue.clone()),
            Listing::Waiting(queue.clone()),
            Listing::Scheduled(queue.clone()),
            Listing::Depends(queue.clone()),
        ] {
            let mut offset = 0;
            loop {
                let page = Page { offset, count };
                let jids = shared.run(Jobs { which: which.clone(), page }).await?;
                let is_last = jids.len() < count.get();
                offset += jids.len();
                shared.run(GetMany { jids }).await?.iter().for_each(&mut look);
                if is_last {
                    break;
                }
            }
        }
    }
    Ok(())
}

fn unique_of(job: &Job) -> &[u8] {
    unique_id(job.details.as_ref().and_then(|details| details.unique.as_ref()))
}

fn worker_of(job: &Job) -> Option<std::net::SocketAddr> {
    match &job.state {
        JobState::Running { lock } => Shared::address_of(&lock.worker)?.parse().ok(),
        _ => None,
    }
}

fn function_of(job: &Job) -> std::borrow::Cow<'_, [u8]> {
    job.queue.as_ref().map(function::bytes).unwrap_or_default()
}

/// Replies with the status of the job with this unique ID, whatever its function: a running one first, else
/// the oldest.
pub(crate) async fn status_by_unique(shared: &Shared, unique: Bytes, out: &mut BytesMut) {
    let found = match find_by_unique(shared, &unique).await {
        Ok(found) => found,
        // A reply of "unknown" would mean that the job has ended.
        Err(error) => return error_fault(&error).encode(out),
    };
    let status = found.as_ref().map_or(JobStatus::default(), job_status);
    let clients = found.map_or(0, |found| u32::try_from(found.attached).unwrap_or(u32::MAX));
    write_packet(Response::StatusUnique { unique, status, clients }, out);
}

async fn find_by_unique(shared: &Shared, unique: &[u8]) -> Result<Option<StatusReply>, BackendError> {
    // Jobs submitted with `-` have no unique ID to ask for.
    let Some(key) = UniqueKey::new(unique).ok().filter(|key| key.as_bytes() != b"-") else { return Ok(None) };
    let ask = |queue| vec![Status { of: StatusOf::Unique(queue, key.clone()) }];
    let take = |reply| if let Reply::Status(status) = reply { status } else { None };
    let mut found: Vec<StatusReply> =
        query_functions(shared, ask, take).await?.into_iter().flat_map(|(_, found)| found).collect();
    if found.len() > 1 {
        // The first history entry is the put.
        let jids = found.iter().map(|status| status.jid.clone()).collect();
        let jobs = shared.run(GetMany { jids }).await?;
        let put_at = |status: &StatusReply| {
            let job = jobs.iter().find(|job| job.jid == status.jid);
            job.and_then(|job| job.history.first()).map(|entry| entry.when)
        };
        found.sort_by_key(|status| (status.state != StateName::Running, put_at(status)));
    }
    Ok(found.into_iter().next())
}
