//! JSON validation and lookup without parsing into values.

/// The deepest nesting of arrays and objects, as in Qless.
pub const DEPTH_MAX: usize = 1_000;

/// Whether the bytes are one JSON value, nested no deeper than [`DEPTH_MAX`].
///
/// ```
/// use geartrain_core::json::is_json;
/// assert!(is_json(br#"{"to": ["a@b.c"]}"#));
/// assert!(!is_json(b"hello"));
/// ```
pub fn is_json(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_ok_and(is_json_text)
}

/// [`is_json`] for text.
pub fn is_json_text(text: &str) -> bool {
    let mut scan = Scan { bytes: text.as_bytes(), at: 0 };
    scan.value().is_some() && scan.skip_whitespace().is_none()
}

/// The text of the value at a path into valid JSON, without surrounding whitespace. A key is a position, from
/// 0, where the path meets an array; of equal keys of an object the last one counts.
pub(crate) fn at_path<'a>(text: &'a str, path: &[String]) -> Option<&'a str> {
    let mut scan = Scan { bytes: text.as_bytes(), at: 0 };
    for key in path {
        match scan.skip_whitespace()? {
            b'{' => scan.enter_object(text, key)?,
            b'[' => scan.enter_array(key)?,
            _ => return None,
        }
    }
    scan.skip_whitespace()?;
    let begin = scan.at;
    scan.value()?;
    text.get(begin..scan.at)
}

/// The text that a JSON string stands for; `None` if it has half of a surrogate pair.
pub(crate) fn unquote(string: &str) -> Option<String> {
    let mut rest = string.strip_prefix('"')?.strip_suffix('"')?;
    let mut text = String::with_capacity(rest.len());
    while let Some(at) = rest.find('\\') {
        text.push_str(&rest[..at]);
        let escape = *rest.as_bytes().get(at + 1)?;
        rest = rest.get(at + 2..)?;
        text.push(match escape {
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let mut unit = || {
                    let unit = u32::from_str_radix(rest.get(..4)?, 16).ok()?;
                    rest = &rest[4..];
                    Some(unit)
                };
                let first = unit()?;
                if (0xd800..0xdc00).contains(&first) {
                    rest = rest.strip_prefix("\\u")?;
                    let second = u32::from_str_radix(rest.get(..4)?, 16).ok()?;
                    rest = &rest[4..];
                    let low = second.checked_sub(0xdc00).filter(|low| *low < 0x400)?;
                    char::from_u32(0x10000 + ((first - 0xd800) << 10) + low)?
                } else {
                    char::from_u32(first)?
                }
            }
            other => char::from(other),
        });
    }
    text.push_str(rest);
    Some(text)
}

struct Scan<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Scan<'_> {
    /// Skips whitespace and peeks at the next byte.
    fn skip_whitespace(&mut self) -> Option<u8> {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.bytes.get(self.at) {
            self.at += 1;
        }
        self.bytes.get(self.at).copied()
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.bytes.get(self.at).copied();
        self.at += 1;
        byte
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        (self.next()? == byte).then_some(())
    }

    /// Scans one value. Iterative, so that the sender of the bytes cannot exhaust the stack.
    fn value(&mut self) -> Option<()> {
        let mut open: Vec<u8> = Vec::new();
        loop {
            match self.skip_whitespace()? {
                b'{' => {
                    self.at += 1;
                    if self.skip_whitespace()? != b'}' {
                        open.push(b'}');
                        self.key()?;
                        if open.len() > DEPTH_MAX {
                            return None;
                        }
                        continue;
                    }
                    self.at += 1;
                }
                b'[' => {
                    self.at += 1;
                    if self.skip_whitespace()? != b']' {
                        open.push(b']');
                        if open.len() > DEPTH_MAX {
                            return None;
                        }
                        continue;
                    }
                    self.at += 1;
                }
                b'"' => self.string()?,
                b't' => self.literal(b"true")?,
                b'f' => self.literal(b"false")?,
                b'n' => self.literal(b"null")?,
                _ => self.number()?,
            }
            // After a value: a comma, or the end of the enclosing arrays and objects.
            loop {
                let Some(&end) = open.last() else { return Some(()) };
                match (self.skip_whitespace()?, end) {
                    (b',', b'}') => {
                        self.at += 1;
                        self.key()?;
                        break;
                    }
                    (b',', _) => {
                        self.at += 1;
                        break;
                    }
                    (byte, end) if byte == end => {
                        self.at += 1;
                        open.pop();
                    }
                    _ => return None,
                }
            }
        }
    }

    /// Moves to the value of a key in the object that begins here.
    fn enter_object(&mut self, text: &str, key: &str) -> Option<()> {
        self.at += 1;
        let mut found = None;
        while self.skip_whitespace()? != b'}' {
            let begin = self.at;
            self.string()?;
            let name = text.get(begin..self.at)?;
            self.skip_whitespace()?;
            self.take(b':')?;
            if unquote(name).as_deref() == Some(key) {
                found = Some(self.at);
            }
            self.value()?;
            if self.skip_whitespace()? == b',' {
                self.at += 1;
            }
        }
        self.at = found?;
        Some(())
    }

    /// Moves to an element of the array that begins here.
    fn enter_array(&mut self, position: &str) -> Option<()> {
        let number: usize = position.parse().ok()?;
        // No sign and no leading zeros.
        if number.to_string() != position {
            return None;
        }
        self.at += 1;
        for _ in 0..number {
            if self.skip_whitespace()? == b']' {
                return None;
            }
            self.value()?;
            if self.skip_whitespace()? != b',' {
                return None;
            }
            self.at += 1;
        }
        (self.skip_whitespace()? != b']').then_some(())
    }

    fn key(&mut self) -> Option<()> {
        self.skip_whitespace()?;
        self.string()?;
        self.skip_whitespace()?;
        self.take(b':')
    }

    fn literal(&mut self, literal: &[u8]) -> Option<()> {
        let matches = self.bytes.get(self.at..)?.starts_with(literal);
        self.at += literal.len();
        matches.then_some(())
    }

    fn string(&mut self) -> Option<()> {
        self.take(b'"')?;
        loop {
            let rest = self.bytes.get(self.at..)?;
            self.at += rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..0x20))?;
            match self.next()? {
                b'"' => return Some(()),
                b'\\' => match self.next()? {
                    b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => {}
                    b'u' => {
                        for _ in 0..4 {
                            self.next()?.is_ascii_hexdigit().then_some(())?;
                        }
                    }
                    _ => return None,
                },
                0..0x20 => return None,
                _ => {}
            }
        }
    }

    fn number(&mut self) -> Option<()> {
        if self.bytes.get(self.at) == Some(&b'-') {
            self.at += 1;
        }
        match self.next()? {
            b'0' => {}
            b'1'..=b'9' => self.digits(),
            _ => return None,
        }
        if self.bytes.get(self.at) == Some(&b'.') {
            self.at += 1;
            self.next()?.is_ascii_digit().then_some(())?;
            self.digits();
        }
        if let Some(b'e' | b'E') = self.bytes.get(self.at) {
            self.at += 1;
            if let Some(b'+' | b'-') = self.bytes.get(self.at) {
                self.at += 1;
            }
            self.next()?.is_ascii_digit().then_some(())?;
            self.digits();
        }
        Some(())
    }

    fn digits(&mut self) {
        while self.bytes.get(self.at).is_some_and(u8::is_ascii_digit) {
            self.at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_json_is_accepted() {
        for text in [
            "null",
            "true",
            "false",
            "0",
            "-0",
            "12",
            "-1.5",
            "1e9",
            "1.25E-3",
            "\"\"",
            r#""a\n\u00ff\/""#,
            "\"é\"",
            "[]",
            "[ ]",
            "{}",
            "{ }",
            " [1, 2,[3]] ",
            r#"{"a":1,"b":{"c":[{}]}}"#,
            "\t{\"a\" : [ ] }\r\n",
        ] {
            assert!(is_json(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn invalid_json_is_rejected() {
        for text in [
            "",
            " ",
            "hello",
            "nul",
            "nulls",
            "tru",
            "01",
            "-",
            "1.",
            ".5",
            "1e",
            "+1",
            "\"",
            "\"a",
            "\"\\x\"",
            "\"\\u12g4\"",
            "\"\n\"",
            "[",
            "[1",
            "[1,]",
            "[,1]",
            "[1 2]",
            "[1}",
            "{",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1,}",
            "{a:1}",
            "{1:2}",
            "{\"a\":1]",
            "1 2",
            "{} {}",
            "NaN",
        ] {
            assert!(!is_json(text.as_bytes()), "{text}");
        }
        assert!(!is_json(b"\"\xff\""));
    }

    #[test]
    fn nesting_is_limited() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(is_json(nested(DEPTH_MAX).as_bytes()));
        assert!(!is_json(nested(DEPTH_MAX + 2).as_bytes()));
        assert!(!is_json("[".repeat(10_000_000).as_bytes()));
    }
}
