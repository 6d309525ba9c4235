//! Reads what `geartrain top` shows: the counters of all queues in one batch, and more only of what is visible.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Instant;

use geartrain::{
    Answer, Call, Client, Count, Error, Failed, Failures, Figures, Filter, FilterState, GetMany, Group, Jid,
    Job, JobState, Jobs, Klass, Listing, Page, Peek, QueueCounts, QueueFigures, QueueName, Queues, Refusal,
    Reply, Select, Stats, Term, Timestamp, WorkerCounts, WorkerJobs, WorkerName, Workers,
};

use super::snapshot::{
    HeldJob, JobCard, JobList, JobRow, ListOf, QueueRow, Snapshot, Trend, UNKNOWN, WorkerRow, age,
};
use crate::commands::render::popped;
use crate::commands::why::{self, WhyArgs};
use crate::commands::{Done, list};
use crate::failure::Failure;
use crate::output::Output;
use crate::text::count;
use crate::timestamp::{self, relative};

/// How many queues' statistics are read, for their rates. Of the others, the rate of the last minute is shown.
const RATED_QUEUES_MAX: usize = 100;
/// How many refreshes a trend has.
const TREND_POINTS: usize = 120;
/// A rate is the mean of so many refreshes.
const RATE_POINTS: usize = 5;
/// How many workers' jobs are read.
pub(super) const WORKERS_MAX: usize = 40;
/// How many jobs of a worker are looked up for its row.
const HELD_MAX: usize = 3;
/// How many jobs of each state a list has.
const LISTED_MAX: usize = 25;
/// A job whose text has at least so many bytes is read when it is opened, and not again.
const LARGE_CARD_BYTES: usize = 64 << 10;
/// How many characters of a line, and how many lines, an open job shows.
const LINE_CHARS_MAX: usize = 4_000;
const CARD_LINES_MAX: usize = 1_000;

/// The states of a list, in their order.
const STATES: [&str; 6] = ["running", "stalled", "waiting", "scheduled", "depends", "failed"];

/// What is visible besides the overview.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    /// The workers whose jobs are shown.
    pub(super) workers: Vec<WorkerName>,
    pub(super) list: Option<ListOf>,
    pub(super) card: Option<Jid>,
}

/// What a refresh has read.
#[derive(Debug, Default)]
pub(super) struct Refreshed {
    pub(super) snapshot: Snapshot,
    pub(super) list: Option<JobList>,
    pub(super) card: Option<JobCard>,
}

/// Reads a queue again and again, and remembers what was read before.
pub(super) struct Source {
    client: Client,
    /// The URL for commands to paste; none for the default.
    url: Option<String>,
    series: HashMap<QueueName, Series>,
    total: Series,
    /// The queues whose statistics are read.
    rated: Vec<QueueName>,
    /// Jobs by the state in which they were looked up.
    facts: HashMap<Jid, Facts>,
    /// The open job, if its text is large.
    large_card: Option<Jid>,
}

/// The last refreshes of a queue.
#[derive(Default)]
struct Series {
    last: Option<Completed>,
    done: VecDeque<f64>,
    waiting: VecDeque<f64>,
}

/// How many jobs were completed on a day, as of a moment.
#[derive(Clone, Copy)]
struct Completed {
    read: Instant,
    day: Timestamp,
    count: u64,
}

/// What a list shows of a job. Payloads are not stored.
struct Facts {
    state: &'static str,
    queue: Option<QueueName>,
    klass: Klass,
    /// When it was popped, was put, is due, or failed.
    moment: Option<Timestamp>,
    text: String,
}

/// What a call of a batch asks for.
enum Ask {
    Queues,
    Figures,
    Workers,
    Failures,
    Stats(QueueName),
    Held(WorkerName),
    /// Jobs in a state.
    List(&'static str),
}

/// The answers of a batch.
#[derive(Default)]
struct Answers {
    queues: Vec<QueueCounts>,
    /// None on a backend without them.
    figures: Option<HashMap<QueueName, QueueFigures>>,
    workers: Option<Vec<WorkerCounts>>,
    failures: Option<Vec<(Group, u64)>>,
    completed: HashMap<QueueName, u64>,
    held: HashMap<WorkerName, Vec<JobIn>>,
    listed: Vec<JobIn>,
    /// States whose jobs the backend does not list.
    refused: Vec<&'static str>,
}

/// A job and its state.
type JobIn = (Jid, &'static str);

impl Source {
    pub(super) fn new(client: Client, url: Option<String>) -> Source {
        Source {
            client,
            url,
            series: HashMap::new(),
            total: Series::default(),
            rated: Vec::new(),
            facts: HashMap::new(),
            large_card: None,
        }
    }

    /// Reads everything that is visible.
    pub(super) async fn refresh(&mut self, wanted: &Wanted) -> Result<Refreshed, Failure> {
        let mut answers = self.ask(wanted).await?;
        let (read, now) = (Instant::now(), self.now());
        let peeked = self.peek(wanted, &answers).await?;
        self.look_up(&answers).await?;
        let list = wanted.list.clone().map(|of| self.list(of, &answers, &peeked, now));
        let card = match &wanted.card {
            Some(jid) => self.card(jid, now).await?,
            None => {
                self.large_card = None;
                None
            }
        };
        let workers = answers.workers.take().map(|workers| {
            let row = |counts: WorkerCounts| WorkerRow { holds: self.held(&counts.name, &answers), counts };
            workers.into_iter().map(row).collect()
        });
        let failures = answers.failures.take();
        let is_rated = answers.figures.is_some();
        let queues = self.rows(answers, read, now);
        let trend = self.total.trend(is_rated);
        Ok(Refreshed { snapshot: Snapshot { at: now, queues, workers, failures, trend }, list, card })
    }

    /// Reads the overview, with jobs of workers.
    pub(super) async fn read_once(&mut self) -> Result<Snapshot, Failure> {
        let first = self.refresh(&Wanted::default()).await?.snapshot;
        let rows = first.workers.iter().flatten().map(|row| &row.counts);
        let busy = rows.filter(|counts| counts.jobs + counts.stalled > 0);
        let workers: Vec<WorkerName> = busy.map(|counts| counts.name.clone()).take(WORKERS_MAX).collect();
        if workers.is_empty() {
            return Ok(first);
        }
        Ok(self.refresh(&Wanted { workers, ..Wanted::default() }).await?.snapshot)
    }

    fn now(&self) -> Timestamp {
        self.client.backend().now().unwrap_or_else(timestamp::now)
    }

    /// One round trip for the overview, the visible workers, and the ids of a list.
    async fn ask(&self, wanted: &Wanted) -> Result<Answers, Failure> {
        let now = self.now();
        let mut asks: Vec<(Ask, Call)> = vec![
            (Ask::Queues, Queues::default().into()),
            (Ask::Figures, Figures::default().into()),
            (Ask::Workers, Workers.into()),
            (Ask::Failures, Failures.into()),
        ];
        for queue in &self.rated {
            asks.push((Ask::Stats(queue.clone()), Stats { queue: queue.clone(), date: now }.into()));
        }
        for worker in wanted.workers.iter().take(WORKERS_MAX) {
            asks.push((Ask::Held(worker.clone()), WorkerJobs { worker: worker.clone() }.into()));
        }
        if let Some(of) = &wanted.list {
            asks.extend(listings(of));
        }
        let (asks, calls): (Vec<Ask>, Vec<Call>) = asks.into_iter().unzip();
        let mut answers = Answers::default();
        for (ask, answer) in asks.into_iter().zip(self.client.batch(calls).await?) {
            answers.add(ask, answer)?;
        }
        Ok(answers)
    }

    /// The next jobs of a queue whose waiting jobs have no ids, so that they cannot be listed.
    async fn peek(&self, wanted: &Wanted, answers: &Answers) -> Result<Vec<Job>, Failure> {
        match &wanted.list {
            Some(ListOf::Queue(queue)) if answers.refused.contains(&"waiting") => {
                let peek = Peek { queue: queue.clone(), count: page().count };
                Ok(known(self.client.run(peek).await)?.unwrap_or_default())
            }
            _ => Ok(Vec::new()),
        }
    }

    /// Looks up the jobs that are new or whose state has changed, and forgets those that are not shown any more.
    async fn look_up(&mut self, answers: &Answers) -> Result<(), Failure> {
        let held = answers.held.values().flat_map(|held| held.iter().take(HELD_MAX));
        let shown: HashMap<&Jid, &'static str> =
            held.chain(&answers.listed).map(|(jid, state)| (jid, *state)).collect();
        self.facts.retain(|jid, facts| shown.get(jid) == Some(&facts.state));
        let jids = shown.keys().filter(|jid| !self.facts.contains_key(*jid));
        let jids: Vec<Jid> = jids.map(|jid| (*jid).clone()).collect();
        if jids.is_empty() {
            return Ok(());
        }
        for job in known(self.client.run(GetMany { jids }).await)?.unwrap_or_default() {
            if let Some(state) = shown.get(&job.jid) {
                self.facts.insert(job.jid.clone(), Facts::of(&job, state));
            }
        }
        Ok(())
    }

    fn held(&self, worker: &WorkerName, answers: &Answers) -> Vec<HeldJob> {
        let held = answers.held.get(worker).into_iter().flatten().take(HELD_MAX);
        let mut held: Vec<HeldJob> = held
            .map(|(jid, state)| {
                let facts = self.facts.get(jid);
                HeldJob {
                    jid: jid.clone(),
                    queue: facts.and_then(|facts| facts.queue.clone()),
                    klass: facts.map(|facts| facts.klass.clone()),
                    since: facts.and_then(|facts| facts.moment),
                    is_stalled: *state == "stalled",
                }
            })
            .collect();
        let since = |job: &HeldJob| job.since.map_or(f64::INFINITY, Timestamp::get);
        held.sort_by(|one, other| since(one).total_cmp(&since(other)));
        held
    }

    fn list(&self, of: ListOf, answers: &Answers, peeked: &[Job], now: Timestamp) -> JobList {
        let found = |(jid, _): &JobIn| Some((jid.clone(), self.facts.get(jid)?));
        let listed = answers.listed.iter().filter_map(found).map(|(jid, facts)| facts.row(Some(jid), now));
        let peeked = peeked.iter().map(|job| Facts::of(job, "waiting").row(None, now));
        let mut jobs: Vec<JobRow> = listed.chain(peeked).collect();
        jobs.sort_by_key(|job| STATES.iter().position(|state| *state == job.state));
        let in_state = |state: &str| answers.listed.iter().filter(|(_, listed)| *listed == state).count();
        let cut: Vec<&str> = STATES.into_iter().filter(|state| in_state(state) >= LISTED_MAX).collect();
        let remark = if jobs.is_empty() && !answers.refused.is_empty() {
            Some(format!("the jobs are {UNKNOWN}"))
        } else if cut.is_empty() {
            None
        } else {
            Some(format!("only {LISTED_MAX} of the jobs that are {}", cut.join(", ")))
        };
        JobList { of, jobs, remark }
    }

    /// The job, and why it is not running, as the commands `get` and `why` print them. None if it was read before and
    /// is large.
    async fn card(&mut self, jid: &Jid, now: Timestamp) -> Result<Option<JobCard>, Failure> {
        if self.large_card.as_ref() == Some(jid) {
            return Ok(None);
        }
        let (client, url) = (&self.client, self.url.as_deref());
        let args = WhyArgs { jid: Some(jid.clone()), queue: None };
        let why = printed(now, async |out| why::why(client, args, url, out).await).await?;
        let job = printed(now, async |out| list::get(client, jid, out).await).await?;
        // Of a job that is gone both say the same.
        let text = if job == why { why } else { format!("{why}\n{job}") };
        self.large_card = (text.len() >= LARGE_CARD_BYTES).then(|| jid.clone());
        Ok(Some(JobCard { jid: jid.clone(), text: clipped(&text) }))
    }

    /// The rows of the queues, with what was completed since the last refresh.
    fn rows(&mut self, answers: Answers, read: Instant, now: Timestamp) -> Vec<QueueRow> {
        let Answers { queues, figures, completed, .. } = answers;
        let is_rated = figures.is_some();
        let mut figures = figures.unwrap_or_default();
        self.rated = busiest(&queues);
        let rated: HashSet<&QueueName> = self.rated.iter().collect();
        self.series.retain(|name, _| rated.contains(name));
        let (mut done, mut waiting) = (None, 0.0);
        let mut rows = Vec::with_capacity(queues.len());
        for counts in queues {
            waiting += counts.waiting as f64;
            let figures = figures.remove(&counts.name);
            let mut rate = figures.as_ref().and_then(|figures| figures.rate).map(|rate| rate / 60.0);
            let mut trend = Trend::default();
            if rated.contains(&counts.name) {
                let series = self.series.entry(counts.name.clone()).or_default();
                push(&mut series.waiting, counts.waiting as f64);
                if let Some(count) = completed.get(&counts.name) {
                    let count = Completed { read, day: now.day(), count: *count };
                    if let Some(since) = series.last.replace(count).map(|last| last.rate(count)) {
                        push(&mut series.done, since);
                        *done.get_or_insert(0.0) += since;
                    }
                }
                rate = series.rate().or(rate);
                trend = series.trend(is_rated);
            }
            rows.push(QueueRow { counts, figures, rate, trend });
        }
        push(&mut self.total.waiting, waiting);
        if let Some(done) = done {
            push(&mut self.total.done, done);
        }
        rows
    }
}

impl Series {
    /// The mean of the last refreshes.
    fn rate(&self) -> Option<f64> {
        let points = self.done.len().min(RATE_POINTS);
        (points > 0).then(|| self.done.iter().rev().take(points).sum::<f64>() / points as f64)
    }

    fn trend(&self, is_rated: bool) -> Trend {
        match is_rated {
            true => Trend::Done(self.done.iter().copied().collect()),
            false => Trend::Waiting(self.waiting.iter().copied().collect()),
        }
    }
}

impl Completed {
    /// How many per second were completed between two moments.
    fn rate(self, later: Completed) -> f64 {
        // Statistics that were removed, and those of a new day, begin at 0.
        let before = if self.day == later.day { self.count } else { 0 };
        let done = later.count.checked_sub(before).unwrap_or(later.count);
        done as f64 / later.read.duration_since(self.read).as_secs_f64().max(0.001)
    }
}

fn push(points: &mut VecDeque<f64>, point: f64) {
    if points.len() == TREND_POINTS {
        points.pop_front();
    }
    points.push_back(point);
}

/// The queues with the most jobs.
fn busiest(queues: &[QueueCounts]) -> Vec<QueueName> {
    let mut queues: Vec<&QueueCounts> = queues.iter().collect();
    if queues.len() > RATED_QUEUES_MAX {
        queues.sort_by_key(|counts| std::cmp::Reverse(counts.waiting + counts.running));
        queues.truncate(RATED_QUEUES_MAX);
    }
    queues.into_iter().map(|counts| counts.name.clone()).collect()
}

fn page() -> Page {
    Page { offset: 0, count: Count::new(LISTED_MAX as i64).unwrap_or(Count::ONE) }
}

/// The calls that list jobs.
fn listings(of: &ListOf) -> Vec<(Ask, Call)> {
    let page = page();
    let jobs = |state, which| (Ask::List(state), Call::from(Jobs { which, page }));
    match of {
        ListOf::Queue(queue) => {
            let terms = vec![Term::Queue(queue.clone()), Term::State(FilterState::Failed)];
            let failed = Select { count: page.count, ..Select::new(Filter { terms }) };
            vec![
                jobs("running", Listing::Running(queue.clone())),
                jobs("stalled", Listing::Stalled(queue.clone())),
                jobs("waiting", Listing::Waiting(queue.clone())),
                jobs("scheduled", Listing::Scheduled(queue.clone())),
                jobs("depends", Listing::Depends(queue.clone())),
                (Ask::List("failed"), failed.into()),
            ]
        }
        ListOf::Group(group) => vec![(Ask::List("failed"), Failed { group: group.clone(), page }.into())],
        ListOf::Worker(worker) => {
            vec![(Ask::List("running"), WorkerJobs { worker: worker.clone() }.into())]
        }
    }
}

/// None if the backend has no such thing.
fn known<T>(answer: Result<T, Error>) -> Result<Option<T>, Error> {
    match answer {
        Err(Error::Refused(Refusal::Unsupported { .. })) => Ok(None),
        answer => answer.map(Some),
    }
}

impl Answers {
    fn add(&mut self, ask: Ask, answer: Answer) -> Result<(), Failure> {
        let Some(reply) = known(answer.map_err(Error::from))? else {
            if let Ask::List(state) = ask {
                self.refused.push(state);
            }
            return Ok(());
        };
        let in_state = |jids: Vec<Jid>, state| jids.into_iter().take(LISTED_MAX).map(move |jid| (jid, state));
        match (ask, reply) {
            (Ask::Queues, Reply::Queues(queues)) => self.queues = queues,
            (Ask::Figures, Reply::Figures(figures)) => {
                self.figures = Some(figures.into_iter().map(|of| (of.name.clone(), of)).collect());
            }
            (Ask::Workers, Reply::Workers(workers)) => self.workers = Some(workers),
            (Ask::Failures, Reply::Failures(groups)) => self.failures = Some(groups.into_iter().collect()),
            (Ask::Stats(queue), Reply::Stats(stats)) => {
                self.completed.insert(queue, stats.run.count);
            }
            (Ask::Held(worker), Reply::WorkerJobs(held)) => {
                let held = in_state(held.stalled, "stalled").chain(in_state(held.jobs, "running"));
                self.held.insert(worker, held.collect());
            }
            (Ask::List(_), Reply::WorkerJobs(held)) => {
                self.listed.extend(in_state(held.jobs, "running").chain(in_state(held.stalled, "stalled")));
            }
            (Ask::List(state), Reply::Jobs(jids)) => self.listed.extend(in_state(jids, state)),
            (Ask::List(state), Reply::Failed(listed)) => self.listed.extend(in_state(listed.jids, state)),
            (Ask::List(state), Reply::Select(page)) => {
                self.listed.extend(in_state(page.jobs.into_iter().map(|job| job.jid).collect(), state));
            }
            _ => return Err(Error::WrongAnswer.into()),
        }
        Ok(())
    }
}

impl Facts {
    fn of(job: &Job, state: &'static str) -> Facts {
        let put = || job.history.first().map(|entry| entry.when);
        let (moment, text) = match &job.state {
            JobState::Running { lock } => (popped(job), lock.worker.to_string()),
            JobState::Scheduled { due } => (Some(*due), String::new()),
            JobState::Depends { on, .. } => (None, count(on.len() as u64, "job")),
            JobState::Failed { failure } => {
                let message = failure.message.lines().next().unwrap_or_default();
                (Some(failure.when), format!("{}: {message}", failure.group))
            }
            JobState::Waiting => (put(), String::new()),
            JobState::Complete { at } => (Some(*at), String::new()),
        };
        Facts { state, queue: job.queue.clone(), klass: job.klass.clone(), moment, text }
    }

    fn row(&self, jid: Option<Jid>, now: Timestamp) -> JobRow {
        let text = &self.text;
        let note = match (self.state, self.moment) {
            ("running" | "stalled", Some(popped)) => format!("for {} by {text}", age(popped, now)),
            ("running" | "stalled", None) => format!("by {text}"),
            ("depends", _) => format!("on {text}"),
            ("failed", Some(at)) => format!("{}, {text}", relative(at, now)),
            ("waiting", Some(put)) => format!("put {}", relative(put, now)),
            (_, Some(at)) => relative(at, now),
            (_, None) => text.clone(),
        };
        JobRow { jid, state: self.state, klass: self.klass.clone(), note }
    }
}

/// The first lines of a text, and the start of each.
fn clipped(text: &str) -> String {
    let mut clipped = String::with_capacity(text.len().min(LARGE_CARD_BYTES));
    for line in text.lines().take(CARD_LINES_MAX) {
        match line.char_indices().nth(LINE_CHARS_MAX) {
            Some((end, _)) => {
                clipped.push_str(&line[..end]);
                clipped.push_str(&format!("… {}", count((line.len() - end) as u64, "more byte")));
            }
            None => clipped.push_str(line),
        }
        clipped.push('\n');
    }
    clipped
}

/// What a command prints, or why it is refused.
async fn printed(
    now: Timestamp,
    command: impl AsyncFnOnce(&mut Output<'_>) -> Done,
) -> Result<String, Failure> {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let mut output = Output {
        json: false,
        now,
        width: None,
        out: &mut out,
        raw: None,
        err: &mut err,
        err_is_terminal: false,
    };
    match command(&mut output).await {
        Ok(()) => Ok(String::from_utf8_lossy(&out).into_owned()),
        Err(refused @ (Failure::Refused(_) | Failure::Refusal(_))) => Ok(format!("{refused}\n")),
        Err(failure) => Err(failure),
    }
}
