//! The script cache. No script is ever run: a call of any script is a call of the Qless API.

use std::collections::{HashSet, VecDeque};

use parking_lot::RwLock;

/// How many scripts are remembered; the oldest is evicted first.
const SCRIPTS_MAX: usize = 1024;

/// A script's SHA-1.
pub(crate) type Sha = [u8; 20];

/// Scripts that clients have loaded.
#[derive(Debug, Default)]
pub(crate) struct Scripts(RwLock<Known>);

#[derive(Debug, Default)]
struct Known {
    all: HashSet<Sha>,
    oldest_first: VecDeque<Sha>,
}

impl Scripts {
    /// Remembers a script, and returns its digest in hex.
    pub(crate) fn load(&self, body: &[u8]) -> String {
        let digest = sha1_smol::Sha1::from(body).digest();
        if !self.knows(&digest.bytes()) {
            let mut known = self.0.write();
            if known.all.insert(digest.bytes()) {
                known.oldest_first.push_back(digest.bytes());
            }
            if known.oldest_first.len() > SCRIPTS_MAX
                && let Some(oldest) = known.oldest_first.pop_front()
            {
                known.all.remove(&oldest);
            }
        }
        digest.to_string()
    }

    /// Whether a script with this digest is known.
    pub(crate) fn has(&self, name: &[u8]) -> bool {
        read(name).is_some_and(|sha| self.knows(&sha))
    }

    pub(crate) fn flush(&self) {
        *self.0.write() = Known::default();
    }

    fn knows(&self, sha: &Sha) -> bool {
        self.0.read().all.contains(sha)
    }
}

fn read(name: &[u8]) -> Option<Sha> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let mut sha = [0; 20];
    if name.len() != 40 {
        return None;
    }
    for (byte, pair) in sha.iter_mut().zip(name.chunks_exact(2)) {
        *byte = u8::try_from(digit(pair[0])? << 4 | digit(pair[1])?).ok()?;
    }
    Some(sha)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_known_by_its_digest_in_either_case() {
        let scripts = Scripts::default();
        let name = scripts.load(b"return 1");
        assert_eq!(name, "e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
        assert!(scripts.has(name.as_bytes()) && scripts.has(name.to_ascii_uppercase().as_bytes()));
        assert!(!scripts.has(b"e0e1") && !scripts.has(&[b'0'; 40]) && !scripts.has(&[b'x'; 40]));
        scripts.flush();
        assert!(!scripts.has(name.as_bytes()));
    }

    #[test]
    fn the_oldest_is_forgotten() {
        let scripts = Scripts::default();
        let first = scripts.load(b"first");
        let last = (0..SCRIPTS_MAX).map(|number| scripts.load(&number.to_le_bytes())).last().unwrap();
        assert!(!scripts.has(first.as_bytes()) && scripts.has(last.as_bytes()));
    }
}
