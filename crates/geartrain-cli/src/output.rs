//! Output: the answer on stdout as JSON or text, remarks on stderr.

use std::io::{self, Write};

use geartrain::{Count, Timestamp};
use serde::Serialize;

use crate::text::{TextOut, clean, clean_lines, count};

pub(crate) struct Output<'a> {
    /// Whether `out` gets JSON, not text.
    pub(crate) json: bool,
    /// When the command started; relative times refer to it.
    pub(crate) now: Timestamp,
    /// The columns of the terminal; none if `out` is not one.
    pub(crate) width: Option<usize>,
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
        people: impl FnOnce(&mut TextOut<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        if self.json {
            serde_json::to_writer(&mut *self.out, view)?;
            writeln!(self.out)
        } else {
            people(&mut TextOut { out: &mut *self.out, width: self.width })
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
        people: impl FnOnce(&mut TextOut<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        if list.is_empty() && !self.json {
            return self.remark(none);
        }
        self.show(&list, people)
    }

    /// Prints a page of a list. If that is not all of it, a remark says how to see the rest.
    pub(crate) fn page<T: Serialize>(
        &mut self,
        items: &[T],
        page: &ShownPage<'_>,
        none: &str,
        people: impl FnOnce(&mut TextOut<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        if page.paged {
            return self.show(&PageView { items, total: page.total.exact(), next: page.next() }, people);
        }
        let cut = page.cut();
        match page.total {
            // The remark below says that there are some.
            _ if items.is_empty() && cut.is_some() && !self.json => {}
            Total::Exactly(total @ 1..) if items.is_empty() && page.shown == 0 && page.offset > 0 => {
                self.list(items, &format!("there are only {}", count(total, page.noun)), people)?;
            }
            _ => self.list(items, none, people)?,
        }
        match cut {
            // A script that gives a limit wants no more than that.
            Some(_) if self.json && page.limit_given => Ok(()),
            Some(remark) => self.remark(remark),
            None => Ok(()),
        }
    }

    /// Prints a remark for people, behind what was printed before it.
    pub(crate) fn remark(&mut self, text: impl std::fmt::Display) -> io::Result<()> {
        self.out.flush()?;
        writeln!(self.err, "geartrain: {}", clean(&text.to_string()))
    }
}

/// Which part of a list is shown.
pub(crate) struct ShownPage<'a> {
    /// What the list consists of, in the singular.
    pub(crate) noun: &'a str,
    pub(crate) offset: usize,
    pub(crate) shown: usize,
    pub(crate) total: Total,
    pub(crate) limit_given: bool,
    /// Whether the JSON is a page with a cursor, and not just the list.
    pub(crate) paged: bool,
}

/// The length of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Total {
    Exactly(u64),
    /// To know it exactly, jobs that may be many would have to be looked up one by one.
    AtLeast(u64),
}

impl Total {
    fn exact(self) -> Option<u64> {
        match self {
            Total::Exactly(total) => Some(total),
            Total::AtLeast(_) => None,
        }
    }
}

#[derive(Serialize)]
struct PageView<'a, T> {
    items: &'a [T],
    total: Option<u64>,
    next: Option<u64>,
}

impl ShownPage<'_> {
    /// The offset of the next page, if there is one.
    fn next(&self) -> Option<u64> {
        let next = (self.offset + self.shown) as u64;
        let (Total::Exactly(total) | Total::AtLeast(total)) = self.total;
        (next < total).then_some(next)
    }

    /// What is missing, and how to see it.
    fn cut(&self) -> Option<String> {
        let next = self.next()?;
        let noun = self.noun;
        let (of, more) = match self.total {
            Total::Exactly(total) if total <= Count::MAX.get() as u64 => {
                (format!("of {}", count(total, noun)), format!("--limit {total} shows all"))
            }
            Total::Exactly(total) => {
                (format!("of {}", count(total, noun)), "--limit N shows more".to_owned())
            }
            Total::AtLeast(total) => {
                (format!("of at least {}", count(total, noun)), "--limit N shows more".to_owned())
            }
        };
        Some(match (self.offset, self.shown) {
            (0, 0) => format!("0 {of}; {more}"),
            (0, shown) => format!("{shown} {of}; {more}, --offset {next} the next ones"),
            (offset, 0) => format!("0 {of} from --offset {offset} on; {more}"),
            (offset, _) => format!("{} to {next} {of}; --offset {next} shows the next ones", offset + 1),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_says_what_is_missing_and_how_to_see_it() {
        let page = |offset, shown, total| ShownPage {
            noun: "job",
            offset,
            shown,
            total,
            limit_given: false,
            paged: false,
        };
        for (offset, shown, total, cut, next) in [
            (0, 39, Total::Exactly(39), None, None),
            (
                0,
                25,
                Total::Exactly(39),
                Some("25 of 39 jobs; --limit 39 shows all, --offset 25 the next ones"),
                Some(25),
            ),
            (
                25,
                10,
                Total::Exactly(39),
                Some("26 to 35 of 39 jobs; --offset 35 shows the next ones"),
                Some(35),
            ),
            (25, 14, Total::Exactly(39), None, None),
            (0, 0, Total::Exactly(1), Some("0 of 1 job; --limit 1 shows all"), Some(0)),
            (
                0,
                25,
                Total::AtLeast(26),
                Some("25 of at least 26 jobs; --limit N shows more, --offset 25 the next ones"),
                Some(25),
            ),
            (
                0,
                25,
                Total::Exactly(100_001),
                Some("25 of 100001 jobs; --limit N shows more, --offset 25 the next ones"),
                Some(25),
            ),
            (100, 0, Total::Exactly(39), None, None),
        ] {
            let page = page(offset, shown, total);
            assert_eq!((page.cut().as_deref(), page.next()), (cut, next));
        }
    }
}
