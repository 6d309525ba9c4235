//! A front-end over an in-memory engine, and peers that connect to it over real sockets.
#![allow(dead_code, reason = "not every test uses everything")]

pub(crate) mod faulty;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use geartrain_core::SystemClock;
use geartrain_core::{Backend, Call, Clock, Operation};
use geartrain_gearman::front::{Front, Options};
use geartrain_gearman::packet::{
    Assignment, Grab, JobStatus, Mode, Priority, Report, ReportBody, Request, Response, Submission,
};
use geartrain_gearman::{Incoming, Parser};
use geartrain_store::StoreBackend;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Timeout of anything that must happen, for a busy machine.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A running front-end.
pub(crate) struct Server {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) address: SocketAddr,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Server {
    pub(crate) async fn start() -> Server {
        Server::with(Options::default()).await
    }

    pub(crate) async fn with(options: Options) -> Server {
        Server::at(Arc::new(SystemClock), options).await
    }

    pub(crate) async fn at(clock: Arc<dyn Clock>, options: Options) -> Server {
        let backend = Arc::new(StoreBackend::in_memory(clock.clone()).unwrap());
        Server::over(backend, clock, options).await
    }

    pub(crate) async fn over(backend: Arc<dyn Backend>, clock: Arc<dyn Clock>, options: Options) -> Server {
        let options = Options { host: "lap".to_owned(), ..options };
        let front = Front::new(backend.clone(), clock, options);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
        let stopped = stop.clone();
        let task = tokio::spawn(async move { front.serve(listener, stopped).await });
        Server { backend, address, stop, task }
    }

    pub(crate) async fn peer(&self) -> Peer {
        Peer::connect(self.address).await
    }

    /// A worker that offers this function.
    pub(crate) async fn worker(&self, function: &str) -> Peer {
        let mut worker = self.peer().await;
        worker.send(Request::CanDo { function, timeout: None }).await;
        worker.sync().await;
        worker
    }

    /// Executes an operation at the backend directly.
    pub(crate) async fn run<O: Operation>(&self, operation: O) -> O::Reply {
        let answer = self.backend.execute(vec![Call::from(operation)]).await.unwrap().pop().unwrap();
        O::answer(answer.unwrap()).unwrap()
    }

    pub(crate) async fn end(self) {
        self.stop.cancel();
        tokio::time::timeout(TIMEOUT, self.task).await.unwrap().unwrap();
    }
}

/// A connected peer.
pub(crate) struct Peer {
    pub(crate) stream: TcpStream,
    bytes: BytesMut,
    parser: Parser,
}

impl Peer {
    pub(crate) async fn connect(address: SocketAddr) -> Peer {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let options = geartrain_gearman::Options { line_bytes_max: 1 << 20, ..Default::default() };
        Peer { stream, bytes: BytesMut::new(), parser: Parser::client(options) }
    }

    pub(crate) async fn send<B: AsRef<[u8]>>(&mut self, request: Request<B>) {
        let mut out = BytesMut::new();
        request.encode(&mut out).unwrap();
        self.raw(&out).await;
    }

    pub(crate) async fn raw(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    pub(crate) async fn incoming(&mut self) -> Option<Incoming> {
        loop {
            if let Some(incoming) = self.parser.next(&mut self.bytes).unwrap() {
                return Some(incoming);
            }
            let read = tokio::time::timeout(TIMEOUT, self.stream.read_buf(&mut self.bytes)).await;
            match read.expect("an answer in time") {
                Ok(1..) => {}
                _ => return None,
            }
        }
    }

    pub(crate) async fn next(&mut self) -> Response {
        match self.incoming().await.expect("a packet, not the end") {
            Incoming::Packet(packet) => Response::decode(packet).unwrap(),
            other => panic!("not a packet: {other:?}"),
        }
    }

    pub(crate) async fn line(&mut self) -> String {
        match self.incoming().await.expect("a line, not the end") {
            Incoming::Line(line) => String::from_utf8(line.to_vec()).unwrap(),
            other => panic!("not a line: {other:?}"),
        }
    }

    /// Sends an admin command and reads a list.
    pub(crate) async fn list(&mut self, command: &str) -> Vec<String> {
        self.raw(format!("{command}\n").as_bytes()).await;
        let mut lines = Vec::new();
        loop {
            match self.line().await {
                end if end == "." => return lines,
                line => lines.push(line),
            }
        }
    }

    /// Sends an admin command and reads one line.
    pub(crate) async fn ask(&mut self, command: &str) -> String {
        self.raw(format!("{command}\n").as_bytes()).await;
        self.line().await
    }

    /// Whether the server closes the connection without sending anything more.
    pub(crate) async fn is_closed(&mut self) -> bool {
        self.incoming().await.is_none()
    }

    /// Reads exactly these bytes.
    pub(crate) async fn expect(&mut self, bytes: &[u8]) {
        while self.bytes.len() < bytes.len() {
            let read = tokio::time::timeout(TIMEOUT, self.stream.read_buf(&mut self.bytes)).await;
            assert!(read.expect("an answer in time").unwrap() > 0, "the end, after {:02x?}", &self.bytes[..]);
        }
        let got = self.bytes.split_to(bytes.len());
        assert_eq!(&got[..], bytes, "got {:02x?}", &got[..]);
    }

    /// Returns when everything sent before is processed. No other packet may be pending.
    pub(crate) async fn sync(&mut self) {
        self.send(Request::Echo { data: "sync" }).await;
        assert_eq!(self.next().await, Response::Echo { data: "sync".into() });
    }

    /// Submits a job and reads its handle.
    pub(crate) async fn submit(
        &mut self,
        function: &str,
        unique: &str,
        data: &str,
        mode: Mode<&str>,
    ) -> Bytes {
        self.send(Request::Submit(Submission { function, unique, data, mode })).await;
        match self.next().await {
            Response::JobCreated { handle } => handle,
            other => panic!("no handle: {other:?}"),
        }
    }

    pub(crate) async fn foreground(&mut self, function: &str, unique: &str, data: &str) -> Bytes {
        self.submit(function, unique, data, Mode::Foreground(Priority::Normal)).await
    }

    pub(crate) async fn background(&mut self, function: &str, unique: &str, data: &str) -> Bytes {
        self.submit(function, unique, data, Mode::Background(Priority::Normal)).await
    }

    /// Asks for a job.
    pub(crate) async fn grab(&mut self) -> Option<Assignment> {
        self.send(Request::<&str>::Grab(Grab::Unique)).await;
        match self.next().await {
            Response::Assign(assignment) => Some(assignment),
            Response::NoJob => None,
            other => panic!("no answer to a grab: {other:?}"),
        }
    }

    pub(crate) async fn report(&mut self, handle: &Bytes, body: ReportBody<&str>) {
        let handle = std::str::from_utf8(handle).unwrap();
        self.send(Request::Report(Report { handle, body })).await;
    }

    /// The next report.
    pub(crate) async fn next_report(&mut self) -> (Bytes, ReportBody) {
        match self.next().await {
            Response::Report(Report { handle, body }) => (handle, body),
            other => panic!("no report: {other:?}"),
        }
    }

    pub(crate) async fn status(&mut self, handle: &Bytes) -> JobStatus {
        self.send(Request::GetStatus { handle: &handle[..] }).await;
        match self.next().await {
            Response::Status { handle: of, status } => {
                assert_eq!(of, *handle);
                status
            }
            other => panic!("no status: {other:?}"),
        }
    }

    pub(crate) async fn sleep(&mut self) {
        self.send(Request::<&str>::PreSleep).await;
    }

    pub(crate) async fn expect_noop(&mut self) {
        assert_eq!(self.next().await, Response::Noop);
    }
}
