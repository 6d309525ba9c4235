//! `geartrain audit`: read the audit log of a server on this machine.

use std::path::PathBuf;

use clap::Args;
use geartrain::{Count, Timestamp};
use geartrain_server::{AuditRecord, read_audit};

use super::access_key::in_data;
use super::{Done, values};
use crate::failure::Failure;
use crate::output::Output;
use crate::text::{Cell, table};
use crate::timestamp::{self, Moment};

/// The name of the audit log in a data directory.
pub(super) const FILE_NAME: &str = "audit.log";

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  geartrain audit --since 2h
  geartrain audit --data /var/lib/geartrain --limit 1000 --json

Prints the newest actions, the latest last. From another machine: GET /v1/audit, with the key of an administrator.")]
pub(crate) struct AuditArgs {
    /// Only actions since a time, like yesterday, or within a duration like 2h
    #[arg(long, value_name = "WHEN", value_parser = timestamp::parse_ago)]
    since: Option<Moment>,
    /// How many actions to show
    #[arg(long, value_name = "N", value_parser = values::count, default_value = "25")]
    limit: Count,
    /// The audit log [default: audit.log in the data directory]
    #[arg(long, value_name = "FILE", env = "GEARTRAIN_AUDIT_LOG")]
    audit_log: Option<PathBuf>,
    /// The data directory of the server [default: ./geartrain-data]
    #[arg(long, value_name = "DIR", env = "GEARTRAIN_DATA")]
    data: Option<PathBuf>,
}

pub(super) fn audit(args: AuditArgs, out: &mut Output<'_>) -> Done {
    let file = args.audit_log.unwrap_or_else(|| in_data(args.data, FILE_NAME));
    let failed = |error: std::io::Error| {
        Failure::Unreachable(format!("cannot read the audit log {}: {error}", file.display()))
    };
    // A file that is missing is an empty log for the server, and a wrong path here.
    std::fs::metadata(&file).map_err(failed)?;
    let since = args.since.map(|since| since.at.get());
    let mut items = read_audit(&file, args.limit.get(), None, since).map_err(failed)?.items;
    items.reverse();
    Ok(out.list(&items, "there are no such actions", |out| {
        let rows: Vec<_> = items.iter().map(row).collect();
        table(out, ["AT", "WHO", "ROLE", "FROM", "ACTION", "TARGET", "COUNT", "OUTCOME"], &rows)
    })?)
}

fn row(record: &AuditRecord) -> [Cell; 8] {
    let at = Timestamp::new(record.at).map_or_else(|_| "?".to_owned(), timestamp::format);
    let text = |text: &Option<String>| Cell::whole(text.as_deref().unwrap_or("-"));
    [
        Cell::whole(at),
        text(&record.who),
        Cell::whole(record.role.map_or("-", |role| role.as_str())),
        Cell::whole(&record.from),
        Cell::whole(&record.action),
        Cell::sentence(record.target.as_deref().unwrap_or("-")),
        record.count.map_or_else(|| Cell::right("-"), Cell::number),
        Cell::whole(&record.outcome),
    ]
}
