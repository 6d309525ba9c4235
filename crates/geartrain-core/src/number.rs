//! Lenient number parsing, as Lua's `tonumber` does it for Qless.

/// Parses a number: decimal, exponent or hex, with an optional sign and surrounding whitespace. `None` if the
/// text is anything else or the number is not finite.
///
/// ```
/// use geartrain_core::read_number;
/// assert_eq!(read_number(b" -1.5e3 "), Some(-1500.0));
/// assert_eq!(read_number(b"0x10"), Some(16.0));
/// assert_eq!(read_number(b"inf"), None);
/// ```
pub fn read_number(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?;
    let text = text.trim_matches([' ', '\t', '\n', '\r', '\x0b', '\x0c']);
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let number = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hex) if !hex.is_empty() => hex.chars().try_fold(0.0, |number, digit| {
            digit.to_digit(16).map(|digit| number * 16.0 + f64::from(digit))
        })?,
        // `str::parse` also accepts `inf`, `nan` and a second sign.
        _ if digits.starts_with(|first: char| first.is_ascii_digit() || first == '.') => {
            digits.parse().ok()?
        }
        _ => return None,
    };
    let number: f64 = if negative { -number } else { number };
    number.is_finite().then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_parsed_leniently() {
        for (text, number) in [
            ("0", 0.0),
            (" 12.5 ", 12.5),
            ("\t-7\n", -7.0),
            ("+3", 3.0),
            (".5", 0.5),
            ("5.", 5.0),
            ("1e3", 1000.0),
            ("1E-2", 0.01),
            ("0x10", 16.0),
            ("-0XfF", -255.0),
        ] {
            assert_eq!(read_number(text.as_bytes()), Some(number), "{text}");
        }
    }

    #[test]
    fn anything_but_a_finite_number_is_none() {
        for text in [
            "", " ", "a", "1a", "--1", "+-1", "0x", "0xg", "0x-1", "nan", "inf", "-inf", "infinity", "1e999",
            ".", "1 2",
        ] {
            assert_eq!(read_number(text.as_bytes()), None, "{text}");
        }
        assert_eq!(read_number(b"\xff"), None);
    }
}
