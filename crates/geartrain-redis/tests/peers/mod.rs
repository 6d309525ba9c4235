//! Asking a real Redis, a Sentinel or a node of a Cluster.

#![allow(dead_code, reason = "not every test needs all of it")]

pub(crate) use geartrain_testkit::peers::until;
use redis::{FromRedisValue, RedisResult};

/// Asks whoever listens on a port.
pub(crate) fn ask<T: FromRedisValue>(port: u16, words: &[&str]) -> RedisResult<T> {
    let mut connection = redis::Client::open(format!("redis://127.0.0.1:{port}"))?.get_connection()?;
    redis::cmd(words[0]).arg(&words[1..]).query(&mut connection)
}
