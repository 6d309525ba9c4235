//! The password: from a file or the environment, never from the command line, which other users can read.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// More than this is no password, but the wrong file.
const PASSWORD_BYTES_MAX: u64 = 4_096;

/// The permission of users other than the owner and the group to read a file.
const READABLE_BY_OTHERS: u32 = 0o004;

pub(crate) const ADVICE: &str = "a password on the command line is visible to other users, for example in `ps`: \
    write it into a file and give --password-file FILE, or set GEARTRAIN_PASSWORD";

/// A password, and a warning about its file.
pub(crate) struct Password {
    pub(crate) text: String,
    pub(crate) warning: Option<String>,
}

/// Whether the command line has a flag `--password`.
pub(crate) fn is_on_command_line(arguments: &[OsString]) -> bool {
    let flags = arguments.iter().skip(1).take_while(|argument| *argument != "--");
    flags.filter_map(|argument| argument.to_str()).any(|argument| {
        argument.strip_prefix("--password").is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    })
}

/// The password in the file, if one is named, or else in the environment.
pub(crate) fn read(file: Option<&Path>) -> Result<Option<Password>, Failure> {
    match file {
        Some(file) => read_file(file)
            .map(Some)
            .map_err(|why| Failure::Usage(format!("cannot use the password file {}: {why}", file.display()))),
        None => match std::env::var("GEARTRAIN_PASSWORD") {
            // An empty variable is as good as none.
            Ok(text) if !text.is_empty() => Ok(Some(Password { text, warning: None })),
            Ok(_) | Err(std::env::VarError::NotPresent) => Ok(None),
            Err(std::env::VarError::NotUnicode(_)) => {
                Err(Failure::Usage("GEARTRAIN_PASSWORD is not UTF-8".to_owned()))
            }
        },
    }
}

/// The same for a server, which may also get it from the service manager as the credential `password`.
pub(crate) fn read_for_server(file: Option<&Path>) -> Result<Option<Password>, Failure> {
    match read(file)? {
        None => match credential("password") {
            Some(file) => read(Some(&file)),
            None => Ok(None),
        },
        found => Ok(found),
    }
}

/// The file of a credential that the service manager has passed on: see `systemd.exec(5)`.
pub(crate) fn credential(name: &str) -> Option<PathBuf> {
    let file = Path::new(&std::env::var_os("CREDENTIALS_DIRECTORY")?).join(name);
    file.is_file().then_some(file)
}

/// Whether all users of this machine can read a file.
pub(crate) fn is_readable_by_others(path: &Path) -> bool {
    path.metadata().is_ok_and(|file| file.permissions().mode() & READABLE_BY_OTHERS != 0)
}

fn read_file(path: &Path) -> Result<Password, String> {
    let text_of = |error: io::Error| error.to_string();
    let file = File::open(path).map_err(text_of)?;
    let mode = file.metadata().map_err(text_of)?.permissions().mode();
    let mut bytes = Vec::new();
    file.take(PASSWORD_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(text_of)?;
    if bytes.len() as u64 > PASSWORD_BYTES_MAX {
        return Err(format!("it has more than {PASSWORD_BYTES_MAX} bytes"));
    }
    let text = String::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned())?;
    let text = text.trim_end_matches(['\n', '\r']);
    if text.is_empty() {
        return Err("it is empty".to_owned());
    }
    if text.contains(['\n', '\r']) {
        return Err("it has several lines: the password is one".to_owned());
    }
    let warning = (mode & READABLE_BY_OTHERS != 0).then(|| {
        format!("all users of this machine can read the password file {}: chmod 600 it", path.display())
    });
    Ok(Password { text: text.to_owned(), warning })
}

/// Adds the password to a URL of RESP that has none.
pub(crate) fn add_to(url: &str, password: &str) -> String {
    let socket_file =
        url.strip_prefix("unix:").map(|path| ("redis+unix", path.strip_prefix("//").unwrap_or(path)));
    let Some((scheme, rest)) = socket_file.or_else(|| url.split_once("://")) else { return url.to_owned() };
    let layouts = ["gearmonkey+", "workkit+", "worqr+"];
    let system = layouts.iter().find_map(|layout| scheme.strip_prefix(layout)).unwrap_or(scheme);
    if !system.starts_with("redis") && !system.starts_with("valkey") {
        return url.to_owned();
    }
    let (place, query) = rest.split_at(rest.find('?').unwrap_or(rest.len()));
    let (user, place) = match place.rsplit_once('@') {
        Some((credentials, _)) if credentials.split_once(':').is_some_and(|(_, given)| !given.is_empty()) => {
            return url.to_owned();
        }
        Some((credentials, place)) => (credentials.trim_end_matches(':'), place),
        None => ("", place),
    };
    let encoded: String = password
        .bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        })
        .collect();
    format!("{scheme}://{user}:{encoded}@{place}{query}")
}

#[cfg(test)]
mod tests {
    use geartrain::Target;
    use geartrain_testkit::peers::Scratch;

    use super::*;

    #[test]
    fn a_password_file_is_one_line() {
        let scratch = Scratch::new("password");
        let file = scratch.path().join("password");
        for (bytes, expected) in [
            (&b"secret"[..], Ok("secret")),
            (b"secret\n", Ok("secret")),
            (b"se cret \r\n", Ok("se cret ")),
            (b"", Err("it is empty")),
            (b"\n", Err("it is empty")),
            (b"one\ntwo\n", Err("it has several lines: the password is one")),
            (b"\xff", Err("it is not UTF-8")),
            (&[b'x'; 4_097], Err("it has more than 4096 bytes")),
        ] {
            std::fs::write(&file, bytes).unwrap();
            let read = read_file(&file).map(|password| password.text);
            assert_eq!(read.as_deref().map_err(String::as_str), expected);
        }
        assert!(read(Some(&scratch.path().join("missing"))).is_err());
    }

    #[test]
    fn a_file_that_all_users_can_read_causes_a_warning() {
        let scratch = Scratch::new("password");
        let file = scratch.path().join("password");
        std::fs::write(&file, "secret").unwrap();
        for (mode, warned) in [(0o600, false), (0o640, false), (0o644, true)] {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(read_file(&file).unwrap().warning.is_some(), warned, "{mode:o}");
        }
    }

    #[test]
    fn a_password_is_added_to_urls_that_need_one() {
        for (url, expected) in [
            ("redis://h:7411", "redis://:a%40%2Fb@h:7411"),
            ("rediss://h?ca=x@y", "rediss://:a%40%2Fb@h?ca=x@y"),
            ("valkey+sentinel://a,b/main", "valkey+sentinel://:a%40%2Fb@a,b/main"),
            ("redis+unix:///run/q.sock", "redis+unix://:a%40%2Fb@/run/q.sock"),
            ("unix:/run/q.sock", "redis+unix://:a%40%2Fb@/run/q.sock"),
            ("redis://ann@h", "redis://ann:a%40%2Fb@h"),
            ("redis://:@h", "redis://:a%40%2Fb@h"),
            ("redis://:own@h", "redis://:own@h"),
            ("gearmonkey+redis://h", "gearmonkey+redis://:a%40%2Fb@h"),
            ("workkit+redis://h?all=true", "workkit+redis://:a%40%2Fb@h?all=true"),
            ("worqr+rediss://h", "worqr+rediss://:a%40%2Fb@h"),
            ("gearman://h", "gearman://h"),
            ("embedded:data", "embedded:data"),
            ("memory:", "memory:"),
        ] {
            let with = add_to(url, "a@/b");
            assert_eq!(with, expected);
            assert!(Target::of(&with).is_ok(), "{with}");
        }
    }

    #[test]
    fn the_flag_is_found_before_a_double_dash() {
        let found = |line: &str| {
            let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            is_on_command_line(&arguments)
        };
        assert!(found("geartrain server --password secret"));
        assert!(found("geartrain --password=secret queues"));
        assert!(!found("geartrain server --password-file f"));
        assert!(!found("geartrain put q k -- --password"));
    }
}
