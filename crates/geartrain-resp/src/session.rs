//! A session: the state of one connection that its requests change.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use geartrain_core::{Backend, BackendError, Refusal, Role, Timestamp};
use geartrain_front::{Admitted, Caller, Evicted, GuardedBackend, Identity};
use tokio_util::sync::CancellationToken;

use crate::channels::Kind;
use crate::frame::Output;
use crate::front::Shared;
use crate::outbox::{self, Push};
use crate::transaction::Transaction;

/// By how many seconds the clock of a Qless client may differ from ours before that is logged. Its `now`
/// decides when locks expire and delayed jobs are due, also those of other clients.
const CLOCK_SECONDS_OFF_MAX: f64 = 60.0;

/// How many channels and patterns one connection may subscribe to.
const SUBSCRIPTIONS_MAX: usize = 10_000;

/// The state of one connection.
pub(crate) struct Session {
    pub(crate) number: u64,
    shared: Arc<Shared>,
    /// None for a Unix socket.
    ip: Option<IpAddr>,
    admitted: Admitted,
    /// Who the client is; none before it has authenticated.
    identity: Option<Arc<Identity>>,
    /// The backend, as this client may use it.
    backend: Arc<dyn Backend>,
    /// Cancelled when the key of the client is of no use any more. Of this connection alone, because waiting for
    /// a token of many connections makes them contend.
    revoked: CancellationToken,
    /// Speaks RESP3, and so may send requests while it is subscribed.
    pub(crate) resp3: bool,
    /// Closes after the last reply.
    pub(crate) closing: bool,
    /// Between `MULTI` and `EXEC`.
    pub(crate) transaction: Option<Transaction>,
    channels: BTreeSet<Bytes>,
    patterns: BTreeSet<Bytes>,
    outbox: outbox::Receiver,
    wrong_clock_logged: bool,
}

impl Session {
    pub(crate) fn new(number: u64, ip: Option<IpAddr>, admitted: Admitted, shared: Arc<Shared>) -> Session {
        let anonymous = shared.options.access.anonymous();
        let mut session = Session {
            number,
            ip,
            admitted,
            identity: None,
            backend: shared.backend.clone(),
            revoked: CancellationToken::new(),
            shared,
            resp3: false,
            closing: false,
            transaction: None,
            channels: BTreeSet::new(),
            patterns: BTreeSet::new(),
            outbox: outbox::Receiver::new(),
            wrong_clock_logged: false,
        };
        session.set_identity(anonymous);
        session
    }

    /// Logs a client's wrong clock, once per connection.
    pub(crate) fn check_clock(&mut self, sent: Timestamp) {
        if self.wrong_clock_logged {
            return;
        }
        if let Some(seconds) = seconds_off(sent, SystemTime::now()) {
            self.wrong_clock_logged = true;
            let name = Some(self.name()).filter(|name| !name.is_empty());
            tracing::warn!(
                "connection {}{}: the clock of this Qless client is {:.0} s {} this machine's; locks and \
                 delays follow the time that it sends, so set its clock (logged once per connection)",
                self.number,
                name.map(|name| format!(" ({name})")).unwrap_or_default(),
                seconds.abs(),
                if seconds < 0.0 { "behind" } else { "ahead of" },
            );
        }
    }

    /// Whether calls go to the queue. If not, each is refused, or queued for `EXEC`.
    pub(crate) fn may_call(&self) -> bool {
        self.is_authenticated() && !self.is_subscriber_only() && self.transaction.is_none()
    }

    /// Whether the password was sent, or is not needed.
    pub(crate) fn is_authenticated(&self) -> bool {
        self.admitted.is_authenticated()
    }

    /// Who the client is, if it has authenticated or need not.
    pub(crate) fn identity(&self) -> Option<&Arc<Identity>> {
        self.identity.as_ref()
    }

    /// Forgets who the client is.
    pub(crate) fn reset_identity(&mut self) {
        self.set_identity(self.shared.options.access.anonymous());
    }

    pub(crate) fn set_identity(&mut self, identity: Option<Arc<Identity>>) {
        self.admitted.set_authenticated(identity.is_some());
        self.revoked = match &identity {
            Some(identity) => identity.revoked().child_token(),
            None => CancellationToken::new(),
        };
        self.identity = identity;
        self.set_backend();
    }

    /// The backend, as this client may use it.
    pub(crate) fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// Why the client may not do what is no command of the backend.
    pub(crate) fn refusal(&self, needed: Role, command: &'static str) -> Option<Refusal> {
        let role = self.identity.as_ref()?.role;
        self.shared.options.access.refusal(role, needed, || command)
    }

    fn set_backend(&mut self) {
        let Some(identity) = self.identity.clone() else {
            // Calls are refused before they get here.
            self.backend = self.shared.backend.clone();
            return;
        };
        let client = Some(self.name()).filter(|name| !name.is_empty());
        let caller = Caller { identity, from: self.address().into(), client: client.map(Arc::from) };
        self.backend = GuardedBackend::of(&self.shared.backend, &self.shared.options.access, caller);
    }

    /// Whether the client is on this machine.
    pub(crate) fn is_local(&self) -> bool {
        self.ip.is_none_or(|ip| ip.to_canonical().is_loopback())
    }

    /// The owner of a key or the password, after a delay if wrong ones came from this address.
    pub(crate) async fn authenticate(&self, user: &[u8], secret: &[u8]) -> Option<Arc<Identity>> {
        // No key has a name that is not UTF-8, and none this one.
        let user = std::str::from_utf8(user).unwrap_or("?");
        self.shared.options.access.authenticate(Some(user), secret, self.ip).await
    }

    /// In RESP2, replies and messages look the same, so a subscriber may send little else.
    pub(crate) fn is_subscriber_only(&self) -> bool {
        !self.resp3 && self.subscriptions() > 0
    }

    /// How many channels and patterns it is subscribed to.
    pub(crate) fn subscriptions(&self) -> usize {
        self.channels.len() + self.patterns.len()
    }

    /// The outbox, the end of a client that falls behind, and that of one that does not authenticate
    /// in time or loses its access.
    pub(crate) fn events(
        &mut self,
    ) -> (&mut outbox::Receiver, impl Future<Output = ()> + use<>, impl Future<Output = Evicted>) {
        let disconnected = self.outbox.sender.disconnected();
        let (evicted, revoked) = (self.admitted.evicted(), self.revoked.cancelled());
        let evicted = async {
            tokio::select! {
                why = evicted => why,
                () = revoked => Evicted::Revoked,
            }
        };
        (&mut self.outbox, disconnected, evicted)
    }

    pub(crate) fn take_push(&mut self) -> Option<Push> {
        self.outbox.try_next()
    }

    /// Writes queued messages: these come before the replies of the calls that caused them.
    pub(crate) fn write_messages(&mut self, out: &mut Output) {
        while let Some(push) = self.take_push() {
            push.write(out);
        }
    }

    /// Subscribes to channels or patterns, all of them before it waits. Returns how many subscriptions there
    /// are after each, up to the one that would be too many.
    pub(crate) async fn subscribe(
        &mut self,
        kind: Kind,
        names: &[Bytes],
    ) -> Result<Vec<usize>, BackendError> {
        let (mut counts, mut added) = (Vec::new(), Vec::new());
        for name in names {
            if !self.of(kind).contains(name) {
                if self.subscriptions() >= SUBSCRIPTIONS_MAX {
                    break;
                }
                // A copy: a slice would keep the whole read buffer in memory.
                let name = Bytes::copy_from_slice(name);
                self.shared.channels.add(self.number, &self.outbox.sender, kind, &name);
                self.of(kind).insert(name.clone());
                added.push(name);
            }
            counts.push(self.subscriptions());
        }
        let opened = self.shared.channels.open(self.number, &self.outbox.sender, kind, &added).await;
        if opened.is_err() {
            added.iter().for_each(|name| self.unsubscribe(kind, name));
        }
        opened.map(|()| counts)
    }

    pub(crate) fn unsubscribe(&mut self, kind: Kind, name: &Bytes) {
        if self.of(kind).remove(name) {
            self.shared.channels.unsubscribe(self.number, kind, name);
        }
    }

    pub(crate) fn subscribed(&mut self, kind: Kind) -> Vec<Bytes> {
        self.of(kind).iter().cloned().collect()
    }

    pub(crate) fn unsubscribe_all(&mut self) {
        for kind in Kind::ALL {
            for name in self.subscribed(kind) {
                self.unsubscribe(kind, &name);
            }
        }
    }

    fn of(&mut self, kind: Kind) -> &mut BTreeSet<Bytes> {
        match kind {
            Kind::Channel => &mut self.channels,
            Kind::Pattern => &mut self.patterns,
        }
    }

    pub(crate) fn address(&self) -> String {
        self.shared.peers().get(&self.number).map(|(address, _)| address.clone()).unwrap_or_default()
    }

    /// The name it set with `CLIENT SETNAME`.
    pub(crate) fn name(&self) -> String {
        self.shared.peers().get(&self.number).map(|(_, name)| name.clone()).unwrap_or_default()
    }

    /// Who asks: the name of the access key, or the one that the call gives or the client has set, and the address.
    pub(crate) fn caller(&self, given: Option<&str>) -> Arc<str> {
        let (address, client) = self.shared.peers().get(&self.number).cloned().unwrap_or_default();
        let of_key = self.identity.as_ref().and_then(|identity| identity.name.as_deref());
        match of_key.or(given).unwrap_or(&client) {
            "" => address.into(),
            name => format!("{name} ({address})").into(),
        }
    }

    pub(crate) fn rename(&mut self, name: String) {
        if let Some(peer) = self.shared.peers().get_mut(&self.number) {
            peer.1 = name;
        }
        self.set_backend();
    }
}

/// By how many seconds a client's clock differs from ours, if that is too much.
fn seconds_off(sent: Timestamp, own: SystemTime) -> Option<f64> {
    let own = match own.duration_since(UNIX_EPOCH) {
        Ok(since) => since.as_secs_f64(),
        Err(before) => -before.duration().as_secs_f64(),
    };
    let seconds = sent.get() - own;
    (seconds.abs() > CLOCK_SECONDS_OFF_MAX).then_some(seconds)
}

impl Drop for Session {
    fn drop(&mut self) {
        self.unsubscribe_all();
        self.shared.peers().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_clock_less_than_a_minute_off_is_accepted() {
        let own = UNIX_EPOCH + Duration::from_secs(1_000_000);
        for (sent, off) in [
            (1_000_000.0, None),
            (1_000_060.0, None),
            (999_940.0, None),
            (1_000_061.0, Some(61.0)),
            (996_400.0, Some(-3_600.0)),
            (0.0, Some(-1_000_000.0)),
        ] {
            assert_eq!(seconds_off(Timestamp::new(sent).unwrap(), own), off, "{sent}");
        }
    }
}
