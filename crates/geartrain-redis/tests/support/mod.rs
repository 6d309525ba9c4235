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
