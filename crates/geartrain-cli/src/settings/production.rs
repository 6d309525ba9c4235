//! Contexts in production: their name has to be typed before anything is changed.

use std::io::{self, Write as _};
use std::pin::Pin;
use std::sync::Arc;

use geartrain::{
    Answer, Backend, BackendError, Backup, BackupTarget, Call, Client, Command, Jid, Measures, Pending,
    PeriodicTemplate, Pop, PopReply, QueueName, ResultStream, Role, Seconds, Software, Subscription,
    Timestamp,
};
use parking_lot::Mutex;

use crate::commands::select::can_ask;
use crate::failure::Failure;
use crate::text::clean;

/// A context in production, for a command without `--yes`.
#[derive(Debug, Clone)]
pub(crate) struct Production(Arc<State>);

#[derive(Debug)]
struct State {
    context: String,
    /// Whether a person can answer.
    can_ask: bool,
    is_confirmed: Mutex<bool>,
}

/// Why nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unconfirmed {
    #[error(
        "{0} is a context in production, and no terminal can be asked for its name: give --yes to change it"
    )]
    NoTerminal(String),
    #[error("that is not {0}: nothing was changed")]
    OtherName(String),
}

impl From<&Unconfirmed> for Failure {
    fn from(why: &Unconfirmed) -> Failure {
        match why {
            Unconfirmed::NoTerminal(_) => Failure::Usage(why.to_string()),
            Unconfirmed::OtherName(_) => Failure::Refused(why.to_string()),
        }
    }
}

impl Production {
    pub(crate) fn new(context: &str, is_json: bool) -> Production {
        let can_ask = can_ask(is_json);
        Production(Arc::new(State { context: context.to_owned(), can_ask, is_confirmed: Mutex::new(false) }))
    }

    /// Asks for the name of the context, once.
    pub(crate) fn confirm(&self) -> Result<(), Unconfirmed> {
        let State { context, can_ask, is_confirmed } = &*self.0;
        if *is_confirmed.lock() {
            return Ok(());
        }
        if !can_ask {
            return Err(Unconfirmed::NoTerminal(context.clone()));
        }
        let mut answer = String::new();
        let mut err = io::stderr();
        let asked =
            write!(err, "{} is a context in production: type its name to change it: ", clean(context))
                .and_then(|()| err.flush())
                .and_then(|()| io::stdin().read_line(&mut answer));
        self.answer(if asked.is_ok() { &answer } else { "" })
    }

    /// The name to ask for, unless it was given before.
    pub(crate) fn unconfirmed(&self) -> Option<&str> {
        (!*self.0.is_confirmed.lock()).then_some(self.0.context.as_str())
    }

    /// Takes the name that was typed.
    pub(crate) fn answer(&self, typed: &str) -> Result<(), Unconfirmed> {
        let State { context, is_confirmed, .. } = &*self.0;
        let mut is_confirmed = is_confirmed.lock();
        *is_confirmed = typed.trim() == context;
        if *is_confirmed { Ok(()) } else { Err(Unconfirmed::OtherName(context.clone())) }
    }

    /// A client that asks before the first command that changes something.
    pub(crate) fn guard(self, client: Client) -> Client {
        Client::new(Arc::new(GuardedBackend { inner: client.into(), production: self }))
    }
}

/// A backend that asks before the first change.
struct GuardedBackend {
    inner: Arc<dyn Backend>,
    production: Production,
}

impl GuardedBackend {
    /// Asks if a command needs more than the role of a viewer.
    fn check<'c>(&self, mut commands: impl Iterator<Item = &'c Command>) -> Result<(), BackendError> {
        match commands.any(|command| command.access() > Role::Viewer) {
            true => self
                .production
                .confirm()
                .map_err(|why| BackendError::Broken { backend: "chosen", source: Box::new(why) }),
            false => Ok(()),
        }
    }
}

impl Backend for GuardedBackend {
    fn execute(&self, batch: Vec<Call>) -> Pending<'_, Vec<Answer>> {
        match self.check(batch.iter().map(|call| &call.command)) {
            Ok(()) => self.inner.execute(batch),
            Err(error) => Box::pin(async { Err(error) }),
        }
    }

    fn pop_or_wait(&self, pop: Pop, wait: Seconds) -> Pending<'_, PopReply> {
        match self.check([Command::from(pop.clone())].iter()) {
            Ok(()) => self.inner.pop_or_wait(pop, wait),
            Err(error) => Box::pin(async { Err(error) }),
        }
    }

    fn ready_or_wait(&self, queues: Vec<QueueName>, wait: Seconds) -> Pending<'_, bool> {
        self.inner.ready_or_wait(queues, wait)
    }

    fn now(&self) -> Option<Timestamp> {
        self.inner.now()
    }

    fn identify(&self) -> Pending<'_, Software> {
        self.inner.identify()
    }

    fn periodic_jid(&self, template: &PeriodicTemplate) -> Option<Jid> {
        self.inner.periodic_jid(template)
    }

    fn sync_mode(&self) -> Pending<'_, Option<String>> {
        self.inner.sync_mode()
    }

    fn measure(&self) -> Measures {
        self.inner.measure()
    }

    fn subscribe(&self) -> Pending<'_, Box<dyn Subscription>> {
        self.inner.subscribe()
    }

    fn subscribe_from(&self, after: u64) -> Pending<'_, Box<dyn Subscription>> {
        self.inner.subscribe_from(after)
    }

    fn flush_events(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        self.inner.flush_events()
    }

    fn publish(&self, channel: &[u8], message: &[u8]) -> Pending<'_, u64> {
        self.inner.publish(channel, message)
    }

    fn ack_events(&self, position: u64) {
        self.inner.ack_events(position);
    }

    fn open_result_stream(&self, stream_id: u64) -> Pending<'_, Box<dyn ResultStream>> {
        self.inner.open_result_stream(stream_id)
    }

    fn backup(&self, to: BackupTarget) -> Pending<'_, Box<dyn Backup>> {
        self.inner.backup(to)
    }
}
