//! The settings of a server in the file: the flags of `geartrain server`, under the names of their arguments.

use std::any::TypeId;
use std::ffi::{OsStr, OsString};
use std::ops::Range;

use clap::builder::Resettable;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, ValueHint};
use toml::Spanned;
use toml::de::DeValue;

use super::ConfigFile;
use super::file::{as_text, at_home, unknown_key, wrong_type};
use super::position::Source;
use crate::args;
use crate::failure::Failure;

/// The setting whose flag is one of every command.
pub(super) const PASSWORD_FILE: &str = "password_file";

/// The command that shows the settings of a server.
const SHOW: &str = "show";

/// A setting in the file.
#[derive(Debug, Clone)]
pub(crate) struct Setting {
    /// The name of the argument.
    pub(crate) id: String,
    /// Its flag, without the dashes.
    long: String,
    /// The value of the flag, several if it may be repeated; none for a flag without a value.
    pub(super) values: Vec<String>,
    /// Whether a flag without a value is given.
    is_on: bool,
    pub(crate) line: usize,
    /// Whether it is in effect: neither the command line nor the environment has it.
    pub(super) is_used: bool,
}

/// The flags of `geartrain server`.
pub(crate) struct ServerSettings {
    command: clap::Command,
}

impl ServerSettings {
    pub(crate) fn new() -> ServerSettings {
        let program = args::command();
        let server = program.find_subcommand("server").cloned().unwrap_or_default();
        let shared = program.get_arguments().find(|argument| *argument.get_id() == PASSWORD_FILE).cloned();
        ServerSettings { command: server.args(shared) }
    }

    /// Whether an environment variable is that of a setting.
    fn reads(&self, id: &str, variable: &OsStr) -> bool {
        self.all().any(|argument| *argument.get_id() == id && argument.get_env() == Some(variable))
    }

    /// The flags that are settings.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arg> {
        self.command.get_arguments().filter(|argument| !argument.is_hide_set())
    }

    /// Whether there is a setting of this name.
    pub(super) fn has(&self, key: &str) -> bool {
        self.all().any(|argument| *argument.get_id() == key)
    }

    /// Reads one setting, and checks its value as that of the flag.
    pub(super) fn read(
        &self,
        source: &Source<'_>,
        (key, span): (&str, &Range<usize>),
        value: &Spanned<DeValue<'_>>,
    ) -> Result<Setting, Failure> {
        let Some((argument, long)) = self
            .all()
            .filter(|argument| *argument.get_id() == key)
            .find_map(|argument| Some((argument, argument.get_long()?)))
        else {
            let known: Vec<&str> = self.all().map(|argument| argument.get_id().as_str()).collect();
            return Err(source.error(span, unknown_key(key, "[server]", &known)));
        };
        let mut setting = Setting {
            id: key.to_owned(),
            long: long.to_owned(),
            values: Vec::new(),
            is_on: true,
            line: source.line(span.start),
            is_used: false,
        };
        match argument.get_action() {
            ArgAction::SetTrue => match value.get_ref().as_bool() {
                Some(is_on) => setting.is_on = is_on,
                None => return Err(wrong_type(source, key, value, "true or false")),
            },
            ArgAction::Append => match value.get_ref().as_array() {
                Some(list) => {
                    for item in list {
                        setting.values.push(as_text(source, key, item)?);
                    }
                }
                None => return Err(wrong_type(source, key, value, "a list")),
            },
            _ if is_number(argument) => match value.get_ref().as_integer() {
                Some(number) if number.radix() == 10 => setting.values.push(number.as_str().to_owned()),
                _ => return Err(wrong_type(source, key, value, "a whole number")),
            },
            _ => {
                let text = as_text(source, key, value)?;
                setting.values.push(match argument.get_value_hint() {
                    ValueHint::AnyPath => at_home(&text).display().to_string(),
                    _ => text,
                });
            }
        }
        // What the environment says is another matter.
        let command =
            self.command.clone().mut_args(|argument| argument.env(Resettable::<clap::builder::OsStr>::Reset));
        let line = [OsString::from("server")].into_iter().chain(setting.arguments());
        match command.try_get_matches_from(line) {
            Err(error) if matches!(error.kind(), ErrorKind::ValueValidation | ErrorKind::InvalidValue) => {
                Err(source.error(&value.span(), format_args!("{key}: {}", why(&error))))
            }
            // What a flag requires may come from elsewhere.
            _ => Ok(setting),
        }
    }
}

/// Whether the flag takes a number.
fn is_number(argument: &Arg) -> bool {
    let kind = argument.get_value_parser().type_id();
    [TypeId::of::<i64>(), TypeId::of::<usize>()].into_iter().any(|number| kind == number)
}

/// What is wrong with a value, without the flag.
fn why(error: &clap::Error) -> String {
    let of = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        Some(ContextValue::Strings(list)) => list.join(", "),
        _ => String::new(),
    };
    let given = of(ContextKind::InvalidValue);
    match std::error::Error::source(error) {
        Some(source) => format!("the value {given:?} is invalid: {source}"),
        None => format!("the value {given:?} is none of {}", of(ContextKind::ValidValue)),
    }
}

impl Setting {
    /// The same on a command line.
    fn arguments(&self) -> Vec<OsString> {
        let flag = format!("--{}", self.long);
        match self.values.is_empty() {
            true if self.is_on => vec![flag.into()],
            true => Vec::new(),
            false => self.values.iter().map(|value| format!("{flag}={value}").into()).collect(),
        }
    }
}

impl ConfigFile {
    /// The command line, completed by the settings of the file that neither it nor the environment has. Commands for a
    /// server on this machine take those that they read from the same environment variable as the server.
    pub(crate) fn complete(&mut self, arguments: &[OsString]) -> Vec<OsString> {
        let (command, behind) = args::named_command(arguments);
        let find = |id: &str| command.get_arguments().find(|argument| *argument.get_id() == id);
        let settings = ServerSettings::new();
        let is_server = command.get_name() == "server" || command.get_name() == SHOW;
        let mut completed = arguments[..behind].to_vec();
        // Of two settings that exclude each other such a command needs one. For a server that is an error.
        let mut taken: Vec<&Arg> = match is_server {
            true => Vec::new(),
            false => command.get_arguments().filter(|argument| is_given(argument, arguments)).collect(),
        };
        for setting in &mut self.server {
            let Some(argument) = find(&setting.id).filter(|argument| !is_given(argument, arguments)) else {
                continue;
            };
            // The password of a client is that of its context.
            let is_meant = is_server
                || setting.id != PASSWORD_FILE
                    && argument.get_env().is_some_and(|variable| settings.reads(&setting.id, variable));
            let excludes = |one, other: &Arg| {
                command.get_arg_conflicts_with(one).iter().any(|conflict| conflict.get_id() == other.get_id())
            };
            let is_excluded =
                taken.iter().any(|other| excludes(argument, other) || excludes(other, argument));
            setting.is_used = is_meant && (is_server || !is_excluded);
            // `config show` is a client and a server at once.
            if setting.is_used && !(setting.id == PASSWORD_FILE && command.get_name() == SHOW) {
                completed.extend(setting.arguments());
                taken.push(argument);
            }
        }
        completed.extend_from_slice(&arguments[behind..]);
        completed
    }
}

/// Whether the command line or the environment has a setting.
fn is_given(argument: &Arg, arguments: &[OsString]) -> bool {
    let variable = argument.get_env().is_some_and(|variable| std::env::var_os(variable).is_some());
    // The password itself may be there, in place of its file.
    let is_password = *argument.get_id() == PASSWORD_FILE
        && std::env::var_os("GEARTRAIN_PASSWORD").is_some_and(|password| !password.is_empty());
    let Some(long) = argument.get_long() else { return variable };
    let flags =
        arguments.iter().take_while(|argument| *argument != "--").filter_map(|argument| argument.to_str());
    let is_flag = flags
        .filter_map(|argument| argument.strip_prefix("--"))
        .any(|given| given.strip_prefix(long).is_some_and(|rest| rest.is_empty() || rest.starts_with('=')));
    variable || is_password || is_flag
}
