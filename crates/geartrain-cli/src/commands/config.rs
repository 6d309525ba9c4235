//! `geartrain config`: show and change options.

use geartrain::{AllConfig, Client, GetConfig, SetConfig, Setting, UnsetConfig};
use serde::Serialize;

use super::Done;
use crate::failure::Failure;
use crate::output::Output;
use crate::text::{Cell, table};
use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigVerb {
    /// Print one option, or all of them
    Get {
        /// The name of the option
        key: Option<String>,
    },
    /// Set an option
    #[command(
        after_help = "Examples:\n  geartrain config set heartbeat 120\n  geartrain config set mail-max-concurrency 4"
    )]
    Set {
        /// The name of the option
        key: String,
        /// The new value
        #[arg(allow_negative_numbers = true)]
        value: String,
    },
    /// Reset an option to its default
    Unset {
        /// The name of the option
        key: String,
    },
}

#[derive(Debug, Serialize)]
struct OptionView {
    key: String,
    value: Option<String>,
    default: bool,
}

impl OptionView {
    fn new(key: String, setting: Option<Setting>) -> OptionView {
        let (value, default) = match setting {
            Some(Setting::Chosen(value)) => (Some(value), false),
            Some(Setting::Default(value)) => (Some(value.into_owned()), true),
            None => (None, true),
        };
        OptionView { key, value, default }
    }
}

pub(super) async fn config(client: &Client, verb: ConfigVerb, out: &mut Output<'_>) -> Done {
    match verb {
        ConfigVerb::Get { key: None } => {
            let options = client.run(AllConfig).await?;
            let views: Vec<OptionView> =
                options.into_iter().map(|(key, setting)| OptionView::new(key, Some(setting))).collect();
            Ok(out.list(&views, "no options are set", |out| {
                let rows: Vec<_> = views
                    .iter()
                    .map(|view| {
                        let value = view.value.as_deref().unwrap_or_default();
                        [
                            Cell::from(&view.key),
                            Cell::from(value),
                            Cell::faint(if view.default { "default" } else { "" }),
                        ]
                    })
                    .collect();
                table(out, ["OPTION", "VALUE", ""], &rows)
            })?)
        }
        ConfigVerb::Get { key: Some(key) } => {
            let Some(setting) = client.run(GetConfig { option: key.clone() }).await? else {
                return Err(Failure::Refused(format!(
                    "there is no option {key}; `geartrain config get` lists the options"
                )));
            };
            let view = OptionView::new(key, Some(setting));
            let value = view.value.clone().unwrap_or_default();
            Ok(out.line(&view, value)?)
        }
        ConfigVerb::Set { key, value } => {
            client.run(SetConfig { option: key.clone(), value: value.clone() }).await?;
            let people = format!("{key} is {value}");
            Ok(out.line(&OptionView::new(key, Some(Setting::Chosen(value))), people)?)
        }
        ConfigVerb::Unset { key } => {
            client.run(UnsetConfig { option: key.clone() }).await?;
            let setting = client.run(GetConfig { option: key.clone() }).await?;
            let view = OptionView::new(key, setting);
            let people = match &view.value {
                Some(value) => format!("{} is {value}, its default", view.key),
                None => format!("{} is not set", view.key),
            };
            Ok(out.line(&view, people)?)
        }
    }
}
