//! Tests of programs: a queue in memory whose clock the test moves, so that retries, schedules and timeouts
//! take no time.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
//! use std::time::Duration;
//! let (client, clock) = geartrain::testing::memory()?;
//! let day = Duration::from_secs(86_400);
//!
//! client.put("mail", "reminder", "{}").delay(day).await?;
//! assert!(client.pop("mail", "worker-1").await?.is_none());
//! clock.advance(day);
//! let job = client.pop("mail", "worker-1").await?.expect("it is due");
//!
//! client.retry(&job, day).await?;
//! let parked = client.pop_wait("mail", "worker-1", 2 * day);
//! clock.advance(day);
//! assert!(parked.await?.is_some());
//! # Ok(()) }) }
//! ```

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use geartrain_core::{Clock, ManualClock, SystemClock, Timestamp};
use geartrain_store::StoreBackend;

use crate::put::timestamp;
use crate::{Client, Error};

/// A queue in memory like `memory:`, and the clock that it goes by.
pub fn memory() -> Result<(Client, TestClock), Error> {
    let clock = TestClock::new();
    Ok((clock.memory()?, clock))
}

/// A clock that stands still until the test moves it. It begins with the machine's time. Clones share it.
///
/// The queue goes by this clock alone: delays, schedules, locks, timeouts, and waits of
/// [`pop_wait`](Client::pop_wait). Moving the clock wakes pops that wait for a job that is due now. The
/// client's own waits, such as that of [`Client::wait_for`], go by the machine's clock.
///
/// A lock expires too if the clock moves by more than it lasts, a minute by default: move the clock while no
/// job runs, or make locks longer with the option `heartbeat`.
#[derive(Debug, Clone)]
pub struct TestClock(Arc<ManualClock>);

impl Default for TestClock {
    fn default() -> TestClock {
        TestClock::new()
    }
}

impl TestClock {
    /// A clock at the machine's time.
    pub fn new() -> TestClock {
        let clock = ManualClock::new();
        clock.set(SystemClock.now().get());
        TestClock(clock)
    }

    /// A queue in memory that goes by this clock.
    pub fn memory(&self) -> Result<Client, Error> {
        Ok(Client::new(Arc::new(StoreBackend::in_memory(self.0.clone())?)))
    }

    /// Moves the clock on.
    pub fn advance(&self, by: Duration) {
        self.0.advance(by.as_secs_f64());
    }

    /// Sets the clock, also backwards: for schedules on certain days.
    pub fn set(&self, now: SystemTime) {
        self.0.set(timestamp(now).get());
    }

    /// The time of the queue.
    pub fn now(&self) -> Timestamp {
        self.0.now()
    }
}
