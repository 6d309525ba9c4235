//! Spill policy: keeps payloads in memory below their limit, and spill files mostly full.
//!
//! The engine's thread picks payloads and sends them along with a commit group; the committer writes them and
//! reports, and only then do they leave memory, or the sparse file that is being emptied. One set of payloads
//! is in flight at a time. A report wakes the engine's thread, which sends the next set if there is one: so
//! spilling goes on without commands, and rests when there is nothing to spill.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flume::{Receiver, Sender};
use geartrain_core::engine::{Engine, SpillTask};

use crate::spill::files::{PayloadFiles, SpillReport};

/// Bytes spilled per step, at least; and bytes copied out of sparse files per step.
const STEP_BYTES: u64 = 1 << 20;
/// Bytes spilled per byte logged, if that is more: memory must not fill faster than it is emptied.
const PACE: u64 = 2;
/// How much the log grows before the next attempt on a disk that was full.
const PAUSE_BYTES: u64 = 4 << 20;

/// Wakes the engine's thread after a report.
pub(crate) type Wake = Arc<dyn Fn() + Send + Sync>;

/// The engine's side.
pub(crate) struct SpillPolicy {
    memory_bytes_max: u64,
    reports: Receiver<SpillReport>,
    is_under_way: bool,
    /// Bytes logged since the last step.
    logged: u64,
    /// Bytes to be logged before the next step.
    pause: u64,
    /// Publishes how many payload bytes are in memory.
    in_memory: Arc<AtomicU64>,
}

/// The committer's side.
pub(crate) struct SpillWriter {
    pub(crate) files: PayloadFiles,
    reports: Sender<SpillReport>,
    wake: Wake,
}

pub(crate) fn policy_and_writer(
    files: PayloadFiles,
    memory_bytes_max: u64,
    in_memory: Arc<AtomicU64>,
    wake: Wake,
) -> (SpillPolicy, SpillWriter) {
    let (sender, reports) = flume::bounded(1);
    let spill =
        SpillPolicy { memory_bytes_max, reports, is_under_way: false, logged: 0, pause: 0, in_memory };
    (spill, SpillWriter { files, reports: sender, wake })
}

impl SpillPolicy {
    /// Takes in a report, and picks the payloads to spill with a group of this many logged bytes.
    pub(crate) fn step(&mut self, engine: &mut Engine, logged: usize) -> Option<Vec<SpillTask>> {
        self.logged += logged as u64;
        self.pause = self.pause.saturating_sub(logged as u64);
        if self.is_under_way {
            let SpillReport { moved, is_full } = self.reports.try_recv().ok()?;
            self.is_under_way = false;
            moved.into_iter().for_each(|moved| engine.finish_spill(moved));
            if is_full {
                engine.stop_emptying_files();
                self.pause = PAUSE_BYTES;
            }
        }
        self.in_memory.store(engine.payload_bytes(), Ordering::Relaxed);
        if self.pause > 0 {
            return None;
        }
        let mut tasks = Vec::new();
        if engine.payload_bytes() > self.memory_bytes_max {
            tasks = engine.pick_spill_victims(self.memory_bytes_max, STEP_BYTES.max(PACE * self.logged));
        }
        let copied_forward = engine.pick_payloads_of_sparse_files(STEP_BYTES);
        if tasks.is_empty() && copied_forward.is_none() {
            return None;
        }
        tasks.extend(copied_forward.unwrap_or_default());
        (self.logged, self.is_under_way) = (0, true);
        Some(tasks)
    }
}

impl SpillWriter {
    /// Writes a set of payloads, and reports.
    pub(crate) fn write(&mut self, tasks: Vec<SpillTask>) -> std::io::Result<()> {
        let written = self.files.write(tasks)?;
        // Without an engine no report is needed.
        let _ = self.reports.send(written);
        (self.wake)();
        Ok(())
    }
}
