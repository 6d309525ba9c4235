//! What is remembered of one peer.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use geartrain_core::{BackendError, Timestamp};
use geartrain_front::{Admitted, Evicted};

use crate::channels::{Ear, Kind, Push};
use crate::front::Shared;

/// By how many seconds the clock of a Qless client may differ from ours before that is logged. Its `now`
/// decides when locks expire and delayed jobs are due, also those of other clients.
const CLOCK_SECONDS_OFF_MAX: f64 = 60.0;

/// How many channels and patterns one peer may listen to.
const SUBSCRIPTIONS_MAX: usize = 10_000;

/// One peer, as far as its requests have changed what is known of it.
pub(crate) struct Session {
    pub(crate) number: u64,
    shared: Arc<Shared>,
    /// Its address; none if it came by a socket in the file system.
    ip: Option<IpAddr>,
    admitted: Admitted,
    /// It understands RESP3, and so may ask things while it listens.
    pub(crate) three: bool,
    /// It is to be cut off when it has heard its last reply.
    pub(crate) closing: bool,
    channels: BTreeSet<Bytes>,
    patterns: BTreeSet<Bytes>,
    ear: Ear,
    /// It was logged that its clock is wrong.
    wrong_clock_logged: bool,
}

impl Session {
    pub(crate) fn new(number: u64, ip: Option<IpAddr>, admitted: Admitted, shared: Arc<Shared>) -> Session {
        Session {
            number,
            ip,
            admitted,
            shared,
            three: false,
            closing: false,
            channels: BTreeSet::new(),
            patterns: BTreeSet::new(),
            ear: Ear::new(),
            wrong_clock_logged: false,
        }
    }

    /// Logs that a client's clock differs much from ours, once for each connection.
    pub(crate) fn check_clock(&mut self, said: Timestamp) {
        if self.wrong_clock_logged {
            return;
        }
        if let Some(seconds) = seconds_off(said, SystemTime::now()) {
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

    /// Whether its calls may go to the queue right away. Otherwise they are looked at one by one, and turned down.
    pub(crate) fn may_call(&self) -> bool {
        self.is_trusted() && !self.only_listens()
    }

    /// It has said the password, or need not.
    pub(crate) fn is_trusted(&self) -> bool {
        self.admitted.is_authenticated()
    }

    /// From now on it is trusted. Never false where there is no password.
    pub(crate) fn trust(&mut self, trusted: bool) {
        self.admitted.set_authenticated(trusted || self.shared.options.password.is_none());
    }

    /// Whether this is the password. After wrong ones from its address it takes a while to find out.
    pub(crate) async fn is_password(&self, is_right: impl FnOnce() -> bool) -> bool {
        self.shared.auth.attempt(self.ip, is_right).await
    }

    /// In RESP2 replies and messages cannot be told apart, so whoever listens can do little else.
    pub(crate) fn only_listens(&self) -> bool {
        !self.three && self.subscriptions() > 0
    }

    /// How many channels and patterns it listens to.
    pub(crate) fn subscriptions(&self) -> usize {
        self.channels.len() + self.patterns.len()
    }

    /// What it is told, when it is cut off, and when it has not said the password in time.
    pub(crate) fn ear(
        &mut self,
    ) -> (&mut Ear, impl Future<Output = ()> + use<>, impl Future<Output = Evicted>) {
        let cut = self.ear.mouth.is_cut();
        (&mut self.ear, cut, self.admitted.evicted())
    }

    pub(crate) fn take_push(&mut self) -> Option<Push> {
        self.ear.take()
    }

    /// Begins to listen. None if it listens to too much already.
    pub(crate) async fn subscribe(&mut self, kind: Kind, name: &Bytes) -> Option<Result<(), BackendError>> {
        if self.of(kind).contains(name) {
            return Some(Ok(()));
        }
        if self.subscriptions() >= SUBSCRIPTIONS_MAX {
            return None;
        }
        // A name of its own: it would keep all that was read with it in memory.
        let name = Bytes::copy_from_slice(name);
        let subscribed = self.shared.channels.subscribe(self.number, &self.ear.mouth, kind, &name).await;
        if subscribed.is_ok() {
            self.of(kind).insert(name);
        }
        Some(subscribed)
    }

    /// Listens no longer.
    pub(crate) fn unsubscribe(&mut self, kind: Kind, name: &Bytes) {
        if self.of(kind).remove(name) {
            self.shared.channels.unsubscribe(self.number, kind, name);
        }
    }

    /// All that it listens to.
    pub(crate) fn listens_to(&mut self, kind: Kind) -> Vec<Bytes> {
        self.of(kind).iter().cloned().collect()
    }

    /// Listens to nothing any more.
    pub(crate) fn unsubscribe_all(&mut self) {
        for kind in Kind::ALL {
            for name in self.listens_to(kind) {
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

    /// Where it comes from.
    pub(crate) fn address(&self) -> String {
        self.shared.peers().get(&self.number).map(|(address, _)| address.clone()).unwrap_or_default()
    }

    /// Its name, as it said itself.
    pub(crate) fn name(&self) -> String {
        self.shared.peers().get(&self.number).map(|(_, name)| name.clone()).unwrap_or_default()
    }

    pub(crate) fn rename(&self, name: String) {
        if let Some(peer) = self.shared.peers().get_mut(&self.number) {
            peer.1 = name;
        }
    }
}

/// By how much a client's clock differs from ours, if that is too much.
fn seconds_off(said: Timestamp, own: SystemTime) -> Option<f64> {
    let own = match own.duration_since(UNIX_EPOCH) {
        Ok(since) => since.as_secs_f64(),
        Err(before) => -before.duration().as_secs_f64(),
    };
    let seconds = said.get() - own;
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
    fn a_clock_that_is_a_minute_off_is_right_enough() {
        let own = UNIX_EPOCH + Duration::from_secs(1_000_000);
        for (said, off) in [
            (1_000_000.0, None),
            (1_000_060.0, None),
            (999_940.0, None),
            (1_000_061.0, Some(61.0)),
            (996_400.0, Some(-3_600.0)),
            (0.0, Some(-1_000_000.0)),
        ] {
            assert_eq!(seconds_off(Timestamp::new(said).unwrap(), own), off, "{said}");
        }
    }
}
