//! Text output: aligned tables, cards, and escaping of terminal control characters.

use std::borrow::Cow;
use std::io::{self, Write};

use anstyle::{AnsiColor, Style};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

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

/// Where text for people goes.
pub(crate) struct TextOut<'a> {
    pub(crate) out: &'a mut dyn Write,
    /// The columns of the terminal; none if `out` is not one.
    pub(crate) width: Option<usize>,
}

impl TextOut<'_> {
    /// For `write!` without the trait.
    pub(crate) fn write_fmt(&mut self, text: std::fmt::Arguments<'_>) -> io::Result<()> {
        self.out.write_fmt(text)
    }
}

impl Write for TextOut<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// What a table that is too wide does to a column, the first to be shortened first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Shorten {
    /// Cuts off the end: what matters comes first. If too little of it would remain, and it is the last column,
    /// it stands under its row.
    End,
    /// Stands under its row, and is never cut. Only for the last column.
    Under,
    /// Cuts out the middle: names differ at both ends.
    Middle,
    /// Cuts out the middle if nothing else is left to shorten: ids are copied into the next command.
    Last,
    Never,
}

/// A value in a table or on a card.
#[derive(Debug, Clone)]
pub(crate) struct Cell {
    text: String,
    style: Style,
    right: bool,
    shorten: Shorten,
}

impl Cell {
    fn new(text: &str) -> Cell {
        Cell { text: clean(text).into_owned(), style: Style::new(), right: false, shorten: Shorten::Middle }
    }

    /// The id of a job.
    pub(crate) fn id(text: impl ToString) -> Cell {
        Cell { shorten: Shorten::Last, ..Cell::new(&text.to_string()) }
    }

    /// A value that is of no use unless it is whole, such as a time.
    pub(crate) fn whole(text: impl ToString) -> Cell {
        Cell { shorten: Shorten::Never, ..Cell::new(&text.to_string()) }
    }

    /// A text of several lines, for a card.
    pub(crate) fn lines(text: &str) -> Cell {
        Cell { text: clean_lines(text).into_owned(), ..Cell::new("") }
    }

    /// A right-aligned number. Zero is faint, so that the others stand out.
    pub(crate) fn number(number: u64) -> Cell {
        let style = if number == 0 { FAINT } else { Style::new() };
        Cell { style, ..Cell::right(number) }
    }

    /// A right-aligned value.
    pub(crate) fn right(text: impl ToString) -> Cell {
        Cell { right: true, ..Cell::whole(text) }
    }

    /// A minor detail.
    pub(crate) fn faint(text: impl ToString) -> Cell {
        Cell { style: FAINT, shorten: Shorten::End, ..Cell::new(&text.to_string()) }
    }

    /// A sentence that explains the row.
    pub(crate) fn sentence(text: impl ToString) -> Cell {
        Cell { shorten: Shorten::Under, ..Cell::faint(text) }
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
        Cell { style, ..Cell::whole(name) }
    }

    /// Whether the cell says nothing: no text, or a 0.
    pub(crate) fn is_blank(&self) -> bool {
        self.text.is_empty() || self.right && self.text == "0"
    }

    /// The cell with its text shortened to a width.
    fn fit(&self, width: usize) -> Cow<'_, Cell> {
        if self.width() <= width {
            return Cow::Borrowed(self);
        }
        let tail = if self.shorten == Shorten::End { 0 } else { width.saturating_sub(1) / 2 };
        Cow::Owned(Cell { text: shorten(&self.text, width, tail), ..self.clone() })
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

/// A text shortened to a display width with an ellipsis, before which the start and behind which the last
/// `tail` columns of the text remain.
pub(crate) fn shorten(text: &str, width: usize, tail: usize) -> String {
    let ends = text.char_indices().map(|(start, c)| start + c.len_utf8());
    let head = width.saturating_sub(1 + tail);
    let head = ends.take_while(|end| text[..*end].width() <= head).last().unwrap_or(0);
    let starts = text.char_indices().rev().take_while(|(start, _)| text[*start..].width() <= tail);
    // A combining mark would join the ellipsis.
    let starts = starts.filter(|(_, c)| c.width().is_some_and(|width| width > 0));
    let tail = starts.last().map_or(text.len(), |(start, _)| start);
    format!("{}…{}", &text[..head], &text[tail..])
}

/// A column is not made narrower than this, nor than its heading.
const COLUMN_WIDTH_MIN: usize = 8;

/// How much wider a note stays than a name.
const NOTE_WIDTH_BONUS: usize = 12;

/// A note is not made narrower than this: it has room for `running 59m59s, lock 59m59s left`.
const NOTE_WIDTH_MIN: usize = 32;

/// Writes a table with aligned columns. On a terminal that is too narrow, columns that say nothing are left
/// out, then texts are shortened; a note of which too little would remain stands under its row.
pub(crate) fn table<const N: usize>(
    out: &mut TextOut<'_>,
    heading: [&str; N],
    rows: &[[Cell; N]],
) -> io::Result<()> {
    table_with_texts(out, heading, rows, |_| String::new())
}

/// Like `table`, with a text under each row: indented, wrapped at the width of the terminal.
pub(crate) fn table_with_texts<const N: usize>(
    out: &mut TextOut<'_>,
    heading: [&str; N],
    rows: &[[Cell; N]],
    text_under: impl Fn(usize) -> String,
) -> io::Result<()> {
    let mut columns: Vec<Column> =
        heading.iter().enumerate().map(|(index, heading)| Column::new(index, heading, rows)).collect();
    let note = out.width.and_then(|width| fit_columns(&mut columns, width));
    let headings: Vec<Cell> = columns
        .iter()
        .map(|column| Cell { style: HEADING, right: column.right, ..Cell::new(column.heading) })
        .collect();
    let widths: Vec<usize> = columns.iter().map(|column| column.width).collect();
    write_row(out, headings.iter(), &widths)?;
    for (number, row) in rows.iter().enumerate() {
        let cells: Vec<_> = columns.iter().map(|column| row[column.index].fit(column.width)).collect();
        write_row(out, cells.iter().map(AsRef::as_ref), &widths)?;
        if let Some(note) = note {
            write_indented(out, &row[note].text, row[note].style)?;
        }
        write_indented(out, &text_under(number), Style::new())?;
    }
    Ok(())
}

struct Column<'a> {
    index: usize,
    heading: &'a str,
    width: usize,
    right: bool,
    blank: bool,
    shorten: Shorten,
}

impl Column<'_> {
    fn new<'a, const N: usize>(index: usize, heading: &'a str, rows: &[[Cell; N]]) -> Column<'a> {
        let cells = || rows.iter().map(|row| &row[index]);
        Column {
            index,
            heading,
            width: cells().map(Cell::width).max().unwrap_or(0).max(heading.width()),
            right: cells().next().is_some_and(|cell| cell.right),
            blank: index > 0 && cells().all(Cell::is_blank),
            shorten: cells().map(|cell| cell.shorten).max().unwrap_or(Shorten::Never),
        }
    }

    fn width_min(&self) -> usize {
        self.heading.width().max(COLUMN_WIDTH_MIN)
    }
}

/// Makes columns fit a width as far as that is possible. Returns the index of the last column if its texts are
/// to stand under the rows.
fn fit_columns(columns: &mut Vec<Column<'_>>, width: usize) -> Option<usize> {
    while is_wider(columns, width)
        && let Some(blank) = columns.iter().rposition(|column| column.blank)
    {
        columns.remove(blank);
    }
    let widths: Vec<usize> = columns.iter().map(|column| column.width).collect();
    shorten_columns(columns, width);
    let whole = widths.last().copied().unwrap_or(0);
    let note = columns.pop_if(|last| match last.shorten {
        Shorten::End => last.width < NOTE_WIDTH_MIN.min(whole),
        Shorten::Under => last.width < whole,
        Shorten::Middle | Shorten::Last | Shorten::Never => false,
    })?;
    // Without the note there is more room for the others.
    columns.iter_mut().zip(widths).for_each(|(column, width)| column.width = width);
    shorten_columns(columns, width);
    Some(note.index)
}

fn is_wider(columns: &[Column<'_>], width: usize) -> bool {
    let gaps = 2 * columns.len().saturating_sub(1);
    columns.iter().map(|column| column.width).sum::<usize>() + gaps > width
}

/// Shortens columns until they fit, or none can be shortened further.
fn shorten_columns(columns: &mut [Column<'_>], width: usize) {
    // Ids come last; of the others, the widest column is shortened first.
    for ids in [false, true] {
        while is_wider(columns, width) {
            let can_shrink = |column: &&mut Column<'_>| {
                column.shorten != Shorten::Never
                    && (column.shorten == Shorten::Last) == ids
                    && column.width > column.width_min()
            };
            // A note says more per column than a name.
            let weight = |column: &&mut Column<'_>| match column.shorten {
                Shorten::End => column.width.saturating_sub(NOTE_WIDTH_BONUS),
                _ => column.width,
            };
            match columns.iter_mut().filter(can_shrink).max_by_key(weight) {
                Some(widest) => widest.width -= 1,
                None => break,
            }
        }
    }
}

fn write_row<'a>(
    out: &mut dyn Write,
    row: impl Iterator<Item = &'a Cell>,
    widths: &[usize],
) -> io::Result<()> {
    // Blanks are written only before the next cell, so that no line ends in blanks.
    let mut blanks = 0;
    for (column, (cell, width)) in row.zip(widths).enumerate() {
        let padding = width.saturating_sub(cell.width());
        blanks += if column == 0 { 0 } else { 2 } + if cell.right { padding } else { 0 };
        if !cell.text.is_empty() {
            write!(out, "{:blanks$}{}{}{:#}", "", cell.style, cell.text, cell.style)?;
            blanks = 0;
        }
        blanks += if cell.right { 0 } else { padding };
    }
    writeln!(out)
}

const INDENT: usize = 4;

/// Writes the lines of a text, indented. On a terminal, long lines are wrapped.
fn write_indented(out: &mut TextOut<'_>, text: &str, style: Style) -> io::Result<()> {
    let width = out.width.map_or(usize::MAX, |width| width.saturating_sub(INDENT).max(COLUMN_WIDTH_MIN));
    for line in text.lines() {
        let mut rest = line;
        loop {
            let (start, end) = split_at_width(rest, width);
            match start.trim_end() {
                "" => writeln!(out)?,
                start => writeln!(out, "{:INDENT$}{style}{start}{style:#}", "")?,
            }
            if end.is_empty() {
                break;
            }
            rest = end;
        }
    }
    Ok(())
}

/// Splits a line at a display width: behind a blank if there is one, and never before the first character.
fn split_at_width(line: &str, width: usize) -> (&str, &str) {
    let mut used = 0;
    let beyond = line.char_indices().find(|(_, c)| {
        used += c.width().unwrap_or(0);
        used > width
    });
    let Some((end, _)) = beyond else { return (line, "") };
    let first = line.chars().next().map_or(0, char::len_utf8);
    let indent = line.len() - line.trim_start().len();
    let blank = line[..end].rfind(' ').map(|blank| blank + 1).filter(|after| *after > indent);
    line.split_at(blank.unwrap_or(end.max(first)))
}

/// Writes a card: one label and value per line; further lines of a value stand under its first.
pub(crate) fn card(out: &mut dyn Write, lines: &[(&str, Cell)]) -> io::Result<()> {
    let width = lines.iter().map(|(label, _)| label.width()).max().unwrap_or(0);
    for (label, cell) in lines {
        let mut label = Cell::faint(label);
        for line in cell.text.split('\n') {
            let value = Cell { text: line.to_owned(), ..cell.clone() };
            write_row(out, [&label, &value].into_iter(), &[width, 0])?;
            label = Cell::from("");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(width: Option<usize>, write: impl FnOnce(&mut TextOut<'_>) -> io::Result<()>) -> String {
        let mut bytes = Vec::new();
        write(&mut TextOut { out: &mut anstream::StripStream::new(&mut bytes), width }).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn columns_line_up_and_no_line_ends_in_blanks() {
        let rows = [
            [Cell::from("mail"), Cell::number(7), Cell::state("paused")],
            [Cell::from("größe"), Cell::number(12_000), Cell::from("")],
            [Cell::from("日本"), Cell::number(0), Cell::from("x")],
        ];
        let text = plain(None, |out| table(out, ["QUEUE", "WAITING", ""], &rows));
        assert_eq!(text, "QUEUE  WAITING\nmail         7  paused\ngröße    12000\n日本         0  x\n");
    }

    /// Tables of jobs with names as they come: long, wide, with combining marks.
    fn jobs() -> Vec<[Cell; 6]> {
        [
            "invoices-of-customers-in-the-north",
            "日本語のとても長いキューの名前です",
            "e\u{301}".repeat(30).as_str(),
        ]
        .iter()
        .map(|name| {
            [
                Cell::id("0199f3a1b2c37d4e8f90a1b2c3d4e5f6"),
                Cell::state("running"),
                Cell::from(name),
                Cell::from("Reports::Monthly::Render"),
                Cell::right(0),
                Cell::faint("running 9s, lock 51s left, worker-17.example.org"),
            ]
        })
        .collect()
    }
    const HEADING_OF_JOBS: [&str; 6] = ["JID", "STATE", "QUEUE", "KLASS", "PRIORITY", "NOTE"];

    #[test]
    fn a_table_fits_every_width_that_has_room_for_it() {
        let rows = jobs();
        let full = plain(None, |out| table(out, HEADING_OF_JOBS, &rows));
        assert!(
            full.contains("Reports::Monthly::Render") && full.contains("worker-17.example.org"),
            "{full}"
        );
        let full_width = full.lines().map(UnicodeWidthStr::width).max().unwrap();
        for width in 40..full_width + 10 {
            let text = plain(Some(width), |out| table(out, HEADING_OF_JOBS, &rows));
            let widest = text.lines().map(UnicodeWidthStr::width).max().unwrap();
            assert!(widest <= width, "{width}:\n{text}");
            // Ids are shortened only when the other columns are as narrow as they get.
            assert_eq!(text.matches("0199f3a1b2c37d4e8f90a1b2c3d4e5f6").count() == 3, width >= 61, "{text}");
            assert_eq!(text == full, width >= full_width, "{width}:\n{text}");
        }
    }

    #[test]
    fn a_narrow_table_keeps_both_ends_of_a_name_and_the_start_of_a_note() {
        let text = plain(Some(120), |out| table(out, HEADING_OF_JOBS, &jobs()[..1]));
        assert_eq!(
            text,
            "JID                               STATE    QUEUE                  KLASS                 NOTE\n\
             0199f3a1b2c37d4e8f90a1b2c3d4e5f6  running  invoices-o…-the-north  Reports::M…y::Render  \
             running 9s, lock 51s left, work…\n"
        );
    }

    #[test]
    fn a_note_of_which_too_little_would_remain_stands_under_its_row() {
        let text = plain(Some(90), |out| table(out, HEADING_OF_JOBS, &jobs()[..1]));
        assert_eq!(
            text,
            "JID                               STATE    QUEUE                    KLASS\n\
             0199f3a1b2c37d4e8f90a1b2c3d4e5f6  running  invoices-of…n-the-north  Reports::Mo…ly::Render\n    \
             running 9s, lock 51s left, worker-17.example.org\n"
        );
        // A sentence is whole, or under its row.
        let row =
            [Cell::id("heartbeat"), Cell::sentence("How long a lock lasts unless a heartbeat renews it.")];
        let explain =
            |width| plain(Some(width), |out| table(out, ["OPTION", "MEANING"], std::slice::from_ref(&row)));
        assert_eq!(explain(62).lines().count(), 2);
        assert_eq!(
            explain(40),
            "OPTION\nheartbeat\n    How long a lock lasts unless a\n    heartbeat renews it.\n"
        );
    }

    #[test]
    fn columns_that_say_nothing_are_left_out_before_names_are_shortened() {
        let name = "invoices-of-customers-in-the-north";
        let row = |waiting| [Cell::from(name), Cell::number(waiting), Cell::number(0), Cell::number(3)];
        let heading = ["QUEUE", "WAITING", "SCHEDULED", "DEPENDS"];
        let text = plain(Some(52), |out| table(out, heading, &[row(0), row(7)]));
        assert_eq!(
            text,
            format!(
                "QUEUE                               WAITING  DEPENDS\n{name}        0        3\n{name}        7        3\n"
            )
        );
        assert!(plain(Some(80), |out| table(out, heading, &[row(0)])).contains("SCHEDULED"));
    }

    #[test]
    fn a_name_is_shortened_at_whole_characters() {
        for (text, width, short) in [
            ("abcdefghij", 10, "abcdefghij"),
            ("abcdefghij", 9, "abcd…ghij"),
            ("abcdefghij", 2, "a…"),
            ("日本語の名前", 8, "日本…前"),
            ("e\u{301}e\u{301}e\u{301}e\u{301}", 3, "e\u{301}…e\u{301}"),
            ("👩‍👩‍👧‍👧👩‍👩‍👧‍👧👩‍👩‍👧‍👧", 5, "👩‍👩‍👧‍👧…👩‍👩‍👧‍👧"),
        ] {
            let fitted = Cell::from(text).fit(width).into_owned().text;
            assert!(fitted.width() <= width, "{fitted}");
            assert_eq!(fitted, short);
        }
    }

    #[test]
    fn a_text_under_a_row_is_indented_and_wrapped_on_a_terminal() {
        let message = "Traceback:\n  File \"a.py\", line 3, in main\nValueError: bad";
        let rows = [[Cell::id("j1")], [Cell::id("j2")]];
        let show = |width| {
            plain(width, |out| {
                table_with_texts(out, ["JID"], &rows, |row| {
                    if row == 0 { message.to_owned() } else { String::new() }
                })
            })
        };
        assert_eq!(
            show(None),
            "JID\nj1\n    Traceback:\n      File \"a.py\", line 3, in main\n    ValueError: bad\nj2\n"
        );
        assert_eq!(
            show(Some(24)),
            "JID\nj1\n    Traceback:\n      File \"a.py\", line\n    3, in main\n    ValueError: bad\nj2\n"
        );
        assert_eq!(split_at_width("日本語", 1), ("日", "本語"));
    }

    #[test]
    fn a_card_lines_up_its_labels_and_the_lines_of_a_value() {
        let text = plain(None, |out| {
            card(
                out,
                &[("jid", "j1".into()), ("failure", Cell::lines("a:\n  b\x1b")), ("payload", "{}".into())],
            )
        });
        assert_eq!(text, "jid      j1\nfailure  a:\n           b\\u{1b}\npayload  {}\n");
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
