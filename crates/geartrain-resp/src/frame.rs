//! The RESP codec: bytes to requests, and values to bytes.

use std::fmt::Write;

use bytes::{Buf, Bytes, BytesMut};
use geartrain_front::http_word;

/// The longest argument. A payload and a result of the largest size, 64 MiB each, grow by a third as base64.
pub(crate) const BULK_BYTES_MAX: usize = 192 << 20;
/// The largest request.
pub(crate) const REQUEST_BYTES_MAX: usize = 256 << 20;
/// The most arguments of a request.
pub(crate) const ARGUMENTS_MAX: usize = 1 << 20;
/// The longest request in the form of a line.
pub(crate) const INLINE_BYTES_MAX: usize = 64 << 10;
/// The largest request before authentication: enough for a password.
pub(crate) const UNAUTHENTICATED_BYTES_MAX: usize = 64 << 10;
/// The longest line with a number.
const HEAD_BYTES_MAX: usize = 32;
/// The first byte of TLS. A TLS hello can contain lines that a web page chose.
const TLS_HELLO: u8 = 0x16;

/// A command's name and its arguments.
pub(crate) type Request = Vec<Bytes>;

/// Bytes that are not RESP. The next request cannot be found, so the connection ends.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ProtocolError {
    #[error("a line that announces a number has at most {HEAD_BYTES_MAX} bytes and ends with CR and LF")]
    BadLine,
    #[error("the number of arguments must be 0 to {ARGUMENTS_MAX}, not {0}")]
    BadCount(String),
    #[error("an argument's length must be 0 to {BULK_BYTES_MAX}, not {0}")]
    BadLength(String),
    #[error("an argument begins with '$', not with {0:?}")]
    NotBulk(char),
    #[error("CR and LF are missing behind an argument")]
    NoEnd,
    #[error("a request has at most {0} bytes")]
    TooLong(usize),
    #[error("a request in one line has at most {INLINE_BYTES_MAX} bytes")]
    LineTooLong,
    #[error("the quotes in the line are not closed, or something is right behind them")]
    Quotes,
    #[error("a request that begins with {0} is HTTP, and this port speaks RESP")]
    Http(&'static str),
    #[error("this is TLS, and this port speaks RESP without it")]
    Tls,
}

/// An incremental parser: it remembers how far it got, so that a request that arrives in small pieces is
/// scanned once.
#[derive(Debug)]
pub(crate) struct Parser {
    request_bytes_max: usize,
    /// How many bytes of the request are parsed.
    at: usize,
    /// How many arguments are still to come, once the head is parsed.
    missing: Option<usize>,
    /// The length of the next argument, once it is parsed.
    bulk: Option<usize>,
    /// Offsets of the arguments.
    arguments: Vec<(usize, usize)>,
}

impl Parser {
    pub(crate) fn new(request_bytes_max: usize) -> Parser {
        Parser { request_bytes_max, at: 0, missing: None, bulk: None, arguments: Vec::new() }
    }

    pub(crate) fn allow(&mut self, request_bytes_max: usize) {
        self.request_bytes_max = request_bytes_max;
    }

    /// Takes the next request out of the buffer, if it is complete. Its arguments are slices of the buffer.
    pub(crate) fn next(&mut self, buffer: &mut BytesMut) -> Result<Option<Request>, ProtocolError> {
        loop {
            let Some(first) = buffer.first() else { return Ok(None) };
            if self.missing.is_none() && *first != b'*' {
                match self.line(buffer)? {
                    // An empty line is no request.
                    Some(request) if request.is_empty() => continue,
                    request => return Ok(request),
                }
            }
            if !self.arguments(buffer)? {
                if self.at > self.request_bytes_max {
                    return Err(ProtocolError::TooLong(self.request_bytes_max));
                }
                return Ok(None);
            }
            let whole = buffer.split_to(self.at).freeze();
            let request: Request =
                self.arguments.drain(..).map(|(start, end)| whole.slice(start..end)).collect();
            (self.at, self.missing) = (0, None);
            if !request.is_empty() {
                return Ok(Some(request));
            }
        }
    }

    /// How many more bytes this request is known to have: a hint for reading.
    pub(crate) fn wants(&self, buffer: &BytesMut) -> usize {
        self.bulk.map_or(0, |bulk| (self.at + bulk + 2).saturating_sub(buffer.len()))
    }

    /// Parses arguments, and returns whether these are all.
    fn arguments(&mut self, buffer: &[u8]) -> Result<bool, ProtocolError> {
        let mut missing = match self.missing {
            Some(missing) => missing,
            None => {
                let Some((head, at)) = head(buffer, 0)? else { return Ok(false) };
                let count = number(head).filter(|count| *count <= ARGUMENTS_MAX);
                self.at = at;
                count.ok_or_else(|| ProtocolError::BadCount(shown(head)))?
            }
        };
        while missing > 0 {
            self.missing = Some(missing);
            let bulk = match self.bulk {
                Some(bulk) => bulk,
                None => {
                    match buffer.get(self.at) {
                        None => return Ok(false),
                        Some(b'$') => {}
                        Some(other) => return Err(ProtocolError::NotBulk(char::from(*other))),
                    }
                    let Some((head, at)) = head(buffer, self.at)? else { return Ok(false) };
                    let bulk = number(head).filter(|bulk| *bulk <= BULK_BYTES_MAX);
                    let bulk = bulk.ok_or_else(|| ProtocolError::BadLength(shown(head)))?;
                    if at + bulk > self.request_bytes_max {
                        return Err(ProtocolError::TooLong(self.request_bytes_max));
                    }
                    self.at = at;
                    self.bulk = Some(bulk);
                    bulk
                }
            };
            let end = self.at + bulk;
            let Some(crlf) = buffer.get(end..end + 2) else { return Ok(false) };
            if crlf != b"\r\n" {
                return Err(ProtocolError::NoEnd);
            }
            self.arguments.push((self.at, end));
            self.at = end + 2;
            self.bulk = None;
            missing -= 1;
        }
        self.missing = Some(0);
        Ok(true)
    }

    /// An inline command: words in a line.
    fn line(&mut self, buffer: &mut BytesMut) -> Result<Option<Request>, ProtocolError> {
        let Some(end) = buffer[self.at..].iter().position(|byte| *byte == b'\n') else {
            self.at = buffer.len();
            let longest = INLINE_BYTES_MAX.min(self.request_bytes_max);
            return if self.at > longest { Err(ProtocolError::LineTooLong) } else { Ok(None) };
        };
        let line = buffer.split_to(self.at + end).freeze();
        buffer.advance(1);
        self.at = 0;
        if line.len() > INLINE_BYTES_MAX {
            return Err(ProtocolError::LineTooLong);
        }
        if line.first() == Some(&TLS_HELLO) {
            return Err(ProtocolError::Tls);
        }
        // A web page can make a browser send HTTP to this port, with calls in the body: such a connection
        // ends here. HTTP is never an array, so only lines are checked, and before their quotes: a URL may
        // contain some.
        let first = line.trim_ascii_start().split(u8::is_ascii_whitespace).next().unwrap_or_default();
        if let Some(word) = http_word(first) {
            return Err(ProtocolError::Http(word));
        }
        words(line.strip_suffix(b"\r").unwrap_or(&line)).map(Some)
    }
}

/// The line that starts here, without its first and its last bytes, and where the next one starts.
fn head(buffer: &[u8], at: usize) -> Result<Option<(&[u8], usize)>, ProtocolError> {
    let seen = &buffer[at..buffer.len().min(at + HEAD_BYTES_MAX)];
    match seen.iter().position(|byte| *byte == b'\n') {
        Some(end) if end >= 2 && seen[end - 1] == b'\r' => Ok(Some((&seen[1..end - 1], at + end + 1))),
        Some(_) => Err(ProtocolError::BadLine),
        None if seen.len() == HEAD_BYTES_MAX => Err(ProtocolError::BadLine),
        None => Ok(None),
    }
}

fn number(digits: &[u8]) -> Option<usize> {
    if digits.is_empty() || digits.len() > 18 {
        return None;
    }
    digits.iter().try_fold(0_usize, |number, digit| {
        digit.is_ascii_digit().then(|| number * 10 + usize::from(digit - b'0'))
    })
}

fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).escape_debug().to_string()
}

/// The words of a line. Quotes keep blanks; in double quotes, backslashes escape.
fn words(line: &[u8]) -> Result<Request, ProtocolError> {
    let mut words = Vec::new();
    let mut rest = line.trim_ascii_start();
    while let Some(first) = rest.first() {
        let mut word = Vec::new();
        if matches!(first, b'"' | b'\'') {
            rest = quoted(rest, &mut word)?;
            if rest.first().is_some_and(|next| !next.is_ascii_whitespace()) {
                return Err(ProtocolError::Quotes);
            }
        } else {
            let end = rest.iter().position(u8::is_ascii_whitespace).unwrap_or(rest.len());
            word.extend_from_slice(&rest[..end]);
            rest = &rest[end..];
        }
        words.push(word.into());
        rest = rest.trim_ascii_start();
    }
    Ok(words)
}

/// Reads a quoted word, and returns what follows it.
fn quoted<'a>(text: &'a [u8], word: &mut Vec<u8>) -> Result<&'a [u8], ProtocolError> {
    let quote = text[0];
    let mut at = 1;
    loop {
        let byte = *text.get(at).ok_or(ProtocolError::Quotes)?;
        at += 1;
        match byte {
            _ if byte == quote => return Ok(&text[at..]),
            b'\\' if quote == b'"' => {
                let escaped = *text.get(at).ok_or(ProtocolError::Quotes)?;
                at += 1;
                let hex = || {
                    let digits = std::str::from_utf8(text.get(at..at + 2)?).ok()?;
                    u8::from_str_radix(digits, 16).ok()
                };
                word.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    b'x' => match hex() {
                        Some(byte) => {
                            at += 2;
                            byte
                        }
                        None => b'x',
                    },
                    other => other,
                });
            }
            b'\\' if text.get(at) == Some(&b'\'') => {
                word.push(b'\'');
                at += 1;
            }
            other => word.push(other),
        }
    }
}

/// The protocol version of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Protocol {
    #[default]
    Two,
    Three,
}

/// Encoded replies and messages that are not sent yet.
#[derive(Debug, Default)]
pub(crate) struct Output {
    pub(crate) bytes: geartrain_front::Output,
    pub(crate) protocol: Protocol,
}

impl Output {
    fn head(&mut self, kind: u8, number: impl std::fmt::Display) {
        // Writing into memory cannot fail.
        let _ = write!(self.bytes.buffer(), "{}{number}\r\n", char::from(kind));
    }

    pub(crate) fn simple(&mut self, text: &str) {
        self.head(b'+', text);
    }

    /// An error, which starts with a word in capitals. It is one line, whatever names it contains.
    pub(crate) fn error(&mut self, text: &str) {
        let to = self.bytes.buffer();
        to.extend_from_slice(b"-");
        // As in Redis: a line end would end the error too early, and so would a NUL.
        let text = text.trim_end_matches(['\r', '\n']);
        let blank = |byte| if matches!(byte, b'\r' | b'\n' | 0) { b' ' } else { byte };
        to.extend(text.bytes().map(blank));
        to.extend_from_slice(b"\r\n");
    }

    pub(crate) fn integer(&mut self, number: i64) {
        self.head(b':', number);
    }

    pub(crate) fn bulk(&mut self, bytes: impl AsRef<[u8]>) {
        let bytes = bytes.as_ref();
        self.bulk_head(bytes.len());
        self.bytes.extend(bytes);
        self.bulk_end();
    }

    /// Without a copy, if it is large.
    pub(crate) fn shared_bulk(&mut self, bytes: Bytes) {
        self.bulk_head(bytes.len());
        self.bytes.share(bytes);
        self.bulk_end();
    }

    /// The head of a bulk string whose bytes follow in pieces.
    pub(crate) fn bulk_head(&mut self, length: usize) {
        self.head(b'$', length);
    }

    /// The end of one.
    pub(crate) fn bulk_end(&mut self) {
        self.bytes.extend(b"\r\n");
    }

    pub(crate) fn nil(&mut self) {
        self.bytes.extend(match self.protocol {
            Protocol::Two => b"$-1\r\n",
            Protocol::Three => b"_\r\n",
        });
    }

    pub(crate) fn double(&mut self, number: f64) {
        match self.protocol {
            Protocol::Two => self.bulk(number.to_string()),
            Protocol::Three => self.head(b',', number),
        }
    }

    pub(crate) fn array(&mut self, count: usize) {
        self.head(b'*', count);
    }

    /// The head of a map with so many pairs.
    pub(crate) fn map(&mut self, count: usize) {
        match self.protocol {
            Protocol::Two => self.array(2 * count),
            Protocol::Three => self.head(b'%', count),
        }
    }

    /// The head of a push message.
    pub(crate) fn push(&mut self, count: usize) {
        match self.protocol {
            Protocol::Two => self.array(count),
            Protocol::Three => self.head(b'>', count),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(bytes: &[u8]) -> Result<Vec<Vec<String>>, ProtocolError> {
        let mut parser = Parser::new(REQUEST_BYTES_MAX);
        let mut buffer = BytesMut::from(bytes);
        let mut requests = Vec::new();
        while let Some(request) = parser.next(&mut buffer)? {
            requests.push(
                request.iter().map(|argument| String::from_utf8_lossy(argument).into_owned()).collect(),
            );
        }
        Ok(requests)
    }

    #[test]
    fn requests_come_one_after_the_other_in_both_forms() {
        let bytes = b"*2\r\n$4\r\nECHO\r\n$3\r\na\r\n\r\n\r\nPING\r\n*0\r\necho \"a b\\x41\\n\" 'it\\'s'\n*1\r\n$0\r\n\r\n";
        assert_eq!(
            all(bytes).unwrap(),
            [vec!["ECHO", "a\r\n"], vec!["PING"], vec!["echo", "a bA\n", "it's"], vec![""]]
        );
    }

    #[test]
    fn a_request_may_come_one_byte_at_a_time() {
        let bytes = b"*3\r\n$3\r\nput\r\n$0\r\n\r\n$10\r\n0123456789\r\nPING a\r\n";
        let mut parser = Parser::new(REQUEST_BYTES_MAX);
        let (mut buffer, mut requests) = (BytesMut::new(), Vec::new());
        for byte in bytes {
            buffer.extend_from_slice(&[*byte]);
            requests.extend(parser.next(&mut buffer).unwrap());
        }
        assert_eq!(requests, [vec!["put", "", "0123456789"], vec!["PING", "a"]]);
        assert!(buffer.is_empty());
    }

    #[test]
    fn each_protocol_error_has_its_name() {
        let long = format!("*1\r\n${}\r\n", BULK_BYTES_MAX + 1);
        let line = vec![b'x'; INLINE_BYTES_MAX + 1];
        for (bytes, error) in [
            (&b"*-1\r\n"[..], ProtocolError::BadCount("-1".into())),
            (b"*x\r\n", ProtocolError::BadCount("x".into())),
            (b"*\r\n", ProtocolError::BadCount("".into())),
            (b"*1048577\r\n", ProtocolError::BadCount("1048577".into())),
            (b"*99999999999999999999\r\n", ProtocolError::BadCount("99999999999999999999".into())),
            (b"*1\n", ProtocolError::BadLine),
            (b"*1000000000000000000000000000000000000", ProtocolError::BadLine),
            (b"*1\r\n*1\r\n", ProtocolError::NotBulk('*')),
            (b"*1\r\n:1\r\n", ProtocolError::NotBulk(':')),
            (b"*1\r\n$-1\r\n", ProtocolError::BadLength("-1".into())),
            (long.as_bytes(), ProtocolError::BadLength((BULK_BYTES_MAX + 1).to_string())),
            (b"*1\r\n$1\r\nabc", ProtocolError::NoEnd),
            (b"echo \"a\r\n", ProtocolError::Quotes),
            (b"echo \"a\"b\r\n", ProtocolError::Quotes),
            (&line, ProtocolError::LineTooLong),
            (b"POST / HTTP/1.1\r\n", ProtocolError::Http("POST")),
            (b"PING\r\n\r\n  get /\"x HTTP/1.1\r\n", ProtocolError::Http("GET")),
            (b"Host: localhost:7411\r\n", ProtocolError::Http("Host:")),
            (b"\x16\x03\x01\x02\nPING\r\n", ProtocolError::Tls),
        ] {
            assert_eq!(all(bytes), Err(error));
        }
    }

    #[test]
    fn unauthenticated_requests_have_a_lower_limit() {
        let total = format!("*3\r\n$40000\r\n{}\r\n$40000\r\n", "x".repeat(40_000));
        let mut parser = Parser::new(UNAUTHENTICATED_BYTES_MAX);
        let parsed = parser.next(&mut BytesMut::from(total.as_bytes()));
        assert_eq!(parsed, Err(ProtocolError::TooLong(UNAUTHENTICATED_BYTES_MAX)));
        let small = "*16000\r\n".to_owned() + &"$1\r\nx\r\n".repeat(15_999);
        let mut parser = Parser::new(UNAUTHENTICATED_BYTES_MAX);
        let parsed = parser.next(&mut BytesMut::from(small.as_bytes()));
        assert_eq!(parsed, Err(ProtocolError::TooLong(UNAUTHENTICATED_BYTES_MAX)));
    }

    #[test]
    fn an_announced_length_takes_no_memory() {
        let mut parser = Parser::new(REQUEST_BYTES_MAX);
        let mut buffer = BytesMut::from(&b"*1048576\r\n$60000000\r\nabc"[..]);
        assert_eq!(parser.next(&mut buffer), Ok(None));
        assert!(buffer.capacity() < 1000 && parser.arguments.capacity() < 10);
    }

    #[test]
    fn values_are_written_as_each_protocol_has_them() {
        for (protocol, expected) in [
            (Protocol::Two, "+OK\r\n-ERR a b\r\n:-7\r\n$3\r\na\r\n\r\n$-1\r\n*2\r\n*4\r\n*3\r\n"),
            (Protocol::Three, "+OK\r\n-ERR a b\r\n:-7\r\n$3\r\na\r\n\r\n_\r\n*2\r\n%2\r\n>3\r\n"),
        ] {
            let mut output = Output { protocol, ..Output::default() };
            output.simple("OK");
            output.error("ERR a\nb");
            output.integer(-7);
            output.bulk("a\r\n");
            output.nil();
            output.array(2);
            output.map(2);
            output.push(3);
            assert_eq!(String::from_utf8_lossy(output.bytes.chunk()), expected);
        }
    }
}
