//! Who may use a data directory: one process, and one user.

use std::fs::{File, Permissions, TryLockError};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use geartrain_core::SystemClock;
use geartrain_core::*;
use geartrain_store::{OpenError, StoreBackend, StoreOptions, check};
use pollster::block_on;

#[test]
fn a_directory_and_its_files_are_for_their_owner_alone() {
    let scratch = Scratch::new("modes");
    let data = scratch.0.join("a/b");
    drop(open(&data));
    assert_eq!(mode(&data), 0o700);
    modes_of_files_are_private(&data);
    // As an earlier version made it.
    std::fs::set_permissions(&data, Permissions::from_mode(0o755)).unwrap();
    std::fs::set_permissions(data.join("lock"), Permissions::from_mode(0o644)).unwrap();
    let backend = open(&data);
    assert_eq!(mode(&data), 0o700);
    modes_of_files_are_private(&data);
    let copy = scratch.0.join("copy");
    block_on(backend.backup(&copy)).unwrap();
    assert_eq!(mode(&copy), 0o700);
    modes_of_files_are_private(&copy);
}

#[test]
fn a_directory_that_serves_other_purposes_keeps_its_mode() {
    let scratch = Scratch::new("other");
    std::fs::write(scratch.0.join("notes"), "not ours").unwrap();
    for mode_before in [0o755, 0o1777] {
        std::fs::set_permissions(&scratch.0, Permissions::from_mode(mode_before)).unwrap();
        drop(open(&scratch.0));
        assert_eq!(mode(&scratch.0), mode_before & 0o777);
        std::fs::remove_file(scratch.0.join("log-00000000000000000001")).unwrap();
        std::fs::remove_file(scratch.0.join("manifest")).unwrap();
    }
}

#[test]
fn the_lock_survives_the_removal_of_its_file() {
    let scratch = Scratch::new("lock");
    let data = scratch.0.join("data");
    let backend = open(&data);
    std::fs::remove_file(data.join("lock")).unwrap();
    assert!(matches!(try_open(&data), Err(OpenError::InUse)));
    assert!(matches!(check(&data), Err(OpenError::InUse)));
    drop(backend);
    check(&data).unwrap();
    drop(open(&data));
}

#[test]
fn a_program_that_knows_only_the_lock_file_is_kept_out_and_keeps_others_out() {
    let scratch = Scratch::new("older");
    let data = scratch.0.join("data");
    let backend = open(&data);
    let file = File::open(data.join("lock")).unwrap();
    assert!(matches!(file.try_lock(), Err(TryLockError::WouldBlock)));
    drop(backend);
    file.try_lock().unwrap();
    assert!(matches!(try_open(&data), Err(OpenError::InUse)));
    assert!(matches!(check(&data), Err(OpenError::InUse)));
}

fn modes_of_files_are_private(directory: &Path) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(mode(&path), 0o600, "{}", path.display());
    }
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn try_open(directory: &Path) -> Result<StoreBackend, OpenError> {
    StoreBackend::open(directory, StoreOptions::default(), Arc::new(SystemClock))
}

fn open(directory: &Path) -> StoreBackend {
    let backend = try_open(directory).unwrap();
    let length = Length { queue: QueueName::new("mail").unwrap() };
    block_on(backend.execute(vec![length.into()])).unwrap();
    backend
}

/// A directory for a test, which goes with it.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("access-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
