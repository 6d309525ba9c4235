//! The commands: a file for each group, with the arguments, their help and the code.

pub(crate) mod access_key;
pub(crate) mod audit;
pub(crate) mod bench;
mod canceled;
pub(crate) mod change;
pub(crate) mod config;
pub(crate) mod drill;
pub(crate) mod events;
pub(crate) mod failed;
mod gearman_slots;
mod greeting;
pub(crate) mod limits;
pub(crate) mod list;
pub(crate) mod log;
pub(crate) mod maintenance;
pub(crate) mod man;
pub(crate) mod move_jobs;
pub(crate) mod next;
mod periodic;
mod ping;
pub(crate) mod put;
pub(crate) mod queue;
pub(crate) mod recur;
mod render;
mod resubmit;
pub(crate) mod run_worker;
pub(crate) mod select;
pub(crate) mod server;
pub(crate) mod status;
#[cfg(test)]
mod tests;
pub(crate) mod top;
mod wait;
pub(crate) mod why;
mod why_queue;
mod why_recurring;
pub(crate) mod work;
mod worker_display;
pub(crate) mod workers;
mod workkit;
mod worqr;

use std::path::Path;

use clap::Args;
use geartrain::{Client, Count, Jid, QueueName, Seconds, Timestamp};

use crate::args::{Cli, Verb};
use crate::commands::config::ConfigVerb;
use crate::failure::Failure;
use crate::output::{Output, ShownPage, Total};
use crate::timestamp::{Moment, when};
use crate::values::Delay;
use crate::{completion, password, settings, timestamp, values};
use geartrain_json::Number;

#[derive(Debug, Args)]
pub(crate) struct JidArg {
    /// The job id
    jid: Jid,
}

#[derive(Debug, Args)]
pub(crate) struct JidsArg {
    /// The job ids
    #[arg(required = true, value_name = "JID")]
    jids: Vec<Jid>,
}

#[derive(Debug, Args)]
pub(crate) struct QueuesArg {
    /// The queues
    #[arg(required = true, value_name = "QUEUE")]
    queues: Vec<QueueName>,
}

/// A part of a list.
#[derive(Debug, Args)]
pub(crate) struct PageArgs {
    /// How many to show [default: 25]
    #[arg(long, value_name = "N", value_parser = values::count)]
    limit: Option<Count>,
    /// How many to skip first
    #[arg(long, value_name = "N", value_parser = values::whole::<usize>, default_value = "0")]
    offset: usize,
    /// With --json: print {"items", "total", "next"}, where next is the --offset of the next page or null
    #[arg(long, requires = "json")]
    paged: bool,
}

const LIMIT_DEFAULT: usize = 25;

impl PageArgs {
    fn limit(&self) -> usize {
        self.limit.map_or(LIMIT_DEFAULT, Count::get)
    }

    /// The page of a list that is known as a whole.
    fn of<T>(&self, list: impl ExactSizeIterator<Item = T>, limit: usize) -> (Vec<T>, Total) {
        let total = Total::Exactly(list.len() as u64);
        (list.skip(self.offset).take(limit).collect(), total)
    }

    fn shown<'a>(&self, noun: &'a str, shown: usize, total: Total) -> ShownPage<'a> {
        ShownPage {
            noun,
            offset: self.offset,
            shown,
            total,
            limit_given: self.limit.is_some(),
            paged: self.paged,
        }
    }
}

type Done = Result<(), Failure>;

/// `geartrain server`.
fn serve(cli: Cli, out: &mut Output<'_>) -> Done {
    let in_effect = settings::of_server(&cli);
    // A server logs the warning about its password file itself.
    match cli.verb {
        Verb::Server(args) if !cli.url_given => {
            server::server(args, password::read_for_server(cli.password_file.as_deref())?, in_effect, out)
        }
        _ => Err(Failure::Usage(
            "--url and --context are for clients: name the queue to serve with --store".to_owned(),
        )),
    }
}

/// Runs the command of the command line.
pub(crate) async fn run(cli: Cli, out: &mut Output<'_>) -> Done {
    if let Verb::Config(ConfigVerb::Show(_)) = cli.verb {
        return settings::show(&cli, out);
    }
    if let Verb::Server(_) = cli.verb {
        return serve(cli, out);
    }
    let verb = match cli.verb {
        Verb::Version => {
            return Ok(out.line(
                &serde_json::json!({ "version": env!("CARGO_PKG_VERSION") }),
                concat!("geartrain ", env!("CARGO_PKG_VERSION")),
            )?);
        }
        Verb::Completions { shell } => {
            return Ok(completion::write_script(shell, &mut out.out)?);
        }
        Verb::Man(args) => return man::man(&args, out),
        Verb::Lua(args) => return server::lua(args, out),
        Verb::Next(args) => return next::next(args, out),
        Verb::Key(verb) => return access_key::key(verb, out),
        Verb::Audit(args) => return audit::audit(args, out),
        Verb::Drill(_) if cli.url_given => {
            return Err(Failure::Usage(
                "a drill starts its own servers: choose the disk with --disk, not a queue with --url or --context"
                    .to_owned(),
            ));
        }
        Verb::Drill(args) => return drill::drill(args, out),
        Verb::Move(_) if cli.url_given => {
            return Err(Failure::Usage(
                "a move names its queues with --from and --to, not with --url or --context".to_owned(),
            ));
        }
        Verb::Move(args) => return move_jobs::move_jobs(args, cli.file.as_ref(), cli.yes, out),
        Verb::Put(args) if args.check => return put::put_batch(None, args, out).await,
        verb => verb,
    };
    let password = client_password(cli.password_file.as_deref(), out)?;
    let url = match &password {
        Some(password) => password::add_to(&cli.url, password),
        None => cli.url.clone(),
    };
    // These change something at once, and ask before they connect. The others ask before the first change.
    let is_change = match &verb {
        Verb::Put(_) | Verb::Work(_) => true,
        Verb::Bench(_) => cli.url_given,
        Verb::Cancel(args) => args.is_by_payload(),
        Verb::RollCall(args) => args.set.is_some(),
        _ => false,
    };
    if let Some(production) = cli.production.as_ref().filter(|_| is_change) {
        production.confirm().map_err(|why| Failure::from(&why))?;
    }
    let connect = async || match cli.production.clone() {
        Some(production) => Ok(production.guard(geartrain::connect(&url).await?)),
        None => geartrain::connect(&url).await,
    };
    match verb {
        Verb::Top(args) => {
            let given = cli.url_given.then_some(cli.url.as_str());
            top::top(&url, given, cli.production, args, out)
        }
        Verb::Log(args) if args.jid.is_none() => log::read(args, password, out),
        Verb::Check(args) => maintenance::check(&url, args, out),
        Verb::Backup(args) => maintenance::backup(&url, args, out).await,
        Verb::Bench(args) => bench::bench(args, (cli.url_given, url), out),
        Verb::Work(args) => run_worker::work(&url, args, out),
        Verb::Put(args) if args.resubmit => resubmit::resubmit(&url, args, out).await,
        Verb::Put(args) if args.record.is_some() => {
            put::put(&resubmit::recorded(&url, args.record.clone()).await?, args, out).await
        }
        Verb::RollCall(args) if args.set.is_some() => workers::set_roll_call(&url, args, out).await,
        Verb::Put(args) if args.nonce || workkit::is_workkit(&url) => workkit::put(&url, args, out).await,
        Verb::Pop(mut args) if worqr::is_worqr(&url) => {
            args.has_short_locks = true;
            work::pop(&connect().await?, args, out).await
        }
        Verb::Cancel(args) if args.is_by_payload() => worqr::cancel(&url, args, out).await,
        Verb::Ping => ping::ping(&cli.url, &connect().await?, out).await,
        Verb::Why(args) => {
            let given = cli.url_given.then_some(cli.url.as_str());
            why::why(&connect().await?, args, given, out).await
        }
        verb => run_on(&connect().await?.named(&canceled::caller()), verb, out).await,
    }
}

/// The password from the file or the environment.
fn client_password(file: Option<&Path>, out: &mut Output<'_>) -> Result<Option<String>, Failure> {
    let Some(password) = password::read(file)? else { return Ok(None) };
    if let Some(warning) = password.warning {
        writeln!(out.err, "geartrain: {warning}")?;
    }
    Ok(Some(password.text))
}

/// Runs a command that needs a queue.
async fn run_on(client: &Client, verb: Verb, out: &mut Output<'_>) -> Done {
    match verb {
        Verb::Put(args) => put::put(client, args, out).await,
        Verb::Recur(verb) => recur::recur(client, verb, out).await,
        Verb::Next(args) => next::next(args, out),
        Verb::Pop(args) => work::pop(client, args, out).await,
        Verb::Complete(args) => work::complete(client, args, out).await,
        Verb::Fail(args) => work::fail(client, args, out).await,
        Verb::Retry(args) => work::retry(client, args, out).await,
        Verb::Heartbeat(args) => work::heartbeat(client, args, out).await,
        Verb::Progress(args) => work::progress(client, args, out).await,
        Verb::Chunk(args) => work::chunk(client, args, out).await,
        Verb::Release(args) => work::release(client, args, out).await,
        Verb::Relock(args) => work::relock(client, args, out).await,
        Verb::Announce(args) => workers::announce(client, args, out).await,
        Verb::Status(args) => status::status(client, args, out).await,
        Verb::Why(args) => why::why(client, args, None, out).await,
        Verb::Result(args) => status::result(client, args.jid, out).await,
        Verb::RollCall(args) => workers::roll_call(client, args, out).await,
        Verb::WorkerLost(args) => workers::worker_lost(client, args, out).await,
        Verb::Events(args) => events::events(client, args, out).await,
        Verb::Limits(args) => limits::limits(client, args, out).await,
        Verb::Tick(args) => queue::tick(client, args, out).await,
        Verb::Get(args) => list::get(client, &args.jid, out).await,
        Verb::Jobs(args) => list::jobs(client, args, out).await,
        Verb::Peek(args) => list::peek(client, args, out).await,
        Verb::Tracked => list::tracked(client, out).await,
        Verb::Queues(args) => queue::queues(client, args, out).await,
        Verb::Workers(args) => workers::workers(client, args, out).await,
        Verb::Stats(args) => queue::stats(client, args, out).await,
        Verb::Pause(args) => queue::pause(client, args.queues, out).await,
        Verb::Resume(args) => queue::resume(client, args.queues, out).await,
        Verb::Forget(verb) => queue::forget(client, verb, out).await,
        Verb::Failed(args) => failed::failed(client, args, out).await,
        Verb::Unfail(args) => failed::unfail(client, args, out).await,
        Verb::Cancel(args) => change::cancel(client, args, out).await,
        Verb::Requeue(args) => change::requeue(client, args, out).await,
        Verb::Timeout(args) => change::timeout(client, args.jids, out).await,
        Verb::Priority(args) => change::priority(client, args, out).await,
        Verb::Tag(args) => change::tag(client, args, out).await,
        Verb::Untag(args) => change::untag(client, args, out).await,
        Verb::Track(args) => change::track(client, args.jid, true, out).await,
        Verb::Untrack(args) => change::track(client, args.jid, false, out).await,
        Verb::Depend(args) => change::depend(client, args, out).await,
        Verb::Undepend(args) => change::undepend(client, args, out).await,
        Verb::Log(args) => match args.message()? {
            Some(message) => change::log(client, message, out).await,
            None => Ok(()),
        },
        Verb::Config(verb) => config::config(client, verb, out).await,
        Verb::Server(_)
        | Verb::Lua(_)
        | Verb::Backup(_)
        | Verb::Bench(_)
        | Verb::Drill(_)
        | Verb::Check(_)
        | Verb::Completions { .. }
        | Verb::Man(_)
        | Verb::Key(_)
        | Verb::Audit(_)
        | Verb::Ping
        | Verb::Move(_)
        | Verb::Top(_)
        | Verb::Version
        | Verb::Work(_) => Ok(()),
    }
}

fn new_jid() -> Jid {
    Jid::from_uuid(uuid::Uuid::now_v7().into_bytes())
}

/// The time from now until `then`, by this machine's clock.
fn until(then: Timestamp) -> Seconds {
    then - timestamp::now()
}

/// When a job is due, by `--in` or `--at`.
struct Due {
    delay: Seconds,
    /// None without a delay.
    at: Option<Timestamp>,
    /// Whether it was written as a phrase.
    is_phrase: bool,
}

impl Due {
    fn new(delay: Option<Delay>, at: Option<Moment>) -> Due {
        match (delay, at) {
            (Some(delay), _) => {
                let length = Seconds::from(delay.length);
                Due { delay: length, at: Some(timestamp::now() + length), is_phrase: delay.is_phrase }
            }
            (None, Some(Moment { at, is_phrase, .. })) => Due { delay: until(at), at: Some(at), is_phrase },
            (None, None) => Due { delay: Seconds::ZERO, at: None, is_phrase: false },
        }
    }

    /// Tells people what time a phrase means. JSON has a field for it.
    fn remark(&self, out: &mut Output<'_>) -> Done {
        match self.at {
            Some(at) if self.is_phrase && !out.json => {
                Ok(out.remark(format_args!("due {}", when(at, out.now)))?)
            }
            _ => Ok(()),
        }
    }

    /// Adds the time to the JSON of an answer; null without a delay.
    fn add_to(&self, mut view: serde_json::Value) -> serde_json::Value {
        view["due"] = serde_json::json!(self.at.map(Number::from));
        view
    }
}
