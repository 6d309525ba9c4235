//! Argument parsing: takes NUL-terminated arguments out of a packet's data.

use bytes::{Buf, Bytes};

use super::{FUNCTION_BYTES_MAX, Fault, UNIQUE_BYTES_MAX};

/// Takes the argument before the next NUL, and that NUL.
pub(crate) fn terminated(data: &mut Bytes) -> Option<Bytes> {
    let end = data.iter().position(|byte| *byte == 0)?;
    let argument = data.split_to(end);
    data.advance(1);
    Some(argument)
}

/// Like [`terminated`], but the argument must be there.
pub(crate) fn required(data: &mut Bytes, name: &'static str) -> Result<Bytes, Fault> {
    terminated(data).ok_or(Fault::Incomplete(name))
}

/// Takes the argument before the next NUL, or all that is left.
pub(crate) fn terminated_or_all(data: &mut Bytes) -> Bytes {
    terminated(data).unwrap_or_else(|| std::mem::take(data))
}

/// Removes the NUL that some clients append to a single argument.
pub(crate) fn without_one_nul(mut data: Bytes) -> Bytes {
    if data.last() == Some(&0) {
        data.truncate(data.len() - 1);
    }
    data
}

/// Checks a function name.
pub(crate) fn check_function(name: &[u8]) -> Result<(), Fault> {
    let fits = (1..=FUNCTION_BYTES_MAX).contains(&name.len());
    if fits && !name.contains(&0) { Ok(()) } else { Err(Fault::FunctionName) }
}

/// Checks a unique ID or a reducer name.
pub(crate) fn check_unique(unique: &[u8]) -> Result<(), Fault> {
    if unique.len() <= UNIQUE_BYTES_MAX { Ok(()) } else { Err(Fault::UniqueTooLarge) }
}

/// The number at the beginning of a text, read as C's `atoi` does: blanks and a sign may precede it, anything
/// may follow. A missing or negative number is 0; `None` for one above 64 bits.
pub(crate) fn leading_number(text: &[u8]) -> Option<u64> {
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t'..=b'\r');
    let text = &text[text.iter().take_while(|byte| blank(byte)).count()..];
    let digits = text.strip_prefix(b"+").unwrap_or(text);
    digits
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .try_fold(0_u64, |number, digit| number.checked_mul(10)?.checked_add(u64::from(digit - b'0')))
}

/// Like [`leading_number`], but saturating at 32 bits.
pub(crate) fn leading_u32(text: &[u8]) -> u32 {
    let number = leading_number(text).unwrap_or(u64::MAX);
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_parsed_as_atoi_does() {
        for (text, number) in [
            ("", Some(0)),
            ("abc", Some(0)),
            ("1.5", Some(1)),
            (" \t+42 apples", Some(42)),
            ("-7", Some(0)),
            ("+-7", Some(0)),
            ("007", Some(7)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("-18446744073709551616", Some(0)),
        ] {
            assert_eq!(leading_number(text.as_bytes()), number, "{text:?}");
        }
        assert_eq!(leading_u32(b"4294967295"), u32::MAX);
        assert_eq!(leading_u32(b"99999999999999999999999"), u32::MAX);
    }

    #[test]
    fn arguments_end_at_nuls() {
        let mut data = Bytes::from_static(b"a\0\0b\0c");
        assert_eq!(terminated(&mut data).unwrap(), "a");
        assert_eq!(terminated(&mut data).unwrap(), "");
        assert_eq!(terminated_or_all(&mut data), "b");
        assert_eq!(terminated(&mut data), None);
        assert_eq!(terminated_or_all(&mut data), "c");
        assert_eq!(terminated_or_all(&mut data), "");
    }
}
