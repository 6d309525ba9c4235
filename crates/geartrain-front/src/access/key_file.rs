//! Access keys at rest: a file with a line for each, which has a hash of the key and never the key.
//!
//! ```text
//! # geartrain access keys: name, role, SHA-256 of the key, created, expires (seconds since the epoch)
//! ana viewer 1f6ec5…  1763510400 -
//! ```

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::Path;
use std::time::SystemTime;

use geartrain_core::Role;
use ring::digest;
use ring::rand::{SecureRandom as _, SystemRandom};

use super::DEFAULT_USER;

/// How every access key begins, so that people and secret scanners recognise one.
pub const KEY_PREFIX: &str = "gtk_";
/// 160 random bits: with so many, a fast hash at rest is enough.
const KEY_BYTES: usize = 20;
const NAME_BYTES_MAX: usize = 64;
/// A larger file is not one of keys.
const FILE_BYTES_MAX: u64 = 1 << 20;
const HEADER: &str =
    "# geartrain access keys: name, role, SHA-256 of the key, created, expires (seconds since the epoch)\n";

/// The letters of a key: base32 without i, l, o and u.
const LETTERS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// An access key, without the key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessKey {
    /// Its name, for logs and the audit log.
    pub name: String,
    /// What its owner may do.
    pub role: Role,
    /// When it was created, in seconds since the epoch.
    pub created: u64,
    /// From when on it is refused, in seconds since the epoch.
    pub expires: Option<u64>,
    pub(super) digest: Digest,
}

impl AccessKey {
    /// Whether it is refused at this time, in seconds since the epoch.
    pub fn has_expired(&self, now: u64) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }
}

/// The SHA-256 of a secret.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Digest([u8; 32]);

impl Digest {
    pub(super) fn of(secret: &[u8]) -> Digest {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest::digest(&digest::SHA256, secret).as_ref());
        Digest(bytes)
    }

    /// Compares in a time that does not depend on where they differ.
    pub(super) fn is_same(&self, other: &Digest) -> bool {
        self.0.iter().zip(other.0).fold(0, |all, (one, other)| all | (one ^ other)) == 0
    }

    fn parse(hex: &str) -> Option<Digest> {
        let mut bytes = [0; 32];
        if hex.len() != 64 || !hex.is_ascii() {
            return None;
        }
        for (byte, digits) in bytes.iter_mut().zip(hex.as_bytes().chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        }
        Some(Digest(bytes))
    }
}

impl std::fmt::Debug for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Digest")
    }
}

/// The key file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot use the key file {file}: {why}")]
pub struct KeyFileError {
    file: String,
    why: String,
}

impl KeyFileError {
    /// With what is wrong.
    pub fn new(file: &Path, why: impl std::fmt::Display) -> KeyFileError {
        KeyFileError { file: file.display().to_string(), why: why.to_string() }
    }
}

/// What changes whenever the file does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    modified: Option<SystemTime>,
    length: u64,
    inode: u64,
}

impl Stamp {
    /// None if there is no such file.
    pub(super) fn of(file: &Path) -> Result<Option<Stamp>, KeyFileError> {
        match fs::metadata(file) {
            Ok(found) => {
                Ok(Some(Stamp { modified: found.modified().ok(), length: found.len(), inode: found.ino() }))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(KeyFileError::new(file, error)),
        }
    }
}

/// Whether a key may have this name.
pub fn is_key_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._@-".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&name.len())
        && name.bytes().all(is_allowed)
        && name.as_bytes()[0].is_ascii_alphanumeric()
        && name != DEFAULT_USER
}

/// A new random key: what to store, and the key itself, which is not stored.
pub fn new_access_key(
    name: &str,
    role: Role,
    created: u64,
    expires: Option<u64>,
) -> Result<(AccessKey, String), String> {
    if !is_key_name(name) {
        return Err(format!(
            "the name of a key has 1 to {NAME_BYTES_MAX} letters, digits and . _ @ -, begins with a letter or a \
             digit, and is not {DEFAULT_USER}"
        ));
    }
    let mut random = [0; KEY_BYTES];
    SystemRandom::new().fill(&mut random).map_err(|_| "the system has no random numbers".to_owned())?;
    let mut text = KEY_PREFIX.to_owned();
    // Five bytes are eight letters.
    for five in random.chunks(5) {
        let bits = five.iter().fold(0_u64, |bits, byte| bits << 8 | u64::from(*byte));
        text.extend((0..8).rev().map(|at| char::from(LETTERS[(bits >> (5 * at)) as usize & 31])));
    }
    let digest = Digest::of(text.as_bytes());
    Ok((AccessKey { name: name.to_owned(), role, created, expires, digest }, text))
}

/// Reads a key file.
pub fn read_keys(file: &Path) -> Result<Vec<AccessKey>, KeyFileError> {
    let failed = |why: &dyn std::fmt::Display| KeyFileError::new(file, why);
    let length = fs::metadata(file).map_err(|error| failed(&error))?.len();
    if length > FILE_BYTES_MAX {
        return Err(failed(&format_args!("it has more than {FILE_BYTES_MAX} bytes")));
    }
    let text = fs::read_to_string(file).map_err(|error| failed(&error))?;
    let mut keys: Vec<AccessKey> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        // Without the line, which may be a key that was written here by mistake.
        let key = parse(line).map_err(|why| failed(&format_args!("line {}: {why}", number + 1)))?;
        if keys.iter().any(|other| other.name == key.name) {
            return Err(failed(&format_args!("line {}: there are two keys {}", number + 1, key.name)));
        }
        keys.push(key);
    }
    Ok(keys)
}

fn parse(line: &str) -> Result<AccessKey, &'static str> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let [name, role, digest, created, expires] = fields[..] else {
        return Err("it must have five fields; `geartrain key add` writes them");
    };
    if !is_key_name(name) {
        return Err("the first field is not the name of a key");
    }
    let number = |text: &str| text.parse().map_err(|_| "a time is a number of seconds since the epoch");
    Ok(AccessKey {
        name: name.to_owned(),
        role: Role::find(role).ok_or("the role must be viewer, operator or admin")?,
        digest: Digest::parse(digest).ok_or("the third field is not a SHA-256 in hexadecimal")?,
        created: number(created)?,
        expires: if expires == "-" { None } else { Some(number(expires)?) },
    })
}

/// Changes a key file, which need not exist, as a whole: readers see the old file or the new one.
pub fn change_keys<T>(
    file: &Path,
    change: impl FnOnce(&mut Vec<AccessKey>) -> Result<T, KeyFileError>,
) -> Result<T, KeyFileError> {
    let failed = |error: io::Error| KeyFileError::new(file, error);
    let directory = match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let beside = |suffix: &str| {
        let mut name = file.file_name().unwrap_or_default().to_owned();
        name.push(suffix);
        directory.join(name)
    };
    // One change at a time. A lock on the file itself would end with it when it is replaced, and that of a data
    // directory belongs to the store.
    let lock = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(beside(".lock"));
    let lock = lock.map_err(failed)?;
    lock.lock().map_err(failed)?;
    let exists = Stamp::of(file)?.is_some();
    let owner = fs::metadata(if exists { file } else { directory }).map_err(failed)?;
    let mut keys = if exists { read_keys(file)? } else { Vec::new() };
    let outcome = change(&mut keys)?;
    let mut text = HEADER.to_owned();
    for key in &keys {
        let digest: String = key.digest.0.iter().map(|byte| format!("{byte:02x}")).collect();
        let expires = key.expires.map_or_else(|| "-".to_owned(), |expires| expires.to_string());
        text.push_str(&format!("{} {} {digest} {} {expires}\n", key.name, key.role, key.created));
    }
    let new = beside(".new");
    let written = || -> io::Result<()> {
        let _ = fs::remove_file(&new);
        let mut out = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        // For a server of another user, when the superuser changes its keys.
        for made in [&out, &lock] {
            let own = made.metadata()?;
            if (own.uid(), own.gid()) != (owner.uid(), owner.gid()) {
                fchown(made, Some(owner.uid()), Some(owner.gid()))?;
            }
        }
        // A server may read the keys by its group.
        if exists {
            out.set_permissions(Permissions::from_mode(owner.mode() & 0o640))?;
        }
        out.write_all(text.as_bytes())?;
        out.sync_all()?;
        fs::rename(&new, file)?;
        File::open(directory)?.sync_all()
    };
    written().map_err(|error| {
        let _ = fs::remove_file(&new);
        failed(error)
    })?;
    Ok(outcome)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, what goes wrong should stop it")]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_recognisable_random_and_not_in_what_is_stored() {
        let (stored, key) = new_access_key("ana", Role::Viewer, 1, None).unwrap();
        let (_, other) = new_access_key("ana", Role::Viewer, 1, None).unwrap();
        assert!(key.starts_with(KEY_PREFIX) && key.len() == KEY_PREFIX.len() + 32, "{key}");
        assert_ne!(key, other);
        assert!(stored.digest.is_same(&Digest::of(key.as_bytes())));
        assert!(!format!("{stored:?}").contains(&key));
        for name in ["", "default", "a b", "-x", "a\n", &"x".repeat(65)] {
            assert!(new_access_key(name, Role::Viewer, 1, None).is_err(), "{name:?}");
        }
    }

    #[test]
    fn a_file_that_a_group_may_read_stays_so_and_no_others_may() {
        let scratch = geartrain_testkit::peers::Scratch::new("key-mode");
        let file = scratch.path().join("keys");
        let mode_after = |given: Option<u32>| {
            if let Some(mode) = given {
                fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            }
            change_keys(&file, |_| Ok(())).unwrap();
            fs::metadata(&file).unwrap().mode() & 0o777
        };
        assert_eq!(mode_after(None), 0o600);
        assert_eq!(mode_after(Some(0o640)), 0o640);
        assert_eq!(mode_after(Some(0o644)), 0o640);
    }

    #[test]
    fn a_bad_line_is_named_by_its_number_and_not_shown() {
        let hash = "0".repeat(64);
        for line in [
            "gtk_secret".to_owned(),
            format!("ana owner {hash} 1 -"),
            format!("ana viewer {} 1 -", &hash[1..]),
            format!("ana viewer {hash} soon -"),
            format!("ana viewer {hash} 1 never"),
            format!("default viewer {hash} 1 -"),
        ] {
            let why = parse(&line).unwrap_err();
            assert!(!why.contains("secret"), "{why}");
        }
        assert_eq!(parse(&format!("ana viewer {hash} 1 2")).unwrap().expires, Some(2));
    }
}
