//! Trace context: which trace a job belongs to, as the W3C defines it for HTTP.

use std::fmt;
use std::str::FromStr;

use crate::BadArgument;

/// A trace context in the form of W3C's `traceparent` header, version 00: the trace, the span that put the
/// job, and flags. Lower-case hexadecimal, and no id is all zeros.
///
/// ```
/// use geartrain_core::Traceparent;
/// let text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
/// let context: Traceparent = text.parse()?;
/// assert_eq!((context.to_string().as_str(), context.flags()), (text, 1));
/// assert!("00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01".parse::<Traceparent>().is_err());
/// assert!("00-00000000000000000000000000000000-b7ad6b7169203331-01".parse::<Traceparent>().is_err());
/// # Ok::<(), geartrain_core::BadArgument>(())
/// ```
// Boxed, because few jobs have one.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Traceparent(Box<[u8; Traceparent::BYTES]>);

/// The length of the text form.
const TEXT_BYTES: usize = 55;

impl Traceparent {
    /// Trace id, parent id and flags.
    pub(crate) const BYTES: usize = 16 + 8 + 1;

    /// The id of the trace.
    pub fn trace_id(&self) -> [u8; 16] {
        let mut id = [0; 16];
        id.copy_from_slice(&self.0[..16]);
        id
    }

    /// The id of the span that put the job.
    pub fn parent_id(&self) -> [u8; 8] {
        let mut id = [0; 8];
        id.copy_from_slice(&self.0[16..24]);
        id
    }

    /// The flags; bit 0 says that the trace is sampled.
    pub fn flags(&self) -> u8 {
        self.0[24]
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0[..]
    }

    /// None if the length is wrong or an id is all zeros.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Traceparent> {
        let bytes: [u8; Traceparent::BYTES] = bytes.try_into().ok()?;
        let is_id = |id: &[u8]| id.iter().any(|byte| *byte != 0);
        (is_id(&bytes[..16]) && is_id(&bytes[16..24])).then(|| Traceparent(Box::new(bytes)))
    }
}

impl FromStr for Traceparent {
    type Err = BadArgument;
    fn from_str(text: &str) -> Result<Traceparent, BadArgument> {
        parse(text.as_bytes()).ok_or_else(|| {
            let shown: String = text.chars().take(TEXT_BYTES + 1).collect();
            let why = format!(
                "must be 00-<trace id>-<parent id>-<flags> with 32, 16 and 2 hexadecimal digits in lower case, \
                 and ids that are not all zeros, not {shown:?}"
            );
            BadArgument::new("traceparent", why)
        })
    }
}

fn parse(text: &[u8]) -> Option<Traceparent> {
    if text.len() != TEXT_BYTES || !text.starts_with(b"00-") || text[35] != b'-' || text[52] != b'-' {
        return None;
    }
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let digits = text[3..35].iter().chain(&text[36..52]).chain(&text[53..]);
    let digits = digits.map(|byte| digit(*byte)).collect::<Option<Vec<u8>>>()?;
    let bytes: Vec<u8> = digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect();
    Traceparent::from_bytes(&bytes)
}

impl fmt::Display for Traceparent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("00")?;
        for (place, byte) in self.0.iter().enumerate() {
            let dash = if matches!(place, 0 | 16 | 24) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Traceparent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_form_of_version_0_is_a_traceparent() {
        let good = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-00";
        let context: Traceparent = good.parse().unwrap();
        assert_eq!(context.to_string(), good);
        assert_eq!((context.trace_id()[..2].to_vec(), context.flags()), (vec![0x0a, 0xf7], 0));
        assert_eq!(context.parent_id(), [0x00, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7]);
        for bad in [
            "",
            "00",
            "01-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-00",
            "ff-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-00",
            "00-0AF7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-00",
            "00-0gf7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-00",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-00",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-00",
            "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-0",
            "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-000",
            "00_0af7651916cd43dd8448eb211c80319c_00f067aa0ba902b7_00",
            "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-0\u{e9}",
        ] {
            let error = bad.parse::<Traceparent>().unwrap_err();
            assert_eq!(error.what, "traceparent", "{bad}");
        }
    }

    #[test]
    fn an_absent_context_takes_a_pointer() {
        assert_eq!(size_of::<Option<Traceparent>>(), size_of::<usize>());
    }
}
