//! Spill: payloads that live in files instead of memory.
//!
//! [`policy`] decides which payloads leave memory and when, [`files`] is their format on disk, [`fetch`]
//! reads them back into replies, and [`large`] writes a large payload to a file of its own before its command
//! is executed.

pub(crate) mod fetch;
pub(crate) mod files;
pub(crate) mod large;
pub(crate) mod policy;
