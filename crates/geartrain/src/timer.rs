//! The end of a wait, whatever runs the program's futures: one thread that sleeps for all who wait.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use flume::{Receiver, RecvTimeoutError, Sender};

/// With fewer than this it is not worth looking for those who no longer wait.
const LOOK_AT_LEAST: usize = 64;

/// Somebody who waits: until when, and where to say that it is over.
type Sleeper = (Instant, Sender<()>);

/// The thread, which is there from the first wait on.
static TIMER: LazyLock<Sender<Sleeper>> = LazyLock::new(|| {
    let (sleepers, inbox) = flume::unbounded();
    let thread = std::thread::Builder::new().name("geartrain-timer".into());
    // Without a thread the inbox is gone, and then every wait is over at once rather than never.
    let _ = thread.spawn(move || run(&inbox));
    sleepers
});

/// Over after so long; never, if that is longer than time can be told.
pub(crate) fn after(wait: Duration) -> impl Future<Output = ()> + Send + 'static {
    let sleeping = Instant::now().checked_add(wait).map(|until| {
        let (slot, over) = flume::bounded(1);
        let _ = TIMER.send((until, slot));
        over
    });
    async move {
        match sleeping {
            Some(over) => drop(over.recv_async().await),
            None => std::future::pending().await,
        }
    }
}

fn run(inbox: &Receiver<Sleeper>) {
    let mut sleepers: BTreeMap<(Instant, u64), Sender<()>> = BTreeMap::new();
    let mut look_at = LOOK_AT_LEAST;
    for number in 0.. {
        let next = sleepers.first_key_value().map(|((until, _), _)| *until);
        let came = match next {
            None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(until) => inbox.recv_deadline(until),
        };
        match came {
            Ok((until, slot)) => drop(sleepers.insert((until, number), slot)),
            Err(RecvTimeoutError::Disconnected) => return,
            // Dropping it ends the wait.
            Err(RecvTimeoutError::Timeout) => drop(sleepers.pop_first()),
        }
        if sleepers.len() >= look_at {
            sleepers.retain(|_, slot| !slot.is_disconnected());
            look_at = LOOK_AT_LEAST.max(2 * sleepers.len());
        }
    }
}
