//! Periodic jobs on a Redis, where nothing runs by itself: each process looks for due ones and fires them.

use std::sync::Arc;
use std::time::Duration;

use geartrain_core::{Backend, BackendError, Call, Count, DuePeriodics, Refusal, Reply, Timestamp};

use crate::heartbeat::{left, now};

/// The longest time between two looks: another process may have put a periodic job.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Periodic jobs that are fired at a time.
const FIRED_MAX: i64 = 100;

/// Runs periodic jobs as they come due, until the future is dropped. Any number of processes may do so: the first
/// one puts the jobs of a run. Ends at once on a backend that runs them by itself or knows none.
pub async fn fire_periodics(backend: Arc<dyn Backend>) {
    loop {
        match backend.identify().await {
            Ok(software) if software.name == "Redis" || software.name == "Valkey" => break,
            Ok(_) => return,
            Err(_) => tokio::time::sleep(LOOK_EVERY).await,
        }
    }
    loop {
        let wait = match fire_due(&*backend).await {
            Ok(next) => next.map_or(LOOK_EVERY, |next| left(now(&*backend), next).min(LOOK_EVERY)),
            Err(BackendError::Refused(Refusal::Unsupported { .. })) => return,
            Err(error) => {
                tracing::debug!(%error, "periodic jobs are not looked for, trying again");
                LOOK_EVERY
            }
        };
        tokio::time::sleep(wait).await;
    }
}

/// Fires what is due, and returns when the next one is.
async fn fire_due(backend: &dyn Backend) -> Result<Option<Timestamp>, BackendError> {
    let count = Count::new(FIRED_MAX).unwrap_or(Count::ONE);
    let answers = backend.execute(vec![Call::from(DuePeriodics { count })]).await?;
    let found = match answers.into_iter().next() {
        Some(Ok(Reply::DuePeriodics(found))) => *found,
        Some(Err(refusal)) => return Err(refusal.into()),
        _ => return Ok(None),
    };
    let now = now(backend);
    let fires: Vec<Call> = found.due.iter().map(|due| Call::from(due.fire(now))).collect();
    if fires.is_empty() {
        return Ok(found.next);
    }
    for refusal in backend.execute(fires).await?.into_iter().filter_map(Result::err) {
        tracing::debug!(%refusal, "a periodic job that was due is gone");
    }
    // Others may have come due, and those that were fired have a next run.
    Ok(Some(now))
}
