//! docs/compatibility.md: what each backend can do, by running every row of its table on every backend.

use geartrain_testkit::peers::{Gearmand, RedisServer};

use crate::sandbox::Sandbox;

const PAGE: &str = include_str!("../../../docs/compatibility.md");

/// A backend of another system: its column, its URL, and names of its layout.
struct Layout {
    name: &'static str,
    url: String,
    klass: &'static str,
    payload: &'static str,
    jid: &'static str,
}

/// The arguments of a command, before the flags of its row.
fn positional(command: &str, layout: &Layout) -> Vec<&'static str> {
    let Layout { klass, payload, jid, .. } = *layout;
    match command {
        "put" => vec!["q", klass, payload],
        "recur add" => vec!["q", klass, payload],
        "pop" => vec!["q", "--worker", "w"],
        "complete" | "retry" | "release" | "heartbeat" => vec![jid, "--worker", "w"],
        "fail" => vec![jid, "group", "message", "--worker", "w"],
        "progress" => vec![jid, "1/2", "--worker", "w"],
        "chunk" => vec![jid, "data", "--worker", "w"],
        "log" => vec![jid, "message"],
        "priority" => vec![jid, "1"],
        "tag" => vec![jid, "t"],
        "depend" => vec![jid, jid],
        "get" | "status" | "result" | "why" | "cancel" | "requeue" | "track" | "timeout" => vec![jid],
        "peek" | "pause" | "stats" | "limits" | "roll-call" => vec!["q"],
        "announce" => vec!["w", "q"],
        "worker-lost" => vec!["w"],
        "config" => vec!["get"],
        _ => vec![],
    }
}

/// Whether a backend executes a command, or refuses it because its system has no such thing.
fn supports(sandbox: &Sandbox, layout: &Layout, row: &str) -> Result<bool, String> {
    let (command, flags) =
        row.split_once(" --").map_or((row, String::new()), |(of, flags)| (of, format!("--{flags}")));
    let flags = flags.replace("JID", layout.jid).replace("KEY", layout.payload);
    let arguments = command.split(' ').chain(positional(command, layout)).chain(flags.split_whitespace());
    let arguments: Vec<&str> = arguments.chain(["--url", &layout.url]).collect();
    let (_, error, code) = sandbox.try_run(&arguments);
    let is_refused = error.contains(&format!("the {} backend cannot", layout.name));
    match code {
        1 if is_refused => Ok(false),
        // There is no such job, or it is too early for a result: the operation exists.
        0 | 1 | 4 => Ok(true),
        _ => Err(format!("{arguments:?}: exit code {code}: {error}")),
    }
}

#[test]
fn the_table_of_operations_is_true() {
    let (sandbox, gearmand, redis) = (Sandbox::new(), Gearmand::start(&[]), RedisServer::start(&[]));
    let layout = |name, url, klass, payload, jid| Layout { name, url, klass, payload, jid };
    let port = gearmand.port();
    // A database each, because the keys of some layouts have no prefix.
    let on_redis =
        |name: &str, database: u8| format!("{name}+{}/{database}", redis.url().trim_end_matches('/'));
    let layouts = [
        layout("gearman", format!("gearman://127.0.0.1:{port}"), "q", "{}", "H:a:1"),
        layout("gearmonkey", on_redis("gearmonkey", 1), "q", "{}", "q:999"),
        layout("workkit", on_redis("workkit", 2), "a/b", "[]", "a6daf9217f92031e5543bae88a2362c9880f2278"),
        layout("worqr", on_redis("worqr", 3), "q", "{}", "q_0197c0de-0000-7000-8000-000000000000"),
    ];
    let table = PAGE.lines().skip_while(|line| !line.starts_with("| operation ")).skip(2);
    let rows: Vec<&str> = table.take_while(|line| line.starts_with('|')).collect();
    assert!(rows.len() > 40, "the table was not found");
    let mut wrong = Vec::new();
    for written in rows {
        let row = written.split('`').nth(1).unwrap();
        let cells = layouts.iter().map(|layout| match supports(&sandbox, layout, row) {
            Ok(true) => "yes".to_owned(),
            Ok(false) => "–".to_owned(),
            Err(error) => error,
        });
        let seen = format!("| `{row}` | {} |", cells.collect::<Vec<_>>().join(" | "));
        if seen != written {
            wrong.push(seen);
        }
    }
    assert!(wrong.is_empty(), "docs/compatibility.md has other cells than:\n{}", wrong.join("\n"));
}
