//! `FLUSHDB` and `KEYS` for test suites that start with an empty queue.
//!
//! A backend has no such operation, because a queue in use never needs it. It is composed of ordinary
//! commands, a page at a time. What no command lists stays: statistics, results, capabilities, and the jobs
//! of queues that are not on the list of queues.

use std::collections::BTreeSet;

use geartrain_core::{
    AllConfig, Answer, Backend, BackendError, Cancel, Command, Count, Cycles, Depend, DependChange, Existing,
    Failed, Failures, ForgetQueues, ForgetWorkers, Group, Jid, Jobs, Klass, Listing, Page, Put, QueueName,
    Queues, Refusal, Reply, Resume, Setting, Track, Tracked, Unrecur, UnsetConfig, Workers,
};

use crate::glob::glob;

/// How many jobs are handled at once.
const PAGE: i64 = 1000;
const KEYS_MAX: usize = 1_000_000;
/// The queue for jobs that can only be cancelled while they are in a queue.
const SCRATCH: &str = "geartrain-flush";

type Listings = fn(QueueName) -> Listing;

const LISTINGS: [(Listings, &str); 5] = [
    (Listing::Running, "locks"),
    (Listing::Stalled, "locks"),
    (Listing::Scheduled, "scheduled"),
    (Listing::Depends, "depends"),
    // Last, because listing scheduled jobs moves those that are due to the waiting ones.
    (Listing::Waiting, "work"),
];

/// How many jobs are in queues, plus recurring jobs; without completed and failed ones.
pub(crate) async fn count(backend: &dyn Backend) -> Result<u64, BackendError> {
    let Reply::Queues(queues) = one(backend, Queues { queue: None }).await? else { return Ok(0) };
    let each = queues.iter().map(|queue| {
        queue.waiting + queue.running + queue.stalled + queue.scheduled + queue.depends + queue.recurring
    });
    Ok(each.sum())
}

/// The keys that Qless would have for these jobs, as far as they can be listed.
pub(crate) async fn keys(backend: &dyn Backend, pattern: &[u8]) -> Result<Vec<String>, BackendError> {
    let mut keys = BTreeSet::new();
    let queues = queues(backend).await?;
    if !queues.is_empty() {
        keys.insert("ql:queues".to_owned());
    }
    for queue in &queues {
        for (listing, key) in LISTINGS {
            let jids = list(backend, listing(queue.clone())).await?;
            if !jids.is_empty() {
                keys.insert(format!("ql:q:{queue}-{key}"));
            }
            add(&mut keys, "ql:j:", jids)?;
        }
        let recurring = list(backend, Listing::Recurring(queue.clone())).await?;
        if !recurring.is_empty() {
            keys.insert(format!("ql:q:{queue}-recur"));
        }
        add(&mut keys, "ql:r:", recurring)?;
    }
    let complete = list(backend, Listing::Complete).await?;
    if !complete.is_empty() {
        keys.insert("ql:completed".to_owned());
    }
    add(&mut keys, "ql:j:", complete)?;
    for group in groups(backend).await? {
        keys.insert("ql:failures".to_owned());
        keys.insert(format!("ql:f:{group}"));
        add(&mut keys, "ql:j:", list_failed(backend, &group).await?)?;
    }
    if let Reply::Workers(workers) = one(backend, Workers).await?
        && !workers.is_empty()
    {
        keys.insert("ql:workers".to_owned());
    }
    if !options(backend).await?.is_empty() {
        keys.insert("ql:config".to_owned());
    }
    if let Reply::Tracked(tracked) = one(backend, Tracked).await?
        && !(tracked.jobs.is_empty() && tracked.expired.is_empty())
    {
        keys.insert("ql:tracked".to_owned());
    }
    Ok(keys.into_iter().filter(|key| glob(pattern, key.as_bytes())).collect())
}

fn add(keys: &mut BTreeSet<String>, prefix: &str, jids: Vec<Jid>) -> Result<(), BackendError> {
    keys.extend(jids.into_iter().map(|jid| format!("{prefix}{jid}")));
    if keys.len() > KEYS_MAX {
        let why = format!("would be more than {KEYS_MAX}, which is too many for one reply");
        return Err(Refusal::BadArgument { what: "keys".into(), why }.into());
    }
    Ok(())
}

/// Removes everything that can be listed.
pub(crate) async fn flush(backend: &dyn Backend) -> Result<(), BackendError> {
    forget_tracked(backend).await?;
    let queues = queues(backend).await?;
    for queue in &queues {
        // A job with dependents cannot be cancelled, so dependencies go first.
        each_page(backend, Listing::Depends(queue.clone()), |jids| {
            let released = jids
                .into_iter()
                .map(|jid| Depend { jid, change: DependChange::OffAll, cycles: Cycles::Accept }.into());
            released.collect()
        })
        .await?;
        each_page(backend, Listing::Recurring(queue.clone()), |jids| {
            jids.into_iter().map(|jid| Unrecur { jid }.into()).collect()
        })
        .await?;
    }
    for queue in &queues {
        for (listing, _) in LISTINGS {
            each_page(backend, listing(queue.clone()), |jids| vec![Cancel { jids }.into()]).await?;
        }
    }
    for group in groups(backend).await? {
        loop {
            let jids = list_failed(backend, &group).await?;
            if jids.is_empty() || count_refused(&run(backend, vec![Cancel { jids }.into()]).await?) > 0 {
                break;
            }
        }
    }
    // A completed job cannot be cancelled, so it is put into a queue first.
    each_page(backend, Listing::Complete, |jids| {
        let mut commands: Vec<Command> = jids.iter().cloned().filter_map(again).collect();
        commands.push(Cancel { jids }.into());
        commands
    })
    .await?;
    let mut last: Vec<Command> =
        options(backend).await?.into_iter().map(|option| UnsetConfig { option }.into()).collect();
    if let Reply::Workers(workers) = one(backend, Workers).await?
        && !workers.is_empty()
    {
        last.push(ForgetWorkers { workers: workers.into_iter().map(|worker| worker.name).collect() }.into());
    }
    let queues: Vec<QueueName> = queues.into_iter().chain(QueueName::new(SCRATCH)).collect();
    last.push(Resume { queues: queues.clone() }.into());
    last.push(ForgetQueues { queues }.into());
    run(backend, last).await.map(drop)
}

/// Puts a job into a queue, whatever its state.
fn again(jid: Jid) -> Option<Command> {
    let (queue, klass) = (QueueName::new(SCRATCH).ok()?, Klass::new(SCRATCH).ok()?);
    Some(Put { existing: Existing::Replace, ..Put::new(queue, jid, klass, "{}") }.into())
}

/// Untracks everything. Only an existing job can be untracked, so missing ones are created for a moment.
async fn forget_tracked(backend: &dyn Backend) -> Result<(), BackendError> {
    let Reply::Tracked(tracked) = one(backend, Tracked).await? else { return Ok(()) };
    let there = tracked.jobs.into_iter().map(|job| Track { jid: job.jid, on: false }.into());
    let gone = tracked.expired.into_iter().flat_map(|jid| {
        let forget = Track { jid: jid.clone(), on: false };
        again(jid.clone()).into_iter().chain([forget.into(), Cancel { jids: vec![jid] }.into()])
    });
    run(backend, there.chain(gone).collect()).await.map(drop)
}

async fn run(backend: &dyn Backend, commands: Vec<Command>) -> Result<Vec<Answer>, BackendError> {
    backend.execute(commands.into_iter().map(Into::into).collect()).await
}

async fn one(backend: &dyn Backend, command: impl Into<Command>) -> Result<Reply, BackendError> {
    let answer = run(backend, vec![command.into()]).await?.into_iter().next();
    let nothing = Refusal::BadArgument { what: "the backend".into(), why: "did not answer".to_owned() };
    Ok(answer.unwrap_or(Err(nothing))?)
}

fn count_refused(answers: &[Answer]) -> usize {
    answers.iter().filter(|answer| answer.is_err()).count()
}

/// Handles the first page of a list until the list is empty or a command is refused.
async fn each_page(
    backend: &dyn Backend,
    listing: Listing,
    commands: impl Fn(Vec<Jid>) -> Vec<Command>,
) -> Result<(), BackendError> {
    loop {
        let jids = page(backend, &listing, 0).await?;
        if jids.is_empty() || count_refused(&run(backend, commands(jids)).await?) > 0 {
            return Ok(());
        }
    }
}

async fn page(backend: &dyn Backend, listing: &Listing, offset: usize) -> Result<Vec<Jid>, BackendError> {
    let page = Page { offset, count: Count::new(PAGE).unwrap_or(Count::ONE) };
    match one(backend, Jobs { which: listing.clone(), page }).await? {
        Reply::Jobs(jids) => Ok(jids),
        _ => Ok(Vec::new()),
    }
}

async fn list(backend: &dyn Backend, listing: Listing) -> Result<Vec<Jid>, BackendError> {
    let mut all = Vec::new();
    loop {
        let jids = page(backend, &listing, all.len()).await?;
        if jids.is_empty() || all.len() > KEYS_MAX {
            return Ok(all);
        }
        all.extend(jids);
    }
}

async fn queues(backend: &dyn Backend) -> Result<Vec<QueueName>, BackendError> {
    match one(backend, Queues { queue: None }).await? {
        Reply::Queues(queues) => Ok(queues.into_iter().map(|queue| queue.name).collect()),
        _ => Ok(Vec::new()),
    }
}

async fn groups(backend: &dyn Backend) -> Result<Vec<Group>, BackendError> {
    match one(backend, Failures).await? {
        Reply::Failures(groups) => Ok(groups.into_keys().collect()),
        _ => Ok(Vec::new()),
    }
}

async fn list_failed(backend: &dyn Backend, group: &Group) -> Result<Vec<Jid>, BackendError> {
    let page = Page { offset: 0, count: Count::MAX };
    match one(backend, Failed { group: group.clone(), page }).await? {
        Reply::Failed(listed) => Ok(listed.jids),
        _ => Ok(Vec::new()),
    }
}

/// Options that differ from their defaults.
async fn options(backend: &dyn Backend) -> Result<Vec<String>, BackendError> {
    match one(backend, AllConfig).await? {
        Reply::AllConfig(options) => {
            let chosen = options.into_iter().filter(|(_, setting)| matches!(setting, Setting::Chosen(_)));
            Ok(chosen.map(|(option, _)| option).collect())
        }
        _ => Ok(Vec::new()),
    }
}
