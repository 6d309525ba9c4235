//! Saying at once that something has come, where no answer says it.
//!
//! Many workers report on a job in one write and ask for the next in another, over a socket that holds the second back until the first is acknowledged.
//! Reports are not answered, and a kernel that waits for an answer to send its acknowledgement along with waits 40 ms: for each job.

use tokio::io::ReadHalf;
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;
use tokio_rustls::server::TlsStream;

/// What a peer is read from.
pub(crate) trait QuickAck {
    /// Has what was read acknowledged now.
    fn quick_ack(&self);
}

impl QuickAck for OwnedReadHalf {
    fn quick_ack(&self) {
        // Elsewhere there is no word for it. Without it nothing goes wrong, it only takes longer.
        #[cfg(target_os = "linux")]
        let _ = self.as_ref().set_quickack(true);
    }
}

impl QuickAck for ReadHalf<TlsStream<TcpStream>> {
    /// The socket is out of reach here, and takes its time.
    fn quick_ack(&self) {}
}
