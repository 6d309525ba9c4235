//! Builders for names, times, operations and history entries.

use geartrain_core::*;

/// What a case's names always are.
const GOOD: &str = "a case's names are good ones";
const FINITE: &str = "a case's numbers are finite";

/// No jids, to compare with.
pub(crate) const NONE: [&str; 0] = [];

pub(crate) fn queue(name: impl AsRef<str>) -> QueueName {
    QueueName::of_function(name).expect(GOOD)
}

pub(crate) fn queues<N: AsRef<str>>(names: impl IntoIterator<Item = N>) -> Vec<QueueName> {
    names.into_iter().map(queue).collect()
}

pub(crate) fn worker(name: impl AsRef<str>) -> WorkerName {
    WorkerName::new(name).expect(GOOD)
}

pub(crate) fn jid(name: impl AsRef<str>) -> Jid {
    Jid::new(name).expect(GOOD)
}

pub(crate) fn jids<N: AsRef<str>>(names: impl IntoIterator<Item = N>) -> Vec<Jid> {
    names.into_iter().map(jid).collect()
}

pub(crate) fn klass(name: impl AsRef<str>) -> Klass {
    Klass::of_function(name).expect(GOOD)
}

pub(crate) fn group(name: impl AsRef<str>) -> Group {
    Group::new(name).expect(GOOD)
}

pub(crate) fn tags<N: AsRef<str>>(names: impl IntoIterator<Item = N>) -> Vec<Tag> {
    names.into_iter().map(|name| Tag::new(name).expect(GOOD)).collect()
}

pub(crate) fn moment(seconds: impl Into<f64>) -> Timestamp {
    Timestamp::new(seconds.into()).expect(FINITE)
}

pub(crate) fn seconds(seconds: impl Into<f64>) -> Seconds {
    Seconds::new(seconds.into()).expect(FINITE)
}

pub(crate) fn priority(value: impl Into<f64>) -> Priority {
    Priority::new(value.into()).expect(FINITE)
}

pub(crate) fn count(value: i64) -> Count {
    Count::new(value).expect("a case's counts are good ones")
}

pub(crate) fn page(offset: usize, shown: i64) -> Page {
    Page { offset, count: count(shown) }
}

/// Jids, tags or names as text, so that they can be compared with literals.
pub(crate) fn texts<T: ToString>(names: impl IntoIterator<Item = T>) -> Vec<String> {
    names.into_iter().map(|name| name.to_string()).collect()
}

pub(crate) fn held_by(name: &str) -> Holder {
    Holder::Worker(worker(name))
}

/// A put of a job that is not there yet.
pub(crate) fn put(to: &str, job: impl AsRef<str>) -> Put {
    Put::new(queue(to), jid(job), klass("k"), "{}")
}

/// A put of a job wherever it stands: Qless's put.
pub(crate) fn put_again(to: &str, job: impl AsRef<str>) -> Put {
    Put { existing: Existing::Replace, ..put(to, job) }
}

/// A put of a job that must be there: Qless's requeue.
pub(crate) fn requeue(to: &str, job: &str) -> Put {
    Put { existing: Existing::Require, ..put(to, job) }
}

pub(crate) fn pop(from: &str, by: &str) -> Pop {
    Pop::new(queue(from), worker(by))
}

pub(crate) fn pop_many(from: &str, by: &str, wanted: i64) -> Pop {
    Pop { count: count(wanted), ..pop(from, by) }
}

pub(crate) fn peek(at: &str, wanted: i64) -> Peek {
    Peek { queue: queue(at), count: count(wanted) }
}

pub(crate) fn heartbeat(job: &str, by: &str) -> Heartbeat {
    Heartbeat { jid: jid(job), holder: held_by(by), payload: None }
}

pub(crate) fn complete(job: &str, by: &str) -> Complete {
    Complete::new(jid(job), held_by(by))
}

/// Completes a job and sends it on.
pub(crate) fn advance(job: &str, by: &str, to: &str) -> Complete {
    Complete { next: Some(Next::new(queue(to))), ..complete(job, by) }
}

pub(crate) fn fail(job: &str, by: &str, kind: &str) -> Fail {
    Fail::new(jid(job), held_by(by), group(kind), "oops")
}

pub(crate) fn retry(job: &str, by: &str) -> Retry {
    Retry::new(jid(job), held_by(by))
}

pub(crate) fn timeout<N: AsRef<str>>(jobs: impl IntoIterator<Item = N>) -> Timeout {
    Timeout { jids: jids(jobs) }
}

pub(crate) fn cancel<N: AsRef<str>>(jobs: impl IntoIterator<Item = N>) -> Cancel {
    Cancel::new(jids(jobs))
}

pub(crate) fn unfail(to: &str, kind: &str, wanted: i64) -> Unfail {
    Unfail { queue: queue(to), group: group(kind), count: count(wanted) }
}

pub(crate) fn set_priority(job: &str, value: impl Into<f64>) -> SetPriority {
    SetPriority { jid: jid(job), priority: priority(value) }
}

fn depend(job: &str, change: DependChange) -> Depend {
    Depend { jid: jid(job), change, cycles: Cycles::Refuse }
}

pub(crate) fn depend_on<N: AsRef<str>>(job: &str, others: impl IntoIterator<Item = N>) -> Depend {
    depend(job, DependChange::On(jids(others)))
}

pub(crate) fn depend_off<N: AsRef<str>>(job: &str, others: impl IntoIterator<Item = N>) -> Depend {
    depend(job, DependChange::Off(jids(others)))
}

pub(crate) fn depend_off_all(job: &str) -> Depend {
    depend(job, DependChange::OffAll)
}

pub(crate) fn log(job: &str, message: impl Into<String>) -> Log {
    Log { jid: jid(job), message: message.into(), data: None }
}

pub(crate) fn track(job: &str) -> Track {
    Track { jid: jid(job), on: true }
}

pub(crate) fn untrack(job: &str) -> Track {
    Track { jid: jid(job), on: false }
}

pub(crate) fn add_tags<N: AsRef<str>>(job: &str, names: impl IntoIterator<Item = N>) -> AddTags {
    AddTags { jid: jid(job), tags: tags(names) }
}

pub(crate) fn remove_tags<N: AsRef<str>>(job: &str, names: impl IntoIterator<Item = N>) -> RemoveTags {
    RemoveTags { jid: jid(job), tags: tags(names) }
}

pub(crate) fn tagged(name: &str) -> Tagged {
    Tagged { tag: Tag::new(name).expect(GOOD), page: Page::default() }
}

pub(crate) fn failed(kind: &str) -> Failed {
    Failed { group: group(kind), page: Page::default() }
}

pub(crate) fn pause(name: &str) -> Pause {
    Pause { queues: vec![queue(name)] }
}

pub(crate) fn resume(name: &str) -> Resume {
    Resume { queues: vec![queue(name)] }
}

pub(crate) fn set(option: impl Into<String>, value: impl Into<String>) -> SetConfig {
    SetConfig::new(option, value)
}

/// As Qless's `config.set`, which takes any name and any value.
pub(crate) fn set_any(option: impl Into<String>, value: impl Into<String>) -> SetConfig {
    SetConfig { any: true, ..SetConfig::new(option, value) }
}

pub(crate) fn unset(option: &str) -> UnsetConfig {
    UnsetConfig { option: option.into() }
}

/// A recurring job that spawns its first child at once.
pub(crate) fn recur(to: &str, job: &str, interval: impl Into<f64>) -> Recur {
    Recur::new(queue(to), jid(job), klass("k"), "{}", seconds(interval))
}

pub(crate) fn recurring(job: &str) -> GetRecurring {
    GetRecurring { jid: jid(job) }
}

/// A put with options.
pub(crate) fn on_terms(job: Put, terms: PutOptions) -> Put {
    Put { options: Some(Box::new(terms)), ..job }
}

pub(crate) fn key(text: &str) -> UniqueKey {
    UniqueKey::new(text).expect(GOOD)
}

/// A put with a unique key.
pub(crate) fn unique(to: &str, job: &str, text: &str) -> Put {
    on_terms(put(to, job), PutOptions { unique: Some(key(text)), ..PutOptions::default() })
}

/// A waiter of result stream 1.
pub(crate) fn waiter(number: u64) -> ResultWaiter {
    ResultWaiter { stream_id: 1, connection: 1, number }
}

/// A put with a waiter.
pub(crate) fn awaited(to: &str, job: &str, by: u64) -> Put {
    on_terms(put(to, job), PutOptions { attach: Some(waiter(by)), ..PutOptions::default() })
}

/// A put of a job that lives only while it has a waiter.
pub(crate) fn fleeting(to: &str, job: &str, by: u64) -> Put {
    let terms = PutOptions {
        attach: Some(waiter(by)),
        orphan_policy: OrphanPolicy::WhileAwaited,
        ..PutOptions::default()
    };
    on_terms(put(to, job), terms)
}

pub(crate) fn attach(job: &str, by: u64) -> Attach {
    Attach { jid: jid(job), waiter: waiter(by) }
}

/// Detaches one waiter of result stream 1.
pub(crate) fn leave(who: u64) -> Detach {
    Detach { scope: DetachScope::One(waiter(who)) }
}

/// Who popped a job, by token.
pub(crate) fn holding(popped: &Popped) -> Holder {
    Holder::Token(popped.lock.token)
}

pub(crate) fn outcome(code: i32, bytes: &str) -> JobResult {
    JobResult { code, bytes: bytes.into() }
}

/// Completes a job with a result.
pub(crate) fn complete_with(job: &str, by: &str, code: i32, bytes: &str) -> Complete {
    Complete { result: Some(Box::new(outcome(code, bytes))), ..complete(job, by) }
}

/// Fails a job with a result.
pub(crate) fn fail_with(job: &str, by: &str, code: i32, bytes: &str) -> Fail {
    Fail { result: Some(Box::new(outcome(code, bytes))), ..fail(job, by, "g") }
}

pub(crate) fn portion(part: u64, whole: u64) -> Progressed {
    let portion = Portion::new(part, whole).expect("a case's portions are good ones");
    Progressed { portion, seconds_left: None }
}

pub(crate) fn progress(job: &str, holder: Holder, part: u64, whole: u64) -> Progress {
    Progress::new(jid(job), holder, portion(part, whole))
}

pub(crate) fn chunk(job: &str, holder: Holder, bytes: &str) -> Chunk {
    Chunk { jid: jid(job), holder, kind: ChunkKind::Data, bytes: bytes.into() }
}

pub(crate) fn hand_back(job: &str, by: &str) -> Release {
    Release::new(jid(job), held_by(by))
}

/// A lost worker, without evidence.
pub(crate) fn gone(by: &str) -> WorkerLost {
    WorkerLost { worker: worker(by), evidence: None }
}

pub(crate) fn ability(at: &str, kind: Option<&str>) -> Capability {
    Capability { queue: queue(at), klass: kind.map(klass), attempt_max: None }
}

pub(crate) fn announce(by: &str, change: AnnounceChange) -> Announce {
    Announce { worker: worker(by), change }
}

/// A worker can do one more thing.
pub(crate) fn can(by: &str, at: &str, kind: Option<&str>) -> Announce {
    announce(by, AnnounceChange::Can(vec![ability(at, kind)]))
}

pub(crate) fn limit(name: &str, limits: QueueLimits) -> SetLimits {
    SetLimits { queue: queue(name), limits }
}

pub(crate) fn rate(count: u32, per: impl Into<f64>, burst: u32) -> QueueLimits {
    let rate = Rate::new(count, seconds(per), burst).expect("a case's rates are good ones");
    QueueLimits { rate: Some(rate), ..QueueLimits::default() }
}

pub(crate) fn status(job: &str) -> Status {
    Status { of: StatusOf::Jid(jid(job)) }
}

/// One entry of a job's history.
pub(crate) fn entry(when: impl Into<f64>, what: HistoryEvent) -> HistoryEntry {
    HistoryEntry { when: moment(when), what }
}

pub(crate) fn was_put(to: &str) -> HistoryEvent {
    HistoryEvent::Put { queue: queue(to) }
}

pub(crate) fn was_popped(by: &str) -> HistoryEvent {
    HistoryEvent::Popped { worker: worker(by) }
}

pub(crate) fn had_failed(by: Option<&str>, kind: &str) -> HistoryEvent {
    HistoryEvent::Failed { worker: by.map(worker), group: group(kind) }
}

pub(crate) fn was_logged(message: impl Into<String>) -> HistoryEvent {
    HistoryEvent::Log { message: message.into(), data: None }
}

/// The refusals that come up everywhere.
pub(crate) mod no {
    use super::*;

    pub(crate) fn such_job(job: &str) -> Refusal {
        Refusal::NoSuchJob { jid: jid(job) }
    }

    pub(crate) fn such_recurring(job: &str) -> Refusal {
        Refusal::NoSuchRecurring { jid: jid(job) }
    }

    /// The job is not running, and both vocabularies agree on where it stands.
    pub(crate) fn running(job: &str, state: StateName) -> Refusal {
        Refusal::NotRunning { jid: jid(job), state, qless: state.as_str() }
    }

    pub(crate) fn not_held_by(by: &str, job: &str, holder: &str) -> Refusal {
        Refusal::HeldByAnother { jid: jid(job), worker: worker(by), holder: worker(holder) }
    }

    pub(crate) fn lock(job: &str, state: StateName) -> Refusal {
        Refusal::LockLost { jid: jid(job), state }
    }

    pub(crate) fn not_in(given: &str, job: &str, actual: &str) -> Refusal {
        Refusal::WrongQueue { jid: jid(job), queue: queue(actual), given: queue(given) }
    }

    pub(crate) fn not_blocked(job: &str, state: StateName) -> Refusal {
        Refusal::NotInDepends { jid: jid(job), state, qless: state.as_str() }
    }

    pub(crate) fn needed_by(job: &str, dependent: &str) -> Refusal {
        Refusal::IsDependency { jid: jid(job), dependent: jid(dependent) }
    }

    pub(crate) fn cycle(job: &str, through: &str) -> Refusal {
        Refusal::Cycle { jid: jid(job), through: jid(through) }
    }

    pub(crate) fn room(at: &str, jobs: u64, max: u64) -> Refusal {
        Refusal::QueueFull { queue: queue(at), jobs, max }
    }

    pub(crate) fn body_can(at: &str, kind: &str) -> Refusal {
        Refusal::NoCapableWorker { queue: queue(at), klass: klass(kind) }
    }

    /// A bad argument; only what it is about is compared.
    pub(crate) fn good(what: &'static str) -> Refusal {
        Refusal::BadArgument { what: what.into(), why: String::new() }
    }
}

/// Deliveries to result stream 1.
pub(crate) mod told {
    use super::*;

    pub(crate) fn chunk(by: u64, job: &str, bytes: &str) -> StreamMessage {
        StreamMessage {
            waiter: waiter(by),
            jid: jid(job),
            item: StreamItem::Chunk(ChunkKind::Data, bytes.into()),
        }
    }

    pub(crate) fn progress(by: u64, job: &str, part: u64, whole: u64) -> StreamMessage {
        StreamMessage {
            waiter: waiter(by),
            jid: jid(job),
            item: StreamItem::Progress { progress: portion(part, whole), text: None },
        }
    }

    pub(crate) fn ended(by: u64, job: &str, how: JobEnding, code: i32, bytes: &str) -> StreamMessage {
        StreamMessage {
            waiter: waiter(by),
            jid: jid(job),
            item: StreamItem::Ended(how, outcome(code, bytes)),
        }
    }

    pub(crate) fn completed(by: u64, job: &str) -> StreamMessage {
        ended(by, job, JobEnding::Completed, 0, "")
    }

    pub(crate) fn failed(by: u64, job: &str, kind: &str, message: &str) -> StreamMessage {
        ended(by, job, JobEnding::Failed { group: group(kind), message: message.into() }, 1, "")
    }

    pub(crate) fn canceled(by: u64, job: &str) -> StreamMessage {
        ended(by, job, JobEnding::Canceled, 1, "")
    }
}

/// Events.
pub(crate) mod heard {
    use super::*;

    pub(crate) fn put(job: &str, to: &str) -> Event {
        Event::Put { jid: jid(job), queue: queue(to) }
    }

    pub(crate) fn popped(job: &str, from: &str, by: &str) -> Event {
        Event::Popped { jid: jid(job), queue: queue(from), worker: worker(by) }
    }

    pub(crate) fn completed(job: &str, at: &str) -> Event {
        Event::Completed { jid: jid(job), queue: queue(at) }
    }

    pub(crate) fn advanced(job: &str, from: &str, to: &str) -> Event {
        Event::Advanced { jid: jid(job), queue: queue(from), to: queue(to) }
    }

    pub(crate) fn retried(job: &str, to: &str) -> Event {
        Event::Retried { jid: jid(job), queue: queue(to) }
    }

    pub(crate) fn failed(job: &str, at: &str, last: &str, kind: &str, message: &str, by: FailedBy) -> Event {
        Event::Failed {
            jid: jid(job),
            queue: queue(at),
            worker: Some(worker(last)),
            group: group(kind),
            message: message.into(),
            by,
        }
    }

    pub(crate) fn canceled(job: &str, at: &str, holder: Option<&str>) -> Event {
        Event::Canceled { jid: jid(job), was: Some((queue(at), holder.map(worker))) }
    }

    pub(crate) fn lock_lost(job: &str, by: &str) -> Event {
        Event::LockLost { jid: jid(job), worker: worker(by) }
    }

    pub(crate) fn handed_back(job: &str, at: &str, by: &str, crashed: bool) -> Event {
        Event::Released { jid: jid(job), queue: queue(at), worker: worker(by), crashed }
    }

    pub(crate) fn worker_gone(by: &str) -> Event {
        Event::WorkerLost { worker: worker(by) }
    }

    pub(crate) fn coalesced(job: &str, at: &str, submissions: u64) -> Event {
        Event::Coalesced { jid: jid(job), queue: queue(at), submissions }
    }

    pub(crate) fn abandoned(job: &str, at: &str) -> Event {
        Event::Abandoned { jid: jid(job), queue: queue(at) }
    }

    pub(crate) fn passed(job: &str, what: Milestone) -> Event {
        Event::Milestone { jid: jid(job), what }
    }
}
