//! Constants that the docs quote as `NAME` = value, against the sources.

use super::{assert_none, sources};

#[test]
fn constants_quoted_in_the_docs_have_their_value() {
    let mut findings = Vec::new();
    for source in sources().iter().filter(|source| source.is(".md")) {
        for (number, line) in source.lines() {
            for (name, quoted) in quotations(line) {
                match values(name) {
                    values if values.is_empty() => {
                        findings.push(format!("{}:{number}: no constant {name} in the sources", source.path));
                    }
                    values if values.contains(&quoted) => {}
                    values => findings.push(format!(
                        "{}:{number}: {name} is {values:?} in the sources, not {quoted}: correct one of them",
                        source.path
                    )),
                }
            }
        }
    }
    assert_none(&findings);
}

/// Quotations of the form "`NAME_MAX` = 4,096".
fn quotations(line: &str) -> Vec<(&str, u64)> {
    let mut found = Vec::new();
    let mut parts = line.split('`').skip(1);
    while let (Some(name), Some(after)) = (parts.next(), parts.next()) {
        let is_constant =
            name.len() > 2 && name.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_');
        let value = after.trim_start().strip_prefix("= ").map(|value| {
            let end =
                value.find(|c: char| !c.is_ascii_digit() && c != ',' && c != '_').unwrap_or(value.len());
            value[..end].trim_end_matches(',').replace([',', '_'], "")
        });
        if let (true, Some(Ok(value))) = (is_constant, value.map(|value| value.parse())) {
            found.push((name, value));
        }
    }
    found
}

/// The values of all constants of this name, as far as they are numbers.
fn values(name: &str) -> Vec<u64> {
    let mut values = Vec::new();
    for source in sources().iter().filter(|source| source.is(".rs")) {
        for (_, line) in source.lines() {
            let Some((_, rest)) = line.split_once(&format!("const {name}: ")) else { continue };
            let Some((_, expression)) = rest.split_once("= ") else { continue };
            values.extend(evaluate(expression.trim_end_matches(';')));
        }
    }
    values
}

/// Numbers, products and shifts, also within a call such as `Seconds::from_whole(60)`.
fn evaluate(expression: &str) -> Option<u64> {
    let inner = expression
        .split_once('(')
        .and_then(|(_, rest)| rest.rsplit_once(')'))
        .map_or(expression, |(inner, _)| inner);
    if let Some((left, right)) = inner.split_once(" << ") {
        return Some(evaluate(left)? << evaluate(right)?);
    }
    if let Some((left, right)) = inner.split_once(" * ") {
        return Some(evaluate(left)? * evaluate(right)?);
    }
    let digits = inner.trim().trim_end_matches(".0").replace('_', "");
    digits.parse().ok()
}

#[test]
fn quotations_and_values_are_read() {
    assert_eq!(
        quotations("at most `A_MAX` = 4,096 bytes, `b` = 7, `C_MAX` = 60."),
        [("A_MAX", 4096), ("C_MAX", 60)]
    );
    assert_eq!(evaluate("64 << 20"), Some(64 << 20));
    assert_eq!(evaluate("Seconds::from_whole(90_000)"), Some(90_000));
    assert_eq!(evaluate("8 * 1024"), Some(8192));
}
