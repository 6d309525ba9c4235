//! Why the store cannot answer, told to everyone whom it concerns.

use std::sync::Arc;

use crate::log::{LogError, is_full};

/// Why the store cannot answer.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum Trouble {
    #[error("its thread has ended: it was shut down, or it panicked and said why")]
    Gone,
    #[error("{0}")]
    Log(Arc<LogError>),
    #[error("{0}")]
    File(Arc<std::io::Error>),
}

impl Trouble {
    /// Whether there was no room, so that nothing was changed.
    pub(crate) fn is_full(&self) -> bool {
        match self {
            Trouble::Log(error) => matches!(**error, LogError::Full),
            Trouble::File(error) => is_full(error),
            Trouble::Gone => false,
        }
    }
}

impl From<std::io::Error> for Trouble {
    fn from(error: std::io::Error) -> Trouble {
        Trouble::File(Arc::new(error))
    }
}

impl From<LogError> for Trouble {
    fn from(error: LogError) -> Trouble {
        Trouble::Log(Arc::new(error))
    }
}
