//! The server, until it is told to stop; and the script for those who have a Redis instead.

use std::io::{self, Write as _};

use geartrain::SystemClock;
use geartrain::{Target, script};
use geartrain_server::{GearmanSettings, Server, Settings, StartError, TlsFiles};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use super::{Done, log};
use crate::args::{LogForm, LuaArgs, ServerArgs};
use crate::failure::Failure;
use crate::output::Output;

/// Serves until SIGTERM or SIGINT.
pub(super) fn server(args: ServerArgs, out: &mut Output<'_>) -> Done {
    let nonsense =
        |why: &dyn std::fmt::Display| Failure::Usage(format!("--log {:?} makes no sense: {why}", args.log));
    // A word alone would be taken for the name of a part of the program.
    if !args.log.contains('=') && args.log.parse::<LevelFilter>().is_err() {
        return Err(nonsense(&"use error, warn, info, debug, trace or off"));
    }
    let filter = EnvFilter::try_new(&args.log).map_err(|error| nonsense(&error))?;
    let to_stderr = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(out.err_is_terminal)
        // A log file on a full disk must not end connections: reporting a failed write on the same stream panics.
        .log_internal_errors(false)
        .with_writer(io::stderr);
    match args.log_form {
        LogForm::Human => to_stderr.with_target(false).init(),
        LogForm::Json => to_stderr.json().init(),
    }
    if let Err(error) = geartrain_server::raise_descriptor_limit() {
        tracing::warn!("the limit of open files cannot be raised, so fewer connections are taken: {error}");
    }
    let tls = args.gearman_tls_cert.zip(args.gearman_tls_key);
    let tls = tls.map(|(certificate, key)| TlsFiles { certificate, key, authorities: args.gearman_tls_ca });
    let gearman = args.gearman.0.map(|address| GearmanSettings {
        address,
        host: args.handle_host,
        // 0 is one attempt, as in the newer servers of that name.
        attempts_max: u32::try_from(args.job_retries).ok().map(|attempts| attempts.max(1)),
        wake: args.worker_wakeup,
        exceptions: args.exceptions,
        shutdown: args.allow_shutdown,
        tls,
    });
    let drill = args.drill;
    let settings = Settings {
        store: match (args.store, args.data) {
            (Some(store), _) => store,
            // What is only to be looked at leaves nothing behind.
            (None, None) if args.demo => "memory:".to_owned(),
            (None, data) => {
                let data = data.unwrap_or_else(|| "./geartrain-data".into());
                format!("embedded:{}?sync={}", data.display(), args.sync)
            }
        },
        resp: args.resp,
        gearman,
        // An empty one, as of a variable that was not set, is none.
        password: args.password.filter(|password| !password.is_empty()),
        insecure: args.insecure,
        allow_flush: args.allow_flush,
        demo: args.demo,
        result_log: log::place(args.result_log)?,
        result_log_keep: args.result_log_keep,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async move {
        // Before the server is ready, so that whoever stops it as soon as it is finds somebody listening.
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let server = Server::start(&settings).await?;
        greet(out, &server, &settings)?;
        let (end_drill, drill_ended) = oneshot::channel();
        if drill {
            std::thread::spawn(move || end_drill.send(follow_drill()));
        }
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            () = server.asked_to_end() => {}
            // Without a drill the sender is gone, and this branch never wins.
            Ok(_) = drill_ended => {}
        }
        server.stop().await;
        Ok(())
    })
}

/// Sets the clock offsets that a drill sends as `clock SECONDS`, and confirms each. Returns when the drill hangs up.
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

fn greet(out: &mut Output<'_>, server: &Server, settings: &Settings) -> io::Result<()> {
    let kept = server.place().to_string();
    let address = server.resp();
    let password = if settings.password.is_some() { ":PASSWORD@" } else { "" };
    let url = format!("redis://{password}{address}");
    // The default URL need not be said.
    let with = if url == "redis://127.0.0.1:7411" { String::new() } else { format!(" --url {url}") };
    let stays = match server.place() {
        Target::Directory { .. } => ": what was acknowledged stays",
        _ => "",
    };
    let (put, pop) = match settings.demo {
        false => ("put mail welcome '{\"to\":\"ann\"}'", "pop mail --worker me"),
        true => ("queues", "events"),
    };
    let demo = if settings.demo { " A demonstration runs." } else { "" };
    let gearman = server
        .gearman()
        .map(|at| format!("\n  Gearman  {at}   for Gearman's clients, workers and gearadmin"));
    let text = format!(
        "geartrain {} is ready. Jobs are kept in {kept}.{demo}
  RESP     {url}   for Qless clients, the geartrain command and Rust programs{}
Try:  geartrain{with} {put}
      geartrain{with} {pop}
Stop it with Ctrl-C{stays}.",
        env!("CARGO_PKG_VERSION"),
        gearman.unwrap_or_default(),
    );
    if out.json {
        let gearman = server.gearman().map(|address| address.to_string());
        let ready = serde_json::json!({
            "ready": true, "resp": address.to_string(), "gearman": gearman, "store": kept
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
            StartError::Store(error) => error.into(),
            StartError::Log(error) => error.into(),
            StartError::LogThread(ref source) => Failure::Unreachable(format!("{error}: {source}")),
            StartError::Open { .. } => Failure::Usage(error.to_string()),
            StartError::Listen { ref source, .. } => Failure::Unreachable(format!("{error} ({source})")),
            other => Failure::Unreachable(other.to_string()),
        }
    }
}

/// Prints the script.
pub(super) fn lua(args: LuaArgs, out: &mut Output<'_>) -> Done {
    let text = if args.lib { script::composable() } else { &script::script().text };
    Ok(out.out.write_all(text.as_bytes())?)
}
