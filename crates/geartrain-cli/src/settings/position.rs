//! Errors in the configuration file, with their position.

use std::ops::Range;
use std::path::Path;

use crate::failure::Failure;

/// The text of a configuration file, for positions in it.
pub(super) struct Source<'a> {
    pub(super) path: &'a Path,
    pub(super) text: &'a str,
}

impl Source<'_> {
    /// The line of an offset, the first being 1.
    pub(super) fn line(&self, offset: usize) -> usize {
        self.before(offset).matches('\n').count() + 1
    }

    fn before(&self, offset: usize) -> &str {
        // A span may end inside a character where the file is not TOML.
        let end = (0..=offset.min(self.text.len())).rev().find(|end| self.text.is_char_boundary(*end));
        &self.text[..end.unwrap_or_default()]
    }

    /// An error about a part of the text.
    pub(super) fn error(&self, span: &Range<usize>, why: impl std::fmt::Display) -> Failure {
        let before = self.before(span.start);
        let column = before.chars().rev().take_while(|letter| *letter != '\n').count() + 1;
        Failure::Usage(format!("{}:{}:{column}: {why}", self.path.display(), self.line(span.start)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_counts_lines_and_characters() {
        let source = Source { path: Path::new("c.toml"), text: "a = 1\nbé = 2\n" };
        for (offset, position) in [(0, "1:1"), (4, "1:5"), (6, "2:1"), (9, "2:3"), (8, "2:2"), (99, "3:1")] {
            assert_eq!(source.error(&(offset..offset), "no").to_string(), format!("c.toml:{position}: no"));
        }
    }
}
