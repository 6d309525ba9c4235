//! The server, until it is told to stop; and the script for those who have a Redis instead.

use std::io;

use geartrain::script;
use geartrain_server::{Server, Settings, StartError};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use super::Done;
use crate::args::{LogForm, LuaArgs, ServerArgs};
use crate::failure::Failure;
use crate::output::Output;

/// Serves until SIGTERM or SIGINT.
pub(super) fn server(args: ServerArgs, out: &mut Output<'_>) -> Done {
    let filter = EnvFilter::try_new(&args.log)
        .map_err(|error| Failure::Usage(format!("--log {:?} makes no sense: {error}", args.log)))?;
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(out.err_is_terminal)
        .with_writer(io::stderr);
    match args.log_form {
        LogForm::Human => log.with_target(false).init(),
        LogForm::Json => log.json().init(),
    }
    let kept = args.store.clone().unwrap_or_else(|| args.data.display().to_string());
    let settings = Settings {
        store: args.store.unwrap_or_else(|| format!("embedded:{}?sync={}", args.data.display(), args.sync)),
        resp: args.resp,
        password: args.password,
        insecure: args.insecure,
        allow_flush: args.allow_flush,
        demo: args.demo,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async move {
        // Before the server is ready, so that whoever stops it as soon as it is finds somebody listening.
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let server = Server::start(&settings).await?;
        greet(out, &server, &kept)?;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        server.stop().await;
        Ok(())
    })
}

fn greet(out: &mut Output<'_>, server: &Server, kept: &str) -> io::Result<()> {
    let address = server.resp();
    let url = format!("redis://{address}");
    // The default URL need not be said.
    let with = if address.port() == 7411 { String::new() } else { format!(" --url {url}") };
    let text = format!(
        "geartrain {} is ready. Jobs are kept in {kept}.
  RESP  {url}   for Qless clients, the geartrain command and Rust programs
Try:  geartrain{with} put mail welcome '{{\"to\":\"ann\"}}'
      geartrain{with} pop mail --worker me
Stop it with Ctrl-C: what was acknowledged stays.",
        env!("CARGO_PKG_VERSION"),
    );
    if out.json {
        out.line(&serde_json::json!({ "ready": true, "resp": address.to_string(), "store": kept }), "")?;
    } else {
        writeln!(out.out, "{text}")?;
    }
    out.out.flush()
}

impl From<StartError> for Failure {
    fn from(error: StartError) -> Failure {
        match error {
            StartError::Store(error) => error.into(),
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
