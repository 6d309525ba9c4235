//! A server, and a client that shows replies as they came.
#![allow(dead_code, reason = "each test file uses its part")]
use std::path::Path;
use std::sync::Arc;

use bytes::{Buf, BytesMut};
use geartrain_core::{Backend, Clock};
use geartrain_resp::{Front, Options};
use geartrain_store::{StoreBackend, StoreOptions};
use geartrain_testkit::clock::ManualClock;
use geartrain_testkit::disk::SimDisk;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// A RESP value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Nil,
    Simple(String),
    Error(String),
    Integer(i64),
    Double(String),
    Bulk(String),
    Array(Vec<Value>),
    Map(Vec<(Value, Value)>),
    Push(Vec<Value>),
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Bulk(text.to_owned())
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Value {
        Value::Integer(number)
    }
}

impl Value {
    pub(crate) fn error(text: &str) -> Value {
        Value::Error(text.to_owned())
    }

    /// An error as Qless clients get it.
    pub(crate) fn wrong(message: &str) -> Value {
        Value::Error(format!("ERR user_script:1: {message}"))
    }

    pub(crate) fn simple(text: &str) -> Value {
        Value::Simple(text.to_owned())
    }

    pub(crate) fn array<T: Into<Value>>(values: impl IntoIterator<Item = T>) -> Value {
        Value::Array(values.into_iter().map(Into::into).collect())
    }

    pub(crate) fn text(&self) -> &str {
        match self {
            Value::Bulk(text) | Value::Simple(text) | Value::Error(text) => text,
            other => panic!("not a text: {other:?}"),
        }
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        match self {
            Value::Bulk(text) => serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}")),
            other => panic!("not JSON: {other:?}"),
        }
    }

    pub(crate) fn items(&self) -> &[Value] {
        match self {
            Value::Array(items) | Value::Push(items) => items,
            other => panic!("not a list: {other:?}"),
        }
    }
}

/// A front-end over a backend in memory.
pub(crate) struct Server {
    pub(crate) port: u16,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) backend: Arc<StoreBackend>,
    front: Front,
    pub(crate) stop: CancellationToken,
    pub(crate) task: Option<JoinHandle<()>>,
}

impl Server {
    pub(crate) async fn start() -> Server {
        Server::with(Options::default()).await
    }

    pub(crate) async fn with(options: Options) -> Server {
        let clock = ManualClock::new();
        Server::over(StoreBackend::in_memory(clock.clone()).unwrap(), clock, options).await
    }

    /// A front-end over a backend on a simulated disk.
    pub(crate) async fn on_disk() -> Server {
        let (disk, clock) = (Arc::new(SimDisk::new(1)), ManualClock::new());
        let backend = StoreBackend::open_on(disk, StoreOptions::default(), clock.clone()).unwrap();
        Server::over(backend, clock, Options::default()).await
    }

    async fn over(backend: StoreBackend, clock: Arc<ManualClock>, options: Options) -> Server {
        let backend = Arc::new(backend);
        let front = Front::new(backend.clone() as Arc<dyn Backend>, clock.clone() as Arc<dyn Clock>, options);
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let stop = CancellationToken::new();
        let (serving, stopped) = (front.clone(), stop.clone());
        let task = tokio::spawn(async move { serving.serve_tcp(listener, stopped).await });
        Server { port, clock, backend, front, stop, task: Some(task) }
    }

    /// Serves a socket file as well, until the server stops.
    pub(crate) fn serve_unix(&self, path: &Path) -> JoinHandle<()> {
        let (front, stop, listener) =
            (self.front.clone(), self.stop.clone(), UnixListener::bind(path).unwrap());
        tokio::spawn(async move { front.serve_unix(listener, stop).await })
    }

    pub(crate) async fn peer(&self) -> Peer {
        Peer::connect(self.port).await
    }

    /// A client that has loaded the script.
    pub(crate) async fn qless(&self) -> Peer {
        let mut peer = self.peer().await;
        peer.sha = peer.ask(&["SCRIPT", "LOAD", "return qless"]).await.text().to_owned();
        peer
    }

    pub(crate) async fn end(mut self) {
        self.stop.cancel();
        self.task.take().unwrap().await.unwrap();
    }
}

/// A client connection.
pub(crate) struct Peer<S = TcpStream> {
    pub(crate) stream: S,
    incoming: BytesMut,
    pub(crate) sha: String,
}

pub(crate) fn request<T: AsRef<[u8]>>(words: &[T]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.as_ref().len()).as_bytes());
        bytes.extend_from_slice(word.as_ref());
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

impl Peer {
    pub(crate) async fn connect(port: u16) -> Peer {
        let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Peer::over(stream)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Peer<S> {
    pub(crate) fn over(stream: S) -> Peer<S> {
        Peer { stream, incoming: BytesMut::new(), sha: String::new() }
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    pub(crate) async fn ask<T: AsRef<[u8]>>(&mut self, words: &[T]) -> Value {
        self.send(&request(words)).await;
        self.read().await
    }

    /// The bytes of a Qless call, whose words are separated by single blanks.
    pub(crate) fn call(&self, text: &str) -> Vec<u8> {
        self.call_words(&text.split(' ').collect::<Vec<_>>())
    }

    pub(crate) fn call_words(&self, words: &[&str]) -> Vec<u8> {
        let head = ["EVALSHA", &self.sha, "0"];
        request(&head.into_iter().chain(words.iter().copied()).collect::<Vec<_>>())
    }

    /// Calls Qless, and returns the reply.
    pub(crate) async fn qless(&mut self, text: &str) -> Value {
        let bytes = self.call(text);
        self.send(&bytes).await;
        self.read().await
    }

    pub(crate) async fn qless_words(&mut self, words: &[&str]) -> Value {
        let bytes = self.call_words(words);
        self.send(&bytes).await;
        self.read().await
    }

    /// The next value; panics if the connection ends.
    pub(crate) async fn read(&mut self) -> Value {
        self.next().await.expect("the connection ended")
    }

    /// The next value, or None if the connection ends.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(value) = take(&mut self.incoming) {
                return Some(value);
            }
            match self.stream.read_buf(&mut self.incoming).await {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    /// The next value, which is a binary bulk string.
    pub(crate) async fn bytes(&mut self) -> Vec<u8> {
        loop {
            if let Some(bytes) = take_bulk(&mut self.incoming) {
                return bytes;
            }
            let read = self.stream.read_buf(&mut self.incoming).await.unwrap();
            assert!(read > 0, "the connection ended");
        }
    }

    /// The next value, which is a message with a binary text.
    pub(crate) async fn push(&mut self) -> (String, Vec<u8>) {
        loop {
            // Parsed only when it is complete: then its strings are read one by one.
            let whole = take(&mut self.incoming.clone()).is_some();
            if whole && self.incoming.starts_with(b">3\r\n") {
                self.incoming.advance(4);
                let kind = self.bytes().await;
                let (channel, message) = (self.bytes().await, self.bytes().await);
                assert_eq!(kind, b"message");
                return (String::from_utf8(channel).unwrap(), message);
            }
            assert!(!whole, "not a push: {:?}", self.incoming);
            let read = self.stream.read_buf(&mut self.incoming).await.unwrap();
            assert!(read > 0, "the connection ended");
        }
    }

    /// A message's channel and text.
    pub(crate) async fn message(&mut self) -> (String, String) {
        let value = self.read().await;
        match value.items() {
            [kind, channel, text] if kind.text() == "message" => {
                (channel.text().to_owned(), text.text().to_owned())
            }
            [kind, _, channel, text] if kind.text() == "pmessage" => {
                (channel.text().to_owned(), text.text().to_owned())
            }
            _ => panic!("not a message: {value:?}"),
        }
    }
}

/// Takes the next value out of the buffer, if it is complete.
pub(crate) fn take(incoming: &mut BytesMut) -> Option<Value> {
    let mut rest = &incoming[..];
    let value = parse(&mut rest)?;
    let used = incoming.len() - rest.len();
    incoming.advance(used);
    Some(value)
}

/// The same for a binary bulk string.
fn take_bulk(incoming: &mut BytesMut) -> Option<Vec<u8>> {
    let end = incoming.windows(2).position(|two| two == b"\r\n")?;
    let head = String::from_utf8_lossy(&incoming[..end]).into_owned();
    let length: usize =
        head.strip_prefix('$').unwrap_or_else(|| panic!("not a text: {head}")).parse().unwrap();
    if incoming.len() < end + 4 + length {
        return None;
    }
    incoming.advance(end + 2);
    let bytes = incoming.split_to(length).to_vec();
    incoming.advance(2);
    Some(bytes)
}

fn parse(rest: &mut &[u8]) -> Option<Value> {
    let end = rest.windows(2).position(|two| two == b"\r\n")?;
    let line = String::from_utf8_lossy(&rest[1..end]).into_owned();
    let kind = rest[0];
    *rest = &rest[end + 2..];
    let list = |rest: &mut &[u8], count: usize| (0..count).map(|_| parse(rest)).collect::<Option<Vec<_>>>();
    Some(match kind {
        b'+' => Value::Simple(line),
        b'-' => Value::Error(line),
        b':' => Value::Integer(line.parse().unwrap()),
        b',' => Value::Double(line),
        b'_' => Value::Nil,
        b'$' if line == "-1" => Value::Nil,
        b'$' => {
            let length: usize = line.parse().unwrap();
            if rest.len() < length + 2 {
                return None;
            }
            let text = String::from_utf8_lossy(&rest[..length]).into_owned();
            assert_eq!(&rest[length..length + 2], b"\r\n");
            *rest = &rest[length + 2..];
            Value::Bulk(text)
        }
        b'*' => Value::Array(list(rest, line.parse().unwrap())?),
        b'>' => Value::Push(list(rest, line.parse().unwrap())?),
        b'%' => {
            let count: usize = line.parse().unwrap();
            let pairs = (0..count).map(|_| Some((parse(rest)?, parse(rest)?)));
            Value::Map(pairs.collect::<Option<_>>()?)
        }
        other => panic!("not RESP: {:?} {line}", char::from(other)),
    })
}
