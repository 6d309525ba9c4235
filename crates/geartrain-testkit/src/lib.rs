//! What tests of geartrain are made of: the cases that every backend takes, a naive model and random stories to compare
//! the engine with, a clock that is set by hand, a disk
//! that fails when it is told to, and clients that remember what they were promised.

pub mod clock;
pub mod conformance;
pub mod crowd;
pub mod disk;
pub mod model;
pub mod peers;
mod scale;
pub mod story;

pub use scale::scaled;
