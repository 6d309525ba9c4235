//! Function names as queue names: Gearman's functions are bytes, queues are text. Bytes that are not UTF-8
//! are mapped to private-use characters, reversibly.

use std::borrow::Cow;

use geartrain_core::{BadName, Klass, QueueName};

/// The first of 256 characters that stand for one byte each: the end of the last private-use plane, which is
/// practically unused.
const BYTE_CHARS: u32 = 0x10_FF00;

/// The queue for a function.
pub(crate) fn queue(function: &[u8]) -> Result<QueueName, BadName> {
    QueueName::of_function(text(function))
}

/// The klass of a function's jobs.
pub(crate) fn klass(queue: &QueueName) -> Result<Klass, BadName> {
    Klass::of_function(queue.as_str())
}

/// The function for a queue.
pub(crate) fn bytes(queue: &QueueName) -> Cow<'_, [u8]> {
    let text = queue.as_str();
    if !text.chars().any(is_byte_char) {
        return Cow::Borrowed(text.as_bytes());
    }
    let mut bytes = Vec::with_capacity(text.len());
    for char in text.chars() {
        if is_byte_char(char) {
            bytes.push((u32::from(char) - BYTE_CHARS) as u8);
        } else {
            bytes.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes());
        }
    }
    Cow::Owned(bytes)
}

fn text(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(bytes)
        && !text.chars().any(is_byte_char)
    {
        return Cow::Borrowed(text);
    }
    let mut text = String::with_capacity(bytes.len() * 4);
    let byte =
        |byte: &u8| char::from_u32(BYTE_CHARS + u32::from(*byte)).unwrap_or(char::REPLACEMENT_CHARACTER);
    for chunk in bytes.utf8_chunks() {
        for char in chunk.valid().chars() {
            if is_byte_char(char) {
                text.extend(char.encode_utf8(&mut [0; 4]).as_bytes().iter().map(byte));
            } else {
                text.push(char);
            }
        }
        text.extend(chunk.invalid().iter().map(byte));
    }
    Cow::Owned(text)
}

fn is_byte_char(char: char) -> bool {
    (BYTE_CHARS..BYTE_CHARS + 256).contains(&u32::from(char))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn utf8_names_are_unchanged_and_other_bytes_round_trip() {
        assert_eq!(queue("größe".as_bytes()).expect("a good name").as_str(), "größe");
        let names: [&[u8]; 4] =
            [b"\xff\xfe", b"a\x80b", "x\u{10ff41}y".as_bytes(), b"\xf4\x8f\xbc\xff mixed \xc3"];
        for function in names {
            let queue = queue(function).expect("a good name");
            assert_eq!(bytes(&queue), function);
        }
    }

    #[test]
    fn two_functions_are_never_one_queue() {
        // A character that stands for a byte must not become that byte.
        let lookalike = "\u{10ffff}".as_bytes();
        assert_ne!(queue(lookalike), queue(b"\xff"));
        assert_eq!(bytes(&queue(lookalike).expect("a good name")), lookalike);
    }
}
