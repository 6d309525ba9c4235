//! An HTTP server that does what a test says, byte by byte.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

/// A request as it came over the connection.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    /// Method, path and version.
    pub(crate) line: String,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }
}

/// A step of a response.
#[derive(Clone)]
pub(crate) enum Step {
    Send(Vec<u8>),
    /// Sends these bytes again and again.
    SendForever(Vec<u8>),
    /// Sends nothing more, and keeps the connection.
    Hang,
    Close,
}

type Responder = Arc<dyn Fn(&Request) -> Vec<Step> + Send + Sync>;

/// A server on a free port, gone with its test.
pub(crate) struct Server {
    address: SocketAddr,
    scheme: &'static str,
    requests: Arc<Mutex<Vec<Request>>>,
    connections: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Server {
    pub(crate) async fn start(respond: impl Fn(&Request) -> Vec<Step> + Send + Sync + 'static) -> Server {
        Server::start_with(None, respond).await
    }

    /// A server that answers each request with this status line, these headers and this body.
    pub(crate) async fn answering(status: &str, headers: &str, body: &str) -> Server {
        let response = response(status, headers, body);
        Server::start(move |_| vec![Step::Send(response.clone())]).await
    }

    pub(crate) async fn start_with(
        tls: Option<TlsAcceptor>,
        respond: impl Fn(&Request) -> Vec<Step> + Send + Sync + 'static,
    ) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let respond: Responder = Arc::new(respond);
        let requests = Arc::new(Mutex::new(Vec::new()));
        let connections = Arc::new(AtomicUsize::new(0));
        let (seen, count) = (Arc::clone(&requests), Arc::clone(&connections));
        let task = tokio::spawn(async move {
            // Ended together with this task.
            let mut open = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                let (respond, seen, tls) = (Arc::clone(&respond), Arc::clone(&seen), tls.clone());
                open.spawn(async move {
                    match tls {
                        Some(tls) => serve(tls.accept(stream).await?, respond, seen).await,
                        None => serve(stream, respond, seen).await,
                    }
                });
            }
        });
        Server { address, scheme, requests, connections, task }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}://{}{path}", self.scheme, self.address)
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().clone()
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The bytes of a response with a length.
pub(crate) fn response(status: &str, headers: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

async fn serve(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    respond: Responder,
    seen: Arc<Mutex<Vec<Request>>>,
) -> io::Result<()> {
    let mut buffer = Vec::new();
    while let Some(request) = read_request(&mut stream, &mut buffer).await? {
        let steps = respond(&request);
        seen.lock().push(request);
        for step in steps {
            match step {
                Step::Send(bytes) => stream.write_all(&bytes).await?,
                Step::SendForever(bytes) => loop {
                    stream.write_all(&bytes).await?;
                },
                Step::Hang => std::future::pending().await,
                Step::Close => return Ok(()),
            }
        }
    }
    Ok(())
}

async fn read_request(
    stream: &mut (impl AsyncRead + Unpin),
    buffer: &mut Vec<u8>,
) -> io::Result<Option<Request>> {
    let head_end = loop {
        if let Some(end) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            break end;
        }
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    };
    let head = String::from_utf8(buffer[..head_end].to_vec()).unwrap();
    let mut lines = head.split("\r\n");
    let line = lines.next().unwrap().to_owned();
    let headers: Vec<(String, String)> = lines
        .map(|line| line.split_once(": ").unwrap())
        .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
        .collect();
    let length = headers.iter().find(|(name, _)| name == "content-length").unwrap().1.parse().unwrap();
    buffer.drain(..head_end + 4);
    while buffer.len() < length {
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
    let body = buffer.drain(..length).collect();
    Ok(Some(Request { line, headers, body }))
}
