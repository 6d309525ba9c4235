//! The environment of a launched program: the facts of its job, and nothing of the worker's own settings.

use std::ffi::{OsStr, OsString};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use geartrain_core::Tag;
use geartrain_worker::Context;

/// The environment of a launched program. It begins with that of the worker, without its `GEARTRAIN_*`
/// variables, which may hold passwords.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    variables: Vec<(&'static str, OsString)>,
}

/// Tells the processes of one launch from all others.
const MARKER: &str = "LAUNCHED_BY_GEARTRAIN";

impl Environment {
    /// An environment without facts about a job.
    pub fn new() -> Environment {
        use std::sync::atomic::{AtomicU64, Ordering};
        static LAUNCHES: AtomicU64 = AtomicU64::new(0);
        let number = LAUNCHES.fetch_add(1, Ordering::Relaxed);
        Environment::default().with(MARKER, format!("{}-{number}", std::process::id()))
    }

    /// The facts about an attempt at a job.
    pub fn of_job(context: &Context, tags: &[Tag]) -> Environment {
        let job = context.job();
        let mut environment = Environment::new()
            .with("GEARTRAIN_JOB_JID", context.jid().to_string())
            .with("GEARTRAIN_JOB_QUEUE", context.queue().as_str())
            .with("GEARTRAIN_JOB_KLASS", context.klass().as_str())
            .with("GEARTRAIN_JOB_ATTEMPT", context.attempt().to_string())
            .with("GEARTRAIN_JOB_PRIORITY", job.priority.to_string())
            .with("GEARTRAIN_JOB_TAGS", tags_json(tags))
            .with("GEARTRAIN_JOB_WORKER", context.worker().as_str())
            .with("GEARTRAIN_JOB_TOKEN", job.lock.token.to_string());
        if let Some(deadline) = context.deadline() {
            environment = environment.with("GEARTRAIN_JOB_DEADLINE", unix_seconds(deadline).to_string());
        }
        if let Some(traceparent) = context.traceparent() {
            environment = environment.with("GEARTRAIN_JOB_TRACEPARENT", traceparent);
        }
        environment
    }

    /// Adds a variable.
    pub fn with(mut self, name: &'static str, value: impl Into<OsString>) -> Environment {
        self.variables.push((name, value.into()));
        self
    }

    pub(crate) fn apply(&self, command: &mut tokio::process::Command) {
        command.env_clear().envs(std::env::vars_os().filter(|(name, _)| is_inherited(name)));
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
    }

    /// The variable that only the processes of this launch have.
    pub(crate) fn marker(&self) -> Vec<u8> {
        let marker = self.variables.iter().find(|(name, _)| *name == MARKER);
        let value = marker.map(|(_, value)| value.as_encoded_bytes()).unwrap_or_default();
        [MARKER.as_bytes(), b"=", value].concat()
    }
}

fn is_inherited(name: &OsStr) -> bool {
    !name.as_encoded_bytes().starts_with(b"GEARTRAIN_")
}

/// A JSON array, because a tag may contain any separator.
fn tags_json(tags: &[Tag]) -> String {
    let tags: Vec<&str> = tags.iter().map(Tag::as_str).collect();
    serde_json::to_string(&tags).expect("strings are JSON")
}

/// Whole seconds since 1970, rounded down, so that shells can compute with it.
fn unix_seconds(deadline: Instant) -> u64 {
    let left = deadline.saturating_duration_since(Instant::now());
    (SystemTime::now() + left).duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_a_json_array() {
        let tags = ["a,b", "c \"d\""].map(|tag| Tag::new(tag).unwrap());
        assert_eq!(tags_json(&tags), r#"["a,b","c \"d\""]"#);
        assert_eq!(tags_json(&[]), "[]");
    }

    #[test]
    fn settings_of_geartrain_are_not_inherited() {
        assert!(!is_inherited("GEARTRAIN_PASSWORD".as_ref()));
        assert!(!is_inherited("GEARTRAIN_URL".as_ref()));
        assert!(is_inherited("PATH".as_ref()));
    }
}
