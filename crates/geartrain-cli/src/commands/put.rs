//! Putting jobs: one, many, or one after another.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use geartrain::{
    Client, Existing, Jid, Payload, Put, PutOptions, PutReply, RESULT_TTL_DEFAULT, Recur, Seconds,
};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::wait::put_and_wait;
use super::{Done, new_jid, until};
use crate::args::{PutArgs, TermsArgs};
use crate::batch::{self, Defaults};
use crate::failure::Failure;
use crate::output::Output;
use crate::payload::Source;
use crate::text;

/// How often a job may be tried again if nobody says; the engine says the same of a new job, but not of what a recurring one makes.
pub(super) const RETRIES: u32 = 5;

pub(super) async fn put(client: &Client, args: PutArgs, out: &mut Output<'_>) -> Done {
    if let Some(file) = &args.batch {
        return put_batch(client, file, Defaults { queue: args.queue, klass: args.klass }, out).await;
    }
    let (Some(queue), Some(klass)) = (args.queue, args.klass) else {
        return Err(Failure::Usage("put needs a queue and a klass; see `geartrain put --help`".to_owned()));
    };
    let payload = read(args.payload.as_ref())?;
    let jid = args.jid.unwrap_or_else(new_jid);
    let delay = match (args.when.delay, args.when.at) {
        (Some(delay), _) => delay.into(),
        (None, Some(at)) => until(at),
        (None, None) => Seconds::ZERO,
    };

    if let Some(every) = args.every {
        let recur = Recur {
            offset: delay,
            priority: args.priority.unwrap_or_default(),
            retries: args.retries.unwrap_or(RETRIES),
            tags: args.tags,
            ..Recur::new(queue, jid.clone(), klass, payload, every.into())
        };
        client.run(recur).await?;
        let view = json!({ "jid": jid.to_string(), "outcome": "recurring", "coalesced": false });
        return Ok(out.line(&view, jid)?);
    }

    let put = Put {
        delay,
        priority: args.priority,
        retries: args.retries,
        tags: (!args.tags.is_empty()).then_some(args.tags),
        depends: args.depends,
        existing: if args.replace { Existing::Replace } else { Existing::Keep },
        options: terms(args.terms),
        ..Put::new(queue, jid.clone(), klass, payload)
    };
    if let Some(wait) = args.wait {
        return put_and_wait(client, put, wait, out).await;
    }
    let reply = client.run(put).await?;
    let jid = remark_on(&jid, &reply, out)?;
    let coalesced = matches!(reply, PutReply::Coalesced { .. });
    let view = json!({ "jid": jid.to_string(), "outcome": outcome(&reply), "coalesced": coalesced });
    Ok(out.line(&view, jid)?)
}

/// What the flags ask for beyond Qless; none if they ask for nothing.
fn terms(args: TermsArgs) -> Option<Box<PutOptions>> {
    let terms = PutOptions {
        unique: args.unique,
        result_ttl: args.keep_result.map(|span| span.unwrap_or(RESULT_TTL_DEFAULT)),
        expires: args.expires,
        attempt_max: args.timeout,
        backoff: args.backoff,
        crashes_max: args.crashes,
        roll_call: args.roll_call,
        ..PutOptions::default()
    };
    (terms != PutOptions::default()).then(|| Box::new(terms))
}

/// Tells people what a put did if it is not what they might think, and answers which job stands for it.
fn remark_on<'a>(jid: &'a Jid, reply: &'a PutReply, out: &mut Output<'_>) -> Result<&'a Jid, Failure> {
    let (jid, remark) = match reply {
        PutReply::Coalesced { jid } => (jid, joined(jid)),
        PutReply::Named { jid } => return Ok(jid),
        PutReply::Existing => {
            (jid, format!("job {jid} was there already and was left alone; --replace puts it again"))
        }
        _ => return Ok(jid),
    };
    if !out.json {
        out.remark(remark)?;
    }
    Ok(jid)
}

/// That another job stands for a put.
pub(super) fn joined(jid: &Jid) -> String {
    format!("job {jid} has this key and is unfinished, so it stands for this put too")
}

/// What a put did, in a word.
pub(super) fn outcome(reply: &PutReply) -> &'static str {
    match reply {
        PutReply::Created => "created",
        PutReply::Replaced => "replaced",
        PutReply::Existing => "existing",
        PutReply::Coalesced { .. } => "coalesced",
        PutReply::Named { .. } => "named",
        _ => "done",
    }
}

/// The payload that was given, or none, which is no bytes.
pub(super) fn read(source: Option<&Source>) -> Result<Payload, Failure> {
    source.map_or_else(|| Ok(Payload::default()), Source::read)
}

async fn put_batch(client: &Client, file: &Path, defaults: Defaults, out: &mut Output<'_>) -> Done {
    // On standard error, and only if that is a terminal: the bar sees to it.
    let bar = ProgressBar::no_length();
    let lines: Box<dyn BufRead> = if file == Path::new("-") {
        Box::new(std::io::stdin().lock())
    } else {
        let unreadable = |error| Failure::Usage(format!("{} cannot be read: {error}", file.display()));
        let file = File::open(file).map_err(unreadable)?;
        bar.set_length(file.metadata().map_or(0, |about| about.len()));
        Box::new(BufReader::with_capacity(1 << 16, file))
    };
    bar.set_style(style(bar.length().is_some_and(|length| length > 0)));

    let (tally, failure) = batch::put_lines(client, lines, &defaults, |bytes, jobs| {
        bar.set_position(bytes);
        bar.set_message(text::count(jobs, "job"));
    })
    .await;
    bar.finish_and_clear();

    let already = match tally.existing {
        0 => String::new(),
        existing => format!(", {} there already and left alone", existing),
    };
    let joined = match tally.coalesced {
        0 => String::new(),
        coalesced => format!(", {coalesced} joined unfinished ones with their key"),
    };
    out.line(&tally, format_args!("{} put{already}{joined}", text::count(tally.put, "job")))?;
    for complaint in &tally.complaints {
        out.remark(complaint)?;
    }
    failure.map_or(Ok(()), Err)
}

fn style(of_known_length: bool) -> ProgressStyle {
    let template = if of_known_length {
        "{bar:40} {percent:>3}%  {msg}  {eta} left"
    } else {
        "{spinner} {msg}  {elapsed}"
    };
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
