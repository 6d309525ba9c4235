//! What a driver and a queue say to each other: commands and answers as MessagePack. The shapes are told in docs/formats/wire.md.
//!
//! ```
//! use geartrain_core::wire::{self, Request};
//! use geartrain_core::{Call, Length, QueueName};
//! let asked = Request::Batch(vec![Call::from(Length { queue: QueueName::new("mail")? })]);
//! assert_eq!(Request::decode(&asked.encode())?, asked);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod batch;
mod msgpack;

pub use batch::AnswerPieces;
pub use msgpack::DecodeError;

use std::collections::HashSet;
use std::convert::Infallible;
use std::fmt;
use std::sync::{LazyLock, Mutex, PoisonError};

use serde::de::{self, DeserializeOwned, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use crate::payload::{unwrap_bytes, wrap_bytes};
use crate::{
    Answer, Call, Count, Event, Jid, Payload, Pop, PopReply, QueueName, Refusal, Seconds, Timestamp, Token,
    UniqueKey,
};

/// The version of these shapes.
pub const VERSION: u8 = 1;

/// A word of the program's own, such as an option's default. A type of its own name, because a field that is a plain reference would make whatever is decoded live for ever.
pub type Word = &'static str;

/// What a driver asks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Request {
    /// Commands, to be done in order. Answered with a list of [`Answer`]s.
    Batch(Vec<Call>),
    /// Pops, or waits for something to pop. Answered with a list of [`Waiting`].
    #[serde(rename = "Wait")]
    Park {
        /// Which process waits.
        process: String,
        /// The caller's clock.
        now: Option<Timestamp>,
        /// What it waits for. One that waits already goes on to.
        waits: Vec<ParkedPop>,
        /// Does what is due first, where nothing moves by itself: on a Redis.
        #[serde(default)]
        tick: bool,
    },
    /// Waits no longer. Answered with nil.
    #[serde(rename = "Awake")]
    Unpark {
        /// Which process.
        process: String,
        /// Which of its waits.
        number: u64,
    },
    /// Has events be kept from now on. Answered with the position of the last one.
    Listen {
        /// The caller's clock.
        now: Option<Timestamp>,
    },
    /// Asks for the events after a position. Answered with [`EventLog`].
    Since {
        /// Which position.
        after: u64,
        /// How many, at most.
        count: Count,
    },
}

/// Something that a process waits for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ParkedPop {
    /// Its number in that process.
    pub number: u64,
    /// What is asked for. One that asks for nothing waits only to be told that there is something.
    pub pop: Pop,
    /// How long it will wait.
    pub wait: Seconds,
}

/// What becomes of a wait.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ParkReply {
    /// Here is something. Or the pop asked for nothing, and there is something to pop.
    Popped(PopReply),
    /// There is nothing yet.
    #[serde(rename = "Asleep")]
    Parked {
        /// When something falls due, if that is known.
        next: Option<Timestamp>,
    },
    /// The answer is no.
    Refused(Refusal),
}

/// What a process that waits is told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ParkedPopNotice {
    /// A wait is over.
    Popped {
        /// Which.
        number: u64,
        /// What came of it.
        reply: Result<PopReply, Refusal>,
    },
    /// There may be something in this queue: the first who waits for a job asks again.
    Wake(QueueName),
    /// The same, for all who wait only to be told.
    Ready(QueueName),
}

/// Events, each with its position; or why there are none.
pub type EventsReply = Result<Vec<(u64, Event)>, Refusal>;

/// Events as they happen: how many messages on Qless's channels follow, and what happened.
pub type EventBatch = (u64, Vec<(u64, Event)>);

/// The answers to a batch.
pub type Answers = Vec<Answer>;

/// Bytes that say nothing, or nothing of this version.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BadWire {
    /// They are of another version.
    #[error("this is version {version} of the wire, and version {VERSION} is spoken here")]
    Version {
        /// Which.
        version: u64,
    },
    /// They cannot be read.
    #[error("what came cannot be read: {0}")]
    Unreadable(#[from] DecodeError),
}

impl Request {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Request::Batch(calls) => batch::write_batch(calls),
            other => encode(&(VERSION, other)),
        }
    }

    /// From bytes.
    pub fn decode(bytes: &[u8]) -> Result<Request, BadWire> {
        if let Some(calls) = batch::read_batch(bytes).map_err(|why| DecodeError(why.into()))? {
            return Ok(Request::Batch(calls));
        }
        // The version is looked at first: of another one, nothing else can be read.
        match bytes {
            [0x92, VERSION, rest @ ..] => Ok(decode(rest)?),
            _ => match decode::<(u64, de::IgnoredAny)>(bytes)? {
                (version, _) if version != u64::from(VERSION) => Err(BadWire::Version { version }),
                _ => Ok(decode::<(u64, Request)>(bytes)?.1),
            },
        }
    }
}

/// The answers to a batch, as bytes.
pub fn encode_answers(answers: &[Answer]) -> Vec<u8> {
    batch::write_answers(answers)
}

/// The answers to a batch, from bytes.
pub fn decode_answers(bytes: &[u8]) -> Result<Answers, BadWire> {
    match batch::read_answers(bytes) {
        Some(answers) => Ok(answers),
        None => Ok(decode(bytes)?),
    }
}

/// Anything else as bytes.
pub fn encode(thing: &impl Serialize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(128);
    write(thing, &mut bytes);
    bytes
}

fn write(thing: &impl Serialize, to: &mut Vec<u8>) {
    // All of our types are made of numbers, texts and lists of known length, and memory takes any bytes.
    thing.serialize(&mut rmp_serde::Serializer::new(to)).expect("our own types can be written to memory");
}

/// Anything else from bytes.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    T::deserialize(&mut msgpack::Decoder::new(bytes))
}

/// Reads a word that another program wrote.
pub(crate) fn word<'de, D: Deserializer<'de>>(from: D) -> Result<Word, D::Error> {
    from.deserialize_str(Text(|text: &str| known(text).ok_or("there are too many words")))
}

/// The words met so far live for ever, which is why there may only be so many.
fn known(text: &str) -> Option<Word> {
    const WORDS_MAX: usize = 1_000;
    static WORDS: LazyLock<Mutex<HashSet<Word>>> = LazyLock::new(Mutex::default);
    let mut words = WORDS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(word) = words.get(text) {
        return Some(word);
    }
    if words.len() == WORDS_MAX || text.len() > 100 {
        return None;
    }
    let word: Word = String::leak(text.to_owned());
    words.insert(word);
    Some(word)
}

/// Reads a text and makes something of it.
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

// Scripts in Redis know texts and no bytes. So a payload is a text here: as in the job's hash, see `Payload::to_json`.

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
        Complete, Fail, Get, Group, Holder, Klass, Portion, Progress, Progressed, Put, PutOptions, QueueName,
        Reply, StreamItem,
    };

    fn jid() -> Jid {
        Jid::new("j1").unwrap()
    }

    #[test]
    fn a_batch_is_as_docs_formats_wire_says() {
        let bytes =
            Request::Batch(vec![Call { now: Some(Timestamp::from(7)), command: Get { jid: jid() }.into() }])
                .encode();
        assert_eq!(bytes, b"\x92\x01\x81\xa5Batch\x91\x92\xcb\x40\x1c\0\0\0\0\0\0\x81\xa3Get\x91\xa2j1");
    }

    #[test]
    fn plain_commands_are_written_in_runs() {
        let now = Some(Timestamp::from(7));
        let put = Put::new(QueueName::new("q").unwrap(), jid(), Klass::new("k").unwrap(), "[]");
        let complete = Complete::new(jid(), Holder::Token(Token::new(9)));
        let particular = Put { retries: Some(1), ..put.clone() };
        let elsewhere = Put { queue: QueueName::new("r").unwrap(), ..put.clone() };
        let commands: [crate::Command; 6] = [
            put.clone().into(),
            put.into(),
            elsewhere.into(),
            particular.into(),
            complete.clone().into(),
            complete.into(),
        ];
        let calls: Vec<Call> = commands.into_iter().map(|command| Call { now, command }).collect();
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
        // However they are written, they are read.
        assert_eq!(
            Request::decode(&encode(&(VERSION, Request::Batch(calls.clone())))).unwrap(),
            Request::Batch(calls)
        );
    }

    #[test]
    fn answers_are_read_as_a_script_writes_them() {
        let nothing: Answer = Ok(Reply::Get(None));
        assert_eq!(decode::<Answer>(b"\x81\xa2Ok\x81\xa3Get\xc0").unwrap(), nothing);
        let refused: Answer = Err(Refusal::NoSuchJob { jid: jid() });
        assert_eq!(decode::<Answer>(b"\x81\xa3Err\x81\xa9NoSuchJob\x81\xa3jid\xa2j1").unwrap(), refused);
        // A number that happens to be whole is written as an integer.
        assert_eq!(
            decode::<Answer>(b"\x81\xa2Ok\x81\xa9Heartbeat\x07").unwrap(),
            Ok(Reply::Heartbeat(Timestamp::from(7)))
        );
    }

    #[test]
    fn what_is_decoded_is_checked_as_anything_else_that_comes_in() {
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
    fn what_older_programs_leave_out_at_the_end_is_not_there() {
        // The terms, the progress and what was told of it, without what is carried aside and what was said.
        let terms = b"\x9a\xc0\xc0\xa6Always\xa4Keep\xc0\xc0\xc0\xc0\xc0\xc2";
        assert_eq!(decode::<PutOptions>(terms).unwrap(), PutOptions::default());
        let progressed = Progressed { portion: Portion::unchecked(5, 4), seconds_left: None };
        let progress = Progress::new(jid(), Holder::Token(Token::new(9)), progressed);
        let bytes = encode(&progress);
        let (Some((0x94, rest)), Some(0xc0)) = (bytes.split_first(), bytes.last()) else {
            panic!("four fields, and the last is nil: {bytes:x?}")
        };
        let older = [&[0x93], &rest[..rest.len() - 1]].concat();
        assert_eq!(decode::<Progress>(&older).unwrap(), progress);
        let told = StreamItem::Progress { progress: progressed, text: None };
        assert_eq!(decode::<StreamItem>(b"\x81\xa8Progress\x91\x92\x92\x05\x04\xc0").unwrap(), told);
        assert_eq!(encode(&told), b"\x81\xa8Progress\x92\x92\x92\x05\x04\xc0\xc0");
    }

    #[test]
    fn names_of_functions_travel_and_longer_ones_do_not() {
        let put = |bytes| {
            let (queue, klass) = ("q".repeat(bytes), "k".repeat(bytes));
            // Written as text, because there is no such name.
            let put = (queue, "j1", klass, "{}", 0.0, (), (), (), [(); 0], (), "Keep", "Refuse", ());
            let batch = [((), std::collections::BTreeMap::from([("Put", put)]))];
            encode(&(VERSION, std::collections::BTreeMap::from([("Batch", batch)])))
        };
        let Request::Batch(calls) = Request::decode(&put(4096)).unwrap() else { panic!("it is a batch") };
        let long = QueueName::of_function("q".repeat(4096)).unwrap();
        assert!(matches!(&calls[0].command, crate::Command::Put(put) if put.queue == long));
        let again = Request::Batch(calls.clone()).encode();
        assert!(matches!(Request::decode(&again), Ok(Request::Batch(decoded)) if decoded == calls));
        let error = Request::decode(&put(4097)).unwrap_err().to_string();
        assert!(error.contains("a queue has at most 4096 bytes, this one has 4097"), "{error}");
    }

    #[test]
    fn payloads_and_keys_are_any_bytes() {
        let key = UniqueKey::new([0, 255, 7]).unwrap();
        let terms =
            PutOptions { unique: Some(key), metadata: Some(b"\xff\0".into()), ..PutOptions::default() };
        assert_eq!(decode::<PutOptions>(&encode(&terms)).unwrap(), terms);
        let fail = Fail {
            payload: Some((&[0xff, 0xfe][..]).into()),
            ..Fail::new(jid(), Holder::Token(Token::new(9)), Group::new("g").unwrap(), "m")
        };
        assert_eq!(decode::<Fail>(&encode(&fail)).unwrap(), fail);
    }
}
