//! The engine on a directory obeys every rule, and remembers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use geartrain_core::SystemClock;
use geartrain_core::*;
use geartrain_store::StoreOptions;
use pollster::block_on;

mod in_a_directory {
    use std::path::{Path, PathBuf};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use geartrain_core::*;
    use geartrain_store::{StoreBackend, StoreOptions};

    /// A backend in a directory that goes with it.
    pub(crate) struct InADirectory {
        backend: Option<StoreBackend>,
        directory: PathBuf,
    }

    impl InADirectory {
        fn backend(&self) -> &StoreBackend {
            self.backend.as_ref().expect("it is there until it is dropped")
        }
    }

    impl Drop for InADirectory {
        fn drop(&mut self) {
            self.backend = None;
            let _ = std::fs::remove_dir_all(&self.directory);
        }
    }

    impl Backend for InADirectory {
        fn execute(&self, batch: Vec<Call>) -> Pending<'_, Vec<Answer>> {
            self.backend().execute(batch)
        }
        fn pop_or_wait(&self, pop: Pop, wait: Seconds) -> Pending<'_, PopReply> {
            self.backend().pop_or_wait(pop, wait)
        }
        fn ready_or_wait(&self, queues: Vec<QueueName>, wait: Seconds) -> Pending<'_, bool> {
            self.backend().ready_or_wait(queues, wait)
        }
        fn subscribe(&self) -> Pending<'_, Box<dyn Subscription>> {
            self.backend().subscribe()
        }
        fn subscribe_from(&self, after: u64) -> Pending<'_, Box<dyn Subscription>> {
            self.backend().subscribe_from(after)
        }
        fn open_result_stream(&self, front: u64) -> Pending<'_, Box<dyn ResultStream>> {
            self.backend().open_result_stream(front)
        }
    }

    fn directory() -> PathBuf {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("conformance-{}-{number}", std::process::id()))
    }

    pub(crate) fn open(options: StoreOptions, clock: Arc<dyn Clock>) -> Arc<InADirectory> {
        let directory = directory();
        let backend = StoreBackend::open(&directory, options, clock).expect("it can be opened");
        Arc::new(InADirectory { backend: Some(backend), directory })
    }
}

mod conformance {
    use geartrain_store::StoreOptions;

    geartrain_testkit::conformance!(|clock| crate::embedded::in_a_directory::open(
        StoreOptions::default(),
        clock
    ));
}

/// The same when nothing stays in memory, and files are so short that payloads are copied from one to the next all the time.
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
        crate::embedded::in_a_directory::open(options, clock)
    });
}

#[test]
fn batches_of_any_size_are_done_in_the_order_in_which_they_are_sent() {
    const JOBS: usize = 20_000;
    let backend = in_a_directory::open(StoreOptions::default(), Arc::new(SystemClock));
    let jid = |number: usize| Jid::new(format!("{number:032x}")).unwrap();
    let story = |thread: u64| {
        let mut rng = fastrand::Rng::with_seed(thread);
        let queue = QueueName::new(format!("queue-{thread}")).unwrap();
        let put = |number: usize| {
            let put =
                Put::new(queue.clone(), jid(thread as usize * JOBS + number), Klass::new("k").unwrap(), "{}");
            Call { now: Some(Timestamp::from(1_000)), command: put.into() }
        };
        let (mut sent, mut under_way) = (0, VecDeque::new());
        while sent < JOBS {
            // Some are done by whoever sends them, and some by the engine's thread.
            let count = [1, 9, 70, 300, 3_000][rng.usize(..5)].min(JOBS - sent);
            let mut answers = backend.execute((sent..sent + count).map(put).collect());
            sent += count;
            // It is sent as soon as it is looked at.
            match answers.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Pending => under_way.push_back(answers),
                Poll::Ready(answers) => drop(answers.unwrap()),
            }
            while under_way.len() > rng.usize(1..6) {
                block_on(under_way.pop_front().unwrap()).unwrap();
            }
        }
        for answers in under_way {
            block_on(answers).unwrap();
        }
        let worker = WorkerName::new("w").unwrap();
        let pop = Pop { count: Count::new(JOBS as i64).unwrap(), ..Pop::new(queue.clone(), worker) };
        let answers = block_on(backend.execute(vec![pop.into()])).unwrap();
        let Ok(Reply::Pop(reply)) = &answers[0] else { panic!("{answers:?}") };
        let expected: Vec<Jid> = (0..JOBS).map(|number| jid(thread as usize * JOBS + number)).collect();
        assert!(reply.jobs.iter().map(|job| &job.jid).eq(&expected), "somebody was overtaken in {queue}");
    };
    std::thread::scope(|scope| {
        let story = &story;
        (0..4).for_each(|thread| drop(scope.spawn(move || story(thread))));
    });
}
