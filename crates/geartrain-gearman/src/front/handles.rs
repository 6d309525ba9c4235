//! Job handles: `H:host:1`, `H:host:2` …, each used once, and aliases for jids that are not valid handles.

use std::collections::{HashMap, VecDeque};
use std::fmt::Write;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use geartrain_core::{AllocateIds, Backend, BackendError, Call, Count, Jid, Refusal, Reply};
use parking_lot::{Mutex, MutexGuard};

/// The longest handle: clients keep 64 bytes including a terminating NUL.
pub(crate) const HANDLE_BYTES_MAX: usize = 63;

/// How much of the host name fits into a handle in front of any 64-bit number.
const HOST_BYTES_MAX: usize = 40;

/// Numbers are allocated in blocks of this size. The rest of a block is lost when the server ends.
const HANDLE_BLOCK: i64 = 10_000;

/// The backend's counter, shared by all of its servers.
const COUNTER: &str = "gearman-handles";

/// Generates handles.
pub(crate) struct Handles {
    prefix: String,
    numbers: Mutex<Range<u64>>,
}

impl Handles {
    /// Handles that begin with `H:` and the host name.
    pub(crate) fn new(host: &str) -> Handles {
        let sanitize = |char: char| if is_handle_char(char) { char } else { '-' };
        let host: String = host.chars().map(sanitize).take(HOST_BYTES_MAX).collect();
        let host = if host.is_empty() { "localhost" } else { &host };
        Handles { prefix: format!("H:{host}:"), numbers: Mutex::new(0..0) }
    }

    /// A handle that no other job has had or will have.
    pub(crate) async fn next(&self, backend: &dyn Backend) -> Result<Jid, BackendError> {
        loop {
            if let Some(number) = self.numbers().next() {
                let mut handle = String::with_capacity(self.prefix.len() + 20);
                handle.push_str(&self.prefix);
                // Writing into a `String` does not fail.
                let _ = write!(handle, "{number}");
                return Jid::new(handle)
                    .map_err(|bad| BackendError::Broken { backend: "chosen", source: Box::new(bad) });
            }
            let count = Count::new(HANDLE_BLOCK).unwrap_or(Count::MAX);
            let allocate = AllocateIds { counter: COUNTER.to_owned(), count };
            let mut answers = backend.execute(vec![Call::from(allocate)]).await?;
            match answers.pop() {
                Some(Ok(Reply::AllocateIds(first))) => *self.numbers() = first..first + count.get() as u64,
                Some(Err(refusal)) => return Err(refusal.into()),
                _ => {
                    return Err(Refusal::Unsupported {
                        operation: "allocate ids".into(),
                        backend: "chosen".into(),
                    }
                    .into());
                }
            }
        }
    }

    fn numbers(&self) -> MutexGuard<'_, Range<u64>> {
        self.numbers.lock()
    }
}

/// Whether a jid is a valid handle as it is.
pub(crate) fn is_handle(jid: &str) -> bool {
    jid.len() <= HANDLE_BYTES_MAX && jid.chars().all(|char| is_handle_char(char) || char == ':')
}

/// How many unreferenced aliases a connection keeps, for peers that ask about a job later.
const ALIASES_MAX: usize = 10_000;

/// A handle for a jid that is not a valid one.
pub(crate) struct Alias {
    pub(crate) handle: Bytes,
    pub(crate) jid: Jid,
}

/// The aliases of one connection. An alias stays valid while the peer works on its job or waits for it
/// (something outside of this table refers to it), and after that until [`ALIASES_MAX`] newer ones exist.
#[derive(Default)]
pub(crate) struct Aliases {
    created: u64,
    by_handle: HashMap<Bytes, Arc<Alias>>,
    by_jid: HashMap<Jid, Arc<Alias>>,
    /// Eviction order: the front is examined next.
    order: VecDeque<Arc<Alias>>,
}

/// References to each alias from this table.
const REFERENCES: usize = 3;

impl Aliases {
    pub(crate) fn get(&self, handle: &[u8]) -> Option<&Arc<Alias>> {
        self.by_handle.get(handle)
    }

    /// The alias of a jid, created if needed. Takes constant time, however many there are.
    pub(crate) fn get_or_create(&mut self, jid: &Jid, connection: u64) -> Arc<Alias> {
        if let Some(alias) = self.by_jid.get(jid) {
            return alias.clone();
        }
        self.created += 1;
        let handle = Bytes::from(format!("H:alias:{connection}:{}", self.created));
        let alias = Arc::new(Alias { handle, jid: jid.clone() });
        self.by_handle.insert(alias.handle.clone(), alias.clone());
        self.by_jid.insert(alias.jid.clone(), alias.clone());
        self.order.push_back(alias.clone());
        // Examines two for each new alias, so that the table never holds more than twice the referenced ones.
        for _ in 0..2 {
            self.evict_one();
        }
        alias
    }

    fn evict_one(&mut self) {
        if self.order.len() <= ALIASES_MAX {
            return;
        }
        let Some(oldest) = self.order.pop_front() else { return };
        if Arc::strong_count(&oldest) > REFERENCES {
            return self.order.push_back(oldest);
        }
        self.by_handle.remove(&oldest.handle);
        self.by_jid.remove(&oldest.jid);
    }
}

fn is_handle_char(char: char) -> bool {
    char.is_ascii_alphanumeric() || matches!(char, '.' | '-' | '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreferenced_aliases_are_evicted() {
        let mut aliases = Aliases::default();
        let jid = |number: usize| Jid::new(format!("no handle {number}")).expect("a good name");
        let held = aliases.get_or_create(&jid(0), 7);
        assert_eq!(
            (&held.handle[..], aliases.get_or_create(&jid(0), 7).jid == jid(0)),
            (&b"H:alias:7:1"[..], true)
        );
        for number in 1..5 * ALIASES_MAX {
            aliases.get_or_create(&jid(number), 7);
            assert!(aliases.order.len() <= ALIASES_MAX + 1);
        }
        assert!(aliases.get(b"H:alias:7:1").is_some_and(|alias| alias.jid == jid(0)));
        assert!(aliases.get(b"H:alias:7:2").is_none());
        assert_eq!(aliases.by_handle.len(), aliases.order.len());
        assert_eq!(aliases.by_jid.len(), aliases.order.len());
        drop(held);
        for number in 0..2 * ALIASES_MAX {
            aliases.get_or_create(&jid(10 * ALIASES_MAX + number), 7);
        }
        assert!(aliases.get(b"H:alias:7:1").is_none());
    }

    #[test]
    fn handles_are_short_and_use_safe_characters() {
        let handles = Handles::new(&"my host/äö ".repeat(20));
        let longest = format!("{}{}", handles.prefix, u64::MAX);
        assert!(longest.len() <= HANDLE_BYTES_MAX, "{longest}");
        assert!(is_handle(&longest));
        assert!(is_handle("0198c0ffee0000000000000000000001"));
        for bad in ["a b", "a//b", "größe", &"x".repeat(64)] {
            assert!(!is_handle(bad), "{bad}");
        }
        assert_eq!(Handles::new("").prefix, "H:localhost:");
    }
}
