//! Jobs by filter: lists, and changes of many jobs at once.

use std::io::{self, BufRead, IsTerminal};
use std::time::{Duration, Instant};

use clap::Args;
use geartrain::{
    BulkAct, Client, Count, Filter, GetMany, Jid, Job, Rate, SELECT_MAX, Selected, Selection, Timestamp,
};

use super::{Done, PageArgs};
use crate::failure::Failure;
use crate::output::{Output, Total};
use crate::text::{Cell, TextOut, clean, count, table};
use crate::{rate, timestamp};
use geartrain_json::{BulkSum, PreviewView, SelectedView, not_json};

/// A change of all jobs that a filter selects.
#[derive(Debug, Args)]
#[command(next_help_heading = "Many jobs")]
pub(crate) struct BulkArgs {
    /// All jobs that this filter selects, such as 'queue=mail state=failed age>2h args.user.id=42'
    #[arg(long = "where", value_name = "FILTER")]
    filter: Option<Filter>,
    /// All jobs: required for a filter without a term
    #[arg(long)]
    all: bool,
    /// Only count the jobs, and show three of them
    #[arg(long)]
    dry_run: bool,
    /// No more jobs than this per time, such as 100/s
    #[arg(long, value_name = "RATE", value_parser = rate::parse)]
    rate: Option<Rate>,
    #[arg(from_global)]
    yes: bool,
}

impl BulkArgs {
    /// Whether many jobs are meant, and not a named one.
    pub(crate) fn is_given(&self) -> bool {
        self.filter.is_some() || self.all
    }

    /// Refuses flags that mean nothing without a filter.
    pub(crate) fn check_unused(&self) -> Done {
        if self.dry_run || self.rate.is_some() {
            return Err(Failure::Usage("--dry-run and --rate go with --where or --all".to_owned()));
        }
        Ok(())
    }
}

/// How many jobs are shown before a change.
const SAMPLES: usize = 3;

/// How often a change at a limited rate does a step.
const STEPS_PER_SECOND: f64 = 10.0;

/// How often progress is shown.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// The words for a change: `cancel`, `cancelled`.
pub(crate) struct Words {
    pub(crate) verb: &'static str,
    pub(crate) done: &'static str,
}

fn sample_table(out: &mut TextOut<'_>, jobs: &[Selected], now: Timestamp) -> io::Result<()> {
    let row = |job: &Selected| {
        let queue = job.queue.as_ref().map_or("", |queue| queue.as_str());
        [
            Cell::id(&job.jid),
            Cell::state(if job.stalled { "stalled" } else { job.state.as_str() }),
            Cell::from(queue),
            Cell::from(&job.klass),
            Cell::right(job.priority),
            Cell::whole(timestamp::relative(job.put, now)),
        ]
    };
    let rows: Vec<[Cell; 6]> = jobs.iter().map(row).collect();
    table(out, ["JID", "STATE", "QUEUE", "KLASS", "PRIORITY", "PUT"], &rows)
}

/// A page of the jobs that a filter selects.
pub(super) async fn page(
    client: &Client,
    filter: Filter,
    wanted: &PageArgs,
) -> Result<(Vec<Job>, Total), Failure> {
    // One more than is shown tells whether there are more.
    let (end, mut jids) = (wanted.offset.saturating_add(wanted.limit()), Vec::<Jid>::new());
    let mut selection = client.select(filter);
    while jids.len() <= end
        && let Some(page) = selection.next_page().await?
    {
        jids.extend(page.into_iter().map(|job| job.jid));
    }
    check_json(&selection)?;
    let total = match jids.len() > end {
        true => Total::AtLeast(end as u64 + 1),
        false => Total::Exactly(jids.len() as u64),
    };
    let jids: Vec<Jid> = jids.into_iter().skip(wanted.offset).take(wanted.limit()).collect();
    let mut jobs = Vec::with_capacity(jids.len());
    for part in jids.chunks(500) {
        jobs.append(&mut client.run(GetMany { jids: part.to_vec() }).await?);
    }
    Ok((jobs, total))
}

/// Changes all jobs that a filter selects, after a count and a question.
pub(super) async fn act(
    client: &Client,
    args: BulkArgs,
    act: BulkAct,
    words: Words,
    out: &mut Output<'_>,
) -> Done {
    let can_ask = can_ask(out.json);
    act_with(client, args, act, words, out, can_ask.then_some(&mut io::stdin().lock())).await
}

/// Whether a person can be asked.
pub(crate) fn can_ask(is_json: bool) -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal() && !is_json
}

/// The same; `answers` is where a person can answer.
async fn act_with(
    client: &Client,
    args: BulkArgs,
    act: BulkAct,
    words: Words,
    out: &mut Output<'_>,
    answers: Option<&mut dyn BufRead>,
) -> Done {
    let filter = args.filter.clone().unwrap_or_default();
    if filter.is_empty() && !args.all {
        return Err(Failure::Usage(
            "a filter without a term selects every job: give --all if that is meant".to_owned(),
        ));
    }
    if answers.is_none() && !args.yes && !args.dry_run {
        return Err(Failure::Usage(format!(
            "no terminal can be asked whether to {} the jobs: give --yes, or --dry-run to count them",
            words.verb
        )));
    }
    let (matching, samples) = count_matching(client, &filter).await?;
    let selected = if filter.is_empty() { "there are".to_owned() } else { format!("{filter} selects") };
    if !out.json {
        if matching == 0 {
            return Ok(out.remark(format_args!("{selected} no jobs"))?);
        }
        let now = out.now;
        writeln!(out.out, "{}", clean(&format!("{selected} {}", count(matching, "job"))))?;
        sample_table(&mut TextOut { out: &mut *out.out, width: out.width }, &samples, now)?;
        if matching > samples.len() as u64 {
            writeln!(out.out, "… and {} more", matching - samples.len() as u64)?;
        }
        out.out.flush()?;
    }
    let samples: Vec<SelectedView> = samples.iter().map(SelectedView::new).collect();
    if args.dry_run {
        if out.json {
            out.show(&PreviewView { matching, samples }, |_| Ok(()))?;
        }
        return Ok(());
    }
    if !args.yes
        && let Some(answers) = answers
        && !is_confirmed(matching, &words, out, answers)?
    {
        return Err(Failure::Refused("nothing was done".to_owned()));
    }
    let sum = run(client, filter, act, args.rate, matching, &words, out).await?;
    report(sum, matching, samples, &words, out)
}

async fn count_matching(client: &Client, filter: &Filter) -> Result<(u64, Vec<Selected>), Failure> {
    let mut selection = client.select(filter.clone());
    let (mut matching, mut samples) = (0, Vec::new());
    while let Some(page) = selection.next_page().await? {
        matching += page.len() as u64;
        let missing = SAMPLES - samples.len();
        samples.extend(page.into_iter().take(missing));
    }
    check_json(&selection)?;
    Ok((matching, samples))
}

/// Fails if payloads could not be compared.
fn check_json(selection: &Selection) -> Result<(), Failure> {
    match selection.not_json() {
        0 => Ok(()),
        jobs => Err(Failure::Refused(not_json(jobs).message)),
    }
}

fn is_confirmed(
    matching: u64,
    words: &Words,
    out: &mut Output<'_>,
    answers: &mut dyn BufRead,
) -> Result<bool, Failure> {
    write!(out.err, "{} {}? [y/N] ", words.verb, count(matching, "job"))?;
    out.err.flush()?;
    let mut answer = String::new();
    answers.read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

async fn run(
    client: &Client,
    filter: Filter,
    act: BulkAct,
    rate: Option<Rate>,
    matching: u64,
    words: &Words,
    out: &mut Output<'_>,
) -> Result<BulkSum, Failure> {
    let mut steps = client.act(filter, act);
    let per_second = rate.map(|rate| f64::from(rate.count()) / rate.per().get());
    if let Some(per_second) = per_second {
        let step = (per_second / STEPS_PER_SECOND).clamp(1.0, SELECT_MAX as f64);
        steps.set_step(Count::new(step as i64).map_err(geartrain::Error::from)?);
    }
    let mut sum = BulkSum::default();
    let begun = Instant::now();
    let mut shown = begun;
    while let Some(step) = steps.next().await? {
        let has_more = step.next.is_some();
        sum.add(step);
        if out.err_is_terminal && !out.json && shown.elapsed() >= PROGRESS_EVERY {
            shown = Instant::now();
            write!(out.err, "\r{} of {matching} {}", sum.acted, words.done)?;
            out.err.flush()?;
        }
        if let Some(per_second) = per_second
            && has_more
        {
            let due = Duration::try_from_secs_f64(sum.acted as f64 / per_second).unwrap_or_default();
            std::thread::sleep(due.saturating_sub(begun.elapsed()));
        }
    }
    if shown > begun {
        write!(out.err, "\r")?;
    }
    Ok(sum)
}

fn report(
    sum: BulkSum,
    matching: u64,
    samples: Vec<SelectedView>,
    words: &Words,
    out: &mut Output<'_>,
) -> Done {
    let BulkSum { acted, unchanged, refused, ref refusals } = sum;
    let (changed, more) = (sum.changed(matching), (acted + unchanged + refused).saturating_sub(matching));
    let mut people = format!("{} {}", count(acted, "job"), words.done);
    for (number, what) in [
        (unchanged, if unchanged == 1 { "left as it was" } else { "left as they were" }),
        (changed, "no longer selected"),
        (more, "more selected meanwhile"),
        (refused, "refused"),
    ] {
        if number > 0 {
            people.push_str(&format!(", {number} {what}"));
        }
    }
    let view = sum.document(matching, samples);
    out.line(&view, people)?;
    if refused == 0 {
        return Ok(());
    }
    let first = refusals.first().map_or(String::new(), |(_, why)| format!(", such as: {why}"));
    Err(Failure::Refused(format!("{} refused{first}", count(refused, "job"))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{self, Verb};

    /// Asks a person on a terminal, who gives this answer.
    fn asked(client: &Client, line: &str, answer: &str) -> (Result<(), String>, String, String) {
        let cli = args::parse(["geartrain"].into_iter().chain(line.split(' '))).unwrap();
        let Verb::Cancel(args) = cli.verb else { panic!("{line}") };
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let mut stripped = anstream::StripStream::new(&mut out);
        let mut output = Output {
            json: false,
            width: None,
            now: timestamp::now(),
            out: &mut stripped,
            raw: None,
            err: &mut err,
            err_is_terminal: true,
        };
        let words = Words { verb: "cancel", done: "cancelled" };
        let mut answers = answer.as_bytes();
        let act = act_with(
            client,
            args.bulk,
            BulkAct::Cancel { because: None },
            words,
            &mut output,
            Some(&mut answers),
        );
        let done = pollster::block_on(act).map_err(|failure| failure.to_string());
        (done, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
    }

    #[test]
    fn a_person_is_asked_before_many_jobs_change() {
        let client = pollster::block_on(geartrain::connect("memory:")).unwrap();
        for jid in ["a", "b", "c", "d"] {
            pollster::block_on(async { client.put("mail", "welcome", "{}").jid(jid).await }).unwrap();
        }
        for no in ["n\n", "\n", "", "yep\n"] {
            let (done, out, err) = asked(&client, "cancel --where queue=mail", no);
            assert_eq!(done, Err("nothing was done".to_owned()));
            assert!(out.starts_with("queue=mail selects 4 jobs\n"), "{out}");
            assert!(out.contains("a") && out.ends_with("… and 1 more\n"), "{out}");
            assert_eq!(err, "cancel 4 jobs? [y/N] ");
        }
        let (done, out, _) = asked(&client, "cancel --where queue=mail", "y\n");
        assert_eq!(done, Ok(()));
        assert!(out.ends_with("4 jobs cancelled\n"), "{out}");
    }
}
