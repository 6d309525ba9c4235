//! Paths in the docs exist.

use std::path::Path;

use super::{Source, assert_none, root, sources};

#[test]
fn paths_in_the_docs_exist() {
    let mut findings = Vec::new();
    for source in sources().iter().filter(|source| source.is(".md")) {
        let mut is_quoted = false;
        for (number, line) in source.lines() {
            is_quoted ^= line.trim_start().starts_with("```");
            if is_quoted {
                continue;
            }
            for link in links(line).filter(|link| !exists_beside(source, link)) {
                findings.push(format!("{}:{number}: the link {link} leads nowhere", source.path));
            }
            for path in quoted(line).filter(|text| is_path(text)).filter(|path| !exists(source, path)) {
                findings.push(format!("{}:{number}: there is no {path}", source.path));
            }
        }
    }
    assert_none(&findings);
}

/// Targets of Markdown links within the repository.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| {
        let target = rest.split_once(')')?.0.split('#').next()?;
        (!target.is_empty() && !target.contains(':')).then_some(target)
    })
}

/// Texts in backquotes.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// Whether a text in backquotes is meant as a file of the repository.
fn is_path(text: &str) -> bool {
    let kinds = [".rs", ".md", ".lua", ".toml"];
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-./".contains(&byte))
        && text.contains('/')
        && !text.starts_with(['/', '.', '~'])
        && (kinds.iter().any(|kind| text.ends_with(kind)) || (text.ends_with('/') && text.contains("src/")))
}

fn exists_beside(source: &Source, path: &str) -> bool {
    let directory = Path::new(&source.path).parent().unwrap_or(Path::new(""));
    root().join(directory).join(path).exists()
}

/// Beside the document, from the root, or within a crate: `store/src/wal/mod.rs`.
fn exists(source: &Source, path: &str) -> bool {
    let crates = root().join("crates");
    exists_beside(source, path)
        || root().join(path).exists()
        || crates.join(path).exists()
        || crates.join(format!("geartrain-{path}")).exists()
}

#[test]
fn a_path_is_told_from_other_texts() {
    for text in ["docs/cli.md", "store/src/wal/mod.rs", "core/src/engine/"] {
        assert!(is_path(text), "{text}");
    }
    for text in ["jobs/s", "redis://HOST", "mod.rs", "/run/queue.sock", "put/pop"] {
        assert!(!is_path(text), "{text}");
    }
    assert_eq!(links("see [a](docs/a.md#b) and [c](https://d)").collect::<Vec<_>>(), ["docs/a.md"]);
}
