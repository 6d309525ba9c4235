//! What a running worker shows: a progress display on a terminal, a log line per job otherwise.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use geartrain::worker::{AttemptEnding, Context, WorkerEvent};
use geartrain::{QueueName, Token};
use indicatif::{MultiProgress, ProgressBar, ProgressState, ProgressStyle};
use parking_lot::Mutex;

use crate::text;

/// Slots that are shown one by one.
const SLOTS_SHOWN_MAX: usize = 16;

/// The progress display of a worker. Clones share it.
#[derive(Clone)]
pub(super) struct Display(Arc<Shared>);

struct Shared {
    bars: MultiProgress,
    summary: ProgressBar,
    queues: String,
    slots: usize,
    begun: Instant,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Lines of slots that are free.
    free: Vec<ProgressBar>,
    running: HashMap<Token, Running>,
    completed: u64,
    failed: u64,
    others: u64,
}

struct Running {
    since: Instant,
    context: Context,
    /// Its line; none while there is no free one.
    bar: Option<ProgressBar>,
}

impl Running {
    fn show_in(&mut self, bar: ProgressBar) {
        let style =
            ProgressStyle::with_template("  {msg} {elapsed}{progress}").expect("the template is valid");
        let context = self.context.clone();
        // Evaluated whenever the line is drawn.
        let style = style.with_key("progress", move |_: &ProgressState, out: &mut dyn fmt::Write| {
            if let Some(portion) = context.last_progress() {
                let _infallible =
                    write!(out, ", {}% ({} of {})", portion.percent(), portion.part(), portion.whole());
            }
        });
        let (jid, klass) = (self.context.jid().to_string(), self.context.klass().as_str());
        let bar = bar.with_elapsed(self.since.elapsed());
        bar.set_style(style);
        bar.set_message(format!("{} {}", text::clean(&jid), text::clean(klass)));
        bar.enable_steady_tick(Duration::from_secs(1));
        self.bar = Some(bar);
    }
}

impl Display {
    pub(super) fn new(queues: &[QueueName], slots: usize) -> Display {
        let bars = MultiProgress::new();
        let summary = bars.add(ProgressBar::new_spinner());
        let style = |template| ProgressStyle::with_template(template).expect("the template is valid");
        summary.set_style(style("{spinner} {msg}"));
        summary.enable_steady_tick(Duration::from_millis(250));
        let slot = |_| {
            let bar = bars.add(ProgressBar::new_spinner());
            bar.set_style(style("  {msg}"));
            bar
        };
        let free = (0..slots.min(SLOTS_SHOWN_MAX)).map(slot).rev().collect();
        let queues: Vec<String> =
            queues.iter().map(|queue| text::clean(queue.as_str()).into_owned()).collect();
        let display = Display(Arc::new(Shared {
            bars,
            summary,
            queues: queues.join(", "),
            slots,
            begun: Instant::now(),
            state: Mutex::new(State { free, ..State::default() }),
        }));
        display.summarise(&display.0.state.lock());
        display
    }

    fn started(&self, context: &Context) {
        let mut state = self.0.state.lock();
        let mut running = Running { since: Instant::now(), context: context.clone(), bar: None };
        if let Some(bar) = state.free.pop() {
            running.show_in(bar);
        }
        state.running.insert(context.job().lock.token, running);
        self.summarise(&state);
    }

    fn ended(&self, context: &Context, ending: AttemptEnding) {
        let mut state = self.0.state.lock();
        match ending {
            AttemptEnding::Completed => state.completed += 1,
            AttemptEnding::Failed => state.failed += 1,
            _ => state.others += 1,
        }
        let ended = state.running.remove(&context.job().lock.token);
        if let Some(bar) = ended.and_then(|running| running.bar) {
            // A slot gets its next job while the end of the last one is still being reported.
            let waiting = state.running.values_mut().filter(|running| running.bar.is_none());
            match waiting.min_by_key(|running| running.since) {
                Some(running) => running.show_in(bar),
                None => {
                    bar.disable_steady_tick();
                    bar.set_style(ProgressStyle::with_template("  {msg}").expect("the template is valid"));
                    bar.set_message("");
                    state.free.push(bar);
                }
            }
        }
        self.summarise(&state);
    }

    fn summarise(&self, state: &State) {
        let seconds = self.0.begun.elapsed().as_secs_f64().max(0.001);
        let rate = (state.completed + state.failed + state.others) as f64 / seconds;
        let others =
            if state.others > 0 { format!(", {} retried or lost", state.others) } else { String::new() };
        self.0.summary.set_message(format!(
            "{}: {} running, {} done, {} failed{others}, {rate:.1}/s",
            self.0.queues,
            state.running.len().min(self.0.slots),
            state.completed,
            state.failed,
        ));
    }

    /// Removes it from the terminal.
    pub(super) fn clear(&self) {
        let _ = self.0.bars.clear();
    }
}

/// Shows an event of the worker, and logs it.
pub(super) fn observe(display: Option<&Display>, event: &WorkerEvent<'_>) {
    match event {
        WorkerEvent::Started(context) => {
            if let Some(display) = display {
                display.started(context);
            }
            tracing::debug!(jid = %context.jid(), attempt = context.attempt(), "started");
        }
        WorkerEvent::Ended { context, ending, message, took } => {
            if let Some(display) = display {
                display.ended(context, *ending);
            }
            let (jid, queue, klass) = (context.jid(), context.queue(), context.klass());
            let (seconds, attempt) = (took.as_millis() as f64 / 1e3, context.attempt());
            let ending = ending_word(*ending);
            match message {
                Some(why) => {
                    tracing::warn!(%jid, %queue, %klass, attempt, seconds, ending, why, "job ended");
                }
                // The display counts them.
                None if display.is_some() => {
                    tracing::debug!(%jid, %queue, %klass, attempt, seconds, ending, "job ended");
                }
                None => tracing::info!(%jid, %queue, %klass, attempt, seconds, ending, "job ended"),
            }
        }
        WorkerEvent::Stopping(running) => tracing::info!(running, "stopping: no more jobs are taken"),
        // The worker logs what else there is.
        _ => {}
    }
}

fn ending_word(ending: AttemptEnding) -> &'static str {
    match ending {
        AttemptEnding::Completed => "completed",
        AttemptEnding::Failed => "failed",
        AttemptEnding::Retried => "retried",
        AttemptEnding::Snoozed => "snoozed",
        AttemptEnding::Released => "released",
        AttemptEnding::Lost => "lost",
        _ => "ended",
    }
}

/// Writes log lines above the display.
#[derive(Clone)]
pub(super) struct DisplayWriter(MultiProgress);

impl DisplayWriter {
    pub(super) fn new(display: &Display) -> DisplayWriter {
        DisplayWriter(display.0.bars.clone())
    }
}

impl Write for DisplayWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.suspend(|| io::stderr().write_all(bytes))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
