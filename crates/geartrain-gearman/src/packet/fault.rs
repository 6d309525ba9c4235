//! Faults: the ERROR packets of a server.

use bytes::BytesMut;

use super::report::ReportBody;
use super::{FUNCTION_BYTES_MAX, RESPONSE, kind};
use crate::writer::Writer;

/// Why a server answers ERROR. Its `Display` is the packet's text; clients distinguish faults by their
/// [code](Fault::code).
///
/// Decoding returns the first few; the others come from executing requests. A client that gets one from
/// [`Response::decode`](super::Response::decode) is not connected to a Gearman server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A packet with the magic of the other direction.
    #[error("Request magic expected")]
    Magic,
    /// A type that does not exist or is not sent in this direction.
    #[error("Command not expected")]
    Type(u32),
    /// An argument without its NUL.
    #[error("The packet ends before the end of its {0}")]
    Incomplete(&'static str),
    /// A unique ID or a reducer name above its limit.
    #[error("Unique value too large")]
    UniqueTooLarge,
    /// An invalid function name.
    #[error("A function's name has 1 to {FUNCTION_BYTES_MAX} bytes and no NUL")]
    FunctionName,
    /// An invalid argument, with what it should be.
    #[error("{0}")]
    Argument(&'static str),
    /// A packet above the limit. The connection ends.
    #[error("A packet has at most {bytes_max} bytes, not {bytes}")]
    PacketTooLarge {
        /// The size that its header announced.
        bytes: u32,
        /// The limit.
        bytes_max: u32,
    },
    /// The queue's limit is reached.
    #[error("Job queue is full")]
    QueueFull,
    /// The job could not be stored, and why.
    #[error("{0}")]
    Storage(String),
    /// An unknown option.
    #[error("Server does not recognize given option")]
    UnknownOption,
    /// A status or an end of a job that the worker never held.
    #[error("Job given in work result not found")]
    JobNotFound,
    /// Data or a warning of a job that the worker never held.
    #[error("Job does not exist on server")]
    JobOfDataNotFound,
    /// An exception of a job that the worker never held.
    #[error("An exception was received for a job that does not exist")]
    JobOfExceptionNotFound,
}

impl Fault {
    /// The fault for a report on a job that the worker does not hold. Its text depends on the packet.
    pub fn job_not_found<B>(body: &ReportBody<B>) -> Fault {
        match body {
            ReportBody::Status { .. } | ReportBody::Complete(_) | ReportBody::Fail => Fault::JobNotFound,
            ReportBody::Data(_) | ReportBody::Warning(_) => Fault::JobOfDataNotFound,
            ReportBody::Exception(_) => Fault::JobOfExceptionNotFound,
        }
    }

    /// The code in the ERROR packet.
    pub fn code(&self) -> &'static str {
        match self {
            Fault::Magic => "INVALID_MAGIC",
            Fault::Type(_) => "INVALID_COMMAND",
            Fault::Incomplete(_) => "INVALID_PACKET",
            Fault::UniqueTooLarge | Fault::PacketTooLarge { .. } => "ARGUMENT_TOO_LARGE",
            Fault::FunctionName => "INVALID_FUNCTION_NAME",
            Fault::Argument(_) => "INVALID_ARGUMENT",
            Fault::QueueFull | Fault::Storage(_) => "QUEUE_ERROR",
            Fault::UnknownOption => "UNKNOWN_OPTION",
            Fault::JobNotFound | Fault::JobOfDataNotFound | Fault::JobOfExceptionNotFound => "JOB_NOT_FOUND",
        }
    }

    /// Appends the ERROR packet.
    pub fn encode(&self, out: &mut BytesMut) {
        let written = Writer::begin(out, &[&RESPONSE, &kind::ERROR.to_be_bytes()]).number(self.code());
        // Fails only for a text of 4 GiB, and then appends nothing.
        let _ = written.display(self).finish();
    }
}
