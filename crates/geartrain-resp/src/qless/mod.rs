//! The Qless API: a command's arguments in, one of ours out; and how the answer is told.
//!
//! Qless looks at arguments in a certain order and complains in certain words, and its clients rely on both. What it checks before it looks at a job is
//! checked here, what it checks of the job is the engine's to check, and `errors` puts that into Qless's words.

mod arguments;
mod decode;
mod errors;
mod json;
pub(crate) mod messages;
mod number;
mod reply;

use bytes::Bytes;
use geartrain_core::{Call, Jid};

pub(crate) use errors::reply as error;
pub(crate) use reply::{LargeReply, REPLY_BYTES_MAX, too_long, write};

/// The key of a payload that is not JSON, where JSON is meant: see [`Payload::to_json`](geartrain_core::Payload::to_json).
const BYTES: &str = "$bytes";

/// Which of Qless's commands was asked, as far as it matters for what a refusal is called.
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

/// What is remembered of a call until its answer is there.
#[derive(Debug, PartialEq)]
pub(crate) struct Asked {
    pub(crate) verb: Verb,
    pub(crate) echo: Echo,
}

/// What of the arguments is part of the reply.
#[derive(Debug, PartialEq)]
pub(crate) enum Echo {
    Nothing,
    Text(Bytes),
    Texts(Vec<Bytes>),
    Number(f64),
    /// One thing was asked for, where others ask for all.
    One,
    /// An argument is wrong, but Qless looks at the job first, and complains about that if it can. So the job is looked up and nothing else is done.
    Wrong {
        jid: Jid,
        message: String,
    },
}

/// Turns a call's arguments, which begin with the command, into a call of ours; or says what is wrong with them.
pub(crate) fn decode(arguments: &[Bytes]) -> Result<(Call, Asked), String> {
    decode::decode(arguments)
}
