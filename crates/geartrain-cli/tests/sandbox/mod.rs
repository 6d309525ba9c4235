//! A temporary directory with a queue, in which tests run the command.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

/// Removed after the test.
pub(crate) struct Sandbox {
    pub(crate) directory: PathBuf,
}

impl Sandbox {
    pub(crate) fn new() -> Sandbox {
        let directory = std::env::temp_dir().join(format!("geartrain-cli-{}", uuid::Uuid::now_v7().simple()));
        std::fs::create_dir(&directory).unwrap();
        Sandbox { directory }
    }

    /// The URL of a queue in the sandbox.
    pub(crate) fn url(&self, name: &str) -> String {
        format!("embedded:{}", self.path(name))
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    /// Writes a file that only its owner can read, and returns its path.
    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_geartrain"));
        command.args(arguments).env("GEARTRAIN_URL", self.url("data")).stdin(Stdio::null());
        command
    }

    /// Runs a command, and returns its stdout, its stderr and its exit code.
    pub(crate) fn try_run(&self, arguments: &[&str]) -> (String, String, i32) {
        let output = self.command(arguments).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (text(output.stdout), text(output.stderr), output.status.code().unwrap())
    }

    /// Runs a command that must succeed.
    pub(crate) fn run(&self, arguments: &[&str]) -> String {
        let (out, err, code) = self.try_run(arguments);
        assert_eq!(code, 0, "{arguments:?}: {err}");
        out
    }

    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.run(&[arguments, &["--json"]].concat())).unwrap()
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
