//! Draws the display: a header, three panes or what is open, and a line for keys and questions.

use std::collections::HashMap;
use std::time::Instant;

use geartrain::Jid;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, BorderType, Clear, Padding, Paragraph};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::columns::{Cell, Column, table};
use super::input::KEYS;
use super::snapshot::{JobRow, ListOf, QueueRow, Trend, UNKNOWN, WorkerRow, age, rate_text};
use super::source::WORKERS_MAX;
use super::state::{CardView, ListView, Pane, Prompt, Rows, State};
use super::theme::{Theme, sparkline};
use crate::commands::why_queue::grouped;
use crate::text::clean;
use crate::timestamp;

/// From this width on, the panes of workers and failures are beside that of the queues.
const WIDE: u16 = 120;
/// The height that three panes need one below the other; beside each other two.
const STACKED_HEIGHT_MIN: u16 = 14;
const BESIDE_HEIGHT_MIN: u16 = 8;

/// Draws everything, and notes what is visible.
pub(super) fn draw(frame: &mut Frame<'_>, state: &mut State, theme: Theme, now: Instant) {
    let has_paused = !state.shown.paused().is_empty();
    let header_height = if has_paused { 3 } else { 2 };
    let [header_area, body, footer_area] =
        Layout::vertical([Constraint::Length(header_height), Constraint::Min(0), Constraint::Length(1)])
            .areas(frame.area());
    state.visible_workers.clear();
    header(frame, header_area, state, theme, now);
    if let Some(view) = &mut state.card {
        card(frame, body, view, theme);
    } else if let Some(view) = &mut state.list {
        list(frame, body, view, theme);
    } else {
        overview(frame, body, state, theme);
    }
    footer(frame, footer_area, state, theme);
    if state.is_help {
        help(frame, body, theme);
    }
}

fn header(frame: &mut Frame<'_>, area: Rect, state: &State, theme: Theme, now: Instant) {
    let width = usize::from(area.width);
    let line_at = |row: u16| Rect { y: area.y + row, height: 1, ..area }.intersection(area);
    let (right, style) = match state.trouble(now) {
        Some(why) => (why, theme.bad()),
        None if state.is_frozen => (format!("FROZEN at {}", time(state)), theme.later().patch(theme.bold())),
        None => (time(state), theme.faint()),
    };
    let name = " geartrain top  ";
    let url = clean(&state.url).into_owned();
    let right = fitted(&clean(&right), width.saturating_sub(name.width() + 1));
    let room = width.saturating_sub(name.width() + right.width() + 3);
    let left = vec![Span::styled(name, theme.focus()), Span::styled(fitted(&url, room), theme.faint())];
    both_ends(frame, line_at(0), left, Span::styled(right, style));

    let totals = state.shown.totals();
    let number = |label: &'static str, number: u64, style: Style| {
        let style = if number == 0 { theme.faint() } else { style.patch(theme.bold()) };
        vec![Span::styled(label, theme.faint()), Span::styled(grouped(number), style), Span::raw("   ")]
    };
    let mut parts = vec![
        number("waiting ", totals.waiting, Style::new()),
        number("running ", totals.running, theme.busy()),
    ];
    parts.extend(totals.failed.map(|failed| number("failed ", failed, theme.bad())));
    parts.extend(totals.rate.map(|rate| {
        let rate = Span::styled(format!("{}/s", rate_text(rate)), theme.good().patch(theme.bold()));
        vec![Span::styled("done ", theme.faint()), rate, Span::raw("   ")]
    }));
    if totals.stalled > 0 {
        parts.push(number("stalled ", totals.stalled, theme.bad()));
    }
    if totals.later > 0 {
        parts.push(number("later ", totals.later, theme.later()));
    }
    let (mut spans, mut used) = (vec![Span::raw(" ")], 1);
    for part in parts {
        let part_width: usize = part.iter().map(Span::width).sum();
        if used + part_width <= width + 3 {
            used += part_width;
            spans.extend(part);
        }
    }
    let room = width.saturating_sub(used + 1).min(60);
    let points = state.shown.trend.points();
    let trend = if room >= 8 { sparkline(points, room.min(points.len())) } else { String::new() };
    both_ends(frame, line_at(1), spans, Span::styled(trend, theme.good()));

    let paused = geartrain_json::texts(&state.shown.paused());
    if !paused.is_empty() {
        let text = format!(" paused: {} ", clean(&paused.join(", ")));
        let style = theme.later().patch(theme.cursor());
        frame.render_widget(Span::styled(fitted(&text, width), style), line_at(2));
    }
}

/// The time of the snapshot, without its day.
fn time(state: &State) -> String {
    let at = timestamp::format(state.shown.at);
    at.split_once('T').map_or(at.clone(), |(_, time)| time.chars().take(8).collect())
}

/// Draws one text at the left end of a line, and another one at its right end.
fn both_ends(frame: &mut Frame<'_>, area: Rect, left: Vec<Span<'_>>, right: Span<'_>) {
    let width = right.width() as u16 + 1;
    frame.render_widget(Line::from(left), area);
    if width < area.width {
        frame.render_widget(right, Rect { x: area.right() - width, width, ..area }.intersection(area));
    }
}

/// A text that is cut at a width.
fn fitted(text: &str, width: usize) -> String {
    if text.width() <= width { text.to_owned() } else { crate::text::shorten(text, width, 0) }
}

fn overview(frame: &mut Frame<'_>, area: Rect, state: &mut State, theme: Theme) {
    let is_wide = area.width >= WIDE;
    let height_min = if is_wide { BESIDE_HEIGHT_MIN } else { STACKED_HEIGHT_MIN };
    let areas: Vec<(Pane, Rect)> = if area.height < height_min {
        vec![(state.focus, area)]
    } else if is_wide {
        let [left, right] = Layout::horizontal([Constraint::Percentage(58), Constraint::Fill(1)]).areas(area);
        let [upper, lower] = Layout::vertical([Constraint::Percentage(60), Constraint::Fill(1)]).areas(right);
        vec![(Pane::Queues, left), (Pane::Workers, upper), (Pane::Failures, lower)]
    } else {
        let shares = [Constraint::Fill(9), Constraint::Fill(6), Constraint::Fill(5)];
        Pane::ALL.into_iter().zip(Layout::vertical(shares).split(area).iter().copied()).collect()
    };
    for (pane, area) in areas {
        draw_pane(frame, area, state, pane, theme);
    }
}

fn draw_pane(frame: &mut Frame<'_>, area: Rect, state: &mut State, pane: Pane, theme: Theme) {
    let is_focused = state.focus == pane;
    let rows = state.pane(pane).rows.names.len();
    let filter = if state.filter.is_empty() { String::new() } else { format!(" /{}", clean(&state.filter)) };
    let title = format!(" {} {rows}{filter} ", pane.title());
    let sort = format!(" by {} ", state.sort(pane));
    let inner = framed(frame, area, &title, &sort, is_focused, theme);
    let is_unknown = match pane {
        Pane::Queues => false,
        Pane::Workers => state.shown.workers.is_none(),
        Pane::Failures => state.shown.failures.is_none(),
    };
    if rows == 0 {
        let text = match pane {
            _ if is_unknown => UNKNOWN,
            _ if !state.filter.is_empty() => "nothing has this text in its name",
            Pane::Queues => "no queues yet; `geartrain put` creates the first",
            Pane::Workers => "no workers",
            Pane::Failures => "no failed jobs",
        };
        frame.render_widget(Span::styled(text, theme.faint()), inner);
        return;
    }
    let height = usize::from(inner.height.saturating_sub(1));
    state.pane_mut(pane).rows.scroll(height);
    let view = &state.pane(pane).rows;
    let visible = &view.names[view.first.min(rows)..(view.first + height).min(rows)];
    let columns = match pane {
        Pane::Queues => queue_columns(state, visible, theme),
        Pane::Workers => worker_columns(state, visible, theme),
        Pane::Failures => failure_columns(state, visible, theme),
    };
    let cursor = is_focused.then_some(view.selected.saturating_sub(view.first));
    draw_table(frame, inner, columns, cursor, theme);
    if pane == Pane::Workers {
        // With some more, so that one that takes a job and comes into view has it at once.
        let near = view.names.iter().skip(view.first).filter_map(|name| state.worker(name));
        state.visible_workers = near.map(|row| row.counts.name.clone()).take(WORKERS_MAX).collect();
    }
}

/// Draws a border with a title, and returns the area inside.
fn framed(
    frame: &mut Frame<'_>,
    area: Rect,
    title: &str,
    right: &str,
    is_focused: bool,
    theme: Theme,
) -> Rect {
    let (border, title_style) =
        if is_focused { (theme.focus(), theme.focus()) } else { (theme.faint(), theme.bold()) };
    let room = usize::from(area.width).saturating_sub(2);
    let mut block = Block::bordered()
        .border_type(BorderType::Rounded)
        .border_style(border)
        .padding(Padding::horizontal(1))
        .title(Span::styled(fitted(title, room), title_style));
    if title.width() + right.width() < room {
        block = block.title(Line::from(Span::styled(right.to_owned(), theme.faint())).right_aligned());
    }
    let inner = block.inner(area);
    frame.render_widget(block, area);
    inner
}

fn draw_table(frame: &mut Frame<'_>, area: Rect, columns: Vec<Column>, cursor: Option<usize>, theme: Theme) {
    let (heading, rows) = table(columns, usize::from(area.width), theme);
    for (number, line) in std::iter::once(heading).chain(rows).enumerate() {
        let Ok(row) = u16::try_from(number) else { break };
        let place = Rect { y: area.y.saturating_add(row), height: 1, ..area }.intersection(area);
        frame.render_widget(line, place);
        if number > 0 && cursor == Some(number - 1) {
            frame.buffer_mut().set_style(place, theme.cursor());
        }
    }
}

/// The cells of a column, of rows that may be gone.
fn cells<T>(rows: &[Option<&T>], cell: impl Fn(&T) -> Cell) -> Vec<Cell> {
    rows.iter().map(|row| row.map_or_else(|| Cell::text(""), &cell)).collect()
}

fn queue_columns(state: &State, visible: &[String], theme: Theme) -> Vec<Column> {
    let by_name: HashMap<&str, &QueueRow> =
        state.shown.queues.iter().map(|row| (row.counts.name.as_str(), row)).collect();
    let rows: Vec<Option<&QueueRow>> =
        visible.iter().map(|name| by_name.get(name.as_str()).copied()).collect();
    let at = state.shown.at;
    let number = |number: u64, style: Style| {
        Cell::styled(grouped(number), if number == 0 { theme.faint() } else { style })
    };
    // A column that the queue knows nothing of is blank, and left out.
    let has_figures = state.shown.queues.iter().any(|row| row.figures.is_some());
    let optional = |text: Option<String>, style: Style| match text {
        Some(text) if text != "0" => Cell::styled(text, style),
        Some(zero) => Cell::styled(zero, theme.faint()),
        None => Cell::styled(if has_figures { "-" } else { "" }, theme.faint()),
    };
    let trend = |row: &QueueRow| {
        let points = row.trend.points().to_vec();
        let style = if points.iter().all(|point| *point == 0.0) { theme.faint() } else { theme.good() };
        Cell::Trend(points, style)
    };
    let trend_heading = match state.shown.trend {
        Trend::Done(_) => "TREND",
        Trend::Waiting(_) => "WAITING TREND",
    };
    vec![
        Column::name("QUEUE", cells(&rows, |row| Cell::text(&row.counts.name))),
        Column::left(
            "",
            1,
            cells(&rows, |row| Cell::styled(if row.counts.paused { "paused" } else { "" }, theme.later())),
        ),
        Column::right("WAITING", 0, cells(&rows, |row| number(row.counts.waiting, theme.bold()))),
        Column::right("RUNNING", 2, cells(&rows, |row| number(row.counts.running, theme.busy()))),
        Column::right("STALLED", 7, cells(&rows, |row| number(row.counts.stalled, theme.bad()))),
        Column::right("SCHEDULED", 9, cells(&rows, |row| number(row.counts.scheduled, theme.later()))),
        Column::right("DEPENDS", 8, cells(&rows, |row| number(row.counts.depends, theme.later()))),
        Column::right("FAILED", 3, cells(&rows, |row| optional(row.failed(), theme.bad()))),
        Column::right("OLDEST", 4, cells(&rows, |row| optional(row.oldest(at), Style::new()))),
        Column::right("DONE/S", 5, cells(&rows, |row| optional(row.rate.map(rate_text), theme.good()))),
        Column::rest(trend_heading, 6, cells(&rows, trend)),
    ]
}

fn worker_columns(state: &State, visible: &[String], theme: Theme) -> Vec<Column> {
    let rows: Vec<Option<&WorkerRow>> = visible.iter().map(|name| state.worker(name)).collect();
    let at = state.shown.at;
    let jobs = |row: &WorkerRow| row.counts.jobs + row.counts.stalled;
    let jobs_style = |row: &WorkerRow| match (jobs(row), row.counts.stalled) {
        (0, _) => theme.faint(),
        (_, 0) => theme.busy(),
        _ => theme.bad(),
    };
    let seen = |row: &WorkerRow| row.counts.seen.map(|seen| age(seen, at)).unwrap_or_default();
    let holds_style =
        |row: &WorkerRow| if row.holds.iter().any(|job| job.is_stalled) { theme.bad() } else { Style::new() };
    vec![
        Column::name("WORKER", cells(&rows, |row| Cell::text(&row.counts.name))),
        Column::right("JOBS", 0, cells(&rows, |row| Cell::styled(jobs(row), jobs_style(row)))),
        Column::right("SEEN", 2, cells(&rows, |row| Cell::styled(seen(row), theme.faint()))),
        Column::rest("HOLDS", 1, cells(&rows, |row| Cell::styled(row.holds_text(at), holds_style(row)))),
    ]
}

fn failure_columns(state: &State, visible: &[String], theme: Theme) -> Vec<Column> {
    let rows: Vec<_> = visible.iter().map(|name| state.group(name)).collect();
    vec![
        Column::name("GROUP", cells(&rows, |(group, _)| Cell::text(group))),
        Column::right("JOBS", 0, cells(&rows, |(_, jobs)| Cell::styled(grouped(*jobs), theme.bad()))),
    ]
}

fn list(frame: &mut Frame<'_>, area: Rect, view: &mut ListView, theme: Theme) {
    let title = match &view.of {
        ListOf::Queue(queue) => format!(" Jobs of queue {queue} "),
        ListOf::Worker(worker) => format!(" Jobs of worker {worker} "),
        ListOf::Group(group) => format!(" Failed jobs of group {group} "),
    };
    let remark = view.list.as_ref().and_then(|list| list.remark.as_ref());
    let right = remark.filter(|_| !view.rows.names.is_empty()).map(|remark| format!(" {remark} "));
    let inner = framed(frame, area, &clean(&title), &right.unwrap_or_default(), true, theme);
    let Some(list) = &view.list else {
        frame.render_widget(Span::styled("reading …", theme.faint()), inner);
        return;
    };
    if list.jobs.is_empty() {
        let text = list.remark.as_deref().unwrap_or("no jobs");
        frame.render_widget(Span::styled(text.to_owned(), theme.faint()), inner);
        return;
    }
    let height = usize::from(inner.height.saturating_sub(1));
    view.rows.scroll(height);
    let Rows { first, selected, .. } = view.rows;
    let rows: Vec<Option<&JobRow>> = list.jobs.iter().skip(first).take(height).map(Some).collect();
    let columns = vec![
        Column::name(
            "JOB",
            cells(&rows, |job| Cell::text(job.jid.as_ref().map_or_else(|| "-".to_owned(), Jid::to_string))),
        ),
        Column::left("STATE", 0, cells(&rows, |job| Cell::styled(job.state, theme.state(job.state)))),
        Column::left("KLASS", 2, cells(&rows, |job| Cell::text(&job.klass))),
        Column::rest("", 1, cells(&rows, |job| Cell::styled(&job.note, theme.faint()))),
    ];
    draw_table(frame, inner, columns, Some(selected.saturating_sub(first)), theme);
}

fn card(frame: &mut Frame<'_>, area: Rect, view: &mut CardView, theme: Theme) {
    let title = format!(" Job {} ", view.jid);
    let width = usize::from(area.width.saturating_sub(4));
    let lines = match &view.card {
        Some(card) => wrapped(&theme.styled(&card.text), width),
        None => vec![Line::from(Span::styled("reading …", theme.faint()))],
    };
    let height = usize::from(area.height.saturating_sub(2));
    view.scroll = view.scroll.min(lines.len().saturating_sub(height));
    let end = (view.scroll + height).min(lines.len());
    let right = match lines.len() > height {
        true => format!(" lines {} to {end} of {} ", view.scroll + 1, lines.len()),
        false => String::new(),
    };
    let inner = framed(frame, area, &clean(&title), &right, true, theme);
    frame.render_widget(Paragraph::new(lines[view.scroll..end].to_vec()), inner);
}

/// Breaks lines at blanks where they are wider than the display.
fn wrapped(lines: &[Vec<(char, Style)>], width: usize) -> Vec<Line<'static>> {
    let mut wrapped = Vec::new();
    for line in lines {
        let mut rest = &line[..];
        loop {
            let mut used = 0;
            let fits = rest.iter().take_while(|(c, _)| {
                used += c.width().unwrap_or(0);
                used <= width.max(1)
            });
            let fits = fits.count();
            let blank = rest[..fits].iter().rposition(|(c, _)| *c == ' ').filter(|blank| *blank > 0);
            let end = if fits == rest.len() { fits } else { blank.map_or(fits.max(1), |blank| blank + 1) };
            wrapped.push(Line::from(
                rest[..end].iter().map(|(c, style)| Span::styled(c.to_string(), *style)).collect::<Vec<_>>(),
            ));
            rest = &rest[end..];
            if rest.is_empty() {
                break;
            }
        }
    }
    wrapped
}

fn footer(frame: &mut Frame<'_>, area: Rect, state: &State, theme: Theme) {
    let width = usize::from(area.width);
    let line = match (&state.prompt, &state.status) {
        (Some(Prompt::Filter), _) => prompt("show names with: ", &state.filter, width, theme),
        (Some(Prompt::Confirm { question, .. }), _) => prompt(question, "", width, theme),
        (Some(Prompt::Name { question, typed, .. }), _) => {
            prompt(&format!("{question} "), typed, width, theme)
        }
        (None, Some(status)) => {
            let style = if status.is_error { theme.bad() } else { theme.good() };
            Line::from(Span::styled(fitted(&format!(" {}", clean(&status.text)), width), style))
        }
        (None, None) => hints(state, width, theme),
    };
    frame.render_widget(line, area);
}

/// A question, and what was typed so far. If there is not room for all, the end of the text is shown.
fn prompt(question: &str, typed: &str, width: usize, theme: Theme) -> Line<'static> {
    let text = format!(" {}{}", clean(question), clean(typed));
    let excess = (text.width() + 1).saturating_sub(width);
    let text: String = text.chars().skip(excess).collect();
    Line::from(vec![Span::styled(text, theme.later().patch(theme.bold())), Span::styled(" ", theme.cursor())])
}

/// The keys that do something here.
fn hints(state: &State, width: usize, theme: Theme) -> Line<'static> {
    let mut keys: Vec<(&str, &str)> = Vec::new();
    if state.card.is_some() {
        keys.extend([("↑↓", "scroll"), ("Esc", "back")]);
    } else if state.list.is_some() {
        keys.extend([("↑↓", "select"), ("Enter", "open"), ("Esc", "back")]);
    } else {
        keys.extend([("↑↓", "select"), ("Tab", "pane"), ("Enter", "open"), ("/", "filter"), ("s", "sort")]);
    }
    if let Some(row) = state.queue().filter(|_| state.card.is_none()) {
        keys.push(("p", if row.counts.paused { "resume" } else { "pause" }));
    }
    if state.can_retry() {
        keys.push(("r", "retry"));
    }
    if state.is_frozen {
        keys.insert(0, ("Space", "go on"));
    } else {
        keys.push(("Space", "freeze"));
    }
    // These are there at any width.
    let last = [("?", "help"), ("q", "quit")];
    let needed = |(key, word): &(&str, &str)| key.width() + word.width() + 3;
    let mut room = (width + 1).saturating_sub(last.iter().map(needed).sum());
    let fits = |key: &&(&str, &str)| {
        let fits = needed(key) <= room;
        room = if fits { room - needed(key) } else { 0 };
        fits
    };
    let mut spans = vec![Span::raw(" ")];
    for (key, word) in keys.iter().filter(fits).chain(&last) {
        spans.push(Span::styled((*key).to_owned(), theme.bold()));
        spans.push(Span::styled(format!(" {word}  "), theme.faint()));
    }
    Line::from(spans)
}

fn help(frame: &mut Frame<'_>, area: Rect, theme: Theme) {
    let key_width = KEYS.iter().map(|(key, _)| key.width()).max().unwrap_or(0);
    let lines: Vec<Line<'_>> = KEYS
        .iter()
        .map(|(key, what)| {
            let key = format!("{key}{}  ", " ".repeat(key_width - key.width()));
            Line::from(vec![Span::styled(key, theme.bold()), Span::raw(*what)])
        })
        .collect();
    let width = lines.iter().map(Line::width).max().unwrap_or(0) as u16 + 5;
    let (width, height) = (width.min(area.width), (lines.len() as u16 + 2).min(area.height));
    let place =
        Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height };
    frame.render_widget(Clear, place);
    let inner = framed(frame, place, " Keys ", " any key closes this ", true, theme);
    frame.render_widget(Paragraph::new(lines), inner);
}
