//! The keys of a function: those of the protocol, and our own, which peers do not touch.

use geartrain_core::{Jid, QueueName, Refusal};

use crate::layout::bad_argument;

/// What our own keys begin with.
const OWN: &str = "geartrain:gm:";

/// The queues of a function in the order in which they are served.
pub(super) const QUEUES: [&str; 4] = ["scheduled", "high", "normal", "low"];

/// The keys of one function.
pub(super) struct Keys {
    /// As the scripts take them: scheduled, high, normal, low, leases, inflight, cancel, count, workers, uid,
    /// moving, transfers.
    pub(super) all: [String; 12],
    /// Begins the key of each job.
    pub(super) job: String,
    /// Begins the key of the list that wakes the creator of each job.
    pub(super) lock: String,
    pub(super) channel: String,
}

impl Keys {
    pub(super) fn of(function: &str) -> Keys {
        let queue = |name: &str| format!("queue:{function}:{name}");
        let own = |name: &str| format!("{OWN}{function}:{name}");
        let [scheduled, high, normal, low] = QUEUES.map(queue);
        let [leases, inflight, cancel, workers] = ["leases", "inflight", "cancel", "workers"].map(own);
        let [moving, transfers] = ["moving", "transfers"].map(own);
        let (count, uid) = (format!("count:{function}"), format!("uid:{function}"));
        Keys {
            all: [
                scheduled, high, normal, low, leases, inflight, cancel, count, workers, uid, moving,
                transfers,
            ],
            job: format!("job:{function}:"),
            lock: format!("lock:{function}:"),
            channel: channel_of(function),
        }
    }

    pub(super) fn scheduled(&self) -> &str {
        &self.all[0]
    }

    /// The lists, high, normal and low.
    pub(super) fn lists(&self) -> &[String] {
        &self.all[1..4]
    }

    pub(super) fn leases(&self) -> &str {
        &self.all[4]
    }

    pub(super) fn inflight(&self) -> &str {
        &self.all[5]
    }

    pub(super) fn count(&self) -> &str {
        &self.all[7]
    }

    pub(super) fn workers(&self) -> &str {
        &self.all[8]
    }

    pub(super) fn moving(&self) -> &str {
        &self.all[10]
    }

    pub(super) fn transfers(&self) -> &str {
        &self.all[11]
    }

    pub(super) fn job_of(&self, id: &str) -> String {
        format!("{}{id}", self.job)
    }
}

pub(super) fn channel_of(function: &str) -> String {
    format!("channel:{function}")
}

/// A job's function and its ID, which is unique within the function only.
#[derive(Debug, Clone)]
pub(super) struct JobName {
    pub(super) function: QueueName,
    pub(super) id: String,
}

impl JobName {
    /// Cuts a jid at its last colon: functions may have colons.
    pub(super) fn of(jid: &Jid) -> Result<JobName, Refusal> {
        let text = jid.to_string();
        let parse = || {
            let (function, id) = text.rsplit_once(':')?;
            Some(JobName { function: QueueName::new(function).ok()?, id: valid_id(id)?.to_owned() })
        };
        let why = || format!("must be FUNCTION:NUMBER, as in resize:7, not {text}");
        parse().ok_or_else(|| bad_argument("jid", why()))
    }

    pub(super) fn jid(&self) -> Jid {
        jid_of(&self.function, &self.id).expect("it was a jid")
    }
}

/// An ID: a positive number without padding.
pub(super) fn valid_id(id: &str) -> Option<&str> {
    let is_it = id.len() <= 19 && id.bytes().all(|byte| byte.is_ascii_digit()) && !id.starts_with('0');
    (is_it && !id.is_empty()).then_some(id)
}

pub(super) fn jid_of(function: &QueueName, id: &str) -> Option<Jid> {
    Jid::new(format!("{function}:{id}")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jid_is_cut_at_its_last_colon() {
        let name = JobName::of(&Jid::new("a:b:12").expect("it is a jid")).expect("it names a job");
        assert_eq!((name.function.as_str(), &*name.id), ("a:b", "12"));
        for bad in ["a", "a:", ":1", "a:01", "a:-1", "a:1x", "a:12345678901234567890"] {
            let refused = JobName::of(&Jid::new(bad).expect("it is a jid")).expect_err(bad);
            assert_eq!(
                refused.to_string(),
                format!("jid must be FUNCTION:NUMBER, as in resize:7, not {bad}")
            );
        }
    }
}
