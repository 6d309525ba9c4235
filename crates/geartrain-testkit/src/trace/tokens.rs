//! Which token is which.
//!
//! A backend chooses the token of an attempt, and two backends may choose different ones. So a trace has
//! names of its own for tokens: the step that popped the job, and the job's place in the answer. They hold
//! even if other steps are left out. Each queue that lives through the trace has a [`Tokens`] that
//! translates.

use std::collections::BTreeMap;

use geartrain_core::{Answer, Command, Holder, Job, JobState, Refusal, Reply, Token};

/// More than one pop ever hands out.
const STEP: u64 = 1_000_000;

/// What the trace's tokens are to one queue, and the other way round.
#[derive(Debug, Clone, Default)]
pub struct Tokens {
    given: BTreeMap<Token, Token>,
    names: BTreeMap<Token, Token>,
}

impl Tokens {
    /// The trace's name for the token of a job that a step handed out.
    pub fn name(step: usize, place: usize) -> Token {
        Token::new(step as u64 * STEP + place as u64)
    }

    /// Takes note of what a step of the trace handed out.
    pub fn learn(&mut self, step: usize, answer: &Answer) {
        let jobs = match answer {
            Ok(Reply::Pop(reply)) => &reply.jobs,
            Ok(Reply::Relock(jobs)) => jobs,
            _ => return,
        };
        for (place, popped) in jobs.iter().enumerate() {
            self.given.insert(Tokens::name(step, place), popped.lock.token);
            self.names.insert(popped.lock.token, Tokens::name(step, place));
        }
    }

    /// A command of the trace as this queue is to be asked it.
    pub fn command(&self, command: &Command) -> Command {
        let mut command = command.clone();
        let holder = match &mut command {
            Command::Heartbeat(heartbeat) => &mut heartbeat.holder,
            Command::Complete(complete) => &mut complete.holder,
            Command::Fail(fail) => &mut fail.holder,
            Command::Retry(retry) => &mut retry.holder,
            Command::Progress(progress) => &mut progress.holder,
            Command::Chunk(chunk) => &mut chunk.holder,
            Command::Release(back) => &mut back.holder,
            Command::Relock(relock) => {
                relock.before.iter_mut().for_each(|token| self.translate(token));
                return command;
            }
            _ => return command,
        };
        if let Holder::Token(token) = holder {
            self.translate(token);
        }
        command
    }

    /// One that was never given stays one: no queue counts that far.
    fn translate(&self, token: &mut Token) {
        *token = self.given.get(token).copied().unwrap_or(Token::new(u64::MAX - token.number()));
    }

    /// This queue's answer with the trace's tokens in it.
    pub fn answer(&self, answer: Answer) -> Answer {
        let mut reply = answer?;
        match &mut reply {
            Reply::Pop(reply) => {
                for popped in &mut reply.jobs {
                    self.rename(&mut popped.lock.token);
                    popped.job.as_deref_mut().into_iter().for_each(|job| self.rename_in(job));
                }
            }
            Reply::Relock(jobs) => jobs.iter_mut().for_each(|popped| self.rename(&mut popped.lock.token)),
            Reply::Peek(jobs) | Reply::GetMany(jobs) => jobs.iter_mut().for_each(|job| self.rename_in(job)),
            Reply::Get(job) => job.iter_mut().for_each(|job| self.rename_in(job)),
            Reply::SetAside(reply) => reply.jobs.iter_mut().for_each(|job| self.rename_in(job)),
            Reply::Tracked(tracked) => tracked.jobs.iter_mut().for_each(|job| self.rename_in(job)),
            // How many jobs are examined, and how the next ones are named, is up to each queue.
            Reply::Select(reply) => (reply.examined, reply.not_json, reply.next) = (0, 0, None),
            // When a process last looked for due ones depends on who fires them.
            Reply::Periodics(reply) => {
                reply.watched = None;
                for periodic in &mut reply.periodics {
                    if let Some(Refusal::BadArgument { why, .. }) = periodic.error.as_deref_mut() {
                        why.clear();
                    }
                }
            }
            Reply::Act(reply) => {
                (reply.examined, reply.next) = (0, None);
                for (_, refusal) in &mut reply.refusals {
                    if let Refusal::BadArgument { why, .. } = refusal {
                        why.clear();
                    }
                }
            }
            _ => {}
        }
        Ok(reply)
    }

    fn rename_in(&self, job: &mut Job) {
        if let JobState::Running { lock } = &mut job.state {
            self.rename(&mut lock.token);
        }
    }

    fn rename(&self, token: &mut Token) {
        *token = self.names.get(token).copied().unwrap_or(Token::new(u64::MAX - token.number()));
    }
}
