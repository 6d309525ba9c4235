//! Batch codec: hand-written encoding of the frequent commands and answers, for speed.
//!
//! Consecutive plain puts, and consecutive plain completes, are encoded as *runs*: the common fields once,
//! then one array of the fields that differ. Runs are short, and a Redis script reads such an array in a
//! third of the time of as many commands.
//!
//! All other commands go through serde, one by one. This decoder either returns exactly what serde would, or
//! `None` so that serde decodes instead. Only this decoder reads runs.

use crate::{
    Answer, BadName, Call, Command, Complete, CompleteReply, Count, Cycles, Existing, Holder, Jid, JobResult,
    Klass, Lock, Payload, Pop, PopOrder, PopReply, Popped, Priority, Put, PutReply, QueueName, Reply,
    Seconds, Tag, Timestamp, Token, WorkerName,
};

use serde::Deserialize;

use super::msgpack::Decoder;

/// `[1, {"Batch": [`, without the length of the array.
const BATCH: &[u8] = b"\x92\x01\x81\xa5Batch";
/// `{"Puts": [`, of a queue, a klass and an array of alternating jids and payloads.
const PUT_RUN: &[u8] = b"\x81\xa4Puts\x93";
/// `{"Completes": [`, of an array of alternating jids and tokens.
const COMPLETE_RUN: &[u8] = b"\x81\xa9Completes\x91";

/// The most commands in a batch.
const BATCH_MAX: usize = 10_000;

const CREATED: &[u8] = b"\x81\xa2Ok\x81\xa3Put\xa7Created";
const COMPLETED: &[u8] = b"\x81\xa2Ok\x81\xa8Complete\xa8Complete";
const POPPED: &[u8] = b"\x81\xa2Ok\x81\xa3Pop\x92";
const GOT_MANY: &[u8] = b"\x81\xa2Ok\x81\xa7GetMany";
const PEEKED: &[u8] = b"\x81\xa2Ok\x81\xa4Peek";

/// Encodes a batch.
pub(super) fn write_batch(calls: &[Call]) -> Vec<u8> {
    let mut to = Writer(Vec::with_capacity(32 + calls.len() * 256));
    to.0.extend_from_slice(BATCH);
    let runs: Vec<&[Call]> = calls.chunk_by(in_same_run).collect();
    to.array(runs.len());
    for run in runs {
        let Call { now, command, by } = &run[0];
        to.array(if by.is_some() { 3 } else { 2 });
        match now {
            Some(now) => to.double(now.get()),
            None => to.nil(),
        }
        match command {
            Command::Put(put) if is_plain_put(put) && by.is_none() => to.put_run(put, run),
            Command::Complete(complete) if is_plain_complete(complete) && by.is_none() => {
                to.complete_run(run)
            }
            Command::Put(put) if put.options.is_none() => to.put(put),
            Command::Pop(pop) if pop.klasses.is_none() => to.pop(pop),
            Command::Complete(complete) if complete.next.is_none() && complete.result.is_none() => {
                to.complete(complete)
            }
            other => to.any(other),
        }
        if let Some(by) = by {
            to.text(by);
        }
    }
    to.0
}

/// Whether two consecutive calls belong to one run.
fn in_same_run(one: &Call, next: &Call) -> bool {
    one.now == next.now
        && one.by.is_none()
        && next.by.is_none()
        && match (&one.command, &next.command) {
            (Command::Put(one), Command::Put(next)) => {
                is_plain_put(one)
                    && is_plain_put(next)
                    && (&one.queue, &one.klass) == (&next.queue, &next.klass)
            }
            (Command::Complete(one), Command::Complete(next)) => {
                is_plain_complete(one) && is_plain_complete(next)
            }
            _ => false,
        }
}

/// Whether a put has only defaults besides queue, jid, klass and payload.
fn is_plain_put(put: &Put) -> bool {
    put.options.is_none()
        && put.delay == Seconds::ZERO
        && put.priority.is_none()
        && put.retries.is_none()
        && put.tags.is_none()
        && put.depends.is_empty()
        && put.caller.is_none()
        && put.existing == Existing::Keep
        && put.cycles == Cycles::Refuse
}

/// Whether a complete has only a jid and a token.
fn is_plain_complete(complete: &Complete) -> bool {
    matches!(complete.holder, Holder::Token(_))
        && complete.queue.is_none()
        && complete.payload.is_none()
        && complete.next.is_none()
        && complete.result.is_none()
}

/// Whether a popped job has no optional parts.
fn is_plain_popped(job: &Popped) -> bool {
    job.details.is_none() && job.job.is_none()
}

/// Decodes a batch; `None` if it is not one, or is malformed and serde can explain it.
pub(super) fn read_batch(bytes: &[u8]) -> Result<Option<Vec<Call>>, String> {
    let Some(rest) = bytes.strip_prefix(BATCH) else { return Ok(None) };
    let mut from = Reader::new(rest);
    match from.calls() {
        Some(calls) if from.bytes.is_empty() => Ok(Some(calls)),
        _ => from.error.map_or(Ok(None), Err),
    }
}

/// Encodes the answers to a batch.
pub(super) fn write_answers(answers: &[Answer]) -> Vec<u8> {
    let mut to = Writer(Vec::with_capacity(16 + answers.len() * 32));
    to.array(answers.len());
    answers.iter().for_each(|answer| to.answer(answer));
    to.0
}

/// The answers to a batch, encoded piece by piece. Concatenated, the pieces are the output of
/// [`encode_answers`](super::encode_answers). No piece holds more than one job, so that a large answer need
/// not be encoded as a whole.
#[derive(Debug)]
pub struct AnswerPieces {
    answers: Vec<Answer>,
    /// The answer and the part of it that each piece encodes.
    plan: Vec<(usize, Part)>,
}

#[derive(Debug, Clone, Copy)]
enum Part {
    Whole,
    /// The bytes before the jobs of an answer.
    Head,
    Job(usize),
    /// The bytes after them.
    Tail,
}

impl AnswerPieces {
    /// Divides answers into pieces.
    pub fn new(answers: Vec<Answer>) -> AnswerPieces {
        let mut plan = Vec::with_capacity(answers.len());
        for (number, answer) in answers.iter().enumerate() {
            let jobs = match answer {
                Ok(Reply::Pop(reply)) => reply.jobs.len(),
                Ok(Reply::GetMany(jobs) | Reply::Peek(jobs)) => jobs.len(),
                _ => 0,
            };
            if jobs == 0 {
                plan.push((number, Part::Whole));
                continue;
            }
            plan.push((number, Part::Head));
            plan.extend((0..jobs).map(|job| (number, Part::Job(job))));
            plan.push((number, Part::Tail));
        }
        AnswerPieces { answers, plan }
    }

    /// Appends piece `number`, counted from 0; false if there is no such piece.
    pub fn write(&self, number: usize, out: &mut Vec<u8>) -> bool {
        let mut to = Writer(std::mem::take(out));
        let exists = match number.checked_sub(1) {
            None => {
                to.array(self.answers.len());
                true
            }
            Some(index) => self.plan.get(index).is_some_and(|(answer, part)| {
                to.part(&self.answers[*answer], *part);
                true
            }),
        };
        *out = to.0;
        exists
    }
}

/// Decodes the answers to a batch; `None` if they are malformed and serde can explain it.
pub(super) fn read_answers(bytes: &[u8]) -> Option<Vec<Answer>> {
    let mut from = Reader::new(bytes);
    let count = from.array()?;
    let mut answers = Vec::with_capacity(count.min(bytes.len() / 4));
    for _ in 0..count {
        answers.push(from.answer()?);
    }
    from.bytes.is_empty().then_some(answers)
}

struct Writer(Vec<u8>);

impl Writer {
    fn nil(&mut self) {
        self.0.push(0xc0);
    }

    fn array(&mut self, count: usize) {
        match count {
            0..16 => self.0.push(0x90 | count as u8),
            16..0x1_0000 => {
                self.0.push(0xdc);
                self.0.extend_from_slice(&(count as u16).to_be_bytes());
            }
            _ => {
                self.0.push(0xdd);
                self.0.extend_from_slice(&(count as u32).to_be_bytes());
            }
        }
    }

    fn text(&mut self, text: &str) {
        match text.len() {
            bytes @ 0..32 => self.0.push(0xa0 | bytes as u8),
            bytes @ 32..0x100 => self.0.extend_from_slice(&[0xd9, bytes as u8]),
            bytes @ 0x100..0x1_0000 => {
                self.0.push(0xda);
                self.0.extend_from_slice(&(bytes as u16).to_be_bytes());
            }
            bytes => {
                self.0.push(0xdb);
                self.0.extend_from_slice(&(bytes as u32).to_be_bytes());
            }
        }
        self.0.extend_from_slice(text.as_bytes());
    }

    fn double(&mut self, number: f64) {
        self.0.push(0xcb);
        self.0.extend_from_slice(&number.to_bits().to_be_bytes());
    }

    fn integer(&mut self, number: u64) {
        match number {
            0..128 => self.0.push(number as u8),
            128..0x100 => self.0.extend_from_slice(&[0xcc, number as u8]),
            0x100..0x1_0000 => {
                self.0.push(0xcd);
                self.0.extend_from_slice(&(number as u16).to_be_bytes());
            }
            0x1_0000..0x1_0000_0000 => {
                self.0.push(0xce);
                self.0.extend_from_slice(&(number as u32).to_be_bytes());
            }
            _ => {
                self.0.push(0xcf);
                self.0.extend_from_slice(&number.to_be_bytes());
            }
        }
    }

    fn answer(&mut self, answer: &Answer) {
        match answer {
            Ok(Reply::Put(PutReply::Created)) => self.0.extend_from_slice(CREATED),
            Ok(Reply::Complete(CompleteReply::Complete)) => self.0.extend_from_slice(COMPLETED),
            Ok(Reply::Pop(reply)) if reply.jobs.iter().all(is_plain_popped) => {
                self.part(answer, Part::Head);
                reply.jobs.iter().for_each(|job| self.popped(job));
                self.part(answer, Part::Tail);
            }
            other => self.any(other),
        }
    }

    fn part(&mut self, answer: &Answer, part: Part) {
        match (part, answer) {
            (Part::Head, Ok(Reply::Pop(reply))) => {
                self.0.extend_from_slice(POPPED);
                self.array(reply.jobs.len());
            }
            (Part::Head, Ok(Reply::GetMany(jobs))) => {
                self.0.extend_from_slice(GOT_MANY);
                self.array(jobs.len());
            }
            (Part::Head, Ok(Reply::Peek(jobs))) => {
                self.0.extend_from_slice(PEEKED);
                self.array(jobs.len());
            }
            (Part::Job(job), Ok(Reply::Pop(reply))) => match &reply.jobs[job] {
                job if is_plain_popped(job) => self.popped(job),
                job => self.any(job),
            },
            (Part::Job(job), Ok(Reply::GetMany(jobs) | Reply::Peek(jobs))) => self.any(&jobs[job]),
            (Part::Tail, Ok(Reply::Pop(reply))) => self.integer(reply.turn as u64),
            (Part::Tail, _) => {}
            (Part::Whole | Part::Head | Part::Job(_), answer) => self.answer(answer),
        }
    }

    fn any(&mut self, value: &impl serde::Serialize) {
        super::write(value, &mut self.0);
    }

    fn jid(&mut self, jid: &Jid) {
        jid.with_str(|text| self.text(text));
    }

    fn token(&mut self, token: Token) {
        let mut text = [0; 32];
        self.text(token.write(&mut text));
    }

    fn payload(&mut self, payload: &Payload) {
        self.text(&payload.to_json());
    }

    fn put_run(&mut self, first: &Put, run: &[Call]) {
        self.0.extend_from_slice(PUT_RUN);
        self.text(first.queue.as_str());
        self.text(first.klass.as_str());
        self.array(2 * run.len());
        for call in run {
            if let Command::Put(put) = &call.command {
                self.jid(&put.jid);
                self.payload(&put.payload);
            }
        }
    }

    fn complete_run(&mut self, run: &[Call]) {
        self.0.extend_from_slice(COMPLETE_RUN);
        self.array(2 * run.len());
        for call in run {
            if let Command::Complete(Complete { jid, holder: Holder::Token(token), .. }) = &call.command {
                self.jid(jid);
                self.token(*token);
            }
        }
    }

    fn put(&mut self, put: &Put) {
        self.0.extend_from_slice(b"\x81\xa3Put\x9d");
        self.text(put.queue.as_str());
        self.jid(&put.jid);
        self.text(put.klass.as_str());
        self.payload(&put.payload);
        self.double(put.delay.get());
        match put.priority {
            Some(priority) => self.double(priority.get()),
            None => self.nil(),
        }
        match put.retries {
            Some(retries) => self.integer(retries.into()),
            None => self.nil(),
        }
        match &put.tags {
            Some(tags) => {
                self.array(tags.len());
                tags.iter().for_each(|tag| self.text(tag.as_str()));
            }
            None => self.nil(),
        }
        self.array(put.depends.len());
        put.depends.iter().for_each(|jid| self.jid(jid));
        match &put.caller {
            Some(caller) => self.text(caller.as_str()),
            None => self.nil(),
        }
        self.text(match put.existing {
            Existing::Keep => "Keep",
            Existing::Replace => "Replace",
            Existing::Require => "Require",
        });
        self.text(match put.cycles {
            Cycles::Refuse => "Refuse",
            Cycles::Accept => "Accept",
        });
        self.nil();
    }

    fn pop(&mut self, pop: &Pop) {
        self.0.extend_from_slice(b"\x81\xa3Pop\x95");
        self.array(pop.queues.len());
        pop.queues.iter().for_each(|queue| self.text(queue.as_str()));
        self.text(pop.worker.as_str());
        self.integer(pop.count.get() as u64);
        self.any(&pop.order);
        self.0.push(if pop.whole { 0xc3 } else { 0xc2 });
    }

    fn complete(&mut self, complete: &Complete) {
        self.0.extend_from_slice(b"\x81\xa8Complete\x96");
        self.jid(&complete.jid);
        match &complete.holder {
            Holder::Token(token) => {
                self.0.extend_from_slice(b"\x81\xa5Token");
                self.token(*token);
            }
            Holder::Worker(worker) => {
                self.0.extend_from_slice(b"\x81\xa6Worker");
                self.text(worker.as_str());
            }
        }
        match &complete.queue {
            Some(queue) => self.text(queue.as_str()),
            None => self.nil(),
        }
        match &complete.payload {
            Some(payload) => self.payload(payload),
            None => self.nil(),
        }
        self.nil();
        self.nil();
    }

    fn popped(&mut self, job: &Popped) {
        self.array(10);
        self.jid(&job.jid);
        self.text(job.queue.as_str());
        self.text(job.klass.as_str());
        self.payload(&job.payload);
        self.double(job.priority.get());
        self.integer(job.retries.into());
        match u64::try_from(job.remaining) {
            Ok(remaining) => self.integer(remaining),
            Err(_) => self.any(&job.remaining),
        }
        self.array(3);
        self.text(job.lock.worker.as_str());
        self.token(job.lock.token);
        self.double(job.lock.expires.get());
        self.nil();
        self.nil();
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    // The last decoded names. Names repeat within a batch, and sharing one is cheaper than allocating it
    // again.
    queue: Option<QueueName>,
    klass: Option<Klass>,
    worker: Option<WorkerName>,
    /// Why the input is invalid. If it is `None`, serde decodes it again and explains.
    error: Option<String>,
}

macro_rules! shared_name {
    ($method:ident, $type:ident, $read:ident) => {
        fn $method(&mut self) -> Option<$type> {
            let text = self.text()?;
            match &self.$method {
                Some(last) if last.as_str() == text => Some(last.clone()),
                _ => {
                    let name = $type::$read(text).ok()?;
                    self.$method = Some(name.clone());
                    Some(name)
                }
            }
        }
    };
}

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes, queue: None, klass: None, worker: None, error: None }
    }

    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(*byte)
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(count)?;
        self.bytes = rest;
        Some(taken)
    }

    fn number_of(&mut self, bytes: usize) -> Option<u64> {
        Some(self.take(bytes)?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    /// Consumes these bytes if they come next.
    fn skip_prefix(&mut self, expected: &[u8]) -> bool {
        match self.bytes.strip_prefix(expected) {
            Some(rest) => {
                self.bytes = rest;
                true
            }
            None => false,
        }
    }

    fn is_nil(&mut self) -> bool {
        self.skip_prefix(&[0xc0])
    }

    fn option<T>(&mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<Option<T>> {
        if self.is_nil() { Some(None) } else { read(self).map(Some) }
    }

    fn array(&mut self) -> Option<usize> {
        match self.byte()? {
            byte @ 0x90..=0x9f => Some(usize::from(byte & 0x0f)),
            0xdc => self.number_of(2).map(|count| count as usize),
            0xdd => self.number_of(4).map(|count| count as usize),
            _ => None,
        }
    }

    fn list<T>(&mut self, mut read: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = self.array()?;
        let mut list = Vec::with_capacity(count.min(self.bytes.len()));
        for _ in 0..count {
            list.push(read(self)?);
        }
        Some(list)
    }

    fn text(&mut self) -> Option<&'a str> {
        let bytes = match self.byte()? {
            byte @ 0xa0..=0xbf => usize::from(byte & 0x1f),
            0xd9 => self.number_of(1)? as usize,
            0xda => self.number_of(2)? as usize,
            0xdb => self.number_of(4)? as usize,
            _ => return None,
        };
        std::str::from_utf8(self.take(bytes)?).ok()
    }

    fn integer(&mut self) -> Option<u64> {
        match self.byte()? {
            byte @ 0..=0x7f => Some(byte.into()),
            0xcc => self.number_of(1),
            0xcd => self.number_of(2),
            0xce => self.number_of(4),
            0xcf => self.number_of(8),
            _ => None,
        }
    }

    fn double(&mut self) -> Option<f64> {
        match self.bytes.first()? {
            0xcb => {
                self.byte()?;
                self.number_of(8).map(f64::from_bits)
            }
            // A script encodes a whole number as an integer.
            _ => self.integer().map(|number| number as f64),
        }
    }

    /// Decodes the next value with serde.
    fn any<T: for<'de> Deserialize<'de>>(&mut self) -> Option<T> {
        let mut from = Decoder::new(self.bytes);
        let value = T::deserialize(&mut from).map_err(|error| self.error = Some(error.to_string())).ok()?;
        self.bytes = from.rest();
        Some(value)
    }

    shared_name!(queue, QueueName, of_function);
    shared_name!(klass, Klass, of_function);
    shared_name!(worker, WorkerName, new);

    fn jid(&mut self) -> Option<Jid> {
        Jid::new(self.text()?).ok()
    }

    fn payload(&mut self) -> Option<Payload> {
        self.text().map(Payload::from_json)
    }

    fn token(&mut self) -> Option<Token> {
        self.text()?.parse().ok()
    }

    fn calls(&mut self) -> Option<Vec<Call>> {
        let count = self.array()?;
        // The capacity is bounded by what the input can hold: the sender must not choose how much is
        // allocated.
        let mut calls = Vec::with_capacity(count.min(self.bytes.len() / 4).min(BATCH_MAX));
        for _ in 0..count {
            self.call(&mut calls)?;
            if calls.len() > BATCH_MAX {
                self.error = Some(format!("a batch has at most {BATCH_MAX} commands"));
                return None;
            }
        }
        Some(calls)
    }

    /// Decodes one call or a run.
    fn call(&mut self, calls: &mut Vec<Call>) -> Option<()> {
        let has_caller = match self.array()? {
            2 => false,
            3 => true,
            _ => return None,
        };
        let now = self.option(|from| Timestamp::new(from.double()?).ok())?;
        // A run has no caller, because puts and completions do not record one.
        if !has_caller && self.skip_prefix(PUT_RUN) {
            return self.put_run(now, calls);
        }
        if !has_caller && self.skip_prefix(COMPLETE_RUN) {
            return self.complete_run(now, calls);
        }
        let before = self.bytes;
        let command = self.command().or_else(|| {
            self.bytes = before;
            self.any()
        })?;
        let by = if has_caller { self.option(|from| from.text().map(Into::into))? } else { None };
        calls.push(Call { now, command, by });
        Some(())
    }

    fn put_run(&mut self, now: Option<Timestamp>, calls: &mut Vec<Call>) -> Option<()> {
        let queue = self.run_text(QueueName::of_function)?;
        let klass = self.run_text(Klass::of_function)?;
        let count = self.run_len()?;
        calls.reserve(count.min(self.bytes.len() / 2));
        for _ in 0..count {
            let jid = self.run_text(Jid::new)?;
            let payload = self.run_text(|text| Ok::<_, BadName>(Payload::from_json(text)))?;
            let command = Put::new(queue.clone(), jid, klass.clone(), payload).into();
            calls.push(Call { now, command, by: None });
        }
        Some(())
    }

    fn complete_run(&mut self, now: Option<Timestamp>, calls: &mut Vec<Call>) -> Option<()> {
        let count = self.run_len()?;
        calls.reserve(count.min(self.bytes.len() / 2));
        for _ in 0..count {
            let jid = self.run_text(Jid::new)?;
            let token = self.run_text(str::parse)?;
            calls.push(Call { now, command: Complete::new(jid, Holder::Token(token)).into(), by: None });
        }
        Some(())
    }

    /// The number of commands in a run.
    fn run_len(&mut self) -> Option<usize> {
        let texts = self.array().filter(|texts| texts % 2 == 0 && *texts <= 2 * BATCH_MAX);
        if texts.is_none() {
            self.error = Some(format!("a run has two texts for each of at most {BATCH_MAX} commands"));
        }
        texts.map(|texts| texts / 2)
    }

    /// Decodes a text of a run.
    fn run_text<T, E: std::fmt::Display>(&mut self, read: impl FnOnce(&'a str) -> Result<T, E>) -> Option<T> {
        let text = self.text().ok_or_else(|| "a text is missing in a run".to_owned());
        match text.and_then(|text| read(text).map_err(|error| error.to_string())) {
            Ok(value) => Some(value),
            Err(error) => {
                self.error = Some(error);
                None
            }
        }
    }

    /// Decodes one of the frequent commands.
    fn command(&mut self) -> Option<Command> {
        if self.skip_prefix(b"\x81\xa3Put\x9d") {
            self.put().map(Command::Put)
        } else if self.skip_prefix(b"\x81\xa8Complete\x96") {
            self.complete().map(Command::Complete)
        } else if self.skip_prefix(b"\x81\xa3Pop\x95") {
            self.pop().map(Command::Pop)
        } else {
            None
        }
    }

    fn put(&mut self) -> Option<Put> {
        Some(Put {
            queue: self.queue()?,
            jid: self.jid()?,
            klass: self.klass()?,
            payload: self.payload()?,
            delay: Seconds::new(self.double()?).ok()?,
            priority: self.option(|from| Priority::new(from.double()?).ok())?,
            retries: self.option(|from| from.integer()?.try_into().ok())?,
            tags: self.option(|from| from.list(|from| Tag::new(from.text()?).ok()))?,
            depends: self.list(Reader::jid)?,
            caller: self.option(Reader::worker)?,
            existing: match self.text()? {
                "Keep" => Existing::Keep,
                "Replace" => Existing::Replace,
                "Require" => Existing::Require,
                _ => return None,
            },
            cycles: match self.text()? {
                "Refuse" => Cycles::Refuse,
                "Accept" => Cycles::Accept,
                _ => return None,
            },
            options: if self.is_nil() { None } else { return None },
        })
    }

    fn pop(&mut self) -> Option<Pop> {
        Some(Pop {
            queues: self.list(Reader::queue)?,
            worker: self.worker()?,
            count: Count::new(self.integer()?.try_into().ok()?).ok()?,
            order: if self.skip_prefix(b"\xa6Strict") { PopOrder::Strict } else { self.any()? },
            whole: match self.byte()? {
                0xc2 => false,
                0xc3 => true,
                _ => return None,
            },
            klasses: None,
        })
    }

    fn complete(&mut self) -> Option<Complete> {
        Some(Complete {
            jid: self.jid()?,
            holder: if self.skip_prefix(b"\x81\xa5Token") {
                Holder::Token(self.token()?)
            } else if self.skip_prefix(b"\x81\xa6Worker") {
                Holder::Worker(self.worker()?)
            } else {
                return None;
            },
            queue: self.option(Reader::queue)?,
            payload: self.option(Reader::payload)?,
            next: if self.is_nil() { None } else { return None },
            result: if self.is_nil() { None::<Box<JobResult>> } else { return None },
        })
    }

    fn answer(&mut self) -> Option<Answer> {
        if self.skip_prefix(CREATED) {
            return Some(Ok(Reply::Put(PutReply::Created)));
        }
        if self.skip_prefix(COMPLETED) {
            return Some(Ok(Reply::Complete(CompleteReply::Complete)));
        }
        let before = self.bytes;
        if self.skip_prefix(POPPED)
            && let Some(reply) = self.pop_reply()
        {
            return Some(Ok(Reply::Pop(reply)));
        }
        self.bytes = before;
        self.any()
    }

    fn pop_reply(&mut self) -> Option<PopReply> {
        Some(PopReply { jobs: self.list(Reader::popped)?, turn: self.integer()?.try_into().ok()? })
    }

    fn popped(&mut self) -> Option<Popped> {
        if self.array()? != 10 {
            return None;
        }
        let job = Popped {
            jid: self.jid()?,
            queue: self.queue()?,
            klass: self.klass()?,
            payload: self.payload()?,
            priority: Priority::new(self.double()?).ok()?,
            retries: self.integer()?.try_into().ok()?,
            remaining: self.integer()?.try_into().ok()?,
            lock: self.lock()?,
            details: None,
            job: None,
        };
        (self.is_nil() && self.is_nil()).then_some(job)
    }

    fn lock(&mut self) -> Option<Lock> {
        if self.array()? != 3 {
            return None;
        }
        Some(Lock {
            worker: self.worker()?,
            token: self.token()?,
            expires: Timestamp::new(self.double()?).ok()?,
        })
    }
}
