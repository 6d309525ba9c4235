//! What all front-ends share: connection admission, throttles, and the encoding of large replies.
//!
//! - [`Admission`]: how many connections the process takes, derived from its limit of file descriptors
//! - [`RepeatedWarning`]: a log line that clients can cause, at most once a second
//! - [`AuthThrottle`]: a growing delay for sources that send wrong passwords
//! - [`Output`] and [`LargeReply`]: replies that are encoded piece by piece, as the client reads them
//! - [`Tls`]: certificates that can be reloaded, handshakes, encrypted connections
//! - [`TimedBatch`]: a log of slow commands
//! - [`http_word`] and [`warn_of_http`]: HTTP requests sent to another protocol's port

mod admission;
mod auth;
mod descriptors;
mod http;
mod large;
mod output;
mod slow;
mod tls;
mod warning;

pub use admission::{AUTHENTICATE_WITHIN, Admission, Admitted, Evicted, Full};
pub use auth::AuthThrottle;
pub use descriptors::{DESCRIPTORS_RESERVED, raise_descriptor_limit};
pub use http::{http_word, warn_of_http};
pub use large::{LargeReply, Pieces, Produced, encode_off_thread};
pub use output::{Output, PIECE_BYTES, SHARED_BYTES_MIN};
pub use slow::{CoarseInstant, TimedBatch, warn_if_slow};
pub use tls::{Tls, TlsError, TlsFiles, TlsStream};
pub use warning::RepeatedWarning;
