//! Encodes answers as Qless's replies.

use geartrain_core::{
    Answer, CompleteReply, Every, Failure, HistoryEntry, HistoryEvent, Jid, Job, Payload, Recurring, Reply,
    Setting, StateName, Summary, Tag, WorkerName,
};

use geartrain_front::{PIECE_BYTES, Pieces};

use super::json::{self, write_number, write_string};
use super::{CallContext, Echo, Verb, errors, number};
use crate::frame::Output;

/// The longest reply. A client that wants more jobs must ask for fewer at a time.
pub(crate) const REPLY_BYTES_MAX: usize = 512 << 20;

/// The text around tracked jobs.
const TRACKED_BEFORE: &str = "{\"jobs\":";
const TRACKED_BEHIND: &[u8] = b",\"expired\":";

/// Approximate size of a job's document besides its payload.
const JOB_BYTES: usize = 512;

/// A large reply: a piece for each job.
pub(crate) struct LargeReply {
    before: &'static str,
    /// A list of jobs, not a single one.
    is_list: bool,
    jobs: Vec<Job>,
    behind: Vec<u8>,
}

impl LargeReply {
    /// Takes the jobs of an answer; returns the answer if it is small or has none.
    pub(crate) fn new(context: &CallContext, answer: Answer) -> Result<LargeReply, Answer> {
        let of = |jobs: &[Job]| jobs.iter().map(bytes).sum::<usize>();
        let length = match &answer {
            Ok(Reply::Get(Some(job))) => bytes(job),
            Ok(Reply::GetMany(jobs) | Reply::Peek(jobs)) => of(jobs),
            Ok(Reply::Pop(popped)) => {
                popped.jobs.iter().filter_map(|job| job.job.as_deref()).map(bytes).sum()
            }
            Ok(Reply::Tracked(tracked)) => of(&tracked.jobs),
            _ => 0,
        };
        if length < PIECE_BYTES || matches!(context.echo, Echo::Wrong { .. }) {
            return Err(answer);
        }
        let list = |jobs| LargeReply { before: "", is_list: true, jobs, behind: Vec::new() };
        Ok(match answer {
            Ok(Reply::Get(Some(job))) => LargeReply { is_list: false, ..list(vec![*job]) },
            Ok(Reply::GetMany(jobs) | Reply::Peek(jobs)) => list(jobs),
            Ok(Reply::Pop(popped)) => {
                list(popped.jobs.into_iter().filter_map(|popped| popped.job).map(|job| *job).collect())
            }
            Ok(Reply::Tracked(tracked)) => {
                let mut behind = TRACKED_BEHIND.to_vec();
                write_jids(&mut behind, &tracked.expired);
                behind.push(b'}');
                LargeReply { before: TRACKED_BEFORE, behind, ..list(tracked.jobs) }
            }
            other => return Err(other),
        })
    }
}

fn bytes(job: &Job) -> usize {
    JOB_BYTES + job.payload.bytes().len()
}

impl Pieces for LargeReply {
    fn write(&self, number: usize, out: &mut Vec<u8>) -> bool {
        match self.jobs.get(number) {
            Some(job) => {
                if number == 0 {
                    out.extend_from_slice(self.before.as_bytes());
                }
                if self.is_list {
                    out.push(if number == 0 { b'[' } else { b',' });
                }
                write_job(out, job);
                if number + 1 == self.jobs.len() {
                    out.extend_from_slice(if self.is_list { b"]" } else { b"" });
                    out.extend_from_slice(&self.behind);
                }
                true
            }
            None => false,
        }
    }
}

/// The error in place of a reply that is too long.
pub(crate) fn too_long() -> String {
    errors::reply(&format!("the reply has more than {REPLY_BYTES_MAX} bytes: ask for fewer jobs"))
}

/// Encodes the reply to one call.
pub(crate) fn write(out: &mut Output, context: &CallContext, answer: Answer) {
    match answer {
        Err(refusal) => {
            out.error(&errors::refused_with(&refusal, &errors::message(context.verb, &refusal)));
        }
        Ok(reply) => write_reply(out, context, reply),
    }
}

fn write_reply(out: &mut Output, context: &CallContext, reply: Reply) {
    if let Echo::Wrong { jid, message } = &context.echo {
        return out.error(&errors::reply(&error_of(context.verb, jid, message, &reply)));
    }
    match reply {
        Reply::Put(_) | Reply::Fail(()) | Reply::Recur(()) => match &context.echo {
            Echo::Text(text) => out.bulk(text),
            _ => out.nil(),
        },
        Reply::Complete(complete) => out.bulk(match complete {
            CompleteReply::Complete => "complete",
            CompleteReply::Waiting => "waiting",
            CompleteReply::Scheduled => "scheduled",
            CompleteReply::Depends => "depends",
        }),
        Reply::Heartbeat(expires) => out.integer(number::truncated(expires.get())),
        Reply::SetPriority(()) => match context.echo {
            Echo::Number(priority) => out.integer(number::truncated(priority)),
            _ => out.nil(),
        },
        Reply::Retry(remaining) => out.integer(remaining),
        Reply::Unfail(count) | Reply::Length(count) => out.integer(i64::try_from(count).unwrap_or(i64::MAX)),
        Reply::Depend(()) | Reply::UpdateRecurring(()) | Reply::Unrecur(()) => out.integer(1),
        Reply::Cancel(_) => {
            let jids = if let Echo::Texts(jids) = &context.echo { &jids[..] } else { &[] };
            out.array(jids.len());
            jids.iter().for_each(|jid| out.bulk(jid));
        }
        Reply::Jobs(jids) => {
            out.array(jids.len());
            jids.iter().for_each(|jid| jid.with_str(|text| out.bulk(text)));
        }
        Reply::SetConfig(())
        | Reply::UnsetConfig(())
        | Reply::Pause(())
        | Reply::Resume(())
        | Reply::Timeout(())
        | Reply::Log(())
        | Reply::ForgetWorkers(())
        | Reply::ForgetQueues(())
        | Reply::Get(None)
        | Reply::GetRecurring(None)
        | Reply::GetConfig(None) => out.nil(),
        Reply::GetConfig(Some(Setting::Chosen(value))) => out.bulk(value),
        Reply::GetConfig(Some(Setting::Default(value))) => match number::read(value.as_bytes()) {
            Some(number) => out.integer(number::truncated(number)),
            None => out.bulk(value.as_bytes()),
        },
        other => {
            let mut text = Vec::with_capacity(1024);
            match write_json(&mut text, context, other) {
                Ok(()) => out.bulk(text),
                Err(TooLong) => out.error(&too_long()),
            }
        }
    }
}

/// The error about an argument that Qless checks after the job.
fn error_of(verb: Verb, jid: &Jid, message: &str, found: &Reply) -> String {
    match (verb, found) {
        (Verb::Requeue, Reply::Get(None)) => format!("Requeue(): Job {jid} does not exist"),
        (Verb::Track, Reply::Get(None)) => "Track(): Job does not exist".to_owned(),
        (Verb::Depends, Reply::Get(None)) => errors::not_in_depends(jid, "false"),
        (Verb::Depends, Reply::Get(Some(job))) if job.state.name() != StateName::Depends => {
            errors::not_in_depends(jid, job.qless.state)
        }
        (Verb::RecurUpdate, Reply::GetRecurring(None)) => format!("Recur(): No recurring job {jid}"),
        _ => message.to_owned(),
    }
}

struct TooLong;

fn write_json(out: &mut Vec<u8>, context: &CallContext, reply: Reply) -> Result<(), TooLong> {
    match reply {
        Reply::Get(Some(job)) => write_job(out, &job),
        Reply::GetMany(jobs) | Reply::Peek(jobs) => write_jobs(out, jobs.iter())?,
        Reply::Pop(popped) => write_jobs(out, popped.jobs.iter().filter_map(|popped| popped.job.as_deref()))?,
        Reply::Tracked(tracked) => {
            out.extend_from_slice(TRACKED_BEFORE.as_bytes());
            write_jobs(out, tracked.jobs.iter())?;
            out.extend_from_slice(TRACKED_BEHIND);
            write_jids(out, &tracked.expired);
            out.push(b'}');
        }
        Reply::Track(changed) => out.push(if changed { b'1' } else { b'0' }),
        Reply::AddTags(tags)
        | Reply::RemoveTags(tags)
        | Reply::TopTags(tags)
        | Reply::TagRecurring(tags)
        | Reply::UntagRecurring(tags) => write_tags(out, &tags),
        Reply::Tagged(listed) | Reply::Failed(listed) => {
            let mut object = Object::new(out);
            object.number("total", listed.total as f64);
            write_jids(object.key("jobs"), &listed.jids);
            object.end();
        }
        Reply::Failures(groups) => {
            let mut object = Object::new(out);
            for (group, count) in &groups {
                object.number(group.as_str(), *count as f64);
            }
            object.end();
        }
        Reply::AllConfig(options) => {
            let mut object = Object::new(out);
            for (option, setting) in &options {
                match setting {
                    Setting::Chosen(value) => object.string(option, value),
                    Setting::Default(value) => match number::read(value.as_bytes()) {
                        Some(number) => object.number(option, number),
                        None => object.string(option, value),
                    },
                }
            }
            object.end();
        }
        Reply::Queues(queues) => {
            let write = |out: &mut Vec<u8>, queue: &geartrain_core::QueueCounts| {
                let mut object = Object::new(out);
                object.string("name", queue.name.as_str());
                object.number("waiting", queue.waiting as f64);
                object.number("stalled", queue.stalled as f64);
                object.number("running", queue.running as f64);
                object.number("scheduled", queue.scheduled as f64);
                object.number("depends", queue.depends as f64);
                object.number("recurring", queue.recurring as f64);
                object.bool("paused", queue.paused);
                object.end();
            };
            match queues.first() {
                Some(queue) if matches!(context.echo, Echo::One) => write(out, queue),
                _ => write_list(out, queues.iter(), write),
            }
        }
        Reply::Workers(workers) => write_list(out, workers.iter(), |out, worker| {
            let mut object = Object::new(out);
            object.string("name", worker.name.as_str());
            object.number("jobs", worker.jobs as f64);
            object.number("stalled", worker.stalled as f64);
            object.end();
        }),
        Reply::WorkerJobs(worker) => {
            let mut object = Object::new(out);
            write_jids(object.key("jobs"), &worker.jobs);
            write_jids(object.key("stalled"), &worker.stalled);
            object.end();
        }
        Reply::Stats(stats) => {
            let mut object = Object::new(out);
            write_summary(object.key("wait"), &stats.wait);
            write_summary(object.key("run"), &stats.run);
            object.number("retries", stats.retries as f64);
            object.number("failed", stats.failed as f64);
            object.number("failures", stats.failures as f64);
            object.end();
        }
        Reply::GetRecurring(Some(recurring)) => write_recurring(out, &recurring),
        // No other reply belongs to a Qless command.
        _ => out.extend_from_slice(b"{}"),
    }
    if out.len() > REPLY_BYTES_MAX { Err(TooLong) } else { Ok(()) }
}

/// A JSON object that is being written.
struct Object<'a> {
    out: &'a mut Vec<u8>,
    next: u8,
}

impl Object<'_> {
    fn new(out: &mut Vec<u8>) -> Object<'_> {
        Object { out, next: b'{' }
    }

    /// Writes a key; the value goes into the returned buffer.
    fn key(&mut self, key: &str) -> &mut Vec<u8> {
        self.out.push(self.next);
        self.next = b',';
        write_string(self.out, key.as_bytes());
        self.out.push(b':');
        self.out
    }

    fn string(&mut self, key: &str, value: &str) {
        write_string(self.key(key), value.as_bytes());
    }

    fn number(&mut self, key: &str, value: f64) {
        write_number(self.key(key), value);
    }

    fn bool(&mut self, key: &str, value: bool) {
        self.key(key).extend_from_slice(if value { b"true" } else { b"false" });
    }

    fn end(self) {
        if self.next == b'{' {
            self.out.push(b'{');
        }
        self.out.push(b'}');
    }
}

/// Writes a list; an empty one is `{}`, as Qless writes it.
fn write_list<T>(out: &mut Vec<u8>, entries: impl Iterator<Item = T>, write: impl Fn(&mut Vec<u8>, T)) {
    let mut next = b'[';
    for entry in entries {
        out.push(next);
        next = b',';
        write(out, entry);
    }
    out.extend_from_slice(if next == b'[' { b"{}" } else { b"]" });
}

fn write_jids(out: &mut Vec<u8>, jids: &[Jid]) {
    write_list(out, jids.iter(), |out, jid| jid.with_str(|text| write_string(out, text.as_bytes())));
}

fn write_tags(out: &mut Vec<u8>, tags: &[Tag]) {
    write_list(out, tags.iter(), |out, tag| write_string(out, tag.as_str().as_bytes()));
}

fn write_jobs<'a>(out: &mut Vec<u8>, jobs: impl Iterator<Item = &'a Job>) -> Result<(), TooLong> {
    let mut next = b'[';
    for job in jobs {
        out.push(next);
        next = b',';
        write_job(out, job);
        if out.len() > REPLY_BYTES_MAX {
            return Err(TooLong);
        }
    }
    out.extend_from_slice(if next == b'[' { b"{}" } else { b"]" });
    Ok(())
}

fn write_job(out: &mut Vec<u8>, job: &Job) {
    let mut object = Object::new(out);
    job.jid.with_str(|jid| object.string("jid", jid));
    object.string("klass", job.klass.as_str());
    object.string("state", job.qless.state);
    object.string("queue", job.queue.as_ref().map_or("", |queue| queue.as_str()));
    object.string("worker", name(job.qless.worker.as_ref()));
    object.bool("tracked", job.tracked);
    object.number("priority", job.priority.get());
    object.number("expires", job.qless.expires.get());
    object.number("retries", f64::from(job.retries));
    object.number("remaining", job.remaining as f64);
    write_data(object.key("data"), &job.payload);
    write_tags(object.key("tags"), &job.tags);
    // Earlier versions wrote these two, which Qless does not know.
    let is_known = |entry: &&HistoryEntry| {
        !matches!(entry.what, HistoryEvent::Released { .. } | HistoryEvent::Crashed { .. })
    };
    write_list(object.key("history"), job.history.iter().filter(is_known), write_history);
    write_failure(object.key("failure"), job.failure());
    match &job.spawned_from {
        Some(from) => from.with_str(|from| object.string("spawned_from_jid", from)),
        None => object.bool("spawned_from_jid", false),
    }
    write_jids(object.key("dependents"), &job.dependents);
    write_jids(object.key("dependencies"), job.dependencies());
    object.end();
}

fn write_recurring(out: &mut Vec<u8>, recurring: &Recurring) {
    let mut object = Object::new(out);
    recurring.jid.with_str(|jid| object.string("jid", jid));
    object.string("klass", recurring.klass.as_str());
    object.string("state", "recur");
    object.string("queue", recurring.queue.as_str());
    object.number("priority", recurring.priority.get());
    if let Every::Interval(interval) = &recurring.every {
        object.number("interval", interval.get());
    }
    object.number("retries", f64::from(recurring.retries));
    object.number("count", recurring.count as f64);
    write_data(object.key("data"), &recurring.payload);
    write_tags(object.key("tags"), &recurring.tags);
    object.number("backlog", f64::from(recurring.backlog));
    object.end();
}

/// A payload is JSON in a string. One that is not JSON comes from another API and is marked, so that a client
/// can tell it apart and send it back. JSON here is what a Qless client may send, which is more than strict
/// JSON: strings may contain any bytes.
fn write_data(out: &mut Vec<u8>, payload: &Payload) {
    let is_itself =
        json::check(payload.bytes()).is_ok() && json::only_field(payload.bytes(), super::BYTES).is_none();
    if is_itself {
        write_string(out, payload.bytes());
    } else {
        write_string(out, payload.to_json().as_bytes());
    }
}

fn write_failure(out: &mut Vec<u8>, failure: Option<&Failure>) {
    let mut object = Object::new(out);
    if let Some(failure) = failure {
        object.string("group", failure.group.as_str());
        object.string("message", &failure.message);
        object.number("when", failure.when.get());
        object.string("worker", name(failure.worker.as_ref()));
    }
    object.end();
}

fn write_history(out: &mut Vec<u8>, entry: &HistoryEntry) {
    let mut object = Object::new(out);
    let what = match &entry.what {
        HistoryEvent::Put { .. } => "put",
        HistoryEvent::Popped { .. } => "popped",
        HistoryEvent::Done => "done",
        HistoryEvent::Failed { .. } => "failed",
        HistoryEvent::TimedOut => "timed-out",
        HistoryEvent::Log { message, .. } => message,
        _ => "other",
    };
    object.string("what", what);
    object.number("when", entry.when.get());
    match &entry.what {
        HistoryEvent::Put { queue } => object.string("q", queue.as_str()),
        HistoryEvent::Popped { worker } => object.string("worker", worker.as_str()),
        HistoryEvent::Failed { worker, group } => {
            if let Some(worker) = worker {
                object.string("worker", worker.as_str());
            }
            object.string("group", group.as_str());
        }
        HistoryEvent::Log { data: Some(data), .. } => {
            let before = object.out.len();
            // A native client's log entry need not be an object, and is left out then.
            if json::write_fields(object.out, data.as_bytes(), &["what", "when"]).is_err() {
                object.out.truncate(before);
            }
        }
        _ => {}
    }
    object.end();
}

fn write_summary(out: &mut Vec<u8>, summary: &Summary) {
    let mut object = Object::new(out);
    object.number("count", summary.count as f64);
    object.number("mean", summary.mean);
    object.number("std", summary.std);
    write_list(object.key("histogram"), summary.histogram.iter(), |out, count| {
        write_number(out, *count as f64);
    });
    object.end();
}

fn name(worker: Option<&WorkerName>) -> &str {
    worker.map_or("", WorkerName::as_str)
}
