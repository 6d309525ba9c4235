//! A pop that is dropped loses no job, on a real Redis.

use std::sync::Arc;

use geartrain_core::Backend;
use geartrain_redis::RedisBackend;
use geartrain_testkit::cancellation::{Return, cancel_pops, drop_backends};
use geartrain_testkit::scaled;
use pollster::block_on;

use crate::support;

fn connect(url: &str) -> Arc<dyn Backend> {
    Arc::new(block_on(RedisBackend::connect(url.parse().unwrap())).unwrap())
}

#[test]
fn a_dropped_pop_returns_its_jobs() {
    cancel_pops(&connect(&support::shared_redis_url()), scaled(1_000, 100_000), Return::Soon);
}

#[test]
fn a_client_that_is_dropped_after_its_pop_returns_the_jobs() {
    let url = support::shared_redis_url();
    drop_backends(&connect(&url), scaled(50, 1_000), || connect(&url));
}
