//! Access control: which role a caller has, by the access key or the password that it sends.

mod guarded;
mod key_file;
mod throttle;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use geartrain_core::{Refusal, Role};
use parking_lot::RwLock;
use tokio_util::sync::CancellationToken;

pub use self::guarded::{Caller, GuardedBackend};
pub use self::key_file::{
    AccessKey, KEY_PREFIX, KeyFileError, change_keys, is_key_name, new_access_key, read_keys,
};
use self::throttle::{Attempt, AuthThrottle};
use crate::audit::{AuditEvent, AuditLog};
use key_file::{Digest, Stamp};

/// The user name that Redis libraries send with a password alone.
pub const DEFAULT_USER: &str = "default";

/// How often the key file is looked at for changes, and keys for their expiry.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Who sends a request: the owner of an access key, of the password, or any client where neither is required.
#[derive(Debug)]
pub struct Identity {
    /// The name of the access key; none for the password, and where nothing is required.
    pub name: Option<Arc<str>>,
    /// What it may do.
    pub role: Role,
    revoked: CancellationToken,
}

impl Identity {
    fn new(name: Option<Arc<str>>, role: Role) -> Arc<Identity> {
        Arc::new(Identity { name, role, revoked: CancellationToken::new() })
    }

    /// An administrator without a name or a key, whom something else has let in.
    pub fn unnamed() -> Arc<Identity> {
        Identity::new(None, Role::Admin)
    }

    /// Cancelled when the key is removed, changed or expired: then connections and sessions that it opened end.
    pub fn revoked(&self) -> &CancellationToken {
        &self.revoked
    }
}

/// Who may do what on a server. Shared by its front-ends.
pub struct AccessControl {
    password: Option<(Digest, Arc<Identity>)>,
    /// The file of the keys, which may appear later.
    file: Option<PathBuf>,
    keys: RwLock<Keys>,
    /// Any client, as long as nothing is required.
    anonymous: Arc<Identity>,
    throttle: AuthThrottle,
    read_only: bool,
    audit: Option<AuditLog>,
}

#[derive(Default)]
struct Keys {
    /// Whether there is or was a key file: then a key is required, also if the file is empty or gone.
    has_file: bool,
    stamp: Option<Stamp>,
    list: Vec<(AccessKey, Arc<Identity>)>,
}

impl AccessControl {
    /// Every client is an administrator: right for a loopback address, or a socket that permissions protect.
    pub fn open() -> AccessControl {
        AccessControl {
            password: None,
            file: None,
            keys: RwLock::default(),
            anonymous: Identity::unnamed(),
            throttle: AuthThrottle::default(),
            read_only: false,
            audit: None,
        }
    }

    /// Requires a password, whose owner is an administrator.
    pub fn with_password(self, password: &str) -> AccessControl {
        let digest = Digest::of(password.as_bytes());
        AccessControl { password: Some((digest, Identity::unnamed())), ..self }
    }

    /// Requires a key of this file, as soon as it exists.
    pub fn with_key_file(self, file: PathBuf) -> Result<AccessControl, KeyFileError> {
        let control = AccessControl { file: Some(file), ..self };
        control.reload()?;
        Ok(control)
    }

    /// Refuses every change, whatever the role of the caller.
    pub fn read_only(self, read_only: bool) -> AccessControl {
        AccessControl { read_only, ..self }
    }

    /// Records administrative actions.
    pub fn with_audit(self, audit: Option<AuditLog>) -> AccessControl {
        AccessControl { audit, ..self }
    }

    /// Whether a key or the password is required.
    pub fn is_required(&self) -> bool {
        self.password.is_some() || self.keys.read().has_file
    }

    /// Whether every change is refused.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Why a caller of this role may not do something: it needs another role, or the server is read-only.
    pub fn refusal(&self, role: Role, needed: Role, name: impl FnOnce() -> &'static str) -> Option<Refusal> {
        if needed > role {
            return Some(Refusal::Forbidden { command: name().into(), needed, role });
        }
        (self.read_only && needed > Role::Viewer).then(|| Refusal::ReadOnly { command: name().into() })
    }

    /// The audit log, if there is one.
    pub fn audit(&self) -> Option<&AuditLog> {
        self.audit.as_ref()
    }

    /// The identity of clients that send no key, if none is required.
    pub fn anonymous(&self) -> Option<Arc<Identity>> {
        (!self.is_required()).then(|| self.anonymous.clone())
    }

    /// The owner of a secret, which is a key or the password. A name, if given, must be that of the key. After
    /// refused attempts from the same source anything but a key waits. Keys are too long to be guessed, and
    /// over HTTP each request has one: their owners must not wait because another client has a wrong one.
    pub async fn authenticate(
        &self,
        name: Option<&str>,
        secret: &[u8],
        source: Option<IpAddr>,
    ) -> Option<Arc<Identity>> {
        let given = Digest::of(secret);
        let name = name.filter(|name| *name != DEFAULT_USER);
        if let Some(owner) = self.owner_of_key(name, &given, SystemTime::now()) {
            return Some(owner);
        }
        let mut found = None;
        let is_right = || {
            found = self.owner_of_password(name, &given);
            found.is_some()
        };
        if let Attempt::Wrong { to_record: Some(count) } = self.throttle.attempt(source, is_right).await
            && let Some(audit) = &self.audit
        {
            let from = source.map_or_else(|| "unix-socket".to_owned(), |ip| ip.to_string());
            audit.record(AuditEvent {
                // The name is the caller's claim. What it sent as a secret is recorded nowhere.
                target: name.filter(|name| is_key_name(name)).map(str::to_owned),
                count: (count > 1).then_some(count),
                outcome: "refused",
                ..AuditEvent::new("login", &from)
            });
        }
        found
    }

    fn owner_of_password(&self, name: Option<&str>, given: &Digest) -> Option<Arc<Identity>> {
        let (right, owner) = self.password.as_ref()?;
        (right.is_same(given) && name.is_none()).then(|| owner.clone())
    }

    /// Compares with all keys, so that the time does not tell which one is similar.
    fn owner_of_key(&self, name: Option<&str>, given: &Digest, now: SystemTime) -> Option<Arc<Identity>> {
        let mut found = None;
        let keys = self.keys.read();
        for (key, owner) in &keys.list {
            let is_named = name.is_none_or(|name| name == key.name);
            if key.digest.is_same(given) & is_named & !key.has_expired(seconds(now)) {
                found = Some(owner.clone());
            }
        }
        found
    }

    /// Reads the key file again, if there is one. Returns whether anything changed; if the file is bad, the keys
    /// read before stay in use.
    pub fn reload(&self) -> Result<bool, KeyFileError> {
        let Some(file) = &self.file else { return Ok(false) };
        let Some(stamp) = Stamp::of(file)? else {
            if self.keys.read().has_file {
                return Err(KeyFileError::new(file, "it is gone"));
            }
            return Ok(false);
        };
        let list = read_keys(file)?;
        let mut keys = self.keys.write();
        let was_required = keys.has_file;
        keys.has_file = true;
        keys.stamp = Some(stamp);
        let before = std::mem::take(&mut keys.list);
        let mut changed = !was_required || before.len() != list.len();
        keys.list = list
            .into_iter()
            .map(|key| match before.iter().find(|(known, _)| *known == key) {
                Some((_, owner)) => (key, owner.clone()),
                None => {
                    changed = true;
                    let owner = Identity::new(Some(key.name.as_str().into()), key.role);
                    (key, owner)
                }
            })
            .collect();
        let stays = |key: &AccessKey| keys.list.iter().any(|(other, _)| other == key);
        before.iter().filter(|(key, _)| !stays(key)).for_each(|(_, owner)| owner.revoked.cancel());
        drop(keys);
        // Connections from before the first key must authenticate.
        self.anonymous.revoked.cancel();
        Ok(changed)
    }

    /// Follows changes of the key file, and ends what expired keys have opened, until `stop`.
    pub async fn watch(self: Arc<AccessControl>, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(WATCH_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut reported = None;
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            let control = self.clone();
            // A file may be on a disk that is slow.
            let Ok(looked) = tokio::task::spawn_blocking(move || control.look()).await else { return };
            match looked {
                Ok(false) => reported = None,
                Ok(true) => {
                    reported = None;
                    self.log_reload();
                }
                Err(error) => {
                    let text = error.to_string();
                    if reported.as_ref() != Some(&text) {
                        tracing::error!("{text}; the keys read before stay in use");
                        reported = Some(text);
                    }
                }
            }
        }
    }

    /// Reads the key file if it has changed, and revokes expired keys.
    fn look(&self) -> Result<bool, KeyFileError> {
        let now = seconds(SystemTime::now());
        for (key, owner) in &self.keys.read().list {
            if key.has_expired(now) {
                owner.revoked.cancel();
            }
        }
        let Some(file) = &self.file else { return Ok(false) };
        let (stamp, known) = (Stamp::of(file)?, self.keys.read().stamp);
        if stamp == known { Ok(false) } else { self.reload() }
    }

    fn log_reload(&self) {
        let count = self.keys.read().list.len();
        tracing::info!(keys = count, "reloaded the access keys{}", self.file_text());
        if let Some(audit) = &self.audit {
            let event = AuditEvent::new("reload-keys", "file");
            audit.record(AuditEvent { count: Some(count as u64), ..event });
        }
    }

    /// Reads the key file again, as an operator asks, and logs what came of it.
    pub fn reload_and_log(&self) {
        match self.reload() {
            Ok(true) => self.log_reload(),
            Ok(false) => {}
            Err(error) => tracing::error!("{error}; the keys read before stay in use"),
        }
    }

    fn file_text(&self) -> String {
        self.file.as_deref().map(|file: &Path| format!(" of {}", file.display())).unwrap_or_default()
    }

    /// Whether a key is required and there is none that could be used.
    pub fn is_locked_out(&self) -> bool {
        let now = seconds(SystemTime::now());
        let keys = self.keys.read();
        self.password.is_none() && keys.has_file && keys.list.iter().all(|(key, _)| key.has_expired(now))
    }
}

impl std::fmt::Debug for AccessControl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without digests, because debug output ends up in logs.
        f.debug_struct("AccessControl")
            .field("has_password", &self.password.is_some())
            .field("file", &self.file)
            .field("keys", &self.keys.read().list.len())
            .field("read_only", &self.read_only)
            .finish_non_exhaustive()
    }
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, what goes wrong should stop it")]
mod tests {
    use super::*;

    struct File(PathBuf);

    impl File {
        fn new(name: &str) -> File {
            let directory =
                std::env::temp_dir().join(format!("geartrain-access-{}-{name}", std::process::id()));
            std::fs::create_dir_all(&directory).unwrap();
            File(directory.join("access-keys"))
        }

        fn add(&self, name: &str, role: Role, expires: Option<u64>) -> String {
            let (key, text) = new_access_key(name, role, seconds(SystemTime::now()), expires).unwrap();
            change_keys(&self.0, |keys| {
                keys.push(key);
                Ok(())
            })
            .unwrap();
            text
        }
    }

    impl Drop for File {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(self.0.parent().unwrap());
        }
    }

    async fn role(control: &AccessControl, name: Option<&str>, secret: &str) -> Option<Role> {
        control.authenticate(name, secret.as_bytes(), None).await.map(|identity| identity.role)
    }

    #[tokio::test]
    async fn a_key_gives_its_role_under_its_own_name_only() {
        let file = File::new("roles");
        let (ana, bob) = (file.add("ana", Role::Viewer, None), file.add("bob", Role::Operator, None));
        let control = AccessControl::open().with_password("secret").with_key_file(file.0.clone()).unwrap();
        assert!(control.is_required() && control.anonymous().is_none());
        for (name, secret, expected) in [
            (None, ana.as_str(), Some(Role::Viewer)),
            (Some("default"), &ana, Some(Role::Viewer)),
            (Some("ana"), &ana, Some(Role::Viewer)),
            (Some("bob"), &bob, Some(Role::Operator)),
            (Some("bob"), &ana, None),
            (None, "secret", Some(Role::Admin)),
            (Some("ana"), "secret", None),
            (None, "", None),
        ] {
            assert_eq!(role(&control, name, secret).await, expected, "{name:?}");
        }
    }

    #[tokio::test]
    async fn a_key_does_not_wait_because_of_wrong_ones() {
        let file = File::new("wrong");
        let ana = file.add("ana", Role::Viewer, None);
        let control = AccessControl::open().with_password("secret").with_key_file(file.0.clone()).unwrap();
        for _ in 0..5 {
            assert_eq!(role(&control, None, "wrong").await, None);
        }
        let at_once = async |secret: &str| {
            tokio::select! {
                biased;
                role = role(&control, None, secret) => role,
                () = std::future::ready(()) => None,
            }
        };
        assert_eq!(at_once(&ana).await, Some(Role::Viewer));
        assert_eq!(at_once("secret").await, None, "the password waits");
        assert_eq!(role(&control, None, "secret").await, Some(Role::Admin));
    }

    #[tokio::test]
    async fn an_expired_key_opens_nothing() {
        let file = File::new("expired");
        let old = file.add("old", Role::Admin, Some(1));
        let control = AccessControl::open().with_key_file(file.0.clone()).unwrap();
        assert_eq!(role(&control, None, &old).await, None);
        assert!(control.is_locked_out());
    }

    #[tokio::test]
    async fn changes_of_the_file_revoke_what_they_end() {
        let file = File::new("changes");
        let control = AccessControl::open().with_key_file(file.0.clone()).unwrap();
        let anonymous = control.anonymous().unwrap();
        let (ana, bob) = (file.add("ana", Role::Viewer, None), file.add("bob", Role::Operator, None));
        assert!(control.look().unwrap());
        assert!(anonymous.revoked().is_cancelled() && control.anonymous().is_none());
        let [ana_then, bob_then] = [&ana, &bob]
            .map(|key| control.owner_of_key(None, &Digest::of(key.as_bytes()), UNIX_EPOCH).unwrap());
        change_keys(&file.0, |keys| {
            keys.retain(|key| key.name != "ana");
            Ok(())
        })
        .unwrap();
        assert!(control.look().unwrap() && !control.look().unwrap());
        assert!(ana_then.revoked().is_cancelled() && !bob_then.revoked().is_cancelled());
        assert_eq!(role(&control, None, &ana).await, None);
        // A file that is damaged or gone opens nothing and closes nothing.
        std::fs::write(&file.0, "nonsense\n").unwrap();
        assert!(control.reload().is_err());
        std::fs::remove_file(&file.0).unwrap();
        assert!(control.reload().is_err());
        assert!(control.is_required() && !bob_then.revoked().is_cancelled());
        assert_eq!(role(&control, None, &bob).await, Some(Role::Operator));
    }
}
