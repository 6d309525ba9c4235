//! `geartrain put --record` and `--resubmit`: a client-side record of the jobs on Gearman servers, which may
//! lose them.

use std::path::PathBuf;
use std::sync::Arc;

use geartrain::{BackendError, Client, Error, GearmanBackend, GearmanUrl, ResubmitScope, Target};
use serde_json::json;

use super::Done;
use super::put::PutArgs;
use crate::failure::Failure;
use crate::output::Output;
use crate::text::count;
use geartrain_json::texts;

/// The servers, with the file that records their jobs.
fn servers(url: &str, record: Option<PathBuf>) -> Result<GearmanUrl, Failure> {
    let Target::Gearman(url) = Target::of(url)? else {
        let why = "--record and --resubmit are for Gearman servers (other queues are durable): \
                   give --url gearman://HOST:PORT";
        return Err(Failure::Usage(why.to_owned()));
    };
    match record {
        Some(record) => Ok(url.with_record(record)),
        None if url.has_record() => Ok(url),
        None => Err(Failure::Usage("give --record FILE, the record of the jobs".to_owned())),
    }
}

async fn connect(url: GearmanUrl) -> Result<GearmanBackend, Failure> {
    let connected = GearmanBackend::connect(url.clone()).await;
    connected.map_err(|source| Error::Connect { url: url.to_string(), source }.into())
}

/// Connects to Gearman servers, with a record of their jobs.
pub(super) async fn recorded(url: &str, record: Option<PathBuf>) -> Result<Client, Failure> {
    Ok(Client::new(Arc::new(connect(servers(url, record)?).await?)))
}

pub(super) async fn resubmit(url: &str, args: PutArgs, out: &mut Output<'_>) -> Done {
    let which = if args.all { ResubmitScope::All } else { ResubmitScope::Lost };
    let backend = connect(servers(url, args.record)?).await?;
    let done = backend.resubmit(which).await.map_err(|error: BackendError| Error::from(error))?;
    let again = texts(&done.resubmitted);
    let view = json!({
        "again": again, "known": done.known, "unknown": done.unknown, "nowhere": done.not_accepted,
    });
    out.show(&view, |out| again.iter().try_for_each(|jid| writeln!(out, "{jid}")))?;
    if !out.json {
        out.remark(format_args!(
            "{} resubmitted, {} still on a server",
            count(done.resubmitted.len() as u64, "job"),
            done.known
        ))?;
        if done.unknown > 0 {
            out.remark(format_args!(
                "{} unknown to every server and not resubmitted: done, or lost when a server restarted; \
                 use --all to resubmit them",
                count(done.unknown, "job")
            ))?;
        }
    }
    if done.not_accepted > 0 {
        return Err(Failure::Unreachable(format!(
            "{} could not be resubmitted: no other server is reachable; \
             name one with --url gearman://LOST,OTHER",
            count(done.not_accepted, "job")
        )));
    }
    Ok(())
}
