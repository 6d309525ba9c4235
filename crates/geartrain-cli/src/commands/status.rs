//! `geartrain status` of an unfinished job, and `geartrain result` of one that ended.

use geartrain::{Client, GetResult, Jid, JobEnding, QueueName, StateName, Status, StatusOf};

use super::Done;
use crate::failure::Failure;
use crate::job_details::{key_text, progress_text};
use crate::output::Output;
use crate::text::{Cell, card, count};
use crate::values::unique_key;
use clap::Args;
use geartrain::UniqueKey;
use geartrain_json::{StoredResultView, is_stalled};

#[derive(Debug, Args)]
#[command(
    override_usage = "geartrain status [OPTIONS] <JID>\n       geartrain status [OPTIONS] --unique <KEY> <QUEUE>",
    after_help = "Examples:\n  geartrain status JID\n  geartrain status --unique 2026-04 reports"
)]
pub(crate) struct StatusArgs {
    /// The job id; with --unique, the queue
    #[arg(value_name = "JID|QUEUE")]
    name: String,
    /// The unfinished job of the queue that has this key
    #[arg(long, value_name = "KEY", value_parser = unique_key())]
    unique: Option<UniqueKey>,
}

pub(super) async fn status(client: &Client, args: StatusArgs, out: &mut Output<'_>) -> Done {
    let bad = |error: geartrain::BadName| Failure::Usage(format!("{error}; see `geartrain status --help`"));
    let (of, none) = match args.unique {
        Some(key) => {
            let queue = QueueName::new(args.name).map_err(bad)?;
            let none = format!("no unfinished job of {queue} has the key {}", key_text(&key));
            (StatusOf::Unique(queue, key), none)
        }
        None => {
            let jid = Jid::new(args.name).map_err(bad)?;
            let none = format!("job {jid} does not exist, or has ended; see `geartrain get {jid}`");
            (StatusOf::Jid(jid), none)
        }
    };
    let Some(status) = client.run(Status { of }).await? else { return Err(Failure::Refused(none)) };
    let view = geartrain_json::StatusView::new(&status);
    Ok(out.show(&view, |out| {
        let mut lines = vec![
            ("jid", Cell::from(&status.jid)),
            ("state", Cell::state(status.state.as_str())),
            ("queue", Cell::from(&status.queue)),
        ];
        lines.extend(status.progress.map(|progress| ("progress", Cell::from(progress_text(progress)))));
        let awaited = match status.attached {
            0 => "no client waits for it".to_owned(),
            1 => "1 client waits for it".to_owned(),
            attached => format!("{attached} clients wait for it"),
        };
        let stands_for = format!("{}, {awaited}", count(status.submissions, "submission"));
        lines.push(("stands for", stands_for.into()));
        card(out, &lines)
    })?)
}

pub(super) async fn result(client: &Client, jid: Jid, out: &mut Output<'_>) -> Done {
    let Some(stored) = client.run(GetResult { jid: jid.clone() }).await? else {
        return Err(no_result(client, &jid, out).await?);
    };
    if out.json {
        return Ok(out.line(&StoredResultView::new(&stored), "")?);
    }
    out.bytes(stored.result.bytes.bytes())?;
    match ending_error(&jid, &stored.ending) {
        Some(why) => Ok(out.remark(why)?),
        None => Ok(()),
    }
}

/// Why there is no result: the job has not ended, its result was not stored, or there is no such job.
async fn no_result(client: &Client, jid: &Jid, out: &Output<'_>) -> Result<Failure, Failure> {
    let job = client.get(jid).await?;
    Ok(match job.as_ref().map(|job| (job.state.name(), is_stalled(job, out.now))) {
        None => Failure::Refused(format!("there is no stored result of job {jid}; the job does not exist")),
        Some((state @ (StateName::Complete | StateName::Failed), _)) => Failure::Refused(format!(
            "job {jid} is {state}, and its result was not stored; \
             submit jobs with --keep-result to read it later"
        )),
        Some((state, stalled)) => {
            let state = match state {
                StateName::Depends => "depends on other jobs".to_owned(),
                _ if stalled => "is stalled".to_owned(),
                state => format!("is {state}"),
            };
            Failure::TimedOut(format!(
                "job {jid} is unfinished: it {state}; `geartrain why {jid}` explains it"
            ))
        }
    })
}

/// The error for a job that did not complete.
pub(super) fn ending_error(jid: &Jid, how: &JobEnding) -> Option<String> {
    match how {
        JobEnding::Failed { group, message } => {
            Some(format!("job {jid} failed in {group}: {message}; `geartrain requeue {jid}` retries it"))
        }
        JobEnding::Canceled => {
            Some(format!("job {jid} was cancelled; submit it again if it is still wanted"))
        }
        _ => None,
    }
}
