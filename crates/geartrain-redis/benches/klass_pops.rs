//! Pops by klass beside plain pops, on a Redis that the benchmark starts.
//!
//! `cargo bench -p geartrain-redis --bench klass_pops` puts 20,000 jobs of ten klasses and pops them all: plainly,
//! and by one klass after the other, in turns, one by one and 32 at a time. The table has the medians of five
//! rounds. Only the pops are measured. The index exists before the puts; `-- --build` builds it during the pops.

use std::time::Instant;

use geartrain_core::{Backend, Call, Count, Flush, Jid, Klass, Pop, Put, QueueName, Reply, WorkerName};
use geartrain_redis::RedisBackend;
use geartrain_testkit::peers::RedisServer;

type Failure = Box<dyn std::error::Error>;

const JOBS: usize = 20_000;
const KLASSES: usize = 10;
const ROUNDS: usize = 5;
const PUT_BATCH: usize = 1_000;

fn main() -> Result<(), Failure> {
    let redis = RedisServer::start(&[]);
    let backend = pollster::block_on(RedisBackend::connect(redis.url().parse()?))?;
    for count in [1, 32] {
        let (mut plain, mut by_klass) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            plain.push(pollster::block_on(round(&backend, count, false))?);
            by_klass.push(pollster::block_on(round(&backend, count, true))?);
        }
        let (plain, by_klass) = (median(plain), median(by_klass));
        let ratio = by_klass / plain;
        println!(
            "{count:>2} at a time: plain {plain:>7.0} jobs/s, by klass {by_klass:>7.0} jobs/s, ratio {ratio:.2}"
        );
    }
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Puts all jobs, and returns how many are popped in a second.
async fn round(backend: &RedisBackend, count: usize, by_klass: bool) -> Result<f64, Failure> {
    backend.execute(vec![Flush { count: Count::ONE }.into()]).await?;
    let queue = QueueName::new("bench")?;
    let klasses =
        (0..KLASSES).map(|number| Klass::new(format!("klass-{number}"))).collect::<Result<Vec<_>, _>>()?;
    let plain = Pop { count: Count::new(count as i64)?, ..Pop::new(queue.clone(), WorkerName::new("w")?) };
    if by_klass && !std::env::args().any(|argument| argument == "--build") {
        let pop = Pop { klasses: Some(klasses.clone()), ..plain.clone() };
        backend.execute(vec![pop.into()]).await?;
    }
    for first in (0..JOBS).step_by(PUT_BATCH) {
        let puts = (first..first + PUT_BATCH).map(|number| {
            let jid = Jid::new(number.to_string()).expect("a good name");
            Call::from(Put::new(queue.clone(), jid, klasses[number % KLASSES].clone(), "{}"))
        });
        backend.execute(puts.collect()).await?;
    }
    let (mut popped, mut pops) = (0, 0);
    let began = Instant::now();
    while popped < JOBS {
        let klass = klasses[pops % KLASSES].clone();
        let pop = Pop { klasses: by_klass.then(|| vec![klass]), ..plain.clone() };
        let answers = backend.execute(vec![pop.into()]).await?;
        let Some(Ok(Reply::Pop(reply))) = answers.into_iter().next() else { return Err("no pop".into()) };
        (popped, pops) = (popped + reply.jobs.len(), pops + 1);
        if pops > 2 * JOBS {
            return Err(format!("only {popped} jobs were popped").into());
        }
    }
    Ok(popped as f64 / began.elapsed().as_secs_f64())
}
