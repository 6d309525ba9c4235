//! `geartrain put --batch`: many jobs from lines of JSON, one object each.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};

use geartrain::{Call, Client, Error, Jid, Put, PutReply, Reply, Seconds, Timestamp};
use geartrain_json::put::{Defaults, read_line};
use serde::Serialize;

use crate::commands::list::{missing, not_waited_for};
use crate::failure::Failure;
use crate::{text, timestamp};

/// Jobs per request: enough that the round trip costs little, few enough that a batch is soon done.
const BATCH_JOBS_MAX: usize = 500;
/// Bytes per request, about.
const BATCH_BYTES_MAX: u64 = 4 << 20;
/// How many refused lines are reported; the others are only counted.
const ERRORS_MAX: usize = 10;

/// The outcome of a batch.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Totals {
    /// Jobs submitted.
    pub(crate) put: u64,
    /// Jobs that existed already and were left unchanged.
    pub(crate) existing: u64,
    /// Jobs that joined an unfinished one with the same unique key.
    pub(crate) coalesced: u64,
    /// Lines that were skipped: invalid ones, and those that the queue refused.
    pub(crate) refused: u64,
    /// What is wrong with the first of them.
    #[serde(skip)]
    pub(crate) errors: Vec<String>,
    /// The first dependencies that do not exist.
    #[serde(skip)]
    missing: Vec<String>,
    /// How many dependencies do not exist.
    #[serde(skip)]
    missing_count: u64,
}

impl Totals {
    /// The lines that are in the queue, whether they were there before or not.
    pub(crate) fn valid(&self) -> u64 {
        self.put + self.existing + self.coalesced
    }

    fn report(&mut self, error: String) {
        if self.errors.len() < ERRORS_MAX {
            self.errors.push(error);
        }
    }

    fn report_missing(&mut self, number: u64, jid: &Jid) {
        self.missing_count += 1;
        if self.missing.len() < ERRORS_MAX {
            self.missing.push(format!("line {number}: {}", not_waited_for(jid)));
        }
    }

    /// What people should know: dependencies that do not exist, then lines that were not submitted.
    pub(crate) fn remarks(&self) -> impl Iterator<Item = String> {
        let more = self.missing_count - self.missing.len() as u64;
        let more = (more > 0).then(|| {
            let dependencies = if more == 1 { "dependency does" } else { "dependencies do" };
            format!("{more} more {dependencies} not exist, and count as complete")
        });
        self.missing.iter().cloned().chain(more).chain(self.errors.iter().cloned())
    }
}

/// What happens to an invalid line.
pub(crate) enum OnBad {
    /// It ends the batch: the lines before it have been submitted, that line and those after it have not.
    Stop,
    /// It is written to a file, and so are lines that the queue refuses.
    Write(BadLines),
    /// It is reported, and nothing is submitted at all: the lines go to a queue in memory that is dropped.
    Check,
}

/// The file for lines that were not submitted: each line as it was, under a comment with its error, so that
/// the file can be corrected and submitted.
pub(crate) struct BadLines {
    file: File,
    path: PathBuf,
    was_empty: bool,
    written: u64,
}

impl BadLines {
    /// Opens a file, to append to it.
    pub(crate) fn open(path: &Path) -> Result<BadLines, Failure> {
        let open = || {
            let file = File::options().append(true).create(true).open(path)?;
            let was_empty = file.metadata()?.len() == 0;
            Ok(BadLines { file, path: path.to_owned(), was_empty, written: 0 })
        };
        open().map_err(|error| cannot_write(path, &error))
    }

    /// Appends a line. If that fails, the error says to go on with line `go_on`.
    fn write(&mut self, error: &str, line: &[u8], go_on: u64) -> Result<(), Failure> {
        let text = [b"# ", text::clean(error).as_bytes(), b"\n", line, b"\n"].concat();
        self.written += 1;
        self.file.write_all(&text).map_err(|failed| {
            let failed = cannot_write(&self.path, &failed);
            Failure::Usage(format!("{error}; {failed}; go on with --from-line {go_on}"))
        })
    }

    /// Removes a file in which nothing was written.
    fn close(self) {
        if self.was_empty && self.written == 0 {
            // An empty file does no harm.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Failure {
    Failure::Usage(format!("{} cannot be written: {error}", path.display()))
}

/// The lines of one request.
#[derive(Default)]
struct Chunk {
    puts: Vec<Put>,
    /// The number of each line, and its text if a refused line is to be written to a file.
    lines: Vec<(u64, Vec<u8>)>,
    /// When the lines were read: their delays begin then.
    now: Timestamp,
}

/// A batch of jobs: lines of JSON.
pub(crate) struct Batch<R, P> {
    pub(crate) lines: R,
    pub(crate) defaults: Defaults,
    /// The number of the first line that is submitted, from 1.
    pub(crate) from_line: u64,
    pub(crate) on_bad: OnBad,
    /// Whether delays are sent with the time at which they begin, for a queue that rounds times up to seconds.
    pub(crate) sends_time: bool,
    /// Called with the bytes read and the jobs submitted so far.
    pub(crate) progress: P,
}

impl<R: BufRead, P: Fn(u64, u64)> Batch<R, P> {
    /// Submits the job of each line, in order. A line that the queue refuses does not end the batch.
    pub(crate) async fn run(mut self, client: Option<&Client>) -> (Totals, Option<Failure>) {
        let mut totals = Totals::default();
        let failure = self.submit(client, &mut totals).await.err();
        let lines = text::count(totals.refused, "line");
        let failure = failure.or_else(|| match &self.on_bad {
            _ if totals.refused == 0 => None,
            OnBad::Stop => Some(Failure::Refused(format!("{lines} refused, the others were submitted"))),
            OnBad::Write(file) => Some(Failure::Refused(format!(
                "{lines} written to {} with what is wrong, the others were submitted",
                file.path.display()
            ))),
            OnBad::Check => Some(Failure::Usage(format!("{lines} would not be submitted"))),
        });
        if let OnBad::Write(file) = self.on_bad {
            file.close();
        }
        (totals, failure)
    }

    async fn submit(&mut self, client: Option<&Client>, totals: &mut Totals) -> Result<(), Failure> {
        let (mut bytes, mut number) = (0, 0);
        loop {
            // Fill a chunk, then send it, even if a bad line ended it.
            let mut chunk = Chunk::default();
            let end = self.fill(&mut chunk, &mut bytes, &mut number, totals);
            if !chunk.puts.is_empty() {
                match client {
                    Some(client) => self.send(client, chunk, totals).await?,
                    None => self.send(&geartrain::connect("memory:").await?, chunk, totals).await?,
                }
                (self.progress)(bytes, totals.valid());
            }
            match end {
                End::Full => {}
                // A batch may be empty.
                End::Last if number < self.from_line && self.from_line > 1 => {
                    let lines = text::count(number, "line");
                    return Err(Failure::Usage(format!(
                        "--from-line {} is too far: the batch has {lines}",
                        self.from_line
                    )));
                }
                End::Last => return Ok(()),
                End::Failed(failure) => return Err(failure),
            }
        }
    }

    /// Reads the lines of the next request.
    fn fill(&mut self, chunk: &mut Chunk, bytes: &mut u64, number: &mut u64, totals: &mut Totals) -> End {
        let (times, start, mut line) = (timestamp::times(), *bytes, Vec::new());
        chunk.now = times.now;
        while chunk.puts.len() < BATCH_JOBS_MAX && *bytes - start < BATCH_BYTES_MAX {
            line.clear();
            match self.lines.read_until(b'\n', &mut line) {
                Ok(0) => return End::Last,
                Ok(read_bytes) => *bytes += read_bytes as u64,
                Err(error) => {
                    let line = *number + 1;
                    return End::Failed(Failure::Usage(format!(
                        "line {line} cannot be read: {error}; go on with --from-line {line}"
                    )));
                }
            }
            *number += 1;
            let text =
                line.strip_prefix(b"\xef\xbb\xbf").filter(|_| *number == 1).unwrap_or(&line).trim_ascii();
            if *number < self.from_line || text.is_empty() || text.starts_with(b"#") {
                continue;
            }
            match read_line(text, &self.defaults, &times) {
                Ok(put) => {
                    let kept =
                        if matches!(self.on_bad, OnBad::Write(_)) { text.to_vec() } else { Vec::new() };
                    chunk.puts.push(put);
                    chunk.lines.push((*number, kept));
                }
                Err(why) => {
                    let error = format!("line {number}: {why}");
                    match &mut self.on_bad {
                        OnBad::Stop => {
                            return End::Failed(Failure::Usage(format!(
                                "{error}; nothing was submitted from this line on: fix it and go on with \
                                 --from-line {number}, or write such lines to a file with --skip-bad FILE"
                            )));
                        }
                        OnBad::Write(file) => {
                            if let Err(failure) = file.write(&error, text, *number) {
                                return End::Failed(failure);
                            }
                        }
                        OnBad::Check => {}
                    }
                    totals.refused += 1;
                    totals.report(error);
                }
            }
        }
        End::Full
    }

    async fn send(&mut self, client: &Client, mut chunk: Chunk, totals: &mut Totals) -> Result<(), Failure> {
        let first = chunk.lines.first().map_or(0, |line| line.0);
        let last = chunk.lines.last().map_or(0, |line| line.0);
        let mut missing = HashMap::new();
        if matches!(self.on_bad, OnBad::Check) {
            // There are no workers in memory.
            let options = chunk.puts.iter_mut().filter_map(|put| put.options.as_mut());
            options.for_each(|options| options.roll_call = false);
        } else {
            missing = missing_by_line(client, &chunk).await.map_err(|error| {
                let failure = Failure::from(error);
                Failure::Unreachable(format!("{failure}; go on with --from-line {first}"))
            })?;
        }
        let lines = chunk.lines;
        let (now, sends_time) = (chunk.now, self.sends_time);
        let call = |put: Put| match sends_time && put.delay > Seconds::ZERO {
            true => Call::at(now, put),
            false => Call::from(put),
        };
        let answers = client.batch(chunk.puts.into_iter().map(call).collect()).await.map_err(|error| {
            Failure::Unreachable(format!(
                "{}; lines {first} to {last} may have been submitted or not: go on with --from-line {first}, which \
                 leaves the jobs of lines with a jid unchanged if they exist, but submits lines without one again",
                Failure::from(error)
            ))
        })?;
        for ((number, line), answer) in lines.into_iter().zip(answers) {
            match answer {
                Ok(Reply::Put(PutReply::Existing | PutReply::NamedExisting { .. })) => totals.existing += 1,
                Ok(Reply::Put(PutReply::Coalesced { .. })) => totals.coalesced += 1,
                Ok(_) => {
                    totals.put += 1;
                    // A job that was there before has not got these dependencies.
                    let missing = missing.remove(&number).unwrap_or_default();
                    missing.iter().for_each(|jid| totals.report_missing(number, jid));
                }
                Err(refusal) => {
                    let error = format!("line {number}: {}", Failure::from(refusal));
                    totals.refused += 1;
                    if let OnBad::Write(file) = &mut self.on_bad {
                        file.write(&error, &line, last + 1)?;
                    }
                    totals.report(error);
                }
            }
        }
        Ok(())
    }
}

/// Why no more lines were read.
enum End {
    Full,
    Last,
    Failed(Failure),
}

/// The dependencies that do not exist when their line is submitted, by the number of the line.
async fn missing_by_line(client: &Client, chunk: &Chunk) -> Result<HashMap<u64, Vec<Jid>>, Error> {
    let mut depends: Vec<Jid> = chunk.puts.iter().flat_map(|put| put.depends.iter().cloned()).collect();
    depends.sort_unstable();
    depends.dedup();
    let mut missing: HashSet<Jid> = missing(client, &depends).await?.into_iter().collect();
    let mut by_line = HashMap::new();
    for (put, (number, _)) in chunk.puts.iter().zip(&chunk.lines) {
        let of_line: Vec<Jid> = put.depends.iter().filter(|jid| missing.contains(jid)).cloned().collect();
        if !of_line.is_empty() {
            by_line.insert(*number, of_line);
        }
        missing.remove(&put.jid);
    }
    Ok(by_line)
}

#[cfg(test)]
mod tests {
    use geartrain::{Length, QueueName};

    use super::*;

    fn defaults() -> Defaults {
        Defaults { queue: Some(QueueName::new("mail").unwrap()), klass: None }
    }

    fn batch(lines: &str) -> Batch<&[u8], fn(u64, u64)> {
        let (defaults, on_bad) = (defaults(), OnBad::Stop);
        Batch {
            lines: lines.as_bytes(),
            defaults,
            from_line: 1,
            on_bad,
            sends_time: false,
            progress: |_, _| {},
        }
    }

    #[test]
    fn lines_are_sent_in_batches_and_a_bad_line_ends_them() {
        pollster::block_on(async {
            let client = geartrain::connect("memory:").await.unwrap();
            let mut lines = "{\"klass\":\"k\"}\n\n".repeat(1_200);
            lines.push_str("nonsense\n{\"klass\":\"k\"}");
            let (totals, failure) = batch(&lines).run(Some(&client)).await;
            assert_eq!(totals.put, 1_200);
            let failure = failure.unwrap();
            assert_eq!(failure.exit_code(), 2);
            assert!(failure.to_string().starts_with("line 2401: it is not a JSON object"), "{failure}");
            assert!(failure.to_string().contains("go on with --from-line 2401"), "{failure}");
            let length = Length { queue: QueueName::new("mail").unwrap() };
            assert_eq!(client.run(length.clone()).await.unwrap(), 1_200);

            let lines = lines.replace("nonsense", "{\"klass\":\"k\"}");
            let rest = Batch { from_line: 2_401, ..batch(&lines) };
            assert!(rest.run(Some(&client)).await.1.is_none());
            assert_eq!(client.run(length).await.unwrap(), 1_202);
            let beyond = Batch { from_line: 2_403, ..batch(&lines) };
            let failure = beyond.run(Some(&client)).await.1.unwrap();
            assert_eq!(failure.to_string(), "--from-line 2403 is too far: the batch has 2402 lines");
        });
    }

    #[test]
    fn a_batch_without_lines_is_no_error() {
        pollster::block_on(async {
            let client = geartrain::connect("memory:").await.unwrap();
            for lines in ["", "\n", "# nothing today\n"] {
                let (totals, failure) = batch(lines).run(Some(&client)).await;
                assert_eq!((totals.put, failure.map(|failure| failure.to_string())), (0, None), "{lines:?}");
                let check = Batch { on_bad: OnBad::Check, ..batch(lines) };
                assert!(check.run(None).await.1.is_none(), "{lines:?}");
            }
        });
    }

    #[test]
    fn dependencies_that_do_not_exist_leave_room_for_lines_that_are_refused() {
        pollster::block_on(async {
            let client = geartrain::connect("memory:").await.unwrap();
            let line = |number| format!("{{\"klass\":\"k\",\"depends\":[\"nope{number}\"]}}\n");
            let mut lines: String = (0..ERRORS_MAX + 3).map(line).collect();
            lines.push_str("{\"klass\":\"k\",\"jid\":\"b\",\"depends\":[\"b\"]}\n");
            let (totals, failure) = batch(&lines).run(Some(&client)).await;
            assert_eq!(failure.unwrap().to_string(), "1 line refused, the others were submitted");
            let remarks: Vec<String> = totals.remarks().collect();
            assert_eq!(remarks.len(), ERRORS_MAX + 2);
            assert_eq!(remarks[0], "line 1: there is no job nope0 to wait for: it counts as complete");
            assert_eq!(remarks[ERRORS_MAX], "3 more dependencies do not exist, and count as complete");
            assert!(
                remarks[ERRORS_MAX + 1].starts_with("line 14: job b would depend on itself"),
                "{remarks:?}"
            );
        });
    }

    #[test]
    fn a_refused_line_is_reported_and_the_others_are_submitted() {
        pollster::block_on(async {
            let client = geartrain::connect("memory:").await.unwrap();
            let lines = r#"{"klass":"k","jid":"a"}
{"klass":"k","jid":"b","depends":["b"]}
{"klass":"k","jid":"a"}
{"klass":"k","jid":"c"}"#;
            let (totals, failure) = batch(lines).run(Some(&client)).await;
            assert_eq!((totals.put, totals.existing, totals.refused), (2, 1, 1));
            assert!(
                totals.errors[0].starts_with("line 2: job b would depend on itself"),
                "{:?}",
                totals.errors
            );
            assert_eq!(failure.unwrap().exit_code(), 1);
        });
    }

    #[test]
    fn a_check_reports_every_line_that_would_not_be_submitted() {
        pollster::block_on(async {
            let mut lines = "{\"klass\":\"k\",\"roll_call\":true}\n".repeat(700);
            lines.push_str(
                "{\"klass\":7}\n# a comment\n{\"klass\":\"k\",\"jid\":\"b\",\"depends\":[\"b\"]}\n",
            );
            let check = Batch { on_bad: OnBad::Check, ..batch(&lines) };
            let (totals, failure) = check.run(None).await;
            assert_eq!((totals.valid(), totals.refused), (700, 2));
            assert_eq!(totals.errors[0], "line 701: `klass` must be a text in quotes, not 7");
            assert!(
                totals.errors[1].starts_with("line 703: job b would depend on itself"),
                "{:?}",
                totals.errors
            );
            let failure = failure.unwrap();
            assert_eq!(
                (failure.exit_code(), failure.to_string().as_str()),
                (2, "2 lines would not be submitted")
            );
        });
    }

    #[test]
    fn a_line_that_depends_on_a_later_one_is_reported() {
        pollster::block_on(async {
            let client = geartrain::connect("memory:").await.unwrap();
            client.put("mail", "k", "").jid("done").await.unwrap();
            let done = client.pop("mail", "w1").await.unwrap().unwrap();
            client.complete(&done).await.unwrap();
            let lines = r#"{"klass":"k","jid":"a","depends":["b","done"]}
{"klass":"k","jid":"b"}
{"klass":"k","jid":"c","depends":["a","nope"]}"#;
            let (totals, failure) = batch(lines).run(Some(&client)).await;
            let (again, _) = batch(lines).run(Some(&client)).await;
            assert_eq!((again.existing, again.remarks().count()), (3, 0));
            assert_eq!((totals.put, failure.is_none()), (3, true));
            assert_eq!(
                totals.remarks().collect::<Vec<_>>(),
                [
                    "line 1: there is no job b to wait for: it counts as complete",
                    "line 3: there is no job nope to wait for: it counts as complete"
                ]
            );
        });
    }
}
