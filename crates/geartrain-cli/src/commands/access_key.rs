//! `geartrain key`: create, list and remove access keys, in their file. A running server notices within a second.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use geartrain::{Role, Timestamp};
use geartrain_json::Number;
use geartrain_server::{AccessKey, KeyFileError, change_keys, new_access_key, read_keys};
use serde_json::json;

use super::Done;
use crate::failure::Failure;
use crate::output::Output;
use crate::text::{Cell, table};
use crate::timestamp::{self, when};

/// The name of the key file in a data directory.
pub(crate) const FILE_NAME: &str = "access-keys";

#[derive(Debug, Subcommand)]
pub(crate) enum KeyVerb {
    /// Create an access key, and print it: it is not stored and cannot be shown again
    #[command(after_help = "Example:
  geartrain key add ana --role viewer --expires 90d > ana.key")]
    Add(AddArgs),
    /// List the access keys, without the keys themselves
    Ls(KeyFileArgs),
    /// Remove an access key; what it has opened ends
    Rm(RmArgs),
}

#[derive(Debug, Args)]
pub(crate) struct AddArgs {
    /// The name of its owner, for logs and the audit log
    name: String,
    /// What its owner may do
    #[arg(long)]
    role: RoleArg,
    /// After which time it is refused, like 90d [default: never]
    #[arg(long, value_name = "DURATION", value_parser = crate::duration::parse)]
    expires: Option<std::time::Duration>,
    #[command(flatten)]
    file: KeyFileArgs,
}

#[derive(Debug, Args)]
pub(crate) struct RmArgs {
    /// The name of its owner
    name: String,
    #[command(flatten)]
    file: KeyFileArgs,
}

#[derive(Debug, Args)]
pub(crate) struct KeyFileArgs {
    /// The file of the keys [default: access-keys in the data directory]
    #[arg(long, value_name = "FILE", env = "GEARTRAIN_KEYS_FILE")]
    keys_file: Option<PathBuf>,
    /// The data directory of the server [default: ./geartrain-data]
    #[arg(long, value_name = "DIR", env = "GEARTRAIN_DATA", conflicts_with = "keys_file")]
    data: Option<PathBuf>,
}

impl KeyFileArgs {
    fn path(self) -> PathBuf {
        self.keys_file.unwrap_or_else(|| in_data(self.data, FILE_NAME))
    }
}

/// A file in a data directory, which is the server's default if not given.
pub(super) fn in_data(data: Option<PathBuf>, name: &str) -> PathBuf {
    data.unwrap_or_else(|| super::server::DATA_DEFAULT.into()).join(name)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RoleArg {
    /// Reads
    Viewer,
    /// Also puts, pops and reports jobs, and changes jobs, queues and recurring jobs
    Operator,
    /// Also options, forgetting, backups and the audit log
    Admin,
}

impl From<RoleArg> for Role {
    fn from(role: RoleArg) -> Role {
        match role {
            RoleArg::Viewer => Role::Viewer,
            RoleArg::Operator => Role::Operator,
            RoleArg::Admin => Role::Admin,
        }
    }
}

impl From<KeyFileError> for Failure {
    fn from(error: KeyFileError) -> Failure {
        Failure::Unreachable(error.to_string())
    }
}

pub(super) fn key(verb: KeyVerb, out: &mut Output<'_>) -> Done {
    match verb {
        KeyVerb::Add(args) => add(args, out),
        KeyVerb::Ls(file) => list(file, out),
        KeyVerb::Rm(args) => remove(args, out),
    }
}

fn add(args: AddArgs, out: &mut Output<'_>) -> Done {
    let AddArgs { name, role, expires, file } = args;
    let path = file.path();
    let now = out.now.get().max(0.0) as u64;
    let expires = expires.map(|span| now.saturating_add(span.as_secs()));
    let (key, text) = new_access_key(&name, role.into(), now, expires).map_err(Failure::Usage)?;
    // Before the first start of the server the data directory may be missing.
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        use std::os::unix::fs::DirBuilderExt as _;
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
        made.map_err(|error| {
            Failure::Unreachable(format!("cannot create {}: {error}", directory.display()))
        })?;
    }
    let view = json!({
        "name": key.name, "role": key.role.as_str(), "expires": expires.map(|at| Number(at as f64)), "key": text,
    });
    let is_new = change_keys(&path, |keys| {
        let is_new = keys.iter().all(|other| other.name != key.name);
        if is_new {
            keys.push(key);
        }
        Ok(is_new)
    })?;
    if !is_new {
        return Err(Failure::Refused(format!(
            "there is a key {name} already; remove it first, or choose another name"
        )));
    }
    out.line(&view, &text)?;
    if !out.json {
        out.remark("this key is not stored and cannot be shown again")?;
    }
    Ok(())
}

fn list(file: KeyFileArgs, out: &mut Output<'_>) -> Done {
    let path = file.path();
    if !path.exists() {
        return Err(Failure::Refused(format!("there is no key file {}", path.display())));
    }
    let keys = read_keys(&path)?;
    let views: Vec<_> = keys
        .iter()
        .map(|key| {
            json!({
                "name": key.name, "role": key.role.as_str(), "created": Number(key.created as f64),
                "expires": key.expires.map(|at| Number(at as f64)),
            })
        })
        .collect();
    let now = out.now;
    Ok(out.list(&views, "there are no access keys", |out| {
        let rows: Vec<_> = keys.iter().map(|key| row(key, now)).collect();
        table(out, ["NAME", "ROLE", "CREATED", "EXPIRES"], &rows)
    })?)
}

fn row(key: &AccessKey, now: Timestamp) -> [Cell; 4] {
    let time =
        |seconds: u64| Timestamp::new(seconds as f64).map_or_else(|_| "?".to_owned(), timestamp::format);
    let expires = match key.expires {
        None => "never".to_owned(),
        Some(at) if key.has_expired(now.get().max(0.0) as u64) => format!("{} (expired)", time(at)),
        Some(at) => Timestamp::new(at as f64).map_or_else(|_| "?".to_owned(), |at| when(at, now)),
    };
    [Cell::id(&key.name), Cell::whole(key.role), Cell::whole(time(key.created)), Cell::whole(expires)]
}

fn remove(args: RmArgs, out: &mut Output<'_>) -> Done {
    let (path, name) = (args.file.path(), args.name);
    if !path.exists() {
        return Err(Failure::Refused(format!("there is no key file {}", path.display())));
    }
    let removed = change_keys(&path, |keys| {
        let before = keys.len();
        keys.retain(|key| key.name != name);
        Ok(keys.len() < before)
    })?;
    if !removed {
        return Err(Failure::Refused(format!(
            "there is no key {name}; `geartrain key ls` lists the ones that exist"
        )));
    }
    Ok(out.line(&json!({ "removed": name }), format_args!("removed {name}"))?)
}
