//! `FLUSHDB` and `KEYS` for test suites that start with an empty queue. Keys are composed of what ordinary
//! commands list, a page at a time.

use std::collections::BTreeSet;

use geartrain_core::{
    AllConfig, Backend, BackendError, Call, Command, Count, Failed, Failures, Flush, Group, Jid, Jobs,
    Listing, Page, QueueName, Queues, Refusal, Reply, Setting, Tracked, Workers,
};

use crate::glob::glob;

/// How many jobs are listed at once.
const PAGE: i64 = 1000;
/// How many items are removed at once: other commands wait meanwhile.
const FLUSHED: i64 = 10_000;
const KEYS_MAX: usize = 1_000_000;

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

/// Removes everything: afterwards the queue system is as new.
pub(crate) async fn flush(backend: &dyn Backend) -> Result<(), BackendError> {
    let count = Count::new(FLUSHED).unwrap_or(Count::ONE);
    while let Reply::Flush(true) = one(backend, Flush { count }).await? {}
    Ok(())
}

/// The reply to a command that only a server started with `--allow-flush` executes.
pub(crate) fn flush_refusal(command: &str) -> String {
    format!("ERR {command} is not allowed here: geartrain must be started so that it allows flushing")
}

async fn one(backend: &dyn Backend, command: impl Into<Command>) -> Result<Reply, BackendError> {
    let answer = backend.execute(vec![Call::from(command)]).await?.into_iter().next();
    let nothing = Refusal::BadArgument { what: "the backend".into(), why: "did not answer".to_owned() };
    Ok(answer.unwrap_or(Err(nothing))?)
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
