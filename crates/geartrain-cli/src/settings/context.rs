//! Which context is in effect, and what it sets.

use std::path::PathBuf;

use clap::ArgMatches;
use clap::parser::ValueSource;

use super::file::Context;
use super::{Located, Production};
use crate::args::{Cli, Verb};
use crate::failure::Failure;

/// Where a setting comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A flag, with its dashes.
    Flag(String),
    /// An environment variable.
    Variable(String),
    /// A line of the configuration file.
    File(usize),
    /// A directory of the service manager.
    Credential,
    /// The default.
    Default,
}

impl Origin {
    /// The origin of an argument that the file has not set.
    pub(super) fn of(matches: &ArgMatches, argument: &clap::Arg) -> Origin {
        let id = argument.get_id().as_str();
        match (matches.value_source(id), argument.get_env()) {
            (Some(ValueSource::CommandLine), _) => {
                Origin::Flag(format!("--{}", argument.get_long().unwrap_or_default()))
            }
            (Some(ValueSource::EnvVariable), Some(variable)) => {
                Origin::Variable(variable.to_string_lossy().into_owned())
            }
            _ => Origin::Default,
        }
    }
}

/// What the file adds to the command line of a client.
#[derive(Debug, Clone, Default)]
pub(crate) struct InEffect {
    /// The context, and where its name comes from.
    pub(crate) context: Option<(String, Origin)>,
    pub(crate) url: Option<Located<String>>,
    pub(crate) password_file: Option<Located<PathBuf>>,
}

impl Cli {
    /// Takes what the context sets, unless a flag does; nor an environment variable, if the context itself is not
    /// named by a flag.
    pub(crate) fn apply_context(&mut self) -> Result<(), Failure> {
        let source = |id: &str| self.matches.value_source(id);
        let is_named = source("context") == Some(ValueSource::CommandLine);
        let is_url_in_environment = source("url") == Some(ValueSource::EnvVariable);
        if is_named && self.url_given {
            let why = "--context and --url both name a queue: give one of them";
            return Err(Failure::Usage(why.to_owned()));
        }
        let is_server = matches!(self.verb, Verb::Server(_));
        if self.url_given || (!is_named && (is_url_in_environment || is_server)) {
            return Ok(());
        }
        let file = self.file.as_ref();
        let (name, origin) = match (&self.context, file.and_then(|file| file.default_context.as_ref())) {
            (Some(name), _) if is_named => (name.clone(), Origin::Flag("--context".to_owned())),
            // An empty variable is as good as none.
            (Some(name), _) if !name.is_empty() => {
                (name.clone(), Origin::Variable("GEARTRAIN_CONTEXT".to_owned()))
            }
            (_, Some(name)) => (name.value.clone(), Origin::File(name.line)),
            _ => return Ok(()),
        };
        let Some(file) = file else {
            return Err(Failure::Usage(format!(
                "there is no context {name}, because there is no configuration file: name one with --config FILE"
            )));
        };
        let Some(context) = file.context(&name) else {
            return Err(Failure::Usage(format!("{}: {}", file.path.display(), file.unknown_context(&name))));
        };
        let is_production = context.is_production();
        let Context { url, password_file, .. } = context.clone();
        let is_password_given = match is_named {
            true => source("password_file") == Some(ValueSource::CommandLine),
            false => {
                self.password_file.is_some()
                    || std::env::var_os("GEARTRAIN_PASSWORD").is_some_and(|password| !password.is_empty())
            }
        };
        self.url_given = is_named;
        self.url.clone_from(&url.value);
        self.in_effect.url = Some(url);
        if let Some(password_file) = password_file.filter(|_| !is_password_given) {
            self.password_file = Some(password_file.value.clone());
            self.in_effect.password_file = Some(password_file);
        }
        if is_production && !self.yes {
            self.production = Some(Production::new(&name, self.json));
        }
        self.in_effect.context = Some((name, origin));
        Ok(())
    }
}
