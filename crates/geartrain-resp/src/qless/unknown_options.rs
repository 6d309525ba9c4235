//! Options that Qless ignores silently: each name is logged once, because it may be a mistake, or the option
//! of another revision.

use std::collections::BTreeSet;

use parking_lot::Mutex;

use super::arguments::shown;

/// How many names are remembered, and so how many lines clients can cause.
const NAMES_MAX: usize = 64;
/// How much of a name is shown.
const NAME_BYTES_MAX: usize = 64;

static LOGGED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Logs the name of an unknown option, unless that was done before.
pub(super) fn log(verb: &str, name: &[u8]) {
    if let Some(line) = line(&LOGGED, verb, name) {
        tracing::warn!("{line}");
    }
}

fn line(logged: &Mutex<BTreeSet<String>>, verb: &str, name: &[u8]) -> Option<String> {
    let option = format!("{verb}: option {:?}", shown(&name[..name.len().min(NAME_BYTES_MAX)]));
    let mut logged = logged.lock();
    if logged.len() >= NAMES_MAX || !logged.insert(option.clone()) {
        return None;
    }
    let last = if logged.len() == NAMES_MAX { ", and no other option from now on" } else { "" };
    Some(format!("{option} is unknown and ignored, as Qless does (logged once{last})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_logged_once_and_not_more_than_so_many() {
        let logged = Mutex::default();
        let first = line(&logged, "Put()", b"backoff");
        assert_eq!(
            first.as_deref(),
            Some("Put(): option \"backoff\" is unknown and ignored, as Qless does (logged once)")
        );
        assert_eq!(line(&logged, "Put()", b"backoff"), None);
        let more =
            (0..2 * NAMES_MAX).filter_map(|number| line(&logged, "Put()", number.to_string().as_bytes()));
        let more: Vec<String> = more.collect();
        assert_eq!(more.len(), NAMES_MAX - 1);
        assert!(more.last().is_some_and(|line| line.ends_with("no other option from now on)")), "{more:?}");
    }
}
