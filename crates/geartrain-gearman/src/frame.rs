//! Which language comes in, and where its packets and lines end.

use bytes::{Buf, Bytes, BytesMut};

use crate::draft;
use crate::packet::{self, Fault, Packet, REQUEST, RESPONSE};

/// Every TLS connection begins so.
const TLS_RECORD: [u8; 2] = [0x16, 0x03];
/// Above this, a slice of what was read is kept rather than copied.
const COPIED_BYTES_MAX: usize = 64 << 10;

/// What a [`Parser`] allows.
#[derive(Debug, Clone)]
pub struct Options {
    /// The most bytes of a packet's data. By default 64 MiB.
    pub packet_bytes_max: u32,
    /// The most bytes of a line, without its end. By default 8192; whoever reads a server's lists may need more.
    pub line_bytes_max: usize,
    /// What the packets of the draft begin with.
    pub draft_magic: draft::Magic,
}

impl Default for Options {
    fn default() -> Options {
        Options { packet_bytes_max: 64 << 20, line_bytes_max: 8192, draft_magic: draft::Magic::default() }
    }
}

/// One thing that came in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Incoming {
    /// A packet of today's protocol.
    Packet(Packet),
    /// A packet of the draft. From the first one on, nothing else comes.
    Draft(draft::Packet),
    /// A line, without its end.
    Line(Bytes),
    /// A packet with the magic of the other direction. A server answers [`Fault::Magic`] and goes on: what belongs to the packet is thrown away as it arrives.
    Misdirected {
        /// The number of its type.
        kind: u32,
    },
}

/// Bytes after which there is no telling where anything begins. The connection ends, after the [answer](Framing::answer) if there is one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FramingError {
    /// A NUL and then no magic that is known.
    #[error("it begins with a NUL, but is no packet")]
    UnknownMagic,
    /// Somebody speaks TLS.
    #[error("a TLS hello, where no TLS was expected")]
    TlsHello,
    /// A packet of the draft, after something else.
    #[error("a packet of the draft on a connection that spoke today's protocol")]
    Switched,
    /// A line above the limit.
    #[error("a line has at most {bytes_max} bytes")]
    LineTooLong {
        /// How many are allowed.
        bytes_max: usize,
    },
    /// A packet of today's protocol above the limit.
    #[error("a packet has at most {bytes_max} bytes, not {bytes}")]
    TooLarge {
        /// How many it announced.
        bytes: u32,
        /// How many are allowed.
        bytes_max: u32,
    },
    /// Something was wrong with a packet of the draft: its magic, its type or its size.
    #[error("{0}")]
    Draft(draft::Error),
}

impl FramingError {
    /// Writes what the peer is told before the connection ends: an error where its language has one for this, else nothing.
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

/// Cuts what was read into packets and lines. What comes in small pieces is looked at once, and nothing is set aside for what was only announced.
///
/// Data are slices of the buffer and keep all of it in memory while they live. That is right for what is answered at once; what is to be kept goes through [`unpinned`].
#[derive(Debug)]
pub struct Parser {
    options: Options,
    /// The magic of packets to this side, and of those from it.
    expected_magic: [u8; 4],
    opposite_magic: [u8; 4],
    draft_kind_max: u8,
    era: Option<Era>,
    /// How many bytes of a line have been searched for its end.
    scanned_bytes: usize,
    /// How many bytes of a refused packet are still to come.
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
    /// For what clients and workers send.
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

    /// For what a server sends.
    pub fn client(options: Options) -> Parser {
        let server = Parser::server(options);
        Parser { expected_magic: RESPONSE, opposite_magic: REQUEST, draft_kind_max: draft::ERROR, ..server }
    }

    /// Takes the next packet or line out of the buffer, if all of it is there. After an error it has no more to say than the same error.
    pub fn next(&mut self, buffer: &mut BytesMut) -> Result<Option<Incoming>, FramingError> {
        if self.discard_bytes > 0 {
            let there = self.discard_bytes.min(buffer.len());
            buffer.advance(there);
            self.discard_bytes -= there;
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

    /// How many more bytes are known to be on their way for the packet that the buffer begins with: a hint for reading, and no more than its sender's word.
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

    /// Says what the bytes begin with, as soon as that is certain.
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
        // No further than a line and its end can reach.
        let reach = &buffer[..buffer.len().min(bytes_max.saturating_add(2))];
        let end = reach[self.scanned_bytes..].iter().position(|byte| *byte == b'\n');
        let seen = end.map_or(reach, |end| &reach[..self.scanned_bytes + end]);
        // A CR at the end does not count, even while it is not known that the line ends there.
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

/// The length at the end of a header, if the header is there.
fn data_bytes(buffer: &[u8], header: usize) -> Option<u32> {
    let length = buffer.get(header - 4..header)?;
    Some(u32::from_be_bytes([length[0], length[1], length[2], length[3]]))
}

/// Takes a header and the data behind it, and gives the data, if all is there.
fn take(buffer: &mut BytesMut, header: usize, bytes: usize) -> Option<Bytes> {
    if buffer.len() - header < bytes {
        return None;
    }
    buffer.advance(header);
    // Most packets have no data, and then there is nothing to share.
    Some(if bytes == 0 { Bytes::new() } else { buffer.split_to(bytes).freeze() })
}

/// Bytes to be kept. What was decoded is a slice of the buffer it was read into, so a hundred bytes could hold on to hundreds of thousands: this copies them. Only what is large enough to be most of a buffer
/// stays a slice.
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
