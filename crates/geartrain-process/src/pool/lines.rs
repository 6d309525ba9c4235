//! Lines of bounded length from a pipe.

use tokio::io::{AsyncRead, AsyncReadExt};

/// Memory that is kept for the next line.
const BUFFER_BYTES_KEPT: usize = 1 << 20;
/// The most memory that is added at once for a long line.
const GROWTH_BYTES_MAX: usize = 16 << 20;

/// Reads lines. Cancel safe: a line that was read in part is in its buffer.
pub(crate) struct LineReader<R> {
    pipe: R,
    buffer: Vec<u8>,
    /// The beginning of the next line in the buffer.
    start: usize,
    /// From here on no line break has been searched for.
    searched: usize,
}

/// Why there is no next line.
#[derive(Debug)]
pub(crate) enum NoLine {
    /// The pipe was closed, or is broken. A line without a line break before the end is dropped.
    End,
    /// The line is longer than allowed. Its beginning is in there.
    TooLong(Vec<u8>),
}

impl<R: AsyncRead + Unpin> LineReader<R> {
    pub(crate) fn new(pipe: R) -> LineReader<R> {
        LineReader { pipe, buffer: Vec::new(), start: 0, searched: 0 }
    }

    /// The next line that is not blank, without its line break.
    pub(crate) async fn next(&mut self, bytes_max: usize) -> Result<&[u8], NoLine> {
        loop {
            if let Some(end) = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') {
                let line = self.start..self.searched + end;
                self.start = line.end + 1;
                self.searched = self.start;
                if self.buffer[line.clone()].trim_ascii().is_empty() {
                    continue;
                }
                return Ok(&self.buffer[line]);
            }
            self.discard_read();
            if self.buffer.len() > bytes_max {
                return Err(NoLine::TooLong(self.buffer[..1_024.min(self.buffer.len())].to_vec()));
            }
            self.reserve();
            match self.pipe.read_buf(&mut self.buffer).await {
                Ok(0) | Err(_) => return Err(NoLine::End),
                Ok(_) => {}
            }
        }
    }

    /// Removes the lines that were returned.
    fn discard_read(&mut self) {
        self.buffer.drain(..self.start);
        self.start = 0;
        self.searched = self.buffer.len();
        if self.buffer.len() < BUFFER_BYTES_KEPT && self.buffer.capacity() > 2 * BUFFER_BYTES_KEPT {
            self.buffer.shrink_to(BUFFER_BYTES_KEPT);
        }
    }

    fn reserve(&mut self) {
        if self.buffer.capacity() - self.buffer.len() < 4_096 {
            // Exact, because the usual growth would reserve twice the longest line.
            self.buffer.reserve_exact((self.buffer.len() / 2).clamp(8_192, GROWTH_BYTES_MAX));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn blank_lines_and_one_that_is_cut_are_dropped() {
        let mut reader = LineReader::new(&b"one\n\n \r\ntwo\r\nthr"[..]);
        assert_eq!(reader.next(10).await.unwrap(), b"one");
        assert_eq!(reader.next(10).await.unwrap(), b"two\r");
        assert!(matches!(reader.next(10).await, Err(NoLine::End)));
    }

    #[tokio::test]
    async fn a_line_without_end_stops_at_the_limit() {
        let mut reader = LineReader::new(tokio::io::repeat(b'x'));
        let Err(NoLine::TooLong(beginning)) = reader.next(5_000_000).await else { panic!("a line") };
        assert_eq!(beginning, [b'x'; 1_024]);
        assert!(reader.buffer.capacity() < 8_000_000);
    }

    #[tokio::test]
    async fn long_lines_between_short_ones_are_whole() {
        let long = "x".repeat(3_000_000);
        let text = format!("a\n{long}\nb\n{long}y\n");
        let mut reader = LineReader::new(text.as_bytes());
        let sizes = [1, 3_000_000, 1, 3_000_001];
        for size in sizes {
            assert_eq!(reader.next(10_000_000).await.unwrap().len(), size);
        }
        assert!(matches!(reader.next(10).await, Err(NoLine::End)));
    }
}
