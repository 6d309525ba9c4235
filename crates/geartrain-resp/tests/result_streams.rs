//! Result streams: a reply waits for the streams that its command concerned, and for no others.
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::{self, Peer, Value};
use geartrain_core::wire::{self, Request};
use geartrain_core::{
    Answer, Backend, Call, Cancel, Jid, Klass, Pending, Pop, PopReply, Put, PutOptions, QueueName,
    ResultStream, ResultStreamEnd, ResultWaiter, Seconds, StreamMessage, Subscription, SystemClock,
};
use geartrain_resp::{Front, Options};
use geartrain_store::StoreBackend;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// A backend in memory that counts how often its result streams are polled.
struct CountingBackend {
    inner: StoreBackend,
    polls: Arc<AtomicUsize>,
}

struct CountingStream {
    inner: Box<dyn ResultStream>,
    polls: Arc<AtomicUsize>,
}

impl ResultStream for CountingStream {
    fn next(&mut self) -> Pin<Box<dyn Future<Output = Result<StreamMessage, ResultStreamEnd>> + Send + '_>> {
        let mut next = self.inner.next();
        let polls = &self.polls;
        Box::pin(std::future::poll_fn(move |context| {
            polls.fetch_add(1, Ordering::SeqCst);
            next.as_mut().poll(context)
        }))
    }
}

impl Backend for CountingBackend {
    fn execute(&self, batch: Vec<Call>) -> Pending<'_, Vec<Answer>> {
        self.inner.execute(batch)
    }

    fn pop_or_wait(&self, pop: Pop, wait: Seconds) -> Pending<'_, PopReply> {
        self.inner.pop_or_wait(pop, wait)
    }

    fn subscribe(&self) -> Pending<'_, Box<dyn Subscription>> {
        self.inner.subscribe()
    }

    fn open_result_stream(&self, stream_id: u64) -> Pending<'_, Box<dyn ResultStream>> {
        Box::pin(async move {
            let inner = self.inner.open_result_stream(stream_id).await?;
            Ok(Box::new(CountingStream { inner, polls: self.polls.clone() }) as Box<dyn ResultStream>)
        })
    }
}

struct Server {
    port: u16,
    polls: Arc<AtomicUsize>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Server {
    async fn start() -> Server {
        let polls = Arc::new(AtomicUsize::new(0));
        let clock = Arc::new(SystemClock);
        let inner = StoreBackend::in_memory(clock.clone()).unwrap();
        let front =
            Front::new(Arc::new(CountingBackend { inner, polls: polls.clone() }), clock, Options::default());
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let task = tokio::spawn(async move { front.serve_tcp(listener, stopped).await });
        Server { port, polls, stop, task }
    }

    /// A RESP3 client with these result streams open.
    async fn waiting_client(&self, stream_ids: std::ops::Range<u64>) -> Peer {
        let mut peer = Peer::connect(self.port).await;
        peer.ask(&["HELLO", "3"]).await;
        for stream_id in stream_ids {
            peer.ask(&["SUBSCRIBE", &format!("gt:front:{stream_id}")]).await;
        }
        peer
    }

    async fn end(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
}

fn batch(calls: Vec<Call>) -> Vec<u8> {
    let request = Request::Batch(calls).encode();
    common::request(&[&b"FCALL"[..], b"geartrain_abc", b"1", b"", &request])
}

fn put(jid: &str, waiter: Option<ResultWaiter>) -> Call {
    let put = Put::new(QueueName::new("q").unwrap(), Jid::new(jid).unwrap(), Klass::new("k").unwrap(), "{}");
    let options = PutOptions { attach: waiter, ..PutOptions::default() };
    Put { options: waiter.map(|_| Box::new(options)), ..put }.into()
}

fn cancel(jids: impl IntoIterator<Item = String>) -> Call {
    Cancel::new(jids.into_iter().map(|jid| Jid::new(&jid).unwrap()).collect()).into()
}

/// One thread, so that a stream that was woken is polled before the client sees its reply.
#[tokio::test]
async fn a_reply_visits_only_the_result_streams_that_its_command_concerned() {
    let server = Server::start().await;
    let mut waiting = server.waiting_client(0..100).await;
    let mut caller = Peer::connect(server.port).await;
    // Every stream is polled for the first time before its subscriber can ask for anything else.
    assert_eq!(waiting.ask(&["PING"]).await, Value::simple("PONG"));
    let before = server.polls.load(Ordering::SeqCst);
    for number in 0..20 {
        caller.send(&batch(vec![put(&format!("j{number}"), None)])).await;
        caller.bytes().await;
    }
    assert_eq!(server.polls.load(Ordering::SeqCst) - before, 0, "polls of streams that nothing was for");
    let waiter = ResultWaiter { stream_id: 7, connection: 1, number: 1 };
    caller.send(&batch(vec![put("awaited", Some(waiter)), cancel(["awaited".to_owned()])])).await;
    caller.bytes().await;
    let polls = server.polls.load(Ordering::SeqCst) - before;
    // Once for the delivery, once to find nothing more, and at most once more because of a late wake-up.
    assert!((1..=3).contains(&polls), "{polls} polls for one delivery");
    assert_eq!(waiting.push().await.0, "gt:front:7");
    server.end().await;
}

#[tokio::test]
async fn all_deliveries_of_a_command_come_before_its_reply() {
    // More than one turn of a task may handle before it has to yield.
    const JOBS: u64 = 1_000;
    let server = Server::start().await;
    let mut caller = server.waiting_client(5..6).await;
    let waiter = |number| ResultWaiter { stream_id: 5, connection: 1, number };
    caller
        .send(&batch((0..JOBS).map(|number| put(&format!("j{number}"), Some(waiter(number)))).collect()))
        .await;
    caller.bytes().await;
    caller.send(&batch(vec![cancel((0..JOBS).map(|number| format!("j{number}")))])).await;
    for number in 0..JOBS {
        let (_, message) = caller.push().await;
        assert_eq!(wire::decode::<StreamMessage>(&message).unwrap().waiter, waiter(number));
    }
    assert_eq!(wire::decode::<Vec<Answer>>(&caller.bytes().await).unwrap().len(), 1);
    server.end().await;
}
