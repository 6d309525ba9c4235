//! Look up and list jobs.

use geartrain::{
    Client, Count, Error, Failed, Failures, GetMany, Group, Jid, Job, Jobs, Listing, Page, Peek, QueueName,
    Queues, Refusal, StateName, Tag, Tagged, Timestamp, Tracked,
};
use serde_json::json;

use super::Done;
use super::PageArgs;
use super::render::{job_card, job_table};
use crate::failure::Failure;
use crate::output::Output;
use crate::text::count;
use crate::values::at_least_one;
use crate::view::{JobView, is_stalled, texts};
use clap::{Args, ValueEnum};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  geartrain jobs --state scheduled --queue mail
  geartrain jobs --tag new --limit 100

Without --state the order is running, stalled (lock expired), waiting, scheduled, depends, failed, complete;
with --tag, the order in which jobs were tagged.")]
pub(crate) struct JobsArgs {
    /// Only jobs in this state
    #[arg(long, value_enum)]
    state: Option<StateArg>,
    /// Only jobs in this queue; complete jobs are in none
    #[arg(long)]
    queue: Option<QueueName>,
    /// Only jobs with this tag
    #[arg(long)]
    tag: Option<Tag>,
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
    let job = find(client, jid).await?;
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
    show_jobs(&jobs, &format!("no job is waiting in {}", args.queue), out)
}

pub(super) async fn tracked(client: &Client, out: &mut Output<'_>) -> Done {
    let reply = client.run(Tracked).await?;
    let now = out.now;
    let jobs: Vec<JobView> = reply.jobs.iter().map(|job| JobView::new(job, now)).collect();
    out.show(&json!({ "jobs": jobs, "gone": texts(&reply.expired) }), |out| {
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

pub(super) fn show_jobs(jobs: &[Job], none: &str, out: &mut Output<'_>) -> Done {
    let now = out.now;
    let views: Vec<JobView> = jobs.iter().map(|job| JobView::new(job, now)).collect();
    Ok(out.list(&views, none, |out| job_table(out, jobs, now))?)
}

pub(super) async fn jobs(client: &Client, args: JobsArgs, out: &mut Output<'_>) -> Done {
    if args.queue.is_some() && args.state == Some(StateArg::Complete) {
        return Err(Failure::Usage("complete jobs are in no queue: leave out --queue".to_owned()));
    }
    let (sources, filter) = match args.tag {
        Some(tag) => (vec![JobSource::Tag(tag)], Filter { state: args.state, queue: args.queue }),
        // The sources are chosen by state and, except for failures, by queue.
        None => {
            let sources = sources(client, args.state, args.queue.as_ref()).await?;
            (sources, Filter { state: None, queue: args.queue })
        }
    };
    let found = gather(client, sources, &filter, &args.page, out.now).await?;
    show_jobs(&found, "no such jobs", out)
}

/// Lists the failed jobs of a group.
pub(super) async fn failed_jobs(
    client: &Client,
    group: Group,
    page: &PageArgs,
    now: Timestamp,
) -> Result<Vec<Job>, Error> {
    gather(client, vec![JobSource::Failed(group)], &Filter::default(), page, now).await
}

/// A listing of jobs.
enum JobSource {
    Listing(Listing),
    Failed(Group),
    Tag(Tag),
}

impl JobSource {
    async fn list(&self, client: &Client, page: Page) -> Result<Vec<Jid>, Error> {
        match self {
            JobSource::Listing(which) => client.run(Jobs { which: which.clone(), page }).await,
            JobSource::Failed(group) => Ok(client.run(Failed { group: group.clone(), page }).await?.jids),
            JobSource::Tag(tag) => Ok(client.run(Tagged { tag: tag.clone(), page }).await?.jids),
        }
    }
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
    let mut sources = Vec::new();
    for state in states {
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

/// Reads one listing after another until the page is full.
async fn gather(
    client: &Client,
    sources: Vec<JobSource>,
    filter: &Filter,
    wanted: &PageArgs,
    now: Timestamp,
) -> Result<Vec<Job>, Error> {
    let (mut skip, limit) = (wanted.offset, wanted.limit.get());
    let mut found = Vec::new();
    for source in sources {
        // A listing has only jobs of the state and queue that it was chosen for.
        let all = filter.accepts_all() || matches!(source, JobSource::Listing(_));
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
    found.truncate(limit);
    Ok(found)
}

/// `3 jobs cancelled`.
pub(super) fn jobs_done(number: u64, done: &str) -> String {
    format!("{} {done}", count(number, "job"))
}
