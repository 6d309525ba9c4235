//! What tests of geartrain are made of: the cases that every backend takes, a naive model and random stories to compare
//! the engine with, a clock that is set by hand, and a disk that fails when it is told to.

pub mod clock;
pub mod conformance;
pub mod disk;
pub mod model;
pub mod peers;
mod scale;
pub mod trace;

pub use scale::scaled;
