//! What a server answers ERROR to.

use bytes::BytesMut;

use super::report::ReportBody;
use super::{FUNCTION_BYTES_MAX, RESPONSE, kind};
use crate::writer::Writer;

/// Why a server answers ERROR. Its text is what the packet says; clients tell faults apart by the [code](Fault::code).
///
/// Decoding gives the first few; the rest are for whoever knows the jobs. A client that gets one from [`Response::decode`](super::Response::decode) does not speak to a Gearman server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A packet with the magic of the other direction.
    #[error("Request magic expected")]
    Magic,
    /// A type that is not sent in this direction, or that does not exist.
    #[error("Command not expected")]
    Type(u32),
    /// An argument whose NUL is missing.
    #[error("The packet ends before the end of its {0}")]
    Incomplete(&'static str),
    /// A unique ID, or a reducer's name, above its limit.
    #[error("Unique value too large")]
    UniqueTooLarge,
    /// A function's name that cannot be one.
    #[error("A function's name has 1 to {FUNCTION_BYTES_MAX} bytes and no NUL")]
    FunctionName,
    /// An argument that cannot be what it should be. This says what it should be.
    #[error("{0}")]
    Argument(&'static str),
    /// A packet above the limit. The connection ends.
    #[error("A packet has at most {bytes_max} bytes, not {bytes}")]
    PacketTooLarge {
        /// How many it announced.
        bytes: u32,
        /// How many are allowed.
        bytes_max: u32,
    },
    /// The queue's limit is reached.
    #[error("Job queue is full")]
    QueueFull,
    /// The job could not be kept, and why.
    #[error("{0}")]
    Storage(String),
    /// An option that does not exist.
    #[error("Server does not recognize given option")]
    UnknownOption,
    /// A status or an end of a job that the reporting worker never held.
    #[error("Job given in work result not found")]
    JobNotFound,
    /// Data or a warning of such a job.
    #[error("Job does not exist on server")]
    JobOfDataNotFound,
    /// An exception of such a job.
    #[error("An exception was received for a job that does not exist")]
    JobOfExceptionNotFound,
}

impl Fault {
    /// What is wrong with news of a job that is not the worker's. The words depend on the packet.
    pub fn job_not_found<B>(news: &ReportBody<B>) -> Fault {
        match news {
            ReportBody::Status { .. } | ReportBody::Complete(_) | ReportBody::Fail => Fault::JobNotFound,
            ReportBody::Data(_) | ReportBody::Warning(_) => Fault::JobOfDataNotFound,
            ReportBody::Exception(_) => Fault::JobOfExceptionNotFound,
        }
    }

    /// The word by which clients know it.
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

    /// Writes the ERROR packet.
    pub fn encode(&self, out: &mut BytesMut) {
        let written = Writer::begin(out, &[&RESPONSE, &kind::ERROR.to_be_bytes()]).number(self.code());
        // Only a text of 4 GiB could fail, and then nothing is written.
        let _ = written.display(self).finish();
    }
}
