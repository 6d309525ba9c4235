//! The arguments of one call: which are there, and what they may be.

use bytes::Bytes;
use geartrain_core::{BadName, Count, Group, Jid, Klass, Page, Payload, QueueName, Seconds, Tag, WorkerName};

use super::{json, number};

/// What is wrong with an argument.
pub(super) type Complaint = String;

/// From this size on a payload is shared with the buffer that it was read into, and below it copied: a small one would keep all of the buffer in memory.
const SHARED_BYTES_MIN: usize = 256 << 10;

/// Arguments behind `now`.
#[derive(Clone, Copy)]
pub(super) struct Arguments<'a>(pub(super) &'a [Bytes]);

impl<'a> Arguments<'a> {
    pub(super) fn get(self, at: usize) -> Option<&'a Bytes> {
        self.0.get(at)
    }

    /// The argument at this place, or this complaint.
    pub(super) fn need(self, at: usize, missing: &str) -> Result<&'a Bytes, Complaint> {
        self.get(at).ok_or_else(|| missing.to_owned())
    }

    pub(super) fn rest(self, from: usize) -> &'a [Bytes] {
        self.0.get(from..).unwrap_or_default()
    }

    /// The number at this place, or this complaint with what is there instead.
    pub(super) fn number(self, at: usize, complaint: &str) -> Result<f64, Complaint> {
        read_number(self.get(at), complaint)
    }

    /// The same where it may be left out.
    pub(super) fn number_or(self, at: usize, default: f64, complaint: &str) -> Result<f64, Complaint> {
        if self.get(at).is_none() { Ok(default) } else { self.number(at, complaint) }
    }

    /// How many, or this complaint.
    pub(super) fn count(self, at: usize, complaint: &str) -> Result<Count, Complaint> {
        let number = self.number(at, complaint)?;
        let count = (number.fract() == 0.0).then(|| Count::new(number as i64).ok()).flatten();
        count.ok_or_else(|| {
            format!("a count is a whole number from 0 to {}, not {}", Count::MAX.get(), self.shown(at))
        })
    }

    /// The same where it may be left out.
    pub(super) fn count_or(self, at: usize, default: Count, complaint: &str) -> Result<Count, Complaint> {
        if self.get(at).is_none() { Ok(default) } else { self.count(at, complaint) }
    }

    /// Where in a list to begin, and how many to show.
    pub(super) fn page(self, at: usize, offset: &str, count: &str) -> Result<Page, Complaint> {
        let from = self.number_or(at, 0.0, offset)?;
        if from < 0.0 || from.fract() != 0.0 {
            let given = self.shown(at);
            return Err(format!("an offset is a whole number that is not negative, not {given}"));
        }
        Ok(Page { offset: from as usize, count: self.count_or(at + 1, Page::default().count, count)? })
    }

    fn shown(self, at: usize) -> String {
        self.get(at).map_or("nil".to_owned(), |text| shown(text))
    }
}

/// Options: names and values in turn. Of a name that is there twice, the last one counts; unknown ones are nobody's business.
pub(super) struct Options<'a>(&'a [Bytes]);

impl<'a> Options<'a> {
    /// Refuses a name without a value.
    pub(super) fn new(words: &'a [Bytes]) -> Result<Options<'a>, Complaint> {
        if !words.len().is_multiple_of(2) {
            let words: Vec<_> = words.iter().take(20).map(|word| shown(word)).collect();
            return Err(format!("Odd number of additional args: {}", words.join(" ")));
        }
        Ok(Options(words))
    }

    /// Ignores a last name without a value.
    pub(super) fn lenient(words: &'a [Bytes]) -> Options<'a> {
        Options(&words[..words.len() / 2 * 2])
    }

    pub(super) fn get(&self, name: &str) -> Option<&'a Bytes> {
        self.0.chunks_exact(2).rev().find(|pair| pair[0] == name.as_bytes()).map(|pair| &pair[1])
    }

    /// The number that an option has, if it is given.
    pub(super) fn number(&self, name: &str, complaint: &str) -> Result<Option<f64>, Complaint> {
        self.get(name).map(|value| read_number(Some(value), complaint)).transpose()
    }

    /// The same for a number that is kept in 32 bits.
    pub(super) fn whole(&self, name: &str, complaint: &str) -> Result<Option<u32>, Complaint> {
        self.get(name).map(|value| read_whole(name, value, complaint)).transpose()
    }

    /// The entries of a JSON list of texts, each read in this way, if the option is given.
    pub(super) fn list<T>(
        &self,
        name: &str,
        read: impl Fn(&[u8]) -> Result<T, Complaint>,
    ) -> Result<Option<Vec<T>>, Complaint> {
        let Some(json) = self.get(name) else { return Ok(None) };
        let texts = json::texts(json).map_err(|malformed| malformed.to_string())?;
        let texts = texts.ok_or_else(|| format!("{name} must be a JSON list of strings"))?;
        texts.iter().map(|text| read(text)).collect::<Result<_, _>>().map(Some)
    }
}

pub(super) fn read_number(argument: Option<&Bytes>, complaint: &str) -> Result<f64, Complaint> {
    let number = argument.and_then(|argument| number::read(argument));
    number.ok_or_else(|| format!("{complaint}{}", argument.map_or("nil".into(), |text| shown(text))))
}

/// An argument as a message shows it.
pub(super) fn shown(argument: &[u8]) -> String {
    const SHOWN_BYTES_MAX: usize = 1024;
    String::from_utf8_lossy(&argument[..argument.len().min(SHOWN_BYTES_MAX)]).into_owned()
}

/// A whole number that is kept in 32 bits.
pub(super) fn read_whole(what: &str, argument: &Bytes, complaint: &str) -> Result<u32, Complaint> {
    let number = read_number(Some(argument), complaint)?;
    let whole =
        (number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&number)).then_some(number as u32);
    whole.ok_or_else(|| {
        let given = shown(argument);
        format!("{what} must be a whole number that is not negative and fits 32 bits, not {given}")
    })
}

pub(super) fn seconds(number: f64) -> Result<Seconds, Complaint> {
    Seconds::new(number).map_err(|error| error.to_string())
}

pub(super) fn text<'a>(what: &str, argument: &'a [u8]) -> Result<&'a str, Complaint> {
    std::str::from_utf8(argument).map_err(|_| format!("{what} must be UTF-8"))
}

fn named<T>(what: &str, argument: &[u8], new: impl Fn(&str) -> Result<T, BadName>) -> Result<T, Complaint> {
    new(text(what, argument)?).map_err(|error| error.to_string())
}

pub(super) fn queue(argument: &[u8]) -> Result<QueueName, Complaint> {
    named("a queue", argument, |text| QueueName::new(text))
}

pub(super) fn jid(argument: &[u8]) -> Result<Jid, Complaint> {
    named("a jid", argument, |text| Jid::new(text))
}

pub(super) fn klass(argument: &[u8]) -> Result<Klass, Complaint> {
    named("a klass", argument, |text| Klass::new(text))
}

pub(super) fn worker(argument: &[u8]) -> Result<WorkerName, Complaint> {
    named("a worker", argument, |text| WorkerName::new(text))
}

pub(super) fn group(argument: &[u8]) -> Result<Group, Complaint> {
    named("a group", argument, |text| Group::new(text))
}

pub(super) fn tag(argument: &[u8]) -> Result<Tag, Complaint> {
    named("a tag", argument, |text| Tag::new(text))
}

pub(super) fn each<'a, T>(
    arguments: impl IntoIterator<Item = &'a Bytes>,
    read: impl Fn(&[u8]) -> Result<T, Complaint>,
) -> Result<Vec<T>, Complaint> {
    arguments.into_iter().map(|argument| read(argument)).collect()
}

/// Data as it is kept: the very bytes, but for those that stand for other bytes.
pub(super) fn data(argument: &Bytes) -> Result<Payload, Complaint> {
    json::check(argument).map_err(|malformed| malformed.to_string())?;
    Ok(other_bytes(argument).unwrap_or_else(|| {
        if argument.len() < SHARED_BYTES_MIN { Payload::from(&argument[..]) } else { argument.clone().into() }
    }))
}

/// Data as heartbeat and fail keep it, which read it and write it again.
pub(super) fn rewritten(argument: &Bytes) -> Result<Payload, Complaint> {
    let again = json::rewrite(argument).map_err(|malformed| malformed.to_string())?;
    Ok(other_bytes(argument).unwrap_or_else(|| again.into()))
}

/// The payload that an object of the kind stands for that [`Payload::to_json`] makes. Clients write it with blanks of their own.
fn other_bytes(argument: &[u8]) -> Option<Payload> {
    if argument.trim_ascii_start().first() != Some(&b'{') {
        return None;
    }
    let base64 = String::from_utf8(json::only_field(argument, super::BYTES)?).ok()?;
    let object = format!("{{\"{}\":\"{base64}\"}}", super::BYTES);
    // If that is not base64, the object means itself.
    Some(Payload::from_json(&object)).filter(|payload| payload.bytes() != object.as_bytes())
}

/// The fields that somebody logs: an object, or a list, whose entries are fields called 1, 2 and so on.
pub(super) fn fields(argument: &[u8]) -> Result<String, Complaint> {
    let object = json::rewrite_fields(argument).map_err(|malformed| malformed.to_string())?;
    let object = object
        .ok_or_else(|| format!("Log(): Argument \"data\" must be a JSON object: {}", shown(argument)))?;
    String::from_utf8(object).map_err(|_| "Log(): Argument \"data\" must be UTF-8".to_owned())
}
