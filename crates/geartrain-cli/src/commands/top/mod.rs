//! `geartrain top`: a live overview of a queue on a terminal.

mod act;
mod columns;
mod draw;
mod input;
mod snapshot;
mod source;
mod state;
#[cfg(test)]
mod tests;
mod theme;

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use clap::Args;
use crossterm::event::Event;
use geartrain::{Client, Target};
use ratatui::DefaultTerminal;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::LocalSet;

use self::draw::draw;
use self::input::Effect;
use self::source::{Refreshed, Source, Wanted};
use self::state::{State, Update};
use self::theme::Theme;
use super::{Done, canceled};
use crate::failure::Failure;
use crate::output::Output;
use crate::settings::Production;
use crate::values;

#[derive(Debug, Args)]
#[command(
    after_help = "Shows queues with their depths, the age of the oldest waiting job and the rate of completed jobs;
workers with what they hold; and groups of failures. Enter opens a queue, a worker, a group or a job; p pauses a
queue, r retries failed jobs, / filters, s sorts, Space freezes the display, ? lists all keys, q leaves.

With --once or --json, or if standard output is no terminal, it prints the overview once."
)]
pub(crate) struct TopArgs {
    /// How often to refresh
    #[arg(long, value_name = "DURATION", value_parser = interval, default_value = "1s")]
    interval: Duration,
    /// Print the overview once, as tables
    #[arg(long)]
    once: bool,
}

/// The shortest interval, so that watching a queue is cheap.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// How often the display is drawn when nothing happens: it may have to say that the queue does not answer.
const DRAWN_EVERY: Duration = Duration::from_millis(500);

/// Updates and keys that wait to be handled.
const WAITING_MAX: usize = 64;

fn interval(text: &str) -> Result<Duration, String> {
    match values::length(text)? {
        short if short < INTERVAL_MIN => Err("it must be at least 100ms".to_owned()),
        length => Ok(length),
    }
}

/// Shows the queue until the user leaves, or once. `given` is the URL for commands to paste, unless it is the default.
pub(super) fn top(
    url: &str,
    given: Option<&str>,
    production: Option<Production>,
    args: TopArgs,
    out: &mut Output<'_>,
) -> Done {
    let target = Target::of(url)?.to_string();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, async {
        let client = geartrain::connect(url).await?.named(&canceled::caller());
        let mut source = Source::new(client.clone(), given.map(str::to_owned));
        // Before the display, so that an error is printed as that of any other command.
        let snapshot = source.read_once().await?;
        if args.once || out.json || !io::stdout().is_terminal() {
            return Ok(out.show(&snapshot.view(), |out| snapshot.write(&target, out))?);
        }
        let mut state = State::new(target, args.interval, production, Instant::now());
        let first = Refreshed { snapshot, ..Refreshed::default() };
        state.update(Update::Refreshed(Box::new(first)), Instant::now());
        let mut stop = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()]
            .map(signal)
            .into_iter()
            .collect::<Result<Vec<Signal>, io::Error>>()?;
        let has_colors = anstream::AutoStream::choice(&io::stdout()) != anstream::ColorChoice::Never;
        let mut terminal = ratatui::try_init().map_err(|error| {
            // Some of it may have been changed.
            let _ = ratatui::try_restore();
            no_terminal(error)
        })?;
        let done = run(&mut terminal, &mut state, client, source, &mut stop, Theme { has_colors }).await;
        let restored = ratatui::try_restore().and_then(|()| terminal.show_cursor());
        done.and(restored.map_err(Failure::from))
    })
}

fn no_terminal(error: io::Error) -> Failure {
    Failure::Usage(format!("the terminal cannot be used: {error}; --once prints the overview"))
}

/// Draws and handles what comes, until the user leaves or a signal stops it.
async fn run(
    terminal: &mut DefaultTerminal,
    state: &mut State,
    client: Client,
    source: Source,
    stop: &mut [Signal],
    theme: Theme,
) -> Done {
    let (wanted, wanted_rx) = watch::channel(state.wanted());
    let (updates_tx, mut updates) = mpsc::channel(WAITING_MAX);
    let mut events = read_events();
    let mut reading =
        tokio::task::spawn_local(refresh(source, state.interval, wanted_rx, updates_tx.clone()));
    let mut redraw = tokio::time::interval(DRAWN_EVERY);
    loop {
        terminal.draw(|frame| draw(frame, state, theme, Instant::now()))?;
        wanted.send_if_modified(|wanted| {
            let before = std::mem::replace(wanted, state.wanted());
            // Workers are read at the next refresh: others are busy after each.
            wanted.list != before.list || wanted.card != before.card
        });
        tokio::select! {
            Some(update) = updates.recv() => {
                // What an action has changed is to be seen at once.
                if let Update::Acted(_) = update {
                    wanted.send_modify(|_| {});
                }
                state.update(update, Instant::now());
            }
            event = events.recv() => match event {
                Some(Ok(Event::Key(key))) => match state.key(key, Instant::now()) {
                    Some(Effect::Quit) => return Ok(()),
                    Some(Effect::Act(action)) => {
                        let (client, updates) = (client.clone(), updates_tx.clone());
                        tokio::task::spawn_local(async move {
                            let acted = act::act(&client, action).await.map_err(|failure| failure.to_string());
                            // An error means that the user has left.
                            let _ = updates.send(Update::Acted(acted)).await;
                        });
                    }
                    None => {}
                },
                // A new size, for one. The display is drawn again.
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(no_terminal(error)),
                None => return Ok(()),
            },
            // It goes on as long as this function does, unless it panics.
            ended = &mut reading => match ended {
                Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                _ => return Ok(()),
            },
            _ = redraw.tick() => {}
            () = any(stop) => return Ok(()),
        }
    }
}

/// Waits for one of some signals.
async fn any(signals: &mut [Signal]) {
    std::future::poll_fn(|context| {
        match signals.iter_mut().any(|signal| signal.poll_recv(context).is_ready()) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
}

/// Reads the keys on a thread of their own, which ends with the process.
fn read_events() -> mpsc::Receiver<io::Result<Event>> {
    let (events, receiver) = mpsc::channel(WAITING_MAX);
    std::thread::spawn(move || {
        loop {
            let event = crossterm::event::read();
            let is_last = event.is_err();
            if events.blocking_send(event).is_err() || is_last {
                return;
            }
        }
    });
    receiver
}

/// Reads the queue at an interval, and at once when something else is wanted.
async fn refresh(
    mut source: Source,
    interval: Duration,
    mut wanted: watch::Receiver<Wanted>,
    updates: mpsc::Sender<Update>,
) {
    loop {
        let now_wanted = wanted.borrow_and_update().clone();
        let update = match source.refresh(&now_wanted).await {
            Ok(refreshed) => Update::Refreshed(Box::new(refreshed)),
            Err(failure) => Update::Lost(failure),
        };
        if updates.send(update).await.is_err() {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(interval) => {}
            changed = wanted.changed() => if changed.is_err() { return },
        }
    }
}
