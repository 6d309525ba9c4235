//! Signals of a worker process, as Qless documents them.

use tokio::signal::unix::{self, SignalKind};

/// What a signal asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    /// SIGTERM, SIGINT: stop, and hand back what takes longer than the grace period. Again: at once.
    Stop,
    /// SIGQUIT: stop when everything that runs has ended.
    StopWhenDone,
    /// SIGUSR1: log what is running.
    Print,
}

/// The signals that this worker listens for.
pub(crate) struct Signals {
    stop: Option<[unix::Signal; 2]>,
    others: Option<[unix::Signal; 3]>,
}

impl Signals {
    /// Listens for all signals of a worker, or for none yet.
    pub(crate) fn new(all: bool) -> std::io::Result<Signals> {
        let mut signals = Signals { stop: None, others: None };
        if all {
            signals.listen_for_stop()?;
            signals.others = Some([
                unix::signal(SignalKind::quit())?,
                unix::signal(SignalKind::user_defined1())?,
                unix::signal(SignalKind::user_defined2())?,
            ]);
        }
        Ok(signals)
    }

    /// Listens for SIGTERM and SIGINT from now on.
    pub(crate) fn listen_for_stop(&mut self) -> std::io::Result<()> {
        if self.stop.is_none() {
            let (term, int) = (SignalKind::terminate(), SignalKind::interrupt());
            self.stop = Some([unix::signal(term)?, unix::signal(int)?]);
        }
        Ok(())
    }

    /// Waits for a signal. Cancel safe.
    pub(crate) async fn next(&mut self) -> Signal {
        let Signals { stop, others } = self;
        let stopped = async {
            match stop {
                Some([term, int]) => tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} },
                None => std::future::pending().await,
            }
        };
        let other = async {
            let Some([quit, print, debug]) = others else { return std::future::pending().await };
            loop {
                tokio::select! {
                    _ = quit.recv() => return Signal::StopWhenDone,
                    _ = print.recv() => return Signal::Print,
                    // A debugger in Qless's Python worker.
                    _ = debug.recv() => tracing::info!("SIGUSR2 is ignored: there is no debugger"),
                }
            }
        };
        tokio::select! { () = stopped => Signal::Stop, signal = other => signal }
    }
}
