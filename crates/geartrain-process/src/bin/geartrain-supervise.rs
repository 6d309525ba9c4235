//! The supervisor of a launched program, as a program of its own: for programs that use the process models
//! and have no [hidden command](geartrain_process::run_hidden_command) themselves.

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    geartrain_process::run_hidden_command(&arguments).unwrap_or_else(|| {
        eprintln!("geartrain-supervise: it is started by a worker, not by hand");
        ExitCode::from(2)
    })
}
