//! The process table, as tests look at it.

use std::fs;

/// Processes whose command line contains a word; a zombie has none and is found by [`zombies`].
pub(crate) fn with_word(word: &str) -> Vec<i32> {
    let pids =
        fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let has_word = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.windows(word.len()).any(|window| window == word.as_bytes())
    };
    pids.filter(has_word).collect()
}

/// Zombies that are children of this process.
pub(crate) fn zombies() -> Vec<String> {
    let stats = fs::read_dir("/proc").unwrap().flatten();
    let stats = stats.filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
    let this = std::process::id().to_string();
    stats
        .filter(|stat| {
            let mut fields = stat[stat.rfind(')').unwrap() + 1..].split_ascii_whitespace();
            fields.next() == Some("Z") && fields.next() == Some(&this)
        })
        .collect()
}

/// A word that no other process has on its command line.
pub(crate) fn unique_word(test: &str) -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    format!("gt-{test}-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed))
}
