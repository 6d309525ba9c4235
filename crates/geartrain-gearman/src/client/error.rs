//! Errors of the client.

use geartrain_core::{BackendError, Refusal};

/// The backend's name in refusals.
pub(crate) const NAME: &str = "gearman";

/// Why a server gave no reply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ServerError {
    #[error("cannot reach the Gearman server at {server}: {why}")]
    Unreachable { server: String, why: String },
    /// The connection ended. Whether the request was executed is unknown.
    #[error("the connection to the Gearman server at {server} was lost: {why}")]
    Lost { server: String, why: String },
    #[error("the Gearman server at {server} did not answer within {seconds} seconds")]
    Timeout { server: String, seconds: u64 },
    #[error("unexpected data from the Gearman server at {server}: {detail}")]
    Protocol { server: String, detail: String },
    #[error("the Gearman server at {server} refused: {text}")]
    Refused { server: String, text: String },
    /// The record cannot be written, so the job was not sent.
    #[error("the record of what was put, {file}, cannot be used: {why}")]
    Record { file: String, why: String },
    /// The backend is being dropped.
    #[error("the Gearman backend is shut down")]
    ShutDown,
}

impl ServerError {
    /// Whether a retry may succeed.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            ServerError::Unreachable { .. } | ServerError::Lost { .. } | ServerError::Timeout { .. } => true,
            ServerError::Protocol { .. }
            | ServerError::Refused { .. }
            | ServerError::Record { .. }
            | ServerError::ShutDown => false,
        }
    }
}

impl From<ServerError> for BackendError {
    fn from(error: ServerError) -> BackendError {
        BackendError::Broken { backend: NAME, source: Box::new(error) }
    }
}

/// Why a command failed: refused, or no reply.
#[derive(Debug)]
pub(crate) enum ClientError {
    Refused(Refusal),
    Failed(ServerError),
}

impl From<Refusal> for ClientError {
    fn from(refusal: Refusal) -> ClientError {
        ClientError::Refused(refusal)
    }
}

impl From<ServerError> for ClientError {
    fn from(error: ServerError) -> ClientError {
        ClientError::Failed(error)
    }
}

/// The refusal for what Gearman cannot do. Nothing is done by halves.
pub(crate) fn unsupported(operation: &'static str) -> ClientError {
    Refusal::Unsupported { operation: operation.into(), backend: NAME.into() }.into()
}
