//! Colours and characters of the display.

use ratatui::style::{Color, Modifier, Style};

/// The styles; without colours if the terminal or NO_COLOR asks for none.
#[derive(Debug, Clone, Copy)]
pub(super) struct Theme {
    pub(super) has_colors: bool,
}

impl Theme {
    fn color(self, color: Color) -> Style {
        if self.has_colors { Style::new().fg(color) } else { Style::new() }
    }

    pub(super) fn bold(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// For labels, borders and zeros.
    pub(super) fn faint(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    pub(super) fn good(self) -> Style {
        self.color(Color::Green)
    }

    pub(super) fn busy(self) -> Style {
        self.color(Color::Cyan)
    }

    pub(super) fn later(self) -> Style {
        self.color(Color::Yellow)
    }

    pub(super) fn bad(self) -> Style {
        self.color(Color::Red).add_modifier(Modifier::BOLD)
    }

    /// For the border of what the keys go to.
    pub(super) fn focus(self) -> Style {
        self.busy().add_modifier(Modifier::BOLD)
    }

    /// For the row under the cursor.
    pub(super) fn cursor(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    /// A state, as the tables of other commands show it.
    pub(super) fn state(self, state: &str) -> Style {
        match state {
            "running" => self.busy(),
            "scheduled" | "depends" | "paused" => self.later(),
            "failed" | "stalled" => self.bad(),
            _ => Style::new(),
        }
    }

    /// The style that an ANSI sequence (SGR) of our own text selects.
    fn sgr(self, code: &str) -> Option<Style> {
        Some(match code {
            "1" => self.bold(),
            "2" => self.faint(),
            "31" => self.color(Color::Red),
            "32" => self.good(),
            "33" => self.later(),
            "36" => self.busy(),
            _ => return None,
        })
    }

    /// The lines of a text that a command has printed, each as characters with their styles. The text has no
    /// other control characters than the sequences that select styles.
    pub(super) fn styled(self, text: &str) -> Vec<Vec<(char, Style)>> {
        let line = |line: &str| {
            let (mut styled, mut style) = (Vec::new(), Style::new());
            let mut parts = line.split('\x1b');
            styled.extend(parts.next().unwrap_or_default().chars().map(|c| (c, style)));
            for part in parts {
                let (code, rest) =
                    part.strip_prefix('[').and_then(|part| part.split_once('m')).unwrap_or(("", part));
                style = self.sgr(code).map_or(Style::new(), |selected| style.patch(selected));
                styled.extend(rest.chars().map(|c| (c, style)));
            }
            styled
        };
        text.lines().map(line).collect()
    }
}

/// The heights of a sparkline.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The newest points as bars, the last one at the right end.
pub(super) fn sparkline(points: &[f64], width: usize) -> String {
    let points = &points[points.len().saturating_sub(width)..];
    let most = points.iter().copied().fold(0.0, f64::max);
    let bar = |point: f64| match point > 0.0 {
        // Above zero a bar is never the lowest one.
        true => BARS[((point / most * 7.0).ceil() as usize).clamp(1, 7)],
        false => BARS[0],
    };
    let bars: String = points.iter().map(|point| bar(*point)).collect();
    format!("{}{bars}", " ".repeat(width - points.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sparkline_is_as_wide_as_asked_and_scaled_to_its_largest_point() {
        assert_eq!(sparkline(&[0.0, 1.0, 3.5, 7.0], 6), "  ▁▂▅█");
        assert_eq!(sparkline(&[9.0, 0.0, 0.0], 2), "▁▁");
        assert_eq!(sparkline(&[], 3), "   ");
        assert_eq!(sparkline(&[0.001, 1_000.0], 2), "▂█");
    }

    #[test]
    fn styles_of_printed_text_are_kept_and_colours_left_out_on_request() {
        let text = "a\x1b[1mb\x1b[0mc\n\x1b[31md";
        let lines = Theme { has_colors: true }.styled(text);
        let plain: Vec<String> = lines.iter().map(|line| line.iter().map(|(c, _)| c).collect()).collect();
        assert_eq!(plain, ["abc", "d"]);
        assert_eq!(lines[0][1].1, Theme { has_colors: true }.bold());
        assert_eq!(lines[0][2].1, Style::new());
        assert_eq!(lines[1][0].1.fg, Some(Color::Red));
        assert_eq!(Theme { has_colors: false }.styled(text)[1][0].1.fg, None);
    }
}
