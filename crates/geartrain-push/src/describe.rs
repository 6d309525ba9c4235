//! Texts about requests and responses, for the messages of failures.

use std::error::Error as StdError;

/// How many characters of a response body a message has.
pub(crate) const BODY_CHARACTERS_MAX: usize = 500;

/// An error and its sources in one line. A source that the text before it already has is left out.
pub(crate) fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    text
}

/// The beginning of bytes from outside as one line of text.
pub(crate) fn excerpt(bytes: &[u8]) -> String {
    // Four bytes per character at most, and a cut character at the end is dropped with the rest.
    let beginning = &bytes[..bytes.len().min(BODY_CHARACTERS_MAX * 4 + 4)];
    let text = String::from_utf8_lossy(beginning);
    let words: Vec<&str> =
        text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty()).collect();
    let line = words.join(" ");
    match line.char_indices().nth(BODY_CHARACTERS_MAX) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None if bytes.len() > beginning.len() => format!("{line}…"),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excerpt_is_one_short_line() {
        assert_eq!(excerpt(b"no\r\n\tsuch\x1b[31m user\xff"), "no such [31m user\u{fffd}");
        assert_eq!(excerpt(b""), "");
        let long = "ä".repeat(10_000);
        assert_eq!(excerpt(long.as_bytes()), format!("{}…", "ä".repeat(BODY_CHARACTERS_MAX)));
        assert_eq!(excerpt(&[b' '; 10_000]), "…");
    }
}
