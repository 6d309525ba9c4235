//! Commands and scripts of a layout, and why they fail.

use geartrain_core::{BackendError, QueueName, Refusal, Token};
use redis::{Cmd, FromRedisValue, ToRedisArgs, cmd};
use std::sync::Arc;

use super::{Layout, Script};
use crate::connection::ConnectionError;
use crate::driver::Shared;

/// Most queues of one pop, as in all backends.
const QUEUES_MAX: usize = 1_024;
/// Keys that one SCAN looks at.
const SCAN_COUNT: usize = 1_000;

/// Why a command failed: refused, or no reply.
#[derive(Debug)]
pub(crate) enum CallError {
    Refused(Refusal),
    Connection(ConnectionError),
}

impl CallError {
    pub(crate) fn into_backend<L: Layout>(self) -> BackendError {
        match self {
            CallError::Refused(refusal) => refusal.into(),
            CallError::Connection(error) => {
                BackendError::Broken { backend: L::NAME, source: Box::new(error) }
            }
        }
    }
}

impl From<Refusal> for CallError {
    fn from(refusal: Refusal) -> CallError {
        CallError::Refused(refusal)
    }
}

impl From<ConnectionError> for CallError {
    fn from(error: ConnectionError) -> CallError {
        CallError::Connection(error)
    }
}

/// The refusal for what a layout has no notion of.
pub(crate) fn unsupported(backend: &'static str, operation: &'static str) -> Refusal {
    Refusal::Unsupported { operation: operation.into(), backend: backend.into() }
}

/// Whether a key of another type stands where a key of the layout would be: no retry changes that.
pub(crate) fn is_wrong_type(error: &ConnectionError) -> bool {
    // Older versions name the error of a script differently.
    matches!(error, ConnectionError::Redis(error) if error.to_string().contains("WRONGTYPE"))
}

/// Sends one command until there is a reply or the URL's patience is over. It may be executed twice.
pub(crate) async fn ask<T: FromRedisValue>(
    shared: &Arc<Shared>,
    command: &Cmd,
) -> Result<T, ConnectionError> {
    let value = shared.command(command).await?;
    let unexpected = |_| ConnectionError::InvalidReply("expected another kind of value from this command");
    redis::from_redis_value(value).map_err(unexpected)
}

/// Runs a script. Loads it first if the Redis does not have it.
pub(crate) async fn run<T: FromRedisValue>(
    shared: &Arc<Shared>,
    script: &Script,
    keys: &[&str],
    arguments: impl ToRedisArgs,
) -> Result<T, ConnectionError> {
    let call = |verb: &str, text: &str| cmd(verb).arg(text).arg(keys.len()).arg(keys).arg(&arguments).take();
    match ask(shared, &call("EVALSHA", script.sha())).await {
        Err(ConnectionError::Redis(error)) if error.code() == Some("NOSCRIPT") => {
            ask(shared, &call("EVAL", script.text())).await
        }
        reply => reply,
    }
}

/// All keys of a type whose names match a pattern, by a search of all keys.
pub(crate) async fn keys_like(
    shared: &Arc<Shared>,
    pattern: &str,
    kind: &str,
) -> Result<Vec<Vec<u8>>, ConnectionError> {
    let (mut found, mut cursor) = (Vec::new(), "0".to_owned());
    loop {
        let mut scan = cmd("SCAN");
        scan.arg(&cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(SCAN_COUNT).arg("TYPE").arg(kind);
        let (next, keys): (String, Vec<Vec<u8>>) = ask(shared, &scan).await?;
        found.extend(keys);
        cursor = next;
        if cursor == "0" {
            return Ok(found);
        }
    }
}

/// A token that no other attempt has.
pub(crate) fn new_token() -> Token {
    // The lower half of such an id is 62 random bits and a constant.
    Token::new(uuid::Uuid::now_v7().as_u64_pair().1)
}

/// Refuses a pop of no queue or of too many.
pub(crate) fn check_queues(queues: &[QueueName]) -> Result<(), Refusal> {
    if (1..=QUEUES_MAX).contains(&queues.len()) {
        return Ok(());
    }
    let why = format!("must be 1 to {QUEUES_MAX}, not {}", queues.len());
    Err(Refusal::BadArgument { what: "queues".into(), why })
}
