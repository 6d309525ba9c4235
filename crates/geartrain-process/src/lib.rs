//! Process models: jobs that run in other programs.
//!
//! A program is started by a [`Launcher`], in an [`Environment`] with the facts of its job and a working
//! directory of its own, under a supervisor that stops it with all that it started. Linux only.

mod environment;
mod fork;
mod job_socket;
mod launch;
mod limits;
mod pool;
mod process_tree;
mod report_lines;
mod supervisor;
mod verdict;
mod work_directory;

pub use environment::Environment;
pub use fork::ForkModel;
pub use job_socket::{JobGate, JobSocket};
pub use launch::{CommandError, KILL_AFTER_DEFAULT, Launcher, Process, Supervised};
pub use limits::Limits;
pub use pool::{Pool, PoolError, PoolOptions};
pub use process_tree::resident_bytes;
pub use supervisor::{Ended, run_hidden_command};
pub use verdict::{EXIT_FAIL, EXIT_RETRY};
pub use work_directory::{SlotDirectory, WorkDirectories, WorkDirectoryError};
