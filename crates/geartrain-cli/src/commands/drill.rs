//! `geartrain drill`: faults against a server on this machine, and what it kept.

use std::sync::Arc;

use geartrain::{Backend, BackendError, Error};
use geartrain_drill::{Drill, DrillError, Fault, FaultReport, Plan};
use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};
use serde_json::json;

use super::Done;
use crate::args::DrillArgs;
use crate::failure::Failure;
use crate::output::Output;
use crate::text::{Cell, clean, table};

/// Runs every fault that was asked for, and shows what came of it.
pub(super) fn drill(args: DrillArgs, out: &mut Output<'_>) -> Done {
    let seed = args.seed.unwrap_or_else(|| u64::from(uuid::Uuid::now_v7().as_fields().1));
    let plan = Plan {
        kills: args.kills,
        freezes: args.freezes,
        full_disks: args.full_disks,
        clock_jumps: args.clock_jumps,
        clients: args.clients.into(),
        seed,
    };
    let faults = [
        (Fault::Kill, plan.kills),
        (Fault::Freeze, plan.freezes),
        (Fault::FullDisk, plan.full_disks),
        (Fault::ClockJump, plan.clock_jumps),
    ];
    let faults: Vec<Fault> =
        faults.into_iter().filter(|(_, rounds)| *rounds > 0).map(|(fault, _)| fault).collect();
    if faults.is_empty() {
        return Err(Failure::Usage("every fault is asked for 0 times: give --kills or another one".into()));
    }
    let bar = ProgressBar::new_spinner().with_finish(ProgressFinish::AndClear);
    bar.set_style(
        ProgressStyle::with_template("{elapsed} {msg}").unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    let directory = args.disk.unwrap_or_else(std::env::temp_dir);
    let drill = Drill {
        program: std::env::current_exe()?,
        directory: directory.clone(),
        plan,
        connect: &|url| connect(url),
        progress: &|fault, round, rounds| {
            bar.set_message(format!("{}: {} of {rounds}", fault.name(), round + 1));
            bar.tick();
        },
    };
    let reports = faults.into_iter().map(|fault| drill.run(fault)).collect::<Result<Vec<_>, _>>()?;
    bar.finish_and_clear();
    let (lost, doubled) = (total(&reports, |it| it.lost), total(&reports, |it| it.doubled));
    let view = json!({
        "seed": seed,
        "directory": directory.display().to_string(),
        "promised": total(&reports, |it| it.promised),
        "kept": total(&reports, |it| it.kept),
        "lost": lost,
        "doubled": doubled,
        "faults": reports,
    });
    out.show(&view, |out| {
        let rows: Vec<_> = reports.iter().map(row).collect();
        table(out, ["FAULT", "TIMES", "PROMISED", "KEPT", "LOST", "DOUBLED", "SECONDS"], &rows)?;
        for report in &reports {
            if let Some(why) = &report.skipped {
                writeln!(out, "\n{} was not tried: {}", report.fault.name(), clean(why))?;
            }
            for violation in &report.violations {
                writeln!(out, "\n{}: {}", report.fault.name(), clean(violation))?;
            }
        }
        let disk = directory.display().to_string();
        if lost == 0 && doubled == 0 {
            writeln!(out, "\nNothing acknowledged was lost on {}. Seed {seed}.", clean(&disk))?;
        }
        Ok(())
    })?;
    if lost > 0 || doubled > 0 {
        return Err(Failure::Refused(format!(
            "{lost} acknowledged operations were lost and {doubled} jobs handed out twice; the evidence is in \
             geartrain-drill-{}-* in {}, and --seed {seed} chooses the same moments again",
            std::process::id(),
            directory.display(),
        )));
    }
    Ok(())
}

fn total(reports: &[FaultReport], figure: impl Fn(&FaultReport) -> u64) -> u64 {
    reports.iter().map(figure).sum()
}

fn row(report: &FaultReport) -> [Cell; 7] {
    [
        Cell::from(report.fault.name()),
        Cell::number(report.rounds.into()),
        Cell::number(report.promised),
        Cell::number(report.kept),
        Cell::number(report.lost),
        Cell::number(report.doubled),
        Cell::right(format!("{:.1}", report.seconds)),
    ]
}

/// A client that waits through every fault: none lasts as long as its patience.
fn connect(url: &str) -> Result<Arc<dyn Backend>, BackendError> {
    let client = pollster::block_on(geartrain::connect(&format!("{url}?patience=60")));
    client.map(|client| client.backend().clone()).map_err(|error| match error {
        Error::Backend(error) => error,
        other => BackendError::Broken { backend: "drilled", source: other.into() },
    })
}

impl From<DrillError> for Failure {
    fn from(error: DrillError) -> Failure {
        match error {
            DrillError::Directory { .. } => Failure::Usage(error.to_string()),
            other => Failure::Unreachable(other.to_string()),
        }
    }
}
