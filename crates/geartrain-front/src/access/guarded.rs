//! A backend for one caller: refuses what its role may not do, and records what it does.

use std::pin::Pin;
use std::sync::Arc;

use geartrain_core::{
    Answer, Backend, BackendError, Backup, BackupTarget, Call, Command, Jid, Pending, PeriodicTemplate, Pop,
    PopReply, QueueName, Refusal, ResultStream, Role, Seconds, Software, Subscription, Timestamp,
};

use super::{AccessControl, Identity};
use crate::audit::{Action, AuditEvent, AuditLog};

/// Who sends commands, and from where.
#[derive(Debug, Clone)]
pub struct Caller {
    /// Who it is.
    pub identity: Arc<Identity>,
    /// The address.
    pub from: Arc<str>,
    /// The name that the client gave itself, for callers without the name of a key.
    pub client: Option<Arc<str>>,
}

impl Caller {
    /// An event of this caller.
    pub fn event(&self, action: &'static str) -> AuditEvent {
        AuditEvent {
            who: self.identity.name.as_ref().or(self.client.as_ref()).map(|name| name.to_string()),
            role: Some(self.identity.role),
            ..AuditEvent::new(action, &self.from)
        }
    }
}

/// The backend as one caller may use it. All commands of front-ends pass through here, so that each protocol
/// has the same rules.
pub struct GuardedBackend {
    inner: Arc<dyn Backend>,
    caller: Caller,
    access: Arc<AccessControl>,
}

impl GuardedBackend {
    /// The backend for this caller: itself, if there is nothing to refuse or to record.
    pub fn of(inner: &Arc<dyn Backend>, access: &Arc<AccessControl>, caller: Caller) -> Arc<dyn Backend> {
        if caller.identity.role == Role::Admin && !access.read_only && access.audit.is_none() {
            return inner.clone();
        }
        Arc::new(GuardedBackend { inner: inner.clone(), caller, access: access.clone() })
    }

    fn check(&self, command: &Command) -> Option<Refusal> {
        let role = self.caller.identity.role;
        self.access.refusal(role, command.access(), || crate::audit::action_name(command))
    }

    fn audit_of(&self, command: &Command) -> Option<&AuditLog> {
        self.access.audit().filter(|audit| audit.records(command))
    }

    async fn execute_checked(&self, batch: Vec<Call>) -> Result<Vec<Answer>, BackendError> {
        let mut records = Records::default();
        let (mut answers, mut allowed) = (Vec::with_capacity(batch.len()), Vec::with_capacity(batch.len()));
        for (index, call) in batch.into_iter().enumerate() {
            if let Some(audit) = self.audit_of(&call.command) {
                records.audit = Some(audit);
                records.actions.push((index, Action::of(&call.command, &self.caller)));
            }
            match self.check(&call.command) {
                Some(refusal) => answers.push(Some(Err(refusal))),
                None => {
                    answers.push(None);
                    allowed.push(call);
                }
            }
        }
        let executed = if allowed.is_empty() { Ok(Vec::new()) } else { self.inner.execute(allowed).await };
        let mut executed = match executed {
            Ok(executed) => executed.into_iter(),
            Err(error) => {
                records.finish(|_| Err(error.code()));
                return Err(error);
            }
        };
        // In the place of each command that was executed its answer. The backend answers each.
        let answers: Vec<Answer> =
            answers.into_iter().map_while(|answer| answer.or_else(|| executed.next())).collect();
        records.finish(|index| match &answers.get(index) {
            Some(Ok(reply)) => Ok(reply),
            Some(Err(refusal)) => Err(refusal.code()),
            None => Err("unavailable"),
        });
        Ok(answers)
    }
}

/// The actions of a batch, which are recorded with their outcomes. If the caller goes away before, the outcome
/// is unknown.
#[derive(Default)]
struct Records<'a> {
    audit: Option<&'a AuditLog>,
    actions: Vec<(usize, Action)>,
}

impl Records<'_> {
    fn finish<'r>(&mut self, outcome: impl Fn(usize) -> Result<&'r geartrain_core::Reply, &'static str>) {
        for (index, action) in self.actions.drain(..) {
            if let Some(audit) = self.audit {
                audit.record(action.finish(outcome(index)));
            }
        }
    }
}

impl Drop for Records<'_> {
    fn drop(&mut self) {
        self.finish(|_| Err("unknown"));
    }
}

impl Backend for GuardedBackend {
    fn execute(&self, batch: Vec<Call>) -> Pending<'_, Vec<Answer>> {
        let must_record = |command| self.audit_of(command).is_some();
        if batch.iter().any(|call| must_record(&call.command) || self.check(&call.command).is_some()) {
            return Box::pin(self.execute_checked(batch));
        }
        self.inner.execute(batch)
    }

    fn pop_or_wait(&self, pop: Pop, wait: Seconds) -> Pending<'_, PopReply> {
        let command = Command::from(pop.clone());
        let refusal = self.check(&command);
        if let Some(audit) = self.audit_of(&command) {
            let action = Action::of(&command, &self.caller);
            audit.record(match &refusal {
                Some(refusal) => action.finish(Err(refusal.code())),
                None => action.begun(),
            });
        }
        if let Some(refusal) = refusal {
            return Box::pin(async { Err(refusal.into()) });
        }
        self.inner.pop_or_wait(pop, wait)
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
        let role = self.caller.identity.role;
        Box::pin(async move {
            // It changes nothing, so a read-only server makes it too.
            let refusal = Refusal::Forbidden { command: "backup".into(), needed: Role::Admin, role };
            let begun = if role == Role::Admin { self.inner.backup(to).await } else { Err(refusal.into()) };
            if let Some(audit) = self.access.audit() {
                let outcome = begun.as_ref().err().map_or("ok", BackendError::code);
                audit.record(AuditEvent { outcome, ..self.caller.event("backup") });
            }
            begun
        })
    }
}
