//! Maintenance of a data directory: check, salvage and backup.

use std::path::PathBuf;

use geartrain::{Report, Salvaged, Target};
use serde_json::{Value, json};

use super::Done;
use crate::failure::Failure;
use crate::output::Output;
use crate::text::{Cell, clean, count, size, table};
use clap::Args;

#[derive(Debug, Args)]
#[command(after_help = "Example:
  geartrain --url embedded:./geartrain-data backup /mnt/backup/2026-04-01

The copy is a queue like the original: open it with --url embedded:DIR.
While another process has the directory open, only that process can back it up.")]
pub(crate) struct BackupArgs {
    /// Where to write the copy: an empty or new directory
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  geartrain check --url embedded:./geartrain-data
  geartrain --url embedded:./geartrain-data check --salvage ./saved

No other process may have the directory open. Nothing in it is changed.
If it is damaged the exit code is 1, and the error says where.")]
pub(crate) struct CheckArgs {
    /// Write what can be recovered into this directory, which must be empty or new
    #[arg(long, value_name = "OUT")]
    salvage: Option<PathBuf>,
}

pub(super) fn check(url: &str, args: CheckArgs, out: &mut Output<'_>) -> Done {
    let directory = directory_of(url)?;
    if let Some(to) = args.salvage {
        let salvaged = geartrain::salvage(&directory, &to)?;
        return print_salvaged(&salvaged, &to.display().to_string(), out);
    }
    let report = geartrain::check(&directory)?;
    let name = directory.display().to_string();
    let mut view = view(&report);
    view["directory"] = name.clone().into();
    Ok(out.show(&view, |out| {
        writeln!(out, "{} is not damaged\n", clean(&name))?;
        table(out, ["FOUND", "AMOUNT"], &rows(&report))?;
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
    let directory = directory_of(url)?;
    // Opening a missing directory would create an empty queue, and back that up.
    if !directory.is_dir() {
        let why =
            format!("there is no directory {}; name the queue with --url embedded:DIR", directory.display());
        return Err(Failure::Unreachable(why));
    }
    let copied = geartrain::connect(url).await?.backup(&args.directory).await?;
    let to = args.directory.display().to_string();
    let view = json!({
        "directory": to,
        "checkpoint_bytes": copied.checkpoint_bytes,
        "log_segments": copied.log_segments,
        "log_bytes": copied.log_bytes,
        "payload_files": copied.payload_files,
        "payload_file_bytes": copied.payload_file_bytes,
    });
    let bytes = size(copied.checkpoint_bytes + copied.log_bytes + copied.payload_file_bytes);
    Ok(out.line(&view, format!("backed up {bytes} to {to}"))?)
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
