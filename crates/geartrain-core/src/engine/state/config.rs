//! Configuration options: as they were set, and as the numbers that the engine uses.

use std::collections::BTreeMap;

use super::stats::Keep;
use crate::{OPTIONS, OptionInfo, Seconds, Setting, read_number};

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
    pub(crate) canceled_count: usize,
    pub(crate) canceled_age: Seconds,
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

/// The queues that an option may be for: several, where names look like options.
pub(crate) fn queues_of(option: &str) -> impl Iterator<Item = &str> {
    OPTIONS.iter().flat_map(move |about| about.queues(option))
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
            OPTIONS.iter().find(|about| about.listed_by_qless && about.name == option).map(default_setting)
        })
    }

    pub(crate) fn all(&self) -> BTreeMap<String, Setting> {
        let listed = OPTIONS.iter().filter(|about| about.listed_by_qless);
        let defaults = listed.map(|about| (about.name.to_owned(), default_setting(about)));
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
            let default = OPTIONS.iter().find(|about| about.name == option).map(|about| about.default);
            // Qless callers may set any text; one that is not a number counts as not set.
            let chosen = chosen.get(option).and_then(|value| number(value));
            chosen
                .or_else(|| default.and_then(number))
                .expect("an option that is read is in the table, and numeric ones have a number as default")
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
            canceled_count: count("canceled-history-max"),
            canceled_age: span("canceled-history"),
        }
    }
}

fn seconds(number: f64) -> Seconds {
    Seconds::new(number).expect("text that is not a finite number counts as not set")
}

fn default_setting(option: &OptionInfo) -> Setting {
    Setting::Default(option.default.into())
}
