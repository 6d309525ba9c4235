//! The conformance suite against a geartrain server, through the Redis driver.

use std::net::SocketAddr;
use std::sync::{Arc, mpsc};

use geartrain::{RedisBackend, RedisUrl};
use geartrain_core::{
    Answer, Backend, Call, Clock, Pending, Pop, PopReply, QueueName, ResultStream, Seconds, Subscription,
};
use geartrain_resp::{Front, Options};
use geartrain_store::StoreBackend;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// A driver and its server.
struct ServerAndDriver {
    driver: Option<RedisBackend>,
    stop: CancellationToken,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl ServerAndDriver {
    fn start(clock: Arc<dyn Clock>) -> ServerAndDriver {
        let stop = CancellationToken::new();
        let (address, addresses) = mpsc::channel();
        let (stopped, its_clock) = (stop.clone(), clock.clone());
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async move {
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
                address.send(listener.local_addr().expect("it is bound")).expect("the test waits for it");
                let store = StoreBackend::in_memory(its_clock.clone()).expect("a thread can be started");
                let options = Options { allow_flush: true, ..Options::default() };
                Front::new(Arc::new(store), its_clock, options).serve_tcp(listener, stopped).await;
            });
        });
        let address: SocketAddr = addresses.recv().expect("the server starts");
        let url: RedisUrl = format!("redis://{address}").parse().expect("it is a URL");
        let driver = pollster::block_on(RedisBackend::with_clock(url, clock)).expect("the server is there");
        ServerAndDriver { driver: Some(driver), stop, thread: Some(thread) }
    }

    fn driver(&self) -> &RedisBackend {
        self.driver.as_ref().expect("it is there until the end")
    }
}

impl Drop for ServerAndDriver {
    fn drop(&mut self) {
        self.driver = None;
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the server does not panic");
        }
    }
}

impl Backend for ServerAndDriver {
    fn execute(&self, batch: Vec<Call>) -> Pending<'_, Vec<Answer>> {
        self.driver().execute(batch)
    }
    fn pop_or_wait(&self, pop: Pop, wait: Seconds) -> Pending<'_, PopReply> {
        self.driver().pop_or_wait(pop, wait)
    }
    fn ready_or_wait(&self, queues: Vec<QueueName>, wait: Seconds) -> Pending<'_, bool> {
        self.driver().ready_or_wait(queues, wait)
    }
    fn subscribe(&self) -> Pending<'_, Box<dyn Subscription>> {
        self.driver().subscribe()
    }
    fn subscribe_from(&self, after: u64) -> Pending<'_, Box<dyn Subscription>> {
        self.driver().subscribe_from(after)
    }
    fn open_result_stream(&self, stream_id: u64) -> Pending<'_, Box<dyn ResultStream>> {
        self.driver().open_result_stream(stream_id)
    }
}

geartrain_testkit::conformance!(|clock| Arc::new(ServerAndDriver::start(clock)));
