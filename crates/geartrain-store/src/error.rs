//! Why the store cannot answer: shared by all callers that it concerns.

use std::sync::Arc;

use crate::wal::{WalError, is_full};

/// Why the store cannot answer.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum StoreError {
    #[error("its thread has ended: it was shut down, or it panicked and printed why")]
    Stopped,
    #[error("{0}")]
    Wal(Arc<WalError>),
    #[error("{0}")]
    Io(Arc<std::io::Error>),
}

impl StoreError {
    /// Whether the disk was full, so that nothing was changed.
    pub(crate) fn is_full(&self) -> bool {
        match self {
            StoreError::Wal(error) => matches!(**error, WalError::Full),
            StoreError::Io(error) => is_full(error),
            StoreError::Stopped => false,
        }
    }
}

impl From<std::io::Error> for StoreError {
    fn from(error: std::io::Error) -> StoreError {
        StoreError::Io(Arc::new(error))
    }
}

impl From<WalError> for StoreError {
    fn from(error: WalError) -> StoreError {
        StoreError::Wal(Arc::new(error))
    }
}
