//! The engine in this process, on a thread of its own: whoever calls sends a batch, and gets one answer for all of it.
//!
//! [`StoreBackend::in_memory`] keeps nothing beyond the process.

mod backend;
mod clock;
mod host;
mod subscribers;
mod waiters;

pub use backend::StoreBackend;
pub use clock::SystemClock;
