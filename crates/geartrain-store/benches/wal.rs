//! Commit rate of the bare log, compared with the disk itself: a plain overwrite and fdatasync of an
//! allocated file.
//!
//! `cargo bench -p geartrain-store --bench wal` prints a table; `-- --seconds 2` measures each row that long,
//! three times, `-- --directory DIR` uses that directory instead of one below the target directory, and `--
//! --bytes 4096` measures commits of that size only. Compare figures of one run only: rows take turns.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use geartrain_store::wal::{Position, RealDisk, Wal, WalOptions};

const ROUNDS: usize = 3;

/// Bytes written per commit. In the log that is a header of 64 bytes, and a body.
const SIZES: [usize; 3] = [4 << 10, 40 << 10, 400 << 10];

const HEADER: usize = 64;

/// Length of the plain file: as much as the log uses when segments are recycled.
const PLAIN_BYTES: usize = 64 << 20;

#[derive(Clone, Copy, PartialEq)]
enum Row {
    Plain,
    /// Segments are released when they are full, and reused.
    Recycled,
    /// Nothing is released: every segment has to be written twice.
    Growing,
}

impl Row {
    fn name(self) -> &'static str {
        match self {
            Row::Plain => "plain overwrite",
            Row::Recycled => "log, recycled",
            Row::Growing => "log, growing",
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (seconds, directory, sizes) = arguments()?;
    std::fs::create_dir_all(&directory)?;
    println!(
        "{:<16} {:>8} {:>10} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "", "bytes", "syncs/s", "MB/s", "to plain", "p50 us", "p99 us", "max us"
    );
    for bytes in sizes {
        let rows = [Row::Plain, Row::Recycled, Row::Growing];
        let mut runs: Vec<Vec<Run>> = rows.iter().map(|_| Vec::new()).collect();
        for round in 0..ROUNDS {
            // Each row is first once: a cloud disk may be faster during a burst.
            for turn in 0..rows.len() {
                let turn = (turn + round) % rows.len();
                let (row, runs) = (&rows[turn], &mut runs[turn]);
                runs.push(measure(*row, bytes, seconds, &directory)?);
            }
        }
        let mut plain = None;
        for (row, mut runs) in rows.iter().zip(runs) {
            runs.sort_by(|one, other| one.rate.total_cmp(&other.rate));
            let run = &runs[ROUNDS / 2];
            let plain = *plain.get_or_insert(run.rate);
            println!(
                "{:<16} {:>8} {:>10.0} {:>9.1} {:>9.2} {:>9.0} {:>9.0} {:>9.0}",
                row.name(),
                bytes,
                run.rate,
                run.rate * bytes as f64 / 1e6,
                run.rate / plain,
                run.p50,
                run.p99,
                run.max
            );
        }
    }
    reopen(&directory)?;
    std::fs::remove_dir_all(&directory)?;
    Ok(())
}

/// Time to open a log of a million small records, in batches of a hundred.
fn reopen(directory: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let open = |seen: &mut usize| {
        let disk = Arc::new(RealDisk::new(directory)?);
        Wal::open(disk, WalOptions::default(), Position::default(), &mut |_, body| {
            *seen += body.len();
            Ok(())
        })
    };
    let body = vec![1; 100 * 300];
    let mut log = open(&mut 0)?;
    for _ in 0..10_000 {
        log.append(&body)?;
    }
    log.sync()?;
    drop(log);
    let mut took = Vec::new();
    for _ in 0..ROUNDS {
        let (start, mut seen) = (Instant::now(), 0);
        drop(open(&mut seen)?);
        took.push(start.elapsed().as_secs_f64());
        assert_eq!(seen, 10_000 * body.len());
    }
    took.sort_by(f64::total_cmp);
    println!("{:<16} 300 MB in 10,000 batches: {:.0} ms, page cache warm", "reopen", took[ROUNDS / 2] * 1e3);
    Ok(())
}

/// Commits per second, and the latency of one in microseconds.
struct Run {
    rate: f64,
    p50: f64,
    p99: f64,
    max: f64,
}

fn measure(
    row: Row,
    bytes: usize,
    seconds: f64,
    directory: &Path,
) -> Result<Run, Box<dyn std::error::Error>> {
    let path = directory.join("run");
    std::fs::create_dir(&path)?;
    let run = match row {
        Row::Plain => {
            let file = written_before(&path.join("plain"))?;
            let block = vec![1; bytes];
            let mut offset = 0;
            repeat(seconds, || {
                if offset + bytes > PLAIN_BYTES {
                    offset = 0;
                }
                file.write_all_at(&block, offset as u64)?;
                file.sync_data()?;
                offset += bytes;
                Ok(())
            })?
        }
        Row::Recycled | Row::Growing => {
            let disk = Arc::new(RealDisk::new(&path)?);
            let mut log = Wal::open(disk, WalOptions::default(), Position::default(), &mut |_, _| Ok(()))?;
            let body = vec![1; bytes - HEADER];
            let mut commit = |recycle: bool| {
                let before = log.end();
                log.append(&body)?;
                log.sync()?;
                if recycle && log.end().segment > before.segment {
                    log.release(log.end())?;
                }
                Ok(())
            };
            // Until every segment that will be needed has been made.
            let settle = (3 * WalOptions::default().segment_bytes as usize / bytes).min(2000);
            for _ in 0..settle {
                commit(row == Row::Recycled)?;
            }
            repeat(seconds, || commit(row == Row::Recycled))?
        }
    };
    std::fs::remove_dir_all(&path)?;
    Ok(run)
}

fn repeat(
    seconds: f64,
    mut commit: impl FnMut() -> Result<(), Box<dyn std::error::Error>>,
) -> Result<Run, Box<dyn std::error::Error>> {
    let start = Instant::now();
    let mut took = Vec::new();
    while start.elapsed() < Duration::from_secs_f64(seconds) {
        let before = Instant::now();
        commit()?;
        took.push(before.elapsed().as_secs_f64() * 1e6);
    }
    let rate = took.len() as f64 / start.elapsed().as_secs_f64();
    took.sort_by(f64::total_cmp);
    let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize];
    Ok(Run { rate, p50: at(0.5), p99: at(0.99), max: at(1.0) })
}

fn written_before(path: &Path) -> std::io::Result<File> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    let zeroes = vec![0; 1 << 20];
    for _ in 0..PLAIN_BYTES / zeroes.len() {
        file.write_all(&zeroes)?;
    }
    file.sync_all()?;
    Ok(file)
}

fn arguments() -> Result<(f64, PathBuf, Vec<usize>), Box<dyn std::error::Error>> {
    let mut seconds = 1.0;
    let mut sizes = SIZES.to_vec();
    let mut directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--seconds" => seconds = value()?.parse()?,
            "--bytes" => sizes = vec![value()?.parse::<usize>()?.max(HEADER)],
            "--directory" => directory = value()?.into(),
            // Passed by Cargo.
            "--bench" => (),
            other => return Err(format!("unknown: {other}").into()),
        }
    }
    Ok((seconds, directory.join(format!("bench-log-{}", std::process::id())), sizes))
}
