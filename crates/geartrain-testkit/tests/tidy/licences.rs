//! Licences of dependencies: permissive ones only, because geartrain is MIT or Apache-2.0.

use super::{assert_none, metadata};

const ACCEPTED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

#[test]
fn dependencies_have_permissive_licences() {
    let metadata = metadata(&[]);
    let packages = metadata["packages"].as_array().expect("a list of packages");
    let findings: Vec<String> = packages
        .iter()
        .filter(|package| !package["source"].is_null())
        .filter_map(|package| {
            let licence = package["license"].as_str().unwrap_or("none");
            let name = package["name"].as_str().unwrap_or("a package without a name");
            (!is_accepted(licence))
                .then(|| format!("{name}: licence {licence} is not on the list: use another crate"))
        })
        .collect();
    assert_none(&findings);
}

/// One of each "OR", and all of an "AND".
fn is_accepted(expression: &str) -> bool {
    let expression = expression.replace('/', " OR ");
    let all_of =
        |text: &str| text.split(" AND ").all(|one| ACCEPTED.contains(&one.trim_matches(['(', ')', ' '])));
    match expression.split_once(") AND ") {
        // A choice that is combined with another licence: "(MIT OR Apache-2.0) AND Unicode-3.0".
        Some((choice, rest)) => {
            is_accepted(choice.trim_matches(['(', ' '])) && is_accepted(rest.trim_matches(['(', ')']))
        }
        None => expression.split(" OR ").any(all_of),
    }
}

#[test]
fn licence_expressions_are_read() {
    for accepted in
        ["MIT", "MIT/Apache-2.0", "GPL-3.0 OR MIT", "(MIT OR Apache-2.0) AND Unicode-3.0", "ISC AND MIT"]
    {
        assert!(is_accepted(accepted), "{accepted}");
    }
    for refused in ["GPL-3.0", "MIT AND GPL-3.0", "none", "(MIT OR Apache-2.0) AND GPL-2.0"] {
        assert!(!is_accepted(refused), "{refused}");
    }
}
