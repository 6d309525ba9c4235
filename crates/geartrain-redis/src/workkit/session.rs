//! The Redis of the schedules: commands and scripts, and which schedules there are.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use geartrain_core::{QueueName, Refusal, Timestamp};
use parking_lot::Mutex;
use redis::{Cmd, FromRedisValue, cmd};

use super::keys::{Keys, NEXT, OWN, SCHEDULES};
use super::url::Options;
use crate::connection::ConnectionError;
use crate::driver::Shared;
use crate::layout::{self, CallError, Script, bad_argument};

/// The backend's name in refusals.
pub(super) const NAME: &str = "workkit";

/// A key of another type belongs to something else.
fn refused_if_wrong_type(error: ConnectionError) -> CallError {
    if layout::is_wrong_type(&error) {
        bad_argument("queue", "is not a WorkKit schedule: the Redis has a key of another type").into()
    } else {
        error.into()
    }
}

/// The refusal for what WorkKit has no notion of.
pub(super) fn unsupported(operation: &'static str) -> Refusal {
    layout::unsupported(NAME, operation)
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
        layout::ask(&self.shared, command).await.map_err(refused_if_wrong_type)
    }

    /// Runs a script, which replies with a number.
    pub(super) async fn run(
        &self,
        script: &Script,
        keys: &[&str],
        arguments: &[&str],
    ) -> Result<i64, CallError> {
        layout::run(&self.shared, script, keys, arguments).await.map_err(refused_if_wrong_type)
    }

    /// Runs a script, which replies with a number for each job.
    pub(super) async fn run_each(
        &self,
        script: &Script,
        keys: &[&str],
        arguments: &[&str],
    ) -> Result<Vec<i64>, CallError> {
        layout::run(&self.shared, script, keys, arguments).await.map_err(refused_if_wrong_type)
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
        let pattern = format!("*{NEXT}");
        let keys = layout::keys_like(&self.shared, &pattern, "zset").await.map_err(refused_if_wrong_type)?;
        for key in keys {
            let name = std::str::from_utf8(&key).ok().and_then(|key| key.strip_suffix(NEXT));
            let Some(name) = name.filter(|name| !name.starts_with(OWN)) else { continue };
            // Other programs have keys of such names too.
            let kind: String = self.ask(cmd("TYPE").arg(Keys::of(name).jobs)).await?;
            if kind == "hash" {
                found.extend(QueueName::new(name).ok());
            }
        }
        Ok(found)
    }
}
