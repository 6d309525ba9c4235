//! docs/options.md is generated from the table of options.

use std::path::Path;

use geartrain_core::{OPTIONS, OptionInfo, OptionScope};

#[test]
fn the_page_of_options_is_that_of_the_table() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/options.md");
    let generated = page_of_options();
    if std::fs::read_to_string(page).unwrap_or_default() != generated {
        let new = Path::new(env!("CARGO_TARGET_TMPDIR")).join("options.md");
        std::fs::write(&new, generated).unwrap();
        panic!("docs/options.md is out of date: cp {} docs/options.md", new.display());
    }
}

fn page_of_options() -> String {
    let rows: String = OPTIONS.iter().map(row).collect();
    format!("{HEAD}{rows}{TAIL}")
}

fn row(option: &OptionInfo) -> String {
    let OptionInfo { name, default, unit, meaning, .. } = option;
    let names = match option.scope {
        OptionScope::Global => format!("`{name}`"),
        OptionScope::Queue => format!("`QUEUE-{name}`"),
        OptionScope::Both => format!("`{name}`, `QUEUE-{name}`"),
    };
    format!("| {names} | `{default}` | {unit} | {} | {meaning} |\n", option.range())
}

const HEAD: &str = "\
# Options

<!-- Generated from the table in crates/geartrain-core/src/options.rs; a test compares the two. -->

Options belong to the queue, not to a process: they are stored with the jobs and apply to all clients at once.
`geartrain config get` shows them, `config set OPTION VALUE` and `config unset OPTION` change them; so do the
library's `SetConfig` and Qless's `config.set`.

| option | default | unit | valid values | meaning |
|---|---:|---|---|---|
";

const TAIL: &str = "
An option with `QUEUE-` is for one queue, as in `mail-heartbeat`; `heartbeat-mail` is the same, and if both are
set the one with the queue first has precedence. A queue's own option has precedence over the one for all.

The command and native calls refuse other names and values outside the valid ones; `config set --any` sets a
name that only other programs read. Qless's `config.set` takes any name and any value, as it always has: there
a negative heartbeat makes locks that have expired, and a value that is not a finite number is ignored, as if
the option was not set (`config get` says so).
";
