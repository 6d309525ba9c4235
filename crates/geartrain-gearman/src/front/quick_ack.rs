//! TCP_QUICKACK: acknowledges received data at once where no reply will carry the acknowledgement.
//!
//! Many workers report on a job in one write and ask for the next in another, and their kernel holds the
//! second back until the first is acknowledged (Nagle's algorithm). Reports are not answered, so the delayed
//! acknowledgement of this side would cost 40 ms per job.

use geartrain_front::TlsStream;
use tokio::io::ReadHalf;
use tokio::net::tcp::OwnedReadHalf;
use tokio::net::unix;

/// The reading half of a connection.
pub(crate) trait QuickAck {
    /// Acknowledges what was read, now.
    fn quick_ack(&self);
}

impl QuickAck for OwnedReadHalf {
    fn quick_ack(&self) {
        // Linux only. Elsewhere, and if it fails, the acknowledgement is just later.
        #[cfg(target_os = "linux")]
        let _ = self.as_ref().set_quickack(true);
    }
}

impl QuickAck for ReadHalf<TlsStream> {
    /// The socket is not accessible here.
    fn quick_ack(&self) {}
}

impl QuickAck for unix::OwnedReadHalf {
    /// Nothing is acknowledged there.
    fn quick_ack(&self) {}
}
