//! `geartrain drill`: inject faults into a server on this machine, and count what it lost.

use std::sync::Arc;

use geartrain::{Backend, BackendError, Error};
use geartrain_drill::{Drill, DrillError, Fault, FaultReport, Plan};
use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};
use serde_json::json;

use super::Done;
use crate::failure::Failure;
use crate::output::Output;
use crate::text::{Cell, clean, table};
use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  geartrain drill
  geartrain drill --kills 200 --disk /var/lib
  geartrain drill --kills 0 --freezes 0 --clock-jumps 0 --full-disks 5 --json

For each fault it starts a server in its own directory under --disk, runs clients that submit and work on
jobs, injects the fault again and again, and then compares every acknowledgement with what the server stored.
The machine's clock is not changed, and --url is not used. A full disk needs a small file system, which only
root can mount. The exit code is 1 if anything acknowledged was lost or handed out twice; then the directory
stays as evidence.")]
pub(crate) struct DrillArgs {
    /// How many times the server is killed with SIGKILL and restarted
    #[arg(long, value_name = "N", default_value_t = 20)]
    kills: u32,
    /// How many times it is stopped with SIGSTOP for two seconds
    #[arg(long, value_name = "N", default_value_t = 3)]
    freezes: u32,
    /// How many times its disk is filled
    #[arg(long, value_name = "N", default_value_t = 2)]
    full_disks: u32,
    /// How many times its clock jumps, by up to an hour
    #[arg(long, value_name = "N", default_value_t = 20)]
    clock_jumps: u32,
    /// How many clients run at once
    #[arg(
        long,
        value_name = "N",
        default_value_t = 8,
        value_parser = clap::value_parser!(u16).range(1..=1_000)
    )]
    clients: u16,
    /// A directory on the disk to test [default: the system's temporary directory]
    #[arg(long, value_name = "DIR")]
    disk: Option<PathBuf>,
    /// Repeat the timing of the faults of an earlier drill, by the seed that it printed
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,
}

/// Runs the chosen faults and reports the result of each.
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
        return Err(Failure::Usage("every fault has 0 rounds: give --kills or another one".into()));
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
                writeln!(out, "\n{} was skipped: {}", report.fault.name(), clean(why))?;
            }
            for violation in &report.violations {
                writeln!(out, "\n{}: {}", report.fault.name(), clean(violation))?;
            }
        }
        let disk = directory.display().to_string();
        if lost == 0 && doubled == 0 {
            writeln!(out, "\nNo acknowledged operation was lost on {}. Seed {seed}.", clean(&disk))?;
        }
        Ok(())
    })?;
    if lost > 0 || doubled > 0 {
        return Err(Failure::Refused(format!(
            "{lost} acknowledged operations were lost and {doubled} jobs handed out twice; the evidence is in \
             geartrain-drill-{}-* in {}, and --seed {seed} repeats the same timing",
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

/// A client that retries through every fault: none lasts as long as its retry budget.
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
