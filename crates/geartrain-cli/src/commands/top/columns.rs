//! Tables that fit the width of a pane: columns that say nothing are left out first, then the less important ones.

use ratatui::style::Style;
use ratatui::text::{Line, Span};
use unicode_width::UnicodeWidthStr;

use super::theme::{Theme, sparkline};
use crate::text::{clean, shorten};

/// Blanks between columns.
const GAP: usize = 2;
/// The first column is not made narrower than this while another one can be left out.
const NAME_WIDTH_MIN: usize = 14;
/// The narrowest column that takes what is left, and how wide its texts may make it before names are shortened.
const REST_WIDTH_MIN: usize = 8;
const REST_WIDTH_WANTED: usize = 32;

/// A column of a table.
pub(super) struct Column {
    heading: &'static str,
    is_right: bool,
    /// The column with the highest rank is left out first; one of rank 0 is never.
    rank: u8,
    kind: Kind,
    cells: Vec<Cell>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// As wide as its cells, if there is room.
    Fixed,
    /// Takes what is left.
    Rest,
}

/// A text with its style, or the points of a sparkline.
pub(super) enum Cell {
    Text(String, Style),
    Trend(Vec<f64>, Style),
}

impl Cell {
    pub(super) fn text(text: impl ToString) -> Cell {
        Cell::styled(text, Style::new())
    }

    pub(super) fn styled(text: impl ToString, style: Style) -> Cell {
        Cell::Text(clean(&text.to_string()).into_owned(), style)
    }

    fn width(&self) -> usize {
        match self {
            Cell::Text(text, _) => text.width(),
            Cell::Trend(..) => 0,
        }
    }

    fn is_blank(&self) -> bool {
        match self {
            Cell::Text(text, _) => matches!(&text[..], "" | "0" | "-"),
            Cell::Trend(points, _) => points.is_empty(),
        }
    }
}

impl Column {
    /// The names of the rows.
    pub(super) fn name(heading: &'static str, cells: Vec<Cell>) -> Column {
        Column { heading, is_right: false, rank: 0, kind: Kind::Fixed, cells }
    }

    pub(super) fn left(heading: &'static str, rank: u8, cells: Vec<Cell>) -> Column {
        Column { heading, is_right: false, rank, kind: Kind::Fixed, cells }
    }

    pub(super) fn right(heading: &'static str, rank: u8, cells: Vec<Cell>) -> Column {
        Column { heading, is_right: true, rank, kind: Kind::Fixed, cells }
    }

    /// Takes the rest of the width.
    pub(super) fn rest(heading: &'static str, rank: u8, cells: Vec<Cell>) -> Column {
        Column { heading, is_right: false, rank, kind: Kind::Rest, cells }
    }

    fn width(&self) -> usize {
        match self.kind {
            Kind::Fixed => self.cells.iter().map(Cell::width).max().unwrap_or(0).max(self.heading.width()),
            Kind::Rest => REST_WIDTH_MIN.max(self.heading.width()),
        }
    }

    fn is_empty(&self) -> bool {
        self.rank > 0 && self.cells.iter().all(|cell| matches!(cell, Cell::Text(text, _) if text.is_empty()))
    }

    fn is_blank(&self) -> bool {
        self.rank > 0 && self.cells.iter().all(Cell::is_blank)
    }
}

/// The heading and the rows, each as wide as the table.
pub(super) fn table(
    mut columns: Vec<Column>,
    width: usize,
    theme: Theme,
) -> (Line<'static>, Vec<Line<'static>>) {
    let widths = fit(&mut columns, width);
    let rows = columns.first().map_or(0, |column| column.cells.len());
    let row = |cell: &dyn Fn(&Column, usize) -> (String, Style)| {
        let mut spans = Vec::with_capacity(columns.len() * 2);
        for (index, (column, width)) in columns.iter().zip(&widths).enumerate() {
            let (text, style) = cell(column, *width);
            let text = if text.width() > *width { shortened(&text, *width, column) } else { text };
            let padding = " ".repeat(width.saturating_sub(text.width()));
            let text = if column.is_right { format!("{padding}{text}") } else { format!("{text}{padding}") };
            if index > 0 {
                spans.push(Span::raw(" ".repeat(GAP)));
            }
            spans.push(Span::styled(text, style));
        }
        Line::from(spans)
    };
    let heading = row(&|column, _| (column.heading.to_owned(), theme.faint()));
    let cells = |number: usize| {
        row(&|column, width| match &column.cells[number] {
            Cell::Text(text, style) => (text.clone(), *style),
            Cell::Trend(points, style) => (sparkline(points, width), *style),
        })
    };
    (heading, (0..rows).map(cells).collect())
}

/// Names keep both ends, and other texts their start.
fn shortened(text: &str, width: usize, column: &Column) -> String {
    let tail = if column.kind == Kind::Rest { 0 } else { width.saturating_sub(1) / 2 };
    shorten(text, width, tail)
}

/// Leaves columns out until the others fit, and returns their widths.
fn fit(columns: &mut Vec<Column>, width: usize) -> Vec<usize> {
    let needed = |columns: &[Column]| {
        let name = columns.first().map_or(0, |name| name.width().min(NAME_WIDTH_MIN));
        let others: usize = columns.iter().skip(1).map(|column| column.width() + GAP).sum();
        name + others
    };
    columns.retain(|column| !column.is_empty());
    while needed(columns) > width {
        let blank = columns.iter().enumerate().filter(|(_, column)| column.is_blank());
        let others = columns.iter().enumerate().filter(|(_, column)| column.rank > 0);
        let last = |columns: &mut dyn Iterator<Item = (usize, &Column)>| {
            columns.max_by_key(|(_, column)| column.rank).map(|(index, _)| index)
        };
        let (mut blank, mut others) = (blank, others);
        match last(&mut blank).or_else(|| last(&mut others)) {
            Some(index) => columns.remove(index),
            None => break,
        };
    }
    let mut widths: Vec<usize> = columns.iter().map(Column::width).collect();
    let Some(name) = widths.first().copied() else { return widths };
    let others: usize = widths.iter().skip(1).map(|width| width + GAP).sum();
    let rest = columns.iter().position(|column| column.kind == Kind::Rest);
    let wanted = rest.and_then(|rest| columns[rest].cells.iter().map(Cell::width).max()).unwrap_or(0);
    let more = wanted.min(REST_WIDTH_WANTED).saturating_sub(REST_WIDTH_MIN);
    let room = width.saturating_sub(others);
    widths[0] = name.min(room).min(room.saturating_sub(more).max(NAME_WIDTH_MIN));
    if let Some(rest) = rest {
        widths[rest] += room.saturating_sub(widths[0]);
    }
    widths
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(width: usize) -> Vec<String> {
        let numbers = |numbers: [u64; 2]| numbers.map(Cell::text).into();
        let columns = vec![
            Column::name("QUEUE", ["mail", "invoices-of-customers-in-the-north"].map(Cell::text).into()),
            Column::left("", 1, ["", ""].map(Cell::text).into()),
            Column::right("WAITING", 0, numbers([7, 12])),
            Column::right("STALLED", 1, numbers([0, 0])),
            Column::right("FAILED", 3, numbers([1, 0])),
            Column::right("RUNNING", 2, numbers([1, 3])),
            Column::rest("HOLDS", 4, ["a note that is longer than its column", ""].map(Cell::text).into()),
        ];
        let (heading, rows) = table(columns, width, Theme { has_colors: false });
        std::iter::once(heading).chain(rows).map(|line| line.to_string().trim_end().to_owned()).collect()
    }

    #[test]
    fn zeros_are_left_out_first_and_then_what_matters_least() {
        assert_eq!(
            drawn(100),
            [
                "QUEUE                            WAITING  STALLED  FAILED  RUNNING  HOLDS",
                "mail                                   7        0       1        1  a note that is longer than its …",
                "invoices-of-cus…rs-in-the-north       12        0       0        3",
            ]
        );
        assert_eq!(drawn(52)[0], "QUEUE           WAITING  FAILED  RUNNING  HOLDS");
        assert_eq!(drawn(40)[0], "QUEUE           WAITING  FAILED  RUNNING");
        assert_eq!(drawn(34)[0], "QUEUE             WAITING  RUNNING");
        assert_eq!(drawn(25)[2], "invoices…e-north       12");
        // There is no width at which it does not end.
        for width in 0..120 {
            assert_eq!(drawn(width).len(), 3);
        }
    }
}
