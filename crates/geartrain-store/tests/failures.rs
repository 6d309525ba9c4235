//! The store on a failing or full disk, and its state when it is opened again.

use std::sync::Arc;
use std::task::{Context, Waker};

use geartrain_core::*;
use geartrain_store::wal::WalOptions;
use geartrain_store::{Lockstep, StoreBackend, StoreOptions};
use geartrain_testkit::clock::ManualClock;
use geartrain_testkit::disk::SimDisk;
use pollster::block_on;

use crate::scratch::Scratch;

fn open(disk: &SimDisk, clock: &Arc<ManualClock>) -> StoreBackend {
    let wal = WalOptions { segment_bytes: 64 << 10, spare_segments: 1 };
    let options = StoreOptions { wal, checkpoint_bytes_min: 4 << 10, ..StoreOptions::default() };
    StoreBackend::open_on(Arc::new(disk.clone()), options, clock.clone()).unwrap()
}

fn queue(name: &str) -> QueueName {
    QueueName::new(name).unwrap()
}

fn put(number: usize, bytes: usize) -> Call {
    let jid = Jid::new(format!("j{number}")).unwrap();
    Put::new(queue("mail"), jid, Klass::new("welcome").unwrap(), vec![b'x'; bytes]).into()
}

fn length(backend: &StoreBackend) -> u64 {
    match block_on(backend.execute(vec![Length { queue: queue("mail") }.into()])).unwrap().remove(0) {
        Ok(Reply::Length(length)) => length,
        other => panic!("{other:?}"),
    }
}

/// An error with all its sources.
fn with_sources(error: &dyn std::error::Error) -> String {
    let source = error.source().map(|source| format!(": {}", with_sources(source)));
    format!("{error}{}", source.unwrap_or_default())
}

#[test]
fn a_full_disk_refuses_puts_until_there_is_space() {
    let (disk, clock) = (SimDisk::new(1), ManualClock::new());
    let backend = open(&disk, &clock);
    disk.set_bytes_max(disk.bytes() + (512 << 10));
    let mut kept = 0;
    let error = loop {
        match block_on(backend.execute(vec![put(kept, 20_000)])) {
            Ok(answers) => assert_eq!(answers, [Ok(Reply::Put(PutReply::Created))]),
            Err(error) => break error,
        }
        kept += 1;
        assert!(kept < 1_000, "it is never full");
    };
    assert!(
        with_sources(&error)
            .starts_with("the embedded backend cannot answer: the disk is full: nothing was changed; ")
    );
    assert!(kept > 5, "only {kept} fitted");
    // Reads need no space, and nothing of the refused put is there.
    assert_eq!(length(&backend), kept as u64);

    disk.heal();
    let answers = block_on(backend.execute(vec![put(kept, 20_000)])).unwrap();
    assert_eq!(answers, [Ok(Reply::Put(PutReply::Created))]);
    drop(backend);
    assert_eq!(length(&open(&disk.crash(), &clock)), kept as u64 + 1);
}

#[test]
fn after_a_failed_sync_nothing_is_acknowledged_before_recovery() {
    for operations in 0..12 {
        let (disk, clock) = (SimDisk::new(operations), ManualClock::new());
        let backend = open(&disk, &clock);
        block_on(backend.execute(vec![put(0, 100)])).unwrap();
        disk.fail_after(operations);
        let mut acknowledged = 1;
        for number in 1..20 {
            acknowledged += usize::from(block_on(backend.execute(vec![put(number, 100)])).is_ok());
        }
        // At most one command got an error; its job may exist all the same.
        assert!(acknowledged >= 18, "{acknowledged} acknowledged");
        assert!((acknowledged..=20).contains(&(length(&backend) as usize)), "failing after {operations}");
        drop(backend);
        let backend = open(&disk.crash(), &clock);
        assert!((acknowledged..=20).contains(&(length(&backend) as usize)), "failing after {operations}");
    }
}

#[test]
fn a_readiness_wait_survives_a_recovery() {
    let mut failures = 0;
    for operations in 0..12 {
        let (disk, clock) = (SimDisk::new(operations), ManualClock::new());
        let backend = open(&disk, &clock);
        let mut word = backend.ready_or_wait(vec![queue("mail")], Seconds::from(3_600));
        assert!(word.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let in_other_queue = |number: usize| {
            let jid = Jid::new(format!("e{number}")).unwrap();
            Put::new(queue("news"), jid, Klass::new("welcome").unwrap(), "{}").into()
        };
        // Once this is answered, the request before it is parked.
        block_on(backend.execute(vec![in_other_queue(20)])).unwrap();
        disk.fail_after(operations);
        let failed = (0..20)
            .filter(|number| block_on(backend.execute(vec![in_other_queue(*number)])).is_err())
            .count();
        assert!(failed <= 2, "{failed} failed, failing after {operations}");
        failures += failed;
        assert!(word.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        block_on(backend.execute(vec![put(1, 100)])).unwrap();
        assert!(block_on(word).unwrap(), "failing after {operations}");
    }
    assert!(failures > 0, "nothing ever had to be read again");
}

#[test]
fn the_store_recovers_after_a_failed_reservation() {
    for operations in 0..12 {
        let disk = SimDisk::new(operations);
        // Without checkpoints, which would notice as well.
        let wal = WalOptions { segment_bytes: 64 << 10, spare_segments: 1 };
        let options = StoreOptions { wal, checkpoint_bytes_min: u64::MAX, ..StoreOptions::default() };
        let backend = StoreBackend::open_on(Arc::new(disk.clone()), options, ManualClock::new()).unwrap();
        // The reservation is made before the first command is executed.
        disk.fail_after(operations);
        let put_one = |number| block_on(backend.execute(vec![put(number, 100)])).is_ok();
        let acknowledged = (0..20).filter(|number| put_one(*number)).count();
        assert!(acknowledged >= 18, "{acknowledged} acknowledged, failing after {operations}");
    }
}

#[test]
fn two_stores_do_not_share_a_directory() {
    let directory = Scratch::new("shared");
    let clock = ManualClock::new();
    let first = StoreBackend::open(directory.path(), StoreOptions::default(), clock.clone()).unwrap();
    let second = StoreBackend::open(directory.path(), StoreOptions::default(), clock.clone()).unwrap_err();
    assert_eq!(second.to_string(), "another process uses this directory: stop it, or use another directory");
    drop(first);
    drop(StoreBackend::open(directory.path(), StoreOptions::default(), clock).unwrap());
}

/// Wherever the power is cut, each run of a periodic job puts one job: a run that was lost is fired again, and one
/// that was kept is not.
#[test]
fn a_periodic_job_fires_each_run_once_over_power_cuts() {
    const ROUNDS: i32 = 12;
    let open = |disk: &SimDisk, clock: &Arc<ManualClock>| {
        let wal = WalOptions { segment_bytes: 16 << 10, spare_segments: 1 };
        let options = StoreOptions { wal, checkpoint_bytes_min: 4 << 10, ..StoreOptions::default() };
        Lockstep::open_on(Arc::new(disk.clone()), options, clock.clone()).unwrap()
    };
    let tell = |store: &mut Lockstep, command: Command| {
        let sent = store.send(vec![command.into()]);
        store.engine_step();
        store.writer_step(8);
        sent.answers()?.ok()?.pop()?.ok()
    };
    let jid = Jid::new("r").unwrap();
    let (mut cut, mut fired_again) = (0, 0);
    for operations in 0.. {
        let (mut disk, clock) = (SimDisk::new(operations), ManualClock::new());
        let mut store = open(&disk, &clock);
        let put = Put::new(queue("q"), jid.clone(), Klass::new("k").unwrap(), vec![b'x'; 600]);
        let template = PeriodicTemplate::new(put, Period::Interval(Seconds::from(10)));
        let put = PutPeriodic::new(template, Timestamp::ZERO);
        assert!(tell(&mut store, put.into()).is_some());
        disk.cut_power_after(operations);
        let mut is_cut = false;
        for round in 0..ROUNDS {
            clock.set(10 * round);
            let fire = |store: &mut Lockstep| -> Option<usize> {
                let due = tell(store, DuePeriodics { count: Count::ONE }.into())?;
                let Reply::DuePeriodics(found) = due else { panic!("{due:?}") };
                let fires: Vec<_> = found.due.iter().map(|due| due.fire(clock.now())).collect();
                fires.iter().try_fold(0, |runs, fire| {
                    tell(store, fire.clone().into()).map(|_| runs + fire.runs.len())
                })
            };
            if fire(&mut store).is_none() {
                assert!(!is_cut, "operation {operations}: the power is cut once");
                is_cut = true;
                drop(store);
                disk = disk.crash();
                store = open(&disk, &clock);
                fired_again += fire(&mut store).expect("the disk is well again");
            }
        }
        if !is_cut {
            break;
        }
        cut += 1;
        let Some(Reply::Periodics(found)) = tell(&mut store, Periodics::one(jid.clone()).into()) else {
            panic!("it lists periodic jobs")
        };
        assert_eq!(found.periodics[0].count, ROUNDS as u64, "operation {operations}");
        assert_eq!(found.periodics[0].next, Some(Timestamp::from(10 * ROUNDS)));
        for number in 1..=ROUNDS {
            let jid = Jid::new(format!("r-{number}")).unwrap();
            let Some(Reply::Get(Some(job))) = tell(&mut store, Get { jid }.into()) else {
                panic!("operation {operations}: run {number} is lost")
            };
            assert_eq!(job.history[0].when, Timestamp::from(10 * (number - 1)), "operation {operations}");
        }
    }
    assert!(cut > 20 && fired_again > 5, "{cut} cuts, {fired_again} runs were fired again");
}
