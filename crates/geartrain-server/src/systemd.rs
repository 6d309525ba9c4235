//! Service notifications for systemd (sd_notify): ready, stopping, and a watchdog that proves that the engine
//! answers.

use std::env;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use geartrain_front::RepeatedWarning;

static NOT_SENT: RepeatedWarning = RepeatedWarning::new();
static NO_ANSWER: RepeatedWarning = RepeatedWarning::new();

/// A service manager that wants to be notified.
#[derive(Debug)]
pub struct ServiceManager {
    socket: UnixDatagram,
    /// How often the watchdog is notified, if there is one.
    watchdog_interval: Option<Duration>,
}

impl ServiceManager {
    /// The service manager that the environment names: `NOTIFY_SOCKET`, `WATCHDOG_USEC`, `WATCHDOG_PID`.
    pub fn from_environment() -> Option<ServiceManager> {
        let address = env::var("NOTIFY_SOCKET").ok().filter(|address| !address.is_empty())?;
        let variable = |name| env::var(name).ok();
        let watchdog =
            watchdog_interval(variable("WATCHDOG_USEC"), variable("WATCHDOG_PID"), std::process::id());
        match connect(&address) {
            Ok(socket) => Some(ServiceManager { socket, watchdog_interval: watchdog }),
            Err(error) => {
                tracing::warn!("cannot notify the service manager at NOTIFY_SOCKET {address}: {error}");
                None
            }
        }
    }

    /// How often to call [`beat`](ServiceManager::beat), if there is a watchdog.
    pub(crate) fn watchdog_interval(&self) -> Option<Duration> {
        self.watchdog_interval
    }

    /// The server is ready.
    pub(crate) fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={status}"));
    }

    /// The server is stopping.
    pub(crate) fn stopping(&self) {
        self.send("STOPPING=1");
    }

    /// Notifies the watchdog once the probe has an answer. If that takes longer than the interval, the
    /// service manager hears nothing meanwhile, and restarts the server when its own limit has passed.
    pub(crate) async fn beat(&self, interval: Duration, probe: impl Future<Output = ()>) {
        tokio::pin!(probe);
        while tokio::time::timeout(interval, &mut probe).await.is_err() {
            NO_ANSWER.warn("the engine does not answer: the watchdog of the service manager is not notified");
        }
        self.send("WATCHDOG=1");
    }

    fn send(&self, state: &str) {
        // A full socket must not block the server.
        if let Err(error) = self.socket.send(state.as_bytes()) {
            NOT_SENT.warn(format_args!("cannot notify the service manager: {error}"));
        }
    }
}

/// Half of the time after which the service manager restarts the process, if the watchdog is for this process.
fn watchdog_interval(microseconds: Option<String>, pid: Option<String>, own_pid: u32) -> Option<Duration> {
    if pid.is_some_and(|pid| pid.parse() != Ok(own_pid)) {
        return None;
    }
    let microseconds: u64 = microseconds?.parse().ok().filter(|microseconds| *microseconds > 0)?;
    Some(Duration::from_micros(microseconds) / 2)
}

/// A path, or behind an `@` the name of an abstract socket.
fn connect(address: &str) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    match address.strip_prefix('@') {
        None => socket.connect(address)?,
        #[cfg(target_os = "linux")]
        Some(name) => {
            use std::os::linux::net::SocketAddrExt as _;
            use std::os::unix::net::SocketAddr;
            socket.connect_addr(&SocketAddr::from_abstract_name(name)?)?;
        }
        #[cfg(not(target_os = "linux"))]
        Some(_) => return Err(io::Error::other("only Linux has abstract sockets")),
    }
    socket.set_nonblocking(true)?;
    Ok(socket)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, what goes wrong should stop it")]
mod tests {
    use super::*;

    #[test]
    fn the_watchdog_is_notified_in_half_its_time_and_only_by_its_process() {
        let interval = |microseconds: &str, pid: Option<&str>| {
            watchdog_interval(Some(microseconds.to_owned()), pid.map(str::to_owned), 42)
        };
        assert_eq!(interval("30000000", None), Some(Duration::from_secs(15)));
        assert_eq!(interval("2", Some("42")), Some(Duration::from_micros(1)));
        assert_eq!(interval("30000000", Some("41")), None);
        assert_eq!(interval("0", None), None);
        assert_eq!(interval("soon", None), None);
        assert_eq!(watchdog_interval(None, None, 42), None);
    }

    #[tokio::test]
    async fn the_watchdog_is_notified_only_after_an_answer() {
        let (socket, manager) = UnixDatagram::pair().unwrap();
        manager.set_nonblocking(true).unwrap();
        let service_manager = ServiceManager { socket, watchdog_interval: None };
        let mut state = [0; 64];
        let interval = Duration::from_millis(1);
        let (answer, answered) = tokio::sync::oneshot::channel::<()>();
        let beat = service_manager.beat(interval, async { drop(answered.await) });
        tokio::pin!(beat);
        assert!(tokio::time::timeout(Duration::from_millis(20), &mut beat).await.is_err());
        assert_eq!(manager.recv(&mut state).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        answer.send(()).unwrap();
        beat.await;
        let bytes = manager.recv(&mut state).unwrap();
        assert_eq!(&state[..bytes], b"WATCHDOG=1");
    }
}
