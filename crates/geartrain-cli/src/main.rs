//! The `geartrain` command: arguments in, exit code out.

mod args;
mod batch;
mod commands;
mod completion;
mod failure;
mod http_client;
mod job_details;
mod output;
mod password;
mod payload;
mod settings;
mod text;
mod timestamp;
mod values;

use std::ffi::OsString;
use std::io::{BufWriter, IsTerminal, Write};
use std::process::ExitCode;

use clap::error::ErrorKind;
use geartrain::schedule::Zone;

use geartrain_json::{backoff, duration, rate};

use crate::args::{Cli, Verb};
use crate::failure::Failure;
use crate::output::Output;
use crate::settings::ConfigFile;

/// Payloads are allocated on one thread and freed on another, where the system's allocator makes threads
/// contend.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if let Some(exit_code) = geartrain_process::run_hidden_command(&arguments) {
        return exit_code;
    }
    if let Some(exit_code) = completion::answer(&arguments) {
        return exit_code;
    }
    if password::is_on_command_line(&arguments) {
        return end(Err(Failure::Usage(password::ADVICE.to_owned())), false);
    }
    let mut is_json = false;
    let done = match args::parse(&arguments) {
        // Requested help. An error of writing it cannot be reported anywhere.
        Err(error) if !error.use_stderr() => {
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        // No command was given. The second kind is that of an environment with GEARTRAIN_URL.
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand
            ) =>
        {
            let _ = write!(anstream::stderr(), "{}", args::help(&arguments).ansi());
            return ExitCode::from(2);
        }
        parsed => complete(parsed, &arguments).and_then(|cli| {
            is_json = cli.json;
            run(cli)
        }),
    };
    end(done, is_json)
}

/// The command line, completed by the configuration file.
fn complete(parsed: Result<Cli, clap::Error>, arguments: &[OsString]) -> Result<Cli, Failure> {
    // So that a shell starts, whatever is in the file.
    if let Ok(Cli { verb: Verb::Version | Verb::Completions { .. } | Verb::Man(_), .. }) = parsed {
        return parsed.map_err(|error| Failure::Usage(args::complaint(&error, arguments)));
    }
    let mut file = ConfigFile::find(arguments)?;
    let completed =
        file.as_mut().map(|file| file.complete(arguments)).filter(|completed| completed != arguments);
    let parsed = match &completed {
        Some(completed) => args::parse(completed),
        None => parsed,
    };
    let mut cli = parsed.map_err(|error| {
        let complaint = args::complaint(&error, arguments);
        Failure::Usage(match (&file, completed.is_some()) {
            (Some(file), true) => {
                format!("{complaint}; the settings in {} count as well", file.path.display())
            }
            _ => complaint,
        })
    })?;
    cli.file = file;
    cli.apply_context()?;
    Ok(cli)
}

/// Prints the error, if any, as a sentence or as JSON, and returns the exit code.
fn end(done: Result<(), Failure>, is_json: bool) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if failure.exit_code() != 0 && is_json {
                let _ = writeln!(anstream::stderr(), "{}", failure.to_json());
            } else if failure.exit_code() != 0 {
                let text = failure.to_string();
                let text = match failure {
                    Failure::Program(_) => text::clean_lines(&text),
                    _ => text::clean(&text),
                };
                let _ = writeln!(anstream::stderr(), "geartrain: {text}");
            }
            ExitCode::from(failure.exit_code())
        }
    }
}

fn run(cli: Cli) -> Result<(), Failure> {
    let mut out = BufWriter::new(anstream::stdout());
    let mut err = anstream::stderr();
    let mut raw = std::io::stdout();
    let to_terminal = raw.is_terminal();
    timestamp::show_in(if cli.utc { Some(Zone::UTC) } else { cli.zone.clone() });
    let mut output = Output {
        json: cli.json,
        width: if to_terminal {
            console::Term::stdout().size_checked().map(|(_, width)| width.into())
        } else {
            None
        },
        now: timestamp::now(),
        out: &mut out,
        raw: if to_terminal { None } else { Some(&mut raw) },
        err: &mut err,
        err_is_terminal: std::io::stderr().is_terminal(),
    };
    let done = pollster::block_on(commands::run(cli, &mut output));
    // Partial output comes first, then the error.
    let written = out.flush();
    done.and(written.map_err(Failure::from))
}
