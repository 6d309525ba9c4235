//! Environment variables: those of the docs exist in the code, and those of the code stand in the docs.

use std::collections::BTreeSet;

use super::{assert_none, sources};

/// Set by a test for the process that it starts itself.
const INTERNAL: &str = "GEARTRAIN_TEST_";

#[test]
fn environment_variables_of_docs_and_code_are_the_same() {
    let (mut documented, mut used) = (BTreeSet::new(), BTreeSet::new());
    for source in sources().iter().filter(|source| !source.path.contains("/tidy/")) {
        let set = match () {
            () if source.is(".md") => &mut documented,
            () if source.is(".rs") => &mut used,
            () => continue,
        };
        set.extend(source.lines().flat_map(|(_, line)| variables(line)));
    }
    let undocumented = used.difference(&documented).filter(|name| !name.starts_with(INTERNAL));
    let unknown = documented.difference(&used);
    let findings: Vec<String> = undocumented
        .map(|name| format!("{name} is read by the code and is in no document: describe it"))
        .chain(unknown.map(|name| format!("{name} is in a document and no code reads it: remove it")))
        .collect();
    assert_none(&findings);
}

fn variables(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices("GEARTRAIN_").filter_map(|(start, _)| {
        let rest = &line[start..];
        let end = rest
            .find(|c: char| !c.is_ascii_uppercase() && !c.is_ascii_digit() && c != '_')
            .unwrap_or(rest.len());
        let name = &rest[..end];
        // An underscore at the end: the beginning of several names, to which code appends the rest.
        (!name.ends_with('_')).then_some(name)
    })
}
