//! A Redis that holds our script obeys every rule.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use geartrain_redis::RedisBackend;
use geartrain_testkit::peers::RedisServer;

/// One for all cases; each has a prefix of its own.
static REDIS: LazyLock<RedisServer> = LazyLock::new(|| RedisServer::start(&[]));

geartrain_testkit::conformance!(|clock| {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let url = format!("{}?prefix=case{number}:", REDIS.url()).parse().expect("it is a URL");
    Arc::new(pollster::block_on(RedisBackend::with_clock(url, clock)).expect("the Redis is there"))
});
