//! What a worker says about a job: sent to the server, and by it to the clients.

use bytes::{Bytes, BytesMut};

use super::arguments::{small_number, terminated_or_all};
use super::kind;
use crate::writer::{Unwritable, Writer};

/// News of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report<B = Bytes> {
    /// Of which.
    pub handle: B,
    /// What they are.
    pub news: News<B>,
}

/// What a worker has to say about its job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News<B = Bytes> {
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

impl<B> News<B> {
    /// Whether nothing can follow.
    pub fn is_final(&self) -> bool {
        match self {
            News::Complete(_) | News::Fail | News::Exception(_) => true,
            News::Data(_) | News::Warning(_) | News::Status { .. } => false,
        }
    }

    fn kind(&self) -> u32 {
        match self {
            News::Data(_) => kind::WORK_DATA,
            News::Warning(_) => kind::WORK_WARNING,
            News::Status { .. } => kind::WORK_STATUS,
            News::Complete(_) => kind::WORK_COMPLETE,
            News::Fail => kind::WORK_FAIL,
            News::Exception(_) => kind::WORK_EXCEPTION,
        }
    }
}

impl<B: AsRef<[u8]>> News<B> {
    /// Numerator and denominator of a status, read as leniently as every server does: what is no number is 0.
    pub fn progress(&self) -> Option<(u32, u32)> {
        match self {
            News::Status { numerator, denominator } => {
                Some((small_number(numerator.as_ref()), small_number(denominator.as_ref())))
            }
            News::Data(_) | News::Warning(_) | News::Complete(_) | News::Fail | News::Exception(_) => None,
        }
    }
}

impl Report {
    /// Understands the six packets that are reports. A missing NUL means that nothing was to follow it: some workers leave it out, and refusing their reports would leave jobs unfinished.
    pub(crate) fn decode(kind: u32, mut data: Bytes) -> Option<Report> {
        let handle = terminated_or_all(&mut data);
        let news = match kind {
            kind::WORK_DATA => News::Data(data),
            kind::WORK_WARNING => News::Warning(data),
            kind::WORK_STATUS => {
                // Clients read these as numbers, and some choke on an empty one.
                let mut number = || Some(terminated_or_all(&mut data)).filter(|number| !number.is_empty());
                let nought = || Bytes::from_static(b"0");
                let numerator = number().unwrap_or_else(nought);
                News::Status { numerator, denominator: number().unwrap_or_else(nought) }
            }
            kind::WORK_COMPLETE => News::Complete(data),
            kind::WORK_FAIL => News::Fail,
            kind::WORK_EXCEPTION => News::Exception(data),
            _ => return None,
        };
        Some(Report { handle, news })
    }
}

impl<B: AsRef<[u8]>> Report<B> {
    pub(crate) fn encode(&self, magic: [u8; 4], out: &mut BytesMut) -> Result<(), Unwritable> {
        let writer = Writer::begin(out, &[&magic, &self.news.kind().to_be_bytes()]);
        match &self.news {
            News::Data(data) | News::Warning(data) | News::Complete(data) | News::Exception(data) => {
                writer.argument("handle", &self.handle)?.end_with(data)
            }
            News::Status { numerator, denominator } => {
                let writer = writer.argument("handle", &self.handle)?.argument("numerator", numerator)?;
                writer.end_with_name("denominator", denominator)
            }
            // Without a NUL: with one, clients in use take it for another job's and wait for ever.
            News::Fail => writer.end_with_name("handle", &self.handle),
        }
    }
}
