//! Errors as JSON: a stable code, a sentence, and what to do.

use geartrain_core::{BackendError, BadInput, BadName, Refusal};
use serde::Serialize;

/// Why an operation was not done. Nothing changed, unless the code is `unavailable`, or `unreadable`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize)]
#[error("{message}")]
pub struct OperationError {
    /// A stable word: [`Refusal::code`], or what is wrong with the JSON.
    pub code: &'static str,
    /// What is wrong, in a sentence.
    pub message: String,
    /// What to do, if the message does not say it.
    pub help: Option<String>,
}

impl OperationError {
    /// An error whose message says what to do.
    pub fn new(code: &'static str, message: impl Into<String>) -> OperationError {
        OperationError { code, message: message.into(), help: None }
    }

    /// A value that a field cannot have.
    pub fn bad_argument(message: impl Into<String>) -> OperationError {
        OperationError::new("bad-argument", message)
    }

    /// The error as a document: `{"error": {"code", "message", "help"}}`.
    pub fn document(&self) -> String {
        serde_json::json!({ "error": self }).to_string()
    }
}

impl From<Refusal> for OperationError {
    fn from(refusal: Refusal) -> OperationError {
        OperationError {
            code: refusal.code(),
            message: refusal.to_string(),
            help: help(&refusal).map(str::to_owned),
        }
    }
}

impl From<BackendError> for OperationError {
    fn from(error: BackendError) -> OperationError {
        match error {
            BackendError::Refused(refusal) => refusal.into(),
            // The cause may name addresses and paths, and is for the log of the server.
            other => OperationError {
                help: Some("it is not known whether the operation was done: look, or repeat it".to_owned()),
                ..OperationError::new(other.code(), "the queue cannot answer")
            },
        }
    }
}

impl From<BadInput> for OperationError {
    fn from(error: BadInput) -> OperationError {
        OperationError::bad_argument(error.to_string())
    }
}

impl From<BadName> for OperationError {
    fn from(error: BadName) -> OperationError {
        OperationError::bad_argument(error.to_string())
    }
}

/// What to do about a refusal whose text does not say it.
pub fn help(refusal: &Refusal) -> Option<&'static str> {
    Some(match refusal {
        Refusal::NoSuchJob { .. } => "list the jobs to see which exist",
        Refusal::NoSuchRecurring { .. } => "list the recurring jobs to see which exist",
        Refusal::NotRunning { .. } => "a worker must pop it first",
        Refusal::HeldByAnother { .. } => "send the token or the worker that it was popped with",
        Refusal::LockLost { .. } => "stop working on it, this attempt is over",
        Refusal::NotInDepends { .. } => "only a job that was put with dependencies can gain or lose some",
        Refusal::Cycle { .. } => "leave out that dependency",
        Refusal::TooManyDependencies { .. } => "use fewer dependencies",
        Refusal::CursorTooOld { .. } => "begin with the oldest event, or without a position",
        Refusal::CursorAhead { .. } => "send a position that was received",
        Refusal::TooLarge { what, .. } if what == "payload" => {
            "store the data in a file or a database, and submit its location"
        }
        _ => return None,
    })
}
