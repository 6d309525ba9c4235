//! Process models: jobs that run in other programs.
//!
//! A program is started by a [`Launcher`], in an [`Environment`] with the facts of its job and a working
//! directory of its own, under a supervisor that stops it with all that it started. Linux only.

mod environment;
mod launch;
mod limits;
mod process_tree;
mod supervisor;
mod work_directory;

pub use environment::Environment;
pub use launch::{CommandError, KILL_AFTER_DEFAULT, Launcher, Process, Supervised};
pub use limits::Limits;
pub use process_tree::resident_bytes;
pub use supervisor::{Ended, run_hidden_command};
pub use work_directory::{SlotDirectory, WorkDirectories, WorkDirectoryError};
