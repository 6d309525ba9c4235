//! What a registry wants to know of a crate.

use super::{assert_none, metadata};

#[test]
fn every_crate_but_the_testkit_can_be_published() {
    let metadata = metadata(&["--no-deps"]);
    let packages = metadata["packages"].as_array().expect("a list of packages");
    let mut findings = Vec::new();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let is_private = package["publish"].as_array().is_some_and(Vec::is_empty);
        if is_private != (name == "geartrain-testkit") {
            findings.push(format!("{name}: publish = false belongs to geartrain-testkit, and only there"));
        }
        if is_private {
            continue;
        }
        let list = |key: &str| package[key].as_array().map_or(0, Vec::len);
        for key in ["description", "license", "readme", "rust_version"] {
            if package[key].as_str().is_none_or(str::is_empty) {
                findings.push(format!("{name}: {key} is missing: take it from the workspace"));
            }
        }
        for key in ["keywords", "categories"] {
            if !(1..=5).contains(&list(key)) {
                findings.push(format!("{name}: {} {key}, and a registry takes 1 to 5", list(key)));
            }
        }
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            // Dependencies of tests by path alone are left out of what is published.
            if dependency["req"] == "*" && dependency["kind"] != "dev" {
                let on = dependency["name"].as_str().unwrap_or_default();
                findings.push(format!("{name}: the dependency on {on} has no version"));
            }
        }
    }
    assert_none(&findings);
}
