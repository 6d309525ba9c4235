//! Keeps the payloads in memory below their limit, and the files of the others mostly full.
//!
//! The engine's thread picks payloads and sends them along with a group; the writer writes them and reports, and only then are they out of memory, or out
//! of the file that is being emptied. One lot is under way at a time. A report wakes the engine's thread, which sends the next lot if there is one: so it goes on
//! when nobody asks for anything, and rests when there is nothing to do.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flume::{Receiver, Sender};
use geartrain_core::engine::{Engine, SpillTask};

use crate::payloads::{Lot, PayloadFiles};

/// How many bytes go at a time, at least; and how many are copied forward.
const STEP_BYTES: u64 = 1 << 20;
/// If the log has grown meanwhile, so many times as much as it has, if that is more: memory must not fill faster than it is emptied.
const PACE: u64 = 2;
/// How much the log grows before it is tried again on a disk that was full.
const PAUSE_BYTES: u64 = 4 << 20;

/// Tells the engine's thread that there is a report.
pub(crate) type Wake = Arc<dyn Fn() + Send + Sync>;

/// The engine's end.
pub(crate) struct Spill {
    /// How many bytes may stay in memory.
    memory: u64,
    reports: Receiver<Lot>,
    is_under_way: bool,
    /// How much the log has grown since the last lot.
    logged: u64,
    /// How much it must grow before the next.
    pause: u64,
    /// For others to see how many bytes are in memory.
    in_memory: Arc<AtomicU64>,
}

/// The writer's end.
pub(crate) struct Mover {
    pub(crate) files: PayloadFiles,
    reports: Sender<Lot>,
    wake: Wake,
}

/// Both ends. So many bytes may stay in memory.
pub(crate) fn spill(
    files: PayloadFiles,
    memory: u64,
    in_memory: Arc<AtomicU64>,
    wake: Wake,
) -> (Spill, Mover) {
    let (sender, reports) = flume::bounded(1);
    let spill = Spill { memory, reports, is_under_way: false, logged: 0, pause: 0, in_memory };
    (spill, Mover { files, reports: sender, wake })
}

impl Spill {
    /// Takes in a report, and picks what goes with the group that made the log grow by so many bytes.
    pub(crate) fn step(&mut self, engine: &mut Engine, logged: usize) -> Option<Vec<SpillTask>> {
        self.logged += logged as u64;
        self.pause = self.pause.saturating_sub(logged as u64);
        if self.is_under_way {
            let Lot { moved, full } = self.reports.try_recv().ok()?;
            self.is_under_way = false;
            moved.into_iter().for_each(|moved| engine.finish_spill(moved));
            if full {
                engine.stop_emptying_files();
                self.pause = PAUSE_BYTES;
            }
        }
        self.in_memory.store(engine.payload_bytes(), Ordering::Relaxed);
        if self.pause > 0 {
            return None;
        }
        let mut moves = Vec::new();
        if engine.payload_bytes() > self.memory {
            moves = engine.pick_spill_victims(self.memory, STEP_BYTES.max(PACE * self.logged));
        }
        let forward = engine.pick_payloads_of_sparse_files(STEP_BYTES);
        if moves.is_empty() && forward.is_none() {
            return None;
        }
        moves.extend(forward.unwrap_or_default());
        (self.logged, self.is_under_way) = (0, true);
        Some(moves)
    }
}

impl Mover {
    /// Writes a lot, and reports.
    pub(crate) fn write(&mut self, moves: Vec<SpillTask>) -> std::io::Result<()> {
        let written = self.files.write(moves)?;
        // If nobody is there to hear it, nobody needs to.
        let _ = self.reports.send(written);
        (self.wake)();
        Ok(())
    }
}
