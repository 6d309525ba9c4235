//! How fast the bare engine is, and how much memory a queued job takes: no thread, no disk, no socket.
//!
//! `cargo bench -p geartrain-core` prints a table; `-- --json` prints one JSON object a line; `-- --queued 1000000 --seconds 20` runs one
//! row only, for a profiler.

use std::time::{Duration, Instant};

use geartrain_core::engine::{Effects, Engine, Limits};
use geartrain_core::*;

/// Commands from one clearing of the effects to the next, as a batch would have them.
const BATCH: usize = 100;
/// Enough to fill the list of complete jobs, so that every completion also drops one.
const WARM_UP: usize = 60_000;

struct Bench {
    engine: Engine,
    effects: Effects,
    queue: QueueName,
    klass: Klass,
    worker: WorkerName,
    payload: Payload,
    made: u64,
    commands: usize,
}

impl Bench {
    fn new() -> Bench {
        let name = "a short name will do";
        Bench {
            engine: Engine::new(Limits::default()),
            effects: Effects::default(),
            queue: QueueName::new("mail").expect(name),
            klass: Klass::new("app.jobs.Welcome").expect(name),
            worker: WorkerName::new("host-4711").expect(name),
            payload: vec![b'x'; 100].into(),
            made: 0,
            commands: 0,
        }
    }

    fn execute(&mut self, command: impl Into<Command>) -> Reply {
        self.commands += 1;
        if self.commands.is_multiple_of(BATCH) {
            self.effects.deltas.clear();
        }
        let now = Timestamp::new(1_700_000_000.0 + self.commands as f64 * 1e-6).expect("it is finite");
        self.engine
            .execute(now, command.into(), &mut self.effects)
            .expect("every command of the benchmark is legal")
    }

    fn put(&mut self) {
        // As UUIDv7 has it: the time first, then chance.
        self.made += 1;
        let chance = (self.made ^ self.made << 21).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let uuid = u128::from(self.made / 1000) << 80 | u128::from(chance);
        let jid = Jid::from_uuid(uuid.to_be_bytes());
        let put = Put::new(self.queue.clone(), jid, self.klass.clone(), self.payload.clone());
        self.execute(put);
    }

    fn work(&mut self) {
        let Reply::Pop(popped) = self.execute(Pop::new(self.queue.clone(), self.worker.clone())) else {
            unreachable!()
        };
        let job = popped.jobs.into_iter().next().expect("there is always a job");
        self.execute(Complete::new(job.jid, Holder::Token(job.lock.token)));
    }
}

struct Row {
    queued: usize,
    lifecycles_per_second: f64,
    bytes_per_job: f64,
    longest_put: Duration,
}

fn measure(queued: usize, window: Duration) -> Row {
    let mut bench = Bench::new();
    let before = resident_bytes();
    let mut longest_put = Duration::ZERO;
    for _ in 0..queued {
        let start = Instant::now();
        bench.put();
        longest_put = longest_put.max(start.elapsed());
    }
    let bytes_per_job = (resident_bytes() - before) / queued as f64;
    for _ in 0..WARM_UP {
        bench.put();
        bench.work();
    }
    let (start, mut lifecycles) = (Instant::now(), 0_u64);
    while start.elapsed() < window {
        for _ in 0..1_000 {
            bench.put();
            bench.work();
        }
        lifecycles += 1_000;
    }
    let lifecycles_per_second = lifecycles as f64 / start.elapsed().as_secs_f64();
    Row { queued, lifecycles_per_second, bytes_per_job, longest_put }
}

fn resident_bytes() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).map_or(f64::NAN, |kb: f64| kb * 1024.0)
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |flag: &str| {
        let place = arguments.iter().position(|argument| argument == flag)?;
        arguments.get(place + 1)?.parse::<usize>().ok()
    };
    let json = arguments.iter().any(|argument| argument == "--json");
    let window = Duration::from_secs(number("--seconds").unwrap_or(2) as u64);
    if let Some(queued) = number("--queued") {
        print(&measure(queued, window), json);
        return;
    }
    // Interleaved, so that a neighbour who comes and goes disturbs both sizes alike.
    let mut rows: Vec<Row> = Vec::new();
    for _ in 0..3 {
        rows.extend([1_000, 1_000_000].map(|queued| measure(queued, window)));
    }
    rows.iter().for_each(|row| print(row, json));
    let median = |queued: usize| {
        let mut rates: Vec<f64> =
            rows.iter().filter(|row| row.queued == queued).map(|row| row.lifecycles_per_second).collect();
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    };
    if !json {
        println!("median with 1,000,000 queued / with 1,000: {:.2}", median(1_000_000) / median(1_000));
    }
}

fn print(row: &Row, json: bool) {
    let Row { queued, lifecycles_per_second, bytes_per_job, longest_put } = row;
    let put_ms = longest_put.as_secs_f64() * 1e3;
    if json {
        println!(
            r#"{{"queued":{queued},"lifecycles_per_second":{lifecycles_per_second:.0},"bytes_per_job":{bytes_per_job:.0},"longest_put_ms":{put_ms:.3}}}"#
        );
    } else {
        println!(
            "{queued:>9} queued: {lifecycles_per_second:>9.0} lifecycles/s, {bytes_per_job:>4.0} B per queued job, longest put {put_ms:.2} ms"
        );
    }
}
