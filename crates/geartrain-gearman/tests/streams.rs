//! Fuzzing the parser and the decoders: random bytes in random pieces. `GEARTRAIN_SEED` repeats a run.

use bytes::{Bytes, BytesMut};
use fastrand::Rng;
use geartrain_gearman::draft::{self, Magic};
use geartrain_gearman::packet::{self, Assignment, Grab, Response};
use geartrain_gearman::{FramingError, Incoming, Options, Parser, text};

const PACKET_BYTES_MAX: u32 = 200;
const LINE_BYTES_MAX: usize = 60;

fn rng() -> Rng {
    let seed = match std::env::var("GEARTRAIN_SEED") {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => u64::from(std::process::id()),
    };
    println!("GEARTRAIN_SEED={seed}");
    Rng::with_seed(seed)
}

fn options() -> Options {
    let (packet_bytes_max, line_bytes_max) = (PACKET_BYTES_MAX, LINE_BYTES_MAX);
    Options { packet_bytes_max, line_bytes_max, ..Options::default() }
}

/// A side of a connection, which determines the magic that it expects.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    Server,
    Client,
}

impl Side {
    fn parser(self) -> Parser {
        match self {
            Side::Server => Parser::server(options()),
            Side::Client => Parser::client(options()),
        }
    }
}

/// Fragments of arguments of all kinds.
const ARGUMENTS: [&[u8]; 14] = [
    b"",
    b"\0",
    b"\0\0",
    b"resize",
    b"H:lap:1",
    b"0",
    b"17",
    b"-1",
    b"99999999999999999999",
    b"exceptions",
    b"\0REQ",
    b"\x01\x01",
    b"0123456789012345678901234567890123456789012345678901234567890123456789",
    b"\xff\xfe\n",
];

const LINES: [&str; 12] = [
    "status",
    "workers ",
    "show jobs",
    "show unique jobs",
    "cancel job H:lap:1",
    "create function resize",
    "drop function resize",
    "maxqueue resize 1 2 3",
    "maxqueue",
    "version",
    "shutdown graceful",
    "dance  with me",
];

fn data(rng: &mut Rng) -> Vec<u8> {
    let mut data = Vec::new();
    for _ in 0..rng.usize(..9) {
        data.extend_from_slice(ARGUMENTS[rng.usize(..ARGUMENTS.len())]);
        if rng.u8(..4) > 0 {
            data.push(0);
        }
    }
    data.truncate(PACKET_BYTES_MAX as usize);
    data
}

fn length(data: &[u8]) -> [u8; 4] {
    u32::try_from(data.len()).unwrap().to_be_bytes()
}

/// One packet or line that can be framed, whatever it means.
fn valid(rng: &mut Rng, draft: bool) -> Vec<u8> {
    let data = data(rng);
    if draft {
        return [b"\0GRM", &[rng.u8(..14)][..], &length(&data), &data].concat();
    }
    match rng.u8(..8) {
        0..2 => {
            let end = if rng.bool() { "\n" } else { "\r\n" };
            [LINES[rng.usize(..LINES.len())].as_bytes(), end.as_bytes()].concat()
        }
        kind => {
            let magic = if kind < 5 { b"\0REQ" } else { b"\0RES" };
            [magic, &rng.u32(..45).to_be_bytes()[..], &length(&data), &data].concat()
        }
    }
}

fn stream(rng: &mut Rng) -> Vec<u8> {
    let draft = rng.u8(..3) == 0;
    (0..rng.usize(1..8)).flat_map(|_| valid(rng, draft)).collect()
}

fn damage(bytes: &mut Vec<u8>, rng: &mut Rng) {
    const EDGES: [u8; 12] = [0, 1, 0x0a, 0x0d, 0x0e, 0x16, 0x03, 0x7f, 0x80, 0xff, b'R', b' '];
    let place = rng.usize(..=bytes.len());
    match rng.u8(..7) {
        0 => bytes.insert(place, EDGES[rng.usize(..EDGES.len())]),
        1 => bytes.truncate(place),
        2 => drop(bytes.splice(place..place, valid(rng, false))),
        3 => drop(bytes.splice(place..place, valid(rng, true))),
        // The other kinds of damage need an existing byte.
        _ if place == bytes.len() => bytes.push(rng.u8(..)),
        4 => drop(bytes.remove(place)),
        5 => bytes[place] ^= 1 << rng.u8(..8),
        _ => bytes[place] = EDGES[rng.usize(..EDGES.len())],
    }
}

/// Parses the pieces into packets and lines, up to an error. Every step must consume something, and no more
/// than one packet or line may stay buffered.
fn read<'a>(side: Side, pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<Incoming>, Option<FramingError>) {
    let (mut parser, mut buffer, mut all) = (side.parser(), BytesMut::new(), Vec::new());
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            let before = buffer.len();
            match parser.next(&mut buffer) {
                Ok(Some(incoming)) => {
                    assert!(buffer.len() < before, "{incoming:?} took nothing");
                    all.push(incoming);
                }
                Ok(None) => break,
                Err(error) => {
                    assert_eq!(parser.next(&mut buffer), Err(error.clone()));
                    return (all, Some(error));
                }
            }
        }
        assert!(buffer.len() < 12 + PACKET_BYTES_MAX as usize, "{} bytes wait", buffer.len());
        assert!(parser.bytes_wanted(&buffer) <= 12 + PACKET_BYTES_MAX as usize);
    }
    (all, None)
}

/// Cuts at random positions: into few pieces, many, or single bytes.
fn cut<'a>(bytes: &'a [u8], rng: &mut Rng) -> Vec<&'a [u8]> {
    let longest = [1, 2, 5, 13, 60, 1000][rng.usize(..6)];
    let (mut rest, mut pieces) = (bytes, Vec::new());
    while !rest.is_empty() {
        let (piece, behind) = rest.split_at(rng.usize(1..=longest).min(rest.len()));
        pieces.push(piece);
        rest = behind;
    }
    pieces
}

/// Decodes it, and checks that encoding yields the same again. Returns whether it was valid.
fn check_round_trip(side: Side, incoming: Incoming) -> bool {
    let mut out = BytesMut::new();
    match (side, incoming) {
        (Side::Server, Incoming::Packet(packet)) => match packet::Request::decode(packet) {
            Ok(request) => {
                request.encode(&mut out).unwrap();
                let again = packet::Request::decode(packet_in(Parser::server(Options::default()), out));
                assert_eq!(again, Ok(request));
            }
            Err(fault) => {
                fault.encode(&mut out);
                let code = Bytes::from_static(fault.code().as_bytes());
                let again = Response::decode(packet_in(Parser::client(Options::default()), out));
                assert_eq!(again, Ok(Response::Error { code, text: fault.to_string().into() }));
                return false;
            }
        },
        (Side::Client, Incoming::Packet(packet)) => match Response::decode(packet) {
            // Encoded like an assignment without a reducer.
            Ok(Response::Assign(Assignment { grab: Grab::All, reducer, .. })) if reducer.is_empty() => {}
            // A handle with a NUL cannot be encoded.
            Ok(Response::JobCreated { handle }) if handle.contains(&0) => {}
            Ok(response) => {
                response.encode(&mut out).unwrap();
                let again = Response::decode(packet_in(Parser::client(Options::default()), out));
                assert_eq!(again, Ok(response));
            }
            Err(_) => return false,
        },
        (Side::Server, Incoming::Draft(packet)) => match draft::Request::decode(packet) {
            Ok(request) => {
                request.encode(Magic::default(), &mut out).unwrap();
                let again = draft::Request::decode(draft_in(Parser::server(Options::default()), out));
                assert_eq!(again, Ok(request));
            }
            Err(error) => {
                error.encode(Magic::default(), &mut out);
                let again = draft::Response::decode(draft_in(Parser::client(Options::default()), out));
                let (kind, code, text) = (error.kind, error.code as u8, error.to_string().into());
                assert_eq!(again, Ok(draft::Response::Error { kind, code, text }));
                return false;
            }
        },
        (Side::Client, Incoming::Draft(packet)) => match draft::Response::decode(packet) {
            Ok(response) => {
                response.encode(Magic::default(), &mut out).unwrap();
                let again = draft::Response::decode(draft_in(Parser::client(Options::default()), out));
                assert_eq!(again, Ok(response));
            }
            Err(_) => return false,
        },
        (_, Incoming::Line(line)) => {
            assert!(line.len() <= LINE_BYTES_MAX && !line.contains(&b'\n'));
            if let Err(refused) = text::Command::parse(&line, true) {
                refused.write(&mut out);
                assert!(out.starts_with(b"ERR ") && out.ends_with(b"\r\n"));
                assert_eq!(out.iter().filter(|byte| **byte == b'\n').count(), 1);
                return false;
            }
        }
        (_, Incoming::Misdirected { .. }) => {}
    }
    true
}

fn packet_in(mut parser: Parser, mut bytes: BytesMut) -> packet::Packet {
    let Ok(Some(Incoming::Packet(packet))) = parser.next(&mut bytes) else { panic!("{bytes:?}") };
    assert!(bytes.is_empty());
    packet
}

fn draft_in(mut parser: Parser, mut bytes: BytesMut) -> draft::Packet {
    let Ok(Some(Incoming::Draft(packet))) = parser.next(&mut bytes) else { panic!("{bytes:?}") };
    assert!(bytes.is_empty());
    packet
}

#[test]
fn parsing_does_not_depend_on_how_a_stream_is_cut() {
    let mut rng = rng();
    for round in 0..20_000 {
        let bytes = stream(&mut rng);
        for side in [Side::Server, Side::Client] {
            let (whole, error) = read(side, [&bytes[..]].into_iter());
            assert!(error.is_none(), "round {round}: {error:?} in {:?}", Bytes::from(bytes));
            let pieces = cut(&bytes, &mut rng);
            assert_eq!(read(side, pieces.into_iter()), (whole.clone(), None), "round {round}");
            assert_eq!(read(side, bytes.chunks(1)), (whole, None), "round {round}");
        }
    }
}

#[test]
fn damaged_streams_parse_alike_however_they_are_cut_and_every_packet_is_answered() {
    let mut rng = rng();
    let (mut errors, mut decoded, mut refused) = (0, 0, 0);
    for round in 0..40_000 {
        let mut bytes = stream(&mut rng);
        for _ in 0..rng.usize(..5) {
            damage(&mut bytes, &mut rng);
        }
        for side in [Side::Server, Side::Client] {
            let whole = read(side, [&bytes[..]].into_iter());
            let pieces = cut(&bytes, &mut rng);
            assert_eq!(read(side, pieces.into_iter()), whole, "round {round}: {:?}", Bytes::from(bytes));
            let (incoming, error) = whole;
            for incoming in incoming {
                if check_round_trip(side, incoming) { decoded += 1 } else { refused += 1 }
            }
            if let Some(error) = error {
                errors += 1;
                error.encode_reply(Magic::default(), &mut BytesMut::new());
            }
        }
    }
    let enough = errors > 10_000 && decoded > 50_000 && refused > 50_000;
    assert!(enough, "{errors} errors, {decoded} decoded, {refused} refused");
}

#[test]
fn random_bytes_never_panic() {
    let mut rng = rng();
    for round in 0..100_000 {
        let mut bytes: Vec<u8> = match rng.u8(..4) {
            0 => b"\0REQ\0\0\0".to_vec(),
            1 => b"\0GRM".to_vec(),
            2 => b"\0RES\0\0\0".to_vec(),
            _ => Vec::new(),
        };
        bytes.extend((0..rng.usize(..80)).map(|_| rng.u8(..)));
        for side in [Side::Server, Side::Client] {
            let whole = read(side, [&bytes[..]].into_iter());
            let pieces = cut(&bytes, &mut rng);
            assert_eq!(read(side, pieces.into_iter()), whole, "round {round}: {:?}", Bytes::from(bytes));
            for incoming in whole.0 {
                check_round_trip(side, incoming);
            }
        }
    }
}

#[test]
fn packets_of_every_type_with_any_data_are_answered() {
    let mut rng = rng();
    for _ in 0..100_000 {
        let data = Bytes::from(data(&mut rng));
        let kind = rng.u32(..45);
        check_round_trip(Side::Server, Incoming::Packet(packet::Packet { kind, data: data.clone() }));
        check_round_trip(Side::Client, Incoming::Packet(packet::Packet { kind, data: data.clone() }));
        let kind = rng.u8(..16);
        check_round_trip(Side::Server, Incoming::Draft(draft::Packet { kind, data: data.clone() }));
        check_round_trip(Side::Client, Incoming::Draft(draft::Packet { kind, data }));
    }
}

#[test]
fn a_buffer_of_small_packets_is_parsed_completely() {
    let packet = b"\0REQ\0\0\0\x07\0\0\0\x0dresize\0u1\0abc";
    let many = packet.repeat(256 * 1024 / packet.len());
    let (mut parser, mut buffer, mut count) =
        (Parser::server(Options::default()), BytesMut::from(&many[..]), 0);
    while let Some(incoming) = parser.next(&mut buffer).unwrap() {
        let Incoming::Packet(packet) = incoming else { panic!("{incoming:?}") };
        assert_eq!((packet.kind, packet.data.len()), (7, 13));
        count += 1;
    }
    assert_eq!(count, many.len() / packet.len());
    assert!(buffer.is_empty());
}
