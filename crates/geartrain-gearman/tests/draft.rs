//! Codec of the draft: the specification's conversation byte by byte, and every kind of invalid packet.

use bytes::{Bytes, BytesMut};
use geartrain_gearman::draft::{Code, Error, JobType, Magic, Packet, Progress, Request, Response, names};
use geartrain_gearman::{EncodeError, Incoming, Options, Parser};

/// A packet of one of the two sides.
enum Said {
    Asked(Request),
    Answered(Response),
    Refused(Error),
}

fn b(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

fn unhex(text: &str) -> Vec<u8> {
    text.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
}

/// A worker, a client that polls and one that waits; each packet as the specification shows it.
fn conversation() -> Vec<(&'static str, Said)> {
    use Said::{Answered, Asked, Refused};
    let handle = || b("H:lap:1");
    let job = |dupkey: &'static str, kind, args: &'static str| {
        Asked(Request::JobCreate { name: b("resize"), dupkey: b(dupkey), flags: 0, kind, args: b(args) })
    };
    let progress = Progress { numerator: 1, denominator: 100, seconds_left: 30 };
    let half = Progress { numerator: 1, denominator: 2, seconds_left: 0 };
    vec![
        (
            "00 47 52 4d 01 00 00 00 0f 72 65 73 69 7a 65 00 74 68 75 6d 62 67 65 6e",
            Asked(Request::WorkerConnect { names: b("resize\0thumbgen") }),
        ),
        ("00 47 52 4d 06 00 00 00 00", Asked(Request::JobAssign)),
        ("00 47 52 4d 07 00 00 00 00", Answered(Response::NoJob)),
        ("00 47 52 4d 03 00 00 00 00", Asked(Request::WorkerSleep)),
        (
            "00 47 52 4d 04 00 00 00 12 72 65 73 69 7a 65 00 75 37 2d 67 32 00 00 01 00 01 78",
            job("u7-g2", JobType::Handle, "\0\x01x"),
        ),
        (
            "00 47 52 4d 05 00 00 00 07 48 3a 6c 61 70 3a 31",
            Answered(Response::JobCreate { handle: handle() }),
        ),
        ("00 47 52 4d 00 00 00 00 00", Answered(Response::Noop)),
        ("00 47 52 4d 06 00 00 00 00", Asked(Request::JobAssign)),
        (
            "00 47 52 4d 07 00 00 00 0a 72 65 73 69 7a 65 00 00 01 78",
            Answered(Response::JobAssign { name: b("resize"), args: b("\0\x01x") }),
        ),
        (
            "00 47 52 4d 08 00 00 00 0c 00 00 00 01 00 00 00 64 00 00 00 1e",
            Asked(Request::AnnounceStatus(progress)),
        ),
        ("00 47 52 4d 09 00 00 00 07 48 3a 6c 61 70 3a 31", Asked(Request::JobStatus { handle: handle() })),
        (
            "00 47 52 4d 0a 00 00 00 0c 00 00 00 01 00 00 00 64 00 00 00 1e",
            Answered(Response::JobStatus(progress)),
        ),
        ("00 47 52 4d 0c 00 00 00 07 48 3a 6c 61 70 3a 31", Asked(Request::JobComplete { handle: handle() })),
        (
            "00 47 52 4d 0d 00 00 00 05 00 00 00 00 00",
            Answered(Response::JobComplete { state: 0, result: 0, data: b("") }),
        ),
        (
            "00 47 52 4d 04 00 00 00 14 72 65 73 69 7a 65 00 75 37 2d 67 32 00 00 01 6f 74 68 65 72",
            job("u7-g2", JobType::Handle, "other"),
        ),
        (
            "00 47 52 4d 05 00 00 00 07 48 3a 6c 61 70 3a 31",
            Answered(Response::JobCreate { handle: handle() }),
        ),
        (
            "00 47 52 4d 0b 00 00 00 05 00 64 6f 6e 65",
            Asked(Request::AnnounceComplete { result: 0, data: b("done") }),
        ),
        ("00 47 52 4d 0c 00 00 00 07 48 3a 6c 61 70 3a 31", Asked(Request::JobComplete { handle: handle() })),
        (
            "00 47 52 4d 0d 00 00 00 09 00 00 00 04 00 64 6f 6e 65",
            Answered(Response::JobComplete { state: 4, result: 0, data: b("done") }),
        ),
        ("00 47 52 4d 04 00 00 00 0b 72 65 73 69 7a 65 00 00 00 00 7a", job("", JobType::Wait, "z")),
        ("00 47 52 4d 05 00 00 00 00", Answered(Response::JobCreate { handle: b("") })),
        (
            "00 47 52 4d 0a 00 00 00 0c 00 00 00 01 00 00 00 02 00 00 00 00",
            Answered(Response::JobStatus(half)),
        ),
        (
            "00 47 52 4d 0d 00 00 00 08 00 00 00 01 03 62 61 64",
            Answered(Response::JobComplete { state: 1, result: 3, data: b("bad") }),
        ),
        (
            "00 47 52 4d 0b 00 00 00 05 00 64 6f 6e 65",
            Asked(Request::AnnounceComplete { result: 0, data: b("done") }),
        ),
        (
            "00 47 52 4d 0e 00 00 00 10 0b 06 6e 6f 20 63 75 72 72 65 6e 74 20 6a 6f 62",
            Refused(Error { kind: 0x0b, code: Code::NoCurrentJob }),
        ),
        ("00 47 52 4d 02 00 00 00 00", Asked(Request::WorkerDisconnect)),
    ]
}

fn only(mut parser: Parser, bytes: &[u8]) -> Packet {
    let mut buffer = BytesMut::from(bytes);
    let Some(Incoming::Draft(packet)) = parser.next(&mut buffer).unwrap() else { panic!("no packet") };
    assert!(buffer.is_empty());
    packet
}

#[test]
fn the_conversation_of_the_specification_round_trips() {
    for (hex, said) in conversation() {
        let (bytes, mut written) = (unhex(hex), BytesMut::new());
        let (server, client) = (Parser::server(Options::default()), Parser::client(Options::default()));
        match said {
            Said::Asked(request) => {
                request.encode(Magic::default(), &mut written).unwrap();
                assert_eq!(Request::decode(only(server, &bytes)), Ok(request));
            }
            Said::Answered(response) => {
                response.encode(Magic::default(), &mut written).unwrap();
                assert_eq!(Response::decode(only(client, &bytes)), Ok(response));
            }
            Said::Refused(error) => {
                error.encode(Magic::default(), &mut written);
                let decoded = Response::decode(only(client, &bytes)).unwrap();
                let text = Bytes::from_static(b"no current job");
                assert_eq!(decoded, Response::Error { kind: 0x0b, code: 0x06, text });
            }
        }
        assert_eq!(written, bytes, "{hex}");
    }
}

#[test]
fn packets_missing_from_the_conversation_round_trip() {
    let throw_away = Request::JobCreate {
        name: b("a"),
        dupkey: b("k"),
        flags: 255,
        kind: JobType::ThrowAway,
        args: b(""),
    };
    for (kind, data, request) in [
        (0x00, &b""[..], Request::Noop),
        (0x00, b"anything", Request::Noop),
        (0x01, b"", Request::WorkerConnect { names: b("") }),
        (0x01, b"a\0\0b\0", Request::WorkerConnect { names: b("a\0\0b\0") }),
        (0x04, b"a\0k\0\xff\x02", throw_away),
        (0x0b, b"\xff", Request::AnnounceComplete { result: 255, data: b("") }),
    ] {
        let packet = Packet { kind, data: Bytes::from_static(data) };
        assert_eq!(Request::decode(packet), Ok(request));
    }
    assert_eq!(names(b"a\0\0bc\0").collect::<Vec<_>>(), [&b"a"[..], b"bc"]);
    assert_eq!(names(b"").count(), 0);
}

#[test]
fn bad_packets_are_refused_by_code() {
    let long = [&[b'n'; 4097][..], b"\0\0\0\0"].concat();
    let longest = [&[b'n'; 4096][..], b"\0\0\0\0"].concat();
    let cases: Vec<(u8, &[u8], Code)> = vec![
        (0x01, &long, Code::BadName),
        (0x02, b"x", Code::BadPayload),
        (0x03, b"x", Code::BadPayload),
        (0x06, b"x", Code::BadPayload),
        (0x04, b"", Code::BadPayload),
        (0x04, b"name", Code::BadPayload),
        (0x04, b"name\0key", Code::BadPayload),
        (0x04, b"name\0key\0", Code::BadPayload),
        (0x04, b"name\0key\0\0", Code::BadPayload),
        (0x04, b"name\0key\0\0\x03", Code::BadJobType),
        (0x04, b"name\0key\0\0\xff", Code::BadJobType),
        (0x04, b"\0key\0\0\0", Code::BadName),
        (0x04, &long, Code::BadName),
        (0x08, b"", Code::BadPayload),
        (0x08, &[0; 11], Code::BadPayload),
        (0x08, &[0; 13], Code::BadPayload),
        (0x09, b"", Code::BadPayload),
        (0x0b, b"", Code::BadPayload),
        (0x0c, b"", Code::BadPayload),
        (0x05, b"H", Code::WrongDirection),
        (0x07, b"", Code::WrongDirection),
        (0x0a, &[0; 12], Code::WrongDirection),
        (0x0d, &[0; 5], Code::WrongDirection),
        (0x0e, b"\0\0", Code::UnknownType),
        (0xff, b"", Code::UnknownType),
    ];
    for (kind, data, code) in cases {
        let packet = Packet { kind, data: Bytes::copy_from_slice(data) };
        assert_eq!(Request::decode(packet), Err(Error { kind, code }), "{kind} {data:?}");
    }
    assert!(Request::decode(Packet { kind: 0x04, data: longest.into() }).is_ok());
}

#[test]
fn bad_packets_of_a_server_are_refused_too() {
    for (kind, data, code) in [
        (0x07, &b"name"[..], Code::BadPayload),
        (0x0a, &[0; 11], Code::BadPayload),
        (0x0d, &[0; 4], Code::BadPayload),
        (0x0e, &[0; 1], Code::BadPayload),
        (0x0f, b"", Code::UnknownType),
    ] {
        let packet = Packet { kind, data: Bytes::copy_from_slice(data) };
        assert_eq!(Response::decode(packet), Err(Error { kind, code }));
    }
    for kind in [0x01, 0x02, 0x03, 0x04, 0x06, 0x08, 0x09, 0x0b, 0x0c] {
        let packet = Packet { kind, data: Bytes::from_static(&[0; 12]) };
        assert_eq!(Response::decode(packet), Err(Error { kind, code: Code::WrongDirection }));
    }
}

#[test]
fn errors_say_what_is_wrong() {
    let codes = [
        (Code::BadMagic, 0x01, "bad magic"),
        (Code::UnknownType, 0x02, "unknown type"),
        (Code::TooLarge, 0x03, "too large"),
        (Code::WrongDirection, 0x04, "wrong direction"),
        (Code::BadPayload, 0x05, "bad payload: a status has 12 bytes"),
        (Code::NoCurrentJob, 0x06, "no current job"),
        (Code::Busy, 0x07, "busy"),
        (Code::BadJobType, 0x08, "bad job type"),
        (Code::BadName, 0x09, "bad name"),
        (Code::QueueFull, 0x0a, "queue full"),
        (Code::GoingDown, 0x0b, "going down"),
    ];
    for (code, number, text) in codes {
        let mut bytes = BytesMut::new();
        Error { kind: 8, code }.encode(Magic::default(), &mut bytes);
        let decoded = Response::decode(only(Parser::client(Options::default()), &bytes)).unwrap();
        assert_eq!(decoded, Response::Error { kind: 8, code: number, text: b(text) });
    }
}

#[test]
fn the_magic_can_be_configured() {
    let magic = Magic::new([0xfe, b'R', b'E', b'Q']).unwrap();
    let mut bytes = BytesMut::new();
    Request::<Bytes>::JobAssign.encode(magic, &mut bytes).unwrap();
    assert_eq!(&bytes[..], b"\xfeREQ\x06\0\0\0\0");
    let mut parser = Parser::server(Options { draft_magic: magic, ..Options::default() });
    // A line may begin like the magic.
    let mut buffer = BytesMut::from(&b"\xfeRE\n"[..]);
    assert_eq!(parser.next(&mut buffer), Ok(Some(Incoming::Line(Bytes::from_static(b"\xfeRE")))));
    let mut parser = Parser::server(Options { draft_magic: magic, ..Options::default() });
    assert!(matches!(parser.next(&mut bytes), Ok(Some(Incoming::Draft(_)))));
    for bytes in [*b"\0REQ", *b"\0RES", *b"\x16\x03\0\0", *b"GRM\0", *b"\x7fGRM"] {
        assert!(Magic::new(bytes).is_err());
    }
}

#[test]
fn a_name_with_a_nul_cannot_be_encoded() {
    let mut out = BytesMut::new();
    let (kind, args) = (JobType::Wait, "\0");
    let job = |name, dupkey| Request::JobCreate { name, dupkey, flags: 0, kind, args };
    assert_eq!(job("a\0", "").encode(Magic::default(), &mut out), Err(EncodeError::Nul("name")));
    assert_eq!(job("a", "\0").encode(Magic::default(), &mut out), Err(EncodeError::Nul("dupkey")));
    let assigned = Response::JobAssign { name: "\0", args };
    assert_eq!(assigned.encode(Magic::default(), &mut out), Err(EncodeError::Nul("name")));
    assert!(out.is_empty());
}
