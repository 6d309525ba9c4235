//! Event cursors: a subscriber continues at its position, without gaps and without duplicates.

use std::sync::Arc;
use std::task::{Context, Waker};

use geartrain_core::SystemClock;
use geartrain_core::*;
use geartrain_store::{StoreBackend, StoreOptions};
use geartrain_testkit::clock::ManualClock;
use geartrain_testkit::disk::SimDisk;
use pollster::block_on;

fn open(disk: &SimDisk) -> StoreBackend {
    // With checkpoints, so that events are recovered from one as well.
    let options = StoreOptions { checkpoint_bytes_min: 4 << 10, ..StoreOptions::default() };
    StoreBackend::open_on(Arc::new(disk.clone()), options, ManualClock::new()).unwrap()
}

fn put(backend: &StoreBackend, number: usize) {
    let (queue, jid) = (QueueName::new("mail").unwrap(), Jid::new(format!("j{number}")).unwrap());
    let put = Put::new(queue, jid, Klass::new("welcome").unwrap(), "{}");
    let answers = block_on(backend.execute(vec![put.into()])).unwrap();
    assert_eq!(answers, [Ok(Reply::Put(PutReply::Created))]);
}

/// The position of the next event, and the number of the job that was put.
fn next(events: &mut Box<dyn Subscription>) -> (u64, usize) {
    let PositionedEvent { position, event, .. } = block_on(events.next()).unwrap();
    match &*event {
        Event::Put { jid, .. } => (position, jid.to_string()[1..].parse().unwrap()),
        other => panic!("{other:?}"),
    }
}

fn is_silent(events: &mut Box<dyn Subscription>) -> bool {
    events.next().as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

fn refusal(backend: &StoreBackend, after: u64) -> Refusal {
    match block_on(backend.subscribe_from(after)) {
        Err(BackendError::Refused(refusal)) => refusal,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it is not refused"),
    }
}

#[test]
fn a_subscriber_continues_at_its_position_after_a_restart() {
    for reopen in [SimDisk::clone, SimDisk::crash, SimDisk::kill] {
        let mut disk = SimDisk::new(1);
        let backend = open(&disk);
        let mut events = block_on(backend.subscribe()).unwrap();
        put(&backend, 0);
        let (mut last, _) = next(&mut events);
        let mut backend = Some(backend);
        for round in 0..20 {
            // Every acknowledged job is recovered, and so is its event.
            (1..=10).for_each(|n| put(backend.as_ref().unwrap(), round * 10 + n));
            let crashed = reopen(&disk);
            drop(backend.take());
            disk = crashed;
            let opened = backend.insert(open(&disk));
            let mut events = block_on(opened.subscribe_from(last)).unwrap();
            for n in 1..=10 {
                let (position, number) = next(&mut events);
                assert_eq!(number, round * 10 + n);
                assert!(position > last);
                last = position;
            }
            assert!(is_silent(&mut events));
        }
    }
}

#[test]
fn events_during_a_resubscription_are_received_exactly_once() {
    const PUTS: usize = 3_000;
    let backend = StoreBackend::in_memory(Arc::new(SystemClock)).unwrap();
    let mut events = block_on(backend.subscribe()).unwrap();
    put(&backend, 0);
    let (first, _) = next(&mut events);
    std::thread::scope(|scope| {
        scope.spawn(|| (1..PUTS).for_each(|number| put(&backend, number)));
        let mut last = first;
        while last < first + PUTS as u64 - 1 {
            let mut events = block_on(backend.subscribe_from(last)).unwrap();
            for _ in 0..7.min(first + PUTS as u64 - 1 - last) {
                let (position, number) = next(&mut events);
                assert_eq!((position, number as u64), (last + 1, last + 1 - first));
                last = position;
            }
        }
    });
}

#[test]
fn positions_outside_the_event_log_are_refused() {
    let backend = open(&SimDisk::new(1));
    put(&backend, 0);
    let mut events = block_on(backend.subscribe()).unwrap();
    put(&backend, 1);
    let (last, _) = next(&mut events);
    assert_eq!(refusal(&backend, last + 1), Refusal::CursorAhead { after: last + 1, newest: last });
    // Events before the first subscription were not retained.
    assert_eq!(refusal(&backend, 0), Refusal::CursorTooOld { after: 0, oldest: last });
    assert!(is_silent(&mut block_on(backend.subscribe_from(last)).unwrap()));
}

#[test]
fn a_subscription_survives_a_recovery() {
    for operations in 0..12 {
        let disk = SimDisk::new(operations);
        let backend = open(&disk);
        let mut events = block_on(backend.subscribe()).unwrap();
        put(&backend, 0);
        disk.fail_after(operations);
        for number in 1..20 {
            let put = Put::new(
                QueueName::new("mail").unwrap(),
                Jid::new(format!("j{number}")).unwrap(),
                Klass::new("welcome").unwrap(),
                "{}",
            );
            let _ = block_on(backend.execute(vec![put.into()]));
        }
        put(&backend, 20);
        let (mut last, first) = next(&mut events);
        assert_eq!(first, 0);
        let mut received = vec![];
        while received.last() != Some(&20) {
            let (position, number) = next(&mut events);
            assert!(position > last, "failing after {operations}");
            last = position;
            received.push(number);
        }
        assert!(received.len() >= 19, "failing after {operations}: {received:?}");
        assert!(received.is_sorted());
        assert!(is_silent(&mut events));
        drop(backend);
        assert_eq!(block_on(events.next()), Err(SubscriptionEnd::Closed));
    }
}

/// A batch written before a sync failed may turn out to be durable. Current subscribers receive its events
/// then, not only those that come back.
#[test]
fn a_subscription_receives_the_events_that_turned_out_to_be_durable() {
    for after in 0..4 {
        let disk = SimDisk::new(1);
        let backend = open(&disk);
        let mut events = block_on(backend.subscribe()).unwrap();
        put(&backend, 0);
        let (first, _) = next(&mut events);
        disk.fail_after(after);
        let job = Put::new(
            QueueName::new("mail").unwrap(),
            Jid::new("j1").unwrap(),
            Klass::new("welcome").unwrap(),
            "{}",
        );
        let _ = block_on(backend.execute(vec![job.into()]));
        disk.heal();
        // If a checkpoint failed, whose result no command waits for, this command gets the error.
        let _ = block_on(backend.execute(vec![Get { jid: Jid::new("j1").unwrap() }.into()]));
        put(&backend, 2);
        let receive_all = |events: &mut Box<dyn Subscription>| {
            let mut received = vec![next(events)];
            while received.last().is_some_and(|(_, number)| *number != 2) {
                received.push(next(events));
            }
            assert!(is_silent(events));
            received
        };
        let live = receive_all(&mut events);
        assert_eq!(live, receive_all(&mut block_on(backend.subscribe_from(first)).unwrap()), "after {after}");
    }
}

#[test]
fn a_position_published_before_a_power_cut_is_valid_after_it_or_refused() {
    let disk = SimDisk::new(1);
    let backend = open(&disk);
    put(&backend, 0);
    let mut events = block_on(backend.subscribe()).unwrap();
    // A pop is published before it is synced.
    let pop = Pop::new(QueueName::new("mail").unwrap(), WorkerName::new("w1").unwrap());
    assert!(block_on(backend.execute(vec![pop.into()])).unwrap()[0].is_ok());
    let position = block_on(events.next()).unwrap().position;
    let disk = disk.crash_and_lose_all();
    drop(backend);
    let backend = open(&disk);
    put(&backend, 1);
    assert_eq!(next(&mut block_on(backend.subscribe_from(position)).unwrap()).1, 1);
}

#[test]
fn events_are_retained_for_the_reliable_consumer_until_acknowledged() {
    const PUTS: usize = 15_000;
    let disk = SimDisk::new(3);
    let open = |events_held_max| {
        let options =
            StoreOptions { checkpoint_bytes_min: 4 << 10, events_held_max, ..StoreOptions::default() };
        StoreBackend::open_on(Arc::new(disk.clone()), options, ManualClock::new()).unwrap()
    };
    let backend = open(12_000);
    let mut events = block_on(backend.subscribe()).unwrap();
    put(&backend, 0);
    let (first, _) = next(&mut events);
    drop(events);
    let fill = |backend: &StoreBackend, numbers: std::ops::Range<usize>| {
        let (queue, klass) = (QueueName::new("mail").unwrap(), Klass::new("welcome").unwrap());
        let puts = numbers.map(|number| {
            Call::from(Put::new(queue.clone(), Jid::new(format!("j{number}")).unwrap(), klass.clone(), "{}"))
        });
        assert!(block_on(backend.execute(puts.collect())).unwrap().iter().all(Result::is_ok));
    };
    // More than without a reliable consumer, also after a restart.
    fill(&backend, 1..12_000);
    assert_eq!(next(&mut block_on(backend.subscribe_from(first)).unwrap()).1, 1);
    drop(backend);
    let backend = open(12_000);
    assert_eq!(next(&mut block_on(backend.subscribe_from(first)).unwrap()).1, 1);

    // But not without limit, and not after they are acknowledged.
    fill(&backend, 12_000..PUTS);
    let Refusal::CursorTooOld { oldest, .. } = refusal(&backend, first) else { panic!("it is kept") };
    assert_eq!(next(&mut block_on(backend.subscribe_from(oldest)).unwrap()).1, PUTS - 12_000 + 1);
    backend.ack_events(u64::MAX);
    let Refusal::CursorTooOld { oldest, .. } = refusal(&backend, first) else { panic!("it is kept") };
    assert_eq!(next(&mut block_on(backend.subscribe_from(oldest)).unwrap()).1, PUTS - 10_000 + 1);
}
