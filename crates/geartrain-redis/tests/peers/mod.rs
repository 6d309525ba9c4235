//! Asking a real Redis, a Sentinel or a node of a Cluster; and waiting until something is so.

#![allow(dead_code, reason = "not every test needs all of it")]

use std::time::{Duration, Instant};

use redis::{FromRedisValue, RedisResult};

/// How long a test waits for something that must happen, and how often it looks.
const LIMIT: (Duration, Duration) = (Duration::from_secs(60), Duration::from_millis(20));

/// Waits until something is so.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LIMIT.0, "in vain: {what}");
        std::thread::sleep(LIMIT.1);
    }
}

/// Asks whoever listens on a port.
pub(crate) fn ask<T: FromRedisValue>(port: u16, words: &[&str]) -> RedisResult<T> {
    let mut connection = redis::Client::open(format!("redis://127.0.0.1:{port}"))?.get_connection()?;
    redis::cmd(words[0]).arg(&words[1..]).query(&mut connection)
}
