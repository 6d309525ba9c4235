//! `geartrain move`: the jobs of some queues go to another queue system.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use geartrain::transfer::{Report, Transfer, TransferError};
use geartrain::{QueueName, Rate};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

use super::{Done, client_password};
use crate::failure::Failure;
use crate::output::Output;
use crate::settings::{ConfigFile, Context, Production};
use crate::text::{clean, count};
use crate::{password, rate};

/// How many jobs that stay are named for people; JSON names all.
const SHOWN_MAX: usize = 20;

#[derive(Debug, Args)]
#[command(after_help = r#"Examples:
  geartrain move --from embedded:./data --to redis://queue.example mail reports
  geartrain move --from redis://old --to redis://new mail --follow     # while old producers still submit
  geartrain move --from redis://old --to redis://new mail --dry-run
  geartrain move --from old --to new mail     # contexts of the configuration file, with their passwords

Each job is set aside at the source, put at the target under its id, and removed at the source. After an
interruption, run the same command again: it finishes what was begun; --abort puts back what was set aside.
Running jobs, and jobs for whose result a client waits, stay. Exit code 1 if jobs could not be moved."#)]
pub(crate) struct MoveArgs {
    /// The queue system that the jobs leave: a URL, or a context of the configuration file
    #[arg(long, value_name = "URL")]
    from: String,
    /// The queue system that they go to, as for --from
    #[arg(long, value_name = "URL")]
    to: String,
    /// The queues
    #[arg(required = true, value_name = "QUEUE")]
    queues: Vec<QueueName>,
    /// Go on with jobs that come in, until SIGINT or SIGTERM
    #[arg(long)]
    follow: bool,
    /// Only count the jobs, and name those that cannot be moved
    #[arg(long, conflicts_with_all = ["follow", "abort"])]
    dry_run: bool,
    /// Put back what an interrupted move has set aside
    #[arg(long, conflicts_with_all = ["follow", "rate"])]
    abort: bool,
    /// No more jobs than this per time, such as 100/s
    #[arg(long, value_name = "RATE", value_parser = rate::parse)]
    rate: Option<Rate>,
}

pub(super) fn move_jobs(
    mut args: MoveArgs,
    file: Option<&ConfigFile>,
    is_confirmed: bool,
    out: &mut Output<'_>,
) -> Done {
    let mut in_production = Vec::new();
    for end in [&mut args.from, &mut args.to] {
        let contexts = file.map_or(&[][..], |file| &file.contexts);
        let named = contexts.iter().find(|context| context.name == *end);
        // A URL may be that of contexts, too.
        let is_meant = |context: &Context| match named {
            Some(named) => context.name == named.name,
            None => context.url.value == *end,
        };
        in_production.extend(contexts.iter().find(|context| is_meant(context) && context.is_production()));
        if let Some(context) = named {
            end.clone_from(&context.url.value);
            if let Some(path) = &context.password_file
                && let Some(password) = client_password(Some(&path.value), out)?
            {
                *end = password::add_to(end, &password);
            }
        }
    }
    for context in in_production.into_iter().filter(|_| !is_confirmed && !args.dry_run) {
        Production::new(&context.name, out.json).confirm().map_err(|why| Failure::from(&why))?;
    }
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run(args, out))
}

async fn run(args: MoveArgs, out: &mut Output<'_>) -> Done {
    let MoveArgs { from, to, queues, follow, dry_run, abort, rate } = args;
    let mut transfer = Transfer::connect(&from, &to, queues).await?;
    if let Some(rate) = rate {
        transfer = transfer.at_rate(rate);
    }
    stop_on_signals(transfer.stop_flag())?;
    let bar = ProgressBar::no_length();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {pos} jobs moved, {per_sec}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    let mut show = |report: &Report| bar.set_position(report.moved);
    let done = match (abort, dry_run, follow) {
        (true, ..) => transfer.abort().await,
        (_, true, _) => transfer.dry_run().await,
        (.., true) => transfer.follow(&mut show).await,
        _ => transfer.run(&mut show).await,
    };
    bar.finish_and_clear();
    let is_exact = transfer.is_exact();
    let report = transfer.report();
    if let Err(error) = done {
        if report.moved > 0 {
            writeln!(out.err, "geartrain: {} moved so far", count(report.moved, "job"))?;
        }
        return Err(error.into());
    }
    show_report(report, dry_run, is_exact, out)
}

/// Lets the transfer finish its batch at SIGINT and SIGTERM.
fn stop_on_signals(stop: Arc<AtomicBool>) -> Result<(), Failure> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        stop.store(true, Ordering::Relaxed);
    });
    Ok(())
}

fn show_report(report: &Report, dry_run: bool, is_exact: bool, out: &mut Output<'_>) -> Done {
    let Report { moved, by_state, resumed, recurring, returned, running, not_handed_out, stay, notes } =
        report;
    let named: Vec<_> = stay
        .iter()
        .map(|stay| {
            let queue = stay.queue.as_ref().map(ToString::to_string);
            json!({ "jid": stay.jid.to_string(), "queue": queue, "why": stay.why })
        })
        .collect();
    let view = json!({
        "dry_run": dry_run, "moved": moved, "by_state": by_state, "resumed": resumed, "recurring": recurring,
        "returned": returned, "running": running, "not_handed_out": not_handed_out,
        "at_least_once": !is_exact, "stay": named, "notes": notes,
    });
    let verb = if dry_run { "would be moved" } else { "moved" };
    out.show(&view, |out| {
        let states: Vec<String> = by_state.iter().map(|(state, jobs)| format!("{jobs} {state}")).collect();
        let states = if states.is_empty() { String::new() } else { format!(" ({})", states.join(", ")) };
        writeln!(out.out, "{} {verb}{states}", count(*moved, "job"))?;
        for (number, what) in [
            (*recurring, format!("recurring {verb}")),
            (*resumed, "set aside by an earlier move".to_owned()),
            (*returned, "put back".to_owned()),
            (*running, "running, which stay".to_owned()),
            (
                *not_handed_out,
                "not handed out by the server, which stay: not due, or submitted meanwhile".to_owned(),
            ),
        ] {
            if number > 0 {
                writeln!(out.out, "{} {what}", count(number, "job"))?;
            }
        }
        if !is_exact {
            writeln!(out.out, "at least once: a job may run twice if the move is interrupted")?;
        }
        for note in notes {
            writeln!(out.out, "{note}")?;
        }
        for stay in stay.iter().take(SHOWN_MAX) {
            writeln!(out.out, "{}", clean(&format!("job {} stays: it {}", stay.jid, stay.why)))?;
        }
        if stay.len() > SHOWN_MAX {
            writeln!(out.out, "… and {} more; --json names all", stay.len() - SHOWN_MAX)?;
        }
        Ok(())
    })?;
    match stay.len() as u64 + not_handed_out {
        0 => Ok(()),
        jobs => Err(Failure::Refused(format!("{} could not be moved", count(jobs, "job")))),
    }
}

impl From<TransferError> for Failure {
    fn from(error: TransferError) -> Failure {
        match error {
            TransferError::Same { .. } => Failure::Usage(error.to_string()),
            TransferError::OtherTarget { .. } => Failure::Refused(error.to_string()),
            TransferError::Source(error) => named("--from", error.into()),
            TransferError::Target(error) => named("--to", error.into()),
            other => Failure::Unreachable(other.to_string()),
        }
    }
}

/// A failure of one of the two queue systems.
fn named(which: &str, failure: Failure) -> Failure {
    let name = |why: String| format!("{which}: {why}");
    match failure {
        Failure::Refused(why) => Failure::Refused(name(why)),
        Failure::Usage(why) => Failure::Usage(name(why)),
        Failure::Unreachable(why) => Failure::Unreachable(name(why)),
        Failure::TimedOut(why) => Failure::TimedOut(name(why)),
        other => other,
    }
}
