//! Output: the answer on stdout as JSON or text, remarks on stderr.

use std::io::{self, Write};

use geartrain::Timestamp;
use serde::Serialize;

use crate::text::{clean, clean_lines};

pub(crate) struct Output<'a> {
    /// Whether `out` gets JSON, not text.
    pub(crate) json: bool,
    /// When the command started; relative times refer to it.
    pub(crate) now: Timestamp,
    /// For the answer.
    pub(crate) out: &'a mut dyn Write,
    /// The same stream, for raw bytes; none if it is a terminal.
    pub(crate) raw: Option<&'a mut dyn Write>,
    /// For remarks.
    pub(crate) err: &'a mut dyn Write,
    /// Whether a person sees the remarks as they come.
    pub(crate) err_is_terminal: bool,
}

impl Output<'_> {
    /// Prints an answer: one line of JSON, or what `people` writes.
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

    /// Prints an answer that fits on one line.
    pub(crate) fn line(&mut self, view: &impl Serialize, people: impl std::fmt::Display) -> io::Result<()> {
        self.show(view, |out| writeln!(out, "{}", clean(&people.to_string())))
    }

    /// Prints raw bytes at once; on a terminal as text that cannot move its cursor.
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

    /// Prints a list; an empty one for people is a remark on stderr.
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

    /// Prints a remark for people.
    pub(crate) fn remark(&mut self, text: impl std::fmt::Display) -> io::Result<()> {
        writeln!(self.err, "geartrain: {}", clean(&text.to_string()))
    }
}
