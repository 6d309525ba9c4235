//! Random numbers for the jitter of backoffs: a backend has none of its own.

use crate::{Call, Command, RandomUnit, Seconds};

/// Lets the backoff decide the delay of a retry that names none.
pub(crate) fn draw_for(call: &mut Call) {
    if let Command::Retry(retry) = &mut call.command
        && retry.delay == Seconds::ZERO
    {
        retry.random.get_or_insert_with(random_unit);
    }
}

fn random_unit() -> RandomUnit {
    // The last bits of a UUID of version 7 are random; only its first ones are the time.
    let random = uuid::Uuid::now_v7().as_u128() as u32;
    RandomUnit::new(f64::from(random) / f64::from(u32::MAX)).unwrap_or(RandomUnit::HALF)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Holder, Jid, Retry, WorkerName};

    #[test]
    fn a_retry_without_a_delay_gets_a_number_of_its_own() {
        let retry = || {
            let holder = Holder::Worker(WorkerName::new("w").expect("a good name"));
            Retry::new(Jid::new("j").expect("a good name"), holder)
        };
        let drawn = |retry: Retry| {
            let mut call = Call::from(retry);
            draw_for(&mut call);
            let Command::Retry(retry) = call.command else { panic!("it is a retry") };
            retry.random
        };
        assert!((0..100).any(|_| drawn(retry()) != drawn(retry())));
        assert_eq!(drawn(Retry { delay: Seconds::from(5), ..retry() }), None);
        assert_eq!(drawn(Retry { random: Some(RandomUnit::HALF), ..retry() }), Some(RandomUnit::HALF));
    }
}
