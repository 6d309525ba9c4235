//! Real Redis servers for tests: one of its own, or a namespace in the one that the tests of this binary
//! share.

#![allow(dead_code, reason = "not every test needs all of it")]

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use geartrain_testkit::peers::RedisServer;

/// The URL of a namespace of its own, by prefix, in the Redis that tests share. Starting a Redis per case
/// took most of the time of cases that need none of their own. It ends with this process, because it reads
/// our end of a pipe.
pub(crate) fn shared_redis_url() -> String {
    static SHARED: LazyLock<RedisServer> = LazyLock::new(|| {
        let server = RedisServer::start(&[]);
        // A static is never dropped, and so would not remove its directory. This Redis writes no files.
        std::fs::remove_dir_all(server.directory()).expect("it was created just now");
        server
    });
    static NAMESPACES: AtomicU64 = AtomicU64::new(0);
    format!("{}?prefix=case-{}:", SHARED.url(), NAMESPACES.fetch_add(1, Ordering::Relaxed))
}

/// A Redis for one test, without persistence.
pub(crate) struct Server(RedisServer);

impl Server {
    pub(crate) fn start() -> Server {
        Server(RedisServer::start(&[]))
    }

    pub(crate) fn url(&self) -> String {
        self.0.url()
    }

    pub(crate) fn connect(&self) -> redis::Connection {
        let client = redis::Client::open(self.url()).expect("it is a URL");
        client.get_connection().expect("the server answers")
    }
}

/// Calls a function of our library.
pub(crate) fn fcall(
    name: &str,
    request: &[u8],
    connection: &mut redis::Connection,
) -> redis::RedisResult<Vec<u8>> {
    joined(redis::cmd("FCALL").arg(name).arg(1).arg("").arg(request).query(connection)?)
}

/// The reply of our own API, which may come in pieces.
pub(crate) fn joined(answer: redis::Value) -> redis::RedisResult<Vec<u8>> {
    match answer {
        redis::Value::Array(pieces) => {
            let pieces: Result<Vec<Vec<u8>>, _> = pieces.into_iter().map(redis::from_redis_value).collect();
            Ok(pieces?.concat())
        }
        whole => Ok(redis::from_redis_value(whole)?),
    }
}
