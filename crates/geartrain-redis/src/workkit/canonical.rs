//! The canonical text of a payload, which every language must write alike: a job's id is the SHA-1 of it.

use geartrain_core::Refusal;

/// The canonical payload of a job: its members sorted by name.
pub(super) fn payload_text(args: &str, cron: &str, job: &str, nonce: Option<&str>) -> String {
    let mut text = String::with_capacity(args.len() + cron.len() + job.len() + 32);
    text.push_str(r#"{"args":"#);
    text.push_str(args);
    text.push_str(r#","cron":"#);
    push_string(&mut text, cron);
    text.push_str(r#","job":"#);
    push_string(&mut text, job);
    if let Some(nonce) = nonce {
        text.push_str(r#","nonce":"#);
        push_string(&mut text, nonce);
    }
    text.push('}');
    text
}

/// The id of a job: the SHA-1 of its payload in hex.
pub(super) fn id_of(payload: &str) -> String {
    sha1_smol::Sha1::from(payload).hexdigest()
}

/// The canonical text of arguments, which are a JSON array; empty stands for no arguments.
pub(super) fn args_text(json: &[u8]) -> Result<String, Refusal> {
    let bad = |why: String| Refusal::BadArgument { what: "payload".into(), why };
    if json.is_empty() {
        return Ok("[]".to_owned());
    }
    let text = std::str::from_utf8(json).map_err(|_| bad("must be JSON: it is not UTF-8".into()))?;
    serde_json::from_str::<serde::de::IgnoredAny>(text)
        .map_err(|error| bad(format!("must be JSON: {error}")))?;
    if !text.trim_start().starts_with('[') {
        return Err(bad("must be a JSON array, the arguments of the function".into()));
    }
    canonical(text).ok_or_else(|| bad("has a string that is not Unicode".into()))
}

/// Rewrites valid JSON; none if a string has half of a surrogate pair.
fn canonical(text: &str) -> Option<String> {
    let (mut out, bytes, mut at) = (String::with_capacity(text.len()), text.as_bytes(), 0);
    while at < bytes.len() {
        let start = at;
        match bytes[at] {
            b' ' | b'\t' | b'\n' | b'\r' => at += 1,
            b'"' => {
                at += 1;
                while bytes[at] != b'"' {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                at += 1;
                push_string(&mut out, &serde_json::from_str::<String>(&text[start..at]).ok()?);
            }
            b'-' | b'0'..=b'9' => {
                while at < bytes.len() && matches!(bytes[at], b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9')
                {
                    at += 1;
                }
                push_number(&mut out, &text[start..at]);
            }
            // Brackets, commas, colons, and the letters of true, false and null.
            byte => {
                out.push(char::from(byte));
                at += 1;
            }
        }
    }
    Some(out)
}

fn push_string(out: &mut String, text: &str) {
    out.push('"');
    for char in text.chars() {
        match char {
            '"' | '\\' | '/' => out.extend(['\\', char]),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            ' '..='~' => out.push(char),
            _ => {
                for unit in char.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
    out.push('"');
}

/// Whole numbers stay as they are, others are written as Java does.
fn push_number(out: &mut String, number: &str) {
    if !number.contains(['.', 'e', 'E']) {
        out.push_str(if number == "-0" { "0" } else { number });
        return;
    }
    match number.parse::<f64>() {
        Ok(value) if value.is_finite() => push_double(out, value),
        _ => out.push_str(number),
    }
}

/// `1.5`, `0.001`; from ten million on and below a thousandth `1.5E10`.
fn push_double(out: &mut String, value: f64) {
    if value == 0.0 {
        out.push_str(if value.is_sign_negative() { "-0.0" } else { "0.0" });
    } else if (1e-3..1e7).contains(&value.abs()) {
        let text = value.to_string();
        out.push_str(&text);
        if !text.contains('.') {
            out.push_str(".0");
        }
    } else {
        let text = format!("{value:e}");
        let (digits, exponent) = text.split_once('e').expect("this format has an exponent");
        out.push_str(digits);
        if !digits.contains('.') {
            out.push_str(".0");
        }
        out.push('E');
        out.push_str(exponent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text and id of a job, from its arguments as a caller may write them.
    fn made(args: &str, cron: &str, job: &str, nonce: Option<&str>) -> (String, String) {
        let text = payload_text(&args_text(args.as_bytes()).expect("an array"), cron, job, nonce);
        let id = id_of(&text);
        (text, id)
    }

    #[test]
    fn ids_are_those_of_other_implementations() {
        let always = "* * * * * * *";
        let println = "#'clojure.core/println";
        for (made, text, id) in [
            (
                made(r#" [ "test" ] "#, always, println, None),
                r##"{"args":["test"],"cron":"* * * * * * *","job":"#'clojure.core\/println"}"##,
                "b47c4f60e77f631e8045ca999ec215fa74d4d658",
            ),
            (
                made("", always, println, None),
                r##"{"args":[],"cron":"* * * * * * *","job":"#'clojure.core\/println"}"##,
                "a6daf9217f92031e5543bae88a2362c9880f2278",
            ),
            (
                made("[1, 2]", always, "#'some.ns/func-name", None),
                r##"{"args":[1,2],"cron":"* * * * * * *","job":"#'some.ns\/func-name"}"##,
                "f2942d9cd2c3d5bbfc6d91964a51886664182429",
            ),
            (
                made(r#"["Beep!"]"#, "2014 3 * 0/2,3 9-17 * */5", println, None),
                r##"{"args":["Beep!"],"cron":"2014 3 * 0\/2,3 9-17 * *\/5","job":"#'clojure.core\/println"}"##,
                "14e62dd042f5f8276218606781351d07ab0c1ad1",
            ),
            (
                made("[]", "2014 3 6 * 19 0 0", "#'your-app.cache/clear", None),
                r##"{"args":[],"cron":"2014 3 6 * 19 0 0","job":"#'your-app.cache\/clear"}"##,
                "449402ee68fc71fa4f3ee19d36365a5db17acc64",
            ),
            (
                made("[]", always, "#'a/b", Some("x")),
                r##"{"args":[],"cron":"* * * * * * *","job":"#'a\/b","nonce":"x"}"##,
                "12501cf71739473936bcb77868da43c80fce5328",
            ),
            (
                made(r#"[{"b":1, "a":2, "c/d":[1,[2]]}, [], {}]"#, always, "#'a/b", None),
                r##"{"args":[{"b":1,"a":2,"c\/d":[1,[2]]},[],{}],"cron":"* * * * * * *","job":"#'a\/b"}"##,
                "5b5d909d0f3a37d6a5b76a89fc03ffbc9caf10c3",
            ),
            (
                made("[\"é€😀\u{2028} \\\" \\\\ / \\t\\n\\b\\f\\u0001 \u{7f} <>&'\"]", always, "#'a/b", None),
                r##"{"args":["\u00e9\u20ac\ud83d\ude00\u2028 \" \\ \/ \t\n\b\f\u0001 \u007f <>&'"],"cron":"* * * * * * *","job":"#'a\/b"}"##,
                "5d7eec9d0bce362edb69051862edf674d632712b",
            ),
        ] {
            assert_eq!(made, (text.to_owned(), id.to_owned()));
        }
    }

    #[test]
    fn numbers_are_written_as_java_does() {
        for (given, expected) in [
            ("[1.0,1e10,1e-7,0.001,1.50]", "[1.0,1.0E10,1.0E-7,0.001,1.5]"),
            ("[-0,-0.0,1234567.0,12345678.5]", "[0,-0.0,1234567.0,1.23456785E7]"),
            ("[123456789012345678901234567890,-5]", "[123456789012345678901234567890,-5]"),
            ("[true,false,null]", "[true,false,null]"),
        ] {
            assert_eq!(args_text(given.as_bytes()).as_deref(), Ok(expected));
        }
    }

    #[test]
    fn arguments_that_are_no_array_are_refused() {
        for (json, why) in [
            (&b"{\"to\":1}"[..], "must be a JSON array, the arguments of the function"),
            (b"7", "must be a JSON array, the arguments of the function"),
            (b"\xff", "must be JSON: it is not UTF-8"),
            (b"[\"\\ud800\"]", "has a string that is not Unicode"),
        ] {
            let Err(Refusal::BadArgument { what, why: said }) = args_text(json) else {
                panic!("{json:?} was accepted")
            };
            assert_eq!((&*what, said.as_str()), ("payload", why), "{json:?}");
        }
        assert!(args_text(b"[1").is_err());
        assert!(args_text(b"[1] x").is_err());
        assert!(args_text("[".repeat(100_000).as_bytes()).is_err(), "nesting is limited");
    }

    /// A generator of numbers, so that a failure can be repeated.
    struct Random(u64);

    impl Random {
        fn below(&mut self, end: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % end
        }

        fn value(&mut self, depth: u32) -> serde_json::Value {
            let text = |random: &mut Random| -> String {
                let char = |random: &mut Random| {
                    let end = [0x80, 0x800, 0x1_0000, 0x11_0000][random.below(4) as usize];
                    char::from_u32(random.below(end) as u32).unwrap_or('/')
                };
                (0..random.below(6)).map(|_| char(random)).collect()
            };
            match self.below(if depth == 0 { 5 } else { 7 }) {
                0 => serde_json::Value::Null,
                1 => (self.below(2) == 0).into(),
                2 => (self.below(u64::MAX) as i64).into(),
                3 => {
                    // Few digits: serde_json does not read all doubles exactly.
                    let (digits, power) = (self.below(1_000_000), self.below(30) as i32 - 15);
                    format!("{digits}e{power}").parse::<f64>().expect("it is a number").into()
                }
                4 => text(self).into(),
                5 => (0..self.below(4)).map(|_| self.value(depth - 1)).collect(),
                _ => (0..self.below(4)).map(|_| (text(self), self.value(depth - 1))).collect(),
            }
        }
    }

    #[test]
    fn canonical_text_means_the_same() {
        let mut random = Random(7_041);
        for _ in 0..2_000 {
            let args = serde_json::Value::Array((0..random.below(4)).map(|_| random.value(3)).collect());
            let pretty = serde_json::to_string_pretty(&args).expect("it is JSON");
            let text = args_text(pretty.as_bytes()).expect("an array");
            assert!(text.is_ascii());
            assert_eq!(serde_json::from_str::<serde_json::Value>(&text).expect("it is JSON"), args, "{text}");
            assert_eq!(args_text(text.as_bytes()).as_deref(), Ok(text.as_str()), "it stays the same");

            // Damaged text is refused, or is another array; it is no reason to panic.
            let mut damaged = pretty.into_bytes();
            let place = random.below(damaged.len() as u64) as usize;
            damaged[place] = random.below(256) as u8;
            let _ = args_text(&damaged);
            damaged.truncate(place);
            let _ = args_text(&damaged);
        }
    }
}
