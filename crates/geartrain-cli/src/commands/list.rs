//! Look up and list jobs.

use std::collections::BTreeMap;
use std::io;

use geartrain::{
    Answer, Call, Client, Count, Error, Failed, Failures, FilterState, GetMany, Group, Jid, Job, Jobs,
    Listing, Page, Peek, QueueCounts, QueueName, Queues, Refusal, Reply, StateName, Status, StatusOf, Tag,
    Tagged, Term, Timestamp, Tracked,
};
use serde_json::json;

use super::Done;
use super::PageArgs;
use super::canceled;
use super::queue::{find_queue, no_queue};
use super::render::{job_card, job_table};
use super::select;
use crate::failure::Failure;
use crate::output::{Output, ShownPage, Total};
use crate::text::{TextOut, count};
use crate::values::at_least_one;
use clap::{Args, ValueEnum};
use geartrain_json::{JobView, is_stalled, texts};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  geartrain jobs --state scheduled --queue mail
  geartrain jobs --tag new --limit 100
  geartrain jobs --where 'queue=mail state=failed age>2h args.user.id=42'

A filter has terms that must all be true, with blanks between them:
  queue=Q klass=K tag=T group=G worker=W   by name; a complete job by its last queue
  state=S                                  a state, or stalled
  age>2h age<5m                            since it was first put; also >= and <=
  attempts>=3                              also >, <, <= and =
  args.user.id=42                          payload that is JSON, by path; list.0 is the first of a list
Quote values with blanks: tag=\"two words\". A quoted payload value is a string: args.id=\"42\".

Without --state the order is running, stalled (lock expired), waiting, scheduled, depends, failed, complete;
with --tag, the order in which jobs were tagged.")]
pub(crate) struct JobsArgs {
    /// Only jobs in this state
    #[arg(long, value_enum)]
    state: Option<StateArg>,
    /// Only jobs in this queue; with --state complete, those that were last in it
    #[arg(long)]
    queue: Option<QueueName>,
    /// Only jobs with this tag
    #[arg(long)]
    tag: Option<Tag>,
    /// Only jobs that this filter selects, in no particular order
    #[arg(long = "where", value_name = "FILTER")]
    filter: Option<geartrain::Filter>,
    #[command(flatten)]
    page: PageArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum StateArg {
    Running,
    Stalled,
    Waiting,
    Scheduled,
    Depends,
    Failed,
    Complete,
}

impl StateArg {
    fn in_filter(self) -> FilterState {
        match self {
            StateArg::Running => FilterState::Running,
            StateArg::Stalled => FilterState::Stalled,
            StateArg::Waiting => FilterState::Waiting,
            StateArg::Scheduled => FilterState::Scheduled,
            StateArg::Depends => FilterState::Depends,
            StateArg::Failed => FilterState::Failed,
            StateArg::Complete => FilterState::Complete,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct PeekArgs {
    /// The queue
    queue: QueueName,
    /// How many jobs to show at most
    #[arg(long, value_name = "N", value_parser = at_least_one, default_value = "1")]
    count: Count,
}

/// How many jobs are looked up per request.
const LOOK_UP_JOBS: usize = 500;

pub(super) async fn get(client: &Client, jid: &Jid, out: &mut Output<'_>) -> Done {
    let Some(job) = client.get(jid).await? else { return Err(canceled::explain(client, jid, out).await) };
    let now = out.now;
    Ok(out.show(&JobView::new(&job, now), |out| job_card(out, &job, now))?)
}

/// Looks up a job that must exist.
pub(super) async fn find(client: &Client, jid: &Jid) -> Result<Job, Failure> {
    match client.get(jid).await? {
        Some(job) => Ok(job),
        None => Err(Refusal::NoSuchJob { jid: jid.clone() }.into()),
    }
}

pub(super) async fn peek(client: &Client, args: PeekArgs, out: &mut Output<'_>) -> Done {
    let jobs = client.run(Peek { queue: args.queue.clone(), count: args.count }).await?;
    let now = out.now;
    let none = match jobs.is_empty() && find_queue(client, &args.queue).await?.is_none() {
        true => no_queue(&args.queue),
        false => format!("no job is waiting in {}", args.queue),
    };
    Ok(out.list(&views(&jobs, now), &none, |out| job_table(out, &jobs, now))?)
}

pub(super) async fn tracked(client: &Client, out: &mut Output<'_>) -> Done {
    let reply = client.run(Tracked).await?;
    let now = out.now;
    out.show(&json!({ "jobs": views(&reply.jobs, now), "gone": texts(&reply.expired) }), |out| {
        if reply.jobs.is_empty() { Ok(()) } else { job_table(out, &reply.jobs, now) }
    })?;
    if out.json {
        return Ok(());
    }
    if reply.jobs.is_empty() {
        out.remark("no job is tracked")?;
    }
    if !reply.expired.is_empty() {
        let gone = texts(&reply.expired).join(" ");
        out.remark(format_args!("tracked, but removed: {}", gone))?;
    }
    Ok(())
}

fn views(jobs: &[Job], now: Timestamp) -> Vec<JobView> {
    jobs.iter().map(|job| JobView::new(job, now)).collect()
}

/// Shows a page of a list of jobs, for people in a table.
pub(super) fn show_page(
    jobs: &[Job],
    page: &ShownPage<'_>,
    none: &str,
    out: &mut Output<'_>,
    table: fn(&mut TextOut<'_>, &[Job], Timestamp) -> io::Result<()>,
) -> Done {
    let now = out.now;
    Ok(out.page(&views(jobs, now), page, none, |out| table(out, jobs, now))?)
}

pub(super) async fn jobs(client: &Client, args: JobsArgs, out: &mut Output<'_>) -> Done {
    if args.filter.is_some() || (args.queue.is_some() && args.state == Some(StateArg::Complete)) {
        return by_filter(client, args, out).await;
    }
    let (sources, filter) = match args.tag {
        Some(tag) => (vec![JobSource::Tag(tag)], Filter { state: args.state, queue: args.queue }),
        // The sources are chosen by state and, except for failures, by queue.
        None => {
            let sources = sources(client, args.state, args.queue.as_ref()).await?;
            (sources, Filter { state: None, queue: args.queue })
        }
    };
    let (found, total) = gather(client, &sources, &filter, &args.page, out.now).await?;
    let none = match &filter.queue {
        Some(queue) if found.is_empty() && find_queue(client, queue).await?.is_none() => no_queue(queue),
        _ => "no such jobs".to_owned(),
    };
    show_page(&found, &args.page.shown("job", found.len(), total), &none, out, job_table)
}

/// Lists jobs by a filter, to which the other flags add terms.
async fn by_filter(client: &Client, args: JobsArgs, out: &mut Output<'_>) -> Done {
    let mut filter = args.filter.unwrap_or_default();
    filter.terms.extend(args.queue.clone().map(Term::Queue));
    filter.terms.extend(args.tag.map(Term::Tag));
    filter.terms.extend(args.state.map(|state| Term::State(state.in_filter())));
    let (found, total) = select::page(client, filter, &args.page).await?;
    let none = match &args.queue {
        Some(queue) if found.is_empty() && find_queue(client, queue).await?.is_none() => no_queue(queue),
        _ => "no such jobs".to_owned(),
    };
    show_page(&found, &args.page.shown("job", found.len(), total), &none, out, job_table)
}

/// Remarks on dependencies that do not exist: a job does not wait for them.
pub(super) fn remark_on_missing(missing: &[Jid], out: &mut Output<'_>) -> io::Result<()> {
    for jid in missing {
        out.remark(not_waited_for(jid))?;
    }
    Ok(())
}

pub(crate) fn not_waited_for(jid: &Jid) -> String {
    format!("there is no job {jid} to wait for: it counts as complete")
}

/// The jobs that do not exist, of a list.
pub(crate) async fn missing(client: &Client, jids: &[Jid]) -> Result<Vec<Jid>, Error> {
    if jids.is_empty() {
        return Ok(Vec::new());
    }
    // A status has no payload, but only unfinished jobs have a status.
    let ask = |jid: &Jid| Call::from(Status { of: StatusOf::Jid(jid.clone()) });
    let answers = client.batch(jids.iter().map(ask).collect()).await?;
    let is_unfinished = |answer: &Answer| matches!(answer, Ok(Reply::Status(Some(_))));
    let rest = jids.iter().zip(&answers).filter(|(_, answer)| !is_unfinished(answer));
    let mut rest: Vec<Jid> = rest.map(|(jid, _)| jid.clone()).collect();
    if !rest.is_empty() {
        match client.run(GetMany { jids: rest.clone() }).await {
            Ok(found) => rest.retain(|jid| !found.iter().any(|job| job.jid == *jid)),
            // A Gearman server, which has no dependencies either.
            Err(Error::Refused(Refusal::Unsupported { .. })) => rest.clear(),
            Err(error) => return Err(error),
        }
    }
    Ok(rest)
}

/// Lists the failed jobs of a group.
pub(super) async fn failed_jobs(
    client: &Client,
    group: Group,
    page: &PageArgs,
    now: Timestamp,
) -> Result<(Vec<Job>, Total), Error> {
    gather(client, &[JobSource::Failed(group)], &Filter::default(), page, now).await
}

/// A listing of jobs.
enum JobSource {
    Listing(Listing),
    Failed(Group),
    Tag(Tag),
}

impl JobSource {
    /// Whether the filter accepts every job of this listing.
    fn is_whole(&self, filter: &Filter) -> bool {
        // A listing by state has only jobs of the state and queue that it was chosen for.
        filter.accepts_all() || matches!(self, JobSource::Listing(_))
    }

    async fn list(&self, client: &Client, page: Page) -> Result<Vec<Jid>, Error> {
        match self {
            JobSource::Listing(which) => client.run(Jobs { which: which.clone(), page }).await,
            JobSource::Failed(group) => Ok(client.run(Failed { group: group.clone(), page }).await?.jids),
            JobSource::Tag(tag) => Ok(client.run(Tagged { tag: tag.clone(), page }).await?.jids),
        }
    }

    /// How many jobs the listing has.
    async fn count(&self, client: &Client, counts: &Counts) -> Result<u64, Error> {
        let of = |queue: &QueueName, number: fn(&QueueCounts) -> u64| {
            Ok(counts.queues.iter().find(|counts| counts.name == *queue).map_or(0, number))
        };
        match self {
            JobSource::Failed(group) => Ok(counts.failures.get(group).copied().unwrap_or(0)),
            JobSource::Tag(tag) => {
                Ok(client.run(Tagged { tag: tag.clone(), page: Page::default() }).await?.total)
            }
            JobSource::Listing(Listing::Waiting(queue)) => of(queue, |counts| counts.waiting),
            JobSource::Listing(Listing::Running(queue)) => of(queue, |counts| counts.running),
            JobSource::Listing(Listing::Stalled(queue)) => of(queue, |counts| counts.stalled),
            JobSource::Listing(Listing::Scheduled(queue)) => of(queue, |counts| counts.scheduled),
            JobSource::Listing(Listing::Depends(queue)) => of(queue, |counts| counts.depends),
            JobSource::Listing(which) => probe_length(client, which).await,
        }
    }
}

/// How many jobs each queue and each group of failures has.
struct Counts {
    queues: Vec<QueueCounts>,
    failures: BTreeMap<Group, u64>,
}

/// The length of a listing of which the queue has no count, searched by asking which positions have a job: 64
/// positions per request.
async fn probe_length(client: &Client, which: &Listing) -> Result<u64, Error> {
    // Positions below `known` have a job, and those from `end` on have none.
    let (mut known, mut end) = (0_u64, u64::from(u32::MAX));
    while known < end {
        // First the powers of two, then equal steps.
        let positions: Vec<u64> = if known == 0 && end == u64::from(u32::MAX) {
            (0..32).map(|power| (1 << power) - 1).collect()
        } else {
            let step = (end - known).div_ceil(64);
            (known..end).step_by(step as usize).collect()
        };
        let ask = |position: &u64| {
            let page = Page { offset: *position as usize, count: Count::ONE };
            Call::from(Jobs { which: which.clone(), page })
        };
        let answers = client.batch(positions.iter().map(ask).collect()).await?;
        let has_job = |answer: &Answer| matches!(answer, Ok(Reply::Jobs(jids)) if !jids.is_empty());
        let taken = answers.iter().take_while(|answer| has_job(answer)).count();
        known = positions[..taken].last().map_or(known, |last| last + 1);
        end = positions.get(taken).copied().unwrap_or(end);
    }
    Ok(known)
}

/// The listings that have the jobs of a state and a queue.
async fn sources(
    client: &Client,
    state: Option<StateArg>,
    queue: Option<&QueueName>,
) -> Result<Vec<JobSource>, Error> {
    let in_queue = |listing: fn(QueueName) -> Listing| Some(listing);
    let queues = match queue {
        Some(queue) => vec![queue.clone()],
        None => client.run(Queues::default()).await?.into_iter().map(|queue| queue.name).collect(),
    };
    let states = match state {
        Some(state) => vec![state],
        None => vec![
            StateArg::Running,
            StateArg::Stalled,
            StateArg::Waiting,
            StateArg::Scheduled,
            StateArg::Depends,
            StateArg::Failed,
            StateArg::Complete,
        ],
    };
    let skips_waiting = state.is_none() && !lists_waiting(client, queues.first()).await?;
    let mut sources = Vec::new();
    for state in states {
        if skips_waiting && matches!(state, StateArg::Waiting) {
            continue;
        }
        let listing = match state {
            StateArg::Running => in_queue(Listing::Running),
            StateArg::Stalled => in_queue(Listing::Stalled),
            StateArg::Waiting => in_queue(Listing::Waiting),
            StateArg::Scheduled => in_queue(Listing::Scheduled),
            StateArg::Depends => in_queue(Listing::Depends),
            StateArg::Failed => {
                sources.extend(client.run(Failures).await?.into_keys().map(JobSource::Failed));
                None
            }
            StateArg::Complete => {
                if queue.is_none() {
                    sources.push(JobSource::Listing(Listing::Complete));
                }
                None
            }
        };
        if let Some(listing) = listing {
            sources.extend(queues.iter().map(|queue| JobSource::Listing(listing(queue.clone()))));
        }
    }
    Ok(sources)
}

/// Whether the backend can list waiting jobs. Where these have no ids, `peek` shows them.
async fn lists_waiting(client: &Client, queue: Option<&QueueName>) -> Result<bool, Error> {
    let Some(queue) = queue else { return Ok(true) };
    let page = Page { offset: 0, count: Count::new(0)? };
    match client.run(Jobs { which: Listing::Waiting(queue.clone()), page }).await {
        Err(Error::Refused(Refusal::Unsupported { .. })) => Ok(false),
        listed => listed.map(|_| true),
    }
}

#[derive(Default)]
struct Filter {
    state: Option<StateArg>,
    queue: Option<QueueName>,
}

impl Filter {
    fn accepts_all(&self) -> bool {
        self.state.is_none() && self.queue.is_none()
    }

    fn accepts(&self, job: &Job, now: Timestamp) -> bool {
        let stalled = is_stalled(job, now);
        let state = match self.state {
            None => true,
            Some(StateArg::Stalled) => stalled,
            Some(StateArg::Running) => job.state.name() == StateName::Running && !stalled,
            Some(StateArg::Waiting) => job.state.name() == StateName::Waiting,
            Some(StateArg::Scheduled) => job.state.name() == StateName::Scheduled,
            Some(StateArg::Depends) => job.state.name() == StateName::Depends,
            Some(StateArg::Failed) => job.state.name() == StateName::Failed,
            Some(StateArg::Complete) => job.state.name() == StateName::Complete,
        };
        state && (self.queue.is_none() || self.queue == job.queue)
    }
}

/// Reads one listing after another until the page is full, and counts all jobs if the page does not have them.
async fn gather(
    client: &Client,
    sources: &[JobSource],
    filter: &Filter,
    wanted: &PageArgs,
    now: Timestamp,
) -> Result<(Vec<Job>, Total), Error> {
    // One more than is shown tells whether there are more.
    let (mut skip, limit) = (wanted.offset, wanted.limit().saturating_add(1));
    let mut found = Vec::new();
    for source in sources {
        let all = source.is_whole(filter);
        let mut offset = 0;
        while found.len() < limit {
            // If every job counts, those before the page are skipped without looking them up.
            let step = if all && skip == 0 { (limit - found.len()).min(LOOK_UP_JOBS) } else { LOOK_UP_JOBS };
            let page = Page { offset, count: Count::new(step as i64)? };
            let mut jids = source.list(client, page).await?;
            let listed = jids.len();
            offset += listed;
            if all {
                let skipped = skip.min(listed);
                jids.drain(..skipped);
                skip -= skipped;
            }
            if !jids.is_empty() {
                let mut jobs = client.run(GetMany { jids }).await?;
                if !all {
                    jobs.retain(|job| filter.accepts(job, now));
                    let skipped = skip.min(jobs.len());
                    jobs.drain(..skipped);
                    skip -= skipped;
                }
                found.append(&mut jobs);
            }
            if listed < step {
                break;
            }
        }
    }
    let is_end = found.len() < limit;
    found.truncate(wanted.limit());
    let last = (wanted.offset + found.len()) as u64;
    if is_end && !(found.is_empty() && wanted.offset > 0) {
        return Ok((found, Total::Exactly(last)));
    }
    let counts = Counts {
        queues: client.run(Queues { queue: filter.queue.clone() }).await?,
        failures: client.run(Failures).await?,
    };
    let (mut total, mut exact) = (0, true);
    for source in sources {
        let count = source.count(client, &counts).await?;
        if source.is_whole(filter) {
            total += count;
        } else if count > 0 {
            exact = false;
        }
    }
    // Jobs may have come or gone meanwhile.
    let at_least = if is_end { 0 } else { last + 1 };
    let total = if exact { Total::Exactly(total.max(at_least)) } else { Total::AtLeast(total.max(at_least)) };
    Ok((found, total))
}

/// `3 jobs cancelled`.
pub(super) fn jobs_done(number: u64, done: &str) -> String {
    format!("{} {done}", count(number, "job"))
}
