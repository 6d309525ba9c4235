//! Sessions of the dashboard: a random id in a cookie, and here whom it stands for.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::http::header::{self, HeaderMap};
use geartrain_front::Identity;
use parking_lot::Mutex;
use ring::digest;
use ring::rand::{SecureRandom as _, SystemRandom};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The name of the cookie.
pub(crate) const COOKIE: &str = "geartrain_session";
/// How many sessions there may be; then the one that was unused for longest ends.
const SESSIONS_MAX: usize = 1_024;
/// How long a session may be unused.
const IDLE_MAX: Duration = Duration::from_secs(12 * 3_600);
/// How long a session lasts at most.
pub(crate) const AGE_MAX: Duration = Duration::from_secs(7 * 24 * 3_600);

/// The sessions, by the hash of their ids, so that a lookup tells nothing about ids that are similar.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    table: Mutex<HashMap<[u8; 32], Session>>,
}

#[derive(Debug, Clone)]
pub(crate) struct Session {
    pub(crate) identity: Arc<Identity>,
    /// Cancelled when the session ends, or the key that opened it.
    pub(crate) ended: CancellationToken,
    begun: Instant,
    used: Instant,
}

impl Session {
    fn is_over(&self, now: Instant) -> bool {
        self.ended.is_cancelled() || now >= self.begun + AGE_MAX || now >= self.used + IDLE_MAX
    }
}

impl Sessions {
    /// Begins a session and returns its id; none if the system has no random numbers.
    pub(crate) fn begin(&self, identity: Arc<Identity>, now: Instant) -> Option<String> {
        let mut random = [0; 32];
        SystemRandom::new().fill(&mut random).ok()?;
        let id: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut table = self.table.lock();
        if table.len() >= SESSIONS_MAX {
            end_where(&mut table, |session| session.is_over(now));
        }
        if table.len() >= SESSIONS_MAX
            && let Some(oldest) = table.values().map(|session| session.used).min()
        {
            end_where(&mut table, |session| session.used == oldest);
        }
        let ended = identity.revoked().child_token();
        table.insert(hash(&id), Session { identity, ended, begun: now, used: now });
        Some(id)
    }

    /// The session of a request, which is used now.
    pub(crate) fn find(&self, headers: &HeaderMap, now: Instant) -> Option<Session> {
        let mut table = self.table.lock();
        let key = hash(id(headers)?);
        let session = table.get_mut(&key)?;
        if session.is_over(now) {
            end_where(&mut table, |session| session.is_over(now));
            return None;
        }
        session.used = now;
        Some(session.clone())
    }

    /// Ends the session of a request.
    pub(crate) fn end(&self, headers: &HeaderMap) -> Option<Session> {
        let session = self.table.lock().remove(&hash(id(headers)?))?;
        session.ended.cancel();
        Some(session)
    }
}

fn end_where(table: &mut HashMap<[u8; 32], Session>, mut ends: impl FnMut(&Session) -> bool) {
    table.retain(|_, session| {
        let ends = ends(session);
        if ends {
            session.ended.cancel();
        }
        !ends
    });
}

/// The id in the cookie.
fn id(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|cookies| cookies.to_str().ok());
    let pairs = cookies.flat_map(|cookies| cookies.split(';'));
    pairs.filter_map(|pair| pair.trim().split_once('=')).find(|(name, _)| *name == COOKIE).map(|(_, id)| id)
}

fn hash(id: &str) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest::digest(&digest::SHA256, id.as_bytes()).as_ref());
    bytes
}

#[cfg(test)]
mod tests {
    use geartrain_front::AccessControl;

    use super::*;

    fn with(id: &str) -> HeaderMap {
        let cookie = format!("theme=dark; {COOKIE}={id}").parse().unwrap();
        HeaderMap::from_iter([(header::COOKIE, cookie)])
    }

    #[test]
    fn a_session_ends_when_it_is_idle_or_old_or_ended() {
        let (sessions, now) = (Sessions::default(), Instant::now());
        let identity = AccessControl::open().anonymous().unwrap();
        let id = sessions.begin(identity.clone(), now).unwrap();
        assert_eq!(id.len(), 64);
        let hour = Duration::from_secs(3_600);
        assert!(sessions.find(&with(&id), now + 11 * hour).is_some());
        assert!(sessions.find(&with(&id), now + 22 * hour).is_some());
        assert!(sessions.find(&with("0"), now).is_none() && sessions.find(&HeaderMap::new(), now).is_none());
        let session = sessions.find(&with(&id), now + 22 * hour).unwrap();
        assert!(sessions.find(&with(&id), now + 34 * hour).is_none());
        assert!(session.ended.is_cancelled());
        let id = sessions.begin(identity.clone(), now).unwrap();
        for hours in (10..168).step_by(10) {
            assert!(sessions.find(&with(&id), now + hours * hour).is_some());
        }
        assert!(sessions.find(&with(&id), now + 168 * hour).is_none());
        let id = sessions.begin(identity, now).unwrap();
        assert!(sessions.end(&with(&id)).is_some_and(|session| session.ended.is_cancelled()));
        assert!(sessions.end(&with(&id)).is_none() && sessions.find(&with(&id), now).is_none());
    }

    #[test]
    fn too_many_sessions_end_the_one_that_was_unused_for_longest() {
        let (sessions, start) = (Sessions::default(), Instant::now());
        let identity = AccessControl::open().anonymous().unwrap();
        let at = |number: usize| start + Duration::from_millis(number as u64);
        let ids: Vec<String> =
            (0..=SESSIONS_MAX).map(|number| sessions.begin(identity.clone(), at(number)).unwrap()).collect();
        assert_eq!(sessions.table.lock().len(), SESSIONS_MAX);
        assert!(sessions.find(&with(&ids[0]), at(SESSIONS_MAX)).is_none());
        assert!(sessions.find(&with(&ids[1]), at(SESSIONS_MAX)).is_some());
    }
}
