//! The top level of the command line: the commands, their headings in the help, and the global options. Each
//! command's own arguments stand beside its code, in `commands`.

use std::borrow::Cow;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use geartrain::schedule::Zone;

use crate::commands::access_key::KeyVerb;
use crate::commands::audit::AuditArgs;
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
use crate::commands::man::ManArgs;
use crate::commands::move_jobs::MoveArgs;
use crate::commands::next::NextArgs;
use crate::commands::put::PutArgs;
use crate::commands::queue::{ForgetVerb, QueuesArgs, StatsArgs, TickArgs};
use crate::commands::recur::RecurVerb;
use crate::commands::run_worker::WorkArgs;
use crate::commands::server::{LuaArgs, ServerArgs};
use crate::commands::status::StatusArgs;
use crate::commands::top::TopArgs;
use crate::commands::why::WhyArgs;
use crate::commands::work::{
    ChunkArgs, CompleteArgs, FailArgs, HeartbeatArgs, PopArgs, ProgressArgs, ReleaseArgs, RelockArgs,
    RetryArgs,
};
use crate::commands::workers::{AnnounceArgs, RollCallArgs, WorkerLostArgs, WorkersArgs};
use crate::commands::{JidArg, JidsArg, QueuesArg};
use crate::settings::{ConfigFile, InEffect, Production};
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
    /// Whether the URL was given with `--url` or `--context`, and not by the environment or the default
    #[arg(skip)]
    pub(crate) url_given: bool,
    /// A context of the configuration file, which names the queue to connect to
    #[arg(long, global = true, value_name = "NAME", env = "GEARTRAIN_CONTEXT", help_heading = GLOBAL)]
    pub(crate) context: Option<String>,
    /// The configuration file, or `off` [default: geartrain.toml in ~/.config/geartrain or /etc/geartrain]
    #[arg(long, global = true, value_name = "FILE", env = "GEARTRAIN_CONFIG", help_heading = GLOBAL)]
    pub(crate) config: Option<PathBuf>,
    /// A file with the key or password that a client sends, or the password that a server requires
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
    /// Do not ask before many jobs, or a context in production, are changed; required unless a terminal can answer
    #[arg(long, short = 'y', global = true, help_heading = GLOBAL)]
    pub(crate) yes: bool,
    /// The arguments as they were parsed
    #[arg(skip)]
    pub(crate) matches: ArgMatches,
    #[arg(skip)]
    pub(crate) file: Option<ConfigFile>,
    #[arg(skip)]
    pub(crate) in_effect: InEffect,
    /// The context, if it has to be confirmed
    #[arg(skip)]
    pub(crate) production: Option<Production>,
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

    /// Watch queues, workers and failures, live
    Top(TopArgs),
    /// Show a job and its history
    Get(JidArg),
    /// Show the state and progress of an unfinished job
    Status(StatusArgs),
    /// Explain why a job, or a queue, is not running
    Why(WhyArgs),
    /// Print the result of a job
    #[command(
        after_help = "A job put with --keep-result has one, for 25 hours. `geartrain put --wait 30s` waits for it."
    )]
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

    /// Create, list and remove the access keys of a server on this machine
    #[command(subcommand, arg_required_else_help = true)]
    Key(KeyVerb),
    /// Show who changed what on a server on this machine
    Audit(AuditArgs),
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
    /// Print the manual page, or write the pages of all commands
    #[command(
        after_help = "Examples:\n  geartrain man | man -l -\n  geartrain man --dir ~/.local/share/man/man1"
    )]
    Man(ManArgs),
    /// Print a shell completion script, which also completes queues, job ids, groups and workers
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
    ("Server", &["server", "key", "audit"]),
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
            "top",
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
    ("Tools", &["lua", "bench", "drill", "man", "completions", "version"]),
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
    let cli = Cli::from_arg_matches(&matches)?;
    Ok(Cli { url_given, matches, ..cli })
}

/// The zone that `--zone` or `--utc` names. It is looked for before the rest, because times are read in it.
/// One that does not exist is none here; clap reports it.
fn reading_zone(arguments: &[OsString]) -> Option<Zone> {
    let is_utc = |argument: &OsString| argument == "--utc";
    if arguments.iter().take_while(|argument| *argument != "--").any(is_utc) {
        return Some(Zone::UTC);
    }
    Zone::named(&value_of("--zone", arguments)?).ok()
}

/// The value of a flag, for what has to be known before the command line is parsed.
pub(crate) fn value_of<'a>(flag: &str, arguments: &'a [OsString]) -> Option<Cow<'a, str>> {
    let mut arguments = arguments.iter().take_while(|argument| *argument != "--");
    while let Some(argument) = arguments.next() {
        if argument == flag {
            return Some(arguments.next()?.to_string_lossy());
        }
        let value = argument.to_str().and_then(|argument| argument.strip_prefix(flag)?.strip_prefix('='));
        if let Some(value) = value {
            return Some(Cow::Borrowed(value));
        }
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
    let (command, _) = named_command(arguments);
    let name = command.get_bin_name().unwrap_or(command.get_name());
    format!("{sentence}; see `{name} --help`")
}

/// The help of the command that the arguments name.
pub(crate) fn help(arguments: &[OsString]) -> clap::builder::StyledStr {
    named_command(arguments).0.render_help()
}

/// The command that the arguments name, as far as they are valid, like `geartrain recur add`; and the index behind
/// its name.
pub(crate) fn named_command(arguments: &[OsString]) -> (clap::Command, usize) {
    let mut command = command();
    command.build();
    let (mut named, mut behind, mut index) = (&command, 1.min(arguments.len()), 1);
    while let Some(argument) = arguments.get(index).filter(|argument| *argument != "--") {
        index += 1;
        let text = argument.to_string_lossy();
        if let Some(long) = text.strip_prefix("--") {
            let is_flag = |argument: &&clap::Arg| argument.get_long() == Some(long);
            let flag = named.get_arguments().find(is_flag);
            // Its value is no command.
            index += usize::from(flag.is_some_and(|flag| flag.get_action().takes_values()));
        } else if let Some(found) = named.find_subcommand(&*text) {
            (named, behind) = (found, index);
        }
    }
    (named.clone(), behind)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use clap::error::ErrorKind;

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
        "locked",
        "new",
        "new-bench",
        "no-run",
        "open",
        "own-file-bytes",
        "path",
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
            ("docs/guide/start.md", include_str!("../../../docs/guide/start.md")),
            ("docs/guide/concepts.md", include_str!("../../../docs/guide/concepts.md")),
            ("docs/guide/put.md", include_str!("../../../docs/guide/put.md")),
            ("docs/guide/work.md", include_str!("../../../docs/guide/work.md")),
            ("docs/guide/schedules.md", include_str!("../../../docs/guide/schedules.md")),
            ("docs/guide/failure.md", include_str!("../../../docs/guide/failure.md")),
            ("docs/guide/limits.md", include_str!("../../../docs/guide/limits.md")),
            ("docs/guide/explain.md", include_str!("../../../docs/guide/explain.md")),
            ("docs/guide/production.md", include_str!("../../../docs/guide/production.md")),
            ("docs/guide/coming.md", include_str!("../../../docs/guide/coming.md")),
            ("docs/gearman.md", gearman),
            ("docs/gearmonkey.md", include_str!("../../../docs/gearmonkey.md")),
            ("docs/operations.md", include_str!("../../../docs/operations.md")),
            ("docs/options.md", include_str!("../../../docs/options.md")),
            ("docs/performance.md", include_str!("../../../docs/performance.md")),
            ("docs/reliability.md", include_str!("../../../docs/reliability.md")),
            ("docs/resp.md", include_str!("../../../docs/resp.md")),
            ("docs/security.md", include_str!("../../../docs/security.md")),
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

    /// The words of a command line, of which some are quoted.
    fn words(line: &str) -> Vec<String> {
        let (mut words, mut quote) = (vec![String::new()], None);
        for c in line.chars() {
            match (quote, c) {
                (Some(open), _) if open == c => quote = None,
                (None, '\'' | '"') => quote = Some(c),
                (None, ' ') => words.push(String::new()),
                _ => words.last_mut().unwrap().push(c),
            }
        }
        words
    }

    /// Blocks are run by a test; this is about the commands in sentences and tables.
    #[test]
    fn commands_in_sentences_of_the_guide_are_understood() {
        let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide");
        let pages = std::fs::read_dir(guide).unwrap().map(|file| file.unwrap().path());
        let pages = pages.chain([Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md")]);
        let mut understood = 0;
        for page in pages.filter(|page| page.extension().is_some_and(|extension| extension == "md")) {
            let text = std::fs::read_to_string(&page).unwrap();
            let prose = text.split("```").step_by(2);
            let spans = prose.flat_map(|prose| prose.split('`').skip(1).step_by(2));
            for span in spans.filter(|span| span.starts_with("geartrain ")) {
                let words = words(span);
                // The name of a command, such as `geartrain move`, stands for the command.
                if words.len() == 2 {
                    continue;
                }
                understood += 1;
                let error = parse(words).err().filter(|error| error.kind() != ErrorKind::DisplayHelp);
                assert!(error.is_none(), "{}: `{span}`: {}", page.display(), error.unwrap());
            }
        }
        assert!(understood > 10, "{understood}");
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
