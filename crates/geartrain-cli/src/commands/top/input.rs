//! Keys: what each does to the display, and to the queue.

use std::time::Instant;

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use geartrain::{Jid, QueueName, WorkerName};

use super::snapshot::ListOf;
use super::state::{Action, CardView, ListView, Pane, Prompt, Rows, State, Status};
use crate::commands::why_queue::grouped;
use crate::text::count;

/// What a key asks for besides a change of the display.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Quit,
    Act(Action),
}

/// How many rows page up and page down move.
const PAGE_ROWS: isize = 10;

/// The keys, for the help.
pub(super) const KEYS: &[(&str, &str)] = &[
    ("↑ ↓ j k", "move the cursor; PgUp, PgDn, Home, End"),
    ("Tab ← →", "the next pane"),
    ("Enter", "list the jobs of a queue, a worker or a group; open a job"),
    ("Esc", "back; leave"),
    ("/", "show only names that contain a text"),
    ("s", "sort by the next column"),
    ("p", "pause or resume the queue"),
    ("r", "retry the failed jobs of the group, or the failed job"),
    ("Space", "freeze the display, and go on"),
    ("q Ctrl-C", "leave"),
];

impl State {
    /// Handles a key.
    pub(super) fn key(&mut self, key: KeyEvent, now: Instant) -> Option<Effect> {
        if key.kind == KeyEventKind::Release {
            return None;
        }
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        if is_control && matches!(key.code, KeyCode::Char('c' | 'd')) {
            return Some(Effect::Quit);
        }
        self.status = None;
        if self.is_help {
            self.is_help = false;
            return None;
        }
        if let Some(prompt) = self.prompt.take() {
            return self.answer(prompt, key, now);
        }
        match key.code {
            _ if is_control => {}
            KeyCode::Char('q') => return Some(Effect::Quit),
            KeyCode::Esc => return self.back(now),
            KeyCode::Char('?') => self.is_help = true,
            KeyCode::Char(' ') => self.toggle_freeze(now),
            KeyCode::Char('p') => self.ask_pause(),
            KeyCode::Char('r') => self.ask_retry(),
            code if self.card.is_some() => self.scroll_card(code),
            code => match motion(code) {
                Some(rows) => self.rows_mut().move_by(rows, now),
                None => self.open(code, now),
            },
        }
        None
    }

    fn answer(&mut self, prompt: Prompt, key: KeyEvent, now: Instant) -> Option<Effect> {
        match (prompt, key.code) {
            (Prompt::Filter, code) => {
                match code {
                    KeyCode::Enter => return None,
                    KeyCode::Esc => self.filter.clear(),
                    code => {
                        edit(&mut self.filter, code);
                        self.prompt = Some(Prompt::Filter);
                    }
                }
                self.refilter(now);
            }
            (Prompt::Confirm { action, .. }, KeyCode::Char('y' | 'Y')) => return Some(Effect::Act(action)),
            (Prompt::Name { action, typed, .. }, KeyCode::Enter) => {
                match self.production.as_ref().map(|production| production.answer(&typed)) {
                    Some(Err(why)) => self.status = Some(Status { text: why.to_string(), is_error: true }),
                    _ => return Some(Effect::Act(action)),
                }
            }
            (Prompt::Name { action, question, mut typed }, code) if code != KeyCode::Esc => {
                edit(&mut typed, code);
                self.prompt = Some(Prompt::Name { action, question, typed });
            }
            _ => self.status = Some(Status { text: "nothing was changed".to_owned(), is_error: false }),
        }
        None
    }

    /// Closes what is open, or else leaves.
    fn back(&mut self, now: Instant) -> Option<Effect> {
        if self.card.take().is_some() || self.list.take().is_some() {
            return None;
        }
        if self.filter.is_empty() {
            return Some(Effect::Quit);
        }
        self.filter.clear();
        self.refilter(now);
        None
    }

    fn open(&mut self, code: KeyCode, now: Instant) {
        match (code, &self.list) {
            (KeyCode::Enter, Some(view)) => {
                let Some(job) = view.selected() else { return };
                match &job.jid {
                    Some(jid) => {
                        let (jid, is_failed) = (jid.clone(), job.state == "failed");
                        self.card = Some(CardView { jid, is_failed, card: None, scroll: 0 });
                    }
                    None => {
                        let text = "a job of this queue has no id while it waits".to_owned();
                        self.status = Some(Status { text, is_error: false });
                    }
                }
            }
            (KeyCode::Enter, None) => {
                let of = self.selected();
                self.list = of.map(|of| ListView { of, list: None, rows: Rows::default() });
            }
            (_, Some(_)) => {}
            (KeyCode::Tab | KeyCode::Right | KeyCode::Char('l'), None) => self.focus_next(1),
            (KeyCode::BackTab | KeyCode::Left | KeyCode::Char('h'), None) => {
                self.focus_next(Pane::ALL.len() - 1)
            }
            (KeyCode::Char('/'), None) => self.prompt = Some(Prompt::Filter),
            (KeyCode::Char('s'), None) => self.sort_by_next(now),
            _ => {}
        }
    }

    fn focus_next(&mut self, panes: usize) {
        self.focus = Pane::ALL[(self.focus as usize + panes) % Pane::ALL.len()];
    }

    /// The row under the cursor of the overview.
    fn selected(&self) -> Option<ListOf> {
        let name = self.pane(self.focus).rows.selected()?;
        match self.focus {
            Pane::Queues => QueueName::new(name).ok().map(ListOf::Queue),
            Pane::Workers => WorkerName::new(name).ok().map(ListOf::Worker),
            Pane::Failures => self.group(name).map(|(group, _)| ListOf::Group(group.clone())),
        }
    }

    fn scroll_card(&mut self, code: KeyCode) {
        if let (Some(view), Some(lines)) = (&mut self.card, motion(code)) {
            view.scroll = view.scroll.saturating_add_signed(lines);
        }
    }

    fn ask_pause(&mut self) {
        let Some(row) = self.queue().filter(|_| self.card.is_none()) else {
            self.status = Some(Status { text: "select a queue to pause it".to_owned(), is_error: false });
            return;
        };
        let name = row.counts.name.clone();
        let (action, question) = match row.counts.paused {
            true => (Action::Resume(name.clone()), format!("resume {name}?")),
            false => {
                (Action::Pause(name.clone()), format!("pause {name}, so that its jobs are not handed out?"))
            }
        };
        self.ask(action, question);
    }

    fn ask_retry(&mut self) {
        match self.failed() {
            Some((action, question)) => self.ask(action, question),
            None => {
                let text = "select a group of failures, or a failed job, to retry it".to_owned();
                self.status = Some(Status { text, is_error: false });
            }
        }
    }

    pub(super) fn can_retry(&self) -> bool {
        self.failed().is_some()
    }

    /// What can be retried under the cursor.
    fn failed(&self) -> Option<(Action, String)> {
        let job = |jid: &Jid| (Action::Requeue(jid.clone()), format!("retry job {jid}?"));
        if let Some(view) = &self.card {
            return view.is_failed.then(|| job(&view.jid));
        }
        if let Some(view) = &self.list {
            let selected = view.selected().filter(|job| job.state == "failed")?;
            return selected.jid.as_ref().map(job);
        }
        let name = self.pane(Pane::Failures).rows.selected().filter(|_| self.focus == Pane::Failures)?;
        let (group, jobs) = self.group(name)?;
        let jobs =
            if *jobs == 1 { count(1, "failed job") } else { format!("{} failed jobs", grouped(*jobs)) };
        Some((Action::Unfail(group.clone()), format!("retry the {jobs} of {group}?")))
    }

    /// Asks before an action: for the name of a context in production, or else for yes or no.
    fn ask(&mut self, action: Action, question: String) {
        self.prompt = Some(match self.production.as_ref().and_then(|production| production.unconfirmed()) {
            Some(context) => {
                let question = format!("{question} {context} is in production, type its name:");
                Prompt::Name { action, question, typed: String::new() }
            }
            None => Prompt::Confirm { action, question: format!("{question} (y/n)") },
        });
    }
}

/// How many rows a key moves.
fn motion(code: KeyCode) -> Option<isize> {
    Some(match code {
        KeyCode::Up | KeyCode::Char('k') => -1,
        KeyCode::Down | KeyCode::Char('j') => 1,
        KeyCode::PageUp => -PAGE_ROWS,
        KeyCode::PageDown => PAGE_ROWS,
        KeyCode::Home | KeyCode::Char('g') => isize::MIN,
        KeyCode::End | KeyCode::Char('G') => isize::MAX,
        _ => return None,
    })
}

/// Changes a text that is typed.
fn edit(text: &mut String, code: KeyCode) {
    match code {
        KeyCode::Char(typed) => text.push(typed),
        KeyCode::Backspace => {
            text.pop();
        }
        _ => {}
    }
}
