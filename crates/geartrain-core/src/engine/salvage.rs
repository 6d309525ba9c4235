//! Salvage: restoring an engine from a snapshot with lost jobs.
//!
//! Other jobs, and the deltas logged after the snapshot, refer to a job by its row. So a lost job leaves a
//! placeholder in its row: deltas of it are skipped, its dependents can be released, and new jobs get the
//! same rows as before.

use std::collections::BTreeMap;

use super::codec::CodecError;
use super::{Delta, Engine, Restoring, RowId};
use crate::Jid;

/// The placeholders of lost jobs, by row.
pub type Placeholders = BTreeMap<RowId, Jid>;

impl Restoring {
    /// Builds the engine after all that is left was added: each missing row gets a placeholder, with a jid
    /// made by `name`.
    pub fn finish_with_placeholders(
        mut self,
        name: impl Fn(RowId) -> Jid,
    ) -> Result<(Engine, Placeholders), CodecError> {
        let placeholders: Placeholders =
            self.0.state.missing_rows().into_iter().map(|row| (row, name(row))).collect();
        for (row, jid) in &placeholders {
            self.0.state.add_placeholder(*row, jid)?;
        }
        Ok((self.finish(), placeholders))
    }
}

impl Engine {
    /// Applies a delta, unless it is one of a placeholder. Returns whether it was applied.
    pub fn apply_around(&mut self, delta: &Delta, placeholders: &mut Placeholders) -> bool {
        let Some(row) = delta.row().filter(|row| placeholders.contains_key(row)) else {
            self.apply(delta);
            return true;
        };
        match delta {
            // The lost job was removed later: nothing is lost, and its row may be used again.
            Delta::Remove(_) | Delta::Canceled { .. } => {
                placeholders.remove(&row);
                self.apply(&Delta::Remove(row));
                true
            }
            // Later deltas rely on the job's dependents being released.
            Delta::Complete { now, .. } => {
                let dependents: Vec<RowId> = self.state.dependents(row).collect();
                for of in dependents {
                    self.apply(&Delta::Undepend(of, [row].into(), *now));
                }
                false
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Effects, Limits};
    use crate::*;

    fn jid(name: &str) -> Jid {
        Jid::new(name).unwrap()
    }

    fn put(engine: &mut Engine, name: &str, depends: &[&str], effects: &mut Effects) {
        let mail = QueueName::new("mail").unwrap();
        let put = Put::new(mail, jid(name), Klass::new("k").unwrap(), "{}");
        let depends = depends.iter().map(|name| jid(name)).collect();
        engine.execute(Timestamp::ZERO, Put { depends, ..put }.into(), effects).unwrap();
    }

    #[test]
    fn a_damaged_snapshot_is_restored_without_the_lost_jobs() {
        let mut engine = Engine::new(Limits::default());
        let mut effects = Effects::default();
        put(&mut engine, "lost", &[], &mut effects);
        put(&mut engine, "cancelled", &[], &mut effects);
        put(&mut engine, "whole", &[], &mut effects);
        put(&mut engine, "waits", &["lost"], &mut effects);
        let (mut head, mut rows) = (Vec::new(), Vec::new());
        engine.begin_snapshot(&mut head);
        let mut is_done = false;
        while !is_done {
            let mut row = Vec::new();
            is_done = engine.continue_snapshot(1, &mut row);
            rows.push(row);
        }
        // After the snapshot one of the two is removed, and another job gets its row.
        effects.deltas.clear();
        let cancel = Cancel::new(vec![jid("cancelled")]);
        engine.execute(Timestamp::ZERO, cancel.into(), &mut effects).unwrap();
        put(&mut engine, "new", &[], &mut effects);
        let priority = SetPriority { jid: jid("lost"), priority: Priority::new(3.0).unwrap() };
        engine.execute(Timestamp::ZERO, priority.into(), &mut effects).unwrap();

        let mut restoring = Engine::restore(Limits::default(), &head).unwrap();
        rows[2..].iter().for_each(|row| restoring.add(row).unwrap());
        let name = |row| jid(&format!("placeholder-{row}"));
        let (mut engine, mut placeholders) = restoring.finish_with_placeholders(name).unwrap();
        assert_eq!(placeholders.len(), 2);
        let applied =
            effects.deltas.iter().filter(|delta| engine.apply_around(delta, &mut placeholders)).count();
        assert_eq!(applied, effects.deltas.len() - 1);
        assert_eq!(placeholders.into_values().collect::<Vec<_>>(), [name(0)]);
        engine.abandon(Timestamp::ZERO, &name(0), &mut Effects::default());
        engine.check().unwrap();
        assert_eq!(engine.memory_report().waiting, 3, "whole, waits and new");
    }
}
