//! Connection admission: how many connections there may be at once, for all front-ends of the process
//! together.
//!
//! Every connection takes a file descriptor. When there are none left, the store cannot open the next
//! segment of its log and all writes stop. So connections beyond the limit are refused, and connections
//! that have not authenticated yet have a smaller limit and a deadline: any program that reaches the port can
//! open them.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::descriptors;

/// How long a connection may take to authenticate.
pub const AUTHENTICATE_WITHIN: Duration = Duration::from_secs(10);

/// One in so many connections may be unauthenticated.
const UNAUTHENTICATED_SHARE: usize = 8;

/// A front-end that connections belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrontEnd {
    /// RESP.
    Resp,
    /// Gearman.
    Gearman,
    /// HTTP.
    Http,
}

impl FrontEnd {
    /// All of them.
    pub const ALL: [FrontEnd; 3] = [FrontEnd::Resp, FrontEnd::Gearman, FrontEnd::Http];

    /// Its name in documents and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            FrontEnd::Resp => "resp",
            FrontEnd::Gearman => "gearman",
            FrontEnd::Http => "http",
        }
    }
}

/// Counts connections and refuses those beyond the limit.
#[derive(Debug)]
pub struct Admission {
    /// As many as the descriptor limit allows, if not given.
    connections_max: Option<usize>,
    authenticate_within: Duration,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    connections: usize,
    by_front_end: [usize; FrontEnd::ALL.len()],
    /// Those that have not authenticated yet, oldest first.
    unauthenticated: BTreeMap<u64, CancellationToken>,
    next: u64,
}

/// The connection is refused: there are as many as there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full {
    /// How many that is.
    pub connections_max: usize,
}

/// Why a connection ends that has not authenticated, or has lost its access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evicted {
    /// It took too long.
    Late,
    /// It is the oldest of too many.
    Crowded,
    /// The access key that it sent is of no use any more.
    Revoked,
}

/// The slot of one admitted connection; freed when it is dropped.
#[derive(Debug)]
pub struct Admitted {
    admission: Arc<Admission>,
    front_end: Option<FrontEnd>,
    unauthenticated: Option<Unauthenticated>,
}

#[derive(Debug)]
struct Unauthenticated {
    number: u64,
    deadline: Instant,
    evicted: CancellationToken,
}

impl Admission {
    /// The admission of the process, used by all its front-ends because they share its descriptors. The limit
    /// is read again for each connection.
    pub fn of_process() -> Arc<Admission> {
        static PROCESS: OnceLock<Arc<Admission>> = OnceLock::new();
        PROCESS.get_or_init(|| Arc::new(Admission::new(None, AUTHENTICATE_WITHIN))).clone()
    }

    /// With limits of its own.
    pub fn with_limits(connections_max: usize, authenticate_within: Duration) -> Arc<Admission> {
        Arc::new(Admission::new(Some(connections_max), authenticate_within))
    }

    fn new(connections_max: Option<usize>, authenticate_within: Duration) -> Admission {
        Admission { connections_max, authenticate_within, counts: Mutex::default() }
    }

    /// Takes a connection, or refuses it. If it has to authenticate and too many others have to as well, the
    /// oldest of those is evicted: refusing the new one would let idle connections keep every client out.
    pub fn admit(self: &Arc<Admission>, must_authenticate: bool) -> Result<Admitted, Full> {
        let connections_max = self.connections_max();
        let mut counts = self.counts();
        if counts.connections >= connections_max {
            return Err(Full { connections_max });
        }
        counts.connections += 1;
        drop(counts);
        let mut admitted = Admitted { admission: self.clone(), front_end: None, unauthenticated: None };
        admitted.set_authenticated(!must_authenticate);
        Ok(admitted)
    }

    /// How many connections there may be at once.
    pub fn connections_max(&self) -> usize {
        self.connections_max.unwrap_or_else(descriptors::connections_max)
    }

    /// How many connections a front-end has.
    pub fn connections(&self, of: FrontEnd) -> usize {
        self.counts().by_front_end[of as usize]
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock()
    }
}

impl Admitted {
    /// Counts the connection as one of a front-end.
    pub fn count_as(&mut self, front_end: FrontEnd) {
        let mut counts = self.admission.counts();
        if let Some(before) = self.front_end.replace(front_end) {
            counts.by_front_end[before as usize] -= 1;
        }
        counts.by_front_end[front_end as usize] += 1;
    }

    /// Records whether the connection has authenticated. Losing authentication starts the deadline anew.
    pub fn set_authenticated(&mut self, authenticated: bool) {
        if !authenticated && self.unauthenticated.is_some() {
            return;
        }
        let admission = &self.admission;
        let mut counts = admission.counts();
        if let Some(before) = self.unauthenticated.take() {
            counts.unauthenticated.remove(&before.number);
        }
        if authenticated {
            return;
        }
        let unauthenticated_max = (admission.connections_max() / UNAUTHENTICATED_SHARE).max(1);
        while counts.unauthenticated.len() >= unauthenticated_max
            && let Some((_, oldest)) = counts.unauthenticated.pop_first()
        {
            oldest.cancel();
        }
        let (number, evicted) = (counts.next, CancellationToken::new());
        counts.next += 1;
        counts.unauthenticated.insert(number, evicted.clone());
        let deadline = Instant::now() + admission.authenticate_within;
        self.unauthenticated = Some(Unauthenticated { number, deadline, evicted });
    }

    /// Whether it has authenticated, or need not.
    pub fn is_authenticated(&self) -> bool {
        self.unauthenticated.is_none()
    }

    /// Returns when the connection has to end because it has not authenticated; never, if it has.
    pub async fn evicted(&self) -> Evicted {
        let Some(Unauthenticated { deadline, evicted, .. }) = &self.unauthenticated else {
            return std::future::pending().await;
        };
        tokio::select! {
            () = evicted.cancelled() => Evicted::Crowded,
            () = tokio::time::sleep_until(*deadline) => Evicted::Late,
        }
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut counts = self.admission.counts();
        counts.connections -= 1;
        if let Some(front_end) = self.front_end {
            counts.by_front_end[front_end as usize] -= 1;
        }
        if let Some(unauthenticated) = &self.unauthenticated {
            counts.unauthenticated.remove(&unauthenticated.number);
        }
    }
}

impl std::fmt::Display for Full {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "there are {} connections already, and no more are taken: close some, or raise the limit of open \
             files (ulimit -n)",
            self.connections_max
        )
    }
}

impl std::fmt::Display for Evicted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Evicted::Revoked => "its access key was removed or changed, or has expired",
            Evicted::Late => "it did not authenticate in time",
            Evicted::Crowded => "it was the oldest of too many connections that had not authenticated",
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, what goes wrong should stop it")]
mod tests {
    use super::*;

    #[test]
    fn connections_beyond_the_limit_are_refused_until_one_ends() {
        let admission = Admission::with_limits(2, AUTHENTICATE_WITHIN);
        let first = admission.admit(false).unwrap();
        let mut second = admission.admit(true).unwrap();
        second.count_as(FrontEnd::Http);
        assert_eq!(FrontEnd::ALL.map(|of| admission.connections(of)), [0, 0, 1]);
        assert_eq!(admission.admit(false).unwrap_err(), Full { connections_max: 2 });
        drop(first);
        assert!(admission.admit(false).is_ok());
        drop(second);
        assert_eq!(admission.connections(FrontEnd::Http), 0);
    }

    #[tokio::test]
    async fn a_connection_that_does_not_authenticate_in_time_is_evicted() {
        let admission = Admission::with_limits(16, Duration::ZERO);
        let mut connection = admission.admit(true).unwrap();
        assert_eq!(connection.evicted().await, Evicted::Late);
        connection.set_authenticated(true);
        let forever = tokio::time::timeout(Duration::from_millis(10), connection.evicted());
        assert!(forever.await.is_err());
        connection.set_authenticated(false);
        assert_eq!(connection.evicted().await, Evicted::Late);
    }

    #[tokio::test]
    async fn the_oldest_of_too_many_that_have_not_authenticated_is_evicted() {
        let admission = Admission::with_limits(16, AUTHENTICATE_WITHIN);
        let mut connections: Vec<Admitted> = (0..4).map(|_| admission.admit(true).unwrap()).collect();
        let is_evicted = |connection: &Admitted| {
            connection.unauthenticated.as_ref().is_some_and(|pending| pending.evicted.is_cancelled())
        };
        assert_eq!(connections.iter().map(is_evicted).collect::<Vec<_>>(), [true, true, false, false]);
        assert_eq!(connections[0].evicted().await, Evicted::Crowded);
        // Those that need not authenticate are never evicted.
        connections[2].set_authenticated(true);
        let _others = (admission.admit(true), admission.admit(false), admission.admit(true));
        assert!(connections[2].is_authenticated() && is_evicted(&connections[3]));
    }

    #[test]
    fn connections_that_authenticate_make_room_for_others() {
        let admission = Admission::with_limits(1_000, AUTHENTICATE_WITHIN);
        let connections: Vec<Admitted> = (0..1_000)
            .map(|_| {
                let mut connection = admission.admit(true).unwrap();
                connection.set_authenticated(true);
                connection
            })
            .collect();
        assert!(admission.counts().unauthenticated.is_empty());
        assert!(admission.admit(true).is_err());
        drop(connections);
        assert_eq!(admission.counts().connections, 0);
    }
}
