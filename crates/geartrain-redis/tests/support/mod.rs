//! A real Redis for one test, and a connection to it.

#![allow(dead_code, reason = "not every test needs all of it")]

use geartrain_testkit::peers::RedisServer;

/// A Redis that keeps nothing.
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

/// Asks the library of this name.
pub(crate) fn fcall(
    name: &str,
    request: &[u8],
    connection: &mut redis::Connection,
) -> redis::RedisResult<Vec<u8>> {
    joined(redis::cmd("FCALL").arg(name).arg(1).arg("").arg(request).query(connection)?)
}

/// An answer of our own API, which may come in pieces.
pub(crate) fn joined(answer: redis::Value) -> redis::RedisResult<Vec<u8>> {
    match answer {
        redis::Value::Array(pieces) => {
            let pieces: Result<Vec<Vec<u8>>, _> = pieces.into_iter().map(redis::from_redis_value).collect();
            Ok(pieces?.concat())
        }
        whole => Ok(redis::from_redis_value(whole)?),
    }
}
