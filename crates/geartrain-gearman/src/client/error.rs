//! What can go wrong between this program and a server.

use geartrain_core::{BackendError, Refusal};

/// What this backend is called where it says no.
pub(crate) const NAME: &str = "gearman";

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ServerError {
    /// Nobody answers there.
    #[error("cannot reach the Gearman server at {server}: {why}")]
    Unreachable { server: String, why: String },
    /// The connection ended. Whether what was sent was done is not known.
    #[error("the connection to the Gearman server at {server} was lost: {why}")]
    Lost { server: String, why: String },
    /// It says nothing.
    #[error("the Gearman server at {server} did not answer within {seconds} seconds")]
    Timeout { server: String, seconds: u64 },
    /// What it says is not Gearman.
    #[error("what came from {server} is not what a Gearman server says: {what}")]
    Protocol { server: String, what: String },
    /// It said no.
    #[error("the Gearman server at {server} refused: {said}")]
    Refused { server: String, said: String },
    /// What was put cannot be written down, so it was not sent.
    #[error("the record of what was put, {file}, cannot be used: {why}")]
    Record { file: String, why: String },
    /// The backend is being dropped.
    #[error("the connection to the Gearman servers was given up")]
    ShutDown,
}

impl ServerError {
    /// Whether it may be over when the same is tried again.
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
    fn from(trouble: ServerError) -> BackendError {
        BackendError::Broken { backend: NAME, source: Box::new(trouble) }
    }
}

/// Why a command was not done: the answer is no, or there is none.
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
    fn from(trouble: ServerError) -> ClientError {
        ClientError::Failed(trouble)
    }
}

/// What Gearman has no notion of is refused, and never done by halves.
pub(crate) fn unsupported(operation: &'static str) -> ClientError {
    Refusal::Unsupported { operation: operation.into(), backend: NAME.into() }.into()
}
