//! Large replies: encoded in pieces on the blocking thread pool, with back-pressure.
//!
//! Encoding 200 MB takes seconds. On an executor thread that would stop every other connection served by
//! it, and in one go it would take as much memory again. So pieces are encoded on the blocking thread pool,
//! the next one when the client has read the last. Where the length stands in front of a reply it is
//! counted first, which encodes everything twice.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

use crate::output::PIECE_BYTES;

/// How many pieces are encoded at once in the process: encoding is work for the processor alone, and other
/// work must find one that is free.
static ENCODERS: Semaphore = Semaphore::const_new(2);

/// A reply that can be encoded in pieces.
pub trait Pieces: Send + Sync + 'static {
    /// Appends the piece of this number, and returns whether there is one. Called twice for each piece, it
    /// must write the same bytes. The largest piece bounds the memory that a reply takes while it is sent.
    fn write(&self, number: usize, out: &mut Vec<u8>) -> bool;
}

/// The parts of a large reply, in this order.
#[derive(Debug, PartialEq, Eq)]
pub enum Produced {
    /// The length of the whole reply.
    Length(usize),
    /// The next bytes.
    Piece(Bytes),
    /// The reply is complete.
    End,
}

/// A large reply that is being encoded.
#[derive(Debug)]
pub struct LargeReply {
    produced: mpsc::Receiver<Produced>,
    /// The one task that encodes; aborted when this is dropped.
    _encoder: JoinSet<()>,
}

impl LargeReply {
    /// Starts to encode a reply. Dropping the `LargeReply` ends that after the piece that is being encoded.
    pub fn new(pieces: impl Pieces) -> LargeReply {
        let (sender, produced) = mpsc::channel(1);
        let mut encoder = JoinSet::new();
        encoder.spawn(produce(Arc::new(pieces), sender));
        LargeReply { produced, _encoder: encoder }
    }

    /// The next part; None if encoding panicked, so that the reply cannot be completed. Cancellation-safe.
    pub async fn next(&mut self) -> Option<Produced> {
        self.produced.recv().await
    }
}

async fn produce(pieces: Arc<dyn Pieces>, to: mpsc::Sender<Produced>) {
    let all = pieces.clone();
    let Some(length) = off_thread(move || length(&*all)).await else { return };
    if to.send(Produced::Length(length)).await.is_err() {
        return;
    }
    let mut number = 0;
    loop {
        let pieces = pieces.clone();
        let Some((bytes, next)) = off_thread(move || some(&*pieces, number)).await else { return };
        if bytes.is_empty() {
            // Fails if the connection has ended.
            let _ = to.send(Produced::End).await;
            return;
        }
        if to.send(Produced::Piece(bytes.into())).await.is_err() {
            return;
        }
        number = next;
    }
}

fn length(pieces: &dyn Pieces) -> usize {
    let (mut length, mut piece) = (0, Vec::new());
    for number in 0.. {
        piece.clear();
        if !pieces.write(number, &mut piece) {
            break;
        }
        length += piece.len();
    }
    length
}

/// Pieces from this number on, about `PIECE_BYTES` in all, and the next number. Empty if there are no more.
fn some(pieces: &dyn Pieces, mut number: usize) -> (Vec<u8>, usize) {
    let mut bytes = Vec::new();
    while bytes.len() < PIECE_BYTES && pieces.write(number, &mut bytes) {
        number += 1;
    }
    (bytes, number)
}

/// Encodes about `bytes` bytes: here if they are few, else on the blocking thread pool. None if that
/// panicked.
pub async fn encode_off_thread<T: Send + 'static>(
    bytes: usize,
    encode: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    if bytes < PIECE_BYTES { Some(encode()) } else { off_thread(encode).await }
}

async fn off_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    // The semaphore is never closed.
    let _permit = ENCODERS.acquire().await.ok()?;
    tokio::task::spawn_blocking(work).await.ok()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Pieces of `PIECE_BYTES`, and the last that was asked for.
    struct Watched(usize, Arc<AtomicUsize>);

    impl Pieces for Watched {
        fn write(&self, number: usize, out: &mut Vec<u8>) -> bool {
            self.1.store(number, Ordering::SeqCst);
            out.resize(out.len() + if number < self.0 { PIECE_BYTES } else { 0 }, b'x');
            number < self.0
        }
    }

    #[tokio::test]
    async fn a_client_that_does_not_read_stops_the_encoding() {
        let asked = Arc::new(AtomicUsize::new(0));
        let mut reply = LargeReply::new(Watched(50, asked.clone()));
        assert_eq!(reply.next().await, Some(Produced::Length(50 * PIECE_BYTES)));
        for read in 0..50 {
            assert!(matches!(reply.next().await, Some(Produced::Piece(_))));
            // One waits to be taken, one waits for that, and one is being encoded.
            assert!(asked.load(Ordering::SeqCst) <= read + 3);
        }
        assert_eq!(reply.next().await, Some(Produced::End));
    }

    #[tokio::test]
    async fn the_encoder_task_ends_with_its_reply() {
        let reply = LargeReply::new(Numbered(50));
        drop(reply);
        // An aborted task is dropped in the scheduler's next turn; one that only notices its closed channel
        // would still wait for its first piece.
        tokio::task::yield_now().await;
        assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0);
    }

    struct Numbered(usize);

    impl Pieces for Numbered {
        fn write(&self, number: usize, out: &mut Vec<u8>) -> bool {
            out.extend(std::iter::repeat_n(b'x', if number < self.0 { 100_000 } else { 0 }));
            number < self.0
        }
    }

    #[tokio::test]
    async fn the_length_comes_first_and_then_pieces_of_bounded_size() {
        for count in [0, 1, 2, 3, 100] {
            let mut reply = LargeReply::new(Numbered(count));
            assert_eq!(reply.next().await, Some(Produced::Length(count * 100_000)));
            let mut sum = 0;
            loop {
                match reply.next().await {
                    Some(Produced::Piece(piece)) => {
                        assert!((1..PIECE_BYTES + 100_000).contains(&piece.len()));
                        sum += piece.len();
                    }
                    other => break assert_eq!(other, Some(Produced::End)),
                }
            }
            assert_eq!(sum, count * 100_000);
        }
    }
}
