//! What tests of geartrain are made of: the cases that every backend takes, a naive model and random stories to compare
//! the engine with, and a clock that is set by hand.

pub mod clock;
pub mod conformance;
pub mod model;
pub mod story;
