//! Workers: who is there, what each can do, and who is gone.

use std::collections::BTreeMap;

use geartrain::{
    Announce, AnnounceChange, Announced, Announcement, Capability, Client, Error, GetMany, Refusal, RollCall,
    WorkerJobs, WorkerLost, WorkerName, Workers,
};
use serde::Serialize;
use serde_json::json;

use super::Done;
use super::list::show_jobs;
use crate::args::{AnnounceArgs, GoneArgs, RollCallArgs, WorkersArgs};
use crate::duration;
use crate::failure::Failure;
use crate::output::Output;
use crate::text::{Cell, count, table};
use crate::view::{Number, texts};

/// How many jobs a worker has, and what it announced.
#[derive(Debug, Serialize)]
struct WorkerView {
    name: String,
    running: u64,
    stalled: u64,
    can: Vec<AbilityView>,
}

/// What a worker can do.
#[derive(Debug, Serialize)]
struct AbilityView {
    queue: String,
    klass: Option<String>,
    timeout: Option<Number>,
}

impl AbilityView {
    fn new(ability: &Capability) -> AbilityView {
        AbilityView {
            queue: ability.queue.to_string(),
            klass: ability.klass.as_ref().map(ToString::to_string),
            timeout: ability.attempt_max.map(Number::from),
        }
    }
}

/// What a worker can do, as `announce` reads it: `mail thumbnails:make (10m)`.
fn abilities_text(abilities: &[Capability]) -> String {
    let each = abilities.iter().map(|ability| {
        let klass = ability.klass.as_ref().map(|klass| format!(":{klass}")).unwrap_or_default();
        let timeout = ability.attempt_max.map(|span| format!(" ({})", duration::format(span.get())));
        format!("{}{klass}{}", ability.queue, timeout.unwrap_or_default())
    });
    each.collect::<Vec<_>>().join(" ")
}

pub(super) async fn workers(client: &Client, args: WorkersArgs, out: &mut Output<'_>) -> Done {
    if let Some(worker) = args.name {
        let none = format!("{worker} has no jobs");
        let reply = client.run(WorkerJobs { worker }).await?;
        let jids = reply.jobs.into_iter().chain(reply.stalled);
        let jids = jids.skip(args.page.offset).take(args.page.limit.get()).collect();
        let jobs = client.run(GetMany { jids }).await?;
        return show_jobs(&jobs, &none, out);
    }
    let workers = client.run(Workers).await?.into_iter();
    let workers: Vec<_> = workers.skip(args.page.offset).take(args.page.limit.get()).collect();
    let announced = announced(client).await?;
    let can = |name: &WorkerName| announced.get(name).map_or(&[][..], |said| &said.capabilities);
    let views: Vec<WorkerView> = workers
        .iter()
        .map(|worker| WorkerView {
            name: worker.name.to_string(),
            running: worker.jobs,
            stalled: worker.stalled,
            can: can(&worker.name).iter().map(AbilityView::new).collect(),
        })
        .collect();
    Ok(out.list(&views, "no workers were seen lately", |out| {
        let rows: Vec<_> = workers
            .iter()
            .map(|worker| {
                [
                    Cell::from(&worker.name),
                    Cell::number(worker.jobs),
                    Cell::number(worker.stalled),
                    Cell::from(abilities_text(can(&worker.name))),
                ]
            })
            .collect();
        table(out, ["WORKER", "RUNNING", "STALLED", "CAN"], &rows)
    })?)
}

/// What the workers have announced; nothing, where nobody can.
async fn announced(client: &Client) -> Result<BTreeMap<WorkerName, Announcement>, Error> {
    match client.run(Announced { worker: None }).await {
        Ok(all) => Ok(all.into_iter().map(|said| (said.worker.clone(), said)).collect()),
        Err(Error::Refused(Refusal::Unsupported { .. })) => Ok(BTreeMap::new()),
        Err(error) => Err(error),
    }
}

pub(super) async fn announce(client: &Client, args: AnnounceArgs, out: &mut Output<'_>) -> Done {
    let worker = args.worker;
    let abilities =
        args.abilities.into_iter().map(|ability| Capability { attempt_max: args.timeout, ..ability });
    let change = if args.cannot {
        AnnounceChange::Cannot(abilities.map(|ability| (ability.queue, ability.klass)).collect())
    } else if args.only {
        AnnounceChange::Only(abilities.collect())
    } else {
        AnnounceChange::Can(abilities.collect())
    };
    client.run(Announce { worker: worker.clone(), change }).await?;
    let said = client.run(Announced { worker: Some(worker.clone()) }).await?.pop();
    let can = said.map(|said| said.capabilities).unwrap_or_default();
    let people = match can.as_slice() {
        [] => format!("{worker} can do nothing"),
        can => format!("{worker} can do {}", abilities_text(can)),
    };
    let can: Vec<AbilityView> = can.iter().map(AbilityView::new).collect();
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
        "no live worker has announced that it can do {what} of {queue}; `geartrain announce` does that for a worker"
    )))
}

pub(super) async fn gone(client: &Client, args: GoneArgs, out: &mut Output<'_>) -> Done {
    let worker = args.worker;
    let jids = client.run(WorkerLost { worker: worker.clone(), evidence: args.evidence }).await?;
    let names = texts(&jids);
    let people = match jids.len() as u64 {
        0 => format!("{worker} is gone; it held no job"),
        held => format!("{worker} is gone; it held {}: {}", count(held, "job"), names.join(" ")),
    };
    Ok(out.line(&json!({ "worker": worker.to_string(), "jids": names }), people)?)
}
