//! Service notifications for systemd (sd_notify): ready, stopping, and a watchdog that proves that the engine
//! answers.

use std::env;
use std::io;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use geartrain_front::RepeatedWarning;

static NOT_SENT: RepeatedWarning = RepeatedWarning::new();
static NO_ANSWER: RepeatedWarning = RepeatedWarning::new();

/// A service manager that wants to be notified.
#[derive(Debug)]
pub struct ServiceManager {
    socket: UnixDatagram,
    /// Named in each notification: a connected socket would be of no use when the service manager has been
    /// restarted and has bound its address anew.
    address: SocketAddr,
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
        match open(&address) {
            Ok((socket, address)) => Some(ServiceManager { socket, address, watchdog_interval: watchdog }),
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
        if let Err(error) = self.socket.send_to_addr(state.as_bytes(), &self.address) {
            NOT_SENT.warn(format_args!("cannot notify the service manager at NOTIFY_SOCKET: {error}"));
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

/// A socket that does not block, and the address: a path, or behind an `@` the name of an abstract socket.
fn open(address: &str) -> io::Result<(UnixDatagram, SocketAddr)> {
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    let address = match address.strip_prefix('@') {
        None => SocketAddr::from_pathname(address)?,
        #[cfg(target_os = "linux")]
        Some(name) => {
            use std::os::linux::net::SocketAddrExt as _;
            SocketAddr::from_abstract_name(name)?
        }
        #[cfg(not(target_os = "linux"))]
        Some(_) => return Err(io::Error::other("only Linux has abstract sockets")),
    };
    Ok((socket, address))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, what goes wrong should stop it")]
mod tests {
    use std::path::Path;

    use geartrain_testkit::peers::Scratch;

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

    /// A service manager that listens at a path, and our side of it.
    fn service_manager_at(path: &Path) -> (UnixDatagram, ServiceManager) {
        let manager = UnixDatagram::bind(path).unwrap();
        manager.set_nonblocking(true).unwrap();
        let (socket, address) = open(path.to_str().unwrap()).unwrap();
        (manager, ServiceManager { socket, address, watchdog_interval: None })
    }

    fn received(manager: &UnixDatagram) -> io::Result<String> {
        let mut state = [0; 64];
        let bytes = manager.recv(&mut state)?;
        Ok(String::from_utf8_lossy(&state[..bytes]).into_owned())
    }

    #[tokio::test]
    async fn the_watchdog_is_notified_only_after_an_answer() {
        let scratch = Scratch::new("watchdog");
        let (manager, service_manager) = service_manager_at(&scratch.path().join("notify"));
        let interval = Duration::from_millis(1);
        let (answer, answered) = tokio::sync::oneshot::channel::<()>();
        let beat = service_manager.beat(interval, async { drop(answered.await) });
        tokio::pin!(beat);
        assert!(tokio::time::timeout(Duration::from_millis(20), &mut beat).await.is_err());
        assert_eq!(received(&manager).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        answer.send(()).unwrap();
        beat.await;
        assert_eq!(received(&manager).unwrap(), "WATCHDOG=1");
    }

    #[tokio::test]
    async fn a_service_manager_that_was_restarted_is_notified_again() {
        let (scratch, interval) = (Scratch::new("watchdog"), Duration::from_secs(60));
        let path = scratch.path().join("notify");
        let (first, service_manager) = service_manager_at(&path);
        service_manager.beat(interval, async {}).await;
        assert_eq!(received(&first).unwrap(), "WATCHDOG=1");
        drop(first);
        // Meanwhile none listens.
        service_manager.beat(interval, async {}).await;
        std::fs::remove_file(&path).unwrap();
        let second = UnixDatagram::bind(&path).unwrap();
        service_manager.beat(interval, async {}).await;
        second.set_nonblocking(true).unwrap();
        assert_eq!(received(&second).unwrap(), "WATCHDOG=1");
    }
}
