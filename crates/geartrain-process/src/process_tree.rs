//! The descendants of a process, from the process table (`/proc`).

use std::collections::HashMap;
use std::fs;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// A row of the process table.
struct Row {
    pid: i32,
    parent: i32,
    is_zombie: bool,
}

/// All processes. A process that ends meanwhile is left out.
fn rows() -> Vec<Row> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(|pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name of the program is in parentheses and may contain anything.
        let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace();
        let is_zombie = matches!(fields.next()?, "Z" | "X");
        Some(Row { pid, parent: fields.next()?.parse().ok()?, is_zombie })
    })
    .collect()
}

/// The living descendants of a process. Children of a process that ended belong to its nearest ancestor that
/// is a child subreaper, so none is missing below such a process.
pub(crate) fn descendants(of: Pid) -> Vec<Pid> {
    let mut children: HashMap<i32, Vec<Row>> = HashMap::new();
    for row in rows() {
        children.entry(row.parent).or_default().push(row);
    }
    let (mut found, mut parents) = (Vec::new(), vec![of.as_raw_pid()]);
    while let Some(parent) = parents.pop() {
        for row in children.remove(&parent).unwrap_or_default() {
            parents.push(row.pid);
            if !row.is_zombie {
                found.extend(Pid::from_raw(row.pid));
            }
        }
    }
    found
}

/// Sends a signal to all descendants, and returns how many there are.
pub(crate) fn signal_descendants(of: Pid, signal: Signal) -> usize {
    let found = descendants(of);
    for pid in &found {
        // It may have ended meanwhile.
        let _ = kill_process(*pid, signal);
    }
    found.len()
}

/// The memory of processes in bytes.
///
/// The resident set counts a shared page once for each process. Only if that sum exceeds the limit, the exact
/// and slower proportional set is read.
pub(crate) fn memory_above(pids: &[Pid], limit: u64) -> Option<u64> {
    let resident: u64 = pids.iter().filter_map(|pid| resident_bytes(*pid)).sum();
    if resident <= limit {
        return None;
    }
    let exact: u64 = pids.iter().filter_map(|pid| proportional_bytes(*pid).or(resident_bytes(*pid))).sum();
    (exact > limit).then_some(exact)
}

/// The resident set of a process in bytes; `None` if it has ended.
pub fn resident_bytes(pid: Pid) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_pid())).ok()?;
    kilobytes(&status, "VmRSS:")
}

fn proportional_bytes(pid: Pid) -> Option<u64> {
    let rollup = fs::read_to_string(format!("/proc/{}/smaps_rollup", pid.as_raw_pid())).ok()?;
    kilobytes(&rollup, "Pss:")
}

fn kilobytes(text: &str, field: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(field))?;
    Some(value.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()? * 1_024)
}

/// How many processes the kernel killed for want of memory: in the cgroup of this process, or in the system.
pub(crate) fn out_of_memory_kills() -> u64 {
    let own = fs::read_to_string("/proc/self/cgroup").ok().and_then(|cgroups| {
        let path = cgroups.lines().find_map(|line| line.strip_prefix("0::"))?.to_owned();
        let events = fs::read_to_string(format!("/sys/fs/cgroup{path}/memory.events")).ok()?;
        counter(&events)
    });
    own.or_else(|| counter(&fs::read_to_string("/proc/vmstat").ok()?)).unwrap_or(0)
}

fn counter(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
}

/// Kills processes that a killed supervisor left behind, and reaps them. They are adopted by this process, which
/// is a child subreaper; `marker` in their environment tells them from its other children.
pub(crate) fn kill_adopted(marker: &[u8], program: Option<Pid>) {
    let this = rustix::process::getpid();
    // The program itself may be a zombie already, which has no environment.
    let mut killed: Vec<Pid> = program.into_iter().collect();
    // Each round finds what was started during the one before, and reaps what was adopted meanwhile.
    for _ in 0..ADOPTION_ROUNDS {
        for pid in descendants(this) {
            let environment = fs::read(format!("/proc/{}/environ", pid.as_raw_pid())).unwrap_or_default();
            if environment.split(|byte| *byte == 0).any(|variable| variable == marker) {
                let _ = kill_process(pid, Signal::KILL);
                killed.push(pid);
            }
        }
        // Only these, never any child: others belong to the program that this process is.
        killed.retain(|pid| {
            let _ = waitpid(Some(*pid), WaitOptions::NOHANG);
            std::path::Path::new(&format!("/proc/{}", pid.as_raw_pid())).exists()
        });
        if killed.is_empty() {
            return;
        }
        std::thread::sleep(ADOPTION_ROUND);
    }
}

/// How often, and at which interval, the processes of a killed supervisor are killed and reaped.
const ADOPTION_ROUNDS: usize = 200;
const ADOPTION_ROUND: std::time::Duration = std::time::Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_of_this_process_is_found_with_its_memory() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_raw(child.id() as i32).unwrap();
        assert!(descendants(rustix::process::getpid()).contains(&pid));
        assert!(resident_bytes(pid).is_some_and(|bytes| bytes > 0));
        assert!(memory_above(&[pid], u64::MAX).is_none());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!descendants(rustix::process::getpid()).contains(&pid));
    }

    #[test]
    fn counters_are_read_from_their_files() {
        assert_eq!(counter("nr_free 1\noom_kill 7\nother 9\n"), Some(7));
        assert_eq!(kilobytes("Name:\tx\nVmRSS:\t  12 kB\n", "VmRSS:"), Some(12_288));
    }
}
