//! The command line: what can be said, and how help shows it.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::parser::ValueSource;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use geartrain::{
    Backoff, Capability, Count, DURATION_MAX, Group, Jid, Klass, Portion, Priority, QueueName, Rate, Seconds,
    Tag, Timestamp, Token, UniqueKey, WorkerName,
};

use crate::payload::Source;
use crate::text::HEADING;
use crate::{backoff, duration, moment, rate};

/// Puts jobs into queues, works on them, and looks at them.
#[derive(Debug, Parser)]
#[command(name = "geartrain", version, disable_help_subcommand = true, max_term_width = 110)]
pub(crate) struct Cli {
    /// The queue system to talk to
    #[arg(
        long,
        global = true,
        env = "GEARTRAIN_URL",
        hide_env_values = true,
        default_value = "redis://127.0.0.1:7411",
        help_heading = GLOBAL
    )]
    pub(crate) url: String,
    /// Whether the URL was given with `--url`, rather than by the environment or by nobody
    #[arg(skip)]
    pub(crate) url_given: bool,
    /// Print one line of JSON instead of text for people
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

const GLOBAL: &str = "Everywhere";

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run the server: a durable queue that other programs connect to
    Server(ServerArgs),

    /// Put a job into a queue, and print its jid
    Put(PutArgs),
    /// Make, list, change and remove recurring jobs
    #[command(subcommand, arg_required_else_help = true)]
    Recur(RecurVerb),

    /// Take jobs out of queues to work on them
    Pop(PopArgs),
    /// Say that a job is done, or done here and on to another queue
    Complete(CompleteArgs),
    /// Say that a job failed, and set it aside in a group
    Fail(FailArgs),
    /// Give a job back to be tried again
    Retry(RetryArgs),
    /// Say that a job is still being worked on
    Heartbeat(HeartbeatArgs),
    /// Say how far the work on a job has got
    Progress(ProgressArgs),
    /// Send something to those who wait for a job
    Chunk(ChunkArgs),
    /// Give a job back to the front of its queue, at no price
    HandBack(HandBackArgs),
    /// Say what a worker can do
    Announce(AnnounceArgs),

    /// Show a job and its history
    Get(JidArg),
    /// Show in short how an unfinished job does
    Status(StatusArgs),
    /// Say why a job does not run
    Why(JidArg),
    /// Print what came out of a job
    Result(JidArg),
    /// List jobs
    Jobs(JobsArgs),
    /// Show the next jobs of a queue without taking them
    Peek(PeekArgs),
    /// Count the jobs of each queue
    Queues(QueuesArgs),
    /// Count the jobs of each worker, or list those of one
    Workers(WorkersArgs),
    /// Count the workers that can do a job
    RollCall(RollCallArgs),
    /// Show how a queue did on a day
    Stats(StatsArgs),
    /// Count failed jobs by group, or list those of one group
    Failed(FailedArgs),
    /// List the tracked jobs
    Tracked,
    /// Print what happens, as it happens
    Events(EventsArgs),

    /// Remove jobs; none of them if another job depends on one
    Cancel(JidsArg),
    /// Put a job again, with its klass and payload unless you give others
    Requeue(RequeueArgs),
    /// Put the failed jobs of a group back to work
    Unfail(UnfailArgs),
    /// Take running jobs away from their workers
    Timeout(JidsArg),
    /// Change how much a job matters
    Priority(PriorityArgs),
    /// Add tags to a job
    Tag(TagArgs),
    /// Remove tags from a job
    Untag(TagArgs),
    /// Track a job: publish what happens to it
    Track(JidArg),
    /// Track a job no longer
    Untrack(JidArg),
    /// Make a job wait for others too
    Depend(DependArgs),
    /// Make a job no longer wait for others
    Undepend(UndependArgs),
    /// Read the result log, or write something into a job's history
    Log(LogArgs),

    /// Stop handing out the jobs of queues
    Pause(QueuesArg),
    /// Hand them out again
    Resume(QueuesArg),
    /// Show the limits of a queue, or set them
    Limits(LimitsArgs),
    /// Take queues or workers off the lists
    #[command(subcommand, arg_required_else_help = true)]
    Forget(ForgetVerb),
    /// Look at options and change them
    #[command(subcommand, arg_required_else_help = true)]
    Config(ConfigVerb),

    /// Say that a worker is dead, so that its jobs go to others
    Gone(GoneArgs),
    /// Do what is due: end attempts that take too long, drop old results
    Tick(TickArgs),
    /// Copy a queue into another directory
    Backup(BackupArgs),
    /// Verify all that a queue keeps, or save what can be saved
    Check(CheckArgs),

    /// Print the script that makes a Redis or Valkey a queue
    Lua(LuaArgs),
    /// Measure how fast a queue is
    Bench(BenchArgs),
    /// Kill, freeze and starve a server on this machine, and count what it kept
    Drill(DrillArgs),
    /// Print what a shell needs to complete commands
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

/// How a server is run.
#[derive(Debug, Args)]
#[command(after_help = SERVER_EXAMPLES)]
pub(crate) struct ServerArgs {
    /// The queue to serve: embedded:DIR, memory:, or a redis:// URL
    #[arg(long, value_name = "URL", env = "GEARTRAIN_STORE", hide_env_values = true, conflicts_with_all = ["data", "sync"])]
    pub(crate) store: Option<String>,
    /// The directory to keep jobs in [default: ./geartrain-data]
    #[arg(long, value_name = "DIR", env = "GEARTRAIN_DATA")]
    pub(crate) data: Option<PathBuf>,
    /// When what is done is forced to the disk: always, never, or every so often like 50ms
    #[arg(long, value_name = "MODE", env = "GEARTRAIN_SYNC", default_value = "always")]
    pub(crate) sync: String,
    /// Where to speak RESP, for Qless clients, this command and Rust programs; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", env = "GEARTRAIN_RESP", default_value = "127.0.0.1:7411")]
    pub(crate) resp: std::net::SocketAddr,
    /// Where to speak Gearman, or `off`; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", env = "GEARTRAIN_GEARMAN", default_value = "127.0.0.1:4730", value_parser = address_or_off)]
    pub(crate) gearman: AddressOrOff,
    /// What clients must say to be let in
    #[arg(long, env = "GEARTRAIN_PASSWORD", hide_env_values = true)]
    pub(crate) password: Option<String>,
    /// Listen on an address that other machines can reach, and ask nobody for a password
    #[arg(long)]
    pub(crate) insecure: bool,
    /// Let clients remove everything with FLUSHDB, and list keys with KEYS
    #[arg(long)]
    pub(crate) allow_flush: bool,
    /// Make sample jobs and work on them; in memory, unless --store or --data is given
    #[arg(long)]
    pub(crate) demo: bool,
    /// How many attempts a job of a Gearman client has; -1 for as many as it takes
    #[arg(long, value_name = "N", default_value_t = -1, allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(-1..=1_000_000), help_heading = "Gearman")]
    pub(crate) job_retries: i64,
    /// How many sleeping workers a job wakes at first; 0 for all of them
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Gearman")]
    pub(crate) worker_wakeup: usize,
    /// Tell all clients why jobs fail, and not only those who ask for it
    #[arg(long, help_heading = "Gearman")]
    pub(crate) exceptions: bool,
    /// Let administrators stop the server with `shutdown`
    #[arg(long, help_heading = "Gearman")]
    pub(crate) allow_shutdown: bool,
    /// The host that handles name [default: this machine's name]
    #[arg(long, value_name = "NAME", help_heading = "Gearman")]
    pub(crate) handle_host: Option<String>,
    /// Speak nothing but TLS there, with this certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "gearman_tls_key", help_heading = "Gearman")]
    pub(crate) gearman_tls_cert: Option<PathBuf>,
    /// The certificate's key (PEM)
    #[arg(long, value_name = "FILE", requires = "gearman_tls_cert", help_heading = "Gearman")]
    pub(crate) gearman_tls_key: Option<PathBuf>,
    /// Let only those in whose certificate one of these has signed (PEM)
    #[arg(long, value_name = "FILE", requires = "gearman_tls_cert", help_heading = "Gearman")]
    pub(crate) gearman_tls_ca: Option<PathBuf>,
    /// Write down what becomes of every job, in a database: sqlite:FILE
    #[arg(long, value_name = "URL", env = "GEARTRAIN_RESULT_LOG", hide_env_values = true)]
    pub(crate) result_log: Option<String>,
    /// Remove attempts from there that ended longer ago, like 30d [default: never]
    #[arg(
        long,
        value_name = "DURATION",
        env = "GEARTRAIN_RESULT_LOG_KEEP",
        value_parser = retention,
        requires = "result_log"
    )]
    pub(crate) result_log_keep: Option<Duration>,
    /// How to write the log, which goes to stderr
    #[arg(long, value_name = "FORM", env = "GEARTRAIN_LOG_FORM", default_value = "human")]
    pub(crate) log_form: LogForm,
    /// What to log: error, warn, info, debug or trace, or a filter like info,geartrain_resp=debug
    #[arg(long, value_name = "FILTER", env = "GEARTRAIN_LOG", default_value = "info")]
    pub(crate) log: String,
    /// Take clock offsets from standard input, and stop when that ends: what `geartrain drill` starts
    #[arg(long, hide = true)]
    pub(crate) drill: bool,
}

/// Where something is spoken, if it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AddressOrOff(pub(crate) Option<std::net::SocketAddr>);

fn address_or_off(text: &str) -> Result<AddressOrOff, String> {
    if text == "off" {
        return Ok(AddressOrOff(None));
    }
    let address = text.parse().map_err(|_| "give an address like 127.0.0.1:4730, or off".to_owned())?;
    Ok(AddressOrOff(Some(address)))
}

const SERVER_EXAMPLES: &str = "Examples:
  geartrain server                                        # keeps jobs in ./geartrain-data
  geartrain server --data /var/lib/geartrain --resp 0.0.0.0:7411 --password secret
  geartrain server --store redis://cache:6379             # a front for a Redis
  geartrain server --result-log sqlite:./results.db       # what `geartrain log` reads
  geartrain server --demo                                 # something to look at";

/// How the log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogForm {
    /// Lines for people
    Human,
    /// A line of JSON each
    Json,
}

/// Which script to print.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  sha=$(geartrain lua | redis-cli -x SCRIPT LOAD)\n  redis-cli EVALSHA $sha 0 put $(date +%s) w1 mail j1 welcome '{}' 0"
)]
pub(crate) struct LuaArgs {
    /// The library part alone, to build scripts of your own with
    #[arg(long)]
    pub(crate) lib: bool,
}

/// The commands as the help groups them.
const GROUPS: [(&str, &[&str]); 8] = [
    ("Begin", &["server"]),
    ("Put work in", &["put", "recur"]),
    (
        "Work on it",
        &["pop", "complete", "fail", "retry", "heartbeat", "progress", "chunk", "hand-back", "announce"],
    ),
    (
        "Look",
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
    ("Look after it", &["gone", "tick", "backup", "check"]),
    ("This command", &["lua", "bench", "drill", "completions", "version"]),
];

const EXAMPLES: &str = r#"Examples:
  geartrain put mail welcome '{"to":"a@example.org"}'     # prints the job's jid
  geartrain queues
  geartrain pop mail --worker w1                          # prints the job, and the token of its lock
  geartrain complete JID --token TOKEN

Exit codes: 0 done, 1 the queue refused, 2 bad usage, 3 no answer from the queue, 4 timed out.
`geartrain COMMAND --help` says more about each command."#;

#[derive(Debug, Args)]
#[command(
    override_usage = "geartrain put [OPTIONS] <QUEUE> <KLASS> [PAYLOAD]\n       geartrain put [QUEUE] [KLASS] --batch <FILE>\n       geartrain put --resubmit [--all] --record <FILE>",
    after_help = r#"Examples:
  geartrain put mail welcome '{"to":"a"}' --priority 5 --tag new
  geartrain put mail welcome @letter.json --in 1h30m
  geartrain put reports nightly --every 1d --at 2026-04-01T03:00:00Z
  geartrain put mail --batch jobs.ndjson
  geartrain put reports monthly --unique 2026-04 --timeout 10m --backoff 10s..1h --keep-result
  geartrain put thumbnails make @cat.jpg --wait 30s > cat-small.jpg
  geartrain put --resubmit --record jobs.record --url gearman://a,b    # a is lost: its jobs go to b

A payload that begins with @, or is just -, can be given through standard input.

A backoff is a wait, as in 30s, or a first and a longest one: 10s..1h doubles from 10s up to 1h. 10sx3..1h
triples, and +-0.2 behind it makes each wait up to a fifth longer or shorter, as chance has it.

--batch takes one JSON object per line. All but klass may be left out, and klass too if it is given as KLASS:
  {"klass":"welcome","payload":{"to":"a"},"priority":5,"in":"1h","tags":["new"],"jid":"j1"}
  keys: queue klass payload priority in at tags depends retries jid replace
        unique timeout expires backoff crashes roll_call keep_result
A payload in quotes is stored as the text within them, {"$bytes":"<base64>"} as those bytes,
other JSON as it is written."#
)]
pub(crate) struct PutArgs {
    /// Where the job goes
    #[arg(required_unless_present_any = ["batch", "resubmit"])]
    pub(crate) queue: Option<QueueName>,
    /// What code runs it
    #[arg(required_unless_present_any = ["batch", "resubmit"])]
    pub(crate) klass: Option<Klass>,
    /// What that code is given: text, @FILE, or - for standard input [default: nothing]
    #[arg(conflicts_with = "batch", allow_negative_numbers = true)]
    pub(crate) payload: Option<Source>,
    #[command(flatten)]
    pub(crate) when: WhenArgs,
    /// Make one such job after another, so far apart; prints the recurring job's jid
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, conflicts_with_all = ["batch", "depends", "replace"])]
    pub(crate) every: Option<Duration>,
    /// How much it matters: higher goes first [default: 0]
    #[arg(long, value_name = "N", value_parser = priority, allow_negative_numbers = true, conflicts_with = "batch")]
    pub(crate) priority: Option<Priority>,
    /// A word to find it by; may be repeated
    #[arg(long = "tag", value_name = "TAG", conflicts_with = "batch")]
    pub(crate) tags: Vec<Tag>,
    /// A job that must be complete before this one runs; may be repeated
    #[arg(long, value_name = "JID", conflicts_with = "batch")]
    pub(crate) depends: Vec<Jid>,
    /// How often it may be tried again [default: 5]
    #[arg(long, value_name = "N", conflicts_with = "batch")]
    pub(crate) retries: Option<u32>,
    /// Its id; a job that has it already is left alone [default: a new one]
    #[arg(long, conflicts_with = "batch")]
    pub(crate) jid: Option<Jid>,
    /// Put the job of that --jid again, wherever it stands, instead of leaving it alone
    #[arg(long, requires = "jid", conflicts_with = "batch")]
    pub(crate) replace: bool,
    #[command(flatten)]
    pub(crate) terms: TermsArgs,
    /// Wait for what comes out of it, and print that; for ever if no duration is given
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, num_args = 0..=1, conflicts_with_all = ["batch", "every"])]
    pub(crate) wait: Option<Option<Duration>>,
    /// Put many: one JSON object per line of FILE, or of standard input if it is -
    #[arg(long, value_name = "FILE")]
    pub(crate) batch: Option<PathBuf>,
    /// Write down what is put before it is sent, and keep it there until it is known to be done
    #[arg(long, value_name = "FILE", help_heading = "Gearman servers")]
    pub(crate) record: Option<PathBuf>,
    /// Put again what is in the record and was lost with its server
    #[arg(long, conflicts_with_all = ["queue", "klass", "payload", "batch", "every", "wait", "jid", "delay", "at", "priority", "tags", "depends", "retries", "unique", "timeout", "expires", "backoff", "crashes", "roll_call", "keep_result"], help_heading = "Gearman servers")]
    pub(crate) resubmit: bool,
    /// With --resubmit: also what a server does not know though it is there
    #[arg(long, requires = "resubmit", help_heading = "Gearman servers")]
    pub(crate) all: bool,
}

/// What a put may ask for beyond Qless.
#[derive(Debug, Default, Args)]
pub(crate) struct TermsArgs {
    /// Join the unfinished job of the queue that has this key, if there is one
    #[arg(long, value_name = "KEY", value_parser = unique_key(), conflicts_with_all = ["batch", "every"])]
    pub(crate) unique: Option<UniqueKey>,
    /// How long one attempt may take, however often its worker sends heartbeats
    #[arg(long, value_name = "DURATION", value_parser = span, allow_negative_numbers = true, conflicts_with_all = ["batch", "every"])]
    pub(crate) timeout: Option<Seconds>,
    /// Do not start it after then, but fail it: 1h from now, or a moment as in --at
    #[arg(long, value_name = "WHEN", value_parser = moment::parse_ahead, allow_negative_numbers = true, conflicts_with_all = ["batch", "every"])]
    pub(crate) expires: Option<Timestamp>,
    /// How long a retry waits: 30s, or from 10s to 1h as in 10s..1h [default: not at all]
    #[arg(long, value_name = "SPEC", value_parser = backoff::parse, conflicts_with_all = ["batch", "every"])]
    pub(crate) backoff: Option<Backoff>,
    /// Set it aside when so many of its workers have died [default: 3, or the option crashes-max]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), conflicts_with_all = ["batch", "every"])]
    pub(crate) crashes: Option<u32>,
    /// Refuse the job if no worker has announced that it can do it
    #[arg(long, conflicts_with_all = ["batch", "every"])]
    pub(crate) roll_call: bool,
    /// Keep what comes out of it for `geartrain result`; 25h if no duration is given
    #[arg(long, value_name = "DURATION", value_parser = span, allow_negative_numbers = true, num_args = 0..=1, conflicts_with_all = ["batch", "every"])]
    pub(crate) keep_result: Option<Option<Seconds>>,
}

#[derive(Debug, Args)]
pub(crate) struct WhenArgs {
    /// Not before so long from now: 90, 90s, 1h30m, 250ms
    #[arg(long = "in", value_name = "DURATION", value_parser = duration::parse, conflicts_with_all = ["at", "batch"])]
    pub(crate) delay: Option<Duration>,
    /// Not before then: 2026-04-01T12:00:00Z, or seconds since the epoch
    #[arg(long, value_name = "WHEN", value_parser = moment::parse, allow_negative_numbers = true, conflicts_with = "batch")]
    pub(crate) at: Option<Timestamp>,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  geartrain pop mail
  geartrain pop mail thumbnails --worker w1 --count 10 --order round-robin --wait 30s
  geartrain pop mail --json | jq -r '.[0].token'

Finding nothing is no error: nothing is printed (with --json, an empty list) and the exit code is 0.
With --wait it is 4, so that a script can tell.")]
pub(crate) struct PopArgs {
    /// Where from
    #[arg(required = true, value_name = "QUEUE")]
    pub(crate) queues: Vec<QueueName>,
    /// Who works on them [default: <hostname>-<pid>]
    #[arg(long)]
    pub(crate) worker: Option<WorkerName>,
    /// How many, at most
    #[arg(long, value_name = "N", value_parser = at_least_one, default_value = "1")]
    pub(crate) count: Count,
    /// If there are none, wait so long for one
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) wait: Option<Duration>,
    /// Which queue's jobs go first
    #[arg(long, value_enum, default_value_t = OrderArg::Strict)]
    pub(crate) order: OrderArg,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OrderArg {
    /// Those of the first queue that has any
    Strict,
    /// One from each queue in turn
    RoundRobin,
    /// Those that matter most, in whichever queue
    Priority,
}

/// Who says that they hold the job.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct HolderArgs {
    /// The token that pop printed with the job
    #[arg(long)]
    pub(crate) token: Option<Token>,
    /// The worker that popped it, instead of the token
    #[arg(long)]
    pub(crate) worker: Option<WorkerName>,
}

#[derive(Debug, Args)]
#[command(after_help = r#"Examples:
  geartrain complete JID --token 1.0
  geartrain complete JID --token 1.0 --result '{"sent":true}'
  geartrain complete JID --token 1.0 --next upload --delay 5m

A result goes to those who wait for the job, and is kept if it was put with --keep-result."#)]
pub(crate) struct CompleteArgs {
    /// The job
    pub(crate) jid: Jid,
    #[command(flatten)]
    pub(crate) holder: HolderArgs,
    /// A new payload: text, @FILE, or - for standard input
    #[arg(long)]
    pub(crate) payload: Option<Source>,
    /// The queue that the job goes on to
    #[arg(long, value_name = "QUEUE")]
    pub(crate) next: Option<QueueName>,
    /// Not before so long from now, there
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, requires = "next")]
    pub(crate) delay: Option<Duration>,
    /// A job that must be complete before this one runs there; may be repeated
    #[arg(long, value_name = "JID", requires = "next")]
    pub(crate) depends: Vec<Jid>,
    /// What came out: text, @FILE, or - for standard input [default: nothing]
    #[arg(long, conflicts_with = "next")]
    pub(crate) result: Option<Source>,
    /// A number that says how it went [default: 0 if it is complete, 1 if it failed]
    #[arg(long, value_name = "N", conflicts_with = "next", allow_negative_numbers = true)]
    pub(crate) code: Option<i32>,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  geartrain fail JID smtp 'the server said 451' --token 1.0")]
pub(crate) struct FailArgs {
    /// The job
    pub(crate) jid: Jid,
    /// The kind of failure: a word that many failures share
    pub(crate) group: Group,
    /// What went wrong this time
    pub(crate) message: String,
    #[command(flatten)]
    pub(crate) holder: HolderArgs,
    /// A new payload: text, @FILE, or - for standard input
    #[arg(long)]
    pub(crate) payload: Option<Source>,
    /// What came out of it all the same: text, @FILE, or - for standard input [default: nothing]
    #[arg(long)]
    pub(crate) result: Option<Source>,
    /// A number that says how it went [default: 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) code: Option<i32>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  geartrain retry JID --token 1.0 --delay 5m --group smtp --message 'the server said 451'"
)]
pub(crate) struct RetryArgs {
    /// The job
    pub(crate) jid: Jid,
    #[command(flatten)]
    pub(crate) holder: HolderArgs,
    /// Not before so long from now [default: as the job's backoff says, or else at once]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) delay: Option<Duration>,
    /// The kind of failure, if that is why
    #[arg(long, requires = "message")]
    pub(crate) group: Option<Group>,
    /// What went wrong this time
    #[arg(long, requires = "group")]
    pub(crate) message: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct HeartbeatArgs {
    /// The job
    pub(crate) jid: Jid,
    #[command(flatten)]
    pub(crate) holder: HolderArgs,
    /// A new payload: text, @FILE, or - for standard input
    #[arg(long)]
    pub(crate) payload: Option<Source>,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:
  geartrain progress JID 3/10 --token 1.0 --left 90

Those who wait for the job are told, and `geartrain status` shows it. It is not a heartbeat.")]
pub(crate) struct ProgressArgs {
    /// The job
    pub(crate) jid: Jid,
    /// How much is done, of how much: 3/10
    #[arg(value_name = "N/M", value_parser = portion)]
    pub(crate) portion: Portion,
    #[command(flatten)]
    pub(crate) holder: HolderArgs,
    /// How many seconds it will still take
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    pub(crate) left: Option<u32>,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:
  geartrain chunk JID @part-1 --token 1.0

What is sent is not kept: only those who wait at that moment get it. It is not a heartbeat.")]
pub(crate) struct ChunkArgs {
    /// The job
    pub(crate) jid: Jid,
    /// A part of what comes out of it: text, @FILE, or - for standard input
    #[arg(allow_negative_numbers = true)]
    pub(crate) data: Source,
    /// It is something that somebody should look at, and not part of what comes out
    #[arg(long)]
    pub(crate) warning: bool,
    #[command(flatten)]
    pub(crate) holder: HolderArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "For a worker that is interrupted: no retry is used up. `geartrain retry` is for work that went wrong."
)]
pub(crate) struct HandBackArgs {
    /// The job
    pub(crate) jid: Jid,
    #[command(flatten)]
    pub(crate) holder: HolderArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  geartrain announce w1 mail thumbnails:make
  geartrain announce w1 reports --timeout 10m --only
  geartrain announce w1 mail --cannot

It counts until the worker is gone, or has shown no sign of life for a minute.")]
pub(crate) struct AnnounceArgs {
    /// The worker
    pub(crate) worker: WorkerName,
    /// A queue whose jobs it can do; of one klass only, if that is given
    #[arg(value_name = "QUEUE[:KLASS]", value_parser = ability, required_unless_present = "only")]
    pub(crate) abilities: Vec<Capability>,
    /// It can do these, and nothing that it announced before
    #[arg(long)]
    pub(crate) only: bool,
    /// It cannot do these any more
    #[arg(long, conflicts_with_all = ["only", "timeout"])]
    pub(crate) cannot: bool,
    /// How long it takes for one of them at the most
    #[arg(long, value_name = "DURATION", value_parser = span)]
    pub(crate) timeout: Option<Seconds>,
}

#[derive(Debug, Args)]
#[command(
    override_usage = "geartrain status [OPTIONS] <JID>\n       geartrain status [OPTIONS] --unique <KEY> <QUEUE>",
    after_help = "Examples:\n  geartrain status JID\n  geartrain status --unique 2026-04 reports"
)]
pub(crate) struct StatusArgs {
    /// The job; with --unique, its queue
    #[arg(value_name = "JID|QUEUE")]
    pub(crate) name: String,
    /// The unfinished job of the queue that has this key
    #[arg(long, value_name = "KEY", value_parser = unique_key())]
    pub(crate) unique: Option<UniqueKey>,
}

#[derive(Debug, Args)]
#[command(after_help = "The exit code is 1 if there are none.")]
pub(crate) struct RollCallArgs {
    /// The queue that the job would be in
    pub(crate) queue: QueueName,
    /// What code would run it [default: anything]
    pub(crate) klass: Option<Klass>,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  geartrain events
  geartrain events --after 41 --count 10 --json

There is one line for each event, its position first. Ctrl-C ends it, and --after with the last position that
was printed goes on from there: events are kept from the first time that somebody listens.")]
pub(crate) struct EventsArgs {
    /// Begin with what happened after this position, if it is still kept [default: with what happens now]
    #[arg(long, value_name = "POSITION", allow_negative_numbers = true)]
    pub(crate) after: Option<u64>,
    /// End after so many [default: never]
    #[arg(long, value_name = "N", value_parser = limit, allow_negative_numbers = true)]
    pub(crate) count: Option<u64>,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  geartrain limits mail
  geartrain limits mail --max 10000 --rate 100/1m+20
  geartrain limits mail --max-at 0=10000 --max-at 10=12000
  geartrain limits mail --none

A put into a queue that is full is refused. Limits that are set replace all those from before.
For a put, the highest --max-at that is not above its priority counts, or else the lowest, so that there is
room for what matters most; with --max too, the smaller of both.")]
pub(crate) struct LimitsArgs {
    /// The queue
    pub(crate) queue: QueueName,
    /// The most unfinished jobs
    #[arg(long, value_name = "N", value_parser = limit, allow_negative_numbers = true)]
    pub(crate) max: Option<u64>,
    /// The most unfinished jobs, for puts of at least this priority; may be repeated
    #[arg(long, value_name = "PRIORITY=N", value_parser = level, allow_hyphen_values = true)]
    pub(crate) max_at: Vec<(Priority, u64)>,
    /// How often jobs may start: 10/s, 100/1m; +20 behind it lets 20 start at once after a pause
    #[arg(long, value_name = "N/DURATION[+BURST]", value_parser = rate::parse, allow_hyphen_values = true)]
    pub(crate) rate: Option<Rate>,
    /// Take all limits away
    #[arg(long, conflicts_with_all = ["max", "max_at", "rate"])]
    pub(crate) none: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:
  geartrain gone w1 --evidence 'killed by signal 9'

Each job that it holds goes back to the front of its queue, at the price of a retry, and counts a crash. One whose
workers have died too often is set aside in the group crashed-QUEUE.")]
pub(crate) struct GoneArgs {
    /// The worker
    pub(crate) worker: WorkerName,
    /// What is known of its death; `geartrain get` and `geartrain why` show it
    #[arg(long, value_name = "TEXT")]
    pub(crate) evidence: Option<String>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "A queue does this by itself while a process has it open. To do it more often does no harm."
)]
pub(crate) struct TickArgs {
    /// How much to do at most
    #[arg(long, value_name = "N", value_parser = at_least_one, default_value = "1000")]
    pub(crate) count: Count,
}

#[derive(Debug, Args)]
pub(crate) struct JidArg {
    /// The job
    pub(crate) jid: Jid,
}

#[derive(Debug, Args)]
pub(crate) struct JidsArg {
    /// The jobs
    #[arg(required = true, value_name = "JID")]
    pub(crate) jids: Vec<Jid>,
}

#[derive(Debug, Args)]
pub(crate) struct QueuesArg {
    /// The queues
    #[arg(required = true, value_name = "QUEUE")]
    pub(crate) queues: Vec<QueueName>,
}

/// Which part of a list.
#[derive(Debug, Args)]
pub(crate) struct PageArgs {
    /// How many to show
    #[arg(long, value_name = "N", value_parser = count, default_value = "25")]
    pub(crate) limit: Count,
    /// How many to leave out first
    #[arg(long, value_name = "N", default_value = "0")]
    pub(crate) offset: usize,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  geartrain jobs --state scheduled --queue mail
  geartrain jobs --tag new --limit 100

Without --state those that run come first, then stalled, waiting, scheduled, depends, failed and complete ones;
with --tag, those that got the tag first.")]
pub(crate) struct JobsArgs {
    /// Only those that stand there
    #[arg(long, value_enum)]
    pub(crate) state: Option<StateArg>,
    /// Only those in this queue; complete ones are in none
    #[arg(long)]
    pub(crate) queue: Option<QueueName>,
    /// Only those that have this tag
    #[arg(long)]
    pub(crate) tag: Option<Tag>,
    #[command(flatten)]
    pub(crate) page: PageArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StateArg {
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
    pub(crate) queue: QueueName,
    /// How many, at most
    #[arg(long, value_name = "N", value_parser = at_least_one, default_value = "1")]
    pub(crate) count: Count,
}

#[derive(Debug, Args)]
pub(crate) struct QueuesArgs {
    /// Only this one
    pub(crate) queue: Option<QueueName>,
}

#[derive(Debug, Args)]
pub(crate) struct WorkersArgs {
    /// List the jobs of this one
    pub(crate) name: Option<WorkerName>,
    #[command(flatten)]
    pub(crate) page: PageArgs,
}

#[derive(Debug, Args)]
pub(crate) struct StatsArgs {
    /// The queue
    pub(crate) queue: QueueName,
    /// The day, in UTC: 2026-04-01, today or yesterday
    #[arg(value_parser = moment::parse_day, default_value = "today")]
    pub(crate) day: Timestamp,
}

#[derive(Debug, Args)]
pub(crate) struct FailedArgs {
    /// List the jobs of this group, the latest first
    pub(crate) group: Option<Group>,
    #[command(flatten)]
    pub(crate) page: PageArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "A job that is running is taken away from its worker. One that is complete runs again, in the queue that it was in last."
)]
pub(crate) struct RequeueArgs {
    /// The job
    pub(crate) jid: Jid,
    /// Another queue
    #[arg(long)]
    pub(crate) queue: Option<QueueName>,
    /// Not before so long from now
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) delay: Option<Duration>,
    /// Another klass
    #[arg(long)]
    pub(crate) klass: Option<Klass>,
    /// Another payload: text, @FILE, or - for standard input
    #[arg(long)]
    pub(crate) payload: Option<Source>,
}

#[derive(Debug, Args)]
pub(crate) struct UnfailArgs {
    /// The kind of failure
    pub(crate) group: Group,
    /// The queue that they go to [default: the one that each was in]
    #[arg(long)]
    pub(crate) queue: Option<QueueName>,
    /// How many, at most, those that failed first going first [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct PriorityArgs {
    /// The job
    pub(crate) jid: Jid,
    /// How much it matters from now on: higher goes first
    #[arg(value_name = "N", value_parser = priority, allow_negative_numbers = true)]
    pub(crate) priority: Priority,
}

#[derive(Debug, Args)]
pub(crate) struct TagArgs {
    /// The job
    pub(crate) jid: Jid,
    /// The tags
    #[arg(required = true, value_name = "TAG")]
    pub(crate) tags: Vec<Tag>,
}

#[derive(Debug, Args)]
pub(crate) struct DependArgs {
    /// The job that waits
    pub(crate) jid: Jid,
    /// Those that it waits for
    #[arg(required = true, value_name = "ON")]
    pub(crate) on: Vec<Jid>,
}

#[derive(Debug, Args)]
pub(crate) struct UndependArgs {
    /// The job that waits
    pub(crate) jid: Jid,
    /// Those that it waits for no longer
    #[arg(required_unless_present = "all", value_name = "ON")]
    pub(crate) on: Vec<Jid>,
    /// It waits for none any more
    #[arg(long, conflicts_with = "on")]
    pub(crate) all: bool,
}

#[derive(Debug, Args)]
#[command(
    override_usage = "geartrain log [OPTIONS]\n       geartrain log <JID> <MESSAGE> [--data <JSON>]",
    after_help = "Examples:
  geartrain log --since 2h --failed
  geartrain log --queue mail --since 2026-04-01T00:00:00Z --limit 1000 --json
  geartrain log JID 'half way' --data '{\"page\":7}'

The result log is what `geartrain server --result-log sqlite:FILE` writes: every attempt at every job, when it
began and ended, how, and what came out. The newest are shown, the last one last."
)]
pub(crate) struct LogArgs {
    /// The job to whose history something is added
    #[arg(requires = "message")]
    pub(crate) jid: Option<Jid>,
    /// What happened
    #[arg(requires = "jid")]
    pub(crate) message: Option<String>,
    /// A JSON object with more about it
    #[arg(long, value_name = "JSON", value_parser = json_object, requires = "jid")]
    pub(crate) data: Option<String>,
    /// Only attempts in this queue
    #[arg(long, conflicts_with = "jid")]
    pub(crate) queue: Option<QueueName>,
    /// Only those for this klass
    #[arg(long, conflicts_with = "jid")]
    pub(crate) klass: Option<Klass>,
    /// Only those at this job
    #[arg(long = "jid", value_name = "JID", conflicts_with = "jid")]
    pub(crate) only: Option<Jid>,
    /// Only those that ended, or began, since a moment, or so long ago like 2h
    #[arg(long, value_name = "WHEN", value_parser = moment::parse_ago, conflicts_with = "jid")]
    pub(crate) since: Option<Timestamp>,
    /// Only those that did not go well: failed, retried, lost, timed out, crashed, or expired
    #[arg(long, conflicts_with = "jid")]
    pub(crate) failed: bool,
    /// How many to show
    #[arg(long, value_name = "N", value_parser = count, default_value = "25", conflicts_with = "jid")]
    pub(crate) limit: Count,
    /// Show how large the log is, and nothing else
    #[arg(long, conflicts_with_all = ["jid", "queue", "klass", "only", "since", "failed"])]
    pub(crate) size: bool,
    /// Where the result log is: sqlite:FILE
    #[arg(long, value_name = "URL", env = "GEARTRAIN_RESULT_LOG", hide_env_values = true)]
    pub(crate) result_log: Option<String>,
}

/// What to do about recurring jobs.
#[derive(Debug, Subcommand)]
pub(crate) enum RecurVerb {
    /// Make a recurring job, or replace the one of that --jid
    #[command(
        after_help = "Example:\n  geartrain recur add reports nightly --every 1d --at 2026-04-01T03:00:00Z --jid nightly"
    )]
    Add(RecurAddArgs),
    /// List the recurring jobs
    Ls {
        /// Only those of this queue
        #[arg(long)]
        queue: Option<QueueName>,
        #[command(flatten)]
        page: PageArgs,
    },
    /// Show a recurring job
    Get(JidArg),
    /// Change a recurring job: what you give, and nothing else
    Edit(RecurEditArgs),
    /// Remove recurring jobs; what they made stays
    Rm(JidsArg),
}

#[derive(Debug, Args)]
pub(crate) struct RecurAddArgs {
    /// Where its jobs go
    pub(crate) queue: QueueName,
    /// What code runs them
    pub(crate) klass: Klass,
    /// What that code is given: text, @FILE, or - for standard input [default: nothing]
    #[arg(allow_negative_numbers = true)]
    pub(crate) payload: Option<Source>,
    /// How long from one to the next
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) every: Duration,
    /// So long until the first [default: now]
    #[arg(long = "in", value_name = "DURATION", value_parser = duration::parse, conflicts_with = "at")]
    pub(crate) delay: Option<Duration>,
    /// When the first: 2026-04-01T12:00:00Z, or seconds since the epoch
    #[arg(long, value_name = "WHEN", value_parser = moment::parse, allow_negative_numbers = true)]
    pub(crate) at: Option<Timestamp>,
    /// How much they matter: higher goes first [default: 0]
    #[arg(long, value_name = "N", value_parser = priority, allow_negative_numbers = true)]
    pub(crate) priority: Option<Priority>,
    /// A word to find them by; may be repeated
    #[arg(long = "tag", value_name = "TAG")]
    pub(crate) tags: Vec<Tag>,
    /// How often each may be tried again [default: 5]
    #[arg(long, value_name = "N")]
    pub(crate) retries: Option<u32>,
    /// How many missed ones are made up for; 0 for all of them
    #[arg(long, value_name = "N", default_value = "0")]
    pub(crate) backlog: u32,
    /// Its id; its jobs are called <JID>-<number> [default: a new one]
    #[arg(long)]
    pub(crate) jid: Option<Jid>,
}

#[derive(Debug, Args)]
pub(crate) struct RecurEditArgs {
    /// The recurring job
    pub(crate) jid: Jid,
    /// How long from one to the next; the next one moves by the difference
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) every: Option<Duration>,
    /// Where its jobs go
    #[arg(long)]
    pub(crate) queue: Option<QueueName>,
    /// What code runs them
    #[arg(long)]
    pub(crate) klass: Option<Klass>,
    /// What that code is given: text, @FILE, or - for standard input
    #[arg(long)]
    pub(crate) payload: Option<Source>,
    /// How much they matter: higher goes first
    #[arg(long, value_name = "N", value_parser = priority, allow_negative_numbers = true)]
    pub(crate) priority: Option<Priority>,
    /// Add a tag; may be repeated
    #[arg(long = "tag", value_name = "TAG")]
    pub(crate) tags: Vec<Tag>,
    /// Remove a tag; may be repeated
    #[arg(long = "untag", value_name = "TAG")]
    pub(crate) untags: Vec<Tag>,
    /// How often each may be tried again
    #[arg(long, value_name = "N")]
    pub(crate) retries: Option<u32>,
    /// How many missed ones are made up for; 0 for all of them
    #[arg(long, value_name = "N")]
    pub(crate) backlog: Option<u32>,
}

/// What to take off the lists.
#[derive(Debug, Subcommand)]
pub(crate) enum ForgetVerb {
    /// Take queues off the list; their jobs stay
    Queue(QueuesArg),
    /// Take workers off the list; their locks stay
    Worker {
        /// The workers
        #[arg(required = true, value_name = "WORKER")]
        workers: Vec<WorkerName>,
    },
}

/// What to do about options.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigVerb {
    /// Print one option, or all of them
    Get {
        /// Which one
        key: Option<String>,
    },
    /// Set an option
    #[command(
        after_help = "Examples:\n  geartrain config set heartbeat 120\n  geartrain config set mail-max-concurrency 4"
    )]
    Set {
        /// Which one
        key: String,
        /// To what
        #[arg(allow_negative_numbers = true)]
        value: String,
    },
    /// Put an option back to its default
    Unset {
        /// Which one
        key: String,
    },
}

#[derive(Debug, Args)]
#[command(after_help = "Example:
  geartrain --url embedded:./geartrain-data backup /mnt/backup/2026-04-01

The copy is a queue like the original: open it with --url embedded:DIR.
While another process has the directory, only that one can make a copy.")]
pub(crate) struct BackupArgs {
    /// Where the copy goes: a directory that is empty, or not there
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  geartrain check --url embedded:./geartrain-data
  geartrain --url embedded:./geartrain-data check --salvage ./saved

No other process may have the directory meanwhile. Nothing in it is changed.
If it is damaged the exit code is 1, and the error says where.")]
pub(crate) struct CheckArgs {
    /// Write what can be saved into this directory, which must be empty, or not there
    #[arg(long, value_name = "OUT")]
    pub(crate) salvage: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  geartrain bench --limits
  geartrain bench --only lifecycles --in-flight 100,1000 --seconds 5
  geartrain bench --url 'embedded:/mnt/disk/bench?sync=never' --json

Without --url it makes a directory under ./target, or else under the system's temporary one, and removes it
afterwards; GEARTRAIN_URL is passed over, so that nobody measures a queue that others use by mistake.
With --url it uses queues called geartrain-bench-... there, and removes the jobs that it did not complete.")]
pub(crate) struct BenchArgs {
    /// How many commands are in flight, for each row of lifecycles [default: 1,10,100,1000,3000]
    #[arg(long, value_name = "N,..", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) in_flight: Vec<u32>,
    /// How many jobs are queued, for what is measured with many of them [default: 1000000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) queued: Option<u64>,
    /// How long each measurement takes [default: 2]
    #[arg(long, value_name = "DURATION", value_parser = window)]
    pub(crate) seconds: Option<Duration>,
    /// Only measure these
    #[arg(long, value_name = "NAME,..", value_enum, value_delimiter = ',')]
    pub(crate) only: Vec<Measure>,
    /// Measure in the same directory what the disk could do without a queue
    #[arg(long)]
    pub(crate) limits: bool,
    /// Measure little and briefly, to see that everything works
    #[arg(long)]
    pub(crate) quick: bool,
    /// Put --queued jobs into this queue, say what that took, and wait: what bench starts itself to do, and kills
    #[arg(long, value_name = "QUEUE", hide = true)]
    pub(crate) fill: Option<QueueName>,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  geartrain drill
  geartrain drill --kills 200 --disk /var/lib
  geartrain drill --kills 0 --freezes 0 --clock-jumps 0 --full-disks 5 --json

For each fault it starts a server in a directory of its own under --disk, lets clients put and work on jobs, injects
the fault again and again, and then compares every acknowledgement with what the server has. The machine's clock is
not touched, and --url is not used. A full disk needs a small file system, which only root can mount.
The exit code is 1 if anything acknowledged was lost or handed out twice; then the directory stays as evidence.")]
pub(crate) struct DrillArgs {
    /// How often the server is killed with SIGKILL and restarted
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) kills: u32,
    /// How often it is stopped with SIGSTOP for two seconds
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) freezes: u32,
    /// How often its disk is filled
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(crate) full_disks: u32,
    /// How often its clock jumps, by up to an hour
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) clock_jumps: u32,
    /// How many clients are at work at once
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    pub(crate) clients: u16,
    /// The directory on the disk to be drilled [default: the system's temporary directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) disk: Option<PathBuf>,
    /// Choose the moments of the faults as an earlier drill did, by the seed that it printed
    #[arg(long, value_name = "SEED")]
    pub(crate) seed: Option<u64>,
}

/// What can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Measure {
    /// Put, pop and complete, by commands in flight
    Lifecycles,
    /// Put alone
    Put,
    /// Pop and complete what was put
    Drain,
    /// Producers and workers at once
    Together,
    /// From put to pop on an idle queue
    Latency,
    /// Memory, and lifecycles with many jobs queued
    Queued,
    /// Opening again with many jobs queued
    Reopen,
}

/// How long a measurement may take.
fn window(text: &str) -> Result<Duration, String> {
    let window = duration::parse(text)?;
    let allowed = Duration::from_millis(1)..=Duration::from_secs(3600);
    if allowed.contains(&window) { Ok(window) } else { Err("it must be 1ms to 1h".to_owned()) }
}

fn priority(text: &str) -> Result<Priority, String> {
    let number: f64 = text.parse().map_err(|_| "it is not a number".to_owned())?;
    Priority::new(number).map_err(|error| error.to_string())
}

fn count(text: &str) -> Result<Count, String> {
    let number: i64 = text.parse().map_err(|_| "it is not a whole number".to_owned())?;
    Count::new(number).map_err(|error| error.to_string())
}

fn at_least_one(text: &str) -> Result<Count, String> {
    let count = count(text)?;
    if count.get() == 0 { Err("it must be at least 1".to_owned()) } else { Ok(count) }
}

/// How long something is kept.
fn retention(text: &str) -> Result<Duration, String> {
    match duration::parse(text)? {
        span if span < Duration::from_secs(1) => {
            Err(format!("{text:?} would remove every attempt at once: give at least 1s"))
        }
        span => Ok(span),
    }
}

/// A span of time that has a beginning and an end: above nothing and up to ten years.
fn span(text: &str) -> Result<Seconds, String> {
    allowed_span(duration::parse(text)?.into())
}

pub(crate) fn allowed_span(span: Seconds) -> Result<Seconds, String> {
    if span > Seconds::ZERO && span <= DURATION_MAX {
        return Ok(span);
    }
    Err("it must be more than nothing and at most ten years".to_owned())
}

/// A limit that lets something through.
fn limit(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(limit) if limit > 0 => Ok(limit),
        _ => Err("it must be a whole number of at least 1".to_owned()),
    }
}

/// Reads a unique key: whatever bytes the argument has.
fn unique_key() -> impl TypedValueParser<Value = UniqueKey> {
    OsStringValueParser::new().try_map(|text| UniqueKey::new(text.as_encoded_bytes()))
}

/// Reads how much is done: `3/10`.
fn portion(text: &str) -> Result<Portion, String> {
    let numbers =
        text.split_once('/').and_then(|(part, whole)| Some((part.parse().ok()?, whole.parse().ok()?)));
    let (part, whole) =
        numbers.ok_or_else(|| format!("{text:?} is not a part of a whole: write it like 3/10"))?;
    Portion::new(part, whole).map_err(|error| error.to_string())
}

/// Reads a limit for a priority: `10=12000`.
fn level(text: &str) -> Result<(Priority, u64), String> {
    let bad = || format!("{text:?} is not a limit of at least 1 for a priority: write it like 10=12000");
    let (at, max) = text.split_once('=').ok_or_else(bad)?;
    Ok((priority(at).map_err(|_| bad())?, limit(max).map_err(|_| bad())?))
}

/// Reads what a worker can do: `mail`, or `mail:welcome`.
fn ability(text: &str) -> Result<Capability, String> {
    let (queue, klass) = match text.split_once(':') {
        Some((queue, klass)) => (queue, Some(klass)),
        None => (text, None),
    };
    let klass = klass.map(Klass::new).transpose().map_err(|error| error.to_string())?;
    let queue = QueueName::new(queue).map_err(|error| error.to_string())?;
    Ok(Capability { queue, klass, attempt_max: None })
}

fn json_object(text: &str) -> Result<String, String> {
    match serde_json::from_str(text) {
        Ok(serde_json::Value::Object(_)) => Ok(text.to_owned()),
        Ok(_) => Err("it is JSON, but not an object like {\"key\":\"value\"}".to_owned()),
        Err(error) => Err(format!("it is not JSON: {error}")),
    }
}

/// The whole command line, with its commands grouped.
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

/// Reads the command line.
pub(crate) fn parse<T: Into<OsString> + Clone>(
    arguments: impl IntoIterator<Item = T>,
) -> Result<Cli, clap::Error> {
    let matches = command().try_get_matches_from(arguments)?;
    let url_given = matches.value_source("url") == Some(ValueSource::CommandLine);
    Ok(Cli { url_given, ..Cli::from_arg_matches(&matches)? })
}

/// Says in one sentence what is wrong with a command line, and where to look.
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
    format!("{sentence}; see `{} --help`", named_command(arguments))
}

/// The command that a command line names, as far as it names one.
fn named_command(arguments: &[OsString]) -> String {
    let mut command = &command();
    let mut name = command.get_name().to_owned();
    for argument in arguments.iter().skip(1) {
        if let Some(found) = argument.to_str().and_then(|argument| command.find_subcommand(argument)) {
            name.push(' ');
            name.push_str(found.get_name());
            command = found;
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn every_command_is_in_one_group() {
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
    fn a_complaint_is_one_sentence_that_says_where_to_look() {
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
}
