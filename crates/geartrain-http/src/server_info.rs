//! The server itself: version, backend, memory, how long commits take, connections.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use geartrain_core::{Backend, Clock, Measures, SystemClock, TimingCounts};
use geartrain_front::FrontEnd;
use geartrain_json::{Number, OperationError};
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::Serialize;

use crate::handlers::Shared;

/// Percentiles are of the last one to two of these.
const RECENT: Duration = Duration::from_secs(60);

/// A server: what its backend lacks is null.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ServerView {
    version: &'static str,
    /// The URL of the queue, without a password.
    url: Option<String>,
    started: Number,
    /// Seconds.
    uptime: Number,
    /// When changes are synced to disk: `always`, `never`, an interval, or `none` in memory.
    sync_mode: Option<String>,
    /// Bytes of memory of the process.
    memory: Option<u64>,
    /// Bytes of the files of the store.
    store_bytes: Option<u64>,
    /// How long commits took.
    commit: Option<PercentilesView>,
    /// How long syncs of the log took.
    sync: Option<PercentilesView>,
    /// How long a Redis took to answer.
    round_trip: Option<PercentilesView>,
    connections: ConnectionsView,
}

/// Durations of the last minutes, in seconds, to within a factor of 1.4; null if there were none.
#[derive(Debug, Serialize, JsonSchema)]
struct PercentilesView {
    p50: Option<Number>,
    p99: Option<Number>,
}

/// Open connections.
#[derive(Debug, Serialize, JsonSchema)]
struct ConnectionsView {
    resp: usize,
    gearman: usize,
    http: usize,
    max: usize,
}

impl PercentilesView {
    fn new(counts: &TimingCounts) -> PercentilesView {
        let at = |share| counts.quantile(share).map(Number);
        PercentilesView { p50: at(0.5), p99: at(0.99) }
    }
}

/// Readings of the backend's own measurements, for percentiles of the last minutes.
#[derive(Default)]
pub(crate) struct Readings(Mutex<VecDeque<(Instant, Measures)>>);

impl Readings {
    /// Reads the measurements if the last reading is old.
    pub(crate) async fn refresh(&self, backend: &Arc<dyn Backend>) {
        let is_recent = |(at, _): &(Instant, Measures)| at.elapsed() < RECENT;
        if self.0.lock().back().is_some_and(is_recent) {
            return;
        }
        let measures = measure(backend).await;
        let mut readings = self.0.lock();
        readings.push_back((Instant::now(), measures));
        while readings.len() > 2 {
            readings.pop_front();
        }
    }

    /// What was measured since the older reading.
    fn since(&self, now: &TimingCounts, of: fn(&Measures) -> &Option<TimingCounts>) -> TimingCounts {
        let readings = self.0.lock();
        match readings.front().and_then(|(_, earlier)| of(earlier).as_ref()) {
            Some(earlier) => now.since(earlier),
            None => now.clone(),
        }
    }
}

/// What the backend measures of itself. It may read a directory.
pub(crate) async fn measure(backend: &Arc<dyn Backend>) -> Measures {
    let backend = backend.clone();
    tokio::task::spawn_blocking(move || backend.measure()).await.unwrap_or_default()
}

pub(crate) async fn view(shared: &Shared) -> Result<ServerView, OperationError> {
    let measures = measure(&shared.backend).await;
    let recent = |of: fn(&Measures) -> &Option<TimingCounts>| {
        of(&measures).as_ref().map(|now| PercentilesView::new(&shared.readings.since(now, of)))
    };
    let admission = &shared.options.admission;
    Ok(ServerView {
        version: env!("CARGO_PKG_VERSION"),
        url: shared.options.url.clone(),
        started: shared.started.into(),
        uptime: Number((SystemClock.now() - shared.started).get().max(0.0).round()),
        sync_mode: shared.backend.sync_mode().await?,
        memory: memory(),
        store_bytes: measures.store_bytes,
        commit: recent(|measures| &measures.commit),
        sync: recent(|measures| &measures.sync),
        round_trip: recent(|measures| &measures.round_trip),
        connections: ConnectionsView {
            resp: admission.connections(FrontEnd::Resp),
            gearman: admission.connections(FrontEnd::Gearman),
            http: admission.connections(FrontEnd::Http),
            max: admission.connections_max(),
        },
    })
}

/// Bytes of memory that this process has, where the system tells.
pub(crate) fn memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let kibibytes = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(kibibytes.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}
