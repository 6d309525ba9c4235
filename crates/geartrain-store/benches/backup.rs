//! Backup: latency of clients under full load, without backups and with one every second.
//!
//! `cargo bench -p geartrain-store --bench backup` prints a table. Eight clients put a job, pop one and
//! complete it, each call without a pause and with `sync=always`. Rounds of `-- --seconds 6` without and with
//! backups follow each other, `-- --rounds 3` of each; the table has the rounds with the median p99. Every
//! copy is verified after its round: it must be sound, and have the last job of each client whose put was
//! acknowledged before it began. The log is one sequence, so then it has all earlier ones.
//! `-- --archive yes` makes archives instead of directories, `-- --jobs 100000` says how many jobs wait in
//! another queue, `-- --directory DIR` chooses the disk.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use geartrain_core::{
    Answer, Backend, BackupStep, BackupTarget, Call, Command, Complete, GetMany, Holder, Jid, Klass, Pop,
    Put, QueueName, Reply, SetConfig, SystemClock, WorkerName,
};
use geartrain_store::{StoreBackend, StoreOptions, check_copy};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const CLIENTS: usize = 8;
const INTERVAL: Duration = Duration::from_secs(1);
const PAYLOAD_BYTES: usize = 200;
/// Jobs put per batch before the first round.
const BATCH: usize = 1_000;
/// Complete jobs that are kept: more than are completed during a backup, so that a copy still has those that
/// were put before it.
const HISTORY: &str = "10000";
/// Numbers the jobs of all clients and rounds.
static JOBS: AtomicU64 = AtomicU64::new(0);

fn main() -> Result<(), Failure> {
    let Arguments { seconds, rounds, jobs, archive, directory } = arguments()?;
    let _ = std::fs::remove_dir_all(&directory);
    let backend =
        StoreBackend::open(&directory.join("data"), StoreOptions::default(), Arc::new(SystemClock))?;
    one(&backend, SetConfig { option: "jobs-history-count".into(), value: HISTORY.into(), any: false })?;
    for first in (0..jobs).step_by(BATCH) {
        let batch = (first..jobs.min(first + BATCH)).map(|number| put("idle", &format!("idle-{number}")));
        let batch: Vec<Call> = batch.map(|put| put.map(Call::from)).collect::<Result<_, _>>()?;
        pollster::block_on(backend.execute(batch))?;
    }
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        alone.push(round_of(&backend, seconds, None)?);
        let copies = directory.join(format!("copies-{round}"));
        std::fs::create_dir_all(&copies)?;
        beside.push(round_of(&backend, seconds, Some((&copies, archive)))?);
        std::fs::remove_dir_all(copies)?;
    }
    drop(backend);
    std::fs::remove_dir_all(&directory)?;
    println!(
        "{:<8} {:>9} {:>9} {:>9} {:>9} {:>8} {:>9} {:>9}",
        "", "calls/s", "p50 us", "p99 us", "max us", "backups", "MB each", "ms each"
    );
    let (alone, beside) = (median(alone), median(beside));
    for (name, run) in [("without", &alone), ("with", &beside)] {
        let Run { calls, p50, p99, max, backups, megabytes, milliseconds } = run;
        println!(
            "{name:<8} {calls:>9.0} {p50:>9.0} {p99:>9.0} {max:>9.0} {backups:>8} {megabytes:>9.1} {milliseconds:>9.0}"
        );
    }
    println!("p99 with backups is {:.1} times p99 without", beside.p99 / alone.p99);
    Ok(())
}

struct Run {
    /// Per second.
    calls: f64,
    p50: f64,
    p99: f64,
    max: f64,
    backups: usize,
    /// Of a copy, on average, and how long it took.
    megabytes: f64,
    milliseconds: f64,
}

/// The run with the median p99.
fn median(mut runs: Vec<Run>) -> Run {
    runs.sort_by(|one, other| one.p99.total_cmp(&other.p99));
    let middle = runs.len() / 2;
    runs.swap_remove(middle)
}

fn round_of(backend: &StoreBackend, seconds: f64, copies: Option<(&Path, bool)>) -> Result<Run, Failure> {
    let stop = AtomicBool::new(false);
    let acknowledged: Vec<LastPut> = (0..CLIENTS).map(|_| LastPut::default()).collect();
    let (mut latencies, copied) = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                scope.spawn({
                    let (stop, acknowledged) = (&stop, &acknowledged[number]);
                    move || client(backend, number, acknowledged, stop)
                })
            })
            .collect();
        let copied = copy_every_second(backend, seconds, copies, &acknowledged);
        stop.store(true, Ordering::Relaxed);
        let mut latencies = Vec::new();
        for client in clients {
            latencies.extend(client.join().map_err(|_| "a client panicked")??);
        }
        Ok::<_, Failure>((latencies, copied?))
    })?;
    latencies.sort_unstable();
    let at = |part: f64| latencies[((latencies.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e6;
    let backups = copied.len();
    let mean = |sum: f64| if backups == 0 { 0.0 } else { sum / backups as f64 };
    if let Some((directory, _)) = copies {
        verify(directory, &copied)?;
    }
    Ok(Run {
        calls: latencies.len() as f64 / seconds,
        p50: at(0.5),
        p99: at(0.99),
        max: at(1.0),
        backups,
        megabytes: mean(copied.iter().map(|copy| copy.bytes as f64 / 1e6).sum()),
        milliseconds: mean(copied.iter().map(|copy| copy.seconds * 1e3).sum()),
    })
}

/// The last job of a client whose put was acknowledged.
type LastPut = Mutex<Option<Jid>>;

struct Copied {
    bytes: u64,
    seconds: f64,
    /// Jobs whose puts were acknowledged before it began.
    acknowledged: Vec<Jid>,
}

/// Makes a backup at the beginning of each second.
fn copy_every_second(
    backend: &StoreBackend,
    seconds: f64,
    copies: Option<(&Path, bool)>,
    acknowledged: &[LastPut],
) -> Result<Vec<Copied>, Failure> {
    let (begun, mut copied) = (Instant::now(), Vec::new());
    while begun.elapsed().as_secs_f64() < seconds {
        if let Some((directory, archive)) = copies {
            let copy = directory.join(copied.len().to_string());
            let last_put = |last: &LastPut| last.lock().ok().and_then(|last| last.clone());
            let acknowledged = acknowledged.iter().filter_map(last_put).collect();
            let (bytes, seconds) =
                if archive { to_archive(backend, &copy)? } else { to_directory(backend, &copy)? };
            copied.push(Copied { bytes, seconds, acknowledged });
        }
        std::thread::sleep(
            (begun + INTERVAL * (copied.len().max(1) as u32)).saturating_duration_since(Instant::now()),
        );
        if copies.is_none() {
            let left = seconds - begun.elapsed().as_secs_f64();
            std::thread::sleep(Duration::from_secs_f64(left.max(0.0)));
        }
    }
    Ok(copied)
}

fn to_directory(backend: &StoreBackend, copy: &Path) -> Result<(u64, f64), Failure> {
    let summary = pollster::block_on(backend.backup(copy))?;
    Ok((summary.bytes(), summary.seconds))
}

fn to_archive(backend: &StoreBackend, copy: &Path) -> Result<(u64, f64), Failure> {
    let mut backup = pollster::block_on(Backend::backup(backend, BackupTarget::Archive))?;
    let mut archive = std::fs::File::create(copy.with_extension("tar"))?;
    loop {
        match pollster::block_on(backup.next())? {
            BackupStep::Chunk(chunk) => std::io::Write::write_all(&mut archive, &chunk)?,
            BackupStep::Done(summary) => return Ok((summary.bytes(), summary.seconds)),
            _ => {}
        }
    }
}

/// Checks that each copy is sound and has the jobs that were put before it.
fn verify(directory: &Path, copies: &[Copied]) -> Result<(), Failure> {
    for (number, Copied { acknowledged, .. }) in copies.iter().enumerate() {
        let copy = directory.join(number.to_string());
        let archive = copy.with_extension("tar");
        if archive.exists() {
            tar::Archive::new(std::fs::File::open(&archive)?).unpack(&copy)?;
        }
        check_copy(&copy)?;
        let opened = StoreBackend::open(&copy, StoreOptions::default(), Arc::new(SystemClock))?;
        match one(&opened, GetMany { jids: acknowledged.clone() })? {
            Reply::GetMany(jobs) if jobs.len() == acknowledged.len() => {}
            other => return Err(format!("copy {number} lacks one of {acknowledged:?}: {other:?}").into()),
        }
    }
    Ok(())
}

fn put(queue: &str, jid: &str) -> Result<Put, Failure> {
    Ok(Put::new(QueueName::new(queue)?, Jid::new(jid)?, Klass::new("k")?, vec![b'x'; PAYLOAD_BYTES]))
}

/// Puts, pops and completes. Returns how long each call took.
fn client(
    backend: &StoreBackend,
    number: usize,
    acknowledged: &LastPut,
    stop: &AtomicBool,
) -> Result<Vec<Duration>, Failure> {
    let (queue, worker) = (format!("busy-{number}"), WorkerName::new(format!("w{number}"))?);
    let mut latencies = Vec::new();
    let mut timed = |command: Command| {
        let begun = Instant::now();
        let reply = one(backend, command);
        latencies.push(begun.elapsed());
        reply
    };
    while !stop.load(Ordering::Relaxed) {
        let put = put(&queue, &format!("busy-{}", JOBS.fetch_add(1, Ordering::Relaxed)))?;
        let jid = put.jid.clone();
        timed(put.into())?;
        if let Ok(mut last) = acknowledged.lock() {
            *last = Some(jid);
        }
        let Reply::Pop(popped) = timed(Pop::new(QueueName::new(&queue)?, worker.clone()).into())? else {
            return Err("a pop is answered as a pop".into());
        };
        for job in popped.jobs {
            timed(Complete::new(job.jid, Holder::Token(job.lock.token)).into())?;
        }
    }
    Ok(latencies)
}

fn one(backend: &StoreBackend, command: impl Into<Command>) -> Result<Reply, Failure> {
    let answers: Vec<Answer> = pollster::block_on(backend.execute(vec![Call::from(command.into())]))?;
    Ok(answers.into_iter().next().ok_or("there is no answer")??)
}

struct Arguments {
    seconds: f64,
    rounds: usize,
    jobs: usize,
    archive: bool,
    directory: PathBuf,
}

fn arguments() -> Result<Arguments, Failure> {
    let target = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/bench-backup");
    let mut of = Arguments {
        seconds: 6.0,
        rounds: 3,
        jobs: 100_000,
        archive: false,
        directory: PathBuf::from(target),
    };
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    while let Some(argument) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{argument} needs a value"))?;
        match argument.as_str() {
            "--seconds" => of.seconds = value.parse()?,
            "--rounds" => of.rounds = value.parse()?,
            "--jobs" => of.jobs = value.parse()?,
            "--archive" => of.archive = value == "yes",
            "--directory" => of.directory = PathBuf::from(value).join("bench-backup"),
            _ => return Err(format!("{argument} is not an option of this bench").into()),
        }
    }
    Ok(of)
}
