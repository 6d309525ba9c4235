//! From a URL to a queue.

use std::sync::Arc;

use geartrain_store::{StoreBackend, SystemClock};

use crate::{Client, Error};

/// Opens the queue that a URL names.
///
/// | URL | queue |
/// |---|---|
/// | `memory:` | in this process, and gone with it |
///
/// ```
/// # pollster::block_on(async {
/// assert!(geartrain::connect("memory:").await.is_ok());
/// let error = geartrain::connect("carrier-pigeon:").await.err().expect("nobody knows such a queue");
/// assert_eq!(error.to_string(), r#""carrier-pigeon:" is not the URL of a queue: try memory:"#);
/// # });
/// ```
pub async fn connect(url: &str) -> Result<Client, Error> {
    match url {
        "memory:" => Ok(Client::new(Arc::new(StoreBackend::in_memory(Arc::new(SystemClock))?))),
        _ => Err(Error::Url { url: url.to_owned(), why: "try memory:" }),
    }
}
