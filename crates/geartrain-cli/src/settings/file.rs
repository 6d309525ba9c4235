//! The configuration file: where it is, and what is in it.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _};
use std::ops::Range;
use std::path::{Path, PathBuf};

use geartrain::Target;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::position::Source;
use super::server::{ServerSettings, Setting};
use crate::args;
use crate::failure::Failure;
use crate::values::closest;

/// More than this is no configuration file.
const BYTES_MAX: u64 = 1 << 20;

/// The name of the file, in a directory of its own.
const FILE_NAME: &str = "geartrain/geartrain.toml";

/// The tables and keys outside of tables.
const ROOT: [&str; 3] = ["context", "default_context", "server"];

/// The settings of a context.
const CONTEXT: [&str; 3] = ["url", "password_file", "production"];

/// A configuration file that was read and is valid.
#[derive(Debug, Clone)]
pub(crate) struct ConfigFile {
    pub(crate) path: PathBuf,
    /// The context to use if none is named.
    pub(crate) default_context: Option<Located<String>>,
    /// In the order of the file.
    pub(crate) server: Vec<Setting>,
    pub(crate) contexts: Vec<Context>,
}

/// A queue to connect to, by name.
#[derive(Debug, Clone)]
pub(crate) struct Context {
    pub(crate) name: String,
    pub(crate) url: Located<String>,
    pub(crate) password_file: Option<Located<PathBuf>>,
    /// Whether changes have to be confirmed.
    pub(crate) production: Option<Located<bool>>,
}

impl Context {
    /// Whether changes have to be confirmed.
    pub(crate) fn is_production(&self) -> bool {
        self.production.as_ref().is_some_and(|production| production.value)
    }
}

/// A value, and its line in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Located<T> {
    pub(crate) value: T,
    pub(crate) line: usize,
}

impl ConfigFile {
    /// The file that the command line or the environment names, or else the one of the user or of the machine.
    pub(crate) fn find(arguments: &[OsString]) -> Result<Option<ConfigFile>, Failure> {
        let flag = args::value_of("--config", arguments).map(|path| OsString::from(path.into_owned()));
        let named = flag.or_else(|| std::env::var_os("GEARTRAIN_CONFIG")).filter(|path| !path.is_empty());
        if let Some(path) = named.map(PathBuf::from) {
            if path.as_os_str() == "off" {
                return Ok(None);
            }
            return match read(&path) {
                Ok(text) => ConfigFile::parse(&path, &text).map(Some),
                Err(why) => Err(unreadable(&path, &why)),
            };
        }
        for path in default_places() {
            match read(&path) {
                Ok(text) => return ConfigFile::parse(&path, &text).map(Some),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                // The settings of a server may be hidden from the users of its machine.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
                Err(error) => return Err(unreadable(&path, &error)),
            }
        }
        Ok(None)
    }

    pub(super) fn parse(path: &Path, text: &str) -> Result<ConfigFile, Failure> {
        let source = Source { path, text };
        let table = DeTable::parse(text)
            .map_err(|error| source.error(&error.span().unwrap_or_default(), error.message()))?;
        let mut file = ConfigFile {
            path: path.to_owned(),
            default_context: None,
            server: Vec::new(),
            contexts: Vec::new(),
        };
        for (key, span, value) in entries(table.get_ref()) {
            match key {
                "server" => {
                    let settings = ServerSettings::new();
                    for (key, span, value) in entries(as_table(&source, key, value)?) {
                        file.server.push(settings.read(&source, (key, &span), value)?);
                    }
                }
                "context" => {
                    for (name, span, value) in entries(as_table(&source, key, value)?) {
                        file.contexts.push(context(&source, (name, &span), value)?);
                    }
                }
                "default_context" => {
                    file.default_context =
                        Some(Located { value: as_text(&source, key, value)?, line: source.line(span.start) });
                }
                key if ServerSettings::new().has(key) => {
                    return Err(source.error(&span, format_args!("{key} belongs in the table [server]")));
                }
                unknown => return Err(source.error(&span, unknown_key(unknown, "the file", &ROOT))),
            }
        }
        if let Some(Located { value: name, .. }) = &file.default_context
            && file.context(name).is_none()
        {
            let span = table.get_ref().get("default_context").map(Spanned::span).unwrap_or_default();
            return Err(source.error(&span, file.unknown_context(name)));
        }
        Ok(file)
    }

    pub(crate) fn context(&self, name: &str) -> Option<&Context> {
        self.contexts.iter().find(|context| context.name == name)
    }

    /// What to say about a context that does not exist.
    pub(crate) fn unknown_context(&self, name: &str) -> String {
        let names: Vec<&str> = self.contexts.iter().map(|context| context.name.as_str()).collect();
        match names[..] {
            [] => format!("there is no context {name}, and no other: write one as [context.{name}]"),
            _ => format!("there is no context {name}{}", proposal(name, &names)),
        }
    }
}

/// The files that are read if none is named. Never one of the current directory, which may belong to another user:
/// it could send a password to a server of theirs.
pub(crate) fn default_places() -> Vec<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let of_user = absolute("XDG_CONFIG_HOME").or_else(|| absolute("HOME").map(|home| home.join(".config")));
    let directories = of_user.into_iter().chain([PathBuf::from("/etc")]);
    directories.map(|directory| directory.join(FILE_NAME)).collect()
}

fn unreadable(path: &Path, error: &io::Error) -> Failure {
    Failure::Usage(format!("cannot read the configuration file {}: {error}", path.display()))
}

fn read(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(io::Error::other("it has more than 1 MiB"));
    }
    String::from_utf8(bytes).map_err(|error| {
        let line = error.as_bytes()[..error.utf8_error().valid_up_to()].split(|byte| *byte == b'\n').count();
        io::Error::other(format!("line {line} is not UTF-8"))
    })
}

/// The entries of a table in the order of the file.
fn entries<'t>(
    table: &'t DeTable<'_>,
) -> impl Iterator<Item = (&'t str, Range<usize>, &'t Spanned<DeValue<'t>>)> {
    let mut entries: Vec<_> =
        table.iter().map(|(key, value)| (key.get_ref().as_ref(), key.span(), value)).collect();
    entries.sort_by_key(|(_, span, _)| span.start);
    entries.into_iter()
}

fn context(
    source: &Source<'_>,
    (name, span): (&str, &Range<usize>),
    value: &Spanned<DeValue<'_>>,
) -> Result<Context, Failure> {
    let (mut url, mut password_file, mut production) = (None, None, None);
    for (key, span, value) in entries(as_table(source, name, value)?) {
        let line = source.line(span.start);
        match key {
            "url" => {
                let text = as_text(source, key, value)?;
                Target::of(&text).map_err(|error| source.error(&value.span(), error))?;
                url = Some(Located { value: text, line });
            }
            "password_file" => {
                let path = at_home(&as_text(source, key, value)?);
                password_file = Some(Located { value: path, line });
            }
            "production" => {
                let Some(value) = value.get_ref().as_bool() else {
                    return Err(wrong_type(source, key, value, "true or false"));
                };
                production = Some(Located { value, line });
            }
            unknown => {
                let table = format!("[context.{name}]");
                return Err(source.error(&span, unknown_key(unknown, &table, &CONTEXT)));
            }
        }
    }
    let Some(url) = url else {
        return Err(source.error(span, format_args!("the context {name} has no url")));
    };
    Ok(Context { name: name.to_owned(), url, password_file, production })
}

/// A path; `~/` is the home directory, as in a shell.
pub(super) fn at_home(path: &str) -> PathBuf {
    match (path.strip_prefix("~/"), std::env::var_os("HOME")) {
        (Some(rest), Some(home)) => Path::new(&home).join(rest),
        _ => PathBuf::from(path),
    }
}

fn as_table<'t>(
    source: &Source<'_>,
    key: &str,
    value: &'t Spanned<DeValue<'_>>,
) -> Result<&'t DeTable<'t>, Failure> {
    value.get_ref().as_table().ok_or_else(|| wrong_type(source, key, value, "a table"))
}

pub(super) fn as_text(
    source: &Source<'_>,
    key: &str,
    value: &Spanned<DeValue<'_>>,
) -> Result<String, Failure> {
    match value.get_ref().as_str() {
        Some(text) => Ok(text.to_owned()),
        None => Err(wrong_type(source, key, value, "a text in quotes")),
    }
}

pub(super) fn wrong_type(
    source: &Source<'_>,
    key: &str,
    value: &Spanned<DeValue<'_>>,
    wanted: &str,
) -> Failure {
    let found = value.get_ref().type_str();
    source.error(&value.span(), format_args!("{key} must be {wanted}, and is of the type {found}"))
}

/// What to say about a key that no setting has.
pub(super) fn unknown_key(key: &str, table: &str, known: &[&str]) -> String {
    format!("there is no setting {key} in {table}{}", proposal(key, known))
}

/// The known name that is meant, or else all of them.
fn proposal(given: &str, known: &[&str]) -> String {
    match closest(known.iter().map(|name| (strsim::jaro_winkler(given, name), name))) {
        Some(name) => format!(" (did you mean {name}?)"),
        None => format!(": there are {}", known.join(", ")),
    }
}
