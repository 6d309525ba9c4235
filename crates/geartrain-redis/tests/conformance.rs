//! Our Lua in a real Redis, behind the driver, obeys every rule.

use crate::support;

use std::sync::Arc;

use geartrain_core::Answer;
use geartrain_core::{Backend, Call, Pending, Pop, PopReply, QueueName, ResultStream, Seconds, Subscription};
use geartrain_redis::RedisBackend;
use support::Server;

/// A queue in a Redis of its own.
struct OwnRedis {
    backend: RedisBackend,
    _server: Server,
}

impl Backend for OwnRedis {
    fn execute(&self, batch: Vec<Call>) -> Pending<'_, Vec<Answer>> {
        self.backend.execute(batch)
    }
    fn pop_or_wait(&self, pop: Pop, wait: Seconds) -> Pending<'_, PopReply> {
        self.backend.pop_or_wait(pop, wait)
    }
    fn ready_or_wait(&self, queues: Vec<QueueName>, wait: Seconds) -> Pending<'_, bool> {
        self.backend.ready_or_wait(queues, wait)
    }
    fn subscribe(&self) -> Pending<'_, Box<dyn Subscription>> {
        self.backend.subscribe()
    }
    fn subscribe_from(&self, after: u64) -> Pending<'_, Box<dyn Subscription>> {
        self.backend.subscribe_from(after)
    }
    fn open_result_stream(&self, front: u64) -> Pending<'_, Box<dyn ResultStream>> {
        self.backend.open_result_stream(front)
    }
}

geartrain_testkit::conformance!(one_double: |clock| {
    let server = Server::start();
    let url = server.url().parse().expect("it is a URL");
    let backend = pollster::block_on(RedisBackend::with_clock(url, clock))
        .expect("a server that was just started can be reached");
    Arc::new(OwnRedis { backend, _server: server })
});
