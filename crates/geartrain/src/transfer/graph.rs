//! The order of jobs that depend on each other: dependencies first.

use std::collections::{HashMap, HashSet};

use geartrain_core::{Jid, Job};

/// The jobs in levels: a job is behind all of those that it depends on. Jobs of a cycle are left out.
pub(super) fn levels(jobs: &[Job]) -> Vec<Vec<&Job>> {
    let there: HashSet<&Jid> = jobs.iter().map(|job| &job.jid).collect();
    let mut open: HashMap<&Jid, usize> = HashMap::new();
    let mut dependents: HashMap<&Jid, Vec<&Job>> = HashMap::new();
    let mut level: Vec<&Job> = Vec::new();
    for job in jobs {
        let on: Vec<&Jid> = job.dependencies().iter().filter(|on| there.contains(on)).collect();
        if on.is_empty() {
            level.push(job);
            continue;
        }
        open.insert(&job.jid, on.len());
        on.into_iter().for_each(|on| dependents.entry(on).or_default().push(job));
    }
    let mut levels = Vec::new();
    while !level.is_empty() {
        let mut next = Vec::new();
        for job in &level {
            for dependent in dependents.get(&job.jid).into_iter().flatten() {
                let Some(left) = open.get_mut(&dependent.jid) else { continue };
                *left -= 1;
                if *left == 0 {
                    next.push(*dependent);
                }
            }
        }
        levels.push(std::mem::replace(&mut level, next));
    }
    levels
}
