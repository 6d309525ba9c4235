//! Crash harness: a real geartrain server under faults, and clients that record every acknowledgement.
//!
//! [`LoadClients`] put, pop and report jobs and write each acknowledgement into a [`Ledger`]. Meanwhile a
//! fault hits the server: `kill -9`, SIGSTOP, a full disk, a clock jump ([`Fault`]). Afterwards
//! [`Ledger::verify`] compares the ledger with what the server has. `geartrain drill` runs this on a user's
//! machine and disk, the tests run it against each backend.

mod drill;
mod ledger;
mod load;
mod server;

pub use drill::{Connect, Drill, DrillError, Fault, FaultReport, Plan};
pub use ledger::{Ledger, Verdict};
pub use load::{LoadClients, Stalled};
pub use server::{ServerError, ServerProcess};
