//! Framing: detects the protocol of a connection, and cuts the received bytes into packets and lines.

use bytes::{Buf, Bytes, BytesMut};

use crate::draft;
use crate::packet::{self, Fault, Packet, REQUEST, RESPONSE};

/// How every TLS connection begins.
const TLS_RECORD: [u8; 2] = [0x16, 0x03];
/// Slices up to this size are copied when they are kept; larger ones are shared.
const COPIED_BYTES_MAX: usize = 64 << 10;

/// Limits and settings of a [`Parser`].
#[derive(Debug, Clone)]
pub struct Options {
    /// Most bytes of a packet's data. 64 MiB by default.
    pub packet_bytes_max: u32,
    /// Most bytes of a line without its end. 8192 by default; a client that reads a server's lists may need
    /// more.
    pub line_bytes_max: usize,
    /// The magic of the draft's packets.
    pub draft_magic: draft::Magic,
}

impl Default for Options {
    fn default() -> Options {
        Options { packet_bytes_max: 64 << 20, line_bytes_max: 8192, draft_magic: draft::Magic::default() }
    }
}

/// One packet or line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Incoming {
    /// A packet of the current protocol.
    Packet(Packet),
    /// A packet of the draft. After the first one, the connection carries nothing else.
    Draft(draft::Packet),
    /// A line, without its end.
    Line(Bytes),
    /// A packet with the magic of the other direction. A server answers [`Fault::Magic`] and goes on; the
    /// packet's data is discarded as it arrives.
    Misdirected {
        /// The number of its type.
        kind: u32,
    },
}

/// Bytes that cannot be framed. The connection ends, after the [reply](FramingError::encode_reply) if there
/// is one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FramingError {
    /// A NUL that begins no known magic.
    #[error("it begins with a NUL, but is no packet")]
    UnknownMagic,
    /// A TLS handshake.
    #[error("a TLS hello, where no TLS was expected")]
    TlsHello,
    /// A packet of the draft after something else.
    #[error("a packet of the draft on a connection that spoke today's protocol")]
    Switched,
    /// A line above the limit.
    #[error("a line has at most {bytes_max} bytes")]
    LineTooLong {
        /// The limit.
        bytes_max: usize,
    },
    /// A packet of the current protocol above the limit.
    #[error("a packet has at most {bytes_max} bytes, not {bytes}")]
    TooLarge {
        /// The size that its header announced.
        bytes: u32,
        /// The limit.
        bytes_max: u32,
    },
    /// A packet of the draft with a wrong magic, type or size.
    #[error("{0}")]
    Draft(draft::Error),
}

impl FramingError {
    /// Appends the last reply before the connection ends: an error packet where the protocol has one, else
    /// nothing.
    pub fn encode_reply(&self, draft_magic: draft::Magic, out: &mut BytesMut) {
        match *self {
            FramingError::TooLarge { bytes, bytes_max } => {
                Fault::PacketTooLarge { bytes, bytes_max }.encode(out)
            }
            FramingError::Draft(error) => error.encode(draft_magic, out),
            FramingError::UnknownMagic
            | FramingError::TlsHello
            | FramingError::Switched
            | FramingError::LineTooLong { .. } => {}
        }
    }
}

/// Incremental parser for packets and lines. It examines bytes that arrive in small pieces once, and
/// allocates nothing for a size that was only announced.
///
/// The data of a packet is a slice of the read buffer and keeps the whole buffer in memory. That is right for
/// requests that are answered at once; data to be kept goes through [`unpinned`].
#[derive(Debug)]
pub struct Parser {
    options: Options,
    /// The magic of packets in this direction, and in the other.
    expected_magic: [u8; 4],
    opposite_magic: [u8; 4],
    draft_kind_max: u8,
    era: Option<Era>,
    /// How many bytes of an incomplete line were searched for its end.
    scanned_bytes: usize,
    /// How many bytes of a misdirected packet are still to come.
    discard_bytes: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Era {
    /// Packets and lines, mixed freely.
    Current,
    Draft,
}

/// What the next bytes are.
enum Prefix {
    Packet,
    Misdirected,
    Draft,
    Tls,
    Line,
    Unknown,
}

impl Parser {
    /// Parses what clients and workers send.
    pub fn server(options: Options) -> Parser {
        Parser {
            options,
            expected_magic: REQUEST,
            opposite_magic: RESPONSE,
            draft_kind_max: draft::JOB_COMPLETE_RES,
            era: None,
            scanned_bytes: 0,
            discard_bytes: 0,
        }
    }

    /// Parses what a server sends.
    pub fn client(options: Options) -> Parser {
        let server = Parser::server(options);
        Parser { expected_magic: RESPONSE, opposite_magic: REQUEST, draft_kind_max: draft::ERROR, ..server }
    }

    /// Takes the next packet or line out of the buffer, if it is complete. After an error it returns the same
    /// error again.
    pub fn next(&mut self, buffer: &mut BytesMut) -> Result<Option<Incoming>, FramingError> {
        if self.discard_bytes > 0 {
            let available = self.discard_bytes.min(buffer.len());
            buffer.advance(available);
            self.discard_bytes -= available;
        }
        if buffer.is_empty() {
            return Ok(None);
        }
        if self.era == Some(Era::Draft) {
            return self.draft(buffer);
        }
        if self.scanned_bytes > 0 {
            return self.line(buffer);
        }
        match self.prefix(buffer) {
            None => Ok(None),
            Some(Prefix::Packet) => self.packet(buffer, false),
            Some(Prefix::Misdirected) => self.packet(buffer, true),
            Some(Prefix::Line) => self.line(buffer),
            Some(Prefix::Draft) if self.era.is_some() => Err(FramingError::Switched),
            Some(Prefix::Draft) => self.draft(buffer),
            Some(Prefix::Tls) => Err(FramingError::TlsHello),
            Some(Prefix::Unknown) => Err(FramingError::UnknownMagic),
        }
    }

    /// How many bytes are missing to complete the packet at the beginning of the buffer: a hint for reading,
    /// based on what its sender announced.
    pub fn bytes_wanted(&self, buffer: &[u8]) -> usize {
        let header = match (self.era, self.prefix(buffer)) {
            _ if self.discard_bytes > 0 || self.scanned_bytes > 0 => return 0,
            (Some(Era::Draft), _) | (None, Some(Prefix::Draft)) => draft::HEADER_BYTES,
            (_, Some(Prefix::Packet)) => packet::HEADER_BYTES,
            _ => return 0,
        };
        let whole = data_bytes(buffer, header).map_or(header, |bytes| header + bytes as usize);
        whole.saturating_sub(buffer.len())
    }

    /// Classifies the first bytes, as soon as that is certain.
    fn prefix(&self, bytes: &[u8]) -> Option<Prefix> {
        let seen = &bytes[..bytes.len().min(4)];
        let draft = self.options.draft_magic.bytes();
        if seen == self.expected_magic {
            Some(Prefix::Packet)
        } else if seen == draft {
            Some(Prefix::Draft)
        } else if seen == self.opposite_magic {
            Some(Prefix::Misdirected)
        } else if seen.starts_with(&TLS_RECORD) {
            Some(Prefix::Tls)
        } else if [&self.expected_magic[..], &self.opposite_magic, &draft, &TLS_RECORD]
            .iter()
            .any(|magic| magic.starts_with(seen))
        {
            None
        } else {
            Some(if seen[0] == 0 { Prefix::Unknown } else { Prefix::Line })
        }
    }

    fn packet(&mut self, buffer: &mut BytesMut, misdirected: bool) -> Result<Option<Incoming>, FramingError> {
        let Some(bytes) = data_bytes(buffer, packet::HEADER_BYTES) else { return Ok(None) };
        let bytes_max = self.options.packet_bytes_max;
        if bytes > bytes_max {
            return Err(FramingError::TooLarge { bytes, bytes_max });
        }
        let (kind, bytes) =
            (u32::from_be_bytes([buffer[4], buffer[5], buffer[6], buffer[7]]), bytes as usize);
        if misdirected {
            buffer.advance(packet::HEADER_BYTES);
            self.discard_bytes = bytes;
            self.era = Some(Era::Current);
            return Ok(Some(Incoming::Misdirected { kind }));
        }
        let Some(data) = take(buffer, packet::HEADER_BYTES, bytes) else { return Ok(None) };
        self.era = Some(Era::Current);
        Ok(Some(Incoming::Packet(Packet { kind, data })))
    }

    fn draft(&mut self, buffer: &mut BytesMut) -> Result<Option<Incoming>, FramingError> {
        let magic = self.options.draft_magic.bytes();
        let wrong = |kind, code| Err(FramingError::Draft(draft::Error { kind, code }));
        let seen = &buffer[..buffer.len().min(4)];
        if !magic.starts_with(seen) {
            return wrong(0, draft::Code::BadMagic);
        }
        let Some(&kind) = buffer.get(4) else { return Ok(None) };
        if kind > self.draft_kind_max {
            return wrong(kind, draft::Code::UnknownType);
        }
        let Some(bytes) = data_bytes(buffer, draft::HEADER_BYTES) else { return Ok(None) };
        if bytes > self.options.packet_bytes_max {
            return wrong(kind, draft::Code::TooLarge);
        }
        let Some(data) = take(buffer, draft::HEADER_BYTES, bytes as usize) else { return Ok(None) };
        self.era = Some(Era::Draft);
        Ok(Some(Incoming::Draft(draft::Packet { kind, data })))
    }

    fn line(&mut self, buffer: &mut BytesMut) -> Result<Option<Incoming>, FramingError> {
        let bytes_max = self.options.line_bytes_max;
        // As far as a line of the allowed length and its end can reach.
        let window = &buffer[..buffer.len().min(bytes_max.saturating_add(2))];
        let end = window[self.scanned_bytes..].iter().position(|byte| *byte == b'\n');
        let seen = end.map_or(window, |end| &window[..self.scanned_bytes + end]);
        // A CR at the end does not count, even before it is known that the line ends there.
        let line_bytes = seen.strip_suffix(b"\r").unwrap_or(seen).len();
        if line_bytes > bytes_max {
            return Err(FramingError::LineTooLong { bytes_max });
        }
        if end.is_none() {
            self.scanned_bytes = buffer.len();
            return Ok(None);
        }
        let whole = seen.len() + 1;
        let mut line = buffer.split_to(whole).freeze();
        line.truncate(line_bytes);
        self.scanned_bytes = 0;
        self.era = Some(Era::Current);
        Ok(Some(Incoming::Line(line)))
    }
}

/// The length at the end of a header, if the header is complete.
fn data_bytes(buffer: &[u8], header: usize) -> Option<u32> {
    let length = buffer.get(header - 4..header)?;
    Some(u32::from_be_bytes([length[0], length[1], length[2], length[3]]))
}

/// Takes a header and its data out of the buffer, and returns the data if it is complete.
fn take(buffer: &mut BytesMut, header: usize, bytes: usize) -> Option<Bytes> {
    if buffer.len() - header < bytes {
        return None;
    }
    buffer.advance(header);
    // Most packets have no data, and then there is nothing to share.
    Some(if bytes == 0 { Bytes::new() } else { buffer.split_to(bytes).freeze() })
}

/// Detaches decoded bytes that are to be kept from the read buffer. A slice of a hundred bytes would pin a
/// buffer of hundreds of thousands, so small slices are copied; only those that are most of a buffer stay
/// slices.
pub fn unpinned(bytes: &Bytes) -> Bytes {
    if bytes.len() <= COPIED_BYTES_MAX { Bytes::copy_from_slice(bytes) } else { bytes.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_in_pieces_is_searched_once() {
        let mut parser = Parser::server(Options::default());
        let mut buffer = BytesMut::new();
        for piece in ["sta", "t", "us"] {
            buffer.extend_from_slice(piece.as_bytes());
            assert_eq!(parser.next(&mut buffer), Ok(None));
            assert_eq!(parser.scanned_bytes, buffer.len());
        }
        buffer.extend_from_slice(b"\nx\n");
        assert_eq!(parser.next(&mut buffer), Ok(Some(Incoming::Line(Bytes::from_static(b"status")))));
        assert_eq!(parser.scanned_bytes, 0);
        assert_eq!(parser.next(&mut buffer), Ok(Some(Incoming::Line(Bytes::from_static(b"x")))));
    }
}
