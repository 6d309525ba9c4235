//! The table of options: every option that the engine reads, with default, unit, range and meaning.
//!
//! The engine, the Lua program, `geartrain config` and docs/options.md take their options from this table.

use crate::{BadArgument, DURATION_MAX, GROUP_BYTES_MAX, read_number};

/// As long as a failure group, because both may contain a queue's name.
const OPTION_BYTES_MAX: usize = GROUP_BYTES_MAX;

/// The largest count. Doubles represent all whole numbers up to here.
const COUNT_MAX: f64 = 9_007_199_254_740_992.0;

/// An option that the engine reads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OptionInfo {
    /// Its name, without a queue.
    pub name: &'static str,
    /// Its default.
    pub default: &'static str,
    /// The unit of its value; empty for text.
    pub unit: &'static str,
    /// What it does, in one sentence.
    pub meaning: &'static str,
    /// Whether it is set for all queues, for one, or both.
    pub scope: OptionScope,
    /// The values that it takes.
    pub values: OptionValues,
    /// Whether Qless's `config.get` lists it with its default.
    pub listed_by_qless: bool,
}

/// What an option applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OptionScope {
    /// All queues.
    Global,
    /// One queue, whose name comes before or after the option's.
    Queue,
    /// All queues, and one queue has precedence.
    Both,
}

/// The values that an option takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum OptionValues {
    /// Any text.
    Text,
    /// A number from 0 up to `max`.
    Number {
        /// Whether 0 is valid.
        zero: bool,
        /// Whether it must be a whole number.
        whole: bool,
        /// The largest valid number.
        max: f64,
    },
}

const fn span(zero: bool) -> OptionValues {
    OptionValues::Number { zero, whole: false, max: DURATION_MAX.get() }
}

const fn count(max: f64) -> OptionValues {
    OptionValues::Number { zero: true, whole: true, max }
}

/// Every option that the engine reads.
pub const OPTIONS: [OptionInfo; 14] = [
    OptionInfo {
        name: "heartbeat",
        default: "60",
        unit: "seconds",
        meaning: "How long a lock lasts unless a heartbeat renews it.",
        scope: OptionScope::Both,
        values: span(false),
        listed_by_qless: true,
    },
    OptionInfo {
        name: "grace-period",
        default: "10",
        unit: "seconds",
        meaning: "How long a silent worker is warned before its job is taken; 0 for no warning.",
        scope: OptionScope::Global,
        values: span(true),
        listed_by_qless: true,
    },
    OptionInfo {
        name: "max-concurrency",
        default: "0",
        unit: "jobs",
        meaning: "How many jobs of a queue may run at the same time; 0 for no limit.",
        scope: OptionScope::Queue,
        values: count(u32::MAX as f64),
        listed_by_qless: false,
    },
    OptionInfo {
        name: "crashes-max",
        default: "3",
        unit: "workers",
        meaning: "How many workers a job may lose before it fails for good; 0 for no limit.",
        scope: OptionScope::Global,
        values: count(u32::MAX as f64),
        listed_by_qless: false,
    },
    OptionInfo {
        name: "jobs-history",
        default: "604800",
        unit: "seconds",
        meaning: "How long complete jobs are kept.",
        scope: OptionScope::Global,
        values: span(true),
        listed_by_qless: true,
    },
    OptionInfo {
        name: "jobs-history-count",
        default: "50000",
        unit: "jobs",
        meaning: "How many complete jobs are kept.",
        scope: OptionScope::Global,
        values: count(COUNT_MAX),
        listed_by_qless: true,
    },
    OptionInfo {
        name: "canceled-history",
        default: "86400",
        unit: "seconds",
        meaning: "How long it is remembered that a job was cancelled; 0 for not at all.",
        scope: OptionScope::Global,
        values: span(true),
        listed_by_qless: false,
    },
    OptionInfo {
        name: "canceled-history-max",
        default: "10000",
        unit: "jobs",
        meaning: "Of how many jobs it is remembered that they were cancelled; 0 for none.",
        scope: OptionScope::Global,
        values: count(COUNT_MAX),
        listed_by_qless: false,
    },
    OptionInfo {
        name: "results-bytes",
        default: "67108864",
        unit: "bytes",
        meaning: "How much all stored results may take; the oldest are dropped first.",
        scope: OptionScope::Global,
        values: count(COUNT_MAX),
        listed_by_qless: false,
    },
    OptionInfo {
        name: "max-job-history",
        default: "100",
        unit: "entries",
        meaning: "How long the history of a job grows; 0 for no limit.",
        scope: OptionScope::Global,
        values: count(COUNT_MAX),
        listed_by_qless: false,
    },
    OptionInfo {
        name: "stats-history",
        default: "30",
        unit: "days",
        meaning: "How long the daily statistics of a queue are kept.",
        scope: OptionScope::Global,
        values: count(DAYS_MAX),
        listed_by_qless: true,
    },
    OptionInfo {
        name: "histogram-history",
        default: "7",
        unit: "days",
        meaning: "How long the histograms in these statistics are kept.",
        scope: OptionScope::Global,
        values: count(DAYS_MAX),
        listed_by_qless: true,
    },
    OptionInfo {
        name: "max-worker-age",
        default: "86400",
        unit: "seconds",
        meaning: "How long a worker that is not seen stays on the list of workers.",
        scope: OptionScope::Global,
        values: span(true),
        listed_by_qless: false,
    },
    OptionInfo {
        name: "application",
        default: "qless",
        unit: "",
        meaning: "A name for this installation, which nothing depends on.",
        scope: OptionScope::Global,
        values: OptionValues::Text,
        listed_by_qless: true,
    },
];

/// Ten years.
const DAYS_MAX: f64 = 3_650.0;

impl OptionInfo {
    /// Finds an option by its full name, with the queue if the name has one.
    ///
    /// ```
    /// use geartrain_core::OptionInfo;
    /// let (option, queue) = OptionInfo::find("mail-heartbeat").expect("it is in the table");
    /// assert_eq!((option.name, option.default, queue), ("heartbeat", "60", Some("mail")));
    /// assert_eq!(OptionInfo::find("heartbeat-mail"), Some((option, Some("mail"))));
    /// assert_eq!(OptionInfo::find("heartbeat"), Some((option, None)));
    /// assert_eq!(OptionInfo::find("hartbeat"), None);
    /// ```
    pub fn find(name: &str) -> Option<(&'static OptionInfo, Option<&str>)> {
        let global = OPTIONS.iter().find(|option| option.scope != OptionScope::Queue && option.name == name);
        global.map(|option| (option, None)).or_else(|| {
            OPTIONS.iter().find_map(|option| option.queues(name).next().map(|queue| (option, Some(queue))))
        })
    }

    /// The queues that an option of this name may be for: two, where a queue's name looks like an option.
    pub(crate) fn queues<'a>(&'static self, name: &'a str) -> impl Iterator<Item = &'a str> + use<'a> {
        let before = name.strip_suffix(self.name).and_then(|rest| rest.strip_suffix('-'));
        let behind = name.strip_prefix(self.name).and_then(|rest| rest.strip_prefix('-'));
        let has_queues = self.scope != OptionScope::Global;
        [before, behind].into_iter().flatten().filter(move |queue| has_queues && !queue.is_empty())
    }

    /// Refuses a value outside the option's range.
    ///
    /// ```
    /// use geartrain_core::OptionInfo;
    /// let (heartbeat, _) = OptionInfo::find("heartbeat").expect("it is in the table");
    /// assert!(heartbeat.check("90").is_ok());
    /// let refused = heartbeat.check("-5").expect_err("a lock that has expired is no lock");
    /// assert_eq!(
    ///     refused.to_string(),
    ///     r#"value of heartbeat must be a number of seconds above 0, and at most 315360000, not "-5""#
    /// );
    /// ```
    pub fn check(&self, value: &str) -> Result<(), BadArgument> {
        let OptionValues::Number { zero, whole, max } = self.values else { return Ok(()) };
        let is_valid = |number: f64| {
            (number > 0.0 || zero && number == 0.0) && number <= max && (!whole || number.fract() == 0.0)
        };
        if read_number(value.as_bytes()).is_some_and(is_valid) {
            return Ok(());
        }
        Err(BadArgument::new("value", format!("of {} must be {}, not {value:?}", self.name, self.range())))
    }

    /// The valid values, as part of a sentence.
    pub fn range(&self) -> String {
        match self.values {
            OptionValues::Text => "any text".into(),
            OptionValues::Number { zero, whole, max } => {
                let number = if whole { "a whole number" } else { "a number" };
                let low = if zero { "from 0 to" } else { "above 0, and at most" };
                format!("{number} of {} {low} {max}", self.unit)
            }
        }
    }

    /// Whether the engine uses this value: any finite number for a numeric option. It ignores others, which
    /// Qless's `config.set` accepts, and uses the default.
    pub fn is_used(&self, value: &str) -> bool {
        self.values == OptionValues::Text || read_number(value.as_bytes()).is_some()
    }
}

/// Refuses an invalid name, and unless `any` is allowed also an unknown option or a value outside its range.
pub(crate) fn check(name: &str, value: Option<&str>, any: bool) -> Result<(), BadArgument> {
    if name.is_empty() || name.len() > OPTION_BYTES_MAX || name.contains('\0') {
        return Err(BadArgument::new(
            "option",
            format!("must have 1 to {OPTION_BYTES_MAX} bytes and no NUL"),
        ));
    }
    match (value, OptionInfo::find(name)) {
        (Some(_), None) if !any => Err(BadArgument::new(
            "option",
            format!("{name} is not known; options of a queue are named like mail-heartbeat"),
        )),
        (Some(value), Some((option, _))) if !any => option.check(value),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_valid() {
        for option in OPTIONS {
            assert_eq!(option.check(option.default), Ok(()), "{}", option.name);
        }
    }

    #[test]
    fn a_name_may_have_its_queue_before_or_behind() {
        let find = |name| OptionInfo::find(name).map(|(option, queue)| (option.name, queue));
        assert_eq!(find("a-b-max-concurrency"), Some(("max-concurrency", Some("a-b"))));
        assert_eq!(find("max-concurrency-a-b"), Some(("max-concurrency", Some("a-b"))));
        for unknown in ["max-concurrency", "-heartbeat", "heartbeat-", "grace-period-mail", "Heartbeat", ""] {
            assert_eq!(find(unknown), None, "{unknown:?}");
        }
    }

    #[test]
    fn values_outside_the_range_are_refused() {
        let check = |name: &str, value: &str| check(name, Some(value), false);
        for (name, good) in [("heartbeat", "0.5"), ("grace-period", "0"), ("crashes-max", "1e1")] {
            assert_eq!(check(name, good), Ok(()));
        }
        for (name, bad) in [
            ("heartbeat", "0"),
            ("heartbeat", "-5"),
            ("mail-heartbeat", "-5"),
            ("heartbeat", "soon"),
            ("heartbeat", "inf"),
            ("heartbeat", "NaN"),
            ("heartbeat", "315360001"),
            ("grace-period", "-1"),
            ("crashes-max", "1.5"),
            ("jobs-history-count", "1e300"),
            ("mail-max-concurrency", "-1"),
        ] {
            assert_eq!(check(name, bad).unwrap_err().what, "value", "{name} of {bad}");
        }
        assert_eq!(check("colour", "green").unwrap_err().what, "option");
        assert_eq!(super::check("colour", Some("green"), true), Ok(()));
        assert_eq!(super::check("heartbeat", Some("soon"), true), Ok(()));
    }
}
