//! Transactions: requests between `MULTI` and `EXEC`.
//!
//! `EXEC` executes the queued requests as if they came one after the other, and its reply holds theirs. Calls
//! of the queue and reads of keys that follow each other are one batch of the backend.

use bytes::Bytes;

use crate::frame::{REQUEST_BYTES_MAX, Request};
use crate::redis_commands::check;

/// How many requests a transaction holds.
const REQUESTS_MAX: usize = 10_000;

/// Commands that change how the connection speaks, or have more than one reply.
const EXCLUDED: [&str; 8] =
    ["auth", "fcall", "fcall_ro", "hello", "psubscribe", "punsubscribe", "subscribe", "unsubscribe"];

#[derive(Debug, Default)]
pub(crate) struct Transaction {
    queued: Vec<Request>,
    bytes: usize,
    /// A request was refused, so that `EXEC` executes none.
    refused: bool,
}

impl Transaction {
    /// Queues a request, or returns the error reply.
    pub(crate) fn queue(&mut self, request: &[Bytes]) -> Result<(), String> {
        let queued = self.try_queue(request);
        if queued.is_err() {
            *self = Transaction { refused: true, ..Transaction::default() };
        }
        queued
    }

    fn try_queue(&mut self, request: &[Bytes]) -> Result<(), String> {
        if request[0].eq_ignore_ascii_case(b"watch") {
            return Err("ERR WATCH inside MULTI is not allowed".to_owned());
        }
        check(request)?;
        if EXCLUDED.iter().any(|word| request[0].eq_ignore_ascii_case(word.as_bytes())) {
            return Err("ERR Command not allowed inside a transaction".to_owned());
        }
        self.bytes += request.iter().map(Bytes::len).sum::<usize>();
        if self.queued.len() >= REQUESTS_MAX || self.bytes > REQUEST_BYTES_MAX {
            return Err(format!(
                "ERR a transaction has at most {REQUESTS_MAX} requests and {REQUEST_BYTES_MAX} bytes"
            ));
        }
        if !self.refused {
            // Copies: slices would keep the whole read buffers in memory until EXEC.
            self.queued.push(request.iter().map(|argument| Bytes::copy_from_slice(argument)).collect());
        }
        Ok(())
    }

    /// The requests to execute, or the error reply.
    pub(crate) fn finish(self) -> Result<Vec<Request>, &'static str> {
        if self.refused {
            return Err("EXECABORT Transaction discarded because of previous errors.");
        }
        Ok(self.queued)
    }
}
