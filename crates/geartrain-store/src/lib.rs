//! The embedded store: the job queue engine in this process, in memory or durable in a data directory.
//!
//! A batch of commands is executed inline or on the engine's thread ([`StoreBackend`]), its changes go
//! through group commit into the [write-ahead log](wal), and its replies go out after the commit.
//! [`StoreBackend::in_memory`] has no data directory; [`StoreBackend::open`] has one.

mod backend;
mod backup;
mod checkpoint;
mod commit;
mod copy_target;
mod data_dir;
mod engine_loop;
mod error;
mod fsck;
mod inline_exec;
mod lockstep;
mod memory;
mod options;
mod parked;
mod publish;
mod recovery;
mod reply_guard;
mod reservation;
mod result_streams;
mod salvage;
mod spill;
mod subscribers;
pub mod wal;

pub use backend::StoreBackend;
pub use fsck::{Report, check, check_copy, is_data_directory};
pub use lockstep::{Lockstep, Sent};
pub use memory::{memory_limit, memory_limit_of};
pub use options::{StoreOptions, SyncMode};
pub use recovery::OpenError;
pub use salvage::{Salvaged, salvage};
