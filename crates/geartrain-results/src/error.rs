//! Why a log cannot be used.

use rusqlite::ErrorCode;

/// Why a log cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The URL names no log.
    #[error("{url:?} is not a result log: name a file, as in sqlite:./results.db")]
    Url {
        /// The URL.
        url: String,
    },
    /// There is no such file.
    #[error("there is no result log {file}: a server makes one with --result-log sqlite:{file}")]
    Missing {
        /// Which.
        file: String,
    },
    /// The file holds something else.
    #[error("{file} is not a result log, and was left alone: name another file")]
    NotALog {
        /// Which.
        file: String,
    },
    /// A later version of this program made it.
    #[error(
        "the result log {file} has version {version}, and this program knows versions up to {known}: use a newer geartrain"
    )]
    Newer {
        /// Which.
        file: String,
        /// Its version.
        version: i64,
        /// The last version that this program knows.
        known: i64,
    },
    /// Another program is writing there.
    #[error("another program has locked the result log {file}: try again when it is done")]
    Busy {
        /// Which.
        file: String,
    },
    /// Another server writes this log.
    #[error("another server writes the result log {file}: stop it, or name another file")]
    InUse {
        /// Which.
        file: String,
    },
    /// It waits for the database, and there is no more room to wait in.
    #[error("{file} is full: it holds {bytes} bytes that wait for the result log")]
    Full {
        /// Which.
        file: String,
        /// How many.
        bytes: u64,
    },
    /// What should wait for the database cannot be written down.
    #[error("what should wait in {file} for the result log cannot be written down")]
    Packing {
        /// Which.
        file: String,
        /// Why.
        #[source]
        source: rmp_serde::encode::Error,
    },
    /// What waits for the database cannot be read.
    #[error("what waits in {file} for the result log cannot be read")]
    Damaged {
        /// Which.
        file: String,
        /// Why.
        #[source]
        source: rmp_serde::decode::Error,
    },
    /// The database does not do what it is asked.
    #[error("the result log {file} cannot be used")]
    Broken {
        /// Which.
        file: String,
        /// Why.
        #[source]
        source: rusqlite::Error,
    },
}

impl LogError {
    /// What an error of the database means for a file.
    pub(crate) fn of(file: &str) -> impl Fn(rusqlite::Error) -> LogError + '_ {
        move |source| {
            let file = file.to_owned();
            match source.sqlite_error_code() {
                Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => LogError::Busy { file },
                Some(ErrorCode::NotADatabase) => LogError::NotALog { file },
                _ => LogError::Broken { file, source },
            }
        }
    }
}
