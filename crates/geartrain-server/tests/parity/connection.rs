//! A RESP3 connection that collects replies and messages, and a geartrain server in memory.

use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, mpsc};

use geartrain_redis::script;
use geartrain_resp::{Front, Options};
use geartrain_store::StoreBackend;
use geartrain_testkit::clock::ManualClock;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// A RESP3 value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Reply {
    Nil,
    Status(String),
    Error(String),
    Number(i64),
    Bulk(Vec<u8>),
    List(Vec<Reply>),
    Push(Vec<Reply>),
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reply::Nil => write!(f, "nil"),
            Reply::Status(text) => write!(f, "+{text}"),
            Reply::Error(text) => write!(f, "error {text}"),
            Reply::Number(number) => write!(f, "{number}"),
            Reply::Bulk(bytes) => write!(f, "{}", String::from_utf8_lossy(bytes)),
            Reply::List(list) | Reply::Push(list) => {
                f.write_str("[")?;
                list.iter().try_for_each(|said| write!(f, "{said}, "))?;
                f.write_str("]")
            }
        }
    }
}

/// The result of a call: its reply, and the messages that it published, with their channels.
#[derive(Debug, PartialEq)]
pub(crate) struct CallResult {
    pub(crate) reply: Reply,
    pub(crate) messages: Vec<(Vec<u8>, Vec<u8>)>,
}

/// A connection for calls and subscriptions at once, which RESP3 allows.
pub(crate) struct Connection {
    reader: BufReader<TcpStream>,
}

impl Connection {
    pub(crate) fn open(address: SocketAddr) -> Connection {
        let stream = TcpStream::connect(address).expect("the server is there");
        stream.set_nodelay(true).expect("a socket takes options");
        let mut connection = Connection { reader: BufReader::new(stream) };
        // HELLO returns a map of any length.
        connection.send(&[&[&b"HELLO"[..], b"3"]]);
        connection.read();
        let load: [&[u8]; 3] = [b"SCRIPT", b"LOAD", script::script().text.as_bytes()];
        assert_eq!(connection.call(&load).reply, Reply::Bulk(script::script().sha.clone().into_bytes()));
        connection.send(&[&[&b"PSUBSCRIBE"[..], b"ql:*"]]);
        connection.read();
        connection
    }

    fn send(&mut self, requests: &[&[&[u8]]]) {
        let mut bytes = Vec::new();
        for request in requests {
            bytes.extend_from_slice(format!("*{}\r\n", request.len()).as_bytes());
            for argument in *request {
                bytes.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
                bytes.extend_from_slice(argument);
                bytes.extend_from_slice(b"\r\n");
            }
        }
        self.reader.get_mut().write_all(&bytes).expect("the server listens");
    }

    /// Sends a request, and a second one whose reply marks the end of the messages of the first: a Redis
    /// sends the caller's own messages after the reply, a geartrain server before it.
    pub(crate) fn begin(&mut self, request: &[&[u8]]) {
        self.send(&[request, &[b"PING"]]);
    }

    /// Reads the result of the request.
    pub(crate) fn end(&mut self) -> CallResult {
        let (mut replies, mut messages) = (Vec::new(), Vec::new());
        while replies.len() < 2 {
            match self.read() {
                Reply::Push(parts) => messages.push(message(parts)),
                reply => replies.push(reply),
            }
        }
        assert_eq!(replies.pop(), Some(Reply::Status("PONG".into())));
        CallResult { reply: replies.remove(0), messages }
    }

    pub(crate) fn call(&mut self, request: &[&[u8]]) -> CallResult {
        self.begin(request);
        self.end()
    }

    fn read(&mut self) -> Reply {
        let mut line = Vec::new();
        self.reader.read_until(b'\n', &mut line).expect("the server answers");
        line.truncate(line.len().saturating_sub(2));
        let (kind, rest) = line.split_first().expect("the server does not hang up");
        let text = || String::from_utf8_lossy(rest).into_owned();
        let number = || text().parse::<i64>().unwrap_or_else(|_| panic!("{} is no number", text()));
        let length = || usize::try_from(number()).expect("RESP3 has no negative lengths");
        match kind {
            b'+' => Reply::Status(text()),
            b'-' => Reply::Error(text()),
            b':' => Reply::Number(number()),
            b'_' => Reply::Nil,
            b'$' => {
                let mut bytes = vec![0; length() + 2];
                self.reader.read_exact(&mut bytes).expect("a whole reply comes");
                bytes.truncate(bytes.len() - 2);
                Reply::Bulk(bytes)
            }
            b'*' => Reply::List((0..length()).map(|_| self.read()).collect()),
            b'>' => Reply::Push((0..length()).map(|_| self.read()).collect()),
            b'%' => Reply::List((0..2 * length()).map(|_| self.read()).collect()),
            other => panic!("unexpected type byte {:?}", char::from(*other)),
        }
    }
}

/// Channel and text of a message for a pattern subscription.
fn message(parts: Vec<Reply>) -> (Vec<u8>, Vec<u8>) {
    match <[Reply; 4]>::try_from(parts) {
        Ok([Reply::Bulk(_), Reply::Bulk(_), Reply::Bulk(channel), Reply::Bulk(text)]) => (channel, text),
        other => panic!("{other:?} is no message"),
    }
}

/// A geartrain server in memory, stopped when dropped.
pub(crate) struct MemoryServer {
    pub(crate) address: SocketAddr,
    stop: CancellationToken,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl MemoryServer {
    pub(crate) fn start() -> MemoryServer {
        let stop = CancellationToken::new();
        let (address, addresses) = mpsc::channel();
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async move {
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
                address.send(listener.local_addr().expect("it is bound")).expect("the test waits for it");
                let clock = ManualClock::new();
                let store = StoreBackend::in_memory(clock.clone()).expect("a thread can be started");
                Front::new(Arc::new(store), clock, Options::default()).serve_tcp(listener, stopped).await;
            });
        });
        MemoryServer { address: addresses.recv().expect("the server starts"), stop, thread: Some(thread) }
    }
}

impl Drop for MemoryServer {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.expect("the server does not panic");
            }
        }
    }
}
