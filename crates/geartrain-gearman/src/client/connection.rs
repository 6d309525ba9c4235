//! Pipelined connection to a server: requests go out in order, and replies are matched to them in that order.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use parking_lot::{Mutex, MutexGuard};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::AbortHandle;

use super::error::ServerError;
use crate::packet::{Report, Request, Response};
use crate::{Incoming, Options, Parser};

/// The longest line of a list: a worker may have very many functions.
const LINE_BYTES_MAX: usize = 1 << 20;
/// The longest list.
const LIST_BYTES_MAX: usize = 64 << 20;
/// The least capacity offered to a read.
const READ_BYTES: usize = 16 << 10;

/// A connection. Dropping it closes it, and the server then forgets its state: held jobs return to their
/// queue, awaited submissions end.
pub(crate) struct Connection {
    /// `None` once the connection is closed on this side.
    writer: tokio::sync::Mutex<Option<Box<dyn AsyncWrite + Send + Unpin>>>,
    state: Arc<State>,
    reader_task: AbortHandle,
}

/// State shared by writer and reader.
struct State {
    server: String,
    timeout: Duration,
    /// Requests that wait for a reply, in the order sent; or why the connection is closed.
    pending: Mutex<Result<VecDeque<PendingReply>, ServerError>>,
    /// Notified by a NOOP, and when the connection is closed.
    wakeup: Arc<Notify>,
    /// Where reports on awaited jobs go. Dropped with the connection, so that the receiver notices its end.
    reports: Mutex<Option<mpsc::Sender<Report>>>,
}

/// A request that waits for its reply.
struct PendingReply {
    form: ReplyForm,
    reply_to: oneshot::Sender<Result<ServerReply, ServerError>>,
    /// The lines received so far.
    lines: Vec<Bytes>,
    bytes: usize,
    refused: Option<ServerError>,
}

/// The form of the expected reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReplyForm {
    /// One packet, or an ERROR in its place.
    Packet,
    /// The echo sent behind a request that has no reply. An ERROR may come before it.
    Echo,
    /// Lines up to a single dot.
    List,
    /// One line.
    Line,
}

enum ServerReply {
    Packet(Response),
    Lines(Vec<Bytes>),
}

impl Connection {
    /// Creates a connection over an open stream.
    pub(crate) fn new(
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        server: String,
        timeout: Duration,
        woken: Arc<Notify>,
        reports: Option<mpsc::Sender<Report>>,
    ) -> Connection {
        let (reader, writer) = tokio::io::split(stream);
        let state = State {
            server,
            timeout,
            pending: Mutex::new(Ok(VecDeque::new())),
            wakeup: woken,
            reports: Mutex::new(reports),
        };
        let state = Arc::new(state);
        let reader = tokio::spawn(read_replies(reader, state.clone())).abort_handle();
        Connection { writer: tokio::sync::Mutex::new(Some(Box::new(writer))), state, reader_task: reader }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state.pending().is_err()
    }

    pub(crate) fn close(&self) {
        self.close_with(self.state.lost("it was closed on this side"));
    }

    fn close_with(&self, error: ServerError) {
        self.state.close(error);
        self.reader_task.abort();
        // If a write is in progress, it drops the writer itself afterwards.
        if let Ok(mut writer) = self.writer.try_lock() {
            *writer = None;
        }
    }

    /// The error for a reply that does not fit its request.
    pub(crate) fn protocol_error(&self, detail: impl Into<String>) -> ServerError {
        ServerError::Protocol { server: self.state.server.clone(), detail: detail.into() }
    }

    /// Sends requests that have no reply.
    pub(crate) async fn send(&self, requests: &[Request<&[u8]>]) -> Result<(), ServerError> {
        let bytes = self.encode(requests)?;
        self.with_timeout(self.write(&bytes, None)).await
    }

    /// Sends a request and returns the packet that answers it.
    pub(crate) async fn request(&self, request: Request<&[u8]>) -> Result<Response, ServerError> {
        let bytes = self.encode(&[request])?;
        match self.exchange(&bytes, ReplyForm::Packet).await? {
            ServerReply::Packet(response) => Ok(response),
            ServerReply::Lines(_) => Err(self.protocol_error("a line where a packet should be")),
        }
    }

    /// Sends a request that has no reply but may be refused. Returns when the server has processed it.
    pub(crate) async fn report(&self, request: Request<&[u8]>) -> Result<(), ServerError> {
        let bytes = self.encode(&[request, Request::Echo { data: b"" }])?;
        self.exchange(&bytes, ReplyForm::Echo).await.map(drop)
    }

    /// Sends groups of requests at once, and returns the reply to the last request of each. The others of a group
    /// have no reply; an ERROR counts as that of its group.
    pub(crate) async fn pipeline(
        &self,
        groups: &[Vec<Request<&[u8]>>],
    ) -> Result<Vec<Result<Response, ServerError>>, ServerError> {
        let (mut bytes, mut pending) = (BytesMut::new(), Vec::with_capacity(groups.len()));
        let mut answers = Vec::with_capacity(groups.len());
        for group in groups {
            bytes.unsplit(self.encode(group)?);
            let form = match group.last() {
                Some(Request::Echo { .. }) => ReplyForm::Echo,
                _ => ReplyForm::Packet,
            };
            let (to, answer) = oneshot::channel();
            pending.push(PendingReply { form, reply_to: to, lines: Vec::new(), bytes: 0, refused: None });
            answers.push(answer);
        }
        let answered = async {
            self.write(&bytes, pending).await?;
            let mut replies = Vec::with_capacity(answers.len());
            for answer in answers {
                match answer.await.unwrap_or(Err(ServerError::ShutDown)) {
                    Ok(ServerReply::Packet(response)) => replies.push(Ok(response)),
                    Ok(ServerReply::Lines(_)) => {
                        return Err(self.protocol_error("a line where a packet should be"));
                    }
                    Err(refused @ ServerError::Refused { .. }) => replies.push(Err(refused)),
                    Err(error) => return Err(error),
                }
            }
            Ok(replies)
        };
        self.with_timeout(answered).await
    }

    /// Executes an admin command whose reply is a list.
    pub(crate) async fn admin_list(&self, command: &str) -> Result<Vec<Bytes>, ServerError> {
        self.admin_lines(command, ReplyForm::List).await
    }

    /// Executes an admin command whose reply is one line.
    pub(crate) async fn admin_line(&self, command: &str) -> Result<Bytes, ServerError> {
        self.admin_lines(command, ReplyForm::Line)
            .await?
            .pop()
            .ok_or_else(|| self.protocol_error("no line where one should be"))
    }

    async fn admin_lines(&self, command: &str, form: ReplyForm) -> Result<Vec<Bytes>, ServerError> {
        match self.exchange(format!("{command}\n").as_bytes(), form).await? {
            ServerReply::Lines(lines) => Ok(lines),
            ServerReply::Packet(_) => Err(self.protocol_error("a packet where a line should be")),
        }
    }

    fn encode(&self, requests: &[Request<&[u8]>]) -> Result<BytesMut, ServerError> {
        let mut bytes = BytesMut::new();
        for request in requests {
            request
                .encode(&mut bytes)
                .map_err(|bad| self.protocol_error(format!("it was to be sent, but {bad}")))?;
        }
        Ok(bytes)
    }

    async fn exchange(&self, bytes: &[u8], form: ReplyForm) -> Result<ServerReply, ServerError> {
        let answered = async {
            let (to, answer) = oneshot::channel();
            let pending = PendingReply { form, reply_to: to, lines: Vec::new(), bytes: 0, refused: None };
            self.write(bytes, Some(pending)).await?;
            answer.await.unwrap_or(Err(ServerError::ShutDown))
        };
        self.with_timeout(answered).await
    }

    /// Closes the connection on a timeout: after that, replies could no longer be matched to requests.
    async fn with_timeout<T>(
        &self,
        call: impl Future<Output = Result<T, ServerError>>,
    ) -> Result<T, ServerError> {
        match tokio::time::timeout(self.state.timeout, call).await {
            Ok(done) => done,
            Err(_) => {
                let timeout = ServerError::Timeout {
                    server: self.state.server.clone(),
                    seconds: self.state.timeout.as_secs(),
                };
                self.close_with(timeout.clone());
                Err(timeout)
            }
        }
    }

    async fn write(
        &self,
        bytes: &[u8],
        pending: impl IntoIterator<Item = PendingReply>,
    ) -> Result<(), ServerError> {
        // Locked until everything is written, so that requests go out in the order of their expected replies.
        let mut writer = self.writer.lock().await;
        match &mut *self.state.pending() {
            Ok(waiting) => waiting.extend(pending),
            Err(error) => return Err(error.clone()),
        }
        if let Some(writer) = &mut *writer {
            let written = async {
                writer.write_all(bytes).await?;
                writer.flush().await
            };
            if let Err(error) = written.await {
                self.state.close(self.state.lost(&error.to_string()));
                self.reader_task.abort();
            }
        }
        let error = self.state.pending().as_ref().err().cloned();
        if let Some(error) = error {
            *writer = None;
            return Err(error);
        }
        Ok(())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.reader_task.abort();
    }
}

/// Reads replies until the connection ends. The task is aborted when the [`Connection`] is dropped.
async fn read_replies(mut reader: impl AsyncRead + Unpin, state: Arc<State>) {
    let mut parser = Parser::client(Options { line_bytes_max: LINE_BYTES_MAX, ..Options::default() });
    let mut bytes = BytesMut::new();
    let error = loop {
        match parser.next(&mut bytes) {
            Ok(Some(incoming)) => {
                if let Err(error) = state.receive(incoming).await {
                    break error;
                }
            }
            Ok(None) => {
                bytes.reserve(READ_BYTES);
                match reader.read_buf(&mut bytes).await {
                    Ok(0) => break state.lost("the server closed it"),
                    Ok(_) => {}
                    Err(error) => break state.lost(&error.to_string()),
                }
            }
            Err(framing) => break state.protocol_error(framing.to_string()),
        }
    };
    state.close(error);
}

impl State {
    fn pending(&self) -> MutexGuard<'_, Result<VecDeque<PendingReply>, ServerError>> {
        self.pending.lock()
    }

    fn protocol_error(&self, detail: String) -> ServerError {
        ServerError::Protocol { server: self.server.clone(), detail }
    }

    fn lost(&self, why: &str) -> ServerError {
        ServerError::Lost { server: self.server.clone(), why: why.to_owned() }
    }

    /// Fails all pending requests. The first error counts.
    fn close(&self, error: ServerError) {
        let waiting = {
            let mut pending = self.pending();
            match &*pending {
                Ok(_) => std::mem::replace(&mut *pending, Err(error.clone())),
                Err(_) => return,
            }
        };
        for pending in waiting.into_iter().flatten() {
            // The caller may be gone.
            let _ = pending.reply_to.send(Err(error.clone()));
        }
        *self.reports.lock() = None;
        self.wakeup.notify_waiters();
    }

    async fn receive(&self, incoming: Incoming) -> Result<(), ServerError> {
        match incoming {
            Incoming::Packet(packet) => {
                let response =
                    Response::decode(packet).map_err(|fault| self.protocol_error(fault.to_string()))?;
                match response {
                    Response::Noop => self.wakeup.notify_waiters(),
                    Response::Report(report) => {
                        // Back-pressure: a slow receiver delays only this connection and its server.
                        let reports = self.reports.lock().clone();
                        if let Some(reports) = reports {
                            let _ = reports.send(report).await;
                        }
                    }
                    Response::Error { code, text } => self.receive_error(&code, &text)?,
                    response => self.receive_packet(response)?,
                }
                Ok(())
            }
            Incoming::Line(line) => self.receive_line(line),
            Incoming::Draft(_) | Incoming::Misdirected { .. } => {
                Err(self.protocol_error("a packet that clients send".to_owned()))
            }
        }
    }

    fn receive_packet(&self, response: Response) -> Result<(), ServerError> {
        let first = match &mut *self.pending() {
            Ok(waiting) => waiting.pop_front(),
            Err(_) => return Ok(()),
        };
        match first {
            Some(pending) if matches!(pending.form, ReplyForm::Packet | ReplyForm::Echo) => {
                if pending.form == ReplyForm::Echo && !matches!(response, Response::Echo { .. }) {
                    let error = self.protocol_error("another answer where an echo should be".to_owned());
                    let _ = pending.reply_to.send(Err(error.clone()));
                    return Err(error);
                }
                let _ = pending.reply_to.send(pending.refused.map_or(Ok(ServerReply::Packet(response)), Err));
                Ok(())
            }
            _ => Err(self.protocol_error("a reply without a request".to_owned())),
        }
    }

    fn receive_error(&self, code: &[u8], text: &[u8]) -> Result<(), ServerError> {
        let text = format!("{} ({})", String::from_utf8_lossy(text), String::from_utf8_lossy(code));
        let refused = ServerError::Refused { server: self.server.clone(), text };
        let mut pending = self.pending();
        let Ok(waiting) = &mut *pending else { return Ok(()) };
        match waiting.front_mut() {
            Some(first) if first.form == ReplyForm::Echo => first.refused = Some(refused),
            Some(_) => {
                if let Some(first) = waiting.pop_front() {
                    let _ = first.reply_to.send(Err(refused));
                }
            }
            None => return Err(refused),
        }
        Ok(())
    }

    fn receive_line(&self, line: Bytes) -> Result<(), ServerError> {
        let mut pending = self.pending();
        let Ok(waiting) = &mut *pending else { return Ok(()) };
        let unexpected = || self.protocol_error("a line without a request".to_owned());
        let first = waiting.front_mut().ok_or_else(unexpected)?;
        let refused = first.lines.is_empty() && line.starts_with(b"ERR ") && !line.contains(&b'\t');
        let done = match first.form {
            ReplyForm::Packet | ReplyForm::Echo => return Err(unexpected()),
            _ if refused => {
                let text = String::from_utf8_lossy(&line).into_owned();
                first.refused = Some(ServerError::Refused { server: self.server.clone(), text });
                true
            }
            ReplyForm::List if &line[..] == b"." => true,
            form => {
                first.bytes += line.len();
                if first.bytes > LIST_BYTES_MAX {
                    return Err(self.protocol_error(format!("a list of more than {LIST_BYTES_MAX} bytes")));
                }
                first.lines.push(line);
                form == ReplyForm::Line
            }
        };
        if done && let Some(first) = waiting.pop_front() {
            let _ = first.reply_to.send(first.refused.map_or(Ok(ServerReply::Lines(first.lines)), Err));
        }
        Ok(())
    }
}
