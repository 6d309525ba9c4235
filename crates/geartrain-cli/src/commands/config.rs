//! `geartrain config`: show and change options.

use std::collections::BTreeMap;

use geartrain::{
    AllConfig, BadArgument, Client, OPTIONS, OptionInfo, OptionScope, QueueName, SetConfig, Setting,
    UnsetConfig,
};
use geartrain_json::{OptionView, spellings};

use super::Done;
use super::queue::remark_if_new;
use super::server::ServerArgs;
use crate::failure::Failure;
use crate::output::Output;
use crate::text::{Cell, table};
use crate::values::closest;
use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigVerb {
    /// Print one option, or all of them with their meaning
    #[command(
        after_help = "Examples:\n  geartrain config get\n  geartrain config get heartbeat\n  geartrain config get mail-heartbeat"
    )]
    Get {
        /// The name of the option
        key: Option<String>,
    },
    /// Set an option
    #[command(after_help = "Examples:
  geartrain config set heartbeat 120
  geartrain config set mail-heartbeat 600       # for the queue mail only; heartbeat-mail is the same
  geartrain config set mail-max-concurrency 4
  geartrain config set --any my-program-colour green

`geartrain config get` lists the options.")]
    Set {
        /// The name of the option
        key: String,
        /// The new value
        #[arg(allow_negative_numbers = true)]
        value: String,
        /// Accept a name that geartrain does not know, for other programs to read
        #[arg(long)]
        any: bool,
    },
    /// Reset an option to its default
    Unset {
        /// The name of the option
        key: String,
    },
    /// Show the settings of this command and of a server, and where each comes from
    #[command(after_help = "Examples:
  geartrain config show
  geartrain config show --resp 0.0.0.0:7411     # what `geartrain server --resp 0.0.0.0:7411` would go by

A flag comes first, then an environment variable, then the configuration file, then the default.")]
    Show(Box<ServerArgs>),
}

/// The row of an option in the table.
fn row(view: &OptionView) -> [Cell; 4] {
    let value = view.value.as_deref().unwrap_or_default();
    let note = match (&view.ignored, view.default_value) {
        (Some(ignored), _) => format!(" ({ignored:?} is set, and ignored)"),
        (None, Some(default)) if view.outside().is_some() => {
            format!(" (not a valid value; default {default})")
        }
        (None, Some(default)) if !view.default => format!(" (default {default})"),
        _ => String::new(),
    };
    [
        Cell::id(&view.key),
        Cell::from(format!("{value}{note}")),
        Cell::whole(view.unit.unwrap_or_default()),
        Cell::sentence(view.meaning.unwrap_or("Not an option of geartrain.")),
    ]
}

pub(super) async fn config(client: &Client, verb: ConfigVerb, out: &mut Output<'_>) -> Done {
    match verb {
        ConfigVerb::Get { key: None } => {
            let settings = client.run(AllConfig).await?;
            let known = OPTIONS.iter().map(|option| match option.scope {
                OptionScope::Queue => format!("QUEUE-{}", option.name),
                OptionScope::Global | OptionScope::Both => option.name.to_owned(),
            });
            let mut keys: Vec<String> = known.collect();
            let others = settings.keys().filter(|key| !keys.contains(key)).cloned().collect::<Vec<_>>();
            keys.extend(others);
            let views: Vec<_> = keys.iter().map(|key| OptionView::new(key, &settings)).collect();
            out.list(&views, "no options are set", |out| {
                let rows: Vec<_> = views.iter().map(row).collect();
                table(out, ["OPTION", "VALUE", "UNIT", "MEANING"], &rows)
            })?;
            if !out.json && out.err_is_terminal {
                out.remark(
                    "heartbeat can be set for one queue too: `geartrain config set QUEUE-heartbeat N`",
                )?;
            }
            Ok(())
        }
        ConfigVerb::Get { key: Some(key) } => {
            let settings = client.run(AllConfig).await?;
            exists(&key, &settings)?;
            let view = OptionView::new(&key, &settings);
            out.line(&view, view.value.as_deref().unwrap_or_default())?;
            if let (Some(meaning), true) = (view.meaning, out.err_is_terminal && !out.json) {
                let [unit, default] = [view.unit, view.default_value].map(Option::unwrap_or_default);
                out.remark(format_args!("{meaning} (default {default} {unit})"))?;
            }
            if let (Some(range), false) = (view.outside(), out.json) {
                out.remark(format_args!("that is not a valid value of {key}: it must be {range}"))?;
            }
            remark_if_ignored(&view, out)
        }
        ConfigVerb::Set { key, value, any } => {
            let found = OptionInfo::find(&key);
            match found {
                Some((option, _)) => option.check(&value).map_err(|BadArgument { what, why }| {
                    Failure::Refused(format!("{what} {why}: {}", option.meaning))
                })?,
                None if !any => {
                    return Err(Failure::Refused(format!(
                        "there is no option {key}{}; `geartrain config get` lists the options, \
                         and --any sets a name that only other programs read",
                        similar(&key)
                    )));
                }
                None => {}
            }
            let set = SetConfig { any: found.is_none(), ..SetConfig::new(&key, &value) };
            client.run(set).await?;
            let settings = client.run(AllConfig).await?;
            let view = OptionView::new(&key, &settings);
            out.line(&view, format_args!("{key} is {value}"))?;
            if let Some(Ok(queue)) = found.and_then(|(_, queue)| queue).map(QueueName::new) {
                remark_if_new(client, &queue, out).await?;
            }
            remark_if_ignored(&view, out)
        }
        ConfigVerb::Unset { key } => {
            exists(&key, &client.run(AllConfig).await?)?;
            client.run(UnsetConfig { option: key.clone() }).await?;
            let view = OptionView::new(&key, &client.run(AllConfig).await?);
            let people = match (&view.value, view.default_value) {
                (Some(value), Some(default)) if value == default => format!("{key} is {value}, its default"),
                (Some(value), _) => format!("{key} is not set, and {value} applies"),
                (None, _) => format!("{key} is not set"),
            };
            Ok(out.line(&view, people)?)
        }
        // It needs no queue.
        ConfigVerb::Show(_) => Ok(()),
    }
}

/// Remarks on a value that has no effect, and how to remove what is in the way.
fn remark_if_ignored(view: &OptionView, out: &mut Output<'_>) -> Done {
    let (key, Some(ignored)) = (&view.key, &view.ignored) else { return Ok(()) };
    match OptionInfo::find(key) {
        Some((option, Some(queue))) if option.is_used(ignored) => {
            let [winner, _] = spellings(option.name, queue);
            Ok(out.remark(format_args!(
                "{winner} is set too, and has precedence; `geartrain config unset {winner}` removes it"
            ))?)
        }
        _ if out.json => Ok(()),
        _ => Ok(out.remark(format_args!(
            "{key} is set to {ignored:?}, which is not a number and is ignored; \
             `geartrain config unset {key}` removes it"
        ))?),
    }
}

/// Refuses a name that is neither known nor set.
fn exists(key: &str, settings: &BTreeMap<String, Setting>) -> Done {
    if OptionInfo::find(key).is_some() || settings.contains_key(key) {
        return Ok(());
    }
    Err(Failure::Refused(format!(
        "there is no option {key}{}; `geartrain config get` lists the options",
        similar(key)
    )))
}

/// A known option with a similar name, as part of a sentence.
fn similar(key: &str) -> String {
    let whole = OPTIONS.iter().map(|option| {
        let name = match option.scope {
            OptionScope::Queue => format!("QUEUE-{}", option.name),
            OptionScope::Global | OptionScope::Both => option.name.to_owned(),
        };
        (strsim::jaro_winkler(key, option.name), name)
    });
    let of_queues = OPTIONS.iter().filter(|option| option.scope != OptionScope::Global).flat_map(|option| {
        key.match_indices('-').flat_map(move |(at, _)| {
            let (before, behind) = (&key[..at], &key[at + 1..]);
            [
                (strsim::jaro_winkler(behind, option.name), format!("{before}-{}", option.name)),
                (strsim::jaro_winkler(before, option.name), format!("{}-{behind}", option.name)),
            ]
        })
    });
    closest(whole.chain(of_queues)).map(|name| format!(" (did you mean {name}?)")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_near_miss_is_corrected() {
        for (given, proposed) in [
            ("hartbeat", " (did you mean heartbeat?)"),
            ("grace_period", " (did you mean grace-period?)"),
            ("mail-hearbeat", " (did you mean mail-heartbeat?)"),
            ("max-concurency-mail", " (did you mean max-concurrency-mail?)"),
            ("max-concurrency", " (did you mean QUEUE-max-concurrency?)"),
            ("colour", ""),
        ] {
            assert_eq!(similar(given), proposed, "{given}");
        }
    }
}
