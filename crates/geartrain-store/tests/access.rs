//! Who may use a data directory: one process, and one user.

use std::fs::{File, Permissions, TryLockError};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use geartrain_core::SystemClock;
use geartrain_core::*;
use geartrain_store::{OpenError, StoreBackend, StoreOptions, check};
use pollster::block_on;

use crate::scratch::Scratch;

#[test]
fn a_directory_and_its_files_are_private_to_their_owner() {
    let scratch = Scratch::new("modes");
    let data = scratch.join("a/b");
    drop(open(&data));
    assert_eq!(mode(&data), 0o700);
    modes_of_files_are_private(&data);
    // As an earlier version created it.
    std::fs::set_permissions(&data, Permissions::from_mode(0o755)).unwrap();
    std::fs::set_permissions(data.join("lock"), Permissions::from_mode(0o644)).unwrap();
    let backend = open(&data);
    assert_eq!(mode(&data), 0o700);
    modes_of_files_are_private(&data);
    let copy = scratch.join("copy");
    block_on(backend.backup(&copy)).unwrap();
    assert_eq!(mode(&copy), 0o700);
    modes_of_files_are_private(&copy);
}

#[test]
fn a_directory_that_serves_other_purposes_keeps_its_mode() {
    let scratch = Scratch::new("other");
    std::fs::write(scratch.join("notes"), "not ours").unwrap();
    for mode_before in [0o755, 0o1777] {
        std::fs::set_permissions(scratch.path(), Permissions::from_mode(mode_before)).unwrap();
        drop(open(scratch.path()));
        assert_eq!(mode(scratch.path()), mode_before & 0o777);
        std::fs::remove_file(scratch.join("log-00000000000000000001")).unwrap();
        std::fs::remove_file(scratch.join("manifest")).unwrap();
    }
}

#[test]
fn the_lock_survives_the_removal_of_its_file() {
    let scratch = Scratch::new("lock");
    let data = scratch.join("data");
    let backend = open(&data);
    std::fs::remove_file(data.join("lock")).unwrap();
    assert!(matches!(try_open(&data), Err(OpenError::InUse)));
    assert!(matches!(check(&data), Err(OpenError::InUse)));
    drop(backend);
    check(&data).unwrap();
    drop(open(&data));
}

#[test]
fn a_program_that_knows_only_the_lock_file_is_locked_out_and_locks_others_out() {
    let scratch = Scratch::new("older");
    let data = scratch.join("data");
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
