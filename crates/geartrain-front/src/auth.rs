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

static WRONG_PASSWORD: RepeatedWarning = RepeatedWarning::new();

/// Slows down sources that send wrong passwords.
///
/// The delay comes before the password is compared, also if it is the right one: otherwise the absence of a
/// quick reply would tell that it was wrong.
#[derive(Debug, Default)]
pub struct AuthThrottle {
    sources: Mutex<HashMap<Option<IpAddr>, Failures>>,
}

#[derive(Debug, Clone, Copy)]
struct Failures {
    count: u32,
    last: Instant,
}

impl AuthThrottle {
    /// Waits for the delay of this source, then checks the password. Sources without an address, which are
    /// Unix sockets, count as one.
    pub async fn attempt(&self, source: Option<IpAddr>, is_right: impl FnOnce() -> bool) -> bool {
        let source = source.map(network);
        let delay = self.delay(source, Instant::now());
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        let right = is_right();
        if !right {
            self.note_failure(source, Instant::now());
            match source {
                Some(address) => WRONG_PASSWORD.warn(format_args!("wrong password from {address}")),
                None => WRONG_PASSWORD.warn("wrong password from a local socket"),
            }
        }
        right
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

    fn note_failure(&self, source: Option<IpAddr>, now: Instant) {
        let mut sources = self.sources.lock();
        if sources.len() >= SOURCES_MAX && !sources.contains_key(&source) {
            sources.retain(|_, failures| now.duration_since(failures.last) < FORGET_AFTER);
            let oldest = sources.iter().min_by_key(|(_, failures)| failures.last).map(|(source, _)| *source);
            if let Some(oldest) = oldest.filter(|_| sources.len() >= SOURCES_MAX) {
                sources.remove(&oldest);
            }
        }
        let failures = sources.entry(source).or_insert(Failures { count: 0, last: now });
        if now.duration_since(failures.last) >= FORGET_AFTER {
            failures.count = 0;
        }
        *failures = Failures { count: failures.count.saturating_add(1), last: now };
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
        assert!(throttle.attempt(None, || true).await);
        assert!(throttle.sources.lock().is_empty());
        assert!(!throttle.attempt(None, || false).await);
        assert_eq!(throttle.sources.lock().len(), 1);
    }
}
