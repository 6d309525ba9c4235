//! The conformance suite against our Lua in a real Redis, through the driver. Every case has a prefix of its
//! own.

use crate::support;

use std::sync::Arc;

use geartrain_redis::RedisBackend;

geartrain_testkit::conformance!(one_double: |clock| {
    let url = support::shared_redis_url().parse().expect("it is a URL");
    let backend = pollster::block_on(RedisBackend::with_clock(url, clock))
        .expect("a server that was just started can be reached");
    Arc::new(backend)
});
