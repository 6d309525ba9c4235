//! Why the command did not do what it was told, in one sentence that says what to do next, and the exit code for it.

use std::io;

use geartrain::log::LogError;
use geartrain::{Error, OpenError, Refusal, StateName, WaitError};

use crate::duration;

/// Why the command did not do what it was told.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The queue said no. Exit code 1.
    Refused(String),
    /// What was asked makes no sense. Exit code 2.
    Usage(String),
    /// There is no answer from the queue. Exit code 3.
    Unreachable(String),
    /// It took too long. Exit code 4.
    TimedOut(String),
    /// The answer could not be written. Exit code 3, for whoever waits for it does not get it either.
    Output(io::Error),
}

impl Failure {
    /// The exit code that a script sees.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            // Whoever reads has read enough, as `head` does.
            Failure::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => 0,
            Failure::Refused(_) => 1,
            Failure::Usage(_) => 2,
            Failure::Unreachable(_) | Failure::Output(_) => 3,
            Failure::TimedOut(_) => 4,
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Refused(why)
            | Failure::Usage(why)
            | Failure::Unreachable(why)
            | Failure::TimedOut(why) => f.write_str(why),
            Failure::Output(error) => write!(f, "the answer cannot be written: {error}"),
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
        Failure::Refused(with_advice(&refusal))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match error {
            Error::Refused(refusal) => refusal.into(),
            Error::Input(_) | Error::Url { .. } => Failure::Usage(error.to_string()),
            Error::Wait(wait) => wait.into(),
            Error::Backup(reason) => reason.into(),
            Error::Open { ref source, .. } if source.is_damage() => {
                Failure::Unreachable(format!("{}{SALVAGE}", whole_story(&error)))
            }
            Error::Connect { .. } if whole_story(&error).contains("NOAUTH") => Failure::Unreachable(format!(
                "{}; name it as in redis://:PASSWORD@HOST:PORT",
                whole_story(&error)
            )),
            Error::Connect { .. } => Failure::Unreachable(format!(
                "{}; start a server with `geartrain server`, or name another queue with --url, such as embedded:./geartrain-data",
                whole_story(&error)
            )),
            other => Failure::Unreachable(whole_story(&other)),
        }
    }
}

/// Of a job that somebody waited for.
impl From<WaitError> for Failure {
    fn from(error: WaitError) -> Failure {
        match error {
            WaitError::TimedOut { jid, wait } => Failure::TimedOut(format!(
                "job {jid} had not ended after {} and goes on without you; `geartrain why {jid}` says how it does",
                duration::format(wait.as_secs_f64())
            )),
            WaitError::Unknown { jid, state } => {
                let state = state.map_or("gone", StateName::as_str);
                Failure::Refused(format!(
                    "job {jid} is {state}, and what came out of it was not kept; put it with --keep-result to ask later"
                ))
            }
            other => Failure::Refused(other.to_string()),
        }
    }
}

/// What to do about damage.
const SALVAGE: &str = "; `geartrain check --salvage OUT` writes what can be saved into another directory";

/// Of a directory that was looked at, or copied.
impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Failure {
        let story = whole_story(&error);
        match error {
            damaged if damaged.is_damage() => Failure::Refused(format!("{story}{SALVAGE}")),
            OpenError::NotEmpty { .. } => Failure::Usage(story),
            OpenError::NothingKept { .. } => Failure::Refused(story),
            _ => Failure::Unreachable(story),
        }
    }
}

/// Of a result log.
impl From<LogError> for Failure {
    fn from(error: LogError) -> Failure {
        match error {
            LogError::Url { .. } | LogError::NotALog { .. } => Failure::Usage(error.to_string()),
            other => Failure::Unreachable(whole_story(&other)),
        }
    }
}

/// An error and what led to it.
fn whole_story(error: &dyn std::error::Error) -> String {
    let mut story = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        // One that only passes another on says the same.
        let said = cause.to_string();
        if !story.ends_with(&said) {
            story.push_str(&format!(": {said}"));
        }
        source = cause.source();
    }
    story
}

/// A refusal, and what to do about it where it does not say so itself.
fn with_advice(refusal: &Refusal) -> String {
    let advice = match refusal {
        Refusal::NoSuchJob { .. } => "; `geartrain jobs` lists those that do",
        Refusal::NoSuchRecurring { .. } => "; `geartrain recur ls` lists those that do",
        Refusal::NotRunning { .. } => "; a worker must pop it first",
        Refusal::HeldByAnother { .. } => "; give the --token or --worker that it was popped with",
        Refusal::LockLost { .. } => "; drop it, this attempt is over",
        Refusal::NotInDepends { .. } => "; only a job put with --depends can gain or lose one",
        Refusal::Cycle { .. } => "; leave that dependency out",
        Refusal::TooManyDependencies { .. } => "; let it wait for fewer",
        Refusal::CursorTooOld { oldest, .. } => {
            return format!(
                "{refusal}; `geartrain events --after {}` begins there",
                oldest.saturating_sub(1)
            );
        }
        Refusal::CursorAhead { .. } => "; `geartrain events --after` takes a position that was printed",
        Refusal::BadArgument { what, .. } if what == "expires" => {
            // It says when that was, in seconds since the epoch.
            return "expires is a moment that has passed: give a later one, or 1h for an hour from now"
                .to_owned();
        }
        Refusal::TooLarge { what, .. } if what == "payload" => {
            "; keep it in a file or a database and put where it is"
        }
        _ => "",
    };
    format!("{refusal}{advice}")
}

#[cfg(test)]
mod tests {
    use geartrain::{BackendError, Jid, QueueName};

    use super::*;

    #[test]
    fn every_failure_has_its_exit_code() {
        let refused = Error::from(Refusal::NoSuchJob { jid: Jid::new("j1").unwrap() });
        let input = Error::from(QueueName::new("").unwrap_err());
        let url = Error::Url { url: "x:".to_owned(), why: "no" };
        let source = io::Error::other("the directory is locked").into();
        let broken = Error::from(BackendError::Broken { backend: "embedded", source });
        for (error, code, text) in [
            (refused, 1, "job j1 does not exist; `geartrain jobs` lists those that do"),
            (input, 2, "a queue needs at least one byte"),
            (url, 2, "\"x:\" is not the URL of a queue: no"),
            (broken, 3, "the embedded backend cannot answer: the directory is locked"),
        ] {
            let failure = Failure::from(error);
            assert_eq!((failure.exit_code(), failure.to_string().as_str()), (code, text));
        }
        assert_eq!(Failure::TimedOut(String::new()).exit_code(), 4);
        assert_eq!(Failure::from(io::Error::from(io::ErrorKind::BrokenPipe)).exit_code(), 0);
        assert_eq!(Failure::from(io::Error::from(io::ErrorKind::StorageFull)).exit_code(), 3);
    }
}
