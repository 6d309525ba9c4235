//! Resets: whether a client has closed its connection without reading all that was sent to it.

use geartrain_front::TlsStream;
use tokio::io::{AsyncWrite, AsyncWriteExt, WriteHalf};
use tokio::net::{tcp, unix};

/// The writing half of a connection.
pub(crate) trait Writer: AsyncWrite + Unpin + Send {
    /// Whether the client, which has closed the connection, left something unread. A client that has read
    /// everything, or has closed only its half of the connection, has not.
    fn is_reset(&mut self) -> impl Future<Output = bool> + Send;
}

/// The client's kernel answers what it cannot deliver any more with a TCP reset, which makes an empty write
/// fail.
impl Writer for tcp::OwnedWriteHalf {
    async fn is_reset(&mut self) -> bool {
        self.write(&[]).await.is_err()
    }
}

impl Writer for WriteHalf<TlsStream> {
    async fn is_reset(&mut self) -> bool {
        self.write(&[]).await.is_err()
    }
}

/// A write fails as soon as the client has closed the socket, whatever it has read. Only an unread rest is an
/// error of the socket.
impl Writer for unix::OwnedWriteHalf {
    async fn is_reset(&mut self) -> bool {
        matches!(self.as_ref().take_error(), Ok(Some(_)))
    }
}
