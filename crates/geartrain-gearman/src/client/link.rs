//! One connection to a server: what is asked over it, and what comes back, in order.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::AbortHandle;

use super::trouble::Trouble;
use crate::packet::{Report, Request, Response};
use crate::{Incoming, Options, Parser};

/// The longest line of a list: a worker may be able to do very many things.
const LINE_BYTES_MAX: usize = 1 << 20;
/// The longest list.
const LIST_BYTES_MAX: usize = 64 << 20;
/// How many bytes are read at once, at least.
const READ_BYTES: usize = 16 << 10;

/// A connection. Dropping it ends it, and with it all that its server knows of it: jobs that it holds, and submissions that wait.
pub(crate) struct Link {
    /// None once the connection has ended on this side.
    writer: tokio::sync::Mutex<Option<Box<dyn AsyncWrite + Send + Unpin>>>,
    state: Arc<State>,
    reader: AbortHandle,
}

/// What the two directions share.
struct State {
    server: String,
    timeout: Duration,
    /// Those who wait for an answer, in the order in which they asked; or why nobody can any more.
    asked: Mutex<Result<VecDeque<Asked>, Trouble>>,
    /// Told when the server says that there may be a job, and when the connection has ended.
    woken: Arc<Notify>,
    /// Where news of jobs go. Let go of when the connection has ended, so that whoever listens hears that.
    news: Mutex<Option<mpsc::Sender<Report>>>,
}

/// Somebody who waits for an answer.
struct Asked {
    form: Form,
    to: oneshot::Sender<Result<Answer, Trouble>>,
    /// What came of it so far.
    lines: Vec<Bytes>,
    bytes: usize,
    refused: Option<Trouble>,
}

/// What an answer looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// One packet; an ERROR stands in its place.
    Packet,
    /// The echo that was sent behind something that has no answer. An ERROR may come before it.
    Echo,
    /// Lines, the last of which is a dot.
    List,
    /// One line.
    Line,
}

enum Answer {
    Packet(Response),
    Lines(Vec<Bytes>),
}

impl Link {
    /// A connection over a stream that is open.
    pub(crate) fn new(
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        server: String,
        timeout: Duration,
        woken: Arc<Notify>,
        news: Option<mpsc::Sender<Report>>,
    ) -> Link {
        let (reader, writer) = tokio::io::split(stream);
        let state =
            State { server, timeout, asked: Mutex::new(Ok(VecDeque::new())), woken, news: Mutex::new(news) };
        let state = Arc::new(state);
        let reader = tokio::spawn(read(reader, state.clone())).abort_handle();
        Link { writer: tokio::sync::Mutex::new(Some(Box::new(writer))), state, reader }
    }

    /// Whether nothing can be asked any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.state.asked().is_err()
    }

    /// Ends it.
    pub(crate) fn close(&self) {
        self.end(self.state.lost("it was given up"));
    }

    fn end(&self, trouble: Trouble) {
        self.state.close(trouble);
        self.reader.abort();
        // Whoever writes just now lets go of it afterwards.
        if let Ok(mut writer) = self.writer.try_lock() {
            *writer = None;
        }
    }

    /// What went wrong if the answer is not to the question.
    pub(crate) fn nonsense(&self, what: impl Into<String>) -> Trouble {
        Trouble::Nonsense { server: self.state.server.clone(), what: what.into() }
    }

    /// Says something that has no answer.
    pub(crate) async fn tell(&self, requests: &[Request<&[u8]>]) -> Result<(), Trouble> {
        let bytes = self.encode(requests)?;
        self.in_time(self.send(&bytes, None)).await
    }

    /// Asks something, and gives the packet that answers it.
    pub(crate) async fn ask(&self, request: Request<&[u8]>) -> Result<Response, Trouble> {
        let bytes = self.encode(&[request])?;
        match self.answer(&bytes, Form::Packet).await? {
            Answer::Packet(response) => Ok(response),
            Answer::Lines(_) => Err(self.nonsense("a line where a packet should be")),
        }
    }

    /// Says something that has no answer but may be refused, and returns when it is known not to be.
    pub(crate) async fn report(&self, request: Request<&[u8]>) -> Result<(), Trouble> {
        let bytes = self.encode(&[request, Request::Echo { data: b"" }])?;
        self.answer(&bytes, Form::Echo).await.map(drop)
    }

    /// Asks in the language of administrators for a list.
    pub(crate) async fn list(&self, command: &str) -> Result<Vec<Bytes>, Trouble> {
        self.lines(command, Form::List).await
    }

    /// Asks in the language of administrators for one line.
    pub(crate) async fn line(&self, command: &str) -> Result<Bytes, Trouble> {
        self.lines(command, Form::Line)
            .await?
            .pop()
            .ok_or_else(|| self.nonsense("no line where one should be"))
    }

    async fn lines(&self, command: &str, form: Form) -> Result<Vec<Bytes>, Trouble> {
        match self.answer(format!("{command}\n").as_bytes(), form).await? {
            Answer::Lines(lines) => Ok(lines),
            Answer::Packet(_) => Err(self.nonsense("a packet where a line should be")),
        }
    }

    fn encode(&self, requests: &[Request<&[u8]>]) -> Result<BytesMut, Trouble> {
        let mut bytes = BytesMut::new();
        for request in requests {
            request
                .encode(&mut bytes)
                .map_err(|bad| self.nonsense(format!("it was to be sent, but {bad}")))?;
        }
        Ok(bytes)
    }

    async fn answer(&self, bytes: &[u8], form: Form) -> Result<Answer, Trouble> {
        let answered = async {
            let (to, answer) = oneshot::channel();
            let asked = Asked { form, to, lines: Vec::new(), bytes: 0, refused: None };
            self.send(bytes, Some(asked)).await?;
            answer.await.unwrap_or(Err(Trouble::Gone))
        };
        self.in_time(answered).await
    }

    /// What is not answered in time leaves nobody able to tell which answer is to which question: the connection ends.
    async fn in_time<T>(&self, what: impl Future<Output = Result<T, Trouble>>) -> Result<T, Trouble> {
        match tokio::time::timeout(self.state.timeout, what).await {
            Ok(done) => done,
            Err(_) => {
                let silent = Trouble::Silent {
                    server: self.state.server.clone(),
                    seconds: self.state.timeout.as_secs(),
                };
                self.end(silent.clone());
                Err(silent)
            }
        }
    }

    async fn send(&self, bytes: &[u8], asked: Option<Asked>) -> Result<(), Trouble> {
        // Held until all is written, so that questions go out in the order in which their answers are expected.
        let mut writer = self.writer.lock().await;
        match &mut *self.state.asked() {
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
                self.reader.abort();
            }
        }
        let closed = self.state.asked().as_ref().err().cloned();
        if let Some(trouble) = closed {
            *writer = None;
            return Err(trouble);
        }
        Ok(())
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// Takes what comes, until nothing more does.
async fn read(mut reader: impl AsyncRead + Unpin, state: Arc<State>) {
    let mut parser = Parser::client(Options { line_bytes_max: LINE_BYTES_MAX, ..Options::default() });
    let mut bytes = BytesMut::new();
    let trouble = loop {
        match parser.next(&mut bytes) {
            Ok(Some(incoming)) => {
                if let Err(trouble) = state.take(incoming).await {
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
            Err(framing) => break state.nonsense(framing.to_string()),
        }
    };
    state.close(trouble);
}

impl State {
    fn asked(&self) -> MutexGuard<'_, Result<VecDeque<Asked>, Trouble>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn nonsense(&self, what: String) -> Trouble {
        Trouble::Nonsense { server: self.server.clone(), what }
    }

    fn lost(&self, why: &str) -> Trouble {
        Trouble::Lost { server: self.server.clone(), why: why.to_owned() }
    }

    /// Tells all who wait that they wait in vain. The first reason counts.
    fn close(&self, trouble: Trouble) {
        let waiting = {
            let mut asked = self.asked();
            match &*asked {
                Ok(_) => std::mem::replace(&mut *asked, Err(trouble.clone())),
                Err(_) => return,
            }
        };
        for asked in waiting.into_iter().flatten() {
            // Whoever no longer listens need not be told.
            let _ = asked.to.send(Err(trouble.clone()));
        }
        *self.news.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.woken.notify_waiters();
    }

    async fn take(&self, incoming: Incoming) -> Result<(), Trouble> {
        match incoming {
            Incoming::Packet(packet) => {
                let response = Response::decode(packet).map_err(|fault| self.nonsense(fault.to_string()))?;
                match response {
                    Response::Noop => self.woken.notify_waiters(),
                    Response::Report(report) => {
                        // Whoever is slow to hear of their job keeps only this connection waiting, and its server.
                        let news = self.news.lock().unwrap_or_else(PoisonError::into_inner).clone();
                        if let Some(news) = news {
                            let _ = news.send(report).await;
                        }
                    }
                    Response::Error { code, text } => self.error(&code, &text)?,
                    response => self.packet(response)?,
                }
                Ok(())
            }
            Incoming::Line(line) => self.line(line),
            Incoming::Draft(_) | Incoming::Misdirected { .. } => {
                Err(self.nonsense("a packet that clients send".to_owned()))
            }
        }
    }

    fn packet(&self, response: Response) -> Result<(), Trouble> {
        let first = match &mut *self.asked() {
            Ok(waiting) => waiting.pop_front(),
            Err(_) => return Ok(()),
        };
        match first {
            Some(asked) if matches!(asked.form, Form::Packet | Form::Echo) => {
                if asked.form == Form::Echo && !matches!(response, Response::Echo { .. }) {
                    let trouble = self.nonsense("another answer where an echo should be".to_owned());
                    let _ = asked.to.send(Err(trouble.clone()));
                    return Err(trouble);
                }
                let _ = asked.to.send(asked.refused.map_or(Ok(Answer::Packet(response)), Err));
                Ok(())
            }
            _ => Err(self.nonsense("an answer that nobody asked for".to_owned())),
        }
    }

    fn error(&self, code: &[u8], text: &[u8]) -> Result<(), Trouble> {
        let said = format!("{} ({})", String::from_utf8_lossy(text), String::from_utf8_lossy(code));
        let refused = Trouble::Refused { server: self.server.clone(), said };
        let mut asked = self.asked();
        let Ok(waiting) = &mut *asked else { return Ok(()) };
        match waiting.front_mut() {
            Some(first) if first.form == Form::Echo => first.refused = Some(refused),
            Some(_) => {
                if let Some(first) = waiting.pop_front() {
                    let _ = first.to.send(Err(refused));
                }
            }
            None => return Err(refused),
        }
        Ok(())
    }

    fn line(&self, line: Bytes) -> Result<(), Trouble> {
        let mut asked = self.asked();
        let Ok(waiting) = &mut *asked else { return Ok(()) };
        let unasked = || self.nonsense("a line that nobody asked for".to_owned());
        let first = waiting.front_mut().ok_or_else(unasked)?;
        let refused = first.lines.is_empty() && line.starts_with(b"ERR ") && !line.contains(&b'\t');
        let done = match first.form {
            Form::Packet | Form::Echo => return Err(unasked()),
            _ if refused => {
                let said = String::from_utf8_lossy(&line).into_owned();
                first.refused = Some(Trouble::Refused { server: self.server.clone(), said });
                true
            }
            Form::List if &line[..] == b"." => true,
            form => {
                first.bytes += line.len();
                if first.bytes > LIST_BYTES_MAX {
                    return Err(self.nonsense(format!("a list of more than {LIST_BYTES_MAX} bytes")));
                }
                first.lines.push(line);
                form == Form::Line
            }
        };
        if done && let Some(first) = waiting.pop_front() {
            let _ = first.to.send(first.refused.map_or(Ok(Answer::Lines(first.lines)), Err));
        }
        Ok(())
    }
}
