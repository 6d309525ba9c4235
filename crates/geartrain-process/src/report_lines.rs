//! Lines on descriptor 3: `progress 3/10`, `log TEXT` and `group NAME`.

use std::sync::Arc;

use geartrain_core::{Group, Portion};
use geartrain_worker::Context;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::{mpsc, watch};

/// A longer line is not understood.
const LINE_BYTES_MAX: usize = 8 * 1024;
/// Log lines that wait to be sent. Then the program waits.
const LOGS_MAX: usize = 64;
/// How much of a line that is not understood is shown.
const SHOWN_CHARS_MAX: usize = 80;

/// A line of a program.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    Progress(u64, u64),
    Log(String),
    Group(Group),
    Empty,
    Unknown,
}

fn parse(line: &str) -> Line {
    let line = line.trim_end();
    let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
    match word {
        "" => Line::Empty,
        "progress" => {
            let numbers = rest.trim().split_once('/');
            let numbers =
                numbers.and_then(|(done, of)| Some((done.trim().parse().ok()?, of.trim().parse().ok()?)));
            match numbers {
                Some((done, of)) if Portion::new(done, of).is_ok() => Line::Progress(done, of),
                _ => Line::Unknown,
            }
        }
        "group" => Group::new(rest.trim()).map_or(Line::Unknown, Line::Group),
        "log" if !rest.trim().is_empty() => Line::Log(rest.trim().to_owned()),
        _ => Line::Unknown,
    }
}

/// The failure group that a program chose: its last `group NAME`.
pub(crate) type ChosenGroup = Arc<Mutex<Option<Group>>>;

/// Reads the lines of a program until the end, and reports them to the queue. Of several reports of progress that
/// wait only the last is sent. Errors do not matter: the heartbeats notice a lost lock.
pub(crate) async fn forward(reports: impl AsyncRead + Unpin, context: Context, group: ChosenGroup) {
    let (progress, mut progressed) = watch::channel(None);
    let (log, mut logged) = mpsc::channel::<String>(LOGS_MAX);
    let (progress_context, log_context) = (context.clone(), context);
    let send_progress = async {
        while progressed.changed().await.is_ok() {
            let newest = *progressed.borrow_and_update();
            if let Some((done, of)) = newest {
                let _ = progress_context.progress(done, of).await;
            }
        }
    };
    let send_logs = async {
        while let Some(text) = logged.recv().await {
            let _ = log_context.log(text).await;
        }
    };
    tokio::join!(read(reports, progress, log, &group), send_progress, send_logs);
}

async fn read(
    mut reports: impl AsyncRead + Unpin,
    progress: watch::Sender<Option<(u64, u64)>>,
    log: mpsc::Sender<String>,
    group: &ChosenGroup,
) {
    let (mut line, mut chunk) = (Vec::new(), vec![0; LINE_BYTES_MAX]);
    let (mut is_too_long, mut has_warned) = (false, false);
    loop {
        let count = match reports.read(&mut chunk).await {
            Ok(0) | Err(_) => break,
            Ok(count) => count,
        };
        let mut rest = &chunk[..count];
        while !rest.is_empty() {
            let end = rest.iter().position(|byte| *byte == b'\n');
            let part = &rest[..end.unwrap_or(rest.len())];
            if line.len() + part.len() <= LINE_BYTES_MAX {
                line.extend_from_slice(part);
            } else {
                is_too_long = true;
            }
            rest = &rest[end.map_or(rest.len(), |end| end + 1)..];
            if end.is_some() {
                deliver(&line, is_too_long, &mut has_warned, &progress, &log, group).await;
                line.clear();
                is_too_long = false;
            }
        }
    }
    // A last line without its end.
    deliver(&line, is_too_long, &mut has_warned, &progress, &log, group).await;
}

async fn deliver(
    line: &[u8],
    is_too_long: bool,
    has_warned: &mut bool,
    progress: &watch::Sender<Option<(u64, u64)>>,
    log: &mpsc::Sender<String>,
    group: &ChosenGroup,
) {
    let text = String::from_utf8_lossy(line);
    match if is_too_long { Line::Unknown } else { parse(&text) } {
        Line::Empty => {}
        Line::Progress(done, of) => {
            let _ = progress.send(Some((done, of)));
        }
        Line::Log(text) => {
            let _ = log.send(text).await;
        }
        Line::Group(name) => *group.lock() = Some(name),
        Line::Unknown if *has_warned => {}
        Line::Unknown => {
            *has_warned = true;
            let shown: String = text.chars().take(SHOWN_CHARS_MAX).collect();
            let warning = format!("descriptor 3: not understood, like any further such line: {shown:?}");
            let _ = log.send(warning).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_progress_log_or_group() {
        assert_eq!(parse("progress 3/10"), Line::Progress(3, 10));
        assert_eq!(parse("progress  3 / 10 \r"), Line::Progress(3, 10));
        assert_eq!(parse("log half way"), Line::Log("half way".to_owned()));
        assert_eq!(parse("group  smtp \r"), Line::Group(Group::new("smtp").unwrap()));
        assert_eq!(parse("  "), Line::Empty);
        for nonsense in [
            "progress",
            "progress x/10",
            "progress -1/10",
            "progress 3",
            "log",
            "group",
            "group ",
            "hello",
            "\u{fffd}",
        ] {
            assert_eq!(parse(nonsense), Line::Unknown, "{nonsense:?}");
        }
    }

    #[tokio::test]
    async fn a_program_is_warned_once_about_lines_that_are_not_understood() {
        let (progress, progressed) = watch::channel(None);
        let (log, mut logged) = mpsc::channel(LOGS_MAX);
        let long = "x".repeat(3 * LINE_BYTES_MAX);
        let text = format!("nonsense\n{long}\nlog one\nprogress 1/2\nmore\nprogress 2/2\nlog last");
        read(text.as_bytes(), progress, log, &ChosenGroup::default()).await;
        let mut lines = Vec::new();
        while let Some(line) = logged.recv().await {
            lines.push(line);
        }
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(lines[0].contains("nonsense") && lines[1] == "one" && lines[2] == "last", "{lines:?}");
        assert_eq!(*progressed.borrow(), Some((2, 2)));
    }
}
