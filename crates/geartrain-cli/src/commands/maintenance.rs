//! Maintenance of a data directory: check, salvage and backup.

use std::path::{Path, PathBuf};

use geartrain::{Backup, BackupStep, BackupSummary, BackupTarget, Report, Salvaged, Target};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::Done;
use crate::duration;
use crate::failure::Failure;
use crate::output::Output;
use crate::text::{Cell, clean, count, size, table};
use clap::Args;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  geartrain backup /mnt/backup/2026-04-01
  geartrain --url redis://queue.example.org backup - > queue.tar
  geartrain check --copy /mnt/backup/2026-04-01

A server writes DIR itself, on its machine, so DIR is for clients on that machine.
The copy is a queue like the original: open it with --url embedded:DIR. Unpack an
archive with `mkdir -m 700 DIR && tar -xf queue.tar -C DIR`.")]
pub(crate) struct BackupArgs {
    /// Where to write the copy: an empty or new directory, or - for a tar archive on standard output
    #[arg(value_name = "DIR")]
    target: PathBuf,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  geartrain check --url embedded:./geartrain-data
  geartrain check --copy /mnt/backup/2026-04-01
  geartrain --url embedded:./geartrain-data check --salvage ./saved

No other process may have the directory open. Nothing in it is changed.
If it is damaged the exit code is 1, and the error says where.")]
pub(crate) struct CheckArgs {
    /// Check this copy of a data directory instead, such as a backup, without locking it
    #[arg(long, value_name = "DIR", conflicts_with = "salvage")]
    copy: Option<PathBuf>,
    /// Write what can be recovered into this directory, which must be empty or new
    #[arg(long, value_name = "OUT")]
    salvage: Option<PathBuf>,
}

pub(super) fn check(url: &str, args: CheckArgs, out: &mut Output<'_>) -> Done {
    if let Some(copy) = args.copy {
        if copy.is_file() {
            let name = copy.display();
            return Err(Failure::Usage(format!(
                "{name} is a file: unpack an archive first, with `mkdir -m 700 DIR && tar -xf {name} -C DIR`"
            )));
        }
        let report = geartrain::check_copy(&copy).map_err(|error| Failure::of_copy(error, &copy))?;
        return print_checked(&report, &copy, out);
    }
    let directory = directory_of(url)?;
    if let Some(to) = args.salvage {
        let salvaged = geartrain::salvage(&directory, &to)?;
        return print_salvaged(&salvaged, &to.display().to_string(), out);
    }
    print_checked(&geartrain::check(&directory)?, &directory, out)
}

fn print_checked(report: &Report, directory: &Path, out: &mut Output<'_>) -> Done {
    let name = directory.display().to_string();
    let mut view = view(report);
    view["directory"] = name.clone().into();
    Ok(out.show(&view, |out| {
        writeln!(out, "{} is not damaged\n", clean(&name))?;
        table(out, ["FOUND", "AMOUNT"], &rows(report))?;
        for checkpoint in &report.damaged_checkpoints {
            writeln!(
                out,
                "\nnot needed: {}; the previous checkpoint and the log have everything",
                clean(checkpoint)
            )?;
        }
        if let Some(torn) = &report.torn_tail {
            writeln!(out, "\nwill be cut off: {}", clean(&torn.to_string()))?;
        }
        Ok(())
    })?)
}

pub(super) async fn backup(url: &str, args: BackupArgs, out: &mut Output<'_>) -> Done {
    match Target::of(url)? {
        // Opening a missing directory would create an empty queue, and back that up.
        Target::Directory { directory, .. } if !directory.is_dir() => {
            let name = directory.display();
            return Err(Failure::Unreachable(format!(
                "there is no directory {name}; name the queue with --url embedded:DIR"
            )));
        }
        // The same holds for a directory of other files.
        Target::Directory { directory, .. }
            if matches!(geartrain::is_data_directory(&directory), Ok(false)) =>
        {
            return Err(Failure::Unreachable(format!(
                "there is no queue in {}; name its directory with --url embedded:DIR",
                directory.display()
            )));
        }
        Target::Directory { .. } | Target::Redis(_) => {}
        _ => {
            return Err(Failure::Usage(format!(
                "{url:?} stores nothing that can be backed up; give --url embedded:DIR, or the URL of a server"
            )));
        }
    }
    if args.target == Path::new("-") {
        return archive(url, out).await;
    }
    let client = geartrain::connect(url).await?;
    let backup = client.begin_backup(BackupTarget::Directory(args.target)).await?;
    let summary = finish(backup, |_| Ok(())).await?;
    let to = summary.directory.as_deref().unwrap_or_default();
    let text = format!("{} to {to} in {}", backed_up(&summary), duration::format(summary.seconds));
    Ok(out.line(&summary_view(&summary), text)?)
}

/// Writes an archive to standard output. What is said about it goes to standard error.
async fn archive(url: &str, out: &mut Output<'_>) -> Done {
    let Some(raw) = &mut out.raw else {
        let why = "standard output is a terminal: redirect it, as in `geartrain backup - > queue.tar`";
        return Err(Failure::Usage(why.to_owned()));
    };
    let incomplete = |error| Failure::Unreachable(format!("the archive cannot be written: {error}"));
    // A backup ends with its client.
    let client = geartrain::connect(url).await?;
    let backup = client.begin_backup(BackupTarget::Archive).await?;
    let summary = finish(backup, |chunk| raw.write_all(chunk).map_err(incomplete)).await?;
    raw.flush().map_err(incomplete)?;
    if out.json {
        serde_json::to_writer(&mut *out.err, &summary_view(&summary)).map_err(std::io::Error::from)?;
        return Ok(writeln!(out.err)?);
    }
    let text = format!("{} in {}", backed_up(&summary), duration::format(summary.seconds));
    Ok(out.remark(text)?)
}

/// Takes all steps of a backup, and shows its progress on standard error if that is a terminal.
async fn finish(
    mut backup: Box<dyn Backup>,
    mut write: impl FnMut(&[u8]) -> Result<(), Failure>,
) -> Result<BackupSummary, Failure> {
    let bar = ProgressBar::no_length();
    if let Ok(style) =
        ProgressStyle::with_template("{bar:30} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left")
    {
        bar.set_style(style);
    }
    let summary = loop {
        match backup.next().await.map_err(Failure::of_backup)? {
            BackupStep::Copied { bytes, bytes_expected } => {
                bar.set_length(bytes_expected.max(bytes));
                bar.set_position(bytes);
            }
            BackupStep::Chunk(chunk) => write(&chunk)?,
            BackupStep::Done(summary) => break summary,
            _ => {}
        }
    };
    bar.finish_and_clear();
    Ok(summary)
}

fn backed_up(summary: &BackupSummary) -> String {
    format!("backed up {} with {}", size(summary.bytes()), count(summary.jobs, "job"))
}

fn summary_view(summary: &BackupSummary) -> Value {
    json!({
        "directory": summary.directory,
        "bytes": summary.bytes(),
        "jobs": summary.jobs,
        "position": { "segment": summary.log_segment, "offset": summary.log_offset },
        "seconds": summary.seconds,
        "checkpoint_bytes": summary.checkpoint_bytes,
        "log_segments": summary.log_segments,
        "log_bytes": summary.log_bytes,
        "payload_files": summary.payload_files,
        "payload_file_bytes": summary.payload_file_bytes,
    })
}

/// The data directory that a URL names. Other queues have none.
fn directory_of(url: &str) -> Result<PathBuf, Failure> {
    match Target::of(url)? {
        Target::Directory { directory, .. } => Ok(directory),
        _ => Err(Failure::Usage(format!("{url:?} is not a data directory; give --url embedded:DIR"))),
    }
}

fn view(report: &Report) -> Value {
    let memory = &report.memory;
    json!({
        "jobs": {
            "scheduled": memory.scheduled,
            "depends": memory.depends,
            "waiting": memory.waiting,
            "running": memory.running,
            "complete": memory.complete,
            "failed": memory.failed,
        },
        "queues": memory.queues,
        "recurring": memory.recurring,
        "checkpoint_bytes": report.checkpoint_bytes,
        "log_segments": report.log_segments,
        "log_bytes": report.log_bytes,
        "payload_files": report.payload_files,
        "payload_file_bytes": report.payload_file_bytes,
        "changes": report.changes,
        "damaged_checkpoints": report.damaged_checkpoints,
        "torn_tail": report.torn_tail.map(|torn| torn.to_string()),
    })
}

fn rows(report: &Report) -> Vec<[Cell; 2]> {
    let memory = &report.memory;
    let states = [
        ("waiting", memory.waiting),
        ("running", memory.running),
        ("scheduled", memory.scheduled),
        ("depends", memory.depends),
        ("failed", memory.failed),
        ("complete", memory.complete),
    ];
    let number = |what: &str, number| [Cell::from(what), Cell::number(number)];
    let mut rows = vec![number("jobs", memory.jobs())];
    rows.extend(states.map(|(name, jobs)| [Cell::state(name), Cell::number(jobs)]));
    rows.push(number("queues", memory.queues));
    rows.push(number("recurring jobs", memory.recurring));
    rows.push([Cell::from("checkpoint"), Cell::right(size(report.checkpoint_bytes))]);
    rows.push([Cell::from("log"), Cell::right(size(report.log_bytes))]);
    rows.push(number("log segments", report.log_segments));
    rows.push(number("changes read", report.changes));
    rows.push([Cell::from("payload files"), Cell::right(size(report.payload_file_bytes))]);
    rows
}

fn print_salvaged(salvaged: &Salvaged, to: &str, out: &mut Output<'_>) -> Done {
    let damage = salvaged.damage.as_ref().map(ToString::to_string);
    let view = json!({
        "directory": to,
        "saved": view(&salvaged.saved),
        "batches": salvaged.batches,
        "damaged_checkpoints": salvaged.checkpoints,
        "damage": damage,
        "left_batches": salvaged.left_batches,
        "left_bytes": salvaged.left_bytes,
        "lost_jobs": salvaged.jobs,
        "lost_bytes": salvaged.lost_bytes,
        "nameless_jobs": salvaged.nameless_jobs,
        "torn_tail": salvaged.torn_tail.map(|torn| torn.to_string()),
        "left_changes": salvaged.left_changes,
    });
    Ok(out.show(&view, |out| {
        writeln!(out, "saved into {}\n", clean(to))?;
        table(out, ["SAVED", "AMOUNT"], &rows(&salvaged.saved))?;
        writeln!(out)?;
        if let Some(torn) = &salvaged.torn_tail {
            writeln!(out, "cut off: {}", clean(&torn.to_string()))?;
        }
        if salvaged.is_whole() && salvaged.checkpoints.is_empty() {
            return writeln!(out, "nothing is damaged, and everything was copied");
        }
        for checkpoint in &salvaged.checkpoints {
            writeln!(out, "damaged: {}", clean(checkpoint))?;
        }
        if salvaged.is_whole() {
            return writeln!(out, "nothing is lost: everything is in the copy");
        }
        if salvaged.lost_bytes > 0 {
            let (bytes, jobs) = (size(salvaged.lost_bytes), count(salvaged.nameless_jobs, "job"));
            let changes = count(salvaged.left_changes, "change");
            writeln!(
                out,
                "not saved: {bytes} of a checkpoint with {jobs}, and {changes} to them in the log"
            )?;
        }
        for job in &salvaged.jobs {
            writeln!(out, "not saved: {}", clean(job))?;
        }
        let Some(damage) = damage else { return Ok(()) };
        let left = count(salvaged.left_batches, "good batch").replace("batchs", "batches");
        writeln!(out, "the copy ends where {}", clean(&damage))?;
        writeln!(out, "not used: {left} after it with {}", size(salvaged.left_bytes))
    })?)
}
