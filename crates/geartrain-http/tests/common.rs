//! A server over a queue in memory, and a client that sends what it is told to.

use std::net::SocketAddr;
use std::sync::Arc;

use geartrain_core::{Backend, SystemClock};
use geartrain_http::{Front, Options};
use geartrain_store::{StoreBackend, StoreOptions};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Server {
    pub(crate) async fn start() -> Server {
        Server::with(Options::default()).await
    }

    pub(crate) async fn with(options: Options) -> Server {
        Server::over(Arc::new(StoreBackend::in_memory(Arc::new(SystemClock)).unwrap()), options).await
    }

    pub(crate) async fn over(backend: Arc<dyn Backend>, options: Options) -> Server {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
        let front = Front::new(backend.clone(), options, stop.clone());
        let task = tokio::spawn(async move { front.serve_tcp(listener).await });
        Server { address, backend, stop, task }
    }

    pub(crate) async fn end(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }

    /// Sends one request on a connection of its own. The body is JSON, unless it is empty.
    pub(crate) async fn send(&self, method: &str, path: &str, body: &str) -> Response {
        let content_type = if body.is_empty() { "" } else { "Content-Type: application/json\r\n" };
        self.send_with(method, path, content_type, body.as_bytes()).await
    }

    /// The same with other headers.
    pub(crate) async fn send_with(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Response {
        let mut stream = self.open(method, path, headers, body).await;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await.unwrap();
        Response::parse(&bytes)
    }

    /// Sends a request and leaves the response unread.
    pub(crate) async fn open(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let host = if headers.contains("Host:") { "" } else { "Host: localhost\r\n" };
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\n{host}{headers}Connection: close\r\nContent-Length: {length}\r\n\r\n"
        );
        stream.write_all(&[head.as_bytes(), body].concat()).await.unwrap();
        stream
    }

    /// A request that succeeds.
    pub(crate) async fn ask(&self, method: &str, path: &str, body: &str) -> Value {
        let response = self.send(method, path, body).await;
        assert_eq!(response.status, 200, "{method} {path} {body}: {}", response.body);
        response.json()
    }

    /// A request that is refused: its status and code.
    pub(crate) async fn refused(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        self.send(method, path, body).await.refusal()
    }
}

/// A queue that is stored in a directory.
pub(crate) fn stored(directory: &std::path::Path) -> Arc<dyn Backend> {
    Arc::new(StoreBackend::open(directory, StoreOptions::default(), Arc::new(SystemClock)).unwrap())
}

/// A directory that is removed when the test ends.
pub(crate) struct Directory(std::path::PathBuf);

impl Directory {
    pub(crate) fn new(name: &str) -> Directory {
        Directory(std::env::temp_dir().join(format!("geartrain-http-{name}-{}", std::process::id())))
    }

    pub(crate) fn path(&self) -> &std::path::Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Response {
    fn parse(bytes: &[u8]) -> Response {
        let text = String::from_utf8_lossy(bytes);
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no response: {text:?}"));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap();
        Response { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    pub(crate) fn refusal(&self) -> (u16, String) {
        let error = &self.json()["error"];
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{}", self.body);
        assert!(error.get("help").is_some(), "{}", self.body);
        (self.status, error["code"].as_str().unwrap().to_owned())
    }
}

/// The messages of an event stream.
pub(crate) struct Messages {
    stream: TcpStream,
    read: String,
}

impl Messages {
    /// Reads the head of the response.
    pub(crate) async fn of(stream: TcpStream) -> Messages {
        let mut messages = Messages { stream, read: String::new() };
        let head = messages.until("\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        assert!(head.to_ascii_lowercase().contains("content-type: text/event-stream"), "{head}");
        messages
    }

    /// Reads until the stream ends; panics if a message comes.
    pub(crate) async fn ended(&mut self) {
        let mut bytes = [0; 4096];
        while let Ok(length @ 1..) = self.stream.read(&mut bytes).await {
            let text = String::from_utf8_lossy(&bytes[..length]);
            assert!(!text.contains("data: "), "{text}");
        }
    }

    async fn until(&mut self, end: &str) -> String {
        loop {
            if let Some(at) = self.read.find(end) {
                let rest = self.read.split_off(at + end.len());
                return std::mem::replace(&mut self.read, rest);
            }
            let mut bytes = [0; 4096];
            let length = self.stream.read(&mut bytes).await.unwrap();
            assert!(length > 0, "the stream has ended: {:?}", self.read);
            self.read.push_str(std::str::from_utf8(&bytes[..length]).unwrap());
        }
    }

    /// The id, the type and the data of the next message.
    pub(crate) async fn next(&mut self) -> (String, String, Value) {
        loop {
            let text = self.until("\n\n").await;
            // Lines of the chunked encoding stand between messages.
            let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
            let Some(data) = field("data: ") else { continue };
            let data = serde_json::from_str(&data).unwrap_or_else(|error| panic!("{error}: {text}"));
            return (field("id: ").unwrap_or_default(), field("event: ").unwrap_or_default(), data);
        }
    }
}
