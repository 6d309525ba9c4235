//! Integration tests of the worker.

mod handlers;
mod interruption;
mod layers;
mod order;
mod outage;
mod resume;
mod shutdown;
mod support;
