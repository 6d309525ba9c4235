//! The engine with a data directory passes the conformance suite, also when all payloads are spilled.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use geartrain_core::SystemClock;
use geartrain_core::*;
use geartrain_store::wal::{Disk, WalOptions};
use geartrain_store::{Lockstep, StoreBackend, StoreOptions};
use geartrain_testkit::clock::ManualClock;
use geartrain_testkit::disk::SimDisk;
use pollster::block_on;

mod with_directory {
    use std::sync::Arc;

    use geartrain_core::*;
    use geartrain_store::{StoreBackend, StoreOptions};

    use crate::scratch::Scratch;

    /// A backend and its directory, which is removed after the backend is dropped.
    pub(crate) struct BackendWithDirectory {
        backend: StoreBackend,
        _directory: Scratch,
    }

    impl Backend for BackendWithDirectory {
        fn execute(&self, batch: Vec<Call>) -> Pending<'_, Vec<Answer>> {
            self.backend.execute(batch)
        }
        fn pop_or_wait(&self, pop: Pop, wait: Seconds) -> Pending<'_, PopReply> {
            self.backend.pop_or_wait(pop, wait)
        }
        fn ready_or_wait(&self, queues: Vec<QueueName>, wait: Seconds) -> Pending<'_, bool> {
            self.backend.ready_or_wait(queues, wait)
        }
        fn subscribe(&self) -> Pending<'_, Box<dyn Subscription>> {
            self.backend.subscribe()
        }
        fn subscribe_from(&self, after: u64) -> Pending<'_, Box<dyn Subscription>> {
            self.backend.subscribe_from(after)
        }
        fn open_result_stream(&self, stream_id: u64) -> Pending<'_, Box<dyn ResultStream>> {
            self.backend.open_result_stream(stream_id)
        }
    }

    pub(crate) fn open(options: StoreOptions, clock: Arc<dyn Clock>) -> Arc<BackendWithDirectory> {
        let directory = Scratch::new("conformance");
        let backend = StoreBackend::open(directory.path(), options, clock).expect("an empty directory opens");
        Arc::new(BackendWithDirectory { backend, _directory: directory })
    }
}

mod conformance {
    use geartrain_store::StoreOptions;

    geartrain_testkit::conformance!(|clock| crate::data_dir::with_directory::open(
        StoreOptions::default(),
        clock
    ));
}

/// Conformance when no payload stays in memory, and spill files are so short that payloads are copied forward
/// all the time.
mod conformance_without_memory {
    use geartrain_store::StoreOptions;

    geartrain_testkit::conformance!(|clock| {
        let options = StoreOptions {
            checkpoint_bytes_min: 4 << 10,
            payload_memory: 0,
            spill_bytes_min: 0,
            payload_file_bytes: 64,
            ..StoreOptions::default()
        };
        crate::data_dir::with_directory::open(options, clock)
    });
}

#[test]
fn batches_of_any_size_are_executed_in_the_order_sent() {
    const JOBS: usize = 20_000;
    let backend = with_directory::open(StoreOptions::default(), Arc::new(SystemClock));
    let jid = |number: usize| Jid::new(format!("{number:032x}")).unwrap();
    let send_batches = |thread: u64| {
        let mut rng = fastrand::Rng::with_seed(thread);
        let queue = QueueName::new(format!("queue-{thread}")).unwrap();
        let put = |number: usize| {
            let put =
                Put::new(queue.clone(), jid(thread as usize * JOBS + number), Klass::new("k").unwrap(), "{}");
            Call::at(Timestamp::from(1_000), put)
        };
        let (mut sent, mut in_flight) = (0, VecDeque::new());
        while sent < JOBS {
            // Some are executed inline, and some by the engine's thread.
            let count = [1, 9, 70, 300, 3_000][rng.usize(..5)].min(JOBS - sent);
            let mut answers = backend.execute((sent..sent + count).map(put).collect());
            sent += count;
            // The first poll sends the batch.
            match answers.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Pending => in_flight.push_back(answers),
                Poll::Ready(answers) => drop(answers.unwrap()),
            }
            while in_flight.len() > rng.usize(1..6) {
                block_on(in_flight.pop_front().unwrap()).unwrap();
            }
        }
        for answers in in_flight {
            block_on(answers).unwrap();
        }
        let worker = WorkerName::new("w").unwrap();
        let pop = Pop { count: Count::new(JOBS as i64).unwrap(), ..Pop::new(queue.clone(), worker) };
        let answers = block_on(backend.execute(vec![pop.into()])).unwrap();
        let Ok(Reply::Pop(reply)) = &answers[0] else { panic!("{answers:?}") };
        let expected: Vec<Jid> = (0..JOBS).map(|number| jid(thread as usize * JOBS + number)).collect();
        assert!(reply.jobs.iter().map(|job| &job.jid).eq(&expected), "a batch was overtaken in {queue}");
    };
    std::thread::scope(|scope| {
        let send_batches = &send_batches;
        (0..4).for_each(|thread| drop(scope.spawn(move || send_batches(thread))));
    });
}

/// A reservation makes spare segments. Opening needs one only to shorten locks, after the clock was set back.
#[test]
fn opening_a_store_reserves_no_log_space_if_no_lock_must_be_shortened() {
    let disk = SimDisk::new(0);
    let wal = WalOptions { segment_bytes: 256 << 10, spare_segments: 3 };
    let options = StoreOptions { wal, ..StoreOptions::default() };
    let open = || StoreBackend::open_on(Arc::new(disk.clone()), options.clone(), ManualClock::new()).unwrap();
    let named = |prefix: &str| -> Vec<String> {
        disk.names().into_iter().filter(|name| name.starts_with(prefix)).collect()
    };
    let backend = open();
    let mut number = 0;
    // With a second segment a reservation makes the spare segments that are held back.
    while named("log-").len() < 2 {
        let (queue, jid) = (QueueName::new("mail").unwrap(), Jid::new(format!("j{number}")).unwrap());
        let put = Put::new(queue, jid, Klass::new("welcome").unwrap(), "x".repeat(8_000));
        block_on(backend.execute(vec![put.into()])).unwrap();
        number += 1;
    }
    drop(backend);
    named("spare-").iter().for_each(|name| disk.remove(name).unwrap());
    // Without the engine's thread, which reserves space soon to reclaim names.
    let store = Lockstep::open_on(Arc::new(disk.clone()), options.clone(), ManualClock::new()).unwrap();
    assert_eq!(named("spare-"), Vec::<String>::new());
    drop(store);
}
