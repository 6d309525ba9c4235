//! JSON as Qless reads and writes it: unlike strict JSON (`geartrain_core::json`), strings may contain any
//! byte but NUL, and half a surrogate pair is an error.

use std::io::Write;

use geartrain_core::json::DEPTH_MAX;

/// The deepest nesting of a log entry: it is shown inside documents and lists, and a Redis reads at most
/// 1,000 levels.
const LOG_DEPTH_MAX: usize = 900;

/// Why a text is not JSON.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    #[error("Expected {expected} but found something else at character {}", at + 1)]
    Unexpected { expected: &'static str, at: usize },
    #[error("Found too many nested data structures ({})", DEPTH_MAX + 1)]
    TooDeep,
    #[error("The number at character {} is too large", at + 1)]
    TooLarge { at: usize },
}

/// Validates JSON.
pub(crate) fn check(json: &[u8]) -> Result<(), Malformed> {
    let mut reader = Reader { json, at: 0 };
    reader.value(0, None)?;
    reader.end()
}

/// Decodes JSON and encodes it as Qless does: an empty list is `{}`, numbers have 14 digits, no blanks. A
/// repeated key stays; readers take the last one, as Qless does.
pub(crate) fn rewrite(json: &[u8]) -> Result<Vec<u8>, Malformed> {
    let mut reader = Reader { json, at: 0 };
    let mut out = Vec::with_capacity(json.len());
    reader.value(0, Some(&mut out))?;
    reader.end()?;
    Ok(out)
}

/// Like `rewrite`, for an object, or a list, whose items become fields named 1, 2 and so on. None if it is
/// neither.
pub(crate) fn rewrite_fields(json: &[u8]) -> Result<Option<Vec<u8>>, Malformed> {
    let mut reader = Reader { json, at: 0 };
    let mut out = Vec::with_capacity(json.len());
    reader.value(DEPTH_MAX - LOG_DEPTH_MAX, Some(&mut out))?;
    reader.end()?;
    match out.first() {
        Some(b'{') => Ok(Some(out)),
        Some(b'[') => entries_as_fields(&out).map(Some),
        _ => Ok(None),
    }
}

fn entries_as_fields(list: &[u8]) -> Result<Vec<u8>, Malformed> {
    let mut reader = Reader { json: list, at: 1 };
    let mut out = Vec::with_capacity(2 * list.len());
    let mut number = 0;
    while reader.peek() != Some(b']') {
        out.push(if number == 0 { b'{' } else { b',' });
        number += 1;
        // Writing into memory cannot fail.
        let _ = write!(out, "\"{number}\":");
        reader.value(1, Some(&mut out))?;
        if reader.peek() == Some(b',') {
            reader.at += 1;
        }
    }
    out.push(b'}');
    Ok(out)
}

/// The items of a list of strings. Numbers count as strings; an empty object is an empty list, because Qless
/// writes it so. None if it is anything else.
pub(crate) fn texts(json: &[u8]) -> Result<Option<Vec<Vec<u8>>>, Malformed> {
    check(json)?;
    let mut reader = Reader { json, at: 0 };
    let mut texts = Vec::new();
    match reader.peek() {
        Some(b'[') => {}
        Some(b'{') => {
            reader.at += 1;
            return Ok((reader.peek() == Some(b'}')).then_some(texts));
        }
        _ => return Ok(None),
    }
    reader.at += 1;
    loop {
        match reader.peek() {
            Some(b']') => return Ok(Some(texts)),
            Some(b',') => reader.at += 1,
            Some(b'"') => texts.push(reader.string()?),
            Some(b'-' | b'0'..=b'9') => {
                let mut text = Vec::new();
                match reader.number() {
                    Ok(number) => write_number(&mut text, number),
                    Err(_) => return Ok(None),
                }
                texts.push(text);
            }
            _ => return Ok(None),
        }
    }
}

/// Appends the fields of an object to one that is being written, without those of these names.
pub(crate) fn write_fields(out: &mut Vec<u8>, object: &[u8], but_for: &[&str]) -> Result<(), Malformed> {
    let mut reader = Reader { json: object, at: 0 };
    reader.expect(b'{', "an object")?;
    if reader.peek() == Some(b'}') {
        return Ok(());
    }
    loop {
        reader.peek();
        let key = reader.string()?;
        reader.expect(b':', "a colon")?;
        if but_for.iter().any(|name| name.as_bytes() == key) {
            reader.value(1, None)?;
        } else {
            out.push(b',');
            write_string(out, &key);
            out.push(b':');
            reader.value(1, Some(out))?;
        }
        if reader.peek() != Some(b',') {
            return reader.expect(b'}', "a comma or the object's end");
        }
        reader.at += 1;
    }
}

/// The string in `{"<name>": "<string>"}`, if there is nothing else.
pub(crate) fn only_field(json: &[u8], name: &str) -> Option<Vec<u8>> {
    let mut reader = Reader { json, at: 0 };
    reader.expect(b'{', "").ok()?;
    reader.peek();
    if reader.string().ok()? != name.as_bytes() {
        return None;
    }
    reader.expect(b':', "").ok()?;
    reader.peek();
    let text = reader.string().ok()?;
    reader.expect(b'}', "").ok()?;
    reader.end().ok()?;
    Some(text)
}

struct Reader<'a> {
    json: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    /// The next byte that is not a blank.
    fn peek(&mut self) -> Option<u8> {
        while matches!(self.json.get(self.at), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
        self.json.get(self.at).copied()
    }

    fn unexpected<T>(&self, expected: &'static str) -> Result<T, Malformed> {
        Err(Malformed::Unexpected { expected, at: self.at })
    }

    fn expect(&mut self, byte: u8, expected: &'static str) -> Result<(), Malformed> {
        if self.peek() != Some(byte) {
            return self.unexpected(expected);
        }
        self.at += 1;
        Ok(())
    }

    fn end(&mut self) -> Result<(), Malformed> {
        match self.peek() {
            None => Ok(()),
            Some(_) => self.unexpected("the end"),
        }
    }

    /// Reads a value, and writes it to `out` if given.
    fn value(&mut self, depth: usize, out: Option<&mut Vec<u8>>) -> Result<(), Malformed> {
        match self.peek() {
            Some(b'{' | b'[') if depth == DEPTH_MAX => Err(Malformed::TooDeep),
            Some(open @ (b'{' | b'[')) => self.group(open, depth + 1, out),
            Some(b'"') => match out {
                Some(out) => {
                    let text = self.string()?;
                    write_string(out, &text);
                    Ok(())
                }
                None => self.skip_string(),
            },
            Some(b'-' | b'0'..=b'9') => match out {
                Some(out) => {
                    let number = self.number()?;
                    write_number(out, number);
                    Ok(())
                }
                None => self.digits().map(drop),
            },
            Some(b't') => self.word("true", out),
            Some(b'f') => self.word("false", out),
            Some(b'n') => self.word("null", out),
            _ => self.unexpected("a value"),
        }
    }

    fn group(&mut self, open: u8, depth: usize, mut out: Option<&mut Vec<u8>>) -> Result<(), Malformed> {
        let mut write = |byte: u8| {
            if let Some(out) = &mut out {
                out.push(byte);
            }
        };
        let close = open + 2;
        self.at += 1;
        if self.peek() == Some(close) {
            self.at += 1;
            write(b'{');
            write(b'}');
            return Ok(());
        }
        write(open);
        loop {
            if open == b'{' {
                if self.peek() != Some(b'"') {
                    return self.unexpected("a key");
                }
                self.value(depth, out.as_deref_mut())?;
                self.expect(b':', "a colon")?;
                if let Some(out) = &mut out {
                    out.push(b':');
                }
            }
            self.value(depth, out.as_deref_mut())?;
            let next = self.peek();
            if next != Some(b',') && next != Some(close) {
                return self.unexpected("a comma or an end");
            }
            self.at += 1;
            if let (Some(out), Some(next)) = (&mut out, next) {
                out.push(next);
            }
            if next == Some(close) {
                return Ok(());
            }
        }
    }

    fn word(&mut self, word: &str, out: Option<&mut Vec<u8>>) -> Result<(), Malformed> {
        if !self.json[self.at..].starts_with(word.as_bytes()) {
            return self.unexpected("a value");
        }
        self.at += word.len();
        if let Some(out) = out {
            out.extend_from_slice(word.as_bytes());
        }
        Ok(())
    }

    fn run_of_digits(&mut self) -> Result<(), Malformed> {
        let start = self.at;
        while self.json.get(self.at).is_some_and(u8::is_ascii_digit) {
            self.at += 1;
        }
        if self.at == start { self.unexpected("a digit") } else { Ok(()) }
    }

    /// The text of a number.
    fn digits(&mut self) -> Result<&str, Malformed> {
        let start = self.at;
        if self.json.get(self.at) == Some(&b'-') {
            self.at += 1;
        }
        if self.json.get(self.at) == Some(&b'0') {
            self.at += 1;
        } else {
            self.run_of_digits()?;
        }
        if self.json.get(self.at) == Some(&b'.') {
            self.at += 1;
            self.run_of_digits()?;
        }
        if matches!(self.json.get(self.at), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.json.get(self.at), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.run_of_digits()?;
        }
        std::str::from_utf8(&self.json[start..self.at])
            .map_err(|_| Malformed::Unexpected { expected: "a number", at: start })
    }

    fn number(&mut self) -> Result<f64, Malformed> {
        let at = self.at;
        match self.digits()?.parse::<f64>() {
            Ok(number) if number.is_finite() => Ok(number),
            _ => Err(Malformed::TooLarge { at }),
        }
    }

    fn skip_string(&mut self) -> Result<(), Malformed> {
        self.each_piece(|_| {})
    }

    /// The decoded string.
    fn string(&mut self) -> Result<Vec<u8>, Malformed> {
        let mut text = Vec::new();
        self.each_piece(|piece| text.extend_from_slice(piece))?;
        Ok(text)
    }

    fn each_piece(&mut self, mut take: impl FnMut(&[u8])) -> Result<(), Malformed> {
        if self.json.get(self.at) != Some(&b'"') {
            return self.unexpected("a string");
        }
        self.at += 1;
        loop {
            let rest = &self.json[self.at..];
            // Qless's parser takes any byte in a string but NUL.
            let Some(plain) = rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0)) else {
                self.at = self.json.len();
                return self.unexpected("the end of a string");
            };
            take(&rest[..plain]);
            self.at += plain + 1;
            if rest[plain] == b'"' {
                return Ok(());
            }
            if rest[plain] == 0 {
                self.at -= 1;
                return self.unexpected("the end of a string");
            }
            let escape = self.json.get(self.at).copied();
            self.at += 1;
            let byte = match escape {
                Some(byte @ (b'"' | b'\\' | b'/')) => byte,
                Some(b'b') => 8,
                Some(b'f') => 12,
                Some(b'n') => b'\n',
                Some(b'r') => b'\r',
                Some(b't') => b'\t',
                Some(b'u') => {
                    let character = self.escaped()?;
                    take(character.encode_utf8(&mut [0; 4]).as_bytes());
                    continue;
                }
                _ => {
                    self.at -= 1;
                    return self.unexpected("an escape");
                }
            };
            take(&[byte]);
        }
    }

    fn escaped(&mut self) -> Result<char, Malformed> {
        let first = self.four_digits()?;
        let code = match first {
            0xD800..0xDC00 => {
                if !self.json[self.at..].starts_with(b"\\u") {
                    return self.unexpected("the second half of a pair");
                }
                self.at += 2;
                let second = self.four_digits()?;
                if !(0xDC00..0xE000).contains(&second) {
                    return self.unexpected("the second half of a pair");
                }
                0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00)
            }
            code => code,
        };
        match char::from_u32(code) {
            Some(character) => Ok(character),
            None => self.unexpected("a character"),
        }
    }

    fn four_digits(&mut self) -> Result<u32, Malformed> {
        let digits =
            self.json.get(self.at..self.at + 4).filter(|four| four.iter().all(u8::is_ascii_hexdigit));
        let code = digits.and_then(|four| u32::from_str_radix(std::str::from_utf8(four).ok()?, 16).ok());
        match code {
            Some(code) => {
                self.at += 4;
                Ok(code)
            }
            None => self.unexpected("four hex digits"),
        }
    }
}

/// Writes a string. Slashes are escaped, and bytes outside ASCII are written as they are.
pub(crate) fn write_string(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'"');
    let mut rest = text;
    while let Some(plain) = rest.iter().position(|byte| matches!(byte, 0..=0x1F | b'"' | b'\\' | b'/' | 0x7F))
    {
        out.extend_from_slice(&rest[..plain]);
        let short = match rest[plain] {
            byte @ (b'"' | b'\\' | b'/') => byte,
            8 => b'b',
            12 => b'f',
            b'\n' => b'n',
            b'\r' => b'r',
            b'\t' => b't',
            _ => 0,
        };
        if short == 0 {
            // Writing into memory cannot fail.
            let _ = write!(out, "\\u{:04x}", rest[plain]);
        } else {
            out.extend_from_slice(&[b'\\', short]);
        }
        rest = &rest[plain + 1..];
    }
    out.extend_from_slice(rest);
    out.push(b'"');
}

/// Writes a number with up to 14 digits, like C's `%.14g`.
pub(crate) fn write_number(out: &mut Vec<u8>, number: f64) {
    // Writing into memory cannot fail.
    if number.fract() == 0.0 && number.abs() < 1e14 {
        let sign = if number == 0.0 && number.is_sign_negative() { "-" } else { "" };
        let _ = write!(out, "{sign}{}", number as i64);
        return;
    }
    let rounded = format!("{number:.13e}");
    let (digits, exponent) = rounded.split_once('e').unwrap_or((&rounded, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..14).contains(&exponent) {
        let places = usize::try_from(13 - exponent).unwrap_or(0);
        let fixed = format!("{number:.places$}");
        let trimmed = if fixed.contains('.') { fixed.trim_end_matches('0') } else { &fixed };
        let _ = write!(out, "{}", trimmed.trim_end_matches('.'));
    } else {
        let digits = digits.trim_end_matches('0').trim_end_matches('.');
        let sign = if exponent < 0 { '-' } else { '+' };
        let _ = write!(out, "{digits}e{sign}{:02}", exponent.abs());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(json: &str) -> String {
        String::from_utf8(rewrite(json.as_bytes()).unwrap()).unwrap()
    }

    #[test]
    fn numbers_have_fourteen_digits() {
        for (number, text) in [
            (1352375274.12349, "1352375274.1235"),
            (60.0, "60"),
            (-0.0, "-0"),
            (0.1, "0.1"),
            (-2.5, "-2.5"),
            (1e20, "1e+20"),
            (12345678901234567.0, "1.2345678901235e+16"),
            (1e14, "1e+14"),
            (99999999999999.0, "99999999999999"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1e-7, "1e-07"),
            (1e300, "1e+300"),
            (0.1 + 0.2, "0.3"),
            (2.7, "2.7"),
        ] {
            let mut out = Vec::new();
            write_number(&mut out, number);
            assert_eq!(String::from_utf8(out).unwrap(), text);
        }
    }

    #[test]
    fn rewritten_json_is_as_qless_writes_it() {
        for (json, text) in [
            (" { \"a\" : [ ] , \"b\":[1, 2.50] } ", r#"{"a":{},"b":[1,2.5]}"#),
            ("[]", "{}"),
            ("[[],{}]", "[{},{}]"),
            (r#""a/b\u00e9\ud83d\ude00\u0001\u007f""#, "\"a\\/b\u{e9}\u{1f600}\\u0001\\u007f\""),
            ("12345678901234567890", "1.2345678901235e+19"),
            ("null", "null"),
            ("true", "true"),
            ("false", "false"),
        ] {
            assert_eq!(rewritten(json), text);
        }
    }

    #[test]
    fn text_that_is_not_json_is_refused() {
        for json in [
            "",
            "{",
            "}",
            "[1,]",
            "{\"a\"}",
            "{\"a\":}",
            "{a:1}",
            "[1 2]",
            "01",
            "1.",
            "-",
            "1e",
            "tru",
            "\"a",
            "\"\\x\"",
            "\"\\u12\"",
            "\"\\ud800\"",
            "\"\\udc00\"",
            "[] []",
            "nul",
            "\"a\0b\"",
            "'a'",
            "[}",
            "{]",
            ",",
        ] {
            assert!(check(json.as_bytes()).is_err(), "{json}");
            assert!(rewrite(json.as_bytes()).is_err(), "{json}");
        }
        assert!(check(b"\"\xff\n\"").is_ok());
    }

    #[test]
    fn nesting_ends_at_a_thousand() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert_eq!(check(nested(1000).as_bytes()), Ok(()));
        assert_eq!(check(nested(1001).as_bytes()), Err(Malformed::TooDeep));
        assert_eq!(rewrite(nested(100_000).as_bytes()), Err(Malformed::TooDeep));
    }

    #[test]
    fn lists_of_texts_take_numbers_and_empty_objects() {
        let texts = |json: &str| texts(json.as_bytes()).unwrap();
        let some = |texts: &[&str]| Some(texts.iter().map(|text| text.as_bytes().to_vec()).collect());
        assert_eq!(texts(r#"["a", 7, "b\"", 1e20]"#), some(&["a", "7", "b\"", "1e+20"]));
        assert_eq!(texts("[]"), some(&[]));
        assert_eq!(texts(" { } "), some(&[]));
        for wrong in ["{\"a\":1}", "[[]]", "[null]", "[true]", "\"a\"", "null", "7", "[1e999]"] {
            assert_eq!(texts(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_list_becomes_fields_with_numbers() {
        let fields =
            |json: &str| rewrite_fields(json.as_bytes()).map(|out| String::from_utf8(out.unwrap()).unwrap());
        assert_eq!(fields(" {\"a\": []} ").unwrap(), r#"{"a":{}}"#);
        assert_eq!(fields("[]").unwrap(), "{}");
        assert_eq!(fields(r#"["a,]", [1, 2], {"b": 3}]"#).unwrap(), r#"{"1":"a,]","2":[1,2],"3":{"b":3}}"#);
        for neither in ["7", "null", "\"{\""] {
            assert_eq!(rewrite_fields(neither.as_bytes()), Ok(None), "{neither}");
        }
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(fields(&nested(900)).is_ok());
        assert_eq!(fields(&nested(901)), Err(Malformed::TooDeep));
    }

    #[test]
    fn fields_are_written_behind_others() {
        let mut out = Vec::from(&b"{\"what\":1"[..]);
        write_fields(&mut out, br#"{"a":[], "what":2, "when":{}, "b/":"c"}"#, &["what", "when"]).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), r#"{"what":1,"a":{},"b\/":"c""#);
        assert!(write_fields(&mut Vec::new(), b"[]", &[]).is_err());
        assert!(write_fields(&mut Vec::new(), b"{}", &[]).is_ok());
    }

    #[test]
    fn a_single_field_is_found_only_if_there_is_no_other() {
        assert_eq!(only_field(b" {\"$bytes\" : \"a\\/b\"} ", "$bytes").as_deref(), Some(&b"a/b"[..]));
        for other in
            ["{}", "{\"$bytes\":1}", "{\"$bytes\":\"\",\"a\":1}", "[]", "{\"b\":\"\"}", "{\"$bytes\":\"\"}x"]
        {
            assert_eq!(only_field(other.as_bytes(), "$bytes"), None, "{other}");
        }
    }
}
