//! What can go wrong between this program and a server.

use geartrain_core::{BackendError, Refusal};

/// What this backend is called where it says no.
pub(crate) const NAME: &str = "gearman";

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Trouble {
    /// Nobody answers there.
    #[error("cannot reach the Gearman server at {server}: {why}")]
    Unreachable { server: String, why: String },
    /// The connection ended. Whether what was sent was done is not known.
    #[error("the connection to the Gearman server at {server} was lost: {why}")]
    Lost { server: String, why: String },
    /// It says nothing.
    #[error("the Gearman server at {server} did not answer within {seconds} seconds")]
    Silent { server: String, seconds: u64 },
    /// What it says is not Gearman.
    #[error("what came from {server} is not what a Gearman server says: {what}")]
    Nonsense { server: String, what: String },
    /// It said no.
    #[error("the Gearman server at {server} refused: {said}")]
    Refused { server: String, said: String },
    /// What was put cannot be written down, so it was not sent.
    #[error("the record of what was put, {file}, cannot be used: {why}")]
    Record { file: String, why: String },
    /// The backend is being dropped.
    #[error("the connection to the Gearman servers was given up")]
    Gone,
}

impl Trouble {
    /// Whether it may be over when the same is tried again.
    pub(crate) fn passes(&self) -> bool {
        match self {
            Trouble::Unreachable { .. } | Trouble::Lost { .. } | Trouble::Silent { .. } => true,
            Trouble::Nonsense { .. } | Trouble::Refused { .. } | Trouble::Record { .. } | Trouble::Gone => {
                false
            }
        }
    }
}

impl From<Trouble> for BackendError {
    fn from(trouble: Trouble) -> BackendError {
        BackendError::Broken { backend: NAME, source: Box::new(trouble) }
    }
}

/// Why a command was not done: the answer is no, or there is none.
#[derive(Debug)]
pub(crate) enum Undone {
    Refused(Refusal),
    Trouble(Trouble),
}

impl From<Refusal> for Undone {
    fn from(refusal: Refusal) -> Undone {
        Undone::Refused(refusal)
    }
}

impl From<Trouble> for Undone {
    fn from(trouble: Trouble) -> Undone {
        Undone::Trouble(trouble)
    }
}

/// What Gearman has no notion of is refused, and never done by halves.
pub(crate) fn unsupported(operation: &'static str) -> Undone {
    Refusal::Unsupported { operation: operation.into(), backend: NAME.into() }.into()
}
