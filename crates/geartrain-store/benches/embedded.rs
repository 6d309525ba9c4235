//! How fast the store is with everything kept: full lifecycles in batches of one caller, and from many independent callers.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use geartrain_core::*;
use geartrain_store::{StoreBackend, StoreOptions, SyncMode, SystemClock};
use pollster::block_on;

fn jid(number: u64) -> Jid {
    let chance = (number ^ number << 21).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    Jid::from_uuid((u128::from(number / 1000) << 80 | u128::from(chance)).to_be_bytes())
}

struct Names {
    queue: QueueName,
    klass: Klass,
    worker: WorkerName,
    payload: Payload,
}

fn lifecycles(backend: &StoreBackend, names: &Names, batch: usize, made: &mut u64) {
    let puts = (0..batch).map(|_| {
        *made += 1;
        Put::new(names.queue.clone(), jid(*made), names.klass.clone(), names.payload.clone()).into()
    });
    block_on(backend.execute(puts.collect())).expect("it is kept");
    let pops = (0..batch).map(|_| Pop::new(names.queue.clone(), names.worker.clone()).into()).collect();
    let popped = block_on(backend.execute(pops)).expect("it is kept");
    let completes = popped.into_iter().map(|answer| {
        let Ok(Reply::Pop(popped)) = answer else { unreachable!() };
        let job = popped.jobs.into_iter().next().expect("there is a job");
        Complete::new(job.jid, Holder::Token(job.lock.token)).into()
    });
    block_on(backend.execute(completes.collect())).expect("it is kept");
}

fn main() {
    let name = "a short name will do";
    let names = Names {
        queue: QueueName::new("mail").expect(name),
        klass: Klass::new("app.jobs.Welcome").expect(name),
        worker: WorkerName::new("host-4711").expect(name),
        payload: vec![b'x'; 100].into(),
    };
    let window = Duration::from_secs(3);
    for sync in [SyncMode::Always, SyncMode::Never] {
        for batch in [1, 10, 100, 1000, 3000] {
            let directory =
                Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("bench-{}", std::process::id()));
            let backend = StoreBackend::open(
                &directory,
                StoreOptions { sync, ..StoreOptions::default() },
                Arc::new(SystemClock),
            )
            .expect("it opens");
            let mut made = 0;
            let start = Instant::now();
            while start.elapsed() < window {
                lifecycles(&backend, &names, batch, &mut made);
            }
            let rate = made as f64 / start.elapsed().as_secs_f64();
            println!("{sync:?}, batches of {batch:>5} from one caller: {rate:>9.0} lifecycles/s");
            drop(backend);
            let start = Instant::now();
            drop(
                StoreBackend::open(
                    &directory,
                    StoreOptions { sync, ..StoreOptions::default() },
                    Arc::new(SystemClock),
                )
                .expect("it opens"),
            );
            println!("    reopened in {:.0} ms", start.elapsed().as_secs_f64() * 1e3);
            std::fs::remove_dir_all(&directory).expect("it can be removed");
        }
    }
}
