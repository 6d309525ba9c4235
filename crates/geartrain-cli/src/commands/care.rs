//! Looking after what a queue keeps: checking it, saving what can be saved, and copying it.

use std::path::PathBuf;

use geartrain::{Report, Salvaged, Target};
use serde_json::{Value, json};

use super::Done;
use crate::args::{BackupArgs, CheckArgs};
use crate::failure::Failure;
use crate::output::Output;
use crate::text::{Cell, clean, count, size, table};

pub(super) fn check(url: &str, args: CheckArgs, out: &mut Output<'_>) -> Done {
    let directory = directory_of(url)?;
    if let Some(to) = args.salvage {
        let salvaged = geartrain::salvage(&directory, &to)?;
        return show_salvaged(&salvaged, &to.display().to_string(), out);
    }
    let report = geartrain::check(&directory)?;
    let name = directory.display().to_string();
    let mut view = view(&report);
    view["directory"] = name.clone().into();
    Ok(out.show(&view, |out| {
        writeln!(out, "{} is sound\n", clean(&name))?;
        table(out, ["FOUND", "HOW MUCH"], &rows(&report))?;
        for checkpoint in &report.damaged_checkpoints {
            writeln!(
                out,
                "\nnot needed: {}; the previous one and the log have all of it",
                clean(checkpoint)
            )?;
        }
        if let Some(torn) = &report.torn_tail {
            writeln!(out, "\nto be cut off: {}", clean(&torn.to_string()))?;
        }
        Ok(())
    })?)
}

pub(super) async fn backup(url: &str, args: BackupArgs, out: &mut Output<'_>) -> Done {
    let directory = directory_of(url)?;
    // Opening it would make it, and the copy would be one of nothing.
    if !directory.is_dir() {
        let why = format!("there is no directory {}; --url says where the queue is", directory.display());
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
    Ok(out.line(&view, format!("copied {bytes} to {to}"))?)
}

/// The directory that a URL names. Other queues have none that could be looked after.
fn directory_of(url: &str) -> Result<PathBuf, Failure> {
    match Target::of(url)? {
        Target::Directory { directory, .. } => Ok(directory),
        _ => Err(Failure::Usage(format!("{url:?} keeps no files; give --url embedded:DIR"))),
    }
}

fn view(report: &Report) -> Value {
    let census = &report.memory;
    json!({
        "jobs": {
            "scheduled": census.scheduled,
            "depends": census.depends,
            "waiting": census.waiting,
            "running": census.running,
            "complete": census.complete,
            "failed": census.failed,
        },
        "queues": census.queues,
        "recurring": census.recurring,
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
    let census = &report.memory;
    let states = [
        ("waiting", census.waiting),
        ("running", census.running),
        ("scheduled", census.scheduled),
        ("depends", census.depends),
        ("failed", census.failed),
        ("complete", census.complete),
    ];
    let number = |what: &str, number| [Cell::from(what), Cell::number(number)];
    let mut rows = vec![number("jobs", census.jobs())];
    rows.extend(states.map(|(name, jobs)| [Cell::state(name), Cell::number(jobs)]));
    rows.push(number("queues", census.queues));
    rows.push(number("recurring jobs", census.recurring));
    rows.push([Cell::from("checkpoint"), Cell::right(size(report.checkpoint_bytes))]);
    rows.push([Cell::from("log"), Cell::right(size(report.log_bytes))]);
    rows.push(number("segments of it", report.log_segments));
    rows.push(number("changes read", report.changes));
    rows.push([Cell::from("payload files"), Cell::right(size(report.payload_file_bytes))]);
    rows
}

fn show_salvaged(salvaged: &Salvaged, to: &str, out: &mut Output<'_>) -> Done {
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
        table(out, ["SAVED", "HOW MUCH"], &rows(&salvaged.saved))?;
        writeln!(out)?;
        if let Some(torn) = &salvaged.torn_tail {
            writeln!(out, "cut off: {}", clean(&torn.to_string()))?;
        }
        if salvaged.is_whole() && salvaged.checkpoints.is_empty() {
            return writeln!(out, "nothing is damaged, and all of it was copied");
        }
        for checkpoint in &salvaged.checkpoints {
            writeln!(out, "damaged: {}", clean(checkpoint))?;
        }
        if salvaged.is_whole() {
            return writeln!(out, "nothing is lost: all of it is in the copy");
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
        writeln!(out, "not used: {left} behind it with {}", size(salvaged.left_bytes))
    })?)
}
