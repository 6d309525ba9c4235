//! The URL of a result log.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::LogError;

/// The URL of a result log: `sqlite:FILE`. Other databases will get other schemes.
///
/// ```
/// use geartrain_results::LogTarget;
/// let target: LogTarget = "sqlite:./results.db".parse()?;
/// assert_eq!(target.to_string(), "sqlite:./results.db");
/// assert!("results.db".parse::<LogTarget>().is_err());
/// # Ok::<(), geartrain_results::LogError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogTarget {
    file: PathBuf,
}

impl LogTarget {
    /// The database file.
    pub fn file(&self) -> &Path {
        &self.file
    }
}

impl FromStr for LogTarget {
    type Err = LogError;
    fn from_str(url: &str) -> Result<LogTarget, LogError> {
        match url.strip_prefix("sqlite:") {
            Some(file) if !file.is_empty() && !file.starts_with("//") => Ok(LogTarget { file: file.into() }),
            _ => Err(LogError::Url { url: url.to_owned() }),
        }
    }
}

impl std::fmt::Display for LogTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "sqlite:{}", self.file.display())
    }
}
