//! Text output: aligned tables, cards, and escaping of terminal control characters.

use std::borrow::Cow;
use std::io::{self, Write};

use anstyle::{AnsiColor, Style};
use unicode_width::UnicodeWidthStr;

pub(crate) const HEADING: Style = Style::new().bold();
/// For labels and minor details.
pub(crate) const FAINT: Style = Style::new().dimmed();
const GOOD: Style = AnsiColor::Green.on_default();
const BUSY: Style = AnsiColor::Cyan.on_default();
const LATER: Style = AnsiColor::Yellow.on_default();
const BAD: Style = AnsiColor::Red.on_default();

/// Escapes control characters and bidirectional overrides, so that text is safe to print on a terminal.
pub(crate) fn clean(text: &str) -> Cow<'_, str> {
    escape(text, |c| c.is_control() || is_bidi_override(c))
}

/// Like `clean`, but keeps line breaks and tabs.
pub(crate) fn clean_lines(text: &str) -> Cow<'_, str> {
    escape(text, |c| c.is_control() && c != '\n' && c != '\t' || is_bidi_override(c))
}

fn is_bidi_override(c: char) -> bool {
    matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn escape(text: &str, dangerous: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&dangerous) {
        return Cow::Borrowed(text);
    }
    let mut cleaned = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if dangerous(c) { cleaned.extend(c.escape_default()) } else { cleaned.push(c) }
    }
    Cow::Owned(cleaned)
}

/// `1 job`, `2 jobs`.
pub(crate) fn count(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// `512 bytes`, `16.0 MiB`.
pub(crate) fn size(bytes: u64) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.into_iter().find(|(_, shift)| bytes >> shift > 0) {
        Some((unit, shift)) => format!("{:.1} {unit}", bytes as f64 / (1_u64 << shift) as f64),
        None => count(bytes, "byte"),
    }
}

/// A value in a table or on a card.
#[derive(Debug, Clone)]
pub(crate) struct Cell {
    text: String,
    style: Style,
    right: bool,
}

impl Cell {
    fn new(text: &str) -> Cell {
        Cell { text: clean(text).into_owned(), style: Style::new(), right: false }
    }

    /// A right-aligned number. Zero is faint, so that the others stand out.
    pub(crate) fn number(number: u64) -> Cell {
        let style = if number == 0 { FAINT } else { Style::new() };
        Cell { style, right: true, ..Cell::new(&number.to_string()) }
    }

    /// A right-aligned value.
    pub(crate) fn right(text: impl ToString) -> Cell {
        Cell { right: true, ..Cell::new(&text.to_string()) }
    }

    /// A minor detail.
    pub(crate) fn faint(text: impl ToString) -> Cell {
        Cell { style: FAINT, ..Cell::new(&text.to_string()) }
    }

    /// A state or an outcome, in its colour.
    pub(crate) fn state(name: &str) -> Cell {
        let style = match name {
            "complete" | "completed" | "advanced" => GOOD,
            "running" => BUSY,
            "scheduled" | "depends" | "paused" | "retried" | "handed-back" => LATER,
            "failed" | "stalled" | "lost" | "timed-out" | "crashed" | "expired" | "gap" => BAD,
            _ => Style::new(),
        };
        Cell { style, ..Cell::new(name) }
    }

    fn width(&self) -> usize {
        self.text.width()
    }
}

impl<T: ToString> From<T> for Cell {
    fn from(text: T) -> Cell {
        Cell::new(&text.to_string())
    }
}

/// Writes a table with aligned columns. Nothing is truncated or wrapped.
pub(crate) fn table<const N: usize>(
    out: &mut dyn Write,
    heading: [&str; N],
    rows: &[[Cell; N]],
) -> io::Result<()> {
    let mut widths = heading.map(str::len);
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.width().max(*width);
        }
    }
    let right = |column: usize| rows.first().is_some_and(|row| row[column].right);
    let mut column = 0;
    let heading = heading.map(|text| {
        column += 1;
        Cell { style: HEADING, right: right(column - 1), ..Cell::new(text) }
    });
    for row in std::iter::once(&heading).chain(rows) {
        write_row(out, row, &widths)?;
    }
    Ok(())
}

fn write_row(out: &mut dyn Write, row: &[Cell], widths: &[usize]) -> io::Result<()> {
    // Blanks are written only before the next cell, so that no line ends in blanks.
    let mut blanks = 0;
    for (column, (cell, width)) in row.iter().zip(widths).enumerate() {
        let padding = width - cell.width();
        blanks += if column == 0 { 0 } else { 2 } + if cell.right { padding } else { 0 };
        if !cell.text.is_empty() {
            write!(out, "{:blanks$}{}{}{:#}", "", cell.style, cell.text, cell.style)?;
            blanks = 0;
        }
        blanks += if cell.right { 0 } else { padding };
    }
    writeln!(out)
}

/// Writes a card: one label and value per line.
pub(crate) fn card(out: &mut dyn Write, lines: &[(&str, Cell)]) -> io::Result<()> {
    let width = lines.iter().map(|(label, _)| label.width()).max().unwrap_or(0);
    for (label, cell) in lines {
        write_row(out, &[Cell::faint(label), cell.clone()], &[width, cell.width()])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> String {
        let mut bytes = Vec::new();
        write(&mut anstream::StripStream::new(&mut bytes)).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn columns_line_up_and_no_line_ends_in_blanks() {
        let rows = [
            [Cell::from("mail"), Cell::number(7), Cell::state("paused")],
            [Cell::from("größe"), Cell::number(12_000), Cell::from("")],
            [Cell::from("日本"), Cell::number(0), Cell::from("x")],
        ];
        let text = plain(|out| table(out, ["QUEUE", "WAITING", ""], &rows));
        assert_eq!(text, "QUEUE  WAITING\nmail         7  paused\ngröße    12000\n日本         0  x\n");
    }

    #[test]
    fn a_card_lines_up_its_labels() {
        let text = plain(|out| card(out, &[("jid", "j1".into()), ("payload", "{}".into())]));
        assert_eq!(text, "jid      j1\npayload  {}\n");
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(clean("a\x1b[2Jb\nc\u{202e}d é"), "a\\u{1b}[2Jb\\nc\\u{202e}d é");
        assert!(matches!(clean("plain"), Cow::Borrowed(_)));
        assert_eq!(clean_lines("a\tb\n\x1b[2J\r"), "a\tb\n\\u{1b}[2J\\r");
    }

    #[test]
    fn one_is_singular() {
        assert_eq!((count(1, "job").as_str(), count(0, "job").as_str()), ("1 job", "0 jobs"));
    }
}
