//! Rates of `geartrain move` beside those of `geartrain put --batch` onto the same target, through the command.
//!
//! `cargo bench -p geartrain-cli --bench move_rate` prints a table with a line for each pair of queue systems. A
//! round puts `-- --jobs 100000` jobs at the source, puts as many at an empty target of the second kind, empties
//! that, and moves those of the source there; the table has the medians of `-- --rounds 3`. Each Redis is a new
//! one that keeps nothing. A rate is jobs through the time from the start of the command to its end. `-- --only
//! redis,embedded` measures one pair; the longest script of its Redis servers is printed too.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use geartrain_testkit::peers::RedisServer;

type Failure = Box<dyn std::error::Error>;

const PAIRS: [(Kind, Kind); 11] = [
    (Kind::Embedded, Kind::Redis),
    (Kind::Redis, Kind::Redis),
    (Kind::Redis, Kind::Embedded),
    (Kind::Embedded, Kind::GearMonkey),
    (Kind::Redis, Kind::GearMonkey),
    (Kind::GearMonkey, Kind::Redis),
    (Kind::GearMonkey, Kind::Embedded),
    (Kind::Embedded, Kind::Worqr),
    (Kind::Redis, Kind::Worqr),
    (Kind::Worqr, Kind::Redis),
    (Kind::Worqr, Kind::Embedded),
];

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Embedded,
    Redis,
    GearMonkey,
    Worqr,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Embedded => "embedded",
            Kind::Redis => "redis",
            Kind::GearMonkey => "gearmonkey",
            Kind::Worqr => "worqr",
        }
    }
}

/// An empty queue system.
struct Place {
    url: String,
    directory: Option<PathBuf>,
    redis: Option<RedisServer>,
}

impl Place {
    fn new(kind: Kind, directory: PathBuf) -> Place {
        if kind == Kind::Embedded {
            return Place {
                url: format!("embedded:{}", directory.display()),
                directory: Some(directory),
                redis: None,
            };
        }
        let redis = RedisServer::start(&["--latency-monitor-threshold", "1"]);
        let layout = if kind == Kind::Redis { String::new() } else { format!("{}+", kind.name()) };
        Place { url: format!("{layout}{}", redis.url()), directory: None, redis: Some(redis) }
    }

    /// The longest that a command has kept a Redis from others, in milliseconds.
    fn longest_command(&self) -> Option<u64> {
        let redis = self.redis.as_ref()?;
        let client = redis::Client::open(redis.url()).ok()?;
        let latest: Vec<(String, u64, u64, u64)> =
            redis::cmd("LATENCY").arg("LATEST").query(&mut client.get_connection().ok()?).ok()?;
        latest.into_iter().filter(|(event, ..)| event.ends_with("command")).map(|(.., longest)| longest).max()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(directory) = &self.directory {
            let _ = std::fs::remove_dir_all(directory);
        }
    }
}

fn main() -> Result<(), Failure> {
    let arguments = Arguments::read()?;
    let scratch = std::env::temp_dir().join(format!("geartrain-move-{}", std::process::id()));
    std::fs::create_dir(&scratch)?;
    let measured = measure(&arguments, &scratch);
    std::fs::remove_dir_all(&scratch)?;
    measured
}

fn measure(arguments: &Arguments, scratch: &Path) -> Result<(), Failure> {
    let file = scratch.join("jobs.ndjson");
    // Functions and tasks have no klass but their queue.
    let line =
        |number| format!("{{\"klass\":\"mail\",\"payload\":{{\"n\":{number},\"text\":\"{:=^80}\"}}}}\n", "");
    std::fs::write(&file, (0..arguments.jobs).map(line).collect::<String>())?;
    println!(
        "{:<24} {:>12} {:>12} {:>6}   longest command of a Redis",
        "", "put, jobs/s", "move, jobs/s", "ratio"
    );
    for (from, to) in arguments.pairs() {
        let (mut puts, mut moves, mut ratios, mut longest) = (Vec::new(), Vec::new(), Vec::new(), None);
        for _ in 0..arguments.rounds {
            let place = |kind, name| Place::new(kind, scratch.join(name));
            let source = place(from, "source");
            geartrain(&["put", "mail", "--batch", text(&file)?, "--url", &source.url])?;
            let put = {
                let other = place(to, "other");
                rate(arguments.jobs, &["put", "mail", "--batch", text(&file)?, "--url", &other.url])?
            };
            let target = place(to, "target");
            let moved = rate(arguments.jobs, &["move", "--from", &source.url, "--to", &target.url, "mail"])?;
            longest = longest.max(source.longest_command()).max(target.longest_command());
            puts.push(put);
            moves.push(moved);
            ratios.push(moved / put);
        }
        let name = format!("{} to {}", from.name(), to.name());
        let longest = longest.map_or_else(String::new, |longest| format!("{longest} ms"));
        let (put, moved, ratio) = (median(puts), median(moves), median(ratios));
        println!("{name:<24} {put:>12.0} {moved:>12.0} {ratio:>6.2}   {longest}");
    }
    Ok(())
}

fn text(path: &Path) -> Result<&str, Failure> {
    path.to_str().ok_or_else(|| format!("{} is no text", path.display()).into())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Runs the command, and returns how many jobs it did in a second.
fn rate(jobs: usize, arguments: &[&str]) -> Result<f64, Failure> {
    let began = Instant::now();
    let out = geartrain(arguments)?;
    let rate = jobs as f64 / began.elapsed().as_secs_f64();
    let report: serde_json::Value = serde_json::from_str(&out)?;
    if report["put"].as_u64().or(report["moved"].as_u64()) != Some(jobs as u64) {
        return Err(format!("{arguments:?} reports: {out}").into());
    }
    Ok(rate)
}

/// Runs the command, which must succeed, and returns what it prints.
fn geartrain(arguments: &[&str]) -> Result<String, Failure> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_geartrain"));
    let output = command.args(arguments).arg("--json").stdin(Stdio::null()).output()?;
    if !output.status.success() {
        return Err(format!("{arguments:?}: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

struct Arguments {
    jobs: usize,
    rounds: usize,
    only: Option<String>,
}

impl Arguments {
    fn read() -> Result<Arguments, Failure> {
        let mut read = Arguments { jobs: 100_000, rounds: 3, only: None };
        let mut given = std::env::args().skip(1).filter(|argument| argument != "--bench");
        while let Some(name) = given.next() {
            let value = given.next().ok_or_else(|| format!("{name} has no value"))?;
            match name.as_str() {
                "--jobs" => read.jobs = value.parse()?,
                "--rounds" => read.rounds = value.parse()?,
                "--only" => read.only = Some(value),
                _ => return Err(format!("there is no argument {name}").into()),
            }
        }
        Ok(read)
    }

    fn pairs(&self) -> impl Iterator<Item = (Kind, Kind)> {
        let is_asked = |(from, to): &(Kind, Kind)| {
            self.only.as_ref().is_none_or(|only| *only == format!("{},{}", from.name(), to.name()))
        };
        PAIRS.into_iter().filter(is_asked)
    }
}
