//! How fast the bare engine is, and how much memory a queued job takes: no thread, no disk, no socket.
//!
//! `cargo bench -p geartrain-core` prints a table; `-- --json` prints one JSON object a line; `-- --queued 1000000 --seconds 20` measures one
//! size only, in this process, for a profiler. `--priorities 10` spreads the jobs over so many. The median of three runs is what
//! counts, and of two figures only their ratio, from one run.

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
    priorities: u64,
    made: u64,
    commands: usize,
}

impl Bench {
    fn new(priorities: u64) -> Bench {
        let name = "a short name will do";
        Bench {
            engine: Engine::new(Limits::default()),
            effects: Effects::default(),
            queue: QueueName::new("mail").expect(name),
            klass: Klass::new("app.jobs.Welcome").expect(name),
            worker: WorkerName::new("host-4711").expect(name),
            payload: vec![b'x'; 100].into(),
            priorities,
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
        let mut put = Put::new(self.queue.clone(), jid, self.klass.clone(), self.payload.clone());
        put.priority = (self.priorities > 1).then(|| Priority::from((chance % self.priorities) as i32));
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

/// What one run showed.
#[derive(Debug, Clone, Copy)]
struct Figures {
    queued: usize,
    priorities: u64,
    lifecycles_per_second: f64,
    bytes_per_job: f64,
    longest_put_ms: f64,
}

fn measure(queued: usize, priorities: u64, window: Duration) -> Figures {
    let mut bench = Bench::new(priorities);
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
    let longest_put_ms = longest_put.as_secs_f64() * 1e3;
    Figures { queued, priorities, lifecycles_per_second, bytes_per_job, longest_put_ms }
}

fn resident_bytes() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).map_or(f64::NAN, |kb: f64| kb * 1024.0)
}

impl Figures {
    fn json(&self) -> String {
        let Figures { queued, priorities, lifecycles_per_second, bytes_per_job, longest_put_ms } = self;
        format!(
            r#"{{"queued":{queued},"priorities":{priorities},"lifecycles_per_second":{lifecycles_per_second:.0},"bytes_per_job":{bytes_per_job:.0},"longest_put_ms":{longest_put_ms:.3}}}"#
        )
    }

    /// Measures in a process of its own, so that memory which an earlier run gave back is not taken for none.
    fn in_a_child(queued: usize, priorities: u64, seconds: u64) -> Option<Figures> {
        let number = |n: u64| n.to_string();
        let arguments = [
            "--json",
            "--queued",
            &number(queued as u64),
            "--priorities",
            &number(priorities),
            "--seconds",
            &number(seconds),
        ]
        .map(str::to_owned);
        let output =
            std::process::Command::new(std::env::current_exe().ok()?).args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        let mut numbers = text.split([':', ',', '}']).filter_map(|word| word.parse::<f64>().ok());
        Some(Figures {
            queued: numbers.next()? as usize,
            priorities: numbers.next()? as u64,
            lifecycles_per_second: numbers.next()?,
            bytes_per_job: numbers.next()?,
            longest_put_ms: numbers.next()?,
        })
    }
}

impl std::fmt::Display for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Figures { queued, priorities, lifecycles_per_second, bytes_per_job, longest_put_ms } = self;
        write!(
            f,
            "{queued:>9} queued, {priorities:>2} priorities: {lifecycles_per_second:>9.0} lifecycles/s, {bytes_per_job:>4.0} B per queued job, longest put {longest_put_ms:.2} ms"
        )
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |flag: &str| {
        let place = arguments.iter().position(|argument| argument == flag)?;
        arguments.get(place + 1)?.parse::<u64>().ok()
    };
    let json = arguments.iter().any(|argument| argument == "--json");
    let print = |figures: &Figures| if json { println!("{}", figures.json()) } else { println!("{figures}") };
    let seconds = number("--seconds").unwrap_or(2);
    if let Some(queued) = number("--queued") {
        let priorities = number("--priorities").unwrap_or(1);
        print(&measure(queued as usize, priorities, Duration::from_secs(seconds)));
        return;
    }
    // Interleaved, so that a neighbour who comes and goes disturbs all alike.
    const ROWS: [(usize, u64); 3] = [(1_000, 1), (1_000_000, 1), (1_000_000, 10)];
    let mut runs: Vec<Vec<Figures>> = vec![Vec::new(); ROWS.len()];
    for _ in 0..3 {
        for (row, (queued, priorities)) in ROWS.into_iter().enumerate() {
            let figures =
                Figures::in_a_child(queued, priorities, seconds).expect("this program can run itself");
            print(&figures);
            runs[row].push(figures);
        }
    }
    let medians = runs.iter().map(|row| {
        let mut rates: Vec<f64> = row.iter().map(|figures| figures.lifecycles_per_second).collect();
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    });
    let medians: Vec<f64> = medians.collect();
    if !json {
        for (row, (queued, priorities)) in ROWS.into_iter().enumerate() {
            let ratio = medians[row] / medians[0];
            println!(
                "median with {queued} queued, {priorities} priorities: {:.0}, {ratio:.2} of the first",
                medians[row]
            );
        }
    }
}
