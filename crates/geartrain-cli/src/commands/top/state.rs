//! What the display of `geartrain top` knows: the last snapshot, the cursor of each pane, and what is open.

use std::time::{Duration, Instant};

use geartrain::{Group, Jid, QueueName, Timestamp, WorkerName};

use super::snapshot::{JobCard, JobList, JobRow, ListOf, QueueRow, Snapshot, WorkerRow};
use super::source::{Refreshed, Wanted};
use crate::failure::Failure;
use crate::settings::Production;

/// After the cursor was moved, rows keep their order for this long.
const SETTLES: Duration = Duration::from_secs(5);
/// How much longer than an interval a refresh may take before the display says so.
const PATIENCE: Duration = Duration::from_secs(3);

/// A part of the overview with a cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pane {
    Queues,
    Workers,
    Failures,
}

impl Pane {
    pub(super) const ALL: [Pane; 3] = [Pane::Queues, Pane::Workers, Pane::Failures];

    /// What its rows can be sorted by.
    fn sorts(self) -> &'static [&'static str] {
        match self {
            Pane::Queues => &["waiting", "running", "failed", "oldest", "rate", "name"],
            Pane::Workers => &["jobs", "time", "name"],
            Pane::Failures => &["jobs", "name"],
        }
    }

    pub(super) fn title(self) -> &'static str {
        match self {
            Pane::Queues => "Queues",
            Pane::Workers => "Workers",
            Pane::Failures => "Failures",
        }
    }
}

/// The rows of a pane or a list, by name, and the cursor.
#[derive(Debug, Default)]
pub(super) struct Rows {
    pub(super) names: Vec<String>,
    pub(super) selected: usize,
    /// The first visible row; set when it is drawn.
    pub(super) first: usize,
    moved: Option<Instant>,
}

impl Rows {
    pub(super) fn selected(&self) -> Option<&str> {
        self.names.get(self.selected).map(String::as_str)
    }

    /// Moves the cursor by a number of rows.
    pub(super) fn move_by(&mut self, rows: isize, now: Instant) {
        self.selected = self.selected.saturating_add_signed(rows).min(self.names.len().saturating_sub(1));
        self.moved = Some(now);
    }

    /// Whether the cursor was just moved, so that nothing may change its place below it.
    fn is_moving(&self, now: Instant) -> bool {
        self.moved.is_some_and(|moved| now.duration_since(moved) < SETTLES)
    }

    /// Takes new rows, in the order in which they are to be shown. The cursor stays on its row once it was moved.
    fn update(&mut self, mut names: Vec<String>, now: Instant) {
        if self.is_moving(now) {
            // Rows that came are at the end.
            let (kept, new): (Vec<_>, Vec<_>) = names.into_iter().partition(|name| self.names.contains(name));
            let mut old = std::mem::take(&mut self.names);
            let selected = old.get(self.selected).cloned();
            old.retain(|name| kept.contains(name));
            self.selected = selected
                .and_then(|selected| old.iter().position(|name| *name == selected))
                .unwrap_or(self.selected);
            names = [old, new].concat();
        } else if self.moved.is_some()
            && let Some(selected) = self.selected().map(str::to_owned)
        {
            self.selected = names.iter().position(|name| *name == selected).unwrap_or(self.selected);
        }
        self.names = names;
        self.selected = self.selected.min(self.names.len().saturating_sub(1));
    }

    /// Sorts anew at once, as after a key that asks for it.
    fn settle(&mut self) {
        self.moved = None;
        self.selected = 0;
    }

    /// Scrolls so that the cursor is among the visible rows.
    pub(super) fn scroll(&mut self, height: usize) {
        let last = self.selected.saturating_sub(height.saturating_sub(1));
        self.first = self.first.clamp(last.min(self.selected), self.selected);
        self.first = self.first.min(self.names.len().saturating_sub(height));
    }
}

#[derive(Debug, Default)]
pub(super) struct PaneState {
    pub(super) rows: Rows,
    sort: usize,
}

/// An open list of jobs.
#[derive(Debug)]
pub(super) struct ListView {
    pub(super) of: ListOf,
    /// None until it is read.
    pub(super) list: Option<JobList>,
    pub(super) rows: Rows,
}

impl ListView {
    /// The job under the cursor.
    pub(super) fn selected(&self) -> Option<&JobRow> {
        self.list.as_ref()?.jobs.get(self.rows.selected)
    }
}

/// An open job.
#[derive(Debug)]
pub(super) struct CardView {
    pub(super) jid: Jid,
    /// Whether it was listed as failed, so that it can be retried.
    pub(super) is_failed: bool,
    /// None until it is read.
    pub(super) card: Option<JobCard>,
    /// The first visible line; limited when it is drawn.
    pub(super) scroll: usize,
}

/// A change of the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    Pause(QueueName),
    Resume(QueueName),
    /// Retries the failed jobs of a group.
    Unfail(Group),
    /// Retries a failed job.
    Requeue(Jid),
}

/// What is asked in the last line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Prompt {
    /// A filter is typed.
    Filter,
    /// Yes or no.
    Confirm { action: Action, question: String },
    /// The name of the context, which is in production, is typed.
    Name { action: Action, question: String, typed: String },
}

/// A message in the last line, until the next key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Status {
    pub(super) text: String,
    pub(super) is_error: bool,
}

/// The outcome of something that ran in the background.
#[derive(Debug)]
pub(super) enum Update {
    Refreshed(Box<Refreshed>),
    /// The queue did not answer.
    Lost(Failure),
    /// An action is done, or refused.
    Acted(Result<String, String>),
}

pub(super) struct State {
    /// The queue, without a password.
    pub(super) url: String,
    pub(super) interval: Duration,
    /// A context that has to be confirmed by its name.
    pub(super) production: Option<Production>,
    pub(super) shown: Snapshot,
    /// While the display is frozen: what came since.
    newest: Option<Snapshot>,
    pub(super) is_frozen: bool,
    pub(super) focus: Pane,
    panes: [PaneState; 3],
    pub(super) filter: String,
    pub(super) list: Option<ListView>,
    pub(super) card: Option<CardView>,
    pub(super) prompt: Option<Prompt>,
    pub(super) is_help: bool,
    pub(super) status: Option<Status>,
    /// Why the queue did not answer, the last time that it was asked.
    lost: Option<String>,
    heard: Instant,
    /// Set when they are drawn.
    pub(super) visible_workers: Vec<WorkerName>,
}

impl State {
    pub(super) fn new(
        url: String,
        interval: Duration,
        production: Option<Production>,
        now: Instant,
    ) -> State {
        State {
            url,
            interval,
            production,
            shown: Snapshot::default(),
            newest: None,
            is_frozen: false,
            focus: Pane::Queues,
            panes: Default::default(),
            filter: String::new(),
            list: None,
            card: None,
            prompt: None,
            is_help: false,
            status: None,
            lost: None,
            heard: now,
            visible_workers: Vec::new(),
        }
    }

    pub(super) fn pane(&self, pane: Pane) -> &PaneState {
        &self.panes[pane as usize]
    }

    pub(super) fn pane_mut(&mut self, pane: Pane) -> &mut PaneState {
        &mut self.panes[pane as usize]
    }

    /// The rows that the cursor is in.
    pub(super) fn rows_mut(&mut self) -> &mut Rows {
        match &mut self.list {
            Some(view) => &mut view.rows,
            None => &mut self.panes[self.focus as usize].rows,
        }
    }

    /// What the rows of a pane are sorted by.
    pub(super) fn sort(&self, pane: Pane) -> &'static str {
        pane.sorts()[self.pane(pane).sort]
    }

    pub(super) fn sort_by_next(&mut self, now: Instant) {
        let focus = self.focus;
        let pane = self.pane_mut(focus);
        pane.sort = (pane.sort + 1) % focus.sorts().len();
        pane.rows.settle();
        self.arrange(now);
    }

    /// What is to be read at the next refresh.
    pub(super) fn wanted(&self) -> Wanted {
        Wanted {
            workers: self.visible_workers.clone(),
            list: self.list.as_ref().map(|view| view.of.clone()),
            card: self.card.as_ref().map(|view| view.jid.clone()),
        }
    }

    /// Why the display is not up to date, if so.
    pub(super) fn trouble(&self, now: Instant) -> Option<String> {
        let silence = now.duration_since(self.heard);
        match &self.lost {
            Some(why) => Some(why.clone()),
            None if silence > self.interval + PATIENCE => {
                Some(format!("no answer for {} s: reconnecting", silence.as_secs()))
            }
            None => None,
        }
    }

    pub(super) fn update(&mut self, update: Update, now: Instant) {
        match update {
            Update::Lost(Failure::Unreachable(why)) => self.lost = Some(format!("reconnecting: {why}")),
            Update::Lost(failure) => self.lost = Some(failure.to_string()),
            Update::Acted(Ok(text)) => self.status = Some(Status { text, is_error: false }),
            Update::Acted(Err(text)) => self.status = Some(Status { text, is_error: true }),
            Update::Refreshed(refreshed) => {
                (self.lost, self.heard) = (None, now);
                let Refreshed { snapshot, list, card } = *refreshed;
                if self.is_frozen {
                    self.newest = Some(snapshot);
                } else {
                    self.shown = snapshot;
                    self.arrange(now);
                }
                // What was opened while the display is frozen is shown as it was then.
                if let (Some(view), Some(list)) = (&mut self.list, list)
                    && view.of == list.of
                    && (view.list.is_none() || !(self.is_frozen || view.rows.is_moving(now)))
                {
                    view.rows.update(list.names(), now);
                    view.list = Some(list);
                }
                if let (Some(view), Some(card)) = (&mut self.card, card)
                    && view.jid == card.jid
                    && !(self.is_frozen && view.card.is_some())
                {
                    view.card = Some(card);
                }
            }
        }
    }

    pub(super) fn toggle_freeze(&mut self, now: Instant) {
        self.is_frozen = !self.is_frozen;
        if let Some(newest) = self.newest.take() {
            self.shown = newest;
            self.arrange(now);
        }
    }

    /// Shows the rows that the filter selects now, in their order.
    pub(super) fn refilter(&mut self, now: Instant) {
        self.panes.iter_mut().for_each(|pane| pane.rows.settle());
        self.arrange(now);
    }

    /// Puts the rows of each pane into their order.
    pub(super) fn arrange(&mut self, now: Instant) {
        for pane in Pane::ALL {
            let mut rows = self.keys(pane);
            rows.retain(|(name, _)| self.is_selected_by_filter(name));
            rows.sort_by(|(name, key), (other, other_key)| {
                other_key.total_cmp(key).then_with(|| name.cmp(other))
            });
            self.pane_mut(pane).rows.update(rows.into_iter().map(|(name, _)| name).collect(), now);
        }
    }

    fn is_selected_by_filter(&self, name: &str) -> bool {
        self.filter.is_empty() || name.to_lowercase().contains(&self.filter.to_lowercase())
    }

    /// The names of a pane's rows, each with the number by which it is sorted, largest first.
    fn keys(&self, pane: Pane) -> Vec<(String, f64)> {
        let (sort, snapshot) = (self.sort(pane), &self.shown);
        match pane {
            Pane::Queues => {
                let key = |row: &QueueRow| queue_key(row, sort, snapshot.at);
                snapshot.queues.iter().map(|row| (row.counts.name.to_string(), key(row))).collect()
            }
            Pane::Workers => {
                let key = |row: &WorkerRow| worker_key(row, sort, snapshot.at);
                let rows = snapshot.workers.iter().flatten();
                rows.map(|row| (row.counts.name.to_string(), key(row))).collect()
            }
            Pane::Failures => {
                let key = |jobs: u64| if sort == "jobs" { jobs as f64 } else { 0.0 };
                let groups = snapshot.failures.iter().flatten();
                groups.map(|(group, jobs)| (group.to_string(), key(*jobs))).collect()
            }
        }
    }

    /// The queue under the cursor, or the one whose list is open.
    pub(super) fn queue(&self) -> Option<&QueueRow> {
        let name = match &self.list {
            Some(ListView { of: ListOf::Queue(queue), .. }) => queue.as_str(),
            Some(_) => return None,
            None if self.focus == Pane::Queues => self.pane(Pane::Queues).rows.selected()?,
            None => return None,
        };
        self.shown.queues.iter().find(|row| row.counts.name.as_str() == name)
    }

    pub(super) fn worker(&self, name: &str) -> Option<&WorkerRow> {
        self.shown.workers.iter().flatten().find(|row| row.counts.name.as_str() == name)
    }

    pub(super) fn group(&self, name: &str) -> Option<&(Group, u64)> {
        self.shown.failures.iter().flatten().find(|(group, _)| group.as_str() == name)
    }
}

fn queue_key(row: &QueueRow, sort: &str, now: Timestamp) -> f64 {
    let figures = row.figures.as_ref();
    match sort {
        "waiting" => row.counts.waiting as f64,
        "running" => (row.counts.running + row.counts.stalled) as f64,
        "failed" => figures.map_or(0.0, |figures| figures.failed as f64),
        "oldest" => figures.and_then(|figures| figures.oldest).map_or(-1.0, |oldest| (now - oldest).get()),
        "rate" => row.rate.unwrap_or(0.0),
        _ => 0.0,
    }
}

fn worker_key(row: &WorkerRow, sort: &str, now: Timestamp) -> f64 {
    match sort {
        "jobs" => (row.counts.jobs + row.counts.stalled) as f64,
        "time" => row.holds.first().and_then(|job| job.since).map_or(-1.0, |since| (now - since).get()),
        _ => 0.0,
    }
}
