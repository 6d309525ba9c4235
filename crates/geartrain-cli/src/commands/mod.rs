//! What each command does.

mod bench;
mod care;
mod change;
mod config;
mod crew;
mod drill;
mod events;
mod failed;
mod limits;
mod list;
mod log;
mod put;
mod queue;
mod recur;
mod resubmit;
mod server;
mod show;
mod status;
#[cfg(test)]
mod tests;
mod wait;
mod why;
mod work;

use geartrain::{Client, Jid, Seconds, Timestamp};

use crate::args::{Cli, LogArgs, Verb};
use crate::failure::Failure;
use crate::output::Output;
use crate::{args, moment};

/// How a command ends.
type Done = Result<(), Failure>;

/// Does what the command line says.
pub(crate) async fn run(cli: Cli, out: &mut Output<'_>) -> Done {
    match cli.verb {
        Verb::Version => Ok(out.line(
            &serde_json::json!({ "version": env!("CARGO_PKG_VERSION") }),
            concat!("geartrain ", env!("CARGO_PKG_VERSION")),
        )?),
        Verb::Completions { shell } => {
            // Written at once, because clap panics where it cannot write.
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut args::command(), "geartrain", &mut script);
            Ok(out.out.write_all(&script)?)
        }
        Verb::Server(_) if cli.url_given => Err(Failure::Usage(
            "a server is not a client of --url: name the queue that it serves with --store".to_owned(),
        )),
        Verb::Server(args) => server::server(args, out),
        Verb::Lua(args) => server::lua(args, out),
        Verb::Check(args) => care::check(&cli.url, args, out),
        Verb::Backup(args) => care::backup(&cli.url, args, out).await,
        Verb::Bench(args) => bench::bench(args, cli.url_given.then_some(cli.url), out),
        Verb::Drill(_) if cli.url_given => Err(Failure::Usage(
            "a drill starts servers of its own: choose the disk with --disk, not a queue with --url"
                .to_owned(),
        )),
        Verb::Drill(args) => drill::drill(args, out),
        Verb::Log(args) if args.jid.is_none() => log::read(args, out),
        Verb::Put(args) if args.resubmit => resubmit::resubmit(&cli.url, args, out).await,
        Verb::Put(args) if args.record.is_some() => {
            put::put(&resubmit::recorded(&cli.url, args.record.clone()).await?, args, out).await
        }
        verb => run_on(&geartrain::connect(&cli.url).await?, verb, out).await,
    }
}

/// Does what a verb says, on a queue.
async fn run_on(client: &Client, verb: Verb, out: &mut Output<'_>) -> Done {
    match verb {
        Verb::Put(args) => put::put(client, args, out).await,
        Verb::Recur(verb) => recur::recur(client, verb, out).await,
        Verb::Pop(args) => work::pop(client, args, out).await,
        Verb::Complete(args) => work::complete(client, args, out).await,
        Verb::Fail(args) => work::fail(client, args, out).await,
        Verb::Retry(args) => work::retry(client, args, out).await,
        Verb::Heartbeat(args) => work::heartbeat(client, args, out).await,
        Verb::Progress(args) => work::progress(client, args, out).await,
        Verb::Chunk(args) => work::chunk(client, args, out).await,
        Verb::HandBack(args) => work::hand_back(client, args, out).await,
        Verb::Announce(args) => crew::announce(client, args, out).await,
        Verb::Status(args) => status::status(client, args, out).await,
        Verb::Why(args) => why::why(client, args.jid, out).await,
        Verb::Result(args) => status::result(client, args.jid, out).await,
        Verb::RollCall(args) => crew::roll_call(client, args, out).await,
        Verb::Gone(args) => crew::gone(client, args, out).await,
        Verb::Events(args) => events::events(client, args, out).await,
        Verb::Limits(args) => limits::limits(client, args, out).await,
        Verb::Tick(args) => queue::tick(client, args, out).await,
        Verb::Get(args) => list::get(client, &args.jid, out).await,
        Verb::Jobs(args) => list::jobs(client, args, out).await,
        Verb::Peek(args) => list::peek(client, args, out).await,
        Verb::Tracked => list::tracked(client, out).await,
        Verb::Queues(args) => queue::queues(client, args, out).await,
        Verb::Workers(args) => crew::workers(client, args, out).await,
        Verb::Stats(args) => queue::stats(client, args, out).await,
        Verb::Pause(args) => queue::pause(client, args.queues, out).await,
        Verb::Resume(args) => queue::resume(client, args.queues, out).await,
        Verb::Forget(verb) => queue::forget(client, verb, out).await,
        Verb::Failed(args) => failed::failed(client, args, out).await,
        Verb::Unfail(args) => failed::unfail(client, args, out).await,
        Verb::Cancel(args) => change::cancel(client, args.jids, out).await,
        Verb::Requeue(args) => change::requeue(client, args, out).await,
        Verb::Timeout(args) => change::timeout(client, args.jids, out).await,
        Verb::Priority(args) => change::priority(client, args, out).await,
        Verb::Tag(args) => change::tag(client, args, out).await,
        Verb::Untag(args) => change::untag(client, args, out).await,
        Verb::Track(args) => change::track(client, args.jid, true, out).await,
        Verb::Untrack(args) => change::track(client, args.jid, false, out).await,
        Verb::Depend(args) => change::depend(client, args, out).await,
        Verb::Undepend(args) => change::undepend(client, args, out).await,
        Verb::Log(LogArgs { jid: Some(jid), message: Some(message), data, .. }) => {
            change::log(client, jid, message, data, out).await
        }
        Verb::Config(verb) => config::config(client, verb, out).await,
        Verb::Server(_)
        | Verb::Log(_)
        | Verb::Lua(_)
        | Verb::Backup(_)
        | Verb::Bench(_)
        | Verb::Drill(_)
        | Verb::Check(_)
        | Verb::Completions { .. }
        | Verb::Version => Ok(()),
    }
}

/// A jid that nobody has yet.
fn new_jid() -> Jid {
    Jid::from_uuid(uuid::Uuid::now_v7().into_bytes())
}

/// How long it is until then, by this machine's clock.
fn until(then: Timestamp) -> Seconds {
    then - moment::now()
}
