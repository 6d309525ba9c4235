//! Packet writer. The headers of both protocol generations end with the length of the data, which is filled
//! in last.

use std::fmt::{Display, Write};

use bytes::BytesMut;

/// Why a packet cannot be encoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// A NUL ends an argument, so one inside would split it.
    #[error("the {0} holds a NUL")]
    Nul(&'static str),
    /// The length field has 32 bits.
    #[error("a packet holds less than 4 GiB")]
    TooLarge,
}

/// Writes one packet. On an error the buffer is left as it was.
pub(crate) struct Writer<'a> {
    out: &'a mut BytesMut,
    start: usize,
    /// Where the data begins, right behind its length.
    data: usize,
}

impl<'a> Writer<'a> {
    /// Writes a header, except for the length.
    pub(crate) fn begin(out: &'a mut BytesMut, header: &[&[u8]]) -> Writer<'a> {
        let start = out.len();
        for part in header {
            out.extend_from_slice(part);
        }
        out.extend_from_slice(&[0; 4]);
        let data = out.len();
        Writer { out, start, data }
    }

    /// Appends an argument and its NUL.
    pub(crate) fn argument(self, name: &'static str, bytes: impl AsRef<[u8]>) -> Result<Self, EncodeError> {
        let bytes = bytes.as_ref();
        if bytes.contains(&0) {
            self.out.truncate(self.start);
            return Err(EncodeError::Nul(name));
        }
        self.out.extend_from_slice(bytes);
        Ok(self.raw(&[0]))
    }

    /// Appends a number and its NUL.
    pub(crate) fn number(self, number: impl Display) -> Self {
        self.display(number).raw(&[0])
    }

    /// Appends bytes.
    pub(crate) fn raw(self, bytes: &[u8]) -> Self {
        self.out.extend_from_slice(bytes);
        self
    }

    /// Appends text.
    pub(crate) fn display(self, text: impl Display) -> Self {
        // Writing into memory cannot fail.
        let _ = write!(self.out, "{text}");
        self
    }

    /// Finishes with an argument that is a name, in which a NUL would end the name.
    pub(crate) fn finish_with_name(
        self,
        name: &'static str,
        bytes: impl AsRef<[u8]>,
    ) -> Result<(), EncodeError> {
        let writer = self.argument(name, bytes)?;
        writer.out.truncate(writer.out.len() - 1);
        writer.finish()
    }

    /// Finishes with an argument that may hold anything.
    pub(crate) fn finish_with(self, bytes: impl AsRef<[u8]>) -> Result<(), EncodeError> {
        let bytes = bytes.as_ref();
        // Checked before the copy, which would be as large.
        if u32::try_from(self.out.len() - self.data + bytes.len()).is_err() {
            self.out.truncate(self.start);
            return Err(EncodeError::TooLarge);
        }
        self.raw(bytes).finish()
    }

    /// Fills in the length.
    pub(crate) fn finish(self) -> Result<(), EncodeError> {
        let Ok(length) = u32::try_from(self.out.len() - self.data) else {
            self.out.truncate(self.start);
            return Err(EncodeError::TooLarge);
        };
        self.out[self.data - 4..self.data].copy_from_slice(&length.to_be_bytes());
        Ok(())
    }
}
