//! Options (section 7, decisions 7 and 8).

use std::collections::BTreeMap;

use geartrain_core::{Event, QueueName, Refusal, Seconds, SetConfig, Setting, UnsetConfig, read_number};

use super::{Model, bad_argument};

/// What `config.get` lists on a fresh database.
const LISTED: [(&str, &str); 7] = [
    ("application", "qless"),
    ("heartbeat", "60"),
    ("grace-period", "10"),
    ("stats-history", "30"),
    ("histogram-history", "7"),
    ("jobs-history-count", "50000"),
    ("jobs-history", "604800"),
];

/// Options that are read as numbers: whether they may be 0, and the largest number. Days and durations end at
/// ten years, and whole numbers at 2^53 or at 32 bits.
const NUMERIC: [(&str, bool, Numbers, f64); 13] = [
    ("heartbeat", false, Numbers::Any, 315_360_000.0),
    ("grace-period", true, Numbers::Any, 315_360_000.0),
    ("jobs-history", true, Numbers::Any, 315_360_000.0),
    ("canceled-history", true, Numbers::Any, 315_360_000.0),
    ("canceled-history-max", true, Numbers::Whole, 9_007_199_254_740_992.0),
    ("max-worker-age", true, Numbers::Any, 315_360_000.0),
    ("stats-history", true, Numbers::Whole, 3_650.0),
    ("histogram-history", true, Numbers::Whole, 3_650.0),
    ("jobs-history-count", true, Numbers::Whole, 9_007_199_254_740_992.0),
    ("max-job-history", true, Numbers::Whole, 9_007_199_254_740_992.0),
    ("results-bytes", true, Numbers::Whole, 9_007_199_254_740_992.0),
    ("crashes-max", true, Numbers::Whole, 4_294_967_295.0),
    ("max-concurrency", true, Numbers::Whole, 4_294_967_295.0),
];

#[derive(Clone, Copy, PartialEq)]
enum Numbers {
    Any,
    Whole,
}

/// Checks an option's name and, if it is to be set by a native caller, that it is known and its value.
pub(super) fn validate(option: &str, native_value: Option<&str>) -> Result<(), Refusal> {
    if option.is_empty() || option.len() > 4160 || option.contains('\0') {
        return Err(bad_argument("option"));
    }
    let Some(value) = native_value.filter(|_| option != "application") else { return Ok(()) };
    let of_queue = |word: &str| {
        let longer = option.len() > word.len() + 1;
        longer && (option.starts_with(&format!("{word}-")) || option.ends_with(&format!("-{word}")))
    };
    let known = |word: &str| match word {
        "heartbeat" => option == word || of_queue(word),
        "max-concurrency" => of_queue(word),
        word => option == word,
    };
    let Some((_, zero, numbers, max)) = NUMERIC.into_iter().find(|(word, ..)| known(word)) else {
        return Err(bad_argument("option"));
    };
    let fits = |number: f64| {
        let whole = numbers == Numbers::Any || number.floor() == number;
        whole && number <= max && (number > 0.0 || (zero && number == 0.0))
    };
    if parse(value).is_some_and(fits) { Ok(()) } else { Err(bad_argument("value")) }
}

fn parse(value: &str) -> Option<f64> {
    read_number(value.as_bytes())
}

/// A span of time that may have left the finite numbers (decision 5).
pub(super) fn span(seconds: f64) -> Seconds {
    Seconds::new(seconds.clamp(f64::MIN, f64::MAX)).expect("clamped to the finite numbers")
}

impl Model {
    /// An option that was set to a number.
    pub(super) fn number(&self, option: &str) -> Option<f64> {
        self.options.get(option).and_then(|value| parse(value))
    }

    /// The same for one queue, whose name may come before or after.
    fn number_of(&self, queue: &QueueName, option: &str) -> Option<f64> {
        self.number(&format!("{queue}-{option}")).or_else(|| self.number(&format!("{option}-{queue}")))
    }

    /// How long a lock lasts.
    pub(super) fn lock_length(&self, queue: &QueueName) -> Seconds {
        let own = self.number_of(queue, "heartbeat");
        span(own.or_else(|| self.number("heartbeat")).unwrap_or(60.0))
    }

    pub(super) fn grace_period(&self) -> Seconds {
        span(self.number("grace-period").unwrap_or(10.0))
    }

    /// How many locks a queue may have; none for any number.
    pub(super) fn max_concurrency(&self, queue: &QueueName) -> Option<f64> {
        self.number_of(queue, "max-concurrency").filter(|max| *max > 0.0)
    }

    /// How many bytes all results together may count.
    pub(super) fn results_bytes(&self) -> usize {
        self.number("results-bytes").unwrap_or(67_108_864.0).floor().max(0.0) as usize
    }

    /// How many workers of a job may die before it is set aside; none for any number.
    /// How long tombstones are kept, and how many.
    pub(super) fn canceled_age(&self) -> Seconds {
        span(self.number("canceled-history").unwrap_or(86_400.0))
    }

    pub(super) fn canceled_count(&self) -> usize {
        self.number("canceled-history-max").unwrap_or(10_000.0).floor().max(0.0) as usize
    }

    pub(super) fn crashes_max(&self) -> Option<u32> {
        let max = self.number("crashes-max").unwrap_or(3.0).floor().max(0.0) as u32;
        Some(max).filter(|max| *max > 0)
    }

    pub(super) fn setting(&self, option: &str) -> Option<Setting> {
        let chosen = self.options.get(option).map(|value| Setting::Chosen(value.clone()));
        chosen.or_else(|| {
            LISTED
                .iter()
                .find(|(name, _)| *name == option)
                .map(|(_, default)| Setting::Default((*default).into()))
        })
    }

    pub(super) fn all_settings(&self) -> BTreeMap<String, Setting> {
        let names = LISTED.iter().map(|(name, _)| *name).chain(self.options.keys().map(String::as_str));
        names.filter_map(|name| Some((name.to_owned(), self.setting(name)?))).collect()
    }

    pub(super) fn set_option(&mut self, set: &SetConfig) {
        self.events.push(Event::ConfigSet { option: set.option.clone(), value: set.value.clone() });
        self.options.insert(set.option.clone(), set.value.clone());
    }

    pub(super) fn unset_option(&mut self, unset: &UnsetConfig) {
        self.events.push(Event::ConfigUnset { option: unset.option.clone() });
        self.options.remove(&unset.option);
    }
}
