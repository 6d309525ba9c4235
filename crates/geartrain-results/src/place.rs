//! Where a log is.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::LogError;

/// Where a log is: `sqlite:FILE`. Other databases will be other schemes.
///
/// ```
/// use geartrain_results::LogPlace;
/// let place: LogPlace = "sqlite:./results.db".parse()?;
/// assert_eq!(place.to_string(), "sqlite:./results.db");
/// assert!("results.db".parse::<LogPlace>().is_err());
/// # Ok::<(), geartrain_results::LogError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogPlace {
    file: PathBuf,
}

impl LogPlace {
    /// The file.
    pub fn file(&self) -> &Path {
        &self.file
    }
}

impl FromStr for LogPlace {
    type Err = LogError;
    fn from_str(url: &str) -> Result<LogPlace, LogError> {
        match url.strip_prefix("sqlite:") {
            Some(file) if !file.is_empty() && !file.starts_with("//") => Ok(LogPlace { file: file.into() }),
            _ => Err(LogError::Url { url: url.to_owned() }),
        }
    }
}

impl std::fmt::Display for LogPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "sqlite:{}", self.file.display())
    }
}
