//! Errors of the result log.

use rusqlite::ErrorCode;

/// Why a result log cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// Not the URL of a result log.
    #[error("{url:?} is not a result log: name a file, as in sqlite:./results.db")]
    Url {
        /// The URL as given.
        url: String,
    },
    /// There is no such file.
    #[error("there is no result log {file}: a server creates one with --result-log sqlite:{file}")]
    Missing {
        /// The file.
        file: String,
    },
    /// The file is something else.
    #[error("{file} is not a result log, and was not changed: name another file")]
    NotALog {
        /// The file.
        file: String,
    },
    /// A later version of geartrain wrote it.
    #[error(
        "the result log {file} has version {version}, but this geartrain reads versions up to {known}: use a newer one"
    )]
    Newer {
        /// The file.
        file: String,
        /// Its version.
        version: i64,
        /// The latest version that this program reads.
        known: i64,
    },
    /// Another process has locked it for too long.
    #[error("another process has locked the result log {file}: try again later")]
    Busy {
        /// The file.
        file: String,
    },
    /// Another server writes this log.
    #[error("another server writes the result log {file}: stop it, or name another file")]
    InUse {
        /// The file.
        file: String,
    },
    /// The spool has reached its limit.
    #[error("the spool {file} is full: {bytes} bytes wait for the database of the result log")]
    Full {
        /// The file.
        file: String,
        /// Bytes in the spool.
        bytes: u64,
    },
    /// A batch cannot be encoded for the spool.
    #[error("cannot encode a batch for the spool {file} of the result log")]
    Packing {
        /// The file.
        file: String,
        /// What failed.
        #[source]
        source: rmp_serde::encode::Error,
    },
    /// A batch in the spool cannot be decoded.
    #[error("cannot decode a batch in the spool {file} of the result log")]
    Damaged {
        /// The file.
        file: String,
        /// What failed.
        #[source]
        source: rmp_serde::decode::Error,
    },
    /// SQLite reports an error.
    #[error("cannot use the result log {file}")]
    Broken {
        /// The file.
        file: String,
        /// What failed.
        #[source]
        source: rusqlite::Error,
    },
}

impl LogError {
    /// Maps an error of SQLite, for this file.
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
