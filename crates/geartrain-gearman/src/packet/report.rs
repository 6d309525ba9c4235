//! What a worker says about a job: sent to the server, and by it to the clients.

use bytes::{Bytes, BytesMut};

use super::arguments::{leading_u32, terminated_or_all};
use super::kind;
use crate::writer::{EncodeError, Writer};

/// News of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report<B = Bytes> {
    /// Of which.
    pub handle: B,
    /// What they are.
    pub body: ReportBody<B>,
}

/// What a worker has to say about its job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReportBody<B = Bytes> {
    /// WORK_DATA: a part of the result.
    Data(B),
    /// WORK_WARNING.
    Warning(B),
    /// WORK_STATUS: how far it is. The numbers are kept as they were written, because clients get them so; [`News::progress`] reads them.
    Status {
        /// What is done.
        numerator: B,
        /// Of how much.
        denominator: B,
    },
    /// WORK_COMPLETE: the job has ended, and this is the result.
    Complete(B),
    /// WORK_FAIL: the job has ended without one.
    Fail,
    /// WORK_EXCEPTION: the same, and why.
    Exception(B),
}

impl<B> ReportBody<B> {
    /// Whether nothing can follow.
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
    /// Numerator and denominator of a status, read as leniently as every server does: what is no number is 0.
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
    /// Understands the six packets that are reports. A missing NUL means that nothing was to follow it: some workers leave it out, and refusing their reports would leave jobs unfinished.
    pub(crate) fn decode(kind: u32, mut data: Bytes) -> Option<Report> {
        let handle = terminated_or_all(&mut data);
        let news = match kind {
            kind::WORK_DATA => ReportBody::Data(data),
            kind::WORK_WARNING => ReportBody::Warning(data),
            kind::WORK_STATUS => {
                // Clients read these as numbers, and some choke on an empty one.
                let mut number = || Some(terminated_or_all(&mut data)).filter(|number| !number.is_empty());
                let nought = || Bytes::from_static(b"0");
                let numerator = number().unwrap_or_else(nought);
                ReportBody::Status { numerator, denominator: number().unwrap_or_else(nought) }
            }
            kind::WORK_COMPLETE => ReportBody::Complete(data),
            kind::WORK_FAIL => ReportBody::Fail,
            kind::WORK_EXCEPTION => ReportBody::Exception(data),
            _ => return None,
        };
        Some(Report { handle, body: news })
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
            // Without a NUL: with one, clients in use take it for another job's and wait for ever.
            ReportBody::Fail => writer.finish_with_name("handle", &self.handle),
        }
    }
}
