//! Options as JSON: the value that applies, and what is known about the option.

use std::collections::BTreeMap;

use geartrain_core::{OptionInfo, OptionScope, QueueName, Setting};
use schemars::JsonSchema;
use serde::Serialize;

/// An option: the value that applies, and what is known about it.
#[derive(Debug, Serialize, JsonSchema)]
pub struct OptionView {
    /// Its name.
    pub key: String,
    /// The value that applies.
    pub value: Option<String>,
    /// Whether the option is not set.
    pub default: bool,
    /// The default, if geartrain knows the option.
    pub default_value: Option<&'static str>,
    /// The unit of a number.
    pub unit: Option<&'static str>,
    /// What it does.
    pub meaning: Option<&'static str>,
    /// A value that was set and has no effect: it is not a number, or the other spelling has precedence.
    pub ignored: Option<String>,
}

impl OptionView {
    /// The option as it applies: a queue's own setting, then the one for all queues, then the default.
    pub fn new(key: &str, settings: &BTreeMap<String, Setting>) -> OptionView {
        let found = OptionInfo::find(key);
        let chosen = |name: &str| match settings.get(name) {
            Some(Setting::Chosen(value)) => Some(value.clone()),
            _ => None,
        };
        let is_used = |value: &String| found.is_none_or(|(option, _)| option.is_used(value));
        let own = chosen(key);
        // As the engine looks it up: the queue's option in both spellings, the option for all, the default.
        let value = match found {
            Some((option, queue)) => {
                let of_queue = queue.map(|queue| spellings(option.name, queue)).into_iter().flatten();
                let of_all = (option.scope != OptionScope::Queue).then(|| option.name.to_owned());
                let set = of_queue.chain(of_all).filter_map(|name| chosen(&name)).find(is_used);
                set.or_else(|| Some(option.default.to_owned()))
            }
            None => own.clone(),
        };
        let ignored = own.clone().filter(|own| Some(own) != value.as_ref());
        let option = found.map(|(option, _)| option);
        OptionView {
            key: key.to_owned(),
            default: own.is_none() || ignored.is_some(),
            value,
            default_value: option.map(|option| option.default),
            unit: option.map(|option| option.unit).filter(|unit| !unit.is_empty()),
            meaning: option.map(|option| option.meaning),
            ignored,
        }
    }

    /// The range, if the value that applies is outside it: a Qless client can set such a number.
    pub fn outside(&self) -> Option<String> {
        let ((option, _), value) = OptionInfo::find(&self.key).zip(self.value.as_deref())?;
        option.check(value).is_err().then(|| option.range())
    }
}

/// The option that limits how many jobs of a queue run at once.
pub const MAX_CONCURRENCY: &str = "max-concurrency";

/// The value of a queue's option that applies.
pub fn queue_option(option: &str, queue: &QueueName, settings: &BTreeMap<String, Setting>) -> Option<String> {
    let [name, _] = spellings(option, queue.as_str());
    OptionView::new(&name, settings).value
}

/// Both names of an option of a queue; the engine prefers the first.
pub fn spellings(option: &str, queue: &str) -> [String; 2] {
    [format!("{queue}-{option}"), format!("{option}-{queue}")]
}
