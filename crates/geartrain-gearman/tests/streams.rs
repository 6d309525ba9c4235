//! Chance as a peer: any bytes, in any pieces. `GEARTRAIN_SEED` repeats a run.

use bytes::{Bytes, BytesMut};
use fastrand::Rng;
use geartrain_gearman::draft::{self, Magic};
use geartrain_gearman::packet::{self, Assignment, Grab, Response};
use geartrain_gearman::{FramingError, Incoming, Options, Parser, text};

const PACKET_BYTES_MAX: u32 = 200;
const LINE_BYTES_MAX: usize = 60;

fn chance() -> Rng {
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

/// A side of a connection: what it reads, and with which magic that begins.
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

/// Pieces of arguments, small and large, of all kinds that packets take.
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

fn data(chance: &mut Rng) -> Vec<u8> {
    let mut data = Vec::new();
    for _ in 0..chance.usize(..9) {
        data.extend_from_slice(ARGUMENTS[chance.usize(..ARGUMENTS.len())]);
        if chance.u8(..4) > 0 {
            data.push(0);
        }
    }
    data.truncate(PACKET_BYTES_MAX as usize);
    data
}

fn length(data: &[u8]) -> [u8; 4] {
    u32::try_from(data.len()).unwrap().to_be_bytes()
}

/// A piece of a stream that can be cut into packets and lines, whatever these mean.
fn valid(chance: &mut Rng, draft: bool) -> Vec<u8> {
    let data = data(chance);
    if draft {
        return [b"\0GRM", &[chance.u8(..14)][..], &length(&data), &data].concat();
    }
    match chance.u8(..8) {
        0..2 => {
            let end = if chance.bool() { "\n" } else { "\r\n" };
            [LINES[chance.usize(..LINES.len())].as_bytes(), end.as_bytes()].concat()
        }
        kind => {
            let magic = if kind < 5 { b"\0REQ" } else { b"\0RES" };
            [magic, &chance.u32(..45).to_be_bytes()[..], &length(&data), &data].concat()
        }
    }
}

fn stream(chance: &mut Rng) -> Vec<u8> {
    let draft = chance.u8(..3) == 0;
    (0..chance.usize(1..8)).flat_map(|_| valid(chance, draft)).collect()
}

fn damage(bytes: &mut Vec<u8>, chance: &mut Rng) {
    const EDGES: [u8; 12] = [0, 1, 0x0a, 0x0d, 0x0e, 0x16, 0x03, 0x7f, 0x80, 0xff, b'R', b' '];
    let place = chance.usize(..=bytes.len());
    match chance.u8(..7) {
        0 => bytes.insert(place, EDGES[chance.usize(..EDGES.len())]),
        1 => bytes.truncate(place),
        2 => drop(bytes.splice(place..place, valid(chance, false))),
        3 => drop(bytes.splice(place..place, valid(chance, true))),
        // The rest needs a byte that is there.
        _ if place == bytes.len() => bytes.push(chance.u8(..)),
        4 => drop(bytes.remove(place)),
        5 => bytes[place] ^= 1 << chance.u8(..8),
        _ => bytes[place] = EDGES[chance.usize(..EDGES.len())],
    }
}

/// What comes out of the pieces, and how it ends. On the way: every step takes something, and what is left waiting is no more than one packet or line.
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

/// Cuts at random places: into few pieces, into many, or into single bytes.
fn cut<'a>(bytes: &'a [u8], chance: &mut Rng) -> Vec<&'a [u8]> {
    let longest = [1, 2, 5, 13, 60, 1000][chance.usize(..6)];
    let (mut rest, mut pieces) = (bytes, Vec::new());
    while !rest.is_empty() {
        let (piece, behind) = rest.split_at(chance.usize(1..=longest).min(rest.len()));
        pieces.push(piece);
        rest = behind;
    }
    pieces
}

/// Understands it, and finds that it says the same when it is written again.
fn understand(side: Side, incoming: Incoming) -> bool {
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
            // The same answer as one without a reducer, and written so.
            Ok(Response::Assign(Assignment { grab: Grab::All, reducer, .. })) if reducer.is_empty() => {}
            // A server that puts a NUL into a handle cannot be repeated.
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
fn streams_mean_the_same_in_whatever_pieces_they_come() {
    let mut chance = chance();
    for round in 0..20_000 {
        let bytes = stream(&mut chance);
        for side in [Side::Server, Side::Client] {
            let (whole, error) = read(side, [&bytes[..]].into_iter());
            assert!(error.is_none(), "round {round}: {error:?} in {:?}", Bytes::from(bytes));
            let pieces = cut(&bytes, &mut chance);
            assert_eq!(read(side, pieces.into_iter()), (whole.clone(), None), "round {round}");
            assert_eq!(read(side, bytes.chunks(1)), (whole, None), "round {round}");
        }
    }
}

#[test]
fn damaged_streams_are_cut_alike_in_whatever_pieces_and_whatever_is_in_them_is_answered() {
    let mut chance = chance();
    let (mut errors, mut understood, mut refused) = (0, 0, 0);
    for round in 0..40_000 {
        let mut bytes = stream(&mut chance);
        for _ in 0..chance.usize(..5) {
            damage(&mut bytes, &mut chance);
        }
        for side in [Side::Server, Side::Client] {
            let whole = read(side, [&bytes[..]].into_iter());
            let pieces = cut(&bytes, &mut chance);
            assert_eq!(read(side, pieces.into_iter()), whole, "round {round}: {:?}", Bytes::from(bytes));
            let (incoming, error) = whole;
            for incoming in incoming {
                if understand(side, incoming) { understood += 1 } else { refused += 1 }
            }
            if let Some(error) = error {
                errors += 1;
                error.encode_reply(Magic::default(), &mut BytesMut::new());
            }
        }
    }
    let enough = errors > 10_000 && understood > 50_000 && refused > 50_000;
    assert!(enough, "{errors} errors, {understood} understood, {refused} refused");
}

#[test]
fn noise_is_survived() {
    let mut chance = chance();
    for round in 0..100_000 {
        let mut bytes: Vec<u8> = match chance.u8(..4) {
            0 => b"\0REQ\0\0\0".to_vec(),
            1 => b"\0GRM".to_vec(),
            2 => b"\0RES\0\0\0".to_vec(),
            _ => Vec::new(),
        };
        bytes.extend((0..chance.usize(..80)).map(|_| chance.u8(..)));
        for side in [Side::Server, Side::Client] {
            let whole = read(side, [&bytes[..]].into_iter());
            let pieces = cut(&bytes, &mut chance);
            assert_eq!(read(side, pieces.into_iter()), whole, "round {round}: {:?}", Bytes::from(bytes));
            for incoming in whole.0 {
                understand(side, incoming);
            }
        }
    }
}

#[test]
fn packets_of_every_type_with_any_data_are_answered() {
    let mut chance = chance();
    for _ in 0..100_000 {
        let data = Bytes::from(data(&mut chance));
        let kind = chance.u32(..45);
        understand(Side::Server, Incoming::Packet(packet::Packet { kind, data: data.clone() }));
        understand(Side::Client, Incoming::Packet(packet::Packet { kind, data: data.clone() }));
        let kind = chance.u8(..16);
        understand(Side::Server, Incoming::Draft(draft::Packet { kind, data: data.clone() }));
        understand(Side::Client, Incoming::Draft(draft::Packet { kind, data }));
    }
}

#[test]
fn a_buffer_full_of_small_packets_is_cut_into_all_of_them() {
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
