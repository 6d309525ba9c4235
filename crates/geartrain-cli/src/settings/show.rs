//! `geartrain config show`: each setting, its value, and where it comes from.

use clap::{Arg, ArgAction};
use serde_json::{Value, json};

use super::server::{PASSWORD_FILE, ServerSettings};
use super::{ConfigFile, Origin};
use crate::args::{self, Cli};
use crate::failure::Failure;
use crate::output::Output;
use crate::password;
use crate::text::{Cell, table};

/// A setting as it is in effect.
struct Shown {
    name: String,
    /// None if it is not set.
    value: Option<Value>,
    origin: Origin,
}

impl Shown {
    fn new(name: impl Into<String>, value: impl Into<Option<Value>>, origin: Origin) -> Shown {
        Shown { name: name.into(), value: value.into(), origin }
    }

    fn view(&self, file: Option<&ConfigFile>) -> Value {
        let mut view = json!({ "name": self.name, "value": self.value });
        let (origin, place) = match &self.origin {
            Origin::Flag(flag) => ("flag", Some(("flag", json!(flag)))),
            Origin::Variable(variable) => ("environment", Some(("variable", json!(variable)))),
            Origin::File(line) => ("file", Some(("line", json!(line)))),
            Origin::Credential => ("credential", None),
            Origin::Default => ("default", None),
        };
        view["origin"] = json!(origin);
        if let Some((key, place)) = place {
            view[key] = place;
        }
        if let (Origin::File(_), Some(file)) = (&self.origin, file) {
            view["file"] = json!(file.path.display().to_string());
        }
        view
    }

    fn row(&self, file: Option<&ConfigFile>) -> [Cell; 3] {
        let value = match &self.value {
            None => "-".to_owned(),
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
        };
        let origin = match &self.origin {
            Origin::Flag(flag) => flag.clone(),
            Origin::Variable(variable) => variable.clone(),
            Origin::File(line) => {
                format!("{}:{line}", file.map(|file| file.path.display().to_string()).unwrap_or_default())
            }
            Origin::Credential => "CREDENTIALS_DIRECTORY".to_owned(),
            Origin::Default => "default".to_owned(),
        };
        [Cell::id(&self.name), Cell::whole(value), Cell::whole(origin)]
    }
}

/// Prints the settings of clients, of the server and of the contexts.
pub(crate) fn show(cli: &Cli, out: &mut Output<'_>) -> Result<(), Failure> {
    let file = cli.file.as_ref();
    let mut shown = of_clients(cli);
    shown.extend(of_server(cli));
    for context in file.iter().flat_map(|file| &file.contexts) {
        let name = |setting: &str| format!("context.{}.{setting}", context.name);
        let url = &context.url;
        shown.push(Shown::new(name("url"), public(&url.value), Origin::File(url.line)));
        if let Some(file) = &context.password_file {
            let path = json!(file.value.display().to_string());
            shown.push(Shown::new(name("password_file"), path, Origin::File(file.line)));
        }
        if let Some(production) = &context.production {
            let line = Origin::File(production.line);
            shown.push(Shown::new(name("production"), json!(production.value), line));
        }
    }
    let views: Vec<Value> = shown.iter().map(|setting| setting.view(file)).collect();
    out.list(&views, "there are no settings", |out| {
        let rows: Vec<_> = shown.iter().map(|setting| setting.row(file)).collect();
        table(out, ["SETTING", "VALUE", "ORIGIN"], &rows)
    })?;
    Ok(())
}

/// What every command goes by.
fn of_clients(cli: &Cli) -> Vec<Shown> {
    let program = args::command();
    let origin = |id: &str| {
        let argument = program.get_arguments().find(|argument| *argument.get_id() == id);
        argument.map_or(Origin::Default, |argument| Origin::of(&cli.matches, argument))
    };
    let in_effect = &cli.in_effect;
    let config = cli.file.as_ref().map(|file| json!(file.path.display().to_string()));
    let (context, context_origin) = match in_effect.context.clone() {
        Some((name, origin)) => (Some(json!(name)), origin),
        None => (None, Origin::Default),
    };
    let located = |line: Option<usize>, id| line.map_or_else(|| origin(id), Origin::File);
    let url_line = in_effect.url.as_ref().map(|url| url.line);
    let password_line = in_effect.password_file.as_ref().map(|file| file.line);
    let password_file = cli.password_file.as_ref().map(|file| json!(file.display().to_string()));
    let mut shown = vec![
        Shown::new("config", config, origin("config")),
        Shown::new("context", context, context_origin),
        Shown::new("url", public(&cli.url), located(url_line, "url")),
    ];
    shown.push(match (&password_file, has_password()) {
        (None, true) => hidden_password("password"),
        _ => Shown::new(PASSWORD_FILE, password_file, located(password_line, PASSWORD_FILE)),
    });
    shown
}

/// What a server would go by. Its flags are those of `config show`.
fn of_server(cli: &Cli) -> Vec<Shown> {
    let matches = cli.matches.subcommand().and_then(|(_, config)| config.subcommand());
    let Some((_, matches)) = matches else { return Vec::new() };
    let setting = |argument: &Arg| {
        let (id, name) = (argument.get_id().as_str(), format!("server.{}", argument.get_id()));
        let in_file = cli.file.as_ref().and_then(|file| file.server.iter().find(|setting| setting.id == id));
        let origin = match in_file.filter(|setting| setting.is_used) {
            Some(setting) => Origin::File(setting.line),
            None => Origin::of(matches, argument),
        };
        let texts: Vec<String> = match in_file {
            // As an argument it would be that of a client.
            Some(setting) if id == PASSWORD_FILE && setting.is_used => setting.values.clone(),
            _ => {
                let texts = matches.get_raw(id).into_iter().flatten();
                texts.map(|text| text.to_string_lossy().into_owned()).collect()
            }
        };
        let value = match (argument.get_action(), &texts[..]) {
            (ArgAction::SetTrue, _) => json!(matches.get_flag(id)),
            (ArgAction::Append, _) => json!(texts),
            (_, [text, ..]) => public(text),
            (_, []) if id == PASSWORD_FILE && has_password() => return hidden_password("server.password"),
            (_, []) => match credential_of(id) {
                Some(path) => return Shown::new(name, path, Origin::Credential),
                None => Value::Null,
            },
        };
        Shown::new(name, Some(value).filter(|value| !value.is_null()), origin)
    };
    ServerSettings::new().all().map(setting).collect()
}

/// The file of the service manager that the server takes for a setting.
fn credential_of(id: &str) -> Option<Value> {
    let path = match id {
        PASSWORD_FILE => password::credential("password"),
        "keys_file" => password::credential(crate::commands::access_key::FILE_NAME),
        _ => None,
    };
    path.map(|path| json!(path.display().to_string()))
}

fn has_password() -> bool {
    std::env::var_os("GEARTRAIN_PASSWORD").is_some_and(|password| !password.is_empty())
}

fn hidden_password(name: &str) -> Shown {
    Shown::new(name, json!("(not shown)"), Origin::Variable("GEARTRAIN_PASSWORD".to_owned()))
}

/// A value without the password that a URL may have.
fn public(value: &str) -> Value {
    json!(geartrain::without_password(value))
}
