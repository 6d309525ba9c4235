//! Framing: where packets and lines end, and the errors for bytes that are neither.

use bytes::{Bytes, BytesMut};
use geartrain_gearman::draft::{self, Code, Magic};
use geartrain_gearman::packet::{Fault, Packet};
use geartrain_gearman::{FramingError, Incoming, Options, Parser, unpinned};

const ECHO: &[u8] = b"\0REQ\0\0\0\x10\0\0\0\x02hi";
const SLEEP: &[u8] = b"\0GRM\x03\0\0\0\0";

fn small() -> Options {
    Options { packet_bytes_max: 100, line_bytes_max: 10, ..Options::default() }
}

fn echo() -> Incoming {
    Incoming::Packet(Packet { kind: 16, data: Bytes::from_static(b"hi") })
}

fn line(text: &'static str) -> Incoming {
    Incoming::Line(Bytes::from_static(text.as_bytes()))
}

fn sleep() -> Incoming {
    Incoming::Draft(draft::Packet { kind: 3, data: Bytes::new() })
}

fn draft_error(kind: u8, code: Code) -> FramingError {
    FramingError::Draft(draft::Error { kind, code })
}

/// All packets and lines, up to the first error.
fn all(parser: &mut Parser, bytes: &[u8]) -> (Vec<Incoming>, Option<FramingError>) {
    let (mut buffer, mut incoming) = (BytesMut::from(bytes), Vec::new());
    loop {
        match parser.next(&mut buffer) {
            Ok(Some(next)) => incoming.push(next),
            Ok(None) => return (incoming, None),
            Err(error) => {
                assert_eq!(parser.next(&mut buffer), Err(error.clone()), "an error stays");
                return (incoming, Some(error));
            }
        }
    }
}

#[test]
fn packets_and_lines_are_returned_as_soon_as_they_are_complete() {
    let cases: Vec<(&[u8], Result<Incoming, FramingError>)> = vec![
        (ECHO, Ok(echo())),
        (b"\0REQ\0\0\0\x04\0\0\0\0", Ok(Incoming::Packet(Packet { kind: 4, data: Bytes::new() }))),
        (b"\0RES\xff\0\0\x01\0\0\0\x02", Ok(Incoming::Misdirected { kind: 0xff00_0001 })),
        (SLEEP, Ok(sleep())),
        (b"\n", Ok(line(""))),
        (b"\r\n", Ok(line(""))),
        (b"status\r\n", Ok(line("status"))),
        (b"REQ\n", Ok(line("REQ"))),
        (b"a\rb\r\r\n", Ok(line("a\rb\r"))),
        (b"a\0REQ\n", Ok(line("a\0REQ"))),
        (b"\x16\n", Ok(line("\x16"))),
        (b"\x16\x04\n", Ok(line("\x16\x04"))),
        (b"0123456789\r\n", Ok(line("0123456789"))),
        (b"\0\0", Err(FramingError::UnknownMagic)),
        (b"\0X", Err(FramingError::UnknownMagic)),
        (b"\0RX", Err(FramingError::UnknownMagic)),
        (b"\0REX", Err(FramingError::UnknownMagic)),
        (b"\0Rr", Err(FramingError::UnknownMagic)),
        (b"\0GRX", Err(FramingError::UnknownMagic)),
        (b"\x16\x03", Err(FramingError::TlsHello)),
        (b"01234567890", Err(FramingError::LineTooLong { bytes_max: 10 })),
        (b"0123456789\r\r", Err(FramingError::LineTooLong { bytes_max: 10 })),
        (b"\0REQ\0\0\0\x10\0\0\0\x65", Err(FramingError::TooLarge { bytes: 101, bytes_max: 100 })),
        (b"\0REQ\0\0\0\x10\xff\xff\xff\xff", Err(FramingError::TooLarge { bytes: u32::MAX, bytes_max: 100 })),
        (b"\0RES\0\0\0\x10\0\0\0\x65", Err(FramingError::TooLarge { bytes: 101, bytes_max: 100 })),
        (b"\0GRM\x0e", Err(draft_error(0x0e, Code::UnknownType))),
        (b"\0GRM\xff", Err(draft_error(0xff, Code::UnknownType))),
        (b"\0GRM\x04\0\0\0\x65", Err(draft_error(0x04, Code::TooLarge))),
    ];
    for (bytes, expected) in cases {
        let mut parser = Parser::server(small());
        let mut buffer = BytesMut::new();
        for (at, byte) in bytes.iter().enumerate() {
            buffer.extend_from_slice(&[*byte]);
            let next = parser.next(&mut buffer);
            if at + 1 < bytes.len() {
                assert_eq!(next, Ok(None), "{bytes:?} at {at}");
            } else {
                assert_eq!(next, expected.clone().map(Some), "{bytes:?}");
            }
        }
    }
}

#[test]
fn lines_and_packets_mix_freely() {
    let bytes = [b"version\n", ECHO, b"\r\n", ECHO, ECHO, b"workers\r\nstatus\n"].concat();
    let expected = vec![line("version"), echo(), line(""), echo(), echo(), line("workers"), line("status")];
    assert_eq!(all(&mut Parser::server(small()), &bytes), (expected, None));
}

#[test]
fn a_draft_connection_stays_one() {
    for (other, wrong_from) in [(ECHO, 2), (b"status\n", 1), (b"\x16\x03\x01", 1), (b"\0GRX", 4)] {
        let bytes = [SLEEP, SLEEP, &other[..wrong_from]].concat();
        let expected = (vec![sleep(), sleep()], Some(draft_error(0, Code::BadMagic)));
        assert_eq!(all(&mut Parser::server(small()), &bytes), expected);
        let bytes = [SLEEP, &other[..wrong_from - 1]].concat();
        assert_eq!(all(&mut Parser::server(small()), &bytes), (vec![sleep()], None));
    }
}

#[test]
fn a_connection_of_the_current_protocol_cannot_switch_to_the_draft() {
    for (first, incoming) in [
        (&b"status\n"[..], line("status")),
        (ECHO, echo()),
        (b"\0RES\0\0\0\x10\0\0\0\0", Incoming::Misdirected { kind: 16 }),
    ] {
        let bytes = [first, b"\0GRM"].concat();
        assert_eq!(all(&mut Parser::server(small()), &bytes), (vec![incoming], Some(FramingError::Switched)));
    }
}

#[test]
fn a_misdirected_packet_is_discarded_as_it_arrives() {
    let mut parser = Parser::server(small());
    let mut buffer = BytesMut::from(&b"\0RES\0\0\0\x10\0\0\0\x64ab"[..]);
    assert_eq!(parser.next(&mut buffer), Ok(Some(Incoming::Misdirected { kind: 16 })));
    assert_eq!(parser.next(&mut buffer), Ok(None));
    for _ in 0..97 {
        assert!(buffer.is_empty(), "what was refused is not kept");
        buffer.extend_from_slice(b"\0");
        assert_eq!(parser.next(&mut buffer), Ok(None));
    }
    buffer.extend_from_slice(b"\0");
    buffer.extend_from_slice(ECHO);
    assert_eq!(parser.next(&mut buffer), Ok(Some(echo())));
}

#[test]
fn a_client_reads_what_a_server_sends() {
    let bytes = b"\0RES\0\0\0\x11\0\0\0\x02hia\t0\t0\t0\n.\n\0REQ\0\0\0\x10\0\0\0\x02hiOK\n";
    let expected = vec![
        Incoming::Packet(Packet { kind: 17, data: Bytes::from_static(b"hi") }),
        line("a\t0\t0\t0"),
        line("."),
        Incoming::Misdirected { kind: 16 },
        line("OK"),
    ];
    assert_eq!(all(&mut Parser::client(small()), bytes), (expected, None));
    let error = Incoming::Draft(draft::Packet { kind: 14, data: Bytes::from_static(b"\x0b\x06no") });
    let bytes = b"\0GRM\x0e\0\0\0\x04\x0b\x06no\0GRM\x0f";
    let expected = (vec![error], Some(draft_error(0x0f, Code::UnknownType)));
    assert_eq!(all(&mut Parser::client(small()), bytes), expected);
}

#[test]
fn limits_are_inclusive() {
    let packet = [b"\0REQ\0\0\0\x10\0\0\0\x64", &[7; 100][..]].concat();
    let expected = Incoming::Packet(Packet { kind: 16, data: Bytes::from_static(&[7; 100]) });
    assert_eq!(all(&mut Parser::server(small()), &packet), (vec![expected], None));
    let defaults = || Parser::server(Options::default());
    let announced = |bytes: u32| [b"\0REQ\0\0\0\x10", &bytes.to_be_bytes()[..]].concat();
    assert_eq!(all(&mut defaults(), &announced(64 << 20)), (vec![], None));
    let bytes = (64 << 20) + 1;
    let too_large = FramingError::TooLarge { bytes, bytes_max: 64 << 20 };
    assert_eq!(all(&mut defaults(), &announced(bytes)), (vec![], Some(too_large)));
    let line = [&[b'x'; 8192][..], b"\r\n"].concat();
    assert_eq!(all(&mut defaults(), &line).0.len(), 1);
    let line = [&[b'x'; 8193][..], b"\n"].concat();
    assert_eq!(all(&mut defaults(), &line), (vec![], Some(FramingError::LineTooLong { bytes_max: 8192 })));
}

#[test]
fn a_framing_error_is_answered_where_the_protocol_has_an_error_packet() {
    let told = |framing: FramingError| {
        let mut out = BytesMut::new();
        framing.encode_reply(Magic::default(), &mut out);
        out
    };
    for silent in [
        FramingError::UnknownMagic,
        FramingError::TlsHello,
        FramingError::Switched,
        FramingError::LineTooLong { bytes_max: 8192 },
    ] {
        assert_eq!(told(silent), "");
    }
    let mut expected = BytesMut::new();
    Fault::PacketTooLarge { bytes: 9, bytes_max: 8 }.encode(&mut expected);
    assert_eq!(told(FramingError::TooLarge { bytes: 9, bytes_max: 8 }), expected);
    let unknown = draft_error(0x20, Code::UnknownType);
    assert_eq!(&told(unknown)[..], b"\0GRM\x0e\0\0\0\x0e\x20\x02unknown type");
    assert_eq!(&told(draft_error(0, Code::BadMagic))[..], b"\0GRM\x0e\0\0\0\x0b\0\x01bad magic");
    assert_eq!(&told(draft_error(4, Code::TooLarge))[..], b"\0GRM\x0e\0\0\0\x0b\x04\x03too large");
}

#[test]
fn an_announced_size_allocates_nothing() {
    let mut parser = Parser::server(Options::default());
    let mut buffer = BytesMut::from(&b"\0REQ\0\0\0\x07\x03\xff\xff\xffabc"[..]);
    let before = buffer.capacity();
    assert_eq!(parser.next(&mut buffer), Ok(None));
    assert_eq!(buffer.capacity(), before);
    assert_eq!(parser.bytes_wanted(&buffer), 0x03ff_ffff - 3);
    for (bytes, wants) in [
        (&b""[..], 0),
        (b"\0RE", 0),
        (b"\0REQ", 8),
        (b"\0REQ\0\0\0\x07\0\0\0\x05", 5),
        (ECHO, 0),
        (b"\0GRM", 5),
        (b"\0GRM\x04\0\0\0\x05abc", 2),
        (b"\0RES\0\0\0\x07\0\0\0\x05", 0),
        (b"status", 0),
    ] {
        assert_eq!(Parser::server(Options::default()).bytes_wanted(bytes), wants, "{bytes:?}");
    }
}

#[test]
fn data_is_a_slice_of_the_read_buffer_until_it_is_unpinned() {
    let large = vec![7; 100_000];
    let bytes = [ECHO, b"\0REQ\0\0\0\x10\0\x01\x86\xa0", &large, b"status\n"].concat();
    let mut buffer = BytesMut::from(&bytes[..]);
    let read = buffer.as_ptr_range();
    let mut parser = Parser::server(Options::default());
    let mut data = Vec::new();
    while let Some(incoming) = parser.next(&mut buffer).unwrap() {
        match incoming {
            Incoming::Packet(packet) => data.push(packet.data),
            Incoming::Line(line) => data.push(line),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(data, [&b"hi"[..], &large, b"status"]);
    for slice in &data {
        assert!(read.contains(&slice.as_ptr()), "nothing is copied on the way");
        let kept = unpinned(slice);
        assert_eq!(kept, slice);
        assert_eq!(read.contains(&kept.as_ptr()), slice.len() > 65_536, "only little is copied");
    }
}
