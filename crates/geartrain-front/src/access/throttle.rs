//! Throttles password guessing: each failure doubles the delay of the next attempt from the same source.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::RepeatedWarning;

/// How long the second attempt waits. Each failure doubles it.
const FIRST_DELAY: Duration = Duration::from_millis(10);
/// The longest delay. It is short because a client with the right password may share the address of one that
/// guesses, and waits as long.
const DELAY_MAX: Duration = Duration::from_secs(1);
/// Failures are forgotten after so long without another.
const FORGET_AFTER: Duration = Duration::from_secs(60);
/// How many sources are remembered.
const SOURCES_MAX: usize = 4_096;
/// So many failures of a source are recorded one by one; then those of a while are one record. Otherwise a source
/// could fill the audit log with its failures, until all else is rotated away.
const RECORDED_MAX: u32 = 20;
/// The time between two records that are of several failures.
const RECORD_INTERVAL: Duration = Duration::from_secs(10);

static WRONG_PASSWORD: RepeatedWarning = RepeatedWarning::new();

/// Slows down sources that send wrong passwords.
///
/// The delay comes before the password is compared, also if it is the right one: otherwise the absence of a
/// quick reply would tell that it was wrong.
#[derive(Debug, Default)]
pub(super) struct AuthThrottle {
    sources: Mutex<HashMap<Option<IpAddr>, Failures>>,
}

#[derive(Debug, Clone, Copy)]
struct Failures {
    count: u32,
    last: Instant,
    /// When failures were recorded last, and how many there were since.
    recorded: Instant,
    unrecorded: u64,
}

/// What came of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attempt {
    /// The password is right.
    Right,
    /// It is wrong.
    Wrong {
        /// How many failures of this source to record now, this one included; none if a later record counts it.
        to_record: Option<u64>,
    },
}

impl AuthThrottle {
    /// Waits for the delay of this source, then checks the password. Sources without an address, which are
    /// Unix sockets, count as one.
    pub(super) async fn attempt(&self, source: Option<IpAddr>, is_right: impl FnOnce() -> bool) -> Attempt {
        let source = source.map(network);
        let delay = self.delay(source, Instant::now());
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        if is_right() {
            return Attempt::Right;
        }
        match source {
            Some(address) => WRONG_PASSWORD.warn(format_args!("wrong password or key from {address}")),
            None => WRONG_PASSWORD.warn("wrong password or key from a local socket"),
        }
        Attempt::Wrong { to_record: self.note_failure(source, Instant::now()) }
    }

    fn delay(&self, source: Option<IpAddr>, now: Instant) -> Duration {
        let sources = self.sources.lock();
        match sources.get(&source) {
            Some(failures) if now.duration_since(failures.last) < FORGET_AFTER => {
                let doubled = FIRST_DELAY.saturating_mul(1 << (failures.count - 1).min(20));
                doubled.min(DELAY_MAX)
            }
            _ => Duration::ZERO,
        }
    }

    /// Returns how many failures to record, if any.
    fn note_failure(&self, source: Option<IpAddr>, now: Instant) -> Option<u64> {
        let mut sources = self.sources.lock();
        if sources.len() >= SOURCES_MAX && !sources.contains_key(&source) {
            sources.retain(|_, failures| now.duration_since(failures.last) < FORGET_AFTER);
            let oldest = sources.iter().min_by_key(|(_, failures)| failures.last).map(|(source, _)| *source);
            if let Some(oldest) = oldest.filter(|_| sources.len() >= SOURCES_MAX) {
                sources.remove(&oldest);
            }
        }
        let none = Failures { count: 0, last: now, recorded: now, unrecorded: 0 };
        let failures = sources.entry(source).or_insert(none);
        if now.duration_since(failures.last) >= FORGET_AFTER {
            failures.count = 0;
        }
        failures.count = failures.count.saturating_add(1);
        failures.last = now;
        failures.unrecorded += 1;
        if failures.count > RECORDED_MAX && now.duration_since(failures.recorded) < RECORD_INTERVAL {
            return None;
        }
        failures.recorded = now;
        Some(std::mem::take(&mut failures.unrecorded))
    }
}

/// What one source can choose its addresses from: of IPv6, a host usually has a network of 64 bits.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        v4 => v4,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, what goes wrong should stop it")]
mod tests {
    use super::*;

    fn source(text: &str) -> Option<IpAddr> {
        Some(network(text.parse().unwrap()))
    }

    #[test]
    fn each_failure_doubles_the_delay_of_its_source_alone() {
        let (throttle, now) = (AuthThrottle::default(), Instant::now());
        let delay = |text: &str, now| throttle.delay(source(text), now).as_millis();
        for expected in [0, 10, 20, 40, 80, 160, 320, 640, 1_000, 1_000] {
            assert_eq!(delay("10.0.0.1", now), expected);
            throttle.note_failure(source("10.0.0.1"), now);
        }
        assert_eq!(delay("::ffff:10.0.0.1", now), 1_000);
        assert_eq!(delay("10.0.0.2", now), 0);
        throttle.note_failure(source("2001:db8::1"), now);
        assert_eq!(delay("2001:db8::2", now), 10);
        assert_eq!(delay("2001:db8:1::2", now), 0);
        let later = now + FORGET_AFTER;
        assert_eq!(delay("10.0.0.1", later), 0);
        throttle.note_failure(source("10.0.0.1"), later);
        assert_eq!(delay("10.0.0.1", later), 10);
    }

    #[test]
    fn the_oldest_of_too_many_sources_is_forgotten() {
        let (throttle, start) = (AuthThrottle::default(), Instant::now());
        let numbered = |number: u32| Some(IpAddr::from(std::net::Ipv4Addr::from(number)));
        let at = |number: u32| start + Duration::from_millis(number.into());
        let count = SOURCES_MAX as u32 + 10;
        for number in 0..count {
            throttle.note_failure(numbered(number), at(number));
        }
        assert_eq!(throttle.sources.lock().len(), SOURCES_MAX);
        assert_eq!(throttle.delay(numbered(9), at(count)), Duration::ZERO);
        assert_eq!(throttle.delay(numbered(10), at(count)), FIRST_DELAY);
    }

    #[tokio::test]
    async fn a_wrong_password_is_counted_and_a_right_one_is_not() {
        let throttle = AuthThrottle::default();
        assert_eq!(throttle.attempt(None, || true).await, Attempt::Right);
        assert!(throttle.sources.lock().is_empty());
        assert_eq!(throttle.attempt(None, || false).await, Attempt::Wrong { to_record: Some(1) });
        assert_eq!(throttle.sources.lock().len(), 1);
    }

    #[test]
    fn many_failures_of_a_source_are_few_records_that_count_them_all() {
        let (throttle, start) = (AuthThrottle::default(), Instant::now());
        let at = |tenths: u64| start + Duration::from_millis(100 * tenths);
        let mut records: Vec<u64> =
            (0..1_000).filter_map(|tenths| throttle.note_failure(source("10.0.0.1"), at(tenths))).collect();
        assert_eq!(records[..20], [1; 20]);
        assert!(records.len() < 31, "{records:?}");
        records.extend(throttle.note_failure(source("10.0.0.1"), at(2_000)));
        assert_eq!(records.iter().sum::<u64>(), 1_001);
        assert_eq!(throttle.note_failure(source("10.0.0.2"), at(2_000)), Some(1));
    }
}
