//! Compile errors of the macro: one file with wrong jobs, and the error that each must give behind `//~`.
//!
//! One run of rustc compiles the file against the macro alone, which takes a tenth of a second.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

const FIXTURE: &str = "tests/fixtures/wrong_jobs.rs";

/// A line, the text that the error marks, and the message.
type Expected = BTreeSet<(usize, String, String)>;

#[test]
fn a_wrong_job_does_not_compile_and_the_error_says_why_and_where() {
    let source = std::fs::read_to_string(FIXTURE).unwrap();
    let macro_library = macro_library();
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let compiled = Command::new(rustc)
        .args(["--edition=2024", "--crate-type=lib", "--emit=metadata", "--error-format=short", "-o"])
        .arg(std::env::temp_dir().join(format!("geartrain-wrong-jobs-{}", std::process::id())))
        .arg("--extern")
        .arg(format!("geartrain_derive={}", macro_library.display()))
        .arg(FIXTURE)
        .output()
        .unwrap();
    let output = String::from_utf8(compiled.stderr).unwrap();
    assert!(!compiled.status.success(), "{output}");
    let actual: Expected = output.lines().filter_map(|line| error(line, &source)).collect();
    let expected = expected(&source);
    let (missing, extra): (Vec<_>, Vec<_>) =
        (expected.difference(&actual).collect(), actual.difference(&expected).collect());
    assert!(missing.is_empty() && extra.is_empty(), "missing {missing:#?}, extra {extra:#?}\n{output}");
    assert!(expected.len() >= 20, "{expected:#?}");
}

/// The macro as Cargo has just built it: beside this test, and the newest if there are builds of other
/// configurations.
fn macro_library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let libraries = std::fs::read_dir(test.parent().unwrap()).unwrap().map(|entry| entry.unwrap().path());
    let is_macro = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let is_library =
            path.extension().is_some_and(|end| ["so", "dylib", "dll"].iter().any(|lib| end == *lib));
        is_library && name.trim_start_matches("lib").starts_with("geartrain_derive-")
    };
    let built = |path: &PathBuf| path.metadata().unwrap().modified().unwrap();
    libraries.filter(is_macro).max_by_key(built).expect("Cargo builds the macro before its tests")
}

/// Reads `FILE:LINE:COLUMN: error: MESSAGE`. The marked text begins at the column and ends as in the comment.
fn error(line: &str, source: &str) -> Option<(usize, String, String)> {
    let rest = line.strip_prefix(FIXTURE)?.strip_prefix(':')?;
    let (at, message) = rest.split_once(": error: ")?;
    let (number, column) = at.split_once(':')?;
    let (number, column): (usize, usize) = (number.parse().ok()?, column.parse().ok()?);
    let text: String = source.lines().nth(number - 1)?.chars().skip(column - 1).collect();
    let marked = text.split([' ', ',', ')', ';', '{']).next()?;
    Some((number, marked.to_owned(), message.to_owned()))
}

/// Reads `//~ MARKED: MESSAGE` behind the line of the error.
fn expected(source: &str) -> Expected {
    let comments = source.lines().enumerate().filter_map(|(index, line)| {
        let (marked, message) = line.split_once("//~ ")?.1.split_once(": ")?;
        Some((index + 1, marked.to_owned(), message.to_owned()))
    });
    comments.collect()
}
