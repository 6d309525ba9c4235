//! Benchmark of the bare engine: rate of job lifecycles and memory per queued job, without threads, disk or
//! sockets.
//!
//! `cargo bench -p geartrain-core` prints a table; `-- --json` prints one JSON object per line. `-- --queued
//! 1000000 --seconds 20` measures one row in this process, for a profiler; `--batch 100` executes as many
//! commands as one batch, `--priorities 10` spreads the jobs over as many priorities, and `--klasses 10` over as
//! many klasses, of which each pop names one. The median of three runs counts. Of two figures only the ratio
//! counts, if both are from one run.

use std::time::{Duration, Instant};

use geartrain_core::engine::{Effects, Engine, Limits};
use geartrain_core::*;

/// The rows of the table. The ratio is to the first row with the same batch size.
const ROWS: [Setting; 7] = [
    Setting { queued: 1_000, batch: 1, priorities: 1, klasses: 1 },
    Setting { queued: 1_000, batch: 1, priorities: 1, klasses: 10 },
    Setting { queued: 1_000_000, batch: 1, priorities: 1, klasses: 1 },
    Setting { queued: 1_000, batch: 100, priorities: 1, klasses: 1 },
    Setting { queued: 1_000_000, batch: 100, priorities: 1, klasses: 1 },
    Setting { queued: 1_000_000, batch: 100, priorities: 1, klasses: 10 },
    Setting { queued: 1_000_000, batch: 100, priorities: 10, klasses: 1 },
];

const ROUNDS: usize = 3;

/// Fills the list of complete jobs, so that each completion also removes one.
const WARM_UP: usize = 60_000;

#[derive(Debug, Clone, Copy)]
struct Setting {
    queued: usize,
    batch: usize,
    priorities: u64,
    /// With more than one, each pop names one of them.
    klasses: u64,
}

#[derive(Debug, Clone, Copy)]
struct Figures {
    lifecycles_per_second: f64,
    bytes_per_job: f64,
    longest_put_ms: f64,
}

struct Bench {
    engine: Engine,
    effects: Effects,
    queue: QueueName,
    klasses: Vec<Klass>,
    worker: WorkerName,
    payload: Payload,
    setting: Setting,
    made: u64,
    executed: usize,
}

impl Bench {
    fn new(setting: Setting) -> Bench {
        let name = "a short name will do";
        Bench {
            engine: Engine::new(Limits::default()),
            effects: Effects::default(),
            queue: QueueName::new("mail").expect(name),
            klasses: (0..setting.klasses)
                .map(|number| Klass::new(format!("app.jobs.Welcome{number}")).expect(name))
                .collect(),
            worker: WorkerName::new("host-4711").expect(name),
            payload: vec![b'x'; 100].into(),
            setting,
            made: 0,
            executed: 0,
        }
    }

    /// Executes commands as a backend executes a batch.
    fn execute(&mut self, commands: Vec<Command>) -> Vec<Reply> {
        self.effects.deltas.clear();
        self.engine.prefetch(commands.iter());
        let execute = |command| {
            self.executed += 1;
            let now = Timestamp::new(1_700_000_000.0 + self.executed as f64 * 1e-6).expect("it is finite");
            let answer = self.engine.execute(now, command, &mut self.effects);
            answer.expect("every command of the benchmark is legal")
        };
        commands.into_iter().map(execute).collect()
    }

    fn put(&mut self, count: usize) {
        let puts = (0..count).map(|_| self.next_put()).collect();
        self.execute(puts);
    }

    fn next_put(&mut self) -> Command {
        // Like UUIDv7: the time first, then random bits.
        self.made += 1;
        let random = (self.made ^ self.made << 21).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let uuid = u128::from(self.made / 1000) << 80 | u128::from(random);
        let jid = Jid::from_uuid(uuid.to_be_bytes());
        let klass = self.klasses[self.made as usize % self.klasses.len()].clone();
        let mut put = Put::new(self.queue.clone(), jid, klass, self.payload.clone());
        let priorities = self.setting.priorities;
        put.priority = (priorities > 1).then(|| Priority::from((random % priorities) as i32));
        put.into()
    }

    /// A pop of any klass, or of the klass of one of the last puts.
    fn next_pop(&self, place: usize) -> Command {
        let pop = Pop::new(self.queue.clone(), self.worker.clone());
        let klass = &self.klasses[(self.made as usize - place) % self.klasses.len()];
        let klasses = (self.klasses.len() > 1).then(|| vec![klass.clone()]);
        Pop { klasses, ..pop }.into()
    }

    /// Takes a batch of jobs through their lifecycle: a batch of puts, one of pops, one of completions.
    fn lifecycles(&mut self) {
        let batch = self.setting.batch;
        self.put(batch);
        let pops = (0..batch).map(|place| self.next_pop(place)).collect();
        let popped = self.execute(pops);
        let complete = |reply| {
            let Reply::Pop(popped) = reply else { unreachable!("a pop is answered as a pop") };
            let job = popped.jobs.into_iter().next().expect("there is always a job");
            Complete::new(job.jid, Holder::Token(job.lock.token)).into()
        };
        self.execute(popped.into_iter().map(complete).collect());
    }
}

impl Setting {
    fn measure(self, window: Duration) -> Figures {
        let mut bench = Bench::new(self);
        let before = resident_bytes();
        let mut longest_put = Duration::ZERO;
        for _ in 0..self.queued {
            let start = Instant::now();
            bench.put(1);
            longest_put = longest_put.max(start.elapsed());
        }
        let bytes_per_job = (resident_bytes() - before) / self.queued as f64;
        (0..WARM_UP / self.batch).for_each(|_| bench.lifecycles());
        let (start, mut lifecycles) = (Instant::now(), 0);
        while start.elapsed() < window {
            (0..1_000 / self.batch).for_each(|_| bench.lifecycles());
            lifecycles += 1_000;
        }
        let lifecycles_per_second = f64::from(lifecycles) / start.elapsed().as_secs_f64();
        Figures { lifecycles_per_second, bytes_per_job, longest_put_ms: longest_put.as_secs_f64() * 1e3 }
    }

    /// Measures in a child process, because memory that an earlier run freed would not count again.
    fn measure_in_a_child(self, seconds: u64) -> Option<Figures> {
        let Setting { queued, batch, priorities, klasses } = self;
        let arguments = format!(
            "--json --queued {queued} --batch {batch} --priorities {priorities} --klasses {klasses} \
             --seconds {seconds}"
        );
        let program = std::env::current_exe().ok()?;
        let output = std::process::Command::new(program).args(arguments.split(' ')).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        let figure = |name: &str| {
            text.split(name).nth(1)?.trim_matches([':', '"']).split([',', '}']).next()?.parse().ok()
        };
        Some(Figures {
            lifecycles_per_second: figure("lifecycles_per_second")?,
            bytes_per_job: figure("bytes_per_job")?,
            longest_put_ms: figure("longest_put_ms")?,
        })
    }

    fn json(self, figures: &Figures) -> String {
        let Setting { queued, batch, priorities, klasses } = self;
        let Figures { lifecycles_per_second, bytes_per_job, longest_put_ms } = figures;
        format!(
            "{{\"queued\":{queued},\"batch\":{batch},\"priorities\":{priorities},\"klasses\":{klasses},\
             \"lifecycles_per_second\":{lifecycles_per_second:.0},\"bytes_per_job\":{bytes_per_job:.0},\
             \"longest_put_ms\":{longest_put_ms:.3}}}"
        )
    }
}

fn resident_bytes() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).map_or(f64::NAN, |kb: f64| kb * 1024.0)
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |flag: &str| {
        let index = arguments.iter().position(|argument| argument == flag)?;
        arguments.get(index + 1)?.parse::<u64>().ok()
    };
    let json = arguments.iter().any(|argument| argument == "--json");
    let seconds = number("--seconds").unwrap_or(2);
    if let Some(queued) = number("--queued") {
        let batch = number("--batch").unwrap_or(1) as usize;
        let priorities = number("--priorities").unwrap_or(1);
        let klasses = number("--klasses").unwrap_or(1).max(1);
        let setting = Setting { queued: queued as usize, batch, priorities, klasses };
        println!("{}", setting.json(&setting.measure(Duration::from_secs(seconds))));
        return;
    }
    // Interleaved, so that load of other programs disturbs all rows alike.
    let mut runs = ROWS.map(|_| Vec::new());
    for round in 1..=ROUNDS {
        for (row, setting) in ROWS.iter().enumerate() {
            eprintln!("round {round} of {ROUNDS}, row {} of {}", row + 1, ROWS.len());
            let figures = setting.measure_in_a_child(seconds).expect("this program can run itself");
            if json {
                println!("{}", setting.json(&figures));
            }
            runs[row].push(figures);
        }
    }
    if json {
        return;
    }
    println!(
        "  queued  batch  priorities  klasses  lifecycles/s (lowest to highest)  ratio  B per queued job  longest put"
    );
    let rates = runs.each_ref().map(|row| median(row.iter().map(|run| run.lifecycles_per_second).collect()));
    for (row, setting) in ROWS.iter().enumerate() {
        let base = ROWS.iter().position(|base| base.batch == setting.batch).unwrap_or(row);
        let all = runs[row].iter().map(|run| run.lifecycles_per_second);
        let (lowest, highest) = (all.clone().fold(f64::MAX, f64::min), all.fold(0.0, f64::max));
        let bytes = median(runs[row].iter().map(|run| run.bytes_per_job).collect());
        let longest = runs[row].iter().map(|run| run.longest_put_ms).fold(0.0, f64::max);
        let Setting { queued, batch, priorities, klasses } = setting;
        let (rate, ratio) = (rates[row], rates[row] / rates[base]);
        println!(
            "{queued:>8} {batch:>6} {priorities:>11} {klasses:>8}  {rate:>9.0} ({lowest:.0} to {highest:.0})  \
             {ratio:>5.2} {bytes:>17.0} {longest:>9.2} ms"
        );
    }
}
