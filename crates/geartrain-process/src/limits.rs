//! Resource limits of a launched program.

use std::ffi::OsString;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, setrlimit};

/// Resource limits of a launched program. Time is limited by the worker, see
/// [`Context::deadline`](geartrain_worker::Context::deadline).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Bytes of memory. Allocations of a process beyond it fail (`RLIMIT_DATA`), and the program is killed if
    /// all of its processes together use more.
    pub memory_bytes: Option<u64>,
    /// Seconds of CPU time of each process (`RLIMIT_CPU`): then it gets SIGXCPU, and SIGKILL a second later.
    pub cpu: Option<Duration>,
}

impl Limits {
    /// Sets the limits of this process, and of the program that it executes.
    ///
    /// `RLIMIT_DATA` and not `RLIMIT_AS`: Node, Go and Java reserve far more address space than they use, and
    /// do not start under a limit of it.
    pub(crate) fn apply(self) -> std::io::Result<()> {
        if let Some(bytes) = self.memory_bytes {
            setrlimit(Resource::Data, Rlimit { current: Some(bytes), maximum: Some(bytes) })?;
        }
        if let Some(cpu) = self.cpu {
            // The kernel counts whole seconds, and none would be no limit at all.
            let seconds = cpu.as_secs() + u64::from(cpu.subsec_nanos() > 0);
            let seconds = seconds.max(1);
            setrlimit(Resource::Cpu, Rlimit { current: Some(seconds), maximum: Some(seconds + 1) })?;
        }
        Ok(())
    }

    /// As two arguments of the hidden commands; 0 is no limit.
    pub(crate) fn to_arguments(self) -> [OsString; 2] {
        let cpu = self.cpu.map_or(0, |cpu| cpu.as_millis().max(1));
        [self.memory_bytes.unwrap_or(0).to_string().into(), cpu.to_string().into()]
    }

    pub(crate) fn from_arguments(memory: u64, cpu_millis: u64) -> Limits {
        Limits {
            memory_bytes: (memory > 0).then_some(memory),
            cpu: (cpu_millis > 0).then(|| Duration::from_millis(cpu_millis)),
        }
    }
}
