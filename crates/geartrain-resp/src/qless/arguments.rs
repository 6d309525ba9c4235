//! Arguments of a Qless call: presence, types and limits.

use bytes::Bytes;
use geartrain_core::{BadName, Count, Group, Jid, Klass, Page, Payload, QueueName, Seconds, Tag, WorkerName};

use super::decode::THROTTLES;
use super::{json, number, unknown_options};

/// Qless's error message about an argument.
pub(super) type ErrorText = String;

/// From this size on a payload shares the read buffer, below it is copied: a small one would keep the whole
/// buffer in memory.
const SHARED_BYTES_MIN: usize = 256 << 10;

/// The arguments after `now`.
#[derive(Clone, Copy)]
pub(super) struct Arguments<'a>(pub(super) &'a [Bytes]);

impl<'a> Arguments<'a> {
    pub(super) fn get(self, at: usize) -> Option<&'a Bytes> {
        self.0.get(at)
    }

    /// The argument at an index, or this error.
    pub(super) fn need(self, at: usize, missing: &str) -> Result<&'a Bytes, ErrorText> {
        self.get(at).ok_or_else(|| missing.to_owned())
    }

    pub(super) fn rest(self, from: usize) -> &'a [Bytes] {
        self.0.get(from..).unwrap_or_default()
    }

    /// The number at an index, or this error with the actual text.
    pub(super) fn number(self, at: usize, error: &str) -> Result<f64, ErrorText> {
        read_number(self.get(at), error)
    }

    /// An optional number.
    pub(super) fn number_or(self, at: usize, default: f64, error: &str) -> Result<f64, ErrorText> {
        if self.get(at).is_none() { Ok(default) } else { self.number(at, error) }
    }

    /// A count, or this error.
    pub(super) fn count(self, at: usize, error: &str) -> Result<Count, ErrorText> {
        let number = self.number(at, error)?;
        let count = (number.fract() == 0.0).then(|| Count::new(number as i64).ok()).flatten();
        count.ok_or_else(|| {
            format!("a count is a whole number from 0 to {}, not {}", Count::MAX.get(), self.shown(at))
        })
    }

    /// An optional count.
    pub(super) fn count_or(self, at: usize, default: Count, error: &str) -> Result<Count, ErrorText> {
        if self.get(at).is_none() { Ok(default) } else { self.count(at, error) }
    }

    /// Offset and length of a page.
    pub(super) fn page(self, at: usize, offset: &str, count: &str) -> Result<Page, ErrorText> {
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

/// Options: alternating names and values. The last value of a repeated name wins.
pub(super) struct Options<'a>(&'a [Bytes]);

impl<'a> Options<'a> {
    /// Refuses a name without a value.
    pub(super) fn new(words: &'a [Bytes]) -> Result<Options<'a>, ErrorText> {
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

    /// Refuses throttles, which are reqless's, and logs other names that are ignored, as Qless ignores them.
    /// `given` tells which of the known ones are there: nearly always these are all.
    pub(super) fn check_names(&self, verb: &str, known: &[&str], given: &[bool]) -> Result<(), ErrorText> {
        if given.iter().filter(|given| **given).count() == self.0.len() / 2 {
            return Ok(());
        }
        for pair in self.0.chunks_exact(2) {
            if known.iter().any(|known| pair[0] == known.as_bytes()) {
                continue;
            }
            // A reqless client always sends the option, and an empty list asks for nothing.
            if pair[0] == "throttles" {
                if json::texts(&pair[1]).ok().flatten().is_none_or(|throttles| !throttles.is_empty()) {
                    return Err(format!("{verb}: option \"throttles\" is not supported: {THROTTLES}"));
                }
            } else {
                unknown_options::log(verb, &pair[0]);
            }
        }
        Ok(())
    }

    pub(super) fn get(&self, name: &str) -> Option<&'a Bytes> {
        self.0.chunks_exact(2).rev().find(|pair| pair[0] == name.as_bytes()).map(|pair| &pair[1])
    }

    /// An option's number, if given.
    pub(super) fn number(&self, name: &str, error: &str) -> Result<Option<f64>, ErrorText> {
        self.get(name).map(|value| read_number(Some(value), error)).transpose()
    }

    /// An option's number that must fit in 32 bits.
    pub(super) fn whole(&self, name: &str, error: &str) -> Result<Option<u32>, ErrorText> {
        self.get(name).map(|value| read_whole(name, value, error)).transpose()
    }

    /// An option's JSON list of strings, each parsed by `read`, if given.
    pub(super) fn list<T>(
        &self,
        name: &str,
        read: impl Fn(&[u8]) -> Result<T, ErrorText>,
    ) -> Result<Option<Vec<T>>, ErrorText> {
        let Some(json) = self.get(name) else { return Ok(None) };
        let texts = json::texts(json).map_err(|malformed| malformed.to_string())?;
        let texts = texts.ok_or_else(|| format!("{name} must be a JSON list of strings"))?;
        texts.iter().map(|text| read(text)).collect::<Result<_, _>>().map(Some)
    }
}

pub(super) fn read_number(argument: Option<&Bytes>, error: &str) -> Result<f64, ErrorText> {
    let number = argument.and_then(|argument| number::read(argument));
    number.ok_or_else(|| format!("{error}{}", argument.map_or("nil".into(), |text| shown(text))))
}

/// An argument as error messages show it.
pub(super) fn shown(argument: &[u8]) -> String {
    const SHOWN_BYTES_MAX: usize = 1024;
    String::from_utf8_lossy(&argument[..argument.len().min(SHOWN_BYTES_MAX)]).into_owned()
}

/// A whole number that must fit in 32 bits.
pub(super) fn read_whole(what: &str, argument: &Bytes, error: &str) -> Result<u32, ErrorText> {
    let number = read_number(Some(argument), error)?;
    let whole =
        (number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&number)).then_some(number as u32);
    whole.ok_or_else(|| {
        let given = shown(argument);
        format!("{what} must be a whole number that is not negative and fits 32 bits, not {given}")
    })
}

pub(super) fn seconds(number: f64) -> Result<Seconds, ErrorText> {
    Seconds::new(number).map_err(|error| error.to_string())
}

pub(super) fn text<'a>(what: &str, argument: &'a [u8]) -> Result<&'a str, ErrorText> {
    std::str::from_utf8(argument).map_err(|_| format!("{what} must be UTF-8"))
}

fn named<T>(what: &str, argument: &[u8], new: impl Fn(&str) -> Result<T, BadName>) -> Result<T, ErrorText> {
    new(text(what, argument)?).map_err(|error| error.to_string())
}

pub(super) fn queue(argument: &[u8]) -> Result<QueueName, ErrorText> {
    named("a queue", argument, |text| QueueName::new(text))
}

pub(super) fn jid(argument: &[u8]) -> Result<Jid, ErrorText> {
    named("a jid", argument, |text| Jid::new(text))
}

pub(super) fn klass(argument: &[u8]) -> Result<Klass, ErrorText> {
    named("a klass", argument, |text| Klass::new(text))
}

pub(super) fn worker(argument: &[u8]) -> Result<WorkerName, ErrorText> {
    named("a worker", argument, |text| WorkerName::new(text))
}

pub(super) fn group(argument: &[u8]) -> Result<Group, ErrorText> {
    named("a group", argument, |text| Group::new(text))
}

pub(super) fn tag(argument: &[u8]) -> Result<Tag, ErrorText> {
    named("a tag", argument, |text| Tag::new(text))
}

pub(super) fn each<'a, T>(
    arguments: impl IntoIterator<Item = &'a Bytes>,
    read: impl Fn(&[u8]) -> Result<T, ErrorText>,
) -> Result<Vec<T>, ErrorText> {
    arguments.into_iter().map(|argument| read(argument)).collect()
}

pub(super) fn is_json(argument: &Bytes) -> bool {
    json::check(argument).is_ok()
}

/// Qless takes `false` for missing data.
fn is_false(argument: &[u8]) -> bool {
    argument.trim_ascii() == b"false"
}

/// A payload byte for byte, unless it stands for binary bytes. `false` is refused with its own error.
pub(super) fn data(argument: &Bytes, error_of_false: &str) -> Result<Payload, ErrorText> {
    if is_false(argument) {
        return Err(error_of_false.to_owned());
    }
    json::check(argument).map_err(|malformed| malformed.to_string())?;
    Ok(binary_payload(argument).unwrap_or_else(|| {
        if argument.len() < SHARED_BYTES_MIN { Payload::from(&argument[..]) } else { argument.clone().into() }
    }))
}

/// A payload as heartbeat and fail store it: decoded and encoded again. None for `false`, which changes
/// nothing.
pub(super) fn rewritten(argument: &Bytes) -> Result<Option<Payload>, ErrorText> {
    if is_false(argument) {
        return Ok(None);
    }
    let again = json::rewrite(argument).map_err(|malformed| malformed.to_string())?;
    Ok(Some(binary_payload(argument).unwrap_or_else(|| again.into())))
}

/// The binary payload that an object written by [`Payload::to_json`] stands for. Clients may add blanks.
fn binary_payload(argument: &[u8]) -> Option<Payload> {
    if argument.trim_ascii_start().first() != Some(&b'{') {
        return None;
    }
    let base64 = String::from_utf8(json::only_field(argument, super::BYTES)?).ok()?;
    let object = format!("{{\"{}\":\"{base64}\"}}", super::BYTES);
    // If the text is not base64, the object stands for itself.
    Some(Payload::from_json(&object)).filter(|payload| payload.bytes() != object.as_bytes())
}

/// The fields of a log entry: an object, or a list, whose items become fields named 1, 2 and so on.
pub(super) fn fields(argument: &[u8]) -> Result<String, ErrorText> {
    let object = json::rewrite_fields(argument).map_err(|malformed| malformed.to_string())?;
    let object = object
        .ok_or_else(|| format!("Log(): Argument \"data\" must be a JSON object: {}", shown(argument)))?;
    String::from_utf8(object).map_err(|_| "Log(): Argument \"data\" must be UTF-8".to_owned())
}
