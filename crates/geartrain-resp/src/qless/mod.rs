//! The Qless API: decodes a command's arguments into one of ours, and encodes the answer.
//!
//! Qless checks arguments in a fixed order with fixed texts, and its clients rely on both. What it checks
//! before it reads the job is checked here; what it checks of the job is up to the engine, and `errors`
//! translates refusals into Qless's texts.

mod arguments;
mod decode;
mod errors;
mod json;
pub(crate) mod messages;
mod number;
mod reply;
mod unknown_options;

use bytes::Bytes;
use geartrain_core::{Call, Jid};

pub(crate) use errors::{refused, reply as error};
pub(crate) use reply::{LargeReply, REPLY_BYTES_MAX, too_long, write};

/// The key that marks a binary payload in JSON: see [`Payload::to_json`](geartrain_core::Payload::to_json).
const BYTES: &str = "$bytes";

/// Qless's command, as far as the text of a refusal depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Heartbeat,
    Complete,
    Fail,
    Retry,
    Timeout,
    Priority,
    Depends,
    Log,
    Track,
    Tag,
    Requeue,
    RecurUpdate,
    RecurTag,
    RecurUntag,
    Other,
}

/// What the reply to a call needs besides the answer.
#[derive(Debug, PartialEq)]
pub(crate) struct CallContext {
    pub(crate) verb: Verb,
    pub(crate) echo: Echo,
}

/// The arguments that are part of the reply.
#[derive(Debug, PartialEq)]
pub(crate) enum Echo {
    Nothing,
    Text(Bytes),
    Texts(Vec<Bytes>),
    Number(f64),
    /// A single item was context for, not a list.
    One,
    /// An argument is wrong, but Qless checks the job first. So the job is read, and nothing else is done.
    Wrong {
        jid: Jid,
        message: String,
    },
}

/// Decodes the arguments of a call, the command first; or returns Qless's error.
pub(crate) fn decode(arguments: &[Bytes]) -> Result<(Call, CallContext), String> {
    decode::decode(arguments)
}
