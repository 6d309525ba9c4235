//! Crate edges: the table in ARCHITECTURE.md against `cargo metadata`.

use std::collections::{BTreeMap, BTreeSet};

use super::{assert_none, metadata, sources};

type Edges = BTreeMap<String, BTreeSet<String>>;

#[test]
fn the_map_shows_the_crates_and_their_edges() {
    let documented = documented();
    let actual = actual();
    let mut findings = Vec::new();
    for name in documented.keys().filter(|name| !actual.contains_key(*name)) {
        findings.push(format!("ARCHITECTURE.md: there is no crate {name}: remove its row"));
    }
    for (name, edges) in &actual {
        let Some(row) = documented.get(name) else {
            findings.push(format!("ARCHITECTURE.md: crate {name} has no row in the table of crates"));
            continue;
        };
        for extra in row.difference(edges) {
            findings
                .push(format!("ARCHITECTURE.md: {name} does not depend on {extra}: remove it from its row"));
        }
        for missing in edges.difference(row) {
            findings.push(format!(
                "ARCHITECTURE.md: {name} depends on {missing}: add it to the row, if this new edge is meant"
            ));
        }
    }
    assert_none(&findings);
}

/// Rows of the form "| `geartrain-store` | core, front | … |"; a dash stands for no dependency.
fn documented() -> Edges {
    let map = sources().iter().find(|source| source.path == "ARCHITECTURE.md").expect("the map exists");
    let mut edges = Edges::new();
    for (_, line) in map.lines() {
        let mut cells = line.trim().trim_matches('|').split('|').map(str::trim);
        let (Some(name), Some(depends)) = (cells.next(), cells.next()) else { continue };
        let Some(name) = name.strip_prefix('`').and_then(|name| name.strip_suffix('`')) else { continue };
        if name == "geartrain" || name.starts_with("geartrain-") {
            let depends = depends.split([',', ' ', '`']).filter(|word| word.chars().any(char::is_alphabetic));
            edges.insert(name.to_owned(), depends.map(short).collect());
        }
    }
    edges
}

fn actual() -> Edges {
    let metadata = metadata(&["--no-deps"]);
    let packages = metadata["packages"].as_array().expect("a list of packages");
    let edges = |package: &serde_json::Value| {
        let dependencies = package["dependencies"].as_array().expect("a list of dependencies");
        let ours = dependencies.iter().filter(|one| one["kind"].is_null() && !one["path"].is_null());
        ours.map(|one| short(one["name"].as_str().expect("a name"))).collect()
    };
    packages
        .iter()
        .map(|package| (package["name"].as_str().expect("a name").to_owned(), edges(package)))
        .collect()
}

fn short(name: &str) -> String {
    name.strip_prefix("geartrain-").unwrap_or(name).to_owned()
}
