//! JSON validation without parsing into values.

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
