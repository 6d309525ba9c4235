//! The memory limit of this process, from its control group.

use std::fs;
use std::path::{Path, PathBuf};

/// Limits from here on mean unlimited: version 1 reports the largest possible number of pages.
const UNLIMITED_BYTES: u64 = 1 << 60;

/// The memory limit of this process's control group, version 1 or 2; `None` if it is unlimited or cannot be
/// read.
pub fn memory_limit() -> Option<u64> {
    memory_limit_of(Path::new("/proc/self/cgroup"), Path::new("/sys/fs/cgroup"))
}

/// Like [`memory_limit`], with the file that lists the control groups of a process and the directory in which
/// control groups are mounted.
///
/// A limit of a group holds for the groups in it, so the lowest limit on the way to the root applies. Inside
/// a container the path may be that of the host, of which only the end is mounted: missing directories are
/// skipped.
pub fn memory_limit_of(groups_of_process: &Path, mounted: &Path) -> Option<u64> {
    let groups = fs::read_to_string(groups_of_process).ok()?;
    groups.lines().filter_map(|line| limit_of_line(line, mounted)).min()
}

/// The limit of a line like `0::/a/b` (version 2) or `9:memory:/a/b` (version 1).
fn limit_of_line(line: &str, mounted: &Path) -> Option<u64> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (controllers, path) = (fields.next()?, fields.next()?);
    let (root, file) = match controllers {
        "" => (mounted.to_owned(), "memory.max"),
        _ if controllers.split(',').any(|name| name == "memory") => {
            (mounted.join("memory"), "memory.limit_in_bytes")
        }
        _ => return None,
    };
    let path = PathBuf::from(path.trim_start_matches('/'));
    // The last ancestor of a relative path is the empty one, which is the root.
    let limit = |group: &Path| fs::read_to_string(root.join(group).join(file)).ok()?.trim().parse().ok();
    path.ancestors().filter_map(limit).filter(|limit| *limit < UNLIMITED_BYTES).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The limit of a process in these groups, with these control group files.
    fn limit(name: &str, groups: &str, files: &[(&str, &str)]) -> Option<u64> {
        let root = std::env::temp_dir().join(format!("geartrain-cgroup-{name}-{}", std::process::id()));
        for (file, text) in files {
            let path = root.join("mounted").join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        fs::create_dir_all(&root).unwrap();
        fs::write(root.join("groups"), groups).unwrap();
        let found = memory_limit_of(&root.join("groups"), &root.join("mounted"));
        fs::remove_dir_all(root).unwrap();
        found
    }

    #[test]
    fn the_lowest_limit_on_the_way_to_the_root_counts() {
        let files = [("a/memory.max", "500\n"), ("a/b/memory.max", "900\n"), ("memory.max", "max\n")];
        assert_eq!(limit("v2", "0::/a/b\n", &files), Some(500));
        assert_eq!(limit("v2-none", "0::/\n", &files), None);
        // A container sees the path of the host, and has only its own group mounted.
        assert_eq!(limit("v2-container", "0::/docker/1\n", &[("memory.max", "700\n")]), Some(700));
    }

    #[test]
    fn version_1_has_a_directory_for_memory_and_a_number_for_no_limit() {
        let groups = "5:cpu,cpuacct:/a\n4:memory:/a\n0::/\n";
        let file = "memory/a/memory.limit_in_bytes";
        assert_eq!(limit("v1", groups, &[(file, "268435456\n")]), Some(256 << 20));
        assert_eq!(limit("v1-none", groups, &[(file, "9223372036854771712\n")]), None);
        assert_eq!(limit("v1-missing", groups, &[]), None);
    }

    #[test]
    fn a_malformed_file_means_no_limit() {
        assert_eq!(limit("garbage", "one\n2:\n0::/a\n", &[("a/memory.max", "much\n")]), None);
        assert_eq!(memory_limit_of(Path::new("/nowhere/cgroup"), Path::new("/nowhere")), None);
    }
}
