//! Does what falls due on a Redis, where nothing moves by itself; waiters of servers that died are detached
//! by this too.

use std::time::Duration;

use geartrain::{Client, Count, Tick, TickReply};
use tokio_util::sync::CancellationToken;

/// How often to look. Several servers may: whoever comes first does it.
const EVERY: Duration = Duration::from_secs(1);

/// Sends ticks until it is stopped.
pub(crate) async fn sweep(client: Client, stop: CancellationToken) {
    let count = Count::new(1_000).unwrap_or(Count::MAX);
    let mut look = tokio::time::interval(EVERY);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = look.tick() => {}
        }
        // As long as there is more than fits, it goes on at once.
        loop {
            let ticked = tokio::select! {
                () = stop.cancelled() => return,
                ticked = client.run(Tick { count }) => ticked,
            };
            match ticked {
                Ok(TickReply { done, .. }) if done >= count.get() as u64 && !stop.is_cancelled() => {}
                Ok(_) => break,
                Err(error) => {
                    tracing::warn!(%error, "what is due cannot be done now");
                    break;
                }
            }
        }
    }
}
