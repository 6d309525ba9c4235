//! `geartrain server`, and `geartrain lua` for a Redis or Valkey without one.

use std::borrow::Cow;
use std::io::{self, IsTerminal as _, Write as _};

use geartrain::SystemClock;
use geartrain::{Target, script};
use geartrain_json::SettingView;
use geartrain_server::{
    Address, AuditSettings, BadAddress, GearmanSettings, HttpSettings, Server, ServiceManager, Settings,
    StartError, TlsFiles,
};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use super::greeting::Greeting;
use super::{Done, access_key, audit, log};
use crate::duration;
use crate::failure::{Failure, Role};
use crate::output::Output;
use crate::password::{self, Password};
use clap::{Args, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, Args)]
#[command(after_help = SERVER_EXAMPLES)]
pub(crate) struct ServerArgs {
    /// The queue to serve: embedded:DIR, memory:, or a redis:// URL
    #[arg(
        long,
        value_name = "URL",
        env = "GEARTRAIN_STORE",
        hide_env_values = true,
        conflicts_with_all = ["data", "sync"]
    )]
    store: Option<String>,
    /// The directory to store jobs in [default: ./geartrain-data]
    #[arg(long, value_name = "DIR", env = "GEARTRAIN_DATA")]
    data: Option<PathBuf>,
    /// When changes are synced to disk: always, never, or at an interval like 50ms
    #[arg(long, value_name = "MODE", env = "GEARTRAIN_SYNC", default_value = "always")]
    sync: String,
    /// Address for RESP (Qless clients, this command, Rust programs): HOST:PORT or unix:PATH; port 0 picks one
    #[arg(long, value_name = "ADDRESS", env = "GEARTRAIN_RESP", default_value = "127.0.0.1:7411")]
    resp: Address,
    /// Address for Gearman clients and workers, or `off`; port 0 picks a free one
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "GEARTRAIN_GEARMAN",
        default_value = "127.0.0.1:4730",
        value_parser = address_or_off
    )]
    gearman: AddressOrOff,
    /// Address for HTTP, or `off`; port 0 picks a free one
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "GEARTRAIN_HTTP",
        default_value = "127.0.0.1:7410",
        value_parser = address_or_off
    )]
    http: AddressOrOff,
    /// A host name under which HTTP is asked, besides localhost; may be repeated
    #[arg(long, value_name = "NAME")]
    http_host: Vec<String>,
    /// The file of the access keys, which clients need as soon as it exists [default: access-keys in the data
    /// directory]
    #[arg(long, value_name = "FILE", env = "GEARTRAIN_KEYS_FILE")]
    keys_file: Option<PathBuf>,
    /// Record who changed what in this file, or `off` [default: audit.log in the data directory]
    #[arg(long, value_name = "FILE", env = "GEARTRAIN_AUDIT_LOG")]
    audit_log: Option<PathBuf>,
    /// Which actions are recorded
    #[arg(long, value_name = "SCOPE", env = "GEARTRAIN_AUDIT", default_value = "administrative")]
    audit: AuditArg,
    /// Refuse every change, on every port
    #[arg(long, conflicts_with = "demo")]
    read_only: bool,
    /// Listen on addresses that other machines can reach, without requiring a key or encryption
    #[arg(long)]
    insecure: bool,
    /// Allow clients to delete everything with FLUSHDB, and to list keys with KEYS
    #[arg(long)]
    allow_flush: bool,
    /// Submit sample jobs and work on them; in memory, unless --store or --data is given
    #[arg(long)]
    demo: bool,
    /// How many attempts a job from a Gearman client gets; -1 for no limit, except that the tenth timeout
    /// fails it
    #[arg(
        long,
        value_name = "N",
        default_value_t = -1,
        allow_negative_numbers = true,
        value_parser = clap::value_parser!(i64).range(-1..=1_000_000),
        help_heading = "Gearman"
    )]
    job_retries: i64,
    /// How many idle workers a new job wakes up at first; 0 for all of them
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Gearman")]
    worker_wakeup: usize,
    /// Send the reasons of failures to all clients, not only to those that ask for exceptions
    #[arg(long, help_heading = "Gearman")]
    exceptions: bool,
    /// Allow administrators to stop the server with `shutdown`
    #[arg(long, help_heading = "Gearman")]
    allow_shutdown: bool,
    /// The host name in job handles [default: this machine's name]
    #[arg(long, value_name = "NAME", help_heading = "Gearman")]
    handle_host: Option<String>,
    /// Require TLS on the Gearman address, with this certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "gearman_tls_key", help_heading = "Gearman")]
    gearman_tls_cert: Option<PathBuf>,
    /// The private key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "gearman_tls_cert", help_heading = "Gearman")]
    gearman_tls_key: Option<PathBuf>,
    /// Require client certificates signed by one of these authorities (PEM), which gearmand never does
    #[arg(long, value_name = "FILE", requires = "gearman_tls_cert", help_heading = "Gearman")]
    gearman_tls_ca: Option<PathBuf>,
    /// Require TLS on the RESP address, with this certificate (PEM); SIGHUP reads the files again
    #[arg(
        long,
        value_name = "FILE",
        env = "GEARTRAIN_RESP_TLS_CERT",
        requires = "resp_tls_key",
        help_heading = "TLS"
    )]
    resp_tls_cert: Option<PathBuf>,
    /// The private key of the certificate (PEM)
    #[arg(
        long,
        value_name = "FILE",
        env = "GEARTRAIN_RESP_TLS_KEY",
        requires = "resp_tls_cert",
        help_heading = "TLS"
    )]
    resp_tls_key: Option<PathBuf>,
    /// Require client certificates signed by one of these authorities (PEM); without it, clients need none
    #[arg(
        long,
        value_name = "FILE",
        env = "GEARTRAIN_RESP_TLS_CA",
        requires = "resp_tls_cert",
        help_heading = "TLS"
    )]
    resp_tls_ca: Option<PathBuf>,
    /// Require TLS on the HTTP address, with this certificate (PEM)
    #[arg(
        long,
        value_name = "FILE",
        env = "GEARTRAIN_HTTP_TLS_CERT",
        requires = "http_tls_key",
        help_heading = "TLS"
    )]
    http_tls_cert: Option<PathBuf>,
    /// The private key of the certificate (PEM)
    #[arg(
        long,
        value_name = "FILE",
        env = "GEARTRAIN_HTTP_TLS_KEY",
        requires = "http_tls_cert",
        help_heading = "TLS"
    )]
    http_tls_key: Option<PathBuf>,
    /// Require client certificates signed by one of these authorities (PEM); without it, clients need none
    #[arg(
        long,
        value_name = "FILE",
        env = "GEARTRAIN_HTTP_TLS_CA",
        requires = "http_tls_cert",
        help_heading = "TLS"
    )]
    http_tls_ca: Option<PathBuf>,
    /// Record how every attempt ended in a database: sqlite:FILE
    #[arg(long, value_name = "URL", env = "GEARTRAIN_RESULT_LOG", hide_env_values = true)]
    result_log: Option<String>,
    /// How long the result log keeps an attempt after it ended, like 30d [default: for ever]
    #[arg(
        long,
        value_name = "DURATION",
        env = "GEARTRAIN_RESULT_LOG_KEEP",
        value_parser = retention,
        requires = "result_log"
    )]
    result_log_keep: Option<Duration>,
    /// The format of the log on stderr
    #[arg(long, value_name = "FORM", env = "GEARTRAIN_LOG_FORM", default_value = "human")]
    log_form: LogForm,
    /// The log level: error, warn, info, debug or trace, or a filter like info,geartrain_resp=debug
    #[arg(long, value_name = "FILTER", env = "GEARTRAIN_LOG", default_value = "info")]
    log: String,
    /// Log commands that take at least this long, or `off`
    #[arg(
        long,
        value_name = "DURATION",
        env = "GEARTRAIN_LOG_SLOW",
        default_value = "1s",
        value_parser = duration_or_off
    )]
    log_slow: DurationOrOff,
    /// Read clock offsets from standard input and stop at its end: what `geartrain drill` starts
    #[arg(long, hide = true)]
    drill: bool,
}

const SERVER_EXAMPLES: &str = "Examples:
  geartrain server                                        # stores jobs in ./geartrain-data
  geartrain server --resp 0.0.0.0:7411 --resp-tls-cert cert.pem --resp-tls-key key.pem --keys-file keys
  geartrain server --store redis://cache:6379             # in front of a Redis
  geartrain server --result-log sqlite:./results.db       # what `geartrain log` reads
  geartrain server --demo                                 # with sample jobs to look at";

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum AuditArg {
    /// What operators and administrators do, and logins
    Administrative,
    /// Also puts, pops and the reports of workers
    All,
}

/// Where jobs are stored without `--data`.
pub(super) const DATA_DEFAULT: &str = "./geartrain-data";

/// A listening address, or none.
#[derive(Debug, Clone)]
struct AddressOrOff(Option<Address>);

fn address_or_off(text: &str) -> Result<AddressOrOff, String> {
    if text == "off" {
        return Ok(AddressOrOff(None));
    }
    let address = text.parse().map_err(|bad: BadAddress| format!("{bad}, or off"))?;
    Ok(AddressOrOff(Some(address)))
}

/// A threshold, or none.
#[derive(Debug, Clone, Copy)]
struct DurationOrOff(Option<Duration>);

fn duration_or_off(text: &str) -> Result<DurationOrOff, String> {
    if text == "off" { Ok(DurationOrOff(None)) } else { duration::parse(text).map(Some).map(DurationOrOff) }
}

fn retention(text: &str) -> Result<Duration, String> {
    match duration::parse(text)? {
        span if span < Duration::from_secs(1) => {
            Err(format!("{text:?} would remove every attempt at once: give at least 1s"))
        }
        span => Ok(span),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LogForm {
    /// Lines for people
    Human,
    /// One JSON object per line
    Json,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:
  sha=$(geartrain lua | redis-cli -x SCRIPT LOAD)
  redis-cli EVALSHA $sha 0 put $(date +%s) w1 mail j1 welcome '{}' 0")]
pub(crate) struct LuaArgs {
    /// Only the library part, to build your own scripts on
    #[arg(long)]
    lib: bool,
    /// The function library `geartrain_json`, for clients in JSON: pipe it to `redis-cli -x FUNCTION LOAD REPLACE`
    #[arg(long, conflicts_with = "lib")]
    json: bool,
    /// With --json: a hash of the text in the name of the library and its function, so that versions coexist
    #[arg(long, requires = "json")]
    pinned: bool,
}

/// Serves until SIGTERM or SIGINT. The settings in effect are shown to administrators.
pub(super) fn server(
    args: ServerArgs,
    password: Option<Password>,
    in_effect: Vec<SettingView>,
    out: &mut Output<'_>,
) -> Done {
    let bad_filter = |why: &dyn std::fmt::Display| {
        Failure::Usage(format!("--log {:?} is not a log level or filter: {why}", args.log))
    };
    // A bare word would be taken for the name of a module.
    if !args.log.contains('=') && args.log.parse::<LevelFilter>().is_err() {
        return Err(bad_filter(&"use error, warn, info, debug, trace or off"));
    }
    let filter = EnvFilter::try_new(&args.log).map_err(|error| bad_filter(&error))?;
    let to_stderr = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(out.err_is_terminal)
        // A log file on a full disk must not end connections: reporting a failed write on the same stream
        // panics.
        .log_internal_errors(false)
        .with_writer(io::stderr);
    match args.log_form {
        LogForm::Human => to_stderr.with_target(false).init(),
        LogForm::Json => to_stderr.json().init(),
    }
    if let Err(error) = geartrain_server::raise_descriptor_limit() {
        tracing::warn!("cannot raise the limit of open files, so fewer connections are accepted: {error}");
    }
    if let Some(warning) = password.as_ref().and_then(|password| password.warning.as_ref()) {
        tracing::warn!("{warning}");
    }
    let tls_files = |certificate: Option<PathBuf>, key, authorities| {
        certificate.zip(key).map(|(certificate, key)| TlsFiles { certificate, key, authorities })
    };
    let gearman = args.gearman.0.map(|address| GearmanSettings {
        address,
        host: args.handle_host,
        // 0 is one attempt, as in newer versions of gearmand.
        attempts_max: u32::try_from(args.job_retries).ok().map(|attempts| attempts.max(1)),
        wake: args.worker_wakeup,
        exceptions: args.exceptions,
        shutdown: args.allow_shutdown,
        tls: tls_files(args.gearman_tls_cert, args.gearman_tls_key, args.gearman_tls_ca),
    });
    let drill = args.drill;
    let store = match (args.store, args.data) {
        (Some(store), _) => store,
        // A demonstration leaves nothing behind.
        (None, None) if args.demo => "memory:".to_owned(),
        (None, data) => {
            let data = data.unwrap_or_else(|| DATA_DEFAULT.into());
            format!("embedded:{}?sync={}", data.display(), args.sync)
        }
    };
    let directory = match Target::of(&store) {
        Ok(Target::Directory { directory, .. }) => Some(directory),
        _ => None,
    };
    // A path with a typing error must not leave the server open.
    if let Some(file) = args.keys_file.as_deref().filter(|file| !file.exists()) {
        let file = file.display();
        return Err(Failure::Usage(format!(
            "there is no key file {file}: `geartrain key add NAME --role ROLE --keys-file {file}` makes it"
        )));
    }
    let keys = args
        .keys_file
        .or_else(|| password::credential(access_key::FILE_NAME))
        .or_else(|| Some(directory.as_ref()?.join(access_key::FILE_NAME)));
    let audit_log = match args.audit_log {
        Some(file) if file.as_os_str() == "off" => None,
        Some(file) => Some(file),
        None => directory.map(|directory| directory.join(audit::FILE_NAME)),
    };
    let settings = Settings {
        store,
        resp: args.resp,
        resp_tls: tls_files(args.resp_tls_cert, args.resp_tls_key, args.resp_tls_ca),
        gearman,
        http: args.http.0.map(|address| HttpSettings {
            address,
            hosts: args.http_host,
            tls: tls_files(args.http_tls_cert, args.http_tls_key, args.http_tls_ca),
            settings: in_effect,
        }),
        password: password.map(|password| password.text),
        keys,
        audit: audit_log.map(|file| AuditSettings { file, all: args.audit == AuditArg::All }),
        read_only: args.read_only,
        insecure: args.insecure,
        allow_flush: args.allow_flush,
        slow_after: args.log_slow.0,
        demo: args.demo,
        result_log: log::log_target(args.result_log)?,
        result_log_keep: args.result_log_keep,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async move {
        // Before the server reports that it is ready, so that a signal sent right after that is handled.
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hangup = signal(SignalKind::hangup())?;
        let in_terminal = io::stdin().is_terminal();
        let mut server = Server::start(&settings).await?;
        let service_manager = ServiceManager::from_environment();
        print_ready(out, &server, &settings, service_manager.is_some())?;
        if let Some(service_manager) = service_manager {
            server.notify(service_manager);
        }
        let (end_drill, drill_ended) = oneshot::channel();
        if drill {
            std::thread::spawn(move || end_drill.send(follow_drill()));
        }
        tokio::pin!(drill_ended);
        loop {
            tokio::select! {
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
                _ = hangup.recv() => {
                    // The terminal of a server in the foreground was closed.
                    if in_terminal && !io::stdin().is_terminal() {
                        break;
                    }
                    server.reload();
                }
                () = server.shutdown_requested() => break,
                // Without a drill the sender is dropped, and this branch never matches.
                Ok(_) = &mut drill_ended, if drill => break,
            }
        }
        server.stop().await;
        Ok(())
    })
}

/// Sets the clock offsets that a drill sends as `clock SECONDS`, and confirms each. Returns when the drill
/// hangs up.
fn follow_drill() -> io::Result<()> {
    for line in io::stdin().lines() {
        let line = line?;
        if let Some(offset) = line.strip_prefix("clock ").and_then(|seconds| seconds.parse().ok()) {
            SystemClock::set_offset(offset);
            let mut out = io::stdout();
            writeln!(out, "{line}")?;
            out.flush()?;
        }
    }
    Ok(())
}

/// Reports that clients can connect: to people, to scripts, or to the service manager alone.
fn print_ready(
    out: &mut Output<'_>,
    server: &Server,
    settings: &Settings,
    is_service: bool,
) -> io::Result<()> {
    let greeting = Greeting::new(server, settings);
    if out.json {
        let gearman = server.gearman().map(|address| address.to_string());
        let http = server.http().map(|address| address.to_string());
        let ready = serde_json::json!({
            "ready": true, "resp": server.resp().to_string(), "gearman": gearman, "http": http,
            "store": server.target().to_string()
        });
        out.line(&ready, "")?;
    } else if out.width.is_some() {
        write!(out.out, "{greeting}")?;
    } else if !is_service {
        writeln!(out.out, "{}", greeting.line())?;
    }
    out.out.flush()
}

impl From<StartError> for Failure {
    fn from(error: StartError) -> Failure {
        match error {
            StartError::Store(error @ geartrain::Error::Connect { .. }) => {
                Failure::unreachable(&error, Role::Server)
            }
            StartError::Store(error) => error.into(),
            StartError::Log(error) => error.into(),
            StartError::LogThread(ref source) => Failure::Unreachable(format!("{error}: {source}")),
            StartError::Open { .. }
            | StartError::Unencrypted { .. }
            | StartError::TlsOnSocketFile { .. }
            | StartError::Keys(_)
            | StartError::Tls(_) => Failure::Usage(error.to_string()),
            other => Failure::Unreachable(other.to_string()),
        }
    }
}

pub(super) fn lua(args: LuaArgs, out: &mut Output<'_>) -> Done {
    let text = match args {
        LuaArgs { json: true, pinned, .. } => script::json_library(pinned).into(),
        LuaArgs { lib: true, .. } => Cow::Borrowed(script::composable()),
        LuaArgs { .. } => Cow::Borrowed(script::script().text.as_str()),
    };
    Ok(out.out.write_all(text.as_bytes())?)
}
