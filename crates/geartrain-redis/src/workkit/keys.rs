//! The keys of a schedule: WorkKit's two, and our own, which other listeners do not look at.

/// The set of the schedules that this kind of backend has used.
pub(super) const SCHEDULES: &str = "geartrain:wk:schedules";

/// How the names of all sets with the entries of a schedule end.
pub(super) const NEXT: &str = ":next";

/// What our own keys begin with.
pub(super) const OWN: &str = "geartrain:wk:";

/// The keys of one schedule.
pub(super) struct Keys {
    /// Hash: a job's id to its payload.
    pub(super) jobs: String,
    /// Sorted set: a job's entry by the time of its next run in milliseconds.
    pub(super) next: String,
    /// Sorted set: an attempt by the time at which its lease expires.
    pub(super) inflight: String,
    /// Hash: an attempt to its record.
    pub(super) owner: String,
    /// Hash: a job's id to its retries and how many were used.
    pub(super) retry: String,
    /// Hash: a job's id to the reason why it does not run.
    pub(super) dead: String,
    /// Hash: the id of a job that is set aside to its record and payload.
    pub(super) moving: String,
}

impl Keys {
    pub(super) fn of(schedule: &str) -> Keys {
        let own = |name: &str| format!("{OWN}{schedule}:{name}");
        Keys {
            jobs: format!("{schedule}:jobs"),
            next: format!("{schedule}{NEXT}"),
            inflight: own("inflight"),
            owner: own("owner"),
            retry: own("retry"),
            dead: own("dead"),
            moving: own("moving"),
        }
    }
}

/// The entry of a job, to the byte: sorted sets compare bytes.
pub(super) fn entry_of(id: &str) -> String {
    format!(r#"{{"id":"{id}"}}"#)
}

/// The id in an entry, however it is spelled.
pub(super) fn id_in(entry: &str) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Entry {
        id: String,
    }
    // serde reads a struct from an array too.
    let object = entry.trim_start().starts_with('{').then_some(entry)?;
    serde_json::from_str::<Entry>(object).ok().map(|entry| entry.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read_however_they_are_spelled() {
        assert_eq!(id_in(&entry_of("ab")).as_deref(), Some("ab"));
        assert_eq!(id_in(r#"{ "v": 2, "id": "ab" }"#).as_deref(), Some("ab"));
        for bad in ["", "ab", "{}", r#"{"id":7}"#, r#"["id"]"#] {
            assert_eq!(id_in(bad), None, "{bad}");
        }
    }
}
