//! JSON over RESP: `FCALL geartrain_json 1 "" '{"put":{…}}'` (docs/formats/json.md). The reply is a document, or
//! `{"error": …}`.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use geartrain_core::Backend;
use geartrain_json::{OperationError, Outcome, Queue, Request};
use tokio_util::sync::CancellationToken;

const NAME: &[u8] = b"geartrain_json";

/// Whether a call is one of JSON.
pub(crate) fn is_json(request: &[Bytes]) -> bool {
    request.get(1).is_some_and(|name| name.eq_ignore_ascii_case(NAME))
}

/// A request that executes as soon as it is polled.
pub(crate) struct Executing {
    pub(crate) outcome: Pin<Box<dyn Future<Output = Outcome> + Send>>,
    /// It waits for something: it may take long, and ends when the client is gone.
    pub(crate) waits: bool,
    /// It is executed in steps, between which other batches may come.
    pub(crate) has_steps: bool,
}

/// Reads a call. The error is that of a call that is none of ours; errors of the JSON are documents.
pub(crate) fn read(
    request: &[Bytes],
    backend: &Arc<dyn Backend>,
    caller: Arc<str>,
    stop: &CancellationToken,
) -> Result<Executing, String> {
    let [_, _, keys, rest @ ..] = request else {
        return Err("ERR wrong number of arguments for 'fcall' command".to_owned());
    };
    let (true, [namespace, json]) = (keys == "1", rest) else {
        return Err("ERR geartrain_json has one key, the namespace, and one argument, the JSON".to_owned());
    };
    if !namespace.is_empty() {
        return Err("ERR a geartrain server has one namespace: it must be empty".to_owned());
    }
    let sleep = |wait| -> Pin<Box<dyn Future<Output = ()> + Send>> { Box::pin(tokio::time::sleep(wait)) };
    let queue = Queue::new(backend.clone(), Some(caller), sleep);
    let request = match Request::read(json, &queue.times()) {
        Ok(request) => request,
        Err(error) => {
            let outcome = Box::pin(std::future::ready(Err(error)));
            return Ok(Executing { outcome, waits: false, has_steps: false });
        }
    };
    let (waits, has_steps) = (request.waits(), !request.is_one_batch());
    let stop = stop.clone();
    let outcome = Box::pin(async move {
        if !waits {
            return request.execute(&queue).await;
        }
        tokio::select! {
            // First, so that a job that was popped already is not lost.
            biased;
            outcome = request.execute(&queue) => outcome,
            () = stop.cancelled() => Err(OperationError::new("unavailable", "the server is stopping")),
        }
    });
    Ok(Executing { outcome, waits, has_steps: has_steps && !waits })
}
