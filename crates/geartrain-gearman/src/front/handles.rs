//! The handles that jobs get here: `H:host:1`, `H:host:2` …, and never the same one twice.

use std::fmt::Write;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use geartrain_core::{Allot, Backend, BackendError, Call, Count, Jid, Refusal, Reply};

/// The longest handle: clients keep 64 bytes, with a NUL at the end.
pub(crate) const HANDLE_BYTES_MAX: usize = 63;

/// How much of a host's name fits into a handle with any number behind it.
const HOST_BYTES_MAX: usize = 40;

/// How many numbers are asked for at once. What is left of them is lost when the server ends.
const BLOCK: i64 = 10_000;

/// Who counts the handles: all servers of one backend share the numbers.
const COUNTER: &str = "gearman-handles";

/// Makes handles.
pub(crate) struct Handles {
    /// What stands before the number.
    prefix: String,
    numbers: Mutex<Range<u64>>,
}

impl Handles {
    /// Handles that begin with `H:` and a host's name.
    pub(crate) fn new(host: &str) -> Handles {
        let good = |char: char| if is_good(char) { char } else { '-' };
        let host: String = host.chars().map(good).take(HOST_BYTES_MAX).collect();
        let host = if host.is_empty() { "localhost" } else { &host };
        Handles { prefix: format!("H:{host}:"), numbers: Mutex::new(0..0) }
    }

    /// A handle that no other job has, had, or will have.
    pub(crate) async fn next(&self, backend: &dyn Backend) -> Result<Jid, BackendError> {
        loop {
            if let Some(number) = self.numbers().next() {
                let mut handle = String::with_capacity(self.prefix.len() + 20);
                handle.push_str(&self.prefix);
                // Writing into a text does not fail.
                let _ = write!(handle, "{number}");
                return Jid::new(handle)
                    .map_err(|bad| BackendError::Broken { backend: "chosen", source: Box::new(bad) });
            }
            let count = Count::new(BLOCK).unwrap_or(Count::MAX);
            let allot = Allot { counter: COUNTER.to_owned(), count };
            let mut answers = backend.execute(vec![Call::from(allot)]).await?;
            match answers.pop() {
                Some(Ok(Reply::Allot(first))) => *self.numbers() = first..first + count.get() as u64,
                Some(Err(refusal)) => return Err(refusal.into()),
                _ => {
                    return Err(
                        Refusal::Unsupported { operation: "hand out numbers", backend: "chosen" }.into()
                    );
                }
            }
        }
    }

    fn numbers(&self) -> std::sync::MutexGuard<'_, Range<u64>> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a jid can be sent as a handle as it is.
pub(crate) fn is_handle(jid: &str) -> bool {
    jid.len() <= HANDLE_BYTES_MAX && jid.chars().all(|char| is_good(char) || char == ':')
}

fn is_good(char: char) -> bool {
    char.is_ascii_alphanumeric() || matches!(char, '.' | '-' | '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_short_and_holds_nothing_that_a_client_could_stumble_over() {
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
