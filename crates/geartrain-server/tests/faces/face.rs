//! One of the two that are asked the same: its connection, and the server behind it.

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

/// What a server says, in RESP3.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Said {
    Nil,
    Status(String),
    Error(String),
    Number(i64),
    Bulk(Vec<u8>),
    List(Vec<Said>),
    Push(Vec<Said>),
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Said::Nil => write!(f, "nil"),
            Said::Status(text) => write!(f, "+{text}"),
            Said::Error(text) => write!(f, "error {text}"),
            Said::Number(number) => write!(f, "{number}"),
            Said::Bulk(bytes) => write!(f, "{}", String::from_utf8_lossy(bytes)),
            Said::List(list) | Said::Push(list) => {
                f.write_str("[")?;
                list.iter().try_for_each(|said| write!(f, "{said}, "))?;
                f.write_str("]")
            }
        }
    }
}

/// What one call came to: its reply, and each message that it published, with the channel before it.
#[derive(Debug, PartialEq)]
pub(crate) struct Came {
    pub(crate) reply: Said,
    pub(crate) heard: Vec<(Vec<u8>, Vec<u8>)>,
}

/// A connection that asks and listens at once, which RESP3 allows.
pub(crate) struct Connection {
    reader: BufReader<TcpStream>,
}

impl Connection {
    pub(crate) fn open(address: SocketAddr) -> Connection {
        let stream = TcpStream::connect(address).expect("the server is there");
        stream.set_nodelay(true).expect("a socket takes options");
        let mut connection = Connection { reader: BufReader::new(stream) };
        // HELLO answers a map, of whatever length.
        connection.send(&[&[&b"HELLO"[..], b"3"]]);
        connection.read();
        let load: [&[u8]; 3] = [b"SCRIPT", b"LOAD", script::script().text.as_bytes()];
        assert_eq!(connection.ask(&load).reply, Said::Bulk(script::script().sha.clone().into_bytes()));
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

    /// Sends a request, with another behind it whose reply says that all which the first one published is there: a Redis sends its own caller's messages
    /// behind the reply, a geartrain server before it.
    pub(crate) fn begin(&mut self, request: &[&[u8]]) {
        self.send(&[request, &[b"PING"]]);
    }

    /// What the request came to.
    pub(crate) fn end(&mut self) -> Came {
        let (mut replies, mut heard) = (Vec::new(), Vec::new());
        while replies.len() < 2 {
            match self.read() {
                Said::Push(parts) => heard.push(message(parts)),
                reply => replies.push(reply),
            }
        }
        assert_eq!(replies.pop(), Some(Said::Status("PONG".into())));
        Came { reply: replies.remove(0), heard }
    }

    pub(crate) fn ask(&mut self, request: &[&[u8]]) -> Came {
        self.begin(request);
        self.end()
    }

    fn read(&mut self) -> Said {
        let mut line = Vec::new();
        self.reader.read_until(b'\n', &mut line).expect("the server answers");
        line.truncate(line.len().saturating_sub(2));
        let (kind, rest) = line.split_first().expect("the server does not hang up");
        let text = || String::from_utf8_lossy(rest).into_owned();
        let number = || text().parse::<i64>().unwrap_or_else(|_| panic!("{} is no number", text()));
        let length = || usize::try_from(number()).expect("RESP3 has no negative lengths");
        match kind {
            b'+' => Said::Status(text()),
            b'-' => Said::Error(text()),
            b':' => Said::Number(number()),
            b'_' => Said::Nil,
            b'$' => {
                let mut bytes = vec![0; length() + 2];
                self.reader.read_exact(&mut bytes).expect("a whole reply comes");
                bytes.truncate(bytes.len() - 2);
                Said::Bulk(bytes)
            }
            b'*' => Said::List((0..length()).map(|_| self.read()).collect()),
            b'>' => Said::Push((0..length()).map(|_| self.read()).collect()),
            b'%' => Said::List((0..2 * length()).map(|_| self.read()).collect()),
            other => panic!("nobody should answer with {:?}", char::from(*other)),
        }
    }
}

/// Channel and text of a message to somebody who listens to a pattern.
fn message(parts: Vec<Said>) -> (Vec<u8>, Vec<u8>) {
    match <[Said; 4]>::try_from(parts) {
        Ok([Said::Bulk(_), Said::Bulk(_), Said::Bulk(channel), Said::Bulk(text)]) => (channel, text),
        other => panic!("{other:?} is no message"),
    }
}

/// A geartrain server over an engine in memory, as long as this is held.
pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    stop: CancellationToken,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Served {
    pub(crate) fn start() -> Served {
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
        Served { address: addresses.recv().expect("the server starts"), stop, thread: Some(thread) }
    }
}

impl Drop for Served {
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
