//! No-op jobs by an apalis worker on a Redis, for the comparison in docs/performance.md.
//!
//! `cargo run --release -- REDIS-URL JOBS CONCURRENCY [BATCH]`: without BATCH as shipped.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use apalis::layers::WorkerBuilderExt;
use apalis::prelude::*;
use apalis_redis::{Config, RedisStorage};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

#[derive(Debug, Clone, Serialize, Deserialize)]
struct NoOp {
    number: usize,
}

#[derive(Clone)]
struct Done {
    left: Arc<AtomicUsize>,
    all: Arc<Notify>,
}

async fn handle(_: NoOp, done: Data<Done>) -> Result<(), BoxDynError> {
    if done.left.fetch_sub(1, Ordering::SeqCst) == 1 {
        done.all.notify_one();
    }
    Ok(())
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (url, jobs, concurrency) = (&arguments[0], arguments[1].parse()?, arguments[2].parse()?);
    let mut config = Config::default().queue("bench-apalis");
    if let Some(batch) = arguments.get(3) {
        config = config.batch_size(batch.parse()?);
    }
    let connection = apalis_redis::connect(url.as_str()).await?;
    let mut storage = RedisStorage::<NoOp>::new(connection).with_config(config);
    for first in (0..jobs).step_by(1_000) {
        let tasks = (first..jobs.min(first + 1_000)).map(|number| NoOp { number }).collect();
        storage.push_bulk(tasks).await?;
    }
    let done = Done { left: Arc::new(AtomicUsize::new(jobs)), all: Arc::new(Notify::new()) };
    let worker = WorkerBuilder::new("bench").backend(storage).data(done.clone()).concurrency(concurrency).build(handle);
    let began = Instant::now();
    let running = tokio::spawn(worker.run());
    done.all.notified().await;
    println!("{:.0} jobs/s", jobs as f64 / began.elapsed().as_secs_f64());
    running.abort();
    Ok(())
}
