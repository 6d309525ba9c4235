//! `geartrain server`, and `geartrain lua` for a Redis or Valkey without one.

use std::io::{self, IsTerminal as _, Write as _};

use geartrain::SystemClock;
use geartrain::{Target, script};
use geartrain_server::{
    GearmanSettings, HttpSettings, Server, ServiceManager, Settings, StartError, TlsFiles,
};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use super::{Done, log};
use crate::duration;
use crate::failure::{Failure, Role};
use crate::output::Output;
use crate::password::Password;
use clap::{Args, ValueEnum};
use std::net::SocketAddr;
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
    /// Address for RESP: Qless clients, this command and Rust programs; port 0 picks a free one
    #[arg(long, value_name = "ADDRESS", env = "GEARTRAIN_RESP", default_value = "127.0.0.1:7411")]
    resp: SocketAddr,
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
    /// Listen on addresses that other machines can reach, without requiring a password
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
  geartrain server --data /var/lib/geartrain --resp 0.0.0.0:7411 --password-file secret
  geartrain server --store redis://cache:6379             # in front of a Redis
  geartrain server --result-log sqlite:./results.db       # what `geartrain log` reads
  geartrain server --demo                                 # with sample jobs to look at";

/// A listening address, or none.
#[derive(Debug, Clone, Copy)]
struct AddressOrOff(Option<SocketAddr>);

fn address_or_off(text: &str) -> Result<AddressOrOff, String> {
    if text == "off" {
        return Ok(AddressOrOff(None));
    }
    let address = text.parse().map_err(|_| "give an address like 127.0.0.1:4730, or off".to_owned())?;
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
}

/// Serves until SIGTERM or SIGINT.
pub(super) fn server(args: ServerArgs, password: Option<Password>, out: &mut Output<'_>) -> Done {
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
    let settings = Settings {
        store: match (args.store, args.data) {
            (Some(store), _) => store,
            // A demonstration leaves nothing behind.
            (None, None) if args.demo => "memory:".to_owned(),
            (None, data) => {
                let data = data.unwrap_or_else(|| "./geartrain-data".into());
                format!("embedded:{}?sync={}", data.display(), args.sync)
            }
        },
        resp: args.resp,
        resp_tls: tls_files(args.resp_tls_cert, args.resp_tls_key, args.resp_tls_ca),
        gearman,
        http: args.http.0.map(|address| HttpSettings { address, hosts: args.http_host }),
        password: password.map(|password| password.text),
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
        print_ready(out, &server, &settings)?;
        if let Some(service_manager) = ServiceManager::from_environment() {
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
                    server.reload_certificates();
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

fn print_ready(out: &mut Output<'_>, server: &Server, settings: &Settings) -> io::Result<()> {
    let stored_in = server.target().to_string();
    let address = server.resp();
    let (url, ca) = match &settings.resp_tls {
        None => (format!("redis://{address}"), ""),
        Some(_) => (format!("rediss://{address}"), "?ca=FILE"),
    };
    // The default URL is left out.
    let mut with = match &url[..] {
        "redis://127.0.0.1:7411" => String::new(),
        _ if ca.is_empty() => format!(" --url {url}"),
        _ => format!(" --url '{url}{ca}'"),
    };
    if settings.password.is_some() {
        with.push_str(" --password-file FILE");
    }
    let durable = match server.target() {
        Target::Directory { .. } => ": acknowledged jobs are stored",
        _ => "",
    };
    let (put, pop) = match settings.demo {
        false => ("put mail welcome '{\"to\":\"ann\"}'", "pop mail --worker me"),
        true => ("queues", "events"),
    };
    let demo = if settings.demo { " Sample jobs are running." } else { "" };
    let gearman =
        server.gearman().map(|at| format!("\n  Gearman  {at}   for Gearman clients, workers and gearadmin"));
    let http =
        server.http().map(|at| format!("\n  HTTP     http://{at}   for everything else: docs/http.md"));
    let text = format!(
        "geartrain {} is ready. Jobs are stored in {stored_in}.{demo}
  RESP     {url}   for Qless clients, the geartrain command and Rust programs{}{}
Try:  geartrain{with} {put}
      geartrain{with} {pop}
Stop it with Ctrl-C{durable}.",
        env!("CARGO_PKG_VERSION"),
        gearman.unwrap_or_default(),
        http.unwrap_or_default(),
    );
    if out.json {
        let gearman = server.gearman().map(|address| address.to_string());
        let http = server.http().map(|address| address.to_string());
        let ready = serde_json::json!({
            "ready": true, "resp": address.to_string(), "gearman": gearman, "http": http, "store": stored_in
        });
        out.line(&ready, "")?;
    } else {
        writeln!(out.out, "{text}")?;
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
            StartError::Open { .. } | StartError::Unencrypted { .. } | StartError::Tls(_) => {
                Failure::Usage(error.to_string())
            }
            other => Failure::Unreachable(other.to_string()),
        }
    }
}

pub(super) fn lua(args: LuaArgs, out: &mut Output<'_>) -> Done {
    let text = if args.lib { script::composable() } else { &script::script().text };
    Ok(out.out.write_all(text.as_bytes())?)
}
