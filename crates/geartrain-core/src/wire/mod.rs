//! The wire format: requests of a driver and answers of a queue as MessagePack. docs/formats/wire.md
//! specifies it.
//!
//! ```
//! use geartrain_core::wire::Request;
//! use geartrain_core::{Call, Length, QueueName};
//! let request = Request::Batch(vec![Call::from(Length { queue: QueueName::new("mail")? })]);
//! assert_eq!(Request::decode(&request.encode())?, request);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod batch;
mod msgpack;

pub use batch::AnswerPieces;
pub use msgpack::DecodeError;

use std::convert::Infallible;
use std::fmt;

use serde::de::{self, DeserializeOwned, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use crate::payload::{unwrap_bytes, wrap_bytes};
use crate::{
    Answer, BackupStep, Call, Count, Event, Jid, Payload, Pop, PopReply, PositionedEvent, QlessState,
    QueueName, Refusal, Seconds, StreamMessage, Timestamp, Token, Traceparent, UniqueKey,
};

/// The version of the format.
pub const VERSION: u8 = 1;

/// A request of a driver, that is a process that uses a queue in another process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Request {
    /// Commands to execute in order. Answered with [`Answers`].
    Batch(Vec<Call>),
    /// Pops, and parks the pops that find no job. Answered with a list of [`ParkReply`].
    #[serde(rename = "Wait")]
    Park {
        /// The id of the process whose pops are parked.
        process: String,
        /// The time by the caller's clock.
        now: Option<Timestamp>,
        /// The pops. One that is parked already stays parked.
        waits: Vec<ParkedPop>,
        /// Whether to run a [`Tick`](crate::Tick) first. Needed on a Redis, which has no background task.
        #[serde(default)]
        tick: bool,
    },
    /// Removes a parked pop. Answered with nil.
    #[serde(rename = "Awake")]
    Unpark {
        /// The id of the process.
        process: String,
        /// The number of the parked pop.
        number: u64,
    },
    /// Starts to retain events. Answered with the position of the newest event.
    Listen {
        /// The time by the caller's clock.
        now: Option<Timestamp>,
    },
    /// Reads the events after a position. Answered with [`EventsReply`].
    Since {
        /// The position.
        after: u64,
        /// How many events at most.
        count: Count,
    },
    /// Begins a backup, which ends with the connection. Answered with [`BackupReply`]. A Redis makes none.
    Backup {
        /// The absolute path of the directory to write, on the server's machine; if not given, the archive
        /// goes to the caller.
        directory: Option<String>,
    },
    /// Waits for the next step of the backup that this connection began. Answered with [`BackupReply`].
    BackupNext,
}

/// A parked pop: a worker that waits for a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ParkedPop {
    /// Its number within the process.
    pub number: u64,
    /// The pop. With a count of 0 it waits only for a notice that there is a job.
    pub pop: Pop,
    /// The longest wait.
    pub wait: Seconds,
}

/// The reply to a [`ParkedPop`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ParkReply {
    /// The popped jobs. Empty if the pop has a count of 0 and there is a job to pop.
    Popped(PopReply),
    /// There is no job yet: the pop is parked.
    #[serde(rename = "Asleep")]
    Parked {
        /// When the next job falls due, if known.
        next: Option<Timestamp>,
    },
    /// The pop was refused.
    Refused(Refusal),
}

/// A notice to a process with parked pops.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ParkedPopNotice {
    /// A parked pop is served.
    Popped {
        /// The number of the parked pop.
        number: u64,
        /// The popped jobs.
        reply: Result<PopReply, Refusal>,
    },
    /// There may be a job in this queue: the first pop parked on it should try again.
    Wake(QueueName),
    /// There may be a job in this queue: notify all parked pops with a count of 0.
    Ready(QueueName),
}

/// The reply to [`Request::Since`]: events with their positions.
pub type EventsReply = Result<Vec<EventRecord>, Refusal>;

/// The reply to [`Request::Backup`] and [`Request::BackupNext`]: the next step. A chunk is binary, all other
/// steps are like any other message.
pub type BackupReply = Result<BackupStep, Refusal>;

/// MessagePack's mark of binary data with a length of four bytes.
const BIN32: u8 = 0xc6;

impl Message for BackupReply {
    fn encode_message(&self) -> Vec<u8> {
        let Ok(BackupStep::Chunk(chunk)) = self else { return encode_value(self) };
        let mut bytes = Vec::with_capacity(5 + chunk.len());
        bytes.push(BIN32);
        bytes.extend((chunk.len() as u32).to_be_bytes());
        bytes.extend(chunk);
        bytes
    }

    fn decode_message(bytes: &[u8]) -> Result<BackupReply, DecodeError> {
        let [BIN32, rest @ ..] = bytes else { return decode_value(bytes) };
        let cut_off = || DecodeError("the chunk is cut off".into());
        let (length, chunk) = rest.split_first_chunk::<4>().ok_or_else(cut_off)?;
        let chunk = chunk.get(..u32::from_be_bytes(*length) as usize).ok_or_else(cut_off)?;
        Ok(Ok(BackupStep::Chunk(chunk.to_vec())))
    }
}

/// A message with new events: the number of messages on Qless's channels that follow for them, and the events
/// with their positions.
pub type EventBatch = (u64, Vec<EventRecord>);

/// An event on the wire.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct EventRecord {
    /// Its position in the event log.
    pub position: u64,
    /// The event.
    pub event: Event,
    /// When it happened; unknown if a version retained it that did not store it.
    #[serde(default)]
    pub at: Option<Timestamp>,
}

impl From<&PositionedEvent> for EventRecord {
    fn from(event: &PositionedEvent) -> EventRecord {
        EventRecord { position: event.position, event: Event::clone(&event.event), at: event.at }
    }
}

/// The answers to a [`Request::Batch`], one per command.
pub type Answers = Vec<Answer>;

/// A request or answer that cannot be decoded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BadWire {
    /// It has another version of the format.
    #[error("this is version {version} of the wire, and version {VERSION} is spoken here")]
    Version {
        /// The version of the message.
        version: u64,
    },
    /// It is malformed.
    #[error("what came cannot be read: {0}")]
    Unreadable(#[from] DecodeError),
}

impl Request {
    /// Encodes the request.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Request::Batch(calls) => batch::write_batch(calls),
            other => encode_value(&(VERSION, other)),
        }
    }

    /// Decodes a request.
    pub fn decode(bytes: &[u8]) -> Result<Request, BadWire> {
        if let Some(calls) = batch::read_batch(bytes).map_err(|why| DecodeError(why.into()))? {
            return Ok(Request::Batch(calls));
        }
        // The version is checked first: of another version, nothing else can be decoded.
        match bytes {
            [0x92, VERSION, rest @ ..] => Ok(decode_value(rest)?),
            _ => match decode_value::<(u64, de::IgnoredAny)>(bytes)? {
                (version, _) if version != u64::from(VERSION) => Err(BadWire::Version { version }),
                _ => Ok(decode_value::<(u64, Request)>(bytes)?.1),
            },
        }
    }
}

/// Encodes the answers to a batch.
pub fn encode_answers(answers: &[Answer]) -> Vec<u8> {
    batch::write_answers(answers)
}

/// Decodes the answers to a batch.
pub fn decode_answers(bytes: &[u8]) -> Result<Answers, BadWire> {
    match batch::read_answers(bytes) {
        Some(answers) => Ok(answers),
        None => Ok(decode(bytes)?),
    }
}

/// A message other than a [`Request`] or the [`Answers`] to a batch.
///
/// The implementations are compiled once, in this crate: a generic function would be compiled again in each
/// crate that sends or receives messages.
pub trait Message: Sized {
    /// Encodes the message, see [`encode`].
    fn encode_message(&self) -> Vec<u8>;
    /// Decodes a message, see [`decode`].
    fn decode_message(bytes: &[u8]) -> Result<Self, DecodeError>;
}

macro_rules! messages {
    ($($type:ty),* $(,)?) => {
        $(impl Message for $type {
            fn encode_message(&self) -> Vec<u8> {
                encode_value(self)
            }

            fn decode_message(bytes: &[u8]) -> Result<Self, DecodeError> {
                decode_value(bytes)
            }
        })*
    };
}

messages! { (), u64, Answer, Answers, Vec<ParkReply>, ParkedPopNotice, EventsReply, EventBatch, StreamMessage }

/// Encodes a message.
pub fn encode(message: &impl Message) -> Vec<u8> {
    message.encode_message()
}

/// Decodes a message. Bytes behind it are ignored.
pub fn decode<T: Message>(bytes: &[u8]) -> Result<T, DecodeError> {
    T::decode_message(bytes)
}

/// Encodes any value as serde does. For tests of messages that are not valid.
#[doc(hidden)]
pub fn encode_value(value: &impl Serialize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(128);
    write(value, &mut bytes);
    bytes
}

fn write(value: &impl Serialize, to: &mut Vec<u8>) {
    // Our types consist of numbers, texts and sequences of known length, and writing to memory cannot fail.
    value.serialize(&mut rmp_serde::Serializer::new(to)).expect("our own types can be encoded in memory");
}

/// Decodes any value as serde does. For tests that compare the batch codec with serde.
#[doc(hidden)]
pub fn decode_value<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    T::deserialize(&mut msgpack::Decoder::new(bytes))
}

/// Decodes a job's state in Qless's word.
pub(crate) fn qless_state<'de, D: Deserializer<'de>>(from: D) -> Result<QlessState, D::Error> {
    from.deserialize_str(Text(|text: &str| match text {
        "scheduled" => Ok("scheduled"),
        "depends" => Ok("depends"),
        "waiting" => Ok("waiting"),
        "running" => Ok("running"),
        "stalled" => Ok("stalled"),
        "complete" => Ok("complete"),
        "failed" => Ok("failed"),
        other => Err(format!("{other:?} is not a state of a Qless job")),
    }))
}

/// A visitor that parses a text.
pub(crate) struct Text<F>(pub(crate) F);

impl<T, E: fmt::Display, F: FnOnce(&str) -> Result<T, E>> Visitor<'_> for Text<F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_str<Error: de::Error>(self, text: &str) -> Result<T, Error> {
        (self.0)(text).map_err(Error::custom)
    }
}

// Redis scripts handle texts, not bytes. So a payload travels as text, as in the job's hash: see
// `Payload::to_json`.

impl Serialize for Payload {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.to_json())
    }
}

impl<'de> Deserialize<'de> for Payload {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Payload, D::Error> {
        from.deserialize_str(Text(|text: &str| Ok::<_, Infallible>(Payload::from_json(text))))
    }
}

impl Serialize for UniqueKey {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(self.as_bytes()) {
            Ok(text) if unwrap_bytes(text).is_none() => to.serialize_str(text),
            _ => to.serialize_str(&wrap_bytes(self.as_bytes())),
        }
    }
}

impl<'de> Deserialize<'de> for UniqueKey {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<UniqueKey, D::Error> {
        from.deserialize_str(Text(|text: &str| match unwrap_bytes(text) {
            Some(bytes) => UniqueKey::new(bytes),
            None => UniqueKey::new(text),
        }))
    }
}

impl Serialize for Traceparent {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Traceparent {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Traceparent, D::Error> {
        from.deserialize_str(Text(|text: &str| text.parse::<Traceparent>()))
    }
}

impl Serialize for Token {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Token {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Token, D::Error> {
        from.deserialize_str(Text(str::parse))
    }
}

impl Serialize for Jid {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.with_str(|text| to.serialize_str(text))
    }
}

impl<'de> Deserialize<'de> for Jid {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Jid, D::Error> {
        from.deserialize_str(Text(|text: &str| Jid::new(text)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        BackupSummary, Complete, DependencyPolicy, Fail, Get, Group, Holder, Klass, Portion, Progress,
        Progressed, Put, PutOptions, QueueName, Release, Reply, StreamItem, WorkerName,
    };

    fn jid() -> Jid {
        Jid::new("j1").unwrap()
    }

    #[test]
    fn every_step_of_a_backup_arrives_as_it_was_sent() {
        let summary = BackupSummary {
            directory: Some("/copy".into()),
            jobs: 3,
            seconds: 0.5,
            ..BackupSummary::default()
        };
        for reply in [
            Ok(BackupStep::Copied { bytes: 1, bytes_expected: 2 }),
            Ok(BackupStep::Chunk(vec![])),
            Ok(BackupStep::Chunk((0..=255).collect())),
            Ok(BackupStep::Done(summary)),
            Err(Refusal::Backup { why: "no".into() }),
        ] {
            let bytes = encode(&reply);
            assert_eq!(decode::<BackupReply>(&bytes).unwrap(), reply);
            for end in 0..bytes.len() {
                assert!(decode::<BackupReply>(&bytes[..end]).is_err(), "{end} of {reply:?}");
            }
        }
        for request in [
            Request::Backup { directory: Some("/copy".into()) },
            Request::Backup { directory: None },
            Request::BackupNext,
        ] {
            assert_eq!(Request::decode(&request.encode()).unwrap(), request);
        }
    }

    #[test]
    fn a_batch_is_encoded_as_docs_formats_wire_md_says() {
        let bytes = Request::Batch(vec![Call::at(Timestamp::from(7), Get { jid: jid() })]).encode();
        assert_eq!(bytes, b"\x92\x01\x81\xa5Batch\x91\x92\xcb\x40\x1c\0\0\0\0\0\0\x81\xa3Get\x91\xa2j1");
    }

    #[test]
    fn plain_commands_are_encoded_as_runs() {
        let now = Some(Timestamp::from(7));
        let put = Put::new(QueueName::new("q").unwrap(), jid(), Klass::new("k").unwrap(), "[]");
        let complete = Complete::new(jid(), Holder::Token(Token::new(9)));
        let with_retries = Put { retries: Some(1), ..put.clone() };
        let other_queue = Put { queue: QueueName::new("r").unwrap(), ..put.clone() };
        let commands: [crate::Command; 6] = [
            put.clone().into(),
            put.into(),
            other_queue.into(),
            with_retries.into(),
            complete.clone().into(),
            complete.into(),
        ];
        let calls: Vec<Call> =
            commands.into_iter().map(|command| Call { now, ..Call::from(command) }).collect();
        let bytes = Request::Batch(calls.clone()).encode();
        let written: [&[u8]; 6] = [
            b"\x92\x01\x81\xa5Batch\x94",
            b"\x92\xcb\x40\x1c\0\0\0\0\0\0\x81\xa4Puts\x93\xa1q\xa1k\x94\xa2j1\xa2[]\xa2j1\xa2[]",
            b"\x92\xcb\x40\x1c\0\0\0\0\0\0\x81\xa4Puts\x93\xa1r\xa1k\x92\xa2j1\xa2[]",
            b"\x92\xcb\x40\x1c\0\0\0\0\0\0\x81\xa3Put\x9d\xa1q\xa2j1\xa1k\xa2[]",
            b"\xcb\0\0\0\0\0\0\0\0\xc0\x01\xc0\x90\xc0\xa4Keep\xa6Refuse\xc0",
            b"\x92\xcb\x40\x1c\0\0\0\0\0\0\x81\xa9Completes\x91\x94\xa2j1\xac9.4294967295\xa2j1\xac9.4294967295",
        ];
        assert_eq!(bytes, written.concat());
        assert_eq!(Request::decode(&bytes).unwrap(), Request::Batch(calls.clone()));
        // Commands outside runs are decoded too.
        assert_eq!(
            Request::decode(&encode_value(&(VERSION, Request::Batch(calls.clone())))).unwrap(),
            Request::Batch(calls)
        );
    }

    #[test]
    fn answers_of_a_script_with_field_names_are_decoded() {
        let nothing: Answer = Ok(Reply::Get(None));
        assert_eq!(decode::<Answer>(b"\x81\xa2Ok\x81\xa3Get\xc0").unwrap(), nothing);
        let refused: Answer = Err(Refusal::NoSuchJob { jid: jid() });
        assert_eq!(decode::<Answer>(b"\x81\xa3Err\x81\xa9NoSuchJob\x81\xa3jid\xa2j1").unwrap(), refused);
        // A script encodes a whole number as an integer.
        assert_eq!(
            decode::<Answer>(b"\x81\xa2Ok\x81\xa9Heartbeat\x07").unwrap(),
            Ok(Reply::Heartbeat(Timestamp::from(7)))
        );
    }

    #[test]
    fn decoded_values_are_validated() {
        let no_name = b"\x92\x01\x81\xa5Batch\x91\x92\xc0\x81\xa3Get\x91\xa0";
        assert!(Request::decode(no_name).unwrap_err().to_string().contains("a jid needs at least one byte"));
        let not_finite = b"\x92\x01\x81\xa5Batch\x91\x92\xcb\x7f\xf0\0\0\0\0\0\0\x81\xa3Get\x91\xa1j";
        assert!(Request::decode(not_finite).unwrap_err().to_string().contains("finite"));
        let next = Request::decode(b"\x92\x02\x81\xa5Dance\x90").unwrap_err();
        assert_eq!(next.to_string(), "this is version 2 of the wire, and version 1 is spoken here");
        assert!(Request::decode(b"\x92\x01\x81\xa5Batch\xdd\xff\xff\xff\xff").is_err());
        for (run, why) in [
            (&b"\x81\xa4Puts\x93\xa1q\xa1k\x92\xa0\xa2[]"[..], "a jid needs at least one byte"),
            (b"\x81\xa4Puts\x93\xa1q\xa1k\x91\xa1j", "two texts for each"),
            (b"\x81\xa4Puts\x93\xa1q\xa1k\xdd\xff\xff\xff\xfe\xa1j", "at most 10000"),
            (b"\x81\xa4Puts\x93\xa1q\xa1k\x92\xa1j", "missing in a run"),
            (b"\x81\xa9Completes\x91\x92\xa1j\xa1x", "token"),
            (b"\x81\xa3Get\x91\xa0", "a jid needs at least one byte"),
        ] {
            let good = b"\x92\xc0\x81\xa4Puts\x93\xa1q\xa1k\x92\xa1j\xa2[]";
            let bytes = [b"\x92\x01\x81\xa5Batch\x92", &good[..], b"\x92\xc0", run].concat();
            let error = Request::decode(&bytes).unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
        }
        assert!(Request::decode(b"").is_err());
    }

    #[test]
    fn fields_that_older_programs_do_not_send_are_none() {
        // Put options without metadata, and progress without text.
        let options = b"\x9a\xc0\xc0\xa6Always\xa4Keep\xc0\xc0\xc0\xc0\xc0\xc2";
        assert_eq!(decode_value::<PutOptions>(options).unwrap(), PutOptions::default());
        let progressed = Progressed { portion: Portion::unchecked(5, 4), seconds_left: None };
        let progress = Progress::new(jid(), Holder::Token(Token::new(9)), progressed);
        let bytes = encode_value(&progress);
        let (Some((0x94, rest)), Some(0xc0)) = (bytes.split_first(), bytes.last()) else {
            panic!("expected four fields, the last nil: {bytes:x?}")
        };
        let older = [&[0x93], &rest[..rest.len() - 1]].concat();
        assert_eq!(decode_value::<Progress>(&older).unwrap(), progress);
        let item = StreamItem::Progress { progress: progressed, text: None };
        assert_eq!(decode_value::<StreamItem>(b"\x81\xa8Progress\x91\x92\x92\x05\x04\xc0").unwrap(), item);
        assert_eq!(encode_value(&item), b"\x81\xa8Progress\x92\x92\x92\x05\x04\xc0\xc0");
    }

    #[test]
    fn last_fields_without_a_value_are_left_out() {
        let plain = Release::new(jid(), Holder::Worker(WorkerName::new("w1").unwrap()));
        let told = Release { message: Some("m".into()), ..plain.clone() };
        let snoozed = Release { delay: Seconds::from(5), ..plain.clone() };
        for (release, fields, ending) in [
            (plain, 0x92, &b"\xa2w1"[..]),
            (told, 0x93, b"\xa2w1\xa1m"),
            (snoozed, 0x94, b"\xa2w1\xc0\xcb\x40\x14\0\0\0\0\0\0"),
        ] {
            let bytes = encode_value(&release);
            assert_eq!((bytes[0], &bytes[bytes.len() - ending.len()..]), (fields, ending), "{release:?}");
            assert_eq!(decode_value::<Release>(&bytes).unwrap(), release);
        }
        let text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let traced = PutOptions { traceparent: Some(text.parse().unwrap()), ..PutOptions::default() };
        let skipped = PutOptions { on_dependency_failure: DependencyPolicy::Skip, ..PutOptions::default() };
        let ending = [b"\xa4Wait\xd9\x37", text.as_bytes()].concat();
        for (options, fields, ending) in [
            (PutOptions::default(), 0x9b, &b"\xc0"[..]),
            (skipped, 0x9c, b"\xa4Skip"),
            (traced, 0x9d, &ending),
        ] {
            let bytes = encode_value(&options);
            assert_eq!((bytes[0], &bytes[bytes.len() - ending.len()..]), (fields, ending), "{options:?}");
            assert_eq!(decode_value::<PutOptions>(&bytes).unwrap(), options);
        }
        let wrong = encode_value(&(text.to_uppercase(),));
        assert!(decode_value::<(Traceparent,)>(&wrong).is_err());
    }

    #[test]
    fn names_of_gearman_functions_are_decoded_and_longer_ones_refused() {
        let put = |bytes| {
            let (queue, klass) = ("q".repeat(bytes), "k".repeat(bytes));
            // Encoded as plain text, because no such name can be constructed.
            let put = (queue, "j1", klass, "{}", 0.0, (), (), (), [(); 0], (), "Keep", "Refuse", ());
            let batch = [((), std::collections::BTreeMap::from([("Put", put)]))];
            encode_value(&(VERSION, std::collections::BTreeMap::from([("Batch", batch)])))
        };
        let Request::Batch(calls) = Request::decode(&put(4096)).unwrap() else { panic!("not a batch") };
        let long = QueueName::of_function("q".repeat(4096)).unwrap();
        assert!(matches!(&calls[0].command, crate::Command::Put(put) if put.queue == long));
        let again = Request::Batch(calls.clone()).encode();
        assert!(matches!(Request::decode(&again), Ok(Request::Batch(decoded)) if decoded == calls));
        let error = Request::decode(&put(4097)).unwrap_err().to_string();
        assert!(error.contains("a queue has at most 4096 bytes, this one has 4097"), "{error}");
    }

    #[test]
    fn payloads_and_unique_keys_may_be_any_bytes() {
        let key = UniqueKey::new([0, 255, 7]).unwrap();
        let options =
            PutOptions { unique: Some(key), metadata: Some(b"\xff\0".into()), ..PutOptions::default() };
        assert_eq!(decode_value::<PutOptions>(&encode_value(&options)).unwrap(), options);
        let fail = Fail {
            payload: Some((&[0xff, 0xfe][..]).into()),
            ..Fail::new(jid(), Holder::Token(Token::new(9)), Group::new("g").unwrap(), "m")
        };
        assert_eq!(decode_value::<Fail>(&encode_value(&fail)).unwrap(), fail);
    }
}
