//! Under continuous load, disk use stays proportional to the live jobs.

use std::path::Path;
use std::sync::Arc;

use geartrain_core::SystemClock;
use geartrain_core::*;
use geartrain_store::{StoreBackend, StoreOptions, SyncMode};
use pollster::block_on;

use crate::scratch::Scratch;

const BATCH: u64 = 500;
const BATCHES: u64 = 250;
const PAYLOAD_BYTES: u64 = 8_000;
/// One in this many jobs is due in a month.
const LATER: u64 = 100;

fn bytes_in(directory: &Path) -> u64 {
    let files = std::fs::read_dir(directory).unwrap();
    // A file may be removed after it was listed.
    files.filter_map(|file| Some(file.unwrap().metadata().ok()?.len())).sum()
}

#[test]
fn disk_use_stays_within_five_times_the_live_payloads() {
    let directory = Scratch::new("load");
    // The sync mode does not change how much is on the disk.
    let options = StoreOptions { sync: SyncMode::Never, ..StoreOptions::default() };
    let backend = StoreBackend::open(directory.path(), options, Arc::new(SystemClock)).unwrap();
    let (mail, klass, worker) =
        (QueueName::new("mail").unwrap(), Klass::new("welcome").unwrap(), WorkerName::new("w1").unwrap());
    let execute = |batch: Vec<Call>| {
        let answers = block_on(backend.execute(batch)).unwrap();
        answers.into_iter().collect::<Result<Vec<Reply>, Refusal>>().unwrap()
    };
    let keep = SetConfig::new("jobs-history-count", "10000");
    execute(vec![keep.into()]);
    let (mut later, mut most) = (0, 0.0_f64);
    for batch in 0..BATCHES {
        let puts = (0..BATCH).map(|n| {
            let number = batch * BATCH + n;
            let put = Put::new(
                mail.clone(),
                Jid::new(format!("{number:032x}")).unwrap(),
                klass.clone(),
                vec![number as u8; PAYLOAD_BYTES as usize],
            );
            let delay = if number.is_multiple_of(LATER) { Seconds::from(30 * 86_400) } else { Seconds::ZERO };
            Put { delay, ..put }.into()
        });
        execute(puts.collect());
        later += BATCH / LATER;
        let pop = Pop { count: Count::new(BATCH as i64).unwrap(), ..Pop::new(mail.clone(), worker.clone()) };
        let Reply::Pop(popped) = execute(vec![pop.into()]).remove(0) else {
            panic!("a pop is answered as a pop")
        };
        let complete = |job: &Popped| Complete::new(job.jid.clone(), Holder::Token(job.lock.token)).into();
        execute(popped.jobs.iter().map(complete).collect());
        let alive = (later + 10_000.min((batch + 1) * BATCH)) * PAYLOAD_BYTES;
        // With few jobs, the preallocated files outweigh their contents.
        if alive > 64 << 20 {
            most = most.max(bytes_in(directory.path()) as f64 / alive as f64);
        }
    }
    assert!(most > 1.0, "there never was enough to look at");
    // Two checkpoints and a third that is being written, and the log since the older of the two:
    // docs/formats/checkpoint.md.
    assert!(most < 5.0, "the directory was {most:.2} times as large as what was alive in it");
}
