//! Looking jobs up, and listing them.

use geartrain::{
    Client, Count, Error, Failed, Failures, GetMany, Group, Jid, Job, Jobs, Listing, Page, Peek, QueueName,
    Queues, Refusal, StateName, Tag, Tagged, Timestamp, Tracked,
};
use serde_json::json;

use super::Done;
use super::show::{job_card, job_table};
use crate::args::{JobsArgs, PageArgs, PeekArgs, StateArg};
use crate::failure::Failure;
use crate::output::Output;
use crate::text::count;
use crate::view::{JobView, is_stalled, texts};

/// How many jobs are looked up at once.
const LOOK_UP: usize = 500;

pub(super) async fn get(client: &Client, jid: &Jid, out: &mut Output<'_>) -> Done {
    let job = find(client, jid).await?;
    let now = out.now;
    Ok(out.show(&JobView::new(&job, now), |out| job_card(out, &job, now))?)
}

/// Looks a job up that must be there.
pub(super) async fn find(client: &Client, jid: &Jid) -> Result<Job, Failure> {
    match client.get(jid).await? {
        Some(job) => Ok(job),
        None => Err(Refusal::NoSuchJob { jid: jid.clone() }.into()),
    }
}

pub(super) async fn peek(client: &Client, args: PeekArgs, out: &mut Output<'_>) -> Done {
    let jobs = client.run(Peek { queue: args.queue.clone(), count: args.count }).await?;
    show_jobs(&jobs, &format!("no job waits in {}", args.queue), out)
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
        out.remark(format_args!("tracked, but gone: {}", gone))?;
    }
    Ok(())
}

/// Shows a list of jobs.
pub(super) fn show_jobs(jobs: &[Job], none: &str, out: &mut Output<'_>) -> Done {
    let now = out.now;
    let views: Vec<JobView> = jobs.iter().map(|job| JobView::new(job, now)).collect();
    Ok(out.list(&views, none, |out| job_table(out, jobs, now))?)
}

pub(super) async fn jobs(client: &Client, args: JobsArgs, out: &mut Output<'_>) -> Done {
    if args.queue.is_some() && args.state == Some(StateArg::Complete) {
        return Err(Failure::Usage("a complete job is in no queue: leave --queue out".to_owned()));
    }
    let (places, filter) = match args.tag {
        Some(tag) => (vec![Place::Tag(tag)], Filter { state: args.state, queue: args.queue }),
        // The places were chosen by state, and all but the failures by queue.
        None => {
            let places = places(client, args.state, args.queue.as_ref()).await?;
            (places, Filter { state: None, queue: args.queue })
        }
    };
    let found = gather(client, places, &filter, &args.page, out.now).await?;
    show_jobs(&found, "no such jobs", out)
}

/// Lists the failed jobs of a group.
pub(super) async fn failed_jobs(
    client: &Client,
    group: Group,
    page: &PageArgs,
    now: Timestamp,
) -> Result<Vec<Job>, Error> {
    gather(client, vec![Place::Failed(group)], &Filter::default(), page, now).await
}

/// Somewhere that jobs can be listed.
enum Place {
    Listing(Listing),
    Failed(Group),
    Tag(Tag),
}

impl Place {
    async fn list(&self, client: &Client, page: Page) -> Result<Vec<Jid>, Error> {
        match self {
            Place::Listing(which) => client.run(Jobs { which: which.clone(), page }).await,
            Place::Failed(group) => Ok(client.run(Failed { group: group.clone(), page }).await?.jids),
            Place::Tag(tag) => Ok(client.run(Tagged { tag: tag.clone(), page }).await?.jids),
        }
    }
}

/// Every place where jobs of that state and queue are.
async fn places(
    client: &Client,
    state: Option<StateArg>,
    queue: Option<&QueueName>,
) -> Result<Vec<Place>, Error> {
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
    let mut places = Vec::new();
    for state in states {
        let listing = match state {
            StateArg::Running => in_queue(Listing::Running),
            StateArg::Stalled => in_queue(Listing::Stalled),
            StateArg::Waiting => in_queue(Listing::Waiting),
            StateArg::Scheduled => in_queue(Listing::Scheduled),
            StateArg::Depends => in_queue(Listing::Depends),
            StateArg::Failed => {
                places.extend(client.run(Failures).await?.into_keys().map(Place::Failed));
                None
            }
            StateArg::Complete => {
                if queue.is_none() {
                    places.push(Place::Listing(Listing::Complete));
                }
                None
            }
        };
        if let Some(listing) = listing {
            places.extend(queues.iter().map(|queue| Place::Listing(listing(queue.clone()))));
        }
    }
    Ok(places)
}

/// Which of the listed jobs are meant.
#[derive(Default)]
struct Filter {
    state: Option<StateArg>,
    queue: Option<QueueName>,
}

impl Filter {
    fn takes_all(&self) -> bool {
        self.state.is_none() && self.queue.is_none()
    }

    fn takes(&self, job: &Job, now: Timestamp) -> bool {
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

/// Looks through one place after the other until there are as many jobs as were asked for.
async fn gather(
    client: &Client,
    places: Vec<Place>,
    filter: &Filter,
    wanted: &PageArgs,
    now: Timestamp,
) -> Result<Vec<Job>, Error> {
    let (mut skip, limit) = (wanted.offset, wanted.limit.get());
    let mut found = Vec::new();
    for place in places {
        // A listing has only jobs of the state and queue that it was chosen for.
        let all = filter.takes_all() || matches!(place, Place::Listing(_));
        let mut offset = 0;
        while found.len() < limit {
            // Where every job counts, those to be left out need not be looked at, only counted.
            let step = if all && skip == 0 { (limit - found.len()).min(LOOK_UP) } else { LOOK_UP };
            let page = Page { offset, count: Count::new(step as i64)? };
            let mut jids = place.list(client, page).await?;
            let listed = jids.len();
            offset += listed;
            if all {
                let left_out = skip.min(listed);
                jids.drain(..left_out);
                skip -= left_out;
            }
            if !jids.is_empty() {
                let mut jobs = client.run(GetMany { jids }).await?;
                if !all {
                    jobs.retain(|job| filter.takes(job, now));
                    let left_out = skip.min(jobs.len());
                    jobs.drain(..left_out);
                    skip -= left_out;
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

/// Says how many jobs something was done to.
pub(super) fn so_many(number: u64, done: &str) -> String {
    format!("{} {done}", count(number, "job"))
}
