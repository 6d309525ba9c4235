//! `geartrain config show`: each setting, its value, and where it comes from.

use clap::{Arg, ArgAction};
use geartrain_json::{SettingOrigin, SettingView};
use serde_json::{Value, json};

use super::server::{PASSWORD_FILE, ServerSettings};
use super::{ConfigFile, Origin};
use crate::args::{self, Cli};
use crate::failure::Failure;
use crate::output::Output;
use crate::password;
use crate::text::{Cell, table};

/// A setting as it is in effect, with no value if it is not set.
fn shown(
    file: Option<&ConfigFile>,
    name: impl Into<String>,
    value: impl Into<Option<Value>>,
    origin: Origin,
) -> SettingView {
    let view = SettingView::new(name, value);
    match origin {
        Origin::Flag(flag) => SettingView { origin: SettingOrigin::Flag, flag: Some(flag), ..view },
        Origin::Variable(variable) => {
            SettingView { origin: SettingOrigin::Environment, variable: Some(variable), ..view }
        }
        Origin::File(line) => {
            let file = file.map(|file| file.path.display().to_string());
            SettingView { origin: SettingOrigin::File, file, line: Some(line), ..view }
        }
        Origin::Credential => SettingView { origin: SettingOrigin::Credential, ..view },
        Origin::Default => view,
    }
}

fn row(setting: &SettingView) -> [Cell; 3] {
    let value = match &setting.value {
        None => "-".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
    };
    let origin = match (setting.origin, &setting.flag, &setting.variable, &setting.file, setting.line) {
        (_, Some(place), ..) | (_, _, Some(place), ..) => place.clone(),
        (_, _, _, Some(file), Some(line)) => format!("{file}:{line}"),
        (SettingOrigin::Credential, ..) => "CREDENTIALS_DIRECTORY".to_owned(),
        _ => "default".to_owned(),
    };
    [Cell::id(&setting.name), Cell::whole(value), Cell::whole(origin)]
}

/// Prints the settings of clients, of the server and of the contexts.
pub(crate) fn show(cli: &Cli, out: &mut Output<'_>) -> Result<(), Failure> {
    let file = cli.file.as_ref();
    let mut settings = of_clients(cli);
    settings.extend(of_server(cli));
    for context in file.iter().flat_map(|file| &file.contexts) {
        let mut add = |setting: &str, value: Value, line| {
            let name = format!("context.{}.{setting}", context.name);
            settings.push(shown(file, name, value, Origin::File(line)));
        };
        add("url", public(&context.url.value), context.url.line);
        if let Some(path) = &context.password_file {
            add("password_file", json!(path.value.display().to_string()), path.line);
        }
        if let Some(production) = &context.production {
            add("production", json!(production.value), production.line);
        }
    }
    out.list(&settings, "there are no settings", |out| {
        let rows: Vec<_> = settings.iter().map(row).collect();
        table(out, ["SETTING", "VALUE", "ORIGIN"], &rows)
    })?;
    Ok(())
}

/// What every command goes by.
fn of_clients(cli: &Cli) -> Vec<SettingView> {
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
    let file = cli.file.as_ref();
    vec![
        shown(file, "config", config, origin("config")),
        shown(file, "context", context, context_origin),
        shown(file, "url", public(&cli.url), located(url_line, "url")),
        match (&password_file, has_password()) {
            (None, true) => hidden_password("password"),
            _ => shown(file, PASSWORD_FILE, password_file, located(password_line, PASSWORD_FILE)),
        },
    ]
}

/// What a server goes by: `geartrain server` itself, or `config show`, which has its flags.
pub(crate) fn of_server(cli: &Cli) -> Vec<SettingView> {
    let Some((_, command)) = cli.matches.subcommand() else { return Vec::new() };
    let matches = command.subcommand().map_or(command, |(_, show)| show);
    let file = cli.file.as_ref();
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
                Some(path) => return shown(file, name, path, Origin::Credential),
                None => Value::Null,
            },
        };
        shown(file, name, Some(value).filter(|value| !value.is_null()), origin)
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

fn hidden_password(name: &str) -> SettingView {
    shown(None, name, json!("(not shown)"), Origin::Variable("GEARTRAIN_PASSWORD".to_owned()))
}

/// A value without the password that a URL may have.
fn public(value: &str) -> Value {
    json!(geartrain::without_password(value))
}
