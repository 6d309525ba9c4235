//! Packets of the current binary protocol: what clients and workers send ([`Request`]) and what a server
//! sends ([`Response`]).
//!
//! Arguments are bytes. Decoded packets hold them as [`Bytes`]; packets that are only encoded may borrow
//! them, as `Response<&[u8]>`.

mod arguments;
mod fault;
mod report;
mod request;
mod response;
mod submission;

use bytes::Bytes;

pub(crate) use arguments::{check_function, terminated};
pub use fault::Fault;
pub use report::{Report, ReportBody};
pub use request::{Grab, Request, is_exceptions_option};
pub use response::{Assignment, JobStatus, Response};
pub use submission::{Calendar, Mode, Priority, Submission};

/// Most bytes of a function name.
pub const FUNCTION_BYTES_MAX: usize = 4096;
/// Most bytes of a unique ID or a reducer name.
pub const UNIQUE_BYTES_MAX: usize = 64;
/// Most bytes of a client ID; the rest is cut off.
pub const CLIENT_ID_BYTES_MAX: usize = 127;

pub(crate) const REQUEST: [u8; 4] = *b"\0REQ";
pub(crate) const RESPONSE: [u8; 4] = *b"\0RES";
pub(crate) const HEADER_BYTES: usize = 12;

/// A packet that is framed but not decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// The number of its type.
    pub kind: u32,
    /// What follows the header: a slice of the read buffer.
    pub data: Bytes,
}

/// Adds `data_bytes` to the length in the header of an encoded packet whose data will follow. False if it is
/// not a packet.
pub(crate) fn extend_length(packet: &mut [u8], data_bytes: usize) -> bool {
    let whole = u32::try_from(packet.len().saturating_sub(HEADER_BYTES) + data_bytes);
    match (packet.get_mut(HEADER_BYTES - 4..HEADER_BYTES), whole) {
        (Some(length), Ok(whole)) => {
            length.copy_from_slice(&whole.to_be_bytes());
            true
        }
        _ => false,
    }
}

/// Packet types.
pub(crate) mod kind {
    pub(crate) const CAN_DO: u32 = 1;
    pub(crate) const CANT_DO: u32 = 2;
    pub(crate) const RESET_ABILITIES: u32 = 3;
    pub(crate) const PRE_SLEEP: u32 = 4;
    pub(crate) const NOOP: u32 = 6;
    pub(crate) const SUBMIT_JOB: u32 = 7;
    pub(crate) const JOB_CREATED: u32 = 8;
    pub(crate) const GRAB_JOB: u32 = 9;
    pub(crate) const NO_JOB: u32 = 10;
    pub(crate) const JOB_ASSIGN: u32 = 11;
    pub(crate) const WORK_STATUS: u32 = 12;
    pub(crate) const WORK_COMPLETE: u32 = 13;
    pub(crate) const WORK_FAIL: u32 = 14;
    pub(crate) const GET_STATUS: u32 = 15;
    pub(crate) const ECHO_REQ: u32 = 16;
    pub(crate) const ECHO_RES: u32 = 17;
    pub(crate) const SUBMIT_JOB_BG: u32 = 18;
    pub(crate) const ERROR: u32 = 19;
    pub(crate) const STATUS_RES: u32 = 20;
    pub(crate) const SUBMIT_JOB_HIGH: u32 = 21;
    pub(crate) const SET_CLIENT_ID: u32 = 22;
    pub(crate) const CAN_DO_TIMEOUT: u32 = 23;
    pub(crate) const ALL_YOURS: u32 = 24;
    pub(crate) const WORK_EXCEPTION: u32 = 25;
    pub(crate) const OPTION_REQ: u32 = 26;
    pub(crate) const OPTION_RES: u32 = 27;
    pub(crate) const WORK_DATA: u32 = 28;
    pub(crate) const WORK_WARNING: u32 = 29;
    pub(crate) const GRAB_JOB_UNIQ: u32 = 30;
    pub(crate) const JOB_ASSIGN_UNIQ: u32 = 31;
    pub(crate) const SUBMIT_JOB_HIGH_BG: u32 = 32;
    pub(crate) const SUBMIT_JOB_LOW: u32 = 33;
    pub(crate) const SUBMIT_JOB_LOW_BG: u32 = 34;
    pub(crate) const SUBMIT_JOB_SCHED: u32 = 35;
    pub(crate) const SUBMIT_JOB_EPOCH: u32 = 36;
    pub(crate) const SUBMIT_REDUCE_JOB: u32 = 37;
    pub(crate) const SUBMIT_REDUCE_JOB_BACKGROUND: u32 = 38;
    pub(crate) const GRAB_JOB_ALL: u32 = 39;
    pub(crate) const JOB_ASSIGN_ALL: u32 = 40;
    pub(crate) const GET_STATUS_UNIQUE: u32 = 41;
    pub(crate) const STATUS_RES_UNIQUE: u32 = 42;
}
