//! Standard error of a child: lines for the worker's log, and the end of it as evidence of a crash.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

/// How much of the end is kept.
const TAIL_BYTES_MAX: usize = 4_096;
/// A longer line is logged in parts.
const LINE_BYTES_MAX: usize = 8_192;

/// The end of what a child wrote to its standard error.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tail(Arc<Mutex<VecDeque<u8>>>);

impl Tail {
    fn add(&self, bytes: &[u8]) {
        let mut tail = self.0.lock();
        tail.extend(&bytes[bytes.len().saturating_sub(TAIL_BYTES_MAX)..]);
        let excess = tail.len().saturating_sub(TAIL_BYTES_MAX);
        tail.drain(..excess);
    }

    /// The text, without a cut line at its beginning.
    pub(crate) fn text(&self) -> String {
        let mut tail = self.0.lock();
        let is_cut = tail.len() == TAIL_BYTES_MAX;
        let text = String::from_utf8_lossy(tail.make_contiguous());
        let text = match text.split_once('\n') {
            Some((_cut, rest)) if is_cut => rest,
            _ => &text,
        };
        text.trim_end().to_owned()
    }
}

/// Logs each line until the pipe is closed. Lines from before the child is ready are only retained: they are part
/// of the error if it does not start.
pub(crate) async fn log(mut pipe: pipe::Receiver, child: usize, tail: Tail, is_ready: Arc<AtomicBool>) {
    let print = |line: &[u8]| {
        if is_ready.load(Ordering::Relaxed) {
            print(child, line);
        }
    };
    let (mut buffer, mut line) = (vec![0; 4_096], Vec::new());
    while let Ok(read) = pipe.read(&mut buffer).await {
        if read == 0 {
            break;
        }
        tail.add(&buffer[..read]);
        for part in buffer[..read].split_inclusive(|byte| *byte == b'\n') {
            line.extend_from_slice(part);
            if line.ends_with(b"\n") || line.len() > LINE_BYTES_MAX {
                print(&line);
                line.clear();
            }
        }
    }
    if !line.is_empty() {
        print(&line);
    }
}

pub(crate) fn print(child: usize, line: &[u8]) {
    tracing::info!("child {child}: {}", String::from_utf8_lossy(line.trim_ascii_end()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_begins_with_a_whole_line() {
        let tail = Tail::default();
        tail.add(b"Traceback\n  boom\n");
        assert_eq!(tail.text(), "Traceback\n  boom");
        for _ in 0..1_000 {
            tail.add(b"0123456789\n");
        }
        let text = tail.text();
        assert!(text.len() < TAIL_BYTES_MAX && text.starts_with("0123456789\n") && text.ends_with('9'));
        tail.add(&[b'x'; 100_000]);
        assert_eq!(tail.text().len(), TAIL_BYTES_MAX);
    }
}
