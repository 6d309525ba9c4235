//! Errors of the command: one sentence that says what to do next, and an exit code.

use std::io;
use std::path::Path;

use geartrain::results::LogError;
use geartrain::{BackendError, Error, OpenError, Refusal, StateName, WaitError};
use geartrain_json::OperationError;

use crate::duration;
use crate::settings::Unconfirmed;

#[derive(Debug)]
pub(crate) enum Failure {
    /// The queue refused. Exit code 1.
    Refused(String),
    /// The queue refused a command, with a code. Exit code 1.
    Refusal(Box<Refusal>),
    /// The command line is wrong. Exit code 2.
    Usage(String),
    /// The program of a worker does not start. Exit code 2. The text may have several lines, which it printed.
    Program(String),
    /// The queue cannot be reached or does not answer. Exit code 3.
    Unreachable(String),
    /// A wait timed out. Exit code 4.
    TimedOut(String),
    /// The output could not be written. Exit code 3, because a script that reads it gets no answer either.
    Output(io::Error),
}

impl Failure {
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            // The reader has read enough, like `head`.
            Failure::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => 0,
            Failure::Refused(_) | Failure::Refusal(_) => 1,
            Failure::Usage(_) | Failure::Program(_) => 2,
            Failure::Unreachable(_) | Failure::Output(_) => 3,
            Failure::TimedOut(_) => 4,
        }
    }
}

impl Failure {
    /// The error as JSON: the code of the refusal, or a word for what else went wrong.
    pub(crate) fn to_json(&self) -> String {
        let code = match self {
            Failure::Refusal(refusal) => refusal.code(),
            Failure::Refused(_) => "refused",
            Failure::Usage(_) | Failure::Program(_) => "usage",
            Failure::Unreachable(_) | Failure::Output(_) => "unavailable",
            Failure::TimedOut(_) => "timed-out",
        };
        OperationError::new(code, self.to_string()).document()
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Refused(why)
            | Failure::Usage(why)
            | Failure::Program(why)
            | Failure::Unreachable(why)
            | Failure::TimedOut(why) => f.write_str(why),
            Failure::Refusal(refusal) => f.write_str(&with_advice(refusal)),
            Failure::Output(error) => write!(f, "the output cannot be written: {error}"),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Output(error)
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        Failure::Refusal(Box::new(refusal))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match error {
            Error::Refused(refusal) => refusal.into(),
            Error::Input(_) | Error::Url { .. } | Error::FeatureDisabled { .. } => {
                Failure::Usage(error.to_string())
            }
            Error::Wait(wait) => wait.into(),
            Error::Open { ref source, .. } if source.is_damage() => {
                Failure::Unreachable(format!("{}{SALVAGE}", with_causes(&error)))
            }
            Error::Connect { .. } => Failure::unreachable(&error, Role::Client),
            // For the user, the queue is what does not answer, whichever backend that is.
            Error::Backend(BackendError::Broken { ref source, .. }) => match source
                .downcast_ref::<Unconfirmed>()
            {
                Some(why) => why.into(),
                None => Failure::Unreachable(format!("the queue cannot answer: {}", with_causes(&**source))),
            },
            other => Failure::Unreachable(with_causes(&other)),
        }
    }
}

/// What connects to a queue, for advice that names its flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Client,
    Server,
}

impl Failure {
    /// A queue that cannot be reached: the cause, and what to do about it.
    pub(crate) fn unreachable(error: &Error, role: Role) -> Failure {
        let mut text = with_causes(error);
        // A Redis ends its errors with a full stop, and the sentence goes on.
        text.truncate(text.trim_end_matches('.').len());
        let advice =
            CONNECT_ADVICE.iter().find(|(causes, ..)| causes.iter().any(|cause| text.contains(cause)));
        Failure::Unreachable(match advice {
            Some((_, client, _)) if role == Role::Client => format!("{text}; {client}"),
            Some((_, _, server)) => format!("{text}; {server}"),
            None => text,
        })
    }
}

const CLIENT_PASSWORD: &str = "check the password: in --password-file, in GEARTRAIN_PASSWORD, or in the URL; \
     a server that requires none refuses every password";
const STORE_PASSWORD: &str = "check the user and the password in the URL of the store (GEARTRAIN_STORE keeps it \
     out of `ps`)";
const AUTHORITY: &str =
    "if a private authority signed the certificate, name its file behind the URL: ?ca=FILE";
const IDENTITY: &str = "the server may require a client certificate: name its files behind the URL, as in \
     ?cert=FILE&key=FILE";
const TLS_FILES: &str = "check the files that ca=, cert= and key= name in the URL";
const NOT_TLS: &str = "the port does not speak TLS: write the URL with redis:// or gearman://";
const NOT_RESP: &str = "the port does not speak RESP, or only with TLS: check the port, or write rediss://";

/// Causes of a failed connection, and what a client and a server can do about them. The first match counts.
const CONNECT_ADVICE: &[(&[&str], &str, &str)] = &[
    (&["cannot use the ", "InvalidClientConfig"], TLS_FILES, TLS_FILES),
    (
        &["NOAUTH"],
        "give the password: with --password-file FILE, in GEARTRAIN_PASSWORD, or as in \
         redis://:PASSWORD@HOST:PORT",
        STORE_PASSWORD,
    ),
    (&["WRONGPASS", "the password was refused"], CLIENT_PASSWORD, STORE_PASSWORD),
    (
        &["NOPERM"],
        "the user of the URL lacks a permission (ACL) on that Redis",
        "the user of the URL lacks a permission (ACL) on that Redis",
    ),
    (&["UnknownIssuer", "unknown issuer"], AUTHORITY, AUTHORITY),
    (&["CertificateRequired", "UnknownCA", "DecryptError", "BadCertificate"], IDENTITY, IDENTITY),
    (&["InvalidContentType"], NOT_TLS, NOT_TLS),
    (
        &["failed to lookup address", "Name or service not known", "Temporary failure in name resolution"],
        "check the host name in --url",
        "check the host name in --store",
    ),
    (
        &["Connection refused", "No such file or directory"],
        "start a server with `geartrain server`, or name another queue with --url, such as \
         embedded:./geartrain-data",
        "start it, or name another one with --store",
    ),
    (
        &["no answer within", "did not reply", "timed out", "unreachable"],
        "check the address and the port, and that no firewall is between",
        "check the address and the port, and that no firewall is between",
    ),
    (
        &[
            "unexpected end of file",
            "onnection reset",
            "roken pipe",
            "is not RESP",
            "disconnected",
            "terminated",
        ],
        NOT_RESP,
        NOT_RESP,
    ),
];

impl From<WaitError> for Failure {
    fn from(error: WaitError) -> Failure {
        match error {
            WaitError::TimedOut { jid, wait } => Failure::TimedOut(format!(
                "job {jid} had not ended after {}; it goes on, and `geartrain why {jid}` shows its state",
                duration::format(wait.as_secs_f64())
            )),
            WaitError::Unknown { jid, state } => {
                let state = state.map_or("removed", StateName::as_str);
                Failure::Refused(format!(
                    "job {jid} is {state}, and its result was not stored; \
                     submit jobs with --keep-result to read it later"
                ))
            }
            other => Failure::Refused(other.to_string()),
        }
    }
}

const SALVAGE: &str = "; `geartrain check --salvage OUT` writes what can be recovered into another directory";

/// From `check`.
impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Failure {
        let text = with_causes(&error);
        match error {
            damaged if damaged.is_damage() => Failure::Refused(format!("{text}{SALVAGE}")),
            OpenError::NotEmpty { .. } | OpenError::MountPoint { .. } | OpenError::PartialName { .. } => {
                Failure::Usage(text)
            }
            OpenError::NothingKept { .. } | OpenError::NoLog { .. } => Failure::Refused(text),
            _ => Failure::Unreachable(text),
        }
    }
}

impl Failure {
    /// From `check --copy`. What can be recovered is recovered from the original, or else from the copy.
    pub(crate) fn of_copy(error: OpenError, copy: &Path) -> Failure {
        if !error.is_damage() {
            return error.into();
        }
        Failure::Refused(format!(
            "{}; the copy is damaged or not complete: make another one, or recover what is in it with \
             `geartrain check --url embedded:{} --salvage OUT`",
            with_causes(&error),
            copy.display()
        ))
    }

    /// From a backup that has begun: it is not repeated if the connection is lost.
    pub(crate) fn of_backup(error: BackendError) -> Failure {
        match error {
            BackendError::Broken { source, .. } => {
                let cause = with_causes(&*source);
                Failure::Unreachable(format!(
                    "the backup is not complete, its server does not answer: {cause}"
                ))
            }
            refused => Error::from(refused).into(),
        }
    }
}

impl From<LogError> for Failure {
    fn from(error: LogError) -> Failure {
        match error {
            LogError::Url { .. } | LogError::NotALog { .. } => Failure::Usage(error.to_string()),
            other => Failure::Unreachable(with_causes(&other)),
        }
    }
}

/// An error and its causes, each said once.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        source = cause.source();
        // That a backend cannot answer is what the error around it says.
        if matches!(cause.downcast_ref(), Some(BackendError::Broken { .. })) {
            continue;
        }
        // A transparent error repeats the text of its source.
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text.push_str(&format!(": {cause_text}"));
        }
    }
    text
}

/// Errors of a directory that its writer may not write.
const NOT_PERMITTED: [&str; 3] = ["Permission denied", "Operation not permitted", "Read-only file system"];

/// A refusal, with advice if it has none itself.
fn with_advice(refusal: &Refusal) -> String {
    let advice = match refusal {
        Refusal::NoSuchJob { .. } => "; `geartrain jobs` lists the jobs that do",
        Refusal::NoSuchRecurring { .. } => "; `geartrain recur ls` lists the ones that do",
        Refusal::NotRunning { .. } => "; a worker must pop it first",
        Refusal::HeldByAnother { .. } => "; give the --token or --worker that it was popped with",
        Refusal::LockLost { .. } => "; stop working on it, this attempt is over",
        Refusal::NotInDepends { .. } => "; only a job submitted with --depends can gain or lose dependencies",
        Refusal::Cycle { .. } => "; leave out that dependency",
        Refusal::TooManyDependencies { .. } => "; use fewer dependencies",
        Refusal::CursorTooOld { oldest, .. } => {
            return format!(
                "{refusal}; `geartrain events --after {}` starts there",
                oldest.saturating_sub(1)
            );
        }
        Refusal::CursorAhead { .. } => "; `geartrain events --after` takes a position that was printed",
        Refusal::BadArgument { what, .. } if what == "expires" => {
            // The refusal gives the time in seconds since the epoch.
            return "expires is in the past: give a later time, or 1h for an hour from now".to_owned();
        }
        Refusal::Backup { why } if NOT_PERMITTED.iter().any(|cause| why.contains(cause)) => {
            "; the process that has the queue open writes the directory, with its own rights: name one that it \
             can write, or make an archive with `geartrain backup - > FILE`"
        }
        Refusal::TooLarge { what, .. } if what == "payload" => {
            "; store the data in a file or a database, and submit its location"
        }
        _ => "",
    };
    format!("{refusal}{advice}")
}

#[cfg(test)]
mod tests {
    use geartrain::{Jid, QueueName};

    use super::*;

    #[test]
    fn a_directory_that_the_server_may_not_write_has_its_own_advice() {
        for (why, is_advised) in [
            ("cannot make a backup: /root/x.partial: Permission denied (os error 13)", true),
            ("cannot make a backup: /mnt/x.partial: Read-only file system (os error 30)", true),
            ("cannot make a backup: /mnt/x is not empty", false),
        ] {
            let failure = Failure::from(Refusal::Backup { why: why.to_owned() });
            let (code, text) = (failure.exit_code(), failure.to_string());
            assert!(code == 1 && text.starts_with(why), "{text}");
            assert_eq!(
                text.ends_with("make an archive with `geartrain backup - > FILE`"),
                is_advised,
                "{text}"
            );
        }
    }

    #[test]
    fn every_failure_has_its_exit_code() {
        let refused = Error::from(Refusal::NoSuchJob { jid: Jid::new("j1").unwrap() });
        let input = Error::from(QueueName::new("").unwrap_err());
        let url = Error::Url { url: "x:".to_owned(), why: "no" };
        let source = io::Error::other("the directory is locked").into();
        let broken = Error::from(BackendError::Broken { backend: "embedded", source });
        let document: serde_json::Value = serde_json::from_str(
            &Failure::from(Refusal::NoSuchJob { jid: Jid::new("j1").unwrap() }).to_json(),
        )
        .unwrap();
        assert_eq!(document["error"]["code"], "no-such-job");
        for (error, code, text) in [
            (refused, 1, "job j1 does not exist; `geartrain jobs` lists the jobs that do"),
            (input, 2, "a queue needs at least one byte"),
            (url, 2, "\"x:\" is not the URL of a queue: no"),
            (broken, 3, "the queue cannot answer: the directory is locked"),
        ] {
            let failure = Failure::from(error);
            assert_eq!((failure.exit_code(), failure.to_string().as_str()), (code, text));
        }
        assert_eq!(Failure::TimedOut(String::new()).exit_code(), 4);
        assert_eq!(Failure::from(io::Error::from(io::ErrorKind::BrokenPipe)).exit_code(), 0);
        assert_eq!(Failure::from(io::Error::from(io::ErrorKind::StorageFull)).exit_code(), 3);
    }
}
