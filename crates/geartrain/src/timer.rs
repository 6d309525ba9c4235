//! Timeouts without an async runtime: one thread with a queue of deadlines, for any executor.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use flume::{Receiver, RecvTimeoutError, Sender};

/// Below this many timeouts it is not worth removing the cancelled ones.
const CLEANUP_AT_LEAST: usize = 64;

/// A deadline, and the channel whose end reports it.
type Timeout = (Instant, Sender<()>);

/// The thread starts with the first timeout.
static TIMER: LazyLock<Sender<Timeout>> = LazyLock::new(|| {
    let (timeouts, inbox) = flume::unbounded();
    let thread = std::thread::Builder::new().name("geartrain-timer".into());
    // If the thread cannot be started the inbox is dropped, and every timeout ends at once rather than never.
    let _ = thread.spawn(move || run(&inbox));
    timeouts
});

/// Completes after `wait`; never, if that is later than an `Instant` can hold.
pub(crate) fn after(wait: Duration) -> impl Future<Output = ()> + Send + 'static {
    let timeout = Instant::now().checked_add(wait).map(|deadline| {
        let (sender, over) = flume::bounded(1);
        let _ = TIMER.send((deadline, sender));
        over
    });
    async move {
        match timeout {
            Some(over) => drop(over.recv_async().await),
            None => std::future::pending().await,
        }
    }
}

fn run(inbox: &Receiver<Timeout>) {
    let mut timeouts: BTreeMap<(Instant, u64), Sender<()>> = BTreeMap::new();
    let mut cleanup_at = CLEANUP_AT_LEAST;
    for number in 0.. {
        let next = timeouts.first_key_value().map(|((deadline, _), _)| *deadline);
        let received = match next {
            None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(deadline) => inbox.recv_deadline(deadline),
        };
        match received {
            Ok((deadline, sender)) => drop(timeouts.insert((deadline, number), sender)),
            Err(RecvTimeoutError::Disconnected) => return,
            // Dropping the sender completes the timeout.
            Err(RecvTimeoutError::Timeout) => drop(timeouts.pop_first()),
        }
        if timeouts.len() >= cleanup_at {
            timeouts.retain(|_, sender| !sender.is_disconnected());
            cleanup_at = CLEANUP_AT_LEAST.max(2 * timeouts.len());
        }
    }
}
