//! Workers: their jobs, the capabilities they announced, and reporting a lost one.

use std::collections::BTreeMap;

use geartrain::{
    Announce, AnnounceChange, Announced, Announcement, Capability, Client, Error, GearMonkeyBackend, GetMany,
    Refusal, RollCall, Target, WorkerJobs, WorkerLost, WorkerName, Workers,
};
use serde_json::json;

use super::Done;
use super::PageArgs;
use super::list::show_page;
use super::render::job_table;
use crate::duration;
use crate::failure::Failure;
use crate::output::Output;
use crate::text::{Cell, count, table};
use crate::timestamp::relative;
use crate::values::span;
use clap::Args;
use geartrain::{Klass, QueueName, Seconds};
use geartrain_json::{CapabilityView, WorkerView, texts};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  geartrain announce w1 mail thumbnails:make
  geartrain announce w1 reports --timeout 10m --only
  geartrain announce w1 mail --cannot

An announcement holds until the worker is reported lost, or has given no sign of life for a minute.")]
pub(crate) struct AnnounceArgs {
    /// The name of the worker
    worker: WorkerName,
    /// A queue whose jobs it can run, or one klass of them
    #[arg(value_name = "QUEUE[:KLASS]", value_parser = capability, required_unless_present = "only")]
    capabilities: Vec<Capability>,
    /// Replace everything that it announced before
    #[arg(long)]
    only: bool,
    /// Withdraw these
    #[arg(long, conflicts_with_all = ["only", "timeout"])]
    cannot: bool,
    /// How long one attempt takes the worker at most
    #[arg(long, value_name = "DURATION", value_parser = span)]
    timeout: Option<Seconds>,
}

#[derive(Debug, Args)]
#[command(after_help = "The exit code is 1 if there are none.")]
pub(crate) struct RollCallArgs {
    /// The queue
    queue: QueueName,
    /// The kind of job [default: any]
    klass: Option<Klass>,
    /// Set the counter of a GearMonkey function, which still has workers of other implementations that died
    #[arg(long, value_name = "WORKERS", conflicts_with = "klass")]
    pub(super) set: Option<u64>,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:
  geartrain worker-lost w1 --evidence 'killed by signal 9'

Each job that the worker holds returns to the front of its queue, which uses up a retry and counts as a crash. A
job that crashed too many of its workers fails, in the group crashed-QUEUE.")]
pub(crate) struct WorkerLostArgs {
    /// The name of the worker
    worker: WorkerName,
    /// How it died; `geartrain get` and `geartrain why` show it
    #[arg(long, value_name = "TEXT")]
    evidence: Option<String>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "SEEN is when a worker last popped, sent a heartbeat or an announcement. A worker chooses its name. Names that
were made up: HOST-PID is that of `geartrain pop` and of most Qless workers, and gearman-SERVER-NUMBER@ADDRESS that
of a Gearman worker, by its connection."
)]
pub(crate) struct WorkersArgs {
    /// List the jobs of this worker
    name: Option<WorkerName>,
    #[command(flatten)]
    page: PageArgs,
}

/// Parses `mail` or `mail:welcome`.
fn capability(text: &str) -> Result<Capability, String> {
    let (queue, klass) = match text.split_once(':') {
        Some((queue, klass)) => (queue, Some(klass)),
        None => (text, None),
    };
    let klass = klass.map(Klass::new).transpose().map_err(|error| error.to_string())?;
    let queue = QueueName::new(queue).map_err(|error| error.to_string())?;
    Ok(Capability { queue, klass, attempt_max: None })
}

/// Capabilities as `announce` parses them: `mail thumbnails:make (10m)`.
fn capabilities_text(capabilities: &[Capability]) -> String {
    let each = capabilities.iter().map(|capability| {
        let klass = capability.klass.as_ref().map(|klass| format!(":{klass}")).unwrap_or_default();
        let timeout = capability.attempt_max.map(|span| format!(" ({})", duration::format(span.get())));
        format!("{}{klass}{}", capability.queue, timeout.unwrap_or_default())
    });
    each.collect::<Vec<_>>().join(" ")
}

pub(super) async fn workers(client: &Client, args: WorkersArgs, out: &mut Output<'_>) -> Done {
    if let Some(worker) = args.name {
        let reply = client.run(WorkerJobs { worker: worker.clone() }).await?;
        let jids = [reply.jobs, reply.stalled].concat();
        if jids.is_empty() && !is_known(client, &worker).await? {
            if out.json {
                out.line(&json!([]), "")?;
            }
            return Err(Failure::Refused(no_worker(&worker)));
        }
        let none = format!("{worker} has no jobs");
        let (jids, total) = args.page.of(jids.into_iter(), args.page.limit());
        let jobs = client.run(GetMany { jids }).await?;
        return show_page(&jobs, &args.page.shown("job", jobs.len(), total), &none, out, job_table);
    }
    let workers = client.run(Workers).await?;
    let (workers, total) = args.page.of(workers.into_iter(), args.page.limit());
    let announced = announced(client).await?;
    let can =
        |name: &WorkerName| announced.get(name).map_or(&[][..], |announcement| &announcement.capabilities);
    let views: Vec<WorkerView> =
        workers.iter().map(|worker| WorkerView::new(worker, can(&worker.name))).collect();
    let page = args.page.shown("worker", workers.len(), total);
    let now = out.now;
    Ok(out.page(&views, &page, "no workers have been seen lately", |out| {
        let rows: Vec<_> = workers
            .iter()
            .map(|worker| {
                [
                    Cell::from(&worker.name),
                    Cell::number(worker.jobs),
                    Cell::number(worker.stalled),
                    Cell::right(worker.seen.map_or_else(String::new, |seen| relative(seen, now))),
                    Cell::from(capabilities_text(can(&worker.name))),
                ]
            })
            .collect();
        table(out, ["WORKER", "RUNNING", "STALLED", "SEEN", "CAN"], &rows)
    })?)
}

/// The announcements of all workers; none on a backend without announcements.
async fn announced(client: &Client) -> Result<BTreeMap<WorkerName, Announcement>, Error> {
    match client.run(Announced { worker: None }).await {
        Ok(all) => {
            Ok(all.into_iter().map(|announcement| (announcement.worker.clone(), announcement)).collect())
        }
        Err(Error::Refused(Refusal::Unsupported { .. })) => Ok(BTreeMap::new()),
        Err(error) => Err(error),
    }
}

pub(super) async fn announce(client: &Client, args: AnnounceArgs, out: &mut Output<'_>) -> Done {
    let worker = args.worker;
    let capabilities = args
        .capabilities
        .into_iter()
        .map(|capability| Capability { attempt_max: args.timeout, ..capability });
    let change = if args.cannot {
        AnnounceChange::Cannot(capabilities.map(|capability| (capability.queue, capability.klass)).collect())
    } else if args.only {
        AnnounceChange::Only(capabilities.collect())
    } else {
        AnnounceChange::Can(capabilities.collect())
    };
    client.run(Announce { worker: worker.clone(), change }).await?;
    let announcement = client.run(Announced { worker: Some(worker.clone()) }).await?.pop();
    let can = announcement.map(|announcement| announcement.capabilities).unwrap_or_default();
    let people = match can.as_slice() {
        [] => format!("{worker} can run no jobs"),
        can => format!("{worker} can run {}", capabilities_text(can)),
    };
    let can: Vec<CapabilityView> = can.iter().map(CapabilityView::new).collect();
    Ok(out.line(&json!({ "worker": worker.to_string(), "can": can }), people)?)
}

pub(super) async fn roll_call(client: &Client, args: RollCallArgs, out: &mut Output<'_>) -> Done {
    let (queue, klass) = (args.queue, args.klass);
    let workers = client.run(RollCall { queue: queue.clone(), klass: klass.clone() }).await?;
    let name = klass.as_ref().map(ToString::to_string);
    out.line(&json!({ "queue": queue.to_string(), "klass": name, "workers": workers }), workers)?;
    if workers > 0 {
        return Ok(());
    }
    let what = name.map_or_else(|| "jobs".to_owned(), |klass| format!("{klass} jobs"));
    Err(Failure::Refused(format!(
        "no live worker has announced that it can run {what} of {queue}; see `geartrain announce --help`"
    )))
}

/// Sets the counter that roll calls of GearMonkey read.
pub(super) async fn set_roll_call(url: &str, args: RollCallArgs, out: &mut Output<'_>) -> Done {
    let workers = args.set.unwrap_or_default();
    let Target::GearMonkey(target) = Target::of(url)? else {
        return Err(Failure::Usage(
            "--set is for GearMonkey functions: give --url gearmonkey+redis://HOST:PORT".to_owned(),
        ));
    };
    let name = target.to_string();
    let connect = GearMonkeyBackend::connect(target).await;
    let backend = connect.map_err(|source| Error::Connect { url: name, source })?;
    let before = backend.set_worker_count(args.queue.clone(), workers).await.map_err(Error::from)?;
    let document = json!({ "queue": args.queue.to_string(), "workers": workers, "before": before });
    Ok(out.line(&document, format_args!("{workers}, was {before}"))?)
}

pub(super) async fn worker_lost(client: &Client, args: WorkerLostArgs, out: &mut Output<'_>) -> Done {
    let worker = args.worker;
    let known = is_known(client, &worker).await?;
    let jids = client.run(WorkerLost { worker: worker.clone(), evidence: args.evidence }).await?;
    let names = texts(&jids);
    let people = match jids.len() as u64 {
        0 => format!("{worker} is lost; it held no job"),
        held => format!("{worker} is lost; it held {}: {}", count(held, "job"), names.join(" ")),
    };
    if known || !jids.is_empty() || out.json {
        out.line(&json!({ "worker": worker.to_string(), "jids": names }), people)?;
    }
    if known || !jids.is_empty() { Ok(()) } else { Err(Failure::Refused(no_worker(&worker))) }
}

/// Whether a worker is on the list or holds a job.
pub(super) async fn is_known(client: &Client, worker: &WorkerName) -> Result<bool, Error> {
    if client.run(Workers).await?.iter().any(|listed| listed.name == *worker) {
        return Ok(true);
    }
    match client.run(WorkerJobs { worker: worker.clone() }).await {
        Ok(held) => Ok(!held.jobs.is_empty() || !held.stalled.is_empty()),
        // A Gearman server.
        Err(Error::Refused(Refusal::Unsupported { .. })) => Ok(false),
        Err(error) => Err(error),
    }
}

pub(super) fn no_worker(worker: &WorkerName) -> String {
    format!("there is no worker {worker}; `geartrain workers` lists those that were seen lately")
}
