//! Periodic ticks on a Redis, where nothing happens by itself: timeouts, expired jobs, old results, and the
//! detachment of clients whose server died.

use std::time::Duration;

use geartrain::{Client, Count, Tick, TickReply};
use tokio_util::sync::CancellationToken;

/// How often to send a tick. Several servers may do so: the first one does the work.
const TICK_EVERY: Duration = Duration::from_secs(1);

/// Sends ticks until stopped.
pub(crate) async fn sweep(client: Client, stop: CancellationToken) {
    let count = Count::new(1_000).unwrap_or(Count::MAX);
    let mut interval = tokio::time::interval(TICK_EVERY);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = interval.tick() => {}
        }
        // While a tick is full, the next one follows at once.
        loop {
            let ticked = tokio::select! {
                () = stop.cancelled() => return,
                ticked = client.run(Tick { count }) => ticked,
            };
            match ticked {
                Ok(TickReply { done, .. }) if done >= count.get() as u64 && !stop.is_cancelled() => {}
                Ok(_) => break,
                Err(error) => {
                    let error: &dyn std::error::Error = &error;
                    tracing::warn!(error, "cannot process what is due, trying again");
                    break;
                }
            }
        }
    }
}
