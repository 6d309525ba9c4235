//! The tidy test: what only prose says drifts, so a test compares names, docs and manifests with the sources.
//!
//! Each finding names the file, the line and what to write instead.

mod constants;
mod edges;
mod licences;
mod paths;
mod publishing;
mod retired;
mod variables;

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// A text file of the repository.
struct Source {
    /// Relative to the root of the repository.
    path: String,
    text: String,
}

impl Source {
    fn is(&self, extension: &str) -> bool {
        self.path.ends_with(extension)
    }

    /// The lines, counted from 1.
    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(index, line)| (index + 1, line))
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every text file that git tracks or would track, without fixtures and recorded output.
fn sources() -> &'static [Source] {
    static SOURCES: OnceLock<Vec<Source>> = OnceLock::new();
    SOURCES.get_or_init(|| {
        let listed = Command::new("git")
            .args(["ls-files", "--cached", "--others", "--exclude-standard"])
            .current_dir(root())
            .output()
            .unwrap();
        assert!(listed.status.success(), "git ls-files: {}", String::from_utf8_lossy(&listed.stderr));
        let names = String::from_utf8(listed.stdout).unwrap();
        let kinds = [".rs", ".md", ".lua", ".toml", ".py", ".js", ".yml"];
        let wanted =
            |name: &&str| kinds.iter().any(|kind| name.ends_with(kind)) && !name.contains("/fixtures/");
        let read = |name: &str| {
            Some(Source { path: name.to_owned(), text: std::fs::read_to_string(root().join(name)).ok()? })
        };
        names.lines().filter(wanted).filter_map(read).collect()
    })
}

/// The path dependencies and licences, as `cargo metadata` reports them.
fn metadata(arguments: &[&str]) -> serde_json::Value {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--locked", "--offline"])
        // Only what is compiled here has certainly been downloaded.
        .args(["--filter-platform", &host()])
        .args(arguments)
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The target triple of this machine.
fn host() -> String {
    let output = Command::new("rustc").arg("-vV").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().find_map(|line| line.strip_prefix("host: ")).expect("rustc names its host").to_owned()
}

/// Fails with all findings of one check.
fn assert_none(findings: &[String]) {
    let mut report = String::new();
    for finding in findings {
        writeln!(report, "{finding}").unwrap();
    }
    assert!(findings.is_empty(), "{} findings:\n{report}", findings.len());
}
