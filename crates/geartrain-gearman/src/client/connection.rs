//! One connection to a server: what is asked over it, and what comes back, in order.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::AbortHandle;

use super::error::ServerError;
use crate::packet::{Report, Request, Response};
use crate::{Incoming, Options, Parser};

/// The longest line of a list: a worker may be able to do very many things.
const LINE_BYTES_MAX: usize = 1 << 20;
/// The longest list.
const LIST_BYTES_MAX: usize = 64 << 20;
/// How many bytes are read at once, at least.
const READ_BYTES: usize = 16 << 10;

/// A connection. Dropping it ends it, and with it all that its server knows of it: jobs that it holds, and submissions that wait.
pub(crate) struct Connection {
    /// None once the connection has ended on this side.
    writer: tokio::sync::Mutex<Option<Box<dyn AsyncWrite + Send + Unpin>>>,
    state: Arc<State>,
    reader_task: AbortHandle,
}

/// What the two directions share.
struct State {
    server: String,
    timeout: Duration,
    /// Those who wait for an answer, in the order in which they asked; or why nobody can any more.
    pending: Mutex<Result<VecDeque<PendingReply>, ServerError>>,
    /// Told when the server says that there may be a job, and when the connection has ended.
    wakeup: Arc<Notify>,
    /// Where news of jobs go. Let go of when the connection has ended, so that whoever listens hears that.
    reports: Mutex<Option<mpsc::Sender<Report>>>,
}

/// Somebody who waits for an answer.
struct PendingReply {
    form: ReplyForm,
    reply_to: oneshot::Sender<Result<ServerReply, ServerError>>,
    /// What came of it so far.
    lines: Vec<Bytes>,
    bytes: usize,
    refused: Option<ServerError>,
}

/// What an answer looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReplyForm {
    /// One packet; an ERROR stands in its place.
    Packet,
    /// The echo that was sent behind something that has no answer. An ERROR may come before it.
    Echo,
    /// Lines, the last of which is a dot.
    List,
    /// One line.
    Line,
}

enum ServerReply {
    Packet(Response),
    Lines(Vec<Bytes>),
}

impl Connection {
    /// A connection over a stream that is open.
    pub(crate) fn new(
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        server: String,
        timeout: Duration,
        woken: Arc<Notify>,
        news: Option<mpsc::Sender<Report>>,
    ) -> Connection {
        let (reader, writer) = tokio::io::split(stream);
        let state = State {
            server,
            timeout,
            pending: Mutex::new(Ok(VecDeque::new())),
            wakeup: woken,
            reports: Mutex::new(news),
        };
        let state = Arc::new(state);
        let reader = tokio::spawn(read_replies(reader, state.clone())).abort_handle();
        Connection { writer: tokio::sync::Mutex::new(Some(Box::new(writer))), state, reader_task: reader }
    }

    /// Whether nothing can be asked any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.state.pending().is_err()
    }

    /// Ends it.
    pub(crate) fn close(&self) {
        self.close_with(self.state.lost("it was given up"));
    }

    fn close_with(&self, trouble: ServerError) {
        self.state.close(trouble);
        self.reader_task.abort();
        // Whoever writes just now lets go of it afterwards.
        if let Ok(mut writer) = self.writer.try_lock() {
            *writer = None;
        }
    }

    /// What went wrong if the answer is not to the question.
    pub(crate) fn protocol_error(&self, what: impl Into<String>) -> ServerError {
        ServerError::Protocol { server: self.state.server.clone(), what: what.into() }
    }

    /// Says something that has no answer.
    pub(crate) async fn send(&self, requests: &[Request<&[u8]>]) -> Result<(), ServerError> {
        let bytes = self.encode(requests)?;
        self.with_timeout(self.write(&bytes, None)).await
    }

    /// Asks something, and gives the packet that answers it.
    pub(crate) async fn request(&self, request: Request<&[u8]>) -> Result<Response, ServerError> {
        let bytes = self.encode(&[request])?;
        match self.exchange(&bytes, ReplyForm::Packet).await? {
            ServerReply::Packet(response) => Ok(response),
            ServerReply::Lines(_) => Err(self.protocol_error("a line where a packet should be")),
        }
    }

    /// Says something that has no answer but may be refused, and returns when it is known not to be.
    pub(crate) async fn report(&self, request: Request<&[u8]>) -> Result<(), ServerError> {
        let bytes = self.encode(&[request, Request::Echo { data: b"" }])?;
        self.exchange(&bytes, ReplyForm::Echo).await.map(drop)
    }

    /// Asks in the language of administrators for a list.
    pub(crate) async fn admin_list(&self, command: &str) -> Result<Vec<Bytes>, ServerError> {
        self.admin_lines(command, ReplyForm::List).await
    }

    /// Asks in the language of administrators for one line.
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
            let asked = PendingReply { form, reply_to: to, lines: Vec::new(), bytes: 0, refused: None };
            self.write(bytes, Some(asked)).await?;
            answer.await.unwrap_or(Err(ServerError::ShutDown))
        };
        self.with_timeout(answered).await
    }

    /// What is not answered in time leaves nobody able to tell which answer is to which question: the connection ends.
    async fn with_timeout<T>(
        &self,
        what: impl Future<Output = Result<T, ServerError>>,
    ) -> Result<T, ServerError> {
        match tokio::time::timeout(self.state.timeout, what).await {
            Ok(done) => done,
            Err(_) => {
                let silent = ServerError::Timeout {
                    server: self.state.server.clone(),
                    seconds: self.state.timeout.as_secs(),
                };
                self.close_with(silent.clone());
                Err(silent)
            }
        }
    }

    async fn write(&self, bytes: &[u8], asked: Option<PendingReply>) -> Result<(), ServerError> {
        // Held until all is written, so that questions go out in the order in which their answers are expected.
        let mut writer = self.writer.lock().await;
        match &mut *self.state.pending() {
            Ok(waiting) => waiting.extend(asked),
            Err(trouble) => return Err(trouble.clone()),
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
        let closed = self.state.pending().as_ref().err().cloned();
        if let Some(trouble) = closed {
            *writer = None;
            return Err(trouble);
        }
        Ok(())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.reader_task.abort();
    }
}

/// Takes what comes, until nothing more does.
async fn read_replies(mut reader: impl AsyncRead + Unpin, state: Arc<State>) {
    let mut parser = Parser::client(Options { line_bytes_max: LINE_BYTES_MAX, ..Options::default() });
    let mut bytes = BytesMut::new();
    let trouble = loop {
        match parser.next(&mut bytes) {
            Ok(Some(incoming)) => {
                if let Err(trouble) = state.receive(incoming).await {
                    break trouble;
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
    state.close(trouble);
}

impl State {
    fn pending(&self) -> MutexGuard<'_, Result<VecDeque<PendingReply>, ServerError>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn protocol_error(&self, what: String) -> ServerError {
        ServerError::Protocol { server: self.server.clone(), what }
    }

    fn lost(&self, why: &str) -> ServerError {
        ServerError::Lost { server: self.server.clone(), why: why.to_owned() }
    }

    /// Tells all who wait that they wait in vain. The first reason counts.
    fn close(&self, trouble: ServerError) {
        let waiting = {
            let mut asked = self.pending();
            match &*asked {
                Ok(_) => std::mem::replace(&mut *asked, Err(trouble.clone())),
                Err(_) => return,
            }
        };
        for asked in waiting.into_iter().flatten() {
            // Whoever no longer listens need not be told.
            let _ = asked.reply_to.send(Err(trouble.clone()));
        }
        *self.reports.lock().unwrap_or_else(PoisonError::into_inner) = None;
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
                        // Whoever is slow to hear of their job keeps only this connection waiting, and its server.
                        let news = self.reports.lock().unwrap_or_else(PoisonError::into_inner).clone();
                        if let Some(news) = news {
                            let _ = news.send(report).await;
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
            Some(asked) if matches!(asked.form, ReplyForm::Packet | ReplyForm::Echo) => {
                if asked.form == ReplyForm::Echo && !matches!(response, Response::Echo { .. }) {
                    let trouble = self.protocol_error("another answer where an echo should be".to_owned());
                    let _ = asked.reply_to.send(Err(trouble.clone()));
                    return Err(trouble);
                }
                let _ = asked.reply_to.send(asked.refused.map_or(Ok(ServerReply::Packet(response)), Err));
                Ok(())
            }
            _ => Err(self.protocol_error("an answer that nobody asked for".to_owned())),
        }
    }

    fn receive_error(&self, code: &[u8], text: &[u8]) -> Result<(), ServerError> {
        let said = format!("{} ({})", String::from_utf8_lossy(text), String::from_utf8_lossy(code));
        let refused = ServerError::Refused { server: self.server.clone(), said };
        let mut asked = self.pending();
        let Ok(waiting) = &mut *asked else { return Ok(()) };
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
        let mut asked = self.pending();
        let Ok(waiting) = &mut *asked else { return Ok(()) };
        let unasked = || self.protocol_error("a line that nobody asked for".to_owned());
        let first = waiting.front_mut().ok_or_else(unasked)?;
        let refused = first.lines.is_empty() && line.starts_with(b"ERR ") && !line.contains(&b'\t');
        let done = match first.form {
            ReplyForm::Packet | ReplyForm::Echo => return Err(unasked()),
            _ if refused => {
                let said = String::from_utf8_lossy(&line).into_owned();
                first.refused = Some(ServerError::Refused { server: self.server.clone(), said });
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
