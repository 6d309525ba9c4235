//! The permissions of the socket file of a data directory.

use std::os::unix::fs::PermissionsExt;

use pollster::block_on;

#[test]
fn only_the_owner_may_use_the_socket_file_of_a_directory() {
    let data = std::env::temp_dir().join(format!("geartrain-access-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&data);
    let client = block_on(geartrain::connect(&format!("embedded:{}", data.display()))).unwrap();
    let mode = |path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let modes = (mode(data.clone()), mode(data.join("geartrain.sock")));
    drop(client);
    std::fs::remove_dir_all(&data).unwrap();
    assert_eq!(modes, (0o700, 0o600));
}
