//! What all front-ends share: connection admission, throttles, and the encoding of large replies.
//!
//! - [`Admission`]: how many connections the process takes, derived from its limit of file descriptors
//! - [`RepeatedWarning`]: a log line that clients can cause, at most once a second
//! - [`AccessControl`]: access keys, their roles, the password, and a growing delay for sources that send wrong
//!   ones; [`GuardedBackend`]: what a caller may do
//! - [`AuditLog`]: who changed what
//! - [`Output`] and [`LargeReply`]: replies that are encoded piece by piece, as the client reads them
//! - [`Tls`]: certificates that can be reloaded, handshakes, encrypted connections
//! - [`SocketFile`]: a Unix socket that clients find by its file
//! - [`TimedBatch`]: a log of slow commands
//! - [`http_word`] and [`warn_of_http`]: HTTP requests sent to another protocol's port

mod access;
mod admission;
mod audit;
mod descriptors;
mod http;
mod large;
mod output;
mod slow;
mod socket_file;
mod tls;
mod warning;

pub use access::{
    AccessControl, AccessKey, Caller, DEFAULT_USER, GuardedBackend, Identity, KEY_PREFIX, KeyFileError,
    change_keys, is_key_name, new_access_key, read_keys,
};
pub use admission::{AUTHENTICATE_WITHIN, Admission, Admitted, Evicted, FrontEnd, Full};
pub use audit::{AuditEvent, AuditLog, AuditPage, AuditRecord, AuditScope, read_audit};
pub use descriptors::{DESCRIPTORS_RESERVED, raise_descriptor_limit};
pub use http::{http_word, warn_of_http};
pub use large::{LargeReply, Pieces, Produced, encode_off_thread};
pub use output::{Output, PIECE_BYTES, SHARED_BYTES_MIN};
pub use slow::{CoarseInstant, TimedBatch, warn_if_slow};
pub use socket_file::SocketFile;
pub use tls::{Tls, TlsError, TlsFiles, TlsStream};
pub use warning::RepeatedWarning;
