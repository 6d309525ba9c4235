//! Reports on a job (the WORK_* packets): sent by the worker to the server, and by the server to the clients.

use bytes::{Bytes, BytesMut};

use super::arguments::{leading_u32, terminated_or_all};
use super::kind;
use crate::writer::{EncodeError, Writer};

/// A report on a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report<B = Bytes> {
    /// The job's handle.
    pub handle: B,
    /// The packet type and its arguments.
    pub body: ReportBody<B>,
}

/// The content of a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReportBody<B = Bytes> {
    /// WORK_DATA: a part of the result.
    Data(B),
    /// WORK_WARNING.
    Warning(B),
    /// WORK_STATUS: progress. The numbers are kept as text, because clients receive them unchanged;
    /// [`ReportBody::progress`] parses them.
    Status {
        /// Units done.
        numerator: B,
        /// Units in total.
        denominator: B,
    },
    /// WORK_COMPLETE: the job has ended with this result.
    Complete(B),
    /// WORK_FAIL: the job has failed.
    Fail,
    /// WORK_EXCEPTION: the job has failed with this reason.
    Exception(B),
}

impl<B> ReportBody<B> {
    /// Whether this is the last report of a job.
    pub fn is_final(&self) -> bool {
        match self {
            ReportBody::Complete(_) | ReportBody::Fail | ReportBody::Exception(_) => true,
            ReportBody::Data(_) | ReportBody::Warning(_) | ReportBody::Status { .. } => false,
        }
    }

    fn kind(&self) -> u32 {
        match self {
            ReportBody::Data(_) => kind::WORK_DATA,
            ReportBody::Warning(_) => kind::WORK_WARNING,
            ReportBody::Status { .. } => kind::WORK_STATUS,
            ReportBody::Complete(_) => kind::WORK_COMPLETE,
            ReportBody::Fail => kind::WORK_FAIL,
            ReportBody::Exception(_) => kind::WORK_EXCEPTION,
        }
    }
}

impl<B: AsRef<[u8]>> ReportBody<B> {
    /// Numerator and denominator of a status, parsed as leniently as every server does: anything that is not
    /// a number is 0.
    pub fn progress(&self) -> Option<(u32, u32)> {
        match self {
            ReportBody::Status { numerator, denominator } => {
                Some((leading_u32(numerator.as_ref()), leading_u32(denominator.as_ref())))
            }
            ReportBody::Data(_)
            | ReportBody::Warning(_)
            | ReportBody::Complete(_)
            | ReportBody::Fail
            | ReportBody::Exception(_) => None,
        }
    }
}

impl Report {
    /// Decodes the six report packets. A missing NUL means that no argument follows: some workers leave it
    /// out, and refusing their reports would leave jobs unfinished.
    pub(crate) fn decode(kind: u32, mut data: Bytes) -> Option<Report> {
        let handle = terminated_or_all(&mut data);
        let body = match kind {
            kind::WORK_DATA => ReportBody::Data(data),
            kind::WORK_WARNING => ReportBody::Warning(data),
            kind::WORK_STATUS => {
                // Clients parse these as numbers, and some fail on an empty one.
                let mut number = || Some(terminated_or_all(&mut data)).filter(|number| !number.is_empty());
                let zero = || Bytes::from_static(b"0");
                let numerator = number().unwrap_or_else(zero);
                ReportBody::Status { numerator, denominator: number().unwrap_or_else(zero) }
            }
            kind::WORK_COMPLETE => ReportBody::Complete(data),
            kind::WORK_FAIL => ReportBody::Fail,
            kind::WORK_EXCEPTION => ReportBody::Exception(data),
            _ => return None,
        };
        Some(Report { handle, body })
    }
}

impl<B: AsRef<[u8]>> Report<B> {
    pub(crate) fn encode(&self, magic: [u8; 4], out: &mut BytesMut) -> Result<(), EncodeError> {
        let writer = Writer::begin(out, &[&magic, &self.body.kind().to_be_bytes()]);
        match &self.body {
            ReportBody::Data(data)
            | ReportBody::Warning(data)
            | ReportBody::Complete(data)
            | ReportBody::Exception(data) => writer.argument("handle", &self.handle)?.finish_with(data),
            ReportBody::Status { numerator, denominator } => {
                let writer = writer.argument("handle", &self.handle)?.argument("numerator", numerator)?;
                writer.finish_with_name("denominator", denominator)
            }
            // Without a NUL: existing clients take a handle with one for another job's and wait for ever.
            ReportBody::Fail => writer.finish_with_name("handle", &self.handle),
        }
    }
}
