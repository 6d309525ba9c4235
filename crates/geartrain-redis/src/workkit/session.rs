//! The Redis of the schedules: commands and scripts, and which schedules there are.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use geartrain_core::{BackendError, QueueName, Refusal, Timestamp};
use parking_lot::Mutex;
use redis::{Cmd, FromRedisValue, cmd};

use super::keys::{Keys, NEXT, OWN, SCHEDULES};
use super::script::Script;
use super::url::Options;
use crate::connection::ConnectionError;
use crate::driver::Shared;

/// The backend's name in refusals.
pub(super) const NAME: &str = "workkit";

/// Keys that one SCAN looks at.
const SCAN_COUNT: usize = 1_000;

/// Why a command failed: refused, or no reply.
#[derive(Debug)]
pub(super) enum CallError {
    Refused(Refusal),
    Connection(ConnectionError),
}

impl From<Refusal> for CallError {
    fn from(refusal: Refusal) -> CallError {
        CallError::Refused(refusal)
    }
}

impl From<ConnectionError> for CallError {
    fn from(error: ConnectionError) -> CallError {
        CallError::Connection(error)
    }
}

impl From<CallError> for BackendError {
    fn from(error: CallError) -> BackendError {
        match error {
            CallError::Refused(refusal) => refusal.into(),
            CallError::Connection(error) => broken(error),
        }
    }
}

pub(super) fn broken(error: ConnectionError) -> BackendError {
    BackendError::Broken { backend: NAME, source: Box::new(error) }
}

/// A key of another type belongs to something else: no retry changes that.
fn refused_if_wrong_type(error: ConnectionError) -> CallError {
    match &error {
        // Older versions name the error of a script differently.
        ConnectionError::Redis(redis) if redis.to_string().contains("WRONGTYPE") => {
            let why = "is not a WorkKit schedule: the Redis has a key of another type".to_owned();
            CallError::Refused(Refusal::BadArgument { what: "queue".into(), why })
        }
        _ => CallError::Connection(error),
    }
}

/// The refusal for what WorkKit has no notion of.
pub(super) fn unsupported(operation: &'static str) -> Refusal {
    Refusal::Unsupported { operation: operation.into(), backend: NAME.into() }
}

/// What all calls share.
pub(super) struct Session {
    pub(super) shared: Arc<Shared>,
    pub(super) options: Options,
    /// Schedules that this process has used.
    used: Mutex<BTreeSet<QueueName>>,
    /// When each schedule was last searched for jobs without an entry, and which there were.
    pub(super) orphans: Mutex<HashMap<QueueName, (Timestamp, BTreeSet<String>)>>,
}

impl Session {
    pub(super) fn new(shared: Arc<Shared>, options: Options) -> Session {
        Session { shared, options, used: Mutex::default(), orphans: Mutex::default() }
    }

    pub(super) async fn ask<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, CallError> {
        let value = self.shared.command(command).await.map_err(refused_if_wrong_type)?;
        let unexpected =
            |_| ConnectionError::InvalidReply("expected another kind of value from this command");
        Ok(redis::from_redis_value(value).map_err(unexpected)?)
    }

    /// Runs a script, which replies with a number. Loads it first if the Redis does not have it.
    pub(super) async fn run(
        &self,
        script: &Script,
        keys: &[&str],
        arguments: &[&str],
    ) -> Result<i64, CallError> {
        let call =
            |verb: &str, text: &str| cmd(verb).arg(text).arg(keys.len()).arg(keys).arg(arguments).take();
        match self.ask(&call("EVALSHA", script.sha())).await {
            Err(CallError::Connection(ConnectionError::Redis(error))) if error.code() == Some("NOSCRIPT") => {
                self.ask(&call("EVAL", script.text)).await
            }
            reply => reply,
        }
    }

    /// Checks that the URL allows a schedule, and remembers that it is used.
    pub(super) fn enter(&self, schedule: &QueueName) -> Result<(), Refusal> {
        match &self.options.schedule {
            Some(only) if only != schedule => Err(Refusal::BadArgument {
                what: "queue".into(),
                why: format!("must be {only}, the schedule of the URL, not {schedule}"),
            }),
            Some(_) => Ok(()),
            None => {
                let mut used = self.used.lock();
                if !used.contains(schedule) {
                    used.insert(schedule.clone());
                }
                Ok(())
            }
        }
    }

    /// The schedules that this process has used.
    pub(super) fn used(&self) -> BTreeSet<QueueName> {
        match &self.options.schedule {
            Some(only) => [only.clone()].into(),
            None => self.used.lock().clone(),
        }
    }

    /// The schedules that are known without a search of all keys.
    pub(super) async fn known(&self) -> Result<BTreeSet<QueueName>, CallError> {
        if let Some(only) = &self.options.schedule {
            return Ok([only.clone()].into());
        }
        let registered: Vec<String> = self.ask(cmd("SMEMBERS").arg(SCHEDULES)).await?;
        let mut known = self.used();
        known.extend(registered.iter().filter_map(|name| QueueName::new(name).ok()));
        Ok(known)
    }

    /// All schedules, by a search of all keys unless the URL names one.
    pub(super) async fn schedules(&self) -> Result<BTreeSet<QueueName>, CallError> {
        let mut found = self.known().await?;
        if self.options.schedule.is_some() {
            return Ok(found);
        }
        let mut cursor = "0".to_owned();
        loop {
            let mut scan = cmd("SCAN");
            scan.arg(&cursor).arg("MATCH").arg(format!("*{NEXT}")).arg("COUNT").arg(SCAN_COUNT);
            let (next, keys): (String, Vec<Vec<u8>>) = self.ask(scan.arg("TYPE").arg("zset")).await?;
            for key in keys {
                let name = std::str::from_utf8(&key).ok().and_then(|key| key.strip_suffix(NEXT));
                let Some(name) = name.filter(|name| !name.starts_with(OWN)) else { continue };
                // Other programs have keys of such names too.
                let kind: String = self.ask(cmd("TYPE").arg(Keys::of(name).jobs)).await?;
                if kind == "hash" {
                    found.extend(QueueName::new(name).ok());
                }
            }
            cursor = next;
            if cursor == "0" {
                return Ok(found);
            }
        }
    }
}
