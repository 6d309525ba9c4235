//! What the end of a program means for its job.

use std::borrow::Cow;
use std::time::Duration;

use geartrain_core::{Group, JobResult, Payload};
use geartrain_worker::{Context, Interruption, JobError, JobOutput};

use crate::{Ended, Limits};

/// The exit code of a program that asks for another attempt (`EX_TEMPFAIL`).
pub const EXIT_RETRY: i32 = 75;
/// The exit code of a program whose job fails for good (`EX_USAGE`).
pub const EXIT_FAIL: i32 = 64;

/// How a program ended, with what it wrote.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) ended: Ended,
    /// Its standard output.
    pub(crate) result: Result<Vec<u8>, ResultError>,
    /// The end of its standard error.
    pub(crate) stderr: String,
    /// The failure group that it chose.
    pub(crate) group: Option<Group>,
}

/// Why the standard output of a program is not a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResultError {
    /// It is larger than the limit.
    TooLarge { max: usize },
    /// A process outside of the program's tree holds it open.
    NotClosed,
}

/// What the end of a program means for its job. `retry_delay` replaces the job's backoff.
#[allow(clippy::result_large_err, reason = "it is made once per process")]
pub(crate) fn verdict(
    context: &Context,
    limits: Limits,
    retry_delay: Option<Duration>,
    outcome: Outcome,
) -> Result<JobOutput, JobError> {
    let retry = |message: String, group: String| {
        let error = JobError::retry(message).group(group);
        match retry_delay {
            Some(delay) => error.after(delay),
            None => error,
        }
    };
    let (ended, queue) = (outcome.ended, context.queue());
    let with_stderr = |what: String| match outcome.stderr.trim() {
        "" => what,
        stderr => format!("{what}: {stderr}"),
    };
    let interruption = context.interruption();
    match outcome.result {
        Ok(_) => {}
        Err(ResultError::TooLarge { max }) => {
            let message = format!("the result is larger than {max} bytes: the program was stopped");
            return Err(JobError::fail(format!("{queue}-result-too-large"), with_stderr(message)));
        }
        Err(ResultError::NotClosed) => {
            let message = "a process that the program did not start holds its standard output open";
            return Err(retry(with_stderr(message.to_owned()), format!("{queue}-result-not-closed")));
        }
    }
    // The queue discards these verdicts; the message is for the worker's log.
    let taken_away = match interruption {
        Some(Interruption::Cancelled) => Some("the job was cancelled"),
        Some(Interruption::LockLost) => Some("the lock of the job is lost"),
        _ => None,
    };
    if let Some(why) = taken_away {
        return Err(JobError::release(format!("the program was stopped: {why}")));
    }
    if interruption == Some(Interruption::TimedOut) {
        let message = with_stderr("the program was stopped: it took too long".to_owned());
        return Err(retry(message, format!("{queue}-timeout")));
    }
    match (ended.code, outcome.result) {
        (Some(0), Ok(bytes)) => {
            return Ok(JobOutput::with_result(JobResult { code: 0, bytes: Payload::from(bytes) }));
        }
        _ if interruption == Some(Interruption::Shutdown) => {
            return Err(JobError::release("the worker was stopped, and the program with it"));
        }
        _ => {}
    }
    if is_out_of_memory(ended, limits, &outcome.stderr) {
        let limit = limits.memory_bytes.map(|limit| format!(", limit {}", megabytes(limit)));
        let (peak, limit) = (megabytes(ended.peak_memory_bytes), limit.unwrap_or_default());
        let message = with_stderr(format!("out of memory (peak {peak}{limit})"));
        return Err(retry(message, format!("{queue}-out-of-memory")));
    }
    match (ended.code, ended.signal) {
        (Some(code), _) => {
            let message = with_stderr(format!("exit code {code}"));
            let group =
                outcome.group.map_or_else(|| format!("{queue}-exit-{code}"), |group| group.to_string());
            Err(if code == EXIT_FAIL { JobError::fail(group, message) } else { retry(message, group) })
        }
        (None, Some(signal)) => {
            // A service manager sends its signal to all processes, not only to the worker.
            if context.stopping().is_cancelled() && STOP_SIGNALS.contains(&signal) {
                return Err(JobError::release("the program was stopped together with the worker"));
            }
            let name = signal_name(signal);
            let hint = if name == "SIGXCPU" { " (the limit of CPU time)" } else { "" };
            let message = with_stderr(format!("killed by {name}{hint}"));
            Err(retry(message, format!("{queue}-signal-{name}")))
        }
        (None, None) => Err(JobError::retry("the program ended, and its exit code is not known")),
    }
}

/// SIGHUP, SIGINT, SIGQUIT, SIGTERM.
const STOP_SIGNALS: [i32; 4] = [1, 2, 3, 15];

/// What runtimes print when an allocation fails. Under a limit they end with an exit code or a signal of their
/// own, and say why only there.
const OUT_OF_MEMORY_TEXTS: [&str; 8] = [
    "MemoryError",
    "memory allocation of",
    "out of memory",
    "Out of memory",
    "bad_alloc",
    "OutOfMemory",
    "annot allocate memory",
    "failed to allocate memory",
];

fn is_out_of_memory(ended: Ended, limits: Limits, stderr: &str) -> bool {
    let says_so = || OUT_OF_MEMORY_TEXTS.iter().any(|text| stderr.contains(text));
    ended.out_of_memory || (limits.memory_bytes.is_some() && ended.code != Some(EXIT_FAIL) && says_so())
}

pub(crate) fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

/// A sentence and a JSON object for the job's history.
pub(crate) fn history(ended: Ended) -> (String, String) {
    let how: Cow<'_, str> = match (ended.code, ended.signal) {
        _ if ended.out_of_memory => "ran out of memory".into(),
        (Some(code), _) => format!("exited with code {code}").into(),
        (None, Some(signal)) => format!("was killed by {}", signal_name(signal)).into(),
        (None, None) => "ended".into(),
    };
    let peak = megabytes(ended.peak_memory_bytes);
    let text = format!("the program {how}: {:.2} s of CPU time, {peak} of memory at most", ended.cpu_seconds);
    let data = serde_json::json!({
        "exit_code": ended.code,
        "signal": ended.signal.map(signal_name),
        "out_of_memory": ended.out_of_memory,
        "cpu_seconds": ended.cpu_seconds,
        "peak_memory_bytes": ended.peak_memory_bytes,
        "stragglers": ended.stragglers,
    });
    (text, data.to_string())
}

/// The name of a signal: `SIGKILL`.
pub(crate) fn signal_name(number: i32) -> Cow<'static, str> {
    const NAMES: [&str; 31] = [
        "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE",
        "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ",
        "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
    ];
    match usize::try_from(number - 1).ok().and_then(|index| NAMES.get(index)) {
        Some(name) => format!("SIG{name}").into(),
        None => format!("signal {number}").into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_names() {
        assert_eq!(
            (signal_name(9), signal_name(24), signal_name(40)),
            ("SIGKILL".into(), "SIGXCPU".into(), "signal 40".into())
        );
    }
}
