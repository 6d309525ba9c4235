//! Configuration options: as they were set, and as the numbers that the engine uses.

use std::collections::BTreeMap;

use super::stats::Keep;
use crate::{Refusal, Seconds, Setting, read_number};

/// As long as a failure group, because both may contain a queue's name.
const OPTION_BYTES_MAX: usize = crate::GROUP_BYTES_MAX;

/// Options that Qless lists, with their defaults.
const LISTED: [(&str, &str); 7] = [
    ("application", "qless"),
    ("heartbeat", "60"),
    ("grace-period", "10"),
    ("stats-history", "30"),
    ("histogram-history", "7"),
    ("jobs-history-count", "50000"),
    ("jobs-history", "604800"),
];

/// Numeric options that are not listed until they are set.
const UNLISTED: [(&str, &str); 4] = [
    ("max-worker-age", "86400"),
    ("max-job-history", "100"),
    ("crashes-max", "3"),
    ("results-bytes", "67108864"),
];

/// Options of a queue, whose name precedes or follows them.
const PER_QUEUE: [&str; 2] = ["heartbeat", "max-concurrency"];

#[derive(Debug, Default)]
pub(crate) struct Config {
    chosen: BTreeMap<String, String>,
    pub(crate) numbers: Numbers,
}

/// The global options as numbers.
#[derive(Debug, Clone)]
pub(crate) struct Numbers {
    heartbeat: Seconds,
    pub(crate) grace: Seconds,
    pub(crate) keep_stats: Keep,
    pub(crate) complete_count: usize,
    pub(crate) complete_age: Seconds,
    pub(crate) worker_age: Seconds,
    /// 0 for no limit.
    pub(crate) history_max: usize,
    /// 0 for no limit.
    pub(crate) crashes_max: u32,
    pub(crate) results_bytes: usize,
}

/// The options of one queue.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct QueueNumbers {
    heartbeat: Option<Seconds>,
    /// 0 or less for no limit.
    pub(crate) concurrency: f64,
}

impl Default for Numbers {
    fn default() -> Numbers {
        Numbers::read(&BTreeMap::new())
    }
}

/// Refuses an invalid name, or a value that is not a number where one is needed.
pub(crate) fn check(option: &str, value: Option<&str>) -> Result<(), Refusal> {
    let bad = |what: &'static str, why: String| Err(Refusal::BadArgument { what: what.into(), why });
    if option.is_empty() || option.len() > OPTION_BYTES_MAX || option.contains('\0') {
        return bad("option", format!("must have 1 to {OPTION_BYTES_MAX} bytes and no NUL"));
    }
    match value {
        Some(value) if is_numeric(option) && number(value).is_none() => {
            bad("value", format!("of {option} must be a finite number, not {value}"))
        }
        _ => Ok(()),
    }
}

fn is_numeric(option: &str) -> bool {
    LISTED[1..].iter().chain(&UNLISTED).any(|(numeric, _)| *numeric == option)
        || queues_of(option).next().is_some()
}

/// The queues that an option may be for: several, where names look like options.
pub(crate) fn queues_of(option: &str) -> impl Iterator<Item = &str> {
    PER_QUEUE.into_iter().flat_map(move |about| {
        let before = option.strip_suffix(about).and_then(|rest| rest.strip_suffix('-'));
        let behind = option.strip_prefix(about).and_then(|rest| rest.strip_prefix('-'));
        [before, behind].into_iter().flatten()
    })
}

fn number(value: &str) -> Option<f64> {
    read_number(value.as_bytes())
}

impl Config {
    pub(crate) fn set(&mut self, option: &str, value: Option<&str>) {
        match value {
            Some(value) => self.chosen.insert(option.to_owned(), value.to_owned()),
            None => self.chosen.remove(option),
        };
        self.numbers = Numbers::read(&self.chosen);
    }

    pub(crate) fn chosen(&self) -> &BTreeMap<String, String> {
        &self.chosen
    }

    pub(crate) fn get(&self, option: &str) -> Option<Setting> {
        let chosen = self.chosen.get(option).cloned().map(Setting::Chosen);
        chosen.or_else(|| {
            LISTED
                .iter()
                .find(|(listed, _)| *listed == option)
                .map(|(_, value)| Setting::Default((*value).into()))
        })
    }

    pub(crate) fn all(&self) -> BTreeMap<String, Setting> {
        let defaults =
            LISTED.iter().map(|(option, value)| ((*option).to_owned(), Setting::Default((*value).into())));
        let chosen =
            self.chosen.iter().map(|(option, value)| (option.clone(), Setting::Chosen(value.clone())));
        defaults.chain(chosen).collect()
    }

    /// The options of a queue, looked up by name.
    pub(crate) fn of_queue(&self, queue: &str) -> QueueNumbers {
        let find = |about: &str| {
            let spellings = [format!("{queue}-{about}"), format!("{about}-{queue}")];
            spellings.iter().find_map(|option| number(self.chosen.get(option)?))
        };
        QueueNumbers {
            heartbeat: find("heartbeat").map(seconds),
            concurrency: find("max-concurrency").unwrap_or_default(),
        }
    }

    /// The lock duration in a queue.
    pub(crate) fn heartbeat(&self, of_queue: &QueueNumbers) -> Seconds {
        of_queue.heartbeat.unwrap_or(self.numbers.heartbeat)
    }
}

impl Numbers {
    fn read(chosen: &BTreeMap<String, String>) -> Numbers {
        let get = |option: &str| {
            let default = LISTED.iter().chain(&UNLISTED).find(|(known, _)| *known == option);
            // A value that earlier versions accepted as a number and this one does not counts as not set.
            chosen
                .get(option)
                .and_then(|value| number(value))
                .or_else(|| default.and_then(|(_, value)| number(value)))
                .expect("an option that is read is in a table, and numeric ones are numbers")
        };
        // Negative counts are 0, and fractions are dropped.
        let count = |option: &str| get(option) as usize;
        let span = |option: &str| seconds(get(option));
        Numbers {
            heartbeat: span("heartbeat"),
            grace: span("grace-period"),
            keep_stats: Keep { days: count("stats-history"), histogram_days: count("histogram-history") },
            complete_count: count("jobs-history-count"),
            complete_age: span("jobs-history"),
            worker_age: span("max-worker-age"),
            history_max: count("max-job-history"),
            crashes_max: u32::try_from(count("crashes-max")).unwrap_or(u32::MAX),
            results_bytes: count("results-bytes"),
        }
    }
}

fn seconds(number: f64) -> Seconds {
    Seconds::new(number).expect("options that are not finite are refused when they are set")
}
