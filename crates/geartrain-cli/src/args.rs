//! The top level of the command line: the commands, their headings in the help, and the global options. Each
//! command's own arguments stand beside its code, in `commands`.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use geartrain::schedule::Zone;

use crate::commands::bench::BenchArgs;
use crate::commands::change::{CancelArgs, DependArgs, PriorityArgs, RequeueArgs, TagArgs, UndependArgs};
use crate::commands::config::ConfigVerb;
use crate::commands::drill::DrillArgs;
use crate::commands::events::EventsArgs;
use crate::commands::failed::{FailedArgs, UnfailArgs};
use crate::commands::limits::LimitsArgs;
use crate::commands::list::{JobsArgs, PeekArgs};
use crate::commands::log::LogArgs;
use crate::commands::maintenance::{BackupArgs, CheckArgs};
use crate::commands::move_jobs::MoveArgs;
use crate::commands::next::NextArgs;
use crate::commands::put::PutArgs;
use crate::commands::queue::{ForgetVerb, QueuesArgs, StatsArgs, TickArgs};
use crate::commands::recur::RecurVerb;
use crate::commands::run_worker::WorkArgs;
use crate::commands::server::{LuaArgs, ServerArgs};
use crate::commands::status::StatusArgs;
use crate::commands::why::WhyArgs;
use crate::commands::work::{
    ChunkArgs, CompleteArgs, FailArgs, HeartbeatArgs, PopArgs, ProgressArgs, ReleaseArgs, RelockArgs,
    RetryArgs,
};
use crate::commands::workers::{AnnounceArgs, RollCallArgs, WorkerLostArgs, WorkersArgs};
use crate::commands::{JidArg, JidsArg, QueuesArg};
use crate::text::HEADING;
use crate::{timestamp, values};

/// A job queue: submit jobs, work on them, and see what is going on.
#[derive(Debug, Parser)]
#[command(name = "geartrain", version, max_term_width = 110)]
pub(crate) struct Cli {
    /// The queue to connect to
    #[arg(
        long,
        global = true,
        env = "GEARTRAIN_URL",
        hide_env_values = true,
        default_value = "redis://127.0.0.1:7411",
        help_heading = GLOBAL
    )]
    pub(crate) url: String,
    /// Whether the URL was given with `--url`, and not by the environment or the default
    #[arg(skip)]
    pub(crate) url_given: bool,
    /// A file with the password that clients send and a server requires, instead of GEARTRAIN_PASSWORD
    #[arg(long, global = true, value_name = "FILE", env = "GEARTRAIN_PASSWORD_FILE", help_heading = GLOBAL)]
    pub(crate) password_file: Option<PathBuf>,
    /// Print JSON, one line per reply
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub(crate) json: bool,
    /// Read and show times in UTC, not in the local time zone
    #[arg(long, global = true, conflicts_with = "zone", help_heading = GLOBAL)]
    pub(crate) utc: bool,
    /// Read and show times in this time zone, like Europe/Berlin [default: the local one]
    #[arg(long, global = true, value_name = "ZONE", value_parser = values::zone, help_heading = GLOBAL)]
    pub(crate) zone: Option<Zone>,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

const GLOBAL: &str = "Global options";

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run the server: a durable job queue that other programs connect to
    Server(ServerArgs),

    /// Submit a job to a queue, and print its id
    Put(PutArgs),
    /// Create, list, change and remove recurring jobs
    #[command(subcommand, arg_required_else_help = true)]
    Recur(RecurVerb),
    /// Show the next moments of a time phrase or a cron expression
    Next(NextArgs),

    /// Run a program for each job of some queues
    Work(WorkArgs),
    /// Take jobs from queues to work on them
    Pop(PopArgs),
    /// Complete a job, or move it on to another queue
    Complete(CompleteArgs),
    /// Fail a job, and keep it in a group of failures
    Fail(FailArgs),
    /// Return a job to its queue to be retried
    Retry(RetryArgs),
    /// Renew the lock of a running job
    Heartbeat(HeartbeatArgs),
    /// Report how far a job has got
    Progress(ProgressArgs),
    /// Send a part of the result to the clients that wait for a job
    Chunk(ChunkArgs),
    /// Return a job to its queue without using up a retry
    #[command(visible_alias = "hand-back")]
    Release(ReleaseArgs),
    /// Lock the running jobs of a restarted worker again
    Relock(RelockArgs),
    /// Announce which jobs a worker can run
    Announce(AnnounceArgs),

    /// Show a job and its history
    Get(JidArg),
    /// Show the state and progress of an unfinished job
    Status(StatusArgs),
    /// Explain why a job, or a queue, is not running
    Why(WhyArgs),
    /// Print the result of a job
    Result(JidArg),
    /// List jobs
    Jobs(JobsArgs),
    /// Show the next jobs of a queue without taking them
    Peek(PeekArgs),
    /// Count the jobs of each queue
    Queues(QueuesArgs),
    /// Count the jobs of each worker, or list the jobs of one
    Workers(WorkersArgs),
    /// Count the live workers that can run a job
    RollCall(RollCallArgs),
    /// Show waiting and running times of a queue on a day
    Stats(StatsArgs),
    /// Count failed jobs (dead letters) by group, or list one group
    Failed(FailedArgs),
    /// List the tracked jobs
    Tracked,
    /// Print events as they happen
    Events(EventsArgs),

    /// Cancel jobs; none of them if another job depends on one
    Cancel(CancelArgs),
    /// Submit a job again, optionally with another queue, klass or payload
    Requeue(RequeueArgs),
    /// Retry the failed jobs of a group
    Unfail(UnfailArgs),
    /// Take running jobs away from their workers
    Timeout(JidsArg),
    /// Change the priority of a job
    Priority(PriorityArgs),
    /// Add tags to a job
    Tag(TagArgs),
    /// Remove tags from a job
    Untag(TagArgs),
    /// Track a job: publish an event for each of its milestones
    Track(JidArg),
    /// Stop tracking a job
    Untrack(JidArg),
    /// Add dependencies to a job
    Depend(DependArgs),
    /// Remove dependencies from a job
    Undepend(UndependArgs),
    /// Read the result log, or add a message to a job's history
    Log(LogArgs),

    /// Pause queues: their jobs are not handed out
    Pause(QueuesArg),
    /// Resume paused queues
    Resume(QueuesArg),
    /// Show or set the limits of a queue: length, rate and concurrency
    Limits(LimitsArgs),
    /// Remove queues or workers from the lists
    #[command(subcommand, arg_required_else_help = true)]
    Forget(ForgetVerb),
    /// Show and change options
    #[command(subcommand, arg_required_else_help = true)]
    Config(ConfigVerb),

    /// Check that the queue answers, and show what it is and how long it takes
    #[command(after_help = "Exit code 3 if the queue cannot be reached.")]
    Ping,
    /// Report a dead worker, so that its jobs go to others at once
    #[command(visible_alias = "gone")]
    WorkerLost(WorkerLostArgs),
    /// Process what is due: timeouts, expired jobs, and what is too old to be kept
    Tick(TickArgs),
    /// Move jobs to another queue system
    Move(MoveArgs),
    /// Back up a queue to another directory
    Backup(BackupArgs),
    /// Check a data directory for damage, and recover what can be recovered
    Check(CheckArgs),

    /// Print the Lua script that turns a Redis or Valkey into a queue
    Lua(LuaArgs),
    /// Measure the throughput and latency of a queue
    Bench(BenchArgs),
    /// Test durability: kill, freeze and starve a server, and count what it lost
    Drill(DrillArgs),
    /// Print a shell completion script
    #[command(
        after_help = "Example:\n  geartrain completions bash > ~/.local/share/bash-completion/completions/geartrain"
    )]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the version
    Version,
}

/// The commands under their headings in the help.
const GROUPS: [(&str, &[&str]); 8] = [
    ("Server", &["server"]),
    ("Submit jobs", &["put", "recur", "next"]),
    (
        "Work on jobs",
        &[
            "work",
            "pop",
            "complete",
            "fail",
            "retry",
            "heartbeat",
            "progress",
            "chunk",
            "release",
            "relock",
            "announce",
        ],
    ),
    (
        "Inspect",
        &[
            "get",
            "status",
            "why",
            "result",
            "jobs",
            "peek",
            "queues",
            "workers",
            "roll-call",
            "stats",
            "failed",
            "tracked",
            "events",
            "log",
        ],
    ),
    (
        "Change jobs",
        &[
            "cancel", "requeue", "unfail", "timeout", "priority", "tag", "untag", "track", "untrack",
            "depend", "undepend",
        ],
    ),
    ("Change queues", &["pause", "resume", "limits", "forget", "config"]),
    ("Maintenance", &["ping", "worker-lost", "tick", "move", "backup", "check"]),
    ("Tools", &["lua", "bench", "drill", "completions", "version"]),
];

const EXAMPLES: &str = r#"Examples:
  geartrain put mail welcome '{"to":"a@example.org"}'     # prints the job id (jid)
  geartrain queues
  geartrain work mail -- ./send-mail                      # runs ./send-mail for each job
  geartrain pop mail --worker w1                          # prints the job, and the token of its lock
  geartrain complete JID --token TOKEN

URLs: redis://HOST:PORT (a geartrain server, Redis or Valkey), gearman://HOST:PORT, embedded:DIR, memory:,
gearmonkey+redis://HOST:PORT (GearMonkey functions), workkit+redis://HOST:PORT (WorkKit schedules),
worqr+redis://HOST:PORT (Worqr's queues)
Exit codes: 0 done, 1 refused by the queue, 2 wrong usage, 3 queue unreachable, 4 timed out.
See `geartrain help COMMAND` for more about a command."#;

/// The whole command line, with its commands under headings.
pub(crate) fn command() -> clap::Command {
    let command = Cli::command();
    let width = GROUPS.iter().flat_map(|(_, names)| *names).map(|name| name.len()).max().unwrap_or(0);
    let mut groups = String::new();
    for (heading, names) in GROUPS {
        let _ = writeln!(groups, "{HEADING}{heading}{HEADING:#}");
        for name in names {
            let about = command.find_subcommand(name).and_then(clap::Command::get_about);
            let _ =
                writeln!(groups, "  {name:width$}  {}", about.map(ToString::to_string).unwrap_or_default());
        }
        groups.push('\n');
    }
    command
        .help_template(format!(
            "{{about}}\n\n{{usage-heading}} {{usage}}\n\n{groups}{HEADING}Options{HEADING:#}\n{{options}}{{after-help}}"
        ))
        .after_help(EXAMPLES)
}

/// Parses the command line.
pub(crate) fn parse<T: Into<OsString> + Clone>(
    arguments: impl IntoIterator<Item = T>,
) -> Result<Cli, clap::Error> {
    let arguments: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
    timestamp::read_in(reading_zone(&arguments));
    let matches = command().try_get_matches_from(arguments)?;
    let url_given = matches.value_source("url") == Some(ValueSource::CommandLine);
    Ok(Cli { url_given, ..Cli::from_arg_matches(&matches)? })
}

/// The zone that `--zone` or `--utc` names. It is looked for before the rest, because times are read in it.
/// One that does not exist is none here; clap reports it.
fn reading_zone(arguments: &[OsString]) -> Option<Zone> {
    let mut arguments = arguments.iter().map(|argument| argument.to_string_lossy());
    while let Some(argument) = arguments.next().filter(|argument| argument != "--") {
        if argument == "--utc" {
            return Some(Zone::UTC);
        }
        let name = match argument.strip_prefix("--zone=") {
            Some(name) => name.to_owned(),
            None if argument == "--zone" => arguments.next()?.into_owned(),
            None => continue,
        };
        return Zone::named(&name).ok();
    }
    None
}

/// A parse error in one sentence, with the help to read.
pub(crate) fn complaint(error: &clap::Error, arguments: &[OsString]) -> String {
    let rendered = error.render().to_string();
    let text = rendered.split("\n\nUsage: ").next().unwrap_or_default();
    let text = text.split("\n\nFor more information").next().unwrap_or_default();
    let text = text.strip_prefix("error: ").unwrap_or(text);
    let mut sentence = String::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let tip = line.strip_prefix("tip: ");
        sentence.push_str(match tip {
            _ if sentence.is_empty() => "",
            Some(_) => "; ",
            None => " ",
        });
        sentence.push_str(tip.unwrap_or(line));
    }
    let command = named_command(arguments);
    let name = command.get_bin_name().unwrap_or(command.get_name());
    format!("{sentence}; see `{name} --help`")
}

/// The help of the command that the arguments name.
pub(crate) fn help(arguments: &[OsString]) -> clap::builder::StyledStr {
    named_command(arguments).render_help()
}

/// The command that the arguments name, as far as they are valid: `geartrain recur add`.
fn named_command(arguments: &[OsString]) -> clap::Command {
    let mut command = command();
    command.build();
    let mut named = &command;
    for argument in arguments.iter().skip(1) {
        if let Some(found) = argument.to_str().and_then(|argument| named.find_subcommand(argument)) {
            named = found;
        }
    }
    named.clone()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Flags of other programs that the docs name: cargo, gearmand, gearadmin and our tools.
    const FOREIGN_FLAGS: &[&str] = &[
        "archive",
        "base",
        "base-bench",
        "bench",
        "cacert",
        "features",
        "http-port",
        "lib",
        "new",
        "new-bench",
        "no-run",
        "open",
        "own-file-bytes",
        "profile",
        "release",
        "round-robin",
        "rounds",
        "ssl",
        "ssl-ca-file",
        "ssl-certificate",
        "ssl-key",
        "status",
        "test",
        "tls",
        "until-handled",
    ];

    fn flags_of(command: &clap::Command, flags: &mut BTreeSet<String>, names: &mut BTreeSet<String>) {
        let visible = command.get_arguments().filter(|argument| !argument.is_hide_set());
        flags.extend(visible.filter_map(|argument| argument.get_long().map(str::to_owned)));
        for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
            names.insert(subcommand.get_name().to_owned());
            flags_of(subcommand, flags, names);
        }
    }

    /// Words behind `--` in a text.
    fn flags_in(text: &str) -> BTreeSet<String> {
        let starts = text.match_indices("--").filter(|(start, _)| {
            let before = text[..*start].chars().next_back();
            !before.is_some_and(|before| before == '-' || before.is_alphanumeric())
        });
        let word = |(start, _)| {
            let rest: &str = &text[start + 2..];
            let end = rest
                .find(|c: char| !c.is_ascii_lowercase() && !c.is_ascii_digit() && c != '-')
                .unwrap_or(rest.len());
            rest[..end].to_owned()
        };
        starts.map(word).filter(|word| word.starts_with(|c: char| c.is_ascii_lowercase())).collect()
    }

    #[test]
    fn the_docs_name_every_flag_and_no_other() {
        let (mut flags, mut names) = (BTreeSet::new(), BTreeSet::new());
        let mut command = Cli::command();
        command.build();
        flags_of(&command, &mut flags, &mut names);
        let manual = include_str!("../../../docs/cli.md");
        let gearman = include_str!("../../../docs/gearman.md");
        let documented = &flags_in(manual) | &flags_in(gearman);
        let undocumented: Vec<_> = flags.difference(&documented).filter(|flag| *flag != "version").collect();
        assert!(undocumented.is_empty(), "docs/cli.md or gearman.md must describe {undocumented:?}");
        let missing: Vec<_> = names.iter().filter(|name| !manual.contains(name.as_str())).collect();
        assert!(missing.is_empty(), "docs/cli.md must describe these commands: {missing:?}");
        let pages = [
            ("docs/cli.md", manual),
            ("README.md", include_str!("../../../README.md")),
            ("docs/compatibility.md", include_str!("../../../docs/compatibility.md")),
            ("docs/moving.md", include_str!("../../../docs/moving.md")),
            ("docs/guide/from-qless.md", include_str!("../../../docs/guide/from-qless.md")),
            ("docs/guide/from-gearman.md", include_str!("../../../docs/guide/from-gearman.md")),
            ("docs/guide/from-gearmonkey.md", include_str!("../../../docs/guide/from-gearmonkey.md")),
            ("docs/guide/from-workkit.md", include_str!("../../../docs/guide/from-workkit.md")),
            ("docs/guide/from-worqr.md", include_str!("../../../docs/guide/from-worqr.md")),
            ("docs/gearman.md", gearman),
            ("docs/gearmonkey.md", include_str!("../../../docs/gearmonkey.md")),
            ("docs/operations.md", include_str!("../../../docs/operations.md")),
            ("docs/options.md", include_str!("../../../docs/options.md")),
            ("docs/performance.md", include_str!("../../../docs/performance.md")),
            ("docs/reliability.md", include_str!("../../../docs/reliability.md")),
            ("docs/resp.md", include_str!("../../../docs/resp.md")),
            ("docs/workers.md", include_str!("../../../docs/workers.md")),
            ("docs/workkit.md", include_str!("../../../docs/workkit.md")),
            ("docs/worqr.md", include_str!("../../../docs/worqr.md")),
        ];
        for (page, text) in pages {
            let is_known = |flag: &&String| flags.contains(*flag) || FOREIGN_FLAGS.contains(&flag.as_str());
            let named = flags_in(text);
            let unknown: Vec<_> = named.iter().filter(|flag| !is_known(flag)).collect();
            assert!(unknown.is_empty(), "{page} names flags that no command has: {unknown:?}");
        }
    }

    #[test]
    fn clap_accepts_the_command_line() {
        command().debug_assert();
    }

    #[test]
    fn every_command_is_under_one_heading() {
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        grouped.sort_unstable();
        let command = command();
        let mut all: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
        all.sort_unstable();
        assert_eq!(grouped, all);
    }

    #[test]
    fn help_fits_a_terminal() {
        fn check(command: &mut clap::Command) {
            let help = command.render_long_help().to_string();
            for line in help.lines() {
                assert!(line.chars().count() <= 120, "{}: {line}", command.get_name());
            }
            command.get_subcommands_mut().for_each(check);
        }
        let mut command = command();
        command.build();
        check(&mut command);
    }

    #[test]
    fn a_parse_error_is_one_sentence_that_names_the_help() {
        for (line, complaint) in [
            (
                "geartrain putt",
                "unrecognized subcommand 'putt'; a similar subcommand exists: 'put'; see `geartrain --help`",
            ),
            (
                "geartrain put mail",
                "the following required arguments were not provided: <KLASS>; see `geartrain put --help`",
            ),
            (
                "geartrain put mail welcome --in soon",
                "invalid value 'soon' for '--in <DURATION>': \"soon\" is not a duration: write it like 90, 90s, 1h30m or \
                 250ms; see `geartrain put --help`",
            ),
        ] {
            let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let error = parse(arguments.clone()).unwrap_err();
            assert_eq!(super::complaint(&error, &arguments), complaint);
        }
    }

    #[test]
    fn the_old_names_of_commands_still_work() {
        for line in ["geartrain hand-back j1 --token 1.0", "geartrain release j1 --token 1.0"] {
            assert!(matches!(parse(line.split(' ')).unwrap().verb, Verb::Release(_)), "{line}");
        }
        for line in ["geartrain gone w1", "geartrain worker-lost w1"] {
            assert!(matches!(parse(line.split(' ')).unwrap().verb, Verb::WorkerLost(_)), "{line}");
        }
    }
}
