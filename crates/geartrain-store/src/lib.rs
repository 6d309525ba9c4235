//! The engine in this process, on a thread of its own: whoever calls sends a batch, and gets one answer for all of it.
//!
//! [`StoreBackend::in_memory`] keeps nothing beyond the process; [`StoreBackend::open`] keeps everything in a directory.

mod backend;
mod backup;
mod checkpoint;
mod delivery;
mod desk;
mod embedded;
mod fetch;
mod followers;
mod host;
mod keeper;
mod large;
mod lockstep;
pub mod log;
mod memory;
mod options;
mod payloads;
mod room;
mod salvage;
mod seat;
mod spill;
mod subscribers;
mod trouble;
mod waiters;
mod writer;

pub use backend::StoreBackend;
pub use backup::BackedUp;
pub use embedded::{OpenError, Report, check};
pub use lockstep::{Lockstep, Sent};
pub use memory::{memory_limit, memory_limit_of};
pub use options::{StoreOptions, SyncMode};
pub use salvage::{Salvaged, salvage};
