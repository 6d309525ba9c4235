//! Where answers go, and in which form.

use std::io::{self, Write};

use geartrain::Timestamp;
use serde::Serialize;

use crate::text::{clean, clean_lines};

/// Where answers go: what was asked for to `out`, remarks to `err`.
pub(crate) struct Output<'a> {
    /// Whether `out` gets JSON rather than text for people.
    pub(crate) json: bool,
    /// When the command was given: what relative times are relative to.
    pub(crate) now: Timestamp,
    /// What was asked for.
    pub(crate) out: &'a mut dyn Write,
    /// Where `out` goes, for bytes that must arrive as they are; none if that is a terminal.
    pub(crate) raw: Option<&'a mut dyn Write>,
    /// Remarks.
    pub(crate) err: &'a mut dyn Write,
    /// Whether somebody sees remarks as they come.
    pub(crate) err_is_terminal: bool,
}

impl Output<'_> {
    /// Shows an answer: as one line of JSON, or as `people` writes it.
    pub(crate) fn show(
        &mut self,
        view: &impl Serialize,
        people: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<()> {
        if self.json {
            serde_json::to_writer(&mut *self.out, view)?;
            writeln!(self.out)
        } else {
            people(self.out)
        }
    }

    /// Shows an answer that fits on a line.
    pub(crate) fn line(&mut self, view: &impl Serialize, people: impl std::fmt::Display) -> io::Result<()> {
        self.show(view, |out| writeln!(out, "{}", clean(&people.to_string())))
    }

    /// Passes bytes on at once: every one as it is, or to a terminal as text that cannot move its cursor.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.flush()?;
        if let Some(raw) = &mut self.raw {
            raw.write_all(bytes)?;
            return raw.flush();
        }
        let text = String::from_utf8_lossy(bytes);
        let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
        write!(self.out, "{}{end}", clean_lines(&text))?;
        self.out.flush()
    }

    /// Shows a list; if there is nothing in it people are told so, where it is in nobody's way.
    pub(crate) fn list<T: Serialize>(
        &mut self,
        list: &[T],
        none: &str,
        people: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<()> {
        if list.is_empty() && !self.json {
            return self.remark(none);
        }
        self.show(&list, people)
    }

    /// Says something that was not asked for but is worth knowing.
    pub(crate) fn remark(&mut self, text: impl std::fmt::Display) -> io::Result<()> {
        writeln!(self.err, "geartrain: {}", clean(&text.to_string()))
    }
}
