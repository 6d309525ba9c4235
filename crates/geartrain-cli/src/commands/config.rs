//! `geartrain config`: show and change options.

use std::collections::BTreeMap;

use geartrain::{
    AllConfig, BadArgument, Client, OPTIONS, OptionInfo, OptionScope, QueueName, SetConfig, Setting,
    UnsetConfig,
};
use serde::Serialize;

use super::Done;
use crate::failure::Failure;
use crate::output::Output;
use crate::text::{Cell, table};
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
}

/// An option: the value that applies, and what is known about it.
#[derive(Debug, Serialize)]
struct OptionView {
    key: String,
    value: Option<String>,
    /// Whether the option is not set.
    default: bool,
    default_value: Option<&'static str>,
    unit: Option<&'static str>,
    meaning: Option<&'static str>,
    /// A value that was set and has no effect, because it is not a number.
    ignored: Option<String>,
}

impl OptionView {
    /// The option as it applies: a queue's own setting, then the one for all queues, then the default.
    fn new(key: &str, settings: &BTreeMap<String, Setting>) -> OptionView {
        let found = OptionInfo::find(key);
        let chosen = |name: &str| match settings.get(name) {
            Some(Setting::Chosen(value)) => Some(value.clone()),
            _ => None,
        };
        let is_used = |value: &String| found.is_none_or(|(option, _)| option.is_used(value));
        let own = chosen(key);
        let ignored = own.clone().filter(|value| !is_used(value));
        let inherited = || {
            let (option, queue) = found?;
            let elsewhere = queue.and_then(|queue| {
                let spellings = spellings(option.name, queue);
                let set = spellings.iter().filter_map(|name| chosen(name)).find(is_used);
                set.or_else(|| chosen(option.name).filter(is_used))
            });
            elsewhere.or_else(|| Some(option.default.to_owned()))
        };
        let option = found.map(|(option, _)| option);
        OptionView {
            key: key.to_owned(),
            default: own.is_none() || ignored.is_some(),
            value: own.filter(is_used).or_else(inherited),
            default_value: option.map(|option| option.default),
            unit: option.map(|option| option.unit).filter(|unit| !unit.is_empty()),
            meaning: option.map(|option| option.meaning),
            ignored,
        }
    }

    fn row(&self) -> [Cell; 4] {
        let value = self.value.as_deref().unwrap_or_default();
        let note = match (&self.ignored, self.default_value) {
            (Some(ignored), _) => format!(" ({ignored:?} is set, and ignored)"),
            (None, Some(default)) if !self.default => format!(" (default {default})"),
            _ => String::new(),
        };
        [
            Cell::from(&self.key),
            Cell::from(format!("{value}{note}")),
            Cell::faint(self.unit.unwrap_or_default()),
            Cell::faint(self.meaning.unwrap_or("Not an option of geartrain.")),
        ]
    }
}

/// The value of a queue's option that applies.
pub(super) fn queue_option(
    option: &str,
    queue: &QueueName,
    settings: &BTreeMap<String, Setting>,
) -> Option<String> {
    let [name, _] = spellings(option, queue.as_str());
    OptionView::new(&name, settings).value
}

/// Both names of an option of a queue; the engine prefers the first.
pub(super) fn spellings(option: &str, queue: &str) -> [String; 2] {
    [format!("{queue}-{option}"), format!("{option}-{queue}")]
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
                let rows: Vec<_> = views.iter().map(OptionView::row).collect();
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
            let people = format!("{key} is {value}");
            out.line(&OptionView::new(&key, &settings), people)?;
            if let Some((option, Some(queue))) = found {
                let [winner, other] = spellings(option.name, queue);
                if key == other && matches!(settings.get(&winner), Some(Setting::Chosen(_))) {
                    out.remark(format_args!(
                        "{winner} is set too, and has precedence; `geartrain config unset {winner}` removes it"
                    ))?;
                }
            }
            Ok(())
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
    }
}

fn remark_if_ignored(view: &OptionView, out: &mut Output<'_>) -> Done {
    match &view.ignored {
        Some(ignored) if !out.json => Ok(out.remark(format_args!(
            "{} is set to {ignored:?}, which is not a number and is ignored; `geartrain config unset {}` removes it",
            view.key, view.key
        ))?),
        _ => Ok(()),
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

/// How similar two names must be for one to be proposed for the other.
const SIMILARITY_MIN: f64 = 0.85;

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
    let best = whole.chain(of_queues).max_by(|(one, _), (other, _)| one.total_cmp(other));
    best.filter(|(similarity, _)| *similarity >= SIMILARITY_MIN)
        .map(|(_, name)| format!(" (did you mean {name}?)"))
        .unwrap_or_default()
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
