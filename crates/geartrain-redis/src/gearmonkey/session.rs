//! The Redis of the functions: commands and scripts, with errors that name the key that is wrong.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use geartrain_core::{Klass, QueueName, Refusal, Seconds, Timestamp, WorkerName};
use parking_lot::Mutex;
use redis::{Cmd, FromRedisValue, cmd};

use super::keys::Keys;
use super::streams::Streams;
use super::url::Options;
use crate::connection::ConnectionError;
use crate::driver::Shared;
use crate::layout::{self, CallError, Notices, Script, bad_argument};

/// The backend's name in refusals.
pub(super) const NAME: &str = "gearmonkey";

/// The refusal for what GearMonkey has no notion of.
pub(super) fn unsupported(operation: &'static str) -> Refusal {
    layout::unsupported(NAME, operation)
}

/// What all calls share.
#[derive(Clone)]
pub(super) struct Session {
    pub(super) shared: Arc<Shared>,
    pub(super) options: Options,
    /// Events of the functions that calls wait for.
    pub(super) notices: Arc<Notices>,
    /// Events of all functions. Over a connection of its own, because a message to a channel and to a pattern
    /// comes twice.
    pub(super) events: Arc<Notices>,
    pub(super) streams: Arc<Streams>,
    /// Workers of this process, with the functions that they serve.
    pub(super) registered: Arc<Mutex<HashMap<WorkerName, BTreeSet<QueueName>>>>,
}

impl Session {
    pub(super) fn new(shared: Arc<Shared>, options: Options) -> Session {
        Session {
            notices: Arc::new(Notices::new(shared.clone())),
            events: Arc::new(Notices::new(shared.clone())),
            shared,
            options,
            streams: Arc::default(),
            registered: Arc::default(),
        }
    }

    /// Sends a command about a key.
    pub(super) async fn ask<T: FromRedisValue>(&self, key: &str, command: &Cmd) -> Result<T, CallError> {
        layout::ask(&self.shared, command).await.map_err(|error| {
            if layout::is_wrong_type(&error) {
                bad_key(key, "has another type: it belongs to something else").into()
            } else {
                error.into()
            }
        })
    }

    /// Runs a script with the keys of a function.
    pub(super) async fn run<T: FromRedisValue>(
        &self,
        script: &Script,
        keys: &Keys,
        arguments: &[&[u8]],
    ) -> Result<T, CallError> {
        let all: Vec<&str> = keys.all.iter().map(String::as_str).collect();
        let mut given = vec![keys.job.as_bytes(), keys.lock.as_bytes(), keys.channel.as_bytes()];
        given.extend(arguments);
        layout::run(&self.shared, script, &all, given).await.map_err(refused_if_bad_key)
    }

    /// All functions with a job, ever, or with a worker. By a search of all keys.
    pub(super) async fn functions(&self) -> Result<BTreeSet<QueueName>, CallError> {
        let mut found = BTreeSet::new();
        for begins in ["uid:", "count:"] {
            for key in layout::keys_like(&self.shared, &format!("{begins}*"), "string").await? {
                let name = std::str::from_utf8(&key).ok().and_then(|key| key.strip_prefix(begins));
                found.extend(name.and_then(|name| QueueName::new(name).ok()));
            }
        }
        Ok(found)
    }

    /// How many workers are registered; 0 if the counter is missing, negative or no integer, as for all clients.
    pub(super) async fn registered_workers(&self, function: &QueueName) -> Result<u64, CallError> {
        let keys = Keys::of(function.as_str());
        let count: Option<Vec<u8>> = self.ask(keys.count(), cmd("GET").arg(keys.count())).await?;
        let count = count.and_then(|count| std::str::from_utf8(&count).ok()?.parse::<i64>().ok());
        Ok(count.and_then(|count| u64::try_from(count).ok()).unwrap_or_default())
    }
}

fn bad_key(key: &str, why: &str) -> Refusal {
    Refusal::BadArgument { what: format!("key {key}").into(), why: why.to_owned() }
}

/// The refusal that a script replies about a key which it cannot use.
fn refused_if_bad_key(error: ConnectionError) -> CallError {
    if let ConnectionError::Redis(redis) = &error
        && redis.code() == Some("BADKEY")
        && let Some((key, why)) = redis.detail().and_then(|detail| detail.split_once('\t'))
    {
        // Redis appends where in the script it happened.
        return bad_key(key, why.split(" script: ").next().unwrap_or(why)).into();
    }
    error.into()
}

/// Refuses a queue whose jobs would have no jid.
pub(super) fn check_name(queue: &QueueName) -> Result<(), Refusal> {
    match super::keys::jid_of(queue, &i64::MAX.to_string()) {
        Some(_) => Ok(()),
        None => Err(bad_argument("queue", "is too long: a jid is the queue, a colon and a number")),
    }
}

/// Refuses a klass other than the queue's: the function is all that a job has.
pub(super) fn check_klass(klass: &Klass, queue: &QueueName) -> Result<(), Refusal> {
    if klass.as_str() == queue.as_str() {
        return Ok(());
    }
    let why = format!("must be {queue}, as the queue is: to GearMonkey a job's function is all there is");
    Err(bad_argument("klass", why))
}

pub(super) fn milliseconds(time: Timestamp) -> String {
    format!("{:.0}", (time.get() * 1_000.0).floor())
}

/// Whole seconds, rounded down: what is due.
pub(super) fn whole_seconds(time: Timestamp) -> String {
    format!("{:.0}", time.get().floor())
}

/// The second in which a job becomes due, rounded up and never negative, or empty without a delay.
pub(super) fn due(now: Timestamp, delay: Seconds) -> String {
    if delay > Seconds::ZERO { format!("{:.0}", (now + delay).get().ceil().max(0.0)) } else { String::new() }
}

pub(super) fn from_milliseconds(milliseconds: f64) -> Timestamp {
    Timestamp::new(milliseconds / 1_000.0).unwrap_or_default()
}
