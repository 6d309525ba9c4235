//! `geartrain work`: runs programs for jobs, or sends jobs to a URL.

use std::ffi::OsString;
use std::future::Future;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use futures_util::future::join_all;
use geartrain::worker::{JobService, Order, Report, Worker, WorkerError};
use geartrain::{Backend, Count, Klass, QueueName, Target, WorkerName};
use geartrain_process::{
    CommandError, ForkModel, Launcher, Limits, Pool, PoolError, PoolOptions, WorkDirectories,
    WorkDirectoryError,
};
use geartrain_push::{ClientErrorPolicy, Push, PushOptions, Secret};
use serde_json::json;
use tracing_subscriber::EnvFilter;

use super::Done;
use super::gearman_slots::GearmanSlot;
use super::work::{OrderArg, default_worker};
use super::worker_display::{Display, DisplayWriter};
use super::workkit::TakeArgs;
use crate::failure::Failure;
use crate::output::Output;
use crate::values::{at_least_one, limit, size};
use crate::{password, text, values};

#[derive(Debug, Args)]
#[command(
    override_usage = "geartrain work [OPTIONS] <QUEUE>... -- <CMD> [ARGS]...
       geartrain work [OPTIONS] <QUEUE>... --push <URL>",
    after_help = r#"Examples:
  geartrain work mail -- ./send-mail
  geartrain work mail thumbnails --order round-robin --concurrency 8 -- python3 handler.py
  geartrain work video --limit-memory 2gb --limit-time 1h --grace 5m -- ffmpeg -i - -f webm -
  geartrain work mail --drain -- sh -c 'jq -r .to | xargs ./send'
  geartrain work mail --model pool --concurrency 8 -- python3 child.py
  geartrain work mail --push https://example.org/jobs --push-secret-file secret

Each job starts the program in an empty directory of its own. The payload is its standard input, its standard
output is the result. Exit code 0 completes the job, 75 retries it, 64 fails it for good, any other retries it as
its backoff says. GEARTRAIN_JOB_JID, _QUEUE, _KLASS, _ATTEMPT, _PRIORITY, _TAGS, _WORKER, _TOKEN, _DEADLINE and
_TRACEPARENT tell about the job. `geartrain progress 3/10` and `geartrain log TEXT` need no job id inside, and
lines `progress 3/10` or `log TEXT` on descriptor 3 do the same; `group NAME` there names the group of a failure.

With --model pool, programs are long-lived and get one job after the other as JSON lines. With --push, no program
is started: each job is an HTTP POST, whose response completes it (2xx, with the body as the result) or retries it.

SIGTERM and SIGINT take no more jobs, wait for --grace, and hand the rest back without using up a retry; a second
signal hands back at once. SIGQUIT waits for running jobs however long they take; SIGUSR1 logs them."#
)]
pub(crate) struct WorkArgs {
    /// The queues to take jobs from
    #[arg(required = true, value_name = "QUEUE")]
    queues: Vec<QueueName>,
    /// The program to run for each job, and its arguments
    #[arg(last = true, required_unless_present = "push", value_name = "CMD")]
    command: Vec<OsString>,
    /// Take only jobs of this klass; may be repeated [default: all]
    #[arg(long = "klass", value_name = "KLASS")]
    klasses: Vec<Klass>,
    /// Which queue's jobs come first
    #[arg(long, value_enum, default_value_t = OrderArg::Strict)]
    order: OrderArg,
    /// How many jobs run at the same time [default: the number of processors, times --slots; 32 with --push]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    concurrency: Option<Count>,
    /// How programs are run
    #[arg(long, value_enum, default_value_t = Model::Fork)]
    model: Model,
    /// The name of the worker [default: <hostname>-<pid>]
    #[arg(long)]
    worker: Option<WorkerName>,
    /// Go on with the jobs that a worker of this name left running
    #[arg(long, requires = "worker")]
    resume: bool,
    /// Stop after one job
    #[arg(long)]
    once: bool,
    /// Stop when there is no job that could run now
    #[arg(long)]
    drain: bool,
    /// How long running jobs may go on when the worker stops
    #[arg(long, value_name = "DURATION", value_parser = values::length, default_value = "30s")]
    grace: Duration,
    /// Exit with code 3 if the queue cannot be reached for this long [default: never]
    #[arg(long, value_name = "DURATION", value_parser = values::length)]
    exit_unhealthy: Option<Duration>,
    /// Delay retries by this long [default: the job's backoff]
    #[arg(long, value_name = "DURATION", value_parser = values::length)]
    retry_delay: Option<Duration>,
    /// How many jobs each program has at once, if it can work on several [default: 1]
    #[arg(long, value_name = "N", value_parser = at_least_one, help_heading = "Pool")]
    slots: Option<Count>,
    /// Replace a program after this many jobs
    #[arg(long, value_name = "N", value_parser = limit, help_heading = "Pool")]
    max_jobs: Option<u64>,
    /// Replace a program that has more memory than this after a job, like 512mb
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Pool")]
    max_memory: Option<u64>,
    #[command(flatten)]
    take: TakeArgs,
    #[command(flatten)]
    push: PushArgs,
    /// The directory for the working directories of programs [default: a temporary one]
    #[arg(long, value_name = "DIR", help_heading = "Sandbox")]
    workdir: Option<PathBuf>,
    /// Memory of a program with all that it starts, like 512mb
    #[arg(long, value_name = "SIZE", value_parser = memory, help_heading = "Sandbox")]
    limit_memory: Option<u64>,
    /// CPU time of each process, in whole seconds
    #[arg(long, value_name = "DURATION", value_parser = values::length, help_heading = "Sandbox")]
    limit_cpu: Option<Duration>,
    /// Time that a job may take; then the program is stopped and the job retried
    #[arg(long, value_name = "DURATION", value_parser = values::length, help_heading = "Sandbox")]
    limit_time: Option<Duration>,
    /// The largest result; a program that writes more is stopped, and its job fails (with --push it is retried)
    #[arg(
        long,
        value_name = "SIZE",
        value_parser = size,
        default_value = "64mb",
        help_heading = "Sandbox"
    )]
    limit_result: u64,
    /// How long a program may take to end after SIGTERM, before it gets SIGKILL
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = values::length,
        default_value = "5s",
        help_heading = "Sandbox"
    )]
    kill_after: Duration,
    /// The log level: error, warn, info, debug or trace, or a filter like info,geartrain_resp=debug
    #[arg(long, value_name = "FILTER", env = "GEARTRAIN_LOG", default_value = "info")]
    log: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Model {
    /// One process per job: payload on standard input, result on standard output
    Fork,
    /// Long-lived processes: jobs as JSON lines on standard input, answers on standard output
    Pool,
}

#[derive(Debug, Args)]
struct PushArgs {
    /// Send each job as an HTTP POST to this URL, instead of running a program
    #[arg(
        long,
        value_name = "URL",
        help_heading = "Push",
        conflicts_with_all = ["command", "model", "workdir", "limit_memory", "limit_cpu", "kill_after"]
    )]
    push: Option<String>,
    /// Sign requests with the secret in this file (whsec_...); twice while it is rotated
    #[arg(long, value_name = "FILE", help_heading = "Push")]
    push_secret_file: Vec<PathBuf>,
    /// What happens to a job after a redirect or a client error (4xx) other than 429 [default: retry]
    #[arg(long, value_enum, value_name = "ACTION", help_heading = "Push")]
    push_4xx: Option<ClientErrorArg>,
    /// How long a request may take, up to the end of the response [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = values::length, help_heading = "Push")]
    push_timeout: Option<Duration>,
    /// Trust the certificate authorities in this PEM file instead of the usual web roots
    #[arg(long, value_name = "FILE", help_heading = "Push")]
    push_ca: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ClientErrorArg {
    /// Retry it
    Retry,
    /// Fail it for good
    Fail,
}

/// How many requests are under way at once by default.
const PUSH_CONCURRENCY: usize = 32;

/// The smallest limit under which a program can start at all.
const MEMORY_MIN: u64 = 1 << 20;

fn memory(text: &str) -> Result<u64, String> {
    match size(text)? {
        bytes if bytes < MEMORY_MIN => Err("it must be at least 1mb: no program starts with less".to_owned()),
        bytes => Ok(bytes),
    }
}

/// What runs the jobs.
struct RunningModel {
    service: JobService,
    /// Waits until nothing runs any more, once the worker has stopped.
    idle: Pin<Box<dyn Future<Output = ()>>>,
}

/// Works until a signal, or until there is nothing left to do.
pub(super) fn work(url: &str, args: WorkArgs, out: &mut Output<'_>) -> Done {
    let target = Target::of(url)?;
    let is_gearman = matches!(target, Target::Gearman(_));
    if is_gearman {
        refuse_on_gearman(&args)?;
    }
    args.take.check(&target, &args.klasses)?;
    let name = match &args.worker {
        Some(name) => name.clone(),
        None => default_worker()?,
    };
    refuse_other_models(&args)?;
    let concurrency = args.concurrency.map_or_else(|| default_concurrency(&args), Count::get);
    let display = (out.err_is_terminal && !out.json).then(|| Display::new(&args.queues, concurrency));
    start_log(&args.log, display.as_ref())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let report = runtime.block_on(async {
        let model = model(&args, &name, concurrency).await?;
        let observe = display.clone();
        let build = |backend: Arc<dyn Backend>, name: &str, concurrency: usize| {
            let observe = observe.clone();
            let mut worker = Worker::new(backend)
                .name(name)
                .queues(args.queues.iter().map(ToString::to_string))
                .klasses(args.klasses.iter().map(ToString::to_string))
                .order(match args.order {
                    OrderArg::Strict => Order::Strict,
                    OrderArg::RoundRobin => Order::RoundRobin,
                    OrderArg::Priority => Order::Priority,
                })
                .concurrency(concurrency)
                .grace(args.grace)
                // A second more than programs have, so that they are seen to end.
                .cleanup(args.kill_after.saturating_add(Duration::from_secs(1)))
                .resume(args.resume)
                .once(args.once)
                .drain(args.drain)
                .on_any(model.service.clone())
                .observe(move |event| super::worker_display::observe(observe.as_ref(), &event));
            if let Some(limit) = args.limit_time {
                worker = worker.timeout(limit);
            }
            if let Some(after) = args.exit_unhealthy {
                worker = worker.exit_unhealthy(after);
            }
            worker
        };
        let queues = args.queues.iter().map(QueueName::as_str).collect::<Vec<_>>().join(", ");
        let queues = text::clean(&queues);
        let log_start = || tracing::info!(worker = %name, concurrency, "taking jobs of {queues} at {target}");
        let report = if is_gearman {
            // A lock is a connection, and what closes it hands the job back: one connection for each slot.
            let mut workers = Vec::new();
            for slot in 0..if args.once { 1 } else { concurrency } {
                let backend = Arc::new(GearmanSlot::connect(url).await?);
                workers.push(build(backend, &format!("{name}-{slot}"), 1).run());
            }
            log_start();
            let mut sum = Report::default();
            for report in join_all(workers).await {
                sum = sum.plus(report?);
            }
            sum
        } else {
            // The client also shares an embedded directory with other processes, as long as it lives.
            let client = match args.take.is_given() {
                true => args.take.connect(url).await?,
                false => geartrain::connect(url).await?,
            };
            log_start();
            build(Arc::from(&client), name.as_str(), concurrency).run().await?
        };
        model.idle.await;
        Ok::<_, Failure>(report)
    });
    if let Some(display) = &display {
        display.clear();
    }
    let report = report?;
    let view = json!({
        "completed": report.completed, "failed": report.failed, "retried": report.retried,
        "snoozed": report.snoozed, "released": report.released, "lost": report.lost,
    });
    let counts = [
        (report.completed, "completed"),
        (report.failed, "failed"),
        (report.retried, "retried"),
        (report.snoozed, "snoozed"),
        (report.released, "handed back"),
        (report.lost, "lost"),
    ];
    let others = counts.iter().skip(1).filter(|(count, _)| *count > 0);
    let others: String = others.map(|(count, word)| format!(", {count} {word}")).collect();
    Ok(out.line(&view, format_args!("{} completed{others}", text::count(report.completed, "job")))?)
}

fn default_concurrency(args: &WorkArgs) -> usize {
    match args.push.push {
        Some(_) => PUSH_CONCURRENCY,
        None => {
            let processors = std::thread::available_parallelism().map_or(1, usize::from);
            processors.saturating_mul(args.slots.map_or(1, Count::get))
        }
    }
}

/// The model of the command line.
async fn model(args: &WorkArgs, name: &WorkerName, concurrency: usize) -> Result<RunningModel, Failure> {
    if let Some(url) = &args.push.push {
        let service = JobService::new(push(url, args)?);
        return Ok(RunningModel { service, idle: Box::pin(std::future::ready(())) });
    }
    let (program, arguments) = args.command.split_first().expect("clap requires a command");
    let limits = Limits { memory_bytes: args.limit_memory, cpu: args.limit_cpu };
    let launcher = Launcher::new(program, arguments)?.limits(limits).kill_after(args.kill_after);
    let directories = WorkDirectories::create(args.workdir.as_deref(), name.as_str())?;
    let result_max = usize::try_from(args.limit_result).unwrap_or(usize::MAX);
    match args.model {
        Model::Fork => {
            let fork = ForkModel::new(launcher, directories, concurrency)
                .result_bytes_max(result_max)
                .retry_delay(args.retry_delay);
            let running = fork.clone();
            let idle = Box::pin(async move { running.idle().await });
            Ok(RunningModel { service: JobService::new(fork), idle })
        }
        Model::Pool => {
            let mut options = PoolOptions::default();
            options.slots = args.slots.map_or(1, Count::get).min(concurrency);
            options.children = concurrency.div_ceil(options.slots);
            (options.max_jobs, options.max_memory_bytes) = (args.max_jobs, args.max_memory);
            (options.grace, options.retry_delay) = (args.kill_after, args.retry_delay);
            options.result_bytes_max = result_max;
            let pool = Pool::start(launcher, Arc::new(directories), options).await?;
            let running = pool.clone();
            let idle = Box::pin(async move { running.shut_down().await });
            Ok(RunningModel { service: JobService::new(pool), idle })
        }
    }
}

fn push(url: &str, args: &WorkArgs) -> Result<Push, Failure> {
    let mut options = PushOptions::default();
    for file in &args.push.push_secret_file {
        options.secrets.push(Secret::from_file(file).map_err(|error| Failure::Usage(error.to_string()))?);
        if password::is_readable_by_others(file) {
            let file = file.display();
            tracing::warn!("all users of this machine can read the secret file {file}: chmod 600 it");
        }
    }
    options.client_errors = match args.push.push_4xx {
        Some(ClientErrorArg::Fail) => ClientErrorPolicy::Fail,
        Some(ClientErrorArg::Retry) | None => ClientErrorPolicy::Retry,
    };
    options.timeout = args.push.push_timeout.unwrap_or(options.timeout);
    options.retry_delay = args.retry_delay;
    options.authorities = args.push.push_ca.clone();
    options.response_bytes_max = usize::try_from(args.limit_result).unwrap_or(usize::MAX);
    Push::new(url, options).map_err(|error| Failure::Usage(error.to_string()))
}

/// Options of one model, if another one is chosen. (clap leaves out a requirement that conflicts with what is
/// given.)
fn refuse_other_models(args: &WorkArgs) -> Result<(), Failure> {
    let (push, is_pool) = (&args.push, args.model == Model::Pool);
    let pool = [
        (args.slots.is_some(), "--slots"),
        (args.max_jobs.is_some(), "--max-jobs"),
        (args.max_memory.is_some(), "--max-memory"),
    ];
    let pushed = [
        (!push.push_secret_file.is_empty(), "--push-secret-file"),
        (push.push_4xx.is_some(), "--push-4xx"),
        (push.push_timeout.is_some(), "--push-timeout"),
        (push.push_ca.is_some(), "--push-ca"),
    ];
    let first =
        |flags: &[(bool, &'static str)]| flags.iter().find(|(is_given, _)| *is_given).map(|(_, flag)| *flag);
    match (first(&pool), first(&pushed)) {
        (Some(flag), _) if !is_pool => {
            Err(Failure::Usage(format!("{flag} needs --model pool: other models have no lasting programs")))
        }
        (_, Some(flag)) if push.push.is_none() => Err(Failure::Usage(format!("{flag} needs --push URL"))),
        _ => Ok(()),
    }
}

/// Options that need what Gearman's protocol does not have.
fn refuse_on_gearman(args: &WorkArgs) -> Result<(), Failure> {
    let refused = [
        (args.retry_delay.is_some(), "--retry-delay", "a job that is retried runs again at once"),
        (args.resume, "--resume", "a lock ends with its connection"),
        (!args.klasses.is_empty(), "--klass", "a job's klass is its queue"),
        (args.order != OrderArg::Strict, "--order", "the server chooses among the queues"),
    ];
    match refused.iter().find(|(is_given, ..)| *is_given) {
        Some((_, flag, why)) => {
            Err(Failure::Usage(format!("{flag} does not work with Gearman servers: {why}")))
        }
        None => Ok(()),
    }
}

/// Lines for people above the display on a terminal, JSON otherwise.
fn start_log(filter: &str, display: Option<&Display>) -> Result<(), Failure> {
    let filter = EnvFilter::try_new(filter)
        .map_err(|error| Failure::Usage(format!("--log {filter:?} is not a log level or filter: {error}")))?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).log_internal_errors(false);
    match display {
        Some(display) => {
            let writer = DisplayWriter::new(display);
            log.with_target(false).with_ansi(true).with_writer(move || writer.clone()).init();
        }
        None if io::stderr().is_terminal() => log.with_target(false).with_writer(io::stderr).init(),
        None => log.json().flatten_event(true).with_writer(io::stderr).init(),
    }
    Ok(())
}

impl From<CommandError> for Failure {
    fn from(error: CommandError) -> Failure {
        Failure::Usage(error.to_string())
    }
}

impl From<PoolError> for Failure {
    fn from(error: PoolError) -> Failure {
        Failure::Program(error.to_string())
    }
}

impl From<WorkDirectoryError> for Failure {
    fn from(error: WorkDirectoryError) -> Failure {
        Failure::Usage(error.to_string())
    }
}

impl From<WorkerError> for Failure {
    fn from(error: WorkerError) -> Failure {
        match error {
            WorkerError::Refused(refusal) => refusal.into(),
            WorkerError::Unhealthy(_) | WorkerError::Start(_) => Failure::Unreachable(error.to_string()),
            other => Failure::Usage(other.to_string()),
        }
    }
}
